"""A ledger in a file of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from safewrite.ledger.sql import Ledger
from tests.ledger.driver import Caller


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's ledger is."""
    return tmp_path / "agent.db"


@pytest.fixture
def open_ledger(path: Path) -> Iterator[Callable[..., Ledger]]:
    """Opens ledgers on the test's file, and closes them."""
    opened: list[Ledger] = []

    def opening(**options: Any) -> Ledger:
        ledger = Ledger(options.pop("url", f"sqlite:///{path}"), **options)
        opened.append(ledger)
        return ledger

    yield opening
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Callable[..., Ledger]) -> Ledger:
    """A ledger on the test's file."""
    return open_ledger()


@pytest.fixture
def caller(ledger: Ledger) -> Caller:
    """A first call on the test's ledger."""
    return Caller(ledger)


@pytest.fixture
def locker(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program's connection to the same file."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    yield connection
    connection.close()
