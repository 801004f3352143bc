"""How the demonstration ends early: SIGTERM as Ctrl-C does, and nothing disturbs the tidying up."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, so that everything is ended and removed then, too.

    SIGINT is handled here as well, or `asyncio.run` would turn it into a cancellation, which is lost where it comes
    just as its task ends.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore a second Ctrl-C, or a SIGTERM, while what was started is being ended."""
    with _handled(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM):
        yield


@contextmanager
def delayed() -> Iterator[None]:
    """Let a first Ctrl-C or SIGTERM wait while a process is being started, which nobody could end yet."""
    waiting: list[object] = []

    def later(*_: object) -> None:
        if waiting:  # it is asked for again: whatever is being started takes too long
            raise KeyboardInterrupt
        waiting.append(True)

    with _handled(later, signal.SIGINT, signal.SIGTERM):
        yield
    if waiting:
        raise KeyboardInterrupt


@contextmanager
def _handled(handler: Any, *numbers: int) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only the main thread may say
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
