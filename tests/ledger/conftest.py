"""A ledger of a test's own: in a file, and again in PostgreSQL where a test knows of no file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from safewrite.ledger.lines import Leg
from safewrite.ledger.sql import Ledger
from tests.ledger.driver import Caller, moment
from tests.postgres import _ledger_url, postgres_ledger_url

__all__ = ["_ledger_url", "postgres_ledger_url"]


ONLY_FILES = {"path", "locker"}
"""Fixtures that know of a file."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each database, if it is about neither."""
    names = set(metafunc.fixturenames)
    if "ledger_url" in names:
        file = names & ONLY_FILES or metafunc.definition.get_closest_marker("sqlite")
        metafunc.parametrize("ledger_url", ["sqlite"] if file else ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the test's ledger; its leases run by the time that the tests tell, whatever the database's clock."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'agent.db'}"
    asking, told = Ledger.asking, [moment()]

    def ask(ledger: Ledger, ticket: Any, call: Any, at: Any, meta: Any) -> Any:
        told[:] = [at]
        return asking(ledger, ticket, call, at, meta)

    monkeypatch.setattr(Ledger, "asking", ask)
    monkeypatch.setattr(Leg, "moment", lambda *_: told[0]._replace(clock="db:test"))
    return str(request.getfixturevalue("postgres_ledger_url"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's ledger is, in a file."""
    return tmp_path / "agent.db"


@pytest.fixture
def open_ledger(ledger_url: str) -> Iterator[Callable[..., Ledger]]:
    """Opens ledgers on the test's database, and closes them."""
    opened: list[Ledger] = []

    def opening(**options: Any) -> Ledger:
        ledger = Ledger(options.pop("url", ledger_url), **options)
        opened.append(ledger)
        return ledger

    yield opening
    for ledger in opened:
        ledger.close()


@pytest.fixture
def ledger(open_ledger: Callable[..., Ledger]) -> Ledger:
    """A ledger on the test's database."""
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
