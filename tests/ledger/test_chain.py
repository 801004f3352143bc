"""What was altered is found."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from safewrite.core.events import Ended, Refused
from safewrite.ledger import verify as verifying
from safewrite.ledger.chain import GENESIS, Flaw, commitment, row_hash, verify_chain, verify_contents
from safewrite.ledger.model import Intent
from safewrite.ledger.sql import Ledger
from safewrite.ledger.texts import stamp, stamp_text
from tests.ledger.driver import APPLIED, Caller


@pytest.fixture
def intent(caller: Caller) -> Intent:
    """An intent of four rows, an alarm among them."""
    intent, _ = caller.ask()
    fact = Ended(1, APPLIED, key_carried=False, kept=True)
    intent, _ = caller.tell(intent, fact, contents={"value": '"done"', "evidence": "none"})
    return caller.tell(intent, Refused("x"), at=3.0)[0]


def flaws(rows: list[dict[str, Any]], intent: Intent) -> tuple[Flaw, ...]:
    """Verify rows against what the intent's row says."""
    written = stamp_text if isinstance(rows[0]["recorded_at"], str) else stamp
    return verify_chain(
        rows, intent_id=intent.id, head=intent.head, revision=intent.state.revision, stamp=written
    )


def kinds(found: tuple[Flaw, ...]) -> set[str]:
    """Return the kinds of the flaws."""
    return {flaw.kind for flaw in found}


def test_an_untouched_chain_has_no_flaw(caller: Caller, intent: Intent) -> None:
    """The rows as written fit together, and begin with the genesis hash."""
    rows = caller.ledger.rows(intent.id)
    assert len(rows) == 4
    assert rows[0]["prev_hash"] == GENESIS
    assert flaws(rows, intent) == ()
    assert caller.ledger.verify(intent.id) == ()


def altered(value: object) -> list[object]:
    """Return every version of a column that differs in one character or one step."""
    if value is None:
        return [0, "", "x"]
    if isinstance(value, int):
        return [value + 1, -value - 1, None, str(value), float(value)]
    text = str(value)
    flips = [text[:i] + chr(ord(c) ^ 1) + text[i + 1 :] for i, c in enumerate(text)]
    return [*flips, text + " ", text[:-1] if text else None, None]


def test_every_byte_of_every_column_counts(caller: Caller, intent: Intent) -> None:
    """Whatever column of whatever row is altered in one character, it shows."""
    rows = caller.ledger.rows(intent.id)
    tried = 0
    for place, row in enumerate(rows):
        for name in row.keys() - {"id"}:  # its number is checked against the other rows and the intent's
            for value in altered(row[name]):
                forged = [*rows[:place], {**row, name: value}, *rows[place + 1 :]]
                assert flaws(forged, intent), (place, name, value)
                tried += 1
    assert tried > 4000


def test_removed_swapped_and_doubled_rows_show(caller: Caller, intent: Intent) -> None:
    """Each row knows its number and the row before."""
    rows = caller.ledger.rows(intent.id)
    assert kinds(flaws(rows[1:], intent)) >= {"missing", "link"}
    assert kinds(flaws([rows[0], *rows[2:]], intent)) >= {"missing", "link"}
    assert kinds(flaws([rows[0], rows[2], rows[1], rows[3]], intent)) >= {"missing", "link"}
    assert kinds(flaws([*rows, rows[3]], intent)) >= {"missing", "link"}


def test_a_cut_off_end_shows_by_the_head_alone(caller: Caller, intent: Intent) -> None:
    """Truncation leaves a valid chain: only the intent's head and revision, or a copy of them, tell."""
    rows = caller.ledger.rows(intent.id)
    assert kinds(flaws(rows[:2], intent)) == {"missing", "head"}
    earlier = replace(intent, head=rows[1]["hash"], state=replace(intent.state, revision=2))
    assert flaws(rows[:2], earlier) == ()


def test_a_rewritten_chain_shows_by_the_head_alone(caller: Caller, intent: Intent) -> None:
    """Whoever rehashes every row is found out by the head that the intent's row, or an earlier copy, holds."""
    rows, before = caller.ledger.rows(intent.id), GENESIS
    forged = []
    for row in rows:
        body = row["body"].replace("worker-1", "worker-2")
        digest = row_hash(before, body)
        forged.append({**row, "worker": "worker-2", "body": body, "prev_hash": before, "hash": digest})
        before = digest
    assert kinds(flaws(forged, intent)) == {"head"}


def test_rows_of_another_intent_do_not_pass(caller: Caller, intent: Intent) -> None:
    """The body names its intent."""
    other = caller(turn="2", target='"sub_2"').write()
    rows = caller.ledger.rows(other.id)
    found = verify_chain(rows, intent_id=intent.id, head=other.head, revision=2)
    assert kinds(found) == {"column"}


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("UPDATE safewrite_audit SET id = id + 100 WHERE sequence = 2", "column"),
        ("UPDATE safewrite_audit SET reason = 'fine' WHERE sequence = 4", "column"),
        ("UPDATE safewrite_audit SET body = replace(body, 'worker-1', 'worker-9') WHERE sequence = 1", "hash"),
        ("UPDATE safewrite_audit SET body = '{}', prev_hash = hash WHERE sequence = 2", "unreadable"),
        ("UPDATE safewrite_audit SET body = x'ff00' WHERE sequence = 2", "unreadable"),
        ("DELETE FROM safewrite_audit WHERE sequence = 4", "missing"),
        ("UPDATE safewrite_intent SET head = replace(head, substr(head, 1, 1), 'x')", "head"),
        ("UPDATE safewrite_intent SET outcome = 'not_applied'", "projection"),
        ("UPDATE safewrite_intent SET target = 'x'", "projection"),
        ("UPDATE safewrite_intent SET alarms = 0", "projection"),
        ("UPDATE safewrite_intent SET answered_row = NULL", "projection"),
        ("UPDATE safewrite_intent SET answered_row = 77", "projection"),
        ("UPDATE safewrite_intent SET first_row = 2", "column"),
        ("UPDATE safewrite_intent SET created_at = updated_at || ' '", "projection"),
        ("UPDATE safewrite_content SET text = 'y' WHERE name = 'value'", "content"),
        ("UPDATE safewrite_content SET salt = 'zz' WHERE name = 'value'", "content"),
        ("UPDATE safewrite_content SET name = 'other' WHERE name = 'value'", "content"),
        ("UPDATE safewrite_content SET sequence = 3 WHERE name = 'value'", "content"),
    ],
)  # fmt: skip
def test_what_is_altered_in_the_database_shows(
    caller: Caller, intent: Intent, path: Path, sql: str, kind: str
) -> None:
    """Rows, contents and the intent's own row are all checked against the chain."""
    with sqlite3.connect(path) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        assert db.execute(sql).rowcount
    db.close()
    assert kind in kinds(caller.ledger.verify(intent.id))


def test_a_deleted_content_is_no_flaw(caller: Caller, intent: Intent, path: Path) -> None:
    """Redaction leaves the chain whole."""
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM safewrite_content WHERE name = 'value'")
    db.close()
    assert caller.ledger.verify(intent.id) == ()


def test_rows_that_make_no_intent_show(caller: Caller, intent: Intent, path: Path) -> None:
    """A chain may be whole and yet tell an impossible story: the body never claimed what ended."""
    rows, before = caller.ledger.rows(intent.id), GENESIS
    with sqlite3.connect(path) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        for row in rows:
            body = row["body"].replace('"number":1', '"number":7')
            digest = row_hash(before, body)
            db.execute(
                "UPDATE safewrite_audit SET body = ?, prev_hash = ?, hash = ?, attempt = ? WHERE sequence = ?",
                (body, before, digest, json.loads(body)["fact"].get("number"), row["sequence"]),
            )
            before = digest
        db.execute("UPDATE safewrite_intent SET head = ?", (before,))
    db.close()
    assert kinds(caller.ledger.verify(intent.id)) == {"unreadable"}


def test_another_version_s_columns_are_not_judged(caller: Caller, intent: Intent, path: Path) -> None:
    """What another version of the machine drew from its rows may differ; the rows themselves still count."""
    rows, before = caller.ledger.rows(intent.id), GENESIS
    with sqlite3.connect(path) as db:
        for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        for row in rows:
            body = row["body"].replace('"machine":1', '"machine":0')
            digest = row_hash(before, body)
            db.execute(
                "UPDATE safewrite_audit SET body = ?, prev_hash = ?, hash = ?, machine = 0 WHERE sequence = ?",
                (body, before, digest, row["sequence"]),
            )
            before = digest
        db.execute("UPDATE safewrite_intent SET head = ?, evidence = 'otherwise'", (before,))
    db.close()
    assert caller.ledger.verify(intent.id) == ()


@pytest.mark.parametrize("step", ["audit_rows", "_contents"])
def test_a_write_in_the_middle_of_verifying_is_no_flaw(
    caller: Caller, open_ledger: Callable[[], Ledger], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stands in the ledger may grow between two of the questions that verifying asks: it looks again."""
    intent, _ = caller.ask()
    writers = [replace(caller, ledger=open_ledger())]
    asked = getattr(verifying, step)

    def written_meanwhile(*args: Any) -> Any:
        if writers:
            writers.pop().end(intent)
        return asked(*args)

    monkeypatch.setattr(verifying, step, written_meanwhile)
    assert caller.ledger.verify(intent.id) == ()
    assert not writers


def test_there_must_be_an_intent_to_verify(caller: Caller) -> None:
    """Asking for what is not there is an error, not a clean bill."""
    with pytest.raises(LookupError, match="nobody"):
        caller.ledger.verify("nobody")


def test_a_commitment_hides_and_binds() -> None:
    """The same text under another salt commits differently; a text or salt that is not the one shows."""
    salt, other = "00" * 16, "01" * 16
    assert commitment(salt, "yes") != commitment(other, "yes")
    promised = {"value": commitment(salt, "yes")}
    assert verify_contents(promised, {"value": (salt, "yes")}, 2) == ()
    assert verify_contents(promised, {}, 2) == ()
    for forged in ((salt, "no"), (other, "yes"), ("zz", "yes"), (f" {salt}", "yes"), (7, "yes")):
        assert kinds(verify_contents(promised, {"value": forged}, 2)) == {"content"}
    assert kinds(verify_contents({}, {"more": (salt, "x")}, 2)) == {"content"}


def test_the_hash_is_over_the_text_as_it_stands() -> None:
    """A fixed vector: later versions must hash the same."""
    assert row_hash(GENESIS, '{"v":1}') == "61394fa3b853eefe1f0ebff595e588ef80828805be08f9709311b94c96c47857"
    assert commitment("00" * 16, "\\ud800") != commitment("00" * 16, "\ud800")


@pytest.mark.sqlite
def test_instants_are_told_in_the_way_of_the_database(caller: Caller, intent: Intent) -> None:
    """A database that holds instants otherwise passes its own way of writing them."""
    rows = [
        {k: v.replace("T", " ") if k.endswith("_at") and v else v for k, v in row.items()}
        for row in caller.ledger.rows(intent.id)
    ]
    spaced = verify_chain(
        rows,
        intent_id=intent.id,
        head=intent.head,
        revision=4,
        stamp=lambda unix: stamp_text(unix).replace("T", " "),
    )
    assert spaced == ()
    assert kinds(flaws(rows, intent)) == {"column"}
