"""A service that keeps its callers' deadlines, behind a real server in a process of its own, asked by real httpx."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import coverage
import httpx
import pytest

import safewrite
from safewrite import Attempt, SafeWrite
from safewrite.adapters.asgi import DeadlineMiddleware
from safewrite.core.events import OutcomeState
from safewrite.core.evidence import from_exception, from_value
from safewrite.errors import ConfigurationError
from safewrite.testing import ManualClock

ROOT = Path(__file__).parents[2]
MS, AT = "X-Request-Deadline-Ms", "X-Request-Deadline-At"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[str]:
    """The address of the service."""
    folder = tmp_path_factory.mktemp("service")
    command = [sys.executable, "-m", "tests.adapters.service", str(folder), postgres_url]
    environ = os.environ | ({"MEASURED": "1"} if coverage.Coverage.current() else {})
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=environ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.terminate()


@pytest.fixture
def client(url: str) -> Iterator[httpx.Client]:
    """A client that waits for ten seconds at most."""
    with httpx.Client(base_url=url, timeout=10.0) as made:
        yield made


def at(seconds: float) -> str:
    """Return the instant that many seconds from now, in Unix milliseconds."""
    return str(int((time.time() + seconds) * 1000))


def noted(client: httpx.Client, event: str) -> bool:
    """Return whether the service comes to note an event."""
    for _ in range(200):
        if event in client.get("/events").json():
            return True
        time.sleep(0.02)
    return False


def test_without_a_header_there_is_no_deadline(client: httpx.Client) -> None:
    """Nothing is bounded that nobody asked to bound."""
    assert client.get("/deadline").json() is None


@pytest.mark.parametrize("value", ["abc", "", "1.5", "1e9", "+5", "0x10", "5,6", "9" * 101, "²"])
@pytest.mark.parametrize("name", [MS, AT])
def test_garbage_is_no_deadline(client: httpx.Client, name: str, value: str) -> None:
    """A header that is no whole number is as if it were not there."""
    assert client.get("/deadline", headers={name: value.encode()}).json() is None
    assert client.get("/deadline", headers={name: value.encode(), MS if name == AT else AT: at(9)}).json() > 0


@pytest.mark.parametrize("headers", [{MS: "0"}, {MS: "-5"}, {AT: "0"}, {AT: "-5"}, {MS: "-5", AT: "garbage"}])
def test_what_is_late_is_refused_before_any_work(client: httpx.Client, headers: dict[str, str]) -> None:
    """408 with `X-Not-Applied: deadline`: known not to be applied, and fit to be sent again."""
    reply = client.get("/slow", headers=headers)
    assert (reply.status_code, reply.headers["X-Not-Applied"], reply.json()) == (
        408, "deadline", {"error": "deadline_passed"},
    )  # fmt: skip
    found = from_value(reply)
    assert (found.outcome, found.again) == (OutcomeState.NOT_APPLIED, True)
    assert client.get("/slow", headers={AT: at(-0.5)}).status_code == 408


@pytest.mark.parametrize(
    ("headers", "left"),
    [
        ({MS: "5000"}, 5.0),
        ({AT: 5.0}, 5.0),
        ({MS: "999999999999999"}, 3600.0),  # absurd: at most an hour
        ({MS: "9" * 100}, 3600.0),
        ({AT: 1e9}, 3600.0),
        ({MS: "5000", AT: 4.9}, 4.9),  # the earlier one
        ({MS: "5000", AT: 5.5}, 5.0),
        (
            {MS: "5000", AT: 3605.0},
            5.0,
        ),  # the caller's clock, or ours, is an hour off: as without the instant
        ({MS: "5000", AT: -3595.0}, 5.0),
        ({MS: "5000", AT: 3.0}, 5.0),  # more than a second apart
    ],
)
def test_what_is_left_is_the_earlier_of_both_within_the_skew(
    client: httpx.Client, headers: dict[str, Any], left: float
) -> None:
    """Beyond it the clocks differ, and only the time span means anything."""
    sent = {name: at(value) if name == AT else value for name, value in headers.items()}
    found = client.get("/deadline", headers=sent).json()
    assert left - 1.9 < found <= left


def test_of_several_headers_the_smallest_counts(client: httpx.Client) -> None:
    """Somebody on the way has added one."""
    found = client.get("/deadline", headers=[(MS, "9000"), (MS, "garbage"), (MS, "4000")]).json()
    assert 2.0 < found <= 4.0


def test_nested_writes_take_the_deadline_by_themselves(client: httpx.Client) -> None:
    """The attempt has what the request has; of too little, the nested refusal names the request."""
    state, given, _ = client.get("/write?a", headers={MS: "5000"}).json()
    assert (state, 2.0 < given <= 5.0) == ("applied", True)
    state, given, _ = client.get("/write?b").json()
    assert (state, given) == ("applied", pytest.approx(20.0, abs=2.0))
    state, _, said = client.get("/write?c", headers={MS: "40"}).json()
    assert state == "not_applied"
    assert "`X-Request-Deadline` = 0.04 s (set by the request)" in said


@pytest.mark.parametrize("path", ["/onward", "/guarded_onward"])
def test_onward_requests_take_it(client: httpx.Client, path: str) -> None:
    """The next service is told what is left, not what was there at first; a guarded client does it by itself."""
    given = client.get(path, headers={MS: "5000"}).json()
    assert 2000 < int(given["x-request-deadline-ms"]) < 5000
    assert abs(int(given["x-request-deadline-at"]) - int(at(5.0))) < 3000
    assert client.get(path).json() == {}


def test_statements_take_it(client: httpx.Client) -> None:
    """9 s leave at most 8500 ms for PostgreSQL; without a deadline nothing is set."""
    shown = client.get("/sql", headers={MS: "9000"}).json()
    assert 2000 < int(shown.removesuffix("ms")) <= 8500
    assert client.get("/sql").json() == "0"


def test_the_application_is_cancelled_at_the_deadline(client: httpx.Client) -> None:
    """Cancelled midway nobody knows how far it came: 504, without the header, is unknown."""
    began = time.monotonic()
    reply = client.get("/slow", headers={MS: "300"})
    assert 0.3 <= time.monotonic() - began < 3.0
    assert (reply.status_code, "X-Not-Applied" in reply.headers) == (504, False)
    assert from_value(reply).outcome is OutcomeState.UNKNOWN
    assert noted(client, "slow cancelled")


def test_an_answer_in_the_grace_is_passed_on(client: httpx.Client) -> None:
    """What is known is better than an unknown."""
    assert client.get("/in_grace", headers={MS: "100"}).json() == "just in time"


def test_an_application_that_does_not_stop_is_left_behind(client: httpx.Client) -> None:
    """The caller has the answer after the grace; what comes later goes nowhere, and harms no later request."""
    began = time.monotonic()
    assert client.get("/stubborn", headers={MS: "100"}).status_code == 504
    assert time.monotonic() - began < 3.0
    assert noted(client, "stubborn answered")
    assert client.get("/deadline").json() is None


def test_a_response_that_had_begun_is_broken_off(client: httpx.Client) -> None:
    """It must not look complete."""
    with pytest.raises(httpx.RemoteProtocolError) as raised:
        client.get("/stream", headers={MS: "200"})
    assert from_exception(raised.value).outcome is OutcomeState.UNKNOWN


def test_a_caller_that_goes_cancels_too(client: httpx.Client, url: str) -> None:
    """With a deadline or without: nobody waits for the work any more."""
    for headers in ({}, {MS: "20000"}):
        before = client.get("/events").json().count("slow cancelled")
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(f"{url}/slow", headers=headers, timeout=0.3)
        for _ in range(200):
            if client.get("/events").json().count("slow cancelled") > before:
                break
        else:
            pytest.fail("the application was not cancelled")


def test_what_follows_the_response_is_not_cut_off(client: httpx.Client) -> None:
    """The caller has its answer: neither the deadline nor its going ends what the application does then."""
    assert client.get("/afterwards", headers={MS: "200"}).json() == "done"
    assert noted(client, "afterwards http.disconnect")


def test_a_body_passes_through_in_parts(client: httpx.Client) -> None:
    """Nothing of it is lost, and afterwards the application hears of the end, as often as it asks."""
    parts = [b"x" * 70_000] * 5
    assert client.post("/upload", content=iter(parts), headers={MS: "5000"}).json() == [350_000, False]
    assert noted(client, "upload http.disconnect http.disconnect")


def test_a_fault_of_the_application_is_the_servers(client: httpx.Client) -> None:
    """A 500 as without the middleware; while it is being cancelled it is logged, and the answer is the 504."""
    assert client.get("/fails").status_code == 500
    assert client.get("/fails_late", headers={MS: "100"}).status_code == 504


def test_a_guarded_client_knows_what_was_refused(client: httpx.Client, tmp_path: Path) -> None:
    """End to end: late is not applied and not sent again in vain; cut midway is unknown."""
    sw = SafeWrite(f"sqlite:///{tmp_path}/agent.db")

    @sw.write(target="path", timeout=5.0, max_attempts=1)
    def ask(path: str, late: bool, attempt: Attempt) -> int:
        headers = attempt.headers | ({MS: "0"} if late else {MS: "150"})
        return client.get(path, headers=headers).raise_for_status().status_code

    with safewrite.run("r1"), safewrite.turn(1), sw:
        refused, cut = ask.outcome("/deadline", True), ask.outcome("/slow", False)
    assert (refused.state, refused.reason, refused.again) == ("not_applied", "http_not_applied", True)
    assert cut.state == "unknown"


# Without a server --------------------------------------------------------------------------------------------


def request(*headers: tuple[bytes, bytes], type: str = "http") -> dict[str, Any]:
    """Return a scope."""
    return {"type": type, "path": "/", "headers": list(headers)}


def test_trust_in_the_instant_can_be_declared() -> None:
    """With `skew=timedelta.max` the earlier of both counts, however far they are apart: a queue took the time."""
    headers = ((b"x-request-deadline-ms", b"9000"), (b"X-Request-Deadline-At", b"990000"))
    with ManualClock(start=1000.0):
        assert DeadlineMiddleware(None, skew=inf)._left(headers) == -10.0  # type: ignore[arg-type]
        assert DeadlineMiddleware(None)._left(headers) == 9.0  # type: ignore[arg-type]


def test_what_is_no_request_passes_as_it_is() -> None:
    """Websockets and the lifespan have no deadline of their own."""
    seen: list[Any] = []

    async def app(*given: Any) -> None:
        seen.append(given)

    given = (request(type="websocket"), object(), object())
    asyncio.run(DeadlineMiddleware(app)(*given))  # type: ignore[arg-type]
    assert seen == [given]


def test_a_body_is_read_ahead_by_two_parts_at_most() -> None:
    """An application that does not take it holds the caller back, as without the middleware."""
    asked = 0

    async def endless() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    asyncio.run(DeadlineMiddleware(app)(request(), endless, None))  # type: ignore[arg-type]
    assert asked == 2


@pytest.mark.parametrize(
    ("begun", "sent"),
    [(True, ["http.response.start"]), (False, ["http.response.start", "http.response.body"])],
)
def test_nothing_is_added_to_a_response_that_had_begun(begun: bool, sent: list[str]) -> None:
    """A second beginning would be a fault of protocol; where nothing had begun, the answer is a 504."""
    messages: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        messages.append(message)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()

    async def silent() -> dict[str, Any]:
        return await asyncio.Future()

    with ManualClock(auto=True, patience=0.01):
        asyncio.run(DeadlineMiddleware(app)(request((b"x-request-deadline-ms", b"300")), silent, send))
    assert [message["type"] for message in messages] == sent
    assert messages[0]["status"] == (200 if begun else 504)


def test_a_server_that_stops_cancels_the_application() -> None:
    """The cancellation of the middleware is that of the application."""
    ended: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            for _ in range(9):
                await asyncio.sleep(0)
            ended.append("application")

    async def silent() -> dict[str, Any]:
        await asyncio.sleep(30)
        return {}

    async def main() -> None:
        global began
        began = asyncio.Event()
        serving = asyncio.create_task(DeadlineMiddleware(app)(request(), silent, None))  # type: ignore[arg-type]
        await began.wait()
        serving.cancel()
        await asyncio.wait([serving])
        assert serving.cancelled()
        assert ended == ["application"]  # and not some time after the server believes it to be over

    asyncio.run(main())


def test_a_receive_that_fails_fails_where_the_application_receives() -> None:
    """As without the middleware, and as often as it asks; it waited for ever."""
    raised: list[str] = []

    async def broken() -> Any:
        raise OSError("the connection is gone")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            try:
                await receive()
            except OSError as error:
                raised.append(str(error))

    async def main() -> None:
        async with asyncio.timeout(10):
            await DeadlineMiddleware(app)(request(), broken, None)  # type: ignore[arg-type]

    asyncio.run(main())
    assert raised == ["the connection is gone"] * 2


@pytest.mark.parametrize("wrong", [{"skew": -1}, {"longest": 0}, {"minimum": -1}, {"grace": "1"}])
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    """At start-up, by name."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        DeadlineMiddleware(None, **wrong)  # type: ignore[arg-type]
