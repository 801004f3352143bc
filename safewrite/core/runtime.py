"""What the time settings of an agent runtime come to.  Milliseconds, whole, as that client counts them.

The formulas are the client's own and private to it: they were read out of the versions in `READ`, and hold for those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from safewrite.core.idle import effective_idle

CONNECT, TOOL, IDLE = "MCP_TIMEOUT", "MCP_TOOL_TIMEOUT", "CLAUDE_CODE_MCP_TOOL_IDLE_TIMEOUT"
VARIABLES: Final = (CONNECT, TOOL, IDLE)
READ: Final[Mapping[str, tuple[str, str]]] = {
    "cli": ("2.1.258", "2026-09-01"),
    "agent_sdk": ("0.3.257", "2026-09-10"),
}
"""Which versions of the client the numbers here were read out of, and when those were published."""
CLIENT: Final[Mapping[str, str]] = {CONNECT: "30000", TOOL: "100000000"}
"""The client's own defaults; that of the idle limit goes by the transport."""
MANAGED: Final[Mapping[str, str]] = {CONNECT: "30000", TOOL: "7200000"}
"""Ours, written out even where the client's is the same: the next version of it may have another."""
ORIGINS: Final[tuple[str, ...]] = ("executor", "agent profile", "managed defaults", "client")
"""Where a setting may come from; the first that has it wins."""

IDLE_BY_TRANSPORT: Final[Mapping[str, int | None]] = {
    "stdio": 1_800_000, "http": 300_000, "sse-ide": None, "ws-ide": None, "sdk": None,
}  # fmt: skip
MOST: Final = 2_147_483_647
"""What a timer of the client can wait at most."""
SILENT_CEILING: Final = 358_000
"""Where silent calls were seen to end, about, although the idle limit had been raised."""
_LEAST_TOOL, _LEAST_FETCH = 1_000, 60_000
_NUMBER = re.compile(r"\s*([+-]?\d{1,18})(\.\d*)?\s*")


@dataclass(frozen=True, slots=True)
class Given:
    """One variable: the text in force, its origin, and what that overrode (the nearest first)."""

    name: str
    value: str | None
    """None: nobody set it, and the client goes by the transport."""
    origin: str
    overrode: tuple[tuple[str, str], ...] = ()

    @property
    def overrides(self) -> tuple[str, ...]:
        """Each override in words, with winner and loser."""
        return tuple(
            f"{self.name}: {self.origin} ({self.value}) wins over {loser} ({value})"
            for loser, value in self.overrode
        )


@dataclass(frozen=True, slots=True)
class Server:
    """One MCP server of the runtime."""

    name: str
    transport: str = "stdio"
    timeout: float | None = None
    """Its own limit on a tool call, in milliseconds; below 1000 it does not count."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the settings come to for one server, in milliseconds."""

    server: str
    transport: str
    tool: int
    """The longest that a tool call may take."""
    fetch: int
    """The longest that one request of it may take."""
    idle: int | None
    """The longest that it may be silent; None: the transport has no such limit."""
    silent: int
    """When a call of the first turn that never says anything ends, counted from the launch."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """What the settings of a runtime come to, in milliseconds."""

    given: tuple[Given, ...]
    connect: int
    """The longest that connecting to a server may take."""
    first_turn: int
    """How long the first turn waits for servers that are not connected: once a launch, if there is any server."""
    servers: tuple[Limits, ...]

    @property
    def environment(self) -> dict[str, str]:
        """What is to be written into the environment of the client, managed defaults included."""
        return {g.name: g.value for g in self.given if g.value is not None}

    @property
    def overrides(self) -> tuple[str, ...]:
        """Every override in words, with winner and loser."""
        return tuple(words for given in self.given for words in given.overrides)

    def origin(self, name: str) -> str:
        """Return where a variable's value comes from."""
        return next(given.origin for given in self.given if given.name == name)


def budgets(
    executor: Mapping[str, str], profile: Mapping[str, str], servers: Sequence[Server] = ()
) -> Budgets:
    """Return what the settings of an executor and of an agent's profile come to, over our defaults and the client's."""
    layers = dict[str, Mapping[str, str]](zip(ORIGINS, (executor, profile, MANAGED, CLIENT), strict=True))
    given = tuple(_resolved(name, layers) for name in VARIABLES)
    texts = {g.name: g.value for g in given}
    connect = connect_deadline(texts[CONNECT])
    wait = first_turn_wait(connect)
    limits = tuple(_limits(server, connect, wait, texts[TOOL], texts[IDLE]) for server in servers)
    return Budgets(given, connect, wait, limits)


def unverified(versions: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return, in sentences, which of these versions (None: not known) nobody has held the formulas against."""
    return tuple(
        f"{name} {versions.get(name) or '(its version is not known)'} is unverified: the formulas are those of {known}."
        for name, (known, _) in READ.items()
        if versions.get(name) != known
    )


def _resolved(name: str, layers: Mapping[str, Mapping[str, str]]) -> Given:
    found = [(origin, layer[name]) for origin, layer in layers.items() if name in layer]
    if not found:
        return Given(name, None, ORIGINS[-1])
    (origin, value), *rest = found
    return Given(name, value, origin, tuple(rest))


def _limits(server: Server, connect: int, wait: int, tool: str | None, idle: str | None) -> Limits:
    transport = server.transport or "stdio"
    most = tool_timeout(server.timeout, tool)
    silence = idle_deadline(transport, idle, server.timeout, most)
    ends = wait + (most if silence is None else silence)
    return Limits(server.name, transport, most, fetch_deadline(most, connect), silence, ends)


# The formulas ------------------------------------------------------------------------------------------------


def connect_deadline(text: str | None) -> int:
    """Return what `MCP_TIMEOUT` gives: 30 s if it is absent, 0, negative or no number, and what a timer can hold."""
    number = _number(text)
    return min(number, MOST) if number is not None and number > 0 else int(CLIENT[CONNECT])


def first_turn_wait(connect: int) -> int:
    """Return how long the first turn waits: max(t - 5000, floor(t / 3))."""
    return max(connect - 5_000, connect // 3)


def tool_timeout(own: float | None, text: str | None) -> int:
    """Return clamp(a server's own value if >= 1000, else `MCP_TOOL_TIMEOUT`, unset 1e8; 1000, 2147483647)."""
    if own is not None and own >= _LEAST_TOOL:
        return int(min(own, MOST))
    number = _number(text)
    return max(_LEAST_TOOL, min(int(CLIENT[TOOL]) if number is None else number, MOST))


def fetch_deadline(tool: int, connect: int) -> int:
    """Return what one request may take: max(clamp(tool, 60000, ...), t)."""
    return max(_LEAST_FETCH, tool, connect)


def idle_deadline(transport: str, text: str | None, own: float | None, tool: int) -> int | None:
    """Return how long a call may be silent: min(max(idle, the server's own value, 1 s), tool timeout), or None.

    Some transports have no such limit, and a setting of 0 or less turns it off.  One that is not on the list counts
    as `http`.
    """
    default, number = IDLE_BY_TRANSPORT.get(transport, IDLE_BY_TRANSPORT["http"]), _number(text)
    idle = default if number is None else number
    if default is None or idle is None or idle <= 0:
        return None
    limit = effective_idle(idle / 1000, per_server=(own or 0.0) / 1000, timeout=tool / 1000)
    return None if limit is None else round(limit * 1000)


def _number(text: str | None) -> int | None:
    found = _NUMBER.fullmatch(text or "")
    return int(found[1]) if found else None
