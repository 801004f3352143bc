"""Lines to PostgreSQL: psycopg's connections with a limit, and units whose statements share their messages.

What begins a transaction travels with its first statement, and the commit with its last: a quiet claim is two
messages, a quiet record one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.adapt import Transformer
from psycopg.pq import TransactionStatus

from safewrite.core.events import Moment
from safewrite.ledger.statements import Statement
from safewrite.ledger.ticks import monotonic
from safewrite.ledger.units import Columns, Unit

T = TypeVar("T")

ERRORS: tuple[type[Exception], ...] = (psycopg.Error,)
LOST: tuple[type[Exception], ...] = (psycopg.OperationalError, psycopg.InterfaceError)

_SETTINGS = 2
"""Results before the one that holds the server's clock: those of BEGIN and of the settings."""


class Limited(psycopg.Connection[Any]):
    """A connection on which no message waits for its answer longer than `limit` seconds, whatever the server does.

    Values are written into the statements here (as literals, by psycopg), so that one message can hold several.
    """

    limit: float = 5.0
    clock: str = ""
    """What names the server's clock."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cursor_factory = psycopg.ClientCursor
        self._literals = Transformer(self)

    def written_out(self, text: str, values: tuple[Any, ...]) -> bytes:
        """Return a statement with its values in it.  psycopg's own way takes long texts apart anew each time."""
        literal = self._literals.as_literal
        return text.encode() % tuple(b"NULL" if value is None else literal(value) for value in values)

    def wait(self, gen: Generator[Any, Any, T], interval: float = 0.1, timeout: float | None = None) -> T:  # noqa: ARG002
        """Carry out what psycopg does on the wire; give the connection up where that takes too long."""
        return waiting.wait(_limited(gen, monotonic() + self.limit), self.pgconn.socket, interval)

    def __del__(self, *_: Any) -> None:
        """The ledger closes it, or the end of its process does: a forked child has no say in it."""

    @property
    def settled(self) -> bool:
        """Whether it is open and in no transaction."""
        return not self.closed and self.info.transaction_status is TransactionStatus.IDLE

    @property
    def busy(self) -> bool:
        """Whether a message is under way: its answer was not waited for to the end."""
        return self.info.transaction_status is TransactionStatus.ACTIVE

    @property
    def alive(self) -> bool:
        """Whether the server, as far as it has told, still holds this connection, which is not in use."""
        try:
            self.pgconn.consume_input()
        except ERRORS:
            return False
        return self.settled


def _limited(gen: Generator[Any, Any, T], until: float) -> Generator[Any, Any, T]:
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and monotonic() >= until:
                raise psycopg.OperationalError("the server did not answer in time")
            wanted = gen.send(ready)
    except StopIteration as stop:
        result: T = stop.value
        return result


@dataclass(eq=False, slots=True)
class Leg(Unit):
    """A unit on a line: inside the transaction that `opening` begins, or, without one, statements by themselves."""

    line: Any = None
    opening: str = ""
    eager: bool = False
    """Send what `write` is given at once, and look at what came of it."""
    prepared: bool = False
    """Send the names of statements that are prepared on this line, not their texts."""
    committing: bool = False
    """The commit is under way, or was when the connection was lost."""
    begun: bool = False
    _clock: float = 0.0
    _last: tuple[Statement, Columns, bool] | None = None

    def execute(self, statement: Statement, parameters: Columns) -> Any:
        """Run a statement; return the driver's cursor with its result."""
        return self._send(statement, statement.places(parameters))

    def write(
        self, intent: Columns, rows: Sequence[Columns], contents: Sequence[Columns], *, new: bool
    ) -> bool:
        """Write an intent's row, what led to it, and the contents of that.

        Where one statement can do it all it is kept back for `finish`, and taken to succeed: nothing comes after it.
        """
        sql = self.sql
        plain, keeping = (sql.create, sql.create_keeping) if new else (sql.advance, sql.advance_keeping)
        first, *others = rows
        given = {**intent, **{f"row_{name}": value for name, value in first.items()}}
        if contents:
            given |= {f"kept_{name}": value for name, value in contents[0].items()}
        statement = keeping if contents and keeping is not None else plain
        if not (others or contents[1:] or self.eager):
            self._last = (statement, given, new)
            return True
        if not self.rows(statement, given):
            return False
        for row in others:
            self.run(sql.append, row)
        for kept in contents[1:]:
            self.run(sql.keep, kept)
        return True

    def moment(self, reading: Any = None) -> Moment | None:
        """Return an instant by the server's clock."""
        unix = float(self._clock if reading is None else reading)
        return Moment(unix, unix, self.line.clock)

    def finish(self) -> bool:
        """Commit, with what was kept back; False: the intent has moved on, and nothing was written."""
        if self._last is not None:
            statement, given, new = self._last
            # In one message where it cannot miss, or there is nothing else to be taken back if it does.
            whole = new or not self.begun
            if not self._send(statement, statement.places(given), commit=whole).fetchall():
                return False
            if whole:
                return True
        if self.begun:
            self._send(None, (), commit=True)
        return True

    def _send(self, statement: Statement | None, values: tuple[Any, ...], *, commit: bool = False) -> Any:
        text = "" if statement is None else (self.prepared and statement.execute) or statement.text
        before = self.opening if not self.begun else ""
        self.committing = commit
        whole = f"{before}{text}{'; COMMIT' if commit else ''}"
        cursor = self.line.execute(self.line.written_out(whole, values))
        if before:
            self.begun = True
            for _ in range(_SETTINGS):
                cursor.nextset()
            self._clock = cursor.fetchall()[0][-1]
            cursor.nextset()
        return cursor
