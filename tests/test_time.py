"""Time: what limits hold whatever the clock on the wall does, and what a refusal for want of time says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from freezegun import freeze_time

import safewrite
from safewrite import SafeWrite
from safewrite.shell import clock as seam
from safewrite.testing import ManualClock


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """One `SafeWrite` over a ledger of its own."""
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db") as made:
        made.upgrade()
        yield made


def hanging(sw: SafeWrite, colour: str, ended: threading.Event, **options: Any) -> Callable[..., Any]:
    """Return a tool whose body hangs until `ended`, called like a plain function in both colours."""
    options.setdefault("timeout", 0.2)
    if colour == "plain":

        @sw.write(target="sub_id", name="cancel", **options)
        def cancel(sub_id: str) -> str:
            ended.wait(20)
            return "done"

        return cancel.outcome

    @sw.write(target="sub_id", name="cancel", **options)
    async def acancel(sub_id: str) -> str:
        await asyncio.get_running_loop().run_in_executor(None, ended.wait, 20)
        return "done"

    async def call(sub_id: str) -> Any:
        outcome = await acancel.outcome(sub_id)
        ended.set()
        return outcome

    return lambda sub_id: asyncio.run(call(sub_id))


COLOURS = pytest.mark.parametrize("colour", ["plain", "coroutine"])


@COLOURS
def test_a_write_times_out_while_a_test_has_frozen_time(sw: SafeWrite, colour: str) -> None:
    """freezegun stops `time.monotonic` and with it asyncio's timers; our limits run on."""
    ended = threading.Event()
    tool = hanging(sw, colour, ended)
    began = time.perf_counter()
    with freeze_time("2020-02-02"), safewrite.run("r1"), safewrite.turn(1):
        outcome = tool("sub_1")
    ended.set()
    assert (outcome.state, outcome.may_still_land) == ("unknown", True)
    assert 0.2 <= time.perf_counter() - began < 5.0


def test_a_wait_that_ends_early_ends_early_while_time_is_frozen() -> None:
    """What is waited for ends the wait, not only its limit; a pause lasts as long as it says."""

    async def main() -> tuple[bool, float]:
        loop, began = asyncio.get_running_loop(), seam.ticks()
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        done = await seam.SystemClock().wait_for(future, 10.0)
        await seam.SystemClock().pause(0.05)
        return done, seam.ticks() - began

    with freeze_time("2020-02-02"):
        done, took = asyncio.run(main())
    assert done
    assert 0.05 <= took < 5.0


def test_the_real_clock_needs_no_thread_of_its_own() -> None:
    """Unless time is frozen, a wait is one of the loop's own timers."""

    async def main() -> bool:
        waiting = asyncio.ensure_future(seam.SystemClock().wait_for(asyncio.Future(), 0.02))
        await asyncio.sleep(0)
        names = [thread.name for thread in threading.enumerate()]
        assert await waiting is False
        await seam.SystemClock().pause(0.001)
        return "safewrite-timer" in names

    assert asyncio.run(main()) is False


def test_stamps_come_from_the_real_clock_even_if_it_is_first_used_while_frozen() -> None:
    """A frozen wall must not stay in a clock that outlives the test."""
    with freeze_time("2020-02-02"):
        made = seam.SystemClock()
    assert abs(made.now().unix - time.time()) < 5.0


@COLOURS
def test_a_clock_that_stands_still_never_expires_anything(sw: SafeWrite, colour: str) -> None:
    """A limit of a millisecond is not over, however long the body takes, until its clock moves."""
    ended = threading.Event()
    tool = hanging(sw, colour, ended, timeout=0.001)
    threading.Timer(0.2, ended.set).start()
    with ManualClock(), safewrite.run("r1", deadline=1.0, minimum=0.001), safewrite.turn(1):
        assert tool("sub_1").state == "applied"
