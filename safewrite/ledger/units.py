"""One unit of work: the statements that stand or fall together, on a connection that a store lends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from safewrite.ledger.statements import Statement, Statements


class Trouble(Exception):
    """The database did not do what it was asked.  The cause is the driver's own error.

    `reason` is a stable code: `ledger_busy`, `ledger_full`, `ledger_read_only`, `ledger_corrupt`, `ledger_schema`,
    `ledger_io`, `ledger_conflict`, `ledger_closed`, `ledger_forked`, `ledger_nested`, `ledger_error`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Proof(NamedTuple):
    """What a unit has written, so that it can be looked for where a commit ends without an answer."""

    intent: str
    sequence: int
    hash: str


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

    def run(self, statement: Statement, parameters: Mapping[str, Any]) -> None:
        """Run a statement that returns nothing."""
        self.connection.execute(statement.text, statement.places(parameters))

    def rows(self, statement: Statement, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Run a statement and return all its rows."""
        cursor = self.connection.execute(statement.text, statement.places(parameters))
        found: list[tuple[Any, ...]] = cursor.fetchall()
        return found

    def row(self, statement: Statement, parameters: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """Run a statement and return its first row, if any."""
        found = self.rows(statement, parameters)
        return found[0] if found else None
