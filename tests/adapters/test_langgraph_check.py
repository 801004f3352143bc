"""The look at a graph at start-up: loud about what runs a write again, cuts it short, or leaves it without identity."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import ToolRetryMiddleware
from langchain.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import RetryPolicy, TimeoutPolicy

from safewrite import ConfigurationError
from safewrite.adapters.langgraph import SafeWriteMiddleware, check
from tests.adapters.graphs import ASK, THREAD, Bench, refund, steps

NOTHING = steps()


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    """Tools, ledger and checkpointer of one test."""
    made: Any = Bench(tmp_path, "sync")
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as database:
        made.stored = SqliteSaver(database)
        yield made
    made.sw.close()


def rules(bench: Any, make: Any, **given: Any) -> list[str]:
    """Return what is found about a graph."""
    return [one.rule for one in check(make(bench.stored), bench.sw, config=THREAD, **given)]


def test_a_graph_in_order_is_quiet(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Agents and graphs of one's own alike."""
    assert rules(bench, bench.agent(NOTHING)) == []
    assert rules(bench, bench.graph(NOTHING)) == []
    assert caplog.records == []


@pytest.mark.parametrize("first", [True, False])
def test_a_retry_middleware_over_a_write_is_named(
    bench: Any, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    """Wherever it stands; one that leaves the write out is not, nor one that never retries."""
    safe = SafeWriteMiddleware()

    def found(retry: ToolRetryMiddleware) -> list[str]:
        return rules(bench, bench.agent(NOTHING, middleware=[retry, safe] if first else [safe, retry]))

    assert found(ToolRetryMiddleware()) == ["retry_middleware"]
    assert "`refund`: `ToolRetryMiddleware` runs it again" in caplog.text
    assert found(ToolRetryMiddleware(tools=["search"])) == []
    assert found(ToolRetryMiddleware(max_retries=0)) == []


def test_a_retry_policy_over_a_write_is_named(bench: Any) -> None:
    """Of the node, or of the whole graph."""
    assert rules(bench, bench.graph(NOTHING, retry=RetryPolicy())) == ["retry_policy"]
    graph = bench.agent(NOTHING)(bench.stored)
    graph.retry_policy = (RetryPolicy(),)
    assert [one.rule for one in check(graph, bench.sw)] == ["retry_policy"]


@pytest.mark.parametrize(
    ("handles", "found"), [(True, ["error_text"]), ("again!", ["error_text"]), (False, [])]
)
def test_an_error_text_over_a_write_is_named(bench: Any, handles: Any, found: list[str]) -> None:
    """`handle_tool_errors` that words every error."""
    assert rules(bench, bench.graph(NOTHING, handle_tool_errors=handles)) == found


def test_a_timeout_shorter_than_ours_is_named_with_both_numbers(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a step, or of the node; not where the middleware keeps within it."""
    graph = bench.agent(NOTHING)(bench.stored)
    graph.step_timeout = 2.0
    assert [one.rule for one in check(graph, bench.sw)] == ["short_timeout"]
    assert "`step_timeout` = 2 s" in caplog.text
    graph.step_timeout = 60.0
    graph.nodes["tools"].timeout = TimeoutPolicy(run_timeout=1.0, idle_timeout=1.5)
    assert [one.rule for one in check(graph, bench.sw)] == ["short_timeout", "short_timeout"]
    graph = bench.agent(NOTHING, middleware=[SafeWriteMiddleware(heartbeat=1.0)])(bench.stored)
    graph.nodes["tools"].timeout = TimeoutPolicy(idle_timeout=1.5)
    assert check(graph, bench.sw) == ()
    graph = bench.agent(NOTHING, middleware=[SafeWriteMiddleware(step_limit=1.5)])(bench.stored)
    graph.step_timeout = 2.0 + bench.sw.settings.grace
    assert check(graph, bench.sw) == ()


def test_durability_that_loses_state_is_named(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    """At start-up, and when a graph is invoked with it."""
    assert rules(bench, bench.agent(NOTHING), durability="exit") == ["durability_exit"]
    assert rules(bench, bench.agent(NOTHING), durability="async") == []
    caplog.clear()
    bench.go(bench.agent(NOTHING), ASK, durability="exit")
    assert "stores nothing until the graph ends" in caplog.text


def test_a_checkpointer_that_forgets_is_named(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    """In the next process its threads would count their turns from 1 again."""
    found = check(bench.agent(NOTHING)(InMemorySaver()), bench.sw)
    assert [one.rule for one in found] == ["memory_only"]
    assert "`InMemorySaver` keeps the turns in this process alone" in caplog.text


def test_a_write_without_identity_is_a_fault(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    """No checkpointer, no thread, no middleware: raised, all of them in one message, and logged."""
    bare = bench.agent(NOTHING, middleware=[])(None)
    with pytest.raises(
        ConfigurationError, match=r"no checkpointer.*no thread id.*no `SafeWriteMiddleware`"
    ) as fault:
        check(bare, bench.sw, config={})
    assert "refund: no `SafeWriteMiddleware`" in str(fault.value)
    assert len(caplog.records) == 3
    assert {record.levelno for record in caplog.records} == {logging.WARNING}


def test_other_tools_are_left_alone(bench: Any) -> None:
    """A graph without guarded writes may retry as it likes."""

    @tool
    def search(text: str) -> str:
        """Search."""
        return text

    assert rules(bench, bench.agent(NOTHING, ToolRetryMiddleware(), tools=[search])) == []


def test_writes_in_a_subgraph_are_looked_at(bench: Any) -> None:
    """An agent that is a node of another graph; `.as_tool()` counts as a write."""
    from langgraph.graph import START, StateGraph

    from tests.adapters.test_langgraph import Counting

    bench.tool = tool(bench.write.as_tool())
    graph = StateGraph(Counting)
    graph.add_node("agent", bench.agent(steps([refund()]), middleware=[])(None))
    graph.add_edge(START, "agent")
    with pytest.raises(ConfigurationError, match="refund: no `SafeWriteMiddleware`"):
        check(graph.compile(checkpointer=bench.stored), bench.sw)
