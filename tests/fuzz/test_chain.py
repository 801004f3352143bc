"""A ledger that somebody altered: whatever stands in a cell now, it is found, and no command ends in a fault."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safewrite.audit.queries import Audit
from safewrite.errors import LedgerUnavailable
from safewrite.ledger.sql import Ledger
from tests.cli.conftest import Filled, fill
from tests.fuzz.arguments import command_line
from tests.fuzz.documents import altered, examples

KEYS = {
    "safewrite_audit": ("id",),
    "safewrite_intent": ("id",),
    "safewrite_content": ("intent_id", "sequence", "name"),
}
UNSEEN = {
    ("safewrite_intent", "salt"),  # kept out of the chain, so that it can be deleted
    ("safewrite_content", "intent_id"),  # as if it were deleted, which is allowed
}
CELLS: list[Any] = [
    None, 0, -1, 1.5, 2**62, float("inf"), "", "x", "{}", "[]", "null", "NaN", "1e999", "[" * 50_000, "9" * 5000,
    '"\\ud800"', "\x00", 'json:"', 'json:"\\ud800"', "9999-99-99", "0001-01-01T00:00:00+00:00", b"", b"\xff\x00",
]  # fmt: skip


class Rows:
    """The tables of a ledger whose triggers are gone, and a way to alter one thing and undo it."""

    def __init__(self, path: Path) -> None:
        self.db = sqlite3.connect(path, isolation_level=None)
        for (name,) in self.db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            self.db.execute(f"DROP TRIGGER {name}")
        self.columns = {
            table: [about[1] for about in self.db.execute(f"PRAGMA table_info({table})")] for table in KEYS
        }
        self.rows = {table: self.all(table) for table in KEYS}

    def all(self, table: str) -> list[tuple[Any, ...]]:
        return self.db.execute(f"SELECT * FROM {table} ORDER BY {', '.join(KEYS[table])}").fetchall()

    def put(self, table: str, rows: list[tuple[Any, ...]]) -> bool:
        """Let these rows be all of a table; return whether the database takes them and they are others."""
        marks = ", ".join("?" * len(self.columns[table]))
        self.db.execute("BEGIN")
        try:
            self.db.execute(f"DELETE FROM {table}")
            self.db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)
            self.db.execute("COMMIT")
        except (sqlite3.Error, UnicodeEncodeError):
            self.db.execute("ROLLBACK")
            return False
        # By their texts: 1 and 1.0 are not the same.
        return repr(self.all(table)) != repr(self.rows[table])


@pytest.fixture(scope="module")
def rows(filled: Filled) -> Iterator[Rows]:
    """The rows of a ledger, put back as they were by every test."""
    made = Rows(filled.path)
    with contextlib.closing(made.db):
        yield made


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """One ledger for all examples."""
    return fill(tmp_path_factory.mktemp("altered") / "agent.db")


@st.composite
def cell(draw: st.DrawFn, old: object) -> Any:
    """Return what stands in a cell now: anything, or what stood there with one thing altered."""
    if isinstance(old, str) and draw(st.booleans()):
        with contextlib.suppress(ValueError):
            return json.dumps(draw(altered(json.loads(old))))
        at = draw(st.integers(0, len(old)))
        return old[:at] + draw(st.sampled_from(["", " ", "0", "é"])) + old[at + draw(st.integers(0, 1)) :]
    return draw(st.sampled_from(CELLS))


@examples(25)
@given(st.data())
def test_an_altered_cell_is_found(filled: Filled, rows: Rows, data: st.DataObject) -> None:
    """In any column of any row: `verify` tells a flaw of that intent, and every command what it can."""
    key = filled.keys["lost"]
    command = data.draw(
        st.sampled_from([["show", key], ["export", key], ["run", "run-1"], ["runs"], ["unknown"]])
    )
    table = data.draw(st.sampled_from(list(KEYS)))
    column = data.draw(st.sampled_from(rows.columns[table]))
    place = data.draw(st.integers(0, len(rows.rows[table]) - 1))
    if table == "safewrite_audit" and data.draw(st.booleans()):
        column = "body"
    forged, at = list(rows.rows[table]), rows.columns[table].index(column)
    row = list(forged[place])
    row[at] = data.draw(cell(row[at]))
    forged[place] = tuple(row)
    try:
        if rows.put(table, forged):
            note = f"{table}.{column} = {row[at]!r:.99}"
            assert (table, column) in UNSEEN or flaws(filled), note
            ended = command_line([*command, "--url", filled.url])
            assert ended.code in (0, 1, 2, 3), (note, command, ended.err)
    finally:
        rows.put(table, rows.rows[table])


@examples(15)
@given(st.data())
def test_a_row_that_is_gone_doubled_or_moved_is_found(
    filled: Filled, rows: Rows, data: st.DataObject
) -> None:
    """Of the chained rows none can be taken out, told twice, or change places with another."""
    whole = rows.rows["safewrite_audit"]
    one = data.draw(st.integers(0, len(whole) - 1))
    other = data.draw(st.integers(0, len(whole) - 1).filter(lambda place: place != one))
    how = data.draw(st.sampled_from(["gone", "moved", "doubled"]))
    forged = [list(row) for row in whole]
    if how == "gone":
        del forged[one]
    elif how == "moved":  # all but their numbers, which would only be sorted again
        forged[one][1:], forged[other][1:] = forged[other][1:], forged[one][1:]
    else:
        forged[one][1:] = forged[other][1:]
        forged[one][2] = whole[one][2]  # `sequence` is unique
    try:
        if rows.put("safewrite_audit", [tuple(row) for row in forged]):
            assert flaws(filled), (how, one, other)
    finally:
        rows.put("safewrite_audit", whole)


def flaws(filled: Filled) -> list[object]:
    """Return what `verify` finds in all intents of a ledger, and that one of them is gone."""
    with contextlib.closing(Ledger(filled.url)) as ledger:
        found: list[object] = []
        for intent in filled.ids.values():
            try:
                found += ledger.verify(intent)
            except LookupError as gone:
                found.append(gone)
        return found


def test_an_untouched_ledger_has_no_flaw(filled: Filled, rows: Rows) -> None:
    """What the tests above find is not there by itself."""
    assert flaws(filled) == []
    assert not rows.put("safewrite_audit", rows.rows["safewrite_audit"])
    assert flaws(filled) == []


def test_a_ledger_that_makes_no_sense_is_told_as_damaged(filled: Filled, rows: Rows) -> None:
    """Where a record cannot be made of what stands there, the error says so, and why."""
    rows.db.execute("UPDATE safewrite_intent SET created_at = 'yesterday'")
    with contextlib.closing(Ledger(filled.url)) as ledger:
        with pytest.raises(LedgerUnavailable) as told:
            Audit(ledger).intent(filled.keys["lost"])
    assert told.value.reason == "ledger_corrupt"
    ended = command_line(["show", filled.keys["lost"], "--url", filled.url])
    rows.put("safewrite_intent", rows.rows["safewrite_intent"])
    assert ended.code == 3
    assert "yesterday" in ended.err
