"""The record: how evidence adds up, what raises an alarm, a person's word, and facts that cannot be."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from safewrite.core.commands import AnswerKind, Note, Read, Send, Wait
from safewrite.core.events import (
    Alarmed,
    Answered,
    Asked,
    Blocked,
    Claimed,
    Delivered,
    Ended,
    Event,
    Fact,
    Finding,
    GaveUp,
    Gone,
    OutcomeState,
    Promises,
    ReadEnded,
    Refused,
    Resolved,
    Verdict,
    Withheld,
)
from safewrite.core.fold import Impossible, fold
from safewrite.core.machine import step
from safewrite.core.state import State
from tests.core.history import DONE, FAILED, LOST, REFUSED, REJECTED, History, told

APPLIED, NOT, UNKNOWN = OutcomeState.APPLIED, OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN


def kinds(h: History) -> list[str]:
    """Return the alarms that stand."""
    return [a.kind for a in h.state.alarms]


def two(**promises: Any) -> History:
    """Return an intent with two attempts under a key, the first lost and left, the second in flight."""
    h = History(key_retention=inf, reads=False, **promises)
    h.send()
    h.tell(GaveUp(1, "timeout", key_carried=True), over=True)
    h.another()
    h.send()
    return h


# The fold --------------------------------------------------------------------------------------------------------


def test_applied_if_any_evidence_says_so() -> None:
    """Whatever the other attempt said, and in whatever order."""
    for first, second in ((DONE, REJECTED), (REJECTED, DONE), (LOST, DONE), (DONE, LOST)):
        h = two()
        h.hear(Ended(1, first))
        h.hear(Ended(2, second))
        assert h.state.outcome is APPLIED
        assert h.state.attributable


def test_not_applied_only_if_every_attempt_is() -> None:
    """A rejection after an unknown attempt says nothing about that one: look."""
    h = two()
    h.call = h.facts(reads=True)
    assert h.end(REJECTED) == Read("L1")
    assert h.state.outcome is UNKNOWN
    h.hear(Ended(1, REJECTED))
    assert h.state.outcome is NOT


def test_a_rejected_attempt_is_not_sent_again_by_its_call() -> None:
    """Under the key the dependency would say no again."""
    h = two()
    assert told(h.end(REJECTED)).rule == "U1"


def test_a_late_response_is_evidence() -> None:
    """After its caller left, after its deadline, and after a newer attempt began."""
    h = History(left=10.0)
    h.send()
    h.tell(GaveUp(1, "timeout"))
    h.hear(Ended(1, DONE))
    assert (h.state.outcome, h.state.evidence) == (APPLIED, "late_response")
    h = History(left=10.0)
    h.send()
    h.now = 10.5
    h.end(DONE)
    assert h.state.evidence == "late_response"
    h = two()
    h.state = fold(State(), h.rows[0])
    h.state = fold(h.state, Event(h.moment(), h.rows[2].fact, h.facts()))
    h.hear(Ended(1, DONE))
    assert h.state.evidence == "late_response"


def test_an_attempt_only_rises() -> None:
    """What is known of it is not unlearnt by a later, weaker reply."""
    h = two()
    h.hear(Delivered(1))
    h.hear(Ended(1, LOST))
    a = h.state.attempts[0]
    assert (a.outcome, a.evidence, a.reason) == (APPLIED, "delivered", "delivered")
    h = History(work_bound=0.0, read_lag=0.0)
    h.send()
    h.tell(GaveUp(1, "timeout"))
    h.hear(Gone("process of a"))
    h.read(Verdict.NOT_APPLIED)
    h.hear(Ended(1, FAILED))
    a = h.state.attempts[0]
    assert (a.outcome, a.evidence, a.reason) == (NOT, "reconciled", "proven_absent")


def test_a_goal_found_met_by_a_decided_attempt_keeps_its_reason() -> None:
    """A read proved it absent: what its body saw later was somebody else's."""
    h = History(work_bound=0.0, read_lag=0.0)
    h.send()
    h.tell(GaveUp(1, "timeout"))
    h.hear(Gone("process of a"))
    h.read(Verdict.NOT_APPLIED)
    h.hear(Ended(1, DONE, goal=True))
    a = h.state.attempts[0]
    assert (a.outcome, a.evidence, a.reason) == (NOT, "reconciled", "proven_absent")


def test_leaving_a_decided_attempt_keeps_its_reason() -> None:
    """A webhook came before its caller gave up."""
    h = History()
    h.send()
    h.hear(Delivered(1))
    h.tell(GaveUp(1, "timeout"))
    assert h.state.attempts[0].reason == "delivered"


def test_the_claim_alone_takes_not_applied_back_to_unknown() -> None:
    """And its evidence with it."""
    h = History()
    assert h.state.outcome is NOT
    h.send()
    assert (h.state.outcome, h.state.evidence) == (UNKNOWN, "")
    h.end(REFUSED)
    assert (h.state.outcome, h.state.evidence) == (NOT, "never_sent")


def test_the_first_recorded_value_stays() -> None:
    """Whatever comes later."""
    h = two()
    h.hear(Delivered(1, kept=True))
    at = h.state.value_at
    h.hear(Ended(2, DONE, kept=True))
    assert (h.state.value_at, h.state.applied_at) == (at, at)


def test_a_value_that_comes_later_is_taken() -> None:
    """Where the first evidence had none."""
    h = two()
    h.hear(Delivered(1))
    h.hear(Ended(2, DONE, kept=True))
    assert (h.state.applied_at, h.state.value_at) == (4, 5)


def test_a_goal_that_is_met_is_applied_by_nobody_in_particular() -> None:
    """From a read or from a body; a later response says whose it was."""
    h = two()
    h.end(DONE, goal=True)
    assert (h.state.outcome, h.state.evidence, h.state.attributable) == (APPLIED, "goal_state", False)
    assert told(h.ask(quiet=True)).reason == "goal_state"
    assert h.state.attempts[1].open
    h.hear(Ended(1, DONE))
    assert (h.state.evidence, h.state.attributable) == ("late_response", True)
    h.hear(Delivered(2))
    assert h.state.evidence == "late_response"


def test_a_goal_that_is_met_after_all_attempts_failed_is_not_ours() -> None:
    """They are known not to be applied: somebody else reached it."""
    h = History()
    h.send()
    h.tell(Ended(1, REJECTED))
    h.read(Verdict.GOAL_MET)
    assert h.state.outcome is NOT


def test_a_read_names_the_attempt_where_one_alone_can_have_done_it() -> None:
    """Else only the intent."""
    h = History(key_retention=inf, reads=False)
    h.send()
    h.tell(Ended(1, REFUSED), over=True)
    h.another()
    h.send()
    h.read(Verdict.APPLIED, object_id="o")
    assert [(a.outcome, a.object_id) for a in h.state.attempts] == [(NOT, None), (APPLIED, "o")]
    h = two()
    h.read(Verdict.APPLIED)
    assert [a.outcome for a in h.state.attempts] == [UNKNOWN, UNKNOWN]
    assert (h.state.outcome, h.state.evidence) == (APPLIED, "reconciled")
    h = History()
    h.send()
    h.hear(Delivered(1))
    h.read(Verdict.APPLIED)
    assert h.state.attempts[0].evidence == "delivered"


def test_asking_and_noting_change_no_outcome() -> None:
    """`Asked` leaves no trace at all; notes only move the revision."""
    h = History()
    h.send()
    before = h.state
    assert fold(before, Event(h.moment(), Asked(), h.facts())) is before
    for n, fact in enumerate((Refused("r"), Blocked(("x",)), Answered(), Alarmed("k")), 1):
        h.hear(fact)
        assert (h.state.revision, h.state.attempts) == (before.revision + n, before.attempts)


# Alarms ----------------------------------------------------------------------------------------------------------


def test_two_replies_under_one_key_are_one_effect() -> None:
    """The second is the first, replayed."""
    h = two()
    h.hear(Ended(1, DONE, object_id="o"))
    h.hear(Ended(2, DONE, object_id="o"))
    assert kinds(h) == []


@pytest.mark.parametrize(
    "ends",
    [
        [Ended(1, DONE, object_id="o"), Ended(2, DONE, object_id="p")],
        [Ended(1, DONE), Delivered(2, object_id="p"), Delivered(1, object_id="q")],
        [Ended(1, DONE, key_carried=False), Ended(2, DONE)],
        [Ended(1, DONE), Ended(2, DONE, key_carried=False)],
    ],
)
def test_two_effects_are_an_alarm(ends: list[Fact]) -> None:
    """Two objects, or a success that did not carry the key."""
    h = two()
    for fact in ends:
        h.hear(fact)
    assert "two_effects" in kinds(h)
    assert h.state.outcome is APPLIED


def test_two_successes_of_bodies_nobody_saw_are_one_effect() -> None:
    """That a crashed body carried its key stands on its author's word."""
    for facts in ([Delivered(1), Ended(2, DONE)], [Ended(2, DONE), Delivered(1)]):
        h = History(key_retention=inf, reads=False)
        h.send()
        h.hear(Gone("process of a"))
        h.another()
        h.send()
        for fact in facts:
            h.hear(fact)
        assert kinds(h) == []


def test_two_successes_under_a_precondition_are_an_alarm() -> None:
    """At most one can have had the version."""
    h = History(reads=False)
    h.lost(precondition=True)
    h.another(precondition=True)
    h.send()
    h.hear(Ended(2, DONE))
    h.hear(Delivered(1))
    assert kinds(h) == ["two_effects"]


def test_one_attempt_told_twice_is_one_effect() -> None:
    """Its reply and its webhook."""
    h = History()
    h.send()
    h.end(DONE)
    h.hear(Delivered(1))
    assert kinds(h) == []


def test_an_effect_after_a_proven_absence_is_an_alarm() -> None:
    """By a late response, a webhook or a read; the outcome rises all the same."""
    facts: list[Fact] = [Ended(1, DONE), Delivered(1)]
    for fact in facts:
        h = History(work_bound=0.0, read_lag=0.0)
        h.send()
        h.tell(GaveUp(1, "timeout"))
        h.hear(Gone("process of a"))
        h.read(Verdict.NOT_APPLIED)
        h.hear(fact)
        assert (kinds(h), h.state.outcome) == (["effect_after_proof"], APPLIED)
    h = History()
    h.send()
    h.tell(Ended(1, REJECTED))
    h.read(Verdict.APPLIED)
    assert (kinds(h), h.state.outcome, h.state.attributable) == (["effect_after_proof"], APPLIED, True)


def test_an_effect_after_the_declared_bound_is_an_alarm() -> None:
    """A body ran on, and succeeded, when by its lease and the longest stall it had ended long since."""
    for at, skew, expected in ((14.0, 0.0, []), (14.1, 0.0, ["effect_after_bound"])):
        h = History(left=10.0, max_stall=3.0, clock_skew=skew)
        h.send()
        h.tell(GaveUp(1, "timeout"))
        h.now = at
        h.hear(Ended(1, DONE))
        assert kinds(h) == expected
    for finding, more in ((LOST, {}), (DONE, {"goal": True})):
        h = History(left=10.0, max_stall=3.0)
        h.send()
        h.now = 99.0
        h.hear(Ended(1, finding, **more))
        assert kinds(h) == []


def test_a_write_seen_running_before_its_end_was_recorded_is_no_alarm() -> None:
    """In one instant of a coarse clock it may have ended after the read."""
    h = History(work_bound=0.0)
    h.send()
    known = h.state.revision
    h.tell(Ended(1, LOST), over=True)
    h.another()
    h.tell(ReadEnded(Verdict.RUNNING, h.moment(), known, 1))
    assert kinds(h) == []
    h.tell(ReadEnded(Verdict.RUNNING, h.moment(), known + 1, 1))
    assert kinds(h) == ["running_past_bound"]


def test_a_running_write_past_its_bound_is_an_alarm() -> None:
    """And none before, nor when the intent is applied already."""
    h = History(work_bound=5.0)
    h.lost()
    h.another()
    h.read(Verdict.RUNNING)
    assert kinds(h) == []
    for h.now, expected in ((4.5, []), (5.0, ["running_past_bound"])):
        h.read(Verdict.RUNNING)
        assert kinds(h) == expected
    h = History(work_bound=0.0)
    h.send()
    h.end(DONE)
    h.read(Verdict.RUNNING)
    assert kinds(h) == []


# A person's word -------------------------------------------------------------------------------------------------


def test_a_persons_not_applied_ends_the_intent() -> None:
    """It is told as that person's word, and never licenses a send."""
    h = History(key_retention=inf)
    h.lost()
    h.hear(Resolved(False, "Ada"))
    h.another()
    answer = told(h.ask())
    assert (answer.rule, answer.outcome, answer.evidence, answer.reason) == ("P1", NOT, "person", "person")
    assert answer.replayed


def test_a_persons_word_on_one_attempt_is_said_though_another_is_known() -> None:
    """The newest was never sent; of the first only the person knows."""
    h = two()
    h.tell(Ended(2, REFUSED), over=True)
    h.hear(Resolved(False, "Ada"))
    assert [a.evidence for a in h.state.attempts] == ["person", "never_sent"]
    assert h.state.evidence == "person"


def test_a_persons_applied_is_told_as_such() -> None:
    """Not attributable; a later reply makes it so."""
    h = History()
    h.lost()
    h.hear(Resolved(True, "Ada"))
    h.another()
    note = h.ask()
    assert isinstance(note, Note)
    answer = told(h.tell(note.fact))
    assert (answer.kind, answer.evidence, answer.attributable) == (AnswerKind.VALUE, "person", False)
    h.hear(Delivered(1))
    assert (h.state.evidence, h.state.attributable, kinds(h)) == ("delivered", True, [])


def test_a_person_may_speak_of_what_was_never_tried() -> None:
    """It was done by hand, or is not to be done."""
    h = History()
    h.hear(Resolved(True, "Ada"))
    assert h.state.outcome is APPLIED
    h = History()
    h.read(Verdict.NOT_APPLIED)
    assert (h.state.outcome, h.state.evidence) == (NOT, "")
    h.hear(Resolved(False, "Ada"))
    answer = told(h.ask())
    assert (answer.rule, answer.evidence, answer.attributable) == ("P1", "person", True)


def test_proof_against_a_persons_applied_is_an_alarm() -> None:
    """By a reply, by a read and by a start that never was; once, and the word stands."""

    def rejected(h: History) -> None:
        h.hear(Ended(1, REJECTED))

    def withheld(h: History) -> None:
        h.tell(Withheld(1, "lease_lost"))

    def absent(h: History) -> None:
        h.hear(Gone("process of a"))
        h.read(Verdict.NOT_APPLIED)
        h.read(Verdict.NOT_APPLIED)

    for proof in (rejected, withheld, absent):
        h = History(work_bound=0.0, read_lag=0.0)
        h.send()
        h.hear(Resolved(True, "Ada"))
        proof(h)
        assert (kinds(h), h.state.outcome) == (["against_person"], APPLIED)


def test_proof_against_a_persons_not_applied_is_an_alarm() -> None:
    """By a reply, and by a read; the outcome rises."""
    h = History()
    h.send()
    h.hear(Resolved(False, "Ada"))
    h.end(DONE)
    assert (kinds(h), h.state.outcome) == (["against_person"], APPLIED)
    h = History()
    h.lost()
    h.hear(Resolved(False, "Ada"))
    h.read(Verdict.APPLIED)
    assert (kinds(h), h.state.outcome) == (["against_person"], APPLIED)


def test_a_word_against_proof_is_an_alarm() -> None:
    """Either way, and changes nothing."""
    h = History()
    h.send()
    h.end(REJECTED)
    h.hear(Resolved(True, "Ada"))
    assert (kinds(h), h.state.outcome) == (["against_person"], NOT)
    h = History()
    h.send()
    h.end(DONE)
    h.hear(Resolved(False, "Ada"))
    assert (kinds(h), h.state.outcome, h.state.evidence) == (["against_person"], APPLIED, "response")


# What cannot be --------------------------------------------------------------------------------------------------


def test_a_claim_that_nothing_licenses_is_impossible() -> None:
    """Beside an open attempt, by a number that is not the next, or for nobody."""
    h = History()
    h.send()
    h.tell(GaveUp(1, "timeout"))
    with pytest.raises(Impossible, match="nothing licenses"):
        h.tell(Claimed(2, "a", "o"))
    h = History()
    with pytest.raises(Impossible, match="nothing licenses"):
        h.tell(Claimed(2, "a", "o"))
    with pytest.raises(Impossible, match="nothing licenses"):
        h.hear(Claimed(1, "a", "o"))


def test_a_recorded_claim_is_not_decided_again() -> None:
    """It is folded as it stands; only what cannot be is refused."""
    h = History()
    h.lost()
    claim = Event(h.moment(), Claimed(2, "a", "o"), h.facts())
    assert fold(h.state, claim).epoch == 2
    with pytest.raises(Impossible, match="cannot follow attempt 1"):
        fold(h.state, Event(h.moment(), Claimed(3, "a", "o"), h.facts()))
    with pytest.raises(Impossible, match="cannot follow attempt 1"):
        fold(h.state, Event(h.moment(), Claimed(2, "a", "o")))
    h.hear(Delivered(1))
    with pytest.raises(Impossible, match=r"^nothing leaves applied"):
        fold(h.state, claim)


@pytest.mark.parametrize(
    ("fact", "why"), [(Ended(1, DONE), "has ended already"), (Withheld(1, "r"), "cannot be withheld")]
)
def test_a_body_ends_once(fact: Fact, why: str) -> None:
    """And does not start any more."""
    h = History()
    h.send()
    h.end(LOST)
    with pytest.raises(Impossible, match=why):
        h.hear(fact)


@pytest.mark.parametrize("number", [0, 2])
def test_an_attempt_that_was_never_claimed_has_no_fate(number: int) -> None:
    """Whatever the fact says of it."""
    h = History()
    h.send()
    facts: list[Fact] = [Ended(number, DONE), Withheld(number, "r"), GaveUp(number, "r"), Delivered(number)]
    for fact in facts:
        with pytest.raises(Impossible, match="never claimed"):
            h.hear(fact)


def test_a_fact_without_a_call_is_read_under_the_promises_it_brings() -> None:
    """And under none, where it brings none."""
    h = History(key_retention=inf)
    h.send()
    event = Event(h.moment(), Ended(1, DONE, key_carried=False))
    assert [a.kind for a in fold(h.state, event).alarms] == []
    event = Event(h.moment(), Ended(1, DONE, key_carried=False), promises=Promises(key_retention=inf))
    assert [a.kind for a in fold(h.state, event).alarms] == ["key_not_carried"]


def test_leases_are_told_by_their_own_clock() -> None:
    """The instant of the database, where there is one."""
    h = History()
    at = h.moment()._replace(unix=50.0, clock="database")
    h.state, _ = step(h.state, Event(h.moment(), Claimed(1, "a", "o"), h.facts(), lease_at=at))
    assert h.state.lease is not None
    assert h.state.lease.since == at
    h.another()
    asked = Event(h.moment()._replace(unix=9e9), Asked(), h.facts(), lease_at=at)
    assert step(h.state, asked)[1].rule == "F1"


def test_a_finding_may_be_asked_again_at_once() -> None:
    """425 and 429 are not rejections."""
    h = History()
    h.send()
    assert h.end(Finding(NOT, "http_425", again=True, status=425)) == Wait("W1", 1.0)
    h.now += 1.0
    assert h.ask() == Send("S2", 2)
    assert h.state.attempts[0].evidence == "response"


def test_work_past_its_bound_settles_nothing_any_more() -> None:
    """One alarm; it may still land; and a later look that finds nothing proves nothing, for the bound was false."""
    h = History(work_bound=1.0, read_lag=0.0)
    h.lost()
    h.another(left=100.0)
    for h.now in (5.0, 10.0):
        h.read(Verdict.RUNNING)
    assert kinds(h) == ["running_past_bound"]
    assert h.state.may_still_land(h.call.promises, h.moment())
    h.now = 20.0
    h.read(Verdict.NOT_APPLIED)
    assert h.state.outcome is UNKNOWN
