"""What a server does with one request, in this process: the SDK's own client is connected to it in memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from safewrite import Dependency, NotSent, SafeWrite, WriteReport
from safewrite.adapters import _mcp
from safewrite.adapters.mcp_client import Operation
from safewrite.adapters.mcp_server import SafeServer, served
from safewrite.deadline import Deadline
from safewrite.errors import ConfigurationError, OutcomeUnknown

if _mcp.FIRST_LINE:
    from mcp.server.fastmcp import FastMCP as MCPServer
else:
    from mcp.server import MCPServer

META = {"dev.safewrite/run": "r1", "dev.safewrite/turn": 1}
QUICK = {"operation_timeout": 1.0, "minimum": 0.05, "grace": 0.1, "backstop": 0.2}


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """One `SafeWrite` over a ledger of its own, whose calls are short."""
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db", settings=QUICK) as made:
        made.upgrade()
        yield made


@pytest.fixture
def server(sw: SafeWrite) -> Any:
    """A server with writes that go as their order says, and with things that hang."""
    made = MCPServer("inside")

    @made.tool()
    async def hang() -> str:
        await asyncio.Future()
        return ""

    @made.resource("slow://one")
    async def slow() -> str:
        await asyncio.Future()
        return ""

    safe = SafeServer(made, sw, keepalive=0.05, idle=1)

    @safe.tool()
    @sw.write(target="order", dependency=Dependency("d", work_bound=0.0), max_attempts=1)
    async def pay(order: str) -> str:
        if order == "lost":
            raise ConnectionResetError
        if order == "slow":
            await asyncio.sleep(0.3)
        return f"pay {order}"

    @safe.tool()
    @sw.write(target="order", max_attempts=1)
    def ship(order: str) -> int:
        if order == "unsent":
            raise NotSent
        return "misfit"  # type: ignore[return-value]

    return made


@asynccontextmanager
async def inside(server: Any) -> AsyncIterator[Any]:
    """Connect to a server in memory."""
    if _mcp.FIRST_LINE:
        from mcp.shared.memory import create_connected_server_and_client_session

        async with create_connected_server_and_client_session(server._mcp_server) as session:
            yield session
    else:
        from mcp import Client

        async with Client(server) as client:
            yield client.session


def ask(server: Any, tool: str, arguments: dict[str, Any], meta: Any = META, **more: Any) -> dict[str, Any]:
    """Call one tool, and return the result as the wire has it."""

    async def main() -> dict[str, Any]:
        async with inside(server) as session:
            result = await session.call_tool(tool, arguments, meta=meta, **more)
            return dict(result.model_dump(by_alias=True, mode="json"))

    return asyncio.run(main())


def report(result: dict[str, Any]) -> WriteReport:
    """Return the report of a result."""
    return WriteReport.model_validate(result["structuredContent"]["result"])


def test_a_value_is_returned_and_progress_is_told(server: Any) -> None:
    """Signs of life, for a caller who wants them."""
    ticks: list[float] = []

    async def heard(progress: float, *_: object) -> None:
        ticks.append(progress)

    result = ask(server, "pay", {"order": "slow"}, progress_callback=heard)
    assert result["structuredContent"] == {"result": "pay slow"}
    assert len(ticks) >= 2


@pytest.mark.parametrize(
    ("tool", "order", "state", "error"),
    [
        ("pay", "lost", "unknown", False),
        ("ship", "unsent", "not_applied", False),
        ("ship", "o1", "applied", False),
    ],
)
def test_the_fate_of_a_write_is_a_normal_result(
    server: Any, tool: str, order: str, state: str, error: bool
) -> None:
    """Also where its value does not fit its type."""
    result = ask(server, tool, {"order": order})
    assert (report(result).state, result["isError"]) == (state, error)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"run": None}, "did not say"),
        ({"turn": None}, "did not say"),
        ({"run": " "}, "is no text"),
        ({"run": 1}, "is no text"),
        ({"turn": 1.5}, "cannot be read"),
    ],
)
def test_what_does_not_say_who_it_is_is_refused(server: Any, change: dict[str, Any], why: str) -> None:
    """By the one road of all refusals of the set-up."""
    changed = {f"dev.safewrite/{name}": value for name, value in change.items()}
    meta = {name: value for name, value in {**META, **changed}.items() if value is not None}
    result = ask(server, "pay", {"order": "o1"}, meta)
    assert (result["isError"], report(result).do_not_repeat, report(result).sent) == (True, True, False)
    assert why in report(result).message


def test_a_late_call_is_refused(server: Any) -> None:
    """Nothing is left: nothing is sent."""
    result = ask(server, "pay", {"order": "o1"}, {**META, "dev.safewrite/deadline-ms": 0})
    assert report(result).reason == "budget_exhausted"


def test_what_hangs_is_answered(server: Any) -> None:
    """A tool by an error in words, another method by the protocol's."""
    result = ask(server, "hang", {}, {})
    assert result["isError"] is True
    assert "may still be running" in result["content"][0]["text"]

    async def read() -> None:
        async with inside(server) as session:
            with pytest.raises(_mcp.PROTOCOL_ERROR, match="gave no answer within"):
                await session.read_resource("slow://one")

    asyncio.run(read())


def test_a_hook_that_hangs_behind_a_write_hides_nothing(server: Any, sw: SafeWrite) -> None:
    """The backstop tells what is on record."""
    safe = SafeServer(MCPServer("other"), sw)
    request = _mcp.Request("tools/call", {"name": "pay", "_meta": META}, dict)
    safe._writes["pay"] = sw.tools[next(name for name in sw.tools if name.endswith("pay"))]
    tool = next(one for one in _mcp.declared_tools(server) if one.name == "pay").fn

    async def hooked() -> Any:
        await tool(order="o9")
        await asyncio.Future()

    found = report(asyncio.run(safe._around(request, hooked)))
    assert (found.state, found.evidence) == ("applied", "response")


def test_a_stream_without_end_has_no_limit(server: Any, sw: SafeWrite) -> None:
    """A subscription is not due at any time."""

    async def listen() -> str:
        await asyncio.sleep(0)
        return "closed"

    request = _mcp.Request("subscriptions/listen", {}, dict)
    assert asyncio.run(SafeServer(MCPServer("x"), sw)._around(request, listen)) == "closed"


def test_a_write_without_its_guard_is_loud_at_the_first_request(
    sw: SafeWrite, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nobody asked at start-up."""
    made = MCPServer("x")

    @made.tool()
    @sw.write(target="order", name="bare")
    async def bare(order: str) -> str:
        return ""

    safe = SafeServer(made, sw)
    with pytest.raises(ConfigurationError):
        safe.check()
    with caplog.at_level(logging.ERROR, "safewrite"):
        ask(made, "bare", {"order": "o1"})
        ask(made, "bare", {"order": "o1"})
    assert sum("handed over as it is" in record.getMessage() for record in caplog.records) == 1
    SafeServer(MCPServer("y"), sw).check()


def test_a_report_whose_value_is_no_json_goes_out_without_it() -> None:
    """The write stands; what it returned cannot be shown."""
    found = WriteReport(state="applied", reason="", message="done", do_not_repeat=True, value=object())
    assert report(_mcp.result_of(found)).value is None


@pytest.mark.parametrize(
    "data", [None, {"result": "text"}, {"state": 1, "reason": "", "message": "", "do_not_repeat": 0}]
)
def test_what_is_no_report_is_a_value(data: Any) -> None:
    """Also what only looks like one."""
    assert _mcp.report_in({"structuredContent": data}) is None


def test_a_request_for_more_input_is_no_result() -> None:
    """2.x may be asked back in the place of a result: the write is not known to be done."""
    from safewrite.adapters.mcp_client import _told

    with pytest.raises(OutcomeUnknown, match="input_required"):
        _told("pay", {"resultType": "input_required"}, others=False)


def test_a_client_in_memory_takes_the_same_road(server: Any) -> None:
    """An operation needs no process of its own."""

    async def main() -> Any:
        async with inside(server) as session:
            one = Operation("pay", run="r2", turn=1, deadline=Deadline(5.0))
            return await one.call(session, {"order": "o1"})

    assert asyncio.run(main()).content[0].text == "pay o1"


def test_what_is_no_write_is_not_served() -> None:
    """A plain function has no fate to tell."""
    with pytest.raises(ConfigurationError, match="no guarded write"):
        served(len)
