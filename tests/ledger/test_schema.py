"""The tables: made once, known by their revision, guarded against accidents; and databases that cannot be used."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import create_engine

from safewrite.core.events import GaveUp
from safewrite.errors import ConfigurationError, LedgerUnavailable, SchemaOutdated
from safewrite.ledger import guards, migrate
from safewrite.ledger.lookup import IntentRow
from safewrite.ledger.sql import Ledger
from safewrite.ledger.sqlite import SQLite
from safewrite.ledger.statements import PROJECTION, VERSION_TABLE
from safewrite.ledger.tables import intent, metadata
from tests.ledger.driver import Caller

TABLES = {
    "safewrite_intent",
    "safewrite_audit",
    "safewrite_content",
    "safewrite_object",
    "safewrite_recovery",
}


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    """A person's own connection to the test's file."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


def names(db: sqlite3.Connection, kind: str) -> set[str]:
    """Return the names of our things of one kind."""
    found = db.execute("SELECT name FROM sqlite_master WHERE type = ?", (kind,))
    return {name for (name,) in found if name.startswith("safewrite")}


# The tables ------------------------------------------------------------------------------------------------------


def test_the_first_use_makes_the_tables(caller: Caller, db: sqlite3.Connection, path: Path) -> None:
    """Tables, view and triggers are there, under a version table of their own; the log is written ahead."""
    caller.write()
    assert names(db, "table") == TABLES | {VERSION_TABLE}
    assert names(db, "view") == {"safewrite_attempt"}
    assert names(db, "trigger") == set(guards.GUARDS["sqlite"][1:])
    assert len(names(db, "trigger")) == 5
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert caller.ledger.check().current


def test_a_first_use_waits_for_that_of_another_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several start at once on an empty file, and one makes the tables: also who waits for no writer waits for it."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    upgrading = SQLite.upgrading

    def held(database: SQLite, wait: float) -> Any:
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.1, other.execute, ("ROLLBACK",)).start()
        return upgrading(database, wait)

    monkeypatch.setattr(SQLite, "upgrading", held)
    with (
        contextlib.closing(other),
        contextlib.closing(Ledger(f"sqlite:///{path}", busy_timeout=0.0)) as ledger,
    ):
        assert Caller(ledger).write().state.outcome.value == "applied"


def test_nothing_is_opened_before_the_first_use(path: Path) -> None:
    """Making a ledger touches no file."""
    Ledger(f"sqlite:///{path}").close()
    assert not path.exists()


def test_migrations_and_tables_agree(ledger: Ledger, path: Path) -> None:
    """What the migrations make is what the tables say: alembic finds no difference, partial conditions included."""
    ledger.upgrade()
    engine = create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        options = {
            "version_table": VERSION_TABLE,
            "include_name": lambda name, kind, _: kind != "table" or name in metadata.tables,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        made = dict(
            connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'index'").fetchall()
        )
    engine.dispose()
    fresh = create_engine("sqlite://")
    with fresh.connect() as connection:
        metadata.create_all(connection)
        said = dict(
            connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'index'").fetchall()
        )
    fresh.dispose()
    assert {n: sql for n, sql in made.items() if sql and n.split("_")[1] == "safewrite"} == {
        n: sql for n, sql in said.items() if sql
    }


def test_alembic_itself_can_check_and_upgrade_from_a_checkout(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People who work on the migrations run alembic as usual; it makes the triggers, too."""
    monkeypatch.setenv("SAFEWRITE_DATABASE_URL", f"sqlite:///{path}")
    config = Config()
    config.set_main_option("script_location", str(migrate.folder()))
    command.upgrade(config, "head")
    command.check(config)
    with pytest.raises((NotImplementedError, CommandError)):
        command.downgrade(config, "base")
    ledger = Ledger(f"sqlite:///{path}")
    assert ledger.check().problems == ()
    Caller(ledger).write()
    ledger.close()


def test_the_newest_revision_is_the_one_that_is_needed() -> None:
    """A new migration needs the constant to follow, and an id of our own."""
    config = Config()
    config.set_main_option("script_location", str(migrate.folder()))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [migrate.HEAD]
    assert all(revision.revision.startswith("sw_") for revision in script.walk_revisions())


def test_rows_are_read_in_the_order_of_the_columns() -> None:
    """The typed row and the list of projected columns follow the table."""
    columns = [column.name for column in intent.c]
    assert list(IntentRow._fields) == columns
    assert set(PROJECTION) < set(columns)


def test_an_up_to_date_ledger_is_opened_without_alembic(caller: Caller, path: Path) -> None:
    """The second process makes one SELECT of the revision, and imports nothing for it."""
    caller.write()
    script = f"""
        import sys
        from safewrite.ledger.sql import Ledger
        ledger = Ledger("sqlite:///{path}")
        assert len(ledger.open_intents()) == 0
        assert "alembic" not in sys.modules
        ledger.close()
    """
    subprocess.run([sys.executable, "-W", "error", "-c", textwrap.dedent(script)], check=True)


def test_upgrading_again_changes_nothing_and_mends_the_guards(caller: Caller, db: sqlite3.Connection) -> None:
    """A trigger or view that was dropped is reported by the check, and made anew by an upgrade."""
    done = caller.write()
    db.execute("DROP TRIGGER safewrite_audit_no_update")
    db.execute("DROP VIEW safewrite_attempt")
    status = caller.ledger.check()
    assert not status.current
    assert [problem.split("`")[1] for problem in status.problems] == [
        "safewrite_attempt",
        "safewrite_audit_no_update",
    ]
    caller.ledger.upgrade()
    assert caller.ledger.check().current
    assert caller.ledger.verify(done.id) == ()


def test_an_upgrade_makes_what_was_altered_as_it_was(caller: Caller, db: sqlite3.Connection) -> None:
    """A trigger that is there under its name, and lets everything pass, is not taken for ours."""
    caller.write()
    db.execute("DROP TRIGGER safewrite_audit_no_update")
    db.execute(
        "CREATE TRIGGER safewrite_audit_no_update BEFORE UPDATE ON safewrite_audit BEGIN SELECT 1; END"
    )
    caller.ledger.upgrade()
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute("UPDATE safewrite_audit SET reason = 'x'")


def test_the_guards_know_no_other_database() -> None:
    """A database without triggers of ours is refused before anything is made."""
    with pytest.raises(ConfigurationError, match="oracle"):
        guards.recreate("oracle", print)


def test_tables_of_the_application_are_left_alone(ledger: Ledger, db: sqlite3.Connection) -> None:
    """A ledger may share the application's file, its alembic included."""
    db.execute("CREATE TABLE alembic_version (version_num TEXT)")
    db.execute("INSERT INTO alembic_version VALUES ('0042')")
    db.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY)")
    Caller(ledger).write()
    assert db.execute("SELECT version_num FROM alembic_version").fetchall() == [("0042",)]


# Append-only -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE safewrite_audit SET reason = 'x'",
        "UPDATE OR REPLACE safewrite_audit SET id = 1 WHERE id = 2",
        "DELETE FROM safewrite_audit",
        "DELETE FROM safewrite_audit WHERE id = 2",
        "INSERT OR REPLACE INTO safewrite_audit SELECT * FROM safewrite_audit WHERE id = 1",
        "REPLACE INTO safewrite_audit SELECT * FROM safewrite_audit",
        "INSERT OR IGNORE INTO safewrite_audit SELECT * FROM safewrite_audit",
        "INSERT INTO safewrite_audit SELECT * FROM safewrite_audit WHERE true ON CONFLICT DO UPDATE SET reason = 'x'",
        "DELETE FROM safewrite_intent",
        "REPLACE INTO safewrite_intent SELECT * FROM safewrite_intent",
    ],
)
@pytest.mark.parametrize("recursive", [0, 1])
def test_rows_can_only_be_added(caller: Caller, db: sqlite3.Connection, attack: str, recursive: int) -> None:
    """No statement changes, removes or replaces a row, and the failed one leaves everything as it was."""
    done = caller.write()
    db.execute(f"PRAGMA recursive_triggers = {recursive}")
    before = [list(db.execute(f"SELECT * FROM {table}")) for table in sorted(TABLES)]
    with pytest.raises(sqlite3.IntegrityError, match=r"append-only|never"):
        db.execute(attack)
    assert [list(db.execute(f"SELECT * FROM {table}")) for table in sorted(TABLES)] == before
    assert caller.ledger.verify(done.id) == ()


def test_a_row_in_another_s_place_is_refused(caller: Caller, db: sqlite3.Connection) -> None:
    """Neither under a new number with a known sequence, nor under a known number with a new sequence."""
    caller.write()
    columns = [name for _, name, *_ in db.execute("PRAGMA table_info(safewrite_audit)")]
    for own in ("id", "sequence"):
        rest = ", ".join(
            name if name == own else f"{name} + 50" if name in ("id", "sequence") else name
            for name in columns
        )
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            db.execute(f"INSERT OR REPLACE INTO safewrite_audit SELECT {rest} FROM safewrite_audit LIMIT 1")


def test_an_intent_in_another_s_place_is_refused(caller: Caller, db: sqlite3.Connection) -> None:
    """Neither under a new id with a known key, nor under a known id with a new key."""
    caller.write()
    columns = [name for _, name, *_ in db.execute("PRAGMA table_info(safewrite_intent)")]
    for own in ("id", "key"):
        rest = ", ".join(f"{name} || 'x'" if name in {"id", "key"} - {own} else name for name in columns)
        with pytest.raises(sqlite3.IntegrityError, match="never replaced"):
            db.execute(f"INSERT OR REPLACE INTO safewrite_intent SELECT {rest} FROM safewrite_intent")


def test_a_ledger_whose_rows_ran_ahead_takes_no_more(caller: Caller, db: sqlite3.Connection) -> None:
    """An intent's row that was set back collides with the rows that are there: nothing is written."""
    intent, _ = caller.ask()
    caller.end(intent)
    db.execute("UPDATE safewrite_intent SET revision = 1")
    with pytest.raises(LedgerUnavailable) as caught:
        caller.end(intent, at=9.0)
    assert caught.value.reason == "ledger_conflict"
    assert db.execute("SELECT count(*) FROM safewrite_audit").fetchone() == (2,)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE safewrite_intent SET revision = 9",
        "UPDATE safewrite_intent SET created_at = x'00'",
        "DROP TRIGGER safewrite_audit_no_update; UPDATE safewrite_audit SET body = 'x' WHERE id = 1",
        "DROP TRIGGER safewrite_audit_no_update; UPDATE safewrite_audit SET body = replace(body, 'er\":1', 'er\":2')",
    ],
)
def test_rows_that_make_no_intent_are_not_decided_on(
    caller: Caller, db: sqlite3.Connection, change: str
) -> None:
    """An intent that cannot be folded is a ledger that cannot be used: nothing is sent on it."""
    caller.ask()
    db.executescript(change)
    with pytest.raises(LedgerUnavailable) as caught:
        caller().ask(at=50.0)
    assert caught.value.reason == "ledger_corrupt"


def test_recording_on_rows_that_make_no_intent_is_refused(caller: Caller, db: sqlite3.Connection) -> None:
    """A stale handle meets rows that were altered: nothing is added to them."""
    intent, _ = caller.ask()
    caller.tell(intent, GaveUp(1, "timeout"))
    db.execute("DROP TRIGGER safewrite_audit_no_update")
    db.execute("UPDATE safewrite_audit SET body = 'x' WHERE sequence = 1")
    with pytest.raises(LedgerUnavailable) as caught:
        caller.end(intent, at=3.0)
    assert caught.value.reason == "ledger_corrupt"
    assert db.execute("SELECT count(*) FROM safewrite_audit").fetchone() == (2,)


def test_a_row_of_a_newer_version_is_an_outdated_schema(caller: Caller, db: sqlite3.Connection) -> None:
    """A fact that this version does not know stops the call, and says what to do."""
    caller.ask()
    db.execute("DROP TRIGGER safewrite_audit_no_update")
    db.execute("UPDATE safewrite_audit SET body = replace(body, '\"claimed\"', '\"teleported\"')")
    with pytest.raises(SchemaOutdated, match="Update safewrite"):
        caller().ask(at=50.0)


# Databases that cannot be used -----------------------------------------------------------------------------------


def refused(url: str, error: type[Exception], match: str) -> None:
    """Assert that the first use of a database is refused, however it is used, with all that it takes to act on it."""
    for use in (lambda ledger: ledger.find("x"), lambda ledger: Caller(ledger).ask()):
        ledger = Ledger(url)
        with pytest.raises(error, match=match) as caught:
            use(ledger)
        assert "Nothing was sent" in str(caught.value)
        ledger.close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The path's folder has to be there."""
    refused(f"sqlite:///{tmp_path}/none/agent.db", ConfigurationError, "mkdir -p")
    with pytest.raises(ConfigurationError, match="mkdir -p"):
        Ledger(f"sqlite:///{tmp_path}/none/agent.db").upgrade()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """A path to a folder gets a file name proposed."""
    refused(f"sqlite:///{tmp_path}", ConfigurationError, "is a folder.*safewrite.db")


@pytest.mark.parametrize(
    "content",
    [
        b"not a database, not at all, but long enough for a header" * 9,
        b"SQLite format 3\x00" + b"\xff" * 5000,
    ],
)
def test_another_kind_of_file_is_refused_and_left_alone(path: Path, content: bytes) -> None:
    """A file that is no database, or a ruined one, is not touched."""
    path.write_bytes(content)
    refused(f"sqlite:///{path}", ConfigurationError, "not a SQLite database, or is damaged|cannot be")
    with pytest.raises(ConfigurationError):
        Ledger(f"sqlite:///{path}").check()
    assert path.read_bytes() == content


def test_a_ledger_with_ruined_pages_is_refused(caller: Caller, path: Path) -> None:
    """Damage in the schema is found at the first use of the next process."""
    caller.write()
    caller.ledger.close()
    data = bytearray(path.read_bytes())
    data[100:4096] = b"\x5a" * 3996
    path.write_bytes(bytes(data))
    refused(f"sqlite:///{path}", ConfigurationError, "damaged")


def test_a_ledger_whose_revision_cannot_be_read_is_refused(
    caller: Caller, path: Path, db: sqlite3.Connection
) -> None:
    """Damage may be anywhere: where the revision stands, it is found before anything is sent."""
    caller.write()
    caller.ledger.close()
    (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (VERSION_TABLE,)).fetchone()
    db.close()
    data = bytearray(path.read_bytes())
    data[(page - 1) * 4096 : page * 4096] = b"\x5a" * 4096
    path.write_bytes(bytes(data))
    refused(f"sqlite:///{path}", ConfigurationError, "damaged")


def test_tables_with_our_names_that_are_not_ours_are_refused(db: sqlite3.Connection, path: Path) -> None:
    """A table of ours without our version table is somebody else's, or a broken copy: nothing is made in it."""
    db.execute("CREATE TABLE safewrite_intent (id TEXT)")
    refused(f"sqlite:///{path}", ConfigurationError, "is not a ledger of safewrite.*safewrite_intent")
    assert names(db, "table") == {"safewrite_intent"}
    assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    with pytest.raises(ConfigurationError, match="not a ledger"):
        Ledger(f"sqlite:///{path}").upgrade()


@pytest.mark.parametrize(
    ("version", "error", "match"),
    [
        ("('sw_0002')", SchemaOutdated, "newer version made them.*Update safewrite"),
        ("('abc123')", ConfigurationError, "names the revision `abc123`"),
        ("('sw_0001'), ('sw_0002')", ConfigurationError, "names 2 revisions"),
    ],
)
def test_other_revisions_are_refused(
    caller: Caller, db: sqlite3.Connection, path: Path, version: str, error: type[Exception], match: str
) -> None:
    """A newer ledger, and one that is not ours, are told apart, and left alone."""
    caller.write()
    db.execute(f"DELETE FROM {VERSION_TABLE}")
    db.execute(f"INSERT INTO {VERSION_TABLE} VALUES {version}")
    refused(f"sqlite:///{path}", error, match)
    if "2 revisions" not in match:
        assert not Ledger(f"sqlite:///{path}").check().current
    with pytest.raises(error, match=match):
        Ledger(f"sqlite:///{path}").upgrade()


def test_a_version_table_without_a_revision(caller: Caller, db: sqlite3.Connection, path: Path) -> None:
    """With tables beside it, it is not ours; alone, it is an upgrade that never began."""
    caller.write()
    db.execute(f"DELETE FROM {VERSION_TABLE}")
    refused(f"sqlite:///{path}", ConfigurationError, "names no revision")
    other = path.with_name("other.db")
    with sqlite3.connect(other) as fresh:
        fresh.execute(f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL)")
    fresh.close()
    ledger = Ledger(f"sqlite:///{other}")
    assert "no tables" in ledger.check().problems[0]
    Caller(ledger).write()
    ledger.close()


def test_a_version_table_of_another_kind(db: sqlite3.Connection, path: Path) -> None:
    """A table of that name without its column is not ours."""
    db.execute(f"CREATE TABLE {VERSION_TABLE} (number INTEGER)")
    refused(f"sqlite:///{path}", ConfigurationError, "cannot be read")


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE safewrite_audit RENAME COLUMN rule TO ruling",
        "DROP VIEW safewrite_attempt; ALTER TABLE safewrite_content RENAME TO elsewhere",
        "ALTER TABLE safewrite_object RENAME COLUMN source TO origin",
    ],
)
def test_a_missing_column_is_found_before_anything_is_sent(
    caller: Caller, db: sqlite3.Connection, path: Path, change: str
) -> None:
    """Every column of every table is asked for with the revision, those of the end of a write as well."""
    caller.write()
    db.executescript(change)
    refused(f"sqlite:///{path}", SchemaOutdated, "table or column is missing")
    status = Ledger(f"sqlite:///{path}").check()
    assert "missing" in status.problems[0]


def test_a_column_that_goes_missing_under_us_is_an_unusable_ledger(
    caller: Caller, db: sqlite3.Connection
) -> None:
    """A ledger that was fine at the start and is not any more takes no claim."""
    caller.write()
    db.execute("ALTER TABLE safewrite_audit RENAME COLUMN rule TO ruling")
    with pytest.raises(LedgerUnavailable) as caught:
        caller(turn="2").ask(at=50.0)
    assert caught.value.reason == "ledger_schema"


def older_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this version one revision newer than the migrations that are there."""
    later = tmp_path / "migrations"
    (later / "versions").mkdir(parents=True)
    for name in ("env.py", "versions/sw_0001_the_ledger.py"):
        (later / name).write_text((migrate.folder() / name).read_text())
    (later / "versions" / "sw_0002_more.py").write_text(
        "from alembic import op\nimport sqlalchemy as sa\nrevision = 'sw_0002'\ndown_revision = 'sw_0001'\n"
        "def upgrade():\n"
        "    op.execute('DROP VIEW safewrite_attempt')\n"
        "    with op.batch_alter_table('safewrite_audit', recreate='always') as table:\n"
        "        table.add_column(sa.Column('mood', sa.Text()))\n"
    )
    monkeypatch.setattr(migrate, "folder", lambda: later)
    monkeypatch.setattr(migrate, "HEAD", "sw_0002")


def test_an_older_ledger_is_upgraded_and_its_triggers_made_anew(
    caller: Caller, db: sqlite3.Connection, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A migration that rebuilds a table loses its triggers; after the upgrade they are all there."""
    done = caller.write()
    caller.ledger.close()
    older_migrations(tmp_path / "later", monkeypatch)
    ledger = Ledger(f"sqlite:///{path}")
    assert "older than sw_0002" in ledger.check().problems[0]
    assert ledger.find(done.id) is not None
    assert ledger.check().current
    assert len(names(db, "trigger")) == 5
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute("DELETE FROM safewrite_audit")
    assert ledger.verify(done.id) == ()
    ledger.close()


def test_missing_migrations_are_said_to_be_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A broken installation is no reason to write into half a schema."""
    monkeypatch.setattr(migrate, "__file__", str(tmp_path / "safewrite" / "ledger" / "migrate.py"))
    with pytest.raises(ConfigurationError, match="Install safewrite again"):
        Ledger(f"sqlite:///{path}").find("x")


def test_installed_migrations_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In an installed package they lie inside it."""
    inside = tmp_path / "safewrite" / "_migrations"
    inside.mkdir(parents=True)
    (inside / "env.py").write_text("")
    monkeypatch.setattr(migrate, "__file__", str(tmp_path / "safewrite" / "ledger" / "migrate.py"))
    assert migrate.folder() == inside


def test_check_makes_nothing(path: Path) -> None:
    """Looking at what is not there leaves it so, and says what would happen."""
    status = Ledger(f"sqlite:///{path}").check()
    assert (status.found, status.needed, status.current) == (None, migrate.HEAD, False)
    assert str(path) in status.database
    assert not path.exists()


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Be a user without rights for a while."""
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users may enter."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without rights")
def test_a_folder_that_may_not_be_entered_is_named(shared: Path) -> None:
    """Without the right to look, nothing is known of the file: the rights are what to look at."""
    closed = shared / "closed"
    closed.mkdir(0o700)
    with as_nobody():
        refused(f"sqlite:///{closed}/agent.db", ConfigurationError, "cannot be reached.*Permission denied")
        with pytest.raises(ConfigurationError):
            Ledger(f"sqlite:///{closed}/agent.db").check()


@pytest.mark.parametrize("name", ["x" * 300, "a\x00b"])
def test_a_path_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    """What the operating system refuses is told as it says it."""
    refused(f"sqlite:///{tmp_path}/{name}", ConfigurationError, "cannot be reached")


def test_a_path_through_a_file(tmp_path: Path) -> None:
    """A file is no folder."""
    (tmp_path / "file").touch()
    refused(f"sqlite:///{tmp_path}/file/agent.db", ConfigurationError, "cannot be reached")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without rights")
def test_a_file_that_may_not_be_read_is_said_to_be(shared: Path) -> None:
    """A file without any right is refused as it is opened."""
    path = shared / "agent.db"
    path.touch(0o000)
    with as_nobody():
        refused(f"sqlite:///{path}", ConfigurationError, "cannot be opened")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without rights")
@pytest.mark.parametrize("new", [False, True])
def test_a_read_only_ledger_is_said_to_be(shared: Path, new: bool) -> None:
    """Without the right to write, the ledger is refused with what to do."""
    path = shared / "agent.db"
    if new:
        path.touch()
    else:
        ledger = Ledger(f"sqlite:///{path}")
        Caller(ledger).write()
        ledger.close()
    path.chmod(0o444)
    with as_nobody():
        refused(f"sqlite:///{path}", ConfigurationError, "is read-only|cannot be opened")
