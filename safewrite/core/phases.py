"""What the traceback of an exception tells about the moment it was raised.

The class of an exception seldom says whether a byte of the request had left.  Its traceback often does: the
innermost frame shows which call was running (`connect`, `recv`, `commit`), and outer frames show that a client
had already been redirected, or had sent the request before.  Frames are read, never run; one that is missing
proves nothing, and every question here answers "not known" without it.
"""

from __future__ import annotations

import dis
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import CodeType, FrameType, TracebackType
from typing import Final

from safewrite.core.matching import causes, chain, package, peek


class Phase(StrEnum):
    """Where in the life of a connection an exception was raised."""

    CONNECT = "connect"
    """Before the first byte of the request: the connection was still being made."""
    TRANSFER = "transfer"
    """While bytes were being sent or received."""


CALLS: Final[Mapping[str, Phase]] = {
    **dict.fromkeys(("connect", "connect_ex", "do_handshake", "getaddrinfo"), Phase.CONNECT),
    **dict.fromkeys(
        ("recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into", "read", "readinto"),
        Phase.TRANSFER,
    ),
    **dict.fromkeys(("readline", "readuntil", "readexactly"), Phase.TRANSFER),
    **dict.fromkeys(("send", "sendall", "sendto", "sendmsg", "sendfile", "write", "flush"), Phase.TRANSFER),
}
"""Name of the call that was running in the innermost frame -> phase."""

FRAMES: Final[Mapping[tuple[str, str], Phase]] = {
    ("asyncio.selector_events", "_sock_connect_cb"): Phase.CONNECT,
    ("asyncio.base_events", "create_connection"): Phase.CONNECT,
    ("anyio._core._sockets", "connect_tcp"): Phase.CONNECT,
    ("asyncio.streams", "read"): Phase.TRANSFER,
    ("asyncio.streams", "readuntil"): Phase.TRANSFER,
    ("asyncio.streams", "readexactly"): Phase.TRANSFER,
    ("asyncio.streams", "drain"): Phase.TRANSFER,
}
"""(module, function) of an innermost frame that raises by itself -> phase."""

Locals = Mapping[str, object]


def _always(_: int, __: Locals) -> bool:
    return True


def _twice(times: int, _: Locals) -> bool:
    return times > 1


def _redirected(_: int, seen: Locals) -> bool:
    return bool(seen.get("history"))


def _more_attempts(_: int, seen: Locals) -> bool:
    attempts = seen.get("attempts")
    return isinstance(attempts, int) and attempts > 1


def _tenacity_again(_: int, seen: Locals) -> bool:
    number = peek(seen.get("retry_state"), "attempt_number")
    return isinstance(number, int) and number > 1


def _aiohttp_again(_: int, seen: Locals) -> bool:
    spent = seen.get("retry_persistent_connection") is False and peek(seen.get("self"), "_retry_connection")
    return bool(seen.get("history")) or bool(spent and seen.get("method") in _IDEMPOTENT)


_IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})

RESENDS: Final[Mapping[tuple[str, str], Callable[[int, Locals], bool]]] = {
    ("httpx._client", "_send_handling_redirects"): _redirected,
    ("requests.sessions", "resolve_redirects"): _always,
    ("urllib3.connectionpool", "urlopen"): _twice,
    ("urllib3.poolmanager", "urlopen"): _twice,
    ("urllib.request", "http_error_302"): _always,
    ("aiohttp.client", "_request"): _aiohttp_again,
    ("botocore.endpoint", "_send_request"): _more_attempts,
    ("tenacity", "iter"): _tenacity_again,
    ("tenacity.asyncio", "iter"): _tenacity_again,
}
"""(module, function) of a frame -> does it tell (how many such frames, its locals) that an earlier request was sent?"""

COMMITS: Final = frozenset(
    {
        ("psycopg", "commit"),
        ("psycopg", "_commit_gen"),
        ("psycopg", "_exit_gen"),
        ("sqlalchemy", "do_commit"),
        ("asyncpg", "commit"),
        ("asyncpg", "__commit"),
    }
)
"""(package, function) of the frames in which drivers run a COMMIT."""

STATEMENTS: Final = frozenset({("psycopg", "execute"), ("sqlalchemy", "do_execute"), ("asyncpg", "execute")})
"""(package, function) of the frames that hold the text of a statement."""
STATEMENT_NAMES: Final = ("query", "statement")

_ENDS_TRANSACTION = re.compile(r"(?:^|;)\s*(?:commit|end|release|prepare\s+transaction)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Call:
    """The call that was running in the innermost frame."""

    name: str | None = None
    """The attribute that was called (`sock.recv(…)`: `recv`); None where it was no such call, or is not known."""
    values: tuple[object, ...] = ()
    """Constants and variables that stand in the call, arguments among them."""
    leaving: bool = False
    """The end of a `with` block, whose context manager was being left."""


def phase_of(exc: BaseException) -> Phase | None:
    """Return the phase in which `exc` was raised, as its innermost frame shows; None: not known."""
    frame = _last(exc)
    if frame is None:
        return None
    here = FRAMES.get((_module(frame), frame.f_code.co_name))
    return here or CALLS.get(running_call(exc).name or "")


def running_call(exc: BaseException) -> Call:
    """Return the call out of which `exc` came, where the innermost frame was in one."""
    step = _innermost(exc)
    if step is None:
        return Call()
    frame = step.tb_frame
    steps = list(_instructions(frame.f_code))
    at = next((one for one in steps if one.offset == step.tb_lasti), None)
    if at is None or not at.opname.startswith(("CALL", "PRECALL")):
        return Call()
    inside = [one for one in steps if one.within(at)]
    names = [str(one.operand) for one in inside if one.opname in _ATTRIBUTE and one.begin == at.begin]
    values = tuple(value for one in inside if one.opname.startswith("LOAD_") for value in _values(one, frame))
    if any(one.opname in _ENTERING for one in inside):
        return Call(None, values, leaving=True)
    return Call(names[-1] if names else None, values)


def resent(exc: BaseException) -> bool:
    """Return whether the frames of `exc`, or of one that it hangs on, tell of an earlier request in this call.

    A redirect that was followed, a send repeated by the transport or by tenacity: then the non-delivery of the
    last one says nothing about the first.
    """
    return any(_frames_tell(link.exception) for link in chain(exc))


def committing(exc: BaseException) -> bool:
    """Return whether `exc` came out of a COMMIT, as far as frames show."""
    for frame in _frames(exc):
        place = (package(_module(frame)), frame.f_code.co_name)
        if place in COMMITS:
            return True
        if place in STATEMENTS and any(
            ends_transaction(frame.f_locals.get(name)) for name in STATEMENT_NAMES
        ):
            return True
    return running_call(exc).name == "commit"


def ends_transaction(text: object) -> bool:
    """Return whether SQL text holds a COMMIT, an END or a RELEASE (one inside quotes counts, to be safe)."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return isinstance(text, str) and _ENDS_TRANSACTION.search(text) is not None


def own_stream(exc: BaseException) -> int | None:
    """Return the number of the HTTP/2 stream of our request, from the frames of `exc` and its causes."""
    for one in causes(exc):
        for frame in _frames(one):
            stream = frame.f_locals.get("stream_id") if _is_http2(frame) else None
            if isinstance(stream, int):
                return stream
    return None


def in_body(exc: BaseException) -> bool:
    """Return whether an HTTP/2 error came while the body of a response was read, so after its status."""
    return any(
        frame.f_code.co_name == "_receive_response_body"
        for one in causes(exc)
        for frame in _frames(one)
        if _is_http2(frame)
    )


_ATTRIBUTE = frozenset({"LOAD_METHOD", "LOAD_ATTR", "LOAD_SUPER_ATTR"})
_ENTERING = frozenset({"BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL"})


def _steps(exc: BaseException) -> Iterator[TracebackType]:
    step = exc.__traceback__
    while step is not None:
        yield step
        step = step.tb_next


def _frames(exc: BaseException) -> Iterator[FrameType]:
    return (step.tb_frame for step in _steps(exc))


def _innermost(exc: BaseException) -> TracebackType | None:
    last = deque(_steps(exc), maxlen=1)
    return last[0] if last else None


def _last(exc: BaseException) -> FrameType | None:
    step = _innermost(exc)
    return None if step is None else step.tb_frame


def _module(frame: FrameType) -> str:
    """Return the module of a frame, under the package name that the tables use."""
    name = str(frame.f_globals.get("__name__", ""))
    root, dot, rest = name.partition(".")
    return package(root) + dot + rest


def _is_http2(frame: FrameType) -> bool:
    module = _module(frame)
    return module.startswith("httpcore.") and module.endswith(".http2")


def _frames_tell(exc: BaseException) -> bool:
    places: dict[tuple[str, str], dict[int, FrameType]] = defaultdict(dict)
    for frame in _frames(exc):
        place = (_module(frame), frame.f_code.co_name)
        if place in RESENDS:
            places[place][id(frame)] = frame  # one frame re-raising stands twice in a traceback
    return any(
        RESENDS[place](len(frames), frame.f_locals)
        for place, frames in places.items()
        for frame in frames.values()
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """One instruction, with where its expression begins and ends in the source: (line, column) each."""

    opname: str
    offset: int
    operand: object
    begin: tuple[int, int]
    end: tuple[int, int]

    def within(self, outer: _Step) -> bool:
        return outer.begin <= self.begin and self.end <= outer.end


def _instructions(code: CodeType) -> Iterator[_Step]:
    """Return the instructions whose place in the source is known (all, unless Python was told to drop them)."""
    for one in dis.get_instructions(code):
        match one.positions:
            case (int(line), int(end_line), int(column), int(end_column)):
                yield _Step(one.opname, one.offset, one.argval, (line, column), (end_line, end_column))


def _values(step: _Step, frame: FrameType) -> tuple[object, ...]:
    """Return what a load puts on the stack: the constant, or what each variable holds now."""
    if step.opname == "LOAD_CONST":
        return (step.operand,)
    names = step.operand if isinstance(step.operand, tuple) else (step.operand,)  # 3.13 loads two at once
    return tuple(frame.f_locals.get(str(name), frame.f_globals.get(str(name))) for name in names)
