"""Evidence from databases: SQLSTATEs, SQLite's error names, and what real servers and files make of them."""

from __future__ import annotations

import asyncio
import selectors
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import errors as states
from sqlalchemy import exc as sa_exc

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.evidence import from_exception
from safewrite.core.phases import committing
from safewrite.core.tables_sql import CLASSES, STATES
from tests.core.postgres import postgres
from tests.core.wire import Wire, closed_port, reset, wire

NOT_APPLIED, UNKNOWN = OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN

NEVER = {"08001": "sql_connect_failed", "08004": "sql_connect_failed", "57P03": "sql_starting_up"}
NEVER |= {"53300": "sql_too_many_connections"}
ABORTED = {
    "57014": "sql_cancelled",
    "57P01": "sql_terminated",
    "25P03": "sql_idle_in_transaction",
    "40001": "sql_serialization_failure",
    "40P01": "sql_deadlock",
    "40002": "sql_rolled_back",
    "55P03": "sql_lock_not_available",
    "23505": "sql_constraint",
    "23503": "sql_constraint",
    "23514": "sql_constraint",
    "28P01": "sql_not_authorized",
}
REJECTED = (
    "0A000 21000 22001 25006 25P02 26000 2BP01 34000 3D000 3F000 42601 42501 42P01 44000 54000 55006 P0001"
)
OPEN = {
    "40003": "sql_completion_unknown",
    "08007": "sql_resolution_unknown",
    "08006": "sql_connection_lost",
    **dict.fromkeys(
        ["08000", "08003", "08P01", "53100", "53200", "58030", "57P02", "57P05", "XX000", "HV000", "38000"],
        "sql_unlisted",
    ),
}


def expected(state: str) -> Finding:
    """Return the finding that a state must get."""
    if state in NEVER:
        return Finding(NOT_APPLIED, NEVER[state], again=True)
    if state in OPEN:
        return Finding(UNKNOWN, OPEN[state])
    return Finding(NOT_APPLIED, ABORTED.get(state, "sql_rejected"))


every_state = pytest.mark.parametrize("state", [*NEVER, *ABORTED, *REJECTED.split(), *OPEN])


def test_every_row_of_the_states_is_tested_here() -> None:
    """No state and no class without a test."""
    tested = [*NEVER, *ABORTED, *REJECTED.split(), *OPEN]
    assert set() == STATES.keys() - set(tested)
    assert set() == CLASSES.keys() - {state[:2] for state in tested if state not in STATES}


@every_state
def test_psycopg_by_sqlstate(state: str) -> None:
    """The real class of each state that psycopg knows."""
    try:
        kind = states.lookup(state)
    except KeyError:
        kind = type("Unnamed", (psycopg.Error,), {"sqlstate": state})
    assert expected(state) == from_exception(kind("x"))


@every_state
def test_what_sqlalchemy_wraps_is_opened(state: str) -> None:
    """The wrapper says what the driver's error says."""
    orig = type("Unnamed", (psycopg.OperationalError,), {"sqlstate": state})("x")
    assert expected(state) == from_exception(sa_exc.OperationalError("INSERT", {}, orig))


@pytest.mark.parametrize(
    ("package", "base", "attribute"),
    [("psycopg2", "Error", "pgcode"), ("asyncpg", "PostgresError", "sqlstate")],
)
def test_other_drivers_by_their_names(package: str, base: str, attribute: str) -> None:
    """Known by package and class name, with the state where that driver puts it."""
    listed = type(base, (Exception,), {"__module__": f"{package}.exceptions", attribute: "23505"})
    assert Finding(NOT_APPLIED, "sql_constraint") == from_exception(type("UniqueViolation", (listed,), {})())


def test_an_error_without_a_state_is_unknown() -> None:
    """A lost connection has none; nor do errors that a driver makes up itself."""
    assert Finding(UNKNOWN, "sql_connection_lost") == from_exception(
        psycopg.OperationalError("consuming input failed")
    )
    assert Finding(UNKNOWN, "sql_unlisted") == from_exception(psycopg.ProgrammingError("placeholders"))
    assert Finding(UNKNOWN, "sql_unlisted") == from_exception(
        sa_exc.DBAPIError("INSERT", {}, Exception("odd"))
    )
    assert Finding(UNKNOWN, "sql_unlisted") == from_exception(sa_exc.DBAPIError("INSERT", {}, None))  # type: ignore[arg-type]
    assert Finding(UNKNOWN, "unlisted_exception") == from_exception(sa_exc.PendingRollbackError("x"))


def raised(body: Callable[[], object]) -> BaseException:
    """Return the exception of a body that must fail."""
    try:
        body()
    except Exception as exc:
        return exc
    pytest.fail("nothing was raised")


def ending(body: Callable[[], object]) -> Finding:
    """Return what the failure of a body says."""
    return from_exception(raised(body))


# Connecting


def test_a_database_that_is_not_there_was_sent_nothing() -> None:
    """Refused, and unresolved: the message is psycopg's own; SQLAlchemy's wrapper is opened."""
    never = Finding(NOT_APPLIED, "sql_connect_failed", again=True)
    with closed_port() as port:
        assert never == ending(lambda: psycopg.connect(f"host=127.0.0.1 port={port}"))
        engine = sa.create_engine(f"postgresql+psycopg://127.0.0.1:{port}/x")
        assert never == ending(engine.connect)
    assert never == ending(lambda: psycopg.connect("host=nobody.invalid"))


def test_a_database_that_does_not_greet_was_sent_nothing() -> None:
    """The connection was accepted and then reset, or never answered: still before any statement."""
    with wire(lambda _, connection: reset(connection)) as server:
        found = ending(lambda: psycopg.connect(f"host=127.0.0.1 port={server.port}"))
        assert Finding(NOT_APPLIED, "sql_connect_failed", again=True) == found
    assert Finding(NOT_APPLIED, "connect_timeout", again=True) == from_exception(
        states.ConnectionTimeout("x")
    )


def test_a_full_pool_was_sent_nothing() -> None:
    """No connection became free: not applied, may be sent again."""
    engine = sa.create_engine(
        "sqlite://", poolclass=sa.pool.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01
    )
    with engine.connect():
        assert Finding(NOT_APPLIED, "pool_timeout", again=True) == ending(engine.connect)
    engine.dispose()


def test_the_pool_of_psycopg_was_sent_nothing() -> None:
    """Known by its name, too."""
    pool = pytest.importorskip("psycopg_pool")
    assert Finding(NOT_APPLIED, "pool_timeout", again=True) == from_exception(pool.PoolTimeout("x"))


# A real PostgreSQL


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Serve a database with tables whose constraints and triggers wait for the COMMIT."""
    with postgres() as conninfo:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            connection.execute("CREATE TABLE child (id int REFERENCES t DEFERRABLE INITIALLY DEFERRED)")
            connection.execute(
                "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql"
                " AS 'BEGIN PERFORM pg_sleep(60); RETURN NEW; END'"
            )
            connection.execute("CREATE TABLE late (id int)")
            connection.execute(
                "CREATE CONSTRAINT TRIGGER late_t AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED"
                " FOR EACH ROW EXECUTE FUNCTION slow()"
            )
        yield conninfo


def rows(server: str, table: str = "t") -> int:
    """Return how many rows a table has."""
    with psycopg.connect(server) as connection:
        found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        assert found is not None
        return int(found[0])


def test_a_statement_that_the_server_stops_is_not_applied(server: str) -> None:
    """statement_timeout before the COMMIT: the transaction is aborted, and the row is not there."""

    def body() -> None:
        with psycopg.connect(server) as connection:
            connection.execute("SET statement_timeout = 50")
            connection.execute("INSERT INTO t SELECT 100 FROM pg_sleep(60)")

    assert Finding(NOT_APPLIED, "sql_cancelled") == ending(body)
    assert rows(server) == 0


def commit_by_psycopg(server: str, text: str | bytes | None) -> None:
    """Let a COMMIT of psycopg be cancelled."""
    with psycopg.connect(server) as connection, stopped(server, connection, "pg_cancel_backend"):
        connection.execute("INSERT INTO late VALUES (1)")
        if text is None:
            connection.commit()
        else:
            connection.execute(text)


def commit_by_sqlalchemy(server: str, text: str | None) -> None:
    """Let a COMMIT of SQLAlchemy be cancelled."""
    engine = sa.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(server), poolclass=sa.NullPool
    )
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        with stopped(server, driver, "pg_cancel_backend"):
            connection.execute(sa.text("INSERT INTO late VALUES (1)"))
            if text is None:
                connection.commit()
            else:
                connection.execute(sa.text(text))


def commit_async(server: str, _: None) -> None:
    """Let the COMMIT of an asynchronous block be cancelled."""

    async def run() -> None:
        async with await psycopg.AsyncConnection.connect(server) as connection:
            with stopped(server, connection, "pg_cancel_backend"):
                async with connection.transaction():
                    await connection.execute("INSERT INTO late VALUES (1)")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("commit", "text"),
    [
        (commit_by_psycopg, None),
        (commit_by_psycopg, "COMMIT"),
        (commit_by_psycopg, b"SELECT 1; commit"),
        (commit_by_sqlalchemy, None),
        (commit_by_sqlalchemy, "commit"),
        (commit_async, None),
    ],
)
def test_a_commit_that_the_server_stops_is_unknown(
    server: str, commit: Callable[..., None], text: Any
) -> None:
    """The same state out of the COMMIT itself proves nothing."""
    assert Finding(UNKNOWN, "sql_stopped_at_commit") == ending(lambda: commit(server, text))


def test_a_constraint_checked_by_the_commit_is_not_applied(server: str) -> None:
    """A deferred foreign key: the server's verdict is definite also out of the COMMIT."""

    def body() -> None:
        with closing(psycopg.connect(server)) as connection, connection:
            connection.execute("INSERT INTO child VALUES (999)")

    exc = raised(body)
    assert committing(exc)
    assert Finding(NOT_APPLIED, "sql_constraint") == from_exception(exc)
    assert rows(server, "child") == 0


def test_a_session_ended_while_it_ran_a_statement_is_not_applied(server: str) -> None:
    """pg_terminate_backend during the INSERT."""

    def body() -> None:
        with psycopg.connect(server) as connection, stopped(server, connection, "pg_terminate_backend"):
            connection.execute("INSERT INTO t SELECT 101 FROM pg_sleep(60)")

    assert Finding(NOT_APPLIED, "sql_terminated") == ending(body)
    assert rows(server) == 0


@contextmanager
def stopped(server: str, connection: Any, how: str) -> Iterator[None]:
    """Stop the session of a connection as soon as it sleeps inside the server."""
    ender = threading.Thread(target=stop_when_asleep, args=(server, connection.info.backend_pid, how))
    ender.start()
    try:
        yield
    finally:
        ender.join()


def stop_when_asleep(server: str, pid: int, how: str) -> None:
    """Stop a session as soon as it sleeps."""
    with psycopg.connect(server, autocommit=True) as connection:
        query = "SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
        while connection.execute(query, (pid,)).fetchone() is None:
            pass
        connection.execute(f"SELECT {how}(%s)", (pid,))


def test_a_connection_lost_in_the_commit_is_unknown_whatever_happened(server: str) -> None:
    """A proxy that loses the answer to a COMMIT which went through."""
    host, port = (dict(pair.split("=") for pair in server.split())[name] for name in ("host", "port"))

    def proxy(_: Wire, client: socket.socket) -> None:
        with socket.create_connection((host, int(port))) as upstream, selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, upstream)
            ready.register(upstream, selectors.EVENT_READ, client)
            while True:
                for key, _events in ready.select():
                    data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                    if not data or (b"COMMIT\x00" in data and key.fileobj is upstream):
                        reset(client)  # instead of telling it of its COMMIT
                        return
                    key.data.sendall(data)

    def body(port: int) -> None:
        with psycopg.connect(server.replace(f"port={port_text}", f"port={port}")) as connection:
            connection.execute("INSERT INTO t VALUES (102)")

    port_text = port
    with wire(proxy) as between:
        found = ending(lambda: body(between.port))
    assert Finding(UNKNOWN, "sql_connection_lost") == found
    assert rows(server) == 1
    with psycopg.connect(server) as connection:
        connection.execute("DELETE FROM t")


def test_a_refused_second_try_proves_nothing_about_a_lost_commit(server: str) -> None:
    """The duplicate key of the second try is caused by the first, which went through."""

    def body() -> None:
        try:
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        except psycopg.OperationalError:
            raise states.UniqueViolation("duplicate key")  # noqa: B904

    assert Finding(UNKNOWN, "earlier_request") == ending(body)


# A real SQLite


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Make a database file with one table."""
    name = str(tmp_path / "tool.db")
    with closing(sqlite3.connect(name)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER CHECK (n > 0))")
    return name


@pytest.fixture
def connection(path: str) -> Iterator[sqlite3.Connection]:
    """Connect as a tool does, without patience."""
    with closing(sqlite3.connect(path, timeout=0)) as one:
        yield one


@pytest.fixture
def other(path: str) -> Iterator[sqlite3.Connection]:
    """Connect as somebody else, who decides about transactions by hand."""
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as one:
        yield one


BUSY = Finding(NOT_APPLIED, "sqlite_busy")
MAYBE = Finding(UNKNOWN, "sqlite_not_one_statement")


def test_a_locked_database_did_not_run_the_statement(
    connection: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """Another connection writes: not applied."""
    other.execute("BEGIN EXCLUSIVE")

    def body() -> None:
        connection.execute("INSERT INTO t VALUES (1, 1)")
        connection.commit()

    assert ending(body) == BUSY


def test_a_busy_commit_is_unknown_for_its_transaction_stays_open(
    connection: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """A reader holds the file; whoever commits on the connection later commits this write as well."""
    other.execute("BEGIN")
    other.execute("SELECT * FROM t").fetchall()

    def body() -> None:
        connection.execute("INSERT INTO t VALUES (1, 1)")
        connection.commit()

    assert ending(body) == MAYBE
    assert connection.in_transaction
    other.execute("COMMIT")
    connection.commit()
    assert other.execute("SELECT count(*) FROM t").fetchone()[0] == 1


@pytest.mark.parametrize("text", ["COMMIT", " commit", "end transaction", "RELEASE one"])
def test_a_busy_commit_written_as_a_statement_is_unknown(
    path: str, other: sqlite3.Connection, text: str
) -> None:
    """The text in the call is read, be it a constant or a variable."""
    other.execute("BEGIN")
    other.execute("SELECT * FROM t").fetchall()
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        connection.execute("SAVEPOINT one" if "RELEASE" in text else "BEGIN")
        connection.execute("INSERT INTO t VALUES (1, 1)")
        assert ending(lambda: connection.execute(text)) == MAYBE
    other.execute("COMMIT")


def test_a_with_block_rolls_a_busy_commit_back(
    connection: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """`with connection:` leaves nothing behind: not applied."""
    other.execute("BEGIN")
    other.execute("SELECT * FROM t").fetchall()

    def body() -> None:
        with connection:
            connection.execute("INSERT INTO t VALUES (1, 1)")

    assert ending(body) == BUSY
    assert not connection.in_transaction
    other.execute("COMMIT")
    connection.commit()
    assert other.execute("SELECT count(*) FROM t").fetchone()[0] == 0


def test_a_snapshot_that_is_too_old_did_not_run_the_statement(
    connection: sqlite3.Connection, other: sqlite3.Connection
) -> None:
    """BUSY_SNAPSHOT, an extended name, is read as its family."""
    other.execute("PRAGMA journal_mode=WAL")
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM t").fetchall()
    other.execute("INSERT INTO t VALUES (7, 7)")
    exc = raised(lambda: connection.execute("INSERT INTO t VALUES (1, 1)"))
    assert getattr(exc, "sqlite_errorname", "") == "SQLITE_BUSY_SNAPSHOT"
    assert from_exception(exc) == BUSY


def test_a_shared_cache_that_is_locked_did_not_run_the_statement(tmp_path: Path) -> None:
    """LOCKED_SHAREDCACHE, the other way to be in each other's way."""
    uri = f"file:{tmp_path}/s.db?cache=shared"
    one, two = (sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None) for _ in range(2))
    with closing(one), closing(two):
        one.execute("CREATE TABLE t (id INTEGER)")
        one.execute("BEGIN IMMEDIATE")
        one.execute("INSERT INTO t VALUES (1)")
        exc = raised(lambda: two.execute("SELECT * FROM t").fetchall())
        assert str(getattr(exc, "sqlite_errorname", "")).startswith("SQLITE_LOCKED")
        assert from_exception(exc) == BUSY


def test_a_constraint_refuses_one_statement(connection: sqlite3.Connection) -> None:
    """Not applied; but out of several statements an earlier one may stand."""
    broken = "INSERT INTO t VALUES (1, 0)"
    assert Finding(NOT_APPLIED, "sql_constraint") == ending(lambda: connection.execute(broken))
    many = "INSERT INTO t VALUES (?, ?)"
    assert ending(lambda: connection.executemany(many, [(1, 1), (2, 0)])) == MAYBE
    assert ending(lambda: connection.executescript(f"INSERT INTO t VALUES (3, 3); {broken}")) == MAYBE


def test_other_refusals_of_one_statement_are_not_applied(
    path: str, connection: sqlite3.Connection, tmp_path: Path
) -> None:
    """No such table, a wrong type, a file opened for reading, a file that is no database, a forbidden statement."""
    rejected = Finding(NOT_APPLIED, "sql_rejected")
    assert rejected == ending(lambda: connection.execute("INSERT INTO nowhere VALUES (1)"))
    assert rejected == ending(lambda: connection.execute("INSERT INTO t VALUES ('x', 1)"))
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        assert rejected == ending(lambda: reader.execute("INSERT INTO t VALUES (1, 1)"))
    (tmp_path / "text").write_text("no database, but long enough to be read as the first page of one" * 9)
    with closing(sqlite3.connect(tmp_path / "text")) as text:
        assert rejected == ending(lambda: text.execute("INSERT INTO t VALUES (1, 1)"))
    connection.set_authorizer(lambda *_: sqlite3.SQLITE_DENY)
    assert rejected == ending(lambda: connection.execute("INSERT INTO t VALUES (1, 1)"))
    connection.set_authorizer(None)


def test_a_database_that_cannot_be_opened_was_sent_nothing(tmp_path: Path) -> None:
    """`connect` itself fails: not applied, may be sent again."""
    found = ending(lambda: sqlite3.connect(tmp_path / "no" / "such.db"))
    assert Finding(NOT_APPLIED, "sql_connect_failed", again=True) == found


def test_a_full_database_is_unknown(connection: sqlite3.Connection) -> None:
    """FULL and IOERR leave it to the next opening what is in the file."""
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages}")
    connection.execute("CREATE TABLE IF NOT EXISTS t (id)")
    exc = raised(lambda: [connection.execute("INSERT INTO t VALUES (NULL, 1)") for _ in range(100_000)])
    assert getattr(exc, "sqlite_errorname", "") == "SQLITE_FULL"
    assert Finding(UNKNOWN, "sqlite_io_error") == from_exception(exc)


@pytest.mark.parametrize("name", ["SQLITE_IOERR_WRITE", "SQLITE_SCHEMA", None, 5])
def test_other_names_are_unknown(name: object) -> None:
    """I/O errors, what is not listed, and errors that the module makes up itself."""
    exc = sqlite3.OperationalError("x")
    exc.sqlite_errorname = name  # type: ignore[assignment]
    reason = "sqlite_io_error" if name == "SQLITE_IOERR_WRITE" else "sql_unlisted"
    assert Finding(UNKNOWN, reason) == from_exception(exc)


def test_an_error_without_a_traceback_is_unknown() -> None:
    """Moved between processes, an error no longer tells whether it came out of the COMMIT."""
    exc = sqlite3.OperationalError("database is locked")
    exc.sqlite_errorname = "SQLITE_BUSY"
    assert from_exception(exc) == MAYBE


def test_sqlite_below_sqlalchemy_is_read_alike(path: str, other: sqlite3.Connection) -> None:
    """A busy statement is not applied, a busy COMMIT is unknown, several rows at once are unknown."""
    engine = sa.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0}, poolclass=sa.NullPool)
    insert = sa.text("INSERT INTO t VALUES (:id, :n)")

    def body() -> None:
        with engine.connect() as connection:
            connection.execute(insert, {"id": 1, "n": 1})
            connection.commit()

    def many() -> None:
        with engine.begin() as connection:
            connection.execute(insert, [{"id": 1, "n": 1}, {"id": 2, "n": 0}])

    other.execute("BEGIN EXCLUSIVE")
    assert ending(body) == BUSY
    other.execute("COMMIT")
    other.execute("BEGIN")
    other.execute("SELECT * FROM t").fetchall()
    assert ending(body) == MAYBE
    other.execute("COMMIT")
    assert ending(many) == MAYBE
