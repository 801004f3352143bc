"""Writes to a database of one's own: SQLite and PostgreSQL, plain and async, with commits that are lost on the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker

import safewrite
from safewrite import Applied, Dependency, NotApplied, NotSent, Outcome, SafeWrite, StillRunning, context
from safewrite.adapters.sqlalchemy import Markers
from safewrite.attempt import Attempt
from safewrite.errors import ConfigurationError
from safewrite.shell.clock import clock
from safewrite.testing import ManualClock
from tests.ledger.proxy import Wire, wire

ORDERS = Dependency("orders", key_retention=timedelta.max, read_lag=0.0)
NAMES = count()


OPEN = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL"
)
"""How many transactions that write are open."""


class Base(DeclarativeBase):
    pass


class Shipped(Base):
    """The effect."""

    __tablename__ = "shipped"
    id: Mapped[int] = mapped_column(primary_key=True)
    n: Mapped[int]


markers = Markers(Base.metadata)


@dataclass(frozen=True)
class Place:
    """A database and the colour in which it is used; `engine` is a plain one, to look with."""

    engine: sa.Engine
    url: str
    plain: bool

    @property
    def source(self) -> Any:
        """What a tool writes through: nothing is kept open between two uses."""
        if self.plain:
            return sa.create_engine(self.url, poolclass=sa.NullPool)
        url = self.url.replace("sqlite://", "sqlite+aiosqlite://")
        return create_async_engine(url, poolclass=sa.NullPool)

    def effects(self) -> int:
        with self.engine.connect() as connection:
            return int(connection.scalar(sa.select(sa.func.count()).select_from(Shipped)) or 0)

    def rows(self) -> list[tuple[int, bool]]:
        """Return attempt and state of every marker."""
        with self.engine.connect() as connection:
            return [(row.attempt, row.applied) for row in connection.execute(sa.select(markers.table))]


@contextmanager
def place_at(url: str, plain: bool) -> Iterator[Place]:
    """Give an empty place."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    yield Place(engine, url, plain)
    Base.metadata.drop_all(engine)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, plain: bool, tmp_path: Path) -> Iterator[Place]:
    """Both databases, both colours."""
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/own.db" if sqlite else request.getfixturevalue("postgres_url")
    with place_at(url, plain) as made:
        yield made


@pytest.fixture(params=[True, False], ids=["plain", "async"])
def plain(request: pytest.FixtureRequest) -> bool:
    """The colour."""
    return bool(request.param)


@pytest.fixture
def cut(postgres_url: str, plain: bool) -> Iterator[tuple[Place, Wire]]:
    """PostgreSQL behind a wire that can be cut."""
    with place_at(postgres_url, plain) as made, wire(postgres_url) as between:
        yield replace(made, url=between.url), between


@pytest.fixture(scope="module")
def sw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SafeWrite]:
    """One for all: every tool has a name of its own."""
    with SafeWrite(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/agent.db") as made:
        yield made


def insert(target: Any, n: int) -> dict[str, int]:
    """Make the effect, in the transaction of a connection or a session."""
    target.execute(sa.insert(Shipped).values(n=n))
    return {"n": n}


def ship(
    sw: SafeWrite,
    place: Place,
    work: Callable[[Any, int], Any] = insert,
    own: Markers = markers,
    source: Any = None,
    **options: Any,
) -> Any:
    """Return the tool: its body does `work` with a marker, its read looks for it."""
    source = source if source is not None else place.source

    def write(n: int) -> Any:
        return own.write(source, lambda target: work(target, n))

    async def awrite(n: int) -> Any:
        async def inside(target: Any) -> Any:
            return await target.run_sync(lambda target: work(target, n))

        return await own.awrite(source, inside)

    def look() -> Any:
        return own.look(source)

    async def alook() -> Any:
        return await own.alook(source)

    settings = {"target": "n", "timeout": 5.0, "max_attempts": 1, "dependency": ORDERS} | options
    tool: Any = sw.write(**{"name": f"t{next(NAMES)}"} | settings)(write if place.plain else awrite)
    tool.reconcile(look if place.plain else alook)
    return tool


def outcome(tool: Any, n: int = 1) -> Outcome[Any]:
    """Return what becomes of a call, always of the same turn."""
    with safewrite.run("r1"), safewrite.turn(1):
        found = tool.outcome(n)
        return found if isinstance(found, Outcome) else asyncio.run(found)


@contextmanager
def attempting(number: int, key: str = "k") -> Iterator[Attempt]:
    """Run code as the body, or the read, of an attempt."""
    now = clock().now()
    made = Attempt(id=f"a{number}", number=number, key=key, end=now.ticks + 9.0, deadline_at=now.unix + 9.0)
    token = context._attempt.set(made)
    try:
        yield made
    finally:
        context._attempt.reset(token)


# A transaction with a marker ---------------------------------------------------------------------------------


def test_effect_marker_and_value_are_one_transaction(sw: SafeWrite, place: Place) -> None:
    """All three are there, and a look tells the value."""
    done = outcome(ship(sw, place))
    assert (done.state, done.value, place.effects(), place.rows()) == ("applied", {"n": 1}, 1, [(1, True)])
    with attempting(1, done.key):
        source = place.source
        found = markers.look(source) if place.plain else asyncio.run(markers.alook(source))
    assert found == Applied({"n": 1})


def test_a_marked_intent_is_answered_and_not_written_again(
    sw: SafeWrite, place: Place, tmp_path: Path
) -> None:
    """Also for a ledger that knows nothing of it: the marker is where the effect is."""
    name = f"t{next(NAMES)}"
    assert outcome(ship(sw, place, name=name)).state == "applied"
    with SafeWrite(f"sqlite:///{tmp_path}/other.db") as other:
        again = outcome(ship(other, place, name=name))
    assert (again.state, again.value, again.sent, place.effects()) == ("applied", {"n": 1}, True, 1)


def test_work_that_fails_is_proven_not_applied_and_may_be_done_again(sw: SafeWrite, place: Place) -> None:
    """The look leaves a fence, and a later attempt goes over it."""
    fails = [True]

    def work(target: Any, n: int) -> Any:
        insert(target, n)
        if fails:
            raise LookupError("a fault of the tool")

    tool = ship(sw, place, work)
    first = outcome(tool)
    assert (first.state, first.evidence, first.attempts) == ("not_applied", "reconciled", 1)
    assert (place.effects(), place.rows()) == (0, [(1, False)])
    rows = sw.audit.rows(first.intent_id)
    assert [row.event for row in rows] == ["claimed", "ended", "fenced", "read_ended", "read_ended"]
    fails.clear()
    assert (outcome(tool).state, place.effects(), place.rows()) == ("applied", 1, [(2, True)])


def test_within_one_call_it_is_sent_again(sw: SafeWrite, place: Place) -> None:
    """After the proof a further attempt is made, as long as there may be one."""
    times = count()

    def work(target: Any, n: int) -> Any:
        if not next(times):
            raise LookupError("only the first time")
        return insert(target, n)

    done = outcome(ship(sw, place, work, max_attempts=3))
    assert (done.state, done.attempts, place.effects()) == ("applied", 2, 1)


def test_the_database_refuses_an_attempt_that_was_fenced(place: Place) -> None:
    """Late, it is turned away; a newer one passes; what is applied is told to whoever comes after."""

    def write() -> Any:
        async def inside(target: Any) -> Any:
            return await target.run_sync(insert, 1)

        if place.plain:
            return markers.write(place.source, lambda target: insert(target, 1))
        return asyncio.run(markers.awrite(place.source, inside))

    def look() -> Any:
        return markers.look(place.source) if place.plain else asyncio.run(markers.alook(place.source))

    with attempting(1) as reader:
        assert (look(), reader.fence) == (NotApplied(), "marker")
    with attempting(1), pytest.raises(NotSent, match="attempt 1 was refused"):
        write()
    assert place.effects() == 0
    with attempting(2):
        assert write() == {"n": 1}
    with attempting(1):
        assert write() == {"n": 1}
    with attempting(2) as reader:
        assert (look(), reader.fence) == (Applied({"n": 1}), "")
    assert place.effects() == 1


def test_a_body_that_was_left_behind_finds_the_fence(sw: SafeWrite, tmp_path: Path) -> None:
    """It begins its transaction after the look: nothing comes of it, and the answer stays true."""
    with place_at(f"sqlite:///{tmp_path}/own.db", True) as place:
        go_on, over = threading.Event(), threading.Event()
        source = place.source

        def write(n: int) -> Any:
            assert go_on.wait(20.0)
            try:
                return markers.write(source, lambda target: insert(target, n))
            finally:
                over.set()

        tool: Any = sw.write(target="n", timeout=0.5, max_attempts=1, dependency=ORDERS, name="left")(write)
        tool.reconcile(lambda: markers.look(source))
        done = outcome(tool)
        go_on.set()
        assert over.wait(20.0)
        assert (done.state, place.effects(), place.rows()) == ("not_applied", 0, [(1, False)])


def test_sessions_write_with_a_marker_too(sw: SafeWrite, place: Place) -> None:
    """What was added is flushed before the value is kept, in the same transaction."""

    def work(session: Any, n: int) -> int:
        session.add(Shipped(n=n))
        return n

    maker: Any = sessionmaker(place.source) if place.plain else async_sessionmaker(place.source)
    done = outcome(ship(sw, place, work, source=maker))
    assert (done.state, done.value, place.effects()) == ("applied", 1, 1)

    def fails(session: Any, n: int) -> int:
        session.add(Shipped(n=n))
        raise LookupError("a fault of the tool")

    assert outcome(ship(sw, place, fails, source=maker)).state == "not_applied"
    assert place.effects() == 1


def test_the_ledger_is_in_its_own_transaction_in_the_same_database(
    postgres_ledger_url: str, plain: bool
) -> None:
    """What is rolled back is the work, not the record of it."""
    with SafeWrite(postgres_ledger_url) as sw, place_at(postgres_ledger_url, plain) as place:

        def fails(target: Any, n: int) -> Any:
            insert(target, n)
            raise LookupError("a fault of the tool")

        failed, done = outcome(ship(sw, place, fails)), outcome(ship(sw, place))
        assert (failed.state, done.state, place.effects()) == ("not_applied", "applied", 1)
        assert [row.event for row in sw.audit.rows(failed.intent_id)][:2] == ["claimed", "ended"]


# Commits that are lost on the way ----------------------------------------------------------------------------


def on_commit(what: str, times: int = 1) -> Callable[[int, bytes], str]:
    """Do so to the first commits of the tool."""
    left = [what] * times
    return lambda _, query: left.pop() if b"COMMIT" in query and left else ""


def test_a_commit_whose_answer_is_lost_is_found(sw: SafeWrite, cut: tuple[Place, Wire]) -> None:
    """Applied, attributably, and done once."""
    place, between = cut
    between.decide = on_commit("after")
    done = outcome(ship(sw, place))
    assert (done.state, done.evidence, done.attributable) == ("applied", "reconciled", True)
    assert (done.value, place.effects()) == ({"n": 1}, 1)


def test_a_commit_that_never_arrived_is_proven_not_applied(sw: SafeWrite, cut: tuple[Place, Wire]) -> None:
    """And made good where a further attempt is allowed."""
    place, between = cut
    between.decide = on_commit("before")
    done = outcome(ship(sw, place))
    assert (done.state, done.evidence, place.effects()) == ("not_applied", "reconciled", 0)
    between.decide = on_commit("before")
    done = outcome(ship(sw, place, max_attempts=2), 2)
    assert (done.state, done.attempts, place.effects()) == ("applied", 2, 1)


@pytest.mark.parametrize("status", ["aborted", "committed"])
def test_without_a_fence_the_transactions_status_is_the_proof(
    sw: SafeWrite, cut: tuple[Place, Wire], status: str
) -> None:
    """Nothing is left behind; another process does not know the transaction, and says so."""
    place, between = cut
    between.decide = on_commit("before" if status == "aborted" else "after")
    done = outcome(ship(sw, place, own=Markers(fence=False)))
    assert (done.state, place.effects()) == (("not_applied", 0) if status == "aborted" else ("applied", 1))
    assert place.rows() == [] or status == "committed"
    with attempting(1) as reader:
        source, own = place.source, Markers(fence=False)
        assert (own.look(source) if place.plain else asyncio.run(own.alook(source))) == NotApplied()
    assert reader.fence == ""


def test_a_transaction_that_is_still_open_is_waited_for(sw: SafeWrite, cut: tuple[Place, Wire]) -> None:
    """Its commit may still come: nothing is sent, nothing is claimed; once it is over, a recovery settles it."""
    place, between = cut
    between.decide = on_commit("stall")
    tool = ship(sw, place, timeout=2.0)
    with safewrite.run("r1", call_cap=4.0):
        done = outcome(tool)
    assert (done.state, done.may_still_land, place.effects()) == ("unknown", True, 0)
    between.decide = lambda number, query: ""
    between.cut()
    with place.engine.connect() as connection:
        while connection.scalar(OPEN):
            connection.execute(sa.text("SELECT pg_sleep(0.05)"))
    sw.recover()
    with safewrite.run("r1"), safewrite.turn(1):
        later = tool.peek(1)
    assert (later.state, later.evidence, place.effects()) == ("not_applied", "reconciled", 0)


def test_an_open_transaction_is_ended_where_that_is_allowed(sw: SafeWrite, cut: tuple[Place, Wire]) -> None:
    """Its session is terminated, and what became of it is read afterwards: the delayed commit comes to nothing."""
    place, between = cut
    between.decide = on_commit("stall")
    done = outcome(ship(sw, place, own=Markers(terminate=True), timeout=2.0))
    assert (done.state, done.evidence, place.effects()) == ("not_applied", "reconciled", 0)


def test_work_may_try_within_a_savepoint(sw: SafeWrite, place: Place) -> None:
    """As an ORM does to see whether a row is there: only what was tried is undone."""

    def work(target: Any, n: int) -> str:
        insert(target, n)
        with suppress(sa.exc.DBAPIError), target.begin_nested():
            insert(target, n)
            target.execute(sa.text("SELECT * FROM nowhere"))
        return "all is well"

    done = outcome(ship(sw, place, work))
    assert (done.state, done.value, place.effects()) == ("applied", "all is well", 1)


def test_a_failed_statement_that_was_passed_over_is_no_success(
    sw: SafeWrite, postgres_url: str, plain: bool
) -> None:
    """PostgreSQL answers such a COMMIT with a rollback, and the driver says nothing; the marker does."""

    def work(target: Any, n: int) -> str:
        insert(target, n)
        with suppress(sa.exc.DBAPIError):
            target.execute(sa.text("SELECT 1/0"))
        return "all is well"

    with place_at(postgres_url, plain) as place:
        done = outcome(ship(sw, place, work))
        assert (done.state, done.reason, place.effects()) == ("not_applied", "sql_rejected", 0)


def test_a_write_whose_transaction_was_undone_inside_it_is_not_done_without_its_marker(
    sw: SafeWrite, tmp_path: Path, plain: bool
) -> None:
    """`OR ROLLBACK` of SQLite takes the marker with it, and what comes after would be done with nothing to find."""

    def work(target: Any, n: int) -> str:
        with suppress(sa.exc.DBAPIError):
            target.execute(sa.text("INSERT OR ROLLBACK INTO shipped (id, n) VALUES (1, 0), (1, 0)"))
        insert(target, n)
        return "all is well"

    with place_at(f"sqlite:///{tmp_path}/own.db", plain) as place:
        done = outcome(ship(sw, place, work))
        assert (done.state, place.effects()) == ("not_applied", 0)


def test_statements_are_bounded_by_the_attempt(postgres_url: str, sw: SafeWrite) -> None:
    """Those of the work and those of the marker: of 9 s each has 8500 ms."""

    def shown(connection: Any) -> str:
        return str(connection.scalar(sa.text("SHOW statement_timeout")))

    with place_at(postgres_url, True) as place, ManualClock(), attempting(1):
        assert markers.write(place.source, shown) == "8500ms"

    async def main() -> str:
        async def work(connection: Any) -> str:
            return str(await connection.scalar(sa.text("SHOW statement_timeout")))

        return await markers.awrite(place.source, work)

    with place_at(postgres_url, False) as place, ManualClock(), attempting(1):
        assert asyncio.run(main()) == "8500ms"


def test_a_process_remembers_no_more_than_so_many_open_transactions(
    cut: tuple[Place, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest is forgotten first: it is then settled by the fence alone."""
    place, _ = cut
    own = Markers()

    def fails(target: Any) -> Any:
        raise LookupError("a fault of the tool")

    async def afails(target: Any) -> Any:
        raise LookupError("a fault of the tool")

    monkeypatch.setattr("safewrite.adapters.sqlalchemy._KEPT", 2)
    for number in (1, 2, 3):
        with attempting(number, f"k{number}"), pytest.raises(LookupError):
            own.write(place.source, fails) if place.plain else asyncio.run(own.awrite(place.source, afails))
    assert [key for key, _ in own._open] == ["k2", "k3"]


# What is refused ---------------------------------------------------------------------------------------------


def test_a_value_that_cannot_be_kept_undoes_the_write(sw: SafeWrite, place: Place) -> None:
    """A look would have nothing to answer with."""

    def work(target: Any, n: int) -> object:
        insert(target, n)
        return object()

    done = outcome(ship(sw, place, work))
    assert (done.state, done.reason, place.effects()) == ("not_applied", "rejected", 0)
    assert "return plain data from `work`" in str(done.error.__cause__ if done.error else "")


def test_an_attempt_writes_once(place: Place) -> None:
    """A second write would find the marker of the first, and be passed by in silence."""

    async def twice(source: Any) -> None:
        async def inside(target: Any) -> Any:
            return await target.run_sync(insert, 1)

        await markers.awrite(source, inside)
        await markers.awrite(source, inside)

    def twice_plainly(source: Any) -> None:
        markers.write(source, lambda target: insert(target, 1))
        markers.write(source, lambda target: insert(target, 2))

    with attempting(1), pytest.raises(ConfigurationError, match="`a1` has written already"):
        twice_plainly(place.source) if place.plain else asyncio.run(twice(place.source))
    assert place.effects() == 1
    with attempting(2) as reader:
        reader.reads = True
        with pytest.raises(ConfigurationError, match="only reads"):
            markers.write(place.source, lambda target: insert(target, 1))


def test_outside_an_attempt_there_is_no_intent_to_mark(place: Place) -> None:
    """Neither to look for."""
    with pytest.raises(ConfigurationError, match="in the body of a write"):
        markers.write(place.source, lambda target: None)
    with pytest.raises(ConfigurationError, match="in the body of a write"):
        markers.look(place.source)


def guarding(place: Place, own: Markers = markers, **options: Any) -> None:
    """Guard at the start, in the colour under test."""

    async def main() -> None:
        async with place.source.connect() as connection:
            await (await connection.execution_options(**options)).run_sync(own.guard)

    if not place.plain:
        return asyncio.run(main())
    with place.source.connect() as connection:
        own.guard(connection.execution_options(**options))
    return None


def test_the_guard_is_loud_about_what_would_not_protect(place: Place) -> None:
    """No table, one without its key, autocommit: nothing is silently unprotected."""
    guarding(place)
    with pytest.raises(ConfigurationError, match=r"no table `other`.*markers\.table\.create"):
        guarding(place, Markers(name="other"))
    with pytest.raises(ConfigurationError, match="no table `shipped` with the primary key `key`"):
        guarding(place, Markers(name="shipped"))
    with pytest.raises(ConfigurationError, match="under autocommit"):
        guarding(place, isolation_level="AUTOCOMMIT")
    alone = place.source.execution_options(isolation_level="AUTOCOMMIT")
    with attempting(1), pytest.raises(ConfigurationError, match="autocommit"):
        markers.write(alone, print) if place.plain else asyncio.run(markers.awrite(alone, asyncio.sleep))
    assert place.rows() == []


def test_a_commit_that_a_crash_takes_back_is_refused(postgres_url: str) -> None:
    """`synchronous_commit = off`."""
    engine = sa.create_engine(postgres_url, poolclass=sa.NullPool)
    Base.metadata.create_all(engine)
    with engine.connect() as connection:
        connection.execute(sa.text("SET synchronous_commit = off"))
        with pytest.raises(ConfigurationError, match="`synchronous_commit` is off"):
            markers.guard(connection)


def test_other_databases_cannot_hold_markers(tmp_path: Path) -> None:
    """What is not known to work is refused."""
    engine = sa.create_engine(f"sqlite:///{tmp_path}/own.db", poolclass=sa.NullPool)
    engine.dialect.name = "oracle"
    with (
        engine.connect() as connection,
        pytest.raises(ConfigurationError, match="`oracle` cannot hold markers"),
    ):
        markers.guard(connection)


def test_a_look_while_a_transaction_is_open_says_so(postgres_url: str) -> None:
    """In progress is neither applied nor not."""
    seen: list[Any] = []
    own = Markers()
    with place_at(postgres_url, True) as place, attempting(1):
        own.write(place.source, lambda _: seen.append(own.look(place.source)))
    assert seen == [StillRunning()]
