"""What `ask` decides, and what it writes before it answers."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from safewrite.core.commands import Answer, AnswerKind, Read, ReadOther, Run, Wait, Watch
from safewrite.core.events import (
    Delivered,
    Ended,
    GaveUp,
    Promises,
    ReadEnded,
    Resolved,
    Verdict,
)
from safewrite.core.state import State
from safewrite.ledger.model import Identity, subject
from safewrite.ledger.sql import Ledger
from safewrite.ledger.texts import stamp_text, unix
from tests.ledger.driver import APPLIED, REJECTED, UNKNOWN, Caller, moment


def events(caller: Caller, intent_id: str) -> list[str]:
    """Return the names of the facts on record."""
    return [row["event"] for row in caller.ledger.rows(intent_id)]


def test_the_first_call_claims_attempt_one_and_records_it(caller: Caller) -> None:
    """The claim, the arguments and who claimed are on record before the body is licensed."""
    intent, command = caller.ask()
    assert command == Run("R1", 1)
    assert events(caller, intent.id) == ["claimed"]
    assert caller.ledger.arguments(intent.id) == caller.ticket.arguments()
    stored = caller.ledger.load(intent.id)
    assert stored is not None
    assert (stored.identity, stored.state, stored.head, stored.fingerprint) == (
        intent.identity,
        intent.state,
        intent.head,
        intent.fingerprint,
    )
    assert stored.salt == intent.salt
    assert stored.created_at == pytest.approx(intent.created_at, abs=1e-6)


def test_a_replay_is_answered_from_the_record_without_writing(caller: Caller) -> None:
    """The second call of a told, applied intent adds no row, and brings the value along."""
    done = caller.write()
    intent, command = caller().ask(at=100.0)
    assert isinstance(command, Answer)
    assert (command.kind, command.value_at) == (AnswerKind.VALUE, 2)
    assert events(caller, done.id) == ["claimed", "ended"]
    assert not intent.whole
    assert (intent.value, caller.ledger.value(intent)) == ('"done"', '"done"')
    assert intent.state.epoch == 1


def test_a_replay_by_the_call_that_sent_is_its_own_outcome(caller: Caller) -> None:
    """What it reads again knows which call made its attempts."""
    caller.write()
    caller(arguments={"sub_id": "other"}).ask(at=2.0)  # a row later than the one that made it applied
    mine, theirs = caller.ask(at=3.0), caller().ask(at=3.0)
    assert (mine[0].whole, theirs[0].whole) == (True, False)
    assert isinstance(mine[1], Answer)
    assert isinstance(theirs[1], Answer)
    assert (mine[1].replayed, theirs[1].replayed) == (False, True)


def test_a_goal_that_was_met_is_replayed_as_unproven(caller: Caller) -> None:
    """An applied outcome that nobody can attribute says so every time: it is folded, not projected."""
    intent, _ = caller.ask()
    caller.tell(intent, Ended(1, APPLIED, goal=True))
    intent, command = caller().ask(at=5.0)
    assert isinstance(command, Answer)
    assert (command.kind, command.attributable, intent.whole) == (AnswerKind.VALUE, False, True)


def test_an_outcome_that_nobody_was_told_is_told_with_a_row(caller: Caller) -> None:
    """A webhook brought it while nobody waited: the first caller to be told leaves a row."""
    intent, _ = caller.ask()
    caller.tell(intent, Delivered(1), at=2.0, quiet=True)
    _, command = caller().ask(at=5.0)
    assert isinstance(command, Answer)
    assert events(caller, intent.id) == ["claimed", "delivered", "answered"]


def test_what_another_machine_projected_is_folded_anew(caller: Caller, path: Path) -> None:
    """The columns are trusted for a replay only if this version of the machine drew them."""
    caller.write()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE safewrite_intent SET machine = 0")
    db.close()
    intent, command = caller().ask(at=5.0)
    assert isinstance(command, Answer)
    assert intent.whole


def test_a_fact_about_a_replayed_intent_is_folded_from_its_rows(caller: Caller) -> None:
    """A projected state is read anew before a row is added: a second delivery raises no false alarm."""
    caller.write()
    replayed, _ = caller().ask(at=5.0)
    after, _ = caller.tell(replayed, Delivered(1), at=6.0, quiet=True)
    assert after.whole
    assert after.state.revision == 3
    assert after.state.attempts[0].owner == "host:1"


def test_the_same_call_asking_again_is_told_to_run_its_claim(caller: Caller) -> None:
    """An answer that got lost on the way can be asked for again."""
    caller.ask()
    intent, command = caller.ask(at=0.5)
    assert command == Run("R1", 1)
    assert events(caller, intent.id) == ["claimed"]


def test_a_call_beside_one_in_flight_watches(caller: Caller) -> None:
    """Nothing is written for one that waits."""
    caller.ask()
    intent, command = caller().ask(at=1.0)
    assert isinstance(command, Watch)
    assert events(caller, intent.id) == ["claimed"]


def test_an_open_attempt_is_looked_at_first(caller: Caller) -> None:
    """After an ambiguous end the next call is told to read."""
    intent, _ = caller.ask()
    caller.end(intent, UNKNOWN)
    _, command = caller().ask(at=30.0)
    assert isinstance(command, Read)


def test_waiting_is_decided_under_the_lock(caller: Caller) -> None:
    """A pause before the next attempt depends on other intents, so it is not answered from the plain read."""
    intent, _ = caller.ask()
    caller.end(intent, replace(REJECTED, again=True, retry_after=3.0, status=429))
    _, command = caller.ask(at=2.0)
    assert isinstance(command, Wait)
    other, _ = caller(turn="2").ask(at=2.5)
    _, command = caller.ask(at=3.0)
    assert command == ReadOther("T2", other.id)


def test_other_content_in_the_same_turn_is_refused_and_recorded(caller: Caller) -> None:
    """The mismatch names the parameter, and leaves a row."""
    done = caller.write()
    _, command = caller(arguments={"sub_id": "sub_2", "reason": "x"}).ask(at=3.0)
    assert isinstance(command, Answer)
    assert (command.kind, command.names) == (AnswerKind.MISMATCH, ("sub_id",))
    assert events(caller, done.id)[-1] == "refused"


def test_reworded_free_text_is_the_same_content(caller: Caller) -> None:
    """Parameters that are not compared may differ."""
    caller.write()
    _, command = caller(arguments={"sub_id": "sub_1", "reason": "reworded"}).ask(at=3.0)
    assert isinstance(command, Answer)
    assert command.kind is AnswerKind.VALUE


def test_whether_the_payload_is_the_same_is_asked_of_the_call(caller: Caller) -> None:
    """`Ticket.same_payload` sees both fingerprints, and its answer reaches the machine."""
    intent, _ = caller.ask()
    caller.end(intent, UNKNOWN)
    seen = []

    def same(recorded: object, now: object) -> bool:
        seen.append(recorded == now)
        return False

    ticket = replace(caller.ticket, same_payload=same)
    blind = replace(caller().call, reads=False)
    _, command = caller.ledger.ask(ticket, blind, moment(20.0), caller.meta)
    assert isinstance(command, Answer)  # K would have sent again
    assert seen
    assert all(seen)


def test_a_call_that_may_not_send_leaves_a_row_of_its_own(caller: Caller) -> None:
    """The first call of an intent is recorded even if it is refused."""
    intent, command = caller.ask(refusal="pool_exhausted")
    assert isinstance(command, Answer)
    assert (command.kind, command.reason) == (AnswerKind.NOT_SENT, "pool_exhausted")
    assert events(caller, intent.id) == ["refused"]
    assert caller.ledger.arguments(intent.id) == caller.ticket.arguments()


def test_a_quiet_call_that_sends_nothing_leaves_nothing(caller: Caller) -> None:
    """Looking at what is not there makes no intent."""
    intent, command = caller.ask(sends=0, quiet=True)
    assert isinstance(command, Answer)
    assert intent.state == State()
    assert caller.ledger.find(intent.identity.key) is None


# Another turn, same wish ---------------------------------------------------------------------------------------


def test_an_open_intent_with_the_same_wish_is_looked_at_first(caller: Caller) -> None:
    """The next turn is blocked, on record, and told to look at the open one; then it is told that it stays open."""
    first, _ = caller.ask()
    caller.end(first, UNKNOWN)
    again = caller(turn="2")
    intent, command = again.ask(at=2.0)
    assert command == ReadOther("T2", first.id)
    assert events(caller, intent.id) == ["blocked"]
    _, command = again.ask(at=3.0, looked_at=(first.id,))
    assert isinstance(command, Answer)
    assert (command.rule, command.other) == ("T5", first.id)


def test_one_that_turns_out_applied_is_the_answer(caller: Caller) -> None:
    """The other intent became applied after this one's first call: its value is this call's."""
    first, _ = caller.ask()
    first, _ = caller.end(first, UNKNOWN)
    again = caller(turn="2")
    again.ask(at=2.0)
    caller.tell(first, ReadEnded(Verdict.APPLIED, moment(2.0), 2, 1, kept=False), at=3.0)
    _, command = again.ask(at=4.0, looked_at=(first.id,))
    assert isinstance(command, Answer)
    assert (command.kind, command.other) == (AnswerKind.OTHER, first.id)


def test_one_that_turns_out_applied_with_other_content_is_named(caller: Caller) -> None:
    """Other content under the same wish is not sent."""
    first, _ = caller.ask()
    first, _ = caller.end(first, UNKNOWN)
    again = caller(turn="2", arguments={"sub_id": "sub_9"})
    again.ask(at=2.0)
    caller.tell(first, ReadEnded(Verdict.APPLIED, moment(2.0), 2, 1), at=3.0)
    _, command = again.ask(at=4.0, looked_at=(first.id,))
    assert isinstance(command, Answer)
    assert (command.kind, command.rule) == (AnswerKind.NOT_SENT, "T4")


def test_one_answered_before_this_intent_began_is_another_wish_fulfilled(caller: Caller) -> None:
    """An applied intent whose caller was told does not stand in the way of a later turn, however often it asks."""
    caller.write()
    later = caller(turn="2")
    intent, command = later.ask(at=10.0)
    assert isinstance(command, Run)
    intent, _ = later.end(intent, replace(REJECTED, again=True, status=429), at=11.0)
    _, command = later(turn="2").ask(at=40.0)
    assert command == Run("R1", 2)


def test_what_is_added_to_an_answered_intent_does_not_make_it_newer(caller: Caller) -> None:
    """It was told when it was told: a webhook that repeats it later changes nothing for other turns."""
    done = caller.write()
    later = caller(turn="2")
    intent, _ = later.ask(at=10.0)
    later.end(intent, replace(REJECTED, again=True, status=429), at=11.0)
    caller.tell(done, Delivered(1), at=12.0, quiet=True)
    _, command = later(turn="2").ask(at=40.0)
    assert command == Run("R1", 2)


def test_one_answered_after_this_intent_began_still_counts(caller: Caller) -> None:
    """The order is that of the rows: told after this intent's first row, it is this intent's business."""
    first, _ = caller.ask()
    second = caller(turn="2")
    second.ask(at=0.5)
    caller.end(first, at=1.0)
    _, command = second.ask(at=2.0, looked_at=(first.id,))
    assert isinstance(command, Answer)
    assert (command.kind, command.other) == (AnswerKind.OTHER, first.id)


def test_one_not_applied_counts_for_nothing(caller: Caller) -> None:
    """A rejected intent does not stand in the way."""
    first, _ = caller.ask()
    caller.end(first, REJECTED)
    _, command = caller(turn="2").ask(at=2.0)
    assert isinstance(command, Run)


def test_beside_unknown_claims_and_says_so(caller: Caller) -> None:
    """The claim names the open intents that the caller chose to pass by."""
    first, _ = caller.ask()
    caller.end(first, UNKNOWN)
    intent, command = caller(turn="2").ask(at=2.0, beside_unknown=True)
    assert isinstance(command, Run)
    claimed = caller.ledger.rows(intent.id)[0]["body"]
    assert f'"beside":["{first.id}"]' in claimed


@pytest.mark.parametrize(
    "change", [{"run": "run-2"}, {"target": '"sub_2"'}, {"tool": "pause"}, {"namespace": "b"}]
)
def test_another_wish_does_not_count(caller: Caller, change: dict[str, str]) -> None:
    """Run, tool, target and namespace make the wish."""
    first, _ = caller.ask()
    caller.end(first, UNKNOWN)
    _, command = caller(**change).ask(at=2.0)
    assert isinstance(command, Run)


@pytest.mark.parametrize("between", ["", " ", "\n", "/", ":", "\x00", '", "'])
def test_parts_that_join_into_one_text_are_different_wishes(between: str) -> None:
    """A tool or a target may hold whatever stands between the parts."""
    one = Identity("n", "r", "1", f"a{between}b", "c", "", "k1")
    two = Identity("n", "r", "1", "a", f"b{between}c", "", "k2")
    assert one.wish != two.wish


def test_a_wish_begins_with_its_subject() -> None:
    """Whatever the turn and the occurrence; the run comes after it."""
    one = Identity("n", "r", "1", "ab", "c", "", "k1")
    assert one.wish.startswith(subject("n", "ab", "c"))
    assert one.wish != Identity("n", "r2", "1", "ab", "c", "", "k3").wish
    assert one.wish == Identity("n", "r", "2", "ab", "c", "x", "k4").wish


# Races ---------------------------------------------------------------------------------------------------------


def test_of_many_threads_one_claims(open_ledger: Callable[[], Ledger]) -> None:
    """Sixteen calls of one intent at the same moment: one is licensed to send, fifteen watch."""
    ledger = open_ledger()
    callers = [Caller(ledger) for _ in range(16)]
    barrier = threading.Barrier(len(callers))

    def go(caller: Caller) -> object:
        barrier.wait()
        return caller.ask()[1]

    with ThreadPoolExecutor(len(callers)) as pool:
        commands = list(pool.map(go, callers))
    assert sorted(type(c).__name__ for c in commands) == ["Run"] + ["Watch"] * 15


def test_of_many_turns_with_one_wish_one_claims(open_ledger: Callable[[], Ledger]) -> None:
    """Look and claim are one step: of eight turns at the same moment one sends, seven look at it."""
    ledger = open_ledger()
    callers = [Caller(ledger, turn=str(turn)) for turn in range(8)]
    barrier = threading.Barrier(len(callers))

    def go(caller: Caller) -> object:
        barrier.wait()
        return caller.ask()[1]

    with ThreadPoolExecutor(len(callers)) as pool:
        commands = list(pool.map(go, callers))
    assert sorted(type(c).__name__ for c in commands) == ["ReadOther"] * 7 + ["Run"]


def test_a_claim_that_is_asked_for_twice_counts_once(caller: Caller) -> None:
    """The ticket may be asked for its fact again; attempt numbers still go on by one."""
    intent, _ = caller.ask()
    intent, _ = caller.end(intent, replace(REJECTED, again=True, status=429))
    intent, command = caller().ask(at=30.0)
    assert command == Run("R1", 2)
    assert [a.number for a in intent.state.attempts] == [1, 2]
    assert caller.ledger.content(intent.id, 3, "arguments") is None


def test_blocked_and_refused_rows_carry_who_asked(caller: Caller) -> None:
    """Rows of a call that sends nothing have worker, trace and budget like any other."""
    first, _ = caller.ask()
    caller.end(first, UNKNOWN)
    again = caller(turn="2", meta=replace(caller.meta, agent="agent-7", trace="t-1", granted_ms=9000))
    intent, _ = again.ask(at=2.0)
    row = caller.ledger.rows(intent.id)[0]
    assert (row["event"], row["agent"], row["trace"], row["granted_ms"], row["left_ms"]) == (
        "blocked",
        "agent-7",
        "t-1",
        9000,
        10000,
    )
    assert intent.state.revision == 1


def test_a_gone_caller_is_seen_by_the_next(caller: Caller) -> None:
    """A body that goes on after its caller left: the next call reads."""
    intent, _ = caller.ask()
    caller.tell(intent, GaveUp(1, "timeout"))
    _, command = caller().ask(at=20.0)
    assert isinstance(command, Read)


def test_a_person_s_word_is_replayed_with_a_row_for_the_telling(caller: Caller) -> None:
    """Applied on a person's word is told only after a row says so, and every later time without one."""
    intent, _ = caller.ask()
    caller.end(intent, UNKNOWN)
    intent = caller.ledger.load(intent.id) or intent
    caller.tell(intent, Resolved(True, "ana"), quiet=True)
    _, command = caller().ask(at=30.0)
    assert isinstance(command, Answer)
    assert events(caller, intent.id)[-1] == "answered"
    _, command = caller().ask(at=31.0)
    assert isinstance(command, Answer)
    assert events(caller, intent.id)[-1] == "answered"
    assert events(caller, intent.id).count("answered") == 1


def test_promises_in_force_stand_beside_each_decision(caller: Caller) -> None:
    """The columns tell rule, command and promises of the moment."""
    intent, _ = caller.ask(promises=Promises(work_bound=2.0))
    row = caller.ledger.rows(intent.id)[0]
    assert (row["command"], row["rule"], row["outcome"]) == ("run", "R1", "unknown")
    assert row["promises"] == '{"work_bound":2.0}'
    assert stamp_text(unix(row["deadline_at"])) == "2025-06-15T15:06:45.000000+00:00"
    intent, _ = caller.end(intent)
    row = caller.ledger.rows(intent.id)[1]
    assert stamp_text(unix(row["deadline_at"])) == "2025-06-15T15:06:51.000000+00:00"
