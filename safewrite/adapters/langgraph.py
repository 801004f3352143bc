"""LangChain 1.x and LangGraph 1.x: run and turn from the thread and its checkpoints, unknowns as normal messages.

    safe = SafeWriteMiddleware()
    agent = create_agent(model, tools, middleware=[..., safe], checkpointer=saver)   # LangChain
    ToolNode(tools, wrap_tool_call=safe.wrap_tool_call, awrap_tool_call=safe.awrap_tool_call)   # a graph of one's own
    check(agent, sw)   # at start-up

The run is the thread id.  The turn is a counter of our own in the checkpointed state, raised before each call of the
model: a resume, a replay from before or after the model, and a trimmed history all find the same one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, cast

from langchain.agents.middleware import AgentMiddleware, AgentState
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.config import get_config
from langgraph.prebuilt import ToolNode
from langgraph.runtime import get_runtime

from safewrite import context, errors
from safewrite.adapters._around import around, covers, limits
from safewrite.deadline import Deadline
from safewrite.durations import Duration, seconds
from safewrite.errors import ConfigurationError, SafeWriteError
from safewrite.outcome import Outcome
from safewrite.report import WriteReport
from safewrite.shell.idle import Keepalive
from safewrite.tool import Tool

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

    from safewrite.guard import SafeWrite

__all__ = ["TURN", "Finding", "SafeWriteMiddleware", "TurnState", "check", "next_turn"]

_log = logging.getLogger("safewrite")

TURN = "safewrite_turn"
"""The name of the counter in the state of a graph."""
_CHECKPOINTER, _DURABILITY = "__pregel_checkpointer", "__pregel_durability"
"""How LangGraph tells a node, in `configurable`, what its graph was compiled and invoked with."""
_SAME_CALL = (
    "This call is the same as an earlier one of the same message, so they are one write: nothing was sent for this "
    "one, and the result is that of the first."
)

_outer: ContextVar[str] = ContextVar("safewrite_langgraph_turn", default="")
"""The turn of the tool call inside which this code runs: a sub-agent counts its own turns below it."""


class TurnState(AgentState[Any]):
    """State with the counter of turns; a graph of one's own has `safewrite_turn: int` in its own."""

    safewrite_turn: NotRequired[int]


def next_turn(state: object) -> dict[str, int]:
    """Return the update that opens the next turn, for the node that calls the model: `{..., **next_turn(state)}`."""
    return {TURN: (_get(state, TURN) or 0) + 1}


class SafeWriteMiddleware(AgentMiddleware[TurnState, Any]):
    """Gives guarded writes their run and turn, and tells the model what became of them.

    - `occurrences`: equal calls in one message of the model are as many writes, told apart by their position.
      Default: they are one write, and the later ones are told so.
    - `step_limit`: what the graph allows one step (`step_timeout`, `TimeoutPolicy`), in seconds or as `timedelta`:
      writes end within it.  Default: only the deadline of a run that is open around the graph.
    - `heartbeat`: how often a coroutine call puts off the `idle_timeout` of its node.  Default: never.

    Put it where you like among the middleware: what runs a call again finds the same write.  Raises
    `ConfigurationError` before the model is called where there is no thread id, or no checkpointer to keep the turn,
    unless the host has opened a `safewrite.run` around the graph: that is the run then.
    """

    state_schema = TurnState

    def __init__(
        self,
        *,
        occurrences: bool = False,
        step_limit: Duration | None = None,
        heartbeat: Duration | None = None,
    ) -> None:
        super().__init__()
        self.tools = []
        self.occurrences = occurrences
        self.step_limit = seconds(step_limit, name="step_limit", allow_none=True)
        self.heartbeat = seconds(heartbeat, name="heartbeat", allow_none=True)

    def before_model(self, state: TurnState, runtime: object) -> dict[str, int]:  # noqa: ARG002 - as LangChain calls it
        """Open the next turn."""
        config = get_config()
        _run_id(config)
        if not state.get(TURN) and (config.get("configurable") or {}).get(_DURABILITY) == "exit":
            _log.warning("safewrite: %s", _RULES["durability_exit"])
        if "|" in _namespace(config) and not _outer.get() and TURN not in state:
            raise ConfigurationError(
                f"this agent is a node of another graph, and would count its turns from 1 at each visit. Give the "
                f"state of that graph `{TURN}: int`, and 0 in its first input."
            )
        return next_turn(state)

    async def abefore_model(self, state: TurnState, runtime: object) -> dict[str, int]:
        """Open the next turn."""
        return self.before_model(state, runtime)

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Carry out one tool call; an interrupt, and whatever is not ours, passes through."""
        with self._bound(request) as call:
            try:
                return _told(request, call, handler(request))
            except SafeWriteError as error:
                return _message(request, _report(error, call))

    async def awrap_tool_call(
        self,
        request: ToolCallRequest,
        handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]],
    ) -> ToolMessage | Command[Any]:
        """Do as `wrap_tool_call`, in a coroutine."""
        with self._bound(request) as call:
            try:
                async with self._alive():
                    result = await handler(request)
                return _told(request, call, result)
            except SafeWriteError as error:
                return _message(request, _report(error, call))

    def _alive(self) -> AbstractAsyncContextManager[object]:
        beat = getattr(get_runtime(), "heartbeat", None) if self.heartbeat is not None else None
        return Keepalive(beat, interval=self.heartbeat) if beat is not None else nullcontext()

    @contextmanager
    def _bound(self, request: ToolCallRequest) -> Iterator[_Bound]:
        """Open run, turn and tool call around a call.  Raises `ConfigurationError` where the identity is missing."""
        config, turn = request.runtime.config, _get(request.state, TURN)
        if not turn:
            if _guarded(request.tool) is None:
                yield _Bound(context.ToolCall(), 0)
                return
            raise ConfigurationError(
                f"`{request.tool_call['name']}` is a guarded write, and the state of the graph has no `{TURN}`. Give "
                "it that key, and let the node that calls the model return `next_turn(state)` as well."
            )
        position = _position(request)
        occurrence = str(position + 1) if self.occurrences and position else None
        own = f"{_outer.get()}{turn}"
        limit = Deadline(self.step_limit, origin="step_limit") if self.step_limit is not None else None
        agent = (config.get("metadata") or {}).get("lc_agent_name") or ""
        token = _outer.set(f"{own}.{occurrence}." if occurrence else f"{own}.")
        try:
            with (
                context.run(_run_id(config), deadline=limit, agent=agent),
                context.turn(own),
                context.tool_call(request.tool_call["id"] or "", occurrence=occurrence) as call,
            ):
                yield _Bound(call, 0 if self.occurrences else position)
        finally:
            _outer.reset(token)


@dataclass(frozen=True, slots=True)
class _Bound:
    """One tool call that is being carried out, and its position among those that are one write with it."""

    call: context.ToolCall
    position: int


# Whose call it is ----------------------------------------------------------------------------------------------


def _run_id(config: Mapping[str, Any]) -> str:
    """Return the run: the thread, if a checkpointer keeps its turns, else the run that the host has opened."""
    given, opened = config.get("configurable") or {}, context.current_run()
    thread = given.get("thread_id")
    if thread and (given.get(_CHECKPOINTER) or _outer.get()):
        return str(thread)
    if opened is not None:
        return opened.id
    raise ConfigurationError(_RULES["no_checkpointer" if thread else "no_thread_id"])


def _namespace(config: Mapping[str, Any]) -> str:
    return str((config.get("configurable") or {}).get("checkpoint_ns") or "")


def _get(state: object, name: str) -> Any:
    """Return a part of the state of a graph, which may be a mapping, a model, or a list of messages."""
    return state.get(name) if isinstance(state, Mapping) else getattr(state, name, None)


def _position(request: ToolCallRequest) -> int:
    """Return how many equal calls stand before this one in the message of the model; its id only finds it there."""
    state: Any = request.state
    messages: list[Any] = (state if isinstance(state, list) else _get(state, "messages")) or []
    newest = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
    calls = [(c["id"], c["name"], c["args"]) for c in newest.tool_calls] if newest is not None else []
    own = next((n for n, c in enumerate(calls) if c[0] == request.tool_call["id"]), 0)
    return sum(1 for c in calls[:own] if c[1:] == calls[own][1:])


def _guarded(tool: object) -> Tool | None:
    """Return the guarded write that a LangChain tool is made of."""
    fn = getattr(tool, "func", None) or getattr(tool, "coroutine", None)
    found = getattr(fn, "tool", None)
    return found if isinstance(found, Tool) else None


# What the model is told ----------------------------------------------------------------------------------------


def _told(
    request: ToolCallRequest, bound: _Bound, result: ToolMessage | Command[Any]
) -> ToolMessage | Command[Any]:
    """Return the result with the outcome beside it; what others have made of our error is put right."""
    newest: Outcome[Any] | None = bound.call.heard[-1] if bound.call.heard else None
    if newest is None or not isinstance(result, ToolMessage):
        return result
    if result.status == "error" and newest.error is not None:  # handle_tool_errors, ToolRetryMiddleware, …
        return _message(request, _report(newest.error, bound))
    if (
        result.status == "error" and _guarded(request.tool) is not None
    ):  # no message could be made of its value
        return _message(request, WriteReport.of(newest))
    told: dict[str, Any] = {} if result.artifact is not None else {"artifact": _data(WriteReport.of(newest))}
    if bound.position and newest.replayed:
        text = cast("Any", result.content)
        told["content"] = (
            f"{text}\n\n{_SAME_CALL}"
            if isinstance(text, str)
            else [*text, {"type": "text", "text": _SAME_CALL}]
        )
    return result.model_copy(update=told)


def _report(error: SafeWriteError, bound: _Bound) -> WriteReport:
    """Return what an error says about the fate of a write; a fault of the set-up is raised again."""
    outcome = next((o for o in bound.call.heard if o.error is error), getattr(error, "outcome", None))
    if outcome is not None:
        return WriteReport.of(outcome, error.for_model())
    if isinstance(error, errors.MissingTarget):
        return WriteReport(
            state="not_applied", reason="missing_target", message=error.for_model(), do_not_repeat=False
        )
    raise error


def _message(request: ToolCallRequest, report: WriteReport) -> ToolMessage:
    """Return the message that tells the fate of a write.  Only one that was not applied has failed."""
    return ToolMessage(
        report.message,
        artifact=_data(report),
        name=request.tool_call["name"],
        tool_call_id=request.tool_call["id"],
        status="error" if report.state == "not_applied" else "success",
    )


def _data(report: WriteReport) -> dict[str, Any]:
    return report.model_dump(mode="json", exclude={"value"})


# At start-up ---------------------------------------------------------------------------------------------------

_RULES = {
    "no_thread_id": "there is no thread id, so nothing says which run a write belongs to, and none is invented. Invoke "
    "the graph with one in `configurable`, or open a `safewrite.run` around it.",
    "no_checkpointer": "the graph has a thread id and no checkpointer, so its turns would be counted from 1 at "
    "each invocation, and a later write be taken for an earlier one. Compile it with a checkpointer.",
    "not_bound": "no `SafeWriteMiddleware` is around it, so it has no run and turn. Add it to `middleware`, or give "
    "its `wrap_tool_call` and `awrap_tool_call` to the `ToolNode`.",
    "retry_middleware": "`{0}` runs it again by itself. It finds the same write and sends nothing twice, but waits "
    "and reads for nothing. Leave writes out of its `tools`.",
    "retry_policy": "its node has a `RetryPolicy`, which runs all calls of the node again after an error of one. Leave "
    "retries to `@sw.write(max_attempts=...)`.",
    "error_text": "its `ToolNode` handles errors with a text of its own, which asks the model to try again. Leave "
    "`handle_tool_errors` alone.",
    "short_timeout": "{0} = {1:g} s cuts it off before it can answer: a call may take {2:g} s. Lengthen it, or give "
    "`SafeWriteMiddleware` less than it as `step_limit`, or as `heartbeat` for an idle limit.",
    "memory_only": "`{0}` keeps the turns in this process alone: in the next one a thread counts from 1 again, and a "
    "later write is taken for an earlier one. Use a checkpointer that stores them.",
    "durability_exit": '`durability="exit"` stores nothing until the graph ends: after a crash the model decides anew. '
    'Use "sync" (or "async", which may lose the newest step).',
}
_FAULTS = frozenset({"no_thread_id", "no_checkpointer", "not_bound"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about a graph that runs writes again, cuts them short or leaves them without identity."""

    rule: str
    """A stable code: `no_thread_id`, `retry_policy`, …"""
    message: str
    tool: str = ""


def check(
    graph: Any,
    sw: SafeWrite,
    *,
    config: Mapping[str, Any] | None = None,
    durability: str | None = None,
) -> tuple[Finding, ...]:
    """Look at a compiled graph at start-up; log what endangers its writes, and return it.

    `config` and `durability` are those that it will be invoked with.  Raises `ConfigurationError` where a write would
    have no identity: no checkpointer, no thread id, a `ToolNode` without the middleware.
    """
    found = [
        Finding(rule, _RULES[rule].format(about)) for rule, about in _of_graph(graph, config, durability)
    ]
    for part in (graph, *(part for _, part in graph.get_subgraphs(recurse=True))):
        for node in part.nodes.values():
            if isinstance(tools := getattr(node, "bound", None), ToolNode):
                found += _of_node(part, node, tools, sw)
    for one in found:
        _log.warning("safewrite: %s%s", f"`{one.tool}`: " if one.tool else "", one.message)
    faults = [f"{one.tool or 'the graph'}: {one.message}" for one in found if one.rule in _FAULTS]
    if faults:
        raise ConfigurationError("this graph cannot carry guarded writes. " + " ".join(faults))
    return tuple(found)


def _of_graph(
    graph: Any, config: Mapping[str, Any] | None, durability: str | None
) -> Iterator[tuple[str, str]]:
    if not graph.checkpointer:
        yield "no_checkpointer", ""
    elif any(kind.__name__ == "InMemorySaver" for kind in type(graph.checkpointer).__mro__):
        yield "memory_only", type(graph.checkpointer).__name__
    if config is not None and not (config.get("configurable") or {}).get("thread_id"):
        yield "no_thread_id", ""
    if durability == "exit":
        yield "durability_exit", ""


def _of_node(graph: Any, node: Any, tools: ToolNode, sw: SafeWrite) -> Iterator[Finding]:
    wrapping = [*around(tools._wrap_tool_call), *around(tools._awrap_tool_call)]
    ours = [one for one in wrapping if isinstance(one, SafeWriteMiddleware)]
    for name, tool in ((n, _guarded(t)) for n, t in tools.tools_by_name.items()):
        if tool is None:
            continue
        if not ours:
            yield Finding("not_bound", _RULES["not_bound"], name)
        again = {type(x).__name__ for x in wrapping if getattr(x, "max_retries", 0) and covers(x, name)}
        for kind in sorted(again):
            yield Finding("retry_middleware", _RULES["retry_middleware"].format(kind), name)
        if node.retry_policy or graph.retry_policy:
            yield Finding("retry_policy", _RULES["retry_policy"], name)
        if tools._handle_tool_errors is True or isinstance(tools._handle_tool_errors, str | tuple):
            yield Finding("error_text", _RULES["error_text"], name)
        own = min(
            (x.step_limit for x in ours if x.step_limit is not None), default=sw.settings.operation_timeout
        )
        needs = min(own, sw.settings.operation_timeout) + sw.settings.grace
        beat = min((x.heartbeat for x in ours if x.heartbeat is not None), default=float("inf"))
        for what, limit in limits(graph, node):
            if limit < needs and not (what == "`idle_timeout`" and beat < limit):
                yield Finding("short_timeout", _RULES["short_timeout"].format(what, limit, needs), name)
