"""Calling a tool of an MCP server that changes something: one operation, one deadline, and a server that is told.

Inside the body of a write, or under a run and a turn:

    operation = Operation("cancel")
    await operation.before("initialize", session.initialize)
    result = await operation.call(session, {"sub_id": "sub_1"})

Every error that leaves the fate of the call open (a timeout, -32001, 408, a closed stream, a cancelled request, a tool
error) is ambiguous to `@sw.write`, which reconciles it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from math import inf
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

import anyio

from safewrite.adapters._mcp import PREFIX, Issued, Wire, report_in, session_of, tool_result
from safewrite.context import current_attempt, current_deadline, current_run, current_tool_call, current_turn
from safewrite.core.idle import Watch, effective_idle
from safewrite.core.intent import turn_text
from safewrite.core.replacing import replace
from safewrite.deadline import Deadline, LegNotSent
from safewrite.durations import Duration, seconds
from safewrite.errors import ConfigurationError, NoRunContext, NotSent, OutcomeUnknown, Rejected
from safewrite.settings import resolve_settings
from safewrite.shell.clock import clock
from safewrite.shell.idle import await_while

T = TypeVar("T")
_log = logging.getLogger("safewrite")

MARGIN: Final = 1.0
"""Seconds, or a quarter of what is left: how much earlier the server is to be done, so that its answer comes first."""
GRACE: Final = 0.5
"""Seconds that the caller waits for a server to be told; the telling goes on without it."""
TELLING: Final = 5.0
"""Seconds that telling a server may take in all."""

_waiting: WeakKeyDictionary[Any, set[asyncio.Task[Any]]] = WeakKeyDictionary()
"""Session -> the requests that end with its connection."""
_telling: set[asyncio.Task[None]] = set()


class RequestGivenUp(TimeoutError):
    """A request ran into its idle or its absolute limit, or lost its connection; what it asked for may yet be done."""


class ListingCut(Exception):
    """A listing that did not come to its end: `page` is the last one asked for, `tools` what came before."""

    def __init__(self, why: str, page: int, tools: list[Any]) -> None:
        super().__init__(f"the listing was cut at page {page}, after {len(tools)} tools: {why}")
        self.page, self.tools = page, tools


class Operation:
    """One operation with a tool of a server: legs before the call, the call, and its re-issues, on one deadline.

    - `deadline`: default: the setting `operation_timeout`, within the attempt, run or request around this code.
    - `run`, `turn`, `occurrence`, `tool_call_id`: default: those that are open here; never a transport's session id.
    - `idle`: seconds without progress after which the call is given up (default: the setting `idle`), `per_server`
      what this server asks for; `carries_progress` False: none of that, for a transport that carries no progress.

    Raises `NoRunContext` where there is no run or turn, and `ConfigurationError`.
    """

    def __init__(
        self,
        tool: str,
        *,
        deadline: Deadline | None = None,
        run: str | None = None,
        turn: str | int | None = None,
        occurrence: str | int | None = None,
        tool_call_id: str | None = None,
        idle: Duration | None = None,
        per_server: Duration = 0.0,
        carries_progress: bool = True,
    ) -> None:
        opened, within, attempt = current_run(), current_tool_call(), current_attempt()
        self.tool = tool
        limits = [deadline or Deadline.operation(of=f"tool `{tool}`"), current_deadline()]
        self.deadline = Deadline.first_of(*(one for one in limits if one is not None))
        who = run if run is not None else (opened.id if opened is not None else None)
        which = turn_text(turn) if turn is not None else current_turn()
        if not who or which is None:
            raise NoRunContext(tool=tool)
        given = {
            "run": who,
            "turn": which,
            "occurrence": occurrence if occurrence is not None else (within and within.occurrence),
            "tool-call-id": tool_call_id if tool_call_id is not None else (within and within.id),
            "key": attempt.key if attempt is not None else None,
        }
        self._identity = {
            f"{PREFIX}{name}": value for name, value in given.items() if value not in (None, "")
        }
        wants, limit = (
            seconds(per_server, name="per_server", allow_zero=True),
            resolve_settings({"idle": idle}).idle,
        )
        self._idle = effective_idle(limit, per_server=wants, carries_progress=carries_progress)
        self._meta: dict[str, Any] | None = None
        self._issued = self._answered = 0

    @property
    def meta(self) -> dict[str, Any]:
        """The `_meta` of this operation's requests: made at the first one, the same for every re-issue."""
        if self._meta is None:
            left = self.deadline.remaining()
            margin = min(MARGIN, left / 4)
            ms, at = max(1, int((left - margin) * 1000)), int((self.deadline.ends_at - margin) * 1000)
            self._meta = {**self._identity, f"{PREFIX}deadline-ms": ms, f"{PREFIX}deadline-at": at}
        return dict(self._meta)

    async def before(self, leg: str, work: Callable[[], Awaitable[T]]) -> T:
        """Carry out a leg that comes before the call: a connection, `initialize`, a confirmation.

        In the body of a write its failure is `NotSent`, as long as no call was issued; elsewhere it is raised as it
        is, and a deadline that is spent as `BudgetExhausted`.
        """
        try:
            return await _bounded(work, self.deadline.leg(leg), self.deadline.remaining)
        except Exception as error:
            self._not_sent(error)
            raise

    async def call(self, client: Any, arguments: dict[str, Any] | None = None) -> Any:
        """Issue the call, or issue it anew under another request id, and return the SDK's `CallToolResult`.

        `client` is a `ClientSession` or a `Client`, which others may share.  Its own read timeout does not count.
        Raises `NotSent` or `Rejected` where a guarded server says that it was not applied, `OutcomeUnknown` where
        it does not know or the tool ended with an error, `RequestGivenUp` at a limit, and what the SDK raises.
        """
        try:
            granted = self.deadline.leg("call")
        except LegNotSent as error:
            self._not_sent(error)
            raise
        params = {"name": self.tool, "arguments": arguments or {}, "_meta": self.meta}
        idle = self._idle if self._idle is not None and self._idle < granted else None
        watch, attempt = Watch(clock().now().ticks, inf, granted, idle), current_attempt()

        def heard() -> None:
            nonlocal watch
            watch = watch.moved(clock().now().ticks)
            if attempt is not None:
                attempt.progress()

        self._issued += 1
        issued = Issued(client, params, heard)
        task, said = issued.task, f"The connection ended while `{self.tool}` was waited for."
        waiting = _waiting.get(issued.session, set())
        waiting.add(task)
        task.add_done_callback(waiting.discard)
        try:
            end = self.deadline.remaining
            in_time = await await_while(task, lambda: min(watch.left(clock().now().ticks), end()))
        except asyncio.CancelledError:
            await _take_back(issued, "the caller was cancelled")
            raise
        if not in_time:
            now = clock().now().ticks
            said = replace(watch, end=now + self.deadline.remaining()).words(now)
            await _take_back(issued, said)
        if not task.done() or task.cancelled() or (not in_time and task.exception() is not None):
            raise RequestGivenUp(f"`{self.tool}` was given up. {said}")
        result = task.result()
        self._answered += 1
        return _told(self.tool, result, others=self._issued > self._answered)

    def _not_sent(self, error: Exception) -> None:
        if self._meta is None and current_attempt() is not None:
            again = not isinstance(error, LegNotSent)
            raise NotSent(f"before `{self.tool}` was called: {error!r}", again=again) from error


def _told(tool: str, raw: Wire, *, others: bool) -> Any:
    """Return a result, or raise what it says of a write that is not known to be applied.

    `others`: there are issues of the call without an answer, of which the server may not know yet.
    """
    if raw.get("resultType", "complete") != "complete":
        raise OutcomeUnknown(f"`{tool}` answered `{raw['resultType']}`.", reason="tool_error", tool=tool)
    report = report_in(raw)
    if report is not None and report.state == "not_applied":
        if others:
            raise OutcomeUnknown(
                report.message, may_still_land=True, reason=report.reason, key=report.key, tool=tool
            )
        raise (Rejected if report.do_not_repeat else NotSent)(report.message)
    if report is not None and report.state == "unknown":
        raise OutcomeUnknown(
            report.message, may_still_land=report.may_still_land, reason=report.reason, key=report.key, tool=tool,
            attempts=report.attempts, trace=report.trace,
        )  # fmt: skip
    if raw.get("isError"):
        texts = [str(part.get("text", "")) for part in raw.get("content", ())]
        raise OutcomeUnknown(" ".join(texts), reason="tool_error", tool=tool)
    return tool_result(raw)


async def _take_back(issued: Issued, reason: str) -> None:
    """Tell the server that nobody waits any more, and wait for that a bounded time, whatever is cancelled meanwhile."""

    async def tell() -> None:
        with suppress(Exception):  # a server that is gone cannot be told
            async with asyncio.timeout(TELLING):
                await issued.take_back(reason)

    telling = asyncio.create_task(tell())
    _telling.add(telling)
    telling.add_done_callback(_telling.discard)
    with anyio.move_on_after(GRACE, shield=True):
        await asyncio.wait((telling,))


async def _bounded(work: Callable[[], Awaitable[T]], granted: float, left: Callable[[], float]) -> T:
    task = asyncio.ensure_future(work())
    try:
        if await await_while(task, left):
            return task.result()
    finally:
        task.cancel()
    await clock().wait_for(task, GRACE)
    raise RequestGivenUp(f"the limit of {granted:g} s has passed")


async def list_tools(client: Any, *, deadline: Deadline | None = None, pages: int = 50) -> list[Any]:
    """Return all tools of a server, page by page under one deadline (default: one operation).

    Raises `ListingCut`, which says what page was reached, when the deadline or `pages` run out, or a page fails.
    """
    from mcp.types import PaginatedRequestParams

    one = deadline if deadline is not None else Deadline.operation(of="a listing")
    session, cursor, tools = session_of(client), None, list[Any]()
    for page in range(1, pages + 1):
        ask = partial(session.list_tools, params=PaginatedRequestParams(cursor=cursor))
        try:
            found: Any = await _bounded(ask, one.leg(f"page {page}"), one.remaining)
        except Exception as error:
            raise ListingCut(f"{type(error).__name__}: {error}", page, tools) from error
        tools += found.tools
        cursor = getattr(found, "next_cursor", None) or getattr(found, "nextCursor", None)
        if cursor is None:
            return tools
    raise ListingCut(f"it has more than {pages} pages", pages, tools)


@asynccontextmanager
async def held(connection: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Keep a connection, such as a `Client`, in a task of its own for the length of a block.

    A transport that breaks then ends the calls on it, which reconcile; without this the SDK cancels the task that
    opened it.  It may be entered and left in different tasks.  Raises why it could not be made; why it broke is logged.
    """
    ready: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def hold() -> None:
        async with connection as made:
            ready.set_result(made)
            await leave.wait()

    holding = asyncio.create_task(hold())
    try:
        await asyncio.wait((holding, ready), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await holding  # raises why it could not be made
        waiting = _waiting[session_of(ready.result())] = set()
        holding.add_done_callback(lambda _: [task.cancel() for task in waiting])
        yield ready.result()
    finally:
        leave.set()
        if not ready.done():
            holding.cancel()
        await asyncio.wait((holding,))
        if ready.done() and not holding.cancelled() and (error := holding.exception()) is not None:
            _log.warning("a connection to an MCP server broke", exc_info=error)


def check_client(
    client: Any, *, longest: Duration, http_client: Any = None, run: str = "", session_id: str | None = None
) -> None:
    """Check at start-up that nothing of a client cuts calls of up to `longest` short, nor gives them a wrong run.

    `http_client` is the one that was handed to the transport.  Raises `ConfigurationError`, with both numbers.
    """
    most = seconds(longest, name="longest")
    timeout = getattr(session_of(client), "_session_read_timeout_seconds", None)
    limits = {"the session's `read_timeout_seconds`": getattr(timeout, "total_seconds", lambda: timeout)()}
    limits["the HTTP client's read timeout"] = getattr(getattr(http_client, "timeout", None), "read", None)
    for name, limit in limits.items():
        if limit is not None and limit < most:
            raise ConfigurationError(
                f"{name} is {limit:g} s, and a call may take {most:g} s: it would be cut off with its outcome unknown. "
                "Make it longer, or leave limits to the operation."
            )
    if run and run == session_id:
        raise ConfigurationError(
            f"the run {run!r} is the session id of the transport. Give the host's own name."
        )
