"""What the database itself refuses, and the view of attempts: recreated after every upgrade.

Triggers stop accidents.  Whoever owns the database can drop them; what shows that is the hash chain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from safewrite.errors import ConfigurationError

_VIEW = "safewrite_attempt"

_SQLITE_VIEW = """
CREATE VIEW safewrite_attempt AS
SELECT
    i.id AS intent_id, i.namespace, i.run, i.turn, i.tool, i.target, i.occurrence, i.key, i.dependency,
    json_extract(a.value, '$.number') AS attempt,
    json_extract(a.value, '$.id') AS attempt_id,
    json_extract(a.value, '$.claimed_at') AS claimed_at,
    json_extract(a.value, '$.concluded_at') AS concluded_at,
    json_extract(a.value, '$.outcome') AS outcome,
    json_extract(a.value, '$.reason') AS reason,
    json_extract(a.value, '$.evidence') AS evidence,
    i.outcome AS intent_outcome
FROM safewrite_intent AS i, json_each(i.attempts) AS a
"""

_SQLITE_TRIGGERS = {
    "safewrite_audit_no_update": """
CREATE TRIGGER safewrite_audit_no_update BEFORE UPDATE ON safewrite_audit
BEGIN SELECT RAISE(ABORT, 'safewrite_audit is append-only'); END
""",
    "safewrite_audit_no_delete": """
CREATE TRIGGER safewrite_audit_no_delete BEFORE DELETE ON safewrite_audit
BEGIN SELECT RAISE(ABORT, 'safewrite_audit is append-only'); END
""",
    # INSERT OR REPLACE deletes without a delete trigger: a row that would be replaced is refused here.
    "safewrite_audit_no_replace": """
CREATE TRIGGER safewrite_audit_no_replace BEFORE INSERT ON safewrite_audit
WHEN EXISTS (SELECT 1 FROM safewrite_audit WHERE id = NEW.id)
  OR EXISTS (SELECT 1 FROM safewrite_audit WHERE intent_id = NEW.intent_id AND sequence = NEW.sequence)
BEGIN SELECT RAISE(ABORT, 'safewrite_audit is append-only'); END
""",
    "safewrite_intent_no_delete": """
CREATE TRIGGER safewrite_intent_no_delete BEFORE DELETE ON safewrite_intent
BEGIN SELECT RAISE(ABORT, 'a row of safewrite_intent is never deleted'); END
""",
    "safewrite_intent_no_replace": """
CREATE TRIGGER safewrite_intent_no_replace BEFORE INSERT ON safewrite_intent
WHEN EXISTS (SELECT 1 FROM safewrite_intent WHERE id = NEW.id)
  OR EXISTS (SELECT 1 FROM safewrite_intent WHERE key = NEW.key)
BEGIN SELECT RAISE(ABORT, 'a row of safewrite_intent is never replaced'); END
""",
}

_POSTGRES_VIEW = """
CREATE OR REPLACE VIEW safewrite_attempt AS
SELECT
    i.id AS intent_id, i.namespace, i.run, i.turn, i.tool, i.target, i.occurrence, i.key, i.dependency,
    (a.value ->> 'number')::integer AS attempt,
    a.value ->> 'id' AS attempt_id,
    (a.value ->> 'claimed_at')::timestamptz AS claimed_at,
    (a.value ->> 'concluded_at')::timestamptz AS concluded_at,
    a.value ->> 'outcome' AS outcome,
    a.value ->> 'reason' AS reason,
    a.value ->> 'evidence' AS evidence,
    i.outcome AS intent_outcome
FROM safewrite_intent AS i, json_array_elements(i.attempts::json) AS a(value)
"""

_POSTGRES_REFUSAL = """
CREATE OR REPLACE FUNCTION safewrite_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = 'restrict_violation',
        MESSAGE = TG_OP || ' is refused on ' || TG_TABLE_NAME || ': its rows are only added';
END $$
"""

_POSTGRES_TRIGGERS = {
    "safewrite_audit_no_update": "UPDATE ON safewrite_audit FOR EACH ROW",
    "safewrite_audit_no_delete": "DELETE ON safewrite_audit FOR EACH ROW",
    "safewrite_audit_no_truncate": "TRUNCATE ON safewrite_audit FOR EACH STATEMENT",
    "safewrite_intent_no_delete": "DELETE ON safewrite_intent FOR EACH ROW",
    "safewrite_intent_no_truncate": "TRUNCATE ON safewrite_intent FOR EACH STATEMENT",
}

GUARDS: Mapping[str, tuple[str, ...]] = {
    "sqlite": (_VIEW, *_SQLITE_TRIGGERS),
    "postgresql": (_VIEW, *_POSTGRES_TRIGGERS),
}
"""The names of the view and the triggers, by the name of the database."""


def recreate(dialect: str, execute: Callable[[str], object]) -> None:
    """Make the view and the triggers as this version knows them, whatever is there."""
    if dialect not in GUARDS:
        raise ConfigurationError(
            f"safewrite keeps its ledger in SQLite or PostgreSQL; it has no triggers for {dialect}."
        )
    if dialect == "postgresql":
        _recreate_postgres(execute)
        return
    execute(f"DROP VIEW IF EXISTS {_VIEW}")
    execute(_SQLITE_VIEW)
    for name, statement in _SQLITE_TRIGGERS.items():
        execute(f"DROP TRIGGER IF EXISTS {name}")
        execute(statement)


def _recreate_postgres(execute: Callable[[str], object]) -> None:
    """Replace in place, so that rights on the view stay; triggers fire for replicas' sessions as well."""
    execute(_POSTGRES_VIEW)
    execute(_POSTGRES_REFUSAL)
    for name, event in _POSTGRES_TRIGGERS.items():
        execute(f"CREATE OR REPLACE TRIGGER {name} BEFORE {event} EXECUTE FUNCTION safewrite_refuse()")
        execute(f"ALTER TABLE {name[: name.index('_no_')]} ENABLE ALWAYS TRIGGER {name}")
