"""`step(state, event) -> (state, command)`: the only place that decides.

House rules: every transition lives in this file or in `fold.py`; nothing here knows a clock, a database or an event
loop; every command names the rule that chose it, and `rules.py` says each rule in words.

The order of the questions:

1. Other content under the same intent?  Refuse, naming the parameters.
2. Applied?  Tell it.
3. In flight elsewhere?  Wait for that record, or say so.
4. Nothing open?  Tell a rejection or a person's word; else send, unless this call may not, or another intent with the
   same wish is open.
5. Something open?  Look first; send again only under K or P; wait for S where it comes in time, and look again; else
   say `unknown`.
"""

from __future__ import annotations

from math import inf

from safewrite.core.commands import (
    Answer,
    AnswerKind,
    Command,
    Note,
    Nothing,
    Read,
    ReadOther,
    Run,
    Send,
    Wait,
    Watch,
)
from safewrite.core.events import (
    Answered,
    Asked,
    Blocked,
    Call,
    Claimed,
    Event,
    Moment,
    OutcomeState,
    Refused,
    Verdict,
)
from safewrite.core.fold import Impossible, fold
from safewrite.core.replacing import replace
from safewrite.core.state import AttemptState, ReadState, State

MACHINE_VERSION = 1

READ_FLOOR = 0.05
"""Seconds below which a reconciling read is not worth starting."""
READS_UNSETTLED = 3
"""Reads one call makes of an intent that it cannot see settled: a later one may still find the effect."""
ON_TIME = 1e-3
"""Seconds by which a wait is made longer than reckoned, so that it is never over early."""


def step(state: State, event: Event) -> tuple[State, Command]:
    """Fold `event` into `state` and decide what to do next.

    Raises `Impossible` where the fact cannot follow, which for a claim includes that nothing licensed it.
    """
    if isinstance(event.fact, Claimed):
        licence = decide(state, event)
        if licence != Send(licence.rule, event.fact.number):
            raise Impossible(f"nothing licenses a claim of attempt {event.fact.number}: rule {licence.rule}")
    return refold(state, event)


def refold(state: State, event: Event) -> tuple[State, Command]:
    """Do as `step`, but take a recorded claim as it stands: what was decided then is not decided again."""
    state = fold(state, event)
    if event.over and event.call is not None:
        return _free(state, event.call), Nothing("N2")
    command = decide(state, event)
    if isinstance(command, Answer) and event.call is not None and not isinstance(event.fact, Asked):
        state = _told(state, command, event.call)
    return state, command


def _told(state: State, answer: Answer, call: Call) -> State:
    """The call ends with this answer: its lease is free, and an applied outcome is now known to a caller."""
    own = state.lease is not None and state.lease.call == call.id
    told = answer.kind is AnswerKind.VALUE and not call.quiet
    return replace(state, lease=None if own else state.lease, answered=told or state.answered)


def _free(state: State, call: Call) -> State:
    own = state.lease is not None and state.lease.call == call.id
    return replace(state, lease=None) if own else state


def decide(state: State, event: Event) -> Command:
    """Return what to do now, by the rules."""
    call, now = event.call, event.at
    if call is None:
        return Nothing("N1")
    command = _decide(state, call, now, event.lease_at or now, asked=isinstance(event.fact, Asked))
    if isinstance(command, Answer) and isinstance(event.fact, Asked) and not call.quiet:
        return _on_record(state, command)
    return command


def _on_record(state: State, answer: Answer) -> Command:
    """An answer that no recorded fact led to leaves a row first, unless it only repeats the record."""
    if answer.kind is AnswerKind.VALUE:
        return answer if state.answered else Note("A2", Answered())
    if answer.replayed and state.revision > 0:
        return answer
    return Note("A3", Refused(answer.reason, answer.names, answer.other))


def _decide(s: State, c: Call, now: Moment, lease_now: Moment, *, asked: bool) -> Command:
    if c.differs:
        return Answer("M1", AnswerKind.MISMATCH, s.outcome, "other_content", names=c.differs)
    if s.outcome is OutcomeState.APPLIED:
        return _applied(s, c, now, asked=asked)
    newest = s.newest
    if newest is not None and newest.call == c.id and newest.concluded is None:
        return Run("R1", newest.number)
    skew = c.promises.clock_skew
    if s.lease is not None and s.lease.call != c.id and s.lease.left(lease_now, skew) > 0.0:
        waits = c.waits and c.left > 0.0 and not c.refusal
        return (
            Watch("F1")
            if waits
            else _unknown("F2", s, c, now, c.refusal or "in_flight", AnswerKind.IN_FLIGHT)
        )
    if s.outcome is OutcomeState.NOT_APPLIED:
        return _nothing_open(s, c, now)
    return _something_open(s, c, now)


def _applied(s: State, c: Call, now: Moment, *, asked: bool) -> Answer:
    # The fact that made it applied is this call's own where it comes with one; who only asks finds it on record.
    mine = s.sends_of(c.id) > 0 or (s.applied_at == s.revision and not asked)
    return Answer(
        "A1",
        AnswerKind.VALUE,
        s.outcome,
        "applied" if s.attributable else s.evidence,
        s.evidence,
        s.attributable,
        s.may_still_land(c.promises, now),
        replayed=not mine,
        value_at=s.value_at,
    )


# Nothing is open: no attempt, or only attempts that are not applied ------------------------------------------


def _nothing_open(s: State, c: Call, now: Moment) -> Command:
    last, made = s.newest, s.sends_of(c.id)
    if s.person:
        return _not_applied("P1", s, "person", replayed=True)
    rejected = next((a for a in reversed(s.attempts) if a.rejected), None)
    if rejected is not None:
        return _not_applied("D1", s, rejected.reason, AnswerKind.REJECTED, replayed=rejected.call != c.id)
    if s.burnt:
        return _not_applied("K2", s, "key_burnt")
    if c.refusal:
        return _not_applied("B1", s, c.refusal)
    if last is not None and last.call == c.id and last.evidence == "never_sent" and not last.again:
        return _not_applied("B5", s, last.reason)
    if made >= c.sends:
        return _not_applied("B2", s, last.reason if last is not None else "not_sent")
    pause = _pace(last, c, now, made) if last is not None else 0.0
    if pause >= c.left or c.left - pause < c.floor:
        asked = last is not None and _asked_for(last, now) >= max(c.left, ON_TIME)
        return _not_applied("B3", s, "retry_after_beyond_deadline" if asked else "budget_exhausted")
    beside = _beside(s, c)
    if beside is not None:
        return beside
    if pause > 0.0:
        return Wait("W1", pause)
    return Send("S1" if last is None else "S2", s.epoch + 1)


def _not_applied(
    rule: str, s: State, reason: str, kind: AnswerKind = AnswerKind.NOT_SENT, *, replayed: bool = False
) -> Answer:
    return Answer(
        rule, kind, OutcomeState.NOT_APPLIED, reason, s.evidence, bool(s.evidence), replayed=replayed
    )


def _beside(s: State, c: Call) -> Command | None:
    """Another intent with the same wish: open ones are looked at first, an applied one is this call's answer."""
    for other in c.others:
        if other.outcome is OutcomeState.APPLIED and not other.same_turn:
            if other.same_content:
                return Answer(
                    "T3", AnswerKind.OTHER, OutcomeState.APPLIED, "same_wish", replayed=True, other=other.id
                )
            return replace(_not_applied("T4", s, "same_wish_other_content"), other=other.id)
    still_open = [o for o in c.others if o.outcome is OutcomeState.UNKNOWN]
    if not still_open or c.beside_unknown:
        return None
    if s.revision == 0:
        return Note("T1", Blocked(tuple(o.id for o in still_open)))
    for other in still_open:
        if other.id not in c.looked_at:
            return ReadOther("T2", other.id)
    return Answer(
        "T5",
        AnswerKind.UNKNOWN,
        OutcomeState.UNKNOWN,
        "same_wish_open",
        may_still_land=True,
        other=still_open[0].id,
    )


# Something is open: at least one attempt may have taken effect -----------------------------------------------


def _something_open(s: State, c: Call, now: Moment) -> Command:
    if c.refusal:
        return _unknown("B4", s, c, now, c.refusal)
    if not c.reads:
        return _send_again(s, c, now) or _unknown("U1", s, c, now, "no_reconcile")
    read = s.read_of(c.id)
    if read is None or read.began_revision < s.concluded:
        return Read("L1") if c.left > READ_FLOOR else _unknown("U2", s, c, now, "budget_spent")
    running = read.verdict is Verdict.RUNNING
    again = None if running else _send_again(s, c, now)
    return again or _look_again(s, c, now, read) or _unknown("U3", s, c, now, _why_unknown(read))


def _send_again(s: State, c: Call, now: Moment) -> Command | None:
    """Under K or P a further attempt cannot take effect beside an earlier one."""
    rule = "K1" if s.recognised(c, now) else "P2" if s.conditional(c) else ""
    newest, made = s.newest, s.sends_of(c.id)
    if not rule or s.burnt or made >= c.sends or newest is None:
        return None
    if newest.rejected and newest.call == c.id:
        return None
    pause = _pace(newest, c, now, made)
    if pause >= c.left or c.left - pause < c.floor:
        return None
    beside = _beside(s, c)
    if beside is not None:
        return None if isinstance(beside, Answer) else beside
    return Wait("W2", pause) if pause > 0.0 else Send(rule, s.epoch + 1)


def _look_again(s: State, c: Call, now: Moment, read: ReadState) -> Command | None:
    """Wait for S where it comes in time and read then; else read on while it may tell something new."""
    p, lag = c.promises, c.promises.read_lag or 0.0
    if s.settles_in(p, read.began, lag) > 0.0:
        pause = s.settles_in(p, now, lag)
        if pause <= 0.0:
            return Read("L2") if c.left > READ_FLOOR else None
        if pause + ON_TIME + READ_FLOOR <= c.left and pause < inf:
            return Wait("W3", pause + ON_TIME)
    settled, running = s.settles_in(p, now) <= 0.0, read.verdict is Verdict.RUNNING
    if not settled and not running and read.count >= READS_UNSETTLED:
        return None
    pause = c.backoff - read.ended.seconds_to(now, 0.0)
    if pause > ON_TIME:
        return Wait("W4", pause) if pause + READ_FLOOR <= c.left else None
    return Read("L3") if c.left > READ_FLOOR else None


def _pace(last: AttemptState, c: Call, now: Moment, made: int) -> float:
    """Return the seconds still to wait before the next attempt: the strategy's, or what the dependency asked."""
    pause = max(c.backoff - _since(last, now) if made else 0.0, _asked_for(last, now))
    return pause if pause > ON_TIME else 0.0


def _asked_for(last: AttemptState, now: Moment) -> float:
    """Return what is left of the pause that the dependency asked for: of every call, not only of the one it told."""
    return last.retry_after - _since(last, now) if last.retry_after is not None else 0.0


def _since(last: AttemptState, now: Moment) -> float:
    return last.concluded_at.seconds_to(now, 0.0) if last.concluded_at is not None else 0.0


def _why_unknown(read: ReadState) -> str:
    if read.verdict is Verdict.INCONCLUSIVE:
        return read.reason or "inconclusive"
    return {Verdict.RUNNING: "still_running", Verdict.NOT_APPLIED: "absent_not_proven"}.get(
        read.verdict, "goal_not_met"
    )


def _unknown(
    rule: str, s: State, c: Call, now: Moment, reason: str, kind: AnswerKind = AnswerKind.UNKNOWN
) -> Answer:
    lands = s.may_still_land(c.promises, now) or kind is AnswerKind.IN_FLIGHT
    return Answer(rule, kind, OutcomeState.UNKNOWN, reason, may_still_land=lands)


# Questions a shell asks beside the steps ---------------------------------------------------------------------


def withhold(state: State, number: int, call: Call, now: Moment) -> str:
    """Return why the claimed attempt may not start after all, or nothing: asked just before its body runs."""
    a = state.attempts[number - 1]
    skew = call.promises.clock_skew
    if state.epoch != number:
        return "superseded"
    if state.outcome is not OutcomeState.UNKNOWN:
        return "decided_meanwhile"
    # From the claim on, by this process's own clock: the lease began no earlier, by whatever clock it is compared.
    if a.claimed_at.seconds_to(now, -skew) >= a.lease.length:
        return "lease_lost"
    if call.left <= 0.0 or (a.deadline_at is not None and a.deadline_at <= now.unix):
        return "deadline_passed"
    if any(x.open for x in state.attempts[: number - 1]):
        before = replace(state, attempts=state.attempts[: number - 1])
        if not (before.conditional(call) or before.recognised(call, now)):
            return "key_expired"
    return ""


def unrecorded(state: State, command: Command, call: Call, now: Moment) -> Answer:
    """Return what may be told when the ledger could not store the fact that led to `command`.

    Applied is told, for it stays true.  A negative is told only while this call's own lease is live and everything
    before its attempt is known not to be applied: nobody else can have sent meanwhile.
    """
    if isinstance(command, Answer):
        if command.kind is AnswerKind.VALUE:
            return command
        own = state.lease is not None and state.lease.call == call.id
        live = own and state.lease is not None and state.lease.left(now, -call.promises.clock_skew) > 0.0
        earlier = all(a.outcome is OutcomeState.NOT_APPLIED for a in state.attempts[:-1])
        if live and earlier and command.outcome is OutcomeState.NOT_APPLIED:
            return command
    return Answer("X1", AnswerKind.UNKNOWN, OutcomeState.UNKNOWN, "not_recorded", may_still_land=True)
