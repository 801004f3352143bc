"""Guarded tools on a server of the MCP SDK, 1.x or 2.x: `safe = SafeServer(server, sw)`, then `@safe.tool()`.

A call says in the `_meta` of its request who it is, under keys of ours: `dev.safewrite/run` and
`dev.safewrite/turn`, which must be there; `dev.safewrite/occurrence` of several equal writes of one turn;
`dev.safewrite/tool-call-id`, for the audit; `dev.safewrite/deadline-ms` (what the caller has left, in whole
milliseconds) and `dev.safewrite/deadline-at` (the instant, Unix milliseconds).  The instant only shortens: one that
is past, or further off than the milliseconds, is that of another clock.  What is no whole number is as if it were not
there; zero and less is refused.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import anyio
import anyio.to_thread
from mcp.types import ToolAnnotations

from safewrite import words
from safewrite.adapters._mcp import (
    PREFIX,
    PROTOCOL_ERROR,
    Request,
    declared_tools,
    low_level,
    protocol_error,
    result_of,
    says_error,
    tool_result,
    wrap_requests,
)
from safewrite.adapters.backstop import NO_ANSWER, TOOL_CALL, Backstop, Fallback
from safewrite.context import run, tool_call, turn
from safewrite.core.intent import turn_text
from safewrite.deadline import Deadline
from safewrite.durations import Duration, seconds
from safewrite.errors import ConfigurationError, SafeWriteError
from safewrite.report import WriteReport
from safewrite.shell.clock import clock
from safewrite.shell.idle import Keepalive
from safewrite.tool import Tool

if TYPE_CHECKING:
    from safewrite.guard import SafeWrite

W = TypeVar("W", bound=Callable[..., Any])
_log = logging.getLogger("safewrite")

LEAST: Final = 0.05
"""Seconds: with less left, a write is not begun."""
ENDLESS: Final = frozenset({"subscriptions/listen", "tasks/result"})
"""Methods whose answer is not due at any time."""


class Identity(NamedTuple):
    """Who a call says it is, and the seconds that its caller says are left."""

    run: str
    turn: str
    occurrence: str | None
    tool_call_id: str
    left: float | None


class SafeServer:
    """Binds, bounds and renders the guarded writes of `sw` on `server`: an `MCPServer`, a `FastMCP` or a low-level one.

    - `longest`: the most of a deadline that a caller may ask for; default: the setting `operation_timeout`.
    - `keepalive`, `idle`: every so often a write says that it is still there, to callers who asked for progress, and
      what they bear without; defaults: the settings.
    - `host_limit`: the shortest limit around the server that is known, of a client, a proxy or a worker.

    Every request is answered by the backstop where nothing else answers it.  In 1.x make it after the server's other
    handlers.  Durations are seconds or `timedelta`.  Raises `ConfigurationError` for limits in the wrong order.
    """

    def __init__(
        self,
        server: Any,
        sw: SafeWrite,
        *,
        longest: Duration | None = None,
        keepalive: Duration | None = None,
        idle: Duration | None = None,
        host_limit: Duration | None = None,
    ) -> None:
        self.server, self.sw = server, sw
        self.longest = sw.settings.operation_timeout if longest is None else seconds(longest, name="longest")
        within = {"longest + grace": self.longest + sw.settings.grace}
        self.backstop = Backstop(sw, inner=within, host_limit=host_limit)
        every, most = keepalive or sw.settings.keepalive, idle or sw.settings.idle
        self._keepalive = partial(Keepalive, interval=every, idle=most)
        self._keepalive(print)  # the check of both numbers
        self._writes: dict[str, Tool] = {}
        self._checked = False
        wrap_requests(server, self._around)

    # Declaring ----------------------------------------------------------------------------------------------------

    def tool(
        self,
        *,
        name: str | None = None,
        destructive: bool = True,
        open_world: bool | None = None,
        **options: Any,
    ) -> Callable[[W], W]:
        """Serve a guarded write, above `@sw.write`: `name` is by default the function's.

        `destructive` and `open_world` are its hints; `options` go to the server (`title`, `description`, `meta`).  On
        a low-level server, which lists and calls its tools itself, it only makes the name known: its handler
        returns `served(write)(**arguments)`.  Raises `ConfigurationError`.
        """
        if "annotations" in options:
            raise ConfigurationError(
                "`annotations` are made by `destructive=` and `open_world=`. `idempotentHint` is never claimed: the "
                "key belongs to one turn, and the same arguments in a later turn write again."
            )

        def declare(write: W) -> W:
            fn = served(write)
            tool: Tool = write.tool  # type: ignore[attr-defined]
            known = name or tool.fn.__name__
            hints = {"readOnlyHint": False, "destructiveHint": destructive, "openWorldHint": open_world}
            if self.server is not low_level(self.server):
                annotations = ToolAnnotations.model_validate(hints)
                self.server.add_tool(fn, name=known, annotations=annotations, **options)
            self._writes[known] = tool
            return write

        return declare

    def check(self) -> None:
        """Raise `ConfigurationError` for a write that runs without its guard; logged at the first request."""
        for problem in self._unguarded():
            raise ConfigurationError(problem)

    def _unguarded(self) -> list[str]:
        return [
            f"the server's tool `{tool.name}` is a guarded write that was handed over as it is: nobody tells it run "
            "and turn, so nothing is ever sent. Write `@safe.tool()` in the place of `@server.tool()`."
            for tool in declared_tools(self.server)
            if isinstance(getattr(tool.fn, "tool", None), Tool)
        ]

    # Serving ------------------------------------------------------------------------------------------------------

    async def _around(self, request: Request, call: Callable[[], Awaitable[Any]]) -> Any:
        if request.method in ENDLESS:
            return await call()
        for problem in () if self._checked else self._unguarded():
            _log.error("safewrite: %s", problem)
        self._checked = True
        name = str(request.params.get("name", "")) if request.method == TOOL_CALL else ""
        write = self._writes.get(name)
        work = call if write is None else partial(self._write, write, request, call)
        over = asyncio.Event()
        over.set()
        answers: list[Any] = []

        async def handle() -> Any:
            over.clear()
            try:
                return await work()
            finally:
                over.set()

        async def send(answer: Any) -> None:
            answers.append(answer)

        tool, passes = name if write is None else write.name, (PROTOCOL_ERROR,)
        try:
            await self.backstop.answer(handle, send, method=request.method, tool=tool, passes=passes)
        except asyncio.CancelledError:
            # The handler is a task of its own, which the cancellation of this one reaches once; a scope that cancels
            # every await of this one anew does not cut off what it records.
            s = self.sw.settings
            with anyio.move_on_after(s.grace + s.busy_timeout + s.statement_timeout, shield=True):
                await over.wait()
            raise
        (answer,) = answers
        if not isinstance(answer, Fallback):
            return answer
        if not answer.tool_call:
            raise protocol_error(NO_ANSWER, answer.text, {"trace": answer.trace})
        report = answer.report
        return request.answer(answer.as_json()["result"] if report is None else result_of(report))

    async def _write(self, tool: Tool, request: Request, call: Callable[[], Awaitable[Any]]) -> Any:
        """Carry out one call of a guarded write under the identity and the deadline that it brings."""
        said = self._identity(request)
        if isinstance(said, str):
            _log.error("safewrite: `%s` was refused: %s", tool.name, said)
            return request.answer(_refused(words.set_up(tool.name, said), "no_identity"))
        left = self.longest if said.left is None else min(said.left, self.longest)
        origin = "the caller" if left == said.left else "`longest`"
        deadline = Deadline(max(left, 1e-9), minimum=LEAST, name=f"{PREFIX}deadline-ms", origin=origin)
        began = clock().now().ticks

        async def sign() -> None:
            if request.progress is not None:
                await request.progress(clock().now().ticks - began)

        identity = tool_call(said.tool_call_id, occurrence=said.occurrence)
        with run(said.run, deadline=deadline), turn(said.turn), identity as within:
            async with self._keepalive(sign):
                answer = await call()
        if says_error(answer) and within.heard:
            # The SDK could not make a result of the value: what became of the write is told all the same.
            return request.answer(result_of(WriteReport.of(within.heard[-1])))
        return answer

    def _identity(self, request: Request) -> Identity | str:
        """Return who a call says it is, or why it cannot be told: nothing is made up."""
        meta = request.params.get("_meta")
        if not isinstance(meta, Mapping):
            meta = {}
        said = {key.removeprefix(PREFIX): value for key, value in meta.items() if str(key).startswith(PREFIX)}
        missing = [f"`{PREFIX}{name}`" for name in ("run", "turn") if said.get(name) in (None, "")]
        if missing:
            return f"its caller did not say {' and '.join(missing)} in `_meta`"
        who, occurrence = said["run"], said.get("occurrence")
        if not isinstance(who, str) or not who.strip():
            return f"`{PREFIX}run` in `_meta` is no text"
        if who == request.session_id:
            return f"`{PREFIX}run` in `_meta` is the session id of the transport, which a resumed run does not keep"
        try:
            which = turn_text(said["turn"])
            again = None if occurrence is None else turn_text(occurrence)
            tool_call_id = str(said.get("tool-call-id") or "")
        except ValueError as bad:
            return f"`_meta` cannot be read: {bad}"
        return Identity(who, which, again, tool_call_id, _left(said))


def _left(said: dict[str, Any]) -> float | None:
    """Return the seconds that the caller has left."""
    whole = [said.get(f"deadline-{name}") for name in ("ms", "at")]
    ms, at = (v if type(v) is int and abs(v) < 10**15 else None for v in whole)
    by_instant = None if at is None else at / 1000 - clock().now().unix
    if ms is None:
        return by_instant
    by_span = ms / 1000
    return by_instant if by_instant is not None and 0.0 < by_instant < by_span else by_span


def served(write: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return a guarded write as a server runs it: a coroutine function with the tool's own parameters.

    It returns the tool's value, or the SDK's `CallToolResult` with a `WriteReport`.  A plain function runs in a thread,
    so that the server stays awake.  Raises `ConfigurationError` for what is no guarded function, and for one that
    takes the SDK's `Context`, which would be part of its record.
    """
    tool = getattr(write, "tool", None)
    dressed = getattr(write, "as_tool", None)
    if not isinstance(tool, Tool) or dressed is None:
        raise ConfigurationError(
            f"{write!r} is no guarded write. Write `@sw.write(...)` below `@safe.tool()`."
        )
    if tool.receiver is not None:
        raise ConfigurationError(f"`{tool.name}` is a method. Guard a function.")
    if any(getattr(hint, "__module__", "").startswith("mcp.server") for hint in tool.hints.values()):
        raise ConfigurationError(
            f"`{tool.name}` takes the server's `Context`, which would be recorded. Take it out: progress is automatic."
        )
    guarded: Callable[..., Any] = dressed()

    async def call(*args: Any, **kwargs: Any) -> Any:
        work = partial(guarded, *args, **kwargs)
        try:
            # A thread that is left behind goes on to its own end, and records it.
            value = await (
                work() if tool.is_async else anyio.to_thread.run_sync(work, abandon_on_cancel=True)
            )
        except SafeWriteError as error:  # of the set-up: nothing was sent
            _log.exception("safewrite: `%s` cannot run", tool.name)
            return tool_result(_refused(error.for_model(), type(error).__name__))
        return tool_result(result_of(value)) if isinstance(value, WriteReport) else value

    hints, signature = {**tool.hints, "return": guarded.__annotations__["return"]}, inspect.signature(guarded)
    parameters = [
        p.replace(annotation=hints.get(p.name, p.annotation)) for p in signature.parameters.values()
    ]
    made: Any = call
    made.__signature__ = signature.replace(parameters=parameters, return_annotation=hints["return"])
    made.__annotations__ = {k: hints.get(k, v) for k, v in guarded.__annotations__.items()}
    for name in ("__name__", "__qualname__", "__doc__", "__module__"):
        setattr(made, name, getattr(guarded, name))
    return call


def _refused(text: str, reason: str) -> dict[str, Any]:
    """Return the result of a call that a fault of the set-up kept from being sent."""
    report = WriteReport(state="not_applied", reason=reason, message=text, do_not_repeat=True)
    return result_of(report, is_error=True)
