"""The shell for reading tools: carries the steps of a `Reading` out on threads, or on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from safewrite.shell.aio import _ending
from safewrite.shell.clock import clock
from safewrite.shell.reads import Copy, Reading, Step
from safewrite.shell.steps import acarry, carry


def drive(reading: Reading) -> Any:
    """Carry out one call of a plain tool."""
    ended, steps = threading.Event(), reading.steps()
    reading.tell = ended.set
    resume: Callable[[], Step] = partial(next, steps)
    while True:
        try:
            what, about = resume()
        except StopIteration as end:
            return end.value
        resume = partial(next, steps)
        try:
            match what:
                case "start":
                    _start(reading, about)
                case "await":
                    clock().wait(ended, about)
                    ended.clear()
                case "pause":
                    clock().sleep(about)
                case "note":
                    carry(about)
        except BaseException as error:
            resume = partial(steps.throw, error)


def _start(reading: Reading, copy: Copy) -> None:
    call, inside = reading.body(copy)

    def run() -> None:
        try:
            value = inside.run(call)
        except BaseException as error:
            reading.ended(copy, None, error)
            if not (reading.limits.threaded or isinstance(error, Exception)):
                raise
        else:
            reading.ended(copy, value, None)

    if reading.limits.threaded:
        reading.pool.start(run)
    else:
        run()


async def adrive(reading: Reading) -> Any:
    """Carry out one call of a coroutine tool."""
    loop, steps = asyncio.get_running_loop(), reading.steps()
    ended = asyncio.Event()
    reading.tell = ended.set
    resume: Callable[[], Step] = partial(next, steps)
    while True:
        try:
            what, about = resume()
        except StopIteration as end:
            return end.value
        resume = partial(next, steps)
        try:
            match what:
                case "start":
                    call, inside = reading.body(about)
                    about.work = loop.create_task(call(), context=inside)
                    about.work.add_done_callback(lambda task, copy=about: reading.ended(copy, *_ending(task)))
                case "await":
                    waiting = loop.create_task(ended.wait())
                    try:
                        await clock().wait_for(waiting, about)
                    finally:
                        waiting.cancel()
                    ended.clear()
                case "stop":
                    about[0].work.cancel()
                    await clock().wait_for(about[0].work, about[1])
                case "pause":
                    await clock().pause(about)
                case "note":
                    await acarry(about)
        except BaseException as error:
            resume = partial(steps.throw, error)
