"""SQL statements that end before we stop waiting for them.

On PostgreSQL every statement in the block is preceded by `SET LOCAL statement_timeout`, which ends with the
transaction and so never reaches the pool; on SQLite a progress handler interrupts it, and is taken off again.  The
limit lies a margin inside what is left, so that the database's error, which proves that the statement did nothing,
arrives while somebody still listens.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session

from safewrite.context import current_deadline
from safewrite.deadline import LegNotSent, Remaining
from safewrite.durations import Duration, seconds
from safewrite.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection  # needs greenlet

_EVERY = 1000
"""Instructions of SQLite's machine between two looks at the clock."""
_MOST = 2_147_483_647
"""Milliseconds that PostgreSQL takes at most."""


@contextmanager
def bound_statements(
    target: Connection | AsyncConnection | Session, deadline: Remaining | None = None, margin: Duration = 0.5
) -> Iterator[None]:
    """Bound every statement that `target` runs in this block by what is left of `deadline`, less `margin` seconds.

    `deadline` is by default the tightest around this code (attempt, run, request); where there is none, nothing is
    bound.  Of an `AsyncSession` pass `await session.connection()`.  On PostgreSQL the last limit holds until the
    transaction ends; SQLite's one progress handler is replaced.

    Raises `LegNotSent` (a `BudgetExhausted`) in place of a statement for which less than a millisecond would be left,
    and `ConfigurationError` where no transaction is open, under autocommit, and for other databases.
    """
    limit = _Limit(deadline or current_deadline(), seconds(margin, name="margin", allow_zero=True))
    if limit.deadline is None:
        yield
        return
    connection = _connection(target)
    limit.milliseconds()
    with _bound(connection, limit):
        yield


class _Limit:
    def __init__(self, deadline: Remaining | None, margin: float) -> None:
        self.deadline, self.margin = deadline, margin

    def left(self) -> float:
        return self.deadline.remaining() - self.margin if self.deadline is not None else 0.0

    def milliseconds(self) -> int:
        """Return the limit of a statement that begins now: never zero, which databases take for no limit at all."""
        left = self.left()
        if (whole := int(min(left * 1000 + 1e-6, _MOST))) > 0:
            return whole
        raise LegNotSent(
            f"the statement was not sent: {left + self.margin:.4f} s are left, of which {self.margin:g} s are `margin`",
            reason="budget_exhausted",
        )


def _connection(target: Connection | AsyncConnection | Session) -> Connection:
    """Return the connection of an open transaction.  No I/O."""
    connection = getattr(target, "sync_connection", target)
    if isinstance(target, Session):
        connection = target.connection()
    if not isinstance(connection, Connection):
        raise ConfigurationError(
            f"`bound_statements` got {target!r}. Pass a connection: `await session.connection()`."
        )
    raw = cast("Any", connection.connection.dbapi_connection)
    name = connection.dialect.name
    if not (name == "postgresql" or isinstance(raw, sqlite3.Connection)):
        raise ConfigurationError(f"statements of `{name}+{connection.dialect.driver}` cannot be bound")
    if not connection.in_transaction() or (name == "postgresql" and cast("Any", raw).autocommit):
        raise ConfigurationError(
            "`bound_statements` outside a transaction (or under autocommit) would bound nothing. Open one first: "
            "`with engine.begin() as connection:`."
        )
    return connection


@contextmanager
def _bound(connection: Connection, limit: _Limit) -> Iterator[None]:
    raw = cast("Any", connection.connection.dbapi_connection)

    def on_postgresql() -> None:
        cursor = connection.connection.cursor()
        try:
            cursor.execute(f"SET LOCAL statement_timeout = {limit.milliseconds()}")
        finally:
            cursor.close()

    def on_sqlite() -> None:
        limit.milliseconds()
        raw.set_progress_handler(lambda: limit.left() <= 0.0, _EVERY)

    def lift(*_: object) -> None:
        with suppress(sqlite3.ProgrammingError):  # it is closed
            raw.set_progress_handler(None, 0)

    on_sqlite_file = isinstance(raw, sqlite3.Connection)
    bind = on_sqlite if on_sqlite_file else on_postgresql

    def before(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        # After a failed statement PostgreSQL takes nothing but this, and undoing needs no limit.
        if not statement.lstrip().upper().startswith("ROLLBACK"):
            bind()

    events: dict[str, Any] = {"before_cursor_execute": before}
    if on_sqlite_file:
        # The end of a transaction may give the connection to somebody else, while the block goes on.
        events |= {"commit": lift, "rollback": lift}
    for name, listener in events.items():
        event.listen(connection, name, listener)
    try:
        yield
    finally:
        for name, listener in events.items():
            event.remove(connection, name, listener)
        if "commit" in events:
            lift()
