"""The seam through which all time comes: a clock that nobody can set, wall time for stamps, and waiting.

Deadlines, leases and work bounds run on a clock that keeps running while the machine sleeps and that stepping the
wall clock (or freezing it in a test) does not touch.  Wall time is read once and carried on by that clock, so that
one process never sees it jump.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any, Protocol
from uuid import uuid4

from safewrite.core.events import Moment

# Taken at import, and `clock_gettime` where there is one: tests that freeze `time` must not stop a deadline.
_read_clock = time.clock_gettime if hasattr(time, "clock_gettime") else None
_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 0))
_monotonic, _wall = time.monotonic, time.time


def ticks() -> float:
    """Return seconds of the clock that nobody can set."""
    return _read_clock(_CLOCK_ID) if _read_clock is not None else _monotonic()


def wall() -> float:
    """Return Unix seconds, also while a test has frozen the wall clock."""
    return _read_clock(time.CLOCK_REALTIME) if _read_clock is not None else _wall()


def boot_id() -> str:
    """Return what names this boot of this machine; where there is no such name, one of this process."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return f"process-{uuid4().hex}"


class Clock(Protocol):
    """What the shells need of time."""

    def now(self) -> Moment:
        """Return this instant."""
        ...

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Block until `event` is set or `seconds` have passed; return whether it is set."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""
        ...

    async def wait_for(self, future: asyncio.Future[Any], seconds: float) -> bool:
        """Wait until `future` is done or `seconds` have passed, cancelling nothing; return whether it is done."""
        ...

    async def pause(self, seconds: float) -> None:
        """Let `seconds` pass for this task."""
        ...


class SystemClock:
    """The real clock."""

    def __init__(self) -> None:
        self._boot = boot_id()
        self._offset = wall() - ticks()

    def now(self) -> Moment:
        at = ticks()
        return Moment(at + self._offset, at, self._boot)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(min(seconds, threading.TIMEOUT_MAX))

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(min(seconds, threading.TIMEOUT_MAX))

    async def wait_for(self, future: asyncio.Future[Any], seconds: float) -> bool:
        seconds = min(seconds, threading.TIMEOUT_MAX)
        if _loop_stands_still():
            await _beside_the_loop(future, seconds)
        else:
            await asyncio.wait((future,), timeout=seconds)
        return future.done()

    async def pause(self, seconds: float) -> None:
        seconds = min(seconds, threading.TIMEOUT_MAX)
        if _loop_stands_still():
            await _beside_the_loop(asyncio.get_running_loop().create_future(), seconds)
        else:
            await asyncio.sleep(seconds)


def wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """Tell a loop, from another thread, that something ended; nobody listens if the loop is gone."""

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    with suppress(RuntimeError):
        loop.call_soon_threadsafe(finish)


def _loop_stands_still() -> bool:
    """Return whether a test has replaced the clock of asyncio's timers, as freezegun does."""
    return not isinstance(time.monotonic, BuiltinFunctionType)


async def _beside_the_loop(future: asyncio.Future[Any], seconds: float) -> None:
    """Wait as `asyncio.wait` does, by a thread in place of the loop's timers."""
    loop = asyncio.get_running_loop()
    alarm, stop = loop.create_future(), threading.Event()

    def ring() -> None:
        if not stop.wait(seconds):
            wake(loop, alarm)

    threading.Thread(target=ring, name="safewrite-timer", daemon=True).start()
    try:
        await asyncio.wait((future, alarm), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stop.set()


_clock: Clock = SystemClock()


def clock() -> Clock:
    """Return the clock in use."""
    return _clock


def use(replacement: Clock) -> Clock:
    """Put another clock in place, for all threads; return the one it replaces."""
    global _clock
    previous, _clock = _clock, replacement
    return previous
