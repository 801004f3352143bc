"""Bodies that outlast their limit: what is told at the limit, and what becomes of the late end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import httpx
import pytest
from tenacity import wait_fixed

import safewrite
from safewrite import Applied, Attempt, Dependency, OutcomeUnknown, SafeWrite
from safewrite.core.events import Moment
from safewrite.ledger.units import Unit
from safewrite.testing import ManualClock
from tests.shell.conftest import KEYED, SETTLES, Shell, Tools, attempts, eventually, rows
from tests.shell.remote import HANG, LATE, LOSE, NEVER, REQUEST, Remote, Step, reject

pytestmark = pytest.mark.usefixtures("run", "clock")

STUBBORN = Step(hangs=True, stubborn=True)
"""Applied, then silent whatever its caller does; answered once the gate is open."""


def test_a_body_that_hangs_is_ended_at_its_limit_and_told_as_unknown(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """The limit is not a stop: what was sent may still land."""
    cancel = tool(read=None, timeout=2.0)
    remote.next(NEVER)
    with pytest.raises(OutcomeUnknown) as told:
        shell.call(cancel, "sub_1")
    assert told.value.may_still_land
    assert 2.0 <= clock.elapsed <= 2.0 + 0.5 + 0.1


def test_a_hanging_body_is_read_back_within_the_same_call(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """Part of the call is kept for the read, so the timed-out call itself finds its effect."""
    cancel = tool().options(deadline=20.0)
    remote.next(HANG)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.evidence, remote.reads) == ("applied", "reconciled", 1)
    assert 15.0 <= clock.elapsed < 20.5  # three quarters of the 20 s that the call has


def test_an_abandoned_body_that_may_still_apply_is_never_sent_again(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Its read says absent, every promise is made, yet its own thread or task lives: unknown, one effect in the end."""
    cancel = tool(dependency=SETTLES, timeout=2.0)
    remote.next(LATE)
    for _ in range(2):
        outcome = shell.call(cancel.outcome, "sub_1")
        assert (outcome.state, outcome.reason) == ("unknown", "absent_not_proven")
        assert outcome.may_still_land
    assert (remote.count(), len(remote.attempts)) == (0, 1)
    remote.gate.open()
    assert eventually(lambda: remote.count() == 1)
    outcome = eventually(lambda: (o := shell.call(cancel.outcome, "sub_1")).state == "applied" and o)
    assert outcome.value == "sub_1 done"
    assert (remote.count(), len(remote.attempts)) == (1, 1)


def test_a_late_reply_is_kept_as_evidence_and_answers_the_next_call(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite
) -> None:
    """The abandoned body's value is recorded on its own attempt; the first caller keeps its unknown."""
    cancel = tool(sw, read=None, timeout=2.0)
    remote.next(STUBBORN)
    first = shell.call(cancel.outcome, "sub_1")
    remote.gate.open()
    second = eventually(lambda: (o := shell.call(cancel.outcome, "sub_1")).state == "applied" and o)
    assert first.state == "unknown"
    assert (second.value, second.evidence, second.sent) == ("sub_1 done", "late_response", False)
    assert [a.evidence for a in attempts(sw, second)] == ["late_response"]
    assert len(remote.attempts) == 1
    assert rows(sw, second)[-1]["event"] == "answered"  # by then nobody had been told of it


def test_a_late_reply_is_that_of_its_own_attempt(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite
) -> None:
    """A further attempt was made and has ended meanwhile: what the first one hears late is no end of that."""
    cancel = tool(sw, read=None, dependency=KEYED, timeout=2.0)
    remote.next(STUBBORN)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts) == ("applied", 2)
    remote.gate.open()
    assert eventually(lambda: attempts(sw, outcome)[0].ended)
    assert [(a.number, a.evidence) for a in attempts(sw, outcome)] == [(1, "late_response"), (2, "response")]


def test_a_late_reply_is_read_in_the_context_of_its_call(
    shell: Shell, remote: Remote, sw: SafeWrite, tool: Tools
) -> None:
    """A `classify` that asks whose call it was gets the same answer long after that call has ended."""
    tenant: ContextVar[str] = ContextVar("tenant")

    def classify(seen: object) -> str | None:
        return {"the one who is refused": "not_applied"}[tenant.get()] if seen == "sub_1 done" else None

    cancel = tool(sw, read=None, dependency=Dependency("billing", classify=classify), timeout=2.0)
    remote.next(STUBBORN)
    token = tenant.set("the one who is refused")
    assert shell.call(cancel.outcome, "sub_1").state == "unknown"
    tenant.reset(token)
    remote.gate.open()
    outcome = eventually(lambda: (o := cancel.peek("sub_1")) and o.state == "not_applied" and o)
    assert (outcome.state, outcome.reason) == ("not_applied", "classified")


def test_a_late_refusal_settles_what_was_open(shell: Shell, remote: Remote, tool: Tools) -> None:
    """The abandoned body hears no: not applied, replayed as a rejection, never sent again."""
    cancel = tool(read=None, timeout=2.0)
    refusal = reject(422)
    remote.next(Step(applies=False, hangs=True, stubborn=True, raises=refusal.raises))
    assert shell.call(cancel.outcome, "sub_1").state == "unknown"
    remote.gate.open()
    outcome = eventually(lambda: (o := shell.call(cancel.outcome, "sub_1")).state == "not_applied" and o)
    assert isinstance(outcome.error, safewrite.WriteRejected)
    assert len(remote.attempts) == 1


def test_a_late_reply_never_moves_an_answer_down(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite
) -> None:
    """Read as applied, then the late body reports a timeout of its own: still applied, with the first value."""

    async def read(attempt: Attempt) -> Applied[str]:
        return Applied("what was read")

    cancel = tool(sw, read=read, timeout=2.0)
    remote.next(Step(hangs=True, stubborn=True, raises=lambda: httpx.ReadTimeout("late", request=REQUEST)))
    first = shell.call(cancel.outcome, "sub_1")
    assert (first.state, first.value) == ("applied", "what was read")
    remote.gate.open()
    assert eventually(lambda: attempts(sw, first)[0].ended)
    second = shell.call(cancel.outcome, "sub_1")
    assert (second.state, second.value, second.evidence) == ("applied", "what was read", "reconciled")


def test_the_first_recorded_value_stays(shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite) -> None:
    """A value that was read and told is not replaced by the one that came late."""

    async def read(attempt: Attempt) -> Applied[str]:
        return Applied("what was read")

    cancel = tool(sw, read=read, timeout=2.0)
    remote.next(STUBBORN)
    first = shell.call(cancel.outcome, "sub_1")
    remote.gate.open()
    assert eventually(lambda: attempts(sw, first)[0].ended)
    assert shell.call(cancel, "sub_1") == "what was read"


def test_two_attempts_that_both_took_effect_raise_an_alarm(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite, caplog: pytest.LogCaptureFixture
) -> None:
    """A dependency that does not keep its promise about keys is shown, never edited away."""
    alarms: list[Any] = []
    sw.on_alarm(alarms.append)
    cancel = tool(sw, read=None, dependency=Dependency("liar", key_retention=86_400.0), timeout=2.0)
    remote.next(Step(hangs=True, stubborn=True))
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts) == ("applied", 2)
    deliveries = attempts(sw, outcome)
    sw.deliver(deliveries[0].id, "another", object_id="o-1")
    sw.deliver(deliveries[1].id, "one more", object_id="o-2")
    assert eventually(lambda: alarms)
    assert {a.kind for a in alarms} == {"two_effects"}
    assert alarms[0].key == outcome.key
    assert "two_effects" in caplog.text


def test_an_effect_after_a_proven_absence_raises_an_alarm(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite
) -> None:
    """A promise that was false: the absence had been proven by it, and then the effect came."""
    alarms: list[str] = []
    sw.on_alarm(lambda alert: alarms.append(alert.kind))
    cancel = tool(sw, dependency=SETTLES, max_attempts=1)
    remote.next(LOSE)
    remote.by_key = lambda key: None  # type: ignore[method-assign,assignment,return-value]
    outcome = shell.call(cancel.outcome, "sub_1")
    assert outcome.state == "not_applied"
    told = sw.deliver(attempts(sw, outcome)[0].id, "it came after all")
    assert (told.state, alarms) == ("applied", ["effect_after_proof"])
    assert shell.call(cancel, "sub_1") == "it came after all"


def test_a_read_that_hangs_ends_at_its_limit(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """The read has the tool's `timeout`; it is tried again, and the call ends in time."""
    gate = remote.gate

    async def read(attempt: Attempt) -> Applied[str]:
        await remote._hang(Step(stubborn=True), None)
        return Applied("too late")

    cancel = tool(read=read, timeout=2.0)
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown) as told:
        shell.call(cancel, "sub_1")
    assert told.value.reason == "read_timeout"
    assert clock.elapsed <= 20.0 + 0.5 + 0.1
    gate.open()


def test_a_body_may_clean_up_for_a_moment_after_its_limit(
    shell: Shell, remote: Remote, sw: SafeWrite, clock: ManualClock
) -> None:
    """What it returns or raises within the grace is its ending, seen and recorded."""

    async def cancel(sub_id: str, attempt: Attempt) -> str:
        await remote._hang(Step(), attempt)
        return "never"

    async def tidy(sub_id: str, attempt: Attempt) -> str:
        try:
            return await cancel(sub_id, attempt)
        except BaseException:
            raise safewrite.NotSent("it was still in our queue", again=False) from None

    tool = sw.write(target="sub_id", timeout=1.0, max_attempts=1)(shell.colours(tidy))
    outcome = shell.call(tool.outcome, "sub_1")
    assert (outcome.state, outcome.may_still_land) == ("not_applied", False)
    assert attempts(sw, outcome)[0].ended


def test_a_body_in_a_thread_is_told_that_nobody_waits_any_more(
    shell: Shell, remote: Remote, sw: SafeWrite
) -> None:
    """`attempt.cancelled` is set at the limit, in both shells."""
    seen: list[Attempt] = []

    async def cancel(sub_id: str, attempt: Attempt) -> str:
        seen.append(attempt)
        assert not attempt.cancelled.is_set()
        return await remote.write(sub_id, attempt)

    tool = sw.write(target="sub_id", timeout=1.0)(shell.colours(cancel))
    remote.next(NEVER)
    shell.call(tool.outcome, "sub_1")
    assert seen[0].cancelled.is_set()


def test_calls_after_an_abandoned_one_do_not_share_its_fate(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Another target is written at once, and the late frame of the first changes nothing about it."""
    cancel = tool(read=None, timeout=1.0)
    remote.next(STUBBORN)
    assert shell.call(cancel.outcome, "o1").state == "unknown"
    assert shell.call(cancel, "o2") == "o2 done"
    remote.gate.open()
    eventually(lambda: shell.call(cancel.outcome, "o1").state == "applied")
    assert (shell.call(cancel, "o1"), shell.call(cancel, "o2")) == ("o1 done", "o2 done")
    assert remote.count() == 2


def test_an_inner_write_cut_off_by_the_outer_limit_has_an_attempt_of_its_own(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite
) -> None:
    """The inner tool has no limit of its own; its fate is recorded, late, and never taken for absent."""
    inner = tool(sw, read=None, name="inner")

    async def outer(order: str) -> Any:
        result = inner(order)
        return await result if not shell.plain else result

    tool_ = sw.write(target="order", name="outer", timeout=0.2)(shell.colours(outer))
    remote.next(STUBBORN)
    assert shell.call(tool_.outcome, "o1").state == "unknown"
    assert eventually(lambda: inner.peek("o1"))
    assert inner.peek("o1").state == "unknown"
    remote.gate.open()
    assert eventually(lambda: inner.peek("o1").state == "applied")
    assert remote.count() == 1


def test_a_delivery_proves_whichever_attempt_it_names(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite
) -> None:
    """A webhook for attempt 1 after attempt 2 was refused: applied, and the value is replayed."""
    cancel = tool(sw, read=None, dependency=KEYED)
    remote.next(LOSE, reject(422))
    first = shell.call(cancel.outcome, "sub_1")
    assert first.state == "unknown"
    told = sw.deliver(attempts(sw, first)[0].id, "by webhook")
    assert (told.state, told.value) == ("applied", "by webhook")
    assert shell.call(cancel, "sub_1") == "by webhook"


def test_a_delivery_from_a_coroutine(shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite) -> None:
    """`adeliver` does the same without holding up the loop."""
    cancel = tool(sw, read=None)
    remote.next(LOSE)
    first = shell.call(cancel.outcome, "sub_1")
    elsewhere = Shell("coroutine")
    told = elsewhere.call(sw.adeliver, attempts(sw, first)[0].id, "by webhook", object_id="o-1")
    elsewhere.close()
    assert (told.state, told.value, told.evidence) == ("applied", "by webhook", "delivered")


def test_a_delivery_for_an_attempt_that_nobody_made_is_an_error(sw: SafeWrite) -> None:
    """An unknown attempt id is named, and nothing is recorded."""
    with pytest.raises(safewrite.ConfigurationError, match="no attempt `nobody`"):
        sw.deliver("nobody", "x")


def test_a_lease_is_not_taken_over_while_its_body_runs(
    shell: Shell, remote: Remote, tool: Tools, still: ManualClock, open_sw: Callable[..., SafeWrite]
) -> None:
    """Recovery beside a running body adopts nothing, and neither reads nor sends."""
    remote.next(STUBBORN)
    sw = open_sw()
    cancel = tool(sw, wait=wait_fixed(0))
    call = shell.start(cancel.outcome, "sub_1")
    assert remote.arrived.event.wait(10)
    other = open_sw()
    tool(other)
    found = (
        other.recover(resend=True) if shell.plain else Shell("coroutine").call(other.arecover, resend=True)
    )
    assert [(f.state, f.reason) for f in found.found] == [("unknown", "in_flight")]
    assert (remote.reads, len(remote.attempts)) == (0, 1)
    remote.gate.open()
    assert call.result(10).state == "applied"


@pytest.mark.sqlite
@pytest.mark.parametrize("off", [-3600.0, 3600.0])
def test_a_lease_is_waited_for_by_the_ledger_s_clock(
    open_sw: Callable[..., SafeWrite], clock: ManualClock, monkeypatch: pytest.MonkeyPatch, off: float
) -> None:
    """A worker whose own clock is an hour off looks when the lease is over, neither before nor never."""

    def moment(*_: object) -> Moment:
        now = clock.now()
        return Moment(now.unix + off, now.ticks + off, "db:1")

    monkeypatch.setattr(Unit, "moment", moment)
    shell, remote = Shell("plain"), Remote("plain")
    tool = Tools(shell, remote, open_sw)
    remote.next(STUBBORN)
    call = shell.start(tool(in_thread=False).outcome, "sub_1")  # it has no limit: only its lease ends
    assert remote.arrived.event.wait(10)
    outcome = shell.call(tool().options(deadline=60.0).outcome, "sub_1")
    assert (outcome.state, outcome.sent, remote.reads) == ("applied", False, 1)
    assert 25.5 <= clock.elapsed <= 27.0
    remote.gate.open()
    assert call.result(10).state == "applied"


def test_a_body_that_nobody_waits_for_keeps_no_other_thread_from_working(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Threads of abandoned bodies are daemons: they never hold up the end of the process."""
    cancel = tool(read=None, timeout=1.0)
    remote.next(LATE)
    shell.call(cancel.outcome, "sub_1")
    ours = [t for t in threading.enumerate() if t.name == "safewrite"]
    assert all(t.daemon for t in ours)
