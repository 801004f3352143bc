"""The seam through which all time comes: a clock that nobody can set, wall time for stamps, and waiting.

Deadlines, leases and work bounds run on a clock that keeps running while the machine sleeps and that stepping the
wall clock (or freezing it in a test) does not touch.  Wall time is read once and carried on by that clock, so that
one process never sees it jump.
"""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any, Protocol
from uuid import uuid4

from safewrite.core.events import Moment

# Taken at import: tests that freeze or patch the `time` module must not stop a deadline.
_read_clock = time.clock_gettime if hasattr(time, "clock_gettime") else None
_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", 0))
_monotonic, _wall = time.monotonic, time.time


def ticks() -> float:
    """Return seconds of the clock that nobody can set."""
    return _read_clock(_CLOCK_ID) if _read_clock is not None else _monotonic()


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
        self._offset = time.time() - ticks()

    def now(self) -> Moment:
        at = ticks()
        return Moment(at + self._offset, at, self._boot)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(min(seconds, threading.TIMEOUT_MAX))

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(min(seconds, threading.TIMEOUT_MAX))

    async def wait_for(self, future: asyncio.Future[Any], seconds: float) -> bool:
        await asyncio.wait((future,), timeout=min(seconds, threading.TIMEOUT_MAX))
        return future.done()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, threading.TIMEOUT_MAX))


_clock: Clock = SystemClock()


def clock() -> Clock:
    """Return the clock in use."""
    return _clock


def use(replacement: Clock) -> Clock:
    """Put another clock in place, for all threads; return the one it replaces."""
    global _clock
    previous, _clock = _clock, replacement
    return previous
