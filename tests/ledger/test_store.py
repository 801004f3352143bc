"""Threads, processes and other programs at one ledger."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from safewrite.core.commands import Run
from safewrite.core.events import OutcomeState
from safewrite.errors import LedgerUnavailable
from safewrite.ledger import migrate
from safewrite.ledger.sql import Ledger
from safewrite.ledger.statements import VERSION_TABLE
from tests.ledger.driver import Caller
from tests.ledger.faults import failure, reason

# Many at once ----------------------------------------------------------------------------------------------------

WORKER = """
    import sys
    from safewrite.ledger.sql import Ledger
    from tests.ledger.driver import Caller
    ledger = Ledger("sqlite:///" + sys.argv[1], busy_timeout=30.0)
    sys.stdin.readline()
    print({what})
    ledger.close()
"""


def processes(path: Path, count: int, what: str) -> list[str]:
    """Run so many processes that begin at the same moment; return what each printed."""
    code = textwrap.dedent(WORKER.replace("{what}", what))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(count)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [process.communicate(timeout=120) for process in started]
    assert [error for _, error in told] == [""] * count
    return [out.strip() for out, _ in told]


def test_of_four_processes_one_claims(path: Path) -> None:
    """The first use by several processes at once, and one licence among them."""
    told = processes(path, 4, "type(Caller(ledger).ask()[1]).__name__")
    assert sorted(told) == ["Run", "Watch", "Watch", "Watch"]


def first_use(path: str, gate: Any, number: int) -> None:
    """Be one process of several that use an empty file for the first time."""
    ledger = Ledger(f"sqlite:///{path}", busy_timeout=30.0)
    gate.wait(60)
    Caller(ledger, target=f'"{number}"').ask()
    ledger.close()


def test_six_processes_on_an_empty_file_all_come_up(tmp_path: Path) -> None:
    """Ten times six processes make the tables at the same moment: one does, nobody fails, nobody's claim is lost."""
    context = multiprocessing.get_context("fork")
    for round_ in range(10):
        path = tmp_path / f"{round_}.db"
        gate = context.Barrier(6)
        children = [context.Process(target=first_use, args=(str(path), gate, n)) for n in range(6)]
        for child in children:
            child.start()
        for child in children:
            child.join(120)
        assert [child.exitcode for child in children] == [0] * 6
        db = sqlite3.connect(path)
        assert db.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall() == [(migrate.HEAD,)]
        assert db.execute("SELECT count(*) FROM safewrite_intent").fetchone() == (6,)
        db.close()


def test_processes_that_write_at_once_never_see_a_locked_database(path: Path) -> None:
    """Four processes, fifty writes each: all rows are there, nobody failed."""
    what = (
        "len([Caller(ledger, turn=str(n), target=str(__import__('os').getpid())).write() for n in range(50)])"
    )
    assert processes(path, 4, what) == ["50"] * 4
    db = sqlite3.connect(path)
    assert db.execute("SELECT count(*) FROM safewrite_audit").fetchone() == (400,)
    db.close()


@pytest.mark.sqlite
def test_threads_read_while_one_writes(open_ledger: Callable[[], Ledger]) -> None:
    """Readers use connections of their own while the one that writes is taken, and never wait for it."""
    ledger = open_ledger()
    intent = Caller(ledger).write()
    store = ledger._store

    def inside(unit: Any) -> tuple[list[object], None]:
        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda _: ledger.find(intent.id), range(12)))
        assert ledger.find(intent.id) is not None  # by the writing thread itself
        return found, None

    assert all(found is not None for found in store.write(inside))
    assert 1 <= len(store._own().readers) <= 8


@pytest.mark.sqlite
def test_no_more_connections_are_kept_than_needed(open_ledger: Callable[..., Ledger]) -> None:
    """A crowd of readers gets a connection each; afterwards a few are kept."""
    ledger = open_ledger()
    Caller(ledger).write()
    together = threading.Barrier(20)

    def query(unit: Any) -> int:
        together.wait(10)
        return len(unit.rows(unit.sql.trace, {"trace": "x"}))

    with ThreadPoolExecutor(20) as pool:
        assert sum(pool.map(lambda _: ledger._store.read(query, long=True), range(20))) == 0
    assert len(ledger._store._own().readers) == 8


def test_memory_is_waited_for_no_longer_than_a_file(open_ledger: Callable[..., Ledger]) -> None:
    """The one connection in memory is busy: reading is refused at the limit."""
    ledger = open_ledger(url="sqlite://", busy_timeout=0.01)
    Caller(ledger).write()

    def inside(unit: Any) -> tuple[BaseException | None, None]:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(ledger.find, "x").exception(), None

    error = ledger._store.write(inside)
    assert isinstance(error, LedgerUnavailable)
    assert error.reason == "ledger_busy"


@pytest.mark.sqlite
def test_what_an_interrupt_left_behind_is_undone(open_ledger: Callable[..., Ledger]) -> None:
    """A transaction that was left open, by a second interrupt during the first one's undoing, does not linger."""
    ledger = open_ledger()
    caller = Caller(ledger)
    caller.write()
    held = ledger._store._own().writer
    assert held is not None
    held.raw.execute("BEGIN IMMEDIATE")
    held.raw.execute("UPDATE safewrite_intent SET outcome = 'unknown'")
    found = ledger.find(caller.identity.key)
    assert found is not None
    assert found.state.outcome is OutcomeState.APPLIED
    assert ledger._store._own().writer is not held
    caller(turn="2").write()


@pytest.mark.sqlite
def test_a_unit_cannot_be_begun_inside_another(open_ledger: Callable[..., Ledger]) -> None:
    """A second unit of the same thread would be part of the first: it is refused, and the first goes on."""
    ledger = open_ledger()
    caller = Caller(ledger)

    def inside(unit: Any) -> tuple[str, None]:
        with pytest.raises(LedgerUnavailable) as caught:
            caller(turn="2").ask()
        return caught.value.reason, None

    caller.write()
    assert ledger._store.write(inside) == "ledger_nested"
    caller(turn="3").write()


# Waiting for others ----------------------------------------------------------------------------------------------


def test_a_writer_waits_for_another_program(caller: Caller, locker: sqlite3.Connection) -> None:
    """A lock that is let go in time costs time, not the write."""
    caller.write()
    locker.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.2, lambda: locker.execute("ROLLBACK"))
    timer.start()
    began = time.monotonic()
    assert isinstance(caller(turn="2").ask(at=30.0)[1], Run)
    assert time.monotonic() - began > 0.1
    timer.join()


def test_a_lock_beyond_the_limit_is_a_refusal(
    open_ledger: Callable[..., Ledger], locker: sqlite3.Connection
) -> None:
    """Bounded by the busy timeout; nothing is written, and the next call goes through."""
    ledger = open_ledger(busy_timeout=0.1)
    caller = Caller(ledger)
    done = caller.write()
    locker.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(LedgerUnavailable) as caught:
        caller(turn="2").ask(at=30.0)
    assert time.monotonic() - began < 2.0
    assert reason(caught) == "ledger_busy"
    assert caught.value.key == caller(turn="2").identity.key
    assert caught.value.tool == "cancel"
    assert ledger.find(done.id) is not None  # reading goes on
    locker.execute("ROLLBACK")
    assert isinstance(caller(turn="2").ask(at=30.0)[1], Run)


@pytest.mark.sqlite
def test_a_thread_that_holds_the_ledger_for_long_is_a_refusal(open_ledger: Callable[..., Ledger]) -> None:
    """Threads of one process wait for each other no longer than for other programs."""
    ledger = open_ledger(busy_timeout=0.0)
    caller = Caller(ledger)
    caller.write()

    def inside(unit: Any) -> tuple[LedgerUnavailable, None]:
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(lambda: caller(turn="2").ask()).exception()
        assert isinstance(error, LedgerUnavailable)
        return error, None

    assert ledger._store.write(inside).reason == "ledger_busy"


def test_the_first_use_of_a_locked_file_is_a_refusal(
    open_ledger: Callable[..., Ledger], locker: sqlite3.Connection
) -> None:
    """A file that somebody holds for himself alone cannot even be looked at: refused, and usable afterwards."""
    locker.execute("CREATE TABLE other (a)")
    locker.execute("BEGIN EXCLUSIVE")
    ledger = open_ledger(busy_timeout=0.05)
    for use in (ledger.check, lambda: ledger.find("x")):
        error = failure(use)
        assert error is not None
        assert error.reason == "ledger_busy"
        assert "was not sent" not in str(error)
    with pytest.raises(LedgerUnavailable) as caught:
        Caller(ledger).ask()
    assert reason(caught) == "ledger_busy"
    locker.execute("ROLLBACK")
    assert isinstance(Caller(ledger).ask()[1], Run)


def test_an_upgrade_waits_for_other_writers_up_to_its_limit(
    open_ledger: Callable[..., Ledger], locker: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first use of an empty file that another program writes to, and an upgrade that was asked for."""
    monkeypatch.setattr(migrate, "_LEAST_PATIENCE", 0.0)
    locker.execute("CREATE TABLE other (a)")
    locker.execute("BEGIN IMMEDIATE")
    ledger = open_ledger(busy_timeout=0.05)
    with pytest.raises(LedgerUnavailable) as caught:
        Caller(ledger).ask()
    assert reason(caught) == "ledger_busy"
    timer = threading.Timer(0.2, lambda: locker.execute("ROLLBACK"))
    timer.start()
    ledger.upgrade()
    timer.join()
    monkeypatch.setattr(
        migrate, "upgrade", lambda database, wait=0.05, real=migrate.upgrade: real(database, wait)
    )
    locker.execute("BEGIN IMMEDIATE")
    error = failure(ledger.upgrade)
    assert error is not None
    assert error.reason == "ledger_busy"


def test_changing_the_journal_waits_for_readers(
    open_ledger: Callable[..., Ledger], locker: sqlite3.Connection, path: Path
) -> None:
    """The change to a log written ahead needs the file alone for a moment; it is tried until the limit."""
    open_ledger().upgrade()
    assert locker.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    locker.execute("BEGIN")
    locker.execute("SELECT * FROM safewrite_intent").fetchall()
    patient, hasty = open_ledger(busy_timeout=5.0), open_ledger(busy_timeout=0.05)
    with pytest.raises(LedgerUnavailable) as caught:
        Caller(hasty).ask()
    assert reason(caught) == "ledger_busy"
    timer = threading.Timer(0.2, lambda: locker.execute("COMMIT"))
    timer.start()
    assert isinstance(Caller(patient).ask()[1], Run)
    timer.join()
