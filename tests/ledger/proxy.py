"""A wire between a ledger and its PostgreSQL that can be cut, at any message and on either side of it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.engine import make_url

READY = b"Z\x00\x00\x00\x05"
"""How the server ends what it has to say to a message."""

Decide = Callable[[int, bytes], str]
"""Takes the number of a query (from 0, over all connections) and its bytes; says what becomes of it.

"": it passes; "before": the wire is cut before it; "after": the server does it, and the wire is cut before its answer;
"stall": neither it nor anything else passes any more.
"""


class Wire:
    """A proxy on a port of this machine.  `decide` is asked of every query."""

    def __init__(self, url: str) -> None:
        self._server = make_url(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self.decide: Decide = lambda number, query: ""
        self.queries = 0
        self.up = True
        host, port = self._listener.getsockname()
        self.url = self._server.set(host=host, port=port, query={}).render_as_string(hide_password=False)
        threading.Thread(target=self._accept, daemon=True).start()

    def _dial(self) -> socket.socket:
        arguments = self._server.get_dialect()().create_connect_args(self._server)[1]
        host, port = str(arguments.get("host") or "/tmp"), int(arguments.get("port") or 5432)
        if host.startswith("/"):
            upstream = socket.socket(socket.AF_UNIX)
            upstream.connect(f"{host}/.s.PGSQL.{port}")
            return upstream
        return socket.create_connection((host, port))

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if not self.up:
                    client.close()
                    continue
                pair = (client, self._dial())
                self._pairs.append(pair)
                threading.Thread(target=self._serve, args=pair, daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        answers = threading.Event()
        answers.set()
        back = threading.Thread(target=self._answers, args=(client, server, answers), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 20):
                what = ""
                if data[:1] == b"Q":
                    what = self.decide(self.queries, data)
                    self.queries += 1
                if what == "stall":
                    answers.clear()
                    return
                if what == "after":
                    answers.clear()
                    server.sendall(data)
                    back.join(10)
                    break
                if what == "before":
                    break
                server.sendall(data)
        _cut(client, server)

    def _answers(self, client: socket.socket, server: socket.socket, pass_on: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 20):
                if pass_on.is_set():
                    client.sendall(data)
                elif READY in data:
                    return
        _cut(client, server)

    def cut(self) -> None:
        """Cut every wire there is."""
        while self._pairs:
            _cut(*self._pairs.pop())

    def close(self) -> None:
        """Take no more."""
        _cut(self._listener)
        self.cut()


def _cut(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def wire(url: str) -> Iterator[Wire]:
    """Give a wire to the server of a URL."""
    made = Wire(url)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def scripted(*answers: bytes) -> Iterator[str]:
    """Give the URL of what answers the messages of every connection so, and hangs up."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client, contextlib.suppress(OSError):
                    for answer in answers:
                        client.recv(1 << 16)
                        client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    host, port = listener.getsockname()
    try:
        yield f"postgresql+psycopg://ana:secret@{host}:{port}/agents?sslmode=disable&gssencmode=disable"
    finally:
        _cut(listener)


PASSWORD_PLEASE = b"R" + (8).to_bytes(4, "big") + (3).to_bytes(4, "big")
"""How a server asks for a password in clear."""


def fatal(code: str, message: str) -> bytes:
    """Return an error that ends a connection, as a server tells it."""
    fields = b"".join(
        k.encode() + v.encode() + b"\0" for k, v in (("S", "FATAL"), ("C", code), ("M", message))
    )
    return b"E" + (len(fields) + 5).to_bytes(4, "big") + fields + b"\0"
