"""The arithmetic of caps, with numbers that were worked out by hand."""

from __future__ import annotations

import math
import random
from dataclasses import asdict
from itertools import cycle, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safewrite.core.latency import Curve, Measured, Share
from safewrite.core.plan import Plan, Task, row, simulate

KNOWN = Curve((0.5, 0.06, 0.015, 0.007), (0.4, 3.0, 9.0, 12.0))
SIX = ((6, 1.0),)
DRAWN = (0.0, 0.24, 0.25, 0.49, 0.5, 0.99)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    """Any set of known points, percentiles 0 and 100 and repeated seconds included."""
    shares = draw(
        st.lists(st.floats(0, 1), min_size=1, max_size=6, unique=True).map(lambda s: sorted(s, reverse=True))
    )
    seconds = draw(st.lists(st.floats(0.001, 1000), min_size=len(shares), max_size=len(shares)).map(sorted))
    return Curve(tuple(shares), tuple(seconds))


# Latency ----------------------------------------------------------------------------------------------------------


def test_known_points_are_returned_as_they_are() -> None:
    """A share that was given comes back to the last digit, in both directions."""
    for share, seconds in zip(KNOWN.longer_than, KNOWN.seconds, strict=True):
        assert Share(share) == KNOWN.longer(seconds)
        assert seconds == KNOWN.at(share)


def test_between_points_the_latency_is_log_normal() -> None:
    """Points taken from a log-normal distribution give that distribution back."""
    sigma = 1.3

    def beyond(seconds: float) -> float:
        return math.erfc(math.log(seconds) / sigma / math.sqrt(2)) / 2

    two = Curve((beyond(1.0), beyond(20.0)), (1.0, 20.0))
    assert pytest.approx(beyond(5.0)) == two.longer(5.0).value
    assert pytest.approx(5.0) == two.at(beyond(5.0))


def test_a_piece_that_ends_at_the_minimum_or_maximum_is_log_linear() -> None:
    """The 0th and the 100th percentile have no normal score: half the way in percentiles is half in the logarithm."""
    ends = Curve((1.0, 0.5, 0.0), (1.0, 4.0, 16.0))
    assert pytest.approx(2.0) == ends.at(0.75)
    assert pytest.approx(8.0) == ends.at(0.25)
    assert Share(0.75) == ends.longer(2.0)
    assert Share(0.25) == ends.longer(8.0)


def test_what_is_not_known_is_a_bound() -> None:
    """Below the lowest and above the highest point only an upper bound is told, and no latency."""
    assert Share(1.0, at_most=True) == KNOWN.longer(0.3)
    assert Share(0.007, at_most=True) == KNOWN.longer(13.0)
    assert KNOWN.at(0.6) is None
    assert KNOWN.at(0.001) is None


def test_a_known_minimum_and_maximum_are_no_bounds() -> None:
    """All calls take longer than less than the minimum, and none longer than the maximum."""
    ends = Curve((1.0, 0.0), (1.0, 16.0))
    assert Share(1.0) == ends.longer(0.5)
    assert Share(0.0) == ends.longer(16.0)
    assert Share(0.0) == ends.longer(17.0)


def test_seconds_that_repeat_are_a_step() -> None:
    """Where two percentiles have the same latency, no more calls than beyond the higher take longer."""
    step = Curve((0.5, 0.1, 0.01), (2.0, 2.0, 4.0))
    assert Share(0.1) == step.longer(2.0)
    assert pytest.approx(2.0) == step.at(0.3)


def test_a_draw_is_the_worst_that_the_points_allow() -> None:
    """Slower than what is known is never ending, faster is the fastest that is known."""
    assert math.inf == KNOWN.draw(0.0069)
    assert KNOWN.draw(0.007) == 12.0
    assert KNOWN.draw(0.5) == 0.4
    assert KNOWN.draw(0.99) == 0.4
    assert Curve((0.5, 0.0), (1.0, 2.0)).draw(0.0) == 2.0


@given(curves(), st.lists(st.floats(0.0005, 2000), min_size=2, max_size=8).map(sorted))
def test_a_longer_cap_never_cuts_more(curve: Curve, caps: list[float]) -> None:
    """The curve falls, whatever the points, and stays a share."""
    shares = [curve.longer(cap).value for cap in caps]
    assert all(0.0 <= after <= before + 1e-9 <= 1.0 + 1e-9 for before, after in pairwise(shares))


@given(curves(), st.floats(0, 1, exclude_max=True))
def test_rank_and_share_agree(curve: Curve, share: float) -> None:
    """No more than a share of calls takes longer than the latency of that rank."""
    at = curve.at(share)
    if at is not None:
        assert curve.longer(at * (1 + 1e-9)).value <= share + 1e-6


def test_measured_times_are_counted() -> None:
    """A share of samples is a share; a rank is the fastest sample that no more than that share exceeds."""
    hundred = Measured(tuple(float(n) for n in range(1, 101)))
    assert Share(0.01) == hundred.longer(99.0)
    assert Share(0.01) == hundred.longer(99.5)
    assert Share(0.0) == hundred.longer(100.0)
    assert Share(1.0) == hundred.longer(0.0)
    assert hundred.at(0.01) == 99.0
    assert hundred.at(0.29) == 71.0
    assert hundred.at(0.5) == 50.0
    assert hundred.at(1.0) == 1.0
    assert [hundred.draw(number) for number in (0.0, 0.5, 0.9999)] == [1.0, 51.0, 100.0]


# Caps -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cut", "hit"), [(0.06, 0.310), (0.007, 0.041), (0.015, 0.087)])
def test_of_six_calls_one_is_cut_more_often_than_one_call_is(cut: float, hit: float) -> None:
    """6 % of calls are 31 % of tasks of six calls, 0.7 % are 4.1 %, 1.5 % are 8.7 %."""
    assert hit == round(Task(KNOWN, SIX, 18.0, 1.0).hit(cut), 3)


def test_tasks_hit_follows_the_distribution_of_calls() -> None:
    """Tasks of one call and of two, half each: the mean of 10 % and 19 %."""
    task = Task(KNOWN, ((1, 0.5), (2, 0.5)), 18.0, 1.0)
    assert pytest.approx(0.145) == task.hit(0.1)


def test_the_worst_case_without_a_deadline_is_every_call_at_its_cap() -> None:
    """Six calls of 12 s are 72 s, which does not fit into 18."""
    fixed = row(Task(KNOWN, SIX, 18.0, 1.0), "fixed_cap", 12.0)
    assert (fixed.worst, fixed.fits) == (72.0, False)
    assert (fixed.calls_cut, round(fixed.tasks_hit, 3)) == (0.007, 0.041)
    assert fixed.left_after_worst == 6.0


def test_the_worst_case_with_a_deadline_is_the_deadline() -> None:
    """18 s with a cap of 9: 9 s are left after one worst call, 4.5 times the 2 s of five median calls."""
    under = row(Task(KNOWN, SIX, 18.0, 1.0), "deadline", 9.0)
    assert (under.worst, under.fits) == (18.0, True)
    assert (under.left_after_worst, under.times_the_rest) == (9.0, 4.5)


def test_calls_that_cannot_use_the_deadline_up_have_a_smaller_worst_case() -> None:
    """Two calls of at most 3 s are 6 s, whatever the deadline."""
    assert row(Task(KNOWN, ((2, 1.0),), 18.0, 1.0), "deadline", 3.0).worst == 6.0


def test_a_cap_beyond_the_deadline_is_the_deadline() -> None:
    """No call is granted more than there is; without a deadline it would be."""
    task = Task(KNOWN, SIX, 10.0, 1.0)
    assert row(task, "deadline", 12.0).cap == 10.0
    fixed = row(task, "fixed_cap", 12.0)
    assert (fixed.cap, fixed.left_after_worst) == (12.0, 0.0)


def test_an_even_split_always_fits() -> None:
    """A seventh of a total, seven times, is that total: the division may not lose it."""
    split = row(Task(KNOWN, ((7, 1.0),), 0.7, 0.01), "even_split", 0.7 / 7)
    assert (split.worst, split.fits) == (0.7, True)
    assert row(Task(KNOWN, ((35, 1.0),), 0.7, 0.01), "even_split", 0.7 / 35).worst == 0.7 != 35 * (0.7 / 35)


def test_a_row_names_its_strategy_and_whether_it_is_a_bound() -> None:
    """And carries what was simulated for it."""
    task = Task(KNOWN, SIX, 18.0, 1.0)
    done = simulate(task, 15.0, 1, lambda: 0.9)
    beyond = row(task, "deadline", 15.0, done)
    assert (beyond.strategy, beyond.at_most, beyond.simulated) == ("deadline", True, done)
    assert row(task, "p99", 9.0).at_most is False


def test_a_plan_is_plain_data() -> None:
    """Its rows and notes as lists, and the deadline that follows from it."""
    one = row(Task(KNOWN, SIX, 18.0, 1.0), "deadline", 9.0)
    plan = Plan(60.0, 2.0, 30.0, 10.0, 18.0, 6, 1.0, 0.4, 2.4, (one,), ("a note",), 7)
    assert plan.to_dict() == {
        "total": 60.0,
        "gateway": 2.0,
        "model": 30.0,
        "slack": 10.0,
        "tools": 18.0,
        "calls": 6,
        "minimum": 1.0,
        "median": 0.4,
        "typical": 2.4,
        "rows": [asdict(one)],
        "notes": ["a note"],
        "seed": 7,
        "run_deadline": 48.0,
    }


def test_one_call_has_no_rest() -> None:
    """There is no ratio to what follows where nothing follows, or its median is not known."""
    assert row(Task(KNOWN, ((1, 1.0),), 18.0, 1.0), "deadline", 9.0).times_the_rest is None
    assert row(Task(Curve((0.06,), (3.0,)), SIX, 18.0, 1.0), "deadline", 9.0).times_the_rest is None


def test_the_usual_number_of_calls_is_the_median() -> None:
    """Half of the tasks make no more calls than that, in whatever order they are given."""
    assert Task(KNOWN, ((9, 0.2), (2, 0.3), (4, 0.5)), 18.0, 1.0).usual == 4
    assert Task(KNOWN, ((2, 0.5), (9, 0.5)), 18.0, 1.0).usual == 2


# Simulation -------------------------------------------------------------------------------------------------------


def test_cuts_and_refusals_by_what_is_left_are_counted() -> None:
    """Six calls of 5 s in 18: three go through, the fourth gets 3 s and is cut, two are refused."""
    done = simulate(Task(Measured((5.0,)), SIX, 18.0, 1.0), 9.0, 10, lambda: 0.0)
    assert (done.cut_by_cap, done.cut_by_remainder, done.refused) == (0.0, 1 / 6, 2 / 6)
    assert (done.tasks, done.tasks_hit, done.longest) == (10, 1.0, 18.0)


def test_two_calls_at_their_cap_leave_nothing_for_the_others() -> None:
    """Six calls that never end, 9 s each of 18: two are cut by the cap, four refused even without a minimum."""
    for minimum in (1.0, 0.0):
        done = simulate(Task(Measured((60.0,)), SIX, 18.0, minimum), 9.0, 3, lambda: 0.0)
        assert (
            done.cut_by_cap,
            done.cut_by_remainder,
            done.refused,
            done.longest,
        ) == (2 / 6, 0.0, 4 / 6, 18.0)


def test_less_than_the_minimum_is_refused_not_cut() -> None:
    """Of 18 s, three calls of 5.8 s leave 0.6: a call needs 1 s, so it is refused; it goes with a minimum of 0.5."""
    calls = Measured((5.8,))
    refused = simulate(Task(calls, ((4, 1.0),), 18.0, 1.0), 9.0, 1, lambda: 0.0)
    cut = simulate(Task(calls, ((4, 1.0),), 18.0, 0.5), 9.0, 1, lambda: 0.0)
    assert (refused.refused, refused.cut_by_remainder) == (0.25, 0.0)
    assert (cut.refused, cut.cut_by_remainder) == (0.0, 0.25)


def test_a_call_that_takes_exactly_what_it_was_granted_is_not_cut() -> None:
    """Nor is one refused for which exactly the minimum is left; one call of one task is all the calls there are."""
    at_cap = simulate(Task(Measured((9.0,)), ((2, 1.0),), 18.0, 1.0), 9.0, 1, lambda: 0.0)
    assert (at_cap.cut_by_cap, at_cap.tasks_hit) == (0.0, 0.0)
    minimum = simulate(Task(Measured((9.0,)), ((2, 1.0),), 18.0, 9.0), 9.0, 1, lambda: 0.0)
    assert (minimum.refused, minimum.tasks_hit) == (0.0, 0.0)
    one = simulate(Task(Measured((60.0,)), ((1, 1.0),), 18.0, 1.0), 9.0, 1, lambda: 0.0)
    assert (one.cut_by_cap, one.tasks_hit) == (1.0, 1.0)


def test_quick_calls_are_left_alone() -> None:
    """Nothing is cut where nothing is slow, and the longest task is what its calls took."""
    done = simulate(Task(Measured((0.5,)), SIX, 18.0, 1.0), 9.0, 5, lambda: 0.0)
    assert (done.cut_by_cap, done.cut_by_remainder, done.refused, done.tasks_hit) == (0.0, 0.0, 0.0, 0.0)
    assert pytest.approx(3.0) == done.longest


def test_the_number_of_calls_is_drawn_as_well() -> None:
    """Half of the tasks make one call and are not hit; the others make three of 8 s in 18 and are."""
    task = Task(Measured((8.0,)), ((1, 0.5), (3, 0.5)), 18.0, 1.0)
    numbers = cycle([0.2, 0.0, 0.7, 0.0, 0.0, 0.0])
    done = simulate(task, 9.0, 10, lambda: next(numbers))
    assert (done.tasks_hit, done.cut_by_remainder) == (0.5, 5 / 20)


def test_shares_that_do_not_quite_sum_to_one_still_give_a_number_of_calls() -> None:
    """Floats lose a little: the largest random number is the last count, not an error; each share is half open."""
    three = ((1, 0.25), (2, 0.25), (4, 0.25))
    task = Task(Measured((1.0,)), three, 18.0, 1.0)
    spent = [simulate(task, 9.0, 1, cycle([n, 0.0, 0.0, 0.0, 0.0]).__next__).longest for n in DRAWN]
    assert spent == [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]
    task = Task(Measured((0.5,)), ((1, 0.3), (2, 0.3)), 18.0, 1.0)
    assert pytest.approx(1.0) == simulate(task, 9.0, 1, lambda: 0.99).longest


def test_tasks_without_calls_are_not_hit() -> None:
    """Where a distribution holds tasks that make no call, and only those are drawn, the shares are 0."""
    done = simulate(Task(KNOWN, ((0, 0.5), (6, 0.5)), 18.0, 1.0), 9.0, 4, lambda: 0.1)
    assert (done.tasks_hit, done.refused, done.longest) == (0.0, 0.0, 0.0)


def test_with_a_deadline_out_of_reach_simulation_and_formula_agree() -> None:
    """Independent calls that cannot use the deadline up are hit as often as 1 - (1 - p)^n says."""
    task = Task(KNOWN, SIX, 1000.0, 1.0)
    done = simulate(task, 9.0, 20_000, random.Random(7).random)
    assert pytest.approx(task.hit(0.015), abs=0.008) == done.tasks_hit
    assert pytest.approx(0.015, abs=0.002) == done.cut_by_cap
    assert (done.cut_by_remainder, done.refused) == (0.0, 0.0)
