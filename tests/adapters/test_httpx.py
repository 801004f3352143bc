"""Guarded httpx clients, plain and async, of httpx and httpx2, against servers in processes of their own."""

from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import tenacity

import safewrite
from safewrite import Deadline, NotApplied, Outcome, SafeWrite
from safewrite.adapters.httpx import AsyncTransport, Transport, guarded
from safewrite.context import within
from safewrite.deadline import LegNotSent
from safewrite.errors import ConfigurationError
from safewrite.testing import ManualClock, ScriptedDependency
from tests.core.wire import closed_port

ROOT = Path(__file__).parents[2]
KINDS = ("connect", "read", "write", "pool")


@dataclass(frozen=True)
class Server:
    """Where the server listens."""

    url: str
    covered: str
    file: str

    def seen(self) -> list[dict[str, Any]]:
        """Return the requests since the last time, and forget them."""
        found: list[dict[str, Any]] = httpx.get(f"{self.url}/seen").json()
        return found


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server, in a process of its own."""
    folder = tmp_path_factory.mktemp("http")
    command = [sys.executable, "-m", "tests.adapters.http_server", str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        plain, covered = child.stdout.readline().split()
        yield Server(f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{covered}", str(folder / "s"))
        child.kill()


@pytest.fixture
def server(process: Server) -> Server:
    """The server, with nothing seen yet."""
    process.seen()
    return process


@pytest.fixture(scope="module")
def sw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SafeWrite]:
    """One `SafeWrite` for all: every write is a tool of its own."""
    with SafeWrite(f"sqlite:///{tmp_path_factory.mktemp('ledger')}/agent.db") as made:
        yield made


NAMES = count()
TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts anybody: it is made once, for making one takes long."""
TLS.check_hostname, TLS.verify_mode = False, ssl.CERT_NONE


@dataclass(frozen=True)
class Colour:
    """Plain or async clients, of one package."""

    package: Any
    plain: bool

    def client(self, **options: Any) -> Any:
        """Return a guarded client."""
        kind = self.package.Client if self.plain else self.package.AsyncClient
        return guarded(kind(**{"verify": TLS} | options))

    def requests(self, work: Any, **options: Any) -> Any:
        """Send the requests that `work` yields, each answered with its response or error; return what it returns."""
        return self.plainly(work, **options) if self.plain else asyncio.run(self.awaited(work, **options))

    def plainly(self, work: Any, **options: Any) -> Any:
        with self.client(**options) as client:
            going, answer = work(), None
            while True:
                try:
                    method, url, extra = going.send(answer)
                except StopIteration as done:
                    return done.value
                try:
                    answer = client.request(method, url, **extra)
                except Exception as error:
                    answer = error

    async def awaited(self, work: Any, **options: Any) -> Any:
        async with self.client(**options) as client:
            going, answer = work(), None
            while True:
                try:
                    method, url, extra = going.send(answer)
                except StopIteration as done:
                    return done.value
                try:
                    answer = await client.request(method, url, **extra)
                except Exception as error:
                    answer = error

    def write(
        self, sw: SafeWrite, work: Any, *, limit: float = 9.0, reconcile: Any = None, **options: Any
    ) -> Outcome[Any]:
        """Return what becomes of a guarded write whose body sends the requests that `work` yields."""
        of_tool = {
            name: options.pop(name) for name in ("dependency", "max_attempts", "wait") if name in options
        }

        def plain() -> Any:
            return self.plainly(work, **options)

        async def awaited() -> Any:
            return await self.awaited(work, **options)

        return self.body(sw, plain, awaited, limit=limit, reconcile=reconcile, **of_tool)

    def body(
        self, sw: SafeWrite, plain: Any, awaited: Any, *, limit: float, reconcile: Any = None, **options: Any
    ) -> Outcome[Any]:
        """Return what becomes of a write with the body of this colour."""
        settings = {"target": "n", "timeout": limit, "max_attempts": 1, "name": f"t{next(NAMES)}"} | options

        def in_plain(n: int) -> Any:
            return plain()

        async def in_async(n: int) -> Any:
            return await awaited()

        tool: Any = sw.write(**settings)(in_plain if self.plain else in_async)
        if reconcile is not None:
            tool.reconcile(reconcile)
        with safewrite.run("r1"), safewrite.turn(1):
            return tool.outcome(1) if self.plain else asyncio.run(tool.outcome(1))  # type: ignore[no-any-return]


COLOURS = {
    "plain": Colour(httpx, True),
    "async": Colour(httpx, False),
    "plain2": Colour(httpx2, True),
    "async2": Colour(httpx2, False),
}


@pytest.fixture(params=["plain", "async"])
def colour(request: pytest.FixtureRequest) -> Colour:
    """Plain or async."""
    return COLOURS[request.param]


every = pytest.mark.parametrize("colour", COLOURS.values(), ids=COLOURS)
"""Plain and async, httpx and httpx2."""


def sends(*requests: tuple[str, str], keeps: bool = False, **extra: Any) -> Any:
    """Return work that sends these requests and fails with the last one, or (`keeps`) returns its response."""

    def work() -> Any:
        answer: Any = None
        for method, url in requests:
            answer = yield method, url, extra
        if isinstance(answer, Exception):
            raise answer
        if keeps:
            return answer
        answer.raise_for_status()
        return answer.status_code

    return work


# What a request carries --------------------------------------------------------------------------------------


@every
def test_a_write_carries_key_attempt_and_deadline_by_itself(
    colour: Colour, sw: SafeWrite, server: Server
) -> None:
    """Reads carry no key; a key of one's own stays."""
    work = sends(("GET", f"{server.url}/ok"), ("POST", f"{server.url}/ok"), ("PUT", f"{server.url}/ok"))
    outcome = colour.write(sw, work)
    assert outcome.state == "applied"
    read, *writes = [one["headers"] for one in server.seen()]
    assert "Idempotency-Key" not in {name.title() for name in read}
    for headers in ({name.lower(): value for name, value in one.items()} for one in writes):
        assert headers["idempotency-key"] == outcome.key
        assert len(headers["x-attempt-id"]) == 16
        assert 0 < int(headers["x-request-deadline-ms"]) <= 9000
        assert int(headers["x-request-deadline-at"]) > 0
    assert (
        colour.write(sw, sends(("POST", f"{server.url}/ok"), headers={"Idempotency-Key": "own"})).state
        == "applied"
    )
    assert [one["headers"]["Idempotency-Key"] for one in server.seen()] == ["own"]


def test_a_post_that_only_asks_carries_no_key(colour: Colour, sw: SafeWrite, server: Server) -> None:
    """One that is marked as a read, and every one of a reconcile function."""
    asks = sends(("POST", f"{server.url}/ok"), extensions={"safewrite": "read"})

    def plain(n: int) -> NotApplied:
        colour.plainly(sends(("POST", f"{server.url}/ok")))
        return NotApplied()

    async def awaited(n: int) -> NotApplied:
        await colour.awaited(sends(("POST", f"{server.url}/ok")))
        return NotApplied()

    def work() -> Any:
        yield from asks()
        raise ValueError("not known")

    colour.write(sw, work, reconcile=plain if colour.plain else awaited)
    seen = server.seen()
    assert len(seen) > 1
    assert not [one for one in seen if "idempotency-key" in map(str.lower, one["headers"])]
    assert all("x-attempt-id" in map(str.lower, one["headers"]) for one in seen)


def test_outside_an_attempt_the_ambient_deadline_goes_onward(colour: Colour, server: Server) -> None:
    """That of the run or of the request that is served; where there is none, no header."""
    colour.requests(sends(("POST", f"{server.url}/ok")))
    with within(Deadline(5.0)):
        colour.requests(sends(("POST", f"{server.url}/ok")))
    with safewrite.run("r1", deadline=3.0):
        colour.requests(sends(("GET", f"{server.url}/ok")))
    without, request, run = ({k.lower(): v for k, v in one["headers"].items()} for one in server.seen())
    assert not [name for name in without if name.startswith("x-")]
    assert 3000 < int(request["x-request-deadline-ms"]) <= 5000
    assert 0 < int(run["x-request-deadline-ms"]) <= 3000
    assert "idempotency-key" not in request


# The limit ---------------------------------------------------------------------------------------------------


def noting(package: Any, limits: list[dict[str, float]]) -> Any:
    """Return a transport that notes the limits which it was given."""

    def handle(request: Any) -> Any:
        limits.append(request.extensions["timeout"])
        return package.Response(200)

    return package.MockTransport(handle)


@pytest.mark.parametrize(("own", "outside"), [(5.0, 5.0), (None, 6.9), (30.0, 6.9)])
def test_inside_an_attempt_the_clients_own_timeout_is_replaced(
    colour: Colour, sw: SafeWrite, own: float | None, outside: float
) -> None:
    """Its 5 s would cut 9 s; elsewhere the smaller of the client's and the deadline's holds."""
    limits: list[dict[str, float]] = []
    options = {"transport": noting(colour.package, limits), "timeout": own}
    assert colour.write(sw, sends(("POST", "http://x/")), **options).state == "applied"
    with ManualClock(), within(Deadline(7.0)):
        colour.requests(sends(("GET", "http://x/")), **options)
    colour.requests(sends(("GET", "http://x/")), **options)
    inside, bounded, alone = limits
    assert [5.0 < inside[kind] <= 8.9 for kind in KINDS] == [True] * 4
    assert bounded == pytest.approx(dict.fromkeys(KINDS, outside))
    assert alone == dict.fromkeys(KINDS, own)


@pytest.mark.parametrize(
    ("colour", "path"),
    [
        *((one, "/drip") for one in COLOURS.values()),
        *((COLOURS["plain"], path) for path in ("/drip-head", "/half")),
        *((COLOURS["async"], path) for path in ("/drip-head", "/silent")),
    ],
)
def test_the_whole_exchange_is_bounded(colour: Colour, sw: SafeWrite, server: Server, path: str) -> None:
    """A head and a body that drip, that stop half-way, that never begin: the client itself gives up in time."""
    outcome = colour.write(sw, sends(("POST", server.url + path)), limit=1.5)
    answered = path in ("/drip", "/half")
    assert (outcome.state, outcome.may_still_land) == ("unknown", True)
    assert ended(sw, outcome) == {
        "reason": "error_beside_success" if answered else "read_timeout",
        "status": 200 if answered else None,
        "type": f"{colour.package.__name__}.ReadTimeout",
    }


def ended(sw: SafeWrite, outcome: Outcome[Any]) -> dict[str, Any]:
    """Return what the row says in which the body of the one attempt ended."""
    (row,) = [row for row in sw.audit.rows(outcome.intent_id) if row.event == "ended"]
    return dict(row.evidence or {})


@pytest.mark.parametrize("path", ["/drip", "/half"])
def test_an_ambient_deadline_bounds_the_whole_exchange_too(colour: Colour, server: Server, path: str) -> None:
    """A read of a service behind a deadline ends by it."""
    with (
        within(Deadline(0.8, minimum=0)),
        pytest.raises(colour.package.ReadTimeout, match=r"deadline|timed out|^$"),
    ):
        colour.requests(sends(("GET", server.url + path)))


def test_a_request_that_is_not_read_is_bounded(colour: Colour, sw: SafeWrite, server: Server) -> None:
    """Twenty megabytes to a server that sleeps: given up while it is written, and unknown."""
    work = sends(("POST", f"{server.url}/never-read"), content=b"x" * 20_000_000)
    outcome = colour.write(sw, work, limit=1.0)
    assert outcome.state == "unknown"
    assert ended(sw, outcome)["reason"] in ("write_timeout", "read_timeout")


def test_waiting_for_a_place_in_the_pool_is_part_of_it(colour: Colour, sw: SafeWrite, server: Server) -> None:
    """Never sent, and so known."""
    limits = colour.package.Limits(max_connections=1)

    def plain() -> Any:
        with colour.client(limits=limits) as client, client.stream("GET", f"{server.url}/half") as held:
            client.post(f"{server.url}/ok")
            held.read()

    async def awaited() -> Any:
        async with colour.client(limits=limits) as client:
            async with client.stream("GET", f"{server.url}/half") as held:
                await client.post(f"{server.url}/ok")
                await held.aread()

    outcome = colour.body(sw, plain, awaited, limit=2.0)
    assert (outcome.state, outcome.reason) == ("not_applied", "pool_timeout")
    assert [one["path"] for one in server.seen()] == ["/half"]


@pytest.mark.parametrize("left", [0.0, 0.001, 9.0])
def test_with_nothing_left_it_is_not_sent(sw: SafeWrite, server: Server, left: float) -> None:
    """`LegNotSent`, which is known not to be applied."""

    @sw.write(target="n", timeout=9.0, in_thread=False, max_attempts=1, name="late")
    def late(n: int) -> None:
        clock.advance(9.0 - left)
        with guarded(httpx.Client()) as client:
            client.post(f"{server.url}/ok")

    with ManualClock() as clock, safewrite.run("r1"), safewrite.turn(1):
        outcome = late.outcome(int(left * 10000))
    assert (outcome.state, len(server.seen())) == (("applied", 1) if left == 9.0 else ("not_applied", 0))
    assert left == 9.0 or outcome.reason == "leg_not_sent"


class Slow(httpx.BaseTransport, httpx.SyncByteStream):
    """A transport of somebody else's: each part of its answer takes four seconds."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.closed = clock, 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=self)

    def __iter__(self) -> Iterator[bytes]:
        for _ in range(10):
            self.clock.advance(4.0)
            yield b"x"

    def close(self) -> None:
        self.closed += 1


def test_any_other_transport_is_stopped_at_its_next_wait() -> None:
    """Three parts in nine seconds, the third of them late; what is left is given up and closed."""
    with ManualClock() as clock, within(Deadline(9.0)):
        slow, got = Slow(clock), []
        with (
            httpx.Client(transport=Transport(slow)) as client,
            pytest.raises(httpx.ReadTimeout, match="deadline"),
        ):
            with client.stream("GET", "http://x/") as response:
                got.extend(response.iter_raw(1))
        assert (len(got), slow.closed > 0) == (3, True)
        with pytest.raises(LegNotSent, match="GET x was not sent"):
            Transport(slow).handle_request(httpx.Request("GET", "http://x/"))


# Connections -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/half", "/silent", "/drip", "/cut/404", "/unanswered"])
def test_after_a_limit_or_an_error_the_connection_is_not_used_again(
    colour: Colour, server: Server, path: str
) -> None:
    """One that ended well is; one that was left half-read is closed."""
    http2 = path == "/unanswered"

    def work() -> Any:
        yield "GET", f"{server.url}/ok", {}
        yield "GET", f"{server.url}/ok", {}
        # Here the client's own limit, which lies a twentieth before ours, must be the first on a busy machine too.
        with within(Deadline(2.0 if http2 else 0.6, minimum=0)):
            yield "GET", server.url + path, {}
        yield "GET", f"{server.url}/ok", {}

    colour.requests(work, http1=not http2, http2=http2)
    first, second, broken, next_ = (one["connection"] for one in server.seen())
    assert first == second == broken != next_


def test_a_response_can_be_streamed(colour: Colour, server: Server) -> None:
    """Parts are handed on as they come, also where the body never ends; leaving it early closes it."""
    url = f"{server.url}/drip"

    def plain() -> bytes:
        with colour.client() as client, client.stream("GET", url) as response:
            return next(response.iter_raw(1))  # type: ignore[no-any-return]

    async def awaited() -> bytes:
        async with colour.client() as client, client.stream("GET", url) as response:
            async for part in response.aiter_raw(1):
                return part  # type: ignore[no-any-return]
        return b""

    with within(Deadline(5.0)):
        assert (plain() if colour.plain else asyncio.run(awaited())) == b"x"


def test_tls_and_socket_files_are_bounded_alike(colour: Colour, server: Server) -> None:
    """Every way to reach a server answers, and ends in time."""
    transports = colour.package.HTTPTransport if colour.plain else colour.package.AsyncHTTPTransport
    ways: list[tuple[str, Any]] = [
        (server.covered, {}),
        ("http://x", {"transport": transports(uds=server.file)}),
    ]
    for url, options in ways:
        assert colour.requests(sends(("GET", f"{url}/ok")), **options) == 200
    for url, options in ways[:1]:
        with within(Deadline(0.8, minimum=0)), pytest.raises(colour.package.ReadTimeout):
            colour.requests(sends(("GET", f"{url}/drip")), **options)


# What the evidence knows -------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    ("path", "state", "reason"),
    [
        ("/cut/404", "not_applied", "http_404"),
        ("/gzip/404", "not_applied", "http_404"),
        ("/cut/200", "unknown", "error_beside_success"),
        ("/cut/503", "unknown", "http_503"),
    ],
)
def test_the_status_before_a_broken_body_counts(
    colour: Colour, sw: SafeWrite, server: Server, path: str, state: str, reason: str
) -> None:
    """A refusal stays one; 200 without its body is no success, but is known."""
    outcome = colour.write(sw, sends(("POST", server.url + path)))
    assert (outcome.state, ended(sw, outcome)["reason"]) == (state, reason)
    assert ended(sw, outcome)["status"] == int(reason[-3:]) if reason[-3:].isdigit() else 200


def test_the_status_of_an_earlier_hop_is_not_taken_for_it(
    colour: Colour, sw: SafeWrite, server: Server
) -> None:
    """A 401 that asks for a log-in, and then silence: unknown."""

    class LogIn(colour.package.Auth):  # type: ignore[misc, name-defined]
        def auth_flow(self, request: Any) -> Any:
            assert (yield request).status_code == 401
            request.headers["Authorization"] = "x"
            yield request

    outcome = colour.write(sw, sends(("POST", f"{server.url}/log-in")), limit=1.0, auth=LogIn())
    assert (outcome.state, ended(sw, outcome)["reason"]) == ("unknown", "read_timeout")


@every
@pytest.mark.parametrize(("path", "found"), [("/refused", "refused_stream"), ("/goaway/0", "goaway")])
def test_what_http2_proves_not_to_be_processed_was_not_sent(
    colour: Colour, sw: SafeWrite, server: Server, path: str, found: str
) -> None:
    """REFUSED_STREAM, and GOAWAY with last stream 0: may be sent again; a GOAWAY that covers the stream is unknown."""
    options: Any = {"http1": False, "http2": True}
    outcome = colour.write(sw, sends(("POST", server.url + path)), **options)
    assert (outcome.state, outcome.reason, outcome.again) == ("not_applied", found, True)
    assert outcome.evidence == "transport"
    assert colour.write(sw, sends(("POST", f"{server.url}/goaway/1")), **options).state == "unknown"


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (("POST", "/ok"), "multi_request"),
        (("POST", "/busy"), "connect_refused"),
        (("GET", "/ok"), "connect_refused"),
        (("POST", "/silent"), "multi_request"),
        (("POST", None), "connect_refused"),
    ],
)
def test_after_a_delivered_write_the_last_requests_fate_proves_nothing(
    colour: Colour, sw: SafeWrite, server: Server, before: tuple[str, str | None], reason: str
) -> None:
    """A refused connection is proof only where nothing that may have taken effect went before it."""
    with closed_port() as port:
        closed, (method, path) = f"http://127.0.0.1:{port}/", before
        first = (method, server.url + path if path else closed)

        def work() -> Any:
            with within(Deadline(0.6, minimum=0)):
                yield (*first, {})
            raise (yield "POST", closed, {}) from None

        outcome = colour.write(sw, work)
    assert ended(sw, outcome)["reason"] == reason
    assert outcome.state == ("unknown" if reason == "multi_request" else "not_applied")


def test_a_refusal_that_is_returned_proves_nothing_either_after_a_delivered_write(
    colour: Colour, sw: SafeWrite, server: Server
) -> None:
    """The same for a body that returns its last response."""
    ok, absent = ("POST", f"{server.url}/ok"), ("GET", f"{server.url}/absent")
    assert ended(sw, colour.write(sw, sends(ok, absent, keeps=True)))["reason"] == "multi_request"
    assert ended(sw, colour.write(sw, sends(absent, keeps=True)))["reason"] == "http_404"


# Redirects ---------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("path", ["/307", "/308"])
@pytest.mark.parametrize("follow", [True, False])
def test_a_write_is_never_sent_on(
    colour: Colour, sw: SafeWrite, server: Server, path: str, follow: bool
) -> None:
    """The redirect is an error that says so, without the query of its address; nothing was done at this hop."""
    errors: list[Exception] = []

    def work() -> Any:
        errors.append((yield "POST", server.url + path, {"follow_redirects": follow}))
        raise errors[0]

    outcome = colour.write(sw, work)
    assert (outcome.state, outcome.reason) == ("not_applied", f"http_{path[1:]}")
    assert "is not sent on to `/ok`, which would be a second send" in str(errors[0])
    assert isinstance(errors[0], colour.package.HTTPStatusError)
    assert [one["path"] for one in server.seen()] == [path]


def test_reads_and_what_is_read_after_a_write_are_followed(
    colour: Colour, sw: SafeWrite, server: Server
) -> None:
    """A 307 of a read, a 303 of a write, and any outside an attempt."""
    read, done = ("GET", f"{server.url}/307"), ("POST", f"{server.url}/303")
    assert colour.write(sw, sends(read, follow_redirects=True)).state == "applied"
    assert colour.write(sw, sends(done, follow_redirects=True)).state == "applied"
    assert colour.requests(sends(("POST", f"{server.url}/307"), follow_redirects=True)) == 200
    assert colour.write(sw, sends(("POST", f"{server.url}/nowhere"), keeps=True)).reason == "http_307"


# The guard ---------------------------------------------------------------------------------------------------


def test_a_client_that_follows_redirects_is_refused(colour: Colour) -> None:
    """And so is what is no client at all."""
    with pytest.raises(ConfigurationError, match=r"follow_redirects=True.*second send"):
        colour.client(follow_redirects=True)
    with pytest.raises(ConfigurationError, match="no httpx client"):
        guarded(object())


def test_a_transport_that_retries_is_refused(colour: Colour) -> None:
    """One layer owns retries."""
    made = colour.package.HTTPTransport if colour.plain else colour.package.AsyncHTTPTransport
    with pytest.raises(ConfigurationError, match=r"`retries=2`.*max_attempts"):
        colour.client(transport=made(retries=2))
    with pytest.raises(ConfigurationError, match="`retries=2`"):
        (Transport if colour.plain else AsyncTransport)(made(retries=2))
    with pytest.raises(ConfigurationError, match="`retries=1`"):
        colour.client(mounts={"https://": made(retries=1), "http://": None})


def test_a_timeout_that_is_shorter_than_ours_is_told(
    colour: Colour, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning at start-up; the default, `None` and what is longer say nothing."""
    with caplog.at_level(logging.WARNING, "safewrite"):
        for quiet in (None, 30.0, 5.0):
            colour.client(timeout=quiet)
        assert not caplog.records
        colour.client(timeout=2.0)
    assert "shorter than `operation_timeout` (20 s)" in caplog.text


def test_every_transport_of_a_client_is_wrapped_once(colour: Colour) -> None:
    """Those mounted for some addresses, too; what is not proxied stays so."""
    made = colour.package.HTTPTransport if colour.plain else colour.package.AsyncHTTPTransport
    client = colour.client(mounts={"https://": made(), "http://x": None})
    kind = Transport if colour.plain else AsyncTransport
    before = [client._transport, *client._mounts.values()]
    assert {type(one) for one in before} == {kind, type(None)}
    assert guarded(client) is client
    assert [client._transport, *client._mounts.values()] == before


def test_transports_can_be_used_by_themselves(server: Server) -> None:
    """Without one of one's own, a new one."""

    async def main() -> int:
        async with httpx.AsyncClient(transport=AsyncTransport()) as client:
            return (await client.get(f"{server.url}/ok")).status_code

    with httpx.Client(transport=Transport()) as client:
        assert client.get(f"{server.url}/ok").status_code == asyncio.run(main()) == 200


# The scripted dependency -------------------------------------------------------------------------------------


def test_a_lost_response_is_sent_again_under_the_same_key(colour: Colour, sw: SafeWrite) -> None:
    """End to end: the effect is there once, and the answer is its."""
    billing = safewrite.Dependency("billing", key_retention=3600.0)
    with ScriptedDependency(keys="forever") as dependency:
        dependency.script("lose_response", "hang_after")
        url = f"{dependency.url}/subscriptions/sub_1/cancel"
        outcome = colour.write(
            sw, sends(("POST", url)), limit=1.0, dependency=billing, max_attempts=3, wait=tenacity.wait_none()
        )
        assert (outcome.state, outcome.attempts, dependency.effects()) == ("applied", 3, 1)


def test_a_request_that_was_made_once_names_the_attempt_that_sends_it(sw: SafeWrite) -> None:
    """A body may keep it: its second send carries the second attempt, under the key of both."""
    billing = safewrite.Dependency("billing", key_retention=3600.0)
    request = httpx.Request("POST", "http://x/")
    sent: list[tuple[str, str]] = []
    attempts: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        sent.append((request.headers["X-Attempt-Id"], request.headers["Idempotency-Key"]))
        if len(sent) == 1:
            raise httpx.ReadTimeout("no answer", request=request)
        return httpx.Response(200)

    @sw.write(target="n", name=f"kept{next(NAMES)}", dependency=billing, wait=tenacity.wait_none())
    def send(n: int, attempt: safewrite.Attempt) -> None:
        attempts.append(attempt.id)
        with guarded(httpx.Client(transport=httpx.MockTransport(handle))) as client:
            client.send(request)

    with safewrite.run("r1"), safewrite.turn(1):
        outcome = send.outcome(1)
        assert sent == [(attempt, send.key(1)) for attempt in attempts]
    assert (outcome.state, len(set(attempts))) == ("applied", 2)
    intent = sw.ledger.load(outcome.intent_id)
    assert intent is not None
    assert [attempt.key_carried for attempt in intent.state.attempts] == [True, True]


# What is not the only request --------------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["cancelled", "under way"])
@pytest.mark.parametrize("beside", ["GET", "POST"])
def test_a_write_under_way_beside_a_request_that_was_refused_is_unknown(
    sw: SafeWrite, beside: str, left: str
) -> None:
    """The refused one was told first; the write was applied all the same, whether or not its task still lives."""
    applied: list[int] = []

    class Both(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if request.url.path == "/refused":
                await asyncio.sleep(0)
                raise httpx.ConnectError("refused", request=request)
            applied.append(1)
            await asyncio.Event().wait()
            raise AssertionError

    client = guarded(httpx.AsyncClient(transport=Both(), base_url="http://x"))
    tasks: list[asyncio.Task[Any]] = []

    @sw.write(target="n", name=f"both{next(NAMES)}", max_attempts=2)
    async def both(n: int) -> None:
        write = asyncio.create_task(client.post("/ok"))
        refused = asyncio.create_task(client.request(beside, "/refused"))
        tasks.extend((write, refused))
        try:
            await refused
        finally:
            if left == "cancelled":
                write.cancel()
                await asyncio.wait((write,))

    async def main() -> Outcome[Any]:
        with safewrite.run("r1"), safewrite.turn(1):
            outcome = await both.outcome(1)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await client.aclose()
        return outcome

    assert (asyncio.run(main()).state, len(applied)) == ("unknown", 1)


@every
def test_an_upload_that_breaks_off_is_unknown_whatever_broke_it(
    colour: Colour, sw: SafeWrite, server: Server
) -> None:
    """What was to be passed on could not be fetched: nothing was sent there, but the beginning of it here."""

    def parts() -> Iterator[bytes]:
        yield b"a part"
        with closed_port() as port:
            httpx.get(f"http://127.0.0.1:{port}/", verify=TLS)

    async def awaited() -> Any:
        for part in parts():
            yield part

    content = parts() if colour.plain else awaited()
    outcome = colour.write(sw, sends(("POST", f"{server.url}/ok"), content=content))
    assert (outcome.state, ended(sw, outcome)["reason"]) == ("unknown", "multi_request")


def test_what_was_not_sent_after_a_delivered_write_says_nothing_of_that_write(sw: SafeWrite) -> None:
    """The second leg of a body was refused for want of time; the first one had written."""
    sent: list[int] = []

    @sw.write(target="n", name=f"legs{next(NAMES)}")
    def legs(n: int) -> None:
        def handle(request: httpx.Request) -> httpx.Response:
            sent.append(1)
            return httpx.Response(200)

        with guarded(httpx.Client(transport=httpx.MockTransport(handle))) as client:
            client.post("http://x/")
        raise LegNotSent("nothing is left", reason="budget_exhausted")

    with safewrite.run("r1"), safewrite.turn(1):
        assert (legs.outcome(1).state, len(sent)) == ("unknown", 1)


@pytest.mark.parametrize("way", ["GET", "HEAD", "POST that asks", "POST"])
def test_only_a_write_carries_the_deadline_of_its_attempt(sw: SafeWrite, way: str) -> None:
    """What is asked before it settles nothing: the write itself may go another way, and end when it likes."""
    seen: list[bool] = []

    @sw.write(target="n", name=f"ask{next(NAMES)}")
    def ask(n: int) -> None:
        marks: Any = {"safewrite": "read"} if way == "POST that asks" else {}
        handle = httpx.MockTransport(lambda _: httpx.Response(200))
        with guarded(httpx.Client(transport=handle)) as client:
            client.request(way.partition(" ")[0], "http://x/", extensions=marks)
        attempt = safewrite.current_attempt()
        seen.append(attempt is not None and attempt.deadline_read)

    with safewrite.run("r"), safewrite.turn(1):
        ask(1)
    assert seen == [way == "POST"]


def test_a_post_in_a_reading_tool_carries_the_deadline_and_no_key(sw: SafeWrite) -> None:
    """A read has no key: an empty one would make one request of all of them."""
    seen: list[Any] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return httpx.Response(200, text="found")

    @sw.read(name=f"search{next(NAMES)}")
    def search(n: int) -> bool:
        with guarded(httpx.Client(transport=httpx.MockTransport(handle))) as client:
            client.post("http://x/")
        attempt = safewrite.current_attempt()
        return attempt is not None and attempt.deadline_read

    assert search(1)
    assert "idempotency-key" not in seen[0]
    assert "x-request-deadline-at" in seen[0]
