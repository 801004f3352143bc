"""How to share a promised total among the calls of a task, before it is promised."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from safewrite.core.latency import Curve, Latency, Measured
from safewrite.core.plan import P99, Counts, Plan, Row, Simulated, Task, row, simulate
from safewrite.durations import Duration, seconds
from safewrite.errors import ConfigurationError

__all__ = ["Plan", "Row", "Simulated", "plan"]

MOST_CALLS = 10_000
_DRAWS = 1_000_000  # random calls in all: a second or so

_INDEPENDENT = (
    "Tasks hit is 1 - (1 - p)^n, which takes calls to be independent. They are not: slow calls come together, in the "
    "same slow minute of the same dependency. Then fewer tasks are hit than it says, and those that are lose several "
    "calls, so that a shared deadline runs out sooner than in the simulation, which draws independent calls as well."
)


def plan(
    total: Duration,
    *,
    calls: int | Mapping[int, float] | Iterable[int],
    percentiles: Mapping[int, Duration] | Mapping[float, Duration] | None = None,
    samples: Iterable[Duration] | None = None,
    rates: Mapping[int, float] | Mapping[float, float] | None = None,
    median: Duration | None = None,
    turns: int = 1,
    seconds_per_turn: Duration = 0.0,
    gateway: Duration = 0.0,
    slack: Duration = 0.0,
    call_cap: Duration | None = None,
    caps: Iterable[Duration] = (),
    minimum: Duration = 1.0,
    tasks: int | None = None,
    seed: int = 0,
) -> Plan:
    """Compare ways to bound the calls of a task that has to be over in `total` seconds.

    Durations are seconds or `timedelta`.  Tools may use total - gateway - turns x seconds_per_turn - slack.

    - `calls`: calls per task; a number, a mapping {number: weight}, or the numbers that were counted.
    - How long calls take is one of: `percentiles`, {50: 0.4, 99: 9.0}; `samples`, times that were measured;
      `rates`, {cap in seconds: share of calls cut by it, 0 to 1}, with `median` if it is known.
    - `turns`, `seconds_per_turn`: what the model uses (default: 1 turn of 0 s).  `gateway`, `slack`: default 0.
    - `call_cap`: the cap under the deadline; default half of what tools may use, so that one worst call leaves as
      much again.  `caps`: further caps, shown without and with a deadline.
    - `minimum`: a call is refused if less is left of the deadline (default 1.0).
    - `tasks`, `seed`: how many tasks are simulated (default up to 20,000) and what the random numbers start from
      (default 0): the same arguments give the same answer.

    The rows: an even split, the p99 as the cap of each call, the further `caps`, and the deadline with its cap.
    Raises `ConfigurationError`, which names the argument and what to write.
    """
    parts = {
        "gateway": _duration(gateway, "gateway"),
        "model": _whole(turns, "turns", least=0) * _duration(seconds_per_turn, "seconds_per_turn"),
        "slack": _duration(slack, "slack"),
    }
    whole = seconds(total, name="total")
    latency = _latency(percentiles, samples, rates, median)
    task = Task(latency, _counts(calls), _left_for_tools(whole, parts), _duration(minimum, "minimum"))
    further = [seconds(cap, name="caps") for cap in _listed(caps, "caps")]
    own_cap = task.tools / 2 if call_cap is None else seconds(call_cap, name="call_cap")
    simulated = _simulations(task, tasks, seed, [own_cap, *further])
    p99 = latency.at(P99)
    rows = [row(task, "even_split", task.tools / task.most)]
    rows += [row(task, "p99", p99)] if p99 else []
    rows += [row(task, "fixed_cap", cap) for cap in further]
    rows += [row(task, "deadline", cap, simulated.get(cap)) for cap in (own_cap, *further)]
    usual = latency.at(0.5)
    return Plan(
        total=whole,
        tools=task.tools,
        calls=task.most,
        minimum=task.minimum,
        median=usual,
        typical=None if usual is None else task.usual * usual,
        rows=tuple(rows),
        notes=tuple(_notes(task, rows, p99)),
        seed=seed,
        **parts,
    )


def _left_for_tools(total: float, parts: Mapping[str, float]) -> float:
    left = total - sum(parts.values())
    if left <= 0.0:
        spent = ", ".join(f"{name} {part:g} s" for name, part in parts.items() if part)
        raise ConfigurationError(
            f"Nothing is left for tools of a `total` of {total:g} s: {spent}. Write a longer total or smaller parts."
        )
    # 1.1 - 0.4 is 0.7, though floats say 0.7000000000000001: nobody plans in nanoseconds.
    return round(left, 9)


def _simulations(task: Task, tasks: int | None, seed: int, caps: Sequence[float]) -> dict[float, Simulated]:
    count = min(20_000, max(1_000, _DRAWS // task.most)) if tasks is None else _whole(tasks, "tasks", least=1)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigurationError(f"`seed` is {seed!r}. Write a whole number.")
    if task.latency.at(0.5) is None:
        return {}
    # Each cap meets the same tasks: what differs between rows is the cap.
    return {cap: simulate(task, cap, count, random.Random(seed).random) for cap in caps}  # noqa: S311  # no secret


def _notes(task: Task, rows: Sequence[Row], p99: float | None) -> Iterable[str]:
    yield _INDEPENDENT
    if any(row.at_most for row in rows):
        yield "'At most' marks a cap outside what is known of the latency: the share is an upper bound."
    if isinstance(task.latency, Measured):
        measured = task.latency.seconds
        if any(row.calls_cut == 0.0 for row in rows):
            yield (
                f"None of the {len(measured)} samples took longer than {measured[-1]:g} s, which does not show that "
                f"no call will: the true share can still be as high as {min(1.0, 3 / len(measured)):.2%}."
            )
    if p99 is None:
        yield "There is no row for the p99, which is not known: give a percentile of 99 or more."
    if task.latency.at(0.5) is None:
        yield "Nothing is said of typical tasks or simulated, since the median is not known: give it as well."
    if rows[0].cap < task.minimum:
        yield (
            f"An even split gives each call {rows[0].cap:g} s, less than the minimum of {task.minimum:g} s with which "
            "a call starts."
        )


# What is given, checked ---------------------------------------------------------------------------------------------


def _latency(
    percentiles: object,
    samples: Iterable[Duration] | None,
    rates: object,
    median: Duration | None,
) -> Latency:
    given = [name for name, value in (("percentiles", percentiles), ("samples", samples), ("rates", rates))
             if value is not None]  # fmt: skip
    if len(given) != 1:
        raise ConfigurationError(
            f"How long calls take is given {'by ' + ' and '.join(given) if given else 'by nothing'}. "
            "Write one of `percentiles`, `samples` and `rates`."
        )
    if median is not None and rates is None:
        raise ConfigurationError(
            "`median` goes with `rates` only. Write it as the 50th of the `percentiles`."
        )
    if percentiles is not None:
        return _from_percentiles(percentiles)
    if rates is not None:
        return _from_rates(rates, median)
    assert samples is not None
    measured = [_duration(sample, "samples") for sample in _listed(samples, "samples")]
    if not measured:
        raise ConfigurationError("`samples` is empty. Write the seconds that calls took.")
    return Measured(tuple(sorted(measured)))


def _from_percentiles(percentiles: object) -> Curve:
    points = []
    for rank, value in _pairs(percentiles, "percentiles", "{50: 0.4, 99: 9.0}"):
        percentile = _number(rank, "A percentile", 100, "50 or 99.9")
        at = seconds(value, name=f"percentiles[{rank!r}]")
        points.append(((100.0 - percentile) / 100.0, at, f"percentile {percentile:g} is {at:g} s"))
    return _curve(points, "A higher percentile is never shorter.")


def _from_rates(rates: object, median: Duration | None) -> Curve:
    points = []
    for cap, rate in _pairs(rates, "rates", "{3.0: 0.06}"):
        at = seconds(cap, name="a cap in `rates`")
        share = _number(rate, f"`rates[{cap!r}]`", 1, "0.06 for 6 %")
        points.append((share, at, f"a cap of {at:g} s cuts {share:g} of the calls"))
    if median is not None:
        at = seconds(median, name="median")
        points.append((0.5, at, f"the median is {at:g} s"))
    return _curve(points, "A longer cap never cuts more.")


def _curve(points: list[tuple[float, float, str]], rule: str) -> Curve:
    """Join points: share that takes longer, seconds, and how they were given."""
    points = sorted(points, key=lambda point: (-point[0], point[1]))
    for (_, fast, before), (_, slow, after) in pairwise(points):
        if slow < fast:
            raise ConfigurationError(f"{before[0].upper()}{before[1:]}, but {after}. {rule} Write them so.")
    return Curve(tuple(point[0] for point in points), tuple(point[1] for point in points))


def _counts(calls: int | Mapping[int, float] | Iterable[int]) -> Counts:
    weights: Mapping[int, float]
    if isinstance(calls, Mapping):
        weights = {count: _weight(weight, count) for count, weight in calls.items()}
    elif isinstance(calls, int | float) or not isinstance(calls, Iterable) or isinstance(calls, str):
        weights = {_whole(calls, "calls", least=1): 1.0}
    else:
        weights = dict(Counter(_whole(count, "calls", least=0) for count in calls))
    for count in weights:
        _whole(count, "calls", least=0)
    every = sum(weights.values())
    if every <= 0.0 or not math.isfinite(every) or max(count for count, w in weights.items() if w) < 1:
        raise ConfigurationError(
            f"`calls` is {calls!r}. Write calls per task, such as 6 or {{4: 0.7, 9: 0.3}}."
        )
    return tuple((count, weight / every) for count, weight in sorted(weights.items()) if weight)


def _weight(weight: object, count: object) -> float:
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise ConfigurationError(
            f"`calls[{count!r}]` is {weight!r}. Write the share of tasks with so many calls."
        )
    return float(weight)


def _duration(value: object, name: str) -> float:
    return seconds(value, name=name, allow_zero=True)


def _number(value: object, name: str, most: int, example: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigurationError(f"{name} is {value!r}. Write a number from 0 to {most}, such as {example}.")
    return float(value)


def _whole(value: object, name: str, *, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value:
        raise ConfigurationError(f"`{name}` is {value!r}. Write a whole number, {least} or more.")
    if name == "calls" and value > MOST_CALLS:
        raise ConfigurationError(f"`calls` is {value}. Write at most {MOST_CALLS} calls per task.")
    return value


def _listed(values: Iterable[Duration], name: str) -> list[Duration]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise ConfigurationError(f"`{name}` is {values!r}. Write a list of seconds.")
    return list(values)


def _pairs(values: object, name: str, example: str) -> list[tuple[object, object]]:
    if not isinstance(values, Mapping) or not values:
        raise ConfigurationError(
            f"`{name}` is {values!r}. Write a mapping that is not empty, such as {example}."
        )
    return list(values.items())
