"""Every byte of a request and of its response, on three kinds of wire, cut in three ways.

What was told is held against what the server did.  `SAFEWRITE_DEEP=1` cuts at every byte; else at a sample of them.
"""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import psycopg
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import RequestReceived, StreamEnded
from sqlalchemy.engine import make_url

import safewrite
from safewrite import Attempt, SafeWrite
from safewrite.outcome import Outcome
from tests.core.wire import PATIENCE, Wire, read_request, wire
from tests.postgres import administering, postgres_url
from tests.torture.cuts import DEEP, HOWS, Cutter, How, Way, cutter, sample

__all__ = ["postgres_url"]

_numbers = itertools.count(1)

VARIES = 64
"""Bytes by which two calls differ at most, in what passes one way: numbers and compressed headers vary in length."""

PARTS = 64 if DEEP else 1
"""Tests into which the cuts of each use of our own ledger's wire are divided: there are some 110 thousand in all."""


class Server:
    """A server that does what arrives whole, and how it answers; `status` 422: it does nothing.

    `done` and `refused` have the paths that were asked for: a request may arrive while the next is cut already.
    """

    def __init__(self, status: int) -> None:
        self.status = status
        self.done, self.refused = Counter[str](), Counter[str]()

    def does(self, path: str) -> None:
        (self.refused if self.status == 422 else self.done)[path] += 1

    def http1(self, _: Wire, connection: socket.socket) -> None:
        self.does(read_request(connection).split(b" ", 2)[1].decode())
        body = b'{"id": "sub_1"}'
        head = f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)

    def http2(self, _: Wire, connection: socket.socket) -> None:
        h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        h2.initiate_connection()
        connection.sendall(h2.data_to_send())
        paths: dict[int, str] = {}
        while data := connection.recv(65536):
            for event in h2.receive_data(data):
                if isinstance(event, RequestReceived):
                    paths[event.stream_id] = dict(event.headers)[":path"]
                if isinstance(event, StreamEnded):
                    self.does(paths[event.stream_id])
                    h2.send_headers(event.stream_id, [(":status", str(self.status))])
                    h2.send_data(event.stream_id, b'{"id": "sub_1"}', end_stream=True)
            connection.sendall(h2.data_to_send())


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """Return a ledger on disk."""
    with SafeWrite(f"sqlite:///{tmp_path / 'ledger.db'}", settings={"grace": 0.01}) as made:
        yield made


def fresh(sw: SafeWrite, body: Callable[..., Any], **options: Any) -> Any:
    """Declare a tool that nobody called: nothing that is open and no breaker keeps its call back."""
    return sw.write(target="sub_id", name=f"{body.__name__}_{next(_numbers)}", **options)(body)


def ask(tool: Any, sub_id: str = "sub_1") -> Outcome[Any]:
    """Make the call of a tool, or make it again."""
    with safewrite.run("cuts"), safewrite.turn(1):
        outcome: Outcome[Any] = tool.outcome(sub_id)
        return outcome


@pytest.mark.parametrize("way", ["to", "back"])
@pytest.mark.parametrize(
    ("how", "end"), [("close", "ended"), ("reset", ConnectionResetError), ("stall", TimeoutError)]
)
def test_the_wire_is_cut_as_it_says(way: Way, how: How, end: Any) -> None:
    """Just so many bytes pass, and the client hears of the cut what `how` says."""
    arrived: SimpleQueue[bytes] = SimpleQueue()

    def echo(_: Wire, connection: socket.socket) -> None:
        while data := connection.recv(1 << 16):
            arrived.put(data)
            connection.sendall(data)

    with (
        wire(echo) as upstream,
        cutter(lambda: socket.create_connection(("127.0.0.1", upstream.port))) as cut,
        socket.create_connection(("127.0.0.1", cut.port), timeout=0.5) as client,
    ):
        cut.arm(way, 3, how)
        client.sendall(b"hello")
        heard: list[Any] = []
        while not heard or isinstance(heard[-1], bytes):
            try:
                heard.append(client.recv(1 << 16) or "ended")
            except OSError as problem:
                heard.append(type(problem))
        assert cut.struck
        assert heard[-1] == end
        assert arrived.get(timeout=PATIENCE) == (b"hel" if way == "to" else b"hello")
        if way == "back" and how != "reset":  # which may overtake what it follows
            assert b"".join(heard[:-1]) == b"hel"


# HTTP -------------------------------------------------------------------------------------------------------------


@contextmanager
def posting(server: Server, version: str) -> Iterator[tuple[Any, Cutter]]:
    """Give what posts through a wire to a server."""
    script: Callable[[Wire, socket.socket], None] = getattr(server, version)
    with (
        wire(script) as upstream,
        cutter(lambda: socket.create_connection(("127.0.0.1", upstream.port))) as cut,
    ):
        options: dict[str, Any] = {"http1": version == "http1", "http2": version == "http2"}

        def post(sub_id: str, attempt: Attempt) -> Any:
            with httpx.Client(verify=False, timeout=0.3, **options) as client:
                url = f"http://127.0.0.1:{cut.port}/{sub_id}"
                reply = client.post(url, headers=attempt.headers, json={"id": sub_id})
                return reply.raise_for_status().json()

        yield post, cut


@pytest.mark.parametrize("status", [201, 422])
@pytest.mark.parametrize("version", ["http1", "http2"])
def test_http(sw: SafeWrite, version: str, status: int) -> None:
    """A cut request may have arrived; a cut answer may have said anything: nothing false is told of either."""
    server = Server(status)
    with posting(server, version) as (post, cut):
        whole = ask(fresh(sw, post, max_attempts=1), "whole")
        assert whole.state == ("not_applied" if status == 422 else "applied")
        assert (server.done["/whole"], server.refused["/whole"]) == ((0, 1) if status == 422 else (1, 0))
        denied: list[str] = []
        for number, (way, how, at) in enumerate(_cuts(cut, step=41), 10000):  # of one length
            outcome = ask(fresh(sw, post, max_attempts=1), str(number))
            wrote = cut.passed["to"] > 0
            cut.mend()
            done, refused = server.done[f"/{number}"], server.refused[f"/{number}"]
            where = f"{way} {how} at byte {at}: {outcome.state} ({outcome.reason}), {done} done, {refused} refused"
            if outcome.state == "applied":
                assert done == 1, where
            if outcome.state == "not_applied":
                assert done == 0, where
                assert refused == 1 or not wrote, where
                denied.append(f"/{number}")
    assert not any(server.done[path] for path in denied)  # nor later


def _cuts(cut: Cutter, *, step: int, part: int = 0, parts: int = 1) -> Iterator[tuple[Way, How, int]]:
    """Yield where to cut, by what passed until now, and arm it; then see to it that it was cut.

    A loaded machine may use up a limit before: one in five may be missed.
    """
    passed = dict(cut.passed)
    every = [(way, how, at) for way in passed for how in HOWS for at in sample(passed[way], step)][
        part::parts
    ]
    missed = 0
    for way, how, at in every:
        cut.arm(way, at, how)
        yield way, how, at
        missed += not cut.struck and at <= passed[way] - VARIES
    assert missed * 5 <= len(every), f"{missed} of {len(every)} cuts never came to pass"


# PostgreSQL -------------------------------------------------------------------------------------------------------


def dials(url: str) -> Callable[[], socket.socket]:
    """Return what connects to the server of a URL."""
    arguments = make_url(url).get_dialect()().create_connect_args(make_url(url))[1]
    host, port = str(arguments.get("host") or "/tmp"), int(arguments.get("port") or 5432)

    def dial() -> socket.socket:
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        made = socket.socket(socket.AF_UNIX)
        made.connect(f"{host}/.s.PGSQL.{port}")
        return made

    return dial


def through(url: str, cut: Cutter, **more: str) -> Any:
    """Return a URL that goes through a wire."""
    plain = {"sslmode": "disable", "gssencmode": "disable", **more}
    return make_url(url).set(host="127.0.0.1", port=cut.port, query=plain)


def test_sql(sw: SafeWrite, postgres_url: str) -> None:
    """An INSERT and its COMMIT: what is told of a cut one is what stands in the table once its session is over."""
    with administering(postgres_url) as run, cutter(dials(postgres_url)) as cut:
        run("CREATE TABLE effect (turn int)")
        conninfo = through(postgres_url, cut, application_name="cut").set(drivername="postgresql")

        def insert(sub_id: str, attempt: Attempt) -> int:
            with psycopg.connect(conninfo.render_as_string(hide_password=False)) as connection:
                connection.execute("INSERT INTO effect VALUES (1)")
            return 1

        options = {"max_attempts": 1, "timeout": 0.4}
        assert ask(fresh(sw, insert, **options)).state == "applied"
        for way, how, at in _cuts(cut, step=97):
            run("TRUNCATE effect")
            outcome = ask(fresh(sw, insert, **options))
            cut.mend()
            while run("SELECT 1 FROM pg_stat_activity WHERE application_name = 'cut'"):
                pass  # what the server still does counts
            ((stands,),) = run("SELECT count(*) FROM effect")
            where = f"{way} {how} at byte {at}: {outcome.state} ({outcome.reason}), {stands} rows"
            if outcome.state != "unknown":
                assert stands == (outcome.state == "applied"), where


LIMITS = {"connect_timeout": 0.2, "statement_timeout": 0.2, "busy_timeout": 0.2, "grace": 0.01}


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("use", ["first", "later"])
def test_our_own_ledger(postgres_url: str, use: str, part: int) -> None:
    """The ledger's wire is cut: nothing is sent that it does not hold, nothing false is told, nothing sent twice.

    The first use of a ledger connects and looks at its tables; a later one has its connection.
    """
    sent: list[str] = []

    def send(sub_id: str, attempt: Attempt) -> str:
        sent.append(attempt.id)
        return attempt.id

    with SafeWrite(postgres_url) as direct, cutter(dials(postgres_url)) as cut:
        direct.upgrade()
        url = through(postgres_url, cut).render_as_string(hide_password=False)
        with SafeWrite(url, settings=LIMITS) as kept:

            def using() -> AbstractContextManager[SafeWrite]:
                return SafeWrite(url, settings=LIMITS) if use == "first" else nullcontext(kept)

            ask(fresh(kept, send))
            cut.arm("to", 1 << 30, "close")
            with using() as sw:
                ask(fresh(sw, send))
            for way, how, at in _cuts(cut, step={"first": 2399, "later": 1199}[use], part=part, parts=PARTS):
                sent.clear()
                with using() as sw:
                    tool = fresh(sw, send)
                    outcome = ask(tool)
                    cut.mend()
                    again = ask(tool)
                where = f"{way} {how} at byte {at}: {outcome.state} ({outcome.reason}), then {again.state}"
                assert len(sent) <= 1, where
                if outcome.state == "applied":
                    assert sent, where
                    assert again.state == "applied" or not outcome.recorded, where
                if outcome.state == "not_applied":
                    assert not sent or again.sent, where
                if sent:
                    assert direct.ledger.attempt(sent[0]) is not None, where
