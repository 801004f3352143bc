"""The shape in which agent frameworks are told about a write that has no value to return."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from safewrite.outcome import Outcome


class WriteReport(BaseModel):
    """The fate of a write, as data and text: a normal result, so that no framework retries or rewords it."""

    model_config = ConfigDict(frozen=True)

    state: Literal["applied", "not_applied", "unknown"]
    reason: str
    message: str
    """What to tell the model."""
    do_not_repeat: bool
    value: Any = None
    """What the tool returned, where its goal is met and an attempt may still land."""
    may_still_land: bool = False
    evidence: str = ""
    attributable: bool = False
    sent: bool = False
    replayed: bool = False
    recorded: bool = True
    key: str = ""
    intent_id: str = ""
    attempts: int = 0
    trace: str = ""
    blocked_by_key: str | None = None

    def __str__(self) -> str:
        """Return what to tell the model: some frameworks show it the text of a result."""
        return self.message if self.value is None else f"{self.message} Its value: {self.value}"

    @classmethod
    def of(cls, outcome: Outcome[object], message: str | None = None) -> WriteReport:
        """Return the report of an outcome; `message` replaces its text."""
        return cls(
            state=outcome.state,
            reason=outcome.reason,
            message=message if message is not None else outcome.for_model(),
            do_not_repeat=outcome.state != "not_applied" or outcome.again is False,
            value=outcome.value,
            may_still_land=outcome.may_still_land,
            evidence=outcome.evidence,
            attributable=outcome.attributable,
            sent=outcome.sent,
            replayed=outcome.replayed,
            recorded=outcome.recorded,
            key=outcome.key,
            intent_id=outcome.intent_id,
            attempts=outcome.attempts,
            trace=outcome.trace,
            blocked_by_key=outcome.blocked_by_key,
        )
