"""Interleaved rounds: every case of a group once in each, beside the floor that it is compared with."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

Operations = Callable[[int], list[float]]
"""Does so many operations.  Returns the seconds of each, or one number: the time of all, shared by all."""

TIMES = "x floor"


@dataclass(frozen=True, slots=True)
class Case:
    """Something to be measured again and again."""

    name: str
    run: Operations
    count: int
    """Operations in a round."""
    floor: str = ""
    """The name of the case that it is compared with; empty: it is a floor itself."""
    target: float | None = None
    by: str = "safewrite"
    peer: bool = False
    """Where it fails, it is left out and said so; nothing else is lost."""

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from the others of its group."""
        return self.name, self.by


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: quartiles over the rounds."""

    group: str
    case: str
    by: str
    unit: str
    """`x floor`, `x empty`, `MiB` or `ms of CPU`."""
    p25: float
    p50: float
    p75: float
    target: float | None = None
    seconds: float | None = None
    """Of one operation: the median of the rounds' medians."""
    cpu: float | None = None
    """Seconds of CPU in this process for one operation, likewise."""


Taken = list[tuple[float, float]]
"""Of one case: seconds, and seconds of CPU, for each round."""


def measure(
    group: str, cases: Sequence[Case], rounds: int, told: Callable[[str], None], unit: str = TIMES
) -> tuple[list[Row], list[str]]:
    """Return the rows of a group, and a line for every peer that failed.

    In every round each case is divided by its floor of that very round, so that what disturbs the machine for longer
    than a round disturbs both.  Another case begins each round; of several, one more comes first and does not count.
    """
    taken, failed = {case.key: Taken() for case in cases}, dict[tuple[str, str], str]()
    floors = {case.name: taken[case.key] for case in cases if not case.floor}
    for number in range(-1 if rounds > 1 else 0, rounds):
        told(f"{group}: round {max(number, 0) + 1} of {rounds}")
        at = max(number, 0) % len(cases)
        for case in (*cases[at:], *cases[:at]):
            if case.key in failed:
                continue
            try:
                once = _once(case)
            except Exception as error:
                if not case.peer:
                    raise
                failed[case.key] = f"{group}, {case.name}, {case.by}: {type(error).__name__}: {error}"
            else:
                taken[case.key] += [once] * (number >= 0)
    whole = [case for case in cases if case.key not in failed]
    return [_row(group, c, taken[c.key], floors[c.floor or c.name], unit) for c in whole], [*failed.values()]


def _once(case: Case) -> tuple[float, float]:
    gc.collect()
    began = time.process_time()
    each = case.run(case.count)
    return statistics.median(each), (time.process_time() - began) / case.count


def _row(group: str, case: Case, mine: Taken, floor: Taken, unit: str) -> Row:
    ratios = [a / b for (a, _), (b, _) in zip(mine, floor, strict=True)]
    seconds, cpu = map(statistics.median, zip(*mine, strict=True))
    return replace(figure(group, case.key, unit, ratios, case.target), seconds=seconds, cpu=cpu)


def figure(
    group: str, key: tuple[str, str], unit: str, values: Sequence[float], target: float | None = None
) -> Row:
    """Return a row of quartiles."""
    many = values if len(values) > 1 else [*values, *values]
    p25, p50, p75 = statistics.quantiles(many, n=4, method="inclusive")
    return Row(group, *key, unit, p25, p50, p75, target)


def each(operation: Callable[[], object], count: int) -> list[float]:
    """Do something so many times; return the seconds of each."""
    clock, taken = time.perf_counter, []
    for _ in range(count):
        began = clock()
        operation()
        taken.append(clock() - began)
    return taken
