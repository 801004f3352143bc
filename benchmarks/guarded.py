"""Guarded writes: one caller, many callers, and the replay of what is done already."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import safewrite
from benchmarks.floors import LOOK, WRITE
from benchmarks.measure import Case, Operations, each
from safewrite import SafeWrite

SQLITE = {
    "one sync caller": 1.4,
    "one async caller": 2.0,
    "32 callers": 0.25,
    "256 callers": 0.12,
    "replay": 3.0,
}
POSTGRES = {"one sync caller": 1.5, "32 callers": 0.6, "replay": 2.5}
"""The figures to reach."""


class Guarded:
    """A tool whose body does nothing, so that what is measured is the guard."""

    def __init__(self, url: str, run: str = "run-1") -> None:
        self.sw, self._run = SafeWrite(url), run
        self._numbers, self._looks = itertools.count(), itertools.count()

        @self.sw.write(target="sub_id", name="cancel", free_text=("reason",))
        def cancel(sub_id: str, reason: str) -> dict[str, str]:
            return {"id": sub_id, "status": "cancelled"}

        @self.sw.write(target="sub_id", name="acancel", free_text=("reason",))
        async def acancel(sub_id: str, reason: str) -> dict[str, str]:
            return {"id": sub_id, "status": "cancelled"}

        self._cancel, self._acancel = cancel, acancel

    def _new(self) -> str:
        return f"sub_{next(self._numbers)}"

    def writes(self, count: int) -> list[float]:
        """Write one after the other."""
        with safewrite.run(self._run), safewrite.turn(1):
            return each(lambda: self._cancel(self._new(), reason="asked for it"), count)

    def together(self, callers: int) -> Operations:
        """Return what writes from so many coroutines at once; of several, the time of all is shared by all."""

        async def caller(count: int) -> list[float]:
            taken: list[float] = []
            for _ in range(count):
                began = time.perf_counter()
                await self._acancel(self._new(), reason="asked for it")
                taken.append(time.perf_counter() - began)
            return taken

        async def all_of_them(count: int) -> list[float]:
            began = time.perf_counter()
            taken = await asyncio.gather(*(caller(count // callers) for _ in range(callers)))
            return taken[0] if callers == 1 else [(time.perf_counter() - began) / count]

        def run(count: int) -> list[float]:
            with safewrite.run(self._run), safewrite.turn(1):
                return asyncio.run(all_of_them(count))

        return run

    def replays(self, count: int) -> list[float]:
        """Ask again for the first twenty."""
        with safewrite.run(self._run), safewrite.turn(1):
            return each(lambda: self._cancel(f"sub_{next(self._looks) % 20}", reason="asked for it"), count)


def threads(one: Callable[[], object], callers: int) -> Operations:
    """Return what does something in so many threads at once: the time of all, shared by all."""

    def run(count: int) -> list[float]:
        with ThreadPoolExecutor(callers) as pool:
            began = time.perf_counter()
            list(pool.map(lambda _: each(one, count // callers), range(callers)))
            return [(time.perf_counter() - began) / count]

    return run


def cases(guarded: Guarded, count: int, targets: dict[str, float]) -> list[Case]:
    """Return the cases of a ledger."""

    def case(name: str, run: Operations, many: int = 1, floor: str = WRITE) -> Case:
        return Case(name, run, max(count, many * max(1, count // 20)), floor, targets.get(name))

    return [
        case("one sync caller", guarded.writes),
        case("one async caller", guarded.together(1)),
        case("32 callers", guarded.together(32), 32),
        case("32 threads", threads(lambda: guarded.writes(1), 32), 32),
        case("256 callers", guarded.together(256), 256),
        case("replay", guarded.replays, floor=LOOK),
    ]
