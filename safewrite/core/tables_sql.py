"""Databases: what their errors prove, by SQLSTATE and by SQLite's error names.

An error that the server reports before the COMMIT aborts the transaction, so the write is not applied.  A lost
connection (an error without SQLSTATE) is unknown: the same exception is raised whether the transaction was
committed, aborted or is still in progress.

Cannot be told from the exception alone:

- 57014 and 57P01 raised by a COMMIT.  PostgreSQL itself warns and reports success when it is cancelled while it
  waits for a synchronous standby (committed here, perhaps not there); other servers that speak its protocol
  answer 57014 for a commit that they can no longer stop.  Out of a COMMIT, as far as the traceback shows, both
  are unknown.
- that `commit()` returned although the transaction had failed: nothing is raised.
- statements before the last one, where the connection commits each by itself: they stand.  The classification
  holds for bodies whose last request is their only write.
- SQLite: a COMMIT that was refused as busy leaves the transaction open.  Whoever commits on that connection
  later commits this write as well, so it is unknown, unless a `with connection:` block has rolled it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.matching import Rule, Table, never_sent, peek, refused, unknown
from safewrite.core.phases import committing, ends_transaction, running_call

STATES: Final[Mapping[str, Rule]] = {
    "08001": never_sent("sql_connect_failed"),
    "08004": never_sent("sql_connect_failed"),
    "57P03": never_sent("sql_starting_up"),
    "53300": never_sent("sql_too_many_connections"),
    "08006": unknown("sql_connection_lost"),
    "08007": unknown("sql_resolution_unknown"),
    "40003": unknown("sql_completion_unknown"),
    "40001": refused("sql_serialization_failure"),
    "40P01": refused("sql_deadlock"),
    "57014": refused("sql_cancelled"),
    "57P01": refused("sql_terminated"),
    "25P03": refused("sql_idle_in_transaction"),
    "55P03": refused("sql_lock_not_available"),
}
"""SQLSTATE -> row.  These come before their class."""

CLASSES: Final[Mapping[str, Rule]] = {
    "23": refused("sql_constraint"),
    "40": refused("sql_rolled_back"),
    "28": refused("sql_not_authorized"),
    **dict.fromkeys(("0A", "21", "22", "25", "26", "2B", "34", "3D"), refused("sql_rejected")),
    **dict.fromkeys(("3F", "42", "44", "54", "55", "P0"), refused("sql_rejected")),
}
"""First two characters of an SQLSTATE -> row: errors that abort the statement and its transaction."""

AT_COMMIT: Final = frozenset({"57014", "57P01"})
"""States that prove nothing when the COMMIT itself raised them."""

CONNECT_TEXTS: Final = (
    "connection failed:",
    "connection is bad:",
    "failed to resolve host",
    "connection timeout expired",
)
"""How psycopg begins the message of a failed connect, which has no SQLSTATE."""

SQLITE: Final[Mapping[str, Rule]] = {
    "SQLITE_BUSY": refused("sqlite_busy"),
    "SQLITE_LOCKED": refused("sqlite_busy"),
    "SQLITE_CONSTRAINT": refused("sql_constraint"),
    **dict.fromkeys(("SQLITE_ERROR", "SQLITE_MISMATCH", "SQLITE_AUTH"), refused("sql_rejected")),
    **dict.fromkeys(("SQLITE_READONLY", "SQLITE_NOTADB"), refused("sql_rejected")),
    "SQLITE_INTERRUPT": refused("sql_cancelled"),
    "SQLITE_IOERR": unknown("sqlite_io_error"),
    "SQLITE_FULL": unknown("sqlite_io_error"),
}
"""Primary SQLite error name -> row, for an error out of a single statement."""


def _by_state(exc: BaseException, _: float | None) -> Finding | None:
    state = peek(exc, "sqlstate", "pgcode")
    if not isinstance(state, str):
        lost = type(exc).__name__ == "OperationalError"
        if lost and str(exc).startswith(CONNECT_TEXTS):
            return never_sent("sql_connect_failed").finding()
        return unknown("sql_connection_lost").finding() if lost else None
    rule = STATES.get(state) or CLASSES.get(state[:2])
    if rule is None:
        return None
    if state in AT_COMMIT and committing(exc):
        return unknown("sql_stopped_at_commit").finding()
    return rule.finding()


def _by_name(exc: BaseException, _: float | None) -> Finding | None:
    """Read SQLite's error name, and whether it came out of a single statement, which it then undid."""
    name = peek(exc, "sqlite_errorname")
    primary = "_".join(name.split("_")[:2]) if isinstance(name, str) else ""
    rule = SQLITE.get(primary, unknown("sql_unlisted"))
    call = running_call(exc)
    if call.name == "connect":
        return never_sent("sql_connect_failed").finding()
    ended = any(ends_transaction(value) for value in call.values)
    if rule.outcome is OutcomeState.UNKNOWN or call.leaving or (call.name == "execute" and not ended):
        return rule.finding()
    return unknown("sqlite_not_one_statement").finding()


def _original(exc: BaseException) -> BaseException | None:
    inner = peek(exc, "orig")
    return inner if isinstance(inner, BaseException) else None


_SERVER = Rule(OutcomeState.UNKNOWN, "sql_unlisted", look=_by_state)

TABLE: Final[Table] = {
    ("psycopg", "Error"): _SERVER,
    ("psycopg", "ConnectionTimeout"): never_sent("connect_timeout"),
    ("psycopg2", "Error"): _SERVER,
    ("psycopg_pool", "PoolTimeout"): never_sent("pool_timeout"),
    ("asyncpg", "PostgresError"): _SERVER,
    ("sqlite3", "Error"): Rule(OutcomeState.UNKNOWN, "sql_unlisted", look=_by_name),
    ("sqlalchemy", "DBAPIError"): Rule(OutcomeState.UNKNOWN, "sql_unlisted", inner=_original),
    ("sqlalchemy", "TimeoutError"): never_sent("pool_timeout"),
}
