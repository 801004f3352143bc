"""A ledger behind a real PgBouncer in transaction mode: several callers of two processes on few server processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from safewrite.core.commands import Run
from safewrite.core.events import OutcomeState
from safewrite.ledger.sql import Ledger
from tests.ledger.driver import Caller
from tests.postgres import administering

PGBOUNCER = shutil.which("pgbouncer")
pytestmark = pytest.mark.skipif(
    PGBOUNCER is None, reason="no `pgbouncer` is on the PATH: install it to run these"
)

KEPT, CLEARED = "pool_size=1", "pool_size=2"
"""One server process for all, which knows what the first of them prepared; two that are cleared each time."""


@contextmanager
def bouncer(url: str, pool: str) -> Iterator[str]:
    """Give the URL of a PgBouncer in front of a server's database."""
    server = make_url(url)
    to = {**server.get_dialect()().create_connect_args(server)[1], "dbname": server.database}
    with tempfile.TemporaryDirectory(prefix="bouncer-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "ini").write_text(
            f"[databases]\nledger = {pool} {' '.join(f'{key}={value}' for key, value in to.items())}\n"
            f"[pgbouncer]\nlisten_addr =\nlisten_port = 6432\nunix_socket_dir = {folder}\nauth_type = any\n"
            "pool_mode = transaction\nserver_reset_query = DISCARD ALL\n"
            f"server_reset_query_always = {int(pool == CLEARED)}\n"
        )
        command = [str(PGBOUNCER), str(folder / "ini")]
        if os.getuid() == 0:  # it refuses to be root: it becomes who may reach the server's socket
            sockets = Path(str(to.get("host", "")))
            command[1:1] = ["-u", sockets.owner() if sockets.is_dir() else "nobody"]
        through = server.set(host=None, port=None, database="ledger", query={"host": name, "port": "6432"})
        with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as running:
            try:
                _wait_for(folder / ".s.PGSQL.6432", running)
                yield through.render_as_string(hide_password=False)
            except BaseException as error:
                error.add_note((folder / "log").read_text())
                raise
            finally:
                running.kill()


def _wait_for(socket: Path, running: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 10
    while not socket.exists():
        assert running.poll() is None, "it ended by itself"
        assert time.monotonic() < until, "it does not listen"
        with suppress(subprocess.TimeoutExpired):
            running.wait(0.02)


@pytest.mark.parametrize("pool", [KEPT, CLEARED])
def test_promises_hold_where_transactions_share_few_server_processes(
    postgres_ledger_url: str, pool: str
) -> None:
    """Callers of two processes want the same writes at once: each is licensed once, recorded, and verified."""
    with bouncer(postgres_ledger_url, pool) as url:
        with ProcessPoolExecutor(2, get_context("fork")) as processes:
            sent = [one for some in processes.map(_write_all, [url, url]) for one in some]
        assert Counter(sent) == dict.fromkeys(range(WISHES), 1)
        ledger = Ledger(url)
        found = [
            ledger.find(Caller(ledger, turn=str(n), target=f'"{n}"').identity.key) for n in range(WISHES)
        ]
        assert [intent and intent.state.outcome for intent in found] == [OutcomeState.APPLIED] * WISHES
        assert [intent and ledger.verify(intent.id) for intent in found] == [()] * WISHES
        with administering(postgres_ledger_url) as run:
            others = "datname = current_database() AND pid <> pg_backend_pid()"
            ((servers,),) = run(f"SELECT count(*) FROM pg_stat_activity WHERE {others}")
        assert 1 <= servers <= int(pool[-1])
        ledger.close()


WISHES = 8


def _write_all(url: str) -> list[int]:
    """Ask for every write in four threads at once, and carry out what is licensed; return what that was."""
    ledger = Ledger(url, busy_timeout=20.0)
    try:
        with ThreadPoolExecutor(4) as threads:
            written = threads.map(partial(_write, ledger), [*range(WISHES)] * 4)
            return [n for n, licensed in zip([*range(WISHES)] * 4, written, strict=True) if licensed]
    finally:
        ledger.close()


def _write(ledger: Ledger, n: int) -> bool:
    caller = Caller(ledger, turn=str(n), target=f'"{n}"')
    intent, command = caller.ask()
    if isinstance(command, Run):
        caller.end(intent)
    return isinstance(command, Run)
