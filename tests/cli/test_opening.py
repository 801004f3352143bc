"""Reading commands read what is there: nothing is made, nothing is migrated, and every refusal is one clear line."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Ended, Filled

READING = {
    "runs": ("runs",),
    "run": ("run", "run-1"),
    "show": ("show", "sw1_x"),
    "unknown": ("unknown",),
    "resolve": ("resolve", "sw1_x", "applied", "--by", "Ada", "--note", "seen"),
}
COMMANDS = pytest.mark.parametrize("command", READING.values(), ids=READING)


def refused(done: Ended, code: int = 3) -> str:
    """Return the one line that a refused command says."""
    assert (done.code, done.out) == (code, "")
    (line,) = done.err.splitlines()
    assert line.startswith("safewrite: ")
    assert "Traceback" not in line
    return line


def change(path: Path, *statements: str) -> None:
    """Run statements on a database."""
    with closing(sqlite3.connect(path)) as ledger, ledger:
        for statement in statements:
            ledger.execute(statement)


@COMMANDS
def test_a_ledger_that_is_not_there_is_not_made(
    run: Command, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """The line names the file and both ways out."""
    path = tmp_path / "nothing.db"
    line = refused(run(*command, "--url", f"sqlite:///{path}"))
    assert f"There is no ledger in `{path}`" in line
    assert "`--url`" in line
    assert "`safewrite db upgrade`" in line
    assert list(tmp_path.iterdir()) == []


def test_the_default_ledger_is_not_made_either(process: Command, tmp_path: Path) -> None:
    """Without a word about where, ./safewrite.db is meant, and its absolute path is named."""
    assert f"`{tmp_path / 'safewrite.db'}`" in refused(process("runs"))
    assert list(tmp_path.iterdir()) == []


def test_json_asked_for_and_not_to_be_had_is_no_document(run: Command, tmp_path: Path) -> None:
    """Standard output stays empty, so that no program takes an error for an answer."""
    refused(run("runs", "--json", "--url", f"sqlite:///{tmp_path / 'nothing.db'}"))


@COMMANDS
def test_an_empty_file_is_no_ledger_and_stays_empty(
    run: Command, tmp_path: Path, command: tuple[str, ...]
) -> None:
    """It is a valid SQLite database without tables: none are made."""
    path = tmp_path / "empty.db"
    path.touch()
    assert "There is no ledger in" in refused(run(*command, "--url", f"sqlite:///{path}"))
    assert path.read_bytes() == b""


def test_another_programs_database_is_left_alone(run: Command, tmp_path: Path) -> None:
    """A database with other tables holds no ledger, and is not changed."""
    path = tmp_path / "other.db"
    change(path, "CREATE TABLE customer (id INTEGER)")
    before = path.read_bytes()
    assert "There is no ledger in" in refused(run("runs", "--url", f"sqlite:///{path}"))
    assert path.read_bytes() == before


def test_what_is_no_database_is_told_so(run: Command, tmp_path: Path) -> None:
    """A file of something else is not read as a ledger."""
    path = tmp_path / "notes.txt"
    path.write_text("Dear diary, " * 100)
    assert "is not a SQLite database" in refused(run("runs", "--url", f"sqlite:///{path}"))


def test_a_folder_and_a_missing_folder_are_told_apart(run: Command, tmp_path: Path) -> None:
    """Both are named."""
    assert "is a folder" in refused(run("runs", "--url", f"sqlite:///{tmp_path}"))
    line = refused(run("runs", "--url", f"sqlite:///{tmp_path / 'away' / 'agent.db'}"))
    assert "nothing.db" not in line
    assert str(tmp_path / "away" / "agent.db") in line


def test_a_newer_ledger_is_not_read(run: Command, filled: Filled) -> None:
    """What a newer version wrote may mean something else."""
    change(filled.path, "UPDATE safewrite_alembic_version SET version_num = 'sw_9999'")
    line = refused(run("runs", "--url", filled.url))
    assert "sw_9999" in line
    assert "Update safewrite" in line


def test_an_older_ledger_is_not_migrated_by_looking(run: Command, filled: Filled) -> None:
    """The line says how to migrate it; the revision is as before."""
    change(filled.path, "UPDATE safewrite_alembic_version SET version_num = 'sw_0000'")
    assert "run `safewrite db upgrade`" in refused(run("runs", "--url", filled.url))
    with closing(sqlite3.connect(filled.path)) as ledger:
        assert ledger.execute("SELECT version_num FROM safewrite_alembic_version").fetchone() == ("sw_0000",)


def test_tables_that_were_altered_are_told(run: Command, filled: Filled) -> None:
    """A column that is gone is not read around."""
    change(filled.path, "DROP VIEW safewrite_attempt", "ALTER TABLE safewrite_intent DROP COLUMN person")
    done = run("runs", "--url", filled.url)
    assert done.code == 3
    assert done.out == ""
    assert "column" in done.err


def test_guards_that_are_gone_are_told_beside_the_answer(run: Command, filled: Filled) -> None:
    """What can be read is shown; that rows could have been changed is said on standard error."""
    change(filled.path, "DROP TRIGGER safewrite_audit_no_delete")
    done = run("runs", "--url", filled.url)
    assert done.code == 0
    assert len(done.rows) == 2
    assert "`safewrite_audit_no_delete` is gone" in done.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("agent.db", "cannot be read"),
        ("mysql://me:s3cret@host/db", "`mysql` is not supported"),
        ("sqlite+aiosqlite:///agent.db", "driver"),
    ],
)
def test_a_url_that_cannot_be_used_is_bad_input(run: Command, url: str, said: str) -> None:
    """It ends with 2, without showing a password."""
    line = refused(run("runs", "--url", url), 2)
    assert said in line
    assert "s3cret" not in line


def test_a_setting_that_cannot_be_used_is_bad_input(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is named, with what to write."""
    monkeypatch.setenv("SAFEWRITE_THREADS", "many")
    line = refused(run("runs"), 2)
    assert "SAFEWRITE_THREADS" in line
    assert "whole number" in line


def test_the_ledger_can_be_named_in_the_environment_or_before_the_command(
    run: Command, filled: Filled, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The option of the command wins over that before it, and both over the environment."""
    nothing = f"sqlite:///{tmp_path / 'nothing.db'}"
    monkeypatch.setenv("SAFEWRITE_DATABASE_URL", filled.url)
    assert len(run("runs").rows) == 2
    refused(run("--url", nothing, "runs"))
    refused(run("runs", "--url", nothing))
    monkeypatch.setenv("SAFEWRITE_DATABASE_URL", nothing)
    assert len(run("--url", filled.url, "runs").rows) == 2
    assert len(run("--url", nothing, "runs", "--url", filled.url).rows) == 2


def test_reading_changes_nothing(run: Command, filled: Filled, tmp_path: Path) -> None:
    """The tables hold the same before and after every reading command."""

    def dump() -> list[str]:
        copy = tmp_path / "copy.db"
        shutil.copy(filled.path, copy)
        with closing(sqlite3.connect(copy)) as ledger:
            return list(ledger.iterdump())

    before = dump()
    for command in (
        ("runs",),
        ("run", "run-1"),
        ("show", filled.keys["lost"]),
        ("unknown",),
        ("db", "check"),
    ):
        assert run(*command, "--url", filled.url).code == 0
    assert dump() == before


def test_a_ledger_that_is_being_written_can_be_read(run: Command, filled: Filled) -> None:
    """Readers do not wait for a writer."""
    with closing(sqlite3.connect(filled.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        assert len(run("runs", "--url", filled.url).rows) == 2
        writer.execute("ROLLBACK")


def test_a_ledger_that_does_not_answer_is_told_so(
    run: Command, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word that must be written waits for the lock as long as the settings say, and then says why not."""
    monkeypatch.setenv("SAFEWRITE_BUSY_TIMEOUT", "0.1")
    with closing(sqlite3.connect(filled.path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        line = refused(
            run("resolve", filled.keys["lost"], "applied", "--by", "A", "--note", "n", "--url", filled.url)
        )
        writer.execute("ROLLBACK")
    assert "(`ledger_busy`" in line
    assert "`safewrite db check`" in line


def test_what_a_database_says_over_several_lines_is_told_in_one(run: Command) -> None:
    """Line breaks of others are no text: they are not shown escaped."""
    line = refused(run("runs", "--url", "postgresql+psycopg://nobody@127.0.0.1:1/none?connect_timeout=2"))
    assert "(`ledger_unreachable`): " in line
    assert "\\n" not in line
    assert "\\t" not in line


@pytest.mark.parametrize("command", [*READING.values(), ("db", "check"), ("db", "upgrade")])
def test_a_server_that_is_down_is_named_with_the_cause(run: Command, command: tuple[str, ...]) -> None:
    """Without its password, and without the advice to look once more at what was just looked at."""
    line = refused(run(*command, "--url", "postgresql+psycopg://ana:secret@127.0.0.1:1/agents"))
    assert (
        "did not answer (`ledger_unreachable`): `postgresql+psycopg://ana:***@127.0.0.1:1/agents`: " in line
    )
    assert "refused" in line
    assert "db check" not in line
