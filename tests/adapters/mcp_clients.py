"""Connections to servers in processes of their own, on either line of the SDK, over stdio and streamable HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from safewrite import SafeWrite
from safewrite.adapters._mcp import FIRST_LINE

PYTHON = os.environ.get("SAFEWRITE_MCP_SERVER", sys.executable)
"""Whose SDK the servers run on."""
ROOT = Path(__file__).parent.parent.parent
SCRIPT = Path(__file__).parent / "mcp_served.py"
WITHIN = 60.0


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def until(true: Callable[[], Any]) -> Any:
    """Wait until something that another process does is so, and return it."""
    end = time.monotonic() + WITHIN
    while True:
        if found := true():
            return found
        assert time.monotonic() < end, "it never came"
        await asyncio.sleep(0.02)


class Served:
    """A server with guarded tools in `folder`: what it was asked, what it did, and its process."""

    def __init__(
        self, folder: Path, transport: str, options: Mapping[str, Any] | None = None, script: Path = SCRIPT
    ) -> None:
        self.folder, self.transport, self.script = folder, transport, script
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), "SERVED": json.dumps(dict(options or {}))}
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port() if transport == "http" else 0
        if transport == "http":
            self.start()

    def start(self) -> None:
        """Start the HTTP server and wait until it listens."""
        command = [PYTHON, str(self.script), str(self.folder), str(self.port)]
        with (self.folder / "stderr").open("a") as errors:
            self.process = subprocess.Popen(command, env=self.env, stderr=errors)
        end = time.monotonic() + WITHIN
        while time.monotonic() < end:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, (self.folder / "stderr").read_text()
            time.sleep(0.05)
        raise AssertionError("the server does not listen")

    def lines(self, name: str) -> list[Any]:
        """Return what the server wrote under a name."""
        path = self.folder / name
        whole = (
            path.read_text().rpartition("\n")[0] if path.exists() else ""
        )  # the last one may not be all there
        return [json.loads(line) for line in whole.splitlines()]

    def asked(self, method: str = "tools/call") -> list[dict[str, Any]]:
        """Return the parameters of the requests that came."""
        return [params for seen, params, _ in self.lines("asked") if seen == method]

    def pid(self) -> int:
        """Return the process id."""
        if self.process is not None:
            return self.process.pid
        command = f"pgrep -f '{self.script} {self.folder} stdio'"
        return int(
            subprocess.run(command, shell=True, capture_output=True, text=True, check=True).stdout.split()[0]
        )

    def kill(self) -> None:
        """End it as a crash does."""
        os.kill(self.pid(), signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def stop(self) -> None:
        """End it, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.kill()

    def rows(self) -> list[Any]:
        """Return the rows of the server's ledger, in order."""
        with SafeWrite(f"sqlite:///{self.folder}/served.db") as sw:
            runs = [intent for run in sw.audit.runs() for intent in sw.audit.run(run.run)]
            return [row for intent in runs for row in sw.audit.rows(intent.id)]

    @asynccontextmanager
    async def session(self, **options: Any) -> AsyncIterator[ClientSession]:
        """Connect, and initialise."""
        if self.transport == "stdio":
            parameters = StdioServerParameters(
                command=PYTHON, args=[str(self.script), str(self.folder), "stdio"], env=self.env
            )
            with (self.folder / "stderr").open("a") as errors:
                async with (
                    stdio_client(parameters, errlog=errors) as streams,
                    ClientSession(*streams, **options) as made,
                ):
                    await made.initialize()
                    yield made
        elif FIRST_LINE:
            from mcp.client.streamable_http import streamable_http_client

            async with streamable_http_client(f"http://127.0.0.1:{self.port}/mcp") as (read, write, _):
                async with ClientSession(read, write, **options) as made:
                    await made.initialize()
                    yield made
        else:
            from mcp import Client

            async with Client(f"http://127.0.0.1:{self.port}/mcp", **options) as client:
                yield client.session
