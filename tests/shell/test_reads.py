"""Reading tools: their tries and second copies, what holds them back, and what is said of what they did not bring."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
from tenacity import wait_fixed

import safewrite
from safewrite import (
    Attempt,
    BreakerOpen,
    ConfigurationError,
    Deadline,
    Dependency,
    DuplicateTool,
    NotFetched,
    Partial,
    ReadFailed,
    SafeWrite,
    WriteNotSent,
)
from safewrite.calls import CallOptions, Guard
from safewrite.context import current_deadline
from safewrite.core import pressure as numbers
from safewrite.shell import pressure
from safewrite.testing import ManualClock
from tests.ledger.faults import in_child
from tests.shell.conftest import KEYED, Shell, eventually
from tests.shell.remote import DROP, HANG, LATE, OK, REFUSE, Remote, Step, fail, reject, status

CRM = Dependency("crm")
ONE = Dependency("crm", max_concurrency=1)
SLOW_DOWN = Step(applies=False, raises=status(429, Retry_After="4"))
BUSY = Step(applies=False, raises=status(503))


class Reads:
    """Makes the reading tool of these tests, in the colour of their shell."""

    def __init__(self, shell: Shell, remote: Remote, sw: SafeWrite) -> None:
        self.shell, self.remote, self.sw = shell, remote, sw

    def __call__(self, dependency: Dependency | None = CRM, **options: Any) -> Any:
        remote = self.remote

        async def get(customer: str, *, attempt: Attempt) -> str:
            """Look a customer up."""
            _ = attempt.headers
            return await remote.write(customer, attempt)

        options.setdefault("name", "get")
        options.setdefault("wait", wait_fixed(0.5))
        return self.sw.read(dependency=dependency, **options)(self.shell.colours(get))

    def fails(self, tool: Any, *args: Any) -> ReadFailed:
        """Call the tool and return the error."""
        with pytest.raises(ReadFailed) as told:
            self.shell.call(tool, *args)
        return told.value

    def warm(self, tool: Any, times: int = numbers.SAMPLES) -> None:
        """Have so many times measured."""
        for _ in range(times):
            self.shell.call(tool, "cus_1")
        self.remote.attempts.clear()


@pytest.fixture
def reads(shell: Shell, remote: Remote, sw: SafeWrite) -> Reads:
    """Makes reading tools."""
    return Reads(shell, remote, sw)


@pytest.fixture
def opened() -> Any:
    """Run "r1", turn 1."""
    with safewrite.run("r1", agent="planner") as run, safewrite.turn(1):
        yield run


# Trying again ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [REFUSE, BUSY, reject(425)], ids=["refused", "503", "425"])
def test_what_certainly_holds_nothing_is_tried_again(
    reads: Reads, remote: Remote, clock: ManualClock, step: Step
) -> None:
    """A refused connection and a dependency that says it is busy, after the waits of the strategy."""
    remote.next(step, step)
    assert reads.shell.call(reads(), "cus_1") == "cus_1 done"
    assert len(remote.attempts) == 3
    assert clock.elapsed == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("code", [429, 503])
def test_an_answer_that_says_busy_is_not_what_was_asked_for(
    code: int, shell: Shell, sw: SafeWrite, clock: ManualClock
) -> None:
    """Also where the body returns it, as clients do that raise for no status: the read is tried again."""
    answers = iter([httpx.Response(code), httpx.Response(200, text="found")])

    async def get(customer: str) -> httpx.Response:
        return next(answers)

    tool = sw.read(wait=wait_fixed(0.5))(shell.colours(get))
    assert shell.call(tool, "cus_1").text == "found"


def test_retry_after_is_waited_for(reads: Reads, remote: Remote, clock: ManualClock) -> None:
    """Four seconds, though the strategy proposes half of one."""
    remote.next(SLOW_DOWN)
    assert reads.shell.call(reads(), "cus_1") == "cus_1 done"
    assert clock.elapsed == pytest.approx(4.0, abs=0.01)


def test_retry_after_beyond_the_deadline_ends_the_matter_at_once(
    reads: Reads, remote: Remote, clock: ManualClock
) -> None:
    """Nobody waits for what cannot come in time."""
    remote.next(SLOW_DOWN)
    with safewrite.run("r1", deadline=4.0):
        error = reads.fails(reads(), "cus_1")
    assert (error.reason, len(remote.attempts)) == ("retry_after_beyond_deadline", 1)
    assert clock.elapsed < 0.1


@pytest.mark.parametrize("step", [DROP, HANG, fail(ConnectionResetError(104, "reset"))])
def test_a_read_without_an_answer_is_not_tried_again(
    reads: Reads, remote: Remote, clock: ManualClock, step: Step
) -> None:
    """The first copy may still hold the dependency."""
    remote.next(step)
    error = reads.fails(reads(timeout=2.0), "cus_1")
    assert error.reason in ("read_timeout", "timeout", "connection_reset")
    assert len(remote.attempts) == 1


@pytest.mark.parametrize(
    ("dependency", "waited"),
    [
        (Dependency("crm", work_bound=3.0), 3.0),
        (Dependency("crm", honours_deadline=True, clock_skew=0.5), 2.5),
    ],
    ids=["work bound", "honoured deadline"],
)
def test_a_read_without_an_answer_is_tried_again_once_it_is_over(
    reads: Reads, remote: Remote, clock: ManualClock, dependency: Dependency, waited: float
) -> None:
    """After the declared bound, or after the deadline that it was told."""
    remote.next(DROP)
    assert reads.shell.call(reads(dependency, timeout=2.0), "cus_1") == "cus_1 done"
    assert clock.elapsed == pytest.approx(waited, abs=0.01)


@pytest.mark.parametrize("step", [reject(404), reject(500), fail(ValueError("bad"))])
def test_an_answer_or_a_fault_of_ones_own_is_final(
    reads: Reads, remote: Remote, clock: ManualClock, step: Step
) -> None:
    """Its error is the cause."""
    remote.next(step)
    error = reads.fails(reads(), "cus_1")
    assert len(remote.attempts) == 1
    assert step.raises is not None
    assert type(error.__cause__) is type(step.raises())


def test_tries_are_counted(reads: Reads, remote: Remote, clock: ManualClock) -> None:
    """Two, where two are allowed."""
    remote.next(REFUSE, REFUSE)
    assert reads.fails(reads(max_attempts=2), "cus_1").reason == "connect_failed"
    assert len(remote.attempts) == 2


def test_inside_an_attempt_it_is_tried_once(
    reads: Reads, remote: Remote, shell: Shell, sw: SafeWrite, clock: ManualClock, run: None
) -> None:
    """One layer owns the retries: three tries of the write would make nine of the read."""
    get, tries = reads(), []

    @sw.write(target="name", not_applied_on=(ReadFailed,))
    @shell.colours
    async def rename(name: str) -> str:
        tries.append(1)
        found = get("cus_1")
        return str(found if shell.plain else await found)

    remote.next(REFUSE, REFUSE, REFUSE)
    with pytest.raises(safewrite.WriteRejected):
        shell.call(rename, "a")
    assert (len(remote.attempts), len(tries)) == (1, 1)


def test_of_two_that_come_at_once_one_gets_the_last_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is room and taking it are one step: nobody else looks in between."""
    state, looking, occupied = pressure.pressure_of("crm"), threading.Barrier(2), numbers.occupied

    def slowly(places: Any, now: float) -> dict[str, float]:
        with suppress(threading.BrokenBarrierError):
            looking.wait(0.2)  # both get here together only if nothing keeps them apart
        return occupied(places, now)

    monkeypatch.setattr(numbers, "occupied", slowly)
    with ThreadPoolExecutor(2) as threads:
        told = list(threads.map(lambda _: state.enter(1, further=False), range(2)))
    assert sorted(one if isinstance(one, str) else "a seat" for one in told) == ["a seat", "limiter_full"]


def test_inside_a_write_of_the_same_dependency_it_needs_no_place_of_its_own(
    reads: Reads, remote: Remote, shell: Shell, sw: SafeWrite, clock: ManualClock, run: None
) -> None:
    """With room for one call at a time, the body of a write can still look before it sends; a third cannot."""
    get, other = reads(ONE), reads(Dependency("other", max_concurrency=1), name="other")

    @sw.write(target="name", dependency=ONE)
    @shell.colours
    async def rename(name: str) -> str:
        found = get("cus_1")
        return str(found if shell.plain else await found)

    assert shell.call(rename, "a") == "cus_1 done"
    assert isinstance(pressure.pressure_of("other").enter(1, further=False), pressure.Seat)

    @sw.write(target="name", dependency=ONE, not_applied_on=(ReadFailed,), name="elsewhere")
    @shell.colours
    async def elsewhere(name: str) -> str:
        found = other("cus_1")
        return str(found if shell.plain else await found)

    with pytest.raises(safewrite.WriteRejected) as told:
        shell.call(elsewhere, "a")
    assert isinstance(told.value.__cause__, ReadFailed)
    assert told.value.__cause__.reason == "limiter_full"


def test_the_probe_of_a_breaker_may_look_before_it_sends(
    reads: Reads, shell: Shell, sw: SafeWrite, still: ManualClock, run: None
) -> None:
    """A write that was let through has leave for the read in it, too: else it could never close the breaker."""
    get, state = reads(), pressure.pressure_of("crm")
    state._breaker = numbers.Breaker(1, open_until=still.now().ticks - 1.0)

    @sw.write(target="name", dependency=CRM)
    @shell.colours
    async def rename(name: str) -> str:
        found = get("cus_1")
        return str(found if shell.plain else await found)

    assert shell.call(rename, "a") == "cus_1 done"
    assert state._breaker.open_until is None


def test_what_is_read_in_a_read_that_settles_a_write_passes_the_breaker_too(
    reads: Reads, remote: Remote, shell: Shell, sw: SafeWrite, clock: ManualClock, run: None
) -> None:
    """The look of a write is a read of one dependency, which looks in another one."""
    get, state = reads(), pressure.pressure_of("crm")

    @sw.read(name="outer")
    @shell.colours
    async def outer() -> str:
        found = get("cus_1")
        return str(found if shell.plain else await found)

    @sw.write(target="name", max_attempts=1)
    @shell.colours
    async def rename(name: str) -> str:
        state._breaker = numbers.Breaker(1, open_until=float("inf"))
        raise TimeoutError

    @rename.reconcile
    @shell.colours
    async def look() -> safewrite.Applied[str]:
        found = outer()
        return safewrite.Applied(str(found if shell.plain else await found))

    assert shell.call(rename, "a") == "cus_1 done"


# The retry budget --------------------------------------------------------------------------------------------


def test_under_a_total_outage_at_most_a_tenth_is_sent_beyond_the_requests(
    reads: Reads, remote: Remote, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred reads, each of which wants two retries: a tenth more and the floor; the breaker is kept out of it."""
    monkeypatch.setattr(numbers, "CALLS", 10**9)
    get = reads(wait=wait_fixed(0.001), max_attempts=3)
    remote.next(*[REFUSE] * 1000)
    reasons = [reads.fails(get, "cus_1").reason for _ in range(200)]
    assert 220 <= len(remote.attempts) <= 220 + numbers.FLOOR
    assert reasons[-1] == "retry_budget_spent"


def test_with_the_breaker_a_total_outage_is_left_alone(
    reads: Reads, remote: Remote, clock: ManualClock
) -> None:
    """Two hundred reads send what it takes to see the outage, then one probe whenever it is time."""
    get = reads(wait=wait_fixed(0.001))
    remote.next(*[REFUSE] * 1000)
    for _ in range(200):
        reads.fails(get, "cus_1")
    assert len(remote.attempts) == numbers.CALLS


def test_the_budget_guards_writes(
    reads: Reads, remote: Remote, shell: Shell, sw: SafeWrite, clock: ManualClock, run: None
) -> None:
    """Once it is spent, a write that was refused is not sent again, and says why."""

    @sw.write(target="sub_id", dependency=KEYED, wait=wait_fixed(0.001))
    @shell.colours
    async def cancel(sub_id: str, attempt: Attempt) -> str:
        return await remote.write(sub_id, attempt)

    remote.next(*[REFUSE] * 9)
    outcomes = [shell.call(cancel.outcome, f"sub_{n}") for n in range(4)]
    assert [o.attempts for o in outcomes] == [3, 3, 2, 1]
    assert (outcomes[-1].state, outcomes[-1].reason) == ("not_applied", "retry_budget_spent")


def test_the_first_send_of_a_call_is_no_further_one_whatever_was_sent_before(
    reads: Reads, remote: Remote, shell: Shell, sw: SafeWrite, clock: ManualClock, run: None
) -> None:
    """An earlier call's attempt is on record: this call sends the second one, and needs nothing from the budget."""

    @sw.write(target="sub_id", dependency=KEYED, max_attempts=1)
    @shell.colours
    async def cancel(sub_id: str, attempt: Attempt) -> str:
        return await remote.write(sub_id, attempt)

    remote.next(DROP)
    assert shell.call(cancel.outcome, "sub_1").state == "unknown"
    pressure.pressure_of(KEYED.name)._budget = numbers.Budget(0.0, clock.elapsed)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts) == ("applied", 2)


def test_refusals_of_our_own_count_neither_for_the_breaker_nor_against_the_budget(
    shell: Shell, sw: SafeWrite, clock: ManualClock, run: None
) -> None:
    """A body that has no time for a leg sends nothing, however often."""
    legs: list[int] = []

    @sw.write(target="sub_id", dependency=CRM, wait=wait_fixed(0.0))
    @shell.colours
    async def cancel(sub_id: str) -> None:
        legs.append(1)
        Deadline(0.5).leg("call")

    for n in range(20):
        assert shell.call(cancel.outcome, f"sub_{n}").reason == "leg_not_sent"
    assert len(legs) == 60
    state = pressure.pressure_of("crm")
    assert state._breaker == numbers.Breaker()
    assert state._budget.tokens == numbers.FLOOR
    with safewrite.run("r2", deadline=0.5, minimum=0.6), safewrite.turn(1):
        for n in range(20):
            assert shell.call(cancel.outcome, f"sub_{n}").reason == "budget_exhausted"
    assert state._breaker == numbers.Breaker()


# The breaker -------------------------------------------------------------------------------------------------


def trip(name: str = "crm") -> pressure.Pressure:
    """Have a dependency fail often enough."""
    state = pressure.pressure_of(name)
    while isinstance(seat := state.enter(None, further=False), pressure.Seat):
        seat.ended(False)
    return state


def test_an_open_breaker_refuses_reads_at_once(reads: Reads, remote: Remote, clock: ManualClock) -> None:
    """Nothing is sent, nothing waited for."""
    get = reads()
    trip()
    error = reads.fails(get, "cus_1")
    assert (error.reason, error.about and error.about.sent) == ("breaker_open", False)
    assert (remote.attempts, clock.elapsed) == ([], 0.0)


def test_an_open_breaker_is_not_sent_for_a_write(
    shell: Shell, remote: Remote, sw: SafeWrite, clock: ManualClock, run: None
) -> None:
    """`BreakerOpen`, recorded as refused; later the same call is sent."""

    @sw.write(target="sub_id", dependency=CRM)
    @shell.colours
    async def cancel(sub_id: str) -> str:
        return await remote.write(sub_id)

    trip()
    with pytest.raises(BreakerOpen):
        shell.call(cancel, "sub_1")
    assert remote.attempts == []
    assert [one.reason for one in sw.audit.refused()] == ["breaker_open"]
    clock.advance(numbers.SPARED_FIRST)
    assert shell.call(cancel, "sub_1") == "sub_1 done"


def test_reconciling_reads_are_not_starved_by_an_open_breaker(
    reads: Reads, shell: Shell, remote: Remote, sw: SafeWrite, clock: ManualClock, run: None
) -> None:
    """A timed-out write is looked at by a reading tool of the same dependency, full and spared as that is."""
    crowded = Dependency("crm", work_bound=0.0, read_lag=0.0, max_concurrency=1)
    get = reads(crowded)

    @sw.write(target="sub_id", dependency=crowded, timeout=2.0)
    @shell.colours
    async def cancel(sub_id: str) -> str:
        trip()
        raise TimeoutError

    @cancel.reconcile
    @shell.colours
    async def _(sub_id: str) -> safewrite.GoalMet[str]:
        assert pressure.pressure_of("crm").enter(None, further=False) == "breaker_open"
        found = get("cus_1")
        return safewrite.GoalMet(str(found if shell.plain else await found))

    assert shell.call(cancel, "sub_1") == "cus_1 done"


def test_one_probe_at_a_time(reads: Reads, remote: Remote, still: ManualClock) -> None:
    """When it is time, one call asks; the others are refused until it has answered."""
    get = reads(timeout=5.0)
    trip()
    still.advance(numbers.SPARED_FIRST)
    remote.next(LATE)
    probe = reads.shell.start(get, "cus_1")
    assert eventually(lambda: remote.attempts)
    assert [reads.fails(get, "cus_1").reason for _ in range(5)] == ["breaker_open"] * 5
    assert len(remote.attempts) == 1
    remote.gate.open()
    assert probe.result(10) == "cus_1 done"
    assert reads.shell.call(get, "cus_1") == "cus_1 done"


def test_a_retry_that_was_never_sent_costs_the_budget_nothing(still: ManualClock) -> None:
    """Nor does a first request that was not sent pay anything in."""
    crm = pressure.pressure_of("crm")
    for further in [True] * 20 + [False] * 200:
        seat = crm.enter(None, further=further)
        assert isinstance(seat, pressure.Seat)
        seat.unsent()
    paid = [crm.enter(None, further=True) for _ in range(20)]
    assert paid.count("retry_budget_spent") == 20 - numbers.FLOOR


# The limit ---------------------------------------------------------------------------------------------------


def test_a_full_limiter_is_not_sent(
    reads: Reads, shell: Shell, remote: Remote, sw: SafeWrite, clock: ManualClock, run: None
) -> None:
    """A read asks again after its waits; a write is refused, and recorded as that."""

    @sw.write(target="sub_id", dependency=ONE)
    @shell.colours
    async def cancel(sub_id: str) -> str:
        return await remote.write(sub_id)

    seat = pressure.pressure_of("crm").enter(1, further=False)
    assert isinstance(seat, pressure.Seat)
    assert reads.fails(reads(ONE), "cus_1").reason == "limiter_full"
    assert clock.elapsed == pytest.approx(1.0)
    with pytest.raises(WriteNotSent, match="limiter_full"):
        shell.call(cancel, "sub_1")
    assert remote.attempts == []
    assert [one.reason for one in sw.audit.refused()] == ["limiter_full"]
    seat.ended(True)
    assert shell.call(cancel, "sub_1") == "sub_1 done"


def places(name: str = "crm") -> int:
    """Return how many places are taken now."""
    state = pressure.pressure_of(name)
    return len(numbers.occupied(state._places, safewrite.shell.clock.clock().now().ticks))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("dependency", "kept"),
    [
        (ONE, None),
        (Dependency("crm", max_concurrency=1, work_bound=30.0), 30.0),
        (Dependency("crm", max_concurrency=1, honours_deadline=True, clock_skew=0.5), 0.5),
    ],
    ids=["until it ends", "its bound", "its honoured deadline"],
)
def test_an_abandoned_call_keeps_its_place(
    reads: Reads, remote: Remote, still: ManualClock, dependency: Dependency, kept: float | None
) -> None:
    """Until it ends, its work bound passes, or its honoured deadline is over; the caller is long gone."""
    get = reads(dependency, timeout=2.0, max_attempts=1)
    remote.next(LATE)
    call = reads.shell.start(get, "cus_1")
    assert eventually(lambda: remote.arrived.event.is_set())
    still.advance(2.0)
    if not reads.shell.plain:
        assert eventually(lambda: [w for w in still._waiters if w.until > 2.0]), "it is left to clean up"
        still.advance(2.0)
    with pytest.raises(ReadFailed):
        call.result(10)
    assert places() == (1 if reads.shell.plain or kept != 0.5 else 0)
    if kept is not None:
        still.advance(kept)
    else:
        still.advance(1000.0)
        assert places() == 1
        remote.gate.open()
        assert eventually(lambda: places() == 0)
    assert places() == 0
    assert reads.shell.call(get, "cus_1") == "cus_1 done"


@pytest.mark.parametrize("limit", ["timeout", "idle"])
def test_a_write_that_is_given_up_speaks_against_its_dependency(
    reads: Reads, shell: Shell, remote: Remote, sw: SafeWrite, clock: ManualClock, run: None, limit: str
) -> None:
    """Whichever of its limits ran out: no answer came in the time that it had."""
    options: dict[str, Any] = {limit: 1.0}

    @sw.write(target="sub_id", dependency=CRM, max_attempts=1, **options)
    @shell.colours
    async def cancel(sub_id: str, attempt: Attempt) -> str:
        return await remote.write(sub_id, attempt)

    remote.next(LATE)
    assert shell.call(cancel.outcome, "sub_1").reason in ("timeout", "no_reconcile")
    assert [ended[1:] for ended in pressure.pressure_of("crm")._breaker.recent] == [(1, 1)]


def test_a_place_that_ran_out_is_not_taken_again_by_a_late_end(still: ManualClock) -> None:
    """The end of a call that was given up long since says nothing of how long somebody else's place is taken."""
    state = pressure.pressure_of("crm")
    seat = state.enter(None, further=False)
    assert isinstance(seat, pressure.Seat)
    seat.gave_up(until=5.0)
    assert places() == 1
    still.advance(6.0)
    other = state.enter(1, further=False)
    assert isinstance(other, pressure.Seat)
    other.ended(True)
    seat.ended(False, until=20.0)
    assert places() == 0


def test_a_call_is_counted_once_though_it_ends_after_it_was_given_up(still: ManualClock) -> None:
    """Its caller's patience has spoken against the dependency; what comes late says nothing again."""
    state = pressure.pressure_of("crm")
    seat = state.enter(None, further=False)
    assert isinstance(seat, pressure.Seat)
    seat.gave_up(until=5.0)
    seat.ended(False)
    assert [ended[1:] for ended in state._breaker.recent] == [(1, 1)]


# The second copy ---------------------------------------------------------------------------------------------


def test_a_slow_idempotent_read_is_sent_twice_and_the_first_answer_counts(
    reads: Reads, remote: Remote, clock: ManualClock, opened: Any, sw: SafeWrite
) -> None:
    """The loser is told to stop, recorded, and never returned; nothing was missed."""
    get = reads(idempotent=True, timeout=5.0)
    reads.warm(get)
    remote.next(HANG)
    assert reads.shell.call(get, "cus_1") == "cus_1 done"
    assert [number for number, _, _ in remote.attempts] == [1, 2]
    assert opened.not_fetched == sw.audit.not_fetched() == ()
    (row,) = [r for r in sw.ledger.select(audit_rows()) if r["event"] == "missed"]
    assert row["reason"] == "hedge_lost"
    assert eventually(lambda: places() == 0)


def test_the_winner_does_not_wait_for_the_loser(
    reads: Reads, remote: Remote, still: ManualClock, opened: Any
) -> None:
    """A copy that takes no notice of its cancellation holds up nobody; its place is free once it ends."""
    get = reads(idempotent=True, timeout=5.0)
    state = pressure.pressure_of("crm")
    for _ in range(numbers.SAMPLES):
        state.took("get", 1.0)
    remote.next(LATE)
    call = reads.shell.start(get, "cus_1")
    assert eventually(lambda: remote.arrived.event.is_set())
    still.advance(1.0)
    assert call.result(10) == "cus_1 done"
    assert (still.elapsed, places()) == (1.0, 1)
    remote.gate.open()
    assert eventually(lambda: places() == 0)


def audit_rows() -> Any:
    """Return the query for all rows."""
    from sqlalchemy import select

    from safewrite.ledger.tables import audit

    return select(audit)


def test_without_enough_samples_or_time_there_is_no_second_copy(
    reads: Reads, remote: Remote, clock: ManualClock
) -> None:
    """Nineteen times measured are too few; and the deadline must hold the wait and the copy."""
    get = reads(idempotent=True, timeout=5.0)
    reads.warm(get, numbers.SAMPLES - 1)
    remote.next(HANG)
    reads.fails(get, "cus_1")
    assert len(remote.attempts) == 1
    state = pressure.pressure_of("crm")
    for _ in range(numbers.SAMPLES):
        state.took("get", 3.0)
    remote.attempts.clear()
    remote.next(HANG)
    reads.fails(get, "cus_1")
    assert len(remote.attempts) == 1


@pytest.mark.parametrize("hindrance", ["not idempotent", "breaker", "budget", "limit"])
def test_a_second_copy_is_sent_only_where_nothing_is_amiss(
    reads: Reads, remote: Remote, clock: ManualClock, hindrance: str
) -> None:
    """Not for reads that are not declared so, nor past budget and limit, nor to a dependency that is probed."""
    get = reads(ONE if hindrance == "limit" else CRM, idempotent=hindrance != "not idempotent", timeout=5.0)
    reads.warm(get)
    state = pressure.pressure_of("crm")
    if hindrance == "breaker":
        trip()
        clock.advance(numbers.SPARED_FIRST)
    if hindrance == "budget":
        state._budget = numbers.Budget(0.0, clock.elapsed)
    remote.next(HANG)
    reads.fails(get, "cus_1")
    assert len(remote.attempts) == 1
    assert eventually(lambda: not reads.sw.pool.busy), "the thread for the copy was given back"


@pytest.mark.parametrize("left", [1.0, 0.0, -100.0])
def test_a_second_copy_is_never_the_probe_of_a_dependency_that_was_spared(
    still: ManualClock, left: float
) -> None:
    """The first copy began before the breaker opened: however long ago that was, the second is no way to ask."""
    state = pressure.pressure_of("crm")
    state._breaker = numbers.Breaker(1, open_until=still.now().ticks + left)
    assert state.hedge(None) is None
    assert places() == 0


def test_what_failed_tells_nothing_of_how_long_a_read_takes(
    reads: Reads, remote: Remote, clock: ManualClock
) -> None:
    """Refusals come quickly: a second copy is not sent for being slower than they are."""
    get = reads(idempotent=True, timeout=5.0, max_attempts=1)
    for _ in range(numbers.SAMPLES):
        remote.next(reject(404))
        reads.fails(get, "cus_1")
    remote.attempts.clear()
    remote.next(HANG)
    reads.fails(get, "cus_1")
    assert len(remote.attempts) == 1


def test_a_second_copy_has_what_is_left_to_the_first(
    reads: Reads, remote: Remote, clock: ManualClock
) -> None:
    """It is told the same end: its timeout and its headers grant it no more."""
    ends: list[float] = []

    @reads.sw.read(dependency=CRM, name="get", idempotent=True, timeout=5.0, max_attempts=1)
    @reads.shell.colours
    async def get(customer: str, *, attempt: Attempt) -> str:
        ends.append(clock.elapsed + attempt.remaining())
        return await remote.write(customer, attempt)

    for _ in range(numbers.SAMPLES):
        pressure.pressure_of("crm").took("get", 1.0)
    remote.next(HANG)
    assert reads.shell.call(get, "cus_1") == "cus_1 done"
    assert ends == [pytest.approx(5.0), pytest.approx(5.0)]


def test_where_both_copies_fail_the_read_fails(reads: Reads, remote: Remote, clock: ManualClock) -> None:
    """An early failure of one does not end the other; without any answer it is not tried again."""
    get = reads(idempotent=True, timeout=5.0)
    reads.warm(get)
    remote.next(HANG, reject(500))
    error = reads.fails(get, "cus_1")
    assert (error.reason in ("timeout", "read_timeout"), len(remote.attempts)) == (True, 2)


def test_no_write_is_ever_hedged(
    reads: Reads, shell: Shell, remote: Remote, sw: SafeWrite, run: None
) -> None:
    """Not by declaration, not around one, and not inside the body of a read."""
    with pytest.raises(TypeError, match="idempotent"):
        sw.write(target="sub_id", idempotent=True)  # type: ignore[call-arg]

    @sw.write(target="sub_id", dependency=CRM)
    @shell.colours
    async def cancel(sub_id: str) -> str:
        return await remote.write(sub_id)

    with pytest.raises(ConfigurationError, match="guarded already"):
        sw.read(idempotent=True)(cancel)

    @sw.read(idempotent=True)
    @shell.colours
    async def look(sub_id: str) -> Any:
        found = cancel(sub_id)
        return found if shell.plain else await found

    with pytest.raises(ConfigurationError, match="a write inside the body of a reading tool"):
        shell.call(look, "sub_1")
    assert remote.attempts == []
    assert cancel.peek("sub_1") is None


# What was not fetched ----------------------------------------------------------------------------------------


def test_the_run_lists_what_was_not_fetched(
    reads: Reads, remote: Remote, clock: ManualClock, opened: Any, sw: SafeWrite
) -> None:
    """Tool, target and reason, as data, as text for a model, and in the audit, wherever that is read."""
    get = reads()
    remote.next(reject(404), OK, DROP)
    first_error = reads.fails(get, "cus_1")
    assert reads.shell.call(get, "cus_2") == "cus_2 done"
    errors = (first_error, reads.fails(get, "cus_3"))
    assert opened.not_fetched == tuple(error.about for error in errors)
    assert opened.for_model() == "\n".join(error.for_model() for error in errors)
    assert opened.not_fetched == (
        NotFetched("get", '{"customer":"cus_1"}', "http_404", sent=True),
        NotFetched("get", '{"customer":"cus_3"}', "read_timeout", sent=True),
    )
    assert '`get` for {"customer":"cus_3"} fetched nothing (`read_timeout`)' in opened.for_model()
    assert "Do not take it for empty" in opened.for_model()
    second, first = sw.audit.not_fetched(run="r1")
    assert [(one.tool, one.target, one.reason) for one in (first, second)] == [
        ("get", '{"customer":"cus_1"}', "http_404"),
        ("get", '{"customer":"cus_3"}', "read_timeout"),
    ]
    (counted,) = sw.audit.runs()
    assert (counted.intents, counted.not_fetched, counted.not_applied) == (0, 2, 0)
    assert sw.audit.run("r1") == ()
    record = sw.audit.intent(first.key)
    assert record is not None
    assert record.summary.startswith("A read brought nothing, after 1 request (`http_404`).")
    assert sw.ledger.verify(record.id) == ()
    assert record.rows[0].agent == "planner"


def test_a_read_that_is_refused_has_a_row(reads: Reads, clock: ManualClock, sw: SafeWrite) -> None:
    """With too little left of the deadline nothing is sent, and the message says which number ran out."""
    with safewrite.run("r1", deadline=0.5, minimum=0.6) as run:
        error = reads.fails(reads(), "cus_1")
    assert "`deadline` = 0.5 s" in str(error)
    assert run.not_fetched == (NotFetched("get", '{"customer":"cus_1"}', "budget_exhausted"),)
    assert [one.reason for one in sw.audit.not_fetched()] == ["budget_exhausted"]


def listing(
    reads: Reads, pages: int, cut: Callable[[Attempt, int], Any], **options: Any
) -> Callable[[], Any]:
    """Return a tool that reads pages, until `cut` ends it."""

    async def invoices(customer: str, attempt: Attempt) -> Any:
        found = []
        for page in range(1, pages + 1):
            if cut(attempt, page) is not None:
                return Partial(found, f"page {page - 1}")
            found.append(page)
            attempt.progress(f"page {page}")
        return found

    tool = reads.sw.read(name="invoices", dependency=CRM, **options)(reads.shell.colours(invoices))
    return lambda: reads.shell.call(tool, "cus_1"), tool  # type: ignore[return-value]


def test_a_listing_that_returns_a_part_says_which_page_it_reached(
    reads: Reads, clock: ManualClock, opened: Any, sw: SafeWrite
) -> None:
    """Its caller gets the part as what it is, the run and the audit say how far it came."""
    call, _ = listing(reads, 9, lambda _, page: True if page == 4 else None)  # type: ignore[misc]
    assert call() == Partial([1, 2, 3], "page 3")
    (missed,) = opened.not_fetched
    assert (missed.reason, missed.reached, missed.part) == ("budget_exhausted", "page 3", True)
    assert "fetched only a part: it reached page 3" in opened.for_model()
    assert "It had reached page 3." in sw.audit.not_fetched()[0].happened


def test_a_listing_cut_by_its_budget_says_which_page_it_reached(
    reads: Reads, clock: ManualClock, opened: Any
) -> None:
    """By the leg that was refused, or by the progress it reported when its time was over."""
    legs = Deadline(20.0)

    def spend(_: Attempt, page: int) -> None:
        legs.leg(f"page {page}")
        clock.advance(6.0)

    call, _ = listing(reads, 9, spend, max_attempts=1)  # type: ignore[misc]
    with pytest.raises(ReadFailed) as told:
        call()
    assert told.value.about is not None
    assert (told.value.reason, told.value.about.reached) == ("leg_not_sent", "page 4")


def test_a_listing_cut_by_its_timeout_says_which_page_it_reached(
    reads: Reads, remote: Remote, clock: ManualClock, opened: Any
) -> None:
    """What it reported last."""

    async def invoices(attempt: Attempt) -> None:
        attempt.progress("page 7")
        await remote.write("x", attempt)

    tool = reads.sw.read(name="invoices", dependency=CRM, timeout=2.0)(reads.shell.colours(invoices))
    remote.next(HANG)
    assert reads.fails(tool).about == NotFetched("invoices", "{}", "timeout", "page 7", sent=True)


def test_for_agent_frameworks_it_is_a_result(reads: Reads, remote: Remote, clock: ManualClock) -> None:
    """A report where not all was fetched, the value where it was; its hint says both."""
    get = reads().as_tool()
    remote.next(reject(404))
    report = reads.shell.call(get, "cus_1")
    assert isinstance(report, NotFetched)
    assert (report.tool, report.reason, report.value) == ("get", "http_404", None)
    assert str(report) == report.for_model()
    assert "fetched nothing" in str(report)
    assert reads.shell.call(get, "cus_1") == "cus_1 done"
    assert get.__annotations__["return"] == str | NotFetched
    assert "attempt" not in get.__signature__.parameters
    _, tool = listing(reads, 9, lambda _, page: True if page == 3 else None)  # type: ignore[misc]
    part = reads.shell.call(tool.as_tool(), "cus_1")
    assert (part.value, part.reached, part.part) == ([1, 2], "page 2", True)


def test_secrets_are_not_in_the_row(reads: Reads, sw: SafeWrite, clock: ManualClock) -> None:
    """Neither in the target nor in the text of the error."""

    async def who(token: str, customer: str) -> str:
        raise ValueError(f"bad token {token} of {customer}")

    tool = sw.read(name="who", redact=("token",))(reads.shell.colours(who))
    error = reads.fails(tool, "hunter2hunter2", "cus_1")
    assert error.about is not None
    assert error.about.target == '{"customer":"cus_1"}'
    record = sw.audit.intent(sw.audit.not_fetched()[0].key)
    assert record is not None
    assert "hunter2" not in str(record)
    assert "of cus_1" in str(record)


def test_a_read_begins_with_its_arguments_as_they_were_given(
    reads: Reads, sw: SafeWrite, remote: Remote, clock: ManualClock
) -> None:
    """Also the second time, and what the body took out of them is in no row."""
    seen: list[str] = []

    async def who(customer: str, login: dict[str, str]) -> str:
        seen.append(login.pop("password"))
        busy = status(503)()
        busy.add_note(f"of {seen[-1]}")
        raise busy

    tool = sw.read(name="who", redact=("login",), max_attempts=2)(reads.shell.colours(who))
    reads.fails(tool, "cus_1", {"password": "blueberry"})
    assert seen == ["blueberry"] * 2
    assert "blueberry" not in str(sw.audit.intent(sw.audit.not_fetched()[0].key))


def test_a_ledger_that_fails_does_not_hide_what_was_read(
    reads: Reads, sw: SafeWrite, remote: Remote, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Reads need no ledger: what they brought, or not, is told, and the row that is missing is logged."""
    get = reads()
    sw.ledger.close()
    remote.next(OK, reject(404))
    assert reads.shell.call(get, "cus_1") == "cus_1 done"
    assert reads.fails(get, "cus_1").reason == "http_404"
    assert "could not record that `get` missed something" in caplog.text


def test_a_cancelled_read_is_noted(reads: Reads, remote: Remote, still: ManualClock, sw: SafeWrite) -> None:
    """Its caller is told nothing, so the row is all there is; its copy is cancelled and its place freed."""
    if reads.shell.plain:
        pytest.skip("a thread cannot be cancelled")
    get = reads(ONE, timeout=5.0)
    remote.next(HANG)

    async def cancelled() -> None:
        task = asyncio.get_running_loop().create_task(get("cus_1"))
        await remote.arrived.future()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    reads.shell.call(cancelled)
    assert [one.reason for one in sw.audit.not_fetched()] == ["cancelled"]
    assert places() == 0


def test_an_interrupted_read_is_noted(reads: Reads, sw: SafeWrite) -> None:
    """Ctrl-C in a body on the caller's thread goes through, after its row stands."""
    if not reads.shell.plain:
        pytest.skip("a coroutine is cancelled")

    @sw.read(name="look", dependency=ONE)
    def look() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        look()
    assert [one.reason for one in sw.audit.not_fetched()] == ["interrupted"]
    assert places() == 0


# Declaring ---------------------------------------------------------------------------------------------------


def test_it_looks_like_its_function(reads: Reads) -> None:
    """Name, docstring and hints stay; the attempt is out of the signature."""
    get = reads()
    assert (get.__name__, get.__doc__) == ("get", "Look a customer up.")
    assert list(get.__signature__.parameters) == ["customer"]
    assert asyncio.iscoroutinefunction(get) is not reads.shell.plain
    assert callable(get.fn)


def test_an_attempt_of_a_read_has_a_deadline_and_no_key(reads: Reads, clock: ManualClock) -> None:
    """Its headers carry what is left; and what is called inside runs under it."""
    seen: list[Any] = []

    async def get(attempt: Attempt) -> None:
        seen.extend((attempt.headers, attempt.number, current_deadline()))

    reads.shell.call(reads.sw.read(name="get", timeout=3.0)(reads.shell.colours(get)))
    headers, number, deadline = seen
    assert set(headers) == {"X-Attempt-Id", "X-Request-Deadline-Ms", "X-Request-Deadline-At"}
    assert (headers["X-Request-Deadline-Ms"], number) == ("3000", 1)
    assert deadline.total == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"idempotent": 1}, "`idempotent`"),
        ({"max_attempts": 0}, "`max_attempts`"),
        ({"target": "missing"}, "`target` names `missing`"),
        ({"dependency": "crm"}, "`dependency`"),
    ],
)
def test_a_declaration_that_cannot_be_used_is_refused(
    sw: SafeWrite, options: dict[str, Any], message: str
) -> None:
    """When it is made, not when it is called."""
    with pytest.raises(ConfigurationError, match=message):
        sw.read(**options)(lambda customer: customer)


def test_a_name_is_one_tool(sw: SafeWrite) -> None:
    """A read and a write cannot share it."""
    sw.write(name="get", target="a")(_one)
    with pytest.raises(DuplicateTool, match=r"@sw\.read\(name=\.\.\.\)"):
        sw.read(name="get")(_other)


def _one(a: str) -> str:
    return a


def _other(a: str) -> str:
    return a


def test_tools_without_a_dependency_do_not_share_its_state(
    reads: Reads, remote: Remote, clock: ManualClock
) -> None:
    """Nothing is known of what they have in common."""
    first, second = reads(None, name="first"), reads(None, name="second")
    remote.next(*[REFUSE] * 40)
    for _ in range(numbers.CALLS):
        reads.fails(first, "cus_1")
    assert reads.fails(first, "cus_1").reason == "breaker_open"
    assert reads.fails(second, "cus_1").reason == "connect_failed"


def test_a_full_pool_refuses_reads(
    reads: Reads, open_sw: Callable[..., SafeWrite], clock: ManualClock
) -> None:
    """Nothing is queued; a second copy is left out."""
    if not reads.shell.plain:
        pytest.skip("coroutines need no thread")
    sw = open_sw(settings={"threads": 1})
    gate, started = threading.Event(), threading.Event()

    @sw.read(dependency=CRM, timeout=50.0, idempotent=True)
    def get(customer: str) -> str:
        started.set()
        gate.wait(10)
        return customer

    for _ in range(numbers.SAMPLES):
        pressure.pressure_of("crm").took(get.reading_tool.name, 1.0)  # type: ignore[attr-defined]
    held = reads.shell.start(get, "cus_1")
    assert started.wait(10)
    assert reads.fails(get, "cus_2").reason == "pool_exhausted"
    assert places() == 1
    gate.set()
    assert held.result(10) == "cus_1"


def test_a_child_process_knows_nothing_of_its_parents_calls() -> None:
    """After a fork no place is taken and no breaker open."""
    trip()

    def enters() -> object:
        return isinstance(pressure.pressure_of("crm").enter(1, further=False), pressure.Seat)

    assert in_child(enters) is True
    assert enters() is False


def test_a_thread_that_the_system_does_not_give_takes_no_place(
    remote: Remote, sw: SafeWrite, run: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a refusal like any other: what was reserved is given back, and the next call goes on."""

    @sw.read(dependency=ONE, in_thread=True)
    def get(customer: str) -> str:
        return customer

    @sw.write(target="name", dependency=ONE, in_thread=True)
    def rename(name: str) -> str:
        return name

    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "safewrite":
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as scarce:
        scarce.setattr(threading.Thread, "start", refuse)
        with pytest.raises(ReadFailed, match="pool_exhausted"):
            get("cus_1")
        with pytest.raises(WriteNotSent, match="pool_exhausted"):
            rename("a")
    assert (places(), sw.pool.busy) == (0, False)
    assert (get("cus_1"), rename("a")) == ("cus_1", "a")


def test_a_claim_that_was_lost_to_another_process_keeps_no_place(sw: SafeWrite, run: None) -> None:
    """The ledger runs a claim anew where another was quicker: its next number needs the one place there is."""

    @sw.write(target="name", dependency=ONE)
    def rename(name: str) -> str:
        return name

    job = Guard(sw, rename.tool).job(CallOptions(), ("a",), {})  # type: ignore[attr-defined]
    now = safewrite.shell.clock.clock().now()  # type: ignore[attr-defined]
    claims = [job.claim(number, job.facts(now), now) for number in (1, 2)]
    assert ([one.number for one in claims], places()) == ([1, 2], 1)
    job.close()
    assert places() == 0
