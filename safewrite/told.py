"""From a job's answer to what its caller gets: an `Outcome`, the value, a typed error, or a report."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from safewrite import errors, words
from safewrite.core.commands import Answer, AnswerKind
from safewrite.core.events import OutcomeState
from safewrite.core.replacing import replace
from safewrite.outcome import Outcome

if TYPE_CHECKING:
    from safewrite.shell.job import Job

_REFUSALS: dict[str, type[errors.WriteNotSent]] = {
    "budget_exhausted": errors.BudgetExhausted,
    "retry_after_beyond_deadline": errors.BudgetExhausted,
    "breaker_open": errors.BreakerOpen,
    "ledger_unavailable": errors.LedgerUnavailable,
}


def outcome_of(job: Job, answer: Answer) -> Outcome[Any]:
    """Return the outcome that an answer stands for; reads a replayed value from the ledger."""
    intent, identity = job.intent, job.ticket.identity
    state = intent.state if intent is not None else None
    mine = [a for a in state.attempts if a.call == job.id] if state is not None else []
    has_value, value = _value(job, answer)
    again: bool | None = None
    if answer.outcome is OutcomeState.NOT_APPLIED:
        again = answer.kind is AnswerKind.NOT_SENT and answer.reason not in words.SETTLED
    outcome: Outcome[Any] = Outcome(
        state=answer.outcome.value,
        reason=answer.reason,
        value=value,
        has_value=has_value,
        evidence=answer.evidence,
        attributable=answer.attributable,
        may_still_land=answer.may_still_land,
        sent=job.sent > 0 and any(a.began and a.evidence != "never_sent" for a in mine),
        replayed=answer.replayed,
        recorded=job.recorded,
        key=identity.key,
        intent_id=intent.id if intent is not None else "",
        attempts=state.epoch if state is not None else 0,
        trace=job.meta.trace,
        tool=identity.tool,
        blocked_by_key=_key_of_other(job, answer),
        again=again,
    )
    if has_value:
        return outcome
    return replace(outcome, error=_error(job, answer, outcome))


def _value(job: Job, answer: Answer) -> tuple[bool, Any]:
    if answer.kind is not AnswerKind.VALUE:
        return False, None
    assert job.intent is not None
    if answer.value_at is not None:
        text = job.texts.get(answer.value_at)
        if text is None:
            # A ledger that fails only now leaves the write applied: nobody may be told that nothing was sent.
            with suppress(errors.LedgerUnavailable):
                text = job.ledger.value(job.intent)
        if text is not None:
            try:
                return True, job.tool.codec.decode(text)
            except ValueError:  # the type has changed since: the write stands, its value cannot be shown
                return False, None
    for reply in reversed(job.originals.values()):
        if reply.finding.outcome is OutcomeState.APPLIED:
            return True, reply.value  # it could not be stored: returned once, as it is
    return False, None


def _key_of_other(job: Job, answer: Answer) -> str | None:
    if answer.other is None:
        return None
    try:
        other = job.ledger.load(answer.other)
    except errors.LedgerUnavailable:
        return None
    return other.identity.key if other is not None else None


def _error(job: Job, answer: Answer, outcome: Outcome[Any]) -> errors.SafeWriteError | None:
    """Return the error that a caller who wants a value gets where there is none to be had."""
    about: dict[str, Any] = {
        "key": outcome.key,
        "attempts": outcome.attempts,
        "trace": outcome.trace,
        "tool": outcome.tool,
    }
    match answer.kind:
        case AnswerKind.VALUE | AnswerKind.OTHER:
            return errors.ValueNotKept(**about)
        case AnswerKind.MISMATCH:
            return errors.IntentMismatch(parameters=answer.names, **about)
    about |= {"reason": answer.reason, "outcome": outcome, "blocked_by_key": outcome.blocked_by_key}
    about["ledger"] = job.failure.ledger if isinstance(job.failure, errors.LedgerUnavailable) else ""
    if answer.kind is AnswerKind.REJECTED:
        error: errors.SafeWriteError = errors.WriteRejected(**about)
    elif answer.kind is AnswerKind.IN_FLIGHT:
        error = errors.IntentInFlight(may_still_land=True, **about)
    elif answer.kind is AnswerKind.UNKNOWN:
        error = errors.OutcomeUnknown(may_still_land=answer.may_still_land, **about)
    else:
        text = job.too_little(job.left()) if answer.reason == "budget_exhausted" else ""
        error = _REFUSALS.get(answer.reason, errors.WriteNotSent)(text, **about)
    error.__cause__ = job.failure or job.newest_error
    return error


def value_or_error(outcome: Outcome[Any]) -> Any:
    """Return the value, or raise the error, that this outcome is for its caller."""
    error = outcome.error
    if error is not None:
        _raise(error)
    return outcome.value


def _raise(error: errors.SafeWriteError) -> NoReturn:
    try:
        raise error from error.__cause__
    finally:
        del error  # no cycle between the traceback and this frame
