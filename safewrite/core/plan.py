"""The arithmetic of caps: what a limit on each call cuts, how many tasks that hits, and the worst case.

Three strategies share the seconds that tools may use.  *Even split*: each call gets total / calls.  *p99* and
*fixed cap*: each call gets its own cap, whatever the others used.  *Deadline*: each call gets the smaller of its
cap and what is left for all of them, as `safewrite.run(deadline=..., call_cap=...)` grants it.

A call is cut if it takes longer than it was granted.  A task is hit if any of its calls is cut or refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from safewrite.core.latency import Latency

Strategy = Literal["even_split", "p99", "fixed_cap", "deadline"]
Counts = tuple[tuple[int, float], ...]
"""(calls of a task, share of the tasks that make so many), the shares summing to 1."""

P99: Final = 0.01
MEDIAN: Final = 0.5


@dataclass(frozen=True, slots=True)
class Simulated:
    """What happened to simulated tasks under a deadline and a cap.  Shares are of all calls that were wanted."""

    tasks: int
    """How many were simulated."""
    cut_by_cap: float
    cut_by_remainder: float
    """Cut because less than the cap was left."""
    refused: float
    """Not issued, since less than the minimum was left."""
    tasks_hit: float
    """Share of the tasks with at least one call cut or refused."""
    longest: float
    """Seconds that the slowest task spent in its calls."""


@dataclass(frozen=True, slots=True)
class Row:
    """One strategy with one cap.  Durations are seconds, shares run from 0 to 1."""

    strategy: Strategy
    cap: float
    """The most that one call gets."""
    calls_cut: float
    """Share of calls that take longer than the cap."""
    at_most: bool
    """Whether `calls_cut` and `tasks_hit` are only upper bounds, since the cap lies outside what is known."""
    tasks_hit: float
    """1 - (1 - calls_cut)^calls, over the distribution of calls: holds for independent calls."""
    worst: float
    """Seconds of a task all of whose calls take as long as they may."""
    fits: bool
    """Whether that is within the seconds that tools may use."""
    left_after_worst: float
    """Seconds left of those after one call that took its whole cap."""
    times_the_rest: float | None
    """`left_after_worst` over what the other calls of the task take at the median; None if that is not known, or 0."""
    simulated: Simulated | None = None
    """For a deadline, where the median is known: cuts and refusals by what is left are counted, too."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What `safewrite.plan(...)` answers.  Durations are seconds, shares run from 0 to 1."""

    total: float
    gateway: float
    model: float
    """Turns times seconds per turn."""
    slack: float
    tools: float
    """What is left for the calls of tools: total - gateway - model - slack."""
    calls: int
    """Calls per task; of a distribution, the most."""
    minimum: float
    median: float | None
    """Seconds of the median call."""
    typical: float | None
    """Seconds that the calls of a task take when each takes the median (of a distribution: the median count)."""
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    """What to bear in mind when reading the rows, in sentences."""
    seed: int

    @property
    def run_deadline(self) -> float:
        """Seconds for `safewrite.run(deadline=...)` around a whole task: its clock runs while the model thinks."""
        return self.tools + self.model

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain data, ready for JSON."""
        told = asdict(self)
        told["rows"] = list(told["rows"])
        told["notes"] = list(told["notes"])
        return {**told, "run_deadline": self.run_deadline}


@dataclass(frozen=True, slots=True)
class Task:
    """What the calls of one task share: how many, how long each takes, and the seconds for all of them."""

    latency: Latency
    counts: Counts
    tools: float
    minimum: float

    @property
    def most(self) -> int:
        """The largest number of calls."""
        return max(count for count, _ in self.counts)

    @property
    def usual(self) -> int:
        """The median number of calls."""
        return _count(tuple(sorted(self.counts)), MEDIAN - 1e-12)

    def hit(self, cut: float) -> float:
        """Return the share of tasks with at least one call cut, if each call is with the chance `cut`."""
        return sum(share * (1.0 - (1.0 - cut) ** count) for count, share in self.counts)


def row(task: Task, strategy: Strategy, cap: float, simulated: Simulated | None = None) -> Row:
    """Return what `cap` does to a task under one strategy."""
    under_deadline = strategy == "deadline"
    cap = min(cap, task.tools) if under_deadline else cap
    cut = task.latency.longer(cap)
    # The even split of a total is the total again, whatever the division loses.
    worst = task.tools if strategy == "even_split" else task.most * cap
    worst = min(worst, task.tools) if under_deadline else worst
    left = max(0.0, task.tools - cap)
    median = task.latency.at(MEDIAN)
    rest = (task.most - 1) * (median or 0.0)
    return Row(
        strategy,
        cap,
        cut.value,
        cut.at_most,
        task.hit(cut.value),
        worst,
        worst <= task.tools,
        left,
        left / rest if rest else None,
        simulated,
    )


def simulate(task: Task, cap: float, tasks: int, number: Callable[[], float]) -> Simulated:
    """Run `tasks` tasks under a deadline of `task.tools` seconds and a cap, with random numbers from `number`.

    A call that is cut has used all it was granted, and the task goes on with the next.
    """
    wanted = by_cap = by_remainder = refused = hit = 0
    longest = 0.0
    for _ in range(tasks):
        calls = _count(task.counts, number())
        left, whole = task.tools, True
        for done in range(calls):
            if left < task.minimum or left <= 0.0:
                refused += calls - done
                whole = False
                break
            granted, took = min(cap, left), task.latency.draw(number())
            if took > granted:
                whole = False
                by_cap += cap <= left
                by_remainder += cap > left
            left -= min(took, granted)
        wanted += calls
        hit += not whole
        longest = max(longest, task.tools - left)
    every = max(1, wanted)  # a distribution may hold tasks without any call
    return Simulated(tasks, by_cap / every, by_remainder / every, refused / every, hit / tasks, longest)


def _count(counts: Counts, number: float) -> int:
    for count, share in counts:
        if number < share:
            return count
        number -= share
    return counts[-1][0]
