"""A ledger that fails in the middle: nothing is sent without it, and nothing true is hidden because of it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import safewrite
from safewrite import Dependency, LedgerUnavailable, OutcomeUnknown, SafeWrite, ValueNotKept, WriteRejected
from safewrite.shell.debts import Debt, Debts
from safewrite.shell.steps import Steps, carry
from tests.shell.conftest import KEYED, Shell, Tools, attempts, eventually, rows
from tests.shell.remote import LOSE, Remote, Step, reject

pytestmark = pytest.mark.usefixtures("run", "clock")


class Lock:
    """Another program's hold on the database."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def hold(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def let_go(self) -> None:
        self._connection.execute("ROLLBACK")


@pytest.fixture
def lock(database: Path) -> Iterator[Lock]:
    """Holds the ledger when it is told to."""
    made = Lock(database)
    with closing(made._connection):
        yield made


@pytest.fixture
def sw(open_sw: Callable[..., SafeWrite]) -> SafeWrite:
    """A guard that waits for its ledger for 20 ms only."""
    return open_sw(settings={"busy_timeout": 0.02})


@pytest.fixture
def holding(remote: Remote, lock: Lock) -> Callable[[], None]:
    """Has the next body end while somebody else holds the ledger."""
    write = remote.write

    def next_one() -> None:
        async def wrapped(*args: Any, **kwargs: Any) -> str:
            remote.write = write  # type: ignore[method-assign]
            lock.hold()
            return await write(*args, **kwargs)

        remote.write = wrapped  # type: ignore[method-assign]

    return next_one


def test_a_claim_that_cannot_be_written_sends_nothing(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock
) -> None:
    """Refused as never sent; once the ledger works again the same call is carried out."""
    cancel = tool(sw)
    lock.hold()
    with pytest.raises(LedgerUnavailable) as told:
        shell.call(cancel, "sub_1")
    assert "safe to call" in told.value.for_model() or "call it again" in told.value.for_model()
    lock.let_go()
    assert shell.call(cancel, "sub_1") == "sub_1 done"
    assert remote.count() == 1


def test_a_claim_that_fails_in_the_middle_keeps_no_place(
    shell: Shell, tool: Tools, sw: SafeWrite, database: Path
) -> None:
    """It had leave to send by then, and gives that back: the next call is not told that all places are taken."""
    cancel = tool(sw, dependency=Dependency("billing", max_concurrency=1))
    with closing(sqlite3.connect(database)) as other:
        other.execute(
            "CREATE TRIGGER full BEFORE INSERT ON safewrite_audit BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        with pytest.raises(LedgerUnavailable):
            shell.call(cancel, "sub_1")
        other.execute("DROP TRIGGER full")
    assert shell.call(cancel, "sub_1") == "sub_1 done"


def test_an_applied_outcome_that_cannot_be_written_is_told(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock, holding: Callable[[], None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """The value is returned, `recorded` is False, the failure logged; the same process stores it at its next look."""
    cancel = tool(sw, read=None)
    holding()
    outcome = shell.call(cancel.outcome, "sub_1")
    lock.let_go()
    assert (outcome.state, outcome.value, outcome.recorded, outcome.sent) == (
        "applied",
        "sub_1 done",
        False,
        True,
    )
    assert outcome.error is None
    assert any(r.levelno == logging.ERROR and "could not record" in r.message for r in caplog.records)
    assert cancel.peek("sub_1").state == "unknown"
    again = shell.call(cancel.outcome, "sub_1")
    assert (again.state, again.value, again.recorded, again.replayed) == ("applied", "sub_1 done", True, True)
    with safewrite.turn(2):
        assert shell.call(cancel.outcome, "sub_1").sent  # it was told, so a later wish is a new one
    assert remote.count() == 2


def test_a_value_that_was_read_and_cannot_be_written_is_told(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock
) -> None:
    """The read said what the write returned; that nobody could record it takes the value from nobody."""
    cancel = tool(sw)
    remote.next(LOSE)
    read = remote.by_key

    def holding(key: str) -> Any:
        lock.hold()
        return read(key)

    remote.by_key = holding  # type: ignore[method-assign]
    outcome = shell.call(cancel.outcome, "sub_1")
    lock.let_go()
    assert (outcome.state, outcome.recorded, outcome.has_value, outcome.value) == (
        "applied",
        False,
        True,
        "sub_1 done",
    )
    assert remote.count() == 1


def test_an_applied_outcome_that_was_lost_with_its_process_is_read_back(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock, holding: Callable[[], None],
    open_sw: Callable[..., SafeWrite],
) -> None:  # fmt: skip
    """What the ledger could not store a later look finds: read, not sent again."""
    cancel = tool(sw)
    holding()
    assert shell.call(cancel, "sub_1") == "sub_1 done"
    lock.let_go()
    other = tool(open_sw(settings={"operation_timeout": 60.0}))
    outcome = shell.call(other.outcome, "sub_1")
    assert (outcome.state, outcome.evidence, outcome.sent) == ("applied", "reconciled", False)
    assert (remote.count(), remote.reads) == (1, 1)


def test_a_refusal_that_cannot_be_written_is_told_while_nobody_else_can_have_sent(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock, holding: Callable[[], None]
) -> None:
    """The only attempt, under its own live lease, was rejected: that stays true."""
    cancel = tool(sw, read=None)
    remote.next(reject())
    holding()
    with pytest.raises(WriteRejected) as told:
        shell.call(cancel, "sub_1")
    lock.let_go()
    assert told.value.outcome is not None
    assert told.value.outcome.recorded is False
    again = shell.call(cancel.outcome, "sub_1")
    assert (again.state, again.recorded, len(remote.attempts)) == ("not_applied", True, 1)


def test_a_refusal_after_an_open_attempt_that_cannot_be_written_is_unknown(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock, holding: Callable[[], None]
) -> None:
    """It says nothing about the first attempt, recorded or not."""
    cancel = tool(sw, read=None, dependency=KEYED, max_attempts=1)
    remote.next(LOSE, reject())
    assert shell.call(cancel.outcome, "sub_1").state == "unknown"
    holding()
    outcome = shell.call(cancel.outcome, "sub_1")
    lock.let_go()
    assert (outcome.state, outcome.reason, outcome.recorded) == ("unknown", "not_recorded", False)
    assert (remote.count(), len(remote.attempts)) == (1, 2)


def test_an_ambiguous_ending_that_cannot_be_written_is_unknown_and_found_later(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock, holding: Callable[[], None]
) -> None:
    """No read is made on a record that cannot be written; the next call makes it."""
    cancel = tool(sw)
    remote.next(LOSE)
    holding()
    with pytest.raises(OutcomeUnknown) as told:
        shell.call(cancel, "sub_1")
    lock.let_go()
    assert (told.value.reason, told.value.outcome.recorded) == ("not_recorded", False)  # type: ignore[union-attr]
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.value, outcome.evidence) == ("applied", "sub_1 done", "reconciled")
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_a_ledger_that_fails_before_a_second_attempt_leaves_it_unknown(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock
) -> None:
    """The first attempt is on record and open, the second cannot be claimed: unknown, with that as its reason."""
    cancel = tool(sw, read=None, dependency=KEYED, max_attempts=1)
    remote.next(LOSE)
    assert shell.call(cancel.outcome, "sub_1").state == "unknown"
    lock.hold()
    outcome = shell.call(cancel.outcome, "sub_1")
    lock.let_go()
    assert (outcome.state, outcome.reason, outcome.sent) == ("unknown", "ledger_unavailable", False)
    assert len(remote.attempts) == 1


def test_a_claim_that_stood_while_nobody_could_know_holds_up_nobody_later(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was committed, but neither that nor the look behind it could be answered: this process knows of no body."""
    cancel = tool(sw, read=None)
    asking = sw.ledger.asking

    def unavailable(*_: object) -> Any:
        raise LedgerUnavailable(reason="ledger_unreachable")

    with monkeypatch.context() as patch:
        patch.setattr(sw.ledger, "asking", lambda *a: replace(asking(*a), told=unavailable))
        patch.setattr(sw.ledger, "claimed", unavailable)
        told = shell.call(cancel.outcome, "sub_1")
    assert (told.state, told.reason, told.attempts, told.sent) == ("unknown", "ledger_unavailable", 1, False)
    with monkeypatch.context() as patch:
        patch.setattr(sw.ledger, "claimed", unavailable)
        assert shell.call(cancel.options(deadline=5.0).outcome, "sub_1").state == "unknown"  # not yet
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts, remote.count()) == ("applied", 2, 1)
    word = "interrupted" if shell.plain else "cancelled"
    assert f"{word}_before_start" in [row["reason"] for row in rows(sw, outcome)]


def test_a_ledger_that_fails_beside_an_applied_write_still_replays(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock
) -> None:
    """A replay only reads, so a write lock elsewhere does not hold it up."""
    cancel = tool(sw)
    shell.call(cancel, "sub_1")
    lock.hold()
    outcome = shell.call(cancel.outcome, "sub_1")
    lock.let_go()
    assert (outcome.state, outcome.value, outcome.replayed) == ("applied", "sub_1 done", True)


def test_a_ledger_that_cannot_even_be_read_leaves_everything_unknown(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what stands in it, so a refusal cannot be told as "never sent"."""
    cancel = tool(sw)
    shell.call(cancel, "sub_1")

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise LedgerUnavailable(reason="ledger_io")

    monkeypatch.setattr(sw.ledger, "asking", broken)
    monkeypatch.setattr(sw.ledger, "find", broken)
    outcome = shell.call(cancel.outcome, "sub_2")
    assert (outcome.state, outcome.reason, outcome.sent) == ("unknown", "ledger_unavailable", False)
    assert remote.count() == 1


def test_the_late_end_of_an_abandoned_body_that_cannot_be_written_is_kept_for_the_next_look(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock
) -> None:
    """Evidence that comes while the ledger is held is stored as soon as somebody asks."""
    cancel = tool(sw, read=None, timeout=1.0)
    remote.next(Step(hangs=True, stubborn=True))
    assert shell.call(cancel.outcome, "sub_1").state == "unknown"
    lock.hold()
    remote.gate.open()
    assert eventually(lambda: sw.debts._by_key)
    lock.let_go()
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.value, outcome.evidence) == ("applied", "sub_1 done", "late_response")


def test_a_ledger_held_for_longer_keeps_what_is_owed(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock, holding: Callable[[], None]
) -> None:
    """A look that comes too early changes nothing about it."""
    cancel = tool(sw, read=None)
    holding()
    assert shell.call(cancel, "sub_1") == "sub_1 done"
    assert shell.call(cancel.options(deadline=5.0).outcome, "sub_1").state == "unknown"
    lock.let_go()
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.value) == ("applied", "sub_1 done")
    assert [r["event"] for r in rows(sw, outcome)].count("ended") == 1


def test_what_is_owed_is_stored_in_the_order_in_which_it_happened() -> None:
    """Also what comes while an earlier one is tried in vain: rows that change places cannot follow on each other."""
    debts, stored, down = Debts(), list[str](), True

    def owe(what: str, meanwhile: str = "") -> None:
        def pay() -> Steps[None]:
            if down:
                if meanwhile:
                    owe(meanwhile)
                raise LedgerUnavailable(reason="ledger_busy")
            stored.append(what)
            yield from ()

        debts.add(Debt("key", what, pay))

    owe("first", meanwhile="third")
    owe("second")
    carry(debts.settle("key"))
    assert stored == []
    down = False
    carry(debts.settle("key"))
    assert stored == ["first", "second", "third"]


def test_what_is_owed_and_stands_otherwise_is_let_go(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, lock: Lock, holding: Callable[[], None],
) -> None:  # fmt: skip
    """A webhook proved the attempt meanwhile: the fact that is owed adds to it, and takes nothing back."""
    cancel = tool(sw, read=None)
    remote.next(LOSE)
    holding()
    first = shell.call(cancel.outcome, "sub_1")
    lock.let_go()
    sw.deliver(attempts(sw, first)[0].id, "by webhook")
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.value) == ("applied", "by webhook")
    assert remote.count() == 1


def test_a_ledger_that_fails_while_a_value_is_replayed_hides_no_applied_write(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write is known to be applied by then: the value is missing, and nobody hears that nothing was sent."""
    cancel = tool(sw)
    shell.call(cancel, "sub_1")

    def failing(*_: object) -> str:
        raise LedgerUnavailable(reason="ledger_unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(sw.ledger, "value", failing)
        outcome = shell.call(cancel.outcome, "sub_1")
        assert (outcome.state, outcome.has_value, outcome.replayed) == ("applied", False, True)
        with pytest.raises(ValueNotKept):
            shell.call(cancel, "sub_1")
    assert shell.call(cancel, "sub_1") == "sub_1 done"
    assert remote.count() == 1
