"""What stands around a node of LangGraph's: limits that cut it off, middleware that runs its tools again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def limits(graph: Any, node: Any) -> Iterator[tuple[str, float]]:
    """Yield the limits that cut a node off: how they are called, and their seconds."""
    policy = getattr(node, "timeout", None)
    for what, limit in (
        ("`step_timeout`", graph.step_timeout),
        ("`run_timeout`", getattr(policy, "run_timeout", None)),
        ("`idle_timeout`", getattr(policy, "idle_timeout", None)),
    ):
        if limit is not None:
            yield what, float(limit)


def covers(middleware: Any, tool: str) -> bool:
    """Tell whether a middleware of LangChain's that retries has this tool among those that it runs again."""
    applies = getattr(middleware, "_should_retry_tool", None)
    return applies is not None and bool(applies(tool))


def around(wrapper: object) -> Iterator[object]:
    """Yield the middleware behind a composed wrapper: the owners of the methods that it closes over."""
    waiting, seen = [wrapper], set[int]()
    while waiting:
        one = waiting.pop()
        if not callable(one) or id(one) in seen:
            continue
        seen.add(id(one))
        owner = getattr(one, "__self__", None)
        if owner is not None:
            yield owner
            continue
        waiting.append(getattr(one, "__wrapped__", None))
        waiting += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
