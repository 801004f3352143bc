"""Faults that cannot be had from a real disk on demand, and looking from outside."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from safewrite.errors import LedgerUnavailable
from safewrite.ledger.sql import Ledger


def reason(caught: pytest.ExceptionInfo[LedgerUnavailable]) -> str:
    """Return the code of a refusal, which must have its cause and the words that nothing was sent."""
    error = caught.value
    assert error.__cause__ is not None
    assert "was not sent" in str(error)
    return error.reason


class Raw:
    """The driver's connection with a fault built in, for what cannot be had from a real disk on demand."""

    def __init__(self, raw: Any, fault: Callable[[str], None]) -> None:
        self._raw, self._fault = raw, fault

    def execute(self, sql: str, *parameters: Any) -> Any:
        self._fault(sql)
        return self._raw.execute(sql, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def break_writer(ledger: Ledger, fault: Callable[[str, Any], None]) -> None:
    """Put a fault into the connection that writes."""
    own = ledger._store._own()
    if own.writer is None:
        ledger.find("x")
    held = own.writer
    assert held is not None
    raw = held.raw._raw if isinstance(held.raw, Raw) else held.raw
    held.raw = Raw(raw, lambda sql: fault(sql, raw))


def error_of(code: int, message: str = "disk I/O error") -> sqlite3.OperationalError:
    """Return an error as the driver raises it."""
    error = sqlite3.OperationalError(message)
    error.sqlite_errorcode = code
    return error


def failure(work: Callable[[], object]) -> LedgerUnavailable | None:
    """Return the refusal that work ends with, if it does."""
    try:
        work()
    except LedgerUnavailable as error:
        return error
    return None


def open_files(path: Path) -> list[str]:
    """Return what this process has open of a database."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(str(link.readlink()))
    return [name for name in found if str(path) in name]


def in_child(work: Callable[[], object]) -> object:
    """Run in a forked child; return what it made, as JSON can hold it."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            try:
                told: object = work()
            except BaseException as error:
                told = f"{type(error).__name__}: {getattr(error, 'reason', error)}"
            os.write(send, json.dumps(told).encode())
        os._exit(0)
    os.close(send)
    with os.fdopen(receive) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text)
