"""What the audit answers with: frozen records, times aware in UTC, each with `to_dict()` for JSON.

Field names are public and documented; in JSON they are the same, times as ISO 8601 text in UTC.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

Json = Any
"""What `json` writes and reads."""


class Record:
    """Base of all records."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Json]:
        """Return the record as JSON can hold it."""
        fields = dataclasses.fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        return {field.name: _plain(getattr(self, field.name)) for field in fields}


def _plain(value: object) -> Json:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    return value


def target_value(text: str) -> Json:
    """Return what a target's canonical text stands for: `sub_1` for `"sub_1"`; what is no JSON stays text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


class About(Record):
    """What is about one intent: its `target` is canonical text, in JSON the value that it stands for."""

    __slots__ = ()
    target: str

    def to_dict(self) -> dict[str, Json]:
        """Return the record as JSON can hold it."""
        return {**super().to_dict(), "target": target_value(self.target)}


@dataclass(frozen=True, slots=True)
class RunRecord(Record):
    """One run, in numbers."""

    namespace: str
    """Keeps the intents of several applications apart."""
    run: str
    """The execution of the agent."""
    began_at: datetime
    """When its first intent was recorded."""
    last_at: datetime
    """When the newest row of any of its intents was recorded."""
    intents: int
    """How many intents it has."""
    not_fetched: int
    """How many reads brought nothing, or only a part."""
    applied: int
    """How many of them are applied."""
    not_applied: int
    """How many are not."""
    unknown: int
    """How many nobody knows."""
    attempts: int
    """How many attempts were made for all of them."""
    alarms: int
    """How many alarms they raised."""


@dataclass(frozen=True, slots=True)
class AttemptRecord(Record):
    """One attempt, and the highest evidence about it."""

    number: int
    """Counted from 1."""
    id: str
    """The id that the dependency was told (`X-Attempt-Id`)."""
    outcome: str
    """`applied`, `not_applied` or `unknown`."""
    evidence: str
    """How that is known; empty: it is not."""
    reason: str
    """What its end said, as a stable code; empty: its end was not seen."""
    claimed_at: datetime
    """When it was written down, before it was sent."""
    concluded_at: datetime | None
    """When its body was seen to end, or its caller gave up."""
    ended: bool
    """Its body was seen to end, or never ran."""
    deadline_at: datetime | None
    """The instant that it told the dependency."""
    object_id: str | None
    """The object that it made, if it named one."""
    trace: str
    """The call that made it."""
    process: str
    """The process that ran it."""


@dataclass(frozen=True, slots=True)
class ContentRecord(Record):
    """A text that belongs to a row, and can be deleted without breaking the chain."""

    name: str
    """`arguments`, `value` or `evidence`."""
    kept: bool
    """False: it was deleted since."""
    shown: Json
    """What it says, secrets left out; None where it was deleted."""


@dataclass(frozen=True, slots=True)
class RowRecord(Record):
    """One row of the audit table, and what it tells."""

    sequence: int
    """Its number in the intent, from 1."""
    event: str
    """What was reported, as a code."""
    happened: str
    """What was reported, in sentences."""
    decided: str
    """What was to be done next; empty: nothing, for nobody waited."""
    rule: str
    """The id of the rule that decided."""
    because: str
    """The rule in words."""
    outcome: str
    """The intent's outcome after the row."""
    differs: str
    """What the machine of this version makes of the row, where that is something else; else empty."""
    attempt: int | None
    """The number of the attempt that it is about."""
    attempt_id: str | None
    """The id of that attempt."""
    reason: str
    """The code that says most about the event."""
    command: str
    """What was decided, as a code."""
    machine: int
    """The version of the machine that decided."""
    occurred_at: datetime
    """When it happened."""
    recorded_at: datetime
    """When it was written."""
    granted_ms: int | None
    """Milliseconds that the call was granted in all."""
    left_ms: int | None
    """Milliseconds that were left of them."""
    deadline_at: datetime | None
    """The instant at which the attempt, or the call, must end."""
    promises: Mapping[str, Json] | None
    """The promises in force, as far as any were declared."""
    evidence: Mapping[str, Json] | None
    """What was seen, in short: type of the exception, status, reason."""
    agent: str
    """Who the run said it acts for."""
    worker: str
    """Who wrote the row: a process, or `recovery`."""
    person: str
    """Who resolved it."""
    tool_call_id: str
    """The framework's own id of the tool call."""
    trace: str
    """The call that wrote it."""
    contents: tuple[ContentRecord, ...]
    """Longer texts that belong to it."""
    id: int
    """Its number in the table."""
    hash: str
    """Its hash, over the row before and itself."""


@dataclass(frozen=True, slots=True)
class IntentRecord(About):
    """One intent with all that is on record about it."""

    key: str
    """The idempotency key, the same for every attempt."""
    id: str
    """The id of the intent."""
    namespace: str
    """Keeps the intents of several applications apart."""
    run: str
    """The execution of the agent."""
    turn: str
    """Its step in that run."""
    tool: str
    """The name of the tool."""
    target: str
    """What the write is about."""
    occurrence: str
    """Which of several equal writes of one turn it is."""
    dependency: str
    """The dependency that it was sent to."""
    outcome: str
    """`applied`, `not_applied` or `unknown`."""
    summary: str
    """All of it in a few sentences."""
    evidence: str
    """How the outcome is known, as a code; empty: it is not."""
    attributable: bool
    """That names this intent, not something that looks like it."""
    may_still_land: bool
    """As of now: an attempt may still take effect."""
    settles_at: datetime | None
    """When no attempt can take effect any more, if that is to come and anything tells when."""
    settling: str
    """The same in words."""
    lease_until: datetime | None
    """Until when a call works on it; None: none does."""
    person: str
    """Who resolved it; empty: nobody."""
    alarms: tuple[str, ...]
    """What happened that the promises do not allow, as codes."""
    created_at: datetime
    """When its first row was recorded."""
    updated_at: datetime
    """When its newest row was recorded."""
    arguments: Mapping[str, Json]
    """The recorded arguments of its first call, by name."""
    redacted: tuple[str, ...]
    """Arguments that were never recorded."""
    value: Json
    """What the tool returned."""
    value_kept: bool
    """`value` is what was returned; false: not applied, or not kept."""
    attempts: tuple[AttemptRecord, ...]
    """Its attempts, in order."""
    rows: tuple[RowRecord, ...]
    """Its rows, in order."""


@dataclass(frozen=True, slots=True)
class OpenRecord(About):
    """One intent of which nobody knows what became of it."""

    key: str
    """The idempotency key: what `resolve` is given."""
    id: str
    """The id of the intent."""
    namespace: str
    """Keeps the intents of several applications apart."""
    run: str
    """The execution of the agent."""
    turn: str
    """Its step in that run."""
    tool: str
    """The name of the tool."""
    target: str
    """What the write is about."""
    dependency: str
    """The dependency that it was sent to."""
    since: datetime
    """When its oldest open attempt was claimed."""
    attempts: int
    """How many attempts were made."""
    reason: str
    """What is known of the newest attempt; empty: its end was not seen."""
    may_still_land: bool
    """As of now: an attempt may still take effect."""
    settles_at: datetime | None
    """When no attempt can take effect any more, if that is to come and anything tells when."""
    settling: str
    """The same in words."""
    lease_until: datetime | None
    """Until when a call works on it; None: none does."""


@dataclass(frozen=True, slots=True)
class RefusedRecord(About):
    """One call that was refused, held back by another intent with the same wish, or, of a reading tool, in vain."""

    at: datetime
    """When it was refused."""
    event: str
    """`refused` or `blocked`; `missed`: a read brought nothing, or only a part."""
    reason: str
    """Why, as a stable code."""
    happened: str
    """The same in words."""
    key: str
    """The idempotency key that the call had."""
    id: str
    """The id of its intent."""
    namespace: str
    """Keeps the intents of several applications apart."""
    run: str
    """The execution of the agent."""
    turn: str
    """Its step in that run."""
    tool: str
    """The name of the tool."""
    target: str
    """What the write is about."""
    dependency: str
    """The dependency that it would have been sent to."""
    others: tuple[str, ...]
    """The intents that stood in its way."""
    names: tuple[str, ...]
    """The parameters that differed."""
    rule: str
    """The id of the rule that decided."""
    trace: str
    """The call."""
    agent: str
    """Who the run said it acts for."""
