"""An HTTP server in a process of its own that breaks as its paths say: `python -m tests.adapters.http_server FOLDER`.

HTTP/1.1 and HTTP/2 (by prior knowledge) on one port, TLS on a second, HTTP/1.1 on a socket file in FOLDER.  It prints
both ports; `/seen` tells the number of the connection, the method, the path and the headers of every other request.
"""

from __future__ import annotations

import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.events import RequestReceived

from tests.core.certificate import write
from tests.core.wire import PATIENCE, read_request

SEEN: list[dict[str, Any]] = []
NUMBERS = count(1)
Answer = Callable[[socket.socket], bool]
"""Answers one request; says whether the connection goes on."""


def says(status: int, body: bytes = b"{}", headers: str = "", length: int | None = None) -> Answer:
    """Answer so; with more `length` than body, the connection ends in the middle of it."""

    def answer(connection: socket.socket) -> bool:
        size = len(body) if length is None else length
        extra = f"{headers}\r\n" if headers else ""
        connection.sendall(f"HTTP/1.1 {status} X\r\n{extra}Content-Length: {size}\r\n\r\n".encode() + body)
        return length is None

    return answer


def stalls_after(data: bytes) -> Answer:
    """Send so much and nothing more."""

    def answer(connection: socket.socket) -> bool:
        connection.sendall(data)
        return bool(connection.recv(1)) and False

    return answer


def drips(data: bytes) -> Answer:
    """Send the first bytes and then one byte every few milliseconds, as long as anybody reads."""

    def answer(connection: socket.socket) -> bool:
        connection.sendall(data)
        while True:
            connection.sendall(b"x")
            time.sleep(0.01)

    return answer


ANSWERS: dict[str, Answer] = {
    "/ok": says(200),
    "/busy": says(429),
    "/absent": says(404),
    "/307": says(307, headers="Location: /ok?token=secret"),
    "/308": says(308, headers="Location: /ok"),
    "/303": says(303, headers="Location: /ok"),
    "/nowhere": says(307),
    "/log-in": says(401, headers="WWW-Authenticate: Digest x"),
    "/cut/200": says(200, b"12345", length=10),
    "/cut/404": says(404, b"12345", length=10),
    "/cut/503": says(503, b"12345", length=10),
    "/gzip/404": says(404, b"no gzip", "Content-Encoding: gzip"),
    "/silent": stalls_after(b""),
    "/half": stalls_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345"),
    "/drip": drips(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"),
    "/drip-head": drips(b"HTTP/1.1 200 OK\r\nX-Long: "),
}


def serve_http1(connection: socket.socket, number: int) -> None:
    """Serve one connection."""
    going, asked = True, 0
    while going:
        request = read_request(connection)
        asked += 1
        head, *lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        method, path, _ = head.split(" ")
        path = path.partition("?")[0]
        if path == "/seen":
            says(200, json.dumps(SEEN).encode())(connection)
            SEEN.clear()
            continue
        headers = dict(line.split(": ", 1) for line in lines)
        SEEN.append({"connection": number, "method": method, "path": path, "headers": headers})
        if path == "/log-in" and "Authorization" in headers:
            path = "/silent"
        if path == "/never-read":
            time.sleep(PATIENCE)
        going = ANSWERS[path](connection)


def serve_http2(connection: socket.socket, number: int) -> None:
    """Answer `/ok`, `/refused` (RST_STREAM) and `/goaway/N` (last stream N), and nothing else."""
    h2 = H2Connection(H2Configuration(client_side=False))
    h2.initiate_connection()
    connection.sendall(h2.data_to_send())
    while data := connection.recv(65536):
        events = [] if h2.state_machine.state is ConnectionState.CLOSED else h2.receive_data(data)
        for event in events:
            if isinstance(event, RequestReceived):
                stream, path = int(event.stream_id or 0), dict(event.headers or ())[b":path"].decode()
                SEEN.append({"connection": number, "path": path})
                if path == "/ok":
                    h2.send_headers(stream, [(":status", "201")], end_stream=True)
                elif path == "/refused":
                    h2.reset_stream(stream, 7)
                elif path.startswith("/goaway/"):
                    h2.close_connection(0, last_stream_id=int(path.rpartition("/")[2]))
                    break
        connection.sendall(h2.data_to_send())


def serve(connection: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Serve one connection in the protocol that its first bytes tell."""
    connection.settimeout(PATIENCE)
    with suppress(OSError), connection:
        if tls is not None:
            serve_http1(tls.wrap_socket(connection, server_side=True), next(NUMBERS))
        elif connection.recv(3, socket.MSG_PEEK) == b"PRI":
            serve_http2(connection, next(NUMBERS))
        else:
            serve_http1(connection, next(NUMBERS))


def listen(listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
    """Accept connections for ever."""

    def accept() -> None:
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0], tls), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def main() -> None:
    """Serve until standard input ends."""
    folder = Path(sys.argv[1])
    secret = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secret.load_cert_chain(write(folder))
    plain, covered = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    local = socket.socket(socket.AF_UNIX)
    local.bind(str(folder / "s"))
    local.listen()
    listen(plain)
    listen(covered, secret)
    listen(local)
    print(plain.getsockname()[1], covered.getsockname()[1], flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
