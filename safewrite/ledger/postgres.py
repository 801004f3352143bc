"""PostgreSQL: how it is reached, what a unit of writing begins with, and what its errors mean.

Nothing that is needed stays set on a connection between two transactions, so that a pooler may give each to another
server process: no `SET` of the session, no lock beyond a transaction.  Statements are prepared, for to plan them takes
longer than to carry them out; where a server process does not know them, they are sent whole from then on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, create_engine
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.engine import URL, Dialect
from sqlalchemy.exc import ArgumentError
from sqlalchemy.pool import NullPool

from safewrite.errors import ConfigurationError
from safewrite.ledger.statements import (
    CLOCK,
    PREPARED,
    VERSION_TABLE,
    Statement,
    Statements,
    bound,
    statements,
)
from safewrite.ledger.tables import metadata
from safewrite.ledger.texts import stamp
from safewrite.ledger.units import Hold, Trouble

if TYPE_CHECKING:
    from safewrite.ledger.lines import Limited

OLDEST = 140_000
"""The oldest server that is known to do, as it numbers itself."""
_SLACK = 1.0
"""Seconds beyond the server's own limits after which it is taken to be gone."""

_BUSY, _UNREACHABLE, _READ_ONLY, _SCHEMA = (
    "ledger_busy",
    "ledger_unreachable",
    "ledger_read_only",
    "ledger_schema",
)
_DENIED = "ledger_denied"
_REASONS = {
    "40001": _BUSY, "40P01": _BUSY, "55P03": _BUSY, "57014": _BUSY, "53300": _BUSY,
    "25006": _READ_ONLY,
    "42501": _DENIED,
    "3F000": _SCHEMA, "42P01": _SCHEMA, "42703": _SCHEMA,
    "53100": "ledger_full",
    "58030": "ledger_io",
    "XX001": "ledger_corrupt", "XX002": "ledger_corrupt",
}  # fmt: skip
_CLASSES = {"08": _UNREACHABLE, "57": _UNREACHABLE, "23": "ledger_conflict"}
_LATER = ("starting up", "shutting down", "recovery", "too many", "connection slots", "resolve host")
"""Words of a server that will take connections later on, or of a way to it that passes then."""

_NEEDED = {
    "safewrite_intent": ("SELECT", "INSERT", "UPDATE"),
    "safewrite_audit": ("SELECT", "INSERT"),
    "safewrite_content": ("SELECT", "INSERT"),
    "safewrite_object": ("SELECT", "INSERT"),
    "safewrite_recovery": ("SELECT", "INSERT", "UPDATE", "DELETE"),
}


class PostgreSQL:
    """A PostgreSQL database, by its URL.  Opens nothing by itself.

    `schema`: where the tables are; default: the first schema on the role's search path.  Limits are in seconds.
    """

    dialect = "postgresql"
    memory = False
    path: Path | None = None
    makes_tables = False
    """Several applications may share it: its tables are made and changed only when somebody asks."""
    place = "database or schema"

    def __init__(
        self,
        url: URL,
        *,
        busy_timeout: float,
        connect_timeout: float,
        statement_timeout: float,
        schema: str | None,
    ) -> None:
        if url.drivername not in ("postgresql", "postgresql+psycopg"):
            raise ConfigurationError(
                f"`{_shown(url)}` names a driver that cannot be used. Write `postgresql+psycopg://…`."
            )
        if schema is not None and not (isinstance(schema, str) and schema.strip()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f"`schema` is {schema!r}. Write the name of a schema, or leave it out.")
        try:
            from safewrite.ledger import lines
        except ImportError as error:
            raise ConfigurationError(
                "A ledger in PostgreSQL needs psycopg, which is not installed here. Run `pip install "
                "'safewrite[postgres]'`."
            ) from error
        self.url, self.schema = url.set(drivername="postgresql+psycopg"), schema
        # The command knows only the URL: it would make the tables where that leads.
        self.to_upgrade = "run `safewrite db upgrade`, or call `sw.upgrade()`"
        if schema is not None:
            self.to_upgrade = f"call `sw.upgrade()` of a `SafeWrite` with `schema={schema!r}`"
        self.errors: tuple[type[Exception], ...] = lines.ERRORS
        self.sql: Statements = statements(_DIALECT, schema)
        self.limit = busy_timeout + statement_timeout + _SLACK
        self.timeout = _milliseconds(statement_timeout)
        self._lock_timeout = _milliseconds(busy_timeout)
        self._open = lines.Limited.connect
        self._arguments = {
            "application_name": "safewrite",
            "connect_timeout": max(1, math.ceil(connect_timeout)),
            **_arguments(self.url),
            "client_encoding": "utf8",
        }

    def compiled(self, statement: Any) -> Statement:
        """Return a statement that carries its own values, as this driver takes it."""
        return bound(statement, _DIALECT, self.schema)

    def stamp(self, unix: float) -> datetime:
        """Return an instant as a column holds it."""
        return stamp(unix)

    # Opening -----------------------------------------------------------------------------------------------------

    def connect(self) -> Limited:
        """Return a connection in autocommit.  Raises `ConfigurationError`, or `Trouble` where it may work later."""
        raw = None
        try:
            raw = self._open(**self._arguments, autocommit=True, prepare_threshold=None)
            raw.limit = self.limit
            self._fit(raw)
            found = raw.execute("SELECT system_identifier FROM pg_control_system()").fetchall()
            raw.clock = f"db:{found[0][0]}"
        except self.errors as error:
            if raw is not None:
                raw.close()
            raise self.refusal(error) from error
        except BaseException:
            if raw is not None:
                raw.close()
            raise
        return raw

    def _fit(self, raw: Limited) -> None:
        told = raw.info.parameter_status
        for name, wanted, found in (
            ("version", "14 or newer", str(raw.info.server_version) if raw.info.server_version < OLDEST else ""),
            ("encoding", "UTF8", _unless(told("server_encoding"), "UTF8")),
            ("DateStyle", "ISO", _unless(told("DateStyle"), "ISO")),
        ):  # fmt: skip
            if found:
                raise ConfigurationError(
                    f"The ledger {self.named} cannot be used: its {name} is {found}, and must be {wanted}."
                )

    def usable(self, raw: Limited) -> None:
        """Raise `ConfigurationError` for a database that is not to be written, or not by this role."""
        if "on" in (
            raw.info.parameter_status(name) for name in ("in_hot_standby", "default_transaction_read_only")
        ):
            raise self._refused(_READ_ONLY)
        asked = ", ".join(f"('{table}', '{right}')" for table in _NEEDED for right in _NEEDED[table])
        connection: Any = raw  # psycopg takes literal texts only
        try:
            found = connection.execute(
                f"SELECT t, r FROM (VALUES {asked}) AS n(t, r) "  # noqa: S608
                "WHERE NOT has_table_privilege(%s || t, r)",
                (f"{_quoted(self.schema)}." if self.schema is not None else "",),
            ).fetchall()
        except self.errors as error:
            raise self.refusal(error) from error
        if found:
            lacks = ", ".join(f"{right} on `{table}`" for table, right in found)
            raise self._refused(_DENIED, f" The role `{raw.info.user}` lacks {lacks}.")

    def prepare(self, raw: Limited) -> bool:
        """Prepare what every call sends; return whether that could be done."""
        try:
            raw.execute("; ".join(getattr(self.sql, name).prepare for name in PREPARED).encode())
        except self.errors:  # a pooler lent this server process before; a line that is lost tells nothing
            return bool(raw.closed)
        return True

    def check_path(self) -> None:
        """There is none."""

    # Transactions ------------------------------------------------------------------------------------------------

    def opening(self, locks: tuple[Hold, ...]) -> str:
        """Return what begins a transaction that writes: its settings, the locks it holds, and the server's clock.

        The locks come first, in a statement of their own: what is looked at afterwards is what their last holder
        left.  Only READ COMMITTED shows that.
        """
        taken = "".join(
            f"pg_advisory_xact_lock{'_shared' * lock.shared}({lock.number}), " for lock in sorted(locks)
        )
        return (
            "BEGIN ISOLATION LEVEL READ COMMITTED; "
            f"SELECT set_config('statement_timeout', '{self.timeout}', true), "
            f"set_config('lock_timeout', '{self._lock_timeout}', true), "
            "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
            "WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, true); "
            f"SELECT {taken}{CLOCK}; "
        )

    @contextmanager
    def upgrading(self, wait: float) -> Iterator[Connection]:
        """Yield a connection in a transaction that only one upgrade is in at a time; it is committed at the end."""
        engine = create_engine(
            self.url,
            poolclass=NullPool,
            connect_args={**self._arguments, "prepare_threshold": None},
            # Only it shows, behind the lock, what the upgrade before this one has made.
            isolation_level="READ COMMITTED",
        )
        with engine.connect() as connection:
            run = connection.exec_driver_sql
            limit = _milliseconds(wait)
            run(f"SET LOCAL statement_timeout = {limit}")
            run(f"SET LOCAL lock_timeout = {limit}")
            run(f"SELECT pg_advisory_xact_lock({Hold(VERSION_TABLE).number})")
            if self.schema is not None:
                schema = _quoted(self.schema)
                if run("SELECT to_regnamespace(%s)", (schema,)).scalar() is None:
                    run(f"CREATE SCHEMA {schema}")
                run(f"SET LOCAL search_path = {schema}")
            yield connection
            connection.commit()

    def names(self, raw: Any) -> set[str]:
        """Return the names of our tables, views and (if they always fire) triggers."""
        place = "pg_table_is_visible(c.oid)" if self.schema is None else "n.nspname = %s"
        tables = f"FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE {place}"
        found = raw.execute(
            f"SELECT c.relname {tables} AND c.relkind IN ('r', 'p', 'v') UNION ALL "  # noqa: S608
            f"SELECT t.tgname FROM pg_trigger AS t WHERE t.tgenabled = 'A' AND t.tgrelid IN (SELECT c.oid {tables})",
            (self.schema,) * 2 if self.schema is not None else (),
        )
        return {str(name) for (name,) in found.fetchall()}

    # What errors mean --------------------------------------------------------------------------------------------

    @property
    def named(self) -> str:
        """The database, as messages call it."""
        return f"`{_shown(self.url)}`" + (f", schema `{self.schema}`" if self.schema is not None else "")

    def reason(self, error: BaseException) -> str:
        """Return the stable code for an error of the driver."""
        from safewrite.ledger import lines

        code = getattr(error, "sqlstate", None)
        if code is None:
            return _UNREACHABLE if isinstance(error, lines.LOST) else "ledger_error"
        return _REASONS.get(code) or _CLASSES.get(code[:2], "ledger_error")

    def beaten(self, error: BaseException) -> bool:
        """Whether another unit was quicker: this one is undone, and is to be run again as a whole."""
        return getattr(error, "sqlstate", None) in ("40001", "40P01", "23505")

    def refusal(self, error: BaseException) -> Trouble | ConfigurationError:
        """Return what to raise for a database that cannot be opened, or not be written at all."""
        reason, said = self.reason(error), " ".join(str(error).split())
        if reason in (_BUSY, _UNREACHABLE) and not _rejected(error, said):
            return Trouble(reason)
        return self._refused(reason, f" PostgreSQL says: {said}.")

    def _refused(self, reason: str, why: str = "") -> ConfigurationError:
        what = {
            _READ_ONLY: "is read-only: a replica, or a role that may not write. Name the primary server",
            _DENIED: "may not be used as it is: see `docs/howto/use-postgresql.md` for the rights that a role needs",
            _UNREACHABLE: "refuses the connection. Look at host, database, user and password in the URL",
        }.get(reason, "cannot be used")
        return ConfigurationError(f"The ledger {self.named} {what}. Nothing was sent.{why}")


_DIALECT: Dialect = PGDialect(paramstyle="format")  # type: ignore[no-untyped-call]
"""Statements as psycopg takes them, with values that it writes into the text: no cast is needed then."""


def _arguments(url: URL) -> dict[str, Any]:
    """Return what a URL tells libpq.  Raises `ConfigurationError` for what libpq does not know."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import make_conninfo

    try:
        arguments = dict(url.get_dialect()().create_connect_args(url)[1])
        make_conninfo("", **arguments)
    except (ArgumentError, ProgrammingError) as error:
        said = " ".join(str(error).split())
        raise ConfigurationError(f"`{_shown(url)}` cannot be used: {said}.") from error
    return arguments


def _rejected(error: BaseException, said: str) -> bool:
    """Whether it was understood and refused, so that waiting does not help.  A failed login has no code."""
    if getattr(error, "sqlstate", None) is not None:
        return False
    if any(words in said for words in _LATER):
        return False
    return "FATAL" in said or any(words in said for words in ("password", "invalid", "SSL"))


def _unless(found: str | None, wanted: str) -> str:
    return "" if found is None or found.startswith(wanted) else found


def _milliseconds(seconds: float) -> int:
    return int(min(max(seconds * 1000, 1), 2**31 - 1))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _shown(url: URL) -> str:
    hidden = {name: "***" for name in url.query if "password" in name}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


assert set(_NEEDED) == set(metadata.tables)
