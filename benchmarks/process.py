"""What a process pays: the CPU of importing the package, and the memory that it holds after many writes."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks.guarded import Guarded
from benchmarks.measure import Row, figure

IMPORTS = {"import safewrite": 60.0, "from safewrite import SafeWrite": None}
"""What is run, and the most CPU that it is to take, in milliseconds."""


def importing(rounds: int, told: Callable[[str], None]) -> list[Row]:
    """Return a row for each way to import: the CPU of a process that does only that, less one that does nothing."""
    taken: dict[str, list[float]] = {line: [] for line in IMPORTS}
    for number in range(rounds):
        told(f"Import: round {number + 1} of {rounds}")
        nothing = _cpu("pass")
        for line, more in taken.items():
            more.append((_cpu(line) - nothing) * 1000)
    return [
        figure("Import", (line, "safewrite"), "ms of CPU", taken[line], IMPORTS[line]) for line in IMPORTS
    ]


def _cpu(line: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", line], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def memory(place: Path, warm: int, writes: int, told: Callable[[str], None]) -> list[Row]:
    """Return what a process of its own holds more after so many writes, told for 100 thousand; only on Linux."""
    if not Path("/proc/self/statm").exists():
        return []
    told(f"Memory: {warm + writes} writes")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        held = process.submit(_held, place / "memory.db", warm, writes).result()
    return [figure("Memory", ("100 000 intents", "safewrite"), "MiB", [held * 100_000 / 2**20], 1.0)]


def _held(path: Path, warm: int, writes: int) -> float:
    guarded = Guarded(f"sqlite:///{path}")
    guarded.writes(1)  # opens it
    # What is asked is what a process keeps, not how long a disk takes.
    guarded.sw.ledger._store._own().writer.raw.execute("PRAGMA synchronous = OFF")  # type: ignore[union-attr]
    guarded.writes(warm)
    before = _resident()
    guarded.writes(writes)
    return (_resident() - before) / writes


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
