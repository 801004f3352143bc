"""What the ledger holds of the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from safewrite.audit.queries import Audit
from safewrite.audit.records import IntentRecord, RowRecord, target_value
from safewrite.demo.agent import LEDGER, Told
from safewrite.ledger.sql import Ledger


def read(folder: Path, run: str) -> tuple[IntentRecord, ...]:
    """Return the intents of a run, in the order in which they were first recorded."""
    with closing(Ledger(f"sqlite:///{folder / LEDGER}")) as ledger:
        return Audit(ledger).run(run)


def about(records: Iterable[IntentRecord], target: str) -> list[IntentRecord]:
    """Return those that are about a target."""
    return [record for record in records if target_value(record.target) == target]


def why(told: Told, records: Sequence[IntentRecord]) -> RowRecord | None:
    """Return the row that led to an answer: the newest of its call, or for a replay the newest of its intent."""
    rows = [row for record in records for row in record.rows]
    of_call = [row for row in rows if row.trace == told.trace and row.command == "answer"]
    of_intent = [row for record in records if record.key == told.key for row in record.rows]
    return max(of_call or of_intent, key=lambda row: row.id, default=None)


def attempt_ids(records: Iterable[IntentRecord]) -> frozenset[str]:
    """Return the id of every attempt that was claimed."""
    return frozenset(attempt.id for record in records for attempt in record.attempts)
