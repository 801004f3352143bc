"""Calls: what one may still send, the same turn again, another turn, refusals, and what is told."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from safewrite.core.commands import Answer, AnswerKind, Note, Read, Send, Wait, Watch
from safewrite.core.events import (
    Asked,
    Ended,
    Event,
    Finding,
    Moment,
    OutcomeState,
    Refused,
    Verdict,
)
from safewrite.core.machine import ON_TIME, READ_FLOOR, step
from tests.core.history import DONE, LOST, REFUSED, REJECTED, History, told

APPLIED, NOT, UNKNOWN = OutcomeState.APPLIED, OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN
BUSY = Finding(NOT, "http_429", again=True, status=429, retry_after=3.0)


def answered(h: History, **changes: object) -> Answer:
    """Return the answer that this call gets, the row before it included."""
    command = h.ask(**changes)
    return told(h.tell(command.fact, **changes) if isinstance(command, Note) else command)


# What one call may send ------------------------------------------------------------------------------------------


def test_a_quiet_write() -> None:
    """Claim, run, told."""
    h = History()
    assert h.ask() == Send("S1", 1)
    h.send()
    answer = told(h.end(DONE, kept=True))
    assert answer == Answer(
        "A1", AnswerKind.VALUE, APPLIED, "applied", "response", attributable=True, value_at=2
    )
    assert h.state.answered
    assert h.state.lease is None


def test_what_was_never_sent_is_sent_again_without_a_read() -> None:
    """After the pause that the wait strategy says, up to the attempts that the call may make."""
    h = History(sends=2)
    h.send()
    assert h.end(REFUSED) == Wait("W1", 1.0)
    h.now += 0.25
    assert h.ask() == Wait("W1", 0.75)
    h.now += 0.75
    assert h.ask() == Send("S2", 2)
    h.send()
    answer = told(h.end(REFUSED))
    assert (answer.rule, answer.kind, answer.reason) == ("B2", AnswerKind.NOT_SENT, "connect_refused")
    assert not answer.replayed


def test_what_was_not_sent_on_purpose_is_not_sent_again_by_its_call() -> None:
    """Sending again would not help, says the body; the next call of the turn may try."""
    h = History()
    h.send()
    answer = told(h.end(Finding(NOT, "not_sent", unsent=True)))
    assert (answer.rule, answer.kind, answer.reason) == ("B5", AnswerKind.NOT_SENT, "not_sent")
    assert answer.evidence == "never_sent"
    h.another()
    assert h.ask() == Send("S2", 2)


def test_a_call_that_may_send_nothing_says_so() -> None:
    """Of an intent that nobody knows."""
    answer = answered(History(sends=0))
    assert (answer.rule, answer.reason, answer.outcome) == ("B2", "not_sent", NOT)


def test_a_pause_that_the_dependency_asks_for_is_kept() -> None:
    """Retry-After is waited out if it is longer than the strategy's pause."""
    h = History()
    h.send()
    assert h.end(BUSY) == Wait("W1", 3.0)


def test_a_pause_beyond_the_deadline_ends_the_matter_at_once() -> None:
    """Nothing is waited for, and the next call of the turn keeps the pause too."""
    h = History(left=3.0)
    h.send()
    answer = told(h.end(BUSY))
    assert (answer.rule, answer.reason) == ("B3", "retry_after_beyond_deadline")
    h.now = 1.0
    h.another(left=2.0)
    assert answered(h).reason == "retry_after_beyond_deadline"
    h.another("c", left=2.1)
    assert h.ask() == Wait("W1", 2.0)


def test_a_pause_asked_for_is_kept_under_a_key_too() -> None:
    """An unknown 503 with Retry-After is not asked again before."""
    h = History(key_retention=inf, reads=False)
    h.send()
    unknown = Finding(UNKNOWN, "http_503", status=503, retry_after=3.0)
    assert h.end(unknown) == Wait("W2", 3.0)
    h = History(key_retention=inf, reads=False, left=3.0)
    h.send()
    assert told(h.end(unknown)).rule == "U1"


@pytest.mark.parametrize("left", [0.0, 0.9])
def test_less_than_the_floor_is_not_started(left: float) -> None:
    """An attempt that could not finish is not made."""
    answer = answered(History(left=left), floor=1.0)
    assert (answer.rule, answer.reason, answer.kind) == ("B3", "budget_exhausted", AnswerKind.NOT_SENT)


def test_the_floor_holds_under_a_key_as_well() -> None:
    """Open, and no time for another attempt: unknown."""
    h = History(key_retention=inf, reads=False, left=5.0)
    h.send()
    assert told(h.tell(Ended(1, LOST), floor=4.5)).rule == "U1"


def test_attempts_are_counted_per_call() -> None:
    """A further call of the turn has its own, and numbers go on."""
    h = History(sends=1, key_retention=inf, reads=False)
    h.send()
    assert told(h.end(LOST)).rule == "U1"
    h.another()
    assert h.ask() == Send("K1", 2)


def test_no_time_left_to_look_is_unknown() -> None:
    """The budget was spent before the read: unknown, never a budget error."""
    h = History(left=2.0)
    h.send()
    h.now = 2.0
    answer = told(h.end(LOST))
    assert (answer.rule, answer.reason, answer.outcome) == ("U2", "budget_spent", UNKNOWN)


def test_no_way_to_look_is_unknown_at_once() -> None:
    """Without a read, a key or a precondition nothing else can be done."""
    h = History(reads=False)
    h.send()
    answer = told(h.end(LOST))
    assert (answer.rule, answer.reason, answer.may_still_land) == ("U1", "no_reconcile", True)


def test_a_settled_unknown_is_read_again_while_the_budget_lasts() -> None:
    """With the strategy's pause between."""
    h = History(left=3.5, work_bound=0.0, read_lag=0.0)
    h.send()
    rules, last = h.follow(h.end(LOST), Verdict.INCONCLUSIVE)
    assert rules == ["L1", "W4", "L3", "W4", "L3", "W4", "L3", "U3"]
    assert not told(last).may_still_land


def test_an_unsettled_unknown_is_read_three_times() -> None:
    """A later look may still find the effect, but not for the whole of a long budget."""
    h = History(left=1e9)
    h.send()
    rules, _ = h.follow(h.end(LOST), Verdict.NOT_APPLIED)
    assert rules == ["L1", "W4", "L3", "W4", "L3", "U3"]


def test_without_a_pause_between_them_reads_follow_at_once() -> None:
    """A strategy may propose none."""
    h = History(left=1e9)
    h.send()
    h.end(LOST)
    assert h.read(Verdict.NOT_APPLIED, began=None) == Wait("W4", 1.0)
    h.call = replace(h.call, backoff=0.0)
    assert h.ask() == Read("L3")


def test_no_time_for_another_look_is_unknown() -> None:
    """Neither for the pause before it, nor for the look itself."""
    h = History(left=1.04)
    h.send()
    h.end(LOST)
    assert told(h.read(Verdict.NOT_APPLIED)).rule == "U3"
    h = History(left=1.0, work_bound=0.98, read_lag=0.0)
    h.send()
    h.end(LOST)
    h.read(Verdict.NOT_APPLIED)
    h.now = 0.99
    assert answered(h).rule == "U3"
    h = History(left=1.0)
    h.send()
    h.end(LOST)
    h.read(Verdict.NOT_APPLIED)
    h.now = 0.96
    assert answered(h, backoff=0.0).rule == "U3"


def test_a_call_without_end_waits_for_no_settling_that_never_comes() -> None:
    """Even where it has all the time in the world."""
    h = History(left=inf, read_lag=0.0)
    h.send()
    rules, _ = h.follow(h.end(LOST), Verdict.NOT_APPLIED)
    assert rules[-1] == "U3"
    assert "W3" not in rules


def test_still_running_waits_and_reads_and_never_sends() -> None:
    """Under a key as well; past the bound it is an alarm."""
    h = History(left=3.5, key_retention=inf, work_bound=2.0, read_lag=0.0)
    h.send()
    rules, last = h.follow(h.end(LOST), Verdict.RUNNING)
    assert (rules[-1], told(last).reason, told(last).outcome) == ("U3", "still_running", UNKNOWN)
    assert not {"K1", "S2", "W2"} & set(rules)
    assert {a.kind for a in h.state.alarms} == {"running_past_bound"}


def test_still_running_is_asked_for_as_long_as_there_is_time() -> None:
    """More often than an absence that is not proof."""
    h = History(left=9.5)
    h.send()
    rules, _ = h.follow(h.end(LOST), Verdict.RUNNING)
    assert rules.count("L3") == 9


def test_two_callers_that_read_one_intent_do_not_start_each_other_over() -> None:
    """Each keeps its own pause and its own count."""
    h = History()
    h.lost()
    h.another("b")
    h.read(Verdict.INCONCLUSIVE)
    h.another("c")
    assert h.ask() == Read("L1")
    h.read(Verdict.INCONCLUSIVE)
    h.another("b")
    assert h.ask() == Wait("W4", 1.0)
    for n in range(20):
        h.another(f"reader {n}")
        h.read(Verdict.INCONCLUSIVE)
    assert len(h.state.reads) == 8
    assert h.state.last_read is h.state.reads[-1]


# The same turn again ---------------------------------------------------------------------------------------------


def test_an_applied_outcome_is_replayed() -> None:
    """To whoever asks again, without a row."""
    h = History()
    h.send()
    h.end(DONE, kept=True)
    h.another()
    answer = told(h.ask())
    assert (answer.replayed, answer.value_at, answer.evidence) == (True, 2, "response")


def test_a_rejection_is_replayed() -> None:
    """The same request would be refused again."""
    h = History()
    h.send()
    answer = told(h.end(REJECTED))
    assert (answer.rule, answer.kind, answer.reason, answer.replayed) == (
        "D1",
        AnswerKind.REJECTED,
        "http_422",
        False,
    )
    h.another()
    assert told(h.ask()) == replace(answer, replayed=True)


def test_a_late_rejection_of_an_earlier_attempt_is_told_as_well() -> None:
    """The dependency said no, though the newest attempt was never sent."""
    h = History(key_retention=inf, reads=False)
    h.lost()
    h.another()
    h.send()
    h.state = replace(h.state, attempts=(replace(h.state.attempts[0], ended=False), h.state.attempts[1]))
    h.tell(Ended(2, REFUSED), over=True)
    h.hear(Ended(1, REJECTED))
    h.another("c")
    answer = told(h.ask())
    assert (answer.rule, answer.kind, answer.reason) == ("D1", AnswerKind.REJECTED, "http_422")


@pytest.mark.parametrize("finding", [REFUSED, replace(BUSY, retry_after=None), replace(BUSY, status=425)])
def test_what_was_not_sent_or_asked_to_come_later_is_claimed_again(finding: Finding) -> None:
    """By the next call of the turn, under the next number."""
    h = History(sends=1)
    h.send()
    assert told(h.end(finding)).rule == "B2"
    h.another()
    h.now += 3.0
    assert h.ask() == Send("S2", 2)


def test_what_a_read_proved_absent_is_claimed_again() -> None:
    """The numbers go on."""
    h = History(sends=1, work_bound=0.0, read_lag=0.0)
    h.send()
    h.end(LOST)
    answer = told(h.read(Verdict.NOT_APPLIED))
    assert (answer.rule, answer.reason, answer.attributable) == ("B2", "proven_absent", True)
    h.another()
    assert h.ask() == Send("S2", 2)


def test_an_attempt_in_flight_elsewhere_is_waited_for() -> None:
    """As long as its lease lives, whatever this call could do itself."""
    h = History(key_retention=inf)
    h.send()
    h.another()
    assert h.ask() == Watch("F1")
    h.now = 10.9
    h.ends_at = 20.0
    assert h.ask() == Watch("F1")
    h.now = 11.0
    assert h.ask() == Read("L1")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"waits": False}, "in_flight"),
        ({"left": 0.0}, "in_flight"),
        ({"refusal": "breaker_open"}, "breaker_open"),
    ],
)
def test_an_attempt_in_flight_elsewhere_is_told(changes: dict[str, object], reason: str) -> None:
    """To a call that does not wait, has no time to, or may not send."""
    h = History()
    h.send()
    h.another()
    answer = answered(h, **changes)
    assert (answer.rule, answer.kind, answer.outcome) == ("F2", AnswerKind.IN_FLIGHT, UNKNOWN)
    assert (answer.reason, answer.may_still_land) == (reason, True)


def test_an_expired_lease_is_permission_to_look_never_to_send() -> None:
    """The claim itself stored unknown, may still land: a crash needs no transition."""
    h = History()
    h.send()
    assert (h.state.outcome, h.state.may_still_land(h.call.promises, h.moment())) == (UNKNOWN, True)
    h.now = 100.0
    h.another()
    assert h.ask() == Read("L1")


def test_a_caller_that_was_superseded_is_answered_with_the_record() -> None:
    """Not with its own response."""
    h = History(key_retention=inf, reads=False)
    h.send()
    first = h.call
    h.now = 12.0
    h.another()
    h.send()
    h.call, h.ends_at = first, 20.0
    assert h.end(REJECTED, 1) == Watch("F1")
    h.another("b")
    h.end(DONE, 2, kept=True)
    h.call = first
    answer = told(h.ask())
    assert (answer.kind, answer.value_at) == (AnswerKind.VALUE, h.state.value_at)


def test_other_content_under_the_same_intent_is_refused() -> None:
    """Naming the parameters, whatever the state."""
    h = History()
    h.send()
    h.end(DONE)
    h.another(differs=("amount",))
    answer = answered(h)
    assert (answer.rule, answer.kind, answer.names) == ("M1", AnswerKind.MISMATCH, ("amount",))
    assert h.rows[-1].fact == Refused("other_content", ("amount",))


# Refusals --------------------------------------------------------------------------------------------------------


def test_a_refusal_beside_nothing_open_is_not_sent() -> None:
    """With no attempt at all, and with attempts that are known not to be applied."""
    h = History(sends=1)
    answer = answered(h, refusal="breaker_open")
    assert (answer.rule, answer.kind, answer.reason) == ("B1", AnswerKind.NOT_SENT, "breaker_open")
    h.send()
    h.end(REFUSED)
    h.another()
    assert answered(h, refusal="breaker_open").rule == "B1"


def test_a_refusal_beside_an_open_attempt_is_unknown() -> None:
    """With the refusal as its reason, and nothing is read or sent."""
    h = History(key_retention=inf)
    h.lost()
    h.another()
    answer = answered(h, refusal="pool_exhausted")
    assert (answer.rule, answer.kind, answer.reason) == ("B4", AnswerKind.UNKNOWN, "pool_exhausted")


def test_a_refusal_beside_an_applied_outcome_replays_it() -> None:
    """Nothing had to be sent for that."""
    h = History()
    h.send()
    h.end(DONE)
    h.another()
    assert told(h.ask(refusal="breaker_open")).kind is AnswerKind.VALUE


# Bounds, each at its very value -----------------------------------------------------------------------------------


def test_time_for_the_floor_and_no_more_is_enough() -> None:
    """For a first attempt, for one after a pause, and for one under a key."""
    assert History(left=1.0).ask(floor=1.0) == Send("S1", 1)
    h = History()
    h.send()
    h.end(REFUSED)
    assert h.ask(left=5.0, floor=4.0) == Wait("W1", 1.0)
    assert answered(h, left=5.0, floor=4.5).rule == "B3"
    h = History(key_retention=inf, reads=False)
    h.lost()
    assert h.ask(left=5.0, floor=4.0) == Wait("W2", 1.0)
    h.now = 0.5
    assert h.ask() == Wait("W2", 0.5)


def test_a_read_is_started_with_more_than_its_floor_only() -> None:
    """Exactly the floor is too little."""
    h = History()
    h.lost()
    assert answered(h, left=0.05).rule == "U2"
    assert h.ask(left=0.06) == Read("L1")


def test_further_reads_are_started_with_more_than_their_floor_only() -> None:
    """Once it has settled, and after the pause between two reads; the pause and the floor may fill the time."""
    h = History(work_bound=1.0, read_lag=0.0)
    h.send()
    h.end(LOST)
    h.read(Verdict.NOT_APPLIED)
    h.now = 1.0
    assert answered(h, left=READ_FLOOR).rule == "U3"
    assert h.ask(left=0.06) == Read("L2")
    h = History()
    h.send()
    h.end(LOST)
    h.read(Verdict.NOT_APPLIED)
    assert h.ask(left=1.0 + READ_FLOOR) == Wait("W4", 1.0)
    assert answered(h, left=READ_FLOOR, backoff=0.0).rule == "U3"
    assert h.ask(left=0.06, backoff=0.0) == Read("L3")


def test_a_pause_too_short_to_be_told_by_a_clock_is_none() -> None:
    """Neither before a send nor before a read."""
    h = History()
    h.send()
    h.end(REFUSED)
    assert h.ask(backoff=ON_TIME) == Send("S2", 2)
    h = History()
    h.send()
    h.end(LOST)
    h.read(Verdict.NOT_APPLIED)
    assert h.ask(backoff=ON_TIME) == Read("L3")


def test_what_settles_in_half_a_second_has_not_settled() -> None:
    """Three reads are enough of it where there is no time to wait for that."""
    h = History(work_bound=2.0)
    h.send()
    h.end(LOST)
    h.call, h.now, h.ends_at = h.facts(backoff=0.0), 1.5, 1.9
    assert [h.read(Verdict.NOT_APPLIED).rule for _ in range(3)] == ["L3", "L3", "U3"]


def test_the_wait_until_it_settles_leaves_time_to_look() -> None:
    """The pause, what it is made longer by, and the floor of the read fill the time exactly, or it is not waited."""
    for left, rule in ((2.0 + ON_TIME + READ_FLOOR, "W3"), (2.0505, "W4")):
        h = History(work_bound=2.0, read_lag=0.0)
        h.send()
        h.end(LOST)
        h.ends_at = left
        command = h.read(Verdict.NOT_APPLIED)
        assert command.rule == rule
    h = History(work_bound=0.5, read_lag=0.0)
    h.send()
    h.end(LOST)
    assert h.read(Verdict.NOT_APPLIED) == Wait("W3", 0.501)


def test_half_a_second_is_enough_to_watch_another_call() -> None:
    """Whoever has any time left waits for the record."""
    h = History()
    h.send()
    h.another(left=0.5)
    assert h.ask() == Watch("F1")


def test_a_lease_is_compared_with_the_declared_skew() -> None:
    """The clock of whoever asks may be ahead by that much."""
    h = History(clock_skew=2.0)
    h.send()
    h.another(left=20.0)
    assert h.state.lease is not None
    h.state = replace(h.state, lease=replace(h.state.lease, since=Moment(0.0, 0.0, "another boot")))
    h.now = 12.9
    assert h.ask() == Watch("F1")
    h.now = 13.0
    assert h.ask() == Read("L1")


def test_a_pause_is_counted_by_the_clocks_that_there_are() -> None:
    """By wall time where another machine goes on: before a send, and before a read."""
    elsewhere = Moment(1.0, 900.0, "another boot")
    h = History()
    h.send()
    h.tell(Ended(1, BUSY), over=True)
    h.another()
    assert step(h.state, Event(elsewhere, Asked(), h.facts()))[1] == Wait("W1", 2.0)
    h = History()
    h.lost()
    h.another()
    h.read(Verdict.NOT_APPLIED)
    assert step(h.state, Event(elsewhere, Asked(), h.facts(backoff=3.0)))[1] == Wait("W4", 2.0)


def test_after_an_attempt_that_nobody_heard_of_the_whole_pause_is_kept() -> None:
    """This call sent before; another one claimed since, and its lease ran out."""
    h = History(key_retention=inf, reads=False)
    h.send()
    first = h.call
    h.tell(Ended(1, LOST))
    h.now = 12.0
    h.another("b")
    h.send()
    h.call, h.now, h.ends_at = first, 50.0, 60.0
    assert h.ask() == Wait("W2", 1.0)


# What an answer leaves behind --------------------------------------------------------------------------------------


def test_an_answer_to_one_call_leaves_the_lease_of_another() -> None:
    """What is in flight elsewhere stays so when somebody is told of it."""
    h = History()
    h.send()
    h.another(waits=False)
    assert answered(h).rule == "F2"
    assert h.state.lease is not None
    assert h.state.lease.call == "a"


def test_the_row_before_an_answer_says_what_is_told() -> None:
    """Its rule, the reason, and the parameters that differ; a mismatch keeps the outcome that is on record."""
    assert History().ask(refusal="breaker_open") == Note("A3", Refused("breaker_open"))
    h = History()
    h.send()
    h.end(DONE)
    h.another(differs=("amount",))
    assert answered(h).outcome is APPLIED


@pytest.mark.parametrize(
    ("told_by", "changes"),
    [
        ("F2", {"waits": False}),
        ("B4", {"refusal": "breaker_open"}),
        ("U1", {"reads": False}),
        ("U2", {"left": 0.0}),
    ],
)
def test_an_unknown_says_whether_it_may_still_land(told_by: str, changes: dict[str, object]) -> None:
    """Until the bound is over; what is in flight elsewhere may land as long as it is."""
    h = History(work_bound=5.0, honours_deadline=True)
    h.send()
    if told_by != "F2":
        h.tell(Ended(1, LOST), over=True)
    h.another()
    for h.now in (4.0, 5.0):
        answer = answered(h, **changes)
        assert (answer.rule, answer.may_still_land) == (told_by, told_by == "F2" or h.now < 5.0)


def test_a_call_that_asks_again_for_what_it_sent_itself_hears_no_replay() -> None:
    """It is the call's own effect, however often it asks."""
    h = History()
    h.send()
    h.end(DONE)
    assert not told(h.ask()).replayed
