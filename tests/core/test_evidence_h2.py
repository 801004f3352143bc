"""Evidence from HTTP/2: the two guarantees of the protocol, and all that looks like them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import pytest
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.events import ConnectionTerminated, RequestReceived, StreamReset

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.evidence import from_exception, from_value
from tests.core.wire import Wire, wire

NOT_APPLIED, UNKNOWN = OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN
REFUSED = Finding(NOT_APPLIED, "refused_stream", again=True, proof=True)
GOAWAY = Finding(NOT_APPLIED, "goaway", again=True, proof=True)
OPEN = Finding(UNKNOWN, "remote_protocol_error")

React = Callable[[H2Connection, int], None]


def speaks(*reactions: React) -> Callable[[Wire, socket.socket], None]:
    """Return a script: an HTTP/2 server that reacts to each new request in turn, and to no data."""

    def script(server: Wire, connection: socket.socket) -> None:
        h2 = H2Connection(H2Configuration(client_side=False))
        h2.initiate_connection()
        connection.sendall(h2.data_to_send())
        waiting = list(reactions)
        while data := connection.recv(65536):
            events = [] if h2.state_machine.state is ConnectionState.CLOSED else h2.receive_data(data)
            for event in events:
                if isinstance(event, RequestReceived) and waiting:
                    waiting.pop(0)(h2, int(event.stream_id or 0))
                    break  # frames behind a GOAWAY are only drained
            connection.sendall(h2.data_to_send())

    return script


def resets(code: int) -> React:
    """Reset the stream with this error code."""
    return lambda h2, stream: h2.reset_stream(stream, code)


def goes_away(last: int) -> React:
    """Close the connection, naming this stream as the last that was processed."""
    return lambda h2, _: h2.close_connection(0, last_stream_id=last)


def answers(h2: H2Connection, stream: int) -> None:
    """Answer 201."""
    h2.send_headers(stream, [(":status", "201")], end_stream=True)


def answers_and_refuses(h2: H2Connection, stream: int) -> None:
    """Answer 200, and then say that nothing was processed."""
    h2.send_headers(stream, [(":status", "200")])
    h2.reset_stream(stream, 7)


def ending(module: Any, *reactions: React, body: bytes = b"x") -> Finding:
    """Return what the last of so many requests on one connection ends in."""
    with wire(speaks(*reactions)) as server, module.Client(http1=False, http2=True, timeout=20.0) as client:
        for _ in reactions[:-1]:
            assert client.post(server.url, content=b"x").status_code == 201
        try:
            value = client.post(server.url, content=body)
        except module.HTTPError as exc:
            return from_exception(exc)
    return from_value(value)


both = pytest.mark.parametrize("module", [httpx, httpx2])


@both
def test_a_refused_stream_is_proof_that_nothing_was_processed(module: Any) -> None:
    """REFUSED_STREAM: not applied, may be sent again."""
    assert ending(module, resets(7)) == REFUSED


@both
@pytest.mark.parametrize("code", [0, 2, 8, 11])
def test_any_other_reset_is_unknown(module: Any, code: int) -> None:
    """CANCEL, INTERNAL_ERROR and the others say nothing about what was processed."""
    assert ending(module, resets(code)) == OPEN


@both
def test_a_goaway_below_every_stream_is_proof(module: Any) -> None:
    """Last stream 0: the server processed nothing, although the client shows it as an error."""
    assert ending(module, goes_away(0)) == GOAWAY


@both
def test_a_goaway_that_covers_our_stream_is_unknown(module: Any) -> None:
    """Last stream 1 is ours: it may have been processed."""
    assert ending(module, goes_away(1)) == OPEN


@both
def test_a_goaway_below_our_stream_is_proof_where_the_stream_is_known(module: Any) -> None:
    """The second request waits with its body when it is told that only the first was processed."""
    assert ending(module, answers, goes_away(1), body=b"x" * 200_000) == GOAWAY
    assert ending(module, answers, goes_away(3), body=b"x" * 200_000) == OPEN


@both
def test_a_refusal_after_a_status_is_no_proof(module: Any) -> None:
    """A server that has answered and then refuses contradicts itself."""
    assert ending(module, answers_and_refuses) == OPEN


@both
def test_the_async_clients_are_read_alike(module: Any) -> None:
    """The frames of the asynchronous half carry the same names."""

    async def send_two(url: str) -> None:
        async with module.AsyncClient(http1=False, http2=True, timeout=20.0) as client:
            await client.post(url, content=b"x")
            await client.post(url, content=b"x" * 60_000)

    for reaction, expected in ((resets(7), REFUSED), (goes_away(0), GOAWAY), (goes_away(3), OPEN)):
        with wire(speaks(answers, reaction)) as server:
            with pytest.raises(module.RemoteProtocolError) as caught:
                asyncio.run(send_two(server.url))
        assert from_exception(caught.value) == expected


def told(event: object) -> Finding:
    """Return what an error says that was caused by an HTTP/2 event."""
    exc = httpx.RemoteProtocolError("x")
    exc.__cause__ = httpx2.RemoteProtocolError(event)  # type: ignore[arg-type]
    return from_exception(exc)


@dataclass
class Other:
    error_code: int = 7
    last_stream_id: int = 0


def goaway(last: int | None) -> ConnectionTerminated:
    """Return the event of a GOAWAY."""
    event = ConnectionTerminated()
    event.last_stream_id = last
    return event


def test_without_frames_a_goaway_is_proof_only_below_the_first_stream() -> None:
    """An exception that lost its traceback tells no stream number; a client's begin with 1."""
    assert told(StreamReset(stream_id=1, error_code=7)) == REFUSED
    assert told(goaway(0)) == GOAWAY
    assert told(goaway(1)) == OPEN
    assert told(goaway(None)) == OPEN
    assert told(Other()) == OPEN
    assert told(StreamReset(stream_id=1, error_code=7, remote_reset=False)) == OPEN


def test_a_refused_stream_of_an_earlier_request_proves_nothing_about_this_one() -> None:
    """Only causes are read for proofs, never what was being handled."""
    exc = httpx.RemoteProtocolError("Server disconnected")
    exc.__context__ = httpx.RemoteProtocolError(StreamReset(stream_id=1, error_code=7))  # type: ignore[arg-type]
    assert from_exception(exc) == OPEN


def test_a_loop_of_causes_ends() -> None:
    """Causes that lead back are followed once."""
    exc = httpx.RemoteProtocolError("x")
    exc.__cause__ = exc2 = httpx.RemoteProtocolError("y")
    exc2.__cause__ = exc
    assert from_exception(exc) == OPEN
