"""Writes to a database of your own that can be looked up, and SQL statements that end before we stop waiting for them.

`Markers` marks, `with bound_statements(connection): ...` bounds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast
from weakref import WeakSet

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.orm import Session

from safewrite.adapters._statements import bound_statements
from safewrite.attempt import Attempt
from safewrite.context import current_attempt
from safewrite.errors import ConfigurationError, NotSent, Rejected
from safewrite.ledger.codec import Codec
from safewrite.verdicts import Applied, NotApplied, StillRunning

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection  # needs greenlet

__all__ = ["Markers", "bound_statements"]

T = TypeVar("T")
Seen = Applied[Any] | NotApplied | StillRunning
_KEPT = 1000
"""Transactions whose end was not seen, remembered by one process."""
_STATUS = sa.text("SELECT pg_xact_status(CAST(:id AS xid8))")
_TERMINATE = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_xid = CAST(CAST(:id AS xid8) AS xid)"
)


class Markers:
    """Writes to a database of your own, each with a row that names its intent, in the same transaction.

    `table` is that of the rows: one for each intent, under its key.  Make it with your own migrations (`metadata` is
    yours) or by `markers.table.create(engine, checkfirst=True)`, and call `guard` at the start.

    - `name`, `schema`: of the table;
    - `fence`: a look that finds no row leaves one, so that an attempt that comes late is refused by the database, and
      the look is proof.  Default: True.  False: it only reads; then what PostgreSQL knows of the attempts' transactions
      is the proof, as long as this process lives;
    - `terminate`: a look ends the PostgreSQL session of an attempt that still holds its transaction open, and the next
      one finds out what became of it.  It needs the rights of the same role.  Default: False.

    The promises that hold for it: `Dependency("orders", key_retention=timedelta.max, read_lag=0.0)`, as long as no row
    is deleted and the database is no standby that may lose what was committed.  PostgreSQL and SQLite.
    """

    def __init__(
        self,
        metadata: sa.MetaData | None = None,
        *,
        name: str = "safewrite_marker",
        schema: str | None = None,
        fence: bool = True,
        terminate: bool = False,
    ) -> None:
        self.table = sa.Table(
            name,
            metadata if metadata is not None else sa.MetaData(),
            sa.Column("key", sa.String(255), primary_key=True),
            sa.Column("attempt", sa.Integer, nullable=False),
            sa.Column("applied", sa.Boolean, nullable=False),
            sa.Column("value", sa.Text),
            schema=schema,
        )
        self.fence, self.terminate = fence, terminate
        self._codec = Codec()
        self._begun: WeakSet[Attempt] = WeakSet()
        self._open: dict[tuple[str, int], str] = {}

    def guard(self, connection: Connection) -> None:
        """Check at the start that a marker would protect; of an async connection: `await c.run_sync(markers.guard)`.

        Raises `ConfigurationError` without the table or its primary key, under autocommit, for another database, and
        where PostgreSQL answers a commit before it is durable (`synchronous_commit = off`).
        """
        _in_transaction(connection)
        try:
            key = sa.inspect(connection).get_pk_constraint(self.table.name, self.table.schema)
        except NoSuchTableError:
            key = None
        if key is None or key["constrained_columns"] != ["key"]:
            raise ConfigurationError(
                f"there is no table `{self.table}` with the primary key `key`. Make it: "
                "`markers.table.create(engine, checkfirst=True)`."
            )
        if connection.dialect.name == "postgresql":
            durable = connection.scalar(sa.text("SHOW synchronous_commit"))
            if durable == "off":
                raise ConfigurationError(
                    "`synchronous_commit` is off: a crash of the server would take back what was reported as applied"
                )

    def write(self, source: Any, work: Callable[[Any], T]) -> T:
        """Do `work` in a transaction of its own, with the marker, and return what it returns, which is kept there.

        `source` is an engine or a `sessionmaker`; `work` is given the connection or session, and neither commits nor
        rolls back.  Every statement is bounded by what the attempt has left.  Of an intent that is marked as applied,
        the kept value is returned and nothing is done.

        Raises `NotSent` where a look has fenced this attempt, `Rejected` for a value that is not plain data, and
        `ConfigurationError` outside an attempt, for a second write of one attempt, and as `guard` does.
        """
        attempt = self._begin()
        with source.begin() as target:
            connection = target.connection() if isinstance(target, Session) else target
            with bound_statements(connection, attempt, _margin(attempt)):
                found = self._mark(connection, attempt)
                if found is not None:
                    return cast("T", self._value(found))
                value = work(target)
                if isinstance(target, Session):
                    target.flush()
                self._keep(connection, attempt, value)
        self._open.pop((attempt.key, attempt.number), None)
        return value

    async def awrite(self, source: Any, work: Callable[[Any], Awaitable[T]]) -> T:
        """Do as `write`, with an async engine or an `async_sessionmaker`, and `work` a coroutine function.

        Statements of aiosqlite are not bounded.
        """
        attempt = self._begin()
        async with source.begin() as target:
            session = hasattr(target, "flush")
            connection = await target.connection() if session else target
            with _bound_where_possible(connection, attempt):
                found = await connection.run_sync(self._mark, attempt)
                if found is not None:
                    return cast("T", self._value(found))
                value = await work(target)
                if session:
                    await target.flush()
                await connection.run_sync(self._keep, attempt, value)
        self._open.pop((attempt.key, attempt.number), None)
        return value

    def look(self, source: Any) -> Seen:
        """Return what became of the intent: for a reconcile function, on a connection of its own.

        Raises what the database does: such a read is inconclusive.
        """
        attempt = _current()
        with source.begin() as target:
            connection = target.connection() if isinstance(target, Session) else target
            with bound_statements(connection, attempt, _margin(attempt)):
                verdict, fence = self._look(connection, attempt)
        attempt.fence = fence  # only now that it is committed
        return verdict

    async def alook(self, source: Any) -> Seen:
        """Do as `look`, with an async engine or an `async_sessionmaker`."""
        attempt = _current()
        async with source.begin() as target:
            connection = await target.connection() if hasattr(target, "flush") else target
            with _bound_where_possible(connection, attempt):
                verdict, fence = await connection.run_sync(self._look, attempt)
        attempt.fence = fence
        return cast("Seen", verdict)

    def _begin(self) -> Attempt:
        attempt = _current()
        if attempt.reads or attempt in self._begun:
            raise ConfigurationError(
                f"`{attempt.id}` has written already, or only reads: one intent has one marker. Do all in one `work`."
            )
        self._begun.add(attempt)
        return attempt

    def _mark(self, connection: Connection, attempt: Attempt) -> Any:
        """Leave the marker; return the row that is there, if the intent is applied already."""
        _in_transaction(connection)
        made, row = self._put(connection, attempt, applied=True)
        if row is None:
            if made is not None:
                self._open[attempt.key, attempt.number] = made
                while len(self._open) > _KEPT:
                    del self._open[next(iter(self._open))]
            return None
        if not row.applied:
            raise NotSent(f"attempt {attempt.number} was refused: a look had found nothing, and fenced it")
        return row

    def _put(self, connection: Connection, attempt: Attempt, *, applied: bool) -> tuple[str | None, Any]:
        """Put this attempt's row where there is none, or an earlier fence; return its transaction, or what is there.

        While another transaction has put its own and is not over, the database makes this one wait.
        """
        rows, on_postgresql = self.table.c, connection.dialect.name == "postgresql"
        transaction = sa.cast(sa.func.pg_current_xact_id_if_assigned(), sa.String)
        values = {"attempt": attempt.number, "applied": applied}
        insert: Any = _insert(connection)(self.table).values(key=attempt.key, **values)
        earlier = ~rows.applied & (rows.attempt < attempt.number)
        put = insert.on_conflict_do_update(index_elements=[rows.key], set_=values, where=earlier)
        made = connection.execute(put.returning(transaction if on_postgresql else rows.key)).first()
        if made is not None:
            return (made[0] if on_postgresql else None), None
        return None, connection.execute(sa.select(self.table).where(rows.key == attempt.key)).one()

    def _keep(self, connection: Connection, attempt: Attempt, value: object) -> None:
        """Keep the value, as the last statement: where an earlier one failed, and was passed over, it fails, too."""
        kept = self._codec.encode(value)
        if kept.text is None:
            raise Rejected(
                f"the value cannot be kept with the marker ({kept.reason}): return plain data from `work`"
            )
        here = self.table.c.key == attempt.key
        if connection.execute(sa.update(self.table).where(here).values(value=kept.text)).rowcount != 1:
            raise RuntimeError(
                "the marker is gone: `work`, or a statement in it (`OR ROLLBACK`), undid all before"
            )

    def _value(self, row: Any) -> Any:
        return None if row.value is None else self._codec.decode(row.value)

    def _look(self, connection: Connection, attempt: Attempt) -> tuple[Seen, str]:
        known = [self._status(connection, attempt.key, n) for n in range(1, attempt.number + 1)]
        if "in progress" in known:
            return StillRunning(), ""
        if self.fence:
            _in_transaction(connection)
            row = self._put(connection, attempt, applied=False)[1]
        else:
            here = self.table.c.key == attempt.key
            row = connection.execute(sa.select(self.table).where(here)).first()
        if row is not None and row.applied:
            return Applied(self._value(row)), ""
        ended = "transaction_status" if all(one == "aborted" for one in known) else ""
        return NotApplied(), "marker" if self.fence else ended

    def _status(self, connection: Connection, key: str, number: int) -> str | None:
        """Return what PostgreSQL says of an attempt's transaction, where this process began it and saw no end."""
        transaction = self._open.get((key, number))
        if transaction is None:
            return None
        status: str | None = connection.scalar(_STATUS, {"id": transaction})
        if status == "in progress" and self.terminate:
            connection.execute(_TERMINATE, {"id": transaction})
        return status


def _current() -> Attempt:
    attempt = current_attempt()
    if attempt is None:
        raise ConfigurationError(
            "a marker names an intent: call this in the body of a write, or in its reconcile function"
        )
    return attempt


def _margin(attempt: Attempt) -> float:
    return min(0.5, attempt.remaining() / 4)


def _insert(connection: Connection) -> Any:
    """Return the `insert` of the database, which knows what to do on a conflict."""
    if connection.dialect.name not in ("postgresql", "sqlite"):
        raise ConfigurationError(
            f"`{connection.dialect.name}` cannot hold markers: PostgreSQL and SQLite can"
        )
    return import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert


def _in_transaction(connection: Connection) -> None:
    """Refuse a connection on which each statement would stand by itself."""
    _insert(connection)
    raw = cast("Any", connection.connection.dbapi_connection)
    alone = getattr(raw, "autocommit", None) is True
    if connection.dialect.name == "sqlite":
        raw = getattr(raw, "driver_connection", raw)
        alone = (alone or raw.isolation_level is None) and not raw.in_transaction
    if alone:
        raise ConfigurationError("under autocommit the marker and the write would not be one transaction")


@contextmanager
def _bound_where_possible(connection: AsyncConnection, attempt: Attempt) -> Iterator[None]:
    if connection.dialect.driver == "aiosqlite":
        yield
        return
    with bound_statements(connection, attempt, _margin(attempt)):
        yield
