"""What a ledger is made with, where it lives, and how it ends."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from safewrite.core.commands import Run
from safewrite.errors import ConfigurationError, LedgerUnavailable
from safewrite.ledger import keeper
from safewrite.ledger.anchor import anchored
from safewrite.ledger.sql import Ledger
from tests.ledger.driver import Caller
from tests.ledger.faults import in_child, open_files

pytestmark = pytest.mark.sqlite

# Forks, memory, the end ------------------------------------------------------------------------------------------


def test_a_forked_child_opens_its_own(open_ledger: Callable[..., Ledger]) -> None:
    """Parent and child both write after a fork, each by its own connections, even if a thread held the lock."""
    caller = Caller(open_ledger(busy_timeout=0.2))
    caller.write()
    store = caller.ledger._store
    own = store._own()

    def child() -> object:
        fresh = store._own()
        intent = caller(turn="child", target='"child"').write()
        return [fresh is own, fresh.writer is own.writer, intent.state.outcome.value]

    def inside(unit: Any) -> tuple[object, None]:
        return in_child(child), None

    # The parent is inside a transaction here: its lock is held, and so is that of the file.
    assert store.write(inside) == "LedgerUnavailable: ledger_busy"
    assert in_child(child) == [False, False, "applied"]
    assert store._own() is own
    done = caller(turn="parent").write()
    assert caller.ledger.verify(done.id) == ()
    assert caller.ledger.find(caller(turn="child", target='"child"').identity.key) is not None


def test_a_child_s_child_opens_its_own(open_ledger: Callable[..., Ledger]) -> None:
    """What a child has opened belongs to it as the parent's belongs to the parent."""
    caller = Caller(open_ledger())
    store = caller.ledger._store

    def grandchild(own: object) -> object:
        intent = caller(turn="grandchild", target='"grandchild"').write()
        return [store._own() is own, intent.state.outcome.value]

    def child() -> object:
        caller(turn="child", target='"child"').write()
        own = store._own()
        return in_child(lambda: grandchild(own))

    assert in_child(child) == [False, "applied"]


def test_a_child_does_not_close_what_is_its_parent_s(caller: Caller) -> None:
    """Closing the ledger in the child leaves the parent's connections alone."""
    caller.write()
    assert in_child(lambda: caller.ledger.close()) is None
    assert isinstance(caller(turn="2").ask(at=30.0)[1], Run)


def test_what_a_child_wrote_stays_when_its_parent_is_done(open_ledger: Callable[..., Ledger]) -> None:
    """The parent is not the last to have the file open: its end takes nothing away that the child goes on with."""
    caller = Caller(open_ledger())
    caller.write()
    one, two = (caller(turn=name, target=name) for name in ("one", "two"))
    (written, told), (over, done) = os.pipe(), os.pipe()

    def child() -> object:
        one.write()
        os.write(told, b".")
        os.read(over, 1)
        return two.write().state.outcome.value

    def parent() -> None:
        os.read(written, 1)
        caller.ledger.close()
        os.write(done, b".")

    with ThreadPoolExecutor(1) as threads:
        closing = threads.submit(parent)
        assert in_child(child) == "applied"
        closing.result(20)
    later = open_ledger()
    assert [later.find(each.identity.key) is not None for each in (caller, one, two)] == [True] * 3


def test_a_child_finds_no_file_of_any_ledger_open(open_ledger: Callable[..., Ledger], tmp_path: Path) -> None:
    """Neither that which writes nor those that read: SQLite would take its parent's locks for its own."""
    ledgers = [open_ledger(url=f"sqlite:///{tmp_path / name}") for name in ("one.db", "two.db")]
    for ledger in ledgers:
        Caller(ledger).write()
        ledger.open_intents()
        own = ledger._store._own()
        assert (own.writer is not None, len(own.readers)) == (True, 1)
    assert in_child(lambda: open_files(tmp_path)) == []
    for ledger in ledgers:
        assert Caller(ledger, turn="2").write().state.outcome.value == "applied"


def test_a_fork_waits_for_what_is_being_written_and_read(open_ledger: Callable[..., Ledger]) -> None:
    """A child forked beside another thread's transaction, or beside its long look, writes as it would alone."""
    caller = Caller(open_ledger(busy_timeout=5.0))
    caller.write()
    store = caller.ledger._store
    own, begun = store._own(), threading.Barrier(3)

    def until_the_fork(_: Any) -> tuple[None, None]:
        begun.wait(20)
        while not own.forking:
            begun.broken  # noqa: B018 - it is the fork that is waited for, which waits for this
        return None, None

    with ThreadPoolExecutor(2) as threads:
        busy = [threads.submit(store.write, until_the_fork)]
        busy.append(threads.submit(store.read, until_the_fork, long=True))
        begun.wait(20)
        wrote = in_child(lambda: caller(turn="child").write().state.outcome.value)
        for each in busy:
            each.result(20)
    assert wrote == "applied"
    assert caller(turn="parent").write().state.outcome.value == "applied"


def test_a_ledger_in_memory_works_and_is_one_process_s(open_ledger: Callable[..., Ledger]) -> None:
    """All threads share it; a child is told that it has none, rather than an empty one."""
    ledger = open_ledger(url="sqlite://")
    caller = Caller(ledger)
    done = caller.write()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: ledger.find(done.id), range(8)))
    assert all(intent is not None and intent.state == done.state for intent in found)
    assert ledger.open_intents() == []
    assert ledger.check().current
    ledger.upgrade()
    assert ledger.verify(done.id) == ()
    told = in_child(lambda: caller(turn="2").ask())
    assert told == "LedgerUnavailable: ledger_forked"


def test_an_error_in_memory_keeps_the_ledger(open_ledger: Callable[..., Ledger]) -> None:
    """The connection in memory is the ledger: it is rolled back, never given up."""
    ledger = open_ledger(url="sqlite:///:memory:")
    caller = Caller(ledger)
    done = caller.write()
    with pytest.raises(ZeroDivisionError):
        ledger._store.write(lambda unit: (1 // 0, None))
    with pytest.raises(LedgerUnavailable):
        ledger.select(_nonsense())
    assert ledger.find(done.id) is not None


def _nonsense() -> Any:
    from sqlalchemy import text

    return text("SELECT nonsense FROM nowhere")


def test_after_closing_everything_is_released(path: Path) -> None:
    """No file stays open, the log is folded into the database, and later calls say that it is closed."""
    ledger = Ledger(f"sqlite:///{path}")
    caller = Caller(ledger)
    caller.write()
    ledger.open_intents()
    ledger.close()
    ledger.close()
    assert open_files(path) == []
    assert not path.with_name("agent.db-wal").exists()
    for use in (lambda: ledger.find("x"), lambda: caller(turn="2").ask(), lambda: ledger.open_intents()):
        with pytest.raises(LedgerUnavailable) as caught:
            use()
        assert caught.value.reason == "ledger_closed"


def test_closing_while_others_work(path: Path) -> None:
    """A unit that runs is waited for; a reader closes its own connection when it is done; a waiting unit is told."""
    ledger = Ledger(f"sqlite:///{path}", busy_timeout=5.0)
    caller = Caller(ledger)
    done = caller.write()
    inside, go = threading.Barrier(3), threading.Event()

    def slow(unit: Any) -> Any:
        inside.wait(10)
        go.wait(10)
        return unit.row(unit.sql.revision, {"id": done.id}), None

    with ThreadPoolExecutor(4) as pool:
        reading = pool.submit(lambda: ledger._store.read(slow, long=True))
        writing = pool.submit(lambda: ledger._store.write(slow))
        inside.wait(10)
        waiting = pool.submit(lambda: caller(turn="2").write())
        closing = pool.submit(ledger.close)
        go.set()
        assert writing.result(10)[0] == 2
        assert reading.result(10)[0][0] == 2
        closing.result(10)
        error = waiting.exception(10)
    assert error is None or (isinstance(error, LedgerUnavailable) and error.reason == "ledger_closed")
    assert open_files(path) == []


def test_closing_does_not_wait_for_ever(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that does not end keeps its connection until it does; the ledger is closed all the same."""
    monkeypatch.setattr(keeper, "PATIENCE", 0.0)
    ledger = Ledger(f"sqlite:///{path}", busy_timeout=0.05)
    caller = Caller(ledger)
    caller.write()
    inside, go = threading.Event(), threading.Event()

    def stuck(unit: Any) -> tuple[int, None]:
        inside.set()
        go.wait(10)
        return len(unit.rows(unit.sql.trace, {"trace": "x"})), None

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: ledger._store.write(stuck))
        inside.wait(10)
        ledger.close()
        with pytest.raises(LedgerUnavailable):
            caller(turn="2").ask()
        go.set()
        assert writing.result(10) == 0
    held = ledger._store._keeper._processes.popitem()[1].writer
    assert held is not None
    held.close()


def test_every_connection_is_durable_and_keeps_references(open_ledger: Callable[..., Ledger]) -> None:
    """The one that writes and those that read have the same promises: full synchronisation, references held."""
    ledger = open_ledger()
    Caller(ledger).write()
    ledger.open_intents()
    own = ledger._store._own()
    assert own.writer is not None
    for held in (own.writer, *own.readers):
        assert held.raw.execute("PRAGMA synchronous").fetchone() == (2,)
        assert held.raw.execute("PRAGMA foreign_keys").fetchone() == (1,)
    assert len(own.readers) == 1


def test_after_closing_those_that_do_not_wait_are_refused_alike(caller: Caller) -> None:
    """A coroutine hears of it where it asks what came of its order, as the same error as a thread."""
    intent = caller.write()
    caller.ledger.close()
    order = caller.ledger.whether_moved_on(intent)
    woken: list[int] = []
    place = order.later(lambda: woken.append(1))
    with pytest.raises(LedgerUnavailable) as told:
        order.outcome(place)
    assert (told.value.reason, woken) == ("ledger_closed", [1])


def test_closing_before_the_first_use(path: Path) -> None:
    """There is nothing to release."""
    ledger = Ledger(f"sqlite:///{path}")
    ledger.close()
    with pytest.raises(LedgerUnavailable):
        ledger.find("x")


@pytest.mark.parametrize("url", ["sqlite:///agent.db", "sqlite:///file:agent.db?uri=true"])
@pytest.mark.parametrize("folder", ["a", "100% of a", "%41", "a#b", "a?b", "a:b@c"])
def test_a_ledger_follows_its_path_not_the_working_directory(
    url: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path is that of the moment it was given, whatever stands in it: no later one leads to another file."""
    (tmp_path / folder).mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / folder)
    if "?" in folder and "file:" not in url and make_url("sqlite:///a%3Fb").database != "a?b":
        pytest.skip("SQLAlchemy before 2.1 has no way to write it")
    ledger = Ledger(url)
    monkeypatch.chdir(tmp_path / "b")
    Caller(ledger).write()
    ledger.close()
    assert (tmp_path / folder / "agent.db").exists()
    assert not list((tmp_path / "b").iterdir())


def test_a_working_directory_that_no_url_can_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better no ledger than another one, in which nothing was ever sent."""
    (tmp_path / "a?b").mkdir()
    monkeypatch.chdir(tmp_path / "a?b")
    monkeypatch.setattr("sqlalchemy.engine.make_url", lambda _: make_url("sqlite:////elsewhere"))
    with pytest.raises(ConfigurationError, match="cannot stand in a database URL"):
        anchored("sqlite:///agent.db")


# What it is made with ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("", "cannot be read"),
        ("agent.db", "cannot be read"),
        ("postgresql+asyncpg://u:secret@h/db", "names a driver"),
        ("mysql+pymysql://u:secret@h/db", "`mysql` is not supported"),
        ("nonsense://u:secret@h/db", "`nonsense` is not supported"),
        ("sqlite+aiosqlite:///agent.db", "names a driver"),
        ("sqlite+nonsense:///agent.db", "names a driver"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, match: str) -> None:
    """Refused when it is given, without its password."""
    with pytest.raises(ConfigurationError, match=match) as caught:
        Ledger(url)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value.__context__)


@pytest.mark.parametrize("name", ["busy_timeout", "connect_timeout", "statement_timeout"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_limits_are_numbers_of_seconds(name: str, value: float) -> None:
    """Nothing waits for ever, nor for less than nothing."""
    with pytest.raises(ConfigurationError, match=name):
        Ledger("sqlite://", **{name: value})


def test_sqlite_has_no_schemas() -> None:
    """A schema that could only be ignored is refused."""
    with pytest.raises(ConfigurationError, match="schema"):
        Ledger("sqlite://", schema="agents")


def test_a_huge_limit_is_cut_to_what_drivers_can_count(open_ledger: Callable[..., Ledger]) -> None:
    """A very patient ledger works."""
    Caller(open_ledger(busy_timeout=1e12)).write()


def test_nothing_grows_with_the_number_of_writes(open_ledger: Callable[..., Ledger]) -> None:
    """What a write made is gone from memory once its caller lets go."""
    caller = Caller(open_ledger(url="sqlite://"))
    for n in range(100):
        caller(turn=str(n), target=str(n)).write()
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for n in range(100, 300):
        caller(turn=str(n), target=str(n)).write()
    grown = sum(stat.size_diff for stat in tracemalloc.take_snapshot().compare_to(before, "filename"))
    tracemalloc.stop()
    assert grown < 200_000
