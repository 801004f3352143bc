"""What spares a dependency: retry budget, breaker, places, the delay of a hedge, and when a read is tried again.

Every state is a value, and time arrives as seconds of one clock.  The numbers are those of `docs/explanation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from safewrite.core.events import Finding, OutcomeState, Promises
from safewrite.core.latency import Measured
from safewrite.core.replacing import replace

# Retry budget ------------------------------------------------------------------------------------------------

SHARE: Final = 0.1
"""What one request earns: so many further ones may be sent for each."""
FLOOR: Final = 5.0
"""Further requests that a process may send without having earned them; earned anew by time, one in `FLOOR_EVERY`."""
FLOOR_EVERY: Final = 10.0
MOST: Final = 10.0
"""Tokens that can be saved up."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A bucket of tokens: a request puts a tenth of one in, a retry or a hedge takes one out."""

    tokens: float = FLOOR
    at: float = 0.0

    def requested(self, now: float) -> Budget:
        """Return the budget after a first request."""
        return Budget(min(MOST, self._at(now) + SHARE), now)

    def taken(self, now: float) -> Budget | None:
        """Return the budget after a further request; None: there is nothing to pay it with."""
        tokens = self._at(now)
        return Budget(tokens - 1.0, now) if tokens >= 1.0 - 1e-9 else None

    def returned(self, tokens: float) -> Budget:
        """Return the budget after a request turned out never to have been sent; `tokens`: what it had cost."""
        return replace(self, tokens=min(MOST, max(0.0, self.tokens + tokens)))

    def _at(self, now: float) -> float:
        return max(self.tokens, min(FLOOR, self.tokens + max(0.0, now - self.at) / FLOOR_EVERY))


# Breaker -----------------------------------------------------------------------------------------------------

WINDOW: Final = 10.0
"""Seconds of which the breaker remembers how calls ended."""
CALLS: Final = 10
"""Calls that must have ended in the window before it can open."""
FAILED: Final = 0.5
"""Share of them that must have failed."""
SPARED_FIRST, SPARED_MOST = 5.0, 60.0
"""Seconds that it stays open: doubled from the first to the most with each probe that fails."""
PROBE_TERM: Final = 30.0
"""Seconds after which a probe that nobody heard of again makes room for another."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Closed, open until an instant, or half open: one probe, owned by one call, decides.

    Every change of state begins a new era; the end of a call that began in another era tells it nothing.
    """

    era: int = 0
    recent: tuple[tuple[int, int, int], ...] = ()
    """Second, calls that ended in it, and how many of them failed."""
    open_until: float | None = None
    """None: it is closed."""
    spared: float = SPARED_FIRST
    probe_until: float = -inf
    """While half open: until when the probe has the word."""

    def admit(self, now: float) -> Breaker | None:
        """Return the breaker with one more call under way, of its era; None: the dependency is being spared."""
        if self.open_until is None:
            return self
        if now < max(self.open_until, self.probe_until):
            return None
        return replace(self, era=self.era + 1, probe_until=now + PROBE_TERM)

    def ended(self, era: int, now: float, healthy: bool | None) -> Breaker:
        """Return the breaker after a call of `era` ended; `healthy` None: that says nothing of the dependency."""
        if era != self.era:
            return self
        if self.open_until is not None:
            return self._probed(now, healthy)
        if healthy is None:
            return self
        second, kept = int(now), [one for one in self.recent if one[0] > now - WINDOW - 1.0]
        last = kept.pop() if kept and kept[-1][0] == second else (second, 0, 0)
        kept.append((second, last[1] + 1, last[2] + (not healthy)))
        calls, failed = sum(one[1] for one in kept), sum(one[2] for one in kept)
        if calls < CALLS or failed < FAILED * calls:
            return replace(self, recent=tuple(kept))
        return Breaker(self.era + 1, open_until=now + SPARED_FIRST)

    def _probed(self, now: float, healthy: bool | None) -> Breaker:
        if healthy:
            return Breaker(self.era + 1)
        if healthy is None:  # it never reached the dependency: the next call may ask
            return replace(self, era=self.era + 1, probe_until=-inf)
        spared = min(self.spared * 2, SPARED_MOST)
        return Breaker(self.era + 1, open_until=now + spared, spared=spared)


# What the end of a call says of the dependency ---------------------------------------------------------------

_UNREACHED: Final = frozenset({
    "connect_failed", "connect_refused", "connect_timeout", "name_not_resolved", "tls_failed", "tunnel_refused",
    "sql_connect_failed", "sql_starting_up", "sql_too_many_connections",
})  # fmt: skip
_SILENT: Final = frozenset({
    "timeout", "idle", "read_timeout", "write_timeout", "read_error", "write_error", "close_error",
    "server_disconnected", "connection_error", "connection_reset", "remote_protocol_error", "transport_error",
    "response_incomplete", "proxy_error", "grpc_deadline_exceeded", "grpc_unavailable", "mcp_request_timeout",
    "mcp_connection_closed", "sql_connection_lost", "process_timeout",
})  # fmt: skip
"""Reasons that say: no answer came, so the dependency may still be at work on it."""
_GIVEN_UP: Final = frozenset({"hedge_lost", "cancelled", "cancelled_inside", "interrupted"})
"""We stopped waiting, which says nothing of the dependency, but it may still be at work."""
_GATEWAY: Final = frozenset({408, 502, 504, 522, 524})
"""Statuses by which a gateway says that no answer came."""
BUSY: Final = frozenset({429, 503})
"""Statuses by which a dependency asks to be left alone for a while."""
LOCAL: Final = frozenset({"leg_not_sent", "not_sent"})
"""Reasons that say: the body sent nothing, by its own decision."""


def healthy(found: Finding) -> bool | None:
    """Return whether the end of a call speaks for the dependency, against it, or (None) neither."""
    if found.status is not None and found.status in BUSY - {503}:
        return None
    if found.status is not None:
        return found.status < 500 and found.status not in _GATEWAY
    if found.reason in _SILENT or found.reason in _UNREACHED:
        return False
    said = found.outcome is OutcomeState.APPLIED or found.running or found.reason == "rejected"
    return True if said else None


def silent(found: Finding) -> bool:
    """Return whether the dependency may still be at work on a call that ended so."""
    if found.status is not None:
        return found.status in _GATEWAY
    return found.reason in _SILENT or found.reason in _GIVEN_UP


def quiet_at(promises: Promises, now: float, end: float, *, deadline_carried: bool) -> float:
    """Return the instant from which a call that is given up `now` holds the dependency no longer; inf: unknown.

    `end` is the instant of the deadline that it was told, if it was.
    """
    bound = inf if promises.work_bound is None else now + promises.work_bound
    told = promises.honours_deadline and deadline_carried
    return max(now, min(bound, end + promises.clock_skew if told else inf))


def occupied(places: Mapping[str, float], now: float) -> dict[str, float]:
    """Return the places that are still taken; of each is known until when at most (inf: until its call ends)."""
    return {owner: until for owner, until in places.items() if until > now}


# Reads -------------------------------------------------------------------------------------------------------

SAMPLES: Final = 20
"""Times that must have been measured before their 95th percentile is worth anything."""
SLOW: Final = 0.05
"""Share of the calls that is slower than a hedge waits."""


def hedge_delay(seconds: Sequence[float], left: float) -> float | None:
    """Return after how long a read is sent a second time; None: not at all.

    It is the 95th percentile of the times measured, if there are enough and what is `left` holds it twice: once for
    the wait, once for the copy.
    """
    if len(seconds) < SAMPLES:
        return None
    delay = Measured(tuple(sorted(seconds))).at(SLOW) or 0.0
    return delay if 2 * delay <= left else None


@dataclass(frozen=True, slots=True)
class Next:
    """What follows on a read that brought nothing: another try after `wait` seconds, or (None) the end."""

    reason: str
    wait: float | None = None


def next_try(
    found: Finding, *, left: float, floor: float, backoff: float, quiet_in: float, last: bool
) -> Next:
    """Return what follows on a try that brought nothing; `last`: no other is left.

    Seconds: `left` of the call, `floor` the least to start with, `backoff` what the wait strategy proposes,
    `quiet_in` until the copies that were sent hold the dependency no longer.
    """
    if found.reason in LOCAL:
        return Next(found.reason)
    if found.again or found.status in BUSY:
        wait = max(backoff, found.retry_after or 0.0)
    elif silent(found):
        wait = max(backoff, quiet_in)
    else:
        return Next(found.reason)
    asked = found.retry_after is not None and found.retry_after >= left
    if asked and found.status is not None:
        return Next("retry_after_beyond_deadline")
    if last or wait >= left or left - wait < floor:
        return Next(found.reason)
    return Next(found.reason, wait)
