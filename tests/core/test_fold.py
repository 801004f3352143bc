"""How each fact changes the state, field by field."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest

from safewrite.core.events import (
    Call,
    Claimed,
    Delivered,
    Ended,
    Event,
    Fact,
    Fenced,
    Finding,
    GaveUp,
    Gone,
    Moment,
    OutcomeState,
    Promises,
    ReadEnded,
    Resolved,
    Verdict,
    Withheld,
)
from safewrite.core.fold import fold
from safewrite.core.state import Alarm, AttemptState, Lease, ReadState, State
from tests.core.history import DONE, LOST, REFUSED, REJECTED, History

APPLIED, NOT, UNKNOWN = OutcomeState.APPLIED, OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN
CLAIMED, NOW = Moment(1000.0, 50.0, "boot-a"), Moment(1016.0, 66.0, "boot-a")
CALL = Call("a", 15.0, 3, reads=True, lease=20.0, promises=Promises(honours_deadline=True, read_lag=0.0))
LEASE = Lease("a", "owner", CLAIMED, 20.0)
OPEN = AttemptState(
    1, "attempt-1", "a", "owner", CLAIMED, LEASE, 1015.0, precondition=False, same_payload=True
)
BEGUN = State(1, (OPEN,), UNKNOWN, first_claim=CLAIMED, lease=LEASE)
CONCLUDED = {"concluded": 2, "concluded_at": NOW}
OVER = {**CONCLUDED, "ended": True, "ended_at": NOW, "key_carried": True, "deadline_carried": True}
OURS = {"outcome": APPLIED, "attributable": True, "applied_at": 2}
MET = {"outcome": APPLIED, "evidence": "goal_state", "applied_at": 2}
AT_ONCE = Finding(NOT, "http_429", again=True, status=429, retry_after=3.0)


def read(verdict: Verdict, reason: str = "", **more: Any) -> tuple[Fact, dict[str, Any]]:
    """Return the end of a read, and that the state remembers it."""
    seen = ReadState("a", verdict, reason, NOW, 1, NOW, 1)
    return ReadEnded(verdict, NOW, 1, 1, reason, **more), {"reads": (seen,)}


BLANK, FOUND, ABSENT, GOAL = (
    read(Verdict.INCONCLUSIVE, "read_timeout"),
    read(Verdict.APPLIED, kept=True, object_id="o"),
    read(Verdict.NOT_APPLIED),
    read(Verdict.GOAL_MET, kept=True),
)


@pytest.mark.parametrize(
    ("fact", "attempt", "state"),
    [
        (Ended(1, LOST), {**OVER, "reason": "read_timeout"}, {}),
        (Ended(1, LOST, deadline_carried=False), {**OVER, "reason": "read_timeout", "deadline_carried": False}, {}),
        (
            Ended(1, AT_ONCE),
            {
                **OVER, "outcome": NOT, "evidence": "late_response", "reason": "http_429",
                "again": True, "retry_after": 3.0,
            },
            {"outcome": NOT, "evidence": "late_response"},
        ),
        (
            Ended(1, DONE, kept=True, object_id="o"),
            {**OVER, "outcome": APPLIED, "evidence": "late_response", "reason": "returned", "object_id": "o"},
            {**OURS, "evidence": "late_response", "value_at": 2},
        ),
        (Ended(1, DONE, goal=True, kept=True), {**OVER, "reason": "returned"}, {**MET, "value_at": 2}),
        (Ended(1, DONE, goal=True), {**OVER, "reason": "returned"}, MET),
        (
            Withheld(1, "lease_lost"),
            {
                **CONCLUDED, "ended": True, "ended_at": NOW, "began": False, "again": True,
                "outcome": NOT, "evidence": "never_sent", "reason": "lease_lost",
            },
            {"outcome": NOT, "evidence": "never_sent"},
        ),
        (
            GaveUp(1, "timeout", key_carried=True),
            {**CONCLUDED, "gave_up": True, "reason": "timeout", "key_carried": True, "deadline_carried": False},
            {},
        ),
        (
            GaveUp(1, "timeout", deadline_carried=True),
            {**CONCLUDED, "gave_up": True, "reason": "timeout", "key_carried": False, "deadline_carried": True},
            {},
        ),
        (Gone("owner"), {**CONCLUDED, "ended_at": NOW, "gave_up": True}, {"lease": None}),
        (Gone("somebody else"), {}, {}),
        (Fenced(1, "epoch"), {"fenced": 2, "fenced_at": NOW}, {}),
        (BLANK[0], {}, BLANK[1]),
        (
            FOUND[0],
            {"outcome": APPLIED, "evidence": "reconciled", "reason": "found", "object_id": "o"},
            {**FOUND[1], **OURS, "evidence": "reconciled", "value_at": 2},
        ),
        (
            ABSENT[0],
            {"outcome": NOT, "evidence": "reconciled", "reason": "proven_absent"},
            {**ABSENT[1], "outcome": NOT, "evidence": "reconciled"},
        ),
        (GOAL[0], {}, {**GOAL[1], **MET, "value_at": 2}),
        (
            Delivered(1, kept=True, object_id="o"),
            {"outcome": APPLIED, "evidence": "delivered", "reason": "delivered", "object_id": "o"},
            {**OURS, "evidence": "delivered", "value_at": 2},
        ),
        (Resolved(True, "Ada"), {}, {"person": "Ada", "outcome": APPLIED, "evidence": "person", "applied_at": 2}),
        (
            Resolved(False, "Ada"),
            {"outcome": NOT, "evidence": "person", "reason": "person"},
            {"person": "Ada", "outcome": NOT, "evidence": "person"},
        ),
    ],
)  # fmt: skip
def test_a_fact_changes_this_and_nothing_else(
    fact: Fact, attempt: dict[str, Any], state: dict[str, Any]
) -> None:
    """Of one attempt that is in flight, a second after its deadline."""
    expected = replace(BEGUN, revision=2, attempts=(replace(OPEN, **attempt),), **state)
    assert fold(BEGUN, Event(NOW, fact, CALL)) == expected


def test_a_claim_begins_an_attempt() -> None:
    """Its lease begins by the clock that leases are compared with, the attempt itself by that of the claimer."""
    claim = Claimed(1, "attempt-1", "owner", 1015.0)
    assert fold(State(), Event(CLAIMED, claim, CALL)) == BEGUN
    database = Moment(999.0, 999.0, "database")
    state = fold(State(), Event(CLAIMED, claim, CALL, lease_at=database))
    lease = replace(LEASE, since=database)
    assert state == replace(BEGUN, attempts=(replace(OPEN, lease=lease),), lease=lease)


def test_a_further_claim_forgets_what_the_intent_came_to_and_its_reads() -> None:
    """What a read said of the attempts before it is no answer for this one; the first claim stays the first."""
    state = BEGUN
    for fact in (Ended(1, AT_ONCE), BLANK[0], Claimed(2, "attempt-2", "owner", 1031.0)):
        state = fold(state, Event(NOW, fact, CALL))
    assert (state.outcome, state.evidence, state.reads, state.first_claim) == (UNKNOWN, "", (), CLAIMED)


@pytest.mark.parametrize(
    ("at", "evidence"),
    [
        (Moment(1015.0, 65.0, "boot-a"), "response"),
        (Moment(1015.5, 65.5, "boot-a"), "late_response"),
        (Moment(9000.0, 65.0, "boot-a"), "response"),  # the wall clock was set
        (Moment(1015.0, 7.0, "boot-b"), "response"),
        (Moment(1015.5, 7.0, "boot-b"), "late_response"),
    ],
)  # fmt: skip
def test_a_reply_is_late_after_the_deadline_of_its_attempt(at: Moment, evidence: str) -> None:
    """By the ticks of one clock; by wall time where another process noticed it."""
    assert fold(BEGUN, Event(at, Ended(1, DONE), CALL)).evidence == evidence


def test_an_effect_that_another_clock_sees_past_the_bound_is_an_alarm_after_the_skew() -> None:
    """The lease ends at 1020, the stall at 1023; the other clock may be ahead by two."""
    call = replace(CALL, promises=Promises(max_stall=3.0, clock_skew=2.0))
    for unix, expected in ((1025.0, []), (1025.5, ["effect_after_bound"])):
        event = Event(Moment(unix, 7.0, "boot-b"), Ended(1, DONE), call)
        assert [a.kind for a in fold(BEGUN, event).alarms] == expected


def test_a_read_that_no_call_asked_for_is_evidence_too() -> None:
    """It is remembered under no name."""
    state = fold(BEGUN, Event(NOW, BLANK[0]))
    seen = state.last_read
    assert seen is not None
    assert (seen.call, seen.reason) == ("", "read_timeout")


def test_an_absence_covers_the_attempts_up_to_the_one_it_names() -> None:
    """However long the other has been settled."""
    h = two(work_bound=0.0, read_lag=0.0)
    h.hear(Ended(1, LOST))
    h.end(LOST)
    h.read(Verdict.NOT_APPLIED, epoch=1)
    assert [a.outcome for a in h.state.attempts] == [NOT, UNKNOWN]


# Alarms ----------------------------------------------------------------------------------------------------------


def two(**promises: Any) -> History:
    """Return an intent with two attempts under a key, the first left, the second in flight."""
    h = History(reads=False, **{"key_retention": inf, **promises})
    h.send()
    h.tell(GaveUp(1, "timeout", key_carried=True), over=True)
    h.another()
    h.send()
    return h


@pytest.mark.parametrize(
    ("promises", "facts", "alarm"),
    [
        (
            {}, [Ended(1, LOST, key_carried=False)],
            Alarm("key_not_carried", 4, "attempt 1 ended without its key having been read"),
        ),
        (
            {"max_stall": 3.0}, [Ended(1, DONE)],
            Alarm("effect_after_bound", 4, "attempt 1 ran on past the declared longest stall"),
        ),
        (
            {}, [Ended(1, DONE, object_id="o"), Ended(2, DONE, object_id="p")],
            Alarm("two_effects", 5, "attempts 1 and 2 were both applied"),
        ),
        (
            {}, [Ended(2, REJECTED), Delivered(2)],
            Alarm("effect_after_proof", 5, "attempt 2 was applied after it was known not to be"),
        ),
        (
            {}, [Ended(1, REJECTED), Ended(2, REJECTED), ReadEnded(Verdict.APPLIED, NOW, 5, 2)],
            Alarm("effect_after_proof", 6, "a read found the effect of an intent that was not applied"),
        ),
        (
            {"work_bound": 0.0}, [Ended(1, LOST), Ended(2, LOST), ReadEnded(Verdict.RUNNING, NOW, 5, 2)],
            Alarm("running_past_bound", 6, "the dependency still works on it after its declared bound"),
        ),
        (
            {}, [Ended(1, REJECTED), Ended(2, REJECTED), Resolved(True, "Ada")],
            Alarm("against_person", 6, "Ada said applied; every attempt is known not to be"),
        ),
        (
            {}, [Resolved(True, "Ada"), Ended(1, REJECTED), Ended(2, REJECTED)],
            Alarm("against_person", 6, "Ada said applied; every attempt is known not to be"),
        ),
        (
            {}, [Ended(2, DONE), Resolved(False, "Ada")],
            Alarm("against_person", 5, "Ada said not applied; it is known to be"),
        ),
        (
            {}, [Resolved(False, "Ada"), Delivered(1)],
            Alarm("against_person", 5, "attempt 1 was applied after it was known not to be"),
        ),
    ],
)  # fmt: skip
def test_an_alarm_says_what_happened_and_which_row_showed_it(
    promises: dict[str, Any], facts: list[Fact], alarm: Alarm
) -> None:
    """Once each; the first attempt had been left, the second is long overdue."""
    h = two(**promises)
    h.now = 100.0
    for fact in facts:
        h.hear(fact)
    assert h.state.alarms == (alarm,)


def test_no_alarm_where_nothing_is_wrong() -> None:
    """What the dependency turned away, or is said to have done, is no second effect, nor against anybody's word."""
    h = History()
    h.send()
    h.tell(Ended(1, AT_ONCE))
    h.now = 3.0
    h.send()
    h.end(DONE)
    assert h.state.alarms == ()  # one was turned away
    h = two()
    h.hear(Ended(2, REFUSED, key_carried=False))
    h.hear(Resolved(True, "Ada"))
    h.hear(Ended(1, LOST))
    assert h.state.alarms == ()  # the first may have been it
    h = History()
    h.hear(Resolved(True, "Ada"))
    h.read(Verdict.NOT_APPLIED)
    assert h.state.alarms == ()  # there is no attempt to be told apart from it
