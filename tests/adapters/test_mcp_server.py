"""Guarded tools on a real MCP server in a process of its own: identity, deadline, signs of life, and what is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from safewrite import Applied, SafeWrite, StillRunning, WriteReport
from safewrite.adapters import _mcp
from safewrite.adapters.mcp_client import Operation, RequestGivenUp, held
from safewrite.adapters.mcp_server import SafeServer, served
from safewrite.deadline import Deadline
from safewrite.errors import ConfigurationError
from safewrite.testing import ManualClock
from tests.adapters.mcp_clients import SCRIPT, Served, until

if _mcp.FIRST_LINE:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer
else:
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context

RUN, TURN = "dev.safewrite/run", "dev.safewrite/turn"
QUICK = {
    "settings": {"operation_timeout": 1.5, "minimum": 0.05, "grace": 0.2, "backstop": 0.5},
    "safe": {"keepalive": 0.1, "idle": 5},
}
_runs = iter(range(10_000))


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server over HTTP, whose limits are short."""
    one = Served(tmp_path_factory.mktemp("http"), "http", QUICK)
    yield one
    one.stop()


@pytest.fixture(params=["stdio", "http"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A server of its own, over either transport."""
    one = Served(tmp_path, request.param, {"safe": QUICK["safe"]})
    yield one
    one.stop()


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """One `SafeWrite` over a ledger of its own."""
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db") as made:
        yield made


def said(turn: object = 1, **more: object) -> dict[str, Any]:
    """Return the `_meta` of a run of its own."""
    return {
        RUN: f"run-{next(_runs)}",
        TURN: turn,
        **{f"dev.safewrite/{k.replace('_', '-')}": v for k, v in more.items()},
    }


def ask(one: Served, *calls: tuple[str, dict[str, Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """Call tools with the SDK alone, which checks results against the schemas; return them as the wire has them."""

    async def main() -> list[dict[str, Any]]:
        async with one.session() as session:
            results = [await session.call_tool(tool, arguments, meta=meta) for tool, arguments, meta in calls]
            return [result.model_dump(by_alias=True, mode="json") for result in results]

    return asyncio.run(main())


def report(result: dict[str, Any]) -> WriteReport:
    """Return the report of a result."""
    assert result["content"][0]["text"] == result["structuredContent"]["result"]["message"]
    return WriteReport.model_validate(result["structuredContent"]["result"])


def rows_of(one: Served, run: str) -> list[Any]:
    """Return the rows of a run in the server's ledger."""
    with SafeWrite(f"sqlite:///{one.folder}/served.db") as sw:
        return [row for intent in sw.audit.run(run) for row in sw.audit.rows(intent.id)]


def effects(one: Served, order: str) -> int:
    """Return how often something was done to an order."""
    return sum(line[1] == order for line in one.lines("effects"))


# Identity ---------------------------------------------------------------------------------------------------------


def test_a_write_is_made_under_the_identity_of_its_meta(http: Served) -> None:
    """Run, turn and tool call id stand in the audit; asked again, under another request id, it is one effect."""
    meta = said(3, tool_call_id="call_7")
    first, again = ask(http, ("pay", {"order": "a1"}, meta), ("pay", {"order": "a1", "how": "please"}, meta))
    assert first["structuredContent"] == again["structuredContent"] == {"result": "pay a1"}
    assert effects(http, "a1") == 1
    with SafeWrite(f"sqlite:///{http.folder}/served.db") as sw:
        (intent,) = sw.audit.run(meta[RUN])
        rows = sw.audit.rows(intent.id)
    assert (intent.turn, [row.tool_call_id for row in rows]) == ("3", ["call_7", "call_7"])


def test_occurrences_of_one_turn_are_writes_of_their_own(http: Served) -> None:
    """Two equal calls of one turn are one, unless the caller says which is which."""
    meta = said()
    ask(http, *(("pay", {"order": "a2"}, {**meta, "dev.safewrite/occurrence": n}) for n in (1, 2, 2)))
    assert effects(http, "a2") == 2


@pytest.mark.parametrize(
    ("meta", "why"),
    [
        (None, "`dev.safewrite/run` and `dev.safewrite/turn`"),
        ({TURN: 1}, "did not say `dev.safewrite/run`"),
        ({RUN: "r"}, "did not say `dev.safewrite/turn`"),
        ({RUN: "", TURN: 1}, "did not say `dev.safewrite/run`"),
        ({RUN: 7, TURN: 1}, "is no text"),
        ({RUN: "r", TURN: True}, "cannot be read"),
        ({RUN: "r", TURN: 1, "dev.safewrite/occurrence": 1.5}, "cannot be read"),
    ],
)
def test_a_call_without_identity_is_refused(http: Served, meta: dict[str, Any] | None, why: str) -> None:
    """Nothing is made up for it, and nothing is sent; the model hears that repeating does not help."""
    (result,) = ask(http, ("pay", {"order": "a3"}, meta))  # type: ignore[arg-type]
    assert result["isError"] is True
    found = report(result)
    assert (found.state, found.do_not_repeat, found.sent) == ("not_applied", True, False)
    assert why in found.message
    assert "Nothing was sent" in found.message
    assert effects(http, "a3") == 0


def test_a_session_id_is_no_run(http: Served) -> None:
    """It is refused where the transport has one, since a host that resumes has another."""
    mode = {} if _mcp.FIRST_LINE else {"mode": "legacy"}

    async def main() -> dict[str, Any]:
        async with http.session(**mode) as session:
            await session.call_tool("greet", {"name": "me"})
            (session_id,) = {
                line[2] for line in http.lines("asked") if line[1].get("arguments") == {"name": "me"}
            }
            assert session_id
            meta = {RUN: session_id, TURN: 1}
            return (await session.call_tool("pay", {"order": "a4"}, meta=meta)).model_dump(by_alias=True)

    result = asyncio.run(main())
    assert result["isError"] is True
    assert "is the session id of the transport" in report(result).message
    assert effects(http, "a4") == 0


# Deadline ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, -5])
def test_a_call_that_is_late_is_refused_before_its_work(http: Served, left: int) -> None:
    """It is a normal result: nothing was sent, and it may be asked again."""
    (result,) = ask(http, ("pay", {"order": "b1"}, said(deadline_ms=left)))
    assert result["isError"] is False
    assert (report(result).state, report(result).reason) == ("not_applied", "budget_exhausted")
    assert effects(http, "b1") == 0


@pytest.mark.parametrize(
    ("told", "most"),
    [
        ({"deadline_ms": 700}, 0.7),
        ({"deadline_ms": 99_000}, 1.5),  # `longest`
        ({"deadline_ms": "abc"}, 1.5),
        ({"deadline_ms": -(10**400)}, 1.5),
        ({"deadline_ms": True, "deadline_at": 1.5}, 1.5),
        ({"deadline_ms": 700, "deadline_at": 1000}, 0.7),  # past: another clock
        ({"deadline_ms": 700, "deadline_at": 9_999_999_999_999}, 0.7),
    ],
)
def test_the_deadline_of_the_caller_is_kept(http: Served, told: dict[str, Any], most: float) -> None:
    """Milliseconds count, within `longest`; what is no whole number and an instant of another clock do not."""
    order = f"b2-{next(_runs)}"
    ask(http, ("pay", {"order": order}, said(**told)))
    (left,) = [line[2] for line in http.lines("begun") if line[1] == order]
    assert most * 0.3 < left <= most


def test_an_instant_shortens_what_the_milliseconds_say() -> None:
    """A re-issue carries what the first issue carried: by the instant it is not given its time again."""
    from safewrite.adapters.mcp_server import _left

    with ManualClock() as clock:
        now = int(clock.now().unix * 1000)
        assert _left({"deadline-ms": 9000, "deadline-at": now + 4000}) == pytest.approx(4.0, abs=0.01)
        assert _left({"deadline-at": now + 4000}) == pytest.approx(4.0, abs=0.01)
        assert _left({}) is None


def test_a_write_that_outlasts_its_deadline_is_answered_unknown_in_time(http: Served) -> None:
    """By the server, which knows more than its caller's timeout: it may still be running."""
    (result,) = ask(http, ("ship", {"order": "b3", "how": "late:3"}, said(deadline_ms=300)))
    found = report(result)
    assert (found.state, found.may_still_land, found.do_not_repeat) == ("unknown", True, True)


# What is told -----------------------------------------------------------------------------------------------------


def test_an_unknown_is_a_normal_result_that_says_what_to_do(http: Served) -> None:
    """No error to retry; its text says do not repeat, and how to look; its data fits the listed schema."""
    (result,) = ask(http, ("pay", {"order": "c1", "how": "lost"}, said()))
    assert result["isError"] is False
    found = report(result)
    assert (found.state, found.do_not_repeat) == ("unknown", True)
    for part in (
        "not known whether `pay` took effect",
        "Do not call this tool again",
        f"safewrite show {found.key}",
    ):
        assert part in found.message
    assert "hunter2" not in json.dumps(result)


def test_what_may_still_be_running_is_said(http: Served) -> None:
    """A body that nobody saw end may yet take effect."""
    (result,) = ask(http, ("pay", {"order": "c2", "how": "hangs"}, said(deadline_ms=300)))
    assert report(result).state == "unknown"


def test_a_value_that_does_not_fit_its_type_hides_no_effect(http: Served) -> None:
    """What became of the write is told, where the SDK alone would say that the tool failed."""
    (result,) = ask(http, ("count", {"order": "c3"}, said()))
    assert (report(result).state, report(result).do_not_repeat) == ("applied", True)
    assert effects(http, "c3") == 1


@pytest.mark.parametrize(("how", "again"), [("rejected", True), ("unsent", False)])
def test_a_refusal_is_a_normal_result(http: Served, how: str, again: bool) -> None:
    """Of the dependency, or because nothing was sent."""
    (result,) = ask(http, ("pay", {"order": "c4", "how": how}, said()))
    assert result["isError"] is False
    assert (report(result).state, report(result).do_not_repeat) == ("not_applied", again)


def test_wrong_arguments_are_the_sdks_to_refuse(http: Served) -> None:
    """Nothing was written, and what the SDK says is passed on."""
    (result,) = ask(http, ("pay", {}, said()))
    assert result["isError"] is True
    assert "order" in result["content"][0]["text"]


# Schemas and hints ------------------------------------------------------------------------------------------------


def listed(one: Served) -> dict[str, dict[str, Any]]:
    """Return the tools that a server lists, as the wire has them."""

    async def main() -> dict[str, dict[str, Any]]:
        async with one.session() as session:
            tools = (await session.list_tools()).tools
            return {t.name: t.model_dump(by_alias=True, mode="json", exclude_none=True) for t in tools}

    return asyncio.run(main())


def test_the_model_sees_the_schema_of_the_undecorated_tool(http: Served) -> None:
    """No attempt; the result may be a report; repeating is not claimed to be harmless; destructive is as declared."""
    plain = MCPServer("plain")

    @plain.tool()
    async def pay(order: str, amount: int = 1, how: str = "") -> str:
        """Pay an order."""
        return ""

    (expected,) = [t.model_dump(by_alias=True, mode="json") for t in asyncio.run(plain.list_tools())]
    tools = listed(http)
    assert tools["pay"]["inputSchema"] == expected["inputSchema"]
    assert tools["pay"]["description"] == "Pay an order."
    result = tools["pay"]["outputSchema"]["properties"]["result"]
    assert {"type": "string"} in result["anyOf"]
    assert {"$ref": "#/$defs/WriteReport"} in result["anyOf"]
    assert tools["pay"]["annotations"] == {"readOnlyHint": False, "destructiveHint": False}
    assert tools["ship"]["annotations"]["destructiveHint"] is True
    assert tools["ship"]["title"] == "Ship it"
    assert "annotations" not in tools["greet"]


def test_a_verdict_is_no_part_of_the_result(sw: SafeWrite) -> None:
    """A tool whose body returns verdicts is listed with the value in them."""

    @sw.write(target="order")
    async def pay(order: str) -> Applied[int] | StillRunning:
        return StillRunning()

    assert served(pay).__annotations__["return"] == int | WriteReport


def test_a_low_level_server_is_guarded_too(tmp_path: Path) -> None:
    """It calls its tools itself: identity, refusal and report are the same."""
    low = Served(tmp_path, "stdio", script=SCRIPT.with_name("mcp_low.py"))
    meta = said()
    done, refused, lost = ask(
        low, ("pay", {"order": "o1"}, meta), ("pay", {"order": "o2"}, {}), ("pay", {"order": "lost"}, said())
    )
    assert done["content"][0]["text"] == "pay o1"
    assert refused["isError"] is True
    assert (report(lost).state, lost["isError"]) == ("unknown", False)
    assert rows_of(low, meta[RUN])


# Slow, stuck, cancelled -------------------------------------------------------------------------------------------


def test_a_slow_write_gives_signs_of_life(either: Served) -> None:
    """Progress that only increases, to a caller who asked for it."""
    ticks: list[float] = []

    async def main() -> None:
        async def heard(progress: float, total: float | None, message: str | None) -> None:
            ticks.append(progress)

        async with either.session() as session:
            await session.call_tool(
                "pay", {"order": "d1", "how": "slow:1"}, progress_callback=heard, meta=said()
            )

    asyncio.run(main())
    assert len(ticks) >= 3
    assert ticks == sorted(set(ticks))


def test_a_plain_tool_does_not_stop_the_server(either: Served) -> None:
    """It runs in a thread: another call is answered meanwhile."""

    async def main() -> str:
        async with either.session() as session:
            slow = asyncio.create_task(
                session.call_tool("ship", {"order": "d2", "how": "slow:2"}, meta=said())
            )
            await until(lambda: either.lines("begun"))
            greeting = await session.call_tool("greet", {"name": "you"})
            assert not slow.done()
            await slow
            return str(greeting.content[0].text)

    assert asyncio.run(main()) == "hello you"


def test_the_backstop_answers_whatever_hangs(http: Served) -> None:
    """A tool without a guard: an error in words; a write: its fate; another method: the protocol's error."""

    async def main() -> None:
        async with http.session() as session:
            with pytest.raises(_mcp.PROTOCOL_ERROR) as error:
                await session.read_resource("slow://one")  # type: ignore[arg-type]
            assert error.value.error.code == -32001  # type: ignore[attr-defined]

    asyncio.run(main())
    other, hooked = ask(
        http, ("greet", {"name": "nobody"}, {}), ("pay", {"order": "d3", "how": "hook"}, said())
    )
    assert other["isError"] is True
    assert "The work may still be running" in other["content"][0]["text"]
    assert "safewrite show" in other["content"][0]["text"]
    assert hooked["isError"] is False
    assert (report(hooked).state, report(hooked).do_not_repeat) == ("applied", True)


@pytest.mark.parametrize("tool", ["pay", "ship"])
def test_a_cancelled_write_is_on_record(either: Served, tool: str) -> None:
    """The caller goes; a coroutine is cancelled and recorded so, a thread goes on and records its own end."""
    meta = said()

    async def main() -> None:
        async with held(either.session()) as session:
            operation = Operation(tool, run=meta[RUN], turn=1, deadline=Deadline(15.0))
            calling = asyncio.create_task(operation.call(session, {"order": "d4", "how": "slow:1.5"}))
            await until(lambda: either.lines("begun"))
            calling.cancel()
            await asyncio.wait((calling,))
            assert calling.cancelled()
            await until(lambda: len(rows_of(either, meta[RUN])) > 1)

    asyncio.run(main())
    last = rows_of(either, meta[RUN])[-1]
    assert effects(either, "d4") == 1
    if tool == "pay":
        assert either.lines("cancelled") == [["pay", "d4"]]
        assert (last.outcome, last.reason) == ("unknown", "cancelled")
    else:
        assert last.outcome == "applied"


def test_a_scope_that_cancels_every_await_does_not_cut_off_the_record(tmp_path: Path) -> None:
    """Level-triggered cancellation: by the time that the request is over, the write is recorded as cancelled."""
    with SafeWrite(f"sqlite:///{tmp_path}/a.db", settings={"grace": 0.2}) as sw:
        sw.upgrade()
        begun = asyncio.Event()

        @sw.write(target="order", max_attempts=1)
        async def pay(order: str) -> str:
            begun.set()
            await asyncio.Future()
            return ""

        safe = SafeServer(MCPServer("x"), sw)
        safe.tool()(pay)
        tool = served(pay)
        request = _mcp.Request("tools/call", {"name": "pay", "_meta": said()}, dict)

        async def main() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(safe._around, request, lambda: tool(order="e1"))
                await begun.wait()
                group.cancel_scope.cancel()

        asyncio.run(main())
        (intent,) = sw.audit.run(request.params["_meta"][RUN])
        assert [(row.event, row.reason) for row in sw.audit.rows(intent.id)][-1] == ("ended", "cancelled")


# A crash ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "state"), [("close", "applied"), ("pay", "unknown")])
def test_a_call_that_is_issued_anew_after_a_crash_has_one_effect(
    either: Served, tool: str, state: str
) -> None:
    """Killed behind the effect: with a reconcile function the answer is found, without one it is honestly unknown."""
    operation = Operation(tool, run="r1", turn=1, deadline=Deadline(60.0))
    arguments = {"order": "f1", "how": "slow:30"}

    async def lose() -> None:
        async with held(either.session()) as session:
            calling = asyncio.create_task(operation.call(session, arguments))
            await until(lambda: either.lines("effects"))
            either.kill()
            with pytest.raises((_mcp.PROTOCOL_ERROR, RequestGivenUp)):
                await calling

    async def again() -> Any:
        async with held(either.session()) as session:
            return await session.call_tool(tool, arguments, meta=operation.meta)

    asyncio.run(lose())
    if either.transport == "http":
        either.start()
    result = asyncio.run(again()).model_dump(by_alias=True, mode="json")
    found = result["structuredContent"]["result"]
    assert (found if isinstance(found, str) else found["state"]) == (
        "closed" if state == "applied" else state
    )
    assert effects(either, "f1") == 1


# At start-up ------------------------------------------------------------------------------------------------------


def test_a_write_that_is_handed_over_as_it_is_is_seen(sw: SafeWrite) -> None:
    """It would raise, and its callers would repeat it."""
    server = MCPServer("x")

    @server.tool()
    @sw.write(target="order")
    def pay(order: str) -> str:
        return ""

    with pytest.raises(ConfigurationError, match=r"`pay` is a guarded write that was handed over as it is"):
        SafeServer(server, sw).check()


def test_what_cannot_be_served_is_refused(sw: SafeWrite) -> None:
    """What is no guarded write, a method, a tool that takes the SDK's context, and hints that are not ours to claim."""
    safe = SafeServer(MCPServer("x"), sw)

    class Billing:
        @sw.write(target="order")
        def pay(self, order: str) -> str:
            return ""

    @sw.write(target="order")
    def ship(order: str, ctx: Context) -> str:  # type: ignore[type-arg]
        return ""

    for fn, why in (
        (print, "no guarded write"),
        (Billing.pay, "is a method"),
        (ship, "takes the server's `Context`"),
    ):
        with pytest.raises(ConfigurationError, match=why):
            safe.tool()(fn)
    with pytest.raises(ConfigurationError, match="`idempotentHint` is never claimed"):
        safe.tool(annotations={"idempotentHint": True})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"host_limit": 30.0}, r"`host_limit` = 30 s is not later than the backstop"),
        ({"keepalive": 10, "idle": 5}, r"`idle` = 5 s .*`keepalive` = 10 s"),
        ({"longest": -1}, "longest"),
    ],
)
def test_limits_in_the_wrong_order_are_refused(sw: SafeWrite, options: dict[str, Any], said: str) -> None:
    """Both numbers are told: a client that waits for less than we work is loud at start-up."""
    with pytest.raises(ConfigurationError, match=said):
        SafeServer(MCPServer("x"), sw, **options)


def test_a_fault_of_the_set_up_is_told_in_words(sw: SafeWrite) -> None:
    """Not as an exception, whose text the SDK would hide, or leak."""

    @sw.write(target="order")
    async def pay(order: str) -> str:
        return ""

    wire = asyncio.run(served(pay)(order="g1")).model_dump(by_alias=True)
    assert wire["isError"] is True
    assert "no run and turn are open" in report(wire).message
