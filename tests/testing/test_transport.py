"""The scripted dependency inside the process: what it does is what the real server does, in no real time."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterator

import httpx
import pytest
from freezegun import freeze_time

import safewrite
from safewrite import Applied, Attempt, Dependency, NotApplied, SafeWrite
from safewrite.core import evidence
from safewrite.testing import ManualClock, ScriptedDependency
from safewrite.testing.script import (
    Step,
    accepted,
    drip,
    error,
    error_after,
    hang_after,
    in_progress,
    key_reused,
    late,
    lose_response,
    never,
    ok,
    read_fails,
    read_hangs,
    reset,
    reset_after,
    reset_at,
    slow,
    stale_read,
)
from tests.testing.asking import BRIEF, CANCEL, NO_TLS, READ, keyed

WRITES = [
    ok(), slow(0.001), slow(30.0), lose_response(), hang_after(), never(), late(30.0), accepted(30.0), reset(),
    reset_after(), reset_at(0), reset_at(100), reset_at(160), drip(0.01, chunk=8), error(429, 2), error(503, "soon"),
    error(204), error_after(), in_progress(), key_reused(),
]  # fmt: skip
READS = [read_fails(), read_hangs(), stale_read()]


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """A clock that nobody has to wait for."""
    with ManualClock(auto=True, patience=2.0) as running:
        yield running


@pytest.fixture
def inside(clock: ManualClock) -> ScriptedDependency:
    """A dependency in this process."""
    dependency = ScriptedDependency(keys="forever")
    dependency.transport()
    return dependency


def told(client: httpx.Client, method: str, path: str) -> tuple[object, ...]:
    """Return everything that a request tells its caller, and what it is evidence of."""
    try:
        reply = client.request(method, path, timeout=BRIEF, headers=keyed("k", **{"X-Attempt-Id": "a"}))
    except httpx.HTTPError as raised:
        return type(raised), evidence.from_exception(raised)
    return reply.status_code, sorted(reply.headers.multi_items()), reply.content


@pytest.mark.parametrize("step", [*WRITES, *READS], ids=lambda step: f"{step.name}{dict(step.parameters)}")
def test_its_caller_cannot_tell_it_from_the_server(
    server: ScriptedDependency, inside: ScriptedDependency, step: Step
) -> None:
    """Statuses, headers, bytes, exceptions, their evidence, effects and requests are the same for every step."""
    reads = step in READS
    seen = []
    server.reset()
    server.promise(keys="forever")
    with (
        httpx.Client(base_url=server.url, verify=NO_TLS) as outer,
        httpx.Client(base_url="http://inside", transport=inside.transport()) as inner,
    ):
        for dependency, client in ((server, outer), (inside, inner)):
            client.post("/subscriptions/sub_1/pause")
            dependency.script(step)
            if reads:
                client.post("/subscriptions/sub_1/resume")
            first = told(client, "GET" if reads else "POST", READ if reads else CANCEL)
            dependency.wait_for_requests(count=2 + reads)
            effects = dependency.wait_for_effects(
                count=1 + (step.behaviour.applies and not reads and wait(step))
            )
            log = [
                (row["number"], row["verb"], row["key"], row["attempt_id"])
                for row in dependency.effects_log()
            ]
            asked = [(row["method"], row["path"], row["step"]) for row in dependency.requests("sub_1")]
            seen.append((first, effects, log, asked, dependency.pending()))
    assert seen[0] == seen[1]


def wait(step: Step) -> bool:
    """Whether the effect of a step comes in a test's time."""
    return (step.behaviour.apply_after or step.behaviour.wait) < 1.0


def test_what_is_applied_late_comes_when_the_clock_says_so() -> None:
    """Nothing before, whoever looks; an effect afterwards, and for keys and deadlines the same clock counts."""
    dependency = ScriptedDependency(keys=60.0, honours_deadline=True)
    with httpx.Client(base_url="http://inside", transport=dependency.transport()) as client:
        with ManualClock(start=1_000.0, auto=True) as clock:
            dependency.script(late(30.0), slow(8.0), target="sub_1")
            for _ in range(2):
                with pytest.raises(httpx.ReadTimeout):
                    client.post(CANCEL)
            assert clock.elapsed == 10.0
            assert dependency.effects("sub_1") == 0
            clock.advance(3.0)
            assert dependency.effects("sub_1") == 1
            clock.advance(17.0)
            assert client.get(READ).json()["effects"] == 2
            assert client.post(CANCEL, headers=keyed("k")).status_code == 200
            clock.advance(59.0)
            assert client.post(CANCEL, headers=keyed("k")).headers["Idempotency-Replayed"] == "true"
            clock.advance(2.0)
            passed = {"X-Request-Deadline-At": "1090000"}
            assert client.post(CANCEL, headers=passed).status_code == 408
            assert dependency.effects_log()[0]["at"] == 1_013.0


def test_a_hang_without_any_timeout_ends_with_the_limit_of_its_tool(
    inside: ScriptedDependency, clock: ManualClock
) -> None:
    """A body that would wait for ever costs no real time: its caller's limit passes at once."""
    client = httpx.Client(base_url="http://inside", transport=inside.transport(), timeout=None)
    inside.script(never(), never())
    with SafeWrite("sqlite://") as sw, safewrite.run("run-1"), safewrite.turn(1):

        @sw.write(target="sub_id", timeout=40.0, max_attempts=1)
        def cancel(sub_id: str) -> int:
            return client.post(f"/subscriptions/{sub_id}/cancel").status_code

        @sw.write(target="sub_id", timeout=40.0, max_attempts=1)
        async def acancel(sub_id: str) -> int:
            async with httpx.AsyncClient(
                base_url="http://inside", transport=inside.transport(), timeout=None
            ) as aclient:
                return (await aclient.post(f"/subscriptions/{sub_id}/cancel")).status_code

        began = time.perf_counter()
        assert cancel.outcome("sub_1").state == "unknown"
        assert asyncio.run(acancel.outcome("sub_2")).state == "unknown"
        assert time.perf_counter() - began < 10.0
    assert clock.elapsed >= 40.0


@pytest.mark.parametrize("frozen", [False, True])
def test_minutes_of_waiting_take_no_time_in_either_colour(frozen: bool) -> None:
    """Under freezegun or not, a timed-out write that settles after minutes is told as it is, and sent once."""
    dependency = ScriptedDependency()
    billing = Dependency("billing", work_bound=200.0, read_lag=0.0)
    transport = dependency.transport()
    client = httpx.Client(base_url="http://inside", transport=transport)

    def look(sub_id: str, attempt: Attempt) -> Applied[dict[str, object]] | NotApplied:
        rows = client.get("/effects", params={"key": attempt.key}).json()["rows"]
        return Applied(rows[0]) if rows else NotApplied()

    began = time.perf_counter()
    moment = freeze_time("2026-11-29 12:00:00", ignore=["asyncio"])
    if frozen:
        moment.start()
    try:
        with ManualClock(auto=True, patience=2.0) as clock, SafeWrite("sqlite://") as sw:

            @sw.write(target="sub_id", dependency=billing, timeout=30.0)
            def cancel(sub_id: str, attempt: Attempt) -> int:
                sent = client.post(
                    f"/subscriptions/{sub_id}/cancel", headers=attempt.headers, timeout=attempt.timeout
                )
                return sent.status_code

            @sw.write(target="sub_id", dependency=billing, timeout=30.0)
            async def acancel(sub_id: str, attempt: Attempt) -> int:
                async with httpx.AsyncClient(base_url="http://inside", transport=transport) as aclient:
                    path = f"/subscriptions/{sub_id}/cancel"
                    sent = await aclient.post(path, headers=attempt.headers, timeout=attempt.timeout)
                    return sent.status_code

            cancel.reconcile(look)
            acancel.reconcile(look)
            dependency.script(late(150.0), target="sub_1")
            dependency.script(late(150.0), target="sub_2")
            with safewrite.run("run-1", call_cap=600.0), safewrite.turn(1):
                first = cancel.outcome("sub_1")
                second = asyncio.run(acancel.outcome("sub_2"))
            assert (first.state, first.evidence, second.state) == ("applied", "reconciled", "applied")
            assert clock.elapsed >= 300.0
    finally:
        if frozen:
            moment.stop()
    assert time.perf_counter() - began < 20.0
    assert dependency.effects("sub_1") == dependency.effects("sub_2") == 1


def test_refused_connections_and_streams_are_those_of_the_server(inside: ScriptedDependency) -> None:
    """A paused dependency is refused as an address where nobody listens is; a streamed body breaks in its place."""

    async def streamed() -> bytes:
        async with httpx.AsyncClient(base_url="http://inside", transport=inside.transport()) as client:
            inside.script(drip(20.0, chunk=10))
            async with client.stream("POST", CANCEL) as reply:
                got = b"".join([piece async for piece in reply.aiter_raw()])
            inside.script(reset_at(160))
            with pytest.raises(httpx.ReadError):
                await client.post(CANCEL)
            inside.script(drip(20.0, chunk=1000))
            with pytest.raises(httpx.ReadTimeout):
                await client.post(CANCEL)
            return got

    assert b'"effects": 1' in asyncio.run(streamed())
    with httpx.Client(base_url="http://inside", transport=inside.transport()) as client:
        with inside.pause_listening():
            with pytest.raises(httpx.ConnectError) as refused:
                client.post(CANCEL)
            assert evidence.from_exception(refused.value).reason == "connect_refused"
        assert client.post(CANCEL).status_code == 200
        inside.script(late(60.0))
        with pytest.raises(httpx.ReadTimeout):
            client.post(CANCEL)
        inside.reset()
        assert (inside.effects(), inside.requests(), inside.pending()) == (0, [], [])


def test_a_dependency_is_in_one_place_only(server: ScriptedDependency, inside: ScriptedDependency) -> None:
    """A process gives no transport, and a transport starts no process; before either there is nobody to ask."""
    with pytest.raises(RuntimeError, match="give clients its `url`"):
        server.transport()
    with pytest.raises(RuntimeError, match="running already"):
        inside.start()
    with pytest.raises(RuntimeError, match=r"take its `transport\(\)`"):
        ScriptedDependency().script(ok())


def test_a_count_that_is_wrong_says_what_was_done(inside: ScriptedDependency) -> None:
    """`assert dependency.effects("sub_1") == 1` fails with the effects and the requests."""
    with httpx.Client(base_url="http://inside", transport=inside.transport()) as client:
        inside.script(lose_response())
        with pytest.raises(httpx.RemoteProtocolError):
            client.post(CANCEL, headers={"X-Attempt-Id": "a1"})
        client.post(CANCEL, headers={"X-Attempt-Id": "a2"})
    count = inside.effects("sub_1")
    with pytest.raises(AssertionError, match=r"2 effects on sub_1; #1 sub_1 cancel by attempt a1; #2"):
        assert count == 1
    assert "POST /subscriptions/sub_1/cancel (lose_response)" in repr(count)
    assert (f"{count}", count + 1, repr(inside.effects())) == (
        "2",
        3,
        repr(count).replace("sub_1;", "all targets;", 1),
    )
    assert type(copy.deepcopy(count)) is int
    assert repr(inside.effects("sub_9")) == "<0 effects on sub_9; requests: none>"
