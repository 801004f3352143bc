"""The shell for plain functions: one short loop that waits, calls and records, and decides nothing.

A body runs in a thread that can be abandoned, where there is a limit to keep, else on the caller's thread.  Caller
and body compete for one start token: only its winner may say "never sent", and the loser does not run the body.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from safewrite.attempt import Attempt
from safewrite.core.commands import Answer, Command, Read, ReadOther, Run, Wait, Watch
from safewrite.core.fold import Impossible
from safewrite.shell import bodies, reconciling
from safewrite.shell.clock import clock
from safewrite.shell.idle import wait_while
from safewrite.shell.job import Job
from safewrite.shell.reconciling import ReadStart
from safewrite.shell.steps import Steps, carry
from safewrite.shell.threads import Work

POLL_FIRST, POLL_MOST = 0.005, 0.25
"""Seconds between looks at an attempt in flight elsewhere: doubled from the first to the most."""


class Token:
    """Won once: by the body when it starts, or by whoever decides that it never will."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Return whether this call is the first."""
        return self._lock.acquire(blocking=False)


def drive(job: Job) -> Answer:
    """Carry one call through to its answer."""
    try:
        command = carry(job.ask())
        while not isinstance(command, Answer):
            command = _carry_out(job, command)
        return command
    except BaseException:
        if job.unfinished:
            uninterrupted(lambda: bodies.leave(job, "interrupted"))
        raise
    finally:
        job.close()


def _carry_out(job: Job, command: Command) -> Command:
    match command:
        case Run(number=number):
            return run(job, number)
        case Read():
            return read(job)
        case ReadOther(intent=other):
            assert job.open_other is not None
            drive(job.open_other(job, other))
            job.looked_at = (*job.looked_at, other)
        case Wait(seconds=seconds):
            clock().sleep(seconds)
        case Watch():
            watch(job)
    return carry(job.ask())


def run(job: Job, number: int) -> Command:
    """Run the body of a claimed attempt."""
    carry(job.fetch())
    reason = bodies.withhold(job, number)
    if reason:
        job.attempt = None
        return carry(bodies.withheld(job, number, reason))
    call, inside = bodies.body(job)
    attempt, job.attempt = job.attempt, None
    assert attempt is not None
    if job.limits.threaded:
        return _run_in_thread(job, attempt, lambda: inside.run(call))
    try:
        value = inside.run(call)
    except Exception as raised:
        error = raised
        return uninterrupted(lambda: bodies.ended(job, attempt, None, error))
    except BaseException as raised:
        stop = raised
        uninterrupted(lambda: bodies.ended(job, attempt, None, stop, over=True))
        raise
    return uninterrupted(lambda: bodies.ended(job, attempt, value, None))


def uninterrupted(record: Callable[[], Steps[Command]]) -> Command:
    """Record something; an interrupt that comes in the middle waits until it stands, and is raised then."""
    try:
        return carry(record())
    except Exception:
        raise
    except BaseException:
        again = threading.Thread(target=_quietly, args=(record,), name="safewrite-record")
        again.start()
        while again.is_alive():
            with suppress(KeyboardInterrupt):
                again.join()
        raise


def _quietly(record: Callable[[], Steps[Command]]) -> None:
    with suppress(Impossible, SystemExit):  # it stood already; or the process ends here
        carry(record())


def _run_in_thread(job: Job, attempt: Attempt, call: Callable[[], Any]) -> Command:
    token, left = Token(), threading.Lock()
    abandoned = False

    def body() -> None:
        if not token.take():
            return
        value, error = None, None
        try:
            value = call()
        except BaseException as raised:
            error = raised
        with left:
            ending[:] = [(value, error)]
            late = abandoned
        if late:
            carry(bodies.late(job, attempt, value, error))

    ending: list[tuple[object, BaseException | None]] = []
    job.place = False
    work = job.pool.start(body)
    reason = "timeout"
    try:
        attempt.dispatched()
        ended = wait_while(work.done, attempt.left)
        if not ended:
            reason = attempt.give_up()
            if token.take():
                return carry(bodies.withheld(job, attempt.number, "no_thread_in_time"))
            clock().wait(work.done, _grace(job))
    except BaseException:
        attempt.cancelled.set()
        if token.take():
            uninterrupted(lambda: bodies.withheld(job, attempt.number, "interrupted_before_start", over=True))
            raise
        with left:
            abandoned = not ending
        if abandoned:
            uninterrupted(lambda: bodies.gave_up(job, attempt, "interrupted", over=True))
        else:
            uninterrupted(lambda: bodies.ended(job, attempt, *ending[0], over=True))
        raise
    with left:
        abandoned = not ending
    if abandoned:
        return uninterrupted(lambda: bodies.gave_up(job, attempt, reason))
    return uninterrupted(lambda: bodies.ended(job, attempt, *ending[0]))


def _grace(job: Job) -> float:
    return grace_within(job.limits.grace, job.left())


def grace_within(grace: float, left: float) -> float:
    """Return how long a body may take to clean up: never more than half of what the call has left for its read."""
    return min(grace, left / 2) if left > 0.0 else grace


def read(job: Job) -> Command:
    """Ask the reconcile function, in a thread, for no longer than it may take."""
    carry(job.fetch())
    start = reconciling.begin(job)
    call, inside = reconciling.body(job, start)
    if not job.pool.reserve():
        return carry(reconciling.ended(job, start, None, None, failed="pool_exhausted"))
    work = job.pool.start(lambda: inside.run(_in_any_colour(call)))
    try:
        ended = clock().wait(work.done, start.limit)
    except BaseException:
        carry(reconciling.ended(job, start, None, None, failed="interrupted", over=True))
        raise
    return carry(read_result(job, start, work if ended else None))


def read_result(job: Job, start: ReadStart, work: Work | None) -> Steps[Command]:
    """Record what a read in a thread came to; `None`: it did not answer in time."""
    if work is None:
        return reconciling.ended(job, start, None, None, failed="read_timeout")
    return reconciling.ended(job, start, work.value, work.error)


def _in_any_colour(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that also carries a coroutine through, on a loop of its own."""

    def wrapped() -> Any:
        result = call()
        return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result

    return wrapped


async def _awaited(result: Any) -> Any:
    return await result


def watch(job: Job) -> None:
    """Wait until the record of an attempt in flight elsewhere changes, its lease ends, or this call's time does."""
    interval = POLL_FIRST
    while carry(job.in_flight()):
        clock().sleep(min(interval, max(job.left(), 0.001)))
        interval = min(interval * 2, POLL_MOST)
