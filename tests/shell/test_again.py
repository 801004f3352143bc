"""The same wish once more: in the same turn, in a later one, at the same time, from elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from tenacity import wait_fixed

import safewrite
from safewrite import (
    Applied,
    Attempt,
    GoalMet,
    Inconclusive,
    IntentInFlight,
    IntentMismatch,
    NotApplied,
    OutcomeUnknown,
    SafeWrite,
    WriteNotSent,
)
from safewrite.calls import CallOptions, Guard
from safewrite.context import tool_call
from safewrite.ledger.sql import Ledger
from safewrite.shell.steps import carry
from safewrite.testing import ManualClock
from tests.shell.conftest import KEYED, SETTLES, Shell, Tools
from tests.shell.remote import DROP, HANG, LATE, LOSE, REFUSE, Remote, Step, reject

pytestmark = pytest.mark.usefixtures("run")


# The same turn ---------------------------------------------------------------------------------------------------


def test_the_same_call_in_the_same_turn_is_replayed(shell: Shell, remote: Remote, tool: Tools) -> None:
    """It returns the first value, says that it was replayed, and sends nothing."""
    cancel = tool()
    first = shell.call(cancel.outcome, "sub_1", reason="a")
    second = shell.call(cancel.outcome, "sub_1", reason="a")
    assert (first.value, first.replayed, first.sent) == ("sub_1 done", False, True)
    assert (second.value, second.replayed, second.sent) == ("sub_1 done", True, False)
    assert (second.key, second.intent_id, second.attempts) == (first.key, first.intent_id, 1)
    assert first.trace != second.trace
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_a_replay_needs_nothing_of_the_process_that_wrote(shell: Shell, remote: Remote, tool: Tools) -> None:
    """Another `SafeWrite` over the same ledger, as after a restart, replays."""
    first = shell.call(tool(), "sub_1")
    assert shell.call(tool(), "sub_1") == first
    assert remote.count() == 1


@pytest.mark.parametrize(
    ("changed", "names"), [({"amount": 99}, ("amount",)), ({"reason": "b"}, ("reason",))]
)
def test_other_arguments_under_the_same_intent_are_refused_by_name(
    changed: dict[str, Any], names: tuple[str, ...], shell: Shell, remote: Remote, tool: Tools
) -> None:
    """The old value is never replayed for other content; the error names the parameters, not their values."""
    cancel = tool()
    shell.call(cancel, "sub_1", reason="a", amount=10)
    for call in (cancel, cancel.outcome):
        with pytest.raises(IntentMismatch) as told:
            shell.call(call, "sub_1", **{"reason": "a", "amount": 10, **changed})
        assert told.value.parameters == names
        assert "99" not in str(told.value)
    assert remote.count() == 1


def test_other_arguments_are_refused_beside_an_unknown_as_well(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """While the first is open a call with another amount neither sends nor reads."""
    cancel = tool(read=None)
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1", amount=10)
    with pytest.raises(IntentMismatch):
        shell.call(cancel, "sub_1", amount=99)
    assert len(remote.attempts) == 1


def test_free_text_may_be_reworded(shell: Shell, remote: Remote, tool: Tools) -> None:
    """Other words for the same wish replay it; the first words stand in the ledger."""
    cancel = tool(free_text=("reason",))
    first = shell.call(cancel.outcome, "sub_1", reason="asked for it")
    second = shell.call(cancel.outcome, "sub_1", reason="Rotate the keys")
    assert (second.value, second.replayed, second.key) == (first.value, True, first.key)
    assert remote.count() == 1


def test_every_later_attempt_runs_with_the_first_arguments(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """The payload under one key never changes, however the model words the call the second time."""
    cancel = tool(read=None, dependency=KEYED, free_text=("reason",), max_attempts=1)
    remote.next(DROP)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1", reason="first words")
    assert shell.call(cancel, "sub_1", reason="second words") == "sub_1 done"
    assert [body["reason"] for _, _, body in remote.attempts] == ["first words"] * 2
    assert len({key for _, key, _ in remote.attempts}) == 1


def test_a_ledger_that_is_slow_to_give_the_first_arguments_sends_nothing_late(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether an attempt may still start is asked after all that can take long, just before its body."""
    cancel = tool(read=None, dependency=KEYED, max_attempts=1)
    remote.next(DROP)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1")
    usual = Ledger.first_arguments

    def slow(ledger: Ledger, intent_id: str) -> Any:
        clock.advance(1000.0)
        return usual(ledger, intent_id)

    monkeypatch.setattr(Ledger, "first_arguments", slow)
    assert shell.call(cancel.outcome, "sub_1").state == "unknown"
    assert len(remote.attempts) == 1


def test_occurrences_make_two_writes_of_one_wish(shell: Shell, remote: Remote, tool: Tools) -> None:
    """`.options(occurrence=...)` says that both are meant; each is replayed by itself."""
    cancel = tool()
    for occurrence in (1, 2, "2", 1):
        shell.call(cancel.options(occurrence=occurrence), "sub_1")
    assert remote.count() == 2
    assert len({e.key for e in remote.effects}) == 2


def test_a_never_sent_intent_is_claimed_again_under_its_key(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """A later call of the same turn sends; numbers go on, the key stays."""
    cancel = tool(max_attempts=1)
    remote.next(REFUSE)
    with pytest.raises(WriteNotSent) as told:
        shell.call(cancel, "sub_1")
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts, outcome.key) == ("applied", 2, told.value.key)


def test_an_unknown_is_reconciled_by_the_next_call_and_stays_found(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """What one call could not find out the next one does; the third is a plain replay without a read."""
    found: list[bool] = []

    async def read(attempt: Attempt) -> Applied[str] | NotApplied:
        remote.reads += 1
        return Applied("found") if found else NotApplied()

    cancel = tool(read=read)
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1")
    found.append(True)
    reads = remote.reads
    second, third = shell.call(cancel.outcome, "sub_1"), shell.call(cancel.outcome, "sub_1")
    assert (second.value, second.sent, second.replayed) == ("found", False, False)
    assert (third.value, third.sent, third.replayed) == ("found", False, True)
    assert remote.reads == reads + 1
    assert len(remote.attempts) == 1


def test_a_stuck_unknown_answers_at_once(
    shell: Shell, remote: Remote, tool: Tools, still: ManualClock
) -> None:
    """Without a read or a promise no later call waits for anything."""
    cancel = tool(read=None)
    remote.next(LOSE)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            shell.call(cancel, "sub_1")
    assert still.elapsed == 0.0


def test_a_refusal_is_never_a_terminal_answer_for_a_later_turn(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Rejected in turn 1; a corrected call in turn 2 is a new intent with a new key."""
    cancel = tool()
    remote.next(reject())
    first = shell.call(cancel.outcome, "sub_1")
    with safewrite.turn(2):
        second = shell.call(cancel.outcome, "sub_1", amount=5)
    assert (first.state, second.state) == ("not_applied", "applied")
    assert first.key != second.key


# Another turn ----------------------------------------------------------------------------------------------------


def test_the_same_wish_in_a_later_turn_is_a_new_write_once_the_first_was_answered(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Told "applied", the model asks again: it means it."""
    cancel = tool()
    for turn in (1, 2, 3):
        with safewrite.turn(turn):
            assert shell.call(cancel.outcome, "sub_1").replayed is False
    assert remote.count() == 3


def test_a_wanted_second_write_in_another_run_is_sent(shell: Shell, remote: Remote, tool: Tools) -> None:
    """Two runs are two intents, even while the first is unknown: the library does not pretend to know better."""
    cancel = tool(read=None)
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1")
    with safewrite.run("r2"), safewrite.turn(1):
        assert shell.call(cancel, "sub_1") == "sub_1 done"
    assert remote.count() == 2


def test_a_model_told_unknown_that_asks_again_in_its_next_turn_sends_nothing(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """The commonest duplicate of all: the second intent is held back, and the error names the first one's key."""
    cancel = tool(read=None)
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown) as first:
        shell.call(cancel, "sub_1")
    with safewrite.turn(2):
        for _ in range(2):
            with pytest.raises(OutcomeUnknown) as second:
                shell.call(cancel, "sub_1")
    assert second.value.blocked_by_key == first.value.key != second.value.key
    assert "resolve" in str(second.value)
    assert "beside_unknown=True" in str(second.value)
    assert len(remote.attempts) == 1


def test_the_open_one_is_looked_at_first_and_its_value_is_the_answer(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """The earlier write turns out applied: the later turn gets its value, replayed, with its key."""
    found: list[bool] = []

    async def read(attempt: Attempt) -> Applied[str] | NotApplied:
        return Applied("found") if found else NotApplied()

    cancel = tool(read=read)
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown) as first:
        shell.call(cancel, "sub_1")
    found.append(True)
    with safewrite.turn(2):
        outcome = shell.call(cancel.outcome, "sub_1")
        again = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.value, outcome.replayed) == ("applied", "found", True)
    assert outcome.blocked_by_key == first.value.key
    assert (again.state, again.value) == ("applied", "found")
    assert len(remote.attempts) == 1


def test_an_earlier_write_with_other_content_is_named_and_nothing_is_sent(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """The earlier one was applied with another amount, unseen: not sent, naming it."""
    found: list[bool] = []

    async def read(attempt: Attempt) -> Applied[str] | NotApplied:
        return Applied("found") if found else NotApplied()

    cancel = tool(read=read)
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown) as first:
        shell.call(cancel, "sub_1", amount=10)
    found.append(True)
    with safewrite.turn(2), pytest.raises(WriteNotSent) as second:
        shell.call(cancel, "sub_1", amount=20)
    assert second.value.blocked_by_key == first.value.key
    assert len(remote.attempts) == 1


def test_an_earlier_write_proven_absent_lets_the_later_turn_send(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """Once the open one is known not to be applied, the new wish is carried out."""
    cancel = tool(dependency=SETTLES)
    lost: list[bool] = [True]
    by_key = remote.by_key

    def blind(key: str) -> Any:
        if lost:
            raise ConnectionError("search is down")
        return by_key(key)

    remote.by_key = blind  # type: ignore[method-assign]
    remote.next(DROP)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1")
    lost.clear()
    with safewrite.turn(2):
        outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.sent, outcome.attempts) == ("applied", True, 1)
    assert remote.count() == 1


def test_beside_unknown_sends_and_leaves_a_row(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite
) -> None:
    """The caller's explicit choice passes the open one by, and the audit names it."""
    cancel = tool(sw, read=None)
    remote.next(LOSE)
    first = shell.call(cancel.outcome, "sub_1")
    with safewrite.turn(2):
        second = shell.call(cancel.options(beside_unknown=True).outcome, "sub_1")
    assert (second.state, remote.count()) == ("applied", 2)
    assert first.intent_id in str(sw.ledger.rows(second.intent_id))


def test_of_several_open_ones_each_is_looked_at(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """None of them can be told: a later turn hears that after a look at each, with time left, and sends nothing."""
    looked: list[str] = []

    async def read(attempt: Attempt) -> Inconclusive:
        looked.append(attempt.key)
        return Inconclusive("dark")

    cancel = tool(read=read)
    remote.next(LOSE, LOSE)
    first = shell.call(cancel.outcome, "sub_1")
    with safewrite.turn(2):
        second = shell.call(cancel.options(beside_unknown=True).outcome, "sub_1")
    looked.clear()
    with safewrite.turn(3):
        third = shell.call(cancel.options(deadline=safewrite.Deadline(20.0, minimum=3.0)).outcome, "sub_1")
    assert (third.state, third.reason) == ("unknown", "same_wish_open")
    assert set(looked) == {first.key, second.key}
    assert len(remote.attempts) == 2


def test_a_look_at_an_open_one_has_what_its_call_has_left(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, clock: ManualClock
) -> None:
    """Nothing is what nothing is: it does not begin anew with a time of its own."""
    cancel = tool(sw, read=None)
    remote.next(LOSE)
    intent = sw.ledger.load(shell.call(cancel.outcome, "sub_1").intent_id)
    assert intent is not None
    assert [sw.job_for(intent, within=left).left() for left in (7.0, 0.0, None)] == [7.0, 0.0, 20.0]


def test_another_target_is_another_wish(shell: Shell, remote: Remote, tool: Tools) -> None:
    """An open write about one subscription holds back no other."""
    cancel = tool(read=None)
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1")
    with safewrite.turn(2):
        assert shell.call(cancel, "sub_2") == "sub_2 done"


def test_another_occurrence_is_held_back_by_an_open_one_as_well(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """The second of two meant writes waits until the first is known."""
    cancel = tool(read=None)
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel.options(occurrence=1), "sub_1")
    with pytest.raises(OutcomeUnknown) as told:
        shell.call(cancel.options(occurrence=2), "sub_1")
    assert told.value.blocked_by_key is not None
    assert len(remote.attempts) == 1


def test_the_result_that_comes_by_another_road_ends_the_block(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite
) -> None:
    """A webhook proves the open attempt; the later turn is answered with it."""
    cancel = tool(sw, read=None)
    remote.next(LOSE)
    first = shell.call(cancel.outcome, "sub_1")
    attempt = sw.ledger.find(first.key).state.attempts[0].id
    told = sw.deliver(attempt, "from the webhook")
    assert (told.state, told.value, told.evidence) == ("applied", "from the webhook", "delivered")
    with safewrite.turn(2):
        second = shell.call(cancel.outcome, "sub_1")
    assert (second.value, second.blocked_by_key, len(remote.attempts)) == ("from the webhook", first.key, 1)


# At the same time ------------------------------------------------------------------------------------------------


def test_a_second_caller_waits_for_the_first_and_gets_its_value(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Two dispatches milliseconds apart: one effect, and both are told of it."""
    remote.next(HANG)
    first = shell.start(tool(), "sub_1")
    assert remote.arrived.event.wait(10)
    second = shell.start(tool().outcome, "sub_1")
    remote.gate.open()
    assert first.result(10) == "sub_1 done"
    outcome = second.result(10)
    assert (outcome.value, outcome.replayed, outcome.sent) == ("sub_1 done", True, False)
    assert (remote.count(), len(remote.attempts), remote.reads) == (1, 1, 0)


def test_a_second_caller_may_be_refused_instead(shell: Shell, remote: Remote, tool: Tools) -> None:
    """With `on_conflict="refuse"` it hears at once that the write is in flight, and sends nothing."""
    remote.next(HANG)
    first = shell.start(tool(), "sub_1")
    assert remote.arrived.event.wait(10)
    with pytest.raises(IntentInFlight) as told:
        shell.call(tool(on_conflict="refuse"), "sub_1")
    assert told.value.may_still_land
    assert "being carried out by another call" in str(told.value)
    assert "this call sent nothing" in told.value.for_model()
    remote.gate.open()
    assert first.result(10) == "sub_1 done"
    assert len(remote.attempts) == 1


def test_a_lease_lasts_as_long_as_its_call_may_and_is_never_renewed(
    shell: Shell, remote: Remote, sw: SafeWrite, still: ManualClock
) -> None:
    """To the last moment of the call nobody else looks or sends; no sign of life of its body makes that longer."""
    held: list[Attempt] = []

    async def cancel(sub_id: str, attempt: Attempt) -> str:
        held.append(attempt)
        return await remote.write(sub_id, attempt)

    remote.next(HANG)
    made = sw.write(target="sub_id", on_conflict="refuse")(shell.colours(cancel))
    first = shell.start(made, "sub_1")
    assert remote.arrived.event.wait(10)
    found = sw.ledger.find(held[0].key)
    assert found is not None
    for _ in range(39):
        still.advance(0.5)
        held[0].progress()
        with pytest.raises(IntentInFlight):
            shell.call(made, "sub_1")
    after = sw.ledger.find(held[0].key)
    assert after is not None
    assert after.state.lease == found.state.lease
    assert (remote.reads, len(remote.attempts)) == (0, 1)
    remote.gate.open()
    assert first.result(10) == "sub_1 done"


@pytest.mark.parametrize("keys", [False, True])
def test_a_body_that_outlasts_its_call_and_its_lease_is_looked_at_by_others(
    keys: bool, remote: Remote, tool: Tools, shell: Shell, sw: SafeWrite, still: ManualClock
) -> None:
    """On its caller's thread nothing stops it: others find out, or send under its key; one effect, one record."""
    if not shell.plain:
        return  # a coroutine is given up at the end of its call, which frees the lease
    remote.recognises_keys = keys
    options: dict[str, Any] = {"dependency": KEYED, "read": None} if keys else {}
    remote.next(HANG)
    first = shell.start(tool(sw, **options).outcome, "sub_1")
    assert remote.arrived.event.wait(10)
    still.advance(60.0)
    other = shell.call(tool(**options).outcome, "sub_1")
    assert (other.state, other.sent, other.evidence) == (
        "applied",
        keys,
        "response" if keys else "reconciled",
    )
    remote.gate.open()
    told = first.result(10)
    assert (told.state, told.value, remote.count()) == ("applied", "sub_1 done", 1)
    assert sw.ledger.verify(told.intent_id or "") == ()


def test_a_waiting_caller_gives_up_at_its_own_deadline(shell: Shell, remote: Remote, tool: Tools) -> None:
    """It is told that the write is in flight, not that it failed."""
    remote.next(HANG)
    first = shell.start(tool(), "sub_1")
    assert remote.arrived.event.wait(10)
    late = tool().options(deadline=safewrite.Deadline(0.1, minimum=0.0))
    with pytest.raises(IntentInFlight):
        shell.call(late, "sub_1")
    remote.gate.open()
    assert first.result(10) == "sub_1 done"
    assert len(remote.attempts) == 1


def test_a_waiting_caller_waits_no_longer_than_it_may(
    shell: Shell, tool: Tools, sw: SafeWrite, clock: ManualClock
) -> None:
    """The last look at the record comes when its time is over, not a pause later."""
    cancel = tool(sw)
    other = Guard(sw, cancel.tool).job(CallOptions(), ("sub_1",), {})
    carry(other.ask())
    with pytest.raises(IntentInFlight):
        shell.call(cancel.options(deadline=safewrite.Deadline(1.1, minimum=0.0)), "sub_1")
    assert clock.elapsed == pytest.approx(1.1)


def test_the_same_wish_of_another_turn_waits_for_one_in_flight(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Parallel turns of one run: the second neither sends beside the first nor reads over it."""
    remote.next(HANG)
    first = shell.start(tool(), "sub_1")
    assert remote.arrived.event.wait(10)
    with safewrite.turn(2):
        second = shell.start(tool().outcome, "sub_1")
        threading.Event().wait(0.1)
        assert not second.done()
    remote.gate.open()
    assert first.result(10) == "sub_1 done"
    outcome = second.result(10)
    assert (outcome.state, outcome.value, len(remote.attempts)) == ("applied", "sub_1 done", 1)


@pytest.mark.parametrize("callers", [12])
def test_many_callers_at_once_make_one_effect(
    callers: int, shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Threads or tasks, over two `SafeWrite`s: one sends, the others are answered with it, no driver error leaks."""
    tools = [tool(wait=wait_fixed(0.05)), tool(wait=wait_fixed(0.05))]
    calls = [shell.start(tools[n % 2].outcome, "sub_1") for n in range(callers)]
    told = [call.result(20) for call in calls]
    assert {(o.state, o.value) for o in told} == {("applied", "sub_1 done")}
    assert sum(o.sent for o in told) == 1
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_two_executions_of_one_run_do_each_write_once_and_in_order(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """A recovered workflow beside its live original: reserve, email, ship, each exactly one effect."""
    wanted = ["reserve", "email", "ship"]

    def execution() -> list[str]:
        cancel = tool(wait=wait_fixed(0.05))
        made = []
        for turn, target in enumerate(wanted, 1):
            with safewrite.run("r1"), safewrite.turn(turn):
                made.append(shell.call(cancel, target))
        return made

    results: list[list[str]] = []
    threads = [threading.Thread(target=lambda: results.append(execution())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [[f"{target} done" for target in wanted]] * 2
    assert [e.target for e in remote.effects] == wanted


# After an attempt was given up -------------------------------------------------------------------------------------


def test_a_caller_whose_attempt_was_superseded_hears_the_record(
    shell: Shell, remote: Remote, tool: Tools, still: ManualClock
) -> None:
    """A stalls past its lease, B reads and is answered; A's own late reply never becomes A's result."""

    async def read(attempt: Attempt) -> Applied[str]:
        return Applied("what B read")

    remote.colour = "plain"  # its body holds up A's thread, or A's loop, so that A cannot notice the time
    remote.next(Step(hangs=True, stubborn=True))
    elsewhere = Shell(shell.colour)
    first = elsewhere.start(tool(read=read).outcome, "sub_1")
    assert remote.arrived.event.wait(10)
    with pytest.raises(IntentInFlight):
        shell.call(tool(read=read, on_conflict="refuse"), "sub_1")
    still.advance(3600.0)
    second = shell.call(tool(read=read).outcome, "sub_1")
    assert (second.state, second.value, second.sent) == ("applied", "what B read", False)
    remote.gate.open()
    told = first.result(10)
    elsewhere.close()
    assert (told.state, told.value, told.key) == ("applied", "what B read", second.key)
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_a_stalled_attempt_whose_absence_a_read_asserts_is_never_sent_again(
    shell: Shell, remote: Remote, tool: Tools, still: ManualClock
) -> None:
    """An expired lease is permission to look, never to send: the stalled body may still apply, and does."""
    remote.colour = "plain"
    remote.next(LATE)
    elsewhere = Shell(shell.colour)
    first = elsewhere.start(tool(dependency=SETTLES).outcome, "sub_1")
    assert remote.arrived.event.wait(10)
    still.advance(3600.0)
    second = shell.start(tool(dependency=SETTLES, wait=wait_fixed(0)).outcome, "sub_1")
    told = second.result(10)
    assert (told.state, told.may_still_land) == ("unknown", True)
    remote.gate.open()
    assert first.result(10).state == "applied"
    elsewhere.close()
    assert shell.call(tool(dependency=SETTLES).outcome, "sub_1").replayed
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_a_batch_that_resumes_finds_what_is_done(shell: Shell, remote: Remote, tool: Tools) -> None:
    """On resume a batch runs again in another order: finished writes are replayed, the paused one is sent."""
    cancel = tool()
    for target in ("m1", "m2"):
        shell.call(cancel, target)
    for target in ("ask", "m2", "m1"):
        shell.call(cancel, target)
    assert [e.target for e in remote.effects] == ["m1", "m2", "ask"]


def test_tool_call_ids_mean_nothing(shell: Shell, remote: Remote, tool: Tools) -> None:
    """A turn that is tried again with another id finds its intent; an id that comes again names nothing done."""
    cancel: Callable[..., Any] = tool()
    for turn, call_id, target in ((3, "call_7", "sub_1"), (3, "call_9", "sub_1"), (4, "call_7", "sub_2")):
        with safewrite.run("r1"), safewrite.turn(turn), tool_call(call_id):
            shell.call(cancel, target)
    assert [e.target for e in remote.effects] == ["sub_1", "sub_2"]


def test_a_state_that_was_so_before_is_no_effect_of_ours(shell: Shell, sw: SafeWrite, remote: Remote) -> None:
    """A body that finds the goal met sends nothing, and the outcome claims no authorship."""

    async def cancel(sub_id: str) -> GoalMet[str]:
        return GoalMet("cancelled by somebody")

    tool = sw.write(target="sub_id")(shell.colours(cancel))
    outcome = shell.call(tool.outcome, "sub_1")
    assert (outcome.state, outcome.evidence, outcome.attributable) == ("applied", "goal_state", False)
    assert remote.count() == 0


def test_what_a_person_settled_is_not_asked_for_again(
    shell: Shell, sw: SafeWrite, remote: Remote, tool: Tools
) -> None:
    """Replayed, never sent; neither the error nor the text for a model says that calling again would help."""
    cancel = tool(sw, read=None)
    remote.next(DROP)
    with safewrite.run("r1"), safewrite.turn(1):
        key = shell.call(cancel.outcome, "sub_1").key
        sw.resolve(key, applied=False, by="Ann", note="no such cancellation")
        with pytest.raises(WriteNotSent) as told:
            shell.call(cancel, "sub_1")
        outcome = shell.call(cancel.outcome, "sub_1")
        report = shell.call(cancel.as_tool(), "sub_1")
    assert (outcome.state, outcome.evidence, outcome.replayed, outcome.again) == (
        "not_applied", "person", True, False,
    )  # fmt: skip
    for text in (told.value.for_model(), outcome.for_model(), report.message):
        assert "on the word of the person" in text
        assert "Do not call it again in this turn" in text
        assert "said no" not in text
    assert "safe to call" not in str(told.value)
    assert "not sent again" in str(told.value)
    assert report.do_not_repeat
    assert remote.attempts == remote.attempts[:1]
