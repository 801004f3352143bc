"""Time that a test moves: a clock for the shells that stands still until it is told to go on."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from safewrite.core.events import Moment
from safewrite.shell import clock as seam
from safewrite.shell import threads

POLL = 0.001
"""Real seconds between two looks of a thread that waits."""
MORE = 20
"""How often a thread that is kept from running is given more patience: one that never rests does not hold up time."""
STUCK = 30.0
"""Real seconds after which a wait that nobody ends is an error: a test would hang for ever."""


@dataclass(eq=False, slots=True)
class _Waiter:
    """Somebody who waits for something until an instant."""

    until: float
    awaited: Hashable
    woken: asyncio.Future[None] | None = None
    """How a coroutine is woken; a thread looks by itself."""


class ManualClock:
    """A clock for tests: `with ManualClock() as clock:` puts it in place of the real one, for all threads.

    - `clock.advance(seconds)` moves time and wakes those whose wait is over;
    - `auto=True`: time also moves by itself, at once when a shell sleeps or pauses, and when it waits for something
      that does not come: at once if that is a body that said so (`block`, `ablock`), else after `patience` real
      seconds; while `shared` is set nobody's sleep moves it at once, for others are at work meanwhile.

    `start` is the wall time at which it begins, in Unix seconds (default: what `time.time()` says when it is first
    looked at, so that a frozen wall clock is kept to).  Works under freezegun, whose `tick` and `move_to` do not
    move it.
    """

    def __init__(self, *, auto: bool = False, start: float | None = None, patience: float = 0.1) -> None:
        self.auto, self.patience = auto, patience
        self.shared = False
        self._start = start
        self._ticks = 0.0
        self._name = f"manual-{id(self):x}"
        self._changed = threading.Condition()
        self._waiters: list[_Waiter] = []
        self._blocked: list[Hashable] = []
        """What is known not to come by itself."""
        self._changes = 0
        self._previous: seam.Clock | None = None
        self._mover: threading.Thread | None = None

    # In place of the real one ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self._previous = seam.use(self)
        if self.auto:
            self._mover = threading.Thread(target=self._move, name="safewrite-clock", daemon=True)
            self._mover.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._previous is not None
        seam.use(self._previous)
        with self._changed:
            mover, self._mover = self._mover, None
            self._note()
        if mover is not None:
            mover.join()

    # Moving time -----------------------------------------------------------------------------------------

    @property
    def elapsed(self) -> float:
        """Seconds since this clock began."""
        return self._ticks

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass: everybody whose wait is over by then goes on."""
        if not 0.0 <= seconds < math.inf:
            raise ValueError(f"time moves on by a finite number of seconds, not by {seconds!r}")
        with self._changed:
            self._to(self._ticks + seconds)

    def _to(self, instant: float) -> None:
        """Move to an instant; the lock is held."""
        self._ticks = max(self._ticks, instant)
        for waiter in self._waiters:
            if waiter.until <= self._ticks and waiter.woken is not None:
                _wake(waiter.woken)
        self._note()

    def _note(self) -> None:
        self._changes += 1
        self._changed.notify_all()

    def _move(self) -> None:
        """Move to the end of the nearest wait, once it is clear that what it waits for does not come."""
        with self._changed:
            while self._mover is not None:
                nearest = min(self._waiters, key=lambda w: w.until, default=None)
                if nearest is None or nearest.until == math.inf:
                    self._changed.wait()
                elif nearest.awaited in self._blocked or not self._anything_new():
                    self._to(nearest.until)
                    self._changed.wait(POLL)  # those who are woken take themselves off

    def _anything_new(self) -> bool:
        """Give the real threads `patience` to get on; return whether anything changed meanwhile.

        A thread that wants to run, and that a loaded machine keeps from it, is given more, up to twenty times.
        """
        seen = self._changes
        shorter = min(self.patience, 0.1)
        patience = shorter if self.shared else self.patience
        for _ in range(MORE):
            if self._changed.wait_for(lambda: self._changes != seen, patience):
                return True
            if not somebody_is_at_work():
                return False
            patience = shorter
        return False

    # What the shells ask ---------------------------------------------------------------------------------

    def now(self) -> Moment:
        """Return this instant."""
        if self._start is None:
            with self._changed:
                # Not earlier: a wall that a decorator freezes stands only after the fixtures of its test.
                self._start = time.time() if self._start is None else self._start
        return Moment(self._start + self._ticks, self._ticks, self._name)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Block until `event` is set or `seconds` have passed; return whether it is set."""
        waiter = self._enlist(seconds, event)
        try:
            for _ in range(int(STUCK / POLL)):
                if event.wait(POLL) or waiter.until <= self._ticks:
                    return event.is_set()
            raise _forgotten()
        finally:
            self._strike(waiter)

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""
        if self.auto and not self.shared:
            self.advance(seconds)
        else:
            self.wait(threading.Event(), seconds)

    async def wait_for(self, future: asyncio.Future[Any], seconds: float) -> bool:
        """Wait until `future` is done or `seconds` have passed, cancelling nothing; return whether it is done."""
        waiter = self._enlist(seconds, future, asyncio.get_running_loop().create_future())
        try:
            if not future.done() and waiter.until > self._ticks and waiter.woken is not None:
                both = (future, waiter.woken)
                done, _ = await asyncio.wait(both, timeout=STUCK, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise _forgotten()
            return future.done()
        finally:
            self._strike(waiter)

    async def pause(self, seconds: float) -> None:
        """Let `seconds` pass for this task."""
        if self.auto and not self.shared:
            self.advance(seconds)
            await asyncio.sleep(0)
        else:
            await self.wait_for(asyncio.get_running_loop().create_future(), seconds)

    def _enlist(
        self, seconds: float, awaited: Hashable, woken: asyncio.Future[None] | None = None
    ) -> _Waiter:
        with self._changed:
            waiter = _Waiter(self._ticks + seconds, awaited, woken)
            self._waiters.append(waiter)
            self._note()
            return waiter

    def _strike(self, waiter: _Waiter) -> None:
        with self._changed:
            self._waiters.remove(waiter)
            self._note()

    # What a body may say ---------------------------------------------------------------------------------

    def block(self, event: threading.Event) -> None:
        """Hang until `event` is set: for the body of a plain tool.  With `auto`, its caller's limit passes at once."""
        work = threads.running()
        self._say(None if work is None else work.done, +1)
        try:
            event.wait(STUCK)
        finally:
            self._say(None if work is None else work.done, -1)

    async def ablock(self, future: asyncio.Future[Any]) -> Any:
        """Hang until `future` is done: for the body of a coroutine tool."""
        task = asyncio.current_task()
        self._say(task, +1)
        try:
            return await future
        finally:
            self._say(task, -1)

    def _say(self, blocked: Hashable, by: int) -> None:
        with self._changed:
            if by > 0:
                self._blocked.append(blocked)
            else:
                self._blocked.remove(blocked)
            self._note()


def somebody_is_at_work() -> bool:
    """Return whether another thread here runs, wants to, or waits for a disk; only Linux tells, else False."""
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended
                state = (task / "stat").read_text(encoding="latin-1").rpartition(") ")[2][:1]
                if state in ("R", "D") and task.name != str(threading.get_native_id()):
                    return True
    return False


def _wake(woken: asyncio.Future[None]) -> None:
    def finish() -> None:
        if not woken.done():
            woken.set_result(None)

    loop = woken.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(finish)


def _forgotten() -> RuntimeError:
    return RuntimeError(f"nothing happened for {STUCK:g} real seconds, and nobody advanced the clock")
