"""Every byte of a request and of its response, on three kinds of wire, cut in three ways.

What was told is held against what the server did.  `SAFEWRITE_DEEP=1` cuts at every byte; else at a sample of them.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamEnded
from sqlalchemy.engine import make_url

import safewrite
from safewrite import Attempt, SafeWrite
from safewrite.outcome import Outcome
from tests.core.wire import Wire, read_request, wire
from tests.postgres import administering, postgres_url
from tests.torture.cuts import DEEP, HOWS, Cutter, How, Way, cutter, sample

__all__ = ["postgres_url"]

_turns = itertools.count(1)

PARTS = 48 if DEEP else 1
"""Tests into which the cuts of our own ledger's wire are divided: there are some 80 thousand of them."""


class Server:
    """A server that does what arrives whole, and how it answers; `status` 422: it does nothing."""

    def __init__(self) -> None:
        self.effects, self.status = 0, 201

    def does(self) -> None:
        self.effects += self.status != 422

    def http1(self, _: Wire, connection: socket.socket) -> None:
        read_request(connection)
        self.does()
        body = b'{"id": "sub_1"}'
        head = f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)

    def http2(self, _: Wire, connection: socket.socket) -> None:
        h2 = H2Connection(H2Configuration(client_side=False))
        h2.initiate_connection()
        connection.sendall(h2.data_to_send())
        while data := connection.recv(65536):
            for event in h2.receive_data(data):
                if isinstance(event, StreamEnded):
                    self.does()
                    h2.send_headers(event.stream_id, [(":status", str(self.status))])
                    h2.send_data(event.stream_id, b'{"id": "sub_1"}', end_stream=True)
            connection.sendall(h2.data_to_send())


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """Return a ledger on disk."""
    with SafeWrite(f"sqlite:///{tmp_path / 'ledger.db'}", settings={"grace": 0.01}) as made:
        yield made


def ask(tool: Any) -> Outcome[Any]:
    """Make a call that nobody made before."""
    with safewrite.run("cuts"), safewrite.turn(next(_turns)):
        outcome: Outcome[Any] = tool.outcome("sub_1")
        return outcome


# HTTP -------------------------------------------------------------------------------------------------------------


@contextmanager
def posting(sw: SafeWrite, server: Server, version: str) -> Iterator[tuple[Any, Cutter]]:
    """Give a tool that posts through a wire to a server."""
    script: Callable[[Wire, socket.socket], None] = getattr(server, version)
    with (
        wire(script) as upstream,
        cutter(lambda: socket.create_connection(("127.0.0.1", upstream.port))) as cut,
    ):
        options: dict[str, Any] = {"http1": version == "http1", "http2": version == "http2"}

        @sw.write(target="sub_id", name=version, max_attempts=1)
        def post(sub_id: str, attempt: Attempt) -> Any:
            with httpx.Client(verify=False, timeout=0.15, **options) as client:
                url = f"http://127.0.0.1:{cut.port}/subscriptions"
                reply = client.post(url, headers=attempt.headers, json={"id": sub_id})
                return reply.raise_for_status().json()

        yield post, cut


@pytest.mark.parametrize("status", [201, 422])
@pytest.mark.parametrize("version", ["http1", "http2"])
def test_http(sw: SafeWrite, version: str, status: int) -> None:
    """A cut request may have arrived; a cut answer may have said anything: nothing false is told of either."""
    server = Server()
    server.status = status
    with posting(sw, server, version) as (post, cut):
        whole = ask(post)
        assert (whole.state, server.effects) == (("not_applied", 0) if status == 422 else ("applied", 1))
        for way, how, at in _cuts(cut, step=41):
            server.effects = 0
            cut.arm(way, at, how)
            outcome = ask(post)
            cut.mend()
            where = f"{way} {how} at byte {at}: {outcome.state} ({outcome.reason}), {server.effects} effects"
            if outcome.state == "applied":
                assert server.effects == 1, where
            if outcome.state == "not_applied":
                assert (server.effects, status, way) == (0, 422, "back"), where


def _cuts(cut: Cutter, *, step: int) -> list[tuple[Way, How, int]]:
    """Return where to cut, by what passed until now."""
    passed = dict(cut.passed)
    return [(way, how, at) for way in passed for how in HOWS for at in sample(passed[way], step)]


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

        @sw.write(target="sub_id", name="insert", max_attempts=1, timeout=0.4)
        def insert(sub_id: str, attempt: Attempt) -> int:
            with psycopg.connect(conninfo.render_as_string(hide_password=False)) as connection:
                connection.execute("INSERT INTO effect VALUES (1)")
            return 1

        assert ask(insert).state == "applied"
        for way, how, at in _cuts(cut, step=97):
            run("TRUNCATE effect")
            cut.arm(way, at, how)
            outcome = ask(insert)
            cut.mend()
            while run("SELECT 1 FROM pg_stat_activity WHERE application_name = 'cut'"):
                pass  # what the server still does counts
            ((stands,),) = run("SELECT count(*) FROM effect")
            where = f"{way} {how} at byte {at}: {outcome.state} ({outcome.reason}), {stands} rows"
            if outcome.state != "unknown":
                assert stands == (outcome.state == "applied"), where


@pytest.mark.parametrize("part", range(PARTS))
def test_our_own_ledger(postgres_url: str, part: int) -> None:
    """The ledger's wire is cut: nothing is sent that it does not hold, nothing false is told, nothing sent twice."""
    limits = {"connect_timeout": 0.2, "statement_timeout": 0.2, "busy_timeout": 0.2, "grace": 0.01}
    sent: list[str] = []

    def body(sub_id: str, attempt: Attempt) -> str:
        sent.append(attempt.id)
        return attempt.id

    with cutter(dials(postgres_url)) as cut:
        url = through(postgres_url, cut).render_as_string(hide_password=False)
        with SafeWrite(postgres_url) as direct, SafeWrite(url, settings=limits) as first:
            direct.upgrade()
            tool = first.write(target="sub_id", name="send")(body)
            cut.arm("to", 1 << 30, "close")
            ask(tool)
            for way, how, at in _cuts(cut, step=1499)[part::PARTS]:
                sent.clear()
                cut.arm(way, at, how)
                turn = next(_turns)
                with safewrite.run("cuts"), safewrite.turn(turn):
                    outcome = tool.outcome("sub_1")
                    cut.mend()
                    again = tool.outcome("sub_1")
                where = f"{way} {how} at byte {at}: {outcome.state} ({outcome.reason}), then {again.state}"
                assert len(sent) <= 1, where
                if outcome.state == "applied":
                    assert sent, where
                    assert again.state == "applied" or not outcome.recorded, where
                if outcome.state == "not_applied":
                    assert not sent or again.sent, where
                if sent:
                    assert direct.ledger.attempt(sent[0]) is not None, where
