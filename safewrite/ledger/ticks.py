"""The clock by which waits for a database end."""

from __future__ import annotations

import time

# Where there is one: tests that freeze `time` replace what they know, and a wait would have no end.
_read = time.clock_gettime if hasattr(time, "clock_gettime") else None
_ID = getattr(time, "CLOCK_MONOTONIC", 0)


def monotonic() -> float:
    """Return seconds of a clock that nobody can set, nor freeze."""
    return _read(_ID) if _read is not None else time.monotonic()
