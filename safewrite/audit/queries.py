"""`Audit`: what `sw.audit` and the command line ask the ledger.  It only reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, case, func, select, true

from safewrite.audit import reading
from safewrite.audit.reading import ABOUT, Columns, Telling, damage
from safewrite.audit.records import IntentRecord, OpenRecord, RefusedRecord, RowRecord, RunRecord
from safewrite.core.canonical import canonical
from safewrite.core.events import OutcomeState, Promises
from safewrite.ledger.sql import Ledger
from safewrite.ledger.tables import audit, content, digest, intent
from safewrite.ledger.texts import restored, storable
from safewrite.shell.clock import clock

Condition = ColumnElement[bool]
_IS_READ: Condition = intent.c.key.startswith("read_", autoescape=True)
"""The key under which a read in vain is noted; under `hedge_…` a copy that another one outran."""
_IS_INTENT: Condition = ~(_IS_READ | intent.c.key.startswith("hedge_", autoescape=True))


class Audit:
    """Questions about what was done.  Every answer is a frozen record, or a tuple of them.

    Whatever was written into the ledger is seen: `namespace` narrows an answer to one, default all; `limit` to so
    many, default all.  Raises `LedgerUnavailable`, `SchemaOutdated` and `ConfigurationError` as the ledger does.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    # Runs and intents ----------------------------------------------------------------------------------------

    def runs(self, *, namespace: str | None = None, limit: int | None = None) -> tuple[RunRecord, ...]:
        """Return the runs in numbers, the one whose newest intent is newest first."""
        numbers = (
            select(
                intent.c.namespace,
                intent.c.run,
                func.min(intent.c.created_at).label("began_at"),
                func.max(intent.c.updated_at).label("last_at"),
                func.sum(case((_IS_INTENT, 1), else_=0)).label("intents"),
                func.sum(case((_IS_READ, 1), else_=0)).label("not_fetched"),
                *(_how_many(outcome) for outcome in OutcomeState),
                func.sum(intent.c.epoch).label("attempts"),
                func.sum(intent.c.alarms).label("alarms"),
            )
            .where(_given(intent.c.namespace, namespace))
            .group_by(intent.c.namespace, intent.c.run)
            .order_by(func.max(intent.c.first_row).desc())
            .limit(limit)
        )
        found = self._ledger.select(numbers)
        with damage():
            return tuple(map(_run, found))

    def run(self, run_id: str, *, namespace: str | None = None) -> tuple[IntentRecord, ...]:
        """Return all intents of a run in the order in which they were first recorded; none: no such run."""
        return self._records(_IS_INTENT & of_run(run_id) & _given(intent.c.namespace, namespace))

    def intent(self, reference: str) -> IntentRecord | None:
        """Return the intent of a key, an intent id, an attempt id or a trace; None: there is none.

        Of several intents that one call touched, this is the one whose rows of that trace began first: usually
        the call's own.  `find` returns them all.
        """
        found = self.find(reference)
        return found[0] if found else None

    def find(self, reference: str) -> tuple[IntentRecord, ...]:
        """Return the intents that a key, an intent id, an attempt id or a trace names.

        Only a trace can name several: those that the call wrote to, in that order.
        """
        if not reference:
            return ()
        for statement in _named(storable(reference)):
            ids = [str(row["id"]) for row in self._ledger.select(statement)]
            if ids:
                found = {record.id: record for record in self._records(intent.c.id.in_(ids))}
                with damage():
                    return tuple(found[one] for one in ids)
        return ()

    def rows(self, intent_id: str) -> tuple[RowRecord, ...]:
        """Return the audit rows of an intent, in order; none: no such intent."""
        found = self._records(intent.c.id == storable(intent_id))
        return found[0].rows if found else ()

    def by_target(
        self,
        target: object,
        *,
        tool: str | None = None,
        namespace: str | None = None,
        limit: int | None = None,
    ) -> tuple[IntentRecord, ...]:
        """Return the intents about a target, oldest first: `"sub_1"`, `("acme", 7)`, or its canonical text.

        A tool whose target is a tuple of names has a mapping here: `{"account": "acme", "year": 7}`.
        """
        texts = {canonical(target)} | ({target} if isinstance(target, str) else set())
        about = intent.c.target.in_([storable(text) for text in texts])
        which = about & _given(intent.c.tool, tool) & _given(intent.c.namespace, namespace)
        return self._records(which, limit)

    # What is open, and what was refused ----------------------------------------------------------------------

    def unknown(
        self, *, namespace: str | None = None, tool: str | None = None, limit: int | None = None
    ) -> tuple[OpenRecord, ...]:
        """Return the intents of which nobody knows what became of them, the oldest first."""
        which = intent.c.outcome == OutcomeState.UNKNOWN.value
        which = which & _given(intent.c.namespace, namespace) & _given(intent.c.tool, tool)
        found = self._tellings(which, limit, contents=False)
        with damage():
            return tuple(telling.open() for telling in found)

    def refused(
        self, *, run: str | None = None, namespace: str | None = None, limit: int | None = None
    ) -> tuple[RefusedRecord, ...]:
        """Return the calls that were refused, or held back by another intent, the newest first.

        A refusal by the ledger itself is not among them: what cannot be written leaves no row.
        """
        return self._calls(("refused", "blocked"), run, namespace, limit)

    def not_fetched(
        self, *, run: str | None = None, namespace: str | None = None, limit: int | None = None
    ) -> tuple[RefusedRecord, ...]:
        """Return the reads that were refused, failed or were cut, the newest first."""
        return self._calls(("missed",), run, namespace, limit)

    def _calls(
        self, events: Sequence[str], run: str | None, namespace: str | None, limit: int | None
    ) -> tuple[RefusedRecord, ...]:
        calls = (
            select(audit, *(intent.c[name].label(f"intent_{name}") for name in ABOUT if name != "id"))
            .join(intent, intent.c.id == audit.c.intent_id)
            .where(audit.c.event.in_(events), audit.c.reason != "hedge_lost")
            .where(of_run(run), _given(intent.c.namespace, namespace))
            .order_by(audit.c.id.desc())
            .limit(limit)
        )
        found = self._ledger.select(calls)
        with damage():
            return tuple(map(reading.refused, found))

    def promises(self, intent_id: str) -> Promises:
        """Return the promises in force at an intent's newest row that tells any; none: nothing is promised."""
        found = self._tellings(intent.c.id == storable(intent_id), None, contents=False)
        return found[0].story.promises if found else Promises()

    # Reading -------------------------------------------------------------------------------------------------

    def _records(self, which: Condition, limit: int | None = None) -> tuple[IntentRecord, ...]:
        found = self._tellings(which, limit, contents=True)
        with damage():
            return tuple(telling.record() for telling in found)

    def _tellings(self, which: Condition, limit: int | None, *, contents: bool) -> list[Telling]:
        """Return the chosen intents with their rows: three statements, however many intents there are."""
        chosen = select(intent.c.id).where(which).order_by(intent.c.first_row).limit(limit)
        intents = self._ledger.select(
            select(intent).where(intent.c.id.in_(chosen)).order_by(intent.c.first_row)
        )
        rows = (
            select(audit).where(audit.c.intent_id.in_(chosen)).order_by(audit.c.intent_id, audit.c.sequence)
        )
        texts = select(content).where(content.c.intent_id.in_(chosen))
        rows_of = _by_intent(self._ledger.select(rows))
        texts_of = _by_intent(self._ledger.select(texts) if contents else [])
        now = clock().now()
        with damage():
            return [Telling(one, rows_of[one["id"]], texts_of[one["id"]], now) for one in intents]


def _given(column: Any, wanted: str | None) -> Condition:
    """Return the condition that a column holds what was asked for; None: whatever it holds."""
    if wanted is None:
        return true()
    condition: Condition = column == storable(wanted)
    return condition


def of_run(wanted: str | None) -> Condition:
    """Return the condition that an intent is of a run, as its index is made; None: of any."""
    if wanted is None:
        return true()
    return (digest(intent.c.run) == digest(storable(wanted))) & (intent.c.run == storable(wanted))


def _how_many(outcome: OutcomeState) -> ColumnElement[Any]:
    return func.sum(case((_IS_INTENT & (intent.c.outcome == outcome.value), 1), else_=0)).label(outcome.value)


def _named(text: str) -> tuple[Select[Any], ...]:
    """Return the questions for ids of intents by a name for them, the likeliest first."""
    return (
        select(intent.c.id).where((intent.c.key == text) | (intent.c.id == text)),
        select(audit.c.intent_id.label("id")).where(audit.c.attempt_id == text, audit.c.event == "claimed"),
        select(audit.c.intent_id.label("id"))
        .where(audit.c.trace == text, audit.c.trace != "")
        .group_by(audit.c.intent_id)
        .order_by(func.min(audit.c.id)),
    )


def _by_intent(rows: Sequence[Columns]) -> Mapping[str, list[Columns]]:
    found: dict[str, list[Columns]] = defaultdict(list)
    for row in rows:
        found[row["intent_id"]].append(row)
    return found


def _run(row: Columns) -> RunRecord:
    return RunRecord(
        namespace=restored(row["namespace"]),
        run=restored(row["run"]),
        began_at=reading.instant(row["began_at"]),
        last_at=reading.instant(row["last_at"]),
        intents=int(row["intents"]),
        not_fetched=int(row["not_fetched"]),
        applied=int(row["applied"]),
        not_applied=int(row["not_applied"]),
        unknown=int(row["unknown"]),
        attempts=int(row["attempts"]),
        alarms=int(row["alarms"]),
    )
