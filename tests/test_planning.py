"""`safewrite.plan(...)`: numbers that a promise is made from, and what it refuses."""

from __future__ import annotations

import json
import math
from datetime import timedelta
from typing import Any

import pytest

import safewrite
from safewrite import ConfigurationError

RATES = {3.0: 0.06, 9.0: 0.015, 12.0: 0.007}
PARTS: dict[str, Any] = {"gateway": 2, "turns": 4, "seconds_per_turn": 2, "slack": 2}


def rows(plan: safewrite.Plan) -> dict[tuple[str, float], Any]:
    """Return the rows by strategy and cap."""
    return {(row.strategy, round(row.cap, 3)): row for row in plan.rows}


def test_thirty_seconds_are_shared_out() -> None:
    """30 s = 2 gateway + 8 model + 2 slack + 18 tools; an even split of 3 s cuts 6 % of calls and 31 % of tasks."""
    plan = safewrite.plan(30, calls=6, rates=RATES, median=0.4, caps=[12], **PARTS)
    assert (plan.gateway, plan.model, plan.slack, plan.tools) == (2.0, 8.0, 2.0, 18.0)
    assert plan.run_deadline == 26.0
    assert pytest.approx(2.4) == plan.typical
    by = rows(plan)
    split = by["even_split", 3.0]
    assert (
        split.calls_cut,
        round(split.tasks_hit, 3),
        split.worst,
        split.fits,
    ) == (0.06, 0.310, 18.0, True)
    fixed = by["fixed_cap", 12.0]
    assert (
        fixed.calls_cut,
        round(fixed.tasks_hit, 3),
        fixed.worst,
        fixed.fits,
    ) == (0.007, 0.041, 72.0, False)
    under = by["deadline", 9.0]
    assert (under.calls_cut, round(under.tasks_hit, 3), under.worst) == (0.015, 0.087, 18.0)
    assert (under.left_after_worst, under.times_the_rest) == (9.0, 4.5)
    assert 0.01 <= by["p99", 10.525].calls_cut <= 0.010001
    assert by["deadline", 12.0].worst == 18.0


def test_the_deadline_is_simulated() -> None:
    """Cuts by the cap come out as the rate says; what is left cuts and refuses a few more."""
    plan = safewrite.plan(30, calls=6, rates=RATES, median=0.4, **PARTS)
    done = rows(plan)["deadline", 9.0].simulated
    assert done.tasks == 20_000
    assert pytest.approx(0.015, abs=0.002) == done.cut_by_cap
    assert 0.0 < done.cut_by_remainder < 0.01
    assert 0.0 < done.refused < 0.01
    assert pytest.approx(0.087, abs=0.01) == done.tasks_hit
    assert done.longest <= 18.0


def test_the_same_seed_gives_the_same_plan() -> None:
    """And another one another: the simulation does not depend on anything else."""
    first, second, other = (
        safewrite.plan(30, calls=6, rates=RATES, median=0.4, tasks=2_000, seed=seed) for seed in (1, 1, 2)
    )
    assert first == second
    assert first != other


def test_a_plan_is_plain_data() -> None:
    """`to_dict()` can be written as JSON and holds all of it."""
    plan = safewrite.plan(30, calls=6, rates=RATES, median=0.4, tasks=100, **PARTS)
    told = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert (told["tools"], told["run_deadline"], told["calls"]) == (18.0, 26.0, 6)
    assert told["rows"][0]["strategy"] == "even_split"
    assert told["rows"][-1]["simulated"]["tasks"] == 100
    assert told["notes"] == list(plan.notes)


def test_the_caveat_of_independence_is_always_said() -> None:
    """The formula takes calls to be independent, and every plan says so."""
    for given in ({"rates": RATES}, {"samples": [1.0, 2.0]}, {"percentiles": {50: 1, 99: 9}}):
        assert "independent" in safewrite.plan(30, calls=6, tasks=10, **given).notes[0]


def test_percentiles_and_rates_are_two_ways_to_say_the_same() -> None:
    """The 94th percentile is the cap that cuts 6 %."""
    percentiles = {50: 0.4, 94: 3.0, 98.5: 9.0, 99.3: timedelta(seconds=12)}
    by_percentiles = safewrite.plan(18, calls=6, percentiles=percentiles, tasks=100)
    by_rates = safewrite.plan(18, calls=6, rates=RATES, median=0.4, tasks=100)
    for one, other in zip(by_percentiles.rows, by_rates.rows, strict=True):
        assert pytest.approx(one.calls_cut) == other.calls_cut
        assert pytest.approx(one.cap) == other.cap


def test_samples_are_taken_as_they_are() -> None:
    """Of 100 samples, six over 3 s: 6 %; the p99 is the second longest."""
    samples = [0.4] * 94 + [4.0, 5.0, 6.0, 7.0, 8.0, timedelta(seconds=20)]
    plan = safewrite.plan(18, calls=6, samples=samples, tasks=100)
    assert rows(plan)["even_split", 3.0].calls_cut == 0.06
    assert ("p99", 8.0) in rows(plan)
    assert plan.median == 0.4


def test_what_no_sample_shows_is_not_taken_for_impossible() -> None:
    """A cap that none of 100 samples exceeded may still cut up to 3 %."""
    plan = safewrite.plan(18, calls=6, samples=[0.4] * 100, tasks=10)
    assert rows(plan)["deadline", 9.0].calls_cut == 0.0
    assert any("3.00%" in note for note in plan.notes)
    shown = safewrite.plan(18, calls=6, samples=[0.4] * 99 + [60.0], tasks=10)
    assert not any("samples took longer" in note for note in shown.notes)


def test_what_is_not_known_is_said() -> None:
    """One rate alone: no p99, no median, no simulation, and a bound for a longer cap."""
    plan = safewrite.plan(30, calls=6, rates={3.0: 0.06}, **PARTS)
    by = rows(plan)
    assert {("even_split", 3.0), ("deadline", 9.0)} == set(by)
    assert (by["even_split", 3.0].calls_cut, by["even_split", 3.0].at_most) == (0.06, False)
    assert (by["deadline", 9.0].calls_cut, by["deadline", 9.0].at_most) == (0.06, True)
    assert by["deadline", 9.0].simulated is None
    assert (plan.median, plan.typical) == (None, None)
    said = " ".join(plan.notes)
    assert "p99" in said
    assert "median is not known" in said
    assert "upper bound" in said


def test_a_full_picture_needs_no_excuses() -> None:
    """Where everything is known, the caveat of independence is the only note."""
    plan = safewrite.plan(30, calls=6, rates=RATES, median=0.4, tasks=10, **PARTS)
    assert len(plan.notes) == 1


def test_calls_may_be_a_distribution() -> None:
    """The split is over the most calls that occur, the share of tasks over all of them, weights of any sum."""
    weighed = safewrite.plan(18, calls={2: 3, 6: 1}, rates=RATES, median=0.4, tasks=10)
    counted = safewrite.plan(18, calls=[2, 2, 6, 2], rates=RATES, median=0.4, tasks=10)
    assert weighed == counted
    assert (weighed.calls, weighed.typical) == (6, 0.8)
    split = rows(weighed)["even_split", 3.0]
    assert pytest.approx(0.75 * (1 - 0.94**2) + 0.25 * (1 - 0.94**6)) == split.tasks_hit


def test_a_split_below_the_minimum_is_said() -> None:
    """18 s over 30 calls are 0.6 s each, with which no call would start."""
    plan = safewrite.plan(18, calls=30, rates=RATES, median=0.4, tasks=10)
    assert any("0.6 s" in note and "minimum" in note for note in plan.notes)


def test_parts_in_tenths_leave_what_people_expect() -> None:
    """1.1 - 0.1 x 3 - 0.1 is 0.7, not 0.7000000000000001."""
    plan = safewrite.plan(1.1, calls=2, samples=[0.1], turns=3, seconds_per_turn=0.1, slack=0.1, tasks=1)
    assert plan.tools == 0.7


def test_many_calls_are_simulated_in_fewer_tasks() -> None:
    """The simulation stays short: a million random calls in all, but at least a thousand tasks."""
    for calls, tasks in ((50, 20_000), (100, 10_000), (2_000, 1_000)):
        plan = safewrite.plan(10**9, calls=calls, samples=[1e9], tasks=None)
        assert plan.rows[-1].simulated is not None
        assert tasks == plan.rows[-1].simulated.tasks


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"percentiles": {50: 2.0, 99: 1.0}}, "Percentile 50 is 2 s, but percentile 99 is 1 s"),
        ({"percentiles": {101: 2.0}}, "percentile is 101"),
        ({"percentiles": {-1: 2.0}}, "percentile is -1"),
        ({"percentiles": {math.nan: 2.0}}, "percentile is nan"),
        ({"percentiles": {True: 2.0}}, "percentile is True"),
        ({"percentiles": {"p50": 2.0}}, "percentile is 'p50'"),
        ({"percentiles": {50: -2.0}}, "negative"),
        ({"percentiles": {50: 0.0}}, "zero"),
        ({"percentiles": {50: math.inf}}, "infinite"),
        ({"percentiles": {}}, "`percentiles` is {}"),
        ({"percentiles": [1.0]}, "`percentiles` is"),
        ({"samples": []}, "`samples` is empty"),
        ({"samples": [1.0, -1.0]}, "negative"),
        ({"samples": [math.nan]}, "not a number"),
        ({"samples": "1.0"}, "`samples` is '1.0'"),
        ({"samples": 3.0}, "`samples` is 3.0"),
        ({"rates": {3.0: 6}}, "`rates[3.0]` is 6"),
        ({"rates": {3.0: -0.1}}, "`rates[3.0]` is -0.1"),
        ({"rates": {0: 0.1}}, "zero"),
        ({"rates": {}}, "`rates` is {}"),
        ({"rates": {3.0: 0.01, 9.0: 0.06}}, "A cap of 9 s cuts 0.06"),
        ({"rates": {3.0: 0.06}, "median": 4.0}, "The median is 4 s"),
        ({"rates": {3.0: 0.06}, "median": -1}, "`median`"),
        ({"samples": [1.0], "median": 1.0}, "`median` goes with `rates`"),
        ({}, "by nothing"),
        ({"samples": [1.0], "rates": {3.0: 0.06}}, "by samples and rates"),
    ],
)
def test_a_latency_that_cannot_be_used_is_refused(given: dict[str, Any], named: str) -> None:
    """The error names the argument and its value."""
    with pytest.raises(ConfigurationError) as refused:
        safewrite.plan(18, calls=6, **given)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"total": 0}, "`total`"),
        ({"total": math.nan}, "`total`"),
        ({"total": 11, "gateway": 3, "seconds_per_turn": 6, "slack": 2}, "gateway 3 s, model 6 s, slack 2 s"),
        ({"calls": 0}, "`calls` is 0"),
        ({"calls": -6}, "`calls` is -6"),
        ({"calls": True}, "`calls` is True"),
        ({"calls": 2.5}, "`calls` is 2.5"),
        ({"calls": "6"}, "`calls` is '6'"),
        ({"calls": None}, "`calls` is None"),
        ({"calls": 10_001}, "at most 10000"),
        ({"calls": {}}, "`calls` is {}"),
        ({"calls": {0: 1.0}}, "`calls` is {0: 1.0}"),
        ({"calls": {6: 0.0}}, "`calls` is {6: 0.0}"),
        ({"calls": {6: -1.0}}, "`calls[6]` is -1.0"),
        ({"calls": {6: math.nan}}, "`calls[6]` is nan"),
        ({"calls": {2.5: 1.0}}, "`calls` is 2.5"),
        ({"calls": [6, "x"]}, "`calls` is 'x'"),
        ({"calls": []}, "`calls` is []"),
        ({"turns": -1}, "`turns`"),
        ({"turns": 1.5}, "`turns`"),
        ({"seconds_per_turn": -1}, "`seconds_per_turn`"),
        ({"gateway": -1}, "`gateway`"),
        ({"slack": math.inf}, "`slack`"),
        ({"call_cap": 0}, "`call_cap`"),
        ({"caps": 9}, "`caps`"),
        ({"caps": [9, 0]}, "`caps`"),
        ({"minimum": -1}, "`minimum`"),
        ({"tasks": 0}, "`tasks`"),
        ({"seed": 1.5}, "`seed`"),
        ({"seed": True}, "`seed`"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(changed: dict[str, Any], named: str) -> None:
    """The error names the argument and its value."""
    given: dict[str, Any] = {"total": 18, "calls": 6, "samples": [1.0], **changed}
    with pytest.raises(ConfigurationError) as refused:
        safewrite.plan(given.pop("total"), **given)
    assert named in str(refused.value)
