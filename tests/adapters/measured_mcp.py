"""What becomes of one write behind an MCP server, by itself and with the adapter: rows of `scripts/frameworks`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.server import MCPServer
from mcp.shared.exceptions import MCPError

from safewrite import SafeWrite
from safewrite.adapters.mcp_server import SafeServer

FRAMEWORK, PACKAGES = "MCP", ("mcp",)
META = {"dev.safewrite/run": "run-1", "dev.safewrite/turn": 1}

Call = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass(frozen=True)
class Row:
    """What a host does with one wanted write, and what the tool does."""

    configuration: str
    host: Callable[[Call], Awaitable[str]]
    wanted: int = 1
    fails: bool = False
    seconds: float = 0.0


def _text(result: Any) -> str:
    return str(result.content[0].text)


async def tries_again(call: Call) -> str:
    """A model that calls again for as long as it is told of an error."""
    result = await call(META)
    for _ in range(2):
        if not result.is_error:
            break
        result = await call(META)
    return _text(result)


async def out_of_patience(call: Call) -> str:
    """A host whose own limit ends the request, and that issues it again."""
    for _ in range(3):
        try:
            return _text(await asyncio.wait_for(call(META), 0.3))
        except (TimeoutError, MCPError) as error:
            told = repr(error)
    return told


async def three_turns(call: Call) -> str:
    """A model that wants the same in three turns."""
    for turn in (1, 2, 3):
        told = _text(await call({**META, "dev.safewrite/turn": turn}))
    return told


ROWS = [
    Row("response lost, the error is told, a model that tries again", tries_again, fails=True),
    Row("slow, the host's own limit ends the request, and it is issued again", out_of_patience, seconds=0.8),
    Row("wanted in three turns", three_turns, wanted=3),
]


def measure(row: Row, folder: Path, *, guarded: bool) -> tuple[int, str]:
    """Return how often it was written, and what the model was told last."""
    effects: list[int] = []

    async def refund(amount: int) -> str:
        """Refund."""
        effects.append(amount)
        await asyncio.sleep(row.seconds)
        if row.fails:
            raise ConnectionError("no response")
        return f"refunded {amount}"

    async def host() -> str:
        server = MCPServer("billing")
        with SafeWrite(f"sqlite:///{folder / 'agent.db'}") as sw:
            sw.prepare()
            if guarded:
                SafeServer(server, sw).tool(name="refund")(sw.write(target="amount", name="refund")(refund))
            else:
                server.tool()(refund)
            async with Client(server) as client:
                return await row.host(lambda meta: client.call_tool("refund", {"amount": 5}, meta=meta))

    told = asyncio.run(host())
    return len(effects), told
