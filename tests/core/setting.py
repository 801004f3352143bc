"""What one world promises and who acts in it: the dimensions over which `world.py` explores."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from safewrite.core.events import Promises


@dataclass(frozen=True)
class Caller:
    """One call of the tool, in a process of its own, that may begin at any moment."""

    intent: int = 0
    length: int = 2
    """Ticks until it must answer."""
    sends: int = 2
    refusal: str = ""
    waits: bool = True
    precondition: bool | None = None
    """Whether its attempts carry the precondition; `None`: as the world says."""
    same_payload: bool = True
    beside_unknown: bool = False
    quiet: bool = False
    margin: int = 1
    """Ticks by which its leases outlast its deadline."""
    cancelled: bool = False
    """It may be cancelled at any moment."""


@dataclass(frozen=True)
class Setting:
    """One world.  Time is in ticks; what is declared is true in it."""

    name: str
    key: float | None = None
    """Ticks for which the dependency recognises a key; `inf`: for ever; `None`: it does not."""
    replays_errors: bool = False
    bound: float | None = None
    lag: float | None = 0.0
    reads: str = "key"
    """`key`: the read finds the intent's own mark; `goal`: it sees the desired state only; empty: no read."""
    precondition: bool = False
    deadline: bool = False
    """The dependency refuses what arrives after the instant that the attempt carries."""
    max_stall: float | None = None
    carries: bool = True
    """Bodies carry the key and the deadline."""
    callers: tuple[Caller, ...] = (Caller(),)
    horizon: int = 4
    claims: int = 3
    """Attempts in all; a world is not followed beyond."""
    crashes: bool = False
    known_gone: bool = True
    """Others can find out that a crashed process is gone."""
    leaves: bool = False
    """A caller may leave a body that goes on."""
    errors: bool = False
    """The dependency may answer 500, with or without the effect."""
    rejects: bool = False
    limits: bool = False
    """The dependency may answer 429."""
    refuses: bool = False
    """A connection may be refused."""
    declines: bool = False
    """A body may say that it sent nothing, and need not be run again."""
    fails: bool = False
    """A read may fail."""
    running: bool = False
    """A read may say that it is still being worked on."""
    actor: bool = False
    """Somebody else reaches or undoes the goal, or takes the version."""
    person: bool = False
    webhook: bool = False
    fence: bool = False
    skew: tuple[int, ...] = ()
    """Ticks by which the wall clock of each caller's process is off; empty: all share one clock."""
    same_content: bool = True
    unwritable: bool = False
    """The ledger may fail to store how a body ended."""
    split: bool = False
    """Others may act between the decision to send and the claim, which then must see the revision it was made on."""
    fault: str = ""
    """A shell or ledger that is at fault: `stale claim` (by epoch, not by revision), `two winners` (of the start)."""

    @property
    def promises(self) -> Promises:
        """What the dependency declares."""
        return Promises(
            key_retention=self.key,
            replays_errors=self.replays_errors,
            honours_deadline=self.deadline,
            work_bound=self.bound,
            read_lag=self.lag,
            clock_skew=1.0 if self.skew else 0.0,
            max_stall=self.max_stall,
        )

    @property
    def alarms(self) -> frozenset[str]:
        """The alarms that are due in this world: what is declared is true, but not every word of a person or author."""
        due = {"against_person": self.person, "key_not_carried": not self.carries}
        # Bodies here may run on for as long as they like; their requests keep to what is declared.
        due["effect_after_bound"] = self.max_stall is not None
        return frozenset(kind for kind, is_due in due.items() if is_due)


EVER = inf
