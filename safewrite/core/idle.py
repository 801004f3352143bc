"""Two limits on waiting for work that can say that it moves: idle, reset by progress, and absolute, never moved."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final

from safewrite.core.replacing import replace

LEAST_IDLE: Final = 1.0
"""Seconds: a configured idle limit below it would cut off what is only slow to begin."""


def effective_idle(
    idle: float, *, per_server: float = 0.0, timeout: float = inf, carries_progress: bool = True
) -> float | None:
    """Return the idle limit in force: min(max(idle, per_server, 1 s), timeout), all in seconds.

    `per_server` is what one server asks for, `timeout` the absolute limit of the tool.  None, no idle limit, for a
    transport that cannot carry progress: there silence says nothing.  Raises `ValueError` for what is negative or no
    number.
    """
    for name, value in (("idle", idle), ("per_server", per_server), ("timeout", timeout)):
        if not value >= 0.0:
            raise ValueError(f"`{name}` is {value!r}. Write zero or a positive number of seconds.")
    return min(max(idle, per_server, LEAST_IDLE), timeout) if carries_progress else None


@dataclass(frozen=True, slots=True)
class Watch:
    """The limits on one piece of work.  Instants are seconds of any one clock; what is now comes as an argument."""

    heard: float
    """When it was dispatched, or last moved."""
    end: float
    """When it is over, whatever it says."""
    absolute: float
    """How long it was given until then, for the words."""
    idle: float | None = None
    """How long it may be silent; None: as long as it likes."""

    def moved(self, now: float) -> Watch:
        """Return the watch after progress was heard."""
        return replace(self, heard=max(self.heard, now))

    def left(self, now: float) -> float:
        """Return how long to wait before anything can have run out, never negative."""
        return max(0.0, min(self.end, self._silent_until) - now)

    @property
    def _silent_until(self) -> float:
        return self.heard + (inf if self.idle is None else self.idle)

    @property
    def runs_out(self) -> str:
        """Which limit runs out first: `idle` or `timeout`."""
        return "idle" if self._silent_until < self.end else "timeout"

    def words(self, now: float) -> str:
        """Return which limit fired, with the values of both."""
        silent = f"nothing was heard of it for {max(0.0, now - self.heard):.3f} s"
        if self.idle is None:
            return f"The limit of {self.absolute:g} s has passed; there is no idle limit."
        if self.runs_out == "timeout":
            return f"The limit of {self.absolute:g} s has passed; the idle limit is {self.idle:g} s, and {silent}."
        left = max(0.0, self.end - now)
        return f"The idle limit of {self.idle:g} s has passed: {silent}; {left:.3f} s of {self.absolute:g} s were left."


def too_slow(interval: float, interval_from: str, idle: float, idle_from: str) -> str:
    """Return why keepalives every `interval` seconds cannot hold off an idle limit, or nothing if they can."""
    if interval < idle:
        return ""
    return (
        f"The idle limit `idle` = {idle:g} s (set by {idle_from}) is not longer than the keepalive interval "
        f"`keepalive` = {interval:g} s (set by {interval_from}), so every slow call would be cut off. "
        "Make the interval a third of the idle limit, or less."
    )
