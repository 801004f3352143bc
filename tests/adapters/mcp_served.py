"""A server with guarded tools, on either line of the SDK: `python mcp_served.py FOLDER stdio`, or a port for HTTP.

Its ledger and its effects lie in FOLDER.  What its tools do is said by `how`, an argument that is only recorded:
`slow:S` acts and then takes S seconds, `late:S` acts after them, `lost` acts and fails, `hangs` never ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import safewrite
from safewrite import Attempt, Dependency, GoalMet, GoalNotMet, SafeWrite
from safewrite.adapters import _mcp
from safewrite.adapters.mcp_server import SafeServer

try:
    from mcp.server import MCPServer
except ImportError:
    from mcp.server.fastmcp import FastMCP as MCPServer  # type: ignore[no-redef,import-not-found]

FOLDER, PORT = Path(sys.argv[1]), sys.argv[2]
OPTIONS: dict[str, Any] = json.loads(os.environ.get("SERVED", "{}"))


def log(name: str, *said: object) -> None:
    """Add a line to a file of the folder."""
    with (FOLDER / name).open("a") as out:
        out.write(json.dumps(said) + "\n")


server: Any = MCPServer(
    "billing", **({} if PORT == "stdio" or hasattr(MCPServer, "middleware") else {"port": int(PORT)})
)
sw = SafeWrite(f"sqlite:///{FOLDER}/served.db", settings={"grace": 0.2, **OPTIONS.get("settings", {})})
sw.upgrade()


@server.tool()
async def greet(name: str) -> str:
    """Say hello: no write."""
    if name == "nobody":
        await asyncio.Future()
    return f"hello {name}"


@server.resource("slow://one")
async def slow() -> str:
    """Never end."""
    await asyncio.Future()
    raise AssertionError


def hook(request: Any, call: Any) -> Any:
    """Hang behind a tool that is called with `hook`."""

    async def hooked() -> Any:
        answer = await call()
        if (request.params.get("arguments") or {}).get("how") == "hook":
            await asyncio.Future()
        return answer

    return hooked()


def seen(request: Any, call: Any) -> Any:
    """Log what was asked, before anything else looks at it."""
    log("asked", request.method, dict(request.params), request.session_id)
    return call()


_mcp.wrap_requests(server, hook)
safe = SafeServer(server, sw, **OPTIONS.get("safe", {}))
billing = Dependency("billing", work_bound=0.0)


@safe.tool(destructive=False)
@sw.write(target="order", dependency=billing, free_text=("how",), max_attempts=1)
async def pay(order: str, amount: int = 1, how: str = "", *, attempt: Attempt) -> str:
    """Pay an order."""
    return await act("pay", order, amount, how)


@safe.tool(title="Ship it")
@sw.write(target="order", free_text=("how",), max_attempts=1)
def ship(order: str, how: str = "") -> str:
    """Ship an order."""
    return asyncio.run(act("ship", order, 1, how))


@safe.tool()
@sw.write(target="order", dependency=billing, free_text=("how",), max_attempts=1)
async def close(order: str, how: str = "") -> str:
    """Close an order."""
    return await act("close", order, 1, how)


@close.reconcile
async def _(order: str) -> GoalMet[str] | GoalNotMet:
    lines = (FOLDER / "effects").read_text().splitlines() if (FOLDER / "effects").exists() else []
    return GoalMet("closed") if json.dumps(["close", order, 1]) in lines else GoalNotMet()


@safe.tool()
@sw.write(target="order", max_attempts=1)
async def count(order: str) -> int:
    """Return what it said it would not."""
    log("effects", "count", order, 1)
    return "three"  # type: ignore[return-value]


async def act(tool: str, order: str, amount: int, how: str) -> str:
    """Have the effect, and do what is asked besides."""
    what, _, seconds = how.partition(":")
    log("begun", tool, order, safewrite.current_attempt().remaining())  # type: ignore[union-attr]
    try:
        if what == "late":
            await asyncio.sleep(float(seconds))
        if what == "unsent":
            raise safewrite.NotSent
        if what not in ("hangs", "rejected"):
            log("effects", tool, order, amount)
        if what == "slow":
            await asyncio.sleep(float(seconds))
        if what == "hangs":
            await asyncio.Future()
        if what == "lost":
            raise ConnectionResetError("password=hunter2")
        if what == "rejected":
            raise safewrite.Rejected("no")
    except asyncio.CancelledError:
        log("cancelled", tool, order)
        raise
    return f"{tool} {order}"


_mcp.wrap_requests(server, seen)

if __name__ == "__main__":
    if PORT == "stdio":
        server.run("stdio")
    elif hasattr(MCPServer, "middleware"):
        server.run("streamable-http", port=int(PORT), **OPTIONS.get("http", {}))
    else:
        server.run("streamable-http")
