"""The shape in which agent frameworks are told about a write that has no value to return."""

from __future__ import annotations

from typing import Literal

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
    may_still_land: bool = False
    evidence: str = ""
    attributable: bool = False
    replayed: bool = False
    key: str = ""
    attempts: int = 0
    trace: str = ""
    blocked_by_key: str | None = None

    @classmethod
    def of(cls, outcome: Outcome[object], message: str | None = None) -> WriteReport:
        """Return the report of an outcome; `message` replaces its text."""
        return cls(
            state=outcome.state,
            reason=outcome.reason,
            message=message if message is not None else outcome.for_model(),
            do_not_repeat=outcome.state != "not_applied" or outcome.again is False,
            may_still_land=outcome.may_still_land,
            evidence=outcome.evidence,
            attributable=outcome.attributable,
            replayed=outcome.replayed,
            key=outcome.key,
            attempts=outcome.attempts,
            trace=outcome.trace,
            blocked_by_key=outcome.blocked_by_key,
        )
