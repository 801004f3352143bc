"""The shell for coroutine functions: the same loop as `sync`, awaiting.

The ledger is synchronous and runs in threads of its own; what must be recorded is recorded even while this task is
being cancelled.  A body is a task of its own, so that it can be left to clean up, and given up if it does not.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, TypeVar

from safewrite.attempt import Attempt
from safewrite.core.commands import Answer, Command, Read, ReadOther, Run, Wait, Watch
from safewrite.shell import bodies, reconciling
from safewrite.shell.clock import clock, wake
from safewrite.shell.idle import await_while
from safewrite.shell.job import Job
from safewrite.shell.reconciling import ReadStart
from safewrite.shell.steps import Steps, acarry, carry
from safewrite.shell.sync import POLL_FIRST, POLL_MOST, Token, _grace, read_result

T = TypeVar("T")


async def drive(job: Job) -> Answer:
    """Carry one call through to its answer."""
    try:
        command = await acarry(job.ask())
        while not isinstance(command, Answer):
            command = await _carry_out(job, command)
        return command
    except BaseException:
        if job.unfinished:
            with suppress(asyncio.CancelledError):  # the first one is raised
                await acarry(bodies.leave(job, "cancelled"))
        raise
    finally:
        job.close()


async def shielded(threads: Executor, work: Callable[[], T]) -> T:
    """Run `work` in a thread and wait for it through every cancellation, which is raised afterwards.

    A loop rather than one shield: some frameworks cancel again on every await until the task ends.
    """
    future = asyncio.get_running_loop().run_in_executor(threads, work)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as again:
            if future.cancelled():
                raise
            cancelled = again
        except BaseException:
            break
    if cancelled is not None:
        future.exception()  # a failure is not left unseen, and the cancellation goes first
        raise cancelled
    return future.result()


async def _carry_out(job: Job, command: Command) -> Command:
    match command:
        case Run(number=number):
            return await run(job, number)
        case Read():
            return await read(job)
        case ReadOther(intent=other):
            assert job.open_other is not None
            opened = job.open_other
            await drive(await shielded(job.host.threads, lambda: opened(job, other)))
            job.looked_at = (*job.looked_at, other)
        case Wait(seconds=seconds):
            await clock().pause(seconds)
        case Watch():
            await watch(job)
    return await acarry(job.ask())


async def run(job: Job, number: int) -> Command:
    """Run the body of a claimed attempt as a task of its own."""
    await acarry(job.fetch())
    reason = bodies.withhold(job, number)
    if reason:
        job.attempt = None
        return await acarry(bodies.withheld(job, number, reason))
    call, inside = bodies.body(job)
    attempt, job.attempt = job.attempt, None
    assert attempt is not None
    token = Token()

    async def body() -> Any:
        token.take()
        return await call()

    task = asyncio.get_running_loop().create_task(body(), context=inside)
    try:
        attempt.dispatched()
        in_time = await await_while(task, attempt.left)
        reason = "cancelled_inside" if in_time else await _stop(job, attempt, task)
    except asyncio.CancelledError:
        await _cancelled(job, attempt, task, token)
        raise
    if not task.done():
        task.add_done_callback(_late(job, attempt))
        return await acarry(bodies.gave_up(job, attempt, reason))
    value, error = _ending(task)
    return await acarry(bodies.ended(job, attempt, value, error, cut=reason))


async def _stop(job: Job, attempt: Attempt, task: asyncio.Task[Any]) -> str:
    """Cancel a body and give it a bounded time to clean up; return which limit had run out."""
    reason = attempt.give_up()
    task.cancel()
    await clock().wait_for(task, _grace(job))
    return reason


async def _cancelled(job: Job, attempt: Attempt, task: asyncio.Task[Any], token: Token) -> None:
    """The caller is being cancelled: stop the body, record what became of it, whatever comes meanwhile."""
    attempt.cancelled.set()
    task.cancel()
    await _through(clock().wait_for(task, _grace(job)))
    never, done = token.take(), task.done()
    if not never and not done:
        task.add_done_callback(_late(job, attempt))

    def record() -> Steps[Command]:
        if never:
            return bodies.withheld(job, attempt.number, "cancelled_before_start", over=True)
        if done:
            return bodies.ended(job, attempt, *_ending(task), cut="cancelled", over=True)
        return bodies.gave_up(job, attempt, "cancelled", over=True)

    with suppress(asyncio.CancelledError):  # the caller raises the first one
        await acarry(record())


async def _through(waiting: Awaitable[object]) -> None:
    """Await something bounded through every further cancellation."""
    inner = asyncio.ensure_future(waiting)
    while not inner.done():
        try:
            await asyncio.shield(inner)
        except asyncio.CancelledError:
            continue


def _ending(task: asyncio.Task[Any]) -> tuple[object, BaseException | None]:
    if task.cancelled():
        return None, asyncio.CancelledError()
    error = task.exception()
    return (None, error) if error is not None else (task.result(), None)


def _late(job: Job, attempt: Attempt) -> Callable[[asyncio.Task[Any]], None]:
    def record(task: asyncio.Task[Any]) -> None:
        value, error = _ending(task)
        inside = contextvars.copy_context()  # the caller's, for its own `classify`
        job.host.threads.submit(inside.run, lambda: carry(bodies.late(job, attempt, value, error)))

    return record


async def read(job: Job) -> Command:
    """Ask the reconcile function for no longer than it may take: a coroutine here, a plain one in a thread."""
    await acarry(job.fetch())
    start = reconciling.begin(job)
    call, inside = reconciling.body(job, start)
    if inspect.iscoroutinefunction(job.tool.reconcile):
        return await _read_here(job, start, call, inside)
    if not job.pool.reserve():
        return await acarry(reconciling.ended(job, start, None, None, failed="pool_exhausted"))
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    work = job.pool.start(lambda: inside.run(call), then=lambda: wake(loop, future))
    try:
        in_time = await clock().wait_for(future, start.limit)
    except asyncio.CancelledError:
        await _record_cut_read(job, start)
        raise
    return await acarry(read_result(job, start, work if in_time else None))


async def _read_here(
    job: Job, start: ReadStart, call: Callable[[], Any], inside: contextvars.Context
) -> Command:
    async def ask() -> Any:
        return await call()

    task = asyncio.get_running_loop().create_task(ask(), context=inside)
    try:
        in_time = await clock().wait_for(task, start.limit)
        if not in_time:
            task.cancel()
            await clock().wait_for(task, _grace(job))
    except asyncio.CancelledError:
        task.cancel()
        await _record_cut_read(job, start)
        raise
    if not in_time:
        return await acarry(reconciling.ended(job, start, None, None, failed="read_timeout"))
    value, error = _ending(task)
    return await acarry(reconciling.ended(job, start, value, error))


async def _record_cut_read(job: Job, start: ReadStart) -> None:
    with suppress(asyncio.CancelledError):  # the caller raises the first one
        await acarry(reconciling.ended(job, start, None, None, failed="cancelled", over=True))


async def watch(job: Job) -> None:
    """Wait until the record of an attempt in flight elsewhere changes, its lease ends, or this call's time does."""
    interval = POLL_FIRST
    while await acarry(job.in_flight()):
        await clock().pause(min(interval, max(job.left(), 0.001)))
        interval = min(interval * 2, POLL_MOST)
