"""What a row says, in words: one function for what happened, one for what was decided.

Sentences only; which of them are told, and in what order, is the matter of `story.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, assert_never

from safewrite.core.commands import (
    Answer,
    AnswerKind,
    Command,
    Note,
    Nothing,
    Read,
    ReadOther,
    Run,
    Send,
    Wait,
    Watch,
)
from safewrite.core.events import (
    Alarmed,
    Answered,
    Asked,
    Blocked,
    Claimed,
    Delivered,
    Ended,
    Fact,
    Fenced,
    GaveUp,
    Gone,
    Missed,
    OutcomeState,
    ReadEnded,
    Refused,
    Resolved,
    Verdict,
    Withheld,
)
from safewrite.core.reasons import REASONS
from safewrite.core.state import State

OUTCOMES: Final[Mapping[OutcomeState, str]] = {
    OutcomeState.APPLIED: "applied",
    OutcomeState.NOT_APPLIED: "not applied",
    OutcomeState.UNKNOWN: "unknown",
}

VERDICTS: Final[Mapping[Verdict, str]] = {
    Verdict.APPLIED: "it found the effect, and that it is this intent's",
    Verdict.NOT_APPLIED: "it found nothing of this intent",
    Verdict.GOAL_MET: "the goal is met, whoever met it",
    Verdict.GOAL_NOT_MET: "the goal is not met",
    Verdict.RUNNING: "the dependency is still working on it",
    Verdict.INCONCLUSIVE: "it could not tell",
}

EVIDENCE: Final[Mapping[str, str]] = {
    "response": "the reply to an attempt",
    "late_response": "a reply that came after its caller had stopped waiting",
    "reconciled": "a reconciling read that names this intent",
    "goal_state": "a read that saw the goal met, though not by whom",
    "delivered": "a result that came by another road",
    "person": "a person's word",
    "never_sent": "an attempt that cannot have left",
    "transport": "a guarantee of the transport",
}
"""How an outcome is known -> in words."""

CODES: Final[Mapping[str, str]] = {
    "absent_not_proven": "A read found nothing, but an attempt could still take effect when it began.",
    "applied_when": "The author's `applied_when` judged the value.",
    "applied_when_failed": "The author's `applied_when` raised an error.",
    "applied_when_unsure": "The author's `applied_when` could not tell.",
    "breaker_open": "The dependency is being spared.",
    "budget_exhausted": "Too little time was left to send.",
    "budget_spent": "No time was left to look.",
    "cancelled_before_start": "The call was cancelled before the body began.",
    "cancelled_inside": "The body cancelled itself, which says nothing about the other side.",
    "call_cancelled": "The call was cancelled between two of its steps, and was told nothing.",
    "call_interrupted": "The program was interrupted between two steps of the call, which was told nothing.",
    "candidate_without_object_id": "The read offered a candidate without an object id.",
    "classified": "The dependency's own `classify` said so.",
    "classify_failed": "The dependency's own `classify` raised an error.",
    "deadline_passed": "The deadline had passed before the body began.",
    "found": "A read found the effect.",
    "decided_meanwhile": "The outcome had become known before the body began.",
    "goal_met": "The body found the goal met already.",
    "goal_not_met": "The goal is not met, which a later effect can still change.",
    "idle": "Nothing was heard of the body for longer than its idle limit.",
    "in_flight": "Another call is carrying it out.",
    "inconclusive": "The read could not tell.",
    "interrupted_before_start": "The program was interrupted before the body began.",
    "key_burnt": "The dependency replays an error under the key.",
    "key_expired": "The dependency may have forgotten the key by then.",
    "hedge_lost": "Another copy of the read answered first.",
    "lease_lost": "The lease had run out before the body began.",
    "ledger_unavailable": "The ledger could not be written.",
    "limiter_full": "As many calls as the dependency is to have at once were under way.",
    "no_candidate": "Every object that was found is another intent's, by its own reply or key.",
    "no_reconcile": "There is no reconcile function to ask.",
    "no_thread_in_time": "No thread began the body in time.",
    "not_awaited": "The body was a coroutine that a decorator hid, so nobody awaited it.",
    "not_applied": "The body said so itself: it returned NotApplied.",
    "not_recorded": "The ledger could not store the outcome.",
    "object_of_another_intent": "The object that was found is another intent's.",
    "other_content": "The same intent came with other arguments.",
    "person": "A person said so.",
    "pool_exhausted": "No thread was free.",
    "proven_absent": "A read that began when nothing could take effect any more found nothing.",
    "read_failed": "The read ended with an error.",
    "read_returned_no_verdict": "The read returned something that is no verdict.",
    "read_returned_nothing": "The read returned nothing.",
    "redacted_argument": "An argument was redacted, so it cannot be sent from the record.",
    "retry_after_beyond_deadline": "The dependency asked for a wait beyond the deadline.",
    "retry_budget_spent": "The dependency's retry budget was spent, so it was not sent again.",
    "same_wish": "Another intent with the same wish was applied.",
    "same_wish_open": "Another intent with the same wish is open.",
    "same_wish_other_content": "Another intent with the same wish was applied, with other arguments.",
    "still_running": "The dependency is still working on it.",
    "superseded": "A newer attempt had been claimed before the body began.",
    "too_few_candidates": "There are fewer free objects than intents that may have made one.",
}
"""Reason codes of the machine and the shells -> one sentence.  Those of replies stand in `reasons.py`."""

_READ_CODES: Final[Mapping[str, str]] = {
    "cancelled": "The call was cancelled while it read.",
    "interrupted": "The program was interrupted while it read.",
    "read_timeout": "The read did not answer in time.",
}


def explain(reason: str) -> str:
    """Return the sentence for a reason code, or nothing for a code that is not known here."""
    return CODES.get(reason) or REASONS.get(reason, "")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 attempt`, `2 attempts`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


# What happened -----------------------------------------------------------------------------------------------


def happened(fact: Fact, before: State, after: State) -> str:
    """Return what a fact says, in sentences; `before` and `after` are the states around it."""
    match fact:
        case Ended():
            return _ended(fact, before)
        case Gone():
            return _gone(fact, before)
        case ReadEnded():
            return _read_ended(fact, before, after)
        case _:
            return _TOLD[type(fact)](fact)


def _joined(*sentences: str) -> str:
    return " ".join(sentence for sentence in sentences if sentence)


def _claimed(fact: Claimed) -> str:
    beside = ""
    if fact.beside:
        beside = f"Open with the same wish, and passed by as the caller chose: {', '.join(fact.beside)}."
    return _joined(f"Attempt {fact.number} was written down before anything was sent.", beside)


def _withheld(fact: Withheld) -> str:
    return _joined(
        f"The body of attempt {fact.number} never ran, and never will (`{fact.reason}`).",
        explain(fact.reason),
    )


def _ended(fact: Ended, before: State) -> str:
    found = fact.finding
    gave_up = any(a.number == fact.number and a.gave_up for a in before.attempts)
    late = ", late" if gave_up or before.epoch > fact.number else ""
    made = f"It made the object `{fact.object_id}`." if fact.object_id is not None else ""
    asked = ""
    if found.retry_after is not None:
        asked = f"The dependency asked to wait {seconds(found.retry_after)} before another."
    reason = explain(found.reason)
    outcome = OUTCOMES[found.outcome]
    return _joined(f"Attempt {fact.number} ended{late}: {outcome} (`{found.reason}`).", reason, asked, made)


def _gave_up(fact: GaveUp) -> str:
    return f"The caller stopped waiting for attempt {fact.number} (`{fact.reason}`); its body may go on."


def _gone(fact: Gone, before: State) -> str:
    ran = [a.number for a in before.attempts if a.owner == fact.owner and a.ended_at is None]
    which = f"that ran attempt {', '.join(map(str, ran))}" if ran else "that held the lease"
    return f"The process {which} is known to be gone ({process(fact.owner)}): it runs no body any more."


def process(owner: str) -> str:
    """Return the name of a process as people know it: its host and process id, without boot and start time."""
    host, *rest = owner.split("/")
    return f"process {rest[2]} on {host}" if len(rest) == 4 else owner


def _fenced(fact: Fenced) -> str:
    return f"The dependency refuses attempts up to number {fact.number} from now on ({fact.how})."


def _read_ended(fact: ReadEnded, before: State, after: State) -> str:
    verdict, reason = VERDICTS[fact.verdict], ""
    if fact.verdict is Verdict.INCONCLUSIVE:
        verdict += f" (`{fact.reason}`)" if fact.reason else ""
        reason = _READ_CODES.get(fact.reason) or explain(fact.reason)
    found = f"The object is `{fact.object_id}`." if fact.object_id is not None else ""
    return _joined(f"A reconciling read ended: {verdict}.", reason, found, _worth(fact, before, after))


def _worth(fact: ReadEnded, before: State, after: State) -> str:
    """Say whether a negative read proved anything."""
    if fact.verdict is not Verdict.NOT_APPLIED or before.outcome is not OutcomeState.UNKNOWN:
        return ""
    if after.outcome is OutcomeState.NOT_APPLIED:
        return "No attempt could take effect any more when it began: that proves it."
    return "An attempt could still take effect when it began, or reads may lag: that proves nothing yet."


def _refused(fact: Refused) -> str:
    if fact.reason.startswith("call_"):  # cut off, not refused: it may have sent before
        return explain(fact.reason)
    names = f"They differ in {', '.join(f'`{name}`' for name in fact.names)}." if fact.names else ""
    other = f"The other intent is {fact.other}." if fact.other is not None else ""
    return _joined(
        f"A call was refused, and sent nothing (`{fact.reason}`).", explain(fact.reason), names, other
    )


def _blocked(fact: Blocked) -> str:
    return f"Open with the same wish, so nothing was sent beside: {', '.join(fact.by)}."


def _delivered(fact: Delivered) -> str:
    made = f"It made the object `{fact.object_id}`." if fact.object_id is not None else ""
    return _joined(f"The result of attempt {fact.number} came by another road: applied.", made)


def _resolved(fact: Resolved) -> str:
    said = "applied" if fact.applied else "not applied"
    note = f" Their note: {fact.note}" if fact.note else ""
    return f"{fact.by} said that it was {said}.{note}"


def _alarmed(fact: Alarmed) -> str:
    return f"Alarm `{fact.kind}`: {fact.detail}." if fact.detail else f"Alarm `{fact.kind}`."


def missed(fact: Missed) -> str:
    """Return what was not fetched, in sentences."""
    sent = f"after {counted(fact.sent, 'request')}" if fact.sent else "and sent nothing"
    what = "brought only a part" if fact.part else "brought nothing"
    if fact.reason == "hedge_lost":
        what = "was answered"
    reached = f"It had reached {fact.reached}." if fact.reached else ""
    return _joined(f"A read {what}, {sent} (`{fact.reason}`).", explain(fact.reason), reached)


_TOLD: dict[type, Callable[[Any], str]] = {
    Asked: lambda _: "A call asked what to do.",
    Claimed: _claimed,
    Withheld: _withheld,
    GaveUp: _gave_up,
    Fenced: _fenced,
    Refused: _refused,
    Blocked: _blocked,
    Answered: lambda _: "The applied outcome was told to a caller for the first time.",
    Delivered: _delivered,
    Resolved: _resolved,
    Alarmed: _alarmed,
    Missed: missed,
}
"""How each fact is told that needs no more than itself."""


# What was decided --------------------------------------------------------------------------------------------


def decided(command: Command) -> str:
    """Return what a command makes a shell do, as the end of a sentence; empty: nothing."""
    match command:
        case Send(number=number):
            return f"claim attempt {number}"
        case Run(number=number):
            return f"run the body of attempt {number}"
        case Read():
            return "ask the reconcile function"
        case ReadOther(intent=other):
            return f"look at the intent {other} first"
        case Wait(seconds=length):
            return f"wait {seconds(length)}"
        case Watch():
            return "wait for the record of the attempt in flight"
        case Note():
            return "write this down before answering"
        case Nothing():
            return ""
        case Answer():
            return _answer(command)
        case _:
            assert_never(command)


def _answer(answer: Answer) -> str:
    reason = f"`{answer.reason}`"
    match answer.kind:
        case AnswerKind.VALUE:
            known = EVIDENCE.get(answer.evidence, answer.evidence)
            return f"answer that it was applied, known from {known}"
        case AnswerKind.REJECTED:
            return f"answer that the dependency said no ({reason})"
        case AnswerKind.NOT_SENT:
            return f"answer that it was not applied, and nothing is open ({reason})"
        case AnswerKind.UNKNOWN:
            still = "and may still land" if answer.may_still_land else "and settled"
            return f"answer that it is unknown, {still} ({reason})"
        case AnswerKind.IN_FLIGHT:
            return "answer that another call is carrying it out"
        case AnswerKind.MISMATCH:
            return f"answer that {', '.join(f'`{name}`' for name in answer.names)} differ from the record"
        case AnswerKind.OTHER:
            return f"answer with the outcome of the intent {answer.other}"
        case _:
            assert_never(answer.kind)


def seconds(length: float) -> str:
    """Return a length of time as people read it: three digits, in seconds."""
    return f"{length:.3g} s" if length < 999.5 else f"{length:.0f} s"
