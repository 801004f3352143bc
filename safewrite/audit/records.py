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
    run: str
    began_at: datetime
    """When its first intent was recorded."""
    last_at: datetime
    """When the newest row of any of its intents was recorded."""
    intents: int
    applied: int
    not_applied: int
    unknown: int
    attempts: int
    alarms: int


@dataclass(frozen=True, slots=True)
class AttemptRecord(Record):
    """One attempt, and the highest evidence about it."""

    number: int
    id: str
    outcome: str
    """`applied`, `not_applied` or `unknown`."""
    evidence: str
    """How that is known; empty: it is not."""
    reason: str
    claimed_at: datetime
    concluded_at: datetime | None
    """When its body was seen to end, or its caller gave up."""
    ended: bool
    """Its body was seen to end, or never ran."""
    deadline_at: datetime | None
    """The instant that it told the dependency."""
    object_id: str | None
    trace: str
    process: str


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
    event: str
    happened: str
    """What was reported, in sentences."""
    decided: str
    """What was to be done next; empty: nothing, for nobody waited."""
    rule: str
    because: str
    """The rule in words."""
    outcome: str
    """The intent's outcome after the row."""
    differs: str
    """What the machine of this version makes of the row, where that is something else; else empty."""
    attempt: int | None
    attempt_id: str | None
    reason: str
    command: str
    machine: int
    occurred_at: datetime
    recorded_at: datetime
    granted_ms: int | None
    left_ms: int | None
    deadline_at: datetime | None
    promises: Mapping[str, Json] | None
    evidence: Mapping[str, Json] | None
    agent: str
    worker: str
    person: str
    tool_call_id: str
    trace: str
    contents: tuple[ContentRecord, ...]
    id: int
    hash: str


@dataclass(frozen=True, slots=True)
class IntentRecord(About):
    """One intent with all that is on record about it."""

    key: str
    id: str
    namespace: str
    run: str
    turn: str
    tool: str
    target: str
    occurrence: str
    dependency: str
    outcome: str
    """`applied`, `not_applied` or `unknown`."""
    summary: str
    """All of it in a few sentences."""
    evidence: str
    attributable: bool
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
    created_at: datetime
    updated_at: datetime
    arguments: Mapping[str, Json]
    redacted: tuple[str, ...]
    """Arguments that were never recorded."""
    value: Json
    value_kept: bool
    """`value` is what the tool returned."""
    attempts: tuple[AttemptRecord, ...]
    rows: tuple[RowRecord, ...]


@dataclass(frozen=True, slots=True)
class OpenRecord(About):
    """One intent of which nobody knows what became of it."""

    key: str
    id: str
    namespace: str
    run: str
    turn: str
    tool: str
    target: str
    dependency: str
    since: datetime
    """When its oldest open attempt was claimed."""
    attempts: int
    reason: str
    """What is known of the newest attempt; empty: its end was not seen."""
    may_still_land: bool
    settles_at: datetime | None
    """When no attempt can take effect any more, if that is to come and anything tells when."""
    settling: str
    """The same in words."""
    lease_until: datetime | None
    """Until when a call works on it; None: none does."""


@dataclass(frozen=True, slots=True)
class RefusedRecord(About):
    """One call that was refused, or held back by another intent with the same wish."""

    at: datetime
    event: str
    """`refused` or `blocked`."""
    reason: str
    happened: str
    """The same in words."""
    key: str
    id: str
    namespace: str
    run: str
    turn: str
    tool: str
    target: str
    dependency: str
    others: tuple[str, ...]
    """The intents that stood in its way."""
    names: tuple[str, ...]
    """The parameters that differed."""
    rule: str
    trace: str
    agent: str
