"""Other libraries that run a tool at most once, each as its own documentation uses it, at the same durability.

They keep less: no row for each attempt, no audit, no chain.  `pip install -r benchmarks/peers.txt` installs them.
"""

from __future__ import annotations

import asyncio
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from benchmarks.floors import LOOK, WRITE
from benchmarks.guarded import threads
from benchmarks.measure import Case, each

Tool = Callable[[str], Any]
"""Cancels a subscription; a second time for the same one, it is a replay."""


def _get(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _cancel(sub_id: str, reason: str = "asked for it") -> dict[str, str]:
    return {"id": sub_id, "status": "cancelled"}


def _key(sub_id: str) -> str:
    return f"run-1:cancel:{sub_id}"


def _agent_once(store: Any) -> Tool:
    made = _get("once", "Once")(store=store)
    tool = made.tool(_cancel)

    def call(sub_id: str) -> Any:
        with made.scope("run-1"):
            return tool(sub_id)

    return call


def _exactly_once(store: Any) -> Tool:
    tool: Tool = _get("exactly_once", "once")(store, key=_key, fingerprint=_key)(_cancel)
    return tool


def _full(path: str) -> Any:
    store = _get("exactly_once", "Store").sqlite(path)
    store._conn.execute("PRAGMA synchronous = FULL")  # by itself it asks for less: NORMAL
    return store


def _justonce(store: Any) -> Tool:
    engine = _get("justonce.core", "Idempotent")(store)
    tool: Tool = _get("justonce.decorators", "idempotent")(key=_key, engine=engine)(_cancel)
    return tool


def _dbos(url: str) -> Tool:
    dbos, identity = _get("dbos", "DBOS"), _get("dbos", "SetWorkflowID")
    dbos(
        config={
            "name": "benchmarks",
            "system_database_url": url,
            "log_level": "CRITICAL",
            "run_admin_server": False,
        }
    )
    step = dbos.step(name="cancel_step")(_cancel)
    flow = dbos.workflow(name="cancel")(step)
    dbos.launch()

    def call(sub_id: str) -> Any:
        with identity(_key(sub_id)):
            return flow(sub_id)

    return call


def _idemkit(url: str) -> Tool:
    asyncio.run(_get("idemkit.backends.postgres", "init_pg")(url))
    backend = _get("idemkit.backends.postgres", "PostgresBackend").from_url(url)
    tool: Tool = _get("idemkit.adapters.ai", "idempotent_sync")(backend=backend)(_cancel)
    return tool


KNOWN: dict[str, dict[str, Callable[[str], Tool]]] = {
    "SQLite": {
        "agent-once": lambda path: _agent_once(_get("once", "SQLiteStore")(f"{path}/agent-once.db")),
        "exactly-once": lambda path: _exactly_once(_full(f"{path}/exactly-once.db")),
        "justonce": lambda path: _justonce(_get("justonce.stores", "SqliteStore")(f"{path}/justonce.db")),
        "dbos": lambda path: _dbos(f"sqlite:///{path}/dbos.db"),
    },
    "PostgreSQL": {
        "agent-once": lambda url: _agent_once(_get("once.postgres", "PostgresStore")(url)),
        "exactly-once": lambda url: _exactly_once(_get("exactly_once", "Store").postgres(url)),
        "justonce": lambda url: _justonce(_get("justonce.stores.postgres", "PostgresStore")(url)),
        "idemkit": _idemkit,
        "dbos": lambda url: _dbos(url.replace("postgresql://", "postgresql+psycopg://", 1)),
    },
}
"""What makes a peer's tool, by the database and its name in the index; takes a folder, or a URL as psycopg does."""


def cases(group: str, place: str, count: int) -> tuple[list[Case], list[str]]:
    """Return the cases of the peers that are installed, and a line for each that is not or does not start."""
    found, skipped = list[Case](), list[str]()
    for name, made in KNOWN[group].items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found += _cases(f"{name} {version(name)}", made(place), count)
        except (PackageNotFoundError, ImportError):
            skipped.append(f"{group}, {name}: not installed (pip install -r benchmarks/peers.txt).")
        except Exception as error:
            skipped.append(f"{group}, {name}: {type(error).__name__}: {error}".splitlines()[0])
    return found, skipped


def _cases(by: str, tool: Tool, count: int) -> Iterator[Case]:
    numbers, looks = itertools.count(), itertools.count()

    write = lambda: tool(f"sub_{next(numbers)}")  # noqa: E731
    again = lambda: tool(f"sub_{next(looks) % 4}")  # noqa: E731
    make = partial(Case, by=by, peer=True)
    yield make("one sync caller", lambda n: each(write, n), count, WRITE)
    yield make("32 threads", threads(write, 32), max(count, 32), WRITE)
    yield make("replay", lambda n: each(again, n), count, LOOK)


def close() -> None:
    """End what the peers have running in this process."""
    with suppress(ImportError):
        _get("dbos", "DBOS").destroy()
    with suppress(ImportError):
        _get("idemkit.core.sync_bridge", "_shutdown")()
