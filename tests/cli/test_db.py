"""`db upgrade` and `db check`: the tables of the ledger."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from tests.cli.conftest import Command, Filled
from tests.cli.test_opening import change, refused


def test_upgrade_makes_the_tables_where_there_are_none(run: Command, tmp_path: Path) -> None:
    """Then they are current, and a second upgrade finds nothing to do."""
    path = tmp_path / "new.db"
    url = f"sqlite:///{path}"
    done = run("db", "upgrade", "--url", url)
    assert (done.code, done.out, done.err) == (0, f"`{path}` was brought to sw_0001.\n", "")
    assert run("db", "check", "--url", url).code == 0
    assert run("db", "upgrade", "--url", url).out == f"`{path}` is up to date.\n"


def test_upgrade_makes_guards_anew(run: Command, filled: Filled) -> None:
    """A trigger that is gone is back, and rows cannot be deleted again."""
    change(filled.path, "DROP TRIGGER safewrite_audit_no_delete")
    assert run("db", "check", "--url", filled.url).code == 1
    assert run("db", "upgrade", "--url", filled.url).code == 0
    assert run("db", "check", "--url", filled.url).code == 0


def test_check_tells_what_is_there(run: Command, filled: Filled) -> None:
    """Where, what was found and what is needed."""
    done = run("db", "check", "--url", filled.url)
    assert done.code == 0
    assert done.out == f"database  {filled.path}\nfound     sw_0001\nneeded    sw_0001\nproblems  none\n"
    assert run("db", "check", "--url", filled.url, "--json").document == {
        "database": str(filled.path),
        "current": True,
        "found": "sw_0001",
        "needed": "sw_0001",
        "problems": [],
    }


def test_check_tells_what_must_be_done(run: Command, filled: Filled) -> None:
    """Each problem is named, and the exit code is 1."""
    change(filled.path, "DROP TRIGGER safewrite_audit_no_delete", "DROP TRIGGER safewrite_audit_no_update")
    done = run("db", "check", "--url", filled.url, "--json")
    assert done.code == 1
    assert done.document["current"] is False
    assert len(done.document["problems"]) == 2


def test_check_of_nothing_makes_nothing(run: Command, tmp_path: Path) -> None:
    """It ends with 3: there is no ledger to check."""
    done = run("db", "check", "--url", f"sqlite:///{tmp_path / 'nothing.db'}", "--json")
    assert (done.code, done.document["found"]) == (3, None)
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_is_neither_checked_nor_upgraded(run: Command, tmp_path: Path) -> None:
    """A version table of somebody else's is not touched."""
    path = tmp_path / "other.db"
    change(
        path,
        "CREATE TABLE safewrite_alembic_version (version_num TEXT)",
        "INSERT INTO safewrite_alembic_version VALUES ('theirs')",
    )
    for command in ("check", "upgrade"):
        done = run("db", command, "--url", f"sqlite:///{path}")
        assert done.code == 3
        assert "theirs" in done.out + done.err
    with closing(sqlite3.connect(path)) as other:
        assert other.execute("SELECT version_num FROM safewrite_alembic_version").fetchall() == [("theirs",)]


def test_what_an_upgrade_cannot_mend_is_told(run: Command, filled: Filled) -> None:
    """A column that is gone does not come back, and the upgrade does not end as if it had."""
    change(filled.path, "DROP VIEW safewrite_attempt", "ALTER TABLE safewrite_audit DROP COLUMN person")
    done = run("db", "upgrade", "--url", filled.url)
    assert (done.code, done.out) == (3, "")
    assert "person" in done.err


def test_upgrade_in_a_place_that_is_not_there_is_refused(run: Command, tmp_path: Path) -> None:
    """No folder is made for it."""
    refused(run("db", "upgrade", "--url", f"sqlite:///{tmp_path / 'away' / 'agent.db'}"))
    assert list(tmp_path.iterdir()) == []


def test_db_alone_tells_what_there_is(run: Command) -> None:
    """The group without a command shows its help, as it does when asked for it."""
    done, asked = run("db"), run("db", "--help")
    assert (done.code, done.out, done.err) == (0, asked.out, "")
    assert "upgrade" in done.out
