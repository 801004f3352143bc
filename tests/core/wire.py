"""A server on a real socket that answers, stalls, resets or cuts where a test tells it to."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Script = Callable[["Wire", socket.socket], None]

PATIENCE = 20.0
"""Seconds after which a socket of a test that hangs gives up."""


@dataclass
class Wire:
    """One listening socket; every connection is served by the next script, the last one again and again."""

    listener: socket.socket
    scripts: tuple[Script, ...]
    released: threading.Event = field(default_factory=threading.Event)
    received: list[bytes] = field(default_factory=list)
    """What each connection sent, as far as its script read it."""

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def leave(self) -> None:
        """Listen no longer; connections that are open stay."""
        with suppress(OSError):  # twice is fine
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def serve(self) -> None:
        count = 0
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            script = self.scripts[min(count, len(self.scripts) - 1)]
            count += 1
            threading.Thread(target=self.run, args=(script, connection), daemon=True).start()

    def run(self, script: Script, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE)
        with connection, suppress(OSError):
            script(self, connection)


@contextmanager
def wire(*scripts: Script) -> Iterator[Wire]:
    """Serve scripts on a port of this machine."""
    listener = socket.create_server(("127.0.0.1", 0))
    one = Wire(listener, scripts)
    thread = threading.Thread(target=one.serve, daemon=True)
    thread.start()
    try:
        yield one
    finally:
        one.released.set()
        one.leave()
        thread.join(PATIENCE)


@contextmanager
def closed_port() -> Iterator[int]:
    """Hold a port of this machine on which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def read_request(connection: socket.socket) -> bytes:
    """Read one whole HTTP/1.1 request with a Content-Length, or without a body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _some(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    wanted = int(lengths[0].partition(b":")[2]) if lengths else 0
    while len(body) < wanted:
        body += _some(connection)
    return head + b"\r\n\r\n" + body


def reset(connection: socket.socket) -> None:
    """Close with a RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def finish(connection: socket.socket) -> None:
    """Close our direction with a FIN, and read what still comes, so that the kernel sends no RST."""
    connection.shutdown(socket.SHUT_WR)
    with suppress(OSError):
        while connection.recv(65536):
            pass


def answer(status: str, headers: str = "", body: bytes = b"{}") -> Script:
    """Return a script that reads a request and answers it."""
    extra = f"{headers}\r\n" if headers else ""
    head = f"HTTP/1.1 {status}\r\n{extra}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return send(head.encode() + body)


def send(data: bytes, close: Callable[[socket.socket], None] = finish) -> Script:
    """Return a script that reads a request, sends these bytes and closes."""

    def script(server: Wire, connection: socket.socket) -> None:
        server.received.append(read_request(connection))
        connection.sendall(data)
        close(connection)

    return script


def cut_request(after: int, close: Callable[[socket.socket], None]) -> Script:
    """Return a script that reads so many bytes of a request and closes."""

    def script(server: Wire, connection: socket.socket) -> None:
        data = b""
        while len(data) < after:
            piece = connection.recv(after - len(data))
            if not piece:
                break
            data += piece
        server.received.append(data)
        close(connection)

    return script


def stall(server: Wire, connection: socket.socket) -> None:
    """Read a request and never answer it."""
    server.received.append(read_request(connection))
    server.released.wait(PATIENCE)


def silent(server: Wire, connection: socket.socket) -> None:
    """Accept, and neither read nor write."""
    server.released.wait(PATIENCE)


def _some(connection: socket.socket) -> bytes:
    piece = connection.recv(65536)
    if not piece:
        raise ConnectionResetError("the client left in the middle of a request")
    return piece
