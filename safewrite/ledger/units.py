"""One unit of work: the statements that stand or fall together, on a connection that a store lends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

from safewrite.core.events import Moment
from safewrite.ledger.statements import Statement, Statements

Columns = Mapping[str, Any]
"""A row to be written, by the names of its columns."""

SENSELESS: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading a row can end with in which somebody else has written."""


class Trouble(Exception):
    """The database did not do what it was asked.  The cause is the driver's own error.

    `reason` is a stable code: `ledger_busy`, `ledger_full`, `ledger_read_only`, `ledger_corrupt`, `ledger_schema`,
    `ledger_io`, `ledger_conflict`, `ledger_unreachable`, `ledger_denied`, `ledger_closed`, `ledger_forked`,
    `ledger_nested`, `ledger_error`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Proof(NamedTuple):
    """What a unit has written, so that it can be looked for where a commit ends without an answer."""

    intent: str
    sequence: int
    hash: str


class Hold(NamedTuple):
    """What a unit holds from its beginning to its end, where the database lets several write at once."""

    name: str
    shared: bool = False
    """Beside others that share it."""

    @property
    def number(self) -> int:
        """What stands for the name: 64 bits, signed.  Two names with one number only wait for each other."""
        return int.from_bytes(sha256(self.name.encode("utf-8", "surrogatepass")).digest()[:8], signed=True)


class Executes(Protocol):
    """What a unit needs of a driver's connection."""

    def execute(self, sql: str, parameters: Any, /) -> Any:
        """Run one statement; the result has `fetchall()`."""
        ...


@dataclass(eq=False, slots=True)  # not frozen: one is made for every unit
class Unit:
    """A connection inside a transaction, or one that only reads."""

    connection: Executes
    sql: Statements
    stamp: Callable[[float], Any]
    """Writes Unix seconds as this database holds instants."""

    def execute(self, statement: Statement, parameters: Mapping[str, Any]) -> Any:
        """Run a statement; return the driver's cursor with its result."""
        return self.connection.execute(statement.text, statement.places(parameters))

    def run(self, statement: Statement, parameters: Mapping[str, Any]) -> None:
        """Run a statement that returns nothing."""
        self.execute(statement, parameters)

    def write(
        self, intent: Columns, rows: Sequence[Columns], contents: Sequence[Columns], *, new: bool
    ) -> bool:
        """Write an intent's row, what led to it, and the contents of that; False: it has moved on meanwhile."""
        number = self.row(self.sql.create if new else self.sql.advance, intent)
        if number is None:
            return False
        for place, row in enumerate(rows):
            self.run(self.sql.append, {**row, "id": number[0] + place})
        for kept in contents:
            self.run(self.sql.keep, kept)
        return True

    def moment(self, reading: Any = None) -> Moment | None:  # noqa: ARG002
        """Return the instant by the clock that leases are compared with, where that is not the worker's own.

        `reading` is what a statement read of that clock; without it, what the unit began with.
        """
        return None

    def rows(self, statement: Statement, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement and return all its rows."""
        found: list[tuple[Any, ...]] = self.execute(statement, parameters).fetchall()
        return found

    def row(self, statement: Statement, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Run a statement and return its first row, if any."""
        found = self.rows(statement, parameters)
        return found[0] if found else None
