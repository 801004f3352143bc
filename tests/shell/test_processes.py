"""Several processes over one ledger: killed, stopped, forked, starting in the middle, all at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import safewrite
from safewrite import SafeWrite
from tests.shell.child import main
from tests.shell.conftest import Shell, Tools
from tests.shell.remote import Remote

SERVER = multiprocessing.get_context("forkserver")
"""Processes begin as forks of one that has nothing running, and has imported everything."""
SERVER.set_forkserver_preload(["tests.shell.child", "tenacity", "pydantic"])


class Child:
    """One process, told what to do."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._pipe, theirs = SERVER.Pipe()
        self._process = SERVER.Process(target=main, args=(order, theirs))
        self._process.start()
        theirs.close()

    def line(self) -> Any:
        """Return the next thing that it says; None once it is gone."""
        try:
            return self._pipe.recv() if self._pipe.poll(30.0) else "silence"
        except EOFError:
            return None

    def told(self) -> Any:
        """Return the last thing that it says."""
        last = None
        while (said := self.line()) is not None:
            last = said
        return last

    def go(self) -> None:
        """Let it go on from where it waits."""
        self._pipe.send("go on")

    def wake(self) -> None:
        """Let it go on from where it was stopped."""
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Make sure that it is gone."""
        self._process.kill()
        self._process.join(10.0)
        self._process.close()
        self._pipe.close()


@pytest.fixture(params=["plain", "coroutine"])
def child(request: pytest.FixtureRequest, ledger_url: str, tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Starts processes over the test's ledger and one file of effects."""
    children: list[Child] = []

    def start(act: str = "apply", **order: Any) -> Child:
        about = {"url": ledger_url, "effects": str(tmp_path / "effects"), "colour": request.param}
        children.append(Child({**about, "act": act, **order}))
        return children[-1]

    yield start
    for one in children:
        one.end()


@pytest.fixture
def effects(tmp_path: Path) -> Callable[[], int]:
    """Counts the effects."""

    def count() -> int:
        path = tmp_path / "effects"
        return len(path.read_text().split()) if path.exists() else 0

    return count


def test_killed_after_the_effect_the_next_process_reads_it_back_at_once(
    child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """SIGKILL between effect and record: a process known to be gone is not waited for; one effect, also reworded."""
    assert child("apply and die", reason="first words").told()["sent"]
    began = time.monotonic()
    told = child(reason="second words").told()
    assert (told["state"], told["value"], told["sent"]) == ("applied", "read", False)
    assert time.monotonic() - began < 15.0  # its lease would have lasted 25 s
    assert effects() == 1


def test_killed_after_the_effect_without_a_read_it_is_unknown_at_once(
    child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """No promise, no read: unknown, not pending for ever and not sent again."""
    child("apply and die", reads=False).told()
    for _ in range(2):
        told = child(reads=False).told()
        assert (told["state"], told["reason"]) == ("unknown", "no_reconcile")
    assert effects() == 1


def test_killed_before_the_effect_it_is_sent_once_it_is_proven_absent(
    child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """The process is gone, nothing it left running is declared, and the read sees all: proven, sent, one effect."""
    child("die", promises="settles").told()
    told = child(promises="settles").told()
    assert (told["state"], told["value"], told["sent"], effects()) == ("applied", "done", True, 1)


def test_killed_before_the_effect_without_promises_nothing_is_sent(
    child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """What the dead process had sent may still be under way: unknown."""
    child("die").told()
    assert child(limit=0.3).told()["state"] == "unknown"
    assert effects() == 0


@pytest.mark.parametrize("act", ["die", "apply and die"])
def test_killed_at_a_dependency_that_knows_keys_the_key_is_sent_again(
    act: str, child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """With or without the effect, the next process sends under the same key: one effect."""
    sent = child(act, promises="keys", reads=False).told()["sent"]
    process = child(promises="keys", reads=False)
    assert process.line() == {"sent": sent}
    assert process.told()["state"] == "applied"
    assert effects() == 1


def test_three_processes_at_once_make_one_effect(
    child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """The losers wait and are answered with the winner's record; nobody sees an error of the database."""
    children = [child(**{"at once": True}) for _ in range(3)]
    for one in children:
        one.go()
    told = [one.told() for one in children]
    assert [(t["state"], t["value"]) for t in told] == [("applied", "done")] * 3
    assert sum(t["sent"] for t in told) == 1
    assert effects() == 1


def test_a_process_that_starts_or_recovers_in_the_middle_takes_nothing_over(
    child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """While a body runs elsewhere, recovery leaves it alone and a call waits for it."""
    first = child("wait and apply")
    assert first.line()["sent"]
    assert child(recover=True).told() == {"recovered": [("unknown", "in_flight")]}
    second = child()
    first.go()
    assert first.told()["state"] == "applied"
    told = second.told()
    assert (told["state"], told["value"], told["sent"]) == ("applied", "done", False)
    assert effects() == 1


def test_a_process_stopped_past_its_lease_is_told_what_the_other_one_found(
    child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """A applies and is stopped; B reads and answers; A wakes and hears B's record, not its own reply."""
    first = child("apply and stop", limit=0.6, margin=0.0, says="what A heard")
    assert first.line()["sent"]
    second = child(limit=5.0).told()
    assert (second["state"], second["value"], second["sent"]) == ("applied", "read", False)
    first.wake()
    assert (first.told()["value"], effects()) == ("read", 1)
    assert child().told()["value"] == "read"


def test_a_process_stopped_before_its_effect_is_not_overtaken(
    child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """The read says absent, every promise is made, but A's process lives: B sends nothing, one effect."""
    first = child("stop and apply", limit=0.6, margin=0.0, promises="settles")
    assert first.line()["sent"]
    assert child(limit=0.6, promises="settles").told()["state"] == "unknown"
    assert effects() == 0
    first.wake()
    assert first.told()["state"] == "applied"
    told = child(promises="settles").told()
    assert (told["state"], told["sent"], effects()) == ("applied", False, 1)


@pytest.mark.parametrize("promises", ["none", "keys", "settles"])
def test_a_process_frozen_between_claim_and_body_does_not_send_when_it_wakes(
    promises: str, child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """Its lease is over: whatever another one did meanwhile, its body does not begin, and it is told the record."""
    first = child(limit=0.4, margin=0.0, promises=promises, freeze=True)
    assert first.line() == {"claimed": 1}
    other = child(limit=2.0, promises=promises).told()
    # Only a dependency that knows keys lets another attempt be made beside one that may still begin.
    assert (other["state"], other["sent"]) == (
        ("applied", True) if promises == "keys" else ("unknown", False)
    )
    first.wake()
    told = first.told()
    assert (told["state"], told["sent"]) == ("applied" if promises == "keys" else "not_applied", False)
    assert effects() == (promises == "keys")


def test_recovery_settles_what_a_killed_process_left_and_a_second_one_finds_nothing(
    child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """No operator is needed: the open write is read back, and the record is closed."""
    child("apply and die").told()
    assert child(recover=True).told() == {"recovered": [("applied", "applied")]}
    assert child(recover=True).told() == {"recovered": []}
    assert effects() == 1


def test_recovery_sends_again_only_where_it_is_told_to_and_safe(
    child: Callable[..., Child], effects: Callable[[], int]
) -> None:
    """`resend=True` carries out what is proven absent, with the recorded arguments."""
    child("die", promises="settles", reason="first words").told()
    assert child(recover=True, promises="settles").told() == {"recovered": [("applied", "applied")]}
    assert effects() == 1


# Forks ---------------------------------------------------------------------------------------------------------


def in_a_fork(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a forked child."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=lambda: there.send(work()))
    process.start()
    there.close()
    try:
        assert here.poll(60.0), "it does not come to an end"
        told = here.recv()
        process.join(20)
    finally:
        process.kill()
    assert process.exitcode == 0
    return told


def test_a_forked_child_uses_the_tool_of_its_parent(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite
) -> None:
    """It drops its parent's connections and threads: replays, writes of its own, then the parent sees both."""
    cancel = tool(sw, timeout=10.0)
    with safewrite.run("r1"), safewrite.turn(1):
        assert shell.call(cancel, "sub_1") == "sub_1 done"

        def child() -> list[Any]:
            here = Shell(shell.colour)
            told = [here.call(cancel.outcome, target) for target in ("sub_1", "sub_2")]
            here.close()
            return [(o.value, o.replayed, o.sent) for o in told]

        assert in_a_fork(child) == [("sub_1 done", True, False), ("sub_2 done", False, True)]
        assert remote.count() == 1  # the child's memory is its own
        replayed = shell.call(cancel.outcome, "sub_2")
    assert (replayed.value, replayed.replayed) == ("sub_2 done", True)
    assert shell.call(cancel.options(run="r1", turn=2), "sub_3") == "sub_3 done"


def test_a_forked_child_opens_the_ledger_that_its_parent_is_opening(
    shell: Shell, tool: Tools, sw: SafeWrite
) -> None:
    """It does not wait for a thread that it does not have, and the audit calls it by its own process."""
    cancel = tool(sw)

    def child() -> Any:
        here = Shell(shell.colour)
        told = here.call(cancel.outcome, "sub_1")
        here.close()
        return told.state, sw.ledger.rows(told.intent_id)[0]["worker"], os.getpid()

    with safewrite.run("r1"), safewrite.turn(1), sw._lock:
        state, worker, process = in_a_fork(child)
    assert state == "applied"
    assert (worker, sw.worker) == (f"{os.uname().nodename}:{process}", f"{os.uname().nodename}:{os.getpid()}")


def test_a_forked_child_reaches_the_ledger_through_threads_of_its_own(sw: SafeWrite) -> None:
    """Those of its parent, idle at the fork, are not there to take anything up."""

    def look() -> Any:
        here = Shell("coroutine")
        found = here.call(sw.arecover).found
        here.close()
        return found

    assert look() == ()
    assert in_a_fork(look) == ()
