"""Whether everything that the database says of one intent is what its rows say, and the rows what was written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from safewrite.core.fold import Impossible
from safewrite.core.machine import MACHINE_VERSION, refold
from safewrite.core.state import State
from safewrite.errors import SchemaOutdated
from safewrite.ledger.chain import Flaw, verify_chain, verify_contents
from safewrite.ledger.columns import identity_columns, intent_columns
from safewrite.ledger.lookup import IntentRow
from safewrite.ledger.model import Identity
from safewrite.ledger.rows import Unreadable, event_of, parse
from safewrite.ledger.tables import audit
from safewrite.ledger.texts import restored
from safewrite.ledger.units import Unit

_NAMES = [column.name for column in audit.c]


def verify(unit: Unit, row: IntentRow) -> tuple[Flaw, ...]:
    """Return what does not fit in an intent: its chain, its contents, and its own row; nothing: all is well."""
    rows = audit_rows(unit, row.id)
    flaws = verify_chain(rows, intent_id=row.id, head=row.head, revision=row.revision, stamp=unit.stamp)
    if not flaws:
        kept = unit.rows(unit.sql.contents, {"intent": row.id})
        flaws = (*_places(row, rows), *_contents(kept, rows), *_projection(unit, row, rows))
    return flaws


def audit_rows(unit: Unit, intent_id: str) -> list[dict[str, Any]]:
    """Return the audit rows of an intent with all their columns, in order."""
    found = unit.rows(unit.sql.rows, {"intent": intent_id})
    return [dict(zip(_NAMES, values, strict=True)) for values in found]


def _places(row: IntentRow, rows: Sequence[Mapping[str, Any]]) -> Iterable[Flaw]:
    """Yield the rows whose number, which no hash covers, cannot be the one they were given."""
    numbers = [found["id"] for found in rows]
    if numbers != sorted(numbers) or not numbers or numbers[0] != row.first_row:
        yield Flaw(0, "column", "the rows are not numbered in their order")
    if row.answered_row is not None and row.answered_row not in numbers:
        yield Flaw(0, "projection", "`answered_row` is no row of this intent")


def _contents(found: Iterable[Sequence[Any]], rows: Sequence[Mapping[str, Any]]) -> Iterable[Flaw]:
    kept: dict[int, dict[str, tuple[str, str]]] = {}
    for sequence, *texts in found:
        if not all(isinstance(text, str) for text in texts):  # SQLite takes anything in any column
            yield Flaw(sequence, "content", "a content is no text")
            continue
        name, salt, text = texts
        kept.setdefault(sequence, {})[restored(name)] = (salt, restored(text))
    promised = {row["sequence"]: json.loads(row["contents"] or "{}") for row in rows}
    for sequence, contents in kept.items():
        yield from verify_contents(promised.get(sequence, {}), contents, sequence)


def _projection(unit: Unit, row: IntentRow, rows: Sequence[Mapping[str, Any]]) -> Iterable[Flaw]:
    """Yield the columns of the intent's row that its rows do not bear out."""
    state, told, alarmed = State(), False, 0
    try:
        bodies = [parse(found["body"]) for found in rows]
        for body in bodies:
            event = event_of(body)
            state, _ = refold(state, event)
            alarmed += body["event"] == "alarmed"
            told = told or state.answered
        expected = {
            **intent_columns(state, event_of(bodies[-1]), unit.stamp),
            **_identity(bodies[0]),
            "head": rows[-1]["hash"],
            "alarms": alarmed,
            "created_at": rows[0]["recorded_at"],
            "updated_at": rows[-1]["recorded_at"],
        }
    except (Unreadable, SchemaOutdated, Impossible, LookupError, TypeError) as error:
        yield Flaw(0, "unreadable", f"the rows make no intent: {error}")
        return
    if any(body["machine"] != MACHINE_VERSION for body in bodies):
        return  # another version may have drawn it differently; the rows are what counts
    for name, value in expected.items():
        if getattr(row, name) != value:
            yield Flaw(0, "projection", f"`{name}` is not what the rows say")
    if told != (row.answered_row is not None):
        yield Flaw(0, "projection", "`answered_row` is not what the rows say")


def _identity(body: Mapping[str, Any]) -> dict[str, Any]:
    names = body["identity"]
    identity = Identity(**{name: names[name] for name in Identity.__dataclass_fields__})
    return identity_columns(identity, names["fingerprint"], body.get("who", {}).get("dependency", ""))
