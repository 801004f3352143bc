"""A wire that is cut at one byte: closed, reset or stalled, on the way to a server or on the way back."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal

from tests.core.wire import reset

Way = Literal["to", "back"]
How = Literal["close", "reset", "stall"]
HOWS: Final[tuple[How, ...]] = ("close", "reset", "stall")
DEEP: Final = bool(os.environ.get("SAFEWRITE_DEEP"))
"""Take every byte, not a sample."""


def sample(total: int, step: int) -> range:
    """Return the bytes at which to cut: each of them, or each `step`-th, the last included."""
    return range(total + 1) if DEEP else range(total % step, total + 1, step)


class Cutter:
    """A proxy before a server.  Cuts once, at byte `at` of a way, counted over all connections."""

    def __init__(self, dial: Callable[[], socket.socket]) -> None:
        self._dial = dial
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.passed: dict[Way, int] = {"to": 0, "back": 0}
        self._cut: tuple[Way, int, How] | None = None
        self.struck = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def arm(self, way: Way, at: int, how: How) -> None:
        """Begin to count anew, and cut there."""
        self.passed, self._cut, self._stalled, self.struck = (
            {"to": 0, "back": 0},
            (way, at, how),
            False,
            False,
        )

    def mend(self) -> None:
        """End a stall by cutting what is open; what comes next passes."""
        self._cut = None
        while self._open:
            _shut(self._open.pop())

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = self._dial()
                for end in (client, server):
                    if end.family == socket.AF_INET:
                        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._open += (client, server)
                stalled = threading.Event()  # this connection alone
                for way, source, sink in (("to", client, server), ("back", server, client)):
                    threading.Thread(
                        target=self._pump, args=(way, source, sink, client, stalled), daemon=True
                    ).start()

    def _pump(
        self,
        way: Way,
        source: socket.socket,
        sink: socket.socket,
        client: socket.socket,
        stalled: threading.Event,
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if stalled.is_set():
                    return
                before = self.passed[way]
                self.passed[way] += len(data)
                if self._cut is None or self._cut[0] != way or self.passed[way] < self._cut[1]:
                    sink.sendall(data)
                    continue
                (_, at, how), self._cut = self._cut, None
                self.struck = True
                if how == "stall":
                    stalled.set()
                sink.sendall(data[: at - before])
                if how == "stall":
                    return
                if how == "reset":
                    client.shutdown(
                        socket.SHUT_RD
                    )  # wakes the other pump: while it reads, closing sends nothing
                    reset(client)
                break
        _shut(source, sink)

    def close(self) -> None:
        """Take no more."""
        _shut(self._listener)
        self.mend()


def _shut(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def cutter(dial: Callable[[], socket.socket]) -> Iterator[Cutter]:
    """Give a wire to whatever `dial` connects to."""
    made = Cutter(dial)
    try:
        yield made
    finally:
        made.close()
