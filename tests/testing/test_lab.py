"""Crashes and races on purpose: where a process dies, what it leaves, and what the next one makes of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import safewrite
from safewrite import Applied, Attempt, Dependency, NotApplied, SafeWrite
from safewrite.shell import process
from safewrite.testing import Crashed, Lab, ManualClock, ScriptedDependency

BILLING = Dependency("billing", work_bound=5.0, read_lag=0.0)
POINTS = {
    "before_claim": ([], 0),
    "after_claim": (["claimed"], 0),
    "after_send": (["claimed"], 1),
    "after_record": (["claimed", "ended"], 1),
}
"""Where a process dies -> the rows that it leaves, and the effects."""


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab with the parts that the plugin gives it."""
    dependency = ScriptedDependency()
    dependency.transport()
    with (
        ManualClock(auto=True, patience=2.0) as clock,
        Lab(f"sqlite:///{tmp_path / 'lab.db'}", clock, dependency) as made,
    ):
        yield made


def declare(sw: SafeWrite, dependency: ScriptedDependency, *, colour: str = "plain") -> Any:
    """Declare a tool that sends to a dependency, and looks its key up there."""
    client = httpx.Client(base_url="http://inside", transport=dependency.transport())

    def look(sub_id: str, attempt: Attempt) -> Applied[dict[str, Any]] | NotApplied:
        rows = client.get("/effects", params={"key": attempt.key}).json()["rows"]
        return Applied(rows[0]) if rows else NotApplied()

    def send(sub_id: str, attempt: Attempt) -> dict[str, Any]:
        reply = client.post(f"/subs/{sub_id}/cancel", headers=attempt.headers, timeout=attempt.timeout)
        found: dict[str, Any] = reply.raise_for_status().json()
        return found

    if colour == "plain":

        @sw.write(target="sub_id", dependency=BILLING, timeout=10.0)
        def cancel(sub_id: str, attempt: Attempt) -> dict[str, Any]:
            return send(sub_id, attempt)

        tool: Any = cancel
    else:

        @sw.write(target="sub_id", dependency=BILLING, timeout=10.0)
        async def acancel(sub_id: str, attempt: Attempt) -> dict[str, Any]:
            return send(sub_id, attempt)

        tool = acancel
    tool.reconcile(look)
    return tool


def call(tool: Any) -> Any:
    """Make the call of one turn, in whichever colour."""
    with safewrite.run("run-1", call_cap=60.0), safewrite.turn(1):
        came = tool.outcome("sub_1")
        return asyncio.run(came) if asyncio.iscoroutine(came) else came


def rows(sw: SafeWrite) -> list[str]:
    """Return the events on record."""
    return [row.event for one in sw.audit.run("run-1") for row in one.rows]


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
@pytest.mark.parametrize("at", POINTS)
def test_a_process_dies_where_the_test_says_and_the_next_one_makes_it_good(
    lab: Lab, at: Any, colour: str
) -> None:
    """The rows that a death at that point leaves; then, by a new process, one effect and an honest answer."""
    cancel = declare(lab.sw, lab.dependency, colour=colour)
    with lab.crash(at=at) as crash:
        call(cancel)
        raise AssertionError("it went on")
    assert crash.happened
    left, effects = POINTS[at]
    assert (rows(lab.sw), lab.dependency.effects("sub_1")) == (left, effects)
    outcome = call(cancel)
    assert (outcome.state, lab.dependency.effects("sub_1")) == ("applied", 1)
    assert outcome.replayed is (at == "after_record")
    assert ("gone" in rows(lab.sw)) is (left == ["claimed"])


def test_a_death_while_it_looks_leaves_what_it_knew(lab: Lab) -> None:
    """The read is not on record; the next process reads again and finds the effect."""
    cancel = declare(lab.sw, lab.dependency)
    lab.dependency.script("lose_response")
    with lab.crash(at="after_read"):
        call(cancel)
    assert rows(lab.sw) == ["claimed", "ended"]
    assert call(cancel).evidence == "reconciled"
    assert lab.dependency.effects("sub_1") == 1


def test_without_a_block_it_dies_and_resumes_by_word(lab: Lab) -> None:
    """`lab.crash(...)`, then the call raises `Crashed`; nothing of that process is carried out until `resume`."""
    cancel = declare(lab.sw, lab.dependency)
    lab.crash(at="after_send")
    assert not process.known_gone("elsewhere")
    with pytest.raises(Crashed):
        call(cancel)
    with pytest.raises(Crashed):
        call(cancel)
    with pytest.raises(Crashed):
        lab.sw.audit.runs()
    lab.resume()
    assert call(cancel).state == "applied"
    assert lab.dependency.effects("sub_1") == 1


def test_what_a_dead_process_left_running_records_nothing(lab: Lab) -> None:
    """Its abandoned body ends after the next process has begun, and that end never comes on record."""
    release = threading.Event()
    ended = threading.Event()

    @lab.sw.write(target="sub_id", name="hang", timeout=1.0, max_attempts=1)
    def hang(sub_id: str) -> str:
        lab.clock.block(release)
        threading.Timer(0.05, ended.set).start()
        return "done"

    with lab.crash(at="after_send"):
        call(hang)
    assert call(hang).state == "unknown"
    before = rows(lab.sw)
    release.set()
    assert ended.wait(5.0)
    assert rows(lab.sw) == before
    assert "ended" not in before


def test_what_hangs_when_the_test_ends_is_heard_of_in_the_tests_own_ledger(tmp_path: Path) -> None:
    """A body that never came back ends with the lab, and leaves nothing in the application's ledger."""
    own = SafeWrite(f"sqlite:///{tmp_path / 'own.db'}")
    dependency = ScriptedDependency()
    client = httpx.Client(base_url="http://inside", transport=dependency.transport(), timeout=None)

    @own.write(target="sub_id", timeout=1.0)
    def cancel(sub_id: str) -> int:
        return client.post(f"/subs/{sub_id}/cancel").status_code

    url = f"sqlite:///{tmp_path / 'lab.db'}"
    with ManualClock(auto=True, patience=2.0) as clock, Lab(url, clock, dependency) as lab:
        lab.use(own)
        dependency.script("never", "never")
        with lab.crash(at="after_send"):
            call(cancel)
        assert call(cancel).state == "unknown"
        assert not any(event == "ended" for event in rows(own))
    assert not (tmp_path / "own.db").exists()
    assert not own.pool.busy
    with SafeWrite(url) as seen:
        assert rows(seen)[0] == "claimed"


def test_a_crash_that_nobody_comes_to_is_a_failure(lab: Lab) -> None:
    """A test of a crash that did not happen would prove nothing; its own failures come through."""
    with pytest.raises(AssertionError, match=r"nothing died.*`lab.use\(sw\)`"), lab.crash(at="after_send"):
        pass
    with pytest.raises(KeyError), lab.crash(at="after_send"):
        raise KeyError
    with pytest.raises(ValueError, match="before_claim, after_claim, after_send"):
        lab.crash(at="tea")  # type: ignore[arg-type]


def test_an_application_keeps_its_own_ledger(lab: Lab, tmp_path: Path) -> None:
    """`use` leads it to the test's ledger while the test runs, and back afterwards."""
    own = SafeWrite(f"sqlite:///{tmp_path / 'own.db'}")
    cancel = declare(own, lab.dependency)
    with Lab(f"sqlite:///{tmp_path / 'other.db'}", lab.clock, lab.dependency) as other:
        assert other.use(own) is own
        assert call(cancel).state == "applied"
        assert [run.run for run in own.audit.runs()] == ["run-1"]
    assert own.audit.runs() == ()
    own.close()


def test_two_workers_at_once_send_once(lab: Lab) -> None:
    """The same turn in two workers: one sends, the other is answered with its record."""
    cancel = declare(lab.sw, lab.dependency)
    first, second = lab.workers(cancel)
    with safewrite.run("run-1", call_cap=60.0), safewrite.turn(1):
        told = lab.together(lambda: first.outcome("sub_1"), lambda: second.outcome("sub_1"))
    assert [outcome.state for outcome in told] == ["applied", "applied"]
    assert sorted(outcome.sent for outcome in told) == [False, True]
    assert lab.dependency.effects("sub_1") == 1
    with pytest.raises(ValueError, match=r"`lab.use\(sw\)`"):
        lab.workers(declare(SafeWrite("sqlite://"), lab.dependency))
