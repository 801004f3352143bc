"""A service that keeps its callers' deadlines: `app = DeadlineMiddleware(app)`, for any ASGI application.

A request tells what its caller has left by `X-Request-Deadline-Ms` (whole milliseconds) and `X-Request-Deadline-At`
(Unix milliseconds); `attempt.headers` and `onward_headers()` send both.  What is made of them:

- both: the earlier one, if they differ by no more than `skew`; else the first, since then the clocks differ;
- one of them: that one;
- a name given more than once: the smallest of its values;
- no whole number (`abc`, `1.5`, `1e9`, more than 100 digits): as if it were not there; neither: no deadline;
- zero, negative or past: refused before any work, with 408 and `X-Not-Applied: deadline`, which `@sw.write` knows as
  not applied;
- more than `longest`: `longest`.

The deadline is then that of all code which serves the request (`safewrite.current_deadline()`): nested writes,
`bound_statements` and `onward_headers()` take it by themselves.  When it has passed before the response is complete,
or the caller has gone, the application is cancelled and has `grace` to clean up; who still listens gets a 504, or a
broken response where it had begun: both unknown, for nobody knows how far it came.  What the application does after
its response is not cut off.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

from safewrite.context import within
from safewrite.deadline import Deadline
from safewrite.durations import Duration, seconds
from safewrite.shell.clock import clock
from safewrite.shell.idle import await_while

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_log = logging.getLogger("safewrite")
_WHOLE = re.compile(rb"-?[0-9]{1,100}")


class DeadlineMiddleware:
    """Keeps the deadlines that requests bring to `app`; the page of this module says what is made of them.

    Durations are seconds or `timedelta`: `skew`, the most by which a caller's clock may differ from ours (default
    1.0; `timedelta.max`: the instant is always believed); `longest`, what a request may ask for at most (default one
    hour); `minimum`, the least with which nested writes and legs start (default 0.05); `grace`, to clean up in
    (default 0.5).  Raises `ConfigurationError`.
    """

    def __init__(
        self,
        app: App,
        *,
        skew: Duration = 1.0,
        longest: Duration = 3600.0,
        minimum: Duration = 0.05,
        grace: Duration = 0.5,
    ) -> None:
        self.app = app
        self.skew = seconds(skew, name="skew", allow_zero=True, allow_infinite=True)
        self.longest = seconds(longest, name="longest")
        self.minimum = seconds(minimum, name="minimum", allow_zero=True)
        self.grace = seconds(grace, name="grace", allow_zero=True)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one connection; what is no HTTP request passes as it is."""
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        left = self._left(scope["headers"])
        if left is not None and left <= 0.0:
            return await _answer(send, 408, "deadline_passed", (b"x-not-applied", b"deadline"))
        exchange = _Exchange(receive, send)
        if left is None:
            return await exchange.serve(self.app, scope, self.grace, None)
        total = min(left, self.longest)
        deadline = Deadline(total, minimum=self.minimum, name="X-Request-Deadline", origin="the request")
        with within(deadline):
            return await exchange.serve(self.app, scope, self.grace, deadline)

    def _left(self, headers: Iterable[tuple[bytes, bytes]]) -> float | None:
        """Return the seconds that the caller has left, or None."""
        given = list(headers)
        by_span, by_instant = (_whole(given, name) for name in (b"ms", b"at"))
        if by_instant is not None:
            by_instant -= clock().now().unix
        if by_span is None or by_instant is None:
            return by_instant if by_span is None else by_span
        return min(by_span, by_instant) if abs(by_span - by_instant) <= self.skew else by_span


def _whole(headers: Iterable[tuple[bytes, bytes]], which: bytes) -> float | None:
    """Return the smallest usable value of a header, in seconds."""
    name = b"x-request-deadline-" + which
    values = [value.strip() for key, value in headers if key.lower() == name]
    return min((int(value) / 1000 for value in values if _WHOLE.fullmatch(value)), default=None)


async def _answer(send: Send, status: int, error: str, *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps({"error": error}).encode()
    about = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()), *headers]
    await send({"type": "http.response.start", "status": status, "headers": about})
    await send({"type": "http.response.body", "body": body})


class _Exchange:
    """One request and its response."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._inbox: asyncio.Queue[Message | Exception] = asyncio.Queue(
            1
        )  # reads ahead by one message, to see the caller go
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun = self._complete = self._gone = self._cut = False

    async def serve(
        self, app: App, scope: MutableMapping[str, Any], grace: float, deadline: Deadline | None
    ) -> None:
        """Run the application until it ends, its time is over, or its caller has gone."""
        task = asyncio.ensure_future(app(scope, self._inbox_receive, self._guarded_send))
        task.add_done_callback(self._settle)
        reading = asyncio.create_task(self._read())
        try:
            await await_while(self._over, deadline.remaining if deadline is not None else lambda: 3600.0)
            if task.done() or self._complete:
                return await task
            task.cancel()
            await clock().wait_for(task, grace)
            task.add_done_callback(_report)
            if not (self._begun or self._gone):
                self._cut = True
                await _answer(self._send, 504, "deadline_passed")
        except asyncio.CancelledError:
            task.cancel()
            await clock().wait_for(task, grace)
            raise
        finally:
            reading.cancel()

    def _settle(self, _: object = None) -> None:
        if not self._over.done():
            self._over.set_result(None)

    async def _read(self) -> None:
        while True:
            try:
                message = await self._receive()
            except Exception as error:  # the application's to see
                await self._inbox.put(error)
                return
            gone = message["type"] == "http.disconnect"
            if gone:  # servers say so after every response, too, when it changes nothing any more
                self._gone = True
                self._settle()
            await self._inbox.put(message)
            if gone:
                return

    async def _inbox_receive(self) -> Message:
        message = await self._inbox.get()
        if isinstance(message, Exception):
            self._inbox.put_nowait(message)
            raise message
        if message["type"] == "http.disconnect":
            self._inbox.put_nowait(message)  # and it stays so
        return message

    async def _guarded_send(self, message: Message) -> None:
        if self._cut:
            return  # the answer was given in its place
        self._begun = True
        await self._send(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self._complete = True
            self._settle()


def _report(task: asyncio.Future[None]) -> None:
    """Log what an application that was cut off ended with, if it is not the cancellation."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a request failed after its deadline", exc_info=error)
