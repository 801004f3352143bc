"""One process of the demonstration's agent: its ledger, its HTTP clients, its tools, and the calls that it makes."""

from __future__ import annotations

import asyncio
import inspect
from contextvars import copy_context
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import httpx

from safewrite import context
from safewrite.demo import tools
from safewrite.guard import Alert, SafeWrite
from safewrite.outcome import Outcome
from safewrite.shell.clock import clock

CALL_CAP = 4.0
"""Seconds that one call may take in all."""
LEDGER = "safewrite.db"
"""The file of the ledger; in a folder of this name's own default, `safewrite` finds it without being told."""


@dataclass(frozen=True, slots=True)
class Order:
    """One call that an agent is to make."""

    tool: str
    target: str
    note: str
    run: str
    turn: int


@dataclass(frozen=True, slots=True)
class Told:
    """What safewrite told the agent that made a call."""

    who: str
    turn: int
    state: str
    reason: str
    evidence: str
    attributable: bool
    may_still_land: bool
    sent: bool
    replayed: bool
    attempts: int
    key: str
    blocked_by_key: str | None
    trace: str
    seconds: float
    text: str
    """What the language model is told."""
    effects_then: int = 0
    """How many effects the dependency had when this was told."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


class Agent:
    """Everything that one process of the agent has.  Use as a context manager.

    `folder` holds the ledger, `url` is the dependency's, `who` names this process in the audit.
    """

    def __init__(self, folder: Path, url: str, who: str) -> None:
        self.who = who
        self.alerts: list[Alert] = []
        self._http = httpx.Client(base_url=url)
        self._url = url
        self._loop: asyncio.Runner | None = None
        self._ahttp: httpx.AsyncClient | None = None
        self.sw = SafeWrite(
            f"sqlite:///{folder / LEDGER}",
            namespace="demo",
            worker=who,
            lease_margin=0.5,
            max_stall=0.5,
            # All that a demonstration's timing rests on, so that nobody's environment changes it.
            settings={
                "operation_timeout": CALL_CAP,
                "minimum": 0.1,
                "reserve_share": 0.25,
                "reserve_floor": 0.5,
                "grace": 0.25,
                "threads": 16,
                "busy_timeout": 5.0,
                "connect_timeout": 5.0,
                "statement_timeout": 5.0,
            },
        )
        self.sw.on_alarm(self.alerts.append)
        self.tools = tools.declare(self.sw, self._http, self._client)

    def _client(self) -> httpx.AsyncClient:
        if self._ahttp is None:
            self._ahttp = httpx.AsyncClient(base_url=self._url)
        return self._ahttp

    def ask(self, order: Order) -> Told:
        """Make a call and return what it was told."""
        began = clock().now().ticks
        with context.run(order.run, call_cap=CALL_CAP, agent="demo"), context.turn(order.turn):
            outcome = self._outcome(order)
        return told(outcome, self.who, order.turn, clock().now().ticks - began)

    def _outcome(self, order: Order) -> Outcome[Any]:
        tool = self.tools[order.tool]
        if not inspect.iscoroutinefunction(tool):
            outcome: Outcome[Any] = tool.outcome(order.target, note=order.note)
            return outcome
        if self._loop is None:
            self._loop = asyncio.Runner()
            # Making the client, and its first connection, takes nothing from the time of the first call.
            self._loop.run(self._client().get("/effects", params={"key": "none"}))

        async def call() -> Outcome[Any]:
            found: Outcome[Any] = await tool.outcome(order.target, note=order.note)
            return found

        # In the context of now: a runner's own is that of its first use, with the turn of that.
        return self._loop.run(call(), context=copy_context())

    def close(self) -> None:
        """Close connections, the event loop and the ledger."""
        if self._loop is not None:
            if self._ahttp is not None:
                self._loop.run(self._ahttp.aclose())
            self._loop.close()
            self._loop = self._ahttp = None
        self._http.close()
        self.sw.close()

    def __enter__(self) -> Self:
        self.sw.upgrade()  # now, so that making the tables takes nothing from the time of the first call
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def told(outcome: Outcome[Any], who: str, turn: int, seconds: float) -> Told:
    """Return what an outcome told its agent."""
    same = ("state", "reason", "evidence", "attributable", "may_still_land", "sent", "replayed", "attempts", "key",
            "blocked_by_key", "trace")  # fmt: skip
    text = outcome.error.for_model() if outcome.error is not None else outcome.for_model()
    about = {name: getattr(outcome, name) for name in same}
    return Told(who=who, turn=turn, **about, seconds=round(seconds, 3), text=text)
