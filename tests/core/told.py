"""What a caller is told in an explored world, held against what is true there."""

from __future__ import annotations

from safewrite.core.commands import Answer, AnswerKind
from safewrite.core.events import Other, OutcomeState
from safewrite.core.state import State
from tests.core.oracle import could_do_better
from tests.core.play import Broken, World, with_wish
from tests.core.setting import Setting


def told(s: Setting, w: World, i: int, answer: Answer, state: State, others: tuple[Other, ...]) -> World:
    """Return the world in which call `i` was told `answer`, or raise `Broken` where that may not be told."""
    k = s.callers[i].intent
    if answer.kind is AnswerKind.OTHER:
        w = _other(w, 1 - k)
    elif answer.outcome is OutcomeState.APPLIED:
        w = _applied(s, w, i, answer)
    elif answer.outcome is OutcomeState.NOT_APPLIED:
        w = _not_applied(w, k, answer, state)
    else:
        fault = could_do_better(s, w, i, k, answer, others)
        if fault:
            raise Broken(f"needless unknown ({answer.rule} {answer.reason}): {fault}")
    on_a_word = any(a.evidence == "person" for a in state.attempts)
    if answer.outcome is not OutcomeState.NOT_APPLIED and not answer.may_still_land and not on_a_word:
        w = with_wish(w, k, told_settled=state.epoch)
    return w


def _other(w: World, other: int) -> World:
    x = w.wishes[other]
    if not (x.effects or w.ever or x.person == "applied"):
        raise Broken("false applied: the other intent was told to be")
    return with_wish(w, other, told_applied=True)


def _applied(s: Setting, w: World, i: int, answer: Answer) -> World:
    k = s.callers[i].intent
    x = w.wishes[k]
    by_person = answer.evidence == "person" and x.person == "applied"
    true = x.effects if answer.attributable else by_person or w.ever
    if not true:
        raise Broken(f"false applied: evidence {answer.evidence}")
    return w if s.callers[i].quiet else with_wish(w, k, told_applied=True)


def _not_applied(w: World, k: int, answer: Answer, state: State) -> World:
    if answer.evidence == "person":
        if w.wishes[k].person != "not":
            raise Broken("not_applied was told on the word of a person who did not say so")
        return w
    if any(a.did for a in w.atts if a.intent == k):
        raise Broken(f"false not_applied: {answer.rule} {answer.reason}")
    return with_wish(w, k, told_not=state.epoch)
