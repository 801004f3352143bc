"""What one scenario is: the calls of one write, what the dependency does to them, and what must hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from safewrite.testing.script import Step

if TYPE_CHECKING:
    from safewrite.demo.agent import Told
    from safewrite.demo.stage import Stage

State = Literal["applied", "not_applied", "unknown"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the tool."""

    note: str
    """What the model writes as its reason: free text, reworded from call to call."""
    told: State | None
    """What must be told; None: nobody is left to be told."""
    within: float = 4.5
    """Seconds in which the answer must come."""
    once_landed: bool = False
    """Ask only once the dependency has all effects that are expected."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One write, from the model's wish to what became of it."""

    name: str
    tool: str
    target: str
    script: tuple[Step, ...]
    """What the dependency does to the first requests about the target; afterwards it is well-behaved."""
    calls: tuple[Call, ...]
    effects: int
    """How many effects the dependency must hold in the end."""
    requests: int
    """How many times the write must have been sent in all."""
    play: Callable[[Stage, Scenario], list[Told]]
    processes: int = 0
    """How many processes of their own the calls need."""
    killed_after_effect: bool = True
    """Where a process is killed: once its write took effect, else once its request was read."""
    keys: Literal["off", "forever"] | None = None
    """Whether the dependency really recognises keys; None: as the tool declares."""
