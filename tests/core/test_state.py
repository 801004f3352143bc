"""What a state says by itself: when nothing can land any more, and whether a key will still be known."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from safewrite.core.events import Call, Moment, OutcomeState, Promises
from safewrite.core.state import AttemptState, Lease, State

CLAIMED = Moment(1000.0, 50.0, "boot-a")
HERE, ELSEWHERE = Moment(1010.0, 60.0, "boot-a"), Moment(1010.0, 5.0, "boot-b")
LEASE = Lease("call", "owner", CLAIMED, 20.0)
BY_THE_DATABASE = replace(LEASE, since=Moment(1000.0, 1000.0, "database"))
OPEN = AttemptState(1, "a1", "call", "owner", CLAIMED, LEASE, 1015.0, precondition=False, same_payload=True)
DEADLINE = Promises(honours_deadline=True)
BOUND = Promises(work_bound=5.0, max_stall=8.0)
KEY = Promises(key_retention=50.0, work_bound=5.0, max_stall=8.0)


@pytest.mark.parametrize(
    ("attempt", "promises", "now", "lag", "left"),
    [
        (OPEN, Promises(), HERE, 0.0, inf),
        # 15 s granted, 10 of them over; the other side's clock may be behind by the skew, and a read by its lag.
        (OPEN, DEADLINE, HERE, 0.0, 6.0),
        (OPEN, DEADLINE, HERE, 2.0, 8.0),
        (OPEN, DEADLINE, ELSEWHERE, 0.0, 7.0),
        (replace(OPEN, deadline_carried=False), DEADLINE, HERE, 0.0, inf),
        # The lease has 10 s left, by another clock 11; then the stall and the bound.
        (OPEN, BOUND, HERE, 0.0, 23.0),
        (OPEN, BOUND, ELSEWHERE, 2.0, 26.0),
        (replace(OPEN, ended_at=HERE, concluded=2), BOUND, HERE, 2.0, 7.0),
        (replace(OPEN, fenced_at=CLAIMED, fenced=2), Promises(), HERE, 12.0, 2.0),
        (replace(OPEN, fenced_at=CLAIMED, fenced=2), Promises(), HERE, 0.0, 0.0),
        (replace(OPEN, fenced_at=CLAIMED, fenced=2), Promises(), ELSEWHERE, 12.0, 3.0),
        (replace(OPEN, outcome=OutcomeState.NOT_APPLIED), Promises(), HERE, 9.0, 0.0),
    ],
)  # fmt: skip
def test_an_attempt_settles_when_no_promise_lets_it_land(
    attempt: AttemptState, promises: Promises, now: Moment, lag: float, left: float
) -> None:
    """The soonest of fence, bound and deadline counts, each by the clocks that tell it."""
    assert attempt.settles_in(promises, now, lag) == left


def test_what_a_read_cannot_have_seen_does_not_count() -> None:
    """An end or a fence on record after the read's revision is left out."""
    ended = replace(OPEN, ended_at=HERE, concluded=3)
    assert ended.settles_in(BOUND, HERE, 0.0, known=3) == 5.0
    assert ended.settles_in(BOUND, HERE, 0.0, known=2) == 23.0
    fenced = replace(OPEN, fenced_at=CLAIMED, fenced=3)
    assert (
        fenced.settles_in(DEADLINE, HERE, 0.0, known=3),
        fenced.settles_in(DEADLINE, HERE, 0.0, known=2),
    ) == (
        0.0,
        6.0,
    )


def test_bounds_that_were_overrun_settle_nothing() -> None:
    """Neither the work bound nor the deadline; without attempts there is nothing to settle."""
    overrun = State(attempts=(OPEN,), overrun=True)
    assert overrun.settles_in(replace(BOUND, honours_deadline=True), HERE) == inf
    assert State().settles_in(Promises(), HERE) == 0.0


@pytest.mark.parametrize(
    ("state", "lands"),
    [
        ({}, True),
        ({"outcome": OutcomeState.APPLIED}, True),
        ({"outcome": OutcomeState.APPLIED, "attributable": True}, False),
        ({"outcome": OutcomeState.UNKNOWN, "attributable": True}, True),
    ],
)
def test_only_an_effect_that_is_ours_ends_the_waiting_for_one(state: dict[str, Any], lands: bool) -> None:
    """An open attempt may land as long as what is there may be somebody else's, to the last half second."""
    known = State(attempts=(OPEN,), **state)
    assert known.may_still_land(Promises(), HERE) is lands
    assert known.may_still_land(DEADLINE, Moment(1015.5, 65.5, "boot-a")) is lands
    assert not known.may_still_land(DEADLINE, Moment(1016.0, 66.0, "boot-a"))


@pytest.mark.parametrize(
    ("attempt", "lease", "promises", "known"),
    [
        (OPEN, 26.0, KEY, True),  # 10 s old, then 26, 8 and 5: 49 of the 50 for which the key is kept
        (OPEN, 27.0, KEY, False),
        (OPEN, 1.0, replace(KEY, key_retention=33.0), False),  # the running body has 10 s: 33 in all
        (OPEN, 1.0, replace(KEY, key_retention=33.1), True),
        (replace(OPEN, lease=BY_THE_DATABASE), 1.0, replace(KEY, key_retention=34.0), False),  # and by its clock 11 s
        (replace(OPEN, lease=BY_THE_DATABASE), 1.0, replace(KEY, key_retention=34.1), True),
        (replace(OPEN, ended_at=HERE), 1.0, replace(KEY, key_retention=24.1), True),
        (replace(OPEN, outcome=OutcomeState.NOT_APPLIED), 1.0, replace(KEY, key_retention=24.1), True),
        (replace(OPEN, ended_at=HERE), 0.5, replace(KEY, key_retention=23.6), True),
        (OPEN, 1.0, Promises(key_retention=20.1), True),
        (OPEN, 1.0, Promises(key_retention=20.0), False),
    ],
)  # fmt: skip
def test_a_key_is_recognised_for_as_long_as_anything_under_it_may_land(
    attempt: AttemptState, lease: float, promises: Promises, known: bool
) -> None:
    """Counted from the first claim to the end of the next attempt or of one that still runs; else for half its time."""
    state = State(attempts=(attempt,), outcome=OutcomeState.UNKNOWN, first_claim=CLAIMED)
    call = Call("next", 20.0, 1, reads=True, promises=promises, lease=lease)
    assert state.recognised(call, HERE) is known
