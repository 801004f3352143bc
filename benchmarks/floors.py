"""The floors: what a driver alone needs for two durable commits, and for one look at an indexed row.

The first commit writes down what is to be done, the second what became of it.  That is the least with which anything
can be known after a crash; there is no audit row, no chain, and no decision in it.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.measure import Case, each

WRITE, LOOK, BARE = "two durable commits", "one indexed SELECT", "bare driver"
_TABLE = (
    "CREATE TABLE written (key TEXT PRIMARY KEY, state TEXT NOT NULL, arguments TEXT NOT NULL, value TEXT)"
)
_CLAIM = "INSERT INTO written (key, state, arguments) VALUES (?, 'unknown', ?)"
_END = "UPDATE written SET state = 'applied', value = ? WHERE key = ?"
_FIND = "SELECT state, value FROM written WHERE key = ?"
_ARGUMENTS, _VALUE = '{"sub_id":"sub_1000","reason":"asked for it"}', '{"id":"sub_1000","status":"cancelled"}'


def sqlite(path: Path) -> Any:
    """Return a connection that writes as durably as a ledger: a log written ahead, synchronous FULL."""
    raw = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        raw.execute(f"PRAGMA {pragma}")
    return raw


def cases(raw: Any, count: int, mark: str = "?") -> list[Case]:
    """Return the two floors over a connection."""
    raw.execute(_TABLE)
    claim, end, find = (text.replace("?", mark) for text in (_CLAIM, _END, _FIND))
    numbers, known = itertools.count(), list[str]()

    def write() -> None:
        key = sha256(str(next(numbers)).encode()).hexdigest()
        raw.execute(claim, (key, _ARGUMENTS))
        raw.execute(end, (_VALUE, key))
        known.append(key)

    def look() -> None:
        raw.execute(find, (known[next(numbers) % len(known)],)).fetchall()

    return [Case(name, partial(each, one), count, by=BARE) for name, one in ((WRITE, write), (LOOK, look))]


def alone(sw: Any, writes: Callable[[int], object], upto: int, copy: Path) -> Callable[[], None]:
    """Return what carries out, one write at a time, the very statements with which a ledger in SQLite wrote.

    No guard that writes these rows comes below it: what remains above it is Python's.
    """
    from safewrite.ledger.sql import Ledger

    log: list[tuple[str, Any]] = []
    held = sw.ledger._store._own().writer
    raw, held.raw = held.raw, _Noting(held.raw, log)
    writes(upto)
    held.raw = raw
    empty = Ledger(f"sqlite:///{copy}")
    empty.find("")
    empty.close()
    again, size = sqlite(copy), len(log) // upto
    left = iter([log[at : at + size] for at in range(0, len(log), size)])

    def write() -> None:
        for text, parameters in next(left):
            again.execute(text, parameters).fetchall()

    return write


class _Noting:
    """A connection that notes what is executed."""

    def __init__(self, raw: Any, log: list[tuple[str, Any]]) -> None:
        self._raw, self._log = raw, log

    def execute(self, text: str, parameters: Any = ()) -> Any:
        self._log.append((text, parameters))
        return self._raw.execute(text, parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)
