"""Over real HTTP and real pools: what hangs, drips or dies there, and what a timed-out call gives back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import sqlalchemy
from tenacity import wait_fixed

from safewrite import Applied, Attempt, Deadline, Dependency, NotApplied, OutcomeUnknown, SafeWrite
from safewrite.testing import ScriptedDependency
from safewrite.testing.script import drip, late
from tests.shell.conftest import KEYED, Shell, eventually
from tests.testing.asking import NO_TLS

pytestmark = pytest.mark.usefixtures("run")

BOUNDED = Dependency("payments", work_bound=0.15, read_lag=0.0, clock_skew=0.0)


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedDependency]:
    """One real server for the module."""
    with ScriptedDependency() as running:
        yield running


@pytest.fixture
def dependency(server: ScriptedDependency) -> ScriptedDependency:
    """The server with nothing left of the test before."""
    server.reset()
    return server


class Http:
    """A client of the shell's colour, with one connection, that is used like a coroutine in both."""

    def __init__(self, shell: Shell, url: str) -> None:
        self._shell = shell
        limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)
        about: dict[str, Any] = {"base_url": url, "limits": limits, "verify": NO_TLS}
        self._client: Any = httpx.Client(**about) if shell.plain else httpx.AsyncClient(**about)

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        reply = self._client.request(method, path, **options)
        found: httpx.Response = await reply if isinstance(reply, Awaitable) else reply
        return found.raise_for_status()

    def close(self) -> None:
        if self._shell.plain:
            self._client.close()
        else:
            self._shell.call(self._client.aclose)


@pytest.fixture
def http(shell: Shell, dependency: ScriptedDependency) -> Iterator[Http]:
    """A real httpx client with a pool of one connection."""
    made = Http(shell, dependency.url)
    yield made
    made.close()


@pytest.fixture
def charge(shell: Shell, sw: SafeWrite, http: Http) -> Callable[..., Any]:
    """Makes a tool that charges a card over HTTP, and can look it up by its key."""

    def declare(*, reads: bool = True, **options: Any) -> Any:
        async def charge(card: str, attempt: Attempt) -> int:
            reply = await http.request(
                "POST", f"/cards/{card}/charge", headers=attempt.headers, timeout=attempt.timeout
            )
            return int(reply.json()["effects"])

        async def find(card: str, attempt: Attempt) -> Applied[int] | NotApplied:
            params = {"key": attempt.key, "target": card}
            found = (await http.request("GET", "/effects", params=params, timeout=attempt.timeout)).json()
            return Applied(int(found["effects"])) if found["rows"] else NotApplied()

        tool = sw.write(**{"target": "card", "wait": wait_fixed(0.02), **options})(shell.colours(charge))
        if reads:
            tool.reconcile(shell.colours(find))
        return tool

    return declare


@pytest.mark.parametrize("step", ["lose_response", "reset_after", "hang_after", "error_after"])
def test_applied_without_a_good_answer_it_is_read_back_in_the_same_call(
    step: str, shell: Shell, dependency: ScriptedDependency, charge: Callable[..., Any]
) -> None:
    """Closed, reset, silent, 500: the effect is found by its key, and the dependency saw one write."""
    dependency.script(step, target="c1")
    outcome = shell.call(charge(timeout=0.3).outcome, "c1")
    assert (outcome.state, outcome.value, outcome.attempts) == ("applied", 1, 1)
    assert dependency.effects("c1") == 1


@pytest.mark.parametrize("step", ["never", "reset"])
def test_never_processed_it_is_sent_again_once_that_is_proven(
    step: str, shell: Shell, dependency: ScriptedDependency, charge: Callable[..., Any]
) -> None:
    """After the work bound a read proves the absence; the second attempt is the only effect."""
    dependency.script(step, target="c1")
    tool = charge(timeout=0.2, dependency=BOUNDED)
    outcome = shell.call(tool.outcome, "c1")
    # A coroutine is cancelled and seen to end; a thread ends by its client's own limit, the attempt's.
    assert (outcome.state, outcome.value, outcome.attempts) == ("applied", 1, 2)
    assert dependency.effects("c1") == 1


def test_what_lands_later_than_its_caller_waited_is_never_doubled(
    shell: Shell, dependency: ScriptedDependency, charge: Callable[..., Any]
) -> None:
    """No bound is declared: unknown at first, one effect, and the next look finds it."""
    dependency.script(late(0.4), target="c1")
    tool = charge(timeout=0.2)
    told = shell.call(tool.options(deadline=Deadline(0.6, minimum=0.1)).outcome, "c1")
    assert told.state in ("unknown", "applied")
    dependency.wait_for_effects("c1")
    outcome = eventually(lambda: (o := shell.call(tool.outcome, "c1")).state == "applied" and o)
    assert (outcome.value, dependency.effects("c1")) == (1, 1)


def test_a_slow_drip_ends_on_time(
    shell: Shell, dependency: ScriptedDependency, charge: Callable[..., Any]
) -> None:
    """Each byte comes within the client's read timeout; the whole exchange is bounded all the same."""
    dependency.script(drip(10.0), target="c1")
    began = time.monotonic()
    with pytest.raises(OutcomeUnknown):
        shell.call(charge(timeout=0.3, reads=False), "c1")
    assert time.monotonic() - began < 3.0
    assert dependency.effects("c1") == 1


def test_a_refused_connection_is_sent_again_without_a_read(
    shell: Shell, dependency: ScriptedDependency, charge: Callable[..., Any]
) -> None:
    """Nobody listened, so nothing arrived: the later attempt is the first request."""
    tool = charge(max_attempts=1)
    with dependency.pause_listening():
        outcome = shell.call(tool.outcome, "c1")
    assert (outcome.state, outcome.again, outcome.sent) == ("not_applied", True, False)
    assert shell.call(tool, "c1") == 1
    assert len(dependency.requests("c1")) == 1


def test_a_recognised_key_is_sent_again_and_the_dependency_answers_with_the_first_effect(
    shell: Shell, dependency: ScriptedDependency, charge: Callable[..., Any]
) -> None:
    """The very same request under the same key: one effect, two requests of equal body."""
    dependency.promise(keys="forever")
    dependency.script("lose_response", target="c1")
    outcome = shell.call(charge(reads=False, dependency=KEYED).outcome, "c1")
    assert (outcome.state, outcome.value, outcome.attempts) == ("applied", 1, 2)
    first, second = dependency.requests("c1")
    assert first["body"] == second["body"]
    assert first["headers"]["idempotency-key"] == second["headers"]["idempotency-key"]
    assert dependency.effects("c1") == 1


def test_a_deadline_that_the_dependency_enforces_settles_the_attempt(
    shell: Shell, dependency: ScriptedDependency, charge: Callable[..., Any]
) -> None:
    """Past the instant that the attempt carried it can no longer land: absent by the read is proof."""
    dependency.promise(honours_deadline=True)
    dependency.script("never", target="c1")
    promise = Dependency("strict", honours_deadline=True, read_lag=0.0, clock_skew=0.05)
    outcome = shell.call(charge(timeout=0.2, dependency=promise).outcome, "c1")
    assert (outcome.state, outcome.attempts, dependency.effects("c1")) == ("applied", 2, 1)


def test_fifty_timeouts_leave_the_connection_pool_as_it_was(
    shell: Shell, dependency: ScriptedDependency, charge: Callable[..., Any]
) -> None:
    """A pool of one connection: what each timed-out call held is released, and a normal call answers."""
    dependency.script(*["never"] * 50)
    tool = charge(timeout=0.02, reads=False)
    for n in range(50):
        assert shell.call(tool.outcome, f"c{n}").state != "applied"
    normal = charge(timeout=5.0, reads=False, name="normal")
    dependency.reset()
    assert shell.call(normal, "last") == 1


def test_a_late_frame_is_never_the_answer_to_the_next_call(
    shell: Shell, dependency: ScriptedDependency, charge: Callable[..., Any]
) -> None:
    """The connection of a timed-out call is not used again: the second target gets its own answer."""
    dependency.script({"step": "slow", "seconds": 0.3}, target="c1")
    tool = charge(timeout=0.1, reads=False)
    assert shell.call(tool.outcome, "c1").state == "unknown"
    assert shell.call(charge(timeout=5.0, reads=False, name="other"), "c2") == 1
    dependency.wait_for_effects("c1")
    assert [e["target"] for e in dependency.effects_log("c2")] == ["c2"]


def test_requests_reads_back_as_well(sw: SafeWrite, dependency: ScriptedDependency) -> None:
    """The other common client: its ReadTimeout is no TimeoutError, and is looked into all the same."""

    @sw.write(target="card", timeout=0.3)
    def charge(card: str, attempt: Attempt) -> int:
        reply = requests.post(
            f"{dependency.url}/cards/{card}/charge", headers=attempt.headers, timeout=attempt.timeout / 2
        )
        reply.raise_for_status()
        return int(reply.json()["effects"])

    @charge.reconcile
    def _(card: str, attempt: Attempt) -> Applied[int] | NotApplied:
        found = requests.get(f"{dependency.url}/effects", params={"key": attempt.key}, timeout=5.0).json()
        return Applied(int(found["effects"])) if found["rows"] else NotApplied()

    dependency.script("hang_after", target="c1")
    outcome = charge.outcome("c1")
    assert (outcome.state, outcome.value, outcome.evidence) == ("applied", 1, "reconciled")
    assert dependency.effects("c1") == 1


# A database pool ------------------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    """A database of the application's own, with a pool of one connection."""
    about = {"poolclass": sqlalchemy.QueuePool, "pool_size": 1, "max_overflow": 0, "pool_timeout": 5.0}
    made = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/mine.db", **about)  # type: ignore[call-overload]
    with made.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE mine (x TEXT)"))
    yield made
    made.dispose()


def test_fifty_timeouts_leave_a_database_pool_as_it_was(
    shell: Shell, sw: SafeWrite, engine: sqlalchemy.Engine
) -> None:
    """Bodies that outlast their limit with the only connection in hand: once they end the next call has it."""

    async def insert(x: str, attempt: Attempt) -> int:
        with engine.begin() as connection:
            connection.execute(sqlalchemy.text("INSERT INTO mine VALUES (:x)"), {"x": x})
            if x.startswith("hangs"):
                if shell.plain:
                    attempt.cancelled.wait(5.0)
                    raise TimeoutError
                await asyncio.sleep(5.0)
        return 1

    short = sw.write(target="x", name="short", timeout=0.01)(shell.colours(insert))
    for n in range(50):
        assert shell.call(short.outcome, f"hangs {n}").state != "applied"
    normal = sw.write(target="x", name="normal", timeout=5.0)(shell.colours(insert))
    assert shell.call(normal, "last") == 1
    with engine.connect() as connection:
        assert connection.execute(sqlalchemy.text("SELECT x FROM mine")).scalars().all() == ["last"]
