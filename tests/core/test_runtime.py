"""What the time settings of an agent runtime come to: precedence, and the client's own formulas, number by number."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from safewrite.core.runtime import (
    CONNECT,
    IDLE,
    MANAGED,
    MOST,
    TOOL,
    Limits,
    Server,
    budgets,
    connect_deadline,
    fetch_deadline,
    first_turn_wait,
    idle_deadline,
    tool_timeout,
    unverified,
)

H = 7_200_000  # two hours


def limits(transport: str = "http", own: float | None = None, **texts: str) -> Limits:
    """Return what these texts, set by the executor, come to for one server."""
    (one,) = budgets(texts, {}, [Server("s", transport, own)]).servers
    return one


@pytest.mark.parametrize("text", [None, "", "0", "-5", "-30000", "soon", "nan", "inf", "1e", "1_000", "0.5"])
def test_an_unusable_connect_deadline_is_30_s(text: str | None) -> None:
    """Absent, 0, negative or no number."""
    assert connect_deadline(text) == 30_000


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1", 1),
        (" 60000 ", 60_000),
        ("7200000", H),
        ("2147483647", MOST),
        ("2147483648", MOST),
        ("9" * 18, MOST),
    ],
)
def test_a_connect_deadline_is_clamped_to_what_a_timer_holds(text: str, milliseconds: int) -> None:
    """2147483647 ms, and no lower limit."""
    assert connect_deadline(text) == milliseconds


@pytest.mark.parametrize(
    ("connect", "wait"),
    [(30_000, 25_000), (7_500, 2_500), (7_499, 2_499), (6_000, 2_000), (10, 3), (1, 0), (H, 7_195_000)],
)
def test_the_first_turn_waits(connect: int, wait: int) -> None:
    """max(t - 5000, floor(t / 3)): two hours of a deadline of two hours."""
    assert first_turn_wait(connect) == wait


@pytest.mark.parametrize(
    ("own", "text", "milliseconds"),
    [
        (None, None, 100_000_000),
        (None, "soon", 100_000_000),
        (None, "60000", 60_000),
        (None, "10", 1_000),
        (None, "0", 1_000),
        (None, "-5", 1_000),
        (None, "9999999999", MOST),
        (1_000, "60000", 1_000),
        (999, "60000", 60_000),
        (0, None, 100_000_000),
        (9e12, None, MOST),
    ],
)
def test_a_tool_timeout_is_the_servers_own_or_the_setting(
    own: float | None, text: str | None, milliseconds: int
) -> None:
    """clamp(per-server value if >= 1000, else MCP_TOOL_TIMEOUT, unset 1e8; 1000, 2147483647)."""
    assert tool_timeout(own, text) == milliseconds


@pytest.mark.parametrize(
    ("tool", "connect", "milliseconds"),
    [(10_000, 30_000, 60_000), (10_000, 90_000, 90_000), (H, 30_000, H), (60_000, 30_000, 60_000)],
)
def test_a_request_may_take(tool: int, connect: int, milliseconds: int) -> None:
    """max(clamp(tool, 60000, ...), t)."""
    assert fetch_deadline(tool, connect) == milliseconds


@pytest.mark.parametrize(
    ("transport", "milliseconds"),
    [
        ("stdio", 1_800_000), ("", 1_800_000), ("http", 300_000), ("sse-ide", None), ("ws-ide", None), ("sdk", None),
        ("sse", 300_000),
    ],
)  # fmt: skip
def test_the_idle_limit_goes_by_the_transport(transport: str, milliseconds: int | None) -> None:
    """A missing type is stdio; one that is not on the list counts as http; three have none, whatever is set."""
    assert limits(transport).idle == milliseconds
    if milliseconds is None:
        assert limits(transport, CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT="10000").idle is None


@pytest.mark.parametrize(
    ("text", "own", "tool", "milliseconds"),
    [
        ("600000", None, H, 600_000),
        ("10000", 45_000, 45_000, 45_000),  # what the server asks for, if that is longer
        ("10000", 999, H, 10_000),
        ("200", None, H, 1_000),  # never below a second
        ("600000", None, 60_000, 60_000),  # never beyond the tool's own limit
        ("1", None, H, 1_000),
        ("0", None, H, None),
        ("-1", None, H, None),
        ("soon", None, H, 300_000),
    ],
)
def test_an_idle_setting_is_held_between_its_limits(
    text: str, own: float | None, tool: int, milliseconds: int | None
) -> None:
    """min(max(idle, per-server, 1 s), tool timeout); 0 or less turns it off."""
    assert idle_deadline("http", text, own, tool) == milliseconds


def test_a_servers_own_limit_is_that_of_its_calls() -> None:
    """Of how long one may take, of each request of it, and of when a silent one ends."""
    assert limits(own=90_000) == Limits("s", "http", 90_000, 90_000, 90_000, 25_000 + 90_000)


def test_a_tool_timeout_of_10_s_makes_the_idle_limit_10_s() -> None:
    """And a silent call of the first turn ends about 35 s after the launch, with 30 s for connecting."""
    for transport in ("stdio", "http"):
        found = limits(transport, MCP_TOOL_TIMEOUT="10000")
        assert (found.tool, found.idle, found.silent) == (10_000, 10_000, 35_000)
    silent = limits(CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT="10000", MCP_TIMEOUT="30000")
    assert (silent.idle, silent.silent) == (10_000, 35_000)
    assert limits("sdk", MCP_TOOL_TIMEOUT="10000").silent == 35_000


@pytest.mark.parametrize(
    ("executor", "profile", "value", "origin", "overrode"),
    [
        ({}, {}, "30000", "managed defaults", ["client"]),
        ({}, {CONNECT: "60000"}, "60000", "agent profile", ["managed defaults", "client"]),
        (
            {CONNECT: "9"},
            {CONNECT: "60000"},
            "9",
            "executor",
            ["agent profile", "managed defaults", "client"],
        ),
        ({CONNECT: ""}, {CONNECT: "60000"}, "", "executor", ["agent profile", "managed defaults", "client"]),
    ],
)
def test_a_higher_origin_that_exists_wins(
    executor: Mapping[str, str], profile: Mapping[str, str], value: str, origin: str, overrode: list[str]
) -> None:
    """Executor, agent profile, managed defaults, client: also where what it says cannot be used."""
    given = budgets(executor, profile).given[0]
    assert (given.value, given.origin, [lost for lost, _ in given.overrode]) == (value, origin, overrode)


def test_each_override_names_winner_and_loser() -> None:
    """One sentence for each, with both values."""
    assert budgets({CONNECT: "9"}, {CONNECT: "60000"}).overrides[0] == (
        "MCP_TIMEOUT: executor (9) wins over agent profile (60000)"
    )
    assert len(budgets({CONNECT: "9"}, {CONNECT: "60000"}).overrides) == 4  # and one of MCP_TOOL_TIMEOUT


def test_managed_defaults_are_written_out_even_where_equal_to_the_clients() -> None:
    """30000 and 7200000: the next version of the client may have others."""
    assert MANAGED == {CONNECT: "30000", TOOL: "7200000"}
    assert budgets({}, {}).environment == MANAGED
    assert budgets({}, {IDLE: "60000", "PATH": "/bin"}).environment == {**MANAGED, IDLE: "60000"}


def test_other_versions_are_unverified() -> None:
    """One that is not known, too."""
    assert unverified({"cli": "2.1.258", "agent_sdk": "0.3.257"}) == ()
    newer, unknown = unverified({"cli": "2.1.259", "agent_sdk": None})
    assert newer == "cli 2.1.259 is unverified: the formulas are those of 2.1.258."
    assert unknown == "agent_sdk (its version is not known) is unverified: the formulas are those of 0.3.257."
