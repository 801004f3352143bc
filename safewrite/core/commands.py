"""What a shell must do next.  A command names the rule that chose it; the shell carries it out and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from safewrite.core.events import Answered, Blocked, OutcomeState, Refused


@dataclass(frozen=True, slots=True)
class Send:
    """Claim attempt `number`, durably, and only then run its body."""

    rule: str
    number: int


@dataclass(frozen=True, slots=True)
class Run:
    """The claim is recorded: run the body of attempt `number`."""

    rule: str
    number: int


@dataclass(frozen=True, slots=True)
class Read:
    """Ask the reconcile function."""

    rule: str


@dataclass(frozen=True, slots=True)
class ReadOther:
    """Reconcile another intent with the same wish, then ask again."""

    rule: str
    intent: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Let `seconds` pass, then ask again."""

    rule: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Watch:
    """An attempt is in flight elsewhere: wait until its record changes or its lease ends, then ask again."""

    rule: str


@dataclass(frozen=True, slots=True)
class Note:
    """Record this fact, which then leads to the answer."""

    rule: str
    fact: Refused | Blocked | Answered


class AnswerKind(StrEnum):
    """What the caller gets."""

    VALUE = "value"
    REJECTED = "rejected"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"
    IN_FLIGHT = "in_flight"
    MISMATCH = "mismatch"
    OTHER = "other"
    """The value of another intent with the same wish."""


@dataclass(frozen=True, slots=True)
class Answer:
    """End the call with this."""

    rule: str
    kind: AnswerKind
    outcome: OutcomeState
    reason: str
    evidence: str = ""
    attributable: bool = False
    may_still_land: bool = False
    replayed: bool = False
    """The outcome was on record before this call did anything for it."""
    value_at: int | None = None
    """The row whose content is the value; `None`: it was not kept."""
    other: str | None = None
    """The id of the other intent that is meant."""
    names: tuple[str, ...] = ()
    """Parameters that differ."""


@dataclass(frozen=True, slots=True)
class Nothing:
    """Nobody waits: the fact is recorded, and that is all."""

    rule: str


Command = Send | Run | Read | ReadOther | Wait | Watch | Note | Answer | Nothing
