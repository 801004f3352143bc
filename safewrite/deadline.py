"""One deadline, spent across calls and legs."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from safewrite.durations import Duration, seconds
from safewrite.errors import BudgetExhausted, ConfigurationError
from safewrite.settings import resolve_settings
from safewrite.shell.clock import clock

outermost: ContextVar[Deadline | None] = ContextVar("safewrite_outermost", default=None)
"""The backstop around this code: it bounds no call, and stands still while one of the deadlines within does."""


class Remaining(Protocol):
    """A `Deadline` or an `Attempt`: something that says how long it goes on."""

    def remaining(self) -> float:
        """Return the seconds left, never negative."""
        ...


class LegNotSent(BudgetExhausted):
    """Too little was left for one request, statement or other leg, so it was not sent."""

    reached: str = ""
    """The last leg that was granted."""


class Leg(float):
    """What one request of an operation may take, in seconds: a number, handed to the transport as it is."""

    name: str

    @property
    def whole(self) -> int:
        """The same for transports that take whole seconds: rounded up, so that a leg is never granted zero."""
        return math.ceil(self)


@dataclass(frozen=True, slots=True)
class Spent:
    """What one leg took."""

    leg: str
    seconds: float


class Deadline:
    """An instant by which something must be over, told as what is left until then.

    Arguments (seconds or `timedelta`): `seconds` from now; `call_cap`, the most one call may use of it (default: no
    cap); `minimum`, the least with which a call or a leg may start (default 1.0).  `name` and `origin` say in
    refusals which setting ran out and where it was set, `of` what is done under it.  Thread-safe; hand it down as a
    value, and keep it on no client that others share.  Raises `ConfigurationError` for anything that is no positive,
    finite duration.
    """

    def __init__(
        self,
        seconds: Duration,
        call_cap: Duration | None = None,
        minimum: Duration = 1.0,
        *,
        name: str = "deadline",
        origin: str = "argument",
        of: str = "",
        parent: Deadline | None = None,
    ) -> None:
        self.total = _positive(seconds, name)
        self.call_cap = None if call_cap is None else _positive(call_cap, "call_cap")
        self.minimum = _positive(minimum, "minimum", allow_zero=True)
        self.name, self.origin, self.of = name, origin, of
        self._parents: tuple[Deadline, ...] = () if parent is None else (parent,)
        self._outermost = outermost.get()
        self._lock = threading.Lock()
        self._end = clock().now().ticks + self.total
        self._pauses = 0
        self._left_at_pause = 0.0
        self._legs: list[tuple[str, float]] = []

    @classmethod
    def operation(cls, *, of: str = "", parent: Deadline | None = None) -> Deadline:
        """Return the deadline of one operation of many legs: the setting `operation_timeout`, 20 s by default.

        `of` says in refusals what the legs are of, such as a tool and its dependency.  It lies in `parent`, by
        default in the deadline of the attempt, run or request around this code.
        """
        from safewrite.context import current_deadline  # the context knows deadlines, too

        parent = parent if parent is not None else current_deadline()
        settings = resolve_settings({})
        row = next(row for row in settings.table() if row.name == "operation_timeout")
        total, minimum = settings.operation_timeout, settings.minimum
        return cls(total, minimum=minimum, name=row.name, origin=row.origin, of=of, parent=parent)

    @classmethod
    def until(
        cls, at: float, most: Duration, call_cap: Duration | None = None, minimum: Duration = 1.0
    ) -> Deadline:
        """Return a deadline as it goes on after a restart: `at` is its stored `ends_at`, `most` its whole length.

        Clamped: a wall clock that was stepped back meanwhile grants no more than `most`; one that passed `at` leaves
        nothing, and every call is refused.  Raises `ConfigurationError` for what is no instant.
        """
        if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"`at` is {at!r}. Write what `ends_at` was: Unix seconds.")
        made = cls(most, call_cap, minimum, origin="the stored instant")
        made._end += min(0.0, at - clock().now().unix - made.total)
        return made

    @classmethod
    def first_of(cls, *deadlines: Deadline, minimum: Duration | None = None) -> Deadline:
        """Return a deadline that ends with the first of these, and in a pause makes all of them stand still.

        Name, cap, legs and, unless given, the minimum are those of the first argument.
        """
        one = deadlines[0]
        least = one.minimum if minimum is None else minimum
        made = cls(one.total, one.call_cap, least, name=one.name, origin=one.origin, of=one.of)
        made._parents, made._end, made._legs = deadlines, math.inf, one._legs
        return made

    # What is left ----------------------------------------------------------------------------------------

    def remaining(self) -> float:
        """Return the seconds left, never negative; while paused, what was left when the pause began."""
        return max(0.0, min(self._own(), *(outer.remaining() for outer in self._parents), math.inf))

    @property
    def ends_at(self) -> float:
        """When it is over, in Unix seconds: what a host stores, and hands to `Deadline.until` after a restart."""
        now = clock().now()
        return now.unix + self.remaining()

    def _own(self) -> float:
        with self._lock:
            return self._left_at_pause if self._pauses else self._end - clock().now().ticks

    def slice(self, minimum: float | None = None, reserve: float = 0.0) -> float:
        """Return what one call may use: the smaller of cap and remainder, less `reserve`.

        The reserve, for a reconciling read, lies inside: it is taken off the smaller of the two.  Raises
        `BudgetExhausted` if less than `minimum` (default: the deadline's own) is left, or nothing beside the reserve,
        and `ConfigurationError` for a minimum or reserve that is negative or no number.
        """
        least = self.minimum if minimum is None else _positive(minimum, "minimum", allow_zero=True)
        kept = _positive(reserve, "reserve", allow_zero=True)
        left = self._enough("a call", least)
        granted = min(left, self.call_cap if self.call_cap is not None else math.inf) - kept
        if granted <= 0.0:
            who = f"a call beside a reserve of {kept:g} s"
            raise LegNotSent(self.refusal(who, left, least), reason="budget_exhausted")
        return granted

    def leg(self, name: str) -> Leg:
        """Return what one leg (one request of many) may use: all that is left, never zero.

        The minimum is held against the unrounded remainder; `Leg.whole` is for transports of whole seconds.
        Raises `BudgetExhausted`, which names the leg, the number that ran out and its origin, and what earlier
        legs used.
        """
        granted = Leg(self._enough(f"leg `{name}`{self.of and f' of {self.of}'}", self.minimum))
        granted.name = name
        with self._lock:
            self._legs.append((name, clock().now().ticks))
        return granted

    def spent(self) -> tuple[Spent, ...]:
        """Return what each leg used so far; the last one until now."""
        with self._lock:
            legs, now = list(self._legs), clock().now().ticks
        ends = [*(start for _, start in legs), now][1:]
        return tuple(Spent(name, end - start) for (name, start), end in zip(legs, ends, strict=True))

    def _enough(self, who: str, minimum: float) -> float:
        left = self.remaining()
        if left >= minimum and left > 0.0:
            return left
        refused = LegNotSent(self.refusal(who, left, minimum), reason="budget_exhausted")
        refused.reached = self._legs[-1][0] if self._legs else ""
        raise refused

    def refusal(self, who: str, left: float, minimum: float) -> str:
        """Return the words of a refusal: which number ran out, where it comes from, and who used it."""
        tight = self
        while (
            tight._parents
            and tight._own() > (outer := min(tight._parents, key=Deadline.remaining)).remaining()
        ):
            tight = outer
        used = ", ".join(f"`{s.leg}` {s.seconds:.3f} s" for s in self.spent())
        words = too_little(who, left, (tight.name, tight.total, tight.origin), minimum)
        return f"{words} Earlier legs used: {used}." if used else words

    # Pauses ----------------------------------------------------------------------------------------------

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
        stopped: list[Deadline] = []
        try:
            for deadline in self._stand_still_together():
                deadline._suspend()
                stopped.append(deadline)
            yield
        finally:
            for deadline in stopped:
                deadline._resume()

    def _stand_still_together(self) -> list[Deadline]:
        """Return this deadline, those that it lies in, and the backstops around any of them or around this code."""
        found: dict[int, Deadline] = {}
        look: list[Deadline | None] = [self, outermost.get()]
        while look:
            one = look.pop()
            if one is not None and id(one) not in found:
                found[id(one)] = one
                look += [*one._parents, one._outermost]
        return list(found.values())

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


def too_little(who: str, left: float, limit: tuple[str, float, str], minimum: float) -> str:
    """Return the words of a refusal; `limit` is the number that ran out: its name, seconds and origin."""
    name, total, origin = limit
    return (
        f"{who} was not sent: {left:.3f} s are left of `{name}` = {total:g} s (set by {origin}), and at least "
        f"{minimum:g} s (`minimum`) are needed."
    )


def deadline_headers(left: float, at: float) -> dict[str, str]:
    """Return the headers that carry a deadline: milliseconds left, never zero, and its instant in Unix milliseconds."""
    return {
        "X-Request-Deadline-Ms": str(max(1, int(left * 1000))),
        "X-Request-Deadline-At": str(int(at * 1000)),
    }


def _positive(value: Duration, name: str, *, allow_zero: bool = False) -> float:
    return seconds(value, name=name, allow_zero=allow_zero)
