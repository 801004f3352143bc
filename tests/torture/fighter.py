"""One process of a battle: it makes calls, several at once, until it is killed or its orders end.

It reads orders as lines of JSON and appends what it was told to a file, which survives it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import httpx
from tenacity import wait_fixed

import safewrite
from safewrite import Applied, Attempt, Dependency, NotApplied, SafeWrite
from safewrite.outcome import Outcome

CALL_CAP = 12.0
"""Seconds that one call may take."""
TIMEOUT = 1.0
"""Seconds for one attempt."""
WORK_BOUND = 3.0
"""Seconds in which a request that nobody waits for has taken effect, or never will; with room, for a busy machine."""
AT_ONCE = 16
"""Calls that one process makes at the same time."""

CARDS = Dependency("cards", key_retention=timedelta.max)
"""Recognises idempotency keys; nothing can be read."""
LETTERS = Dependency("letters")
"""Promises nothing, and cannot be asked."""

TOOLS = ("charge", "refund", "capture", "send")
"""By keys; by a read, as a function and as a coroutine; by nothing."""
BLIND = "send"


@dataclass(frozen=True, slots=True)
class Field:
    """Where a battle is fought."""

    url: str
    namespace: str
    with_keys: str
    """The URL of the dependency that recognises keys."""
    without: str
    folder: str
    work_bound: float = WORK_BOUND
    """What the dependency without keys is declared to keep."""


def open_ledger(field: Field, worker: str) -> SafeWrite:
    """Return the ledger, as every process of an application opens it."""
    return SafeWrite(
        field.url,
        namespace=field.namespace,
        worker=worker,
        lease_margin=0.5,
        settings={
            "operation_timeout": CALL_CAP,
            "minimum": 0.1,
            "grace": 0.1,
            "threads": 64,
            "busy_timeout": 10.0,
        },
    )


class Tools:
    """The tools of a battle, and the clients that they use."""

    def __init__(self, sw: SafeWrite, field: Field) -> None:
        self._http = httpx.Client(limits=httpx.Limits(max_keepalive_connections=AT_ONCE), verify=False)
        self._ahttp: httpx.AsyncClient | None = None
        self._field = field
        self.declared: dict[str, Any] = {}
        self._declare(sw)

    def _declare(self, sw: SafeWrite) -> None:
        options: dict[str, Any] = {"target": "thing", "timeout": TIMEOUT, "wait": wait_fixed(0.05)}
        # Knows no keys; can be looked up by them, and is bounded.
        payments = Dependency("payments", work_bound=self._field.work_bound, read_lag=0.0, clock_skew=0.2)

        @sw.write(name="charge", dependency=CARDS, **options)
        def charge(thing: str, attempt: Attempt) -> int:
            """Charge a card."""
            return self._post(f"{self._field.with_keys}/cards/{thing}/charge", attempt)

        @sw.write(name="refund", dependency=payments, **options)
        def refund(thing: str, attempt: Attempt) -> int:
            """Refund a payment."""
            return self._post(f"{self._field.without}/payments/{thing}/refund", attempt)

        @refund.reconcile
        def _(thing: str, attempt: Attempt) -> Applied[int] | NotApplied:
            return _found(self._http.get(f"{self._field.without}/effects", params=_asked(thing, attempt)))

        @sw.write(name="capture", dependency=payments, **options)
        async def capture(thing: str, attempt: Attempt) -> int:
            """Capture a payment."""
            url = f"{self._field.without}/payments/{thing}/capture"
            reply = await self._client().post(url, headers=attempt.headers, timeout=attempt.timeout)
            return int(reply.raise_for_status().json()["effect"])

        @capture.reconcile
        async def _(thing: str, attempt: Attempt) -> Applied[int] | NotApplied:
            url = f"{self._field.without}/effects"
            async with httpx.AsyncClient(verify=False) as client:  # recovery reads on a loop of its own
                return _found(await client.get(url, params=_asked(thing, attempt)))

        @sw.write(name="send", dependency=LETTERS, **options)
        def send(thing: str, attempt: Attempt) -> int:
            """Send a letter."""
            return self._post(f"{self._field.without}/letters/{thing}/send", attempt)

        self.declared = {"charge": charge, "refund": refund, "capture": capture, "send": send}

    def _post(self, url: str, attempt: Attempt) -> int:
        reply = self._http.post(url, headers=attempt.headers, timeout=attempt.timeout)
        return int(reply.raise_for_status().json()["effect"])

    def _client(self) -> httpx.AsyncClient:
        if self._ahttp is None:
            self._ahttp = httpx.AsyncClient(verify=False)
        return self._ahttp


def _asked(thing: str, attempt: Attempt) -> dict[str, str]:
    return {"key": attempt.key, "target": thing}


def _found(reply: httpx.Response) -> Applied[int] | NotApplied:
    rows = reply.raise_for_status().json()["rows"]
    return Applied(int(rows[0]["number"])) if rows else NotApplied()


def fight(field: Field, orders: Connection) -> None:
    """Make the calls that come, `AT_ONCE` at a time, until None comes."""
    file = os.open(f"{field.folder}/told-{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    sw = open_ledger(field, f"fighter {os.getpid()}")
    tools = Tools(sw, field).declared

    def work(number: int, name: str, thing: str) -> None:
        try:
            outcome = _call(tools[name], number, thing, loop)
            told = _told(number, name, thing, outcome)
        except BaseException as error:  # whatever it is, the battle is told of it
            told = {"number": number, "tool": name, "thing": thing, "state": "error", "reason": repr(error)}
        os.write(file, json.dumps(told).encode() + b"\n")
        with suppress(OSError):
            orders.send(number)

    with ThreadPoolExecutor(AT_ONCE) as threads, suppress(EOFError, OSError):
        while (order := orders.recv()) is not None:
            threads.submit(work, *order)
    sw.close()
    sys.stdout.flush()
    os._exit(0)


def _call(tool: Any, number: int, thing: str, loop: asyncio.AbstractEventLoop) -> Outcome[Any]:
    run, turn = f"run {number // 100}", number % 100
    if not asyncio.iscoroutinefunction(tool):
        with safewrite.run(run, call_cap=CALL_CAP), safewrite.turn(turn):
            found: Outcome[Any] = tool.outcome(thing)
            return found

    async def call() -> Outcome[Any]:
        with safewrite.run(run, call_cap=CALL_CAP), safewrite.turn(turn):
            found: Outcome[Any] = await tool.outcome(thing)
            return found

    return asyncio.run_coroutine_threadsafe(call(), loop).result()


def _told(number: int, name: str, thing: str, outcome: Outcome[Any]) -> dict[str, Any]:
    return {
        "number": number,
        "tool": name,
        "thing": thing,
        "state": outcome.state,
        "reason": outcome.reason,
        "evidence": outcome.evidence,
        "has_value": outcome.has_value,
        "value": outcome.value,
        "attempts": outcome.attempts,
        "replayed": outcome.replayed,
    }
