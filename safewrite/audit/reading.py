"""From the tables to records: statements that only read, and what their rows make together."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from safewrite.audit.records import (
    AttemptRecord,
    ContentRecord,
    IntentRecord,
    Json,
    OpenRecord,
    RefusedRecord,
    RowRecord,
)
from safewrite.core.events import Blocked, Moment, OutcomeState, Refused
from safewrite.core.phrases import happened, process
from safewrite.core.state import AttemptState, State
from safewrite.core.story import Line, Row, tell
from safewrite.errors import LedgerUnavailable, SafeWriteError, SchemaOutdated
from safewrite.ledger.columns import audit_columns
from safewrite.ledger.model import ARGUMENTS, VALUE
from safewrite.ledger.rows import Unreadable, command_of, event_of, parse
from safewrite.ledger.texts import restored, stamp, stamp_text
from safewrite.ledger.units import SENSELESS

if TYPE_CHECKING:
    from safewrite.ledger.rows import Json as Body

Columns = Mapping[str, Any]
"""A row of a table, by the names of its columns."""


ABOUT = ("key", "id", "namespace", "run", "turn", "tool", "target", "dependency")
"""The columns of an intent that every record about it begins with."""


@contextlib.contextmanager
def damage() -> Iterator[None]:
    """Tell what no ledger of ours leads to as one that somebody has altered: `LedgerUnavailable`."""
    try:
        yield
    except SafeWriteError:
        raise
    except SENSELESS as error:
        raise LedgerUnavailable(
            "The ledger holds what no safewrite wrote.", reason="ledger_corrupt"
        ) from error


def instant(value: str | datetime) -> datetime:
    """Return an instant as a column holds it, aware in UTC."""
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found.astimezone(UTC)


class Telling:
    """One intent while its record is made: its row, its audit rows, its contents and their story."""

    def __init__(
        self, intent: Columns, rows: Sequence[Columns], contents: Sequence[Columns], now: Moment
    ) -> None:
        self.intent, self.now = intent, now
        # Rows that were added since the intent's own row was read belong to another look.
        self.rows = [row for row in rows if row["sequence"] <= intent["revision"]]
        self.contents: dict[int, dict[str, str]] = defaultdict(dict)
        for content in contents:
            self.contents[content["sequence"]][restored(content["name"])] = restored(content["text"])
        self.bodies: dict[int, Body] = {}
        self.problems: dict[int, str] = {}
        self.story = tell(self._readable(), now)
        self.lines = {line.sequence: line for line in self.story.lines}

    def _readable(self) -> Iterable[Row]:
        for row in self.rows:
            sequence = row["sequence"]
            try:
                body = parse(row["body"])
                told = Row(sequence, event_of(body), command_of(body), OutcomeState(body["outcome"]))
                self.bodies[sequence] = body
            except (Unreadable, SchemaOutdated, KeyError, TypeError, ValueError) as error:
                self.problems[sequence] = str(error)
            else:
                yield told

    # Records -------------------------------------------------------------------------------------------------

    def record(self) -> IntentRecord:
        """Return the whole record."""
        about, state = self._about(), self.story.state
        arguments, redacted = self._arguments()
        value, value_kept = self._value(state)
        return IntentRecord(
            **about,
            occurrence=restored(self.intent["occurrence"]),
            summary=self._summary(),
            **self._verdict(state),
            person=state.person,
            alarms=tuple(alarm.kind for alarm in state.alarms),
            created_at=instant(self.intent["created_at"]),
            updated_at=instant(self.intent["updated_at"]),
            arguments=arguments,
            redacted=redacted,
            value=value,
            value_kept=value_kept,
            attempts=tuple(_attempt(a) for a in state.attempts),
            rows=tuple(self._row(row) for row in self.rows),
            **self._fate(),
        )

    def open(self) -> OpenRecord:
        """Return the short record of an open intent."""
        state = self.story.state
        claimed = [a.claimed_at.unix for a in state.attempts if a.open]
        newest = state.newest
        return OpenRecord(
            **self._about(),
            since=stamp(min(claimed)) if claimed else instant(self.intent["created_at"]),
            attempts=state.epoch,
            reason=newest.reason if newest is not None else "",
            **self._fate(),
        )

    def _about(self) -> dict[str, Any]:
        return {name: restored(self.intent[name]) for name in ABOUT}

    def _fate(self) -> dict[str, Any]:
        """Return what is known of its end, as of now."""
        story, lease = self.story, self.story.state.lease
        settles = None
        if story.may_still_land and story.settles_in is not None:
            settles = stamp(self.now.unix) + timedelta(seconds=story.settles_in)
        left = lease.left(self.now, story.promises.clock_skew) if lease is not None else 0.0
        return {
            "may_still_land": story.may_still_land,
            "settles_at": settles,
            "settling": story.settling,
            "lease_until": stamp(self.now.unix) + timedelta(seconds=left) if left > 0.0 else None,
        }

    def _verdict(self, state: State) -> dict[str, Any]:
        """Return the outcome: the fold of the rows, or, where not all can be read, what the intent's row says."""
        if self.problems:
            row = self.intent
            return {name: row[name] for name in ("outcome", "evidence")} | {
                "attributable": bool(row["attributable"])
            }
        return {
            "outcome": state.outcome.value,
            "evidence": state.evidence,
            "attributable": state.attributable,
        }

    def _summary(self) -> str:
        if not self.problems:
            return self.story.summary
        which = ", ".join(map(str, sorted(self.problems)))
        return f"Row {which} cannot be read, and is left out here. {self.story.summary}"

    def _row(self, row: Columns) -> RowRecord:
        sequence = row["sequence"]
        body, line = self.bodies.get(sequence), self.lines.get(sequence)
        drawn: Columns = row
        if body is not None:
            # What was hashed counts, not the columns that are only drawn from it.
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                drawn = {**row, **audit_columns(body, stamp_text)}
        return _row(sequence, drawn, line, self.problems.get(sequence, ""), self._contents(row, body))

    # Contents ------------------------------------------------------------------------------------------------

    def _contents(self, row: Columns, body: Body | None) -> tuple[ContentRecord, ...]:
        sequence = row["sequence"]
        kept = self.contents.get(sequence, {})
        promised = body.get("contents", {}) if body is not None else {}
        names = [*promised, *(name for name in kept if name not in promised)]
        return tuple(
            ContentRecord(name, name in kept, shown(name, kept[name]) if name in kept else None)
            for name in names
        )

    def _arguments(self) -> tuple[dict[str, Json], tuple[str, ...]]:
        text = self.contents.get(1, {}).get(ARGUMENTS)
        if text is None:
            return {}, ()
        told = shown(ARGUMENTS, text)
        if not isinstance(told, dict):
            return {}, ()
        missing = tuple(map(str, json.loads(text)["missing"]))
        return {name: part for name, part in told.items() if name not in missing}, missing

    def _value(self, state: State) -> tuple[Json, bool]:
        text = self.contents.get(state.value_at or 0, {}).get(VALUE)
        return (None, False) if text is None else (shown(VALUE, text), True)


REDACTED = "[redacted]"
"""Stands where a value was never recorded."""


def shown(name: str, text: str) -> Json:
    """Return what a kept text says: of arguments and values the data without their types' notes."""
    if name not in (ARGUMENTS, VALUE):
        return text
    try:
        kept = json.loads(text)
        if name == VALUE:
            return kept["value"]
        told = {argument: entry["value"] for argument, entry in kept["arguments"].items()}
        return told | dict.fromkeys(kept["missing"], REDACTED)
    except (ValueError, LookupError, TypeError, AttributeError):
        return text


def _attempt(a: AttemptState) -> AttemptRecord:
    return AttemptRecord(
        number=a.number,
        id=a.id,
        outcome=a.outcome.value,
        evidence=a.evidence,
        reason=a.reason,
        claimed_at=stamp(a.claimed_at.unix),
        concluded_at=stamp(a.concluded_at.unix) if a.concluded_at is not None else None,
        ended=a.ended_at is not None,
        deadline_at=stamp(a.deadline_at) if a.deadline_at is not None else None,
        object_id=a.object_id,
        trace=a.call,
        process=process(a.owner),
    )


def _row(
    sequence: int, drawn: Columns, line: Line | None, problem: str, contents: tuple[ContentRecord, ...]
) -> RowRecord:
    return RowRecord(
        sequence=sequence,
        event=drawn["event"],
        happened=line.happened if line is not None else f"This row cannot be read: {problem}.",
        decided=line.decided if line is not None else "",
        rule=drawn["rule"],
        because=line.because if line is not None else "",
        outcome=line.outcome.value if line is not None else drawn["outcome"],
        differs=line.differs if line is not None else "",
        attempt=drawn["attempt"],
        attempt_id=_restored(drawn["attempt_id"]),
        reason=restored(drawn["reason"]),
        command=drawn["command"],
        machine=drawn["machine"],
        occurred_at=instant(drawn["occurred_at"]),
        recorded_at=instant(drawn["recorded_at"]),
        granted_ms=drawn["granted_ms"],
        left_ms=drawn["left_ms"],
        deadline_at=instant(drawn["deadline_at"]) if drawn["deadline_at"] is not None else None,
        promises=_parsed(drawn["promises"]),
        evidence=_parsed(drawn["evidence"]),
        agent=restored(drawn["agent"]),
        worker=restored(drawn["worker"]),
        person=restored(drawn["person"]),
        tool_call_id=restored(drawn["tool_call_id"]),
        trace=restored(drawn["trace"]),
        contents=contents,
        id=drawn["id"],
        hash=drawn["hash"],
    )


def _restored(text: str | None) -> str | None:
    return None if text is None else restored(text)


def _parsed(text: str | None) -> Json:
    return None if text is None else json.loads(text)


def refused(row: Columns) -> RefusedRecord:
    """Return the record of a call that was refused or blocked, from its row beside its intent's `ABOUT`."""
    told = ""
    others: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    with contextlib.suppress(Unreadable, SchemaOutdated):
        fact = event_of(parse(row["body"])).fact
        told = happened(fact, State(), State())
        if isinstance(fact, Refused):
            names = fact.names
            others = () if fact.other is None else (fact.other,)
        elif isinstance(fact, Blocked):
            others = fact.by
    about = {name: restored(row[f"intent_{name}"]) for name in ABOUT}
    return RefusedRecord(
        at=instant(row["occurred_at"]),
        event=row["event"],
        reason=restored(row["reason"]) or "same_wish_open",
        happened=told,
        **about,
        others=others,
        names=names,
        rule=row["rule"],
        trace=restored(row["trace"]),
        agent=restored(row["agent"]),
    )
