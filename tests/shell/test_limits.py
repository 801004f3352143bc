"""What a call may spend: timeout, cap, deadline, reserve and minimum, pauses, and our own threads."""

from __future__ import annotations

import contextvars
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tenacity import wait_exception, wait_fixed, wait_incrementing

import safewrite
from safewrite import (
    Applied,
    Attempt,
    BudgetExhausted,
    Deadline,
    Inconclusive,
    OutcomeUnknown,
    SafeWrite,
    WriteNotSent,
)
from safewrite.calls import CallOptions, Guard
from safewrite.core.events import Verdict
from safewrite.core.state import ReadState
from safewrite.shell.sync import grace_within
from safewrite.shell.threads import Pool
from safewrite.testing import ManualClock
from tests.shell.conftest import KEYED, WITHIN, Shell, Tools, attempts, eventually, rows
from tests.shell.remote import DROP, HANG, LATE, LOSE, NEVER, REFUSE, Remote, Step, status

pytestmark = pytest.mark.usefixtures("run")

ASKED_BY = contextvars.ContextVar("asked_by", default="nobody")


@pytest.fixture
def granted(sw: SafeWrite, shell: Shell, clock: ManualClock) -> Any:
    """Returns what an attempt was granted, under limits of all kinds."""

    def ask(*, reads: bool, deadline: Any = None, **options: Any) -> float:
        seen: list[float] = []

        async def cancel(sub_id: str, attempt: Attempt) -> str:
            seen.append(attempt.timeout)
            return "done"

        name = f"cancel-{reads}-{deadline}-{sorted(options)}"
        tool = sw.write(target="sub_id", name=name, **options)(shell.colours(cancel))
        if reads:
            tool.reconcile(lambda sub_id: Applied("x"))
        shell.call(tool.options(deadline=deadline) if deadline is not None else tool, "sub_1")
        return seen[0]

    return ask


def test_an_attempt_gets_its_timeout_or_what_the_call_leaves_less_the_reserve(granted: Any) -> None:
    """The smallest counts; a quarter is kept for the read, if there is one, and at least half a second."""
    assert granted(reads=False) == pytest.approx(20.0)
    assert granted(reads=True) == pytest.approx(15.0)
    assert granted(reads=True, timeout=3.0) == pytest.approx(3.0)
    assert granted(reads=False, deadline=8.0) == pytest.approx(8.0)
    assert granted(reads=True, deadline=8.0) == pytest.approx(6.0)
    assert granted(reads=True, deadline=1.6) == pytest.approx(1.1)
    assert granted(reads=False, deadline=Deadline(60.0, call_cap=5.0)) == pytest.approx(5.0)
    with safewrite.run("r2", call_cap=4.0), safewrite.turn(1):
        assert granted(reads=False, deadline=60.0) == pytest.approx(4.0)


@pytest.mark.parametrize("seconds", [1e9, 1e20, 1e300])
def test_a_deadline_may_be_longer_than_a_database_can_count(
    shell: Shell, tool: Tools, sw: SafeWrite, seconds: float
) -> None:
    """The row says the most that it can hold, and the write is made."""
    cancel = tool(sw, read=None)
    with safewrite.run("r2", deadline=seconds), safewrite.turn(1):
        outcome = shell.call(cancel.outcome, "sub_1")
    assert outcome.state == "applied"
    assert rows(sw, outcome)[0]["granted_ms"] == pytest.approx(min(seconds * 1000, 2**53))


def test_a_deadline_of_one_call_does_not_reach_beyond_that_of_the_run(granted: Any) -> None:
    """The tightest of both holds."""
    with safewrite.run("r2", deadline=5.0), safewrite.turn(1):
        assert granted(reads=False, deadline=8.0) == pytest.approx(5.0)
        assert granted(reads=False, deadline=3.0) == pytest.approx(3.0)


def test_a_call_ends_by_its_deadline_and_the_grace(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """However often it reads and waits meanwhile."""
    cancel = tool()
    remote.by_key = lambda key: None  # type: ignore[method-assign,assignment,return-value]
    remote.next(HANG)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel.options(deadline=6.0), "sub_1")
    assert clock.elapsed <= 6.5 + 0.01


def test_less_than_the_minimum_is_not_sent(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """A slice too thin to matter is refused before the claim, as a refusal of time."""
    cancel = tool()
    deadline = Deadline(2.0, minimum=1.0)
    clock.advance(1.5)
    with pytest.raises(BudgetExhausted) as told:
        shell.call(cancel.options(deadline=deadline), "sub_1")
    assert told.value.reason == "budget_exhausted"
    assert remote.attempts == []
    assert cancel.peek("sub_1") is None


def test_a_spent_deadline_replays_what_is_applied(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """A refusal of time is none where the outcome is on record."""
    cancel = tool()
    shell.call(cancel, "sub_1")
    deadline = Deadline(1.0)
    clock.advance(5.0)
    assert shell.call(cancel.options(deadline=deadline).outcome, "sub_1").replayed


def test_a_spent_deadline_beside_an_open_attempt_is_unknown_not_a_refusal(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """Nothing is sent by this call, but "nothing was sent" would be a lie."""
    cancel = tool(read=None)
    remote.next(LOSE)
    shell.call(cancel.outcome, "sub_1")
    deadline = Deadline(1.0)
    clock.advance(5.0)
    outcome = shell.call(cancel.options(deadline=deadline).outcome, "sub_1")
    assert (outcome.state, outcome.reason) == ("unknown", "budget_exhausted")


def test_the_cap_of_a_run_bounds_each_call(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """Two calls of a run share its deadline, and neither may take more than the cap."""
    cancel = tool(read=None)
    with safewrite.run("r2", deadline=18.0, call_cap=9.0), safewrite.turn(1):
        for target, spent in (("a", 9.0), ("b", 18.0)):
            remote.next(NEVER)
            shell.call(cancel.outcome, target)
            assert spent <= clock.elapsed <= spent + 1.1
        with pytest.raises(BudgetExhausted):
            shell.call(cancel, "c")
    assert len(remote.attempts) == 2


def test_a_run_inside_a_run_has_the_smaller_deadline_and_its_own_identity(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """A sub-agent cannot outlast its parent, and its writes are its own."""
    cancel = tool(read=None)
    with safewrite.run("outer", deadline=4.0), safewrite.turn(1):
        outer = cancel.key("a")
        with safewrite.run("inner", deadline=60.0), safewrite.turn(1):
            assert cancel.key("a") != outer
            remote.next(NEVER)
            shell.call(cancel.outcome, "a")
    assert 4.0 <= clock.elapsed <= 5.1


def test_a_pause_for_a_person_is_charged_to_nobody(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """An approval that takes an hour leaves the task its whole remainder; two pauses end with the second."""
    cancel = tool()
    with safewrite.run("r2", deadline=5.0) as opened, safewrite.turn(1):
        assert opened.deadline is not None
        with opened.deadline.pause():
            clock.advance(3600.0)
            with opened.deadline.pause():
                clock.advance(3600.0)
            clock.advance(3600.0)
        assert opened.deadline.remaining() == pytest.approx(5.0)
        assert shell.call(cancel, "sub_1") == "sub_1 done"
    assert remote.count() == 1


def test_a_pause_inside_the_body_of_a_write_is_an_error(
    shell: Shell, remote: Remote, sw: SafeWrite, clock: ManualClock
) -> None:
    """The dependency's clock stops for nobody: ask before the call."""

    async def cancel(sub_id: str) -> str:
        with Deadline(5.0).pause():
            raise AssertionError("never reached")

    tool = sw.write(target="sub_id")(shell.colours(cancel))
    outcome = shell.call(tool.outcome, "sub_1")
    assert isinstance(outcome.error.__cause__, safewrite.ConfigurationError)


def test_retry_after_beyond_the_deadline_ends_the_matter_at_once(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """A 429 that asks for an hour is told now; one that asks for a second is waited for."""
    cancel = tool()
    remote.next(Step(applies=False, raises=status(429, retry_after="3600")))
    with pytest.raises(BudgetExhausted) as told:
        shell.call(cancel, "a")
    assert told.value.reason == "retry_after_beyond_deadline"
    assert clock.elapsed == 0.0
    remote.next(Step(applies=False, raises=status(429, retry_after="3")))
    assert shell.call(cancel, "b") == "b done"
    assert 3.0 <= clock.elapsed < 4.0


def test_attempts_are_counted_for_each_call_and_waits_come_from_tenacity(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """Three attempts with a strategy's waits between them; a further call has three of its own."""
    cancel = tool(max_attempts=3, wait=wait_fixed(1.5))
    remote.next(*[REFUSE] * 5)
    with pytest.raises(WriteNotSent) as told:
        shell.call(cancel, "sub_1")
    assert (told.value.attempts, len(remote.attempts)) == (3, 3)
    assert 3.0 <= clock.elapsed < 3.1
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts) == ("applied", 6)


def test_a_lease_outlives_its_call_by_the_grace_and_the_margin(open_sw: Any, still: ManualClock) -> None:
    """Another worker may look only once nothing of this call can be under way: neither its body nor its record."""
    sw = open_sw(lease_margin=7.0)

    @sw.write(target="sub_id")
    def cancel(sub_id: str) -> None:
        """Cancel a subscription."""

    job = Guard(sw, cancel.tool).job(CallOptions(deadline=Deadline(9.0)), ("sub_1",), {})
    assert job.facts(job.began).lease == pytest.approx(9.0 + sw.settings.grace + 7.0)


def test_each_wait_is_longer_than_the_one_before_also_between_reads(
    tool: Tools, shell: Shell, remote: Remote, clock: ManualClock
) -> None:
    """The strategy is asked once for each wait, with a number that counts sends and looks together."""
    asked: list[int] = []

    def strategy(state: Any) -> float:
        asked.append(state.attempt_number)
        return float(state.attempt_number)

    async def dark() -> Inconclusive:
        return Inconclusive("dark")

    remote.next(LOSE)
    assert shell.call(tool(read=dark, wait=strategy).outcome, "sub_1").state == "unknown"
    assert asked == [1, 2, 3]
    assert clock.elapsed == pytest.approx(2.0 + 3.0, abs=0.1)


def test_what_others_read_meanwhile_starts_no_wait_over(sw: SafeWrite, run: None) -> None:
    """A call that has looked twice waits as before its third look, also where the newest look is another call's."""

    @sw.write(target="sub_id", wait=wait_incrementing(1.0, 1.0))
    def cancel(sub_id: str) -> None:
        """Cancel a subscription."""

    job = Guard(sw, cancel.tool).job(CallOptions(), ("sub_1",), {})
    job.intent, _ = sw.ledger.ask(
        replace(job.ticket, claim=job.claim), job.facts(job.began), job.began, job.meta
    )
    look = ReadState(job.id, Verdict.INCONCLUSIVE, "", job.began, 1, job.began, 2)
    of_another = replace(look, call="another", count=1)
    for reads in ((look,), (look, of_another)):
        job.intent = replace(job.intent, state=replace(job.intent.state, reads=reads))
        assert job.facts(job.began).backoff == 3.0


def test_each_attempt_is_told_its_own_remainder(
    shell: Shell, remote: Remote, sw: SafeWrite, clock: ManualClock
) -> None:
    """The second one's deadline header is later and its milliseconds are what is left by then."""
    seen: list[dict[str, str]] = []

    async def cancel(sub_id: str, attempt: Attempt) -> str:
        seen.append(attempt.headers)
        return await remote.write(sub_id, attempt)

    tool = sw.write(target="sub_id", dependency=KEYED, wait=wait_fixed(2.0))(shell.colours(cancel))
    remote.next(DROP)
    shell.call(tool.options(deadline=10.0), "sub_1")
    first, second = (int(h["X-Request-Deadline-Ms"]) for h in seen)
    assert (first, second) == (pytest.approx(10_000, abs=10), pytest.approx(8_000, abs=10))
    assert len({h["Idempotency-Key"] for h in seen}) == 1
    assert len({h["X-Attempt-Id"] for h in seen}) == 2


def dark(granted: list[float]) -> Any:
    """Return a read that finds out nothing, and notes what it was given."""

    async def look(attempt: Attempt) -> Inconclusive:
        granted.append(attempt.remaining())
        return Inconclusive("dark")

    return look


def test_a_read_has_the_timeout_of_its_tool(
    tool: Tools, shell: Shell, remote: Remote, clock: ManualClock
) -> None:
    """One that hangs leaves time for another: it does not get all that its call has left."""
    granted: list[float] = []
    remote.next(LOSE)
    assert shell.call(tool(read=dark(granted), timeout=3.0).outcome, "sub_1").state == "unknown"
    assert set(granted) == {3.0}


def test_another_intent_is_looked_at_within_what_the_call_has_left(
    tool: Tools, shell: Shell, remote: Remote, clock: ManualClock
) -> None:
    """The look at an earlier turn's open write is a part of this call: it has no limit of its own."""
    granted: list[float] = []
    cancel = tool(read=dark(granted))
    remote.next(LOSE)
    first = shell.call(cancel.outcome, "sub_1")
    granted.clear()
    with safewrite.turn(2):
        second = shell.call(cancel.options(deadline=4.0).outcome, "sub_1")
    assert second.blocked_by_key == first.key
    assert granted[0] == pytest.approx(4.0)
    assert max(granted) <= 4.0


@pytest.mark.parametrize(("left", "grace"), [(10.0, 2.0), (4.0, 2.0), (3.0, 1.5), (0.1, 0.05), (0.0, 2.0)])
def test_cleaning_up_leaves_time_for_the_read(left: float, grace: float) -> None:
    """A body has its grace, and never more than half of what is left to its call; a call that is over reads nothing."""
    assert grace_within(2.0, left) == grace


# Our own threads -------------------------------------------------------------------------------------------------


def test_an_exhausted_pool_is_a_refusal_before_the_claim(open_sw: Any, clock: ManualClock) -> None:
    """Bodies that hang keep their places: the next call is refused, nothing of it is on record, and later it runs."""
    shell, remote = Shell("plain"), Remote("plain")
    sw = open_sw(settings={"threads": 2})
    cancel = Tools(shell, remote, open_sw)(sw, read=None, timeout=1.0)
    remote.next(LATE, LATE)
    for target in ("a", "b"):
        assert shell.call(cancel.outcome, target).state == "unknown"
    with pytest.raises(WriteNotSent) as told:
        shell.call(cancel, "c")
    assert told.value.reason == "pool_exhausted"
    assert attempts_of(cancel, "c") == 0
    assert len(remote.attempts) == 2
    remote.gate.open()
    assert eventually(lambda: remote.count() == 2)
    outcome = eventually(lambda: (o := shell.call(cancel.outcome, "c")).state == "applied" and o)
    assert outcome.value == "c done"


def attempts_of(tool: Any, target: str) -> int:
    """Count the attempts on record."""
    record = tool.peek(target)
    return 0 if record is None else int(record.attempts)


def test_an_exhausted_pool_beside_an_open_attempt_is_unknown(open_sw: Any, clock: ManualClock) -> None:
    """The refusal of a further attempt is the reason, not the answer."""
    shell, remote = Shell("plain"), Remote("plain")
    sw = open_sw(settings={"threads": 1})
    cancel = Tools(shell, remote, open_sw)(sw, read=None, timeout=1.0, dependency=KEYED, max_attempts=1)
    remote.next(LATE)
    shell.call(cancel.outcome, "a")
    outcome = shell.call(cancel.outcome, "a")
    assert (outcome.state, outcome.reason) == ("unknown", "pool_exhausted")
    remote.gate.open()


def test_fifty_hung_bodies_one_after_another_use_one_place_each_and_give_it_back(
    open_sw: Any, clock: ManualClock
) -> None:
    """Bodies that end after their cancellation leave the pool as it was."""
    shell, remote = Shell("plain"), Remote("plain")
    sw = open_sw(settings={"threads": 2})
    cancel = Tools(shell, remote, open_sw)(sw, read=None, timeout=1.0)
    remote.next(*[NEVER] * 50)
    for n in range(50):
        outcome = eventually(lambda n=n: (o := shell.call(cancel.outcome, f"t{n}")).state == "unknown" and o)
        assert outcome.attempts == 1
    assert eventually(lambda: shell.call(cancel.outcome, "last").state == "applied")


@pytest.mark.parametrize(
    ("timeout", "in_thread", "elsewhere"),
    [(None, None, False), (5.0, None, True), (5.0, False, False), (None, True, True)],
)
def test_a_plain_body_runs_in_a_thread_where_there_is_a_limit_to_keep(
    timeout: float | None, in_thread: bool | None, elsewhere: bool, sw: SafeWrite
) -> None:
    """Without one on the caller's thread; `in_thread` decides otherwise."""
    where: list[threading.Thread] = []

    @sw.write(target="sub_id", timeout=timeout, in_thread=in_thread)
    def cancel(sub_id: str) -> str:
        where.append(threading.current_thread())
        return "done"

    cancel("sub_1")
    assert (where[0] is not threading.current_thread()) is elsewhere


def test_on_the_callers_thread_a_body_that_overruns_is_recorded_as_late(
    sw: SafeWrite, still: ManualClock
) -> None:
    """The call returns when the body does, with its value, and the record says that it came after the deadline."""

    @sw.write(target="sub_id")
    def cancel(sub_id: str) -> str:
        still.advance(60.0)
        return "done"

    outcome = cancel.outcome("sub_1")
    assert (outcome.state, outcome.value) == ("applied", "done")
    assert [a.evidence for a in attempts(sw, outcome)] == ["late_response"]


@pytest.mark.parametrize("strategy", ["raises", "no number", "asks what went wrong", "timedelta"])
def test_a_wait_strategy_costs_no_record_whatever_it_does(
    strategy: str, shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """One that fails is replaced, one that asks for the exception gets it; what was sent is on record."""
    asked: list[BaseException] = []

    def exception(error: BaseException) -> float:
        asked.append(error)
        return 2.0

    made: dict[str, Any] = {
        "raises": lambda state: 1 // 0,
        "no number": lambda state: None,
        "asks what went wrong": wait_exception(exception),
        "timedelta": lambda state: timedelta(seconds=2.0),
    }
    cancel = tool(dependency=KEYED, read=None, wait=made[strategy])
    remote.next(DROP)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts, remote.count()) == ("applied", 2, 1)
    assert shell.call(cancel, "sub_1") == "sub_1 done"
    if strategy in ("asks what went wrong", "timedelta"):
        assert 2.0 <= clock.elapsed < 2.1
    assert [isinstance(e, Exception) for e in asked[:1]] == [True] * (strategy == "asks what went wrong")


def test_a_wait_strategy_that_fails_hides_no_applied_write(shell: Shell, remote: Remote, tool: Tools) -> None:
    """On the quiet path, too: the value comes back and stays."""
    cancel = tool(wait=lambda state: 1 // 0)
    assert shell.call(cancel, "sub_1") == "sub_1 done"
    assert shell.call(cancel.outcome, "sub_1").replayed
    assert remote.count() == 1


def test_a_place_that_was_not_used_gives_its_thread_to_the_next() -> None:
    """Places that are taken and given back over and over start one thread, not one each."""
    before = {thread for thread in threading.enumerate() if thread.name == "safewrite"}
    pool = Pool(1)
    for _ in range(5):
        assert pool.reserve()
        pool.release()
    assert len({t for t in threading.enumerate() if t.name == "safewrite"} - before) == 1
    pool.close()


@pytest.mark.parametrize("kind", [ZeroDivisionError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_work_that_fails_says_that_it_ended_as_any_other(kind: type[BaseException]) -> None:
    """A coroutine that waits for it is woken, its error is told, and its place and thread are there for the next."""
    pool, told = Pool(1), threading.Event()

    def fail() -> None:
        raise kind

    for _ in range(2):
        told.clear()
        assert pool.reserve()
        work = pool.start(fail, told.set)
        assert told.wait(10)
        assert isinstance(work.error, kind)
        assert eventually(lambda: not pool.busy)
    pool.close()


def test_a_thread_sees_the_context_of_whoever_started_its_work_and_of_nobody_before() -> None:
    """A tenant or a trace that is kept in a context variable comes along, also into a thread that is used again."""
    pool = Pool(1)
    for caller in ("the first caller", "the second caller"):
        inside = contextvars.copy_context()
        inside.run(ASKED_BY.set, caller)
        assert pool.reserve()
        work = inside.run(pool.start, ASKED_BY.get)
        assert work.done.wait(WITHIN)
        assert work.value == caller
        assert eventually(lambda: not pool.busy)
    pool.close()
