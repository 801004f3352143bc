"""The ledger: intents, their audit rows, their contents, and the objects they made."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "sw_0001"
down_revision = None
branch_labels = None
depends_on = None

NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
WORDS = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
INSTANT = sa.DateTime(timezone=True).with_variant(sa.Text(), "sqlite")


def text(name: str) -> sa.Column[Any]:
    return sa.Column(name, WORDS, nullable=False)


def belongs_to_intent(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(["intent_id"], ["safewrite_intent.id"], name=f"fk_{table}_intent_id")


def upgrade() -> None:
    op.create_table(
        "safewrite_intent",
        *(
            text(name)
            for name in ("id", "namespace", "run", "turn", "tool", "target", "occurrence", "key", "wish")
        ),
        *(text(name) for name in ("salt", "fingerprint", "dependency", "outcome", "evidence")),
        sa.Column("attributable", sa.Boolean(), nullable=False),
        sa.Column("may_still_land", sa.Boolean(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        text("attempts"),
        sa.Column("applied_sequence", sa.Integer()),
        sa.Column("value_sequence", sa.Integer()),
        sa.Column("lease_call", WORDS),
        sa.Column("lease_owner", WORDS),
        sa.Column("lease_expires_at", INSTANT),
        sa.Column("first_claim_at", INSTANT),
        text("person"),
        sa.Column("alarms", sa.Integer(), nullable=False),
        sa.Column("first_row", NUMBER, nullable=False),
        sa.Column("answered_row", NUMBER),
        text("head"),
        sa.Column("machine", sa.Integer(), nullable=False),
        sa.Column("created_at", INSTANT, nullable=False),
        sa.Column("updated_at", INSTANT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_safewrite_intent"),
    )
    op.create_table(
        "safewrite_audit",
        sa.Column("id", NUMBER, sa.Identity(always=True), autoincrement=True, nullable=False),
        text("intent_id"),
        sa.Column("sequence", sa.Integer(), nullable=False),
        text("event"),
        sa.Column("attempt", sa.Integer()),
        sa.Column("attempt_id", WORDS),
        text("reason"),
        sa.Column("occurred_at", INSTANT, nullable=False),
        sa.Column("recorded_at", INSTANT, nullable=False),
        sa.Column("evidence", WORDS),
        sa.Column("contents", WORDS),
        *(text(name) for name in ("outcome", "command", "rule")),
        sa.Column("machine", sa.Integer(), nullable=False),
        sa.Column("granted_ms", NUMBER),
        sa.Column("left_ms", NUMBER),
        sa.Column("deadline_at", INSTANT),
        sa.Column("promises", WORDS),
        *(text(name) for name in ("run", "agent", "worker", "person", "tool_call_id", "trace")),
        *(text(name) for name in ("body", "prev_hash", "hash")),
        belongs_to_intent("safewrite_audit"),
        sa.PrimaryKeyConstraint("id", name="pk_safewrite_audit"),
    )
    op.create_table(
        "safewrite_content",
        text("intent_id"),
        sa.Column("sequence", sa.Integer(), autoincrement=False, nullable=False),
        *(text(name) for name in ("name", "salt", "text")),
        belongs_to_intent("safewrite_content"),
        sa.PrimaryKeyConstraint("intent_id", "sequence", "name", name="pk_safewrite_content"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "safewrite_object",
        *(text(name) for name in ("dependency", "object_id", "intent_id", "source")),
        sa.Column("claimed_at", INSTANT, nullable=False),
        belongs_to_intent("safewrite_object"),
        sa.PrimaryKeyConstraint("dependency", "object_id", name="pk_safewrite_object"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "safewrite_recovery",
        *(text(name) for name in ("intent_id", "owner")),
        sa.Column("until", INSTANT, nullable=False),
        belongs_to_intent("safewrite_recovery"),
        sa.PrimaryKeyConstraint("intent_id", name="pk_safewrite_recovery"),
        sqlite_with_rowid=False,
    )
    index("safewrite_intent", ["key"], unique=True)
    index("safewrite_intent", ["wish", "answered_row"], where="outcome <> 'not_applied'", name="wish")
    server = op.get_bind().dialect.name == "postgresql"
    index(
        "safewrite_intent",
        [sa.text("hashtextextended(run, 0)") if server else "run", "first_row"],
        name="run",
    )
    index("safewrite_intent", ["first_row"], where="outcome = 'unknown'", name="unknown")
    index("safewrite_audit", ["intent_id", "sequence"], unique=True)
    index("safewrite_audit", ["attempt_id"], where="event = 'claimed'")
    index("safewrite_audit", ["trace"], where="trace <> '' AND event <> 'ended'")
    index("safewrite_object", ["intent_id"])


def index(
    table: str,
    columns: list[str | sa.TextClause],
    *,
    unique: bool = False,
    where: str | None = None,
    name: str | None = None,
) -> None:
    condition = sa.text(where) if where else None
    op.create_index(
        f"{'uq' if unique else 'ix'}_{table}_{name or '_'.join(map(str, columns))}",
        table,
        columns,
        unique=unique,
        sqlite_where=condition,
        postgresql_where=condition,
    )


def downgrade() -> None:
    raise NotImplementedError("The ledger only goes forward: a row that was written is never taken back.")
