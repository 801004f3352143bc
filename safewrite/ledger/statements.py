"""Every statement of the ledger, built once and compiled once per database.  Builds, never runs.

A compiled statement is text with places for its parameters, and what puts them in order: drivers bind by place faster
than by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    MetaData,
    Table,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    insert,
    literal_column,
    null,
    select,
    union_all,
    update,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Dialect

from safewrite.ledger.tables import audit, claimed_object, content, intent, metadata, recovery

VERSION_TABLE = "safewrite_alembic_version"
_VERSION = Table(VERSION_TABLE, MetaData(), Column("version_num"))

CLOCK = "extract(epoch from clock_timestamp())::float8"

_CLOCKS: dict[str, ColumnElement[Any]] = {"postgresql": literal_column(CLOCK)}
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

PREPARED = ("by_key", "look", "create", "advance", "create_keeping", "advance_keeping", "bodies")
"""What every call sends.  To plan one of these takes a server longer than to carry it out."""


class Statement(NamedTuple):
    """A statement as a driver takes it."""

    text: str
    places: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """Takes the parameters by name; returns them in the order of their places in the text."""
    prepare: str = ""
    """PostgreSQL: prepares it on a connection, if it is one of `PREPARED`."""
    execute: str = ""
    """Stands for the text on a connection where it is prepared."""


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
    """All columns of the intent but `first_row` and `answered_row` -> the id for its first audit row.

    PostgreSQL writes that row as well, from its columns behind `row_`; `advance` does so, too.
    """
    advance: Statement
    """:intent, :seen, :answered, :alarmed and the projection -> the id for the next audit row; none if missed."""
    create_keeping: Statement | None
    """PostgreSQL: `create` with a content, from its columns behind `kept_`."""
    advance_keeping: Statement | None
    """PostgreSQL: `advance` with a content."""
    append: Statement
    """All columns of the audit row; PostgreSQL gives its id."""
    keep: Statement
    """All columns of the content."""
    claim_object: Statement
    """All columns of the object -> its intent; none if it is claimed already."""
    holder: Statement
    """:dependency, :object_id -> the intent that holds the object, its key, and the source of that claim."""
    unclaimed: Statement
    """:low, :high (of wishes), :id -> how many intents may have made an object and hold none: that one in any case."""
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
    """:tool, :namespace (or NULL for any), :after (an id, or none), :limit -> the open intents, oldest first."""
    take: Statement
    """All columns of the recovery, :now -> its intent; none if another recovery has it until later than now."""
    give: Statement
    """:intent_id, :owner: the recovery of that owner has it no more."""
    version: Statement
    """-> the revision of the tables."""
    schema: Statement
    """-> the revision of the tables, if every column that is needed is there."""


@cache
def statements(dialect: Dialect, schema: str | None = None) -> Statements:
    """Return the statements for a database; `schema`: where its tables are, if not on the search path."""
    writing = _in_one() if dialect.name == "postgresql" else _one_by_one()
    texts = {
        **_reading(_CLOCKS.get(dialect.name, null())),
        **writing,
        **_objects(_inserting(dialect)),
        **_recovery(_inserting(dialect)),
        "version": select(_VERSION.c.version_num),
        "schema": _schema(),
    }
    prepared = PREPARED if dialect.name == "postgresql" else ()
    compiled: dict[str, Any] = {
        name: statement
        if statement is None
        else _compiled(statement, dialect, schema, prepared=name in prepared)
        for name, statement in texts.items()
    }
    return Statements(**compiled)


def bound(statement: Any, dialect: Dialect, schema: str | None = None) -> Statement:
    """Return a statement with values in it, for one use."""
    compiled = statement.compile(
        dialect=dialect, compile_kwargs={"render_postcompile": True}, **_translated(schema)
    )
    values = compiled.params
    return Statement(str(compiled), lambda _: tuple(values[name] for name in compiled.positiontup))


def _translated(schema: str | None) -> dict[str, Any]:
    if schema is None:
        return {}
    return {"schema_translate_map": {None: schema}, "render_schema_translate": True}


def _compiled(statement: Any, dialect: Dialect, schema: str | None, *, prepared: bool) -> Statement:
    compiled = statement.compile(dialect=dialect, **_translated(schema))
    text, names = str(compiled), list[str](compiled.positiontup)
    places: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    match names:
        case []:
            places = lambda _: ()  # noqa: E731
        case [name]:
            places = lambda given: (given[name],)  # noqa: E731
        case _:
            places = itemgetter(*names)
    if not prepared:
        return Statement(text, places)
    kinds = [compiled.binds[name].type for name in names]
    types = ["unknown" if k._isnull else k.compile(dialect).partition(" COLLATE")[0] for k in kinds]
    body = f"({', '.join(types)}) AS " + text % tuple(f"${n}" for n in range(1, len(names) + 1))
    own = f"safewrite_{sha256(body.encode()).hexdigest()[:24]}"  # the same name is the same statement
    return Statement(
        text, places, f"PREPARE {own} {body}", f"EXECUTE {own} ({', '.join(['%s'] * len(names))})"
    )


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
    one = intent.alias("one")
    before = select(one.c.first_row).where(one.c.id == bindparam("after")).scalar_subquery()
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
        "unknown": open_ones.where(intent.c.first_row > func.coalesce(before, literal_column("0")))
        .order_by(intent.c.first_row)
        .limit(bindparam("limit"))
        .offset(literal_column("0")),  # SQLite is given one in any case
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


def _given(known: Table, prefix: str = "", *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a parameter for each column of a table."""
    return {c.name: bindparam(prefix + c.name, type_=c.type) for c in known.c if c.name not in without}


_NUMBERS = ("first_row", "answered_row")


def _seen() -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return intent.c.id == bindparam("intent"), intent.c.revision == bindparam("seen")


def _projected(row: Any) -> dict[str, Any]:
    """Return what moves on in an intent's row; `row`: the number of the audit row that moves it."""
    told = case((bindparam("answered"), row), else_=null())
    return {name: bindparam(name) for name in PROJECTION} | {
        "answered_row": func.coalesce(intent.c.answered_row, told),
        "alarms": intent.c.alarms + bindparam("alarmed"),
    }


def _one_by_one() -> dict[str, Any]:
    """Build for a database that one writes to at a time: the next number is one more than there is."""
    next_row = select(
        func.coalesce(func.max(audit.c.id), literal_column("0")) + literal_column("1")
    ).scalar_subquery()
    made = {**_given(intent, without=_NUMBERS), "first_row": next_row}
    moved = update(intent).where(*_seen()).values(_projected(next_row))
    return {
        "create": insert(intent).values(made).returning(intent.c.first_row),
        "advance": moved.returning(next_row.label("row")),
        "create_keeping": None,
        "advance_keeping": None,
        "append": insert(audit).values(_given(audit)),
        "keep": insert(content).values(_given(content)),
    }


def _in_one() -> dict[str, Any]:
    """Build for a database that gives the numbers, with all that a row brings in one statement.

    Foreign keys are looked at when the statement ends.  Of two that move an intent on from the same revision, the
    index of (intent, sequence) lets one through.
    """
    columns = _given(audit, "row_", without=("id",))
    first = insert(audit).values(columns).returning(audit.c.id).cte("row")
    number = select(first.c.id).scalar_subquery()
    create = insert(intent).values({**_given(intent, without=_NUMBERS), "first_row": number})
    here = select(*columns.values()).select_from(intent).where(*_seen())
    later = insert(audit).from_select(list(columns), here).returning(audit.c.id).cte("row")
    advance = update(intent).where(*_seen(), later.c.id.is_not(None)).values(_projected(later.c.id))

    def kept(row: Any) -> Any:
        given = _given(content, "kept_")
        return insert(content).from_select(list(given), select(*given.values()).select_from(row)).cte("kept")

    return {
        "create": create.returning(intent.c.first_row),
        "advance": advance.returning(later.c.id),
        "create_keeping": create.add_cte(kept(first)).returning(intent.c.first_row),
        "advance_keeping": advance.add_cte(kept(later)).returning(later.c.id),
        "append": insert(audit).values(_given(audit, without=("id",))),
        "keep": insert(content).values(_given(content)),
    }


def _inserting(dialect: Dialect) -> Callable[[Table], Any]:
    """Return how a database inserts a row unless it is there."""
    if dialect.name == "sqlite":
        return sqlite.insert
    from sqlalchemy.dialects import postgresql  # slow to import, and seldom needed

    return postgresql.insert


def _objects(inserting: Callable[[Table], Any]) -> dict[str, Any]:
    held = claimed_object
    no_object = ~exists().where(held.c.intent_id == intent.c.id)
    counted = select(func.count()).select_from(intent).where(no_object)
    wished = intent.c.wish >= bindparam("low"), intent.c.wish < bindparam("high")
    return {
        "claim_object": inserting(held)
        .values({c.name: bindparam(c.name) for c in held.c})
        .on_conflict_do_nothing()
        .returning(held.c.intent_id),
        "holder": select(held.c.intent_id, intent.c.key, held.c.source)
        .join(intent, intent.c.id == held.c.intent_id)
        .where(_same(held.c.dependency), _same(held.c.object_id)),
        "unclaimed": select(
            counted.where(*wished, intent.c.outcome != _NOT_APPLIED).scalar_subquery()
            + counted.where(_same(intent.c.id), intent.c.outcome == _NOT_APPLIED).scalar_subquery()
        ),
    }


def _recovery(inserting: Callable[[Table], Any]) -> dict[str, Any]:
    take = inserting(recovery).values(_given(recovery))
    newer = {"owner": take.excluded.owner, "until": take.excluded.until}
    over = recovery.c.until < bindparam("now", type_=recovery.c.until.type)
    taken = take.on_conflict_do_update(index_elements=[recovery.c.intent_id], set_=newer, where=over)
    return {
        "take": taken.returning(recovery.c.intent_id),
        "give": delete(recovery).where(_same(recovery.c.intent_id), _same(recovery.c.owner)),
    }


def _schema() -> Any:
    """Name every column of every table without reading a row, beside the revision."""
    never = literal_column("1") == literal_column("0")
    needed = [~exists(select(*known.c).where(never)) for known in metadata.sorted_tables]
    return select(_VERSION.c.version_num).where(*needed)
