"""A low-level server with one guarded tool on stdio, on either line of the SDK: `mcp_low.py FOLDER`."""

from __future__ import annotations

import sys
from typing import Any

import anyio
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from safewrite import SafeWrite
from safewrite.adapters._mcp import FIRST_LINE
from safewrite.adapters.mcp_server import SafeServer, served

sw = SafeWrite(f"sqlite:///{sys.argv[1]}/served.db")
TOOLS = [types.Tool.model_validate({"name": "pay", "inputSchema": {"type": "object"}})]


@sw.write(target="order", max_attempts=1)
async def pay(order: str) -> str:
    """Pay an order."""
    if order == "lost":
        raise ConnectionResetError
    return f"pay {order}"


async def carried_out(arguments: dict[str, Any]) -> types.CallToolResult:
    """Make a result of what the tool returns."""
    made = await served(pay)(**arguments)
    if isinstance(made, types.CallToolResult):
        return made
    return types.CallToolResult(content=[types.TextContent(type="text", text=made)])


server: Any
if FIRST_LINE:
    server = Server("low")

    @server.list_tools()
    async def listed() -> list[types.Tool]:
        """List the tools."""
        return TOOLS

    @server.call_tool()
    async def called(name: str, arguments: dict[str, Any]) -> types.CallToolResult:
        """Call a tool."""
        return await carried_out(arguments)
else:

    async def list_them(ctx: Any, params: Any) -> types.ListToolsResult:
        """List the tools."""
        return types.ListToolsResult(tools=TOOLS)

    async def call(ctx: Any, params: Any) -> types.CallToolResult:
        """Call a tool."""
        return await carried_out(params.arguments)

    server = Server("low", on_list_tools=list_them, on_call_tool=call)

SafeServer(server, sw).tool()(pay)


async def main() -> None:
    """Serve."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


if __name__ == "__main__":
    anyio.run(main)
