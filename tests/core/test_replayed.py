"""Whose outcome an applied one is: found by the call itself, or there before it."""

from __future__ import annotations

from safewrite.core.commands import Answer
from safewrite.core.events import (
    Asked,
    Call,
    Claimed,
    Ended,
    Event,
    Fact,
    Finding,
    GaveUp,
    Moment,
    OutcomeState,
    ReadEnded,
    Verdict,
)
from safewrite.core.machine import decide, step
from safewrite.core.state import State

MINE = Call("mine", 9.0, 1, True)
THEIRS = Call("theirs", 9.0, 1, True)
RETURNED = Ended(1, Finding(OutcomeState.APPLIED, "returned"))


def at(seconds: float) -> Moment:
    """Return an instant."""
    return Moment(1e9 + seconds, seconds, "boot")


def after(*facts: Fact) -> State:
    """Return the state after a call of mine reported these."""
    state = State()
    for number, fact in enumerate(facts):
        state, _ = step(state, Event(at(number), fact, MINE))
    return state


def asked(state: State, call: Call) -> Answer:
    """Return what a call that asks now is answered."""
    answer = decide(state, Event(at(10.0), Asked(), call))
    assert isinstance(answer, Answer)
    return answer


def test_what_another_call_brought_about_is_replayed() -> None:
    """Also where nothing was recorded since the row that made it applied."""
    state = after(Claimed(1, "a", "o"), RETURNED)
    assert state.applied_at == state.revision
    assert asked(state, THEIRS).replayed
    assert not asked(state, MINE).replayed


def test_what_a_call_found_by_its_own_read_is_not_replayed() -> None:
    """It sent nothing, but the outcome was not on record before it looked."""
    state = after(Claimed(1, "a", "o"), GaveUp(1, "timeout"))
    state, answer = step(state, Event(at(9.0), ReadEnded(Verdict.APPLIED, at(8.0), 2, 1), THEIRS))
    assert isinstance(answer, Answer)
    assert not answer.replayed
    assert asked(state, THEIRS).replayed
