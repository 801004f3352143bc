"""The tables.  Their names and columns are public: people query them, and the reference documents each."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

OPEN = text("outcome <> 'not_applied'")
"""The condition of the index of wishes.  Queries repeat it word for word, or SQLite does not use the index."""

_number = BigInteger().with_variant(Integer, "sqlite")
"""A 64-bit whole number; on SQLite a primary key of it is the row number, so that rows are appended."""
_instant = DateTime(timezone=True).with_variant(Text(), "sqlite")
"""An instant in UTC; on SQLite ISO 8601 text, for its own type loses the offset."""


_words = Text().with_variant(Text(collation="C"), "postgresql")
"""Text, compared byte by byte everywhere: no update of a server's locales can put an index out of order."""


def _text(name: str, *args: Any, **options: Any) -> Column[Any]:
    return Column(name, _words, *args, nullable=False, **options)


class digest(FunctionElement[Any]):  # noqa: N801  # as functions are called
    """What an index of texts of any length holds: PostgreSQL's takes 2.7 kB, so there a hash; else the text itself."""

    inherit_cache = True


@compiles(digest)
def _itself(element: digest, compiler: Any, **options: Any) -> str:
    return str(compiler.process(element.clauses, **options))


@compiles(digest, "postgresql")
def _hashed(element: digest, compiler: Any, **options: Any) -> str:
    return f"hashtextextended({compiler.process(element.clauses, **options)}, 0)"


intent = Table(
    "safewrite_intent",
    metadata,
    # Which intent
    _text("id", primary_key=True),
    _text("namespace"),
    _text("run"),
    _text("turn"),
    _text("tool"),
    _text("target"),
    _text("occurrence"),
    _text("key"),
    _text("wish"),
    _text("salt"),
    _text("fingerprint"),
    _text("dependency"),
    # Where it stands: all of this is the fold of its rows, written down
    _text("outcome"),
    _text("evidence"),
    Column("attributable", Boolean(), nullable=False),
    Column("may_still_land", Boolean(), nullable=False),
    Column("epoch", Integer(), nullable=False),
    Column("revision", Integer(), nullable=False),
    _text("attempts"),
    Column("applied_sequence", Integer()),
    Column("value_sequence", Integer()),
    Column("lease_call", _words),
    Column("lease_owner", _words),
    Column("lease_expires_at", _instant),
    Column("first_claim_at", _instant),
    _text("person"),
    Column("alarms", Integer(), nullable=False),
    # Where its rows are
    Column("first_row", _number, nullable=False),
    Column("answered_row", _number),
    _text("head"),
    Column("machine", Integer(), nullable=False),
    Column("created_at", _instant, nullable=False),
    Column("updated_at", _instant, nullable=False),
    Index("uq_safewrite_intent_key", "key", unique=True),
    # Both questions about a wish read this one: who else has it, and who else is about the same subject.
    Index("ix_safewrite_intent_wish", "wish", "answered_row", sqlite_where=OPEN, postgresql_where=OPEN),
    Index(
        "ix_safewrite_intent_unknown",
        "first_row",
        sqlite_where=text("outcome = 'unknown'"),
        postgresql_where=text("outcome = 'unknown'"),
    ),
)

Index("ix_safewrite_intent_run", digest(intent.c.run), intent.c.first_row)

audit = Table(
    "safewrite_audit",
    metadata,
    Column("id", _number, Identity(always=True), primary_key=True, autoincrement=True),
    _text("intent_id", ForeignKey("safewrite_intent.id")),
    Column("sequence", Integer(), nullable=False),
    # What happened
    _text("event"),
    Column("attempt", Integer()),
    Column("attempt_id", _words),
    _text("reason"),
    Column("occurred_at", _instant, nullable=False),
    Column("recorded_at", _instant, nullable=False),
    Column("evidence", _words),
    Column("contents", _words),
    # What was decided
    _text("outcome"),
    _text("command"),
    _text("rule"),
    Column("machine", Integer(), nullable=False),
    Column("granted_ms", _number),
    Column("left_ms", _number),
    Column("deadline_at", _instant),
    Column("promises", _words),
    # Who
    _text("run"),
    _text("agent"),
    _text("worker"),
    _text("person"),
    _text("tool_call_id"),
    _text("trace"),
    # The chain: the body is the row, all columns above are only drawn from it
    _text("body"),
    _text("prev_hash"),
    _text("hash"),
    Index("uq_safewrite_audit_intent_id_sequence", "intent_id", "sequence", unique=True),
    Index(
        "ix_safewrite_audit_attempt_id",
        "attempt_id",
        sqlite_where=text("event = 'claimed'"),
        postgresql_where=text("event = 'claimed'"),
    ),
    # An end has the trace of its claim: half the rows need no entry.
    Index(
        "ix_safewrite_audit_trace",
        "trace",
        sqlite_where=text("trace <> '' AND event <> 'ended'"),
        postgresql_where=text("trace <> '' AND event <> 'ended'"),
    ),
)

content = Table(
    "safewrite_content",
    metadata,
    _text("intent_id", ForeignKey("safewrite_intent.id"), primary_key=True),
    Column("sequence", Integer(), primary_key=True, autoincrement=False),
    _text("name", primary_key=True),
    _text("salt"),
    _text("text"),
    # One tree on SQLite, not two: half as many pages for each commit to write.
    sqlite_with_rowid=False,
)

claimed_object = Table(
    "safewrite_object",
    metadata,
    _text("dependency", primary_key=True),
    _text("object_id", primary_key=True),
    _text("intent_id", ForeignKey("safewrite_intent.id"), index=True),
    _text("source"),
    Column("claimed_at", _instant, nullable=False),
    sqlite_with_rowid=False,
)

recovery = Table(
    "safewrite_recovery",
    metadata,
    _text("intent_id", ForeignKey("safewrite_intent.id"), primary_key=True),
    _text("owner"),
    Column("until", _instant, nullable=False),
    sqlite_with_rowid=False,
)
