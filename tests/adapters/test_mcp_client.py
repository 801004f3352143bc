"""Calling tools of MCP servers in processes of their own: one deadline, evidence, and servers that are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

import safewrite
from safewrite import Dependency, GoalMet, GoalNotMet, Outcome, SafeWrite
from safewrite.adapters._mcp import FIRST_LINE
from safewrite.adapters.mcp_client import (
    ListingCut,
    Operation,
    RequestGivenUp,
    check_client,
    held,
    list_tools,
)
from safewrite.deadline import Deadline
from safewrite.errors import (
    BudgetExhausted,
    ConfigurationError,
    NoRunContext,
    NotSent,
    OutcomeUnknown,
    Rejected,
)
from safewrite.testing import ManualClock
from tests.adapters.mcp_clients import Served, until

RAW = Path(__file__).parent / "mcp_raw.py"
SERVER = {"safe": {"keepalive": 0.2, "idle": 5}}


@pytest.fixture
def raw(tmp_path: Path) -> Served:
    """A server on stdio that writes down all that it hears."""
    return Served(tmp_path, "stdio", script=RAW)


@pytest.fixture(params=["stdio", "http"])
def either(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    """A server with guarded tools, over either transport."""
    one = Served(tmp_path, request.param, SERVER)
    yield one
    one.stop()


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server with guarded tools, over HTTP, which gives signs of life."""
    one = Served(tmp_path_factory.mktemp("http"), "http", SERVER)
    yield one
    one.stop()


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """The caller's own `SafeWrite`."""
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db", settings={"grace": 0.2}) as made:
        made.upgrade()
        yield made


def operation(tool: str, seconds: float = 30.0, **options: Any) -> Operation:
    """Return an operation of a run, with a deadline of its own."""
    given = {"run": "r1", "turn": 1, "deadline": Deadline(seconds, minimum=0.1), **options}
    return Operation(tool, **given)


def on(one: Served, work: Callable[[Any], Awaitable[Any]]) -> Any:
    """Do something with a connection to a server."""

    async def main() -> Any:
        async with held(one.session()) as session:
            return await work(session)

    return asyncio.run(main())


def heard(one: Served, method: str) -> list[Any]:
    """Return the ids and parameters of what a raw server heard."""
    return [(number, params) for name, number, params in one.lines("heard") if name == method]


def written(sw: SafeWrite, body: Callable[[], Awaitable[Any]], done: Callable[[], bool] | None = None) -> Any:
    """Return a guarded write around a body, with a reconcile function that looks whether it is done."""

    @sw.write(target="order", dependency=Dependency("remote", work_bound=0.0), max_attempts=1)
    async def remote(order: str) -> str:
        result = await body()
        return str(result.content[0].text)

    if done is not None:

        @remote.reconcile
        async def _(order: str) -> GoalMet[str] | GoalNotMet:
            return GoalMet("found") if done() else GoalNotMet()

    return remote


async def outcome(write: Any, seconds: float = 30.0) -> Outcome[Any]:
    """Carry a write out."""
    with safewrite.run("r1", deadline=Deadline(seconds, minimum=0.1)), safewrite.turn(1):
        return await write.outcome("o1")  # type: ignore[no-any-return]


# One deadline -----------------------------------------------------------------------------------------------------


def test_the_legs_of_an_operation_share_one_deadline() -> None:
    """With a first leg of 4 s and a second of 2 s, the legs of 20 s are granted 20, 16 and 14."""
    left: list[float] = []

    async def main(clock: ManualClock) -> None:
        one = Operation("pay", run="r1", turn=1)

        async def leg(seconds: float) -> None:
            left.append(one.deadline.remaining())
            clock.advance(seconds)

        await one.before("initialize", lambda: leg(4.0))
        await one.before("confirmation", lambda: leg(2.0))
        left.append(one.deadline.remaining())
        assert one.meta["dev.safewrite/deadline-ms"] == 13_000  # the server is done a second earlier
        clock.advance(13.5)
        with pytest.raises(BudgetExhausted, match=r"leg `call` of tool `pay`.*`initialize` 4.000 s"):
            await one.call(None, {})

    with ManualClock() as clock:
        asyncio.run(main(clock))
    assert left == [20.0, 16.0, 14.0]


def test_two_operations_over_one_client_spend_their_own() -> None:
    """A deadline is handed down as a value, and stays on no client."""
    with ManualClock() as clock:
        first = operation("pay", 20.0)
        clock.advance(5.0)
        second = operation("pay", 20.0)
        assert (first.deadline.remaining(), second.deadline.remaining()) == (15.0, 20.0)


@pytest.mark.parametrize("missing", [{"run": None}, {"turn": None}])
def test_an_operation_without_identity_is_refused(missing: dict[str, Any]) -> None:
    """A call that nobody can recognise again is not sent."""
    with pytest.raises(NoRunContext):
        operation("pay", **missing)


def test_an_operation_takes_its_identity_from_where_it_is_made(sw: SafeWrite) -> None:
    """Run, turn and key of the write around it, the deadline of its attempt."""
    found: list[dict[str, Any]] = []

    async def body() -> Any:
        found.append(Operation("pay").meta)
        raise NotSent

    write = written(sw, body)
    assert asyncio.run(outcome(write, 10.0)).state == "not_applied"
    (meta,) = found
    with safewrite.run("r1"), safewrite.turn(1):
        assert meta["dev.safewrite/key"] == write.key("o1")
    assert (meta["dev.safewrite/run"], meta["dev.safewrite/turn"]) == ("r1", "1")
    assert 0 < meta["dev.safewrite/deadline-ms"] <= 9000


def test_a_leg_before_the_call_that_fails_leaves_the_write_unsent(sw: SafeWrite) -> None:
    """In a body it proves that nothing was sent; elsewhere it is raised as it is; a leg cannot take for ever."""

    async def fail() -> None:
        raise ConnectionResetError

    async def hang() -> None:
        await asyncio.Future()

    for work, seconds in ((fail, 30.0), (hang, 0.5)):

        async def body(work: Any = work, seconds: float = seconds) -> Any:
            await operation("pay", seconds).before("initialize", work)

        assert asyncio.run(outcome(written(sw, body))).evidence == "never_sent"
    with pytest.raises(ConnectionResetError):
        asyncio.run(operation("pay").before("initialize", fail))
    with pytest.raises(RequestGivenUp):
        asyncio.run(operation("pay", 0.3).before("initialize", hang))


def test_a_call_that_its_deadline_does_not_allow_is_not_sent(sw: SafeWrite) -> None:
    """In a body: not sent, and not again; elsewhere the typed error."""

    async def body() -> Any:
        await operation("pay", 0.05).call(None, {})

    found = asyncio.run(outcome(written(sw, body)))
    assert (found.state, found.evidence, found.attempts) == ("not_applied", "never_sent", 1)


# What a call tells ------------------------------------------------------------------------------------------------


def test_a_re_issue_has_the_same_meta_under_another_request_id(http: Served) -> None:
    """So the server knows it again: one effect."""
    one = operation("pay")

    async def twice(session: Any) -> None:
        await one.call(session, {"order": "m1"})
        await one.call(session, {"order": "m1"})

    on(http, twice)
    first, second = (params["_meta"] for params in http.asked() if params["arguments"]["order"] == "m1")
    assert first.pop("progressToken") != second.pop("progressToken")  # the SDK's request id
    assert first == second
    assert [line[1] for line in http.lines("effects")].count("m1") == 1


@pytest.mark.parametrize(
    ("how", "error", "reason"),
    [("lost", OutcomeUnknown, "no_reconcile"), ("rejected", Rejected, ""), ("unsent", NotSent, "")],
)
def test_the_report_of_a_guarded_server_is_believed(
    http: Served, sw: SafeWrite, how: str, error: type[Exception], reason: str
) -> None:
    """An unknown at the server, a normal result, is none of success at its caller."""

    async def work(session: Any) -> Any:
        with pytest.raises(error) as raised:
            await operation("pay", run=how).call(session, {"order": "m2", "how": how})
        assert getattr(raised.value, "reason", "") == reason
        return await outcome(
            written(sw, lambda: operation("pay", run=how).call(session, {"order": "m2", "how": how}))
        )

    assert on(http, work).state == ("unknown" if how == "lost" else "not_applied")


def test_a_refused_re_issue_says_nothing_of_a_call_that_was_given_up(raw: Served, sw: SafeWrite) -> None:
    """The first one may still be on its way to the server, which knows nothing of it."""

    async def work(session: Any) -> Any:
        one = operation("refused-later", idle=0.2)
        with pytest.raises(RequestGivenUp):
            await one.call(session, {})
        return await outcome(written(sw, lambda: one.call(session, {})))

    assert on(raw, work).state == "unknown"


def test_a_tool_error_is_unknown(http: Served) -> None:
    """It may have come behind the effect; its text is kept."""

    async def work(session: Any) -> None:
        with pytest.raises(OutcomeUnknown, match="order") as raised:
            await operation("pay").call(session, {})
        assert raised.value.reason == "tool_error"

    on(http, work)


@pytest.mark.parametrize("acts", [True, False])
def test_a_server_that_dies_is_reconciled(either: Served, sw: SafeWrite, acts: bool) -> None:
    """Killed before or behind the effect: the stream is closed, the read decides, and nothing is sent again."""
    how = "slow:30" if acts else "late:30"

    def effects() -> list[Any]:
        return either.lines("effects")

    async def work(session: Any) -> Outcome[Any]:
        write = written(
            sw, lambda: operation("pay").call(session, {"order": "o1", "how": how}), lambda: bool(effects())
        )
        writing = asyncio.create_task(outcome(write))
        await until(lambda: effects() if acts else either.lines("begun"))
        either.kill()
        return await writing

    found = on(either, work)
    assert (found.state, found.evidence) == (("applied", "goal_state") if acts else ("unknown", ""))
    assert len(effects()) == (1 if acts else 0)


def test_a_timeout_of_the_sdk_is_reconciled(http: Served, sw: SafeWrite) -> None:
    """-32001 in 2.x, 408 in 1.x: the client's own limit, which says nothing about the write."""
    limit: Any = timedelta(seconds=0.5) if FIRST_LINE else 0.5
    meta = {"dev.safewrite/run": "r1", "dev.safewrite/turn": 1}

    async def work(session: Any) -> Outcome[Any]:
        async def body() -> Any:
            return await session.call_tool(
                "pay", {"order": "m3", "how": "slow:3"}, read_timeout_seconds=limit, meta=meta
            )

        return await outcome(written(sw, body, lambda: True))

    found = on(http, work)
    assert (found.state, found.evidence) == ("applied", "goal_state")
    (intent,) = sw.audit.run("r1")
    assert "mcp_request_timeout" in [row.reason for row in sw.audit.rows(intent.id)]


@pytest.mark.parametrize(
    ("error", "reason", "state"),
    [
        ("-32001:timed out", "mcp_request_timeout", "applied"),
        ("408:timed out", "mcp_request_timeout", "applied"),
        ("-32000:Connection closed", "mcp_connection_closed", "applied"),
        ("0:Request cancelled", "mcp_unlisted", "applied"),
        ("-32601:Method not found", "mcp_method_not_found", "not_applied"),
    ],
)
def test_what_a_server_answers_instead_is_evidence(
    raw: Served, sw: SafeWrite, error: str, reason: str, state: str
) -> None:
    """Timeouts, closed and cancelled requests are reconciled; what proves that nothing was done is not."""

    async def work(session: Any) -> Outcome[Any]:
        return await outcome(written(sw, lambda: operation(f"error:{error}").call(session), lambda: True))

    assert on(raw, work).state == state
    (intent,) = sw.audit.run("r1")
    assert reason in [row.reason for row in sw.audit.rows(intent.id)]
    assert len(heard(raw, "tools/call")) == 1


# Limits, and servers that are told ----------------------------------------------------------------------------------


def test_a_server_is_told_once_at_a_limit(raw: Served) -> None:
    """With the id of the request; nothing is told of requests that are answered."""

    async def work(session: Any) -> None:
        one = operation("silent", 3.0)
        with pytest.raises(RequestGivenUp, match=r"The limit of \S+ s has passed; there is no idle limit"):
            await one.call(session)
        answered = asyncio.create_task(operation("answer").call(session, {"say": "yes"}))
        assert (await answered).content[0].text == "yes"
        answered.cancel()
        await until(lambda: heard(raw, "notifications/cancelled"))
        await session.send_ping()

    on(raw, work)
    calls, told = heard(raw, "tools/call"), heard(raw, "notifications/cancelled")
    assert [params["requestId"] for _, params in told] == [calls[0][0]]


@pytest.mark.parametrize("level", [True, False])
def test_a_server_is_told_when_the_caller_is_cancelled(raw: Served, level: bool) -> None:
    """By a task, or by a scope that cancels every await anew."""

    async def work(session: Any) -> None:
        calling = operation("silent").call(session)
        if level:
            with anyio.CancelScope() as scope:
                asyncio.get_running_loop().call_later(0.5, scope.cancel)
                await calling
            assert scope.cancelled_caught
        else:
            task = asyncio.create_task(calling)
            await until(lambda: heard(raw, "tools/call"))
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()
        await until(lambda: heard(raw, "notifications/cancelled"))

    on(raw, work)
    ((number, _),) = heard(raw, "tools/call")
    assert [params["requestId"] for _, params in heard(raw, "notifications/cancelled")] == [number]


def test_a_server_that_does_not_listen_holds_up_nobody(raw: Served) -> None:
    """Telling is bounded: a caller returns, though its notice cannot be written."""

    async def work(session: Any) -> None:
        await session.send_ping()
        deaf = asyncio.create_task(operation("deaf", 30.0).call(session))
        await until(lambda: heard(raw, "tools/call"))
        with pytest.raises(RequestGivenUp):
            await operation("silent", 0.5).call(session, {"much": "x" * 1_000_000})
        deaf.cancel()
        await asyncio.wait((deaf,))
        raw.kill()

    on(raw, work)


def test_a_late_answer_goes_to_no_other_call(raw: Served) -> None:
    """The request that was given up is answered all the same; the next call gets its own answer."""

    async def work(session: Any) -> str:
        with pytest.raises(RequestGivenUp):
            await operation("late", 3.0).call(session)
        await until(lambda: heard(raw, "notifications/cancelled"))
        return str((await operation("answer").call(session, {"say": "mine"})).content[0].text)

    assert on(raw, work) == "mine"


@pytest.mark.parametrize(
    ("tool", "idle", "seconds", "said"),
    [
        ("silent", 1.0, 20.0, r"The idle limit of 1 s has passed"),
        ("ticks:2:0.6", 1.0, 20.0, None),
        ("ticks:0:0.3", 1.0, 2.5, r"The limit of \S+ s has passed; the idle limit is 1 s"),
        ("silent", 5.0, 0.6, r"The limit of \S+ s has passed; there is no idle limit"),
    ],
)
def test_progress_feeds_the_idle_limit_under_an_absolute_one(
    raw: Served, tool: str, idle: float, seconds: float, said: str | None
) -> None:
    """Silent: cut at the idle limit; moving: alive; moving for ever: cut at the absolute limit.  Words name which."""

    async def work(session: Any) -> None:
        calling = operation(tool, seconds, idle=idle).call(session)
        if said is None:
            assert (await calling).content[0].text == "ticked"
        else:
            with pytest.raises(RequestGivenUp, match=said):
                await calling

    on(raw, work)


def test_http_that_is_silent_is_cut_at_the_idle_limit(tmp_path: Path) -> None:
    """A server that gives none for too long; it is told, and its coroutine is cancelled."""
    quiet = Served(tmp_path, "http", {"safe": {"keepalive": 30}})
    try:

        async def work(session: Any) -> None:
            with pytest.raises(RequestGivenUp, match=r"The idle limit of 1 s has passed: nothing was heard"):
                await operation("pay", idle=1.0).call(session, {"order": "m5", "how": "hangs"})
            await until(lambda: ["pay", "m5"] in quiet.lines("cancelled"))

        on(quiet, work)
    finally:
        quiet.stop()


def test_progress_in_each_interval_keeps_http_alive(http: Served) -> None:
    """Signs of life every 0.2 s: three idle limits later the answer comes."""

    async def work(session: Any) -> str:
        result = await operation("pay", run="r5", idle=1.0).call(session, {"order": "m6", "how": "slow:3"})
        return str(result.content[0].text)

    assert on(http, work) == "pay m6"


def test_progress_moves_the_write_around_it(raw: Served, sw: SafeWrite) -> None:
    """The idle limit of `@sw.write` hears it, too."""

    async def work(session: Any) -> Any:
        @sw.write(target="order", idle=1.0, name="ticking", max_attempts=1)
        async def ticking(order: str) -> str:
            return str((await Operation("ticks:5:0.5").call(session)).content[0].text)

        return await outcome(ticking)

    assert on(raw, work).value == "ticked"


# Listings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mark", "pages", "seconds", "page", "why"),
    [
        ("", 50, 30.0, 50, "more than 50 pages"),
        ("slow", 50, 2.0, 4, "limit of"),
        ("endless", 7, 30.0, 7, "more than 7"),
    ],
)
def test_a_listing_that_is_cut_says_which_page_it_reached(
    raw: Served, mark: str, pages: int, seconds: float, page: int, why: str
) -> None:
    """All pages share one deadline; what came before is not lost."""
    if mark:
        (raw.folder / mark).touch()

    async def work(session: Any) -> None:
        with pytest.raises(ListingCut, match=rf"cut at page {page}, .*{why}") as cut:
            await list_tools(session, deadline=Deadline(seconds, minimum=0.1), pages=pages)
        assert (cut.value.page, len(cut.value.tools)) == (page, page if why.startswith("more") else page - 1)

    on(raw, work)


def test_a_listing_of_many_pages_is_whole(raw: Served) -> None:
    """Sixty pages, where sixty are allowed."""
    tools = on(raw, lambda session: list_tools(session, pages=60))
    assert [tool.name for tool in tools] == [f"tool-{n}" for n in range(1, 61)]


# Connections and guards -------------------------------------------------------------------------------------------


def test_a_connection_that_cannot_be_made_says_why() -> None:
    """The error of the transport is raised, and a caller who is cancelled leaves no connection behind."""
    left: list[str] = []

    @asynccontextmanager
    async def refused() -> AsyncIterator[Any]:
        raise ConnectionRefusedError
        yield

    @asynccontextmanager
    async def slow() -> AsyncIterator[Any]:
        try:
            await asyncio.Future()
            yield
        finally:
            left.append("slow")

    async def main() -> None:
        with pytest.raises(ConnectionRefusedError):
            async with held(refused()):
                raise AssertionError
        entering = asyncio.create_task(held(slow()).__aenter__())
        await asyncio.sleep(0.01)
        entering.cancel()
        await asyncio.wait((entering,))

    asyncio.run(main())
    assert left == ["slow"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"session": timedelta(seconds=5)}, r"`read_timeout_seconds` is 5 s, and a call may take 20 s"),
        ({"session": 5.0}, r"`read_timeout_seconds` is 5 s"),
        ({"http": 5.0}, r"HTTP client's read timeout is 5 s, and a call may take 20 s"),
        ({"run": "s1", "session_id": "s1"}, r"'s1' is the session id"),
        ({"run": "r1", "session_id": "s1", "session": 30.0, "http": None}, None),
        ({}, None),
    ],
)
def test_a_client_that_cuts_calls_short_is_loud(given: dict[str, Any], said: str | None) -> None:
    """Both numbers are told; a session id is no run."""
    session = SimpleNamespace(_session_read_timeout_seconds=given.pop("session", None))
    client = SimpleNamespace(timeout=SimpleNamespace(read=given.pop("http", None)))
    if said is None:
        return check_client(session, longest=20.0, http_client=client, **given)
    with pytest.raises(ConfigurationError, match=said):
        check_client(session, longest=20.0, http_client=client, **given)
    return None
