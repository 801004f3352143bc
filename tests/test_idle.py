"""A body that falls silent, and the signs of life that keep a slow tool alive: in threads and in coroutines."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import safewrite
from safewrite import Attempt, GoalMet, SafeWrite
from safewrite.errors import ConfigurationError
from safewrite.shell.idle import Keepalive, await_while, wait_while
from safewrite.shell.job import Job
from safewrite.testing import ManualClock
from tests.shell.conftest import eventually

WITHIN = 20.0
COLOURS = pytest.mark.parametrize("colour", ["plain", "coroutine"])


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """One `SafeWrite` over a ledger of its own."""
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db") as made:
        made.upgrade()
        yield made


class Body:
    """A call whose body hangs, whatever it is told, until the test lets it go."""

    def __init__(self, sw: SafeWrite, colour: str, reconciled: bool = False, **options: Any) -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        self.attempt: Attempt | None = None
        if colour == "plain":

            @sw.write(target="sub_id", name="cancel", **options)
            def cancel(sub_id: str, attempt: Attempt) -> str:
                self.attempt = attempt
                self.begun.set()
                self.release.wait(WITHIN)
                return "done"
        else:

            @sw.write(target="sub_id", name="cancel", **options)
            async def cancel(sub_id: str, attempt: Attempt) -> str:
                self.attempt = attempt
                self.begun.set()
                waiting = asyncio.get_running_loop().run_in_executor(None, self.release.wait, WITHIN)
                while not waiting.done():
                    try:
                        await asyncio.shield(waiting)
                    except asyncio.CancelledError:
                        continue
                return "done"

        if reconciled:
            cancel.reconcile(lambda sub_id: GoalMet("done"))
        self.tool, self.outcome = cancel, None
        self._thread = threading.Thread(target=self._call, args=(colour,))

    def _call(self, colour: str) -> None:
        with safewrite.run("r1"), safewrite.turn(1):
            if colour == "plain":
                self.outcome = self.tool.outcome("sub_1")
            else:
                self.outcome = asyncio.run(self._acall())

    async def _acall(self) -> Any:
        outcome = await self.tool.outcome("sub_1")
        self.release.set()
        await asyncio.gather(*(t for t in asyncio.all_tasks() if t is not asyncio.current_task()))
        return outcome

    def start(self) -> Attempt:
        self._thread.start()
        assert self.begun.wait(WITHIN)
        assert self.attempt is not None
        return self.attempt

    def end(self) -> Any:
        self._thread.join(WITHIN)
        assert self.outcome is not None
        return self.outcome


@COLOURS
@pytest.mark.parametrize(
    ("which", "idle", "cap", "progress", "fires_at"),
    [("idle", 0.25, 5.0, 5, 0.75), ("timeout", 0.25, 1.0, 100, 1.0), ("timeout", 5.0, 0.25, 0, 0.25)],
)
def test_a_body_is_given_up_at_the_limit_that_runs_out_first(
    sw: SafeWrite, colour: str, which: str, idle: float, cap: float, progress: int, fires_at: float
) -> None:
    """Progress puts off the idle limit, never the absolute one; the row has the reason, the evidence both values."""
    with ManualClock() as clock:
        body = Body(sw, colour, timeout=cap, idle=idle)
        attempt = body.start()
        while clock.elapsed < fires_at:
            assert not attempt.cancelled.wait(0.01)
            if progress:
                attempt.progress()
                progress -= 1
            clock.advance(0.125)
        assert attempt.cancelled.wait(WITHIN)
        while body._thread.is_alive() and not body.release.is_set():
            clock.advance(0.5)  # the grace, in which it does not end either
            body._thread.join(0.01)
        outcome = body.end()
    assert (outcome.state, outcome.may_still_land) == ("unknown", True)
    (row,) = [r for r in sw.audit.rows(outcome.intent_id) if r.event == "gave_up"]
    assert row.reason == which
    kept = sw.ledger.content(outcome.intent_id, row.sequence, "evidence")
    assert kept is not None
    assert f"{idle:g} s" in kept
    assert f"{cap:g} s" in kept
    body.release.set()


@COLOURS
def test_what_comes_after_the_idle_limit_is_a_late_response(sw: SafeWrite, colour: str) -> None:
    """It is evidence, and the call that was told unknown stays told so; the next one is answered by it."""
    with ManualClock() as clock:
        body = Body(sw, colour, timeout=60.0, idle=2.0)
        attempt = body.start()
        while not attempt.cancelled.wait(0.01):
            clock.advance(1.0)
        while body._thread.is_alive() and not body.release.is_set():
            clock.advance(0.5)
            body._thread.join(0.01)
        body.release.set()
        assert body.end().state == "unknown"
    for _ in range(1000):
        found = sw.audit.find(body.outcome.key)[0]
        if found.outcome == "applied":
            break
        threading.Event().wait(0.01)
    assert (found.outcome, found.evidence) == ("applied", "late_response")


@COLOURS
@pytest.mark.parametrize("others", [{"timeout": 60.0}, {}], ids=["beside a timeout", "alone"])
def test_an_idle_body_is_an_ambiguous_attempt_that_is_reconciled(
    sw: SafeWrite, colour: str, others: dict[str, float]
) -> None:
    """Like a timeout: the read decides, nothing is sent again on a guess.  No other limit is needed for it."""
    with ManualClock(auto=True):
        body = Body(sw, colour, reconciled=True, idle=2.0, **others)
        body.start()
        outcome = body.end()
        body.release.set()
    assert (outcome.state, outcome.evidence, outcome.attempts) == ("applied", "goal_state", 1)


@COLOURS
def test_the_idle_clock_starts_when_the_body_begins(
    sw: SafeWrite, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger that takes its time over the claim uses up none of it."""
    with ManualClock() as clock:
        claim = Job.claim

        def slowly(self: Job, *about: Any) -> Any:
            made = claim(self, *about)
            clock.advance(4.0)
            return made

        monkeypatch.setattr(Job, "claim", slowly)
        body = Body(sw, colour, timeout=20.0, idle=2.0)
        attempt = body.start()
        clock.advance(1.5)
        assert not attempt.cancelled.wait(0.02)
        assert attempt.left() == pytest.approx(0.5)
        body.release.set()
        assert body.end().state == "applied"


def test_without_an_idle_limit_a_body_may_be_silent(sw: SafeWrite) -> None:
    """Only its timeout gives it up then."""
    with ManualClock() as clock:
        body = Body(sw, "plain", timeout=20.0)
        attempt = body.start()
        clock.advance(19.0)
        assert not attempt.cancelled.wait(0.02)
        body.release.set()
        assert body.end().state == "applied"


@pytest.mark.parametrize("idle", [0, -1, float("nan"), float("inf"), "5"])
def test_an_idle_limit_that_is_none_is_refused_when_the_tool_is_declared(sw: SafeWrite, idle: Any) -> None:
    """None says that there is no limit; nothing else does."""
    with pytest.raises(ConfigurationError, match="idle"):
        sw.write(target="sub_id", idle=idle)(lambda sub_id: None)


def test_an_idle_limit_needs_a_thread(sw: SafeWrite) -> None:
    """On the caller's thread nobody is left to give the body up."""
    with pytest.raises(ConfigurationError, match=r"`in_thread`.*`idle`"):
        sw.write(target="sub_id", idle=5.0, in_thread=False)(lambda sub_id: None)


def test_a_wait_asks_anew_what_is_left() -> None:
    """What is left may have grown meanwhile; the thing itself ends the wait, too."""
    lefts = iter([1.0, 1.0, 0.0])
    with ManualClock(auto=True, patience=0.01) as clock:
        assert wait_while(threading.Event(), lambda: next(lefts)) is False
        assert clock.elapsed == 2.0
        done = threading.Event()
        done.set()
        assert wait_while(done, lambda: 0.0) is True

    async def main() -> tuple[bool, bool]:
        future = asyncio.get_running_loop().create_future()
        first = await await_while(future, lambda: next(lefts))
        future.set_result(None)
        return first, await await_while(future, lambda: 0.0)

    lefts = iter([1.0, 1.0, 0.0])
    with ManualClock(auto=True, patience=0.01):
        assert asyncio.run(main()) == (False, True)


async def until(said: Callable[[], bool]) -> None:
    """Let other tasks run until something is so."""
    for _ in range(10_000):
        if said():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


class Signs:
    """Counts the signs of life; some of them fail."""

    def __init__(self, fails: int = 0) -> None:
        self.sent, self.fails = 0, fails
        self.came = threading.Condition()

    def __call__(self) -> None:
        with self.came:
            self.sent += 1
            self.came.notify_all()
            if self.sent <= self.fails:
                raise OSError("pipe closed")

    async def send(self) -> None:
        self()

    def wait(self, count: int) -> bool:
        with self.came:
            return self.came.wait_for(lambda: self.sent >= count, WITHIN)


@pytest.mark.parametrize("fails", [0, 1])
def test_a_thread_gives_a_sign_of_life_every_20_s(fails: int, caplog: pytest.LogCaptureFixture) -> None:
    """One that cannot be sent is logged, and the next is sent all the same; after the block there is none."""
    signs = Signs(fails)
    with ManualClock() as clock, caplog.at_level(logging.WARNING, "safewrite"):
        with Keepalive(signs):
            for n in range(1, 4):
                assert eventually(lambda: clock._waiters)
                clock.advance(20.0)
                assert signs.wait(n)
        clock.advance(100.0)
    assert signs.sent == 3
    assert len(caplog.records) == fails


def test_a_keepalive_may_be_used_again() -> None:
    """One of a server serves one slow call after the other."""
    signs = Signs()
    with ManualClock() as clock:
        keepalive = Keepalive(signs)
        for n in range(1, 3):
            with keepalive:
                assert eventually(lambda: clock._waiters)
                clock.advance(20.0)
                assert signs.wait(n)
            assert eventually(lambda: not clock._waiters), "the thread of the block has ended"


@pytest.mark.parametrize("plain", [True, False])
def test_keepalives_go_on_through_a_pause(plain: bool) -> None:
    """Ten minutes' question under an idle limit of 300 s: 30 signs of life, and the deadline has lost nothing."""
    signs = Signs(fails=1)

    async def main(clock: ManualClock) -> float:
        deadline = safewrite.Deadline(18.0)
        async with Keepalive(signs if plain else signs.send, idle=300.0):
            with deadline.pause():
                for _ in range(30):
                    await until(lambda: bool(clock._waiters))
                    sent = signs.sent
                    clock.advance(20.0)
                    await until(lambda sent=sent: signs.sent > sent and bool(clock._waiters))
        return deadline.remaining()

    with ManualClock() as clock:
        assert asyncio.run(main(clock)) == 18.0
        assert clock.elapsed == 600.0
    assert signs.sent == 30


def test_a_block_that_ends_while_a_sign_is_being_sent_waits_for_none() -> None:
    """Whoever hears it no more may take for ever: the task that sends ends with its block."""

    async def main(clock: ManualClock) -> None:
        begun = asyncio.Event()

        async def send() -> None:
            begun.set()
            await asyncio.Event().wait()

        async with asyncio.timeout(WITHIN), Keepalive(send):
            await until(lambda: bool(clock._waiters))
            clock.advance(20.0)
            await begun.wait()

    with ManualClock() as clock:
        asyncio.run(main(clock))


def test_the_interval_is_checked_against_the_idle_limit_at_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both numbers are told, with where each comes from."""
    with pytest.raises(
        ConfigurationError, match=r"`idle` = 20 s \(set by argument\).*= 20 s \(set by default\)"
    ):
        Keepalive(print, idle=20.0)
    monkeypatch.setenv("SAFEWRITE_KEEPALIVE", "60")
    with pytest.raises(
        ConfigurationError, match=r"= 45 s \(set by the client\).*= 60 s \(set by environment\)"
    ):
        Keepalive(print, idle=45.0, idle_from="the client")
    assert Keepalive(print, interval=15.0).interval == 15.0
