"""SQL statements inside what is left: on a real PostgreSQL, and on SQLite."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import safewrite
from safewrite import Attempt, BudgetExhausted, Deadline, SafeWrite
from safewrite.adapters.sqlalchemy import bound_statements
from safewrite.context import within
from safewrite.core.events import OutcomeState
from safewrite.core.evidence import from_exception
from safewrite.errors import ConfigurationError
from safewrite.testing import ManualClock

SHOW = sa.text("SHOW statement_timeout")
ENDLESS = sa.text(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n WHERE i < 0"
)


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[sa.Engine]:
    """An engine whose pool has one connection, so that what leaks is seen by the next user."""
    engine = sa.create_engine(postgres_url, pool_size=1, max_overflow=0)
    yield engine
    assert default_of(engine) == "0"
    engine.dispose()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[sa.Engine]:
    """The same on a file."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/tool.db", pool_size=1, max_overflow=0)
    yield engine
    engine.dispose()


def default_of(engine: sa.Engine) -> str:
    """Return the limit that the next user of the pool's connection finds."""
    with engine.connect() as connection:
        return str(connection.scalar(SHOW))


@pytest.mark.parametrize(
    ("shown", "left", "margin"),
    [
        ("8500ms", 9.0, 0.5),
        ("9s", 9.0, 0),
        ("1ms", 0.501, 0.5),
        ("1ms", 0.0015, 0),
        ("2s", 3.0, 1.0),
        ("2147483647ms", 1e9, 0.5),  # the most that it takes
    ],
)
def test_the_limit_lies_a_margin_inside_what_is_left(
    postgres: sa.Engine, shown: str, left: float, margin: float
) -> None:
    """9 s leave 8500 ms, so that the database's error arrives before we give up."""
    with ManualClock(), postgres.begin() as connection, bound_statements(connection, Deadline(left), margin):
        assert connection.scalar(SHOW) == shown


def test_every_statement_is_given_what_is_left_by_then(postgres: sa.Engine) -> None:
    """A limit that was set once would bound each statement, not all of them together."""
    with ManualClock() as clock, postgres.begin() as connection, bound_statements(connection, Deadline(9.0)):
        assert connection.scalar(SHOW) == "8500ms"
        clock.advance(4.0)
        assert connection.scalar(SHOW) == "4500ms"
        clock.advance(4.6)
        with pytest.raises(BudgetExhausted, match=r"0\.4000 s are left, of which 0\.5 s are `margin`"):
            connection.scalar(SHOW)


@pytest.mark.parametrize("left", [0.0004, 0.5, 0.5004])
@pytest.mark.parametrize("database", ["postgres", "sqlite"])
def test_less_than_a_millisecond_is_refused(request: Any, database: str, left: float) -> None:
    """Zero would switch the limit off."""
    engine = request.getfixturevalue(database)
    margin = 0.0 if left < 0.001 else 0.5
    with ManualClock(), engine.begin() as connection, pytest.raises(BudgetExhausted, match="was not sent"):
        with bound_statements(connection, Deadline(left), margin):
            pytest.fail("the block was entered")


def ends_well(connection: sa.Connection) -> None:
    """Run something that succeeds."""
    with bound_statements(connection, Deadline(2.0)):
        assert connection.scalar(SHOW) != "0"


def fails(connection: sa.Connection) -> None:
    """Run something that fails."""
    with bound_statements(connection, Deadline(2.0)):
        connection.execute(sa.text("SELECT 1/0"))


def is_cut(connection: sa.Connection) -> None:
    """Run something that takes too long."""
    with bound_statements(connection, Deadline(0.2), margin=0.1):
        connection.execute(sa.text("SELECT pg_sleep(30)"))


@pytest.mark.parametrize("work", [ends_well, fails, is_cut])
@pytest.mark.parametrize("commits", [True, False])
def test_nothing_leaks_to_the_pool(
    postgres: sa.Engine, work: Callable[[sa.Connection], None], commits: bool
) -> None:
    """After success, failure and a cut, committed or rolled back, the next user has the default."""
    before = default_of(postgres)
    with postgres.connect() as connection:
        transaction = connection.begin()
        try:
            work(connection)
        except DBAPIError:
            commits = False
        (transaction.commit if commits else transaction.rollback)()
    assert default_of(postgres) == before == "0"


def test_nothing_leaks_from_a_cancelled_coroutine(postgres_url: str) -> None:
    """Cancelled in the middle of a statement, the block leaves the connection as it was."""

    async def main() -> tuple[str, str]:
        engine = create_async_engine(postgres_url, pool_size=1, max_overflow=0)
        started = asyncio.Event()

        async def work() -> None:
            async with engine.begin() as connection:
                with bound_statements(connection, Deadline(9.0)):
                    shown.append(await connection.scalar(SHOW))
                    started.set()
                    await connection.execute(sa.text("SELECT pg_sleep(30)"))

        shown: list[str] = []
        task = asyncio.create_task(work())
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        async with engine.connect() as connection:
            shown.append(await connection.scalar(SHOW))
        await engine.dispose()
        return shown[0], shown[1]

    inside, after = asyncio.run(main())
    assert 2000 < int(inside.removesuffix("ms")) <= 8500
    assert after == "0"


def test_an_asynchronous_session_is_bound_by_its_connection(postgres_url: str) -> None:
    """`await session.connection()` is what to pass; the session itself is refused with that advice."""

    async def main() -> str:
        engine = create_async_engine(postgres_url)
        async with AsyncSession(engine) as session:
            with pytest.raises(ConfigurationError, match=r"await session\.connection\(\)"):
                with bound_statements(session, Deadline(9.0)):
                    pytest.fail("the block was entered")
            with bound_statements(await session.connection(), Deadline(9.0)):
                shown = str(await session.scalar(SHOW))
        await engine.dispose()
        return shown

    with ManualClock():
        assert asyncio.run(main()) == "8500ms"


def test_a_statement_that_takes_too_long_is_known_to_have_done_nothing(postgres: sa.Engine) -> None:
    """The database's error arrives inside the slice, and is a definite abort."""
    with pytest.raises(OperationalError) as raised, postgres.begin() as connection:
        is_cut(connection)
    found = from_exception(raised.value)
    assert (found.outcome, found.reason) == (OutcomeState.NOT_APPLIED, "sql_cancelled")


def test_outside_a_transaction_it_is_refused(postgres: sa.Engine) -> None:
    """`SET LOCAL` would be a no-op there, with a warning that nobody reads."""
    with postgres.connect() as connection, pytest.raises(ConfigurationError, match="outside a transaction"):
        with bound_statements(connection, Deadline(9.0)):
            pytest.fail("the block was entered")
    with postgres.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(SHOW)
        with pytest.raises(ConfigurationError, match=r"autocommit.*engine\.begin\(\)"):
            with bound_statements(connection, Deadline(9.0)):
                pytest.fail("the block was entered")


def test_a_session_is_bound_by_its_transaction(postgres: sa.Engine) -> None:
    """One that has not begun yet begins."""
    with ManualClock(), Session(postgres) as session, bound_statements(session, Deadline(9.0)):
        assert session.scalar(SHOW) == "8500ms"


@pytest.mark.parametrize("left", [9.0, 0.0])
@pytest.mark.parametrize("database", ["postgres", "sqlite"])
def test_a_savepoint_is_rolled_back_to_also_with_nothing_left(
    request: Any, database: str, left: float
) -> None:
    """What was tried and failed is undone, and the transaction goes on as far as there is time."""
    engine = request.getfixturevalue(database)
    with ManualClock() as clock, engine.connect() as connection, connection.begin() as transaction:
        with bound_statements(connection, Deadline(9.5)):
            connection.execute(sa.text("CREATE TABLE tried (id INTEGER PRIMARY KEY)"))
            connection.execute(sa.text("INSERT INTO tried VALUES (1)"))
            tried = connection.begin_nested()
            connection.execute(sa.text("INSERT INTO tried VALUES (2)"))
            with pytest.raises(IntegrityError):
                connection.execute(sa.text("INSERT INTO tried VALUES (1)"))
            clock.advance(9.0 - left)
            tried.rollback()
        assert connection.scalar(sa.text("SELECT count(*) FROM tried")) == 1
        transaction.rollback()


def test_after_the_block_statements_are_not_prepared_any_more(postgres: sa.Engine) -> None:
    """The last limit stays until the transaction ends; no deadline that has passed meanwhile refuses anything."""
    with ManualClock() as clock, postgres.begin() as connection:
        with bound_statements(connection, Deadline(9.0)):
            connection.execute(SHOW)
        clock.advance(100.0)
        assert connection.scalar(SHOW) == "8500ms"


def test_the_deadline_around_the_code_is_taken_by_itself(postgres: sa.Engine) -> None:
    """That of the request or the run; where there is none, nothing is bound, not even looked at."""
    with ManualClock(), postgres.begin() as connection:
        with bound_statements(connection):
            assert connection.scalar(SHOW) == "0"
        with within(Deadline(9.0)), bound_statements(connection):
            assert connection.scalar(SHOW) == "8500ms"
        with safewrite.run("r1", deadline=5.0), bound_statements(connection):
            assert connection.scalar(SHOW) == "4500ms"


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """One `SafeWrite` over a ledger of its own."""
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db") as made:
        yield made


def test_a_write_takes_its_attempt(postgres: sa.Engine, sw: SafeWrite) -> None:
    """9 s for the attempt: 8500 ms for the statement; a statement that is refused was not sent."""

    @sw.write(target="n", timeout=9.0, max_attempts=1, in_thread=False)
    def ship(n: int, waits: float, attempt: Attempt) -> str:
        with postgres.begin() as connection:
            clock.advance(waits)
            with bound_statements(connection):
                return str(connection.scalar(SHOW))

    with ManualClock() as clock, safewrite.run("r1"), safewrite.turn(1):
        assert ship(1, 0.0) == "8500ms"
        outcome = ship.outcome(2, 8.6)
    assert (outcome.state, outcome.reason) == ("not_applied", "leg_not_sent")


def test_a_refused_statement_proves_nothing_of_an_earlier_request(postgres: sa.Engine, sw: SafeWrite) -> None:
    """A body that sends more than its one write says so, and then the refusal of the last tells nothing."""

    @sw.write(target="n", timeout=9.0, max_attempts=1, in_thread=False, single_request=False)
    def ship(n: int) -> None:
        with postgres.begin() as connection:
            clock.advance(8.6)
            with bound_statements(connection):
                pytest.fail("the block was entered")

    with ManualClock() as clock, safewrite.run("r1"), safewrite.turn(1):
        outcome = ship.outcome(1)
    assert (outcome.state, outcome.may_still_land) == ("unknown", True)


# SQLite ------------------------------------------------------------------------------------------------------


def test_on_sqlite_a_statement_that_takes_too_long_is_interrupted(sqlite: sa.Engine) -> None:
    """A write is undone by SQLite itself, and the error says so."""
    with sqlite.begin() as connection:
        connection.execute(sa.text("CREATE TABLE t (i)"))

    def work() -> None:
        with sqlite.begin() as connection, bound_statements(connection, Deadline(0.3, minimum=0), margin=0.1):
            connection.execute(sa.text("INSERT INTO t VALUES (1)"))
            connection.execute(ENDLESS)

    with pytest.raises(OperationalError, match="interrupted") as raised:
        work()
    found = from_exception(raised.value)
    assert (found.outcome, found.reason) == (OutcomeState.NOT_APPLIED, "sql_cancelled")
    with sqlite.begin() as connection:
        assert connection.scalar(sa.text("SELECT count(*) FROM t")) == 0


LONG = sa.text(
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) SELECT count(*) FROM n"
)


def long(connection: sa.Connection) -> int:
    """Run a statement that takes long enough to be looked at."""
    return int(connection.scalar(LONG))


@pytest.mark.parametrize("how", ["block", "error", "commit", "rollback", "close"])
def test_on_sqlite_the_handler_is_taken_off(sqlite: sa.Engine, how: str) -> None:
    """Whoever gets the connection next is not interrupted by a deadline that is not theirs, block open or not."""

    def use(connection: sa.Connection) -> None:
        with bound_statements(connection, Deadline(5.0)):
            assert long(connection) == 20000
            clock.advance(4.6)
            if how == "error":
                raise KeyError
            if how in ("commit", "rollback"):
                getattr(connection, how)()
            if how != "block":
                connection.close()
                with sqlite.connect() as other:
                    assert long(other) == 20000

    with ManualClock() as clock, sqlite.connect() as connection:
        connection.begin()
        try:
            use(connection)
        except KeyError:
            assert long(connection) == 20000
        if how == "block":
            assert long(connection) == 20000
    with sqlite.connect() as connection:
        assert long(connection) == 20000


def test_on_sqlite_a_later_transaction_in_the_block_is_bound_again(sqlite: sa.Engine) -> None:
    """The end of one transaction lifts the limit; the next statement sets it again."""
    with ManualClock() as clock, sqlite.connect() as connection:
        connection.begin()
        with bound_statements(connection, Deadline(5.0)):
            long(connection)
            connection.commit()
            clock.advance(4.6)
            with pytest.raises(BudgetExhausted):
                long(connection)


def test_a_connection_that_was_closed_underneath_does_no_harm(sqlite: sa.Engine) -> None:
    """There is no handler left to take off."""
    with sqlite.connect() as connection:
        connection.begin()
        with bound_statements(connection, Deadline(5.0)):
            raw = connection.connection.dbapi_connection
            assert isinstance(raw, sqlite3.Connection)
            raw.close()
            connection.invalidate()


class Wrapped:
    """A connection of another driver."""

    def __init__(self) -> None:
        self._inner = sqlite3.connect(":memory:", check_same_thread=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_what_cannot_be_bound_is_not_passed_by_in_silence() -> None:
    """A driver of SQLite without the progress handler, and any other database."""
    engine = sa.create_engine("sqlite://", creator=Wrapped, poolclass=sa.StaticPool)
    with (
        engine.begin() as connection,
        pytest.raises(ConfigurationError, match=r"`sqlite\+pysqlite` cannot be bound"),
    ):
        with bound_statements(connection, Deadline(5.0)):
            pytest.fail("the block was entered")
    engine.dispose()


@pytest.mark.parametrize("margin", [-1, float("nan"), float("inf"), None, "1"])
def test_a_margin_that_is_none_is_refused(sqlite: sa.Engine, margin: Any) -> None:
    """Seconds, zero or more."""
    with sqlite.begin() as connection, pytest.raises(ConfigurationError, match="margin"):
        with bound_statements(connection, Deadline(5.0), margin):
            pytest.fail("the block was entered")
