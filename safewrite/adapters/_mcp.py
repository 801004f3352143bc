"""What the two lines of the MCP SDK, 1.x and 2.x, do differently; and the names under which a call says who it is.

Both adapters speak to the SDK through this module alone.  A result of a tool goes about as the wire has it: a
mapping with `content`, `structuredContent` and `isError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from mcp import types
from mcp.shared import exceptions
from pydantic import RootModel

from safewrite.report import WriteReport

PREFIX: Final = "dev.safewrite/"
"""Of our keys in the `_meta` of a request: `run`, `turn`, `occurrence`, `tool-call-id`, `deadline-ms`, ..."""
NO_LIMIT: Final = 1e8
"""Seconds: a limit of the SDK that our own, which says more, always precedes."""

Wire = Mapping[str, Any]
_sdk: Any = exceptions
_types: Any = types
FIRST_LINE: Final = not hasattr(_sdk, "MCPError")
"""The installed SDK is 1.x."""
PROTOCOL_ERROR: Final[type[Exception]] = _sdk.McpError if FIRST_LINE else _sdk.MCPError
"""What an SDK raises to answer with a JSON-RPC error."""


class Raw(RootModel[dict[str, Any]]):
    """A result as it came: neither checked against a listing, for which the SDK would ask first, nor lost by it."""


def protocol_error(code: int, message: str, data: object) -> Exception:
    """Return the exception that the SDK answers with a JSON-RPC error."""
    if FIRST_LINE:  # pragma: no cover - 1.x
        return PROTOCOL_ERROR(types.ErrorData(code=code, message=message, data=data))
    return _sdk.MCPError(code=code, message=message, data=data)  # type: ignore[no-any-return]


def result_of(report: WriteReport, *, is_error: bool = False) -> dict[str, Any]:
    """Return the result that tells a report: text for the model, and data as the schema of `T | WriteReport` has it."""
    try:
        data = report.model_dump(mode="json")
    except ValueError:  # a value that is no JSON: the write stands, and its report goes out without it
        data = report.model_copy(update={"value": None}).model_dump(mode="json")
    content = [{"type": "text", "text": report.message}]
    return {"content": content, "structuredContent": {"result": data}, "isError": is_error}


def report_in(result: Wire) -> WriteReport | None:
    """Return the report that a result tells; None if it tells something else."""
    data = result.get("structuredContent")
    if isinstance(data, Mapping) and set(data) == {"result"}:
        data = data["result"]
    if not isinstance(data, Mapping) or not {"state", "reason", "message", "do_not_repeat"} <= set(data):
        return None
    try:
        return WriteReport.model_validate(data)
    except ValueError:
        return None


def tool_result(wire: Wire) -> Any:
    """Return the SDK's own object of a result."""
    return types.CallToolResult.model_validate(dict(wire))


# Servers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a server, as the wire has it."""

    method: str
    params: Wire
    answer: Callable[[Wire], Any]
    """Makes of a tool's result what the SDK is to be given."""
    progress: Callable[[float], Awaitable[None]] | None = None
    """Sends a progress notification, if somebody asked for them."""
    session_id: str = ""
    """The transport's; never a run."""


Around = Callable[[Request, Callable[[], Awaitable[Any]]], Awaitable[Any]]


def low_level(server: Any) -> Any:
    """Return the low-level server within an `MCPServer` or `FastMCP`, or the low-level server itself."""
    return getattr(server, "_lowlevel_server", None) or getattr(server, "_mcp_server", None) or server


def declared_tools(server: Any) -> list[Any]:
    """Return the tools that an `MCPServer` or `FastMCP` knows: each has `name` and `fn`."""
    tools = getattr(server, "_tool_manager", None)
    return list(tools.list_tools()) if tools is not None else []


def wrap_requests(server: Any, around: Around) -> None:
    """Let every request to a server go through `around(request, call)`; in 1.x, those with a handler by now."""
    low = low_level(server)
    if FIRST_LINE:  # pragma: no cover - 1.x
        for kind, handler in list(low.request_handlers.items()):
            low.request_handlers[kind] = _wrapped_1(low, handler, around)
        return

    async def middleware(ctx: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
        if ctx.request_id is None:
            return await call_next(ctx)
        return await around(_request_2(ctx), lambda: call_next(ctx))

    low.middleware.insert(0, middleware)  # the outermost: it answers for the others, too


def _wrapped_1(low: Any, handler: Callable[[Any], Any], around: Around) -> Any:  # pragma: no cover - 1.x
    async def handle(request: Any) -> Any:
        if request is None:  # it asks itself for its tools, within a request
            return await handler(request)
        return await around(_request_1(low.request_context, request), lambda: handler(request))

    return handle


def _request_2(ctx: Any) -> Request:
    def answer(wire: Wire) -> Any:
        return {**wire, "resultType": "complete"} if ctx.protocol_version >= "2026" else dict(wire)

    return Request(
        ctx.method, ctx.params or {}, answer, ctx.session.report_progress, _session_id(ctx.request)
    )


def _request_1(ctx: Any, request: Any) -> Request:  # pragma: no cover - 1.x
    dumped = request.params and request.params.model_dump(by_alias=True, mode="json", exclude_none=True)
    token = ((dumped or {}).get("_meta") or {}).get("progressToken")

    async def progress(value: float) -> None:
        await ctx.session.send_progress_notification(token, value, related_request_id=str(ctx.request_id))

    def answer(wire: Wire) -> Any:
        return _types.ServerResult(tool_result(wire))

    known = progress if token is not None else None
    return Request(request.method, dumped or {}, answer, known, _session_id(ctx.request))


def _session_id(request: Any) -> str:
    return str(getattr(request, "headers", {}).get("mcp-session-id", ""))


def says_error(answer: Any) -> bool:
    """Return whether what a handler gave the SDK is a tool error."""
    answer = getattr(answer, "root", answer)
    return bool(answer.get("isError") if isinstance(answer, Mapping) else getattr(answer, "isError", False))


# Clients ----------------------------------------------------------------------------------------------------------


def session_of(client: Any) -> Any:
    """Return the `ClientSession` of a `Client`, or the one that is given."""
    return getattr(client, "session", client)


class Issued:
    """One request of a tool call, under a request id of its own: `task` ends with its raw result."""

    def __init__(self, client: Any, params: Wire, heard: Callable[[], None]) -> None:
        self.session = session_of(client)
        self.id: int | None = None
        self.task = asyncio.create_task(self._ask(params, heard))

    async def _ask(self, params: Wire, heard: Callable[[], None]) -> dict[str, Any]:
        async def progress(*_: object) -> None:
            heard()

        request: Any = types.CallToolRequest.model_validate({"method": "tools/call", "params": params})
        limit: Any = NO_LIMIT
        if FIRST_LINE:  # pragma: no cover - 1.x
            request, limit = _types.ClientRequest(request), timedelta(seconds=NO_LIMIT)
            self.id = self.session._request_id  # nothing is awaited between here and its use
        raw: Raw = await self.session.send_request(
            request, Raw, request_read_timeout_seconds=limit, progress_callback=progress
        )
        return raw.root

    async def take_back(self, reason: str) -> None:
        """Stop waiting, and tell the server so; never for a request that is answered.

        2.x does it by itself when its caller is cancelled: a notification, or over HTTP the end of the stream.
        """
        if self.task.done():
            return
        if FIRST_LINE and self.id in self.session._response_streams:  # pragma: no cover - 1.x
            note = {"method": "notifications/cancelled", "params": {"requestId": self.id, "reason": reason}}
            await self.session.send_notification(_types.ClientNotification.model_validate(note))
        self.task.cancel()
        await asyncio.wait((self.task,))
