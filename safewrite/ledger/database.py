"""What is asked of a database, whichever it is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from safewrite.errors import ConfigurationError
from safewrite.ledger.statements import Statement, Statements
from safewrite.ledger.units import Trouble

T = TypeVar("T")


class Database(Protocol):
    """A database by its URL: how it is opened, and what its errors mean.

    Every connection that it gives has `execute(text, parameters)`, and is the ledger's own.
    """

    dialect: str
    """What SQLAlchemy calls it."""
    memory: bool
    path: Path | None
    """Its file, where it is one."""
    errors: tuple[type[Exception], ...]
    """What its driver raises."""
    sql: Statements
    makes_tables: bool
    """The first use makes the tables, or upgrades them; else somebody must ask for it."""
    place: str
    """What holds one ledger: "file"."""
    to_upgrade: str
    """What to do for its tables to be this version's."""

    @property
    def named(self) -> str:
        """The database, as messages call it, without a password."""
        ...

    def connect(self) -> Any:
        """Return a new connection.  Raises `ConfigurationError`, or `Trouble` where it may work later."""
        ...

    def compiled(self, statement: Any) -> Statement:
        """Return a statement that carries its own values, as the driver takes it."""
        ...

    def stamp(self, unix: float) -> Any:
        """Return an instant as a column holds it."""
        ...

    def check_path(self) -> None:
        """Raise `ConfigurationError` for a path that no database can be made at."""
        ...

    def upgrading(self, wait: float) -> AbstractContextManager[Connection]:
        """Yield a connection in a transaction that only one upgrade is in at a time; it is committed at the end."""
        ...

    def names(self, raw: Any) -> set[str]:
        """Return the names of the tables, views and triggers that are there, ours at least."""
        ...

    def reason(self, error: BaseException) -> str:
        """Return the stable code for an error of the driver."""
        ...

    def refusal(self, error: BaseException) -> Trouble | ConfigurationError:
        """Return what to raise for a database that cannot be opened, or not be written at all."""
        ...


def used(database: Database, step: Callable[[], T], *, proven: bool) -> T:
    """Take a step towards using a database: that it cannot be used is told so only before it ever was."""
    try:
        return step()
    except ConfigurationError as error:
        if not proven:
            raise
        cause = error.__cause__ or error
        raise Trouble(database.reason(cause)) from cause
