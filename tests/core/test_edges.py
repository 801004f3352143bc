"""Where limits get in each other's way: each edge fires where it should, and nowhere else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from safewrite.core.edges import Edge, Ours, edges, of_tool
from safewrite.core.runtime import CONNECT, IDLE, TOOL, Server, budgets

FINE = Ours(
    call=20.5, backstop=50.5, share=0.25, floor=0.5, grace=0.5, keepalive=20.0, keepalive_from="default",
    lease_margin=5.0, sqlite=True, busy=5.0, client=20.0, host=60.0,
)  # fmt: skip


def found(
    transport: str = "http", own: float | None = None, env: dict[str, str] | None = None, **ours: Any
) -> Any:
    """Return the edges of one server, by code."""
    resolved = budgets(env or {}, {}, [Server("s", transport, own)])
    return {edge.code: edge for edge in edges(resolved, replace(FINE, **ours))}


def test_limits_that_fit_have_no_edge() -> None:
    """The defaults, with a client and a host whose limits are known."""
    assert found("http") == found("stdio") == found("sdk") == {}


@pytest.mark.parametrize(
    ("code", "problem", "given", "said"),
    [
        ("first_turn_wait", True, {"env": {CONNECT: "7200000"}}, "lets the first turn wait up to 7195 s"),
        ("connect_lowered", False, {"env": {CONNECT: "5000"}}, "deadline for connecting as well"),
        ("keepalive_slower", True, {"env": {IDLE: "20000"}}, "`idle` = 20 s (set by the runtime)"),
        ("idle_raised_alone", True, {"env": {IDLE: "600000"}}, "near 358 s: only progress"),
        ("idle_raised_alone", True, {"env": {IDLE: "0"}}, "is off (`CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT`, set"),
        ("idle_raised_alone", True, {"own": 600_000}, "is 600 s (by the server's own timeout)"),
        ("ours_longer", True, {"env": {TOOL: "20500"}}, "a call of ours may take 20.5 s"),
        ("backstop_beyond", True, {"env": {TOOL: "45000"}}, "when the runtime's tool timeout of 45 s is over"),
        ("backstop_inside", True, {"backstop": 20.5}, "backstop of 20.5 s is not later than the inner limit of 20.5 s"),
        ("client_shorter", True, {"client": 14.9}, "the client's limit, is 14.9 s, and an attempt has up to 15 s"),
        ("client_shorter", False, {"client": None}, "httpx's own limit, where a client is given none, is 5 s"),
        ("host_limit_unset", False, {"host": None}, "a longer budget may buy a broken request"),
        ("host_limit_short", True, {"host": 50.5}, "`host_limit` = 50.5 s is not later than the backstop of 50.5 s"),
        ("ledger_beyond_backstop", True, {"busy": 5.0, "backstop": 25.5}, "= 5 s after a call of 20.5 s"),
        ("ledger_takes_all", True, {"busy": 20.5, "lease_margin": 30.0}, "= 20.5 s is not shorter than a"),
        ("ledger_beyond_lease", False, {"busy": 6.0}, "longer than `lease_margin` + `grace`"),
        ("ledger_beyond_lease", False, {"busy": 6.0, "sqlite": False}, "`connect_timeout` + `statement_timeout` = 6 s"),
        ("ledger_never_waits", True, {"busy": 0.0}, "one is refused at once"),
    ],
)  # fmt: skip
def test_an_edge_is_named_with_its_numbers(
    code: str, problem: bool, given: dict[str, Any], said: str
) -> None:
    """It comes alone, for nothing else is wrong there; and it says whether it is a problem."""
    told = found(**given)
    assert list(told) == [code]
    assert (told[code].problem, said in told[code].words) == (problem, True), told[code]
    assert told[code].server == (
        "s" if code in ("keepalive_slower", "idle_raised_alone", "ours_longer", "backstop_beyond") else ""
    )


@pytest.mark.parametrize(
    "given",
    [
        {"env": {CONNECT: "65000"}},  # the first turn waits a minute
        {"env": {CONNECT: "30000"}},
        {"env": {IDLE: "20001"}},
        {"env": {IDLE: "358000"}},
        {"transport": "stdio", "env": {IDLE: "1800000"}},  # that is the transport's own
        {"transport": "stdio", "env": {IDLE: "600000"}},
        {"transport": "sdk", "env": {IDLE: "600000"}},
        {"env": {IDLE: "0", TOOL: "358000"}},  # the tool's own limit comes first
        {"env": {TOOL: "50501"}},
        {"client": 15.0},
        {"host": 50.6},
        {"backstop": 25.6},
        {"busy": 5.5},
        {"busy": 0.0, "sqlite": False},
    ],
)  # fmt: skip
def test_a_limit_that_just_fits_is_no_edge(given: dict[str, Any]) -> None:
    """The other side of each of those numbers."""
    assert found(**given) == {}


def test_keepalives_cannot_hold_off_a_tool_timeout_of_10_s() -> None:
    """It makes the idle limit 10 s, and our call longer than the runtime's."""
    assert list(found(env={TOOL: "10000"})) == ["ours_longer", "keepalive_slower"]


@pytest.mark.parametrize(
    ("keyed", "reads", "settles", "edge"),
    [
        (True, False, False, None),
        (False, True, True, None),
        (False, False, True, True),
        (False, True, False, False),
    ],
)
def test_a_write_whose_unknown_never_ends_is_named(
    keyed: bool, reads: bool, settles: bool, edge: bool | None
) -> None:
    """Without a key and a read it is a problem; a read without an end to what it looks for is to be borne in mind."""
    told = of_tool("cancel", keyed=keyed, reads=reads, settles=settles)
    assert (None if told is None else told.problem) == edge
    assert told is None or (isinstance(told, Edge) and told.words.startswith("`cancel`: its dependency"))
