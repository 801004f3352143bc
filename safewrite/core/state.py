"""The state of one intent, and what holds in it: K, P, S and R.

The state is a fold over the intent's rows (`fold.py`); this module only asks questions of it.  The letters are
those of the decision table:

- K  the dependency recognises the key, so sending again cannot apply twice;
- P  every attempt carried the same precondition, so at most one can apply;
- S  settled: no attempt can still take effect;
- R  a negative read is proof: it began after S, sees every write, and names this intent.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from safewrite.core.events import Call, Moment, OutcomeState, Promises, Verdict
from safewrite.core.replacing import replace


@dataclass(frozen=True, slots=True)
class Alarm:
    """What the promises do not allow, and the revision whose row showed it."""

    kind: str
    revision: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Lease:
    """Who works on the intent, and until when: it saves work, safety never rests on it."""

    call: str
    owner: str
    since: Moment
    length: float

    def left(self, now: Moment, skew: float) -> float:
        """Return the seconds left, never less than they are."""
        return self.length - self.since.seconds_to(now, skew)


@dataclass(frozen=True, slots=True)
class ReadState:
    """The newest reconciling read of one call."""

    call: str
    verdict: Verdict
    reason: str
    began: Moment
    began_revision: int
    ended: Moment
    count: int
    """How many reads this call has made since the newest attempt was claimed."""


@dataclass(frozen=True, slots=True)
class AttemptState:
    """One dispatch of the intent, and the highest evidence about it."""

    number: int
    id: str
    call: str
    owner: str
    claimed_at: Moment
    lease: Lease
    deadline_at: float | None
    precondition: bool
    same_payload: bool
    outcome: OutcomeState = OutcomeState.UNKNOWN
    evidence: str = ""
    reason: str = ""
    again: bool = False
    retry_after: float | None = None
    began: bool = True
    """False only once it is recorded that the body never ran."""
    key_carried: bool | None = None
    """Whether its body has read the key; `None`: nothing was heard of its body yet, and its author's word stands."""
    deadline_carried: bool | None = None
    ended: bool = False
    """Its body was seen, and recorded, to end (or never to have run)."""
    ended_at: Moment | None = None
    """When its body counts as ended: seen to, or its process known to be gone."""
    fenced_at: Moment | None = None
    fenced: int | None = None
    """The revision at which the fence was recorded."""
    gave_up: bool = False
    concluded: int | None = None
    """The revision at which the body was seen to end, or its caller gave up."""
    concluded_at: Moment | None = None
    object_id: str | None = None

    @property
    def open(self) -> bool:
        """Whether nothing definite is known of it."""
        return self.outcome is OutcomeState.UNKNOWN

    @property
    def heard_of(self) -> int:
        """The newest revision that says whether it can still take effect."""
        return max(self.concluded or 0, self.fenced or 0)

    @property
    def rejected(self) -> bool:
        """Whether the dependency said no to it, so that the same request would be refused again."""
        return (
            self.outcome is OutcomeState.NOT_APPLIED
            and not self.again
            and self.evidence in ("response", "late_response")
        )

    def settles_in(self, promises: Promises, now: Moment, lag: float, known: float = inf) -> float:
        """Return the seconds until it can no longer take effect (and `lag` more have passed); inf: never known.

        Ends and fences on record after revision `known` do not count: in one instant of a coarse clock, they may
        have come after `now`.
        """
        if not self.open:
            return 0.0
        skew = promises.clock_skew
        ways = [inf]
        if self.fenced_at is not None and (self.fenced or 0) <= known:
            ways.append(lag - self.fenced_at.seconds_to(now, skew))
        if promises.work_bound is not None:
            bound = promises.work_bound + lag
            if self.ended_at is not None and (self.concluded or 0) <= known:
                ways.append(bound - self.ended_at.seconds_to(now, skew))
            elif promises.max_stall is not None:
                ways.append(self.lease.left(now, skew) + promises.max_stall + bound)
        if promises.honours_deadline and self.deadline_at is not None and self.deadline_carried is not False:
            # From the claim on, so that a wall clock that is set on this machine changes nothing.
            allowed = self.deadline_at - self.claimed_at.unix
            ways.append(allowed + skew + lag - self.claimed_at.seconds_to(now, skew))
        return max(0.0, min(ways))


@dataclass(frozen=True, slots=True)
class State:
    """One intent: its attempts, its newest read, and the outcome folded over all evidence."""

    revision: int = 0
    attempts: tuple[AttemptState, ...] = ()
    outcome: OutcomeState = OutcomeState.NOT_APPLIED
    evidence: str = ""
    attributable: bool = False
    applied_at: int | None = None
    """The revision at which it became applied."""
    value_at: int | None = None
    """The revision whose row holds the value: the first one recorded."""
    first_claim: Moment | None = None
    lease: Lease | None = None
    reads: tuple[ReadState, ...] = ()
    """The newest reconciling read of each call since the newest attempt was claimed, the newest last."""
    person: str = ""
    """Who resolved it, if a person did."""
    answered: bool = False
    """An applied outcome was told to a caller."""
    burnt: bool = False
    """The dependency replays an error under the key: no further attempt with it can get through."""
    overrun: bool = False
    """The dependency was seen at work past its declared bound: its bounds settle nothing any more."""
    alarms: tuple[Alarm, ...] = ()

    @property
    def epoch(self) -> int:
        """The number of the newest attempt."""
        return len(self.attempts)

    @property
    def newest(self) -> AttemptState | None:
        """The newest attempt."""
        return self.attempts[-1] if self.attempts else None

    @property
    def last_read(self) -> ReadState | None:
        """The newest reconciling read."""
        return self.reads[-1] if self.reads else None

    def read_of(self, call: str) -> ReadState | None:
        """Return the newest reconciling read of one call: what others read meanwhile does not start it over."""
        return next((r for r in self.reads if r.call == call), None)

    @property
    def concluded(self) -> int:
        """The newest revision at which an attempt ended, was given up or fenced: only later reads tell anything new."""
        return max((a.heard_of for a in self.attempts), default=0)

    def sends_of(self, call: str) -> int:
        """How many attempts the call has made."""
        return len([a for a in self.attempts if a.call == call])

    def with_attempt(self, attempt: AttemptState) -> State:
        """Return this state with one attempt replaced."""
        return replace(
            self, attempts=tuple(attempt if a.number == attempt.number else a for a in self.attempts)
        )

    # K, P, S, R ------------------------------------------------------------------------------------------

    def recognised(self, call: Call, now: Moment) -> bool:
        """K: the dependency knows the key of every open attempt, and will for as long as a new one may land."""
        p = call.promises
        if p.key_retention is None or self.burnt or not call.same_payload:
            return False
        if any(a.open and (a.key_carried is False or not a.same_payload) for a in self.attempts):
            return False
        age = (self.first_claim or now).seconds_to(now, -p.clock_skew)
        if p.max_stall is not None and p.work_bound is not None:
            # Neither the next attempt nor a body that still runs may land when the key is forgotten.
            running = (
                a.lease.left(now, p.clock_skew) for a in self.attempts if a.open and a.ended_at is None
            )
            return age + max(call.lease, *running, 0.0) + p.max_stall + p.work_bound < p.key_retention
        return age < p.key_retention / 2

    def conditional(self, call: Call) -> bool:
        """P: every open attempt carried the precondition, and so would the next."""
        return call.precondition and all(a.precondition for a in self.attempts if a.open)

    def settles_in(self, promises: Promises, now: Moment, lag: float = 0.0, known: float = inf) -> float:
        """S: 0.0 when no attempt can still take effect (and `lag` has passed), else the seconds until then."""
        if self.overrun:
            promises = replace(promises, work_bound=None, honours_deadline=False)
        return max((a.settles_in(promises, now, lag, known) for a in self.attempts), default=0.0)

    def proves_absence(self, promises: Promises, began: Moment, began_revision: int) -> bool:
        """R, but for the verdict: a read that began then sees every write there will ever be."""
        lag = promises.read_lag
        return lag is not None and self.settles_in(promises, began, lag, began_revision) <= 0.0

    def may_still_land(self, promises: Promises, now: Moment) -> bool:
        """Whether an effect may still come that is not yet accounted for."""
        done = self.outcome is OutcomeState.APPLIED and self.attributable
        return not done and self.settles_in(promises, now) > 0.0
