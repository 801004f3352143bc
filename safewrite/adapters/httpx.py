"""httpx clients that carry attempts and deadlines by themselves: `client = guarded(httpx.Client(...))`.

Every request of a guarded client, plain or async, of httpx or httpx2:

- takes the tightest deadline around it (attempt, run, request that is served), for the whole exchange: place in the
  pool, connect, every write, every read, a body that drips.  Inside an attempt it replaces the client's own timeout,
  elsewhere the smaller of both holds.  With nothing left it is not sent: `LegNotSent`;
- carries it onward, as `X-Request-Deadline-Ms` and `X-Request-Deadline-At`, and in an attempt `X-Attempt-Id`; a write
  (any method but GET, HEAD, OPTIONS, TRACE) also the `Idempotency-Key`, unless it has one.  A POST that only asks is
  marked: `client.post(url, extensions={"safewrite": "read"})`; in a read or a reconcile function nothing is a write;
- as a write in an attempt is never sent on to where a redirect points: `HTTPStatusError` instead;
- tells the evidence which status had arrived when the body of the response broke, and whether an earlier write of
  the same attempt had been delivered, or was under way, after which the last request's fate proves nothing.

REFUSED_STREAM, and GOAWAY below the request, are proofs that nothing was processed.  After an error or a limit the
connection is closed, never pooled half-read.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from math import inf
from types import SimpleNamespace
from typing import Any, TypeVar

import anyio
import httpx

from safewrite.attempt import LEAST_TIMEOUT
from safewrite.context import current_attempt, current_deadline
from safewrite.core.events import OutcomeState
from safewrite.core.evidence import from_exception
from safewrite.core.matching import chain, peek
from safewrite.core.statuses import SENT_ON, from_reply
from safewrite.core.tables_http import ANSWER
from safewrite.deadline import LegNotSent, deadline_headers
from safewrite.errors import ConfigurationError
from safewrite.settings import resolve_settings
from safewrite.shell.clock import clock

C = TypeVar("C")

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that write nothing."""
MARGIN = 0.1
"""Seconds by which the limit lies inside what is left, so that the client's error, which tells more, comes first."""

_KINDS = ("connect", "read", "write", "pool")
_OWN_DEFAULT = 5.0
_PIECE = 65536
_log = logging.getLogger("safewrite")


def guarded(client: C) -> C:
    """Return `client`, with every transport of it wrapped in `Transport` or `AsyncTransport`; twice is once.

    Raises `ConfigurationError` for one that follows redirects or whose transports retry, and logs a warning where its
    own timeout is shorter than ours, since it does not hold inside an attempt.
    """
    one: Any = client
    if getattr(one, "follow_redirects", None) is not False:
        raise ConfigurationError(
            f"`guarded` got {client!r}, no httpx client or one with `follow_redirects=True`: a followed 307 or 308 "
            "would be a second send. Leave it out, and pass `follow_redirects=True` to single reads."
        )
    kind: Any = AsyncTransport if hasattr(one, "aclose") else Transport

    def wrap(inner: Any) -> Any:
        return inner if inner is None or isinstance(inner, kind) else kind(inner)

    one._mounts = {pattern: wrap(inner) for pattern, inner in one._mounts.items()}
    one._transport = wrap(one._transport)
    ours, own = resolve_settings({}).operation_timeout, one.timeout
    limits = (getattr(own, name) for name in _KINDS)
    if any(limit is not None and limit != _OWN_DEFAULT and limit < ours for limit in limits):
        told = "a guarded client's own %s is shorter than `operation_timeout` (%g s): it holds outside attempts only"
        _log.warning(told, own, ours)
    return client


class Transport(httpx.BaseTransport):
    """Wraps any transport of a plain client; without one, a new `httpx.HTTPTransport()`.

    Raises `ConfigurationError` for a transport that retries.  Reads are bounded one by one where `inner` is
    `HTTPTransport`; of any other one each wait is bounded by what was left when it began.
    """

    def __init__(self, inner: httpx.BaseTransport | None = None) -> None:
        self.inner = inner if inner is not None else httpx.HTTPTransport()
        _refuse_retries(self.inner)
        pool: Any = getattr(self.inner, "_pool", None)
        self._bounded = hasattr(pool, "_network_backend")
        if self._bounded:
            pool._network_backend = _Wire(pool._network_backend)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        exchange = _Exchange(request, bounded=self._bounded)
        with exchange.sending(), exchange.waiting():
            response = self.inner.handle_request(request)
        if exchange.answered(response):
            response.close()
            raise exchange.redirected(response)
        return response

    def close(self) -> None:
        """Close what is wrapped."""
        self.inner.close()


class AsyncTransport(httpx.AsyncBaseTransport):
    """The same for an async client; without `inner`, a new `httpx.AsyncHTTPTransport()`, and every read is bounded."""

    def __init__(self, inner: httpx.AsyncBaseTransport | None = None) -> None:
        self.inner = inner if inner is not None else httpx.AsyncHTTPTransport()
        _refuse_retries(self.inner)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        exchange = _Exchange(request, bounded=True)
        with exchange.sending(), exchange.awaiting():
            response = await self.inner.handle_async_request(request)
        if exchange.answered(response):
            await response.aclose()
            raise exchange.redirected(response)
        return response

    async def aclose(self) -> None:
        """Close what is wrapped."""
        await self.inner.aclose()


def _refuse_retries(inner: object) -> None:
    retries = peek(peek(inner, "_pool"), "_retries")
    if isinstance(retries, int) and retries > 0:
        raise ConfigurationError(
            f"the transport has `retries={retries}`: one layer owns retries. Leave it out, and use `max_attempts`."
        )


class _Exchange:
    """One request and its response: what is left for both, and what the attempt must know of them."""

    def __init__(self, request: httpx.Request, *, bounded: bool) -> None:
        self.request, self._bounded = request, bounded
        self._attempt, self._deadline = current_attempt(), current_deadline()
        asks = request.method.upper() in SAFE or request.extensions.get("safewrite") == "read"
        attempt = self._attempt
        self._writes = attempt if attempt is not None and not attempt.reads and not asks else None
        left = self._deadline.remaining() if self._deadline is not None else inf
        self._margin = min(MARGIN, left / 20)
        beside: Any = tuple(attempt.under_way) if attempt is not None else ()
        if attempt is not None and (attempt.delivered or any(self._writes or o._writes for o in beside)):
            attempt.more_requests = True
        if left <= LEAST_TIMEOUT:
            raise LegNotSent(
                f"{request.method} {request.url.host} was not sent: nothing is left of the deadline",
                reason="budget_exhausted",
            )
        self._carry_onward(left)
        self._take_over(left - self._margin)
        self._broke_off = False
        if self._writes is not None:
            request.stream = _as_stream(_Upload, request.stream, self)

    def left(self) -> float:
        return self._deadline.remaining() - self._margin if self._deadline is not None else inf

    def _carry_onward(self, left: float) -> None:
        headers, attempt = self.request.headers, self._attempt
        if attempt is not None:
            headers["X-Attempt-Id"] = attempt.id
            headers.update(deadline_headers(attempt.remaining(), attempt.deadline_at))
            if self._writes or attempt.role == "read":
                attempt.deadline_read = True
            if self._writes and headers.get("Idempotency-Key") in (None, attempt._key):
                # Also where a request that is kept has it from an earlier attempt: that it is read is noted.
                headers["Idempotency-Key"] = attempt.key
        elif left < inf:
            headers.update(deadline_headers(left, clock().now().unix + left))

    def _take_over(self, left: float) -> None:
        """Give the client's own waits what is left, and forget the answer to an earlier hop of this request."""
        extensions = {name: value for name, value in self.request.extensions.items() if name != ANSWER}
        own = {} if self._attempt is not None else extensions.get("timeout") or {}
        if left < inf:
            limits = ((kind, own.get(kind)) for kind in _KINDS)
            extensions["timeout"] = {kind: left if n is None else min(n, left) for kind, n in limits}
        self.request.extensions = extensions

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Note whether a write was delivered that got no answer."""
        try:
            if self._attempt is not None:
                self._attempt.under_way.add(self)
            yield
        except BaseException as error:
            self._may_be_applied(None if self._broke_off else from_exception(error).outcome)
            raise

    @contextmanager
    def uploading(self) -> Iterator[None]:
        """Note whether what makes the body of the request failed: by then the request had begun to leave."""
        try:
            yield
        except GeneratorExit:  # whoever reads it stops, and says why himself
            raise
        except BaseException:
            self._broke_off = True
            raise

    def answered(self, response: httpx.Response) -> bool:
        """Take in an answer; return whether it is a redirect that would send a write a second time."""
        self.request.extensions[ANSWER] = SimpleNamespace(
            status_code=response.status_code, headers=response.headers
        )
        found = from_reply(response, None)
        self._may_be_applied(found.outcome if found is not None else None)
        response.request = self.request
        response.stream = _as_stream(_Body, response.stream, self)
        sends_on = response.status_code in SENT_ON and "Location" in response.headers
        return self._writes is not None and sends_on

    def _may_be_applied(self, outcome: OutcomeState | None) -> None:
        if self._writes and outcome is not OutcomeState.NOT_APPLIED:
            self._writes.delivered = True
        if self._attempt is not None:
            self._attempt.under_way.discard(self)

    def redirected(self, response: httpx.Response) -> Any:
        to: object = "an address that is none"
        with suppress(httpx.InvalidURL):  # of which a client would say that nothing was sent
            to = httpx.URL(response.headers["Location"]).copy_with(query=None, fragment=None)
        return _package(self.request).HTTPStatusError(
            f"a write was answered with {response.status_code}: it is not sent on to `{to}`, which would be a second "
            "send. Write to that address in the first place.",
            request=self.request,
            response=response,
        )

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Bound each wait inside, of this thread."""
        if not self._bounded and self.left() <= 0.0:
            raise self._too_late()
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextmanager
    def awaiting(self) -> Iterator[None]:
        """Bound all that is awaited inside."""
        try:
            # A little later than the client's own limits, which tell what was waited for.
            limit = self.left() + self._margin / 2
            with anyio.fail_after(limit if limit < inf else None):
                yield
        except TimeoutError as late:
            raise self._too_late() from late

    def broke(self, error: BaseException) -> None:
        """Tell every layer of an error in the body which exchange it belongs to, so that its answer is found."""
        for link in chain(error):
            if peek(link.exception, "request") is not None:
                return  # an earlier exchange, while whose error was handled this one was made
            with suppress(AttributeError):
                link.exception.request = self.request  # type: ignore[attr-defined]

    def _too_late(self) -> Any:
        return _package(self.request).ReadTimeout(_TOO_LATE, request=self.request)


_TOO_LATE = "the deadline ended in the middle of an exchange"
_current: ContextVar[_Exchange | None] = ContextVar("safewrite_exchange", default=None)


def _package(thing: object) -> Any:
    """Return the package that a thing of httpx or httpcore, or of a successor, comes from."""
    return sys.modules[type(thing).__module__.partition(".")[0]]


class _Body:
    """The body of a response, read under what is left."""

    def __init__(self, stream: Any, exchange: _Exchange) -> None:
        self._stream, self._exchange = stream, exchange

    def __iter__(self) -> Iterator[bytes]:
        parts = iter(self._stream)
        try:
            while True:
                with self._exchange.waiting():
                    part = next(parts, None)
                if part is None:
                    return
                yield part
        except BaseException as error:
            self._exchange.broke(error)
            self.close()
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = aiter(self._stream)
        try:
            while True:
                with self._exchange.awaiting():
                    part = await anext(parts, None)
                if part is None:
                    return
                yield part
        except BaseException as error:
            self._exchange.broke(error)
            with anyio.CancelScope(shield=True):
                await self.aclose()
            raise

    def close(self) -> None:
        self._stream.close()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Upload:
    """The body of a request that writes."""

    def __init__(self, stream: Any, exchange: _Exchange) -> None:
        self._stream, self._exchange = stream, exchange

    def __iter__(self) -> Iterator[bytes]:
        with self._exchange.uploading():
            yield from self._stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with self._exchange.uploading():
            async for part in self._stream:
                yield part


def _as_stream(ours: Any, stream: Any, exchange: _Exchange) -> Any:
    """Return a stream in `ours`, of the same package: clients insist on their own."""
    kind: Any = type(stream)
    return _kind_of(ours, kind)(stream, exchange)


@cache
def _kind_of(ours: Any, kind: Any) -> Any:
    bases = [base for base in kind.__mro__ if base.__name__ in ("SyncByteStream", "AsyncByteStream")]
    return type(ours.__name__, (ours, *bases), {})


class _Wire:
    """A network backend of httpcore, or a stream of one: every wait is cut to what the current exchange has left."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _cut(self, timeout: float | None, kind: str) -> float | None:
        exchange = _current.get()
        if exchange is None or (left := exchange.left()) == inf:
            return timeout
        if left <= 0.0:
            raise getattr(_package(self._inner), kind)(_TOO_LATE)
        return left if timeout is None else min(timeout, left)

    def connect_tcp(self, *args: Any, timeout: float | None = None, **rest: Any) -> _Wire:
        return _Wire(self._inner.connect_tcp(*args, timeout=self._cut(timeout, "ConnectTimeout"), **rest))

    def connect_unix_socket(self, *args: Any, timeout: float | None = None, **rest: Any) -> _Wire:
        limit = self._cut(timeout, "ConnectTimeout")
        return _Wire(self._inner.connect_unix_socket(*args, timeout=limit, **rest))

    def start_tls(self, *args: Any, timeout: float | None = None, **rest: Any) -> _Wire:
        return _Wire(self._inner.start_tls(*args, timeout=self._cut(timeout, "ConnectTimeout"), **rest))

    def read(self, max_bytes: int, timeout: float | None = None) -> Any:
        return self._inner.read(max_bytes, timeout=self._cut(timeout, "ReadTimeout"))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            self._inner.write(buffer[start : start + _PIECE], timeout=self._cut(timeout, "WriteTimeout"))
