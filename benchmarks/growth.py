"""Whether a write takes longer on a ledger that holds many finished intents."""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

from benchmarks.guarded import Guarded
from benchmarks.measure import Case
from safewrite.core.intent import intent_key
from safewrite.ledger.chain import GENESIS, commitment, row_hash
from safewrite.ledger.model import Identity
from safewrite.ledger.texts import new_id

BATCH = 5_000
Row = dict[str, Any]
Table = list[Row]


def fill(path: Path, intents: int, told: Callable[[str], None]) -> None:
    """Make a ledger of so many finished intents, with the rows that the ledger itself would have written.

    One real write is copied with other ids, keys, targets and salts, and its chain is computed anew: the library's
    own check of a ledger finds nothing wrong with the copies.
    """
    guarded = Guarded(f"sqlite:///{path}")
    guarded.writes(1)
    guarded.sw.close()
    raw = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = OFF", "cache_size = -1000000"):
        raw.execute(f"PRAGMA {pragma}")
    copies = _copies(raw)
    for at in range(1, intents, BATCH):
        told(f"growth: {at} of {intents} finished intents")
        made = list(itertools.islice(copies, min(BATCH, intents - at)))
        raw.execute("BEGIN")
        for place, table in enumerate(("intent", "audit", "content")):
            rows = [row for copy in made for row in copy[place]]
            marks = ", ".join("?" * len(rows[0]))
            insert = f"INSERT INTO safewrite_{table} VALUES ({marks})"  # noqa: S608
            raw.executemany(insert, [tuple(row.values()) for row in rows])
        raw.execute("COMMIT")
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    raw.close()


def _copies(raw: sqlite3.Connection) -> Iterator[tuple[Table, Table, Table]]:
    """Yield copies of the one intent on record: five in each run."""

    def rows(table: str, order: str) -> Table:
        cursor = raw.execute(f"SELECT * FROM safewrite_{table} ORDER BY {order}")  # noqa: S608
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    (intent,), audit, kept = rows("intent", "id"), rows("audit", "id"), rows("content", "sequence, name")
    who = Identity(*(intent[name] for name in Identity.__slots__))
    for number in itertools.count(1):
        run, target = f"run-copied-{number // 5}", who.target.replace("sub_0", f"sub_{number}")
        key = intent_key(namespace=who.namespace, run=run, turn=who.turn, tool=who.tool, target=target)
        other = replace(who, run=run, target=target, key=key)
        changed = [(who.run, run), (who.key, key), (who.wish, other.wish), ("sub_0", f"sub_{number}")]
        random = (intent["salt"], audit[0]["attempt_id"], audit[0]["trace"])
        changed += [(old, os.urandom(len(old) // 2).hex()) for old in random]
        yield _copy(intent, audit, kept, [*changed, (intent["id"], new_id(1.7e9 + number / 1000))], number)


def _copy(
    intent: Row, audit: Table, kept: Table, changed: list[tuple[str, str]], number: int
) -> tuple[Table, Table, Table]:
    def text(value: str) -> str:
        return reduce(lambda found, pair: found.replace(*pair), changed, value)

    def other(row: Row) -> Row:
        return {name: text(value) if isinstance(value, str) else value for name, value in row.items()}

    contents = [{**other(row), "salt": os.urandom(16).hex()} for row in kept]
    for before, row in zip(kept, contents, strict=True):
        changed.append((commitment(before["salt"], before["text"]), commitment(row["salt"], row["text"])))
    head, rows = GENESIS, []
    for row in map(other, audit):
        rows.append({**row, "id": row["id"] + number * len(audit), "prev_hash": head})
        head = rows[-1]["hash"] = row_hash(head, row["body"])
    moved = {name: intent[name] + number * len(audit) for name in ("first_row", "answered_row")}
    return [{**other(intent), **moved, "head": head}], rows, contents


def cases(place: Path, sizes: list[int], count: int, told: Callable[[str], None]) -> list[Case]:
    """Return a case for each size of ledger, the empty one as floor; the run that writes is none on record."""
    made: list[Case] = []
    for size in (0, *sizes):
        path = place / f"growth-{size}.db"
        if size:
            fill(path, size, told)
        name = f"{size:,} finished intents".replace(",", " ") if size else "empty"
        writes = Guarded(f"sqlite:///{path}", run="run-new").writes
        made.append(Case(name, writes, count, "empty" if size else "", 1.15 if size else None))
    return made
