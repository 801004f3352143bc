"""A scripted dependency in this process: a transport for httpx clients, on the clock of the shells.

It raises what httpx raises over sockets.  What comes late comes when the clock says so: with a `ManualClock` no real
time passes.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from math import inf
from typing import Any

import httpx

from safewrite.shell.clock import clock
from safewrite.testing.clock import ManualClock
from safewrite.testing.effects import Effects, Promises, Reply, Request
from safewrite.testing.exchange import Begun, Exchange
from safewrite.testing.script import Ending
from safewrite.testing.wire import encode

_HEAD_END = b"\r\n\r\n"
Waits = Generator[float, None, httpx.Response]
"""Yields seconds to let pass, `inf` for ever; returns the response, or raises as httpx does."""
Pieces = list[tuple[float, bytes]]
"""What comes of a body: seconds to wait, and the bytes then."""


class Inside:
    """One dependency in this process; any number of threads may ask it."""

    def __init__(self, promises: Promises) -> None:
        def now() -> float:
            return clock().now().unix

        self._now = now
        self.effects = Effects(None, promises, now)
        self._exchange = Exchange(self.effects, now)
        self._due: list[tuple[float, Begun]] = []
        self._lock = threading.RLock()
        self.listens = True
        self.over = threading.Event()
        """Set: what hangs without a timeout ends."""

    def command(self, order: dict[str, Any]) -> dict[str, object]:
        """Carry out a command, as the process does."""
        with self._lock:
            self.catch_up()
            if order["do"] in ("pause", "resume"):
                self.listens = order["do"] == "resume"
                return {"done": order["do"]}
            if order["do"] == "reset":
                self._due, self.listens = [], True
            return self._exchange.command(order)

    def catch_up(self) -> None:
        """Apply what was to be applied by now."""
        with self._lock:
            due = [one for one in sorted(self._due, key=lambda one: one[0]) if one[0] <= self._now()]
            for one in due:
                self._due.remove(one)
                self.effects.commit(one[1].request, one[1].claimed)

    def begin(self, request: Request) -> Begun:
        """Take note of a request; what it is to do by itself, later, is put down."""
        with self._lock:
            self.catch_up()
            begun = self._exchange.begin(request)
            if begun.plan.apply_after is not None:
                self.later(begun, begun.plan.apply_after)
            return begun

    def later(self, begun: Begun, seconds: float) -> None:
        """Apply a write so long from now."""
        with self._lock:
            self._due.append((self._now() + seconds, begun))

    def answer(self, begun: Begun) -> Reply:
        """Apply, if it is to be applied now, and return the reply."""
        with self._lock:
            self.catch_up()
            return self._exchange.answer(begun)


class Carrier(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A transport that answers in steps, for `httpx.Client` and `httpx.AsyncClient` alike."""

    over: threading.Event
    """Set: what hangs without a timeout ends."""

    def steps(self, request: httpx.Request) -> Waits:
        """Return what happens to a request."""
        raise NotImplementedError

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request of a plain client."""
        request.read()
        steps = self.steps(request)
        while True:
            try:
                let_pass(next(steps), self.over)
            except StopIteration as end:
                response: httpx.Response = end.value
                return response

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request of a coroutine client."""
        await request.aread()
        steps = self.steps(request)
        while True:
            try:
                await alet_pass(next(steps))
            except StopIteration as end:
                response: httpx.Response = end.value
                return response


class ScriptedTransport(Carrier):
    """What `ScriptedDependency.transport()` returns."""

    def __init__(self, inside: Inside) -> None:
        self._inside, self.over = inside, inside.over

    def steps(self, request: httpx.Request) -> Waits:
        """Do what the script says."""
        inside = self._inside
        if not inside.listens:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            raise httpx.ConnectError(str(refused), request=request) from refused
        given = request.extensions.get("timeout", {}).get("read")
        patience = inf if given is None else float(given)
        headers = {name.lower(): value for name, value in request.headers.items()}
        begun = inside.begin(
            Request(request.method, request.url.raw_path.decode("ascii"), headers, request.content)
        )
        plan = begun.plan
        if plan.wait > patience:
            inside.later(begun, plan.wait)
            yield from silence(patience, request)
        yield plan.wait
        reply = inside.answer(begun)
        if plan.ending is Ending.SILENCE:
            yield from silence(patience, request)
        if plan.ending is Ending.CLOSE:
            raise httpx.RemoteProtocolError(
                "Server disconnected without sending a response.", request=request
            )
        whole = encode(reply, begun.request.closes)
        sent = whole if plan.cut is None else whole[: plan.cut]
        head = whole.index(_HEAD_END) + len(_HEAD_END)
        if plan.ending is Ending.RESET or len(sent) < head:
            raise _reset(request)
        pieces: Pieces = [(0.0, sent[head:])]
        if plan.drip is not None:
            gap = plan.drip * min(plan.chunk, len(whole)) / len(whole)
            if gap > patience:
                yield from silence(patience, request)
            yield plan.drip * head / len(whole)
            ends = range(head, len(sent), plan.chunk)
            pieces = [
                (plan.drip * len(sent[n : n + plan.chunk]) / len(whole), sent[n : n + plan.chunk])
                for n in ends
            ]
        body = _Body(pieces, _reset(request) if sent != whole else None)
        lines = whole[:head].split(b"\r\n")[1:-2]
        named = [(name, value) for name, _, value in (line.partition(b": ") for line in lines)]
        return httpx.Response(reply.status, headers=named, stream=body, request=request)


def silence(
    patience: float, request: httpx.Request, ended: Callable[[], None] = lambda: None
) -> Generator[float, None, None]:
    """Let nothing come for so many seconds, then raise as httpx does; `ended` is asked first."""
    yield patience
    ended()
    raise httpx.ReadTimeout("The read operation timed out", request=request) from TimeoutError("timed out")


def _reset(request: httpx.Request) -> httpx.ReadError:
    reset = ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
    error = httpx.ReadError(str(reset), request=request)
    error.__cause__ = reset
    return error


class _Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, pieces: Pieces, broken: httpx.ReadError | None) -> None:
        self._pieces, self._broken = pieces, broken

    def __iter__(self) -> Iterator[bytes]:
        for seconds, piece in self._pieces:
            let_pass(seconds)
            yield piece
        if self._broken is not None:
            raise self._broken

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for seconds, piece in self._pieces:
            await alet_pass(seconds)
            yield piece
        if self._broken is not None:
            raise self._broken


def let_pass(seconds: float, over: threading.Event | None = None) -> None:
    """Let so many seconds pass; `inf`: until `over` is set."""
    now = clock()
    if 0.0 < seconds < inf:
        now.sleep(seconds)
    elif seconds > 0.0 and isinstance(now, ManualClock):
        now.block(over or threading.Event())
    elif seconds > 0.0:
        now.wait(over or threading.Event(), seconds)


async def alet_pass(seconds: float) -> None:
    """Let so many seconds pass for this task; `inf`: until it is cancelled."""
    now = clock()
    if seconds == inf and isinstance(now, ManualClock):
        await now.ablock(asyncio.get_running_loop().create_future())
    elif seconds > 0.0:
        await now.pause(seconds)
