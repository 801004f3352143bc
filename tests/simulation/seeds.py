"""Many seeds, in several processes."""

from __future__ import annotations

import logging
import signal
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from math import inf
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from safewrite import SafeWrite
from tests.simulation.play import Played, play


@contextmanager
def ledger() -> Iterator[str]:
    """Yield the URL of a ledger that all seeds share, each in a namespace of its own, in memory where that can be."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="safewrite-simulation-", dir=fast if fast.is_dir() else None
    ) as folder:
        url = f"sqlite:///{folder}/safewrite.db"
        with SafeWrite(url) as sw:
            sw.upgrade()
        yield url


PORTION: Final = 25
"""Seeds that share a ledger."""


def _deaf() -> None:
    """Leave an interrupt from the terminal to the process that asked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def portion(first: int, count: int, until: float) -> list[Played]:
    """Play some seeds, one after the other, until the time is over."""
    logging.disable(logging.CRITICAL)  # alarms are judged, not read
    played = []
    with ledger() as url:
        for seed in range(first, first + count):
            if time.monotonic() >= until:
                break
            try:
                played.append(play(url, seed))
            except Exception as error:
                error.add_note(f"in seed {seed}")
                raise
    return played


def seeds(first: int, count: int | None, seconds: float | None, processes: int) -> Iterator[Played]:
    """Play seeds, in several processes: so many, or for so long."""
    until = inf if seconds is None else time.monotonic() + seconds
    end = inf if count is None else first + count
    with ProcessPoolExecutor(processes, get_context("spawn"), _deaf) as pool:
        running: deque[Future[list[Played]]] = deque()
        try:
            while True:
                while len(running) < 2 * processes and first < end and time.monotonic() < until:
                    some = int(min(PORTION, end - first))
                    running.append(pool.submit(portion, first, some, until))
                    first += some
                if not running:
                    return
                yield from running.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
