"""How records are laid out for people: narrow tables on a terminal, one column a fact in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from safewrite.cli.output import INTENT, Output, clean, moment

if TYPE_CHECKING:
    from datetime import datetime

    from safewrite.audit.records import (
        AttemptRecord,
        IntentRecord,
        OpenRecord,
        RefusedRecord,
        RowRecord,
        RunRecord,
    )
    from safewrite.recovery import Found
    from safewrite.settings import Setting


def words(outcome: str) -> str:
    """Return an outcome as people say it."""
    return outcome.replace("_", " ")


def target(text: str) -> str:
    """Return a target as people write it: a text without its quotes."""
    from safewrite.audit.records import target_value

    value = target_value(text)
    return value if isinstance(value, str) else text


def _second(at: datetime) -> str:
    return f"{moment(at)[:19]}Z"


def _yes(condition: bool) -> str:
    return "yes" if condition else "no"


def _named(tool: str, about: str, key: str) -> list[str]:
    """Return what names an intent on a terminal: tool and target, and the key under them."""
    return [f"{tool} {target(about)}", key]


# Lists -------------------------------------------------------------------------------------------------------


def runs(output: Output, found: Sequence[RunRecord]) -> None:
    """Lay out runs in numbers."""
    numbers = ("intents", "applied", "not applied", "unknown", "attempts", "alarms", "not fetched")

    def counted(r: RunRecord) -> tuple[int, ...]:
        return r.intents, r.applied, r.not_applied, r.unknown, r.attempts, r.alarms, r.not_fetched

    if output.rich:
        output.table(
            ("run", "began", *numbers),
            [(_run(r.namespace, r.run), _second(r.began_at), *counted(r)) for r in found],
        )
        return
    rows = [(r.namespace, r.run, r.began_at, r.last_at, *counted(r)) for r in found]
    output.table(("namespace", "run", "began", "last", *numbers), rows)


def _run(namespace: str, run_id: str) -> str:
    return run_id if namespace == "default" else f"{namespace}: {run_id}"


def run(output: Output, found: Sequence[IntentRecord]) -> None:
    """Lay out the intents of a run."""
    if output.rich:
        output.table(
            ("turn", INTENT, "outcome", "attempts"),
            [(i.turn, _named(i.tool, i.target, i.key), words(i.outcome), _attempts(i)) for i in found],
        )
        return
    output.table(
        ("turn", "tool", "target", "outcome", "attempts", "summary", "key"),
        [(i.turn, i.tool, target(i.target), words(i.outcome), _attempts(i), i.summary, i.key) for i in found],
    )


def read(of: RefusedRecord) -> str:
    """Return what a read did not fetch, and the key under which that is noted."""
    return clean(f"{of.tool} {target(of.target)}: {of.happened} [{of.key}]")


def _attempts(i: IntentRecord) -> list[str]:
    return [f"{a.number} {words(a.outcome)} ({_reason(a)})" for a in i.attempts] or ["none: nothing was sent"]


def _reason(a: AttemptRecord) -> str:
    return a.reason or "its end was not seen"


def unknown(output: Output, found: Sequence[OpenRecord]) -> None:
    """Lay out open intents."""
    if output.rich:
        output.table(
            (INTENT, "where, since", "what is known"),
            [
                (
                    _named(o.tool, o.target, o.key),
                    [f"{_run(o.namespace, o.run)}, turn {o.turn}", _second(o.since)],
                    [o.reason or "the end of the newest attempt was not seen", _settles(o)],
                )
                for o in found
            ],
        )
        output.say(f"{len(found)} unknown." if found else "Nothing is unknown.")
        return
    names = (
        "since",
        "namespace",
        "run",
        "turn",
        "tool",
        "target",
        "attempts",
        "reason",
        "may still land",
        "settles",
    )
    output.table(
        (*names, "key"),
        [
            (o.since, o.namespace, o.run, o.turn, o.tool, target(o.target), o.attempts, o.reason,
             _yes(o.may_still_land), _settles(o), o.key)
            for o in found
        ],
    )  # fmt: skip


def _settles(o: OpenRecord) -> str:
    if o.lease_until is not None:
        return f"in flight until {_second(o.lease_until)}"
    if not o.may_still_land:
        return "settled"
    return (
        f"may still land until {moment(o.settles_at)}" if o.settles_at else "may still land, without a bound"
    )


def recovered(output: Output, found: Sequence[Found]) -> None:
    """Lay out what recovery came to."""
    if output.rich:
        output.table(
            (INTENT, "outcome", "why"),
            [(_named(f.tool, f.target, f.key), words(f.state), [f.reason, *_trouble(f)]) for f in found],
        )
        return
    output.table(
        ("tool", "target", "outcome", "reason", "may still land", "problem", "key"),
        [
            (f.tool, target(f.target), words(f.state), f.reason, _yes(f.may_still_land), f.problem, f.key)
            for f in found
        ],
    )


def _trouble(f: Found) -> list[str]:
    return [text for text in ("may still land" if f.may_still_land else "", f.problem) if text]


def settings(output: Output, rows: Sequence[Setting]) -> None:
    """Lay out settings with their origins."""

    def overrode(row: Setting) -> list[str]:
        return [f"{origin} {replace(row, value=value).shown}" for origin, value in row.overrode]

    def meaning(row: Setting) -> str:
        return f"{row.meaning} ({row.note})" if row.note else row.meaning

    if output.rich:
        output.table(
            ("setting", "value", "origin", "overrode", "meaning"),
            [(row.name, row.shown, row.origin, overrode(row), meaning(row)) for row in rows],
        )
        output.say("Each can be given in the environment as SAFEWRITE_ and its name in capitals.")
        return
    output.table(
        ("setting", "value", "origin", "overrode", "variable", "meaning"),
        [(row.name, row.shown, row.origin, overrode(row), row.variable, meaning(row)) for row in rows],
    )


# One intent --------------------------------------------------------------------------------------------------


def intent(output: Output, i: IntentRecord) -> None:
    """Lay out all that is on record about an intent."""
    output.fields([("outcome", words(i.outcome)), ("summary", i.summary)])
    output.lines("")
    output.fields(_about(i))
    output.heading("Attempts")
    _attempt_table(output, i.attempts)
    output.heading("Rows")
    _rows(output, i.rows)
    texts = [(r.sequence, c.shown) for r in i.rows for c in r.contents if c.name == "evidence" and c.kept]
    if texts:
        output.heading("Evidence")
        output.fields([(f"row {sequence}", str(text).split("\n")) for sequence, text in texts])


def _attempt_table(output: Output, attempts: Sequence[AttemptRecord]) -> None:
    if output.rich:
        output.table(
            ("attempt", "outcome", "known from", "claimed", "id, trace"),
            [
                (a.number, words(a.outcome), [_reason(a), a.evidence], _second(a.claimed_at), [a.id, a.trace])
                for a in attempts
            ],
        )
        return
    output.table(
        ("attempt", "outcome", "evidence", "reason", "claimed", "concluded", "deadline", "id", "trace", "process"),
        [
            (a.number, words(a.outcome), a.evidence, a.reason, a.claimed_at, a.concluded_at, a.deadline_at, a.id,
             a.trace, a.process)
            for a in attempts
        ],
    )  # fmt: skip


def _rows(output: Output, rows: Sequence[RowRecord]) -> None:
    if output.rich:
        for r in rows:
            by = f" by {r.person}" if r.person else ""
            output.entry(f"{r.sequence}  {moment(r.occurred_at)}  {r.event}{by}", [r.happened, then(r)])
        return
    output.table(
        ("row", "at", "event", "what happened", "then", "rule", "because", "outcome", "by"),
        [
            (r.sequence, r.occurred_at, r.event, r.happened, r.decided, r.rule, _because(r), words(r.outcome),
             r.person or r.worker)
            for r in rows
        ],
    )  # fmt: skip


def then(r: RowRecord) -> str:
    """Return what a row led to, and why."""
    return f"Then: {r.decided}. {_because(r)} ({r.rule})" if r.decided else f"{_because(r)} ({r.rule})"


def _because(r: RowRecord) -> str:
    return f"{r.because} Today: {r.differs}." if r.differs else r.because


def _about(i: IntentRecord) -> list[tuple[str, object]]:
    arguments = dict(i.arguments) | dict.fromkeys(i.redacted, "[redacted]")
    told: list[tuple[str, object]] = [
        ("tool", i.tool),
        ("target", target(i.target)),
        ("namespace", i.namespace),
        ("run", i.run),
        ("turn", i.turn),
        ("occurrence", i.occurrence),
        ("key", i.key),
        ("id", i.id),
        ("dependency", i.dependency),
        ("created", i.created_at),
        ("updated", i.updated_at),
        ("settles", i.settles_at),
        ("in flight until", i.lease_until),
        ("resolved by", i.person),
        ("alarms", ", ".join(i.alarms)),
        ("arguments", [f"{clean(name)} = {clean(value)}" for name, value in arguments.items()]),
    ]
    if i.value_kept:
        told.append(("value", "null" if i.value is None else i.value))
    return [(name, value) for name, value in told if value not in (None, "", [])]
