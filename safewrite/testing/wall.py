"""The real world is closed while bodies are replayed: nobody is reached by accident.

It holds for the whole process: a body may send from a thread of its own.  Connections that are open already are
closed too.  What passes by Python, a driver that connects in C, cannot be held back, and is named instead.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from safewrite.context import current_attempt

PAST_PYTHON: Final = (
    "MySQLdb", "confluent_kafka", "curl_cffi", "grpc", "oracledb", "psycopg", "psycopg2", "pycurl", "pymssql",
    "pyodbc",
)  # fmt: skip
"""Modules whose connections are made in C."""
_NETWORK: Final = (
    "socket.connect", "socket.getaddrinfo", "socket.gethostby", "socket.sendmsg", "socket.sendto",
)  # fmt: skip
_PROCESSES: Final = (
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.spawn",
    "subprocess.",
)
_FILES: Final = (
    "os.chmod", "os.chown", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink",
    "os.truncate", "shutil.",
)  # fmt: skip
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SENDING: Final = ((socket.socket, ("send", "sendall")), (ssl.SSLSocket, ("send", "sendall", "write")))


class Closed(PermissionError):
    """Something reached for the real world in a replay.  Nothing was sent."""


_told: list[Callable[[str], None]] = []
"""Who is told of it; empty: the world is open."""
_hears: list[bool] = []


@contextmanager
def closed(told: Callable[[str], None]) -> Iterator[None]:
    """Close the real world; `told` hears what was tried, which raises `Closed`."""
    if not _hears:
        sys.addaudithook(_audit)  # Python has no way to take it away again
        _hears.append(True)
    with ExitStack() as opening:
        for kind, names in _SENDING:
            for name in names:
                opening.callback(_put_back, kind, name, vars(kind).get(name))
                setattr(kind, name, _guarded(getattr(kind, name), name))
        _told.append(told)
        opening.callback(_told.remove, told)
        yield


def _put_back(kind: type, name: str, own: object) -> None:
    if own is None:
        delattr(kind, name)
    else:
        setattr(kind, name, own)


def _guarded(send: Callable[..., Any], name: str) -> Callable[..., Any]:
    def guarded(self: socket.socket, *args: Any, **kwargs: Any) -> Any:
        if _told and not _to_itself(self):
            _refuse(f"`{name}` on an open connection")
        return send(self, *args, **kwargs)

    return guarded


def _to_itself(one: socket.socket) -> bool:
    """Whether it is half of a pair that has no name, as event loops wake themselves with."""
    return one.family == getattr(socket, "AF_UNIX", None) and not one.getsockname() and not one.getpeername()


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _told and _reaches_out(event, args):
        _refuse(f"`{event}` {args[1:] if event.startswith('socket.connect') else args!r}")


def _reaches_out(event: str, args: tuple[Any, ...]) -> bool:
    if event.startswith((*_NETWORK, *_PROCESSES)):
        return True
    if event == "sqlite3.connect":
        return str(args[0]) not in ("", ":memory:")
    if event == "open" or event.startswith(_FILES):
        return current_attempt() is not None and _writes(event, args)
    return False


def _writes(event: str, args: tuple[Any, ...]) -> bool:
    path = os.fsdecode(args[0]) if isinstance(args[0], str | bytes | os.PathLike) else ""
    if event == "open" and (not path or not args[2] & _WRITES):
        return False
    spared = path == os.devnull or "__pycache__" in path
    return not spared and not Path(path).absolute().is_relative_to(tempfile.gettempdir())


def _refuse(what: str) -> None:
    _told[-1](what)
    raise Closed(f"a replay reached for the real world: {what}")
