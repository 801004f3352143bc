"""Where the limits of an agent runtime, ours and those within get in each other's way.  Seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Final

from safewrite.core.deadline import attempt_limit, reserve_of
from safewrite.core.idle import too_slow
from safewrite.core.runtime import CLIENT, CONNECT, IDLE, IDLE_BY_TRANSPORT, SILENT_CEILING, Budgets, Limits

HTTPX: Final = 5.0
"""The limit that httpx has of its own."""
LONG_WAIT: Final = 60.0
"""A first turn that may wait longer than this is told of."""


@dataclass(frozen=True, slots=True)
class Ours:
    """Our own limits, those within and those around them, in seconds."""

    call: float
    """The most that a call may take: the longest deadline of a run or `operation_timeout`, with its grace."""
    backstop: float
    share: float
    floor: float
    grace: float
    keepalive: float
    keepalive_from: str
    lease_margin: float
    sqlite: bool
    busy: float
    """How long a lock of the ledger is waited for (SQLite); else a connection and a statement."""
    client: float | None = None
    """The limit of the client that the bodies use; None: not known."""
    host: float | None = None
    """What the proxy, worker or job around it all allows; None: not known."""

    @property
    def slice(self) -> float:
        """What one attempt gets of a call whose tool has a reconcile function."""
        left = self.call - self.grace
        return attempt_limit(left, None, reserve_of(left, reads=True, share=self.share, floor=self.floor))


@dataclass(frozen=True, slots=True)
class Edge:
    """One thing to know: a problem, or something to bear in mind."""

    code: str
    problem: bool
    words: str
    server: str = ""


def edges(budgets: Budgets, ours: Ours) -> tuple[Edge, ...]:
    """Return everything that is wrong, or worth knowing, about these limits together."""
    found = [*_launch(budgets), *_inside(ours), *_ledger(ours)]
    for server in budgets.servers:
        found += _framework(server, ours)
        if (raised := _raised(budgets, server)) is not None:
            found.append(raised)
    return tuple(found)


def _launch(b: Budgets) -> Iterator[Edge]:
    connect, wait = b.connect / 1000, b.first_turn / 1000
    if wait > LONG_WAIT:
        yield Edge(
            "first_turn_wait", True,
            f"`{CONNECT}` = {connect:g} s (set by {b.origin(CONNECT)}) lets the first turn wait up to {wait:g} s for a "
            "server that does not connect. For longer tool calls raise `MCP_TOOL_TIMEOUT` instead.",
        )  # fmt: skip
    if b.connect < int(CLIENT[CONNECT]):
        yield Edge(
            "connect_lowered", False,
            f"`{CONNECT}` = {connect:g} s (set by {b.origin(CONNECT)}) makes the first turn wait {wait:g} s, but is "
            "the deadline for connecting as well: a server that starts slower is missing. The wait comes once a "
            "launch, with any MCP server configured.",
        )  # fmt: skip


def _inside(o: Ours) -> Iterator[Edge]:
    if o.backstop <= o.call:
        yield Edge(
            "backstop_inside", True,
            f"the backstop of {o.backstop:g} s is not later than the inner limit of {o.call:g} s, and would answer in "
            "place of whoever knows more. Name that limit in `Backstop(inner=...)`.",
        )  # fmt: skip
    client = HTTPX if o.client is None else o.client
    if client < o.slice:
        whose = (
            "httpx's own limit, where a client is given none," if o.client is None else "the client's limit"
        )
        yield Edge(
            "client_shorter", o.client is not None,
            f"{whose} is {client:g} s, and an attempt has up to {o.slice:g} s: it would be unknown long before that. "
            "Pass `timeout=attempt.timeout`.",
        )  # fmt: skip
    if o.host is None:
        yield Edge(
            "host_limit_unset", False,
            "`host_limit`, what the proxy, worker or job around this allows, is not known: a longer budget may buy a "
            "broken request.",
        )  # fmt: skip
    elif o.host <= o.backstop:
        yield Edge(
            "host_limit_short", True,
            f"`host_limit` = {o.host:g} s is not later than the backstop of {o.backstop:g} s, so the host would break "
            "the request off first.",
        )  # fmt: skip


def _ledger(o: Ours) -> Iterator[Edge]:
    name = "`busy_timeout`" if o.sqlite else "`connect_timeout` + `statement_timeout`"
    if o.call < o.backstop <= o.call + o.busy:
        yield Edge(
            "ledger_beyond_backstop", True,
            f"{name} = {o.busy:g} s after a call of {o.call:g} s ends at or after the backstop of {o.backstop:g} s: an "
            "outcome that waits for the ledger would be answered over.",
        )  # fmt: skip
    if o.busy >= o.call:
        yield Edge(
            "ledger_takes_all", True,
            f"{name} = {o.busy:g} s is not shorter than a call of {o.call:g} s: one lock can use up the whole of it.",
        )  # fmt: skip
    if o.busy > o.lease_margin + o.grace:
        yield Edge(
            "ledger_beyond_lease", False,
            f"{name} = {o.busy:g} s is longer than `lease_margin` + `grace`: a lease can run out while its outcome "
            "waits for the ledger, and another worker looks for nothing.",
        )  # fmt: skip
    if o.sqlite and not o.busy:
        yield Edge(
            "ledger_never_waits", True,
            "`busy_timeout` = 0: of two writes at once over SQLite one is refused at once.",
        )  # fmt: skip


def _framework(server: Limits, o: Ours) -> Iterator[Edge]:
    tool, whose = server.tool / 1000, f"the runtime's tool timeout of {server.tool / 1000:g} s"
    if o.call >= tool:
        yield Edge(
            "ours_longer", True,
            f"a call of ours may take {o.call:g} s, and {whose} is not longer: it gives up first, and nobody hears the "
            f"outcome. Open runs with a deadline below {tool:g} s.",
            server.server,
        )  # fmt: skip
    elif o.backstop >= tool:
        yield Edge(
            "backstop_beyond", True,
            f"the backstop answers after {o.backstop:g} s, when {whose} is over.",
            server.server,
        )  # fmt: skip
    idle = inf if server.idle is None else server.idle / 1000
    if problem := too_slow(o.keepalive, o.keepalive_from, idle, "the runtime"):
        yield Edge("keepalive_slower", True, problem, server.server)


def _raised(b: Budgets, server: Limits) -> Edge | None:
    """Return the edge of an idle limit that was raised, or turned off, beyond where silent calls were seen to end."""
    default = IDLE_BY_TRANSPORT.get(server.transport, IDLE_BY_TRANSPORT["http"])
    silent = server.tool if server.idle is None else server.idle
    if default is None or silent <= max(default, SILENT_CEILING):
        return None
    now = "off" if server.idle is None else f"{server.idle / 1000:g} s"
    by = f"`{IDLE}`, set by {b.origin(IDLE)}" if b.origin(IDLE) != "client" else "by the server's own timeout"
    return Edge(
        "idle_raised_alone", True,
        f"the idle limit is {now} ({by}), but a second ceiling of the client was measured near "
        f"{SILENT_CEILING / 1000:g} s: only progress carries a call further. Send keepalives.",
        server.server,
    )  # fmt: skip


def of_tool(name: str, *, keyed: bool, reads: bool, settles: bool) -> Edge | None:
    """Return the edge of a write of which an unknown may never end.

    `keyed`: the dependency recognises its key, or it carries a precondition; `reads`: it has a reconcile function;
    `settles`: there is an end to what an attempt can still do.
    """
    if keyed or (reads and settles):
        return None
    if not reads:
        words = (
            "its dependency recognises no key, and it has no reconcile function: an unknown of it ends only by "
            "`deliver`, `resolve` or `beside_unknown`."
        )
    else:
        words = (
            "its dependency declares neither a work bound nor that it honours deadlines: its read can prove applied, "
            "but never not applied."
        )
    return Edge("never_settles", not reads, f"`{name}`: {words}")
