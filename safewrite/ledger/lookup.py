"""From rows to intents: by the projection where that is enough, else by folding the intent's rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from safewrite.core.commands import Command
from safewrite.core.events import Event, Moment, OutcomeState
from safewrite.core.fold import Impossible
from safewrite.core.machine import MACHINE_VERSION, refold
from safewrite.core.state import AttemptState, Lease, State
from safewrite.ledger.codec import encode_arguments
from safewrite.ledger.model import ARGUMENTS, Identity, Intent
from safewrite.ledger.rows import Unreadable, decode_event
from safewrite.ledger.texts import restored, storable, unix
from safewrite.ledger.units import SENSELESS, Trouble, Unit

P = ParamSpec("P")
T = TypeVar("T")


class IntentRow(NamedTuple):
    """A row of `safewrite_intent`, in the order of its columns."""

    id: str
    namespace: str
    run: str
    turn: str
    tool: str
    target: str
    occurrence: str
    key: str
    wish: str
    salt: str
    fingerprint: str
    dependency: str
    outcome: str
    evidence: str
    attributable: bool
    may_still_land: bool
    epoch: int
    revision: int
    attempts: str
    applied_sequence: int | None
    value_sequence: int | None
    lease_call: str | None
    lease_owner: str | None
    lease_expires_at: Any
    first_claim_at: Any
    person: str
    alarms: int
    first_row: int
    answered_row: int | None
    head: str
    machine: int
    created_at: Any
    updated_at: Any


_WIDTH = len(IntentRow._fields)


def _sound(look: Callable[P, T]) -> Callable[P, T]:
    """Tell what no safewrite wrote as a ledger that is damaged: somebody altered a row."""

    @wraps(look)
    def looked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return look(*args, **kwargs)
        except SENSELESS as error:
            raise Trouble("ledger_corrupt") from error

    return looked


@_sound
def known(unit: Unit, identity: Identity, call: str) -> tuple[Intent | None, Moment | None]:
    """Return an intent as one call asks for it, and when that was read.

    It is folded from its rows only if more than a replay can follow, or the call made attempts of it.
    """
    found = unit.row(unit.sql.by_key, {"key": storable(identity.key)})
    if found is None:
        return None, None
    row, value = IntentRow._make(found[:_WIDTH]), _text(found[_WIDTH])
    whole = not _replayable(row) or call in row.attempts
    state = folded(unit, row) if whole else _projected(row)
    return _intent(row, identity, state, value, whole=whole), unit.moment(found[_WIDTH + 1])


def by_id(unit: Unit, intent_id: str) -> Intent | None:
    """Return an intent, folded from its rows."""
    found = unit.row(unit.sql.by_id, {"id": intent_id})
    return None if found is None else _of(unit, found)


def search(unit: Unit, text: str) -> Intent | None:
    """Return the intent with this key, id, attempt id or trace (of several with one trace the newest)."""
    found = unit.row(unit.sql.by_key, {"key": text}) or unit.row(unit.sql.by_id, {"id": text})
    if found is not None:
        return _of(unit, found)
    named = unit.row(unit.sql.attempt, {"attempt_id": text}) or unit.row(unit.sql.trace, {"trace": text})
    return None if named is None else by_id(unit, named[0])


def attempt(unit: Unit, attempt_id: str) -> tuple[Intent, int] | None:
    """Return the intent of an attempt, and the attempt's number."""
    found = unit.row(unit.sql.attempt, {"attempt_id": attempt_id})
    intent = None if found is None else by_id(unit, found[0])
    return None if found is None or intent is None else (intent, found[1])


def moved_on(unit: Unit, intent: Intent) -> tuple[bool, Moment | None]:
    """Return whether an intent has moved on since it was read, and the instant by which its lease is compared."""
    found = unit.row(unit.sql.revision, {"id": intent.id})
    return (False, None) if found is None else (found[0] != intent.state.revision, unit.moment(found[1]))


@_sound
def content(unit: Unit, intent_id: str, sequence: int, name: str) -> str | None:
    """Return a content of the row `sequence`, or None where none was kept, or it was redacted."""
    found = unit.row(unit.sql.content, {"intent": intent_id, "sequence": sequence, "name": storable(name)})
    return None if found is None else restored(found[1])


def arguments(unit: Unit, intent_id: str) -> str:
    """Return the encoded arguments that came with the first row; where they were deleted, all are left out."""
    kept = content(unit, intent_id, 1, ARGUMENTS)
    if kept is not None:
        return kept
    intent = by_id(unit, intent_id)
    names = tuple(intent.fingerprint) if intent is not None else ()
    return encode_arguments(dict.fromkeys(names), {}, redact=names)


@_sound
def of_row(unit: Unit, row: IntentRow) -> Intent:
    """Return the intent of a row, folded from its audit rows."""
    return _intent(row, _identity(row), folded(unit, row), None, whole=True)


def fingerprint_of(row: IntentRow) -> dict[str, str]:
    """Return the recorded fingerprint."""
    known: dict[str, str] = json.loads(row.fingerprint)
    return known


def open_ones(
    unit: Unit, *, tool: str | None, namespace: str | None, limit: int, after: str
) -> list[IntentRow]:
    """Return the rows of the intents that are unknown, the oldest first."""
    wanted = {"tool": tool, "namespace": namespace, "limit": limit, "after": after}
    return [IntentRow._make(found) for found in unit.rows(unit.sql.unknown, wanted)]


@_sound
def _of(unit: Unit, found: Sequence[Any]) -> Intent:
    row = IntentRow._make(found[:_WIDTH])
    return _intent(row, _identity(row), folded(unit, row), _text(found[_WIDTH]), whole=True)


def _text(value: str | None) -> str | None:
    return None if value is None else restored(value)


def _identity(row: IntentRow) -> Identity:
    return Identity(
        restored(row.namespace),
        restored(row.run),
        restored(row.turn),
        restored(row.tool),
        restored(row.target),
        restored(row.occurrence),
        restored(row.key),
    )


def _intent(row: IntentRow, identity: Identity, state: State, value: str | None, *, whole: bool) -> Intent:
    return Intent(
        row.id,
        identity,
        state,
        fingerprint_of(row),
        bytes.fromhex(row.salt),
        row.head,
        unix(row.created_at),
        value,
        whole,
    )


def folded(unit: Unit, row: IntentRow) -> State:
    """Return the fold of the rows that the intent's row knows of: later ones are another reading's."""
    state = State()
    for _, known, _ in replay(unit, row.id):
        if known.revision > row.revision:
            break
        state = known
    if state.revision != row.revision:
        raise Trouble("ledger_corrupt")
    return state


def replay(unit: Unit, intent_id: str) -> Iterator[tuple[Event, State, Command]]:
    """Yield an intent's events in order, each with the state after it and the command that it led to."""
    state = State()
    for _, body in unit.rows(unit.sql.bodies, {"intent": intent_id}):
        try:
            event = decode_event(body)
            state, command = refold(state, event)
        except (Unreadable, Impossible) as error:
            raise Trouble("ledger_corrupt") from error
        yield event, state, command


def _replayable(row: IntentRow) -> bool:
    """Whether nothing but a replay can follow: applied, proven to be this intent's, and told to a caller."""
    return (
        row.answered_row is not None
        and bool(row.attributable)
        and row.outcome == OutcomeState.APPLIED
        and row.machine == MACHINE_VERSION
    )


def _projected(row: IntentRow) -> State:
    """Return as much of the state as a replay asks for; of its attempts only how many there were."""
    return State(
        revision=row.revision,
        attempts=(_PAST,) * row.epoch,
        outcome=OutcomeState(row.outcome),
        evidence=row.evidence,
        attributable=True,
        applied_at=row.applied_sequence,
        value_at=row.value_sequence,
        answered=True,
    )


_NEVER = Moment(0.0, 0.0, "")
_PAST = AttemptState(
    0, "", "", "", _NEVER, Lease("", "", _NEVER, 0.0), None, False, True, outcome=OutcomeState.APPLIED
)  # fmt: skip
