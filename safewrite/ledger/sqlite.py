"""SQLite: how it is opened, what a unit of writing begins with, and what its errors mean."""

from __future__ import annotations

import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, create_engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import URL, Engine
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool, StaticPool

from safewrite.errors import ConfigurationError
from safewrite.ledger.statements import Statement, Statements, bound, statements
from safewrite.ledger.texts import stamp_text
from safewrite.ledger.ticks import monotonic
from safewrite.ledger.units import Trouble

_BUSY, _FULL, _CORRUPT = "ledger_busy", "ledger_full", "ledger_corrupt"
_READ_ONLY, _IO = "ledger_read_only", "ledger_io"

_REASONS: dict[int, str] = {
    sqlite3.SQLITE_BUSY: _BUSY,
    sqlite3.SQLITE_LOCKED: _BUSY,
    sqlite3.SQLITE_PROTOCOL: _BUSY,
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _IO,
    sqlite3.SQLITE_IOERR: _IO,
    sqlite3.SQLITE_CORRUPT: _CORRUPT,
    sqlite3.SQLITE_NOTADB: _CORRUPT,
    sqlite3.SQLITE_CONSTRAINT: "ledger_conflict",
    sqlite3.SQLITE_SCHEMA: "ledger_schema",
}
_SCHEMA_WORDS = ("no such table", "no such column", "has no column named")

_PAUSE = 0.005


class SQLite:
    """A SQLite database, by its URL.  Opens nothing by itself.

    The driver is left in autocommit, so that transactions begin and end where the ledger says.
    """

    dialect = "sqlite"
    errors: tuple[type[Exception], ...] = (sqlite3.Error,)
    makes_tables = True
    """The first use makes them, or upgrades them."""
    place = "file"
    to_upgrade = "run `safewrite db upgrade`"
    begin = "BEGIN IMMEDIATE"
    """A unit that writes takes the write lock first: a reader that turns writer fails at once when beaten to it."""

    def __init__(self, url: URL, busy_timeout: float) -> None:
        if url.get_driver_name() != "pysqlite":
            raise ConfigurationError(
                f"`{_shown(url)}` names a driver that cannot be used. Write `sqlite:///path/to/agent.db`."
            )
        _check_options(url)
        name = url.database or ""
        self.memory = name in ("", ":memory:") or "mode=memory" in str(url)
        self.path = None if self.memory or name.startswith("file:") else Path(name)
        self.url = url
        self.engine = self._engine(busy_timeout)
        self.sql: Statements = statements(_DIALECT)

    def _engine(self, busy_timeout: float) -> Engine:
        return create_engine(
            self.url,
            poolclass=StaticPool if self.memory else NullPool,
            connect_args={"isolation_level": None, "check_same_thread": False, "timeout": busy_timeout},
        )

    def compiled(self, statement: Any) -> Statement:
        """Return a statement that carries its own values, as this driver takes it."""
        return bound(statement, _DIALECT)

    stamp = staticmethod(stamp_text)
    """Return an instant as a column holds it."""

    # Opening -----------------------------------------------------------------------------------------------------

    def connect(self) -> Any:
        """Return a pooled connection whose driver's own is ready for reading.

        Raises `ConfigurationError`, or `Trouble` where it is only busy; so does `make_durable`.
        """
        self.check_path()
        pooled: Any = None
        try:
            pooled = self.engine.raw_connection()
            raw = pooled.driver_connection
            raw.execute("PRAGMA foreign_keys = ON")
            raw.execute("PRAGMA synchronous = FULL")
            raw.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()
        except self.errors as error:
            if pooled is not None:
                pooled.close()
            raise self.refusal(error) from error
        return pooled

    def make_durable(self, raw: Any, until: float) -> None:
        """Make a connection ready for writing: a log written ahead, so that readers never wait.

        Changing to it needs the file alone for a moment, and does not wait by itself.
        """
        if self.memory:
            return
        mode = ""
        while not mode:
            try:
                mode = raw.execute("PRAGMA journal_mode = WAL").fetchall()[0][0]
            except self.errors as error:
                if self.reason(error) != _BUSY or monotonic() >= until:
                    raise self.refusal(error) from error
                time.sleep(_PAUSE)
        if mode != "wal":
            raise ConfigurationError(
                f"The ledger {self.named} cannot be written safely: its journal mode is `{mode}` and does not change "
                "to `wal`. It is read-only, or on a file system without shared memory (a network share). Nothing was "
                "sent. Use a file on a local disk."
            )
        try:
            # The store waits by itself from here on, and more fairly.
            raw.execute("PRAGMA busy_timeout = 0")
        except self.errors as error:
            raise self.refusal(error) from error

    def check_path(self) -> None:
        """Raise `ConfigurationError` for a path that no file can be made at."""
        if self.path is None:
            return
        try:
            here, above = _mode(self.path), _mode(self.path.parent)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"The ledger {self.named} cannot be reached: {error}. Nothing was sent. Look at the path, and at the "
                "rights of its folders."
            ) from error
        if stat.S_ISDIR(here):
            raise ConfigurationError(
                f"The ledger {self.named} is a folder. Nothing was sent. Name a file in it, such as "
                f"`{self.path / 'safewrite.db'}`."
            )
        if not above:
            raise ConfigurationError(
                f"The ledger {self.named} lies in a folder that is not there. Nothing was sent. "
                f"Make it (`mkdir -p {self.path.parent}`), or name another file."
            )

    # Its tables --------------------------------------------------------------------------------------------------

    @contextmanager
    def upgrading(self, wait: float) -> Iterator[Connection]:
        """Yield a connection in a transaction that only one upgrade is in at a time; it is committed at the end."""
        with self.engine.connect() as connection:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(wait * 1000)}")
            # The driver is in autocommit: this is what begins the transaction, before anything is looked at.
            connection.exec_driver_sql(self.begin)
            yield connection
            connection.commit()

    def names(self, raw: Any) -> set[str]:
        """Return the names of everything in the database."""
        return {name for (name,) in raw.execute("SELECT name FROM sqlite_master").fetchall()}

    # What errors mean --------------------------------------------------------------------------------------------

    @property
    def named(self) -> str:
        """The database, as messages call it."""
        return f"`{self.path or _shown(self.url)}`"

    def reason(self, error: BaseException) -> str:
        """Return the stable code for an error of the driver."""
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return "ledger_error"
        if any(words in str(error) for words in _SCHEMA_WORDS):
            return "ledger_schema"
        return _REASONS.get(code & 0xFF, "ledger_error")

    def may_repeat(self, error: BaseException, raw: Any) -> bool:
        """Whether a failed commit left the transaction as it was, to be committed again."""
        return self.reason(error) == _BUSY and bool(raw.in_transaction)

    def refusal(self, error: BaseException) -> Trouble | ConfigurationError:
        """Return what to raise for a database that cannot be opened, or not be written at all."""
        if self.reason(error) == _BUSY:
            return Trouble(_BUSY)
        what = {
            _READ_ONLY: "is read-only. Make the file and its folder writable for this process",
            _CORRUPT: "is not a SQLite database, or is damaged. Name another file, or restore it from a backup",
            _IO: "cannot be opened. Look at the rights of the file and its folder, and at the disk",
            _FULL: "cannot be written: the disk is full, or a limit is reached. Make room",
        }.get(self.reason(error), "cannot be used")
        return ConfigurationError(f"The ledger {self.named} {what}. Nothing was sent. SQLite says: {error}.")


_DIALECT = SQLiteDialect_pysqlite(paramstyle="qmark")


def _check_options(url: URL) -> None:
    """Raise `ConfigurationError` for options in a URL that would be ignored, or that the driver chokes on."""
    ignored = {} if "uri" in url.query else url.query
    try:
        _DIALECT.create_connect_args(url.set(query={}) if ignored else url)
        why = f"its options {', '.join(ignored)} mean nothing to SQLite" if ignored else ""
    except (ArgumentError, TypeError, ValueError) as error:
        why = " ".join(str(error).split()[:12])
    if why:
        raise ConfigurationError(
            f"`{_shown(url)}` cannot be used: {why}. Write `sqlite:///path/to/agent.db`, or "
            "`sqlite:///file:path/to/agent.db?mode=ro&uri=true`. Times to wait are settings."
        )


def _mode(path: Path) -> int:
    """Return the kind and rights of what a path leads to; 0: nothing is there."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return 0


def _shown(url: URL) -> str:
    return url.render_as_string(hide_password=True)
