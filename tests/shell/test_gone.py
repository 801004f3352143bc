"""A process that is gone holds up nobody, wherever in its call it went."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import safewrite
from safewrite import Applied, NotApplied, SafeWrite
from safewrite.shell import process
from tests.ledger.faults import in_child

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="elsewhere nobody can tell")

VICTIM = """
import os, sys, safewrite

sw = safewrite.SafeWrite(sys.argv[1], lease_margin=600.0)

@sw.write(target="sub_id", name="cancel", timeout=5.0)
def cancel(sub_id: str) -> str:
    if sys.argv[2] == "in the body":
        os._exit(9)
    if sys.argv[2] == "until it is killed":
        print("in the body", flush=True)
        sys.stdin.read()
    raise TimeoutError

@cancel.reconcile
def _(sub_id: str):
    os._exit(9)

with safewrite.run("run-1"), safewrite.turn(1):
    cancel.outcome("sub_1")
"""


@LINUX
@pytest.mark.parametrize("place", ["in the body", "in the read after it"])
def test_a_live_lease_of_a_process_that_is_gone_is_not_waited_for(tmp_path: Path, place: str) -> None:
    """Also when its body was seen to end before: the next call looks at once, and gets its answer."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    died = subprocess.run([sys.executable, "-c", VICTIM, url, place], env=environ, check=False)
    assert died.returncode == 9
    sw = SafeWrite(url)

    @sw.write(target="sub_id", name="cancel", timeout=5.0)
    def cancel(sub_id: str) -> str:
        raise AssertionError("nothing is sent beside an open attempt")

    @cancel.reconcile
    def _(sub_id: str) -> Applied[str] | NotApplied:
        return Applied("cancelled")

    began = time.monotonic()
    with safewrite.run("run-1"), safewrite.turn(1):
        outcome = cancel.outcome("sub_1")
    assert (outcome.state, outcome.value, outcome.sent) == ("applied", "cancelled", False)
    assert time.monotonic() - began < 10.0
    sw.close()


@LINUX
def test_whoever_waits_notices_that_the_other_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was alive at the first look, and is killed while its record is watched: nobody waits for its lease."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    environ, known_gone = {**os.environ, "PYTHONPATH": str(ROOT)}, process.known_gone
    with (
        SafeWrite(url) as sw,
        subprocess.Popen(
            [sys.executable, "-c", VICTIM, url, "until it is killed"],
            env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as victim,
    ):  # fmt: skip
        assert victim.stdout is not None
        assert victim.stdout.readline()
        seen: list[bool] = []

        def look(other: str) -> bool:
            seen.append(known_gone(other))
            if len(seen) == 2:  # the first look was made before it was decided to wait
                victim.kill()
            return seen[-1]

        monkeypatch.setattr(process, "known_gone", look)

        @sw.write(target="sub_id", name="cancel", timeout=5.0)
        def cancel(sub_id: str) -> str:
            raise AssertionError("nothing is sent beside an open attempt")

        @cancel.reconcile
        def _(sub_id: str) -> Applied[str]:
            return Applied("cancelled")

        with safewrite.run("run-1", deadline=60.0), safewrite.turn(1):
            outcome = cancel.outcome("sub_1")
        victim.kill()
    assert (seen[:2], outcome.state) == ([False, False], "applied")


@LINUX
def test_a_child_has_a_name_of_its_own() -> None:
    """It does not take what its parent has claimed for its own, nor the parent's end for its own."""
    assert process.owner().rpartition("/")[0].endswith(f"/{os.getpid()}")
    names = in_child(lambda: [process.owner(), os.getpid()])
    assert isinstance(names, list)
    assert names[0].split("/")[:3] == process.owner().split("/")[:3]
    assert names[0].split("/")[3] == str(names[1]) != str(os.getpid())


@LINUX
def test_a_process_is_known_to_be_gone_by_its_number_and_start() -> None:
    """Nobody else's number, no other start time, and never on another host."""
    host, boot, namespace, pid, started = process.owner().split("/")
    assert not process.known_gone(process.owner())
    assert process.known_gone(f"{host}/{boot}/{namespace}/{pid}/1")
    assert not process.known_gone(f"elsewhere/{boot}/{namespace}/{pid}/1")
    assert not process.known_gone("nonsense")
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    assert process.known_gone(f"{host}/{boot}/{namespace}/{done.pid}/{started}")


@LINUX
def test_a_process_that_died_and_was_not_yet_waited_for_is_known_to_be_gone() -> None:
    """A worker that was killed stays in the table as a zombie until its parent looks: it runs no more all the same."""
    ask = "from safewrite.shell import process; print(process.owner(), flush=True); input()"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", ask], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        owner = worker.stdout.readline().strip()
        assert not process.known_gone(owner)
        worker.kill()
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has taken its status
        assert process.known_gone(owner)


@LINUX
@pytest.mark.parametrize("place", ["host", "boot", "namespace"])
def test_a_number_that_means_another_process_elsewhere_proves_nothing(place: str) -> None:
    """Numbers are counted anew on each host, at each boot and in each container."""
    names = dict(
        zip(("host", "boot", "namespace", "pid", "started"), process.owner().split("/"), strict=True)
    )
    assert process.known_gone("/".join({**names, "started": "1"}.values()))
    assert not process.known_gone("/".join({**names, "started": "1", place: "another"}.values()))


@LINUX
@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])
def test_a_process_that_may_not_be_looked_at_is_not_known_to_be_gone(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    """Where `/proc` hides other users' processes (`hidepid=2`), it says of a live one that it is not there."""
    host, boot, namespace, *_ = process.owner().split("/")

    def hidden(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(Path, "read_text", hidden)
    with subprocess.Popen([sys.executable, "-c", "open(0).read()"], stdin=subprocess.PIPE) as alive:
        assert not process.known_gone(f"{host}/{boot}/{namespace}/{alive.pid}/1")
    assert process.known_gone(f"{host}/{boot}/{namespace}/{alive.pid}/1")
