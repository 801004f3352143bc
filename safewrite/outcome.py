"""What is known of one write: the answer of every call, as data and as text for a language model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from safewrite import words

if TYPE_CHECKING:
    from safewrite.errors import SafeWriteError

T = TypeVar("T", covariant=True)


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """The fate of one write, as far as it is known."""

    state: Literal["applied", "not_applied", "unknown"]
    reason: str
    """A stable code."""
    value: T | None = None
    """What the tool returned, if it was applied and the value was kept (see `has_value`)."""
    has_value: bool = False
    """`value` is what the tool returned; False: not applied, or not kept."""
    evidence: str = ""
    """How it is known: `response`, `reconciled`, `goal_state`, `late_response`, `delivered`, `person`, …"""
    attributable: bool = False
    """The evidence names this intent, not something that looks like it."""
    may_still_land: bool = False
    """An attempt may still take effect."""
    sent: bool = False
    """This call sent something."""
    replayed: bool = False
    """The outcome comes from the ledger; this call sent nothing."""
    recorded: bool = True
    """False: the ledger could not store the outcome; a later look will."""
    key: str = ""
    intent_id: str = ""
    attempts: int = 0
    trace: str = ""
    tool: str = ""
    blocked_by_key: str | None = None
    """The key of another intent with the same wish, which stopped or answered this call."""
    again: bool | None = None
    """Not applied: whether asking again makes sense (never sent: True; the dependency said no: False)."""
    error: SafeWriteError | None = field(default=None, repr=False, compare=False)
    """What a caller who wants a value gets instead, if anything."""

    def for_model(self) -> str:
        """Return text for a language model: what is known, whether work may be running, and what to do."""
        return words.for_model(
            self.state,
            self.reason,
            self.may_still_land,
            self.replayed,
            self.key or None,
            self.tool or None,
            self.blocked_by_key,
            again=self.again,
            evidence=self.evidence,
        )
