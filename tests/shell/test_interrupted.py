"""An interrupt of the plain shell, at the places where a program spends its time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from safewrite import Dependency, SafeWrite
from safewrite.core.fold import Impossible
from safewrite.shell import debts, sync
from safewrite.shell.clock import use
from safewrite.shell.steps import carry
from safewrite.testing import ManualClock
from tests.shell.conftest import Shell, Tools, attempts, eventually
from tests.shell.remote import LOSE, Remote, Step

pytestmark = pytest.mark.usefixtures("run")


class Interrupting(ManualClock):
    """A clock under which the next wait for an event is interrupted, once what `before` waits for has happened."""

    def __init__(self) -> None:
        super().__init__(auto=True)
        self.before: Any = None

    def wait(self, event: threading.Event, seconds: float) -> bool:
        before, self.before = self.before, None
        if before is None:
            return super().wait(event, seconds)
        before(event)
        raise KeyboardInterrupt


@pytest.fixture
def clock() -> Iterator[Interrupting]:
    """That clock, in place."""
    with Interrupting() as made:
        yield made


@pytest.fixture
def remote() -> Iterator[Remote]:
    """A dependency of plain tools."""
    made = Remote("plain")
    yield made
    made.gate.open()


@pytest.fixture
def cancel(remote: Remote, sw: SafeWrite, open_sw: Any) -> Any:
    """A plain tool that runs in a thread."""
    return Tools(Shell("plain"), remote, open_sw)(sw, timeout=5.0)


def test_an_interrupt_while_a_body_runs_gives_it_up_and_keeps_its_late_end(
    cancel: Any, remote: Remote, clock: Interrupting, sw: SafeWrite
) -> None:
    """Raised at once; the body goes on, and what it comes to is recorded."""
    remote.next(Step(hangs=True, stubborn=True))
    clock.before = lambda event: remote.arrived.event.wait(10)
    with pytest.raises(KeyboardInterrupt):
        cancel("sub_1")
    record = cancel.peek("sub_1")
    (attempt,) = attempts(sw, record)
    assert (record.state, attempt.reason, attempt.gave_up, attempt.ended) == (
        "unknown",
        "interrupted",
        True,
        False,
    )
    remote.gate.open()
    assert eventually(lambda: cancel.peek("sub_1").state == "applied")
    assert cancel("sub_1") == "sub_1 done"
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_a_body_hears_that_its_caller_was_interrupted(
    cancel: Any, remote: Remote, clock: Interrupting, sw: SafeWrite
) -> None:
    """`attempt.cancelled` is set as at a limit: a body that looks at it does not go on for nobody."""
    remote.next(Step(applies=False, hangs=True))
    clock.before = lambda event: remote.arrived.event.wait(10)
    with pytest.raises(KeyboardInterrupt):
        cancel("sub_1")
    assert eventually(lambda: attempts(sw, cancel.peek("sub_1"))[0].ended)


def test_an_interrupt_just_after_a_body_ended_records_that_ending(
    cancel: Any, remote: Remote, clock: Interrupting, sw: SafeWrite
) -> None:
    """Its value is not lost with its caller."""
    clock.before = lambda event: event.wait(10)
    with pytest.raises(KeyboardInterrupt):
        cancel("sub_1")
    record = cancel.peek("sub_1")
    assert (record.state, record.value, remote.count()) == ("applied", "sub_1 done", 1)


def test_an_interrupt_before_a_thread_began_the_body_withholds_it(
    cancel: Any, remote: Remote, clock: Interrupting, sw: SafeWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes the start token first decides: then the body never runs, also when its thread comes at last."""
    started: list[Any] = []
    start = sw.pool.start

    def held(job: Any, then: Any = None) -> Any:
        gate = threading.Event()
        started.append(gate)
        return start(lambda: (gate.wait(10), job()), then)

    monkeypatch.setattr(sw.pool, "start", held)
    clock.before = lambda event: None
    with pytest.raises(KeyboardInterrupt):
        cancel("sub_1")
    record = cancel.peek("sub_1")
    assert (record.state, attempts(sw, record)[0].began) == ("not_applied", False)
    monkeypatch.undo()
    started[0].set()
    assert cancel("sub_1") == "sub_1 done"
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_a_body_that_no_thread_begins_in_time_is_withheld_and_tried_again(
    open_sw: Any, remote: Remote, clock: Interrupting, sw: SafeWrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never begun is never sent: the next attempt follows in its place, and the late thread runs nothing."""
    alone = Dependency("billing", max_concurrency=1)
    cancel = Tools(Shell("plain"), remote, open_sw)(sw, timeout=5.0, dependency=alone)
    gate, start, held = threading.Event(), sw.pool.start, [True]

    def slow(job: Any, then: Any = None) -> Any:
        late, held[:] = bool(held), []
        return start((lambda: (gate.wait(10), job())) if late else job, then)

    monkeypatch.setattr(sw.pool, "start", slow)
    outcome = cancel.outcome("sub_1")
    gate.set()
    assert (outcome.state, outcome.attempts) == ("applied", 2)
    assert attempts(sw, outcome)[0].reason == "no_thread_in_time"
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_an_interrupt_while_it_reads_is_recorded(
    cancel: Any, remote: Remote, clock: Interrupting, sw: SafeWrite
) -> None:
    """The read counts as failed, the lease is free, and the next call looks again."""
    remote.next(LOSE)
    waits: list[int] = []
    wait = clock.wait

    def second(event: threading.Event, seconds: float) -> bool:
        waits.append(1)
        if len(waits) == 2:
            raise KeyboardInterrupt
        return wait(event, seconds)

    clock.wait = second  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        cancel("sub_1")
    assert cancel.peek("sub_1").state == "unknown"
    assert cancel("sub_1") == "sub_1 done"
    assert (remote.count(), len(remote.attempts)) == (1, 1)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_the_middle_of_recording_waits_until_it_stands(
    interrupt: type[BaseException],
) -> None:
    """The record is made by another thread then, and Ctrl-C, or the exit of a signal's handler, raised afterwards."""
    made: list[str] = []

    def record() -> Any:
        if threading.current_thread() is threading.main_thread():
            raise interrupt
        made.append(threading.current_thread().name)
        yield from ()

    with pytest.raises(interrupt):
        sync.uninterrupted(record)
    assert made == ["safewrite-record"]


def test_what_is_owed_is_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The oldest is let go, and said to be."""
    monkeypatch.setattr(debts, "MOST", 2)
    owed = debts.Debts()
    for key in ("a", "b", "c"):
        owed.add(debts.Debt(key, "nothing", lambda: iter(())))  # type: ignore[arg-type,return-value]
    assert list(owed._by_key) == ["b", "c"]
    assert "could not record of a" in caplog.text


def test_what_is_owed_and_stands_otherwise_costs_nothing_else() -> None:
    """A fact that cannot follow any more is let go; those that are owed after it are stored."""
    stored: list[str] = []

    def pay(what: str) -> Any:
        if what == "impossible":
            raise Impossible(what)
        stored.append(what)
        yield from ()

    owed = debts.Debts()
    for what in ("first", "impossible", "last"):
        owed.add(debts.Debt("key", what, partial(pay, what)))
    carry(owed.settle("key"))
    assert (stored, owed._by_key) == (["first", "last"], {})


def test_a_clock_that_was_replaced_comes_back() -> None:
    """`use` returns the one before."""
    mine = ManualClock()
    before = use(mine)
    assert use(before) is mine
