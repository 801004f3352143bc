"""A PostgreSQL server on a port of this machine, for as long as some tests run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.core.wire import closed_port
from tests.postgres import Own


@contextmanager
def postgres() -> Iterator[str]:
    """Start a server and give its connection string."""
    with tempfile.TemporaryDirectory(prefix="safewrite-pg-") as folder, Own(Path(folder) / "data") as own:
        with closed_port() as port:
            pass
        own.control("restart", "-m", "fast", listen=f"127.0.0.1 -p {port}")
        yield f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
