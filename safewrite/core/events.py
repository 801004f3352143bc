"""What the world reported: the vocabulary of facts that the machine folds.

Every value here is frozen and made of plain numbers and text, so that a row in the ledger can hold it whole
and a later process can fold it again.  Nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class OutcomeState(StrEnum):
    """Whether a write took effect: of one attempt, and folded over all evidence, of the intent."""

    UNKNOWN = "unknown"
    NOT_APPLIED = "not_applied"
    APPLIED = "applied"


class Moment(NamedTuple):
    """One instant, told by two clocks.

    `ticks` are seconds of a clock that nobody can set and that runs while the machine sleeps; they compare only
    with ticks of the same `clock` (a boot of one machine).  `unix` is wall time, good for stamps and, less a
    declared skew, for comparing across clocks.
    """

    unix: float
    ticks: float
    clock: str

    def seconds_to(self, later: Moment, skew: float) -> float:
        """Return how long it certainly was from here to `later`: exact on one clock, else less `skew`."""
        if self.clock == later.clock:
            return later.ticks - self.ticks
        return later.unix - self.unix - skew


@dataclass(frozen=True, slots=True)
class Finding:
    """What one exception, status or return value says about the attempt that got it."""

    outcome: OutcomeState
    reason: str
    """A stable code, such as `connect_refused`, `read_timeout`, `http_503`, `returned`."""
    again: bool = False
    """Not applied, and may be sent again without a read: never sent, 425, 429."""
    unsent: bool = False
    """The body says that nothing was sent, whether or not it could be sent again."""
    status: int | None = None
    """The HTTP status, where there was one."""
    retry_after: float | None = None
    """Seconds the dependency asked us to wait."""
    proof: bool = False
    """A transport proof that the request was not processed (REFUSED_STREAM, GOAWAY below our stream)."""
    precondition_failed: bool = False
    """A definite 412: the version that the attempt named is gone."""
    running: bool = False
    """Accepted, and still being worked on: 202, a verdict of StillRunning, a 409 for a key in progress."""


class Verdict(StrEnum):
    """What a reconciling read says about the intent."""

    APPLIED = "applied"
    NOT_APPLIED = "not_applied"
    GOAL_MET = "goal_met"
    GOAL_NOT_MET = "goal_not_met"
    RUNNING = "still_running"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, slots=True)
class Promises:
    """What the dependency promises, in seconds; `None` is not promised.  Stored with every attempt."""

    key_retention: float | None = None
    replays_errors: bool = False
    honours_deadline: bool = False
    work_bound: float | None = None
    read_lag: float | None = None
    clock_skew: float = 1.0
    max_stall: float | None = None


@dataclass(frozen=True, slots=True)
class Other:
    """Another intent with the same wish (namespace, run, tool, target), as seen in the step that would claim."""

    id: str
    key: str
    outcome: OutcomeState
    same_turn: bool
    same_content: bool


@dataclass(frozen=True, slots=True)
class Call:
    """What one call may still do: its numbers arrive with each event, so that the machine needs no clock."""

    id: str
    left: float
    """Seconds until this call must answer."""
    sends: int
    """How many attempts this call may make in all; 0: it only reads."""
    reads: bool
    """There is a reconcile function."""
    promises: Promises = Promises()
    floor: float = 0.0
    """The least seconds with which an attempt may start."""
    lease: float = 0.0
    """How long a claim made now would be leased, in seconds."""
    backoff: float = 0.0
    """Seconds the wait strategy proposes before the next send or read."""
    waits: bool = True
    """Wait for an attempt in flight elsewhere, or answer at once."""
    precondition: bool = False
    """The attempt would carry the intent's precondition."""
    same_payload: bool = True
    """The redacted arguments at hand equal the recorded ones."""
    refusal: str = ""
    """Why this call may not send: budget, pool, breaker."""
    differs: tuple[str, ...] = ()
    """Parameters that differ from the recorded ones."""
    others: tuple[Other, ...] = ()
    """Other intents with this wish that are neither not applied nor answered before this intent's first call."""
    looked_at: tuple[str, ...] = ()
    """Other intents that this call has reconciled already."""
    beside_unknown: bool = False
    """Send beside open intents with the same wish: the caller's explicit choice."""
    quiet: bool = False
    """Nobody is told by this call itself: it looks for another call, or for recovery."""


# ------------------------------------------------------------------------------------------------------------
# Facts.  One row in the audit table holds one of them; `Asked` alone is never recorded, for it changes nothing.


@dataclass(frozen=True, slots=True)
class Asked:
    """A call wants to know what to do now."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """An attempt is durably in the ledger; from here on it may have been sent."""

    number: int
    attempt: str
    owner: str
    """The process that runs it: host, boot, namespace, process id and start time."""
    deadline_at: float | None = None
    """The instant (Unix seconds) that the attempt carries to the dependency."""
    beside: tuple[str, ...] = ()
    """Open intents with the same wish that the caller chose to pass by (`beside_unknown`)."""


@dataclass(frozen=True, slots=True)
class Withheld:
    """The body of a claimed attempt never ran, and never will: the start token is taken."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The body of an attempt was seen to end."""

    number: int
    finding: Finding
    key_carried: bool = True
    deadline_carried: bool = True
    goal: bool = False
    """The body found the goal already met: applied, but by whom is unproven."""
    kept: bool = False
    """The value stands in the content table."""
    object_id: str | None = None


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The caller stopped waiting for a body that goes on: a limit, a cancellation, an interrupt."""

    number: int
    reason: str
    key_carried: bool = False
    deadline_carried: bool = False


@dataclass(frozen=True, slots=True)
class Gone:
    """The process `owner` is known to be gone: its bodies count as ended from now."""

    owner: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The dependency is known to refuse attempts up to `number` from now on."""

    number: int
    how: str


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """A reconciling read gave a verdict (a failed one: inconclusive)."""

    verdict: Verdict
    began: Moment
    began_revision: int
    epoch: int
    """The number of the newest attempt claimed before the read began."""
    reason: str = ""
    kept: bool = False
    object_id: str | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """This call was told something other than a recorded outcome, and sent nothing for it."""

    reason: str
    names: tuple[str, ...] = ()
    other: str | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """Other intents with the same wish are open: they are looked at before anything is sent."""

    by: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """An applied outcome that a read, a late response or a person brought was told to a caller for the first time."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A result came by another road, a webhook for instance: proof for attempt `number`."""

    number: int
    kept: bool = False
    object_id: str | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """A person said what happened."""

    applied: bool
    by: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Alarmed:
    """Something happened that the declared promises do not allow, or that needs a person."""

    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Missed:
    """A reading tool did not bring what it was asked for, or lost a copy: no evidence about any write."""

    reason: str
    sent: int = 0
    """How many copies were sent."""
    reached: str = ""
    """How far a listing came."""
    part: bool = False
    """Its caller got a part."""


Fact = (
    Asked
    | Claimed
    | Withheld
    | Ended
    | GaveUp
    | Gone
    | Fenced
    | ReadEnded
    | Refused
    | Blocked
    | Answered
    | Delivered
    | Resolved
    | Alarmed
    | Missed
)


@dataclass(frozen=True, slots=True)
class Event:
    """A fact, when it was noticed, and the call that noticed it (none: nobody waits for an answer)."""

    at: Moment
    fact: Fact
    call: Call | None = None
    lease_at: Moment | None = None
    """The same instant by the clock that leases are compared with; `None`: `at` itself."""
    over: bool = False
    """The call ends with this fact whatever it says: it was cancelled or interrupted."""
    promises: Promises | None = None
    """The promises in force, where there is no call to tell them."""
