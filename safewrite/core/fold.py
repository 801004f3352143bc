"""How each fact changes the state.  One function a fact; nothing here decides what to do next.

Rules of the fold: an attempt's outcome only rises (unknown < not_applied < applied); the intent is applied if any
evidence says so, not applied if every attempt is, else unknown; what the declared promises do not allow raises an
alarm and edits nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from safewrite.core.events import (
    Alarmed,
    Answered,
    Asked,
    Blocked,
    Claimed,
    Delivered,
    Ended,
    Event,
    Fenced,
    GaveUp,
    Gone,
    Missed,
    Moment,
    OutcomeState,
    Promises,
    ReadEnded,
    Refused,
    Resolved,
    Verdict,
    Withheld,
)
from safewrite.core.replacing import replace
from safewrite.core.state import Alarm, AttemptState, Lease, ReadState, State

READERS = 8
"""Calls whose newest read is remembered: more of them reading one intent at once read more often than they need."""

_APPLIED, _NOT, _UNKNOWN = OutcomeState.APPLIED, OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN


class Impossible(ValueError):
    """A fact that cannot follow on this state: the rows are not those of one intent, or a shell is at fault."""


def fold(state: State, event: Event) -> State:
    """Return the state after `event`.  `Asked` leaves it as it is; every other fact moves the revision."""
    if isinstance(event.fact, Asked):
        return state
    state = replace(state, revision=state.revision + 1)
    return _FOLDS[type(event.fact)](state, event.fact, event)


def _claimed(s: State, f: Claimed, e: Event) -> State:
    if f.number != s.epoch + 1 or e.call is None:
        raise Impossible(f"a claim of attempt {f.number} cannot follow attempt {s.epoch}")
    if s.outcome is _APPLIED:
        raise Impossible("nothing leaves applied: a claim cannot follow it")
    lease = Lease(e.call.id, f.owner, e.lease_at or e.at, e.call.lease)
    attempt = AttemptState(
        f.number, f.attempt, e.call.id, f.owner, e.at, lease, f.deadline_at,
        e.call.precondition, e.call.same_payload,
    )  # fmt: skip
    return replace(
        s,
        attempts=(*s.attempts, attempt),
        outcome=_UNKNOWN,
        evidence="",
        first_claim=s.first_claim or e.at,
        lease=lease,
        reads=(),
    )


def _withheld(s: State, f: Withheld, e: Event) -> State:
    a = _attempt(s, f.number)
    if a.ended:
        raise Impossible(f"the body of attempt {f.number} ran: it cannot be withheld")
    a = replace(a, ended=True, began=False, again=True, **_conclusion(s, e.at, ended=True))
    return _learn(s, a, _NOT, "never_sent", f.reason, _promises(e))


def _ended(s: State, f: Ended, e: Event) -> State:
    a, found, p = _attempt(s, f.number), f.finding, _promises(e)
    if a.ended:
        raise Impossible(f"the body of attempt {f.number} has ended already")
    evidence = "late_response" if _is_late(s, a, e.at) else "response"
    if found.outcome is _NOT and (found.unsent or (found.again and found.status is None)):
        evidence = "transport" if found.proof else "never_sent"
    if p.key_retention is not None and not f.key_carried and evidence not in ("never_sent", "transport"):
        s = _alarm(s, "key_not_carried", f"attempt {f.number} ended without its key having been read")
    if found.outcome is _APPLIED and not f.goal and _past_stall(a, p, e):
        s = _alarm(s, "effect_after_bound", f"attempt {f.number} ran on past the declared longest stall")
    a = replace(
        a,
        ended=True,
        key_carried=f.key_carried,
        deadline_carried=f.deadline_carried,
        retry_after=found.retry_after,
        again=found.again,
        reason=found.reason if a.open else a.reason,
        **_conclusion(s, e.at, ended=True),
    )
    if found.status is not None and found.status >= 500 and p.replays_errors:
        s = replace(s, burnt=True)
    conditional = all(x.precondition for x in s.attempts)
    s = _learn(
        s, a, found.outcome, evidence, found.reason, p, goal=f.goal, kept=f.kept, object_id=f.object_id
    )
    return _fence(s, s.epoch, e.at) if found.precondition_failed and conditional else s


def _is_late(s: State, a: AttemptState, at: Moment) -> bool:
    """A reply is late after its attempt's deadline, after its caller gave up, and after a newer attempt began."""
    if a.gave_up or s.epoch > a.number:
        return True
    return a.deadline_at is not None and a.claimed_at.seconds_to(at, 0.0) > a.deadline_at - a.claimed_at.unix


def _past_stall(a: AttemptState, p: Promises, e: Event) -> bool:
    """Whether its body was still seen to run when, by what is declared, it had ended long since."""
    if p.max_stall is None or a.ended_at is not None:
        return False
    return a.lease.left(e.lease_at or e.at, p.clock_skew) + p.max_stall < 0.0


def _gave_up(s: State, f: GaveUp, e: Event) -> State:
    a = _attempt(s, f.number)
    a = replace(
        a,
        gave_up=True,
        reason=f.reason if a.open else a.reason,
        # What it has not read yet it may never read, and what it sends then is recognised by nothing.
        key_carried=f.key_carried,
        deadline_carried=f.deadline_carried,
        **_conclusion(s, e.at, ended=False),
    )
    return s.with_attempt(a)


def _gone(s: State, f: Gone, e: Event) -> State:
    for a in s.attempts:
        if a.owner == f.owner and a.ended_at is None:
            s = s.with_attempt(replace(a, gave_up=True, **_conclusion(s, e.at, ended=True)))
    return replace(s, lease=None) if s.lease is not None and s.lease.owner == f.owner else s


def _fenced(s: State, f: Fenced, e: Event) -> State:
    return _fence(s, f.number, e.at)


def _read_ended(s: State, f: ReadEnded, e: Event) -> State:
    call, p = e.call.id if e.call else "", _promises(e)
    last, others = s.read_of(call), [r for r in s.reads if r.call != call]
    read = ReadState(
        call, f.verdict, f.reason, f.began, f.began_revision, e.at, last.count + 1 if last else 1
    )
    s = replace(s, reads=(*others[1 - READERS :], read))
    proven = s.proves_absence(p, f.began, f.began_revision)
    match f.verdict:
        case Verdict.APPLIED:
            s = _read_applied(s, f)
        case Verdict.GOAL_MET if s.outcome is not _NOT:
            s = _apply(s, "goal_state", attributable=False, kept=f.kept)
        case Verdict.NOT_APPLIED if proven:
            s = _each_not(s, f.epoch, "reconciled", "proven_absent")
        case Verdict.RUNNING if (
            s.outcome is _UNKNOWN and s.settles_in(p, f.began, known=f.began_revision) <= 0.0
        ):
            s = _alarm(s, "running_past_bound", "the dependency still works on it after its declared bound")
            s = replace(s, overrun=True)
        case _:
            pass
    return _refold(s)


def _read_applied(s: State, f: ReadEnded) -> State:
    """A read names the intent, not the attempt: only where one alone can have done it is that attempt known."""
    if s.outcome is _NOT:
        kind = "against_person" if s.person else "effect_after_proof"
        s = _alarm(s, kind, "a read found the effect of an intent that was not applied")
    candidates = [a for a in s.attempts if a.outcome is not _NOT]
    if len(candidates) == 1 and candidates[0].open:
        a = replace(
            candidates[0], outcome=_APPLIED, evidence="reconciled", reason="found", object_id=f.object_id
        )
        s = s.with_attempt(a)
    return _apply(s, "reconciled", attributable=True, kept=f.kept)


def _delivered(s: State, f: Delivered, e: Event) -> State:
    a = _attempt(s, f.number)
    return _learn(
        s, a, _APPLIED, "delivered", "delivered", _promises(e), kept=f.kept, object_id=f.object_id
    )  # fmt: skip


def _resolved(s: State, f: Resolved, _: Event) -> State:
    s = replace(s, person=f.by)
    if f.applied:
        if s.attempts and s.outcome is _NOT:
            return _alarm(s, "against_person", f"{f.by} said applied; every attempt is known not to be")
        return _apply(s, "person", attributable=False, kept=False)
    if s.outcome is _APPLIED:
        return _alarm(s, "against_person", f"{f.by} said not applied; it is known to be")
    return _refold(_each_not(s, s.epoch, "person", "person"))


def _noted(s: State, _: Refused | Blocked | Answered | Alarmed | Missed, __: Event) -> State:
    return s


# What the folds share ----------------------------------------------------------------------------------------


def _attempt(s: State, number: int) -> AttemptState:
    if not 1 <= number <= s.epoch:
        raise Impossible(f"attempt {number} was never claimed")
    return s.attempts[number - 1]


def _promises(e: Event) -> Promises:
    return e.call.promises if e.call is not None else e.promises or Promises()


def _conclusion(s: State, at: Moment, *, ended: bool) -> dict[str, Any]:
    """Return what changes when a body ended (or its caller left), at the revision of this fact."""
    changes: dict[str, Any] = {"concluded": s.revision, "concluded_at": at}
    return changes | {"ended_at": at} if ended else changes


def _alarm(s: State, kind: str, detail: str) -> State:
    return replace(s, alarms=(*s.alarms, Alarm(kind, s.revision, detail)))


def _each_not(s: State, number: int, evidence: str, reason: str) -> State:
    """Every open attempt up to `number` is known not to be applied."""
    for a in s.attempts[:number]:
        if a.open:
            s = s.with_attempt(replace(a, outcome=_NOT, evidence=evidence, reason=reason))
    return s


def _fence(s: State, number: int, at: Moment) -> State:
    for a in s.attempts[:number]:
        if a.fenced_at is None:
            s = s.with_attempt(replace(a, fenced_at=at, fenced=s.revision))
    return s


def _learn(
    s: State,
    a: AttemptState,
    outcome: OutcomeState,
    evidence: str,
    reason: str,
    promises: Promises,
    *,
    goal: bool = False,
    kept: bool = False,
    object_id: str | None = None,
) -> State:
    """Take in what one reply says of attempt `a`, whose other fields are already up to date."""
    if outcome is _APPLIED and not goal:
        s = _second_effect(s, a, promises, object_id)
        if a.outcome is _NOT:
            kind = "against_person" if a.evidence == "person" else "effect_after_proof"
            s = _alarm(s, kind, f"attempt {a.number} was applied after it was known not to be")
        a = replace(a, outcome=_APPLIED, evidence=evidence, reason=reason, object_id=object_id or a.object_id)
        return _apply(s.with_attempt(a), evidence, attributable=True, kept=kept)
    if outcome is _APPLIED:
        return _apply(s.with_attempt(a), "goal_state", attributable=False, kept=kept)
    if outcome is _NOT and a.open:
        a = replace(a, outcome=_NOT, evidence=evidence, reason=reason)
    return _refold(s.with_attempt(a))


def _second_effect(s: State, a: AttemptState, promises: Promises, object_id: str | None) -> State:
    """Two direct successes are one effect only where the dependency knew the key of both, and made one object."""
    direct = ("response", "late_response", "delivered")
    for x in s.attempts:
        if x.number == a.number or x.outcome is not _APPLIED or x.evidence not in direct:
            continue
        one_key = promises.key_retention is not None and False not in (x.key_carried, a.key_carried)
        one_object = object_id is None or x.object_id in (None, object_id)
        if not (one_key and one_object):
            return _alarm(s, "two_effects", f"attempts {x.number} and {a.number} were both applied")
    return s


def _apply(s: State, evidence: str, *, attributable: bool, kept: bool) -> State:
    """Raise the intent to applied, or an unattributable applied to an attributable one; the first value stays."""
    changes: dict[str, Any] = {}
    if s.outcome is not _APPLIED:
        changes = {
            "outcome": _APPLIED,
            "evidence": evidence,
            "attributable": attributable,
            "applied_at": s.revision,
        }
    elif attributable and not s.attributable:
        changes = {"evidence": evidence, "attributable": True}
    if kept and s.value_at is None:
        changes["value_at"] = s.revision
    return replace(s, **changes)


def _refold(s: State) -> State:
    """The one fold: applied stays; not applied if every attempt is; else unknown."""
    absent, newest = all(a.outcome is _NOT for a in s.attempts), s.newest
    if s.outcome is _APPLIED:
        told = any(x.kind == "against_person" for x in s.alarms)
        if newest is None or not absent or s.evidence != "person" or told:
            return s
        return _alarm(s, "against_person", f"{s.person} said applied; every attempt is known not to be")
    if not absent:
        return s
    on_a_word = any(a.evidence == "person" for a in s.attempts) or (newest is None and s.person)
    return replace(s, outcome=_NOT, evidence="person" if on_a_word else newest.evidence if newest else "")


_FOLDS: dict[type, Callable[[State, Any, Event], State]] = {
    Claimed: _claimed,
    Withheld: _withheld,
    Ended: _ended,
    GaveUp: _gave_up,
    Gone: _gone,
    Fenced: _fenced,
    ReadEnded: _read_ended,
    Refused: _noted,
    Blocked: _noted,
    Answered: _noted,
    Delivered: _delivered,
    Resolved: _resolved,
    Alarmed: _noted,
    Missed: _noted,
}
