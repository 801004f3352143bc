"""What the ledger holds of the run, read as anybody can read it: with SQL, from the file, by its public columns."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from safewrite.core.story import Line, Row, Story, tell
from safewrite.demo.agent import LEDGER, Told
from safewrite.ledger.rows import command_of, event_of, parse

_ROWS = """
    SELECT i.key, i.tool, i.target, i.turn, i.outcome, i.may_still_land, i.alarms,
           a.id, a.sequence, a.event, a.attempt, a.attempt_id, a.worker, a.trace, a.command, a.rule, a.body
    FROM safewrite_audit AS a JOIN safewrite_intent AS i ON i.id = a.intent_id
    WHERE i.run = ?
    ORDER BY i.first_row, a.sequence
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the audit table, and what it tells."""

    id: int
    event: str
    attempt: int | None
    attempt_id: str | None
    worker: str
    trace: str
    command: str
    line: Line


@dataclass(frozen=True, slots=True)
class Recorded:
    """One intent as it stands in the ledger."""

    key: str
    tool: str
    target: str
    turn: str
    outcome: str
    may_still_land: bool
    alarms: int
    entries: tuple[Entry, ...]
    story: Story

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        rows = [
            {
                "sequence": e.line.sequence,
                "event": e.event,
                "attempt": e.attempt,
                "worker": e.worker,
                "trace": e.trace,
                "happened": e.line.happened,
                "decided": e.line.decided,
                "rule": e.line.rule,
                "because": e.line.because,
                "outcome": e.line.outcome.value,
            }
            for e in self.entries
        ]
        about = {"key": self.key, "tool": self.tool, "target": self.target, "turn": self.turn}
        return {**about, "outcome": self.outcome, "summary": self.story.summary, "rows": rows}


def read(folder: Path, run: str) -> list[Recorded]:
    """Return the intents of a run, in the order in which they were first claimed."""
    with closing(sqlite3.connect(f"{(folder / LEDGER).as_uri()}?mode=ro", uri=True)) as ledger:
        ledger.row_factory = sqlite3.Row
        rows = ledger.execute(_ROWS, (run,)).fetchall()
    return [_recorded(list(group)) for _, group in groupby(rows, key=lambda row: row["key"])]


def _recorded(rows: list[sqlite3.Row]) -> Recorded:
    first = rows[0]
    bodies = [parse(row["body"]) for row in rows]
    story = tell(Row(r["sequence"], event_of(b), command_of(b)) for r, b in zip(rows, bodies, strict=True))
    entries = tuple(
        Entry(r["id"], r["event"], r["attempt"], r["attempt_id"], r["worker"], r["trace"], r["command"], line)
        for r, line in zip(rows, story.lines, strict=True)
    )
    return Recorded(
        first["key"],
        first["tool"],
        str(json.loads(first["target"])),
        first["turn"],
        first["outcome"],
        bool(first["may_still_land"]),
        first["alarms"],
        entries,
        story,
    )


def why(told: Told, records: Sequence[Recorded]) -> Line | None:
    """Return the row that led to an answer: the newest of its call, or for a replay the newest of its intent."""
    entries = [entry for record in records for entry in record.entries]
    of_call = [entry for entry in entries if entry.trace == told.trace and entry.command == "answer"]
    of_intent = [entry for record in records if record.key == told.key for entry in record.entries]
    decisive = of_call or of_intent
    return max(decisive, key=lambda entry: entry.id).line if decisive else None


def attempt_ids(records: Iterable[Recorded]) -> Iterator[str]:
    """Yield the id of every attempt that was claimed."""
    for record in records:
        for entry in record.entries:
            if entry.event == "claimed" and entry.attempt_id is not None:
                yield entry.attempt_id
