"""A PostgreSQL server of one's own, for as long as some tests run; they are skipped where none is installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.core.wire import closed_port


@contextmanager
def postgres() -> Iterator[str]:
    """Start a server on a port of this machine and give its connection string; the server refuses to be root."""
    initdb, pg_ctl = shutil.which("initdb"), shutil.which("pg_ctl")
    user = _owner()
    if not initdb or not pg_ctl or user is None:
        pytest.skip("PostgreSQL is not installed here")
    folder = Path(tempfile.mkdtemp(prefix="safewrite-pg-"))
    shutil.chown(folder, user)
    data = folder / "data"
    try:
        _run(user, initdb, "-D", str(data), "-U", "tester", "-A", "trust", "-N")
        with closed_port() as port:
            pass
        options = f"-p {port} -k '' -c listen_addresses=127.0.0.1 -c fsync=off -c lc_messages=C"
        _run(user, pg_ctl, "-D", str(data), "-o", options, "-l", str(folder / "log"), "-w", "start")
        try:
            yield f"host=127.0.0.1 port={port} user=tester dbname=postgres"
        finally:
            _run(user, pg_ctl, "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _owner() -> str | None:
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


def _run(user: str, *command: str) -> None:
    as_user = user if os.geteuid() == 0 else None
    subprocess.run(command, check=True, user=as_user, capture_output=True, cwd="/", timeout=60)
