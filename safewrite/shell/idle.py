"""Waiting for what can say that it moves, and saying it: both over the clock's seam, for threads and coroutines."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from safewrite.core.idle import too_slow
from safewrite.durations import Duration
from safewrite.errors import ConfigurationError
from safewrite.settings import resolve_settings
from safewrite.shell.clock import clock

_log = logging.getLogger("safewrite")
_NONE_LEFT = 1e-6
"""Seconds that are none: sums of floats are not exact."""


def wait_while(event: threading.Event, left: Callable[[], float]) -> bool:
    """Block until `event` is set or `left()` is zero; return whether it is set.

    `left` is asked anew when what it said has passed: progress or a pause may have moved its end meanwhile.
    """
    while not clock().wait(event, max(0.0, seconds := left())):
        if seconds <= _NONE_LEFT:
            return event.is_set()
    return True


async def await_while(future: asyncio.Future[Any], left: Callable[[], float]) -> bool:
    """Do the same for a future, cancelling nothing."""
    while not await clock().wait_for(future, max(0.0, seconds := left())):
        if seconds <= _NONE_LEFT:
            return future.done()
    return True


class Keepalive:
    """Calls `send()` every `interval` seconds while its block runs, pauses included: `async with Keepalive(send):`.

    A pause stops our deadlines, not the idle limit of whoever waits for us.  `interval` is the setting `keepalive`
    (20 s), `idle` the limit that is to be held off (the setting `idle`, 300 s); `idle_from` says where that stands,
    if it is not given here.  `send` takes no arguments, and may be a coroutine function in an `async with`; what it
    raises is logged, and the next one is sent all the same.  Raises `ConfigurationError`, with both numbers and
    where they came from, for an interval that is not shorter than the idle limit.
    """

    def __init__(
        self,
        send: Callable[[], object],
        *,
        interval: Duration | None = None,
        idle: Duration | None = None,
        idle_from: str = "",
    ) -> None:
        rows = {row.name: row for row in resolve_settings({"keepalive": interval, "idle": idle}).table()}
        every, limit = rows["keepalive"], rows["idle"]
        self.interval, self._send = float(every.value), send
        problem = too_slow(self.interval, every.origin, float(limit.value), idle_from or limit.origin)
        if problem:
            raise ConfigurationError(problem)
        self._stop = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._stop.clear()
        threading.Thread(target=self._serve, name="safewrite-keepalive", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()

    def _serve(self) -> None:
        while not clock().wait(self._stop, self.interval):
            with _reported():
                self._send()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._aserve())
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _aserve(self) -> None:
        while True:
            await clock().pause(self.interval)
            with _reported():
                sent = self._send()
                if inspect.isawaitable(sent):
                    await sent


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except Exception:
        _log.warning("a keepalive could not be sent", exc_info=True)
