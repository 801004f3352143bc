"""A tool's own body and reconcile function, plain and coroutine, in the world of a recorded case."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
import threading
import types
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import safewrite
from safewrite import Applied, Attempt, Dependency, NotApplied, NotSent, SafeWrite
from safewrite.audit.cases import export_case
from safewrite.core.evidence import from_exception
from safewrite.testing import (
    Case,
    CaseUnusable,
    Lab,
    ManualClock,
    RecordedWorld,
    ScriptedDependency,
    replay,
    world,
)
from safewrite.testing.script import Step, error, in_progress, late, slow
from safewrite.testing.wall import closed

SURE = Dependency("billing", work_bound=5.0, read_lag=0.0)
KEYED = Dependency("billing", key_retention=3600.0, work_bound=5.0, read_lag=0.0)
NOTHING = Dependency("billing")
SHOWN = {"applied": {"rows": [1]}, "not_applied": {"rows": []}}


@pytest.fixture(autouse=True)
def _no_foreign_drivers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have loaded them."""
    monkeypatch.setattr(world, "PAST_PYTHON", ())


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab whose dependency recognises keys."""
    dependency = ScriptedDependency(keys="forever")
    dependency.transport()
    with (
        ManualClock(auto=True, patience=2.0) as clock,
        Lab(f"sqlite:///{tmp_path / 'lab.db'}", clock, dependency) as made,
    ):
        yield made


class Billing:
    """An application: a tool that talks to `transport`, plain or a coroutine, as it is or with something broken."""

    def __init__(
        self,
        sw: SafeWrite,
        transport: Any,
        *,
        coroutine: bool = False,
        broken: str = "",
        promises: Dependency = SURE,
        patient: bool = False,
        **options: Any,
    ) -> None:
        self.broken, self.patient = broken, patient
        self.client = httpx.Client(base_url="http://billing", transport=transport)
        self.aclient = httpx.AsyncClient(base_url="http://billing", transport=transport)
        options = {"target": "sub_id", "timeout": 10.0, "redact": ("token",), **options}
        made = sw.write(name="cancel", dependency=promises, **options)
        self.tool: Any = made(self._acoroutine() if coroutine else self._plain())
        self.tool.reconcile(self._alooks() if coroutine else self._looks())

    def _asked(self, sub_id: str, attempt: Attempt) -> dict[str, Any]:
        headers = attempt.headers if self.broken != "header" else {"X-Attempt-Id": attempt.id}
        if self.broken == "header sent":
            headers.pop("Idempotency-Key")
        return {"url": f"/subs/{sub_id}/cancel", "headers": headers, "timeout": self._limit(attempt)}

    def _limit(self, attempt: Attempt) -> float | None:
        return None if self.patient else attempt.timeout

    def _told(self, reply: httpx.Response) -> str | None:
        if self.broken == "409" and reply.status_code == 409:
            raise NotSent("in conflict")
        return reply.raise_for_status().text

    def _seen(self, reply: httpx.Response) -> Applied[str] | NotApplied:
        rows = reply.raise_for_status().json()["rows"]
        return Applied("found") if rows or self.broken == "read" else NotApplied()

    def _plain(self) -> Callable[..., str | None]:
        def cancel(sub_id: str, attempt: Attempt, token: str = "t0p") -> str | None:
            try:
                return self._told(self.client.post(**self._asked(sub_id, attempt)))
            except httpx.TimeoutException:
                if self.broken == "timeout":
                    return None
                raise

        return cancel

    def _acoroutine(self) -> Callable[..., Awaitable[str | None]]:
        async def cancel(sub_id: str, attempt: Attempt, token: str = "t0p") -> str | None:
            try:
                return self._told(await self.aclient.post(**self._asked(sub_id, attempt)))
            except httpx.TimeoutException:
                if self.broken == "timeout":
                    return None
                raise

        return cancel

    def _looks(self) -> Callable[..., object]:
        def look(sub_id: str, attempt: Attempt) -> object:
            return self._seen(self.client.get(f"/effects?key={attempt.key}", timeout=attempt.timeout))

        return look

    def _alooks(self) -> Callable[..., object]:
        async def look(sub_id: str, attempt: Attempt) -> object:
            return self._seen(await self.aclient.get(f"/effects?key={attempt.key}", timeout=attempt.timeout))

        return look


@pytest.fixture(params=["plain", "coroutine"])
def coroutine(request: pytest.FixtureRequest) -> bool:
    """Whether the tool is a coroutine function."""
    return bool(request.param == "coroutine")


def call(tool: Any, coroutine: bool, *, cap: float = 30.0) -> Any:
    """Make one call."""
    with safewrite.run("run-1", call_cap=cap), safewrite.turn(1):
        return asyncio.run(tool.outcome("sub_1")) if coroutine else tool.outcome("sub_1")


def record(lab: Lab, coroutine: bool, *steps: str | Step, calls: int = 1, **options: Any) -> Case:
    """Make a real run against the scripted dependency, and return the case of it, as its file says it."""
    billing = Billing(lab.sw, lab.dependency.transport(), coroutine=coroutine, **options)
    lab.dependency.script(*steps)
    for _ in range(calls):
        outcome = call(billing.tool, coroutine)
    case = export_case(lab.sw.ledger, outcome.key)
    assert case is not None
    path = Path(lab.url.removeprefix("sqlite:///")).with_name("case.json")
    path.write_text(case.text())
    return Case.load(path)


def again(case: Case, coroutine: bool, *, replies: Any = SHOWN, **options: Any) -> Any:
    """Replay a case through the application of today."""
    recorded = RecordedWorld(case)
    billing = Billing(SafeWrite("sqlite://"), recorded.transport, coroutine=coroutine, **options)
    return recorded.replay(billing.tool, arguments={"token": "t0p"}, replies=replies)


HISTORIES: dict[str, tuple[list[str | Step], dict[str, Any]]] = {
    "ok": ([], {}),
    "lost, found": (["lose_response"], {}),
    "hung, found": (["hang_after"], {}),
    "never, proven absent, sent again": (["never"], {}),
    "late, waited for": ([late(12.0)], {}),
    "slower than its limit": ([slow(12.0)], {}),
    "429 with Retry-After": ([error(429, 2)], {}),
    "503, proven absent": ([error(503)], {}),
    "rejected": ([error(422)], {}),
    "in conflict": ([in_progress()], {}),
    "unknown in the end": ([late(500.0)], {"promises": NOTHING}),
    "key recognised": (["reset_after", "hang_after"], {"promises": KEYED}),
    "reads fail": (["lose_response", "read_fails", "read_hangs", "read_fails"], {}),
    "hangs without a limit": (["hang_after"], {"patient": True}),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_the_same_code_decides_the_same(lab: Lab, coroutine: bool, name: str) -> None:
    """Recorded by a real run, exported, replayed through body and reconcile function: row by row the same."""
    steps, options = HISTORIES[name]
    case = record(lab, coroutine, *steps, **options)
    before = len(lab.dependency.requests())
    came = again(case, coroutine, **options)
    assert str(came).endswith(f"through the body of `cancel`: {len(case.rows)} rows, decided as then.")
    assert len(lab.dependency.requests()) == before


def test_time_is_virtual_and_minutes_are_nothing(lab: Lab, coroutine: bool) -> None:
    """The replay has a clock of its own, which came as far as the recorded one."""
    case = record(lab, coroutine, "never")
    before = lab.clock.elapsed
    assert again(case, coroutine).same
    assert lab.clock.elapsed == before


@pytest.mark.parametrize(
    ("broken", "steps", "then", "now"),
    [
        ("header", ["never"], "it carried the idempotency key", "it does not carry the idempotency key"),
        ("header sent", ["never"], "it carried the idempotency key", "it does not carry the idempotency key"),
        (
            "timeout",
            ["never"],
            "Attempt 1 ended: unknown (`read_timeout`).",
            "Attempt 1 ended: applied (`returned`). The body returned a value.",
        ),
        (
            "409",
            [in_progress()],
            "Attempt 1 ended: unknown (`http_409`).",
            "Attempt 1 ended: not applied (`not_sent`).",
        ),
        (
            "read",
            ["never"],
            "A reconciling read ended: it found nothing of this intent.",
            "A reconciling read ended: it found the effect, and that it is this intent's.",
        ),
    ],
)
def test_code_that_is_broken_is_told(
    lab: Lab, coroutine: bool, broken: str, steps: list[str | Step], then: str, now: str
) -> None:
    """A header dropped, a timeout swallowed, a 409 or a negative read taken wrongly: then, and now."""
    case = record(lab, coroutine, *steps)
    with pytest.raises(AssertionError) as told:
        again(case, coroutine, broken=broken)
    lines = str(told.value).splitlines()
    assert lines[0].endswith("through the body of `cancel`: decided otherwise now.")
    assert lines[2].startswith(f"  then: {then}")
    assert lines[3].startswith(f"  now:  {now}")
    declared = Billing(SafeWrite("sqlite://"), None, coroutine=coroutine, broken=broken)
    assert replay(case, declared.tool).same, "what is declared is as it was"


def test_a_body_that_sends_where_it_did_not_is_told(lab: Lab, coroutine: bool) -> None:
    """An attempt more than there was: what the case holds of it is nothing, and the rows say so."""
    case = record(lab, coroutine, error(503), promises=NOTHING, max_attempts=1)
    with pytest.raises(AssertionError, match="from here on it goes otherwise"):
        again(case, coroutine, promises=Dependency("billing", key_retention=3600.0), max_attempts=3)


def test_a_crash_and_later_calls_are_replayed(lab: Lab, coroutine: bool) -> None:
    """The process dies after sending, and a later call makes it good: the body of then ran once, as today's does."""
    billing = Billing(lab.sw, lab.dependency.transport(), coroutine=coroutine)
    with lab.crash(at="after_send"):
        call(billing.tool, coroutine)
    outcome = call(billing.tool, coroutine)
    case = export_case(lab.sw.ledger, outcome.key)
    assert case is not None
    assert again(case, coroutine).same


def test_recovery_is_replayed(lab: Lab, coroutine: bool) -> None:
    """A read that nobody waits for runs the reconcile function of today."""
    billing = Billing(lab.sw, lab.dependency.transport(), coroutine=coroutine, redact=())
    with lab.crash(at="after_send"):
        outcome = call(billing.tool, coroutine)
    asyncio.run(lab.sw.arecover()) if coroutine else lab.sw.recover()
    outcome = call(billing.tool, coroutine)
    case = export_case(lab.sw.ledger, outcome.key)
    assert case is not None
    assert again(case, coroutine, redact=()).same
    with pytest.raises(AssertionError, match="the effect"):
        again(case, coroutine, redact=(), replies={"applied": {"rows": []}})


def test_it_may_be_asked_inside_an_event_loop(lab: Lab, coroutine: bool) -> None:
    """A test that is a coroutine function calls it as any other."""
    case = record(lab, coroutine, "never")

    async def inside() -> bool:
        return bool(again(case, coroutine).same)

    assert asyncio.run(inside())


def test_arguments_that_are_not_in_the_case_are_asked_for(lab: Lab) -> None:
    """Each is named; a foreign one is refused."""
    case = record(lab, False)
    recorded = RecordedWorld(case)
    tool = Billing(SafeWrite("sqlite://"), recorded.transport).tool
    with pytest.raises(
        CaseUnusable, match=r"does not hold `token` of `cancel`.*arguments=\{'token': \.\.\.\}"
    ):
        recorded.replay(tool)
    with pytest.raises(CaseUnusable, match="`cancel` takes no `tokn`"):
        recorded.replay(tool, arguments={"tokn": "t0p"})
    other = SafeWrite("sqlite://").write(target="a", name="other")(lambda a: None)
    with pytest.raises(CaseUnusable, match="of the tool `cancel`, not of `other`"):
        recorded.replay(other)


def test_what_replies_hold_is_the_tests_to_say(lab: Lab) -> None:
    """A read cannot be answered from the record alone; a function of the request may answer, too."""
    case = record(lab, False, "lose_response")
    with pytest.raises(
        CaseUnusable, match=r"a reconciling read ended `applied`.*replies=\{'applied': \.\.\.\}"
    ):
        again(case, False, replies={})
    shown = {"applied": lambda request: httpx.Response(200, json={"rows": [request.url.params["key"]]})}
    assert again(case, False, replies=shown).same


def test_a_further_request_is_answered_by_the_test_or_by_nobody(lab: Lab) -> None:
    """A look before the write is none of the record's; the write itself still ends as it did."""
    case = record(lab, False, "never", max_attempts=1)
    recorded = RecordedWorld(case)
    client = httpx.Client(base_url="http://billing", transport=recorded.transport)

    def cancel(sub_id: str, attempt: Attempt, token: str) -> str:
        assert client.get("/status").json() == {"up": True}
        return client.post("/cancel", headers=attempt.headers, timeout=attempt.timeout).text

    options: dict[str, Any] = {"target": "sub_id", "name": "cancel", "timeout": 10.0, "max_attempts": 1}
    tool: Any = SafeWrite("sqlite://").write(**options, dependency=SURE, redact=("token",))(cancel)
    tool.reconcile(lambda attempt: NotApplied())
    given = {"arguments": {"token": "t"}}
    with pytest.raises(CaseUnusable, match=r"attempt 1 asked further \(GET /status\).*'other'"):
        recorded.replay(tool, **given)
    assert recorded.replay(tool, **given, replies={"other": {"up": True}}).same


# Fakes -------------------------------------------------------------------------------------------------------


def test_a_tool_that_talks_no_http_asks_how_each_attempt_ended(lab: Lab, coroutine: bool) -> None:
    """The fake of the test is told what is on record of the attempt, or the read, that runs."""
    case = record(lab, coroutine, "never", late(12.0))
    recorded = RecordedWorld(case)
    assert [one.reason for one in recorded.attempts][:2] == ["read_timeout", "read_timeout"]
    assert {one.says for one in recorded.reads} <= {"applied", "not_applied"}
    sw = SafeWrite("sqlite://")
    options: dict[str, Any] = {"target": "sub_id", "name": "cancel", "timeout": 10.0, "dependency": SURE}

    def end(said: world.Ending) -> str:
        if said.reason == "read_timeout":
            raise TimeoutError
        return "done"

    def verdict(said: world.Ending) -> object:
        return Applied("found") if said.says == "applied" else NotApplied()

    if coroutine:

        @sw.write(**options)
        async def cancel(sub_id: str, attempt: Attempt, token: str = "t") -> str:
            assert attempt.headers
            return end(await recorded.aending())

        @cancel.reconcile
        async def _(sub_id: str) -> object:
            return verdict(await recorded.aending())

        tool: Any = cancel
    else:

        @sw.write(**options)
        def cancel_(sub_id: str, attempt: Attempt, token: str = "t") -> str:
            assert attempt.headers
            return end(recorded.ending())

        @cancel_.reconcile
        def _(sub_id: str) -> object:
            return verdict(recorded.ending())

        tool = cancel_
    given = {"arguments": {"token": "t"}}
    with pytest.raises(CaseUnusable, match="nothing stands between the body and the real world"):
        recorded.replay(tool, **given)
    assert recorded.replay(tool, **given, faked=True).same
    with pytest.raises(CaseUnusable, match="only in a replay"):
        recorded.ending()


# The real world ----------------------------------------------------------------------------------------------


def test_a_body_with_its_real_client_reaches_nobody(lab: Lab, coroutine: bool) -> None:
    """A client that the test forgot: no name is looked up, no connection made, and the replay says so."""
    case = record(lab, coroutine, "never")
    recorded = RecordedWorld(case)
    assert recorded.transport is recorded.transport
    with socket.create_server(("127.0.0.1", 0)) as server:
        billing = Billing(SafeWrite("sqlite://"), None, coroutine=coroutine)
        for faked in (False, True):
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            billing.client, billing.aclient = httpx.Client(base_url=url), httpx.AsyncClient(base_url=url)
            with pytest.raises(CaseUnusable, match="the real world was reached for, and nothing was sent"):
                recorded.replay(billing.tool, arguments={"token": "t"}, replies=SHOWN, faked=faked)
        server.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_a_body_that_asks_nothing_of_the_transport_is_refused(lab: Lab) -> None:
    """Its client is another one: whatever it sent with, the case was not its world."""
    case = record(lab, False, "never")
    recorded = RecordedWorld(case)
    billing = Billing(SafeWrite("sqlite://"), httpx.MockTransport(lambda _: httpx.Response(200)))
    assert recorded.transport
    with pytest.raises(CaseUnusable, match=r"attempt 1 ended \(`returned`\) without a write through"):
        recorded.replay(billing.tool, arguments={"token": "t"}, replies=SHOWN)


def test_drivers_that_pass_by_python_are_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here could hold them back: the test has to say that they are faked."""
    case = record(lab, False)
    monkeypatch.setattr(world, "PAST_PYTHON", ("grpc",))
    monkeypatch.setitem(sys.modules, "grpc", types.ModuleType("grpc"))
    recorded = RecordedWorld(case)
    tool = Billing(SafeWrite("sqlite://"), recorded.transport).tool
    with pytest.raises(CaseUnusable, match="`grpc` is loaded"):
        recorded.replay(tool, arguments={"token": "t"})
    assert recorded.replay(tool, arguments={"token": "t"}, faked=True).same


def test_every_way_out_is_closed_and_opened_again(tmp_path: Path) -> None:
    """Look-ups, connections, those that are open, processes, other databases; from any thread."""
    import sqlite3

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as there,
    ):
        told: list[str] = []
        plain = socket.socket()
        secure = ssl.create_default_context().wrap_socket(
            socket.socket(), server_hostname="x", do_handshake_on_connect=False
        )
        ways: list[Callable[[], object]] = [
            lambda: socket.getaddrinfo("localhost", 80),
            lambda: plain.connect(server.getsockname()),
            lambda: plain.sendto(b"x", server.getsockname()),
            lambda: there.send(b"x"),
            lambda: there.sendall(b"x"),
            lambda: there.sendmsg([b"x"]),
            lambda: secure.send(b"x"),
            lambda: subprocess.run(["true"], check=False),
            lambda: sqlite3.connect(tmp_path / "other.db"),
        ]
        refused: list[Callable[[], object]] = []

        def try_all() -> None:
            for way in ways:
                with pytest.raises(PermissionError, match="reached for the real world"):
                    way()
                refused.append(way)

        with closed(told.append):
            apart = threading.Thread(target=try_all)
            apart.start()
            apart.join()
            asyncio.run(asyncio.sleep(0.0))
            sqlite3.connect(":memory:").close()
        assert (len(refused), len(told)) == (len(ways), len(ways))
        assert there.send(b"x") == 1
        assert "send" not in vars(socket.socket)
        plain.close()
        secure.close()


def test_files_are_closed_to_bodies_alone(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that writes a file is stopped; what reads, and whoever else writes, is not."""
    case = record(lab, False)
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    written = tmp_path / "report.txt"

    @SafeWrite("sqlite://").write(target="sub_id", name="cancel", timeout=10.0)
    def cancel(sub_id: str, token: str) -> str:
        Path(__file__).read_bytes()
        threading.current_thread()
        written.write_text("sent")
        return "done"

    with pytest.raises(CaseUnusable, match=r"nothing was sent: `open`.*report.txt"):
        RecordedWorld(case).replay(cancel, arguments={"token": "t"}, faked=True)
    assert not written.exists()
    with closed(lambda _: None):
        written.write_text("another's")


@pytest.mark.parametrize("reason", world._FAILURES)
def test_every_recorded_failure_is_read_as_it_was(reason: str) -> None:
    """What the transport raises for a reason code is what the evidence table calls by it."""
    request = httpx.Request("POST", "http://billing/cancel")
    with pytest.raises(httpx.TransportError) as raised:
        raise world._FAILURES[reason](request)
    assert from_exception(raised.value).reason == reason
