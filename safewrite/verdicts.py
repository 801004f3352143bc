"""What a reconcile function, or a body, may say about a write.

`Applied` and `NotApplied` assert a look-up by this intent's key, marker or object.  `GoalMet` and `GoalNotMet` are
for tools that bring about a state ("cancelled"), where nobody can tell who did it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from safewrite import words

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Partial(Generic[T]):
    """What the body of a reading tool returns, and its caller gets, where only a part could be fetched.

    `reached` says how far it came ("page 7"), `reason` why no further.
    """

    value: T
    reached: str = ""
    reason: str = "budget_exhausted"


@dataclass(frozen=True, slots=True)
class NotFetched:
    """One read that did not bring what it was asked for."""

    tool: str
    target: str
    """What it was about, as canonical text."""
    reason: str
    """Why, as a stable code."""
    reached: str = ""
    """How far a listing came; empty: it did not say."""
    sent: bool = False
    """Something was sent for it."""
    part: bool = False
    """The caller got a part of it."""
    value: object = field(default=None, repr=False)
    """That part, where this is what an agent framework gets in its place."""

    def __str__(self) -> str:
        return self.for_model()  # frameworks show a model `str(result)`

    def for_model(self) -> str:
        """Return what to tell a language model."""
        return words.not_fetched(self.tool, self.target, self.reason, self.reached, part=self.part)


@dataclass(frozen=True, slots=True)
class Applied(Generic[T]):
    """The effect of this intent was found.

    `value` is what the tool would have returned; `object_id` names the object that it made, which then proves this
    intent and no other.
    """

    value: T
    object_id: str | None = None


@dataclass(frozen=True, slots=True)
class NotApplied:
    """This intent's key, marker or object was looked up where its effect cannot be erased, and is not there."""


@dataclass(frozen=True, slots=True)
class GoalMet(Generic[T]):
    """The state that the tool is to bring about holds; who brought it about is unproven."""

    value: T


@dataclass(frozen=True, slots=True)
class GoalNotMet:
    """The state that the tool is to bring about does not hold."""


@dataclass(frozen=True, slots=True)
class StillRunning:
    """The dependency accepted the write and still works on it."""


@dataclass(frozen=True, slots=True)
class Inconclusive:
    """The read could not tell; `reason` says why."""

    reason: str = ""
