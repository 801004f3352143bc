"""A process of the agent, to be watched and killed: `python -m safewrite.demo.worker`, and its other end.

It reads one JSON object a line: first where ledger and dependency are, then one order after the other, each
answered by a line with what the agent was told.  It ends where its input does, so that it never outlives the
demonstration by more than the call that it is making.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from safewrite.demo.agent import Agent, Order, Told

PATIENCE = 30.0
"""Seconds for a line from the process: far more than a call takes, for a machine that is very busy."""


class Worker:
    """The process, seen from the demonstration."""

    def __init__(self, folder: Path, url: str, who: str) -> None:
        self.who = who
        # A session of its own: Ctrl-C reaches the demonstration, which then ends its processes itself.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "safewrite.demo.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        self._write({"folder": str(folder), "url": url, "who": who})

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ready(self) -> Self:
        """Wait until it can make calls at once."""
        self._line()
        return self

    def tell(self, order: Order) -> None:
        """Let it make a call."""
        self._write(asdict(order))

    def told(self) -> Told:
        """Wait for what it was told."""
        return Told(**self._line())

    def release(self) -> None:
        """Let it end in order, without waiting for that."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def kill(self) -> None:
        """End it with kill -9, wherever it is; without effect if it has ended."""
        process = self._process
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()

    def _line(self) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        heard, _, _ = select.select([pipe], [], [], PATIENCE)
        line = pipe.readline() if heard else b""
        if not line:
            state = f"ended with status {self._process.wait()}" if heard else f"was silent for {PATIENCE:g} s"
            raise RuntimeError(f"the agent's process `{self.who}` {state}: see what it wrote")
        found: dict[str, Any] = json.loads(line)
        return found


def _environment() -> dict[str, str]:
    """Return the environment with which the process finds this package where this one found it."""
    root = Path(__file__).parents[2]
    if root.name in (
        "site-packages",
        "dist-packages",
    ):  # it finds it anyway, and there nothing should go before
        return dict(os.environ)
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def serve() -> None:
    """Make the calls that standard input orders, until it ends."""
    where = json.loads(sys.stdin.buffer.readline())
    with Agent(Path(where["folder"]), where["url"], where["who"]) as agent:
        _reply({"ready": os.getpid()})
        for line in sys.stdin.buffer:
            _reply(agent.ask(Order(**json.loads(line))).as_json())


def _reply(message: dict[str, Any]) -> None:
    os.write(
        1, json.dumps(message).encode() + b"\n"
    )  # past any buffer, which would complain at exit of a lost reader


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        serve()
