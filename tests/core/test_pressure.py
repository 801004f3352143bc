"""What spares a dependency, as values: budget, breaker, places, the hedge's delay, and when a read is tried again."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safewrite.core import pressure
from safewrite.core.events import Finding, OutcomeState, Promises
from safewrite.core.pressure import Breaker, Budget, Next

APPLIED, NOT, UNKNOWN = OutcomeState.APPLIED, OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN

# Budget ------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 2.0)), max_size=400))
def test_retries_are_a_tenth_of_the_requests_and_a_small_floor(steps: list[tuple[bool, float]]) -> None:
    """Whatever the order of requests and wishes to retry: at most 10 %, the floor, and one in ten seconds."""
    budget, now, requests, further = Budget(), 0.0, 0, 0
    for wants_more, passed in steps:
        now += passed
        taken = budget.taken(now) if wants_more else None
        if wants_more and taken is not None:
            budget, further = taken, further + 1
        elif not wants_more:
            budget, requests = budget.requested(now), requests + 1
    assert further <= pressure.FLOOR + 0.1 * requests + now / pressure.FLOOR_EVERY + 1e-6


def test_under_a_total_outage_a_thousand_requests_get_a_tenth_more() -> None:
    """Each wants two retries: all together get a hundred and the floor."""
    budget, further = Budget(), 0
    for n in range(1000):
        budget = budget.requested(n / 1000)
        for _ in range(2):
            taken = budget.taken(n / 1000)
            further, budget = (further + 1, taken) if taken is not None else (further, budget)
    assert 100 <= further <= 105


def test_savings_are_bounded_and_time_earns_the_floor_only() -> None:
    """A day of requests saves up ten; an hour of nothing earns no more than the floor."""
    saved = Budget()
    for n in range(10_000):
        saved = saved.requested(float(n))
    assert saved.tokens == pressure.MOST
    assert Budget(0.0, 0.0).taken(9.0) is None
    assert Budget(0.0, 0.0).taken(10.0) == Budget(0.0, 10.0)
    assert Budget(1.0 - 1e-9).taken(0.0) is not None, "tenths do not quite add up"
    assert Budget(0.0, 0.0).requested(3600.0).tokens == pytest.approx(pressure.FLOOR + 0.1)
    assert Budget(8.0, 0.0).requested(3600.0).tokens == pytest.approx(8.1)


def test_what_was_never_sent_is_given_back() -> None:
    """A retry costs nothing then, and a request earns nothing."""
    assert Budget(3.0).returned(1.0).tokens == 4.0
    assert Budget(0.05).returned(-0.1).tokens == 0.0
    assert Budget(pressure.MOST).returned(1.0).tokens == pressure.MOST


# Breaker -----------------------------------------------------------------------------------------------------


def failing(calls: int = pressure.CALLS, at: float = 100.0) -> Breaker:
    """Return a breaker after so many failures."""
    breaker = Breaker()
    for _ in range(calls):
        breaker = breaker.ended(breaker.era, at, False)
    return breaker


def test_it_opens_when_half_of_enough_calls_failed() -> None:
    """Nine failures do not open it, ten do, and five of ten do."""
    assert failing(pressure.CALLS - 1).admit(100.0) is not None
    opened = failing()
    assert opened.open_until == 105.0
    assert opened.admit(104.9) is None
    mixed = Breaker()
    for n in range(pressure.CALLS):
        mixed = mixed.ended(0, 100.0, n % 2 == 0)
    assert mixed.open_until is not None
    healthy = Breaker()
    for n in range(50):
        healthy = healthy.ended(0, 100.0, n % 5 > 0)
    assert healthy.open_until is None


def test_what_is_long_past_or_says_nothing_does_not_count() -> None:
    """Failures spread over more than the window never open it; neither do ends that speak for nobody."""
    breaker = Breaker()
    for n in range(100):
        breaker = breaker.ended(0, n * 2.0, False)
        breaker = breaker.ended(0, n * 2.0, None)
    assert breaker.open_until is None
    assert len(breaker.recent) <= pressure.WINDOW


@pytest.mark.parametrize(("later", "opens"), [(10.9, True), (11.0, False)])
def test_a_second_counts_until_all_of_it_is_out_of_the_window(later: float, opens: bool) -> None:
    """Nine failures in one second are one entry; a tenth opens it while that second is partly in the window."""
    breaker = failing(pressure.CALLS - 1)
    assert breaker.recent == ((100, 9, 9),)
    assert (breaker.ended(0, 100.0 + later, False).open_until is not None) is opens


def test_one_probe_at_a_time_and_it_expires() -> None:
    """Half open, one call is let through; another only once nobody has heard of the first for its term."""
    probing = failing().admit(105.0)
    assert probing is not None
    assert probing.admit(105.0) is None
    assert probing.admit(134.9) is None
    again = probing.admit(135.0)
    assert again is not None
    assert again.ended(probing.era, 136.0, True) == again, "the lost probe has no word any more"


def test_the_probe_decides() -> None:
    """Success closes it with nothing remembered, failure opens it for twice as long, silence lets the next one ask."""
    probing = failing().admit(105.0)
    assert probing is not None
    closed = probing.ended(probing.era, 106.0, True)
    assert (closed.open_until, closed.recent, closed.spared) == (None, (), pressure.SPARED_FIRST)
    opened = probing.ended(probing.era, 106.0, False)
    assert opened.open_until == 116.0
    freed = probing.ended(probing.era, 106.0, None)
    assert freed.admit(106.0) is not None
    for _ in range(8):
        at = opened.open_until or 0.0
        probing = opened.admit(at)
        assert probing is not None
        opened = probing.ended(probing.era, at, False)
    assert opened.spared == pressure.SPARED_MOST


def test_every_change_begins_the_next_era() -> None:
    """No era comes twice, so that what began in another one has no word."""
    opened = failing()
    probing = opened.admit(105.0)
    assert probing is not None
    ends = [probing.ended(probing.era, 106.0, healthy) for healthy in (True, False, None)]
    assert [opened.era, probing.era, *(after.era for after in ends)] == [1, 2, 3, 3, 3]


def test_ends_of_calls_that_began_before_the_change_do_not_count() -> None:
    """Neither a success from before it opened closes it, nor a failure from before it closed opens it."""
    opened = failing()
    assert opened.ended(0, 101.0, True) == opened
    probing = opened.admit(105.0)
    assert probing is not None
    assert probing.ended(0, 105.5, True) == probing
    closed = probing.ended(probing.era, 106.0, True)
    for _ in range(50):
        closed = closed.ended(0, 106.0, False)
    assert closed.open_until is None


# What an end says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "healthy", "silent"),
    [
        (Finding(APPLIED, "returned"), True, False),
        (Finding(NOT, "http_404", status=404), True, False),
        (Finding(UNKNOWN, "http_202", status=202, running=True), True, False),
        (Finding(UNKNOWN, "still_running", running=True), True, False),
        (Finding(NOT, "rejected"), True, False),
        (Finding(NOT, "http_429", again=True, status=429), None, False),
        (Finding(UNKNOWN, "http_503", status=503), False, False),
        (Finding(UNKNOWN, "http_500", status=500), False, False),
        (Finding(UNKNOWN, "http_504", status=504), False, True),
        (Finding(UNKNOWN, "http_408", status=408), False, True),
        (Finding(UNKNOWN, "read_timeout"), False, True),
        (Finding(UNKNOWN, "timeout"), False, True),
        (Finding(NOT, "connect_refused", again=True), False, False),
        (Finding(NOT, "pool_timeout", again=True), None, False),
        (Finding(NOT, "leg_not_sent", again=True), None, False),
        (Finding(UNKNOWN, "unlisted_exception"), None, False),
        (Finding(UNKNOWN, "hedge_lost"), None, True),
        (Finding(UNKNOWN, "cancelled"), None, True),
    ],
    ids=lambda value: value.reason if isinstance(value, Finding) else None,
)
def test_what_an_end_says_of_the_dependency(found: Finding, healthy: bool | None, silent: bool) -> None:
    """An answer speaks for it, its failure against it, our own refusals for neither; silence may still hold it."""
    assert (pressure.healthy(found), pressure.silent(found)) == (healthy, silent)


@pytest.mark.parametrize(
    ("promises", "carried", "quiet"),
    [
        (Promises(), True, inf),
        (Promises(work_bound=30.0), False, 130.0),
        (Promises(work_bound=0.0), False, 100.0),
        (Promises(honours_deadline=True, clock_skew=1.0), True, 106.0),
        (Promises(honours_deadline=True, clock_skew=1.0), False, inf),
        (Promises(honours_deadline=True, work_bound=3.0), True, 103.0),
    ],
)
def test_when_a_call_that_is_given_up_holds_the_dependency_no_longer(
    promises: Promises, carried: bool, quiet: float
) -> None:
    """After its work bound, or after a deadline that it was told and that is honoured; else nobody knows."""
    assert pressure.quiet_at(promises, 100.0, 105.0, deadline_carried=carried) == quiet


def test_a_place_is_free_at_the_latest_when_its_call_is_known_to_be_over() -> None:
    """Those without a known end stay."""
    assert pressure.occupied({"a": inf, "b": 10.0, "c": 11.0}, 10.0) == {"a": inf, "c": 11.0}


# Reads -------------------------------------------------------------------------------------------------------


def test_a_hedge_waits_for_the_95th_percentile_of_enough_samples() -> None:
    """Nineteen are not enough; of a hundred the fifth slowest counts, and what is left must hold it twice."""
    assert pressure.hedge_delay([1.0] * 19, inf) is None
    assert pressure.hedge_delay([1.0] * 20, inf) == 1.0
    assert pressure.hedge_delay([0.0] * 20, inf) == 0.0
    times = [n / 100 for n in range(1, 101)]
    assert pressure.hedge_delay(times, inf) == 0.95
    assert pressure.hedge_delay(times, 1.9) == 0.95
    assert pressure.hedge_delay(times, 1.89) is None


TURNED_AWAY = Finding(NOT, "http_429", again=True, status=429)
SILENCE = Finding(UNKNOWN, "read_timeout")
ROOM = {"left": 10.0, "floor": 1.0, "backoff": 0.5, "quiet_in": inf, "last": False}


@pytest.mark.parametrize(
    ("found", "changed", "then"),
    [
        (Finding(NOT, "connect_refused", again=True), {}, Next("connect_refused", 0.5)),
        (Finding(NOT, "limiter_full", again=True), {}, Next("limiter_full", 0.5)),
        (Finding(NOT, "breaker_open"), {}, Next("breaker_open")),
        (Finding(UNKNOWN, "http_503", status=503), {}, Next("http_503", 0.5)),
        (replace(TURNED_AWAY, retry_after=4.0), {}, Next("http_429", 4.0)),
        (replace(TURNED_AWAY, retry_after=0.1), {}, Next("http_429", 0.5)),
        (replace(TURNED_AWAY, retry_after=10.0), {}, Next("retry_after_beyond_deadline")),
        (replace(TURNED_AWAY, retry_after=10.0), {"last": True}, Next("retry_after_beyond_deadline")),
        (replace(TURNED_AWAY, retry_after=9.5), {}, Next("http_429")),
        (SILENCE, {}, Next("read_timeout")),
        (SILENCE, {"quiet_in": 3.0}, Next("read_timeout", 3.0)),
        (SILENCE, {"quiet_in": 0.0}, Next("read_timeout", 0.5)),
        (SILENCE, {"quiet_in": 9.0}, Next("read_timeout", 9.0)),
        (SILENCE, {"quiet_in": 9.5}, Next("read_timeout")),
        (SILENCE, {"quiet_in": 10.0, "floor": 0.0}, Next("read_timeout")),
        (SILENCE, {"quiet_in": 0.0, "last": True}, Next("read_timeout")),
        (Finding(UNKNOWN, "http_500", status=500), {"quiet_in": 0.0}, Next("http_500")),
        (Finding(NOT, "http_404", status=404), {"quiet_in": 0.0}, Next("http_404")),
        (Finding(NOT, "leg_not_sent", again=True), {"quiet_in": 0.0}, Next("leg_not_sent")),
        (Finding(UNKNOWN, "unlisted_exception"), {"quiet_in": 0.0}, Next("unlisted_exception")),
    ],
)
def test_when_a_read_is_tried_again(found: Finding, changed: dict[str, float], then: Next) -> None:
    """Local failures, 429 and 503 are; silence only once it is over; Retry-After beyond the deadline ends it."""
    assert pressure.next_try(found, **(ROOM | changed)) == then  # type: ignore[arg-type]
