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
    ("code", "problem", "given", "words"),
    [
        ("first_turn_wait", True, {"env": {CONNECT: "7200000"}},
         ("`MCP_TIMEOUT` = 7200 s (set by executor) lets the first turn wait up to 7195 s for a server "
          "that does not connect. For longer tool calls raise `MCP_TOOL_TIMEOUT` instead.")),
        ("connect_lowered", False, {"env": {CONNECT: "5000"}},
         ("`MCP_TIMEOUT` = 5 s (set by executor) makes the first turn wait 1.666 s, but is the deadline "
          "for connecting as well: a server that starts slower is missing. The wait comes once a launch, "
          "with any MCP server configured.")),
        ("keepalive_slower", True, {"env": {IDLE: "20000"}},
         ("The idle limit `idle` = 20 s (set by the runtime) is not longer than the keepalive interval "
          "`keepalive` = 20 s (set by default), so every slow call would be cut off. Make the interval a "
          "third of the idle limit, or less.")),
        ("idle_raised_alone", True, {"env": {IDLE: "600000"}},
         ("the idle limit is 600 s (`CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT`, set by executor), but a second "
          "ceiling of the client was measured near 358 s: only progress carries a call further. Send "
          "keepalives.")),
        ("idle_raised_alone", True, {"env": {IDLE: "0"}},
         ("the idle limit is off (`CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT`, set by executor), but a second "
          "ceiling of the client was measured near 358 s: only progress carries a call further. Send "
          "keepalives.")),
        ("idle_raised_alone", True, {"own": 600_000},
         ("the idle limit is 600 s (by the server's own timeout), but a second ceiling of the client was "
          "measured near 358 s: only progress carries a call further. Send keepalives.")),
        ("ours_longer", True, {"env": {TOOL: "20500"}},
         ("a call of ours may take 20.5 s, and the runtime's tool timeout of 20.5 s is not longer: it "
          "gives up first, and nobody hears the outcome. Open runs with a deadline below 20.5 s.")),
        ("backstop_beyond", True, {"env": {TOOL: "45000"}},
         "the backstop answers after 50.5 s, when the runtime's tool timeout of 45 s is over."),
        ("backstop_inside", True, {"backstop": 20.5},
         ("the backstop of 20.5 s is not later than the inner limit of 20.5 s, and would answer in place "
          "of whoever knows more. Name that limit in `Backstop(inner=...)`.")),
        ("client_shorter", True, {"client": 14.9},
         ("the client's limit is 14.9 s, and an attempt has up to 15 s: it would be unknown long before "
          "that. Pass `timeout=attempt.timeout`.")),
        ("client_shorter", False, {"client": None},
         ("httpx's own limit, where a client is given none, is 5 s, and an attempt has up to 15 s: it "
          "would be unknown long before that. Pass `timeout=attempt.timeout`.")),
        ("host_limit_unset", False, {"host": None},
         ("`host_limit`, what the proxy, worker or job around this allows, is not known: a longer budget "
          "may buy a broken request.")),
        ("host_limit_short", True, {"host": 50.5},
         ("`host_limit` = 50.5 s is not later than the backstop of 50.5 s, so the host would break the "
          "request off first.")),
        ("ledger_beyond_backstop", True, {"busy": 5.0, "backstop": 25.5},
         ("`busy_timeout` = 5 s after a call of 20.5 s ends at or after the backstop of 25.5 s: an outcome "
          "that waits for the ledger would be answered over.")),
        ("ledger_takes_all", True, {"busy": 20.5, "lease_margin": 30.0},
         ("`busy_timeout` = 20.5 s is not shorter than a call of 20.5 s: one lock can use up the whole of "
          "it.")),
        ("ledger_beyond_lease", False, {"busy": 6.0},
         ("`busy_timeout` = 6 s is longer than `lease_margin` + `grace`: a lease can run out while its "
          "outcome waits for the ledger, and another worker looks for nothing.")),
        ("ledger_beyond_lease", False, {"busy": 6.0, "sqlite": False},
         ("`connect_timeout` + `statement_timeout` = 6 s is longer than `lease_margin` + `grace`: a lease "
          "can run out while its outcome waits for the ledger, and another worker looks for nothing.")),
        ("ledger_never_waits", True, {"busy": 0.0},
         "`busy_timeout` = 0: of two writes at once over SQLite one is refused at once."),
    ],
)  # fmt: skip
def test_an_edge_is_named_with_its_numbers(
    code: str, problem: bool, given: dict[str, Any], words: str
) -> None:
    """It comes alone, for nothing else is wrong there; and it says whether it is a problem."""
    told = found(**given)
    assert list(told) == [code]
    assert (told[code].problem, told[code].words) == (problem, words)
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
        {"transport": "ws-ide", "env": {IDLE: "600000"}},
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


def test_the_other_side_of_a_tool_timeout_and_of_a_transport_nobody_listed() -> None:
    """A backstop that answers when the tool's time is just over is too late; what is not listed counts as http."""
    assert list(found(env={TOOL: "50500"})) == ["backstop_beyond"]
    assert list(found("sse", env={IDLE: "600000"})) == ["idle_raised_alone"]


@pytest.mark.parametrize(
    ("keyed", "reads", "settles", "edge"),
    [
        (True, False, False, None),
        (False, True, True, None),
        (
            False, False, True,
            Edge("never_settles", True, "`cancel`: its dependency recognises no key, and it has no reconcile function: "
                 "an unknown of it ends only by `deliver`, `resolve` or `beside_unknown`."),
        ),
        (
            False, True, False,
            Edge("never_settles", False, "`cancel`: its dependency declares neither a work bound nor that it honours "
                 "deadlines: its read can prove applied, but never not applied."),
        ),
    ],
)  # fmt: skip
def test_a_write_whose_unknown_never_ends_is_named(
    keyed: bool, reads: bool, settles: bool, edge: Edge | None
) -> None:
    """Without a key and a read it is a problem; a read without an end to what it looks for is to be borne in mind."""
    assert of_tool("cancel", keyed=keyed, reads=reads, settles=settles) == edge
