"""Time: what limits hold whatever the clock on the wall does, and what a refusal for want of time says."""

from __future__ import annotations

import asyncio
import itertools
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from freezegun import freeze_time
from hypothesis import given
from hypothesis import strategies as st
from tenacity import wait_fixed

import safewrite
from safewrite import Attempt, BudgetExhausted, Deadline, Dependency, NotApplied, SafeWrite
from safewrite.context import current_deadline, onward_headers, within
from safewrite.deadline import outermost
from safewrite.errors import ConfigurationError
from safewrite.ledger import ticks
from safewrite.shell import clock as seam
from safewrite.testing import ManualClock


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """One `SafeWrite` over a ledger of its own."""
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db") as made:
        made.upgrade()
        yield made


def hanging(sw: SafeWrite, colour: str, ended: threading.Event, **options: Any) -> Callable[..., Any]:
    """Return a tool whose body hangs until `ended`, called like a plain function in both colours."""
    options.setdefault("timeout", 0.2)
    if colour == "plain":

        @sw.write(target="sub_id", name="cancel", **options)
        def cancel(sub_id: str) -> str:
            ended.wait(60)
            return "done"

        return cancel.outcome

    @sw.write(target="sub_id", name="cancel", **options)
    async def acancel(sub_id: str) -> str:
        await asyncio.get_running_loop().run_in_executor(None, ended.wait, 60)
        return "done"

    async def call(sub_id: str) -> Any:
        outcome = await acancel.outcome(sub_id)
        ended.set()
        return outcome

    return lambda sub_id: asyncio.run(call(sub_id))


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_a_wait_for_the_ledger_ends_though_the_clock_is_frozen(tmp_path: Path, colour: str) -> None:
    """A test that freezes time beside a program that holds the file is told, and does not hang."""
    path, sent = tmp_path / "agent.db", []
    with SafeWrite(f"sqlite:///{path}", settings={"busy_timeout": 0.2}) as sw:
        sw.upgrade()

        def write(name: str) -> None:
            sent.append(name)

        async def awrite(name: str) -> None:
            sent.append(name)

        tool = sw.write(target="name")(write if colour == "plain" else awrite)
        other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        # Else it would hold it for ever, and so would this test.
        enough = threading.Timer(20.0, other.execute, ("ROLLBACK",))
        enough.start()
        with freeze_time("2031-05-01"), safewrite.run("run-1"), safewrite.turn(1):
            outcome = tool.outcome("a")
            outcome = outcome if colour == "plain" else asyncio.run(outcome)
        enough.cancel()
        other.close()
        assert (outcome.state, outcome.reason, sent) == ("not_applied", "ledger_unavailable", [])


COLOURS = pytest.mark.parametrize("colour", ["plain", "coroutine"])


@COLOURS
def test_a_write_times_out_while_a_test_has_frozen_time(sw: SafeWrite, colour: str) -> None:
    """Freezegun stops `time.monotonic` and with it asyncio's timers; our limits run on."""
    ended = threading.Event()
    tool = hanging(sw, colour, ended)
    began = time.perf_counter()
    with freeze_time("2020-02-02"), safewrite.run("r1"), safewrite.turn(1):
        outcome = tool("sub_1")
    ended.set()
    assert (outcome.state, outcome.may_still_land) == ("unknown", True)
    assert 0.2 <= time.perf_counter() - began < 30.0


def test_a_wait_for_the_ledger_ends_by_a_clock_that_nobody_can_set() -> None:
    """One that is stepped back an hour makes no call wait an hour longer."""
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    now = ticks.monotonic()
    assert before <= now <= time.clock_gettime(time.CLOCK_MONOTONIC)


def test_a_wait_that_ends_early_ends_early_while_time_is_frozen() -> None:
    """What is waited for ends the wait, not only its limit; a pause lasts as long as it says."""

    async def main() -> tuple[bool, float]:
        loop, began = asyncio.get_running_loop(), seam.ticks()
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        done = await seam.SystemClock().wait_for(future, 10.0)
        await seam.SystemClock().pause(0.05)
        return done, seam.ticks() - began

    with freeze_time("2020-02-02"):
        done, took = asyncio.run(main())
    assert done
    assert 0.05 <= took < 30.0


@pytest.mark.parametrize("seconds", [1e9, 1e300, math.inf])
def test_a_wait_may_be_longer_than_a_thread_can_count(seconds: float) -> None:
    """It is cut to what a thread can wait for, and whoever waits is woken all the same."""
    event = threading.Event()
    alarm = threading.Timer(0.02, event.set)
    alarm.start()
    assert seam.SystemClock().wait(event, seconds)
    alarm.join()


def test_a_wall_clock_that_is_set_moves_no_instant_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wall time is read once: what was stamped before and after compares as if nobody had touched the clock."""
    clock = seam.SystemClock()
    before = clock.now()
    monkeypatch.setattr(seam, "wall", lambda: before.unix - 3600.0)
    after = clock.now()
    assert after.unix - before.unix == pytest.approx(after.ticks - before.ticks, abs=1e-5)


def test_where_a_boot_has_no_name_every_clock_is_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ticks of two machines are never compared: instants are, less the skew."""

    def unknown(*_: object, **__: object) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(seam.Path, "read_text", unknown)
    one, other = seam.SystemClock().now(), seam.SystemClock().now()
    assert one.clock != other.clock
    assert one.seconds_to(other, skew=60.0) < -30.0


def test_the_real_clock_needs_no_thread_of_its_own() -> None:
    """Unless time is frozen, a wait is one of the loop's own timers."""

    async def main() -> bool:
        waiting = asyncio.ensure_future(seam.SystemClock().wait_for(asyncio.Future(), 0.02))
        await asyncio.sleep(0)
        names = [thread.name for thread in threading.enumerate()]
        assert await waiting is False
        await seam.SystemClock().pause(0.001)
        return "safewrite-timer" in names

    assert asyncio.run(main()) is False


def test_stamps_come_from_the_real_clock_even_if_it_is_first_used_while_frozen() -> None:
    """A frozen wall must not stay in a clock that outlives the test."""
    with freeze_time("2020-02-02"):
        made = seam.SystemClock()
    assert abs(made.now().unix - time.time()) < 5.0


@COLOURS
def test_a_clock_that_stands_still_never_expires_anything(sw: SafeWrite, colour: str) -> None:
    """A limit of a millisecond is not over, however long the body takes, until its clock moves."""
    ended = threading.Event()
    tool = hanging(sw, colour, ended, timeout=0.001)
    threading.Timer(0.2, ended.set).start()
    with ManualClock(), safewrite.run("r1", deadline=1.0, minimum=0.001), safewrite.turn(1):
        assert tool("sub_1").state == "applied"


# One budget for an operation of many legs --------------------------------------------------------------------


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Time that moves by itself where somebody sleeps."""
    with ManualClock(auto=True) as made:
        yield made


def test_each_leg_is_granted_what_the_earlier_ones_left(clock: ManualClock) -> None:
    """With a first leg of 4 s and a second of 2 s, the legs of 20 s are granted 20, 16 and 14."""
    operation = Deadline.operation()
    granted = []
    for name, takes in (("initialize", 4.0), ("initialized", 2.0), ("call", 0.0)):
        granted.append(operation.leg(name))
        clock.sleep(takes)
    assert granted == [20.0, 16.0, 14.0]
    assert [(s.leg, s.seconds) for s in operation.spent()] == [
        ("initialize", 4.0),
        ("initialized", 2.0),
        ("call", 0.0),
    ]


def test_a_listing_of_fifty_pages_spends_one_budget(clock: ManualClock) -> None:
    """50 pages of 0.3 s fit into 20 s; of 0.5 s, the leg that would start with less than 1 s is refused."""

    def pages(takes: float) -> int:
        operation = Deadline.operation(of="`list`, dependency `catalogue`")
        for page in range(50):
            operation.leg(f"page {page + 1}")
            clock.sleep(takes)
        return 50

    assert pages(0.3) == 50
    with pytest.raises(BudgetExhausted) as refused:
        pages(0.5)
    said = str(refused.value)
    assert said.startswith(
        "leg `page 40` of `list`, dependency `catalogue` was not sent: 0.500 s are left of "
    )
    assert "`operation_timeout` = 20 s (set by default)" in said
    assert "Earlier legs used: `page 1` 0.500 s" in said


def test_two_operations_over_one_client_each_spend_their_own(clock: ManualClock) -> None:
    """The budget is handed down as a value: what one uses up is not missing to the other."""
    granted: dict[str, float] = {}

    class Client:
        def get(self, name: str, budget: Deadline) -> None:
            granted[name] = budget.leg(name)

    client, first = Client(), Deadline.operation()
    clock.sleep(15.0)
    second = Deadline.operation()
    client.get("first", first)
    client.get("second", second)
    assert granted == {"first": 5.0, "second": 20.0}


def test_two_operations_at_once_over_one_shared_client_are_not_mixed() -> None:
    """A real client and server: every request has what its own operation has left, and the client keeps its own."""
    given: dict[str, list[float]] = {"/a": [], "/b": []}

    async def note(request: httpx.Request) -> None:
        given[request.url.path].append(request.extensions["timeout"]["read"])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async def operation(client: httpx.AsyncClient, path: str, total: float) -> None:
        budget = Deadline(total)
        for leg in ("handshake", "confirmation", "call"):
            await client.get(path, timeout=budget.leg(leg))

    async def main() -> httpx.Timeout:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with (
            server,
            httpx.AsyncClient(base_url=f"http://{host}:{port}", event_hooks={"request": [note]}) as client,
        ):
            await asyncio.gather(operation(client, "/a", 600.0), operation(client, "/b", 6000.0))
            return client.timeout

    assert asyncio.run(main()) == httpx.Timeout(5.0)
    assert all(0.0 < later < earlier <= 600.0 for earlier, later in pairwise(given["/a"]))
    assert all(600.0 < later < earlier <= 6000.0 for earlier, later in pairwise(given["/b"]))
    assert [len(legs) for legs in given.values()] == [3, 3]


@pytest.mark.parametrize(("left", "whole"), [(1.2, 2), (1.0, 1), (19.01, 20), (3.0, 3)])
def test_a_leg_is_rounded_up_for_transports_of_whole_seconds(
    clock: ManualClock, left: float, whole: int
) -> None:
    """Never zero, and less than a second too long."""
    leg = Deadline(left).leg("call")
    assert (leg, leg.whole) == (left, whole)
    assert 0.0 <= leg.whole - leg < 1.0


@given(total=st.floats(1.0, 60.0), shares=st.lists(st.floats(0.0, 1.0), max_size=20))
def test_legs_of_whole_seconds_overrun_their_operation_by_less_than_a_second(
    total: float, shares: list[float]
) -> None:
    """All of them together, however long each took of what it was granted."""
    with ManualClock(auto=True) as clock:
        operation = Deadline(total)
        for share in [*shares, 1.0]:
            try:
                clock.sleep(operation.leg("call").whole * share)
            except BudgetExhausted:
                break
        assert clock.elapsed < total + 1.0 + 1e-9


def test_the_minimum_is_held_against_the_unrounded_rest(clock: ManualClock) -> None:
    """0.4 s is refused, though a transport of whole seconds would make a second of it."""
    with pytest.raises(
        BudgetExhausted, match=r"0\.400 s are left of `deadline` = 0\.4 s \(set by argument\)"
    ):
        Deadline(0.4).leg("call")


@pytest.mark.parametrize(
    ("text", "granted"), [("5", 5.0), ("0.25", 1.0), ("100000", 100_000.0), ("abc", 20.0)]
)
def test_the_environment_gives_the_budget(monkeypatch: pytest.MonkeyPatch, text: str, granted: float) -> None:
    """Below the floor it is raised to it, it has no upper limit, and an unusable text counts as the default."""
    monkeypatch.setenv("SAFEWRITE_OPERATION_TIMEOUT", text)
    with ManualClock():
        assert Deadline.operation().leg("call") == granted


def test_twenty_seconds_are_no_floor_under_the_last_leg(clock: ManualClock) -> None:
    """The last leg gets what is left, down to the minimum."""
    operation = Deadline.operation()
    clock.sleep(18.9)
    assert operation.leg("call") == pytest.approx(1.1)


@pytest.mark.parametrize("seconds", [-1, 0, float("nan"), float("inf"), None, "20"])
def test_a_deadline_that_is_none_is_a_typed_error(seconds: Any) -> None:
    """Nothing unusable is passed on to a transport."""
    with pytest.raises(ConfigurationError):
        Deadline(seconds)


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "1"])
@pytest.mark.parametrize("name", ["minimum", "reserve"])
def test_a_slice_is_cut_by_numbers_only(name: str, wrong: Any) -> None:
    """A negative reserve would grant more than there is."""
    with pytest.raises(ConfigurationError, match=name):
        Deadline(9.0).slice(**{name: wrong})


@pytest.mark.parametrize("since", [0.0, 1e-9, 60.0])
def test_a_spent_attempt_still_names_a_limit(clock: ManualClock, since: float) -> None:
    """Zero is what clients take for none at all."""
    now = clock.now()
    attempt = Attempt(id="a", number=1, key="k", end=now.ticks - since, deadline_at=now.unix - since)
    assert attempt.remaining() == 0.0
    assert attempt.timeout > 0.0


def test_a_slice_is_never_zero(clock: ManualClock) -> None:
    """The reserve lies inside the smaller of cap and remainder; where it leaves nothing, the call is refused."""
    deadline = Deadline(18.0, call_cap=9.0)
    assert deadline.slice(reserve=2.25) == 6.75
    clock.sleep(16.0)
    assert deadline.slice(reserve=0.5) == 1.5
    with pytest.raises(
        BudgetExhausted, match=r"a call beside a reserve of 2 s was not sent: 2\.000 s are left"
    ):
        deadline.slice(reserve=2.0)


# Deadlines around calls --------------------------------------------------------------------------------------


class Calls:
    """A tool that takes as long as it is told, and says what it was given."""

    def __init__(self, sw: SafeWrite, colour: str, clock: ManualClock, **options: Any) -> None:
        self.given: list[float] = []

        if colour == "plain":

            @sw.write(target="n", name="cancel", **options)
            def cancel(n: int, takes: float, attempt: Attempt) -> int:
                self.given.append(attempt.remaining())
                clock.sleep(takes)
                return n
        else:

            @sw.write(target="n", name="cancel", **options)
            async def cancel(n: int, takes: float, attempt: Attempt) -> int:
                self.given.append(attempt.remaining())
                await clock.pause(takes)
                return n

        self.colour, self.tool = colour, cancel

    def __call__(self, n: int, takes: float = 0.0, **options: Any) -> Any:
        made = self.tool.options(**options).outcome(n, takes)
        return made if self.colour == "plain" else asyncio.run(self._awaited(made))

    async def _awaited(self, made: Any) -> Any:
        return await made


@COLOURS
def test_each_call_gets_the_smaller_of_cap_and_remainder(
    sw: SafeWrite, clock: ManualClock, colour: str
) -> None:
    """A run of 18 s with calls of at most 9 s: two calls of 8 s leave 2 s, and that is what the third is given."""
    calls = Calls(sw, colour, clock, **({"in_thread": False} if colour == "plain" else {}))
    with safewrite.run("r1", deadline=18.0, call_cap=9.0), safewrite.turn(1):
        told = [calls(n, takes).state for n, takes in enumerate((8.0, 8.0, 1.2, 0.0))]
    assert calls.given == pytest.approx([9.0, 9.0, 2.0])
    assert told == ["applied"] * 3 + ["not_applied"]  # 0.8 s are left for the last one, and 1 s is needed


@COLOURS
def test_a_call_below_the_minimum_is_refused_and_recorded_so(
    sw: SafeWrite, clock: ManualClock, colour: str
) -> None:
    """The refusal names tool, dependency, the number that ran out, its value and origin; the audit keeps it."""
    calls = Calls(sw, colour, clock, dependency=Dependency("billing"))
    with safewrite.run("r1", deadline=18.0, call_cap=9.0) as opened, safewrite.turn(1):
        opened.deadline.leg("ask the model")
        clock.sleep(17.5)
        outcome = calls(1)
    assert (outcome.state, outcome.reason, outcome.sent, calls.given) == (
        "not_applied",
        "budget_exhausted",
        False,
        [],
    )
    assert isinstance(outcome.error, BudgetExhausted)
    assert str(outcome.error) == (
        "`cancel` of dependency `billing` was not sent: 0.500 s are left of `deadline` = 18 s (set by the argument "
        "of run `r1`), and at least 1 s (`minimum`) are needed. Earlier legs used: `ask the model` 17.500 s."
    )
    (row,) = sw.audit.rows(outcome.intent_id)
    assert (row.event, row.reason) == ("refused", "budget_exhausted")
    (stored,) = sw.ledger.rows(outcome.intent_id)
    assert "0.500 s are left of `deadline` = 18 s" in stored["evidence"]
    assert [r.key for r in sw.audit.refused(run="r1")] == [outcome.key]


@pytest.mark.parametrize(
    ("limits", "names"),
    [
        ({"call_cap": 9.0}, "`call_cap` = 9 s (set by argument)"),
        ({}, "`operation_timeout` = 20 s (set by default)"),
    ],
)
def test_a_call_whose_own_limit_ran_out_names_it(
    sw: SafeWrite, clock: ManualClock, limits: dict[str, float], names: str
) -> None:
    """An attempt that cannot have left is not sent again when there is no time for it, and the reason is told."""

    @sw.write(target="n", name="cancel", max_attempts=50, wait=wait_fixed(3.0), in_thread=False)
    def cancel(n: int) -> None:
        clock.sleep(1.0)
        raise safewrite.NotSent

    with safewrite.run("r1", **limits), safewrite.turn(1), pytest.raises(BudgetExhausted) as refused:
        cancel(1)
    assert names in str(refused.value)


def test_the_tightest_deadline_holds(sw: SafeWrite, clock: ManualClock) -> None:
    """Of the option, the run, the request and the attempt around a call, the one with the least left."""
    calls = Calls(sw, "plain", clock, in_thread=False)
    with safewrite.turn(1), safewrite.run("r1", deadline=12.0), safewrite.turn(1):
        calls(1)
        calls(2, deadline=7.0)
        calls(3, deadline=70.0)
        with within(Deadline(5.0)):
            calls(4)
            assert current_deadline().remaining() == 5.0

            @sw.write(target="n", name="outer", timeout=3.0, in_thread=False)
            def outer(n: int) -> None:
                calls(5)

            outer(1)
            with safewrite.run("r2", deadline=60.0):
                assert current_deadline().remaining() == 5.0
    assert calls.given == [12.0, 7.0, 12.0, 5.0, pytest.approx(3.0)]
    assert current_deadline() is None


def test_an_operation_lies_in_the_deadline_around_it(clock: ManualClock) -> None:
    """A leg is never granted more than the run or the request leaves."""
    with safewrite.run("r1", deadline=6.0):
        assert Deadline.operation().leg("call") == 6.0
    assert Deadline.operation().leg("call") == 20.0


@pytest.mark.parametrize(
    ("variable", "given", "minimum"),
    [("3", {}, 3.0), ("3", {"minimum": 0.5}, 0.5), ("", {}, 1.0), ("3", {"minimum": 0.0}, 0.0)],
)
def test_the_minimum_of_a_run_is_the_setting_unless_it_is_given(
    sw: SafeWrite,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    given: Any,
    minimum: float,
) -> None:
    """`SAFEWRITE_MINIMUM` holds for runs, and the refusal says which number was needed."""
    monkeypatch.setenv("SAFEWRITE_MINIMUM", variable)
    calls = Calls(sw, "plain", clock, in_thread=False)
    with safewrite.run("r1", deadline=10.0, **given), safewrite.turn(1):
        clock.sleep(10.0 - minimum - 0.25)
        assert calls(1).state == "applied"
        clock.sleep(0.5)
        refused = calls(2)
    assert refused.state == "not_applied"
    assert f"at least {minimum:g} s (`minimum`)" in str(refused.error)


def test_a_minimum_holds_for_a_deadline_that_comes_from_elsewhere(sw: SafeWrite, clock: ManualClock) -> None:
    """Of the run or the request around it, and for one that is handed in, whose own holds otherwise."""
    calls = Calls(sw, "plain", clock, in_thread=False)
    with within(Deadline(5.0, minimum=0.05)), safewrite.run("r1", minimum=4.0), safewrite.turn(1):
        clock.sleep(1.5)
        assert calls(1).reason == "budget_exhausted"
    handed_in = Deadline(5.0, minimum=4.0)
    clock.sleep(1.5)
    with safewrite.run("r2", deadline=handed_in), safewrite.turn(1):
        assert calls(1).reason == "budget_exhausted"
    with safewrite.run("r3", deadline=handed_in, minimum=0.5), safewrite.turn(1):
        assert calls(1).state == "applied"
    with safewrite.run("r4", minimum=0.5), safewrite.turn(1):
        assert calls(1).state == "applied"


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "1"])
def test_a_minimum_that_is_none_is_a_typed_error(wrong: Any) -> None:
    """Also where no deadline holds yet."""
    with pytest.raises(ConfigurationError, match="`minimum`"):
        safewrite.run("r1", minimum=wrong)


@pytest.mark.parametrize(
    ("outer", "inner", "given"), [(2.0, 9.0, 2.0), (9.0, 2.0, 2.0), (2.0, None, 2.0), (None, 2.0, 2.0)]
)
def test_a_run_inside_a_run_cannot_lift_its_cap(
    sw: SafeWrite, clock: ManualClock, outer: float | None, inner: float | None, given: float
) -> None:
    """The smaller cap holds, as the smaller deadline does."""
    calls = Calls(sw, "plain", clock, in_thread=False)
    with (
        safewrite.run("r1", deadline=18.0, call_cap=outer),
        safewrite.run("r2", call_cap=inner),
        safewrite.turn(1),
    ):
        assert calls(1).state == "applied"
    assert calls.given == [given]


@COLOURS
@pytest.mark.parametrize(("of_run", "of_option", "around"), [*itertools.permutations([2.0, 9.0, None])])
def test_the_smallest_cap_holds(
    sw: SafeWrite,
    clock: ManualClock,
    colour: str,
    of_run: float | None,
    of_option: float | None,
    around: float | None,
) -> None:
    """Wherever it is set: with the run, with the deadline that is an option of the call, with one that is around it."""
    calls = Calls(sw, colour, clock, **({"in_thread": False} if colour == "plain" else {}))
    with (
        safewrite.run("r1", call_cap=of_run),
        safewrite.turn(1),
        within(Deadline(15.0, call_cap=around)),
    ):
        assert calls(1, deadline=Deadline(12.0, call_cap=of_option)).state == "applied"
    assert calls.given == [2.0]


def test_onward_requests_carry_what_is_left() -> None:
    """Milliseconds and the instant; without a deadline no header, with none left one millisecond."""
    assert onward_headers() == {}
    with ManualClock(start=1_000.0) as clock, within(Deadline(9.0)):
        assert onward_headers() == {"X-Request-Deadline-Ms": "9000", "X-Request-Deadline-At": "1009000"}
        clock.advance(8.0)
        assert onward_headers() == {"X-Request-Deadline-Ms": "1000", "X-Request-Deadline-At": "1009000"}
        clock.advance(8.0)
        assert onward_headers()["X-Request-Deadline-Ms"] == "1"


# Pauses and clocks -------------------------------------------------------------------------------------------


UPTIME = 2.0**28  # eight and a half years in seconds: below it, neighbouring floats are 60 ns apart at most


def test_seconds_as_floats_are_good_to_a_tenth_of_a_microsecond() -> None:
    """The seam tells what the system's clock tells in nanoseconds."""
    before = time.clock_gettime_ns(seam._CLOCK_ID)
    told = seam.ticks()
    after = time.clock_gettime_ns(seam._CLOCK_ID)
    assert Fraction(before, 10**9) - Fraction(1, 10**7) <= told <= Fraction(after, 10**9) + Fraction(1, 10**7)
    assert math.ulp(UPTIME - 1.0) < 6e-8


@given(
    uptime=st.floats(0.0, UPTIME - 1e6), total=st.floats(1e-3, 86_400.0), share=st.floats(0.0, 1.0),
    pauses=st.integers(0, 100),
)  # fmt: skip
def test_what_is_left_is_off_by_a_tenth_of_a_microsecond_and_as_much_for_every_pause(
    uptime: float, total: float, share: float, pauses: int
) -> None:
    """At most, after years of uptime, of a deadline of up to a day."""
    with ManualClock() as clock:
        clock.advance(uptime)
        deadline = Deadline(total)
        for _ in range(pauses):
            with deadline.pause():
                clock.advance(0.3)
        clock.advance(total * share)
        left = Fraction(total) * (1 - Fraction(share))
        assert abs(Fraction(deadline.remaining()) - left) < Fraction(1 + pauses, 10**7)


def test_a_pause_costs_nothing(clock: ManualClock) -> None:
    """While a person decides, the deadline stands still, and goes on with what was left, an error included."""
    deadline = Deadline(18.0)
    clock.sleep(3.0)

    def decide() -> None:
        with deadline.pause():
            clock.sleep(600.0)
            assert deadline.remaining() == 15.0
            raise KeyError

    with pytest.raises(KeyError):
        decide()
    assert deadline.remaining() == 15.0
    clock.sleep(1.0)
    assert deadline.remaining() == 14.0


def test_pauses_are_counted_across_threads(clock: ManualClock) -> None:
    """Of two questions at once, the second answer sets the clock going again."""
    deadline = Deadline(18.0)
    answered = [threading.Event(), threading.Event()]
    asked = threading.Barrier(3)

    def ask(n: int) -> None:
        with deadline.pause():
            asked.wait()
            answered[n].wait(20)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    asked.wait()
    for n in range(2):
        clock.sleep(60.0)
        assert deadline.remaining() == 18.0
        answered[n].set()
        threads[n].join()
    clock.sleep(2.0)
    assert deadline.remaining() == 16.0


def test_what_lies_around_a_deadline_is_paused_with_it(clock: ManualClock) -> None:
    """The run around a run, and the backstop around them, whichever thread pauses."""
    backstop = Deadline(50.0)
    token = outermost.set(backstop)
    with safewrite.run("r1", deadline=18.0) as outer, safewrite.run("r2", deadline=9.0) as inner:
        outermost.reset(token)
        with inner.deadline.pause():
            clock.sleep(600.0)
        assert (inner.deadline.remaining(), outer.deadline.remaining(), backstop.remaining()) == (
            9.0,
            18.0,
            50.0,
        )


@pytest.mark.parametrize("which", ["the one handed in", "the run's"])
def test_a_deadline_handed_to_a_run_is_the_same_clock(clock: ManualClock, which: str) -> None:
    """Whichever of both a question pauses, both go on with what was left; the run's takes the run around it along."""
    handed_in = Deadline(9.0)
    with safewrite.run("r1", deadline=18.0), safewrite.run("r2", deadline=handed_in) as inner:
        assert inner.deadline is not None
        clock.sleep(2.0)
        with (handed_in if which == "the one handed in" else inner.deadline).pause():
            clock.sleep(10.0)
        # The run around it was not asked to stand still with the one handed in: that has 6 s left.
        assert handed_in.remaining() == 7.0
        assert inner.deadline.remaining() == (7.0 if which == "the run's" else 6.0)
        clock.sleep(6.5)
        with pytest.raises(BudgetExhausted, match=r"`deadline` = (9|18) s"):
            inner.deadline.leg("call")


def test_pauses_nest_and_one_that_is_dropped_is_over(clock: ManualClock) -> None:
    """The outermost ends it; a pause that nobody leaves ends when nobody holds it any more."""
    deadline = Deadline(18.0)
    with deadline.pause():
        clock.sleep(60.0)  # what was left is what was left when the first of them began
        with deadline.pause():
            clock.sleep(60.0)
        clock.sleep(60.0)
        assert deadline.remaining() == 18.0
    clock.sleep(1.0)
    dropped = deadline.pause()
    dropped.__enter__()
    clock.sleep(60.0)
    assert deadline.remaining() == 17.0
    del dropped
    clock.sleep(1.0)
    assert deadline.remaining() == 16.0


def test_an_interrupt_while_a_pause_begins_leaves_nothing_standing(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between two deadlines that are to stand still together: both go on."""
    with safewrite.run("r1", deadline=18.0) as outer, safewrite.run("r2", deadline=9.0) as inner:
        suspend, calls = Deadline._suspend, []

        def interrupted(self: Deadline) -> None:
            if calls:
                raise KeyboardInterrupt
            calls.append(self)
            suspend(self)

        monkeypatch.setattr(Deadline, "_suspend", interrupted)
        with pytest.raises(KeyboardInterrupt), inner.deadline.pause():
            pass
        clock.sleep(2.0)
        assert (inner.deadline.remaining(), outer.deadline.remaining()) == (7.0, 16.0)


@pytest.mark.parametrize(
    ("stepped", "left"), [(0.0, 10.0), (-5.0, 15.0), (-3600.0, 18.0), (4.0, 6.0), (3600.0, 0.0)]
)
def test_a_deadline_goes_on_after_a_restart(sw: SafeWrite, stepped: float, left: float) -> None:
    """It is made anew from its stored instant, clamped: never more than it was, never negative, then refused."""
    with ManualClock(start=1_000.0) as before:
        deadline = Deadline(18.0)
        before.advance(8.0)
        stored = deadline.ends_at
    assert stored == 1_018.0
    with ManualClock(start=1_008.0 + stepped) as after:
        again = Deadline.until(stored, 18.0, call_cap=9.0)
        assert (again.remaining(), again.total, again.call_cap) == (left, 18.0, 9.0)
        if left:
            after.advance(1.0)
            assert again.remaining() == left - 1.0
            return
        tool = sw.write(target="n", name="cancel")(lambda n: None)
        with safewrite.run("r1", deadline=again), safewrite.turn(1):
            with pytest.raises(BudgetExhausted, match=r"`deadline` = 18 s \(set by the stored instant\)"):
                tool(1)


@pytest.mark.parametrize("at", [None, "1018", float("nan"), float("inf"), True])
def test_what_is_no_instant_is_a_typed_error(at: Any) -> None:
    """A store that lost it must not make an endless deadline."""
    with pytest.raises(ConfigurationError, match="`at`"):
        Deadline.until(at, 18.0)


@COLOURS
def test_no_pause_stops_the_clock_of_a_work_bound(sw: SafeWrite, clock: ManualClock, colour: str) -> None:
    """While a person decides, the bound of an attempt passes, and the read is proof then."""
    bounded = Dependency("billing", work_bound=30.0, read_lag=0.0)
    sent: list[int] = []

    def lose_the_first(n: int) -> str:
        sent.append(n)
        if len(sent) == 1:
            raise TimeoutError
        return "done"

    async def alose(n: int) -> str:
        return lose_the_first(n)

    body = lose_the_first if colour == "plain" else alose
    tool = sw.write(target="n", name="cancel", dependency=bounded)(body)
    tool.reconcile(lambda n: NotApplied())

    def call() -> Any:
        made = tool.outcome(1)
        return made if colour == "plain" else asyncio.run(made)

    with safewrite.run("r1", deadline=18.0, call_cap=4.0) as opened, safewrite.turn(1):
        before = call()
        left = opened.deadline.remaining()
        with opened.deadline.pause():
            clock.sleep(30.0)
        assert opened.deadline.remaining() == left
        after = call()
    assert (before.state, before.may_still_land, before.attempts) == ("unknown", True, 1)
    assert (after.state, after.attempts) == ("applied", 2)


def test_no_pause_inside_the_body_of_a_write(sw: SafeWrite) -> None:
    """What was sent goes on meanwhile: the dependency's clock does not stop for anybody."""

    @sw.write(target="n", name="cancel")
    def cancel(n: int) -> None:
        with safewrite.current_attempt() and Deadline(5.0).pause():
            pass

    with safewrite.run("r1"), safewrite.turn(1), pytest.raises(safewrite.OutcomeUnknown) as told:
        cancel(1)
    assert isinstance(told.value.__cause__, ConfigurationError)


def test_stepping_the_wall_clock_changes_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines run on a clock that nobody can set."""
    deadline = Deadline(3600.0)
    for day in ("2035-01-01", "1999-01-01"):
        with freeze_time(day):
            assert 3000.0 < deadline.remaining() <= 3600.0


@pytest.mark.parametrize(("single", "state"), [(True, "not_applied"), (False, "unknown")])
def test_a_leg_refused_inside_a_body_was_not_sent(
    sw: SafeWrite, clock: ManualClock, single: bool, state: str
) -> None:
    """The request was not sent; of the earlier ones of a body with several that says nothing."""

    @sw.write(target="n", name="cancel", timeout=9.0, max_attempts=1, single_request=single, in_thread=False)
    def cancel(n: int) -> None:
        operation = Deadline.operation()
        operation.leg("handshake")
        clock.sleep(8.5)
        operation.leg("call")

    with safewrite.run("r1"), safewrite.turn(1):
        outcome = cancel.outcome(1)
    assert outcome.state == state
    if single:
        assert (outcome.reason, outcome.again) == ("leg_not_sent", True)
        assert "leg `call`" in str(outcome.error.__cause__)
