"""Objects: each proves one intent only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from safewrite.core.commands import Answer, AnswerKind
from safewrite.core.events import Delivered, Ended, OutcomeState, Promises, ReadEnded, Resolved, Verdict
from safewrite.core.fold import Impossible
from safewrite.core.state import Alarm
from safewrite.ledger.model import SUBJECT, Candidates, Contents, Intent
from tests.ledger.driver import APPLIED, UNKNOWN, Caller, moment

READ = ReadEnded(Verdict.APPLIED, moment(2.0), 2, 1)


def lost(caller: Caller) -> Intent:
    """Return an intent whose only attempt ended without an answer."""
    intent, _ = caller.ask()
    return caller.end(intent, UNKNOWN)[0]


def values(*texts: str) -> Callable[[int], Contents]:
    """Return what keeps the text in that place as the value."""
    return lambda place: {"value": texts[place]}


def look(caller: Caller, intent: Intent, *objects: str, listed: bool = True) -> tuple[Intent, ReadEnded]:
    """Record a read that found these objects; return the intent and the fact as it was judged."""
    found = Candidates(objects, values(*objects), listed)
    after, _ = caller.tell(intent, READ, at=3.0, candidates=found)
    return after, fact_of(caller, after)


def fact_of(caller: Caller, intent: Intent) -> ReadEnded:
    """Return the newest read on record."""
    from safewrite.ledger.rows import decode_event

    facts = [decode_event(row["body"]).fact for row in caller.ledger.rows(intent.id)]
    return [fact for fact in facts if isinstance(fact, ReadEnded)][-1]


def test_as_many_free_objects_as_open_intents_prove_one(caller: Caller) -> None:
    """One open intent, one free object: that is its object, whose value is kept."""
    intent, fact = look(caller, lost(caller), "ch_1")
    assert (fact.verdict, fact.object_id, fact.kept) == (Verdict.APPLIED, "ch_1", True)
    assert intent.state.outcome is OutcomeState.APPLIED
    assert caller.ledger.value(intent) == "ch_1"


def test_fewer_free_objects_than_open_intents_prove_nothing(caller: Caller) -> None:
    """Two intents in two runs, one object: whose it is nobody knows, and nobody claims it."""
    first, _ = lost(caller), lost(caller(run="run-2"))
    intent, fact = look(caller, first, "ch_1")
    assert (fact.verdict, fact.reason, fact.kept) == (Verdict.INCONCLUSIVE, "too_few_candidates", False)
    assert intent.state.outcome is OutcomeState.UNKNOWN
    _, fact = look(caller, intent, "ch_1", "ch_2")
    assert fact.verdict is Verdict.APPLIED


@pytest.mark.parametrize("digit", "0f")
def test_whatever_its_run_is_called_an_open_intent_counts(caller: Caller, digit: str) -> None:
    """All runs of one subject count: those whose digest is the first of all in the index, and the last."""
    runs = (caller(run=f"run-{n}") for n in range(2, 1000))
    lost(next(c for c in runs if c.identity.wish[SUBJECT] == digit))
    _, fact = look(caller, lost(caller), "ch_1")
    assert (fact.verdict, fact.reason) == (Verdict.INCONCLUSIVE, "too_few_candidates")


def test_an_intent_known_not_to_be_applied_counts_itself(caller: Caller) -> None:
    """One look proves that it made nothing; what a second one at the same time finds is another intent's."""
    sees_all = replace(caller.call, promises=Promises(work_bound=0.0, read_lag=0.0, clock_skew=0.0))
    lost(caller(run="run-2"))
    mine = caller(call=sees_all)
    intent, _ = mine.tell(lost(mine), replace(READ, verdict=Verdict.NOT_APPLIED), at=3.0)
    assert intent.state.outcome is OutcomeState.NOT_APPLIED
    after, fact = look(mine, intent, "ch_1")
    assert (fact.verdict, fact.reason) == (Verdict.INCONCLUSIVE, "too_few_candidates")
    assert after.state.outcome is OutcomeState.NOT_APPLIED


@pytest.mark.parametrize("change", [{"tool": "pause"}, {"target": '"sub_2"'}, {"namespace": "other"}])
def test_intents_about_something_else_do_not_count(caller: Caller, change: dict[str, str]) -> None:
    """Only intents of this tool and target compete for its objects."""
    first, _ = lost(caller), lost(caller(**change))
    _, fact = look(caller, first, "ch_1")
    assert fact.verdict is Verdict.APPLIED


def test_intents_that_hold_an_object_or_are_not_applied_do_not_count(caller: Caller) -> None:
    """One has its object from a response, one was resolved as not applied: one object is enough for the third."""
    done, _ = caller(run="run-2").ask()
    caller(run="run-2").tell(done, Ended(1, APPLIED, object_id="ch_0"))
    caller.tell(lost(caller(run="run-3")), Resolved(False, "ana"), quiet=True)
    _, fact = look(caller, lost(caller), "ch_0", "ch_1")
    assert (fact.verdict, fact.object_id) == (Verdict.APPLIED, "ch_1")


def test_an_applied_intent_that_holds_no_object_still_counts(caller: Caller) -> None:
    """Its answer named none, so what a read of another one finds may be its object as well."""
    caller(run="run-2").write()
    _, fact = look(caller, lost(caller), "ch_1")
    assert (fact.verdict, fact.reason) == (Verdict.INCONCLUSIVE, "too_few_candidates")


def test_all_held_by_responses_is_absence(caller: Caller) -> None:
    """Every object is another intent's for sure: there is none left that this one could have made."""
    done, _ = caller(run="run-2").ask()
    caller.tell(done, Ended(1, APPLIED, object_id="ch_0"))
    _, fact = look(caller, lost(caller), "ch_0")
    assert (fact.verdict, fact.reason, fact.object_id) == (Verdict.NOT_APPLIED, "no_candidate", None)


def test_all_held_by_reads_proves_nothing(caller: Caller) -> None:
    """A claim that a read made may be mistaken."""
    look(caller, lost(caller(run="run-2")), "ch_0")
    _, fact = look(caller, lost(caller), "ch_0")
    assert (fact.verdict, fact.reason) == (Verdict.INCONCLUSIVE, "object_of_another_intent")


def test_no_objects_at_all_is_absence(caller: Caller) -> None:
    """An empty list says that nothing was made."""
    _, fact = look(caller, lost(caller))
    assert fact.verdict is Verdict.NOT_APPLIED


def test_the_own_object_is_recognised_again(caller: Caller) -> None:
    """What an intent holds already proves it, whatever else is there."""
    intent, _ = look(caller, lost(caller), "ch_1")
    _, fact = look(caller, intent, "ch_0", "ch_1")
    assert (fact.verdict, fact.object_id, fact.reason) == (Verdict.APPLIED, "ch_1", "claimed")


def test_one_object_looked_up_by_key_needs_no_counting(caller: Caller) -> None:
    """A look-up by key names the intent by itself, and its claim is as good as a response's."""
    first, _ = lost(caller), lost(caller(run="run-2"))
    after, _ = caller.tell(
        first, replace(READ, object_id="ch_1", kept=True), at=3.0, contents={"value": '"v"'}
    )
    assert after.state.outcome is OutcomeState.APPLIED
    assert caller.ledger.value(after) == '"v"'
    other = caller.ledger.load(lost(caller(run="run-3")).id)
    assert other is not None
    _, fact = look(caller, other, "ch_1")
    assert fact.verdict is Verdict.NOT_APPLIED


def test_one_object_of_another_intent_proves_nothing_and_keeps_nothing(caller: Caller) -> None:
    """A look-up that finds what another intent holds is inconclusive."""
    done, _ = caller(run="run-2").ask()
    caller.tell(done, Ended(1, APPLIED, object_id="ch_1"))
    after, command = caller.tell(
        lost(caller), replace(READ, object_id="ch_1", kept=True), at=3.0, contents={"value": '"v"'}
    )
    fact = fact_of(caller, after)
    assert (fact.verdict, fact.object_id, fact.kept) == (Verdict.INCONCLUSIVE, None, False)
    assert after.state.outcome is OutcomeState.UNKNOWN
    assert caller.ledger.content(after.id, 3, "value") is None
    assert not (isinstance(command, Answer) and command.kind is AnswerKind.VALUE)


def test_the_same_object_at_another_dependency_is_another_object(caller: Caller) -> None:
    """Claims are unique for each dependency."""
    elsewhere = caller(run="run-2", meta=replace(caller.meta, dependency="mail"))
    done, _ = elsewhere.ask()
    elsewhere.tell(done, Ended(1, APPLIED, object_id="1"))
    _, fact = look(caller, lost(caller), "1")
    assert fact.verdict is Verdict.APPLIED


@pytest.mark.parametrize("delivered", [False, True])
def test_a_response_with_another_intent_s_object_is_an_alarm_and_never_fails(
    caller: Caller, delivered: bool
) -> None:
    """The write is applied all the same; the alarm names the other intent's key."""
    alarms: list[Alarm] = []
    caller.ledger.on_alarm = lambda _, alarm: alarms.append(alarm)
    done, _ = caller(run="run-2").ask()
    caller.tell(done, Ended(1, APPLIED, object_id="ch_1"))
    intent, _ = caller.ask()
    if delivered:
        after, _ = caller.tell(intent, Delivered(1, object_id="ch_1"), quiet=True)
    else:
        after, _ = caller.tell(intent, Ended(1, APPLIED, object_id="ch_1"))
    assert after.state.outcome is OutcomeState.APPLIED
    assert [(alarm.kind, alarm.revision) for alarm in alarms] == [("object_collision", 3)]
    assert done.identity.key in alarms[0].detail
    assert caller.ledger.verify(after.id) == ()


def test_an_object_told_twice_by_the_same_intent_is_no_collision(caller: Caller) -> None:
    """A webhook repeats what the response said."""
    alarms: list[Alarm] = []
    caller.ledger.on_alarm = lambda _, alarm: alarms.append(alarm)
    intent, _ = caller.ask()
    intent, _ = caller.tell(intent, Ended(1, APPLIED, object_id="ch_1"))
    caller.tell(intent, Delivered(1, object_id="ch_1"), quiet=True)
    assert alarms == []


def test_a_fact_that_cannot_follow_any_more_claims_nothing(caller: Caller) -> None:
    """The body has ended on another reading meanwhile: what this one would have claimed is undone with it."""
    intent, _ = caller.ask()
    caller.end(intent, UNKNOWN)
    with pytest.raises(Impossible):
        caller.tell(intent, Ended(1, APPLIED, object_id="ch_1"), at=2.0)
    _, fact = look(caller, lost(caller(run="run-2", target='"sub_2"')), "ch_1")
    assert (fact.verdict, fact.object_id) == (Verdict.APPLIED, "ch_1")


def test_a_goal_that_was_met_already_claims_nothing(caller: Caller) -> None:
    """The body found the state as wished: the object is not of its making."""
    intent, _ = caller.ask()
    caller.tell(intent, Ended(1, APPLIED, goal=True, object_id="ch_1"))
    _, fact = look(caller, lost(caller(run="run-2")), "ch_1", "ch_2")
    assert (fact.verdict, fact.object_id) == (Verdict.APPLIED, "ch_1")


def test_reads_of_state_are_left_as_they_are(caller: Caller) -> None:
    """A verdict without an object is not judged."""
    after, _ = caller.tell(lost(caller), replace(READ, verdict=Verdict.GOAL_MET), at=3.0)
    assert fact_of(caller, after).verdict is Verdict.GOAL_MET
    assert not after.state.attributable
