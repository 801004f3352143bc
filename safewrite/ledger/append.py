"""Adding a fact to an intent: its audit row, what it makes of the intent's row, and its contents, as one unit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from safewrite.core.commands import Command
from safewrite.core.events import Alarmed, Event, ReadEnded
from safewrite.core.fold import Impossible
from safewrite.core.machine import MACHINE_VERSION, step
from safewrite.core.replacing import replace
from safewrite.core.state import Alarm, State
from safewrite.ledger import lookup
from safewrite.ledger.chain import GENESIS, commitment, row_hash
from safewrite.ledger.columns import audit_columns, identity_columns, intent_columns
from safewrite.ledger.model import VALUE, Contents, Identity, Intent, Meta
from safewrite.ledger.rows import Json, command_json, dumps, event_json, plain
from safewrite.ledger.texts import new_id, storable
from safewrite.ledger.units import Proof, Trouble, Unit


@dataclass(frozen=True, slots=True)
class Appended:
    """What came of adding a fact."""

    intent: Intent
    command: Command
    alarms: tuple[Alarm, ...] = ()
    """Those that this fact raised: people are told of them after the commit."""
    proof: Proof | None = None
    """The newest row; `None`: nothing had to be written."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A row before it knows its number in the table."""

    event: Event
    command: Command
    state: State
    """The state after it."""


def unwritten(identity: Identity, fingerprint: dict[str, str], salt: bytes, now: float) -> Intent:
    """Return an intent of which nothing is on record yet: its first row creates it."""
    return Intent(new_id(now), identity, State(), fingerprint, salt, GENESIS, now)


def append(
    unit: Unit,
    intent: Intent,
    event: Event,
    meta: Meta,
    contents: Contents,
    now: float,
    *,
    alarms: tuple[Alarmed, ...] = (),
) -> Appended:
    """Add one fact, conditional on the intent's revision; on a miss read the intent anew, fold and try again.

    `alarms` are raised beside those that the machine raises.  `now` is the wall time that the row is stamped with.
    """
    fresh = intent.state.revision == 0
    while True:
        if not intent.whole:
            intent, fresh = _anew(unit, intent), True
        try:
            state, command = step(intent.state, event)
        except Impossible:
            if fresh:
                raise
            known = _recorded(unit, intent, event)
            if known is not None:
                return known
            intent, fresh = _anew(unit, intent), True
            continue
        drafts = _drafts(Draft(event, command, state), alarms)
        written = _write(unit, intent, drafts, meta, contents, now)
        if written is not None:
            raised = tuple(
                Alarm(d.event.fact.kind, d.state.revision, d.event.fact.detail)
                for d in drafts
                if isinstance(d.event.fact, Alarmed)
            )
            return Appended(written[0], command, raised, written[1])
        known = _recorded(unit, intent, event)
        if known is not None:
            return known
        intent, fresh = _anew(unit, intent), True


def _drafts(first: Draft, also: tuple[Alarmed, ...]) -> list[Draft]:
    """Return the rows to write: the fact's, and one for every alarm that it raised."""
    event, state = first.event, first.state
    raised = [Alarmed(a.kind, a.detail) for a in state.alarms if a.revision == state.revision]
    promises = event.call.promises if event.call is not None else event.promises
    drafts = [first]
    for alarm in (*raised, *also):
        following = Event(event.at, alarm, lease_at=event.lease_at, promises=promises)
        state, command = step(state, following)
        drafts.append(Draft(following, command, state))
    return drafts


def _write(
    unit: Unit, intent: Intent, drafts: list[Draft], meta: Meta, contents: Contents, now: float
) -> tuple[Intent, Proof] | None:
    """Write the rows and what follows from them; return None if the intent has moved on meanwhile."""
    salted = {name: (os.urandom(16).hex(), text) for name, text in contents.items()}
    commitments = {name: commitment(salt, text) for name, (salt, text) in salted.items()}
    head, rows = intent.head, []
    for place, draft in enumerate(drafts):
        body = _body(intent, draft, meta, now, commitments if place == 0 else {}, first=place == 0)
        text = dumps(body)
        digest = row_hash(head, text)
        row = audit_columns(body, unit.stamp)
        row |= {"body": text, "prev_hash": head, "hash": digest}
        rows.append(row)
        head = digest
    last = drafts[-1]
    value = contents.get(VALUE) if last.state.value_at == drafts[0].state.revision else intent.value
    written = replace(intent, state=last.state, head=head, value=value)
    columns = _columns(intent, written, last.event, meta, len(drafts) - 1, now, unit)
    about = {"intent_id": intent.id, "sequence": drafts[0].state.revision}
    kept = [
        {**about, "name": storable(name), "salt": salt, "text": storable(text)}
        for name, (salt, text) in salted.items()
    ]
    if not unit.write(columns, rows, kept, new=intent.state.revision == 0):
        return None
    return written, Proof(intent.id, last.state.revision, head)


def _columns(
    before: Intent, after: Intent, event: Event, meta: Meta, alarmed: int, now: float, unit: Unit
) -> dict[str, Any]:
    """Return what the intent's row is to say: all of it where it is new, else what moves on and from where."""
    columns = intent_columns(after.state, event, unit.stamp)
    columns |= {"head": after.head, "updated_at": unit.stamp(now)}
    if before.state.revision == 0:
        columns |= identity_columns(after.identity, after.fingerprint, meta.dependency)
        columns |= {
            "id": after.id,
            "salt": after.salt.hex(),
            "alarms": alarmed,
            "created_at": columns["updated_at"],
        }
    else:
        columns |= {
            "intent": before.id,
            "seen": before.state.revision,
            "answered": after.state.answered,
            "alarmed": alarmed,
        }
    return columns


def _body(
    intent: Intent, draft: Draft, meta: Meta, now: float, commitments: dict[str, str], *, first: bool
) -> Json:
    """Return everything that a row says, as it is hashed."""
    state = draft.state
    body: Json = {
        "v": 1,
        "intent": intent.id,
        "sequence": state.revision,
        "run": intent.identity.run,
        **event_json(draft.event),
        **command_json(draft.command),
        "outcome": str(state.outcome),
        "machine": MACHINE_VERSION,
        "recorded_at": now,
    }
    number = getattr(draft.event.fact, "number", None)
    if number is not None:
        body["attempt_id"] = state.attempts[number - 1].id
    who = _who(meta, evidence=first)
    if who:
        body["who"] = who
    if commitments:
        body["contents"] = commitments
    if state.revision == 1:
        body["identity"] = _identity_json(intent)
    return body


def _identity_json(intent: Intent) -> Json:
    who = intent.identity
    return {
        "namespace": who.namespace,
        "run": who.run,
        "turn": who.turn,
        "tool": who.tool,
        "target": who.target,
        "occurrence": who.occurrence,
        "key": who.key,
        # Without its salt, which can be deleted: nobody can guess then what the digests stand for.
        "fingerprint": dict(intent.fingerprint),
    }


_WHO = ("worker", "agent", "person", "tool_call_id", "trace", "dependency")


def _who(meta: Meta, *, evidence: bool) -> Json:
    who: Json = {name: value for name in _WHO if (value := getattr(meta, name))}
    if meta.granted_ms is not None:
        who["granted_ms"] = min(int(meta.granted_ms), 2**53)
    if meta.evidence and evidence:
        who["evidence"] = plain(meta.evidence)
    return who


# Where the intent has moved on -----------------------------------------------------------------------------------


def _anew(unit: Unit, intent: Intent) -> Intent:
    found = lookup.by_id(unit, intent.id)
    if found is None:
        raise Trouble("ledger_lost")
    return found


def _recorded(unit: Unit, intent: Intent, event: Event) -> Appended | None:
    """Return what came of this very event if it stands already: its first recording ended without an answer."""
    for known, _, command in lookup.replay(unit, intent.id):
        if _same(known, event):
            return Appended(_anew(unit, intent), command)
    return None


def _same(known: Event, event: Event) -> bool:
    """Whether both are one event; what a read found is judged by the ledger, so that there the fact may differ."""
    read = isinstance(known.fact, ReadEnded) and isinstance(event.fact, ReadEnded)
    return known.at == event.at and known.call == event.call and (read or known.fact == event.fact)
