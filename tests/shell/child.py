"""One process of a test: declares the tool, calls it once, and says over its pipe what it was told.

The dependency is a file: one line an effect, the key of its intent.  `act` is what the body does to it: `apply`,
`apply and die`, `die`, `apply and stop`, `stop and apply`, `wait and apply` (for a word over the pipe).  With `freeze`
the process is stopped between its claim, which is durable then, and its body.
"""

from __future__ import annotations

import asyncio
import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import safewrite
import safewrite.ledger.sql
import safewrite.recovery
from safewrite import Applied, Attempt, Dependency, NotApplied, SafeWrite
from safewrite.shell import bodies
from safewrite.shell.job import Job

PROMISES: dict[str, Dependency | None] = {
    "none": None,
    "keys": Dependency("remote", key_retention=3600.0),
    "settles": Dependency("remote", work_bound=0.0, read_lag=0.0),
}


class Process:
    """What the process is told to do, and its dependency."""

    def __init__(self, order: dict[str, Any], pipe: Connection) -> None:
        self.order, self.pipe = order, pipe
        self.effects = Path(order["effects"])
        self.sw = SafeWrite(
            order["url"],
            lease_margin=order.get("margin", 5.0),
            settings={
                "operation_timeout": order.get("limit", 20.0),
                "minimum": 0.01,
                "grace": 0.05,
                "reserve_floor": 0.05,
            },
        )

    def apply(self, key: str) -> None:
        """Apply the write; a recognised key is applied once."""
        if self.order.get("promises") == "keys" and key in self.keys():
            return
        with self.effects.open("a") as file:
            file.write(key + "\n")
            file.flush()
            os.fsync(file.fileno())

    def keys(self) -> list[str]:
        """Return the key of every effect."""
        return self.effects.read_text().split() if self.effects.exists() else []

    def write(self, key: str) -> str:
        """Do what the body is told to do."""
        self.pipe.send({"sent": key})
        act = self.order["act"]
        if act.startswith("wait"):
            self.pipe.recv()
        if act.startswith("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if "apply" in act:
            self.apply(key)
        if act.endswith("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if act.endswith("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.order.get("says", "done")

    def read(self, key: str) -> Applied[str] | NotApplied:
        """Look a key up."""
        return Applied("read") if key in self.keys() else NotApplied()

    def tool(self) -> Any:
        """Declare the tool in the colour that was asked for."""
        options: dict[str, Any] = {"target": "sub_id", "name": "cancel", "free_text": ("reason",)}
        options["dependency"] = PROMISES[self.order.get("promises", "none")]
        if self.order["colour"] == "plain":

            @self.sw.write(**options)
            def cancel(sub_id: str, attempt: Attempt, reason: str = "") -> str:
                return self.write(attempt.key)

            if self.order.get("reads", True):
                cancel.reconcile(lambda attempt: self.read(attempt.key))
            return cancel

        @self.sw.write(**options)
        async def acancel(sub_id: str, attempt: Attempt, reason: str = "") -> str:
            return self.write(attempt.key)

        async def aread(attempt: Attempt) -> Applied[str] | NotApplied:
            return self.read(attempt.key)

        if self.order.get("reads", True):
            acancel.reconcile(aread)
        return acancel

    def freeze(self) -> None:
        """Stop when an attempt is claimed, before anything is asked about its body."""
        asked = bodies.withhold

        def withhold(job: Job, number: int) -> str:
            self.pipe.send({"claimed": number})
            os.kill(os.getpid(), signal.SIGSTOP)
            return asked(job, number)

        bodies.withhold = withhold

    def call(self) -> None:
        """Call the tool, or recover, and say what came of it."""
        tool = self.tool()
        self.sw.ledger.find("nothing")  # it is open before the limits begin
        plain = self.order["colour"] == "plain"
        if self.order.get("freeze"):
            self.freeze()
        if self.order.get("recover"):
            recovered = self.sw.recover(resend=True) if plain else asyncio.run(self.sw.arecover(resend=True))
            self.pipe.send({"recovered": [(f.state, f.reason) for f in recovered.found]})
            return
        with safewrite.run("r1"), safewrite.turn(1):
            call = tool.outcome("sub_1", reason=self.order.get("reason", ""))
            outcome = call if plain else asyncio.run(_awaited(call))
        self.pipe.send(
            {"state": outcome.state, "value": outcome.value, "reason": outcome.reason, "sent": outcome.sent}
        )


async def _awaited(call: Any) -> Any:
    return await call


def main(order: dict[str, Any], pipe: Connection) -> None:
    """Do what a process is told to do."""
    if order.get("at once"):
        pipe.recv()
    Process(order, pipe).call()
