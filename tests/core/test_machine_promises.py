"""K, P, S and R: what each is made of, and what is not enough for it."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from safewrite.core.commands import Read, Send, Wait
from safewrite.core.events import (
    Ended,
    Fenced,
    Finding,
    GaveUp,
    Gone,
    Moment,
    OutcomeState,
    ReadEnded,
    Verdict,
)
from tests.core.history import DONE, FAILED, LOST, REFUSED, REJECTED, STALE, History, told

ABSENT, BLANK = Verdict.NOT_APPLIED, Verdict.INCONCLUSIVE


def again(h: History, **changes: object) -> str:
    """Return the rule by which a further call sends, or the reason why it does not."""
    h.another("z", reads=False, **changes)
    command = h.ask()
    return command.rule if isinstance(command, Send) else told(h.tell(command.fact)).reason  # type: ignore[union-attr]


# K ---------------------------------------------------------------------------------------------------------------


def test_a_recognised_key_sends_again_without_a_read() -> None:
    """Without a reconcile function the second send under the key is itself the question."""
    h = History(key_retention=inf, reads=False)
    h.send()
    assert h.end(LOST) == Wait("W2", 1.0)
    h.now += 1.0
    assert h.ask() == Send("K1", 2)


def test_a_key_that_was_not_carried_is_not_recognised() -> None:
    """A body that ended without reading its key raises an alarm, and is not sent again."""
    h = History(key_retention=inf, reads=False)
    h.send()
    assert told(h.end(LOST, key_carried=False)).rule == "U1"
    assert [a.kind for a in h.state.alarms] == ["key_not_carried"]
    assert again(h) == "no_reconcile"


def test_a_key_that_was_not_carried_by_what_was_never_sent_is_no_matter() -> None:
    """A connection that was refused carried nothing, the key included; nor did what was proven unprocessed."""
    for finding in (REFUSED, replace(REFUSED, proof=True)):
        h = History(key_retention=inf)
        h.send()
        assert h.end(finding, key_carried=False) == Wait("W1", 1.0)
        assert h.state.alarms == ()


def test_a_body_that_goes_on_without_having_read_its_key_does_not_carry_it() -> None:
    """What an abandoned body sends later may bear no key at all: nothing is sent beside it."""
    h = History(key_retention=inf, reads=False)
    h.send()
    assert told(h.tell(GaveUp(1, "timeout", key_carried=False))).rule == "U1"
    assert h.state.alarms == ()
    assert again(h) == "no_reconcile"
    h.hear(Ended(1, LOST, key_carried=True))
    assert again(h) == "K1"


def test_a_body_that_goes_on_with_its_key_does_carry_it() -> None:
    """An abandoned body that had read its key is recognised like any other."""
    h = History(key_retention=inf, reads=False)
    h.send()
    assert h.tell(GaveUp(1, "timeout", key_carried=True)) == Wait("W2", 1.0)


def test_the_body_of_a_crashed_process_carried_its_key_by_its_authors_word() -> None:
    """Nobody saw whether it read the key: what the author declared stands."""
    h = History(key_retention=inf, reads=False)
    h.send()
    h.hear(Gone("process of a"))
    assert again(h) == "K1"


def test_a_key_that_expires_is_trusted_for_half_its_retention() -> None:
    """Without a stall and a bound the margin is half the retention, from the first claim on."""
    for age, expected in ((49.9, "K1"), (50.0, "no_reconcile")):
        h = History(key_retention=100.0)
        h.lost()
        h.now = age
        assert again(h) == expected


def test_the_margin_of_a_key_is_lease_and_stall_and_bound_where_both_are_declared() -> None:
    """The rest of the new lease, the longest stall and the work bound must fit before the key is forgotten."""
    for age, expected in ((78.9, "K1"), (79.0, "no_reconcile")):
        h = History(key_retention=100.0, max_stall=4.0, work_bound=6.0)
        h.lost()
        h.now = age
        assert again(h) == expected


def test_a_body_that_still_runs_under_a_longer_lease_counts_in_the_margin() -> None:
    """The first body may land as late as its own lease allows, when the key of the second is forgotten."""
    for retention, expected in ((110.0, "no_reconcile"), (110.1, "K1")):
        h = History(left=99.0, key_retention=retention, max_stall=4.0, work_bound=6.0)
        h.send()
        h.now = 1.0
        h.tell(GaveUp(1, "timeout", key_carried=True), over=True)
        assert again(h, left=5.0) == expected


def test_a_key_is_judged_older_by_another_clock() -> None:
    """Across clocks the declared skew is added to the age of the key."""
    h = History(key_retention=100.0, clock_skew=2.0, reads=False)
    h.lost()
    for unix, expected in ((47.9, True), (48.0, False)):
        assert h.state.recognised(h.facts(), Moment(unix, 5000.0, "another boot")) is expected


def test_another_payload_under_the_key_is_not_recognised() -> None:
    """Neither when the arguments at hand differ, nor when those of an open attempt did."""
    h = History(key_retention=inf)
    h.lost()
    assert again(h, same_payload=False) == "no_reconcile"
    h = History(key_retention=inf)
    h.lost(same_payload=False)
    assert again(h, same_payload=True) == "no_reconcile"


def test_a_replayed_error_burns_the_key() -> None:
    """A dependency that replays its 500 answers every further attempt with it: none is made."""
    h = History(key_retention=inf, replays_errors=True)
    h.send()
    assert h.end(FAILED) == Read("L1")
    assert h.follow(h.read(BLANK), BLANK)[1].rule == "U3"
    h = History(key_retention=inf, replays_errors=True, work_bound=0.0, read_lag=0.0)
    h.send()
    h.end(FAILED)
    answer = told(h.read(ABSENT))
    assert (answer.rule, answer.reason, answer.outcome) == ("K2", "key_burnt", OutcomeState.NOT_APPLIED)


def test_a_burnt_key_is_not_sent_under_a_precondition_either() -> None:
    """The same key would only bring the same error back."""
    h = History(key_retention=inf, replays_errors=True)
    h.send(precondition=True)
    h.tell(Ended(1, FAILED), over=True)
    assert again(h, precondition=True) == "no_reconcile"


@pytest.mark.parametrize(
    ("finding", "replays"), [(FAILED, False), (LOST, True), (replace(FAILED, status=409), True)]
)
def test_only_a_replayed_server_error_burns_the_key(finding: Finding, replays: bool) -> None:
    """No status, another status or a dependency that does not replay leaves the key as it is."""
    h = History(key_retention=inf, replays_errors=replays)
    h.send()
    h.tell(Ended(1, finding), over=True)
    assert again(h) == "K1"


# P ---------------------------------------------------------------------------------------------------------------


def test_a_precondition_from_the_second_attempt_on_is_none() -> None:
    """The first, unconditional, may land beside the second."""
    h = History()
    h.lost(precondition=False)
    assert again(h, precondition=True) == "no_reconcile"


def test_a_further_attempt_without_the_precondition_is_none() -> None:
    """Whatever those before it carried, this one would land beside them."""
    h = History(reads=False)
    h.lost(precondition=True)
    assert again(h, precondition=False) == "no_reconcile"


def test_a_first_attempt_that_was_never_sent_needs_no_precondition() -> None:
    """Only what may still take effect must have carried it."""
    h = History(reads=False)
    h.send(precondition=False)
    h.tell(Ended(1, REFUSED), over=True)
    h.another("b")
    h.lost(precondition=True)
    assert again(h, precondition=True) == "P2"


def test_a_412_under_the_precondition_settles_all_attempts() -> None:
    """The version is gone for all of them: a read that begins now proves absence."""
    h = History(read_lag=0.0)
    h.lost(precondition=True)
    h.another(precondition=True)
    h.read(BLANK)
    h.send()
    assert h.end(STALE) == Read("L1")
    answer = told(h.read(ABSENT))
    assert (answer.rule, answer.reason, answer.may_still_land) == ("D1", "http_412", False)
    assert [a.evidence for a in h.state.attempts] == ["reconciled", "response"]


def test_a_412_where_the_first_attempt_was_unconditional_settles_nothing() -> None:
    """The unconditional one can still land."""
    h = History(read_lag=0.0, key_retention=inf)
    h.lost(precondition=False)
    h.another(precondition=True)
    h.read(BLANK)
    h.send()
    h.end(STALE)
    assert h.state.attempts[0].fenced_at is None
    assert told(h.follow(h.read(ABSENT), ABSENT)[1]).may_still_land


# S ---------------------------------------------------------------------------------------------------------------


def settles(h: History) -> float:
    """Return in how many seconds the intent settles."""
    return h.state.settles_in(h.call.promises, h.moment())


def test_the_work_bound_counts_from_the_seen_end_of_the_body() -> None:
    """However long the body ran, it is its end that starts the bound."""
    h = History(work_bound=5.0)
    h.send()
    h.now = 9.0
    assert settles(h) == inf
    h.end(LOST)
    assert settles(h) == 5.0


def test_leaving_a_body_is_not_its_end() -> None:
    """An abandoned thread, a cancelled task and an expired lease start no bound."""
    h = History(work_bound=0.0)
    h.send()
    h.tell(GaveUp(1, "timeout"))
    h.now = 1e6
    assert settles(h) == inf


def test_the_end_of_a_process_is_the_end_of_its_bodies_from_when_it_is_known() -> None:
    """And of no other process's."""
    h = History(work_bound=5.0)
    h.send()
    h.now = 7.0
    h.hear(Gone("process of somebody else"))
    assert settles(h) == inf
    h.hear(Gone("process of a"))
    assert settles(h) == 5.0
    assert h.state.lease is None
    h.now = 9.0
    h.hear(Gone("process of a"))
    assert settles(h) == 3.0


def test_a_stall_counts_from_the_end_of_the_lease() -> None:
    """A body not heard of has ended a stall after its lease, if that is declared."""
    h = History(left=10.0, work_bound=5.0, max_stall=3.0)
    h.send()
    assert settles(h) == 11.0 + 3.0 + 5.0
    h.now = 12.0
    h.end(LOST)
    assert settles(h) == 5.0


def test_a_stall_without_a_bound_settles_nothing() -> None:
    """What was sent may take its time."""
    h = History(max_stall=3.0)
    h.send()
    assert settles(h) == inf


def test_a_deadline_that_the_dependency_keeps_settles_once_it_has_passed() -> None:
    """With the skew between clocks on top, and only if the body carried it."""
    h = History(left=10.0, honours_deadline=True, clock_skew=2.0)
    h.send()
    assert settles(h) == 12.0
    h.tell(GaveUp(1, "timeout", deadline_carried=False))
    assert settles(h) == inf
    h.hear(Ended(1, LOST, deadline_carried=True))
    assert settles(h) == 12.0


def test_a_wall_clock_that_is_set_moves_no_deadline() -> None:
    """It is counted from the claim on, by the clock that nobody can set."""
    h = History(left=10.0, honours_deadline=True)
    h.send()
    later = Moment(unix=9999.0, ticks=4.0, clock="boot")
    assert h.state.settles_in(h.call.promises, later) == 6.0


def test_a_fence_settles_the_attempts_up_to_its_number() -> None:
    """Later ones are not refused by it."""
    h = History(key_retention=inf)
    h.lost()
    h.another()
    h.read(BLANK)
    h.send()
    h.hear(Fenced(1, "epoch"))
    assert [a.fenced_at is not None for a in h.state.attempts] == [True, False]
    h.now = 1.0
    h.hear(Fenced(2, "epoch"))
    assert [a.fenced_at.ticks for a in h.state.attempts if a.fenced_at] == [0.0, 1.0]
    assert settles(h) == 0.0


def test_a_transport_proof_is_definite() -> None:
    """REFUSED_STREAM says that it was not processed: not applied, and sent again."""
    h = History()
    h.send()
    proof = Finding(OutcomeState.NOT_APPLIED, "refused_stream", again=True, proof=True)
    assert h.end(proof) == Wait("W1", 1.0)
    assert (h.state.attempts[0].evidence, h.state.evidence) == ("transport", "transport")


def test_across_clocks_less_time_has_passed_for_certain() -> None:
    """The declared skew is taken off."""
    h = History(work_bound=5.0, clock_skew=2.0)
    h.lost()
    elsewhere = Moment(unix=6.0, ticks=0.0, clock="another boot")
    assert h.state.settles_in(h.call.promises, elsewhere) == 1.0


# R ---------------------------------------------------------------------------------------------------------------


def begun(h: History, verdict: Verdict, revision: int, at: float) -> None:
    """Let a read end that began then, when no later row was known."""
    h.tell(ReadEnded(verdict, h.moment(at), revision, h.state.epoch))


def test_a_read_that_began_before_s_proves_nothing() -> None:
    """However late it ends."""
    for at, expected in ((4.9, OutcomeState.UNKNOWN), (5.0, OutcomeState.NOT_APPLIED)):
        h = History(work_bound=5.0, read_lag=0.0)
        h.lost()
        h.another()
        h.now = 9.0
        h.read(ABSENT, began=at)
        assert h.state.outcome is expected


def test_a_read_that_began_before_the_end_was_recorded_proves_nothing() -> None:
    """In one instant of a coarse clock the effect may have come after the read and before the end."""
    h = History(work_bound=0.0, read_lag=0.0, left=10.0)
    h.send()
    h.tell(GaveUp(1, "timeout"))
    known = h.state.revision
    h.hear(Ended(1, LOST))
    begun(h, ABSENT, known, at=0.0)
    assert h.state.outcome is OutcomeState.UNKNOWN
    begun(h, ABSENT, known + 1, at=0.0)
    assert h.state.outcome is OutcomeState.NOT_APPLIED


def test_a_read_that_began_before_a_fence_was_recorded_proves_nothing() -> None:
    """The same, for a fence."""
    h = History(read_lag=0.0)
    h.lost()
    known = h.state.revision
    h.hear(Fenced(1, "epoch"))
    h.another()
    begun(h, ABSENT, known, at=0.0)
    assert h.state.outcome is OutcomeState.UNKNOWN
    begun(h, ABSENT, known + 1, at=0.0)
    assert h.state.outcome is OutcomeState.NOT_APPLIED


def test_a_deadline_proves_absence_though_the_body_ended_while_the_read_ran() -> None:
    """What does not rest on a row needs none."""
    h = History(left=3.0, honours_deadline=True, read_lag=0.0)
    h.send()
    h.tell(GaveUp(1, "timeout", deadline_carried=True))
    known, h.now = h.state.revision, 4.0
    h.hear(Ended(1, LOST))
    h.another()
    begun(h, ABSENT, known, at=4.0)
    assert h.state.outcome is OutcomeState.NOT_APPLIED


def test_a_proven_absence_covers_what_was_claimed_before_the_read() -> None:
    """An attempt claimed while it ran is not covered, however the others stand."""
    h = History(key_retention=inf, work_bound=0.0, read_lag=0.0)
    h.lost()
    h.another()
    h.read(BLANK)
    h.send()
    h.end(REFUSED)
    h.read(ABSENT, epoch=1)
    assert [a.evidence for a in h.state.attempts] == ["reconciled", "never_sent"]
    h = History(key_retention=inf, work_bound=0.0, read_lag=0.0)
    h.lost()
    h.another()
    h.read(BLANK)
    known = h.state.revision
    h.send()
    h.end(LOST)
    h.tell(ReadEnded(ABSENT, h.moment(), known, 1))
    assert [a.outcome for a in h.state.attempts] == [OutcomeState.UNKNOWN] * 2


def test_a_state_that_does_not_hold_is_no_proof() -> None:
    """It may have held, and been undone."""
    h = History(work_bound=0.0, read_lag=0.0)
    h.lost()
    h.another()
    h.read(Verdict.GOAL_NOT_MET)
    assert h.state.outcome is OutcomeState.UNKNOWN


def test_rejected_and_applied_replies_settle_their_attempt() -> None:
    """Whatever is definite needs no bound."""
    for finding in (DONE, REJECTED):
        h = History()
        h.send()
        h.end(finding)
        assert settles(h) == 0.0
