"""What LangChain and LangGraph do to one write by themselves, and with the adapter: rows of `scripts/frameworks`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain.agents.middleware import HumanInTheLoopMiddleware, ToolRetryMiddleware, before_model
from langchain_core.messages import BaseMessage, RemoveMessage, ToolMessage
from langgraph.errors import NodeTimeoutError
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, RetryPolicy, TimeoutPolicy

from tests.adapters.graphs import ASK, Bench, ResponseLost, answers, refund, steps

FRAMEWORK, PACKAGES = "LangGraph", ("langchain", "langgraph")
ROOT = Path(__file__).parent.parent.parent
ONE = steps([refund()])


@dataclass(frozen=True)
class Row:
    """One configuration: how often one wanted write is made in it, and what the model is told last."""

    configuration: str
    measure: Callable[[Bench], Any]
    wanted: int = 1
    mode: str = "lost"
    colour: str = "sync"


def obedient(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    """Call once, and again for as long as the answer asks for it."""
    told = [m for m in messages if isinstance(m, ToolMessage)]
    asked = not told or "try again" in told[-1].content or "fix your mistakes" in told[-1].content
    return [refund()] if asked and len(told) < 3 else []


def retry_middleware(bench: Bench) -> Any:
    """LangChain's own middleware calls the tool again."""
    return bench.go(bench.agent(ONE, ToolRetryMiddleware(initial_delay=0.0)))


def retry_policy(bench: Bench) -> Any:
    """The node of the tools is run again."""
    try:
        return bench.go(bench.graph(ONE, retry=RetryPolicy(initial_interval=0.001)))
    except ResponseLost as lost:
        return f"the run ends: {lost!r}"


def timed_out(bench: Bench) -> Any:
    """The node is cut off in the middle of the write, and run again."""
    again = RetryPolicy(initial_interval=0.001)
    try:
        return bench.go(bench.graph(ONE, retry=again, timeout=TimeoutPolicy(run_timeout=2.0)))
    except NodeTimeoutError as late:
        return f"the run ends: {late!r}"


def error_text(bench: Bench) -> Any:
    """The node words every error, and the model reads it."""
    return bench.go(bench.graph(obedient, handle_tool_errors=True))


def killed(durability: str) -> Callable[[Bench], Any]:
    """The process dies in the write, and another one goes on."""

    def measure(bench: Bench) -> Any:
        bare = [] if bench.guarded else ["bare"]
        child = [
            sys.executable,
            "-m",
            "tests.adapters.graphs",
            str(bench.folder),
            bench.colour,
            durability,
            *bare,
        ]
        subprocess.run(child, cwd=ROOT, check=False, capture_output=True, timeout=120)
        bench.mode = "ok"
        make = bench.agent(ONE)
        stored = bench.history(make)
        return bench.go(make, None if stored and stored[0].next else ASK, durability=durability)

    return measure


def time_travel(node: str) -> Callable[[Bench], Any]:
    """The thread is replayed from before a node."""

    def measure(bench: Bench) -> Any:
        make = bench.agent(ONE)
        bench.go(make)
        place = [one for one in bench.history(make) if one.next[:1] == (node,)][-1]
        return bench.go(make, None, place.config)

    return measure


def resumed_twice(bench: Bench) -> Any:
    """The answer to one approval is given twice."""
    make = bench.agent(ONE, HumanInTheLoopMiddleware({"refund": True}))
    bench.go(make)
    place = bench.history(make)[0]
    approve = Command(resume={"decisions": [{"type": "approve"}]})
    return [bench.go(make, approve, place.config) for _ in range(2)][-1]


def wanted_thrice(bench: Bench) -> Any:
    """The model wants the same in three turns."""
    turns = iter([[refund()], [refund()], [refund()], []])

    @before_model
    def trim(state: Any, runtime: Any) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *state["messages"][-1:]]}

    return bench.go(bench.agent(lambda _: next(turns), trim))


ROWS = [
    Row("response lost, `ToolRetryMiddleware()`", retry_middleware),
    Row("response lost, `RetryPolicy()` on the node of the tools", retry_policy),
    Row("slow, `TimeoutPolicy` and `RetryPolicy()` on that node", timed_out, mode="hang", colour="async"),
    Row("response lost, `ToolNode(handle_tool_errors=True)`, a model that does as it is told", error_text),
    Row('process killed after the effect, resumed, `durability="sync"`', killed("sync"), mode="die"),
    Row('process killed after the effect, resumed, `durability="async"`', killed("async"), mode="die"),
    Row('process killed after the effect, invoked again, `durability="exit"`', killed("exit"), mode="die"),
    Row("time travel to before the model", time_travel("model"), mode="ok"),
    Row("time travel to after the model", time_travel("tools"), mode="ok"),
    Row("one stored approval resumed twice", resumed_twice, mode="ok"),
    Row("wanted in three turns, history trimmed in between", wanted_thrice, wanted=3, mode="ok"),
]


def measure(row: Row, folder: Path, *, guarded: bool) -> tuple[int, str]:
    """Return how often it was written, and what the model was told last."""
    bench = Bench(folder, row.colour, reads=False, guarded=guarded)
    bench.sw.prepare()
    bench.mode = row.mode
    result = row.measure(bench)
    told = result if isinstance(result, str) else str(answers(result)[-1].content)
    bench.sw.close()
    return len(bench.effects), told
