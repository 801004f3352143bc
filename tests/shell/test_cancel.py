"""Cancellation and interrupts: whatever is cut off, wherever, the ledger stays good for the next call."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from tenacity import wait_fixed

import safewrite
from safewrite import Applied, Attempt, NotApplied, Outcome, OutcomeUnknown, SafeWrite
from safewrite.core.events import OutcomeState
from safewrite.shell import pressure
from tests.shell.conftest import SETTLES, attempts, eventually
from tests.shell.remote import HANG, LATE, LOSE, REFUSE, Remote, Step

pytestmark = pytest.mark.usefixtures("run")


@pytest.fixture
def remote() -> Remote:
    """A dependency for coroutines."""
    return Remote("coroutine")


class CancelledAt:
    """Runs a coroutine and cancels its task where it waits for the `at`-th time."""

    def __init__(self, inner: Awaitable[Any], at: int) -> None:
        self._inner, self._at = inner, at
        self.waits = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        running = self._inner.__await__()
        going_on: Callable[..., Any] = running.send
        told: Any = None
        while True:
            try:
                waiting = going_on(told)
            except StopIteration as done:
                return done.value
            task = asyncio.current_task()
            assert task is not None
            if self.waits == self._at:
                task.cancel()
            self.waits += 1
            try:
                going_on, told = running.send, (yield waiting)
            except BaseException as error:
                going_on, told = running.throw, error


def declare(sw: SafeWrite, remote: Remote, **options: Any) -> Any:
    """Return a coroutine tool with a read."""
    options = {"target": "sub_id", "wait": wait_fixed(0.01), "dependency": SETTLES, **options}

    @sw.write(**options)
    async def cancel(sub_id: str, attempt: Attempt) -> str:
        await asyncio.sleep(0)
        return await remote.write(sub_id, attempt)

    @cancel.reconcile
    async def _(attempt: Attempt) -> Applied[str] | NotApplied:
        await asyncio.sleep(0)
        found = remote.by_key(attempt.key)
        return Applied(f"{found.target} done") if found else NotApplied()

    return cancel


async def limited(remote: Remote, call: Awaitable[Any]) -> Any:
    """Await a call under a limit of asyncio's, which runs out once the dependency hangs."""
    async with asyncio.timeout(None) as limit:

        async def run_out() -> None:
            await remote.arrived.future()
            limit.reschedule(asyncio.get_running_loop().time())

        running_out = asyncio.create_task(run_out())
        try:
            return await call
        finally:
            running_out.cancel()


SCENES: dict[str, tuple[Step, ...]] = {
    "quiet": (),
    "answer lost": (LOSE,),
    "refused, then sent again": (REFUSE,),
    "dropped, proven absent, sent again": (Step(applies=False, raises=LOSE.raises),),
}


@pytest.mark.parametrize("steps", SCENES.values(), ids=SCENES)
def test_cancelled_wherever_it_waits_the_next_call_answers_right(
    steps: tuple[Step, ...], open_sw: Callable[..., SafeWrite], remote: Remote
) -> None:
    """At every await of the whole call: the cancellation is raised, no attempt is left open, one effect in the end."""
    sw = open_sw()
    cancel = declare(sw, remote)
    waits = 0

    async def one(target: str, at: int) -> bool:
        remote.next(*steps)
        cut = CancelledAt(cancel(target), at)

        async def call() -> Any:
            return await cut

        try:
            value = await asyncio.create_task(call())
        except asyncio.CancelledError:
            value = None
        finally:
            remote._steps.clear()
        record = cancel.peek(target)
        if record is not None:
            assert all(a.concluded for a in attempts(sw, record)), (
                f"attempt left open, cancelled at wait {at}"
            )
        assert value in (None, f"{target} done")
        assert await cancel(target) == f"{target} done"
        assert remote.count(target) == 1, f"cancelled at wait {at}"
        return cut.waits <= at

    async def main() -> None:
        nonlocal waits
        while not await one(f"sub_{waits}", waits):
            waits += 1

    asyncio.run(main())
    assert waits >= 3


def test_a_cancelled_body_is_recorded_as_unknown_and_the_cancellation_raised(
    sw: SafeWrite, remote: Remote
) -> None:
    """The client went away while the dependency worked: a row says so, and nothing is taken for absent."""
    cancel = declare(sw, remote)
    remote.next(HANG)

    async def main() -> Outcome[Any]:
        task = asyncio.create_task(cancel("sub_1"))
        await remote.arrived.future()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return cancel.peek("sub_1")

    outcome = asyncio.run(main())
    (attempt,) = attempts(sw, outcome)
    assert (outcome.state, attempt.reason, attempt.ended) == ("unknown", "cancelled", True)
    assert outcome.intent_id
    assert asyncio.run(cancel("sub_1")) == "sub_1 done"
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_what_agent_frameworks_do_to_a_slow_tool_makes_no_second_effect(
    sw: SafeWrite, remote: Remote
) -> None:
    """`asyncio.timeout` around the tool cancels it after the effect; the next call finds it by its key."""
    cancel = declare(sw, remote)
    remote.next(HANG)

    async def main() -> str:
        with pytest.raises(TimeoutError):
            await limited(remote, cancel("sub_1"))
        return await cancel("sub_1")  # type: ignore[no-any-return]

    assert asyncio.run(main()) == "sub_1 done"
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_cancelled_without_a_read_it_stays_unknown(sw: SafeWrite, remote: Remote) -> None:
    """No promise, no read: the next call says unknown at once, and sends nothing."""

    @sw.write(target="sub_id")
    async def cancel(sub_id: str) -> str:
        return await remote.write(sub_id)

    remote.next(HANG)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await limited(remote, cancel("sub_1"))
        with pytest.raises(OutcomeUnknown):
            await cancel("sub_1")

    asyncio.run(main())
    assert len(remote.attempts) == 1


@pytest.mark.parametrize("again", [1, 5])
def test_a_caller_that_is_cancelled_over_and_over_still_leaves_its_row(
    again: int, sw: SafeWrite, remote: Remote
) -> None:
    """Further cancellations while the first is being recorded change nothing."""
    cancel = declare(sw, remote)
    remote.next(HANG)

    async def main() -> Outcome[Any]:
        task = asyncio.create_task(cancel("sub_1"))
        await remote.arrived.future()
        for _ in range(again):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task
        return cancel.peek("sub_1")

    assert attempts(sw, asyncio.run(main()))[0].concluded


def test_under_level_triggered_cancellation_the_row_is_written(sw: SafeWrite, remote: Remote) -> None:
    """A scope of anyio cancels anew at every await until it ends; the outcome is recorded all the same."""
    cancel = declare(sw, remote)
    remote.next(HANG)

    async def main() -> str:
        with anyio.CancelScope() as scope:
            remote.arrived.future().add_done_callback(lambda _: scope.cancel())
            await cancel("sub_1")
        assert scope.cancelled_caught
        assert attempts(sw, cancel.peek("sub_1"))[0].ended
        return await cancel("sub_1")  # type: ignore[no-any-return]

    assert asyncio.run(main()) == "sub_1 done"
    assert remote.count() == 1


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.002, 0.004, 0.008, 0.016])
def test_under_level_triggered_cancellation_at_any_moment(
    delay: float, sw: SafeWrite, remote: Remote
) -> None:
    """Whenever the scope ends, no attempt is left open and the next call makes the one effect."""
    cancel = declare(sw, remote)

    async def main() -> None:
        with anyio.move_on_after(delay):
            await cancel("sub_1")
        record = cancel.peek("sub_1")
        assert record is None or all(a.concluded for a in attempts(sw, record))
        assert await cancel("sub_1") == "sub_1 done"

    asyncio.run(main())
    assert remote.count() == 1


def test_a_body_that_absorbs_its_cancellation_is_given_up_and_recorded_late(
    sw: SafeWrite, remote: Remote
) -> None:
    """The caller is cancelled and leaves after the grace; what the body then says is evidence."""
    cancel = declare(sw, remote)
    remote.next(LATE)

    async def main() -> None:
        task = asyncio.create_task(cancel("sub_1"))
        await remote.arrived.future()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        record = cancel.peek("sub_1")
        assert (record.state, record.may_still_land, attempts(sw, record)[0].gave_up) == (
            "unknown",
            True,
            True,
        )
        remote.gate.open()
        await asyncio.to_thread(eventually, lambda: cancel.peek("sub_1").state == "applied")
        assert await cancel("sub_1") == "sub_1 done"

    asyncio.run(main())
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_a_body_that_cancels_itself_is_unknown_not_a_cancelled_caller(sw: SafeWrite, remote: Remote) -> None:
    """A cancellation from inside the body (a task group of its own) is an ending like any other."""

    @sw.write(target="sub_id")
    async def cancel(sub_id: str, attempt: Attempt) -> str:
        await remote.write(sub_id, attempt)
        raise asyncio.CancelledError

    async def main() -> Outcome[Any]:
        return await cancel.outcome("sub_1")  # type: ignore[no-any-return]

    outcome = asyncio.run(main())
    assert (outcome.state, attempts(sw, outcome)[0].reason) == ("unknown", "cancelled_inside")


def test_a_loop_that_closes_leaves_its_unfinished_body_on_record(sw: SafeWrite, remote: Remote) -> None:
    """`asyncio.run` ends while an abandoned body still runs: its end is recorded by the closing loop's cancellation."""
    cancel = declare(sw, remote, timeout=0.05)
    remote.next(HANG)

    async def main() -> None:
        task = asyncio.create_task(cancel("sub_1"))
        await remote.arrived.future()
        del task

    asyncio.run(main())
    record = eventually(lambda: (r := cancel.peek("sub_1")) and attempts(sw, r)[0].concluded and r)
    assert record.state == "unknown"


# Interrupts ------------------------------------------------------------------------------------------------------

INTERRUPTED = """
import os, signal, sys, threading, time
import safewrite
from safewrite import Applied, Attempt, Dependency, NotApplied, SafeWrite

database, effects, how = sys.argv[1:]
sw = SafeWrite(f"sqlite:///{database}")

@sw.write(target="sub_id", timeout=30.0 if how == "thread" else None, dependency=Dependency("b", read_lag=0.0))
def cancel(sub_id: str, attempt: Attempt) -> str:
    with open(effects, "a") as file:
        file.write(attempt.key + "\\n")
    print("sent", flush=True)
    if sub_id == "hangs":
        threading.Event().wait(20.0)
    return "done"

@cancel.reconcile
def _(attempt: Attempt):
    keys = open(effects).read().split() if os.path.exists(effects) else []
    return Applied("found") if attempt.key in keys else NotApplied()

with safewrite.run("r1"), safewrite.turn(1):
    if how == "again":
        print(cancel.outcome("hangs").state)
    else:
        try:
            cancel("hangs")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
"""


@pytest.mark.parametrize("how", ["thread", "caller"])
def test_ctrl_c_leaves_a_ledger_from_which_the_next_process_answers_right(
    how: str, database: Path, tmp_path: Path
) -> None:
    """A real SIGINT in a body, in a thread of ours or on the caller's: raised, recorded, one effect."""
    script = tmp_path / "interrupted.py"
    script.write_text(textwrap.dedent(INTERRUPTED))
    effects = tmp_path / "effects"
    command = [sys.executable, str(script), str(database), str(effects)]
    with subprocess.Popen([*command, how], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "sent\n"
        child.send_signal(signal.SIGINT)
        assert child.stdout.readline() == "interrupted\n"
        assert child.wait(20) == 0
    again = subprocess.run([*command, "again"], capture_output=True, text=True, timeout=60, check=True)
    assert again.stdout == "applied\n"
    assert len(effects.read_text().split()) == 1


def interrupt_at(step: int, call: Callable[[], Any]) -> tuple[bool, bool]:
    """Run `call`, raising KeyboardInterrupt at the `step`-th line of our own code; say whether it was, and came out."""
    package = str(Path(safewrite.__file__).parent)
    rooms = (
        "shell/sync.py",
        "shell/job.py",
        "shell/bodies.py",
        "shell/reconciling.py",
        "shell/steps.py",
        "calls.py",
    )
    places = tuple(f"{package}/{room}" for room in rooms)
    seen, struck = 0, False

    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal seen, struck
        if not frame.f_code.co_filename.startswith(places):
            return None
        if event == "line" and not struck:
            seen += 1
            if seen == step:
                struck = True
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()  # that of a measurement of coverage, which goes on afterwards
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return struck, True
    finally:
        sys.settrace(before)
    return struck, False


@pytest.mark.parametrize("step", [LOSE, REFUSE, None], ids=["answer lost", "refused", "quiet"])
def test_interrupted_at_any_line_of_ours_the_next_call_answers_right(
    step: Step | None, open_sw: Callable[..., SafeWrite]
) -> None:
    """A KeyboardInterrupt at every seventh line of the plain shell: raised, and one effect after the next call."""
    remote = Remote("plain")
    sw = open_sw()

    @sw.write(target="sub_id", wait=wait_fixed(0), dependency=SETTLES)
    def cancel(sub_id: str, attempt: Attempt) -> str:
        return run_to_end(remote.write(sub_id, attempt))

    @cancel.reconcile
    def _(attempt: Attempt) -> Applied[str] | NotApplied:
        found = remote.by_key(attempt.key)
        return Applied(f"{found.target} done") if found else NotApplied()

    at, struck = 1, True
    while struck:
        target = f"sub_{at}"
        if step is not None:
            remote.next(step)
        pressure.forget()  # each of these calls is another process's
        struck, raised = interrupt_at(at, lambda target=target: cancel(target))
        assert raised == struck
        remote._steps.clear()
        outcome = cancel.options(deadline=safewrite.Deadline(0.5, minimum=0.0)).outcome(target)
        assert outcome.state == "applied" or not remote.count(target), (at, outcome)
        assert remote.count(target) <= 1
        at += 7


def run_to_end(coroutine: Any) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("it waits")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_body_that_stops_the_program_is_recorded_first(stop: type[BaseException], sw: SafeWrite) -> None:
    """What is no Exception goes through to the caller as it is, after its row stands."""

    @sw.write(target="sub_id")
    def cancel(sub_id: str) -> str:
        raise stop

    with pytest.raises(stop):
        cancel("sub_1")
    record = cancel.peek("sub_1")
    assert record is not None
    assert (record.state, attempts(sw, record)[0].ended) == ("unknown", True)


def test_control_flow_of_a_framework_is_no_reason_to_send_again(sw: SafeWrite) -> None:
    """An interrupt that a framework raises through the body is one attempt, unknown, with it as its cause."""

    class Interrupt(Exception):
        pass

    calls: list[int] = []
    raised = Interrupt("ask a person")

    @sw.write(target="sub_id")
    def cancel(sub_id: str) -> str:
        calls.append(1)
        raise raised

    with pytest.raises(OutcomeUnknown) as told:
        cancel("sub_1")
    assert told.value.__cause__ is raised
    assert len(calls) == 1


def test_the_read_of_a_cancelled_call_is_cancelled_with_it(sw: SafeWrite) -> None:
    """Nobody waits for what it finds: it does not go on asking behind everybody's back."""

    async def main() -> list[str]:
        reading, ended = asyncio.Event(), list[str]()

        @sw.write(target="sub_id", dependency=SETTLES)
        async def cancel(sub_id: str) -> str:
            raise TimeoutError

        @cancel.reconcile
        async def _() -> NotApplied:
            reading.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return NotApplied()

        task = asyncio.create_task(cancel("sub_1"))
        await reading.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return list(ended)

    assert asyncio.run(main()) == ["cancelled"]


def test_a_waiting_caller_may_be_cancelled_without_harm(sw: SafeWrite, remote: Remote) -> None:
    """Cancelled while another call is in flight: that one goes on, and its record is not touched."""
    cancel = declare(sw, remote)
    remote.next(HANG)

    async def main() -> str:
        first = asyncio.create_task(cancel("sub_1"))
        await remote.arrived.future()
        second = asyncio.create_task(cancel("sub_1"))
        await asyncio.sleep(0.05)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        remote.gate.open()
        return await first  # type: ignore[no-any-return]

    assert asyncio.run(main()) == "sub_1 done"
    assert [s.outcome for s in attempts(sw, cancel.peek("sub_1"))] == [OutcomeState.APPLIED]
