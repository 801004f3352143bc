"""Evidence from the standard library: bare sockets, TLS, subprocesses and tasks, and what tracebacks tell."""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.process
import errno
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FunctionType
from typing import Any

import anyio
import pytest

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.evidence import from_exception
from safewrite.core.phases import Call, Phase, committing, ends_transaction, phase_of, resent, running_call
from tests.core.wire import answer, closed_port, cut_request, reset, silent, wire

NOT_APPLIED, UNKNOWN = OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN


def never(reason: str) -> Finding:
    """Return the finding of what was never sent."""
    return Finding(NOT_APPLIED, reason, again=True)


def raised(body: Callable[[], object]) -> BaseException:
    """Return the exception of a body that must fail."""
    try:
        body()
    except BaseException as exc:
        return exc
    pytest.fail("nothing was raised")


def ending(body: Callable[[], object]) -> Finding:
    """Return what the failure of a body says."""
    return from_exception(raised(body))


@pytest.mark.parametrize(
    ("exc", "reason"),
    [
        (ConnectionResetError(), "connection_reset"),
        (ConnectionAbortedError(), "connection_reset"),
        (BrokenPipeError(), "connection_reset"),
        (TimeoutError(), "timeout"),
        (OSError(errno.EHOSTUNREACH, "no route"), "os_error"),
        (OSError(errno.ENETUNREACH, "no network"), "os_error"),
        (FileNotFoundError(errno.ENOENT, "no such program", "tool"), "os_error"),
        (PermissionError(), "os_error"),
        (ssl.SSLError(), "tls_error"),
        (ssl.SSLEOFError(), "tls_error"),
        (subprocess.CalledProcessError(1, "tool"), "process_failed"),
        (subprocess.TimeoutExpired("tool", 1), "process_timeout"),
        (asyncio.CancelledError(), "cancelled"),
        (concurrent.futures.CancelledError(), "cancelled"),
        (concurrent.futures.BrokenExecutor(), "executor_broken"),
        (concurrent.futures.process.BrokenProcessPool(), "executor_broken"),
        (KeyboardInterrupt(), "interrupted"),
        (SystemExit(1), "interrupted"),
        (GeneratorExit(), "interrupted"),
        (BaseExceptionGroup("x", [KeyboardInterrupt()]), "exception_group"),
    ],
)
def test_what_both_worlds_can_raise_is_unknown(exc: BaseException, reason: str) -> None:
    """By class, without a traceback: none of these proves that nothing left."""
    assert Finding(UNKNOWN, reason) == from_exception(exc)


@pytest.mark.parametrize(
    ("exc", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), "connect_refused"),
        (ConnectionRefusedError("by hand"), "connect_refused"),
        (socket.gaierror(-2, "no name"), "name_not_resolved"),
        (ssl.SSLCertVerificationError(), "tls_failed"),
    ],
)
def test_what_comes_before_the_first_byte_is_never_sent(exc: BaseException, reason: str) -> None:
    """By class, without a traceback."""
    assert never(reason) == from_exception(exc)


def test_a_refusal_raised_by_hand_is_believed() -> None:
    """A body that raises it itself, beside calls that send, means what it says."""

    def body() -> None:
        if not sys.argv:
            sys.stdout.write("")
        raise ConnectionRefusedError

    assert never("connect_refused") == ending(body)


# Connecting, on real sockets


def connecting_ways(port: int) -> dict[str, Callable[[], object]]:
    """Return the ways in which a body may connect to a port of this machine."""
    address = ("127.0.0.1", port)

    def plain() -> None:
        with socket.socket() as one:
            one.connect(address)

    return {
        "plain": plain,
        "create_connection": lambda: socket.create_connection(address),
        "asyncio": lambda: asyncio.run(asyncio.open_connection(*address)),
        "anyio": lambda: anyio.run(anyio.connect_tcp, *address),
    }


@pytest.mark.parametrize("way", ["plain", "create_connection", "asyncio", "anyio"])
def test_a_refused_connect_is_never_sent(way: str) -> None:
    """However a body connects: not applied, may be sent again."""
    with closed_port() as port:
        found = ending(connecting_ways(port)[way])
    assert never("connect_failed" if way == "anyio" else "connect_refused") == found


@pytest.mark.parametrize("way", ["plain", "create_connection", "asyncio"])
def test_a_connect_into_an_unreachable_network_is_never_sent(
    way: str,
) -> None:
    """The kernel refuses the broadcast address to TCP; out of `connect` that is proof."""
    address = ("255.255.255.255", 9)

    def plain() -> None:
        with socket.socket() as one:
            one.connect(address)

    ways: dict[str, Callable[[], object]] = {
        "plain": plain,
        "create_connection": lambda: socket.create_connection(address),
        "asyncio": lambda: asyncio.run(asyncio.open_connection(*address)),
    }
    exc = raised(ways[way])
    assert not isinstance(exc, ConnectionRefusedError)
    assert never("connect_failed") == from_exception(exc)


@contextmanager
def full_backlog() -> Iterator[tuple[str, int]]:
    """Listen without accepting, with the queue filled, so that a further connect gets no answer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(address)
            fillers.append(one)
        try:
            yield address
        finally:
            for one in fillers:
                one.close()


def test_a_connect_that_times_out_is_never_sent() -> None:
    """A timeout out of `connect`, where any other timeout is unknown."""

    def plain() -> None:
        with socket.socket() as one:
            one.settimeout(0.05)
            one.connect(address)

    with full_backlog() as address:
        assert never("connect_timeout") == ending(plain)
        assert never("connect_timeout") == ending(lambda: socket.create_connection(address, timeout=0.05))


def test_a_socket_file_that_is_not_there_was_sent_nothing(tmp_path: Path) -> None:
    """FileNotFoundError out of `connect`, where any other is unknown."""

    def body() -> None:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(tmp_path / "no.sock"))

    assert never("connect_failed") == ending(body)
    assert Finding(UNKNOWN, "os_error") == ending(
        lambda: subprocess.run([tmp_path / "no-program"], check=True)
    )


def test_a_second_connect_on_an_open_socket_proves_nothing() -> None:
    """EISCONN: something may have been sent on it."""

    def body() -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as one:
            one.sendall(b"x")
            one.connect(("127.0.0.1", server.port))

    with wire(silent) as server:
        exc = raised(body)
    assert isinstance(exc, OSError)
    assert exc.errno == errno.EISCONN
    assert Finding(UNKNOWN, "os_error") == from_exception(exc)


def handshake(port: int, timeout: float = 20.0) -> object:
    """Begin TLS with a port of this machine."""
    context = ssl.create_default_context()
    with socket.create_connection(("127.0.0.1", port), timeout=timeout) as plain:
        return context.wrap_socket(plain, server_hostname="a.invalid")


def test_a_handshake_that_fails_is_never_sent() -> None:
    """An answer in plain text, a reset, silence: all before the request."""
    with wire(lambda _, connection: connection.sendall(b"HTTP/1.1 400 Bad\r\n\r\n")) as server:
        assert never("tls_failed") == ending(lambda: handshake(server.port))
    with wire(cut_request(10, reset)) as server:
        assert never("connect_failed") == ending(lambda: handshake(server.port))
    with wire(silent) as server:
        assert never("connect_timeout") == ending(lambda: handshake(server.port, 0.1))


# Sending and receiving, on real sockets


def test_a_reset_while_the_answer_is_awaited_is_unknown() -> None:
    """The same on plain sockets and streams."""

    def plain() -> None:
        with socket.create_connection(("127.0.0.1", server.port)) as one:
            one.sendall(b"POST / HTTP/1.1")
            one.recv(1)

    async def streams() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST / HTTP/1.1")
        try:
            await reader.readexactly(1)
        finally:
            writer.close()

    with wire(cut_request(10, reset)) as server:
        assert Finding(UNKNOWN, "connection_reset") == ending(plain)
        assert Finding(UNKNOWN, "connection_reset") == ending(lambda: asyncio.run(streams()))


def test_a_timeout_while_the_answer_is_awaited_is_unknown() -> None:
    """Plain sockets, and every timeout around them."""

    def plain() -> None:
        with socket.create_connection(("127.0.0.1", server.port), timeout=0.05) as one:
            one.sendall(b"POST / HTTP/1.1")
            one.recv(1)

    async def waited() -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)

    async def scoped() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    with wire(silent) as server:
        assert Finding(UNKNOWN, "timeout") == ending(plain)
    assert Finding(UNKNOWN, "timeout") == ending(lambda: asyncio.run(waited()))
    assert Finding(UNKNOWN, "timeout") == ending(lambda: asyncio.run(scoped()))


def test_a_refusal_that_comes_as_an_answer_is_unknown() -> None:
    """A datagram was sent; "refused" out of `recv` may be about a repeat of one that arrived."""

    def plain() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.settimeout(20)
            one.connect(("127.0.0.1", port))
            one.send(b"set")
            one.recv(1)

    class Told(asyncio.DatagramProtocol):
        def __init__(self) -> None:
            self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

        def error_received(self, exc: Exception) -> None:
            self.failed.set_result(exc)

    async def streams() -> None:
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_datagram_endpoint(Told, remote_addr=("127.0.0.1", port))
        try:
            transport.sendto(b"set")
            raise await asyncio.wait_for(protocol.failed, 20)
        finally:
            transport.close()

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        held.close()
        for body in (plain, lambda: asyncio.run(streams())):
            exc = raised(body)
            assert isinstance(exc, ConnectionRefusedError)
            assert Finding(UNKNOWN, "connection_error") == from_exception(exc)


@pytest.mark.parametrize("way", ["read", "readline", "readexactly", "drain"])
def test_an_error_that_a_stream_kept_for_its_user_is_of_the_transfer(way: str) -> None:
    """A transport may give a stream an error without its first frames (uvloop does)."""

    async def body() -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, protocol = await loop.create_connection(
            lambda: asyncio.StreamReaderProtocol(reader), "127.0.0.1", server.port
        )
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        reader.set_exception(ConnectionRefusedError())
        ways: dict[str, Callable[[], Any]] = {
            "read": lambda: reader.read(1),
            "readline": reader.readline,
            "readexactly": lambda: reader.readexactly(1),
            "drain": writer.drain,
        }
        try:
            await ways[way]()
        finally:
            transport.close()

    with wire(silent) as server:
        assert ending(lambda: asyncio.run(body())) == Finding(UNKNOWN, "connection_error")


class Unreachable(socket.socket):
    """A socket whose connect is answered late, by a router that knows no way."""

    def getsockopt(self, *_: Any) -> Any:
        return errno.EHOSTUNREACH


def test_a_connect_that_fails_late_is_never_sent() -> None:
    """The loop asks the socket how its connect went, and raises the answer itself."""

    async def body() -> None:
        with Unreachable() as one:
            one.setblocking(False)
            await asyncio.get_running_loop().sock_connect(one, ("127.0.0.1", port))

    with closed_port() as port:
        assert ending(lambda: asyncio.run(body())) == never("connect_failed")


class TwoAddresses(asyncio.SelectorEventLoop):
    """A loop for which every host has two addresses."""

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (f"127.0.0.{n}", port)) for n in (1, 2)]


def test_several_addresses_that_all_fail_are_never_sent() -> None:
    """The loop makes one error of the errors of all addresses."""
    with closed_port() as port, asyncio.Runner(loop_factory=TwoAddresses) as runner:
        exc = raised(lambda: runner.run(asyncio.open_connection("somewhere", port)))
    assert str(exc).startswith("Multiple exceptions")
    assert from_exception(exc) == never("connect_failed")


def test_a_connect_that_fails_after_a_redirect_of_the_standard_library_is_unknown() -> None:
    """The frames of urllib tell that a request was answered before."""
    import urllib.request

    with closed_port() as port, wire(answer("302 Found", f"Location: http://127.0.0.1:{port}/")) as server:
        exc = raised(lambda: urllib.request.urlopen(server.url, b"x", timeout=20))
    assert resent(exc)
    assert Finding(UNKNOWN, "earlier_request") == from_exception(exc)


# What tracebacks tell


def test_nothing_is_known_of_an_exception_that_was_not_raised() -> None:
    """No frames, no phase."""
    exc = OSError()
    assert None is phase_of(exc)
    assert Call() == running_call(exc)
    assert not resent(exc)
    assert not committing(exc)


class Box:
    """An object whose methods fail in C, so that the caller's frame is the innermost."""

    def __init__(self) -> None:
        fails: Callable[[object], object] = dict[object, object]().__getitem__
        self.connect = self.recv = self.commit = self.execute = fails
        self.inner = self


TEXT = "a global"


def test_the_running_call_is_the_one_that_raised() -> None:
    """Not one beside it, before it, or in its arguments."""
    box, text = Box(), "a local"

    def method() -> None:
        box.recv(1) if text == TEXT else box.inner.connect((text, TEXT, "a constant"))

    def argument() -> None:
        box.connect(box.recv("x"))

    def chained() -> None:
        box.inner.inner.recv(
            1,
        )

    def function() -> None:
        connect = box.connect
        connect("x")

    def by_hand() -> None:
        raise OSError

    call = running_call(raised(method))
    assert call.name == "connect"
    assert {"a local", "a global", "a constant"} <= set(map(str, call.values))
    assert not call.leaving
    assert running_call(raised(argument)).name == "recv"
    assert running_call(raised(chained)).name == "recv"
    assert None is running_call(raised(function)).name
    assert Call() == running_call(raised(by_hand))


def test_leaving_a_with_block_is_a_call_of_its_own() -> None:
    """The context manager fails at the end of its block."""

    class Exits:
        def __enter__(self) -> None:
            return None

        __exit__: Any = dict[object, object]().__getitem__  # takes one argument, gets three, and fails in C

    def leaves() -> None:
        with Exits():
            pass

    assert running_call(raised(leaves)).leaving


def test_without_places_in_the_source_nothing_is_known() -> None:
    """Python can be told to drop them (`-X no_debug_ranges`)."""
    box = Box()

    def method() -> None:
        box.connect("x")

    assert running_call(raised(method)).name == "connect"
    assert isinstance(method, FunctionType)
    method.__code__ = method.__code__.replace(co_linetable=b"")
    assert Call() == running_call(raised(method))


def test_a_connect_written_in_python_is_not_the_running_call() -> None:
    """The innermost frame decides: a `connect` that sends and then fails is no proof."""

    class Client:
        def connect(self) -> None:
            raise TimeoutError("sent, and not answered")

    assert Finding(UNKNOWN, "timeout") == ending(Client().connect)
    assert Finding(UNKNOWN, "timeout") == ending(lambda: Client().connect())


def test_a_commit_is_known_by_its_call() -> None:
    """Drivers written in C leave no frame of their own."""
    box = Box()
    assert committing(raised(lambda: box.commit("x")))
    assert not committing(raised(lambda: box.execute("x")))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("COMMIT", True),
        ("  end", True),
        ("INSERT INTO t VALUES (1); commit ;", True),
        (b"release savepoint a", True),
        ("PREPARE  TRANSACTION 'x'", True),
        ("INSERT INTO commitments VALUES (1)", False),
        ("endless", False),
        (b"\xff", False),
        (None, False),
        (7, False),
    ],
)
def test_text_that_ends_a_transaction(text: Any, expected: bool) -> None:
    """Also as bytes, also behind other statements."""
    assert expected == ends_transaction(text)


def test_phases_have_names() -> None:
    """Two phases are all that the evidence needs."""
    assert {"connect", "transfer"} == set(Phase)
