"""A disk that does not do its work, and interrupts: whole or absent, and told."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from safewrite.core.commands import Run
from safewrite.core.events import GaveUp, OutcomeState
from safewrite.errors import ConfigurationError, LedgerUnavailable
from safewrite.ledger import store as store_module
from safewrite.ledger.sql import Ledger
from tests.ledger.driver import Caller
from tests.ledger.faults import Raw, break_writer, error_of, failure, reason

pytestmark = pytest.mark.sqlite

# A disk that does not do its work ----------------------------------------------------------------------------------


def test_a_full_disk_refuses_the_claim_and_leaves_nothing(caller: Caller, path: Path) -> None:
    """Every size at which the file is full: the claim is whole or absent, and the ledger works again with room."""
    caller.write()
    ledger = caller.ledger
    raw = ledger._store._own().writer.raw  # type: ignore[union-attr]
    (pages,) = raw.execute("PRAGMA page_count").fetchone()
    full = 0
    for more in range(12):
        raw.execute(f"PRAGMA max_page_count = {pages + more}")
        one = caller(turn=f"t{more}", target="x" * 20_000)
        error = failure(lambda one=one: one.ask(at=50.0))
        if error is None:
            break
        assert error.reason == "ledger_full"
        assert "database or disk is full" in str(error.__cause__)
        assert ledger.find(one.identity.key) is None
        full += 1
        raw = ledger._store._own().writer.raw  # type: ignore[union-attr]
    assert full >= 1
    raw.execute("PRAGMA max_page_count = 1000000")
    last = caller(turn="last", target='"after"')
    last.write()
    for intent in (last, one):
        found = ledger.find(intent.identity.key)
        if found is not None:
            assert ledger.verify(found.id) == ()


def test_a_full_disk_while_recording_the_end_keeps_the_claim(caller: Caller) -> None:
    """The outcome is lost for now, the claim stands as unknown, and the end can be recorded once there is room."""
    intent, _ = caller.ask()
    raw = caller.ledger._store._own().writer.raw  # type: ignore[union-attr]
    (pages,) = raw.execute("PRAGMA page_count").fetchone()
    raw.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerUnavailable) as caught:
        caller.end(intent, value='"' + "x" * 100_000 + '"')
    assert caught.value.reason == "ledger_full"
    found = caller.ledger.find(intent.id)
    assert found is not None
    assert found.state.outcome is OutcomeState.UNKNOWN
    raw.execute("PRAGMA max_page_count = 1000000")
    after, _ = caller.end(intent, value='"' + "x" * 100_000 + '"')
    assert after.state.revision == 2


@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        (sqlite3.SQLITE_IOERR_WRITE, "disk I/O error", "ledger_io"),
        (sqlite3.SQLITE_FULL, "database or disk is full", "ledger_full"),
        (sqlite3.SQLITE_READONLY_DBMOVED, "attempt to write a readonly database", "ledger_read_only"),
        (sqlite3.SQLITE_CORRUPT, "database disk image is malformed", "ledger_corrupt"),
        (sqlite3.SQLITE_INTERNAL, "who knows", "ledger_error"),
    ],
)
def test_an_error_at_every_statement_leaves_nothing(
    open_ledger: Callable[..., Ledger], code: int, message: str, told: str
) -> None:
    """Whichever statement of a claim fails, nothing of it stands, the reason is told, and the next call works."""
    ledger = open_ledger()
    caller = Caller(ledger)
    for failing in range(1, 50):
        count = 0

        def fault(sql: str, raw: Any, failing: int = failing) -> None:
            nonlocal count
            count += 1
            if count == failing:
                raise error_of(code, message)

        break_writer(ledger, fault)
        one = caller(turn=f"t{failing}", target=str(failing))
        error = failure(one.ask)
        if error is None:
            break
        assert error.reason == told
        assert ledger.find(one.identity.key) is None
        assert isinstance(one.ask()[1], Run)
    assert count < failing
    assert failing > 6  # read, begin, look, three rows, commit


def test_a_driver_s_own_error_has_no_code(open_ledger: Callable[..., Ledger]) -> None:
    """An error that does not come from SQLite itself is told as one of the ledger."""
    ledger = open_ledger()

    def fault(sql: str, raw: Any) -> None:
        raise sqlite3.ProgrammingError("Cannot operate on a closed database.")

    break_writer(ledger, fault)
    with pytest.raises(LedgerUnavailable) as caught:
        Caller(ledger).ask()
    assert caught.value.reason == "ledger_error"
    assert isinstance(Caller(ledger).ask()[1], Run)


def test_a_commit_that_failed_in_word_only_counts(open_ledger: Callable[..., Ledger]) -> None:
    """The commit took effect and its answer was an error: the row is looked for, found, and the claim is good."""
    ledger = open_ledger()

    def fault(sql: str, raw: Any) -> None:
        if sql == "COMMIT":
            raw.execute("COMMIT")
            raise error_of(sqlite3.SQLITE_IOERR_FSYNC)

    break_writer(ledger, fault)
    intent, command = Caller(ledger).ask()
    assert command == Run("R1", 1)
    assert ledger.find(intent.id) is not None


def test_a_commit_that_failed_indeed_does_not_count(open_ledger: Callable[..., Ledger]) -> None:
    """The commit took no effect: refused, and nothing is there."""
    ledger = open_ledger()

    def fault(sql: str, raw: Any) -> None:
        if sql == "COMMIT":
            raise error_of(sqlite3.SQLITE_IOERR_FSYNC)

    break_writer(ledger, fault)
    caller = Caller(ledger)
    with pytest.raises(LedgerUnavailable) as caught:
        caller.ask()
    assert reason(caught) == "ledger_io"
    assert ledger.find(caller.identity.key) is None


def test_another_s_row_in_its_place_is_not_taken_for_ours(open_ledger: Callable[..., Ledger]) -> None:
    """The commit took no effect, and another process was faster: its row has our number, but not our hash."""
    ledger, other = open_ledger(), open_ledger()
    caller = Caller(ledger)
    intent, _ = caller.ask()

    def fault(sql: str, raw: Any) -> None:
        if sql == "COMMIT":
            raw.execute("ROLLBACK")
            replace(caller, ledger=other).tell(intent, GaveUp(1, "timeout"))
            raise error_of(sqlite3.SQLITE_IOERR_FSYNC)

    break_writer(ledger, fault)
    error = failure(lambda: caller.end(intent, at=3.0))
    assert error is not None
    assert [row["event"] for row in ledger.rows(intent.id)] == ["claimed", "gave_up"]
    after, _ = caller.end(intent, at=3.0)
    assert after.state.revision == 3


def test_reading_goes_aside_where_the_writing_connection_is_busy(open_ledger: Callable[..., Ledger]) -> None:
    """The connection that writes does not wait by itself; one that only reads does."""
    ledger = open_ledger()
    done = Caller(ledger).write()
    held = ledger._store._own().writer
    assert held is not None
    assert held.raw.execute("PRAGMA busy_timeout").fetchone() == (0,)

    def fault(sql: str, raw: Any) -> None:
        raise error_of(sqlite3.SQLITE_BUSY_RECOVERY, "database is locked")

    break_writer(ledger, fault)
    assert ledger.find(done.id) is not None
    assert len(ledger._store._own().readers) == 1


def test_a_commit_that_nobody_can_look_up_is_a_refusal(
    open_ledger: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If even looking fails, the claim is not used; it stands as an unknown, should it be there after all."""
    ledger = open_ledger()

    def unreachable() -> None:
        raise error_of(sqlite3.SQLITE_CANTOPEN, "unable to open database file")

    def fault(sql: str, raw: Any) -> None:
        if sql == "COMMIT":
            raw.execute("COMMIT")
            monkeypatch.setattr(ledger._database.engine, "raw_connection", unreachable)
            raise error_of(sqlite3.SQLITE_IOERR_FSYNC)

    break_writer(ledger, fault)
    caller = Caller(ledger)
    with pytest.raises(LedgerUnavailable) as caught:
        caller.ask()
    assert reason(caught) == "ledger_io"
    monkeypatch.undo()
    found = ledger.find(caller.identity.key)
    assert found is not None
    assert found.state.outcome is OutcomeState.UNKNOWN


@pytest.mark.parametrize("step", ["raw_connection", "journal_mode"])
def test_a_database_that_was_usable_is_unavailable_not_misconfigured(
    open_ledger: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A file that can no longer be opened, or written, after it once was: the end of a write is not recorded."""
    ledger = open_ledger()
    caller = Caller(ledger)
    intent, _ = caller.ask()
    ledger._store._own().writer = None

    def unreachable() -> None:
        raise error_of(sqlite3.SQLITE_READONLY, "attempt to write a readonly database")

    def fault(sql: str, raw: Any) -> None:
        if "journal_mode" in sql:
            unreachable()

    if step == "raw_connection":
        monkeypatch.setattr(ledger._database.engine, "raw_connection", unreachable)
    else:
        break_writer(ledger, fault)
    error = failure(lambda: caller.end(intent))
    assert error is not None
    assert error.reason == "ledger_read_only"
    assert "was not sent" not in str(error)


def test_of_what_a_database_says_one_line_is_told(open_ledger: Callable[..., Ledger]) -> None:
    """The further ones may hold values."""
    ledger = open_ledger()

    def fault(sql: str, raw: Any) -> None:
        raise error_of(sqlite3.SQLITE_FULL, "disk is full\nDETAIL: the key (hunter2)")

    break_writer(ledger, fault)
    error = failure(Caller(ledger).ask)
    assert error is not None
    assert "disk is full" in str(error)
    assert "hunter2" not in f"{error}{error.for_model()}"


BUSY = ["BUSY", "BUSY_RECOVERY", "BUSY_SNAPSHOT", "LOCKED", "LOCKED_SHAREDCACHE", "PROTOCOL"]
"""How SQLite says that somebody else is at the file: the last one, of its own locks in the log, under load."""


@pytest.mark.parametrize("code", BUSY)
@pytest.mark.parametrize("where", ["BEGIN IMMEDIATE", "COMMIT"])
def test_what_is_busy_is_repeated(open_ledger: Callable[..., Ledger], where: str, code: str) -> None:
    """A commit that met a lock left its transaction whole: it is tried again, up to the limit; so is a beginning."""
    ledger, failures = open_ledger(busy_timeout=1.0), [2]

    def fault(sql: str, raw: Any) -> None:
        if sql == where and failures[0]:
            failures[0] -= 1
            raise error_of(getattr(sqlite3, f"SQLITE_{code}"), "database is locked")

    break_writer(ledger, fault)
    caller = Caller(ledger)
    caller.write()
    hasty, failures[0] = open_ledger(busy_timeout=0.02), 10**6
    break_writer(hasty, fault)
    other = Caller(hasty, target='"other"')
    with pytest.raises(LedgerUnavailable) as caught:
        other.ask()
    assert reason(caught) == "ledger_busy"
    assert hasty.find(other.identity.key) is None


def test_a_commit_of_nothing_may_fail(open_ledger: Callable[..., Ledger]) -> None:
    """A unit that wrote nothing has nothing to lose."""
    ledger = open_ledger()

    def fault(sql: str, raw: Any) -> None:
        if sql == "COMMIT":
            raise error_of(sqlite3.SQLITE_IOERR_FSYNC)

    break_writer(ledger, fault)
    _, command = Caller(ledger).ask(sends=0, quiet=True)
    assert command.reason == "not_sent"


def test_a_rollback_that_fails_costs_the_connection(open_ledger: Callable[..., Ledger]) -> None:
    """A connection in doubt is given up; the next call opens another."""
    ledger = open_ledger()

    def fault(sql: str, raw: Any) -> None:
        if sql.startswith("INSERT INTO safewrite_audit") or sql == "ROLLBACK":
            raise error_of(sqlite3.SQLITE_IOERR_WRITE)

    break_writer(ledger, fault)
    caller = Caller(ledger)
    with pytest.raises(LedgerUnavailable):
        caller.ask()
    assert ledger._store._own().writer is None
    assert isinstance(caller.ask()[1], Run)


def test_a_reader_that_fails_is_given_up(open_ledger: Callable[..., Ledger]) -> None:
    """A connection that only reads is replaced after an error, whatever it was."""
    ledger = open_ledger()
    Caller(ledger).write()
    assert ledger.open_intents() == []
    (held,) = ledger._store._own().readers
    raw = held.raw

    def fault(sql: str) -> None:
        raise error_of(sqlite3.SQLITE_IOERR_READ)

    held.raw = Raw(raw, fault)
    with pytest.raises(LedgerUnavailable) as caught:
        ledger.open_intents()
    assert caught.value.reason == "ledger_io"
    assert not ledger._store._own().readers
    with pytest.raises(LookupError):
        ledger.verify("nobody")
    assert ledger.open_intents() == []


def test_a_journal_that_is_busy_is_tried_again(open_ledger: Callable[..., Ledger]) -> None:
    """The change may be refused at once, without waiting: it is asked for again inside the limit."""
    ledger, failures = open_ledger(busy_timeout=5.0), [3]

    def fault(sql: str, raw: Any) -> None:
        if "journal_mode" in sql and failures[0]:
            failures[0] -= 1
            raise error_of(sqlite3.SQLITE_BUSY, "database is locked")

    break_writer(ledger, fault)
    Caller(ledger).write()
    assert failures == [0]


def test_a_journal_that_cannot_be_changed_is_refused(open_ledger: Callable[..., Ledger]) -> None:
    """An error in place of the change is told with what to do."""
    ledger = open_ledger()

    def fault(sql: str, raw: Any) -> None:
        if "journal_mode" in sql:
            raise error_of(sqlite3.SQLITE_READONLY, "attempt to write a readonly database")

    break_writer(ledger, fault)
    with pytest.raises(ConfigurationError, match="is read-only"):
        Caller(ledger).ask()


def test_a_file_system_without_the_log_is_refused(
    open_ledger: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the journal does not become a log written ahead, nothing is written."""
    ledger = open_ledger()
    ledger.find("x")
    held = ledger._store._own().writer

    class Stubborn(Raw):
        def execute(self, sql: str, *parameters: Any) -> Any:
            if "journal_mode" in sql:
                return self._raw.execute("SELECT 'delete'")
            return self._raw.execute(sql, *parameters)

    held.raw = Stubborn(held.raw, lambda _: None)  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match="journal mode is `delete`"):
        Caller(ledger).ask()


# Interrupts ------------------------------------------------------------------------------------------------------


def test_an_interrupt_anywhere_leaves_a_ledger_that_works(open_ledger: Callable[..., Ledger]) -> None:
    """Ctrl-C wherever the store can meet it: the claim is whole or absent, and nobody is locked out."""
    ledger = open_ledger(busy_timeout=0.2)
    caller = Caller(ledger)
    caller.write()
    ours = str(Path(store_module.__file__).parent)
    finished = False
    struck = 0
    for place in range(1, 2000):
        count = 0

        def profile(frame: Any, event: str, arg: object, place: int = place) -> None:
            nonlocal count
            # Where the interpreter looks for signals: on entering a function, and after a call returned.
            if frame.f_code.co_filename.startswith(ours) and event in ("call", "c_return"):
                count += 1
                if count == place:
                    raise KeyboardInterrupt

        one = caller(turn=f"t{place}", target=str(place))
        sys.setprofile(profile)
        try:
            one.ask()
            finished = True
        except KeyboardInterrupt:
            struck += 1
        finally:
            sys.setprofile(None)
        if finished:
            break
        with ThreadPoolExecutor(1) as pool:  # by another thread: a lock that is left held shows
            found = pool.submit(lambda one=one: ledger.find(one.identity.key)).result()
            again = pool.submit(lambda one=one: one.ask()[1]).result()
        assert again == Run("R1", 1)
        assert found is None or found.state.revision == 1
    assert finished
    assert struck > 200


def test_a_real_interrupt_while_waiting(
    open_ledger: Callable[..., Ledger], locker: sqlite3.Connection
) -> None:
    """A signal during the wait for another thread's unit is raised, and the ledger goes on."""
    ledger = open_ledger(busy_timeout=10.0)
    caller = Caller(ledger)
    caller.write()
    hold, go = threading.Event(), threading.Event()

    def inside(unit: Any) -> tuple[None, None]:
        hold.set()
        go.wait(10)
        return None, None

    holder = threading.Thread(target=lambda: ledger._store.write(inside))
    holder.start()
    hold.wait(10)
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        caller(turn="2").ask(at=30.0)
    go.set()
    holder.join()
    timer.join()
    assert isinstance(caller(turn="2").ask(at=30.0)[1], Run)


def test_a_commit_waits_for_the_disk(open_ledger: Callable[..., Ledger]) -> None:
    """A claim outlives a loss of power; with less, a log written ahead reaches the disk some commits later."""
    ledger = open_ledger()
    Caller(ledger).write()
    held = ledger._store._own().writer
    assert held is not None
    assert held.raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert held.raw.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
