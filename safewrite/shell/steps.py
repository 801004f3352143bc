"""Steps between which a ledger is asked: written once, carried out by a thread or by a coroutine.

A step is a generator that yields an order for the ledger and is told what came of it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from safewrite.ledger.orders import Order

T = TypeVar("T")
Steps: TypeAlias = "Generator[Order[Any], Any, T]"


def one(order: Order[T]) -> Steps[T]:
    """Return the steps that are one order."""
    came: T = yield order
    return came


def carry(steps: Steps[T]) -> T:
    """Carry steps out on this thread; return what they return."""
    try:
        order = next(steps)
        while True:
            try:
                came = order.now()
            except Exception as error:
                order = steps.throw(error)
            else:
                order = steps.send(came)
    except StopIteration as end:
        result: T = end.value
        return result


async def acarry(steps: Steps[T]) -> T:
    """Carry steps out while this task waits, through every cancellation, which is raised afterwards.

    A loop rather than one shield: some frameworks cancel again on every await until the task ends.
    """
    cancelled: list[asyncio.CancelledError] = []
    try:
        order = next(steps)
        while True:
            try:
                came = await _came(order, cancelled)
            except Exception as error:
                order = steps.throw(error)
            else:
                order = steps.send(came)
    except StopIteration as end:
        if not cancelled:
            result: T = end.value
            return result
    except Exception:
        if not cancelled:
            raise
    raise cancelled[0]  # it goes before a failure


async def _came(order: Order[T], cancelled: list[asyncio.CancelledError]) -> T:
    """Return what comes of an order; cancellations meanwhile are kept."""
    loop, waiting = asyncio.get_running_loop(), _Waiting()
    place = order.later(partial(_Mailbox.of(loop).put, waiting))
    while not place.done:
        waiting.future = loop.create_future()
        try:
            await waiting.future
        except asyncio.CancelledError as again:
            cancelled.append(again)
    return order.outcome(place)


class _Waiting:
    """A coroutine that waits: anew after every cancellation."""

    future: asyncio.Future[None] | None = None


class _Mailbox:
    """Wakes the coroutines of one loop, as many at once as there are: a call into a loop costs more than a wake."""

    _here = threading.local()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._arrived, self._called = loop, deque[_Waiting](), False

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> _Mailbox:
        """Return the mailbox of the loop that runs on this thread."""
        found: _Mailbox | None = getattr(cls._here, "box", None)
        if found is None or found._loop is not loop:
            found = cls._here.box = cls(loop)
        return found

    def put(self, waiting: _Waiting) -> None:
        """Have a coroutine woken; called from any thread."""
        self._arrived.append(waiting)
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        self._called = False
        while self._arrived:
            future = self._arrived.popleft().future
            if future is not None and not future.done():
                future.set_result(None)
