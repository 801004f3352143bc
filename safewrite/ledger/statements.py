"""Every statement of the ledger, built once and compiled once per database.  Builds, never runs.

A compiled statement is text with places for its parameters, and what puts them in order: drivers bind by place faster
than by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Table,
    and_,
    bindparam,
    case,
    exists,
    func,
    insert,
    literal_column,
    null,
    select,
    table,
    union_all,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Dialect

from safewrite.ledger.tables import audit, claimed_object, content, intent, metadata

VERSION_TABLE = "safewrite_alembic_version"

_INSERTING: dict[str, Callable[[Table], Any]] = {"sqlite": sqlite.insert}
"""How each database inserts a row unless it is there."""

_CLOCKS: dict[str, ColumnElement[Any]] = {}
"""What reads a database's clock, in Unix seconds, where leases are compared by it."""

_NOT_APPLIED: ColumnElement[Any] = literal_column("'not_applied'")
"""Written out, like the condition of the index that it must match."""

PROJECTION = (
    "outcome",
    "evidence",
    "attributable",
    "may_still_land",
    "epoch",
    "revision",
    "attempts",
    "applied_sequence",
    "value_sequence",
    "lease_call",
    "lease_owner",
    "lease_expires_at",
    "first_claim_at",
    "person",
    "machine",
    "head",
    "updated_at",
)
"""The columns of an intent's row that every new audit row sets anew."""


class Statement(NamedTuple):
    """A statement as a driver takes it."""

    text: str
    places: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Takes the parameters by name; returns them in the order of their places in the text."""


@dataclass(frozen=True, slots=True)
class Statements:
    """The compiled texts.  Parameters are named as the columns are, or as each line says."""

    by_key: Statement
    """:key -> the intent, the text of its value, and the database's clock if leases are compared by it."""
    by_id: Statement
    """:id -> the intent, and the text of its value."""
    look: Statement
    """:key, :wish -> the intent of that key and the others with its wish that count."""
    create: Statement
    """All columns of the intent but `first_row` and `answered_row` -> the id for its first audit row."""
    advance: Statement
    """:intent, :seen, :answered, :alarmed and the projection -> the id for the next audit row; none if missed."""
    append: Statement
    """All columns of the audit row."""
    keep: Statement
    """All columns of the content."""
    claim_object: Statement
    """All columns of the object -> its intent; none if it is claimed already."""
    holder: Statement
    """:dependency, :object_id -> the intent that holds the object, its key, and the source of that claim."""
    unclaimed: Statement
    """:low, :high (of wishes) -> how many intents may have made an object and hold none."""
    bodies: Statement
    """:intent -> sequence and body of its rows, in order."""
    revision: Statement
    """:id -> the intent's revision, and the database's clock if leases are compared by it."""
    content: Statement
    """:intent, :sequence, :name -> salt and text."""
    contents: Statement
    """:intent -> sequence, name, salt and text of all its contents."""
    attempt: Statement
    """:attempt_id -> intent and number."""
    trace: Statement
    """:trace -> the intents with rows of that trace, the newest first."""
    hash: Statement
    """:intent, :sequence -> the hash of the row."""
    rows: Statement
    """:intent -> all columns of its audit rows, in order."""
    unknown: Statement
    """:tool, :namespace (or NULL for any), :limit, :skip -> the open intents, oldest first."""
    schema: Statement
    """-> the revision of the tables, if every column that is needed is there."""


@cache
def statements(dialect: Dialect) -> Statements:
    """Return the statements for a database."""
    next_row = select(
        func.coalesce(func.max(audit.c.id), literal_column("0")) + literal_column("1")
    ).scalar_subquery()
    inserting = _INSERTING[dialect.name]
    texts = {
        **_reading(_CLOCKS.get(dialect.name, null())),
        **_writing(next_row),
        **_objects(inserting),
        "schema": _schema(),
    }
    return Statements(**{name: _compiled(statement, dialect) for name, statement in texts.items()})


def bound(statement: Any, dialect: Dialect) -> Statement:
    """Return a statement with values in it, for one use."""
    compiled = statement.compile(dialect=dialect, compile_kwargs={"render_postcompile": True})
    values = compiled.params
    return Statement(str(compiled), lambda _: tuple(values[name] for name in compiled.positiontup))


def _compiled(statement: Any, dialect: Dialect) -> Statement:
    compiled = statement.compile(dialect=dialect)
    names: list[str] = list(compiled.positiontup)
    match names:
        case []:
            return Statement(str(compiled), lambda _: ())
        case [name]:
            return Statement(str(compiled), lambda given: (given[name],))
        case _:
            return Statement(str(compiled), itemgetter(*names))


def _same(column: Any, name: str | None = None) -> Any:
    return column == bindparam(name or column.name)


def _reading(clock: ColumnElement[Any]) -> dict[str, Any]:
    with_value = select(intent, content.c.text).select_from(
        intent.outerjoin(
            content,
            and_(
                content.c.intent_id == intent.c.id,
                content.c.sequence == intent.c.value_sequence,
                content.c.name == literal_column("'value'"),
            ),
        )
    )
    of_intent = audit.c.intent_id == bindparam("intent")
    open_ones = select(intent).where(intent.c.outcome == literal_column("'unknown'"))
    for column in (intent.c.tool, intent.c.namespace):
        wanted: ColumnElement[Any] = bindparam(column.name)
        open_ones = open_ones.where((wanted.is_(None)) | (column == wanted))
    newest = select(audit.c.intent_id).where(
        _same(audit.c.trace),
        audit.c.trace != literal_column("''"),
        audit.c.event != literal_column("'ended'"),
    )
    return {
        "by_key": with_value.add_columns(clock).where(_same(intent.c.key)),
        "by_id": with_value.where(_same(intent.c.id)),
        "look": _look(),
        "bodies": select(audit.c.sequence, audit.c.body).where(of_intent).order_by(audit.c.sequence),
        "revision": select(intent.c.revision, clock).where(_same(intent.c.id)),
        "content": select(content.c.salt, content.c.text).where(
            content.c.intent_id == bindparam("intent"), _same(content.c.sequence), _same(content.c.name)
        ),
        "contents": select(content.c.sequence, content.c.name, content.c.salt, content.c.text)
        .where(content.c.intent_id == bindparam("intent"))
        .order_by(content.c.sequence, content.c.name),
        "attempt": select(audit.c.intent_id, audit.c.attempt).where(
            _same(audit.c.attempt_id), audit.c.event == literal_column("'claimed'")
        ),
        "trace": newest.group_by(audit.c.intent_id).order_by(func.max(audit.c.id).desc()),
        "hash": select(audit.c.hash).where(of_intent, _same(audit.c.sequence)),
        "rows": select(audit).where(of_intent).order_by(audit.c.sequence),
        "unknown": open_ones.order_by(intent.c.first_row).limit(bindparam("limit")).offset(bindparam("skip")),
    }


def _look() -> Any:
    """Build one statement of three arms, each a walk along one index, however many intents there are."""
    key: ColumnElement[Any] = bindparam("key")
    wish: ColumnElement[Any] = bindparam("wish")
    mine = intent.alias("mine")
    others = select(intent).where(
        intent.c.wish == wish, intent.c.key != key, intent.c.outcome != _NOT_APPLIED
    )
    began = select(mine.c.first_row).where(mine.c.key == key).scalar_subquery()
    return union_all(
        select(intent).where(intent.c.key == key),
        others.where(intent.c.answered_row.is_(None)),
        others.where(intent.c.answered_row > began),
    )


def _writing(next_row: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        c.name: bindparam(c.name) for c in intent.c if c.name not in ("first_row", "answered_row")
    }
    told = case((bindparam("answered"), next_row), else_=null())
    return {
        "create": insert(intent).values({**given, "first_row": next_row}).returning(intent.c.first_row),
        "advance": update(intent)
        .where(intent.c.id == bindparam("intent"), intent.c.revision == bindparam("seen"))
        .values(
            {name: bindparam(name) for name in PROJECTION}
            | {
                "answered_row": func.coalesce(intent.c.answered_row, told),
                "alarms": intent.c.alarms + bindparam("alarmed"),
            }
        )
        .returning(next_row.label("row")),
        "append": insert(audit).values({c.name: bindparam(c.name) for c in audit.c}),
        "keep": insert(content).values({c.name: bindparam(c.name) for c in content.c}),
    }


def _objects(inserting: Callable[[Table], Any]) -> dict[str, Any]:
    held = claimed_object
    no_object = ~exists().where(held.c.intent_id == intent.c.id)
    return {
        "claim_object": inserting(held)
        .values({c.name: bindparam(c.name) for c in held.c})
        .on_conflict_do_nothing()
        .returning(held.c.intent_id),
        "holder": select(held.c.intent_id, intent.c.key, held.c.source)
        .join(intent, intent.c.id == held.c.intent_id)
        .where(_same(held.c.dependency), _same(held.c.object_id)),
        "unclaimed": select(func.count())
        .select_from(intent)
        .where(
            intent.c.wish >= bindparam("low"),
            intent.c.wish < bindparam("high"),
            intent.c.outcome != _NOT_APPLIED,
            no_object,
        ),
    }


def _schema() -> Any:
    """Name every column of every table without reading a row, beside the revision."""
    never = literal_column("1") == literal_column("0")
    needed = [~exists(select(*known.c).where(never)) for known in metadata.sorted_tables]
    return select(literal_column("version_num")).select_from(table(VERSION_TABLE)).where(*needed)
