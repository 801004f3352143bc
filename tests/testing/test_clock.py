"""The clock that a test moves: what waits for it, and what it does by itself."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import sys
import threading
import time
from collections.abc import Callable
from math import inf

import pytest
from freezegun import freeze_time

from safewrite.shell import clock as seam
from safewrite.shell.threads import Pool
from safewrite.testing import ManualClock
from safewrite.testing import clock as module
from tests.testing.asking import poll


def test_stands_in_for_the_real_clock_inside_its_block_only() -> None:
    """Deadlines and leases run on it between entry and exit."""
    real = seam.clock()
    with ManualClock() as clock:
        assert seam.clock() is clock
    assert seam.clock() is real


def test_stands_still_until_it_is_told_to_go_on() -> None:
    """Real time does not move it, and `advance` moves both of its hands alike."""
    clock = ManualClock(start=1_000.0)
    before = clock.now()
    clock.advance(2.5)
    after = clock.now()
    assert (after.unix - before.unix, after.ticks - before.ticks, clock.elapsed) == (2.5, 2.5, 2.5)
    assert before.unix == 1_000.0
    assert before.clock == after.clock


@pytest.mark.parametrize("seconds", [-1.0, inf, float("nan")])
def test_refuses_to_move_by_anything_but_a_finite_while(seconds: float) -> None:
    """Time that goes back or nowhere would be a fault of the test."""
    with pytest.raises(ValueError, match="finite"):
        ManualClock().advance(seconds)


def test_two_clocks_are_not_comparable() -> None:
    """Each names itself, so that instants of one are never taken for ticks of another."""
    one, two = ManualClock(), ManualClock()
    assert one.now().clock != two.now().clock


def test_a_thread_waits_until_its_time_has_come() -> None:
    """`sleep` ends with the advance that reaches its end, not before."""
    clock, ended = ManualClock(), threading.Event()
    thread = threading.Thread(target=lambda: (clock.sleep(5.0), ended.set()))
    thread.start()
    clock.advance(4.9)
    assert not ended.wait(0.05)
    clock.advance(0.2)
    assert ended.wait(5.0)
    thread.join()


def test_a_thread_learns_of_an_event_without_any_advance() -> None:
    """`wait` ends with the event, and says that it came."""
    clock, event = ManualClock(), threading.Event()
    threading.Timer(0.01, event.set).start()
    assert clock.wait(event, 5.0) is True
    assert clock.elapsed == 0.0


def test_a_wait_that_runs_out_says_so() -> None:
    """`wait` returns False once its seconds have passed."""
    assert ManualClock().wait(threading.Event(), 0.0) is False


def test_a_task_waits_until_its_time_has_come() -> None:
    """`pause` and `wait_for` end with the advance that reaches their end, from whichever thread it comes."""

    async def main() -> tuple[bool, float]:
        clock = ManualClock()
        waiting = asyncio.create_task(clock.wait_for(asyncio.get_running_loop().create_future(), 5.0))
        pausing = asyncio.create_task(clock.pause(3.0))
        await asyncio.sleep(0)
        threading.Thread(target=lambda: clock.advance(3.0)).start()
        await pausing
        assert not waiting.done()
        clock.advance(2.0)
        return await waiting, clock.elapsed

    assert asyncio.run(main()) == (False, 5.0)


def test_a_task_learns_of_a_result_without_any_advance() -> None:
    """`wait_for` ends with the future, cancels nothing, and returns at once where it is done already."""

    async def main() -> tuple[bool, bool, bool]:
        clock, future = ManualClock(), asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, future.set_result, None)
        first = await clock.wait_for(future, 5.0)
        return first, await clock.wait_for(future, 5.0), future.cancelled()

    assert asyncio.run(main()) == (True, True, False)


def test_by_itself_it_passes_pauses_at_once() -> None:
    """With `auto` a sleep of an hour takes no real time, in both colours."""
    began = time.perf_counter()
    with ManualClock(auto=True) as clock:
        clock.sleep(3600.0)
        asyncio.run(clock.pause(3600.0))
        assert clock.elapsed == 7200.0
    assert time.perf_counter() - began < 1.0


def test_by_itself_it_passes_a_wait_for_what_does_not_come() -> None:
    """With `auto` a wait for nothing ends after its seconds, once the real threads had time to get on."""
    with ManualClock(auto=True, patience=0.02) as clock:
        assert clock.wait(threading.Event(), 9.0) is False
        assert clock.elapsed == 9.0


def test_by_itself_it_leaves_time_alone_while_something_comes() -> None:
    """With `auto` a wait for what does come costs no time."""
    with ManualClock(auto=True, patience=5.0) as clock:
        event = threading.Event()
        threading.Timer(0.02, event.set).start()
        assert clock.wait(event, 9.0) is True
        assert clock.elapsed == 0.0


def test_by_itself_it_leaves_time_alone_while_somebody_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that runs, or is kept from it by a loaded machine, is not taken for one that hangs."""
    looks, done = itertools.count(1), threading.Event()

    def works() -> bool:
        if next(looks) == 5:
            done.set()
        return True

    monkeypatch.setattr(module, "MORE", 10**6)
    monkeypatch.setattr(module, "somebody_is_at_work", works)
    with ManualClock(auto=True, patience=0.001) as clock:
        assert clock.wait(done, 9.0) is True
        assert clock.elapsed == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="no other system tells")
def test_who_is_at_work_is_seen() -> None:
    """A thread that computes is; one that waits is not."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            hashlib.pbkdf2_hmac("sha256", b"password", b"salt", 100_000)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert poll(module.somebody_is_at_work)
    finally:
        over.set()
        thread.join()
    assert poll(lambda: not module.somebody_is_at_work())


def test_by_itself_it_goes_on_beside_somebody_who_never_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others that always have work do not hold up time for good."""
    monkeypatch.setattr(module, "somebody_is_at_work", lambda: True)
    with ManualClock(auto=True, patience=0.001) as clock:
        assert clock.wait(threading.Event(), 9.0) is False
        assert clock.elapsed == 9.0


def test_a_body_in_a_thread_that_says_that_it_hangs_costs_its_caller_no_patience() -> None:
    """`block` lets the limit of whoever waits for that very work pass at once."""
    pool, released = Pool(1), threading.Event()
    with ManualClock(auto=True, patience=60.0) as clock:
        assert pool.reserve()
        work = pool.start(lambda: clock.block(released))
        assert clock.wait(work.done, 9.0) is False
        assert clock.elapsed == 9.0
        released.set()
        assert work.done.wait(5.0)
    pool.close()


def test_a_body_in_a_task_that_says_that_it_hangs_costs_its_caller_no_patience() -> None:
    """`ablock` does the same for a coroutine, and hands on what it waited for."""

    async def main() -> tuple[bool, str, float]:
        with ManualClock(auto=True, patience=60.0) as clock:
            released: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(clock.ablock(released))
            in_time = await clock.wait_for(task, 9.0)
            released.set_result("late")
            return in_time, await task, clock.elapsed

    assert asyncio.run(main()) == (False, "late", 9.0)


def test_only_the_wait_for_the_hanging_one_is_cut_short() -> None:
    """Others that wait meanwhile get what they wait for, if it comes within the patience."""
    pool, released, event = Pool(1), threading.Event(), threading.Event()
    with ManualClock(auto=True, patience=60.0) as clock:
        assert pool.reserve()
        work = pool.start(lambda: clock.block(released))
        assert clock.wait(work.done, 1.0) is False
        threading.Timer(0.02, event.set).start()
        assert clock.wait(event, 1.0) is True
        released.set()
        assert work.done.wait(5.0)
    pool.close()


def test_works_with_a_frozen_wall_clock() -> None:
    """Under freezegun it begins at the frozen instant, and tasks and threads are woken all the same."""

    async def main(clock: ManualClock) -> float:
        await clock.pause(60.0)
        assert await clock.wait_for(asyncio.get_running_loop().create_future(), 9.0) is False
        return clock.now().unix

    with freeze_time("2026-11-29 12:00:00"), ManualClock(auto=True, patience=0.02) as clock:
        assert clock.wait(threading.Event(), 31.0) is False
        assert asyncio.run(main(clock)) == 1_795_953_600.0 + 100.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that nobody ends is an error after 20 ms."""
    monkeypatch.setattr(module, "STUCK", 0.02)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "waiting",
    [lambda c: c.sleep(1.0), lambda c: c.wait(threading.Event(), 1.0), lambda c: asyncio.run(c.pause(1.0))],
)
def test_a_wait_that_nobody_ends_is_an_error(waiting: Callable[[ManualClock], object]) -> None:
    """A test that forgets to advance the clock fails instead of hanging."""
    with pytest.raises(RuntimeError, match="nobody advanced the clock"):
        waiting(ManualClock())


def test_the_thread_that_moves_it_ends_with_the_block() -> None:
    """Nothing is left running after the test."""
    with ManualClock(auto=True):
        assert any(t.name == "safewrite-clock" for t in threading.enumerate())
    assert poll(lambda: not any(t.name == "safewrite-clock" for t in threading.enumerate()))
