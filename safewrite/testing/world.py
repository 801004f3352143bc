"""The world of a case: it answers the bodies of today as the record says that those of then were answered."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final, cast

import httpx

from safewrite.audit.cases import Case, CaseUnusable, Replay
from safewrite.context import current_attempt
from safewrite.core.events import Ended, Event, GaveUp, ReadEnded
from safewrite.testing.transport import Carrier, Waits, alet_pass, let_pass, silence
from safewrite.testing.wall import PAST_PYTHON

if TYPE_CHECKING:
    from safewrite.testing.bodies import Bodies

Failure = Callable[[httpx.Request], httpx.TransportError]
Replies = Mapping[str, Any]
"""Reason code of an attempt, verdict of a read, or `other` -> JSON, or a function of the request for a response."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt, or a reconciling read, ended by the record."""

    number: int
    """The attempt; of a read: the newest attempt when it began."""
    says: str
    """The outcome of an attempt, the verdict of a read."""
    reason: str
    status: int | None = None
    retry_after: float | None = None
    read: bool = False
    hangs: bool = False
    """Nobody heard of its end in time."""


def ending_of(event: Event) -> Ending | None:
    """Return what a row says of the end of an attempt or a read; None: it tells of something else."""
    match event.fact:
        case Ended(number=number, finding=found):
            hangs = found.reason in ("timeout", "idle") and found.status is None
            return Ending(
                number, found.outcome.value, found.reason, found.status, found.retry_after, hangs=hangs
            )
        case GaveUp(number=number, reason=reason):
            return Ending(number, "unknown", reason, hangs=True)
        case ReadEnded(epoch=number, verdict=verdict, reason=reason):
            return Ending(number, verdict.value, reason, read=True, hangs=reason == "read_timeout")
    return None


class RecordedWorld:
    """A case, and the world in it: `replay` runs a tool's body and its reconcile function in that world.

    - `transport`: for `httpx.Client` and `httpx.AsyncClient`: every attempt and read ends as it did then;
    - `attempts`, `reads`: how each of them ended, in order; `ending()` says it of the one that runs, for fakes.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.intent = case, case.intent
        told = [ending for row in case.rows if (ending := ending_of(row.told()[0])) is not None]
        self.attempts = tuple(one for one in told if not one.read)
        self.reads = tuple(one for one in told if one.read)
        self.replies: Replies = {}
        self.play: Bodies | None = None
        self._transport: _Transport | None = None

    @property
    def transport(self) -> httpx.BaseTransport | httpx.AsyncBaseTransport | Any:
        """The transport that answers as recorded, while a replay runs."""
        self._transport = self._transport or _Transport(self)
        return self._transport

    @property
    def taken(self) -> bool:
        """Whether the test has taken the transport."""
        return self._transport is not None

    def replay(
        self,
        tool: Any,
        *,
        arguments: Mapping[str, Any] | None = None,
        replies: Replies | None = None,
        faked: bool = False,
    ) -> Replay:
        """Run the tool's own body and reconcile function as recorded, and return that all was decided as then.

        Plain and coroutine functions alike; time is virtual, the ledger fresh and in memory.  The real world is
        closed meanwhile.

        - `arguments`: those that the case does not hold, or others;
        - `replies`: what replies hold, by reason code (`returned`, `http_409`) for attempts and by verdict (`applied`,
          `not_applied`) for reads; `other`: of further requests.  JSON, or a function of the `httpx.Request` that
          returns a response;
        - `faked`: the test has put a fake in the place of all that the body sends with.

        Raises `AssertionError`, which tells what was decided otherwise, and `CaseUnusable` for what cannot be replayed.
        """
        from safewrite.testing.bodies import replay_bodies

        self._check(faked)
        self.replies = replies or {}
        came = replay_bodies(self, tool, arguments or {}, faked=faked)
        if not came.same:
            raise AssertionError(str(came))
        return came

    def _check(self, faked: bool) -> None:
        if faked:
            return
        if not self.taken:
            raise CaseUnusable(
                "nothing stands between the body and the real world. Make its client with `transport=` this case's "
                "`transport`, or fake it and say `faked=True`."
            )
        loaded = [name for name in PAST_PYTHON if name in sys.modules]
        if loaded:
            raise CaseUnusable(
                f"`{loaded[0]}` is loaded, whose connections nothing here could hold back. Where the body does not "
                "use it, or it is faked, say `faked=True`."
            )

    # What fakes ask ----------------------------------------------------------------------------------------------

    def ending(self) -> Ending:
        """Return how the attempt or read that runs ended, after the time that it took; hangs where that did."""
        ending, lasts = self.due()
        play = self._running()
        let_pass(inf if ending.hangs else lasts, play.over)
        play.check_over()
        return ending

    async def aending(self) -> Ending:
        """Do as `ending`, in a coroutine."""
        ending, lasts = self.due()
        await alet_pass(inf if ending.hangs else lasts)
        return ending

    def due(self) -> tuple[Ending, float]:
        """Return how the attempt or read that runs ended, and in how many seconds from now."""
        play, attempt = self._running(), current_attempt()
        if attempt is None:
            raise play.refuse("something was asked outside of any attempt: from a thread of the body's own?")
        event = play.end_of(attempt)
        ending = None if event is None else ending_of(event)
        if event is None or ending is None:
            raise play.beyond()
        return ending, max(0.0, play.offset(event) - play.clock.elapsed)

    def _running(self) -> Bodies:
        if self.play is None:
            raise CaseUnusable("the recorded world answers only in a replay: call `replay(tool)`.")
        return self.play


class _Transport(Carrier):
    def __init__(self, world: RecordedWorld) -> None:
        self._world = world

    def steps(self, request: httpx.Request) -> Waits:
        world = self._world
        ending, lasts = world.due()
        play, attempt = world._running(), current_attempt()
        self.over = play.over
        given = request.extensions.get("timeout", {}).get("read")
        patience = inf if given is None else float(given)
        if not play.asks(request, attempt):
            yield from ()
            return _reply(world, request, ending, "other")
        if ending.hangs or ending.reason == "read_timeout" or lasts > patience:
            yield from silence(patience, request, play.check_over)
        yield lasts
        name = ending.says if ending.read else ending.reason
        failure = None if name in world.replies else _FAILURES.get(ending.reason)
        if failure is not None:
            raise failure(request)
        return _reply(world, request, ending, name)


def _reply(world: RecordedWorld, request: httpx.Request, ending: Ending, name: str) -> httpx.Response:
    """Return what is answered: what the test says, else what follows from the record."""
    status = 200 if ending.status is None or name == "other" else ending.status
    if ending.read and ending.reason == "read_failed":
        status = 503
    known = ending.status is not None or ending.reason in ("returned", "read_failed")
    if name not in world.replies and (name == "other" or not known):
        what = "a reconciling read" if ending.read else f"attempt {ending.number}"
        about = (
            f"ended `{name}`" if name != "other" else f"asked further ({request.method} {request.url.path})"
        )
        raise world._running().refuse(
            f"{what} {about}, and the case does not hold what it was answered. Say it: `replies={{{name!r}: ...}}`"
        )
    found: Any = world.replies.get(name, {})
    headers = {} if ending.retry_after is None else {"Retry-After": f"{ending.retry_after:g}"}
    if ending.reason == "http_not_applied":
        headers["X-Not-Applied"] = "recorded"
    if callable(found):
        answer = cast("httpx.Response", found(request))
    else:
        answer = httpx.Response(status, json=found, headers=headers)
    answer.request = request
    return answer


def _from(kind: type[httpx.TransportError], cause: Callable[[], OSError] | None = None) -> Failure:
    def make(request: httpx.Request) -> httpx.TransportError:
        below = None if cause is None else cause()
        error = kind(str(below or "as recorded"), request=request)
        error.__cause__ = below
        return error

    return make


def _reset() -> OSError:
    return ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))


def _refused() -> OSError:
    return ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


_FAILURES: Final[Mapping[str, Failure]] = {
    "connect_failed": _from(httpx.ConnectError),
    "connect_refused": _from(httpx.ConnectError, _refused),
    "name_not_resolved": _from(
        httpx.ConnectError, lambda: socket.gaierror(socket.EAI_NONAME, "no such name")
    ),
    "tls_failed": _from(httpx.ConnectError, lambda: ssl.SSLError("handshake failure")),
    "connect_timeout": _from(httpx.ConnectTimeout),
    "pool_timeout": _from(httpx.PoolTimeout),
    "write_timeout": _from(httpx.WriteTimeout),
    "read_error": _from(httpx.ReadError, _reset),
    "write_error": _from(httpx.WriteError, _reset),
    "close_error": _from(httpx.CloseError),
    "remote_protocol_error": _from(httpx.RemoteProtocolError),
    "proxy_error": _from(httpx.ProxyError),
    "transport_error": _from(httpx.TransportError),
}
"""Reason code -> what httpx raises for it."""
