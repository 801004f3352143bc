"""The outermost limit: what is answered in place of a handler that hangs or throws."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import safewrite
from safewrite import Deadline, SafeWrite
from safewrite.adapters import backstop as module
from safewrite.adapters.backstop import Backstop, Fallback
from safewrite.errors import ConfigurationError
from safewrite.testing import ManualClock

QUICK = {"operation_timeout": 1.5, "minimum": 0.05, "grace": 0.05}
"""Long enough for a claim and a record on a busy machine."""


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take its time for the ledger."""
    monkeypatch.setattr(module, "ASIDE", 10.0)


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """One `SafeWrite` over a ledger of its own, whose calls are short."""
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db", settings=QUICK) as made:
        made.upgrade()
        yield made


class Sent:
    """Takes the answers."""

    def __init__(self) -> None:
        self.replies: list[Any] = []

    async def __call__(self, reply: Any) -> None:
        self.replies.append(reply)

    @property
    def reply(self) -> Any:
        (only,) = self.replies
        return only


async def hang() -> None:
    """Never return."""
    await asyncio.Future()


async def fail() -> None:
    """Fail, with something in the message that is nobody's business."""
    raise KeyError("password=hunter2")


def answered(backstop: Backstop, handle: Callable[[], Awaitable[Any]], **options: Any) -> Any:
    """Return what was sent in the end."""
    sent = Sent()
    asyncio.run(backstop.answer(handle, sent, **options))
    return sent.reply


# At start-up -------------------------------------------------------------------------------------------------


def test_it_is_30_s_after_the_longest_limit_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call's whole time with reserve and grace is one of them, so that the specific error always comes first."""
    sw = SafeWrite(f"sqlite:///{tmp_path}/agent.db")
    assert Backstop(sw).limit == 20.0 + 0.5 + 30.0
    assert Backstop(sw, inner={"deadline": 60.0, "http": 5.0}).limit == 90.0
    assert Backstop(inner={"http": 5.0}).limit == 35.0
    assert Backstop().limit == 50.5
    monkeypatch.setenv("SAFEWRITE_BACKSTOP", "7")
    assert Backstop().limit == 27.5
    for made in (
        Backstop(sw),
        Backstop(sw, inner={"deadline": 60.0}),
        Backstop(sw, limit=21.0, host_limit=22.0),
    ):
        assert all(inner < made.limit for inner in made.inner.values())
        assert made.host_limit is None or made.limit < made.host_limit


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 20.5}, r"backstop of 20\.5 s is not later than `operation_timeout \+ grace` = 20\.5 s"),
        (
            {"inner": {"deadline": 60.0}, "limit": 60.0},
            r"backstop of 60 s is not later than `deadline` = 60 s",
        ),
        ({"host_limit": 50.5}, r"`host_limit` = 50\.5 s is not later than the backstop of 50\.5 s"),
        (
            {"inner": {"deadline": 60.0}, "host_limit": 60.0},
            r"`host_limit` = 60 s.*Shorten `deadline` = 60 s",
        ),
        ({"limit": -1}, "limit"),
        ({"inner": {"http": 0}}, "http"),
    ],
)
def test_limits_in_the_wrong_order_are_refused_at_start_up(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    """Inner, then backstop, then host: both numbers are told."""
    with pytest.raises(ConfigurationError, match=said):
        Backstop(SafeWrite(f"sqlite:///{tmp_path}/agent.db"), **options)


# Answers -----------------------------------------------------------------------------------------------------

SHORT: dict[str, Any] = {"inner": {"upstream": 0.05}, "limit": 0.1}


def test_what_comes_in_time_is_passed_on() -> None:
    """The backstop adds nothing to it."""

    async def handle() -> dict[str, int]:
        return {"n": 1}

    assert answered(Backstop(**SHORT), handle) == {"n": 1}


@pytest.mark.parametrize(
    ("handle", "why"), [(hang, "no answer within 0.1 s"), (fail, "an error of the program")]
)
def test_a_tool_call_is_answered_with_an_error_in_words(handle: Any, why: str) -> None:
    """It names the deadline, says that the work may still be running, and how to look; no secret of the error."""
    reply = answered(Backstop(**SHORT), handle, tool="search", trace="t1")
    result = reply.as_json()["result"]
    (content,) = result["content"]
    assert result["isError"] is True
    assert "structuredContent" not in result
    for part in ("`search`", why, "may still be running", "`safewrite show t1`"):
        assert part in content["text"]
    assert "hunter2" not in json.dumps(result)


@pytest.mark.parametrize("handle", [hang, fail])
def test_another_method_is_answered_with_an_error_of_the_protocol(handle: Any) -> None:
    """-32001, with the trace."""
    error = answered(Backstop(**SHORT), handle, method="resources/read", trace="t1").as_json()["error"]
    assert (error["code"], error["data"]) == (-32001, {"trace": "t1"})
    assert "`resources/read`" in error["message"]
    assert "may still be running" in error["message"]


def test_an_exception_of_the_protocol_is_raised() -> None:
    """What a framework raises on purpose is its own to answer."""
    with pytest.raises(KeyError):
        answered(Backstop(**SHORT), fail, passes=(KeyError,))


def test_a_handler_that_cancels_itself_is_answered_for() -> None:
    """A cancellation that nobody asked for is a fault like any other."""

    async def handle() -> None:
        raise asyncio.CancelledError

    assert "(CancelledError)" in answered(Backstop(**SHORT), handle, tool="search").text


def test_the_cancellation_of_the_server_is_that_of_the_handler() -> None:
    """Nobody is left to be answered."""
    ended: list[str] = []

    async def handle() -> None:
        try:
            await hang()
        finally:
            ended.append("handler")

    async def main() -> None:
        sent = Sent()
        serving = asyncio.create_task(Backstop(inner={"upstream": 5.0}).answer(handle, sent))
        await asyncio.sleep(0.01)
        serving.cancel()
        await asyncio.wait([serving])
        await asyncio.sleep(0)
        assert serving.cancelled()
        assert sent.replies == []

    asyncio.run(main())
    assert ended == ["handler"]


def test_a_handler_that_hangs_is_cancelled_after_its_answer(caplog: pytest.LogCaptureFixture) -> None:
    """And what it answers then goes nowhere, even an error."""
    seen: list[Any] = []

    async def handle() -> str:
        try:
            await hang()
        except asyncio.CancelledError:
            seen.append(list(sent.replies))
            raise KeyError("too late") from None
        return "never"

    sent = Sent()

    async def main() -> None:
        await Backstop(**SHORT).answer(handle, sent)
        await asyncio.sleep(0.01)
        assert seen == [[sent.reply]]

    asyncio.run(main())
    gc.collect()
    assert not any("never retrieved" in r.getMessage() for r in caplog.records)


# Sending -----------------------------------------------------------------------------------------------------


async def broken_flush() -> None:
    """Fail to flush."""
    raise OSError("disk full")


@pytest.mark.parametrize("handle", [hang, None])
@pytest.mark.parametrize(("flush", "said"), [(hang, "took too long"), (broken_flush, "failed")])
def test_sending_never_depends_on_flushing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, handle: Any, flush: Any, said: str
) -> None:
    """A flush that hangs or fails is logged, and the answer goes out."""
    monkeypatch.setattr(module, "ASIDE", 0.05)

    async def quick() -> str:
        return "done"

    began = time.monotonic()
    reply = answered(Backstop(**SHORT), handle or quick, flush=flush)
    assert time.monotonic() - began < 5.0
    assert reply == "done" if handle is None else isinstance(reply, Fallback)
    assert any("what was to be flushed" in r.getMessage() and said in r.getMessage() for r in caplog.records)


def test_a_flush_that_works_comes_before_the_answer() -> None:
    """In that order."""
    order: list[str] = []

    async def flush() -> None:
        order.append("flush")

    async def send(reply: Any) -> None:
        order.append("send")

    asyncio.run(Backstop(**SHORT).answer(hang, send, flush=flush))
    assert order == ["flush", "send"]


@pytest.mark.parametrize("handle", [hang, None])
def test_an_error_of_the_transport_is_raised(caplog: pytest.LogCaptureFixture, handle: Any) -> None:
    """Nobody was told: that is reported, not swallowed; and why there was a fallback stands in the log."""

    async def quick() -> str:
        return "done"

    async def send(reply: Any) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        asyncio.run(Backstop(**SHORT).answer(handle or quick, send))
    assert any(r.levelno == logging.ERROR for r in caplog.records) == (handle is hang)


# Pauses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", [True, False])
def test_a_pause_suspends_it_and_what_was_left_goes_on(inside: bool) -> None:
    """Ten minutes' question cost nothing, whether the run was opened in the handler or before."""
    began = asyncio.Event()

    async def main(clock: ManualClock) -> tuple[float, str]:
        before = Deadline(18.0)

        async def handle() -> None:
            with (Deadline(18.0) if inside else before).pause():
                await clock.pause(600.0)
            began.set()
            await clock.pause(1e6)

        sent = Sent()
        await Backstop(inner={"deadline": 18.0}).answer(handle, sent)
        return clock.elapsed, sent.reply.text

    with ManualClock() as clock:
        done = threading.Event()

        def move() -> None:
            while not done.wait(0.002):
                if clock._waiters:
                    clock.advance(1.0)

        mover = threading.Thread(target=move)
        mover.start()
        try:
            elapsed, text = asyncio.run(main(clock))
        finally:
            done.set()
            mover.join()
    assert began.is_set()
    assert "no answer within 48 s" in text
    assert 648.0 <= elapsed < 660.0


# Guarded writes ----------------------------------------------------------------------------------------------


class Tool:
    """A guarded write in a handler with hooks."""

    def __init__(
        self, sw: SafeWrite, body: Callable[[], Awaitable[str]] | None = None, **options: Any
    ) -> None:
        self.sent = 0

        @sw.write(target="n", name="cancel", max_attempts=1, **options)
        async def cancel(n: int) -> str:
            self.sent += 1
            return await body() if body is not None else "done"

        @sw.write(target="n", name="notify")
        async def notify(n: int) -> str:
            return "told"

        self.cancel, self.notify = cancel, notify

    def handler(self, *, before: Any = None, after: Any = None, notifies: bool = False) -> Any:
        """Return a handler whose hooks do something before and after the write."""

        async def handle() -> str:
            with safewrite.run("r1"), safewrite.turn(1):
                if before is not None:
                    await before()
                outcome = await self.cancel.outcome(1)
                if notifies:
                    await self.notify(1)
                if after is not None:
                    await after()
                return str(outcome.value)

        return handle


def report(sw: SafeWrite, handle: Any, **options: Any) -> dict[str, Any]:
    """Return the report that is sent in place of the handler's answer."""
    reply = answered(Backstop(sw, limit=2.0), handle, tool="cancel", **options)
    result = reply.as_json()["result"]
    assert result["isError"] is False
    assert result["content"] == [{"type": "text", "text": result["structuredContent"]["message"]}]
    return dict(result["structuredContent"])


@pytest.mark.parametrize("after", [hang, fail])
def test_a_write_that_was_applied_is_reported_applied(sw: SafeWrite, after: Any) -> None:
    """Whatever hangs or fails behind it; and the backstop has a row of its own, with an alarm."""
    alarms: list[str] = []
    sw.on_alarm(lambda alert: alarms.append(alert.kind))
    found = report(sw, Tool(sw).handler(after=after), trace="t1")
    assert (found["state"], found["do_not_repeat"]) == ("applied", True)
    (intent,) = sw.audit.find("t1")
    rows = sw.audit.rows(intent.id)
    assert (rows[-1].event, alarms) == ("alarmed", ["backstop"])
    assert "backstop" in rows[-1].happened


def test_a_write_that_hangs_before_it_is_unknown(sw: SafeWrite) -> None:
    """It may yet be sent: nobody may say that it was not."""
    tool = Tool(sw)
    found = report(sw, tool.handler(before=hang), trace="t1")
    assert (found["state"], found["reason"], found["may_still_land"]) == ("unknown", "backstop", True)
    assert (found["do_not_repeat"], found["key"]) == (True, "")
    for part in ("no answer within 2 s", "may still be running", "`safewrite show t1`"):
        assert part in found["message"]


def test_a_write_whose_hook_fails_before_it_was_not_sent(sw: SafeWrite) -> None:
    """What is not on record was not sent."""
    tool = Tool(sw)
    found = report(sw, tool.handler(before=fail))
    assert (found["state"], found["do_not_repeat"], tool.sent) == ("not_applied", False, 0)
    assert "Nothing was sent for it" in found["message"]


@pytest.mark.parametrize("after", [hang, fail])
def test_a_write_of_which_nobody_knows_is_reported_so(sw: SafeWrite, after: Any) -> None:
    """An unknown on record stays one, with its key to look at."""

    async def body() -> str:
        raise httpx.ReadTimeout("no answer")

    found = report(sw, Tool(sw, body).handler(after=after))
    (unknown,) = sw.audit.unknown()
    assert (found["state"], found["key"], found["do_not_repeat"]) == ("unknown", unknown.key, True)


@pytest.mark.parametrize(("after", "state"), [(hang, "unknown"), (fail, "not_applied")])
def test_a_write_that_was_not_applied_may_be_sent_yet_by_a_handler_that_goes_on(
    sw: SafeWrite, after: Any, state: str
) -> None:
    """Only the end of the handler makes a negative last."""

    async def body() -> str:
        raise safewrite.NotSent

    assert report(sw, Tool(sw, body).handler(after=after))["state"] == state


def test_another_write_in_the_same_handler_proves_nothing(sw: SafeWrite) -> None:
    """The newest on record is not the one that was called: unknown, rather than a guess."""
    found = report(sw, Tool(sw).handler(notifies=True, after=fail))
    assert (found["state"], found["reason"]) == ("unknown", "backstop")


def test_a_body_that_hangs_is_given_up_by_its_own_limit_first(sw: SafeWrite) -> None:
    """The specific answer always wins: the backstop does not even come into it."""
    reply = answered(Backstop(sw, limit=10.0), Tool(sw, hang).handler(), tool="cancel")
    assert reply == "None"


def test_what_comes_after_the_backstop_is_a_late_response(sw: SafeWrite) -> None:
    """A write that still ran is recorded on its attempt when it ends."""
    release = threading.Event()

    @sw.write(target="n", name="cancel", timeout=30.0, in_thread=False)
    def cancel(n: int) -> str:
        release.wait(20)
        return "done"

    async def handle() -> str:
        def call() -> str:
            with safewrite.run("r1"), safewrite.turn(1):
                return cancel(1)

        return await asyncio.to_thread(call)

    async def main() -> Any:
        sent = Sent()
        await Backstop(sw, limit=2.0).answer(handle, sent, tool="cancel", trace="t1")
        release.set()
        return sent.reply

    reply = asyncio.run(main())
    assert (reply.report.state, reply.report.may_still_land) == ("unknown", True)
    (intent,) = sw.audit.find("t1")
    assert reply.report.key == intent.key
    assert (intent.outcome, intent.evidence) == ("applied", "late_response")
    assert [row.event for row in sw.audit.rows(intent.id)] == ["claimed", "alarmed", "ended"]


@pytest.mark.parametrize("handle", [hang, fail])
def test_a_ledger_that_hangs_delays_nothing(
    sw: SafeWrite, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, handle: Any
) -> None:
    """The answer is unknown then, and goes out."""
    Tool(sw)
    release = threading.Event()
    for _ in range(4):
        sw.threads.submit(release.wait, 20)
    monkeypatch.setattr(module, "ASIDE", 0.05)
    began = time.monotonic()
    found = report(sw, handle)
    release.set()
    assert time.monotonic() - began < 10.0
    assert (found["state"], found["do_not_repeat"]) == ("unknown", True)
    assert any("the ledger took too long" in r.getMessage() for r in caplog.records)


# End to end --------------------------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[str]:
    """An upstream that accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"


def test_an_upstream_that_never_settles_is_answered_for_in_under_a_second(silent: str) -> None:
    """A client without a timeout, a server of lines of JSON-RPC, a small limit."""
    backstop = Backstop(inner={"upstream": 0.1}, limit=0.2)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order = json.loads(await reader.readline())

        async def handle() -> dict[str, Any]:
            async with httpx.AsyncClient(timeout=None) as client:
                return {"result": (await client.get(silent)).json()}

        async def send(reply: Any) -> None:
            body = reply.as_json() if isinstance(reply, Fallback) else reply
            writer.write(json.dumps({"jsonrpc": "2.0", "id": order["id"], **body}).encode() + b"\n")
            await writer.drain()

        await backstop.answer(handle, send, method=order["method"], tool="search")
        writer.close()

    async def main() -> tuple[dict[str, Any], float]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            began = time.monotonic()
            writer.write(b'{"jsonrpc": "2.0", "id": 7, "method": "tools/call"}\n')
            line = await reader.readline()
            took = time.monotonic() - began
            writer.close()
            await writer.wait_closed()
            return json.loads(line), took

    reply, took = asyncio.run(main())
    assert took < 1.0
    assert (reply["id"], reply["result"]["isError"]) == (7, True)
    assert "no answer within 0.2 s" in reply["result"]["content"][0]["text"]
