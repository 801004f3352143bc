"""The tables' revision: is it this version's, and bringing it there.

On the usual path, a ledger that is up to date, this is one SELECT, and alembic is not imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from sqlalchemy import Connection

from safewrite.errors import ConfigurationError, SchemaOutdated
from safewrite.ledger.database import Database
from safewrite.ledger.forks import generation
from safewrite.ledger.guards import GUARDS, recreate
from safewrite.ledger.statements import VERSION_TABLE
from safewrite.ledger.tables import metadata

HEAD = "sw_0001"
"""The revision that this version needs."""

_alembic: dict[int, Lock] = {}
"""Held while alembic runs; a child of a process has its own."""
_OURS = re.compile(r"sw_\d{4}\Z")
PATIENCE = 60.0
"""Seconds that an upgrade that was asked for waits for other writers."""
_LEAST_PATIENCE = 5.0
"""Seconds that the first use waits at least for another process's first use."""


@dataclass(frozen=True, slots=True)
class Status:
    """What stands in a database."""

    database: str
    """Where it is, without a password."""
    found: str | None
    """The revision of its tables; `None`: it holds none of ours."""
    needed: str
    """The revision that this version needs."""
    problems: tuple[str, ...]
    """What must be done before it can be used, or what was taken away from it; empty: all is well."""

    @property
    def current(self) -> bool:
        """Whether it can be used as it is."""
        return not self.problems


def folder() -> Path:
    """Return the folder of the migrations: in the package (installed), or beside it (in a checkout)."""
    package = Path(__file__).resolve().parent.parent
    for place in (package / "_migrations", package.parent / "migrations"):
        if (place / "env.py").is_file():
            return place
    raise ConfigurationError(
        f"The migrations of safewrite are missing: there is no `_migrations` in `{package}`. Install safewrite again."
    )


def ready(database: Database, raw: Any, wait: float) -> None:
    """See to it that the tables are this version's.

    SQLite is upgraded if it is empty or older; another process that does so is waited for, `wait` seconds or a few.
    PostgreSQL is left as it is.  Raises `SchemaOutdated` or `ConfigurationError`, or `Trouble` where the database is
    only busy.
    """
    if _whole(database, raw):
        return
    if _older(database, raw):
        if database.makes_tables:
            upgrade(database, max(wait, _LEAST_PATIENCE))
            return
        way = database.to_upgrade
        raise SchemaOutdated(
            f"The ledger {database.named} has {_what(_revision(database, raw))}. Nothing was sent. "
            f"{way[0].upper()}{way[1:]}, with a role that may create tables."
        )
    if _whole(database, raw):
        return  # they were made between the two looks
    raise SchemaOutdated(
        f"The tables of the ledger {database.named} were altered: they are said to be those of revision {HEAD}, but a "
        "table or column is missing. Nothing was sent. Restore them from a backup, or name another "
        f"{database.place}."
    )


def _whole(database: Database, raw: Any) -> bool:
    """Whether every table and column of this version is there."""
    try:
        found = raw.execute(database.sql.schema.text).fetchall()
    except database.errors as error:
        if database.reason(error) != "ledger_schema":
            raise database.refusal(error) from error
        return False
    return [tuple(row) for row in found] == [(HEAD,)]


def _what(revision: str | None) -> str:
    return (
        "no tables of safewrite yet"
        if revision is None
        else f"tables of revision {revision}, older than {HEAD}"
    )


def _older(database: Database, raw: Any) -> bool:
    """Whether the tables are to be upgraded.  Raises where they are newer, or not ours."""
    revision = _revision(database, raw)
    if revision is None:
        return True
    if not _OURS.match(revision):
        raise _not_ours(database, f"its `{VERSION_TABLE}` names the revision `{revision}`")
    if revision > HEAD:
        raise SchemaOutdated(
            f"The tables of the ledger {database.named} are of revision {revision}; this version of safewrite knows "
            f"them up to {HEAD}. A newer version made them. Nothing was sent. Update safewrite."
        )
    return revision < HEAD


def _revision(database: Database, raw: Any) -> str | None:
    """Return the revision on record, or None where none of our tables is there."""
    here = _names(database, raw)
    ours = here & {table.name for table in metadata.sorted_tables}
    if VERSION_TABLE not in here:
        if ours:
            raise _not_ours(database, f"it has a table `{min(ours)}`, but no `{VERSION_TABLE}`")
        return None
    try:
        found = raw.execute(database.sql.version.text).fetchall()
    except database.errors as error:
        if database.reason(error) != "ledger_schema":
            raise database.refusal(error) from error
        raise _not_ours(database, f"its `{VERSION_TABLE}` cannot be read ({error})") from error
    if len(found) > 1:
        raise _not_ours(database, f"its `{VERSION_TABLE}` names {len(found)} revisions")
    if not found and ours:
        raise _not_ours(database, f"its `{VERSION_TABLE}` names no revision")
    return str(found[0][0]) if found else None


def _names(database: Database, raw: Any) -> set[str]:
    """Return the names of what is in the database, ours at least."""
    try:
        return database.names(raw)
    except database.errors as error:
        raise database.refusal(error) from error


def _not_ours(database: Database, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"The database {database.named} is not a ledger of safewrite: {why}. Nothing was sent, and nothing in it was "
        f"changed. Name another {database.place}."
    )


def upgrade(database: Database, wait: float = PATIENCE) -> None:
    """Bring the tables to this version's revision, and make view and triggers anew.

    Upgrades of several processes take turns; the second finds the work done.  Raises `ConfigurationError` where the
    database cannot be written, and as `ready` does where it is newer, not ours, or busy.
    """
    from sqlalchemy.exc import DBAPIError

    try:
        with database.upgrading(wait) as connection:
            if _older(database, connection.connection.driver_connection):
                _run(connection)
            recreate(database.dialect, connection.exec_driver_sql)
    except DBAPIError as error:
        raise database.refusal(error.orig or error) from error


def _run(connection: Connection) -> None:
    """Run the migrations.  The import is slow: of several processes, only the one that needs it does it."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    # Alembic keeps the connection that it works on for the whole process: beside another ledger's first use, one of
    # the two would be given the other's.
    with _alembic.setdefault(generation(), Lock()):
        command.upgrade(config, "head")


def check(database: Database) -> Status:
    """Return what stands in a database; it is not changed, nor made.  Raises `ConfigurationError`."""
    database.check_path()
    if database.path is not None and not database.path.exists():
        return Status(database.named, None, HEAD, ("The file is not there yet; the first use makes it.",))
    pooled = database.connect()
    try:
        raw = getattr(pooled, "driver_connection", pooled)
        revision = _revision(database, raw)
        return Status(database.named, revision, HEAD, tuple(_problems(database, raw, revision)))
    finally:
        pooled.close()


def _problems(database: Database, raw: Any, revision: str | None) -> list[str]:
    way = database.to_upgrade
    if revision is None:
        first = "the first use makes them, or " if database.makes_tables else ""
        return [f"It has no tables of safewrite yet: {first}{way}."]
    try:
        older = _older(database, raw)
    except (SchemaOutdated, ConfigurationError) as error:
        return [str(error)]
    if older:
        return [f"Its tables are of revision {revision}, older than {HEAD}: {way}."]
    try:
        raw.execute(database.sql.schema.text).fetchall()
    except database.errors as error:
        if database.reason(error) != "ledger_schema":
            raise database.refusal(error) from error
        return [f"A table or column is missing ({error}): restore it from a backup."]
    present = _names(database, raw)
    gone = [name for name in GUARDS[database.dialect] if name not in present]
    return [f"`{name}` is gone: {way}." for name in gone]
