"""What this process knows of each dependency: one state for all tools, threads and `SafeWrite`s that use it."""

from __future__ import annotations

import os
import threading
from collections import deque
from itertools import count
from math import inf
from typing import Final

from safewrite.core import pressure
from safewrite.core.pressure import Breaker, Budget
from safewrite.shell.clock import clock

KEPT: Final = 200
"""How many of the newest times are kept of each reading tool."""

_numbers = count(1)


class Seat:
    """Leave to send one request, to be given back: `ended`, `unsent`, or `gave_up` and perhaps `ended` later."""

    __slots__ = ("_cost", "_era", "_id", "_of", "_told")

    def __init__(self, of: Pressure | None, id: str = "", era: int = 0, cost: float = 0.0) -> None:
        self._of, self._id, self._era, self._cost, self._told = of, id, era, cost, False

    def ended(self, healthy: bool | None, until: float = 0.0) -> None:
        """Say that it ended; `until`: the instant up to which the dependency may be at work on it all the same."""
        self._leave(healthy, until if until < inf else 0.0)

    def gave_up(self, until: float, *, healthy: bool | None = False) -> None:
        """Say that nobody waits for it any more; it keeps its place until it ends, at most until this instant."""
        self._leave(healthy, until)

    def unsent(self) -> None:
        """Say that nothing was sent after all: it counts neither for nor against anything."""
        if self._of is not None and not self._told:
            self._leave(None, 0.0, self._cost)

    def _leave(self, healthy: bool | None, until: float, back: float = 0.0) -> None:
        if self._of is not None:
            self._of.leave(self._id, None if self._told else self._era, healthy, until, back)
            self._told = True


FREE: Final = Seat(None)
"""The seat of a reconciling read: it waits for no breaker and no limit, or these would hide the truth."""


class Pressure:
    """Budget, breaker and places of one dependency, and how long its reads take.  Safe between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._budget, self._breaker = Budget(), Breaker()
        self._places: dict[str, float] = {}
        self._times: dict[str, deque[float]] = {}

    def enter(self, most: int | None, *, further: bool, within: bool = False) -> Seat | str:
        """Return leave to send, or why not.

        `most`: places there are, `further`: a retry or a hedge, `within`: it is part of a call that has leave.
        """
        now, name = clock().now().ticks, str(next(_numbers))
        with self._lock:
            self._places = pressure.occupied(self._places, now)
            if most is not None and len(self._places) >= most and not within:
                return "limiter_full"
            breaker = self._breaker if within else self._breaker.admit(now)
            if breaker is None:
                return "breaker_open"
            budget = self._budget.taken(now) if further else self._budget.requested(now)
            if budget is None:
                return "retry_budget_spent"
            self._budget, self._breaker, self._places[name] = budget, breaker, inf
            return Seat(self, name, breaker.era, 1.0 if further else -pressure.SHARE)

    def hedge(self, most: int | None) -> Seat | None:
        """Return leave to send a second copy: only where nothing is amiss."""
        with self._lock:
            closed = self._breaker.open_until is None
        seat = self.enter(most, further=True) if closed else None
        return seat if isinstance(seat, Seat) else None

    def can_pay(self) -> bool:
        """Return whether the budget has something left for a retry."""
        with self._lock:
            return self._budget.taken(clock().now().ticks) is not None

    def leave(self, id: str, era: int | None, healthy: bool | None, until: float, back: float = 0.0) -> None:
        """Take back a seat; `era` None: the breaker was told already."""
        now = clock().now().ticks
        with self._lock:
            if era is not None:
                self._breaker = self._breaker.ended(era, now, healthy)
            self._budget = self._budget.returned(back)
            kept = self._places.pop(id, 0.0)
            if min(kept, until) > now:
                self._places[id] = min(kept, until)

    def took(self, tool: str, seconds: float) -> None:
        """Remember how long a read took."""
        with self._lock:
            self._times.setdefault(tool, deque(maxlen=KEPT)).append(seconds)

    def hedge_delay(self, tool: str, left: float) -> float | None:
        """Return after how long a second copy of a read may be sent, if at all."""
        with self._lock:
            times = tuple(self._times.get(tool, ()))
        return pressure.hedge_delay(times, left)


_known: dict[str, Pressure] = {}


def pressure_of(dependency: str) -> Pressure:
    """Return the state of a dependency by its name."""
    return _known.get(dependency) or _known.setdefault(dependency, Pressure())


def forget() -> None:
    """Know nothing: for tests, and for a child, in which no call of its parent runs."""
    _known.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)
