"""A small agent over the real LangChain and LangGraph: a scripted model, a write whose effects are lines of a file.

    python -m tests.adapters.graphs FOLDER COLOUR DURABILITY [bare]

invokes it in a process of its own, which the tests kill: what it finds in FOLDER is the same for every process.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain.tools import tool
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from safewrite import Applied, Attempt, Inconclusive, SafeWrite
from safewrite.adapters.langgraph import SafeWriteMiddleware, next_turn

Script = Callable[[list[BaseMessage]], list[dict[str, Any]]]
THREAD = {"configurable": {"thread_id": "thread-1"}}
ASK = {"messages": [("user", "Refund order 1.")]}


class ResponseLost(Exception):
    """The other side did it, and its response never came."""


class Scripted(BaseChatModel):
    """A model that calls what its script says; each of its tool calls has a new id."""

    script: Any

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        calls = [{"id": f"call_{uuid.uuid4().hex}", **call} for call in self.script(messages)]
        said = AIMessage("" if calls else "Done.", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=said)])


def refund(order: str = "o1", amount: int = 5, **more: Any) -> dict[str, Any]:
    """Return a call of the tool."""
    return {"name": "refund", "args": {"order": order, "amount": amount}, **more}


def steps(*plan: list[dict[str, Any]]) -> Script:
    """Call what the plan says, one entry for each message that the model has given since the user's."""

    def script(messages: list[BaseMessage]) -> list[dict[str, Any]]:
        done = 0
        for message in reversed(messages):
            if message.type == "human":
                break
            done += isinstance(message, AIMessage)
        return plan[done] if done < len(plan) else []

    return script


class Bench:
    """Tools, ledger, checkpoints and effects in one folder, for agents of one colour; without `guarded`, bare ones."""

    def __init__(self, folder: Path, colour: str, *, reads: bool = True, guarded: bool = True) -> None:
        self.folder, self.colour, self.guarded = folder, colour, guarded
        self.sw = SafeWrite(f"sqlite:///{folder / 'ledger.db'}", settings={"operation_timeout": 8.0})
        self._effects, self._mode = folder / "effects", folder / "mode"
        write, bare = self._plain() if colour == "sync" else self._coroutines()
        self.write = self.sw.write(target="order", name="refund", wait=lambda _: 0.0)(write)
        if reads:
            self.write.reconcile(self._read)
        self.tool = tool(self.write) if guarded else tool("refund")(bare)

    def _body(self, order: str, amount: int, key: str) -> str:
        mode = self.mode
        if mode == "unsent":
            raise ConnectionRefusedError
        with self._effects.open("a") as effects:
            effects.write(f"{order} {amount} {key}\n")
        if mode == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode in ("lost", f"lost {order}"):
            raise ResponseLost("no response")
        return f"refunded {amount}"

    def _read(self, order: str, attempt: Attempt) -> Applied[str] | Inconclusive:
        found = [line.split() for line in self.effects if line.endswith(attempt.key)]
        return Applied(f"refunded {found[0][1]}") if found else Inconclusive("not seen")

    def _plain(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        def refund(order: str, attempt: Attempt, amount: int = 5) -> str:
            """Refund an order."""
            return self._body(order, amount, attempt.key)

        def bare(order: str, amount: int = 5) -> str:
            """Refund an order."""
            return self._body(order, amount, "-")

        return refund, bare

    def _coroutines(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        async def later(value: str) -> str:
            if self.mode in ("hang", "slow"):
                await asyncio.sleep(60.0 if self.mode == "hang" else 4.0)
            return value

        async def refund(order: str, attempt: Attempt, amount: int = 5) -> str:
            """Refund an order."""
            return await later(self._body(order, amount, attempt.key))

        async def bare(order: str, amount: int = 5) -> str:
            """Refund an order."""
            return await later(self._body(order, amount, "-"))

        return refund, bare

    @property
    def effects(self) -> list[str]:
        """What was written, in order."""
        return self._effects.read_text().splitlines() if self._effects.exists() else []

    @property
    def mode(self) -> str:
        """How the other side is just now: ok, lost, unsent, die, or (for coroutines) slow or hang."""
        return self._mode.read_text() if self._mode.exists() else "ok"

    @mode.setter
    def mode(self, mode: str) -> None:
        self._mode.write_text(mode)

    def agent(self, script: Script, *around: AgentMiddleware[Any, Any], **given: Any) -> Callable[[Any], Any]:
        """Return what makes the agent over a checkpointer."""
        middleware = [*around, SafeWriteMiddleware()] if self.guarded else [*around]
        options = {"tools": [self.tool], "middleware": middleware, **given}
        return lambda saver: create_agent(Scripted(script=script), checkpointer=saver, **options)

    def graph(
        self,
        script: Script,
        *,
        safe: SafeWriteMiddleware | None = None,
        retry: Any = None,
        timeout: Any = None,
        counts: bool = True,
        also: Sequence[Any] = (),
        **node: Any,
    ) -> Callable[[Any], Any]:
        """Return what makes a graph of one's own over a checkpointer."""
        safe, model = safe or SafeWriteMiddleware(), Scripted(script=script)
        wraps = {"wrap_tool_call": safe.wrap_tool_call, "awrap_tool_call": safe.awrap_tool_call}

        class State(MessagesState):
            safewrite_turn: int

        def call(state: State) -> dict[str, Any]:
            return {"messages": [model.invoke(state["messages"])], **(next_turn(state) if counts else {})}

        tools = ToolNode([self.tool, *also], **(wraps if self.guarded else {}), **node)
        graph = StateGraph(State)
        graph.add_node("model", call)
        graph.add_node("tools", tools, retry_policy=retry, timeout=timeout)
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        return lambda saver: graph.compile(checkpointer=saver)

    def go(self, make: Callable[[Any], Any], what: Any = ASK, config: Any = THREAD, **how: Any) -> Any:
        """Invoke a graph in this bench's colour, over the checkpoints of the folder; or return what `look` finds."""
        gc.collect()  # a coroutine cut off inside the checkpointer keeps its cursor, and so its lock, until then
        look = how.pop("look", None)
        where = str(self.folder / "checkpoints.db")

        async def ago() -> Any:
            async with AsyncSqliteSaver.from_conn_string(where) as saver:
                graph = make(saver)
                return await look(graph) if look is not None else await graph.ainvoke(what, config, **how)

        if self.colour == "async":
            return asyncio.run(ago())
        with SqliteSaver.from_conn_string(where) as saver:
            graph = make(saver)
            return (
                asyncio.run(look(_Awaited(graph))) if look is not None else graph.invoke(what, config, **how)
            )

    def history(self, make: Callable[[Any], Any]) -> list[Any]:
        """Return the snapshots of the thread, the newest first."""

        async def look(graph: Any) -> list[Any]:
            return [snapshot async for snapshot in graph.aget_state_history(THREAD)]

        return list(self.go(make, look=look))


class _Awaited:
    """A graph over a plain checkpointer, asked as one over a coroutine checkpointer is."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    async def aget_state_history(self, config: Any) -> Any:
        for snapshot in self._graph.get_state_history(config):
            yield snapshot

    async def aupdate_state(self, *args: Any) -> Any:
        return self._graph.update_state(*args)


def answers(result: Any) -> list[ToolMessage]:
    """Return what the model was told, in order."""
    return [message for message in result["messages"] if isinstance(message, ToolMessage)]


if __name__ == "__main__":
    bench = Bench(Path(sys.argv[1]), sys.argv[2], guarded="bare" not in sys.argv)
    bench.go(bench.agent(steps([refund()])), durability=sys.argv[3])
