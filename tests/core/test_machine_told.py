"""Another turn with the same wish, what is told, and the questions beside the steps."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from safewrite.core.commands import Answer, AnswerKind, Note, Nothing, Read, ReadOther, Run, Send, Wait
from safewrite.core.events import (
    Answered,
    Blocked,
    Delivered,
    Ended,
    GaveUp,
    Gone,
    Moment,
    Other,
    OutcomeState,
    Refused,
    Resolved,
    Verdict,
    Withheld,
)
from safewrite.core.machine import unrecorded, withhold
from tests.core.history import DONE, REFUSED, History, told

APPLIED, NOT, UNKNOWN = OutcomeState.APPLIED, OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN


def answered(h: History, **changes: object) -> Answer:
    """Return the answer that this call gets, the row before it included."""
    command = h.ask(**changes)
    return told(h.tell(command.fact, **changes) if isinstance(command, Note) else command)


# Another turn, same wish -----------------------------------------------------------------------------------------

OPEN = Other("other", "k", UNKNOWN, same_turn=False, same_content=True)


def test_an_open_intent_with_the_same_wish_is_looked_at_first() -> None:
    """Noted, reconciled, and if it stays open nothing is sent."""
    h = History()
    note = h.ask(others=(OPEN,))
    assert note == Note("T1", Blocked(("other",)))
    assert h.tell(note.fact, others=(OPEN,)) == ReadOther("T2", "other")
    answer = answered(h, others=(OPEN,), looked_at=("other",))
    assert (answer.rule, answer.kind, answer.other) == ("T5", AnswerKind.UNKNOWN, "other")
    assert (answer.outcome, answer.may_still_land, answer.reason) == (UNKNOWN, True, "same_wish_open")


def test_each_open_intent_is_looked_at() -> None:
    """And one that turned out not to be applied blocks no more."""
    h = History()
    second = replace(OPEN, id="second")
    h.tell(Blocked(("other", "second")), others=(OPEN, second))
    assert h.ask(others=(OPEN, second), looked_at=("other",)) == ReadOther("T2", "second")
    assert h.ask(looked_at=("other", "second")) == Send("S1", 1)


def test_an_applied_intent_with_the_same_wish_is_the_answer() -> None:
    """Its value is replayed."""
    found = replace(OPEN, outcome=APPLIED)
    assert History().ask(others=(found,)) == Note("A3", Refused("same_wish", other="other"))
    answer = answered(History(), others=(found,))
    assert (answer.rule, answer.kind, answer.other, answer.replayed) == (
        "T3",
        AnswerKind.OTHER,
        "other",
        True,
    )
    assert (answer.outcome, answer.reason) == (APPLIED, "same_wish")


def test_an_applied_intent_with_other_content_is_named() -> None:
    """And nothing is sent."""
    found = replace(OPEN, outcome=APPLIED, same_content=False)
    h = History()
    answer = answered(h, others=(found,))
    assert (answer.rule, answer.kind, answer.other) == ("T4", AnswerKind.NOT_SENT, "other")
    assert (answer.reason, answer.outcome) == ("same_wish_other_content", NOT)
    assert h.rows[-1].fact == Refused("same_wish_other_content", other="other")


@pytest.mark.parametrize("same_content", [True, False])
def test_another_occurrence_of_the_same_turn_is_a_wish_of_its_own(same_content: bool) -> None:
    """Once it is applied, whatever its values are; while it is open, it blocks like any other."""
    here = replace(OPEN, same_turn=True, same_content=same_content)
    assert History().ask(others=(replace(here, outcome=APPLIED),)) == Send("S1", 1)
    assert History().ask(others=(here,)).rule == "T1"


def test_a_caller_may_choose_to_send_beside() -> None:
    """An open one is passed by; an applied one is still the answer."""
    h = History()
    assert h.ask(others=(OPEN,), beside_unknown=True) == Send("S1", 1)
    found = replace(OPEN, outcome=APPLIED)
    assert answered(h, others=(found,), beside_unknown=True).rule == "T3"


def test_a_further_attempt_is_blocked_like_the_first() -> None:
    """Under a key, and when nothing is open."""
    h = History(key_retention=inf, reads=False)
    h.lost()
    h.another()
    assert h.ask(others=(OPEN,)) == ReadOther("T2", "other")
    assert answered(h, others=(OPEN,), looked_at=("other",)).rule == "U1"
    h = History(sends=1)
    h.send()
    h.end(REFUSED)
    h.another()
    assert h.ask(others=(OPEN,)) == ReadOther("T2", "other")


# What is told ----------------------------------------------------------------------------------------------------


def test_an_outcome_that_nobody_was_told_yet_is_noted_first() -> None:
    """So that a later turn knows whether the model has heard of it."""
    h = History()
    h.send()
    h.tell(GaveUp(1, "cancelled"), over=True)
    h.hear(Delivered(1))
    assert not h.state.answered
    h.another()
    note = h.ask()
    assert note == Note("A2", Answered())
    answer = told(h.tell(note.fact))
    assert (answer.kind, answer.evidence, answer.replayed, h.state.answered) == (
        AnswerKind.VALUE, "delivered", True, True,
    )  # fmt: skip


def test_a_quiet_call_looks_without_telling() -> None:
    """It leaves no row of its own, and nobody is told by it."""
    h = History()
    h.send()
    h.tell(GaveUp(1, "cancelled"), over=True)
    h.another("quiet", quiet=True, sends=0)
    assert h.ask() == Read("L1")
    assert told(h.read(Verdict.APPLIED)).kind is AnswerKind.VALUE
    assert not h.state.answered
    assert told(h.ask()).kind is AnswerKind.VALUE
    assert told(History(sends=0).ask(quiet=True)).rule == "B2"


def test_a_cancelled_call_leaves_its_lease() -> None:
    """What it noticed is on record, and nobody is told."""
    h = History()
    h.send()
    assert h.tell(Ended(1, DONE), over=True) == Nothing("N2")
    assert (h.state.lease, h.state.answered) == (None, False)


def test_a_fact_that_nobody_waits_for_is_evidence() -> None:
    """It decides nothing, and leaves the lease to whom it belongs."""
    h = History()
    h.send()
    h.another()
    h.tell(Refused("elsewhere"), over=True)
    assert h.hear(Delivered(1)) == Nothing("N1")
    assert h.state.lease is not None


def test_a_claimed_attempt_runs() -> None:
    """Until its body has ended or was left."""
    h = History()
    h.send()
    assert h.ask() == Run("R1", 1)


# Just before the body --------------------------------------------------------------------------------------------


def why(h: History, number: int = 1, **changes: object) -> str:
    """Return why the claimed attempt may not start now."""
    return withhold(h.state, number, h.facts(**changes), h.moment())


def test_a_claimed_attempt_may_start() -> None:
    """While its lease and its deadline live."""
    h = History()
    h.send()
    assert why(h) == ""
    assert why(h, left=0.5) == ""


def test_a_claimed_attempt_does_not_start_late() -> None:
    """Neither after its lease, nor after the deadline that it carries, nor when its call has no time left."""
    h = History(left=10.0)
    h.send()
    assert why(h, left=0.0) == "deadline_passed"
    h.now = 10.0
    assert why(h, left=5.0) == "deadline_passed"
    h.now = 11.0
    assert why(h, left=5.0) == "lease_lost"


def test_by_another_clock_a_lease_is_over_sooner() -> None:
    """What this call may do ends when it may have ended."""
    h = History(left=10.0, clock_skew=2.0)
    h.send()
    now = h.moment()._replace(unix=9.0, clock="database")
    assert withhold(h.state, 1, h.facts(left=5.0), now) == "lease_lost"
    assert withhold(h.state, 1, h.facts(left=5.0), now._replace(unix=8.9)) == ""


def test_a_superseded_attempt_does_not_start() -> None:
    """A newer one was claimed."""
    h = History(key_retention=inf, reads=False)
    h.send()
    h.now = 12.0
    h.another()
    h.send()
    assert why(h, 1) == "superseded"
    assert why(h, 2) == ""


@pytest.mark.parametrize("fact", [Delivered(1), Resolved(False, "p"), Resolved(True, "p")])
def test_an_attempt_does_not_start_once_its_intent_is_decided(fact: Delivered | Resolved) -> None:
    """A result came by another road, or a person spoke."""
    h = History(key_retention=inf, reads=False)
    h.lost()
    h.another()
    h.send()
    h.hear(fact)
    assert why(h, 2) == "decided_meanwhile"


def test_a_key_that_expired_before_the_body_began_withholds_it() -> None:
    """K is checked again; under P, or with nothing open before it, it need not hold."""
    h = History(left=40.0, key_retention=100.0, reads=False)
    h.lost()
    h.now = 49.0
    h.another(left=40.0)
    h.send()
    h.now = 49.9
    assert why(h, 2) == ""
    h.now = 50.0
    assert why(h, 2) == "key_expired"
    assert why(h, 2, precondition=True) == "key_expired"
    h = History(left=40.0)
    h.lost(precondition=True)
    h.another(left=40.0, precondition=True, reads=False)
    h.send()
    assert why(h, 2) == ""


def test_its_own_lease_does_not_count_against_an_attempt() -> None:
    """By the clock of a database it may have more time left than this call has, which ends first."""
    h = History(key_retention=100.0, max_stall=4.0, work_bound=6.0, clock_skew=2.0, reads=False)
    h.lost()
    h.now = 78.5
    h.another()
    h.send()
    own = h.state.attempts[1]
    h.state = h.state.with_attempt(
        replace(own, lease=replace(own.lease, since=Moment(78.5, 0.0, "database")))
    )
    h.now = 79.0
    assert why(h, 2, lease=10.5) == ""


def test_a_withheld_attempt_was_never_sent() -> None:
    """It may be claimed again."""
    h = History()
    h.send()
    assert h.tell(Withheld(1, "lease_lost")) == Wait("W1", 1.0)
    a = h.state.attempts[0]
    assert (a.began, a.ended, a.evidence, a.reason, h.state.outcome) == (
        False,
        True,
        "never_sent",
        "lease_lost",
        NOT,
    )


# A ledger that cannot be written ---------------------------------------------------------------------------------


def test_an_applied_outcome_that_could_not_be_recorded_is_told() -> None:
    """It stays true."""
    h = History()
    h.send()
    value = Answer("A1", AnswerKind.VALUE, APPLIED, "applied")
    assert unrecorded(h.state, value, h.facts(), h.moment()) == value


def test_a_negative_that_could_not_be_recorded_is_told_under_a_live_lease() -> None:
    """And only where everything before is known not to be applied."""
    negative = Answer("D1", AnswerKind.REJECTED, NOT, "http_422")
    h = History()
    h.send()
    assert unrecorded(h.state, negative, h.facts(), h.moment()) == negative
    late = h.moment()._replace(ticks=11.0)
    lost = Answer("X1", AnswerKind.UNKNOWN, UNKNOWN, "not_recorded", may_still_land=True)
    assert unrecorded(h.state, negative, h.facts(), late) == lost
    h.another()
    assert unrecorded(h.state, negative, h.facts(), h.moment()) == lost
    h = History(key_retention=inf, reads=False)
    h.lost()
    h.another()
    h.send()
    assert unrecorded(h.state, negative, h.facts(), h.moment()) == lost


def test_by_another_clock_a_negative_is_told_for_a_shorter_while() -> None:
    """The lease may have ended sooner than it seems."""
    h = History(left=10.0, clock_skew=2.0)
    h.send()
    negative = Answer("D1", AnswerKind.REJECTED, NOT, "http_422")
    now = h.moment()._replace(unix=9.0, clock="database")
    assert unrecorded(h.state, negative, h.facts(), now).rule == "X1"
    assert unrecorded(h.state, negative, h.facts(), now._replace(unix=8.9)) == negative


def test_nothing_else_is_told_unrecorded() -> None:
    """An unknown stays one, a further step is not taken, and a call without a lease says nothing definite."""
    h = History()
    h.send()
    unknown = Answer("U3", AnswerKind.UNKNOWN, UNKNOWN, "goal_not_met")
    for command in (unknown, Send("S2", 2), Read("L1")):
        assert unrecorded(h.state, command, h.facts(), h.moment()).rule == "X1"
    h.hear(Gone("process of a"))
    assert unrecorded(h.state, Answer("D1", AnswerKind.REJECTED, NOT, ""), h.facts(), h.moment()).rule == "X1"
