"""One deadline, spent across calls and legs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf

from safewrite.durations import Duration, seconds
from safewrite.errors import BudgetExhausted, ConfigurationError
from safewrite.shell.clock import clock


class Deadline:
    """An instant by which something must be over, told as what is left until then.

    Arguments (seconds or `timedelta`): `seconds` from now; `call_cap`, the most one call may use of it (default: no
    cap); `minimum`, the least with which a call may start (default 1.0).  Thread-safe.  Raises `ConfigurationError`
    for anything that is no positive, finite duration.
    """

    def __init__(
        self,
        seconds: Duration,
        call_cap: Duration | None = None,
        minimum: Duration = 1.0,
        *,
        parent: Deadline | None = None,
    ) -> None:
        total = _seconds(seconds, "deadline")
        self.total = total
        self.call_cap = None if call_cap is None else _seconds(call_cap, "call_cap")
        self.minimum = _seconds(minimum, "minimum", allow_zero=True)
        self._parent = parent
        self._lock = threading.Lock()
        self._end = clock().now().ticks + total
        self._pauses = 0
        self._left_at_pause = 0.0

    def remaining(self) -> float:
        """Return the seconds left, never negative; while paused, what was left when the pause began."""
        with self._lock:
            own = self._left_at_pause if self._pauses else self._end - clock().now().ticks
        outer = self._parent.remaining() if self._parent is not None else inf
        return max(0.0, min(own, outer))

    def slice(self, minimum: float | None = None, reserve: float = 0.0) -> float:
        """Return what one call may use: the smaller of cap and remainder, less `reserve`.

        Raises `BudgetExhausted` if what is left is less than `minimum` (default: the deadline's own).
        """
        left = self.remaining()
        least = self.minimum if minimum is None else minimum
        if left < least or left <= 0.0:
            raise BudgetExhausted(
                f"{left:.3f} s are left of a deadline of {self.total:g} s; a call needs at least {least:g} s "
                "(`minimum`). Nothing was sent."
            )
        return max(0.0, min(left, self.call_cap if self.call_cap is not None else inf) - reserve)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Stop the clock while a person decides; counted, across threads, and re-armed with what was left.

        Raises `ConfigurationError` inside the body of a write: the dependency's clock does not stop for anybody.
        """
        from safewrite.context import current_attempt  # the context knows deadlines, too

        if current_attempt() is not None:
            raise ConfigurationError(
                "`Deadline.pause()` inside the body of a write: what was sent goes on meanwhile. Ask before the call."
            )
        self._suspend()
        try:
            if self._parent is not None:
                with self._parent.pause():
                    yield
            else:
                yield
        finally:
            self._resume()

    def leg(self, name: str) -> float:
        """Return what one leg (one request of many) may use: all that is left, at least the minimum.

        Raises `BudgetExhausted`, naming the leg, if less than the minimum is left.
        """
        left = self.remaining()
        if left < self.minimum or left <= 0.0:
            raise BudgetExhausted(
                f"leg `{name}`: {left:.3f} s are left of {self.total:g} s, and a leg needs at least "
                f"{self.minimum:g} s (`minimum`). It was not sent."
            )
        return left

    def _suspend(self) -> None:
        with self._lock:
            if not self._pauses:
                self._left_at_pause = self._end - clock().now().ticks
            self._pauses += 1

    def _resume(self) -> None:
        with self._lock:
            self._pauses -= 1
            if not self._pauses:
                self._end = clock().now().ticks + self._left_at_pause

    def __repr__(self) -> str:
        return f"Deadline({self.total:g}, remaining={self.remaining():.3f})"


def _seconds(value: Duration, name: str, *, allow_zero: bool = False) -> float:
    return seconds(value, name=name, allow_zero=allow_zero)
