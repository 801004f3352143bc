"""Whether a write takes longer on a ledger that holds many finished intents."""

from __future__ import annotations

import itertools
import json
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
Copy = tuple[Table, Table, Table]


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


def _copies(raw: sqlite3.Connection) -> Iterator[Copy]:
    """Yield copies of the one intent on record: five in each run."""

    def rows(table: str, order: str) -> Table:
        cursor = raw.execute(f"SELECT * FROM safewrite_{table} ORDER BY {order}")  # noqa: S608
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    (intent,), audit, kept = rows("intent", "id"), rows("audit", "id"), rows("content", "sequence, name")
    who = Identity(*(intent[name] for name in Identity.__slots__))
    claimed = audit[0]["attempt_id"], audit[0]["trace"]
    template = json.dumps((intent, audit, kept))
    kept_before = [commitment(row["salt"], row["text"]) for row in kept]
    for number in itertools.count(1):
        run, target = f"run-copied-{number // 5}", who.target.replace("sub_0", f"sub_{number}")
        key = intent_key(namespace=who.namespace, run=run, turn=who.turn, tool=who.tool, target=target)
        other = replace(who, run=run, target=target, key=key)
        changed = [(who.run, run), (who.key, key), (who.wish, other.wish), ("sub_0", f"sub_{number}")]
        changed += [(old, os.urandom(len(old) // 2).hex()) for old in (intent["salt"], *claimed)]
        changed += [(intent["id"], new_id(1.7e9 + number / 1000))]
        copied = json.loads(reduce(lambda text, pair: text.replace(*pair), changed, template))
        yield _chained(*copied, kept_before, number)


def _chained(intent: Row, audit: Table, kept: Table, before: list[str], number: int) -> Copy:
    """Return the rows of a copy with salts, numbers and hashes of its own."""
    for row in kept:
        row["salt"] = os.urandom(16).hex()
    now = [commitment(row["salt"], row["text"]) for row in kept]
    head = GENESIS
    for row in audit:
        for name, (old, new) in itertools.product(("body", "contents"), zip(before, now, strict=True)):
            row[name] = row[name] and row[name].replace(old, new)
        row["id"] += number * len(audit)
        row["prev_hash"], row["hash"] = head, row_hash(head, row["body"])
        head = row["hash"]
    for name in ("first_row", "answered_row"):
        intent[name] += number * len(audit)
    return [{**intent, "head": head}], audit, kept


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
