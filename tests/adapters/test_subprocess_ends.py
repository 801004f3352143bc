"""`run_bounded`: nothing of a command runs on, whichever way it ends; and nobody else is touched."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from safewrite.adapters import _command, _family
from safewrite.adapters._family import Grouped, Process, Watched, may_signal, may_signal_group
from safewrite.adapters.subprocess import (
    CommandNotStarted,
    CommandTimeout,
    Completed,
    arun_bounded,
    run_bounded,
)
from safewrite.core.events import OutcomeState
from safewrite.core.evidence import from_exception
from safewrite.shell.clock import ticks

ON_LINUX = sys.platform == "linux"
needs_proc = pytest.mark.skipif(not ON_LINUX, reason="processes that left the group are found in /proc")

STUBBORN = "sh -c 'trap \"\" TERM; echo $$ >> pids; sleep 60; touch canary'"
"""A process that ignores TERM, says who it is, and would write much later."""


def sh(script: str, where: Path, **options: Any) -> Completed[Any]:
    """Run a script in a folder, with little grace."""
    return run_bounded(["sh", "-c", script], **{"timeout": 60, "grace": 0.2, "cwd": where, **options})


def runs(pid: int) -> bool:
    """Return whether a process runs, zombies not counted."""
    if not ON_LINUX:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True
    seen = _family.read(pid)
    return seen is not None and seen.state not in "ZX"


def pids(where: Path) -> list[int]:
    """Return the processes that said who they are."""
    return [int(line) for line in (where / "pids").read_text().split()]


def await_that(condition: Callable[[], bool]) -> None:
    """Wait until something holds; fail when it never does."""
    end = ticks() + 30
    while not condition():
        assert ticks() < end
        threading.Event().wait(0.01)


def said(where: Path, count: int) -> bool:
    """Return whether so many processes said who they are."""
    return (where / "pids").exists() and len(pids(where)) >= count


@pytest.fixture(params=["watched", "grouped", "without handles"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test as on Linux, as where there is no /proc, and as on a kernel that has no handles of processes."""
    if request.param == "watched" and not ON_LINUX:
        pytest.skip("no /proc here")
    if request.param == "grouped":
        monkeypatch.setattr(_command, "family", lambda token: Grouped())
    if request.param != "watched":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    return str(request.param)


@pytest.fixture(autouse=True)
def no_leftovers() -> Iterator[None]:
    """After every test: no zombie of ours, no thread of a command, nothing registered."""
    before = zombies()
    yield
    gc.collect()
    assert not _command._running
    ours = {"safewrite-command", "safewrite-reap"}
    await_that(lambda: not ours & {thread.name for thread in threading.enumerate()})
    assert zombies() <= before


def zombies() -> set[int]:
    """Return our children that ended and were not reaped."""
    if not ON_LINUX:
        return set()
    return {p.pid for p in _family._processes() if p.parent == os.getpid() and p.state == "Z"}


# At the limit -----------------------------------------------------------------------------------------------------


def test_a_limit_ends_the_whole_group(platform: str, tmp_path: Path) -> None:
    """Not only the shell: its child that ignores TERM and holds the pipe is killed, and never writes."""
    with pytest.raises(CommandTimeout) as caught:
        sh(f"{STUBBORN} & {STUBBORN} & wait", tmp_path, timeout=1.5)
    assert len(pids(tmp_path)) == 2
    assert not any(map(runs, pids(tmp_path)))
    assert not (tmp_path / "canary").exists()
    if platform != "grouped":  # there zombies count as members until the init process has reaped them
        assert caught.value.escaped == ()


def test_a_well_behaved_program_may_tidy_up(platform: str, tmp_path: Path) -> None:
    """TERM comes first, and what is written in the grace is kept; its status then does not matter."""
    script = 'trap "echo tidied; exit 0" TERM; echo ready; while :; do sleep 0.05; done'
    with pytest.raises(CommandTimeout) as caught:
        sh(script, tmp_path, timeout=1.0, grace=30)
    assert caught.value.stdout == "ready\ntidied\n"


def test_a_program_that_ends_in_the_grace_ends_the_grace(platform: str, tmp_path: Path) -> None:
    """Ten minutes of grace are not waited for."""
    with pytest.raises(CommandTimeout):
        sh("exec sleep 60", tmp_path, timeout=0.05, grace=600)


def test_no_grace_is_possible(platform: str, tmp_path: Path) -> None:
    """TERM, and KILL at once."""
    with pytest.raises(CommandTimeout):
        sh(f"exec {STUBBORN}", tmp_path, timeout=0.5, grace=0)


def test_a_flood_of_output_does_not_outlast_the_limit(tmp_path: Path) -> None:
    """A program that always has something to say is ended like any other."""
    with pytest.raises(CommandTimeout) as caught:
        sh(
            'trap "" TERM; while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done',
            tmp_path,
            timeout=0.3,
            max_output=99,
        )
    assert caught.value.stdout.startswith("xxx")


@needs_proc
def test_those_who_left_the_group_are_ended_too(tmp_path: Path) -> None:
    """A new session, a daemon whose parents are gone, another group: the marker finds them."""
    script = f"""
        setsid {STUBBORN} &
        (setsid {STUBBORN} </dev/null >/dev/null 2>&1 &)
        set -m; {STUBBORN} &
        wait
    """
    with pytest.raises(CommandTimeout) as caught:
        sh(script, tmp_path, timeout=1.5)
    assert len(pids(tmp_path)) == 3
    assert not any(map(runs, pids(tmp_path)))
    assert caught.value.escaped == ()


@needs_proc
def test_a_child_without_the_marker_is_found_by_its_parent(tmp_path: Path) -> None:
    """An emptied environment in a new session hides nobody whose parent is known."""
    clean = f"cd {tmp_path}; {STUBBORN} & wait"
    with pytest.raises(CommandTimeout):
        sh(f'setsid env -i PATH="$PATH" sh -c {_quoted(clean)} & wait', tmp_path, timeout=1.5)
    assert len(pids(tmp_path)) == 1
    assert not any(map(runs, pids(tmp_path)))


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@needs_proc
def test_those_who_left_are_found_without_handles_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a kernel without handles of processes, number and start time are compared before a signal."""
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with pytest.raises(CommandTimeout):
        sh(f"setsid {STUBBORN} & wait", tmp_path, timeout=1.5)
    assert not any(map(runs, pids(tmp_path)))


# At its own end ---------------------------------------------------------------------------------------------------


def test_what_a_command_leaves_behind_is_ended(platform: str, tmp_path: Path) -> None:
    """It ended by itself, its child holds the pipe: the call returns without waiting, and the child is gone."""
    began = ticks()
    done = sh(f"{STUBBORN} & while [ ! -s pids ]; do sleep 0.01; done; echo done", tmp_path)
    assert ticks() - began < 30
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert not any(map(runs, pids(tmp_path)))
    assert done.searched is (platform != "grouped")
    if platform != "grouped":
        assert done.escaped == ()


@needs_proc
def test_a_daemon_that_a_command_leaves_behind_is_ended(tmp_path: Path) -> None:
    """In a session of its own, with nothing in common but the marker."""
    script = f"(setsid {STUBBORN} </dev/null >/dev/null 2>&1 &) ; while [ ! -s pids ]; do sleep 0.01; done"
    assert sh(script, tmp_path).escaped == ()
    assert not any(map(runs, pids(tmp_path)))


def test_on_demand_it_is_left_and_named(platform: str, tmp_path: Path) -> None:
    """`leave=True` returns at once, though the pipe is held, and says who still runs."""
    began = ticks()
    done = sh(f"{STUBBORN} & while [ ! -s pids ]; do sleep 0.01; done; echo done", tmp_path, leave=True)
    assert ticks() - began < 30
    assert done.stdout == "done\n"
    (left,) = pids(tmp_path)
    try:
        assert runs(left)
        if platform != "grouped":
            assert left in done.escaped
        assert len(done.escaped) >= 1
    finally:
        os.killpg(os.getpgid(left), signal.SIGKILL)
        await_that(lambda: not runs(left))


def test_one_who_writes_for_ever_does_not_delay_the_return(tmp_path: Path) -> None:
    """What was left and goes on writing is read for a moment, not to its end."""
    began = ticks()
    done = sh("(echo $$ > /dev/null; exec sh -c 'echo $$ > pids; exec yes') & while [ ! -s pids ]; do sleep 0.01; done",
              tmp_path, leave=True, max_output=10)  # fmt: skip
    try:
        assert ticks() - began < 30
        assert done.stdout_dropped > 0
    finally:
        await_that(lambda: not runs(pids(tmp_path)[0]))  # nobody reads its pipe any more


def test_what_never_runs_dry_is_read_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where there is something to read at every look, the call returns."""
    real = _command.Command._pump
    monkeypatch.setattr(_command.Command, "_pump", lambda self, wait: real(self, wait) or wait == 0.0)
    assert sh("echo done", tmp_path).stdout == "done\n"


def test_at_the_limit_nothing_is_left_even_on_demand(platform: str, tmp_path: Path) -> None:
    """`leave=True` is for commands that end by themselves."""
    with pytest.raises(CommandTimeout):
        sh(f"{STUBBORN} & wait", tmp_path, timeout=1.0, leave=True)
    assert not any(map(runs, pids(tmp_path)))


@needs_proc
def test_who_cannot_be_ended_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's process, or one that hangs in the kernel: the call returns, and says which."""
    monkeypatch.setattr(Watched, "signal", lambda self, number: None)
    monkeypatch.setattr(_command, "KILL_FOR", 0.1)
    with pytest.raises(CommandTimeout) as caught:
        sh("echo $$ > pids; exec sleep 60", tmp_path, timeout=0.5)
    (left,) = pids(tmp_path)
    assert caught.value.escaped == (left,)
    assert f"Still running: {left}." in str(caught.value)
    os.kill(left, signal.SIGKILL)  # and the thread that waits for it leaves no zombie
    await_that(lambda: _family.read(left) is None)


# Coroutines -------------------------------------------------------------------------------------------------------


def test_coroutines_get_the_same() -> None:
    """Output, status, limit: as for functions, and the loop goes on meanwhile."""

    async def both() -> tuple[Completed[str], Completed[str]]:
        return await asyncio.gather(
            arun_bounded(["cat"], input="one", timeout=60),
            arun_bounded(["sh", "-c", "echo two; exit 2"], timeout=60),
        )

    one, two = asyncio.run(both())
    assert (one.stdout, two.stdout, two.returncode) == ("one", "two\n", 2)
    with pytest.raises(CommandTimeout):
        asyncio.run(arun_bounded(["sleep", "60"], timeout=0.05))
    with pytest.raises(CommandNotStarted) as caught:
        asyncio.run(arun_bounded(["no-such-program"], timeout=60))
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize("times", [1, 3])
def test_a_cancelled_command_is_ended_before_the_cancellation_goes_on(times: int, tmp_path: Path) -> None:
    """However often it is cancelled: when the task is over, so is the command."""

    async def main() -> None:
        task = asyncio.create_task(
            arun_bounded(["sh", "-c", f"{STUBBORN} & wait"], timeout=60, grace=0.3, cwd=tmp_path)
        )
        await asyncio.to_thread(await_that, lambda: said(tmp_path, 1))
        for _ in range(times):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert runs(pids(tmp_path)[0])
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not runs(pids(tmp_path)[0])

    asyncio.run(main())
    assert not (tmp_path / "canary").exists()


def test_cancelled_before_it_began_a_command_ends_at_once(tmp_path: Path) -> None:
    """Between the first step and the start of the program there is no gap."""

    async def main() -> None:
        task = asyncio.create_task(arun_bounded(["sleep", "60"], timeout=60, cwd=tmp_path))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_an_outer_limit_ends_the_command_too(tmp_path: Path) -> None:
    """`asyncio.timeout` cancels, which is an end like any other."""

    async def main() -> None:
        async with asyncio.timeout(1.0):
            await arun_bounded(["sh", "-c", f"{STUBBORN} & wait"], timeout=60, grace=0.1, cwd=tmp_path)

    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert not any(map(runs, pids(tmp_path)))


def test_a_coroutine_that_is_thrown_away_ends_its_command(tmp_path: Path) -> None:
    """Closed in the middle, with nobody to wait: the thread ends the command by itself."""
    loop = asyncio.new_event_loop()

    async def main() -> None:
        coroutine = arun_bounded(["sh", "-c", "echo $$ > pids; exec sleep 60"], timeout=60, cwd=tmp_path)
        coroutine.send(None)
        await asyncio.to_thread(await_that, lambda: said(tmp_path, 1))
        coroutine.close()

    loop.run_until_complete(main())
    loop.close()
    await_that(lambda: not runs(pids(tmp_path)[0]))
    await_that(lambda: not _command._running)


# Interrupts, and the end of the interpreter -----------------------------------------------------------------------


def program(body: str, where: Path) -> subprocess.Popen[str]:
    """Start a Python program that runs commands."""
    head = """
        import asyncio, ctypes, os, signal, subprocess, sys, threading
        from safewrite.adapters.subprocess import CommandLost, CommandTimeout, arun_bounded, run_bounded
        from safewrite.adapters import _family
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, where the tests run in the background
        stubborn = ["sh", "-c", r'''(%s) & wait''']
    """
    code = textwrap.dedent(head % STUBBORN) + textwrap.dedent(body)
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        cwd=where,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return status, stdout and stderr."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


@pytest.mark.parametrize("grace", [0.3, 600])
def test_ctrl_c_ends_the_command_before_the_interrupt_goes_on(grace: float, tmp_path: Path) -> None:
    """Once: TERM, grace, KILL.  A second one does not wait for the grace."""
    process = program(
        f"""
        try:
            run_bounded(stubborn, timeout=60, grace={grace})
        except KeyboardInterrupt:
            print("interrupted", os.getpid())
        """,
        tmp_path,
    )
    await_that(lambda: said(tmp_path, 1))
    process.send_signal(signal.SIGINT)
    if grace > 1:
        # The shell has no trap: when it is gone, TERM was sent and the grace has begun.
        await_that(lambda: _children(process.pid) == [])
        process.send_signal(signal.SIGINT)
    status, out, err = finished(process)
    assert (status, err) == (0, "")
    assert out.startswith("interrupted")
    assert not any(map(runs, pids(tmp_path)))


def _children(pid: int) -> list[int]:
    if not ON_LINUX:
        pytest.skip("no /proc here")
    return [p.pid for p in _family._processes() if p.parent == pid and p.state != "Z"]


def test_ctrl_c_ends_the_command_of_a_coroutine(tmp_path: Path) -> None:
    """`asyncio.run` cancels its main task on Ctrl-C, and waits for it."""
    process = program("asyncio.run(arun_bounded(stubborn, timeout=60, grace=0.3))", tmp_path)
    await_that(lambda: said(tmp_path, 1))
    process.send_signal(signal.SIGINT)
    status, _, err = finished(process)
    assert status != 0
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert not any(map(runs, pids(tmp_path)))


def test_a_program_that_ends_takes_its_commands_along(tmp_path: Path) -> None:
    """A thread that nobody waits for does not leave its command to the world."""
    process = program(
        """
        def body():
            try:
                run_bounded(stubborn, timeout=60, grace=0.3)
            except CommandTimeout as error:
                print(error)
        threading.Thread(target=body, daemon=True).start()
        while not os.path.exists("pids"):
            threading.Event().wait(0.01)
        """,
        tmp_path,
    )
    assert finished(process)[::2] == (0, "")
    assert not any(map(runs, pids(tmp_path)))


def test_a_forked_child_that_ends_leaves_the_commands_of_its_parent(tmp_path: Path) -> None:
    """They are not its own, though its memory knows of them."""
    process = program(
        """
        done = []
        blocked = threading.Thread(target=lambda: done.append(
            run_bounded(["sh", "-c", "echo $$ > pids; while [ ! -e go ]; do sleep 0.01; done"], timeout=60)))
        blocked.start()
        while not os.path.exists("pids"):
            threading.Event().wait(0.01)
        import warnings; warnings.simplefilter("ignore")
        child = os.fork()
        if child == 0:
            from safewrite.adapters import _command
            sys.exit(len(_command._running))
        assert os.waitpid(child, 0)[1] == 0
        open("go", "w").close()
        blocked.join()
        print(done[0].returncode)
        """,
        tmp_path,
    )
    assert finished(process) == (0, "0\n", "")


@needs_proc
@pytest.mark.parametrize("after", [True, False])
def test_an_interrupt_in_the_middle_of_a_start_loses_nothing(
    after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the fork and the moment its number is known, only the marker tells whose process it is."""
    start = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    started: list[int] = []

    def interrupted(self: Any, *args: Any) -> None:
        start(self, *args)
        started.append(self.pid)
        if not after:
            self.pid, self._child_created = None, False
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "_execute_child", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sh("trap '' TERM; sleep 60", tmp_path)
    assert len(started) == 1
    assert _family.read(started[0]) is None


@needs_proc
def test_a_third_interrupt_still_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever interrupts the killing, too, leaves one last KILL behind."""
    real = Watched.signal
    killed: list[int] = []

    def impatient(self: Watched, number: int) -> None:
        killed.append(number)
        if killed.count(signal.SIGKILL) != 1:
            real(self, number)
        else:
            raise KeyboardInterrupt

    monkeypatch.setattr(Watched, "signal", impatient)
    with pytest.raises(KeyboardInterrupt):
        sh(f"exec {STUBBORN}", tmp_path, timeout=0.5)
    assert killed == [signal.SIGTERM, signal.SIGKILL, signal.SIGKILL]
    await_that(lambda: not any(map(runs, pids(tmp_path))))


@needs_proc
def test_who_cannot_look_kills_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a file to spare nobody can be found: the group is killed, and what it did is unknown."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    real = Watched.ended

    def ended(self: Watched) -> bool:
        if said(tmp_path, 2):
            monkeypatch.setattr(_family, "_processes", full)
        return real(self)

    monkeypatch.setattr(Watched, "ended", ended)
    with pytest.raises(OSError, match="Too many") as caught:
        sh(f"{STUBBORN} & {STUBBORN} & wait", tmp_path, timeout=1.5)
    monkeypatch.undo()
    assert not isinstance(caught.value, CommandNotStarted)
    assert from_exception(caught.value).outcome is OutcomeState.UNKNOWN
    await_that(lambda: not any(map(runs, pids(tmp_path))))


# Others are left alone --------------------------------------------------------------------------------------------


def test_nobody_else_may_be_signalled() -> None:
    """Init, everybody, our group, ourselves: never, whatever led there."""
    assert not any(map(may_signal, (-5, -1, 0, 1, os.getpid())))
    assert not any(map(may_signal_group, (-5, -1, 0, 1, os.getpgrp())))
    assert may_signal(os.getpid() + 1)
    assert may_signal_group(os.getpgrp() + 1)


def test_a_family_without_a_leader_signals_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything was started there is no group: 0 would be our own."""
    signalled: list[Any] = []
    monkeypatch.setattr(os, "killpg", lambda *args: signalled.append(args))
    monkeypatch.setattr(os, "kill", lambda *args: signalled.append(args))
    for family in (Grouped(), Watched("no such token")):
        family.signal(signal.SIGKILL)
        assert not family.alive()
        assert family.left() == ()
        family.last_resort()
        assert family.reap() is None
        assert not family.adopted
    assert Grouped().ended()
    assert signalled == []


@needs_proc
@pytest.mark.parametrize("handles", [True, False])
def test_a_number_that_was_given_to_somebody_else_is_not_signalled(
    handles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Number and start time name a process; the number alone may be a stranger's by now."""
    if not handles:
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append(number))
    monkeypatch.setattr(signal, "pidfd_send_signal", lambda handle, number: sent.append(number))
    with subprocess.Popen(["sleep", "60"]) as stranger:
        seen = _family.read(stranger.pid)
        assert seen is not None
        _family._send(Process(seen.pid, "S", 1, seen.pid, seen.pid, seen.started - 1), signal.SIGKILL)
        assert sent == []
        _family._send(seen, signal.SIGTERM)
        assert sent == [signal.SIGTERM]
        monkeypatch.undo()
        if not handles:
            monkeypatch.delattr(os, "pidfd_open", raising=False)
        _family._send(seen, signal.SIGKILL)
        assert stranger.wait() == -9
    _family._send(seen, signal.SIGKILL)  # it is gone: nothing happens


@needs_proc
def test_a_leader_that_is_not_ours_is_not_taken_for_the_command() -> None:
    """If somebody else reaped it and its number went to a stranger, the stranger's group is left alone."""
    script = "sleep 60 & echo $!; exec sleep 60"
    with subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as parent:
        assert parent.stdout is not None
        stranger = int(parent.stdout.readline())
        family = Watched("no such token")
        parent_pid, parent.pid = parent.pid, stranger  # a process whose parent is not us
        family.adopt(parent)
        parent.pid = parent_pid
        assert not family.alive()
        family.signal(signal.SIGKILL)
        assert runs(stranger)
        os.killpg(parent_pid, signal.SIGKILL)


@needs_proc
def test_a_status_taken_by_somebody_else_is_not_a_success(tmp_path: Path) -> None:
    """With SIGCHLD ignored the kernel reaps: nobody knows the status, and `Popen` would say 0."""
    process = program(
        f"""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            run_bounded(["sh", "-c", '''(trap "" TERM; echo $$ >> pids; {STUBBORN}) & while [ ! -s pids ]; do
                        sleep 0.01; done; exit 3'''], timeout=60, grace=0.2)
        except CommandLost as error:
            print(error)
        _family.family = lambda token: _family.Grouped()
        from safewrite.adapters import _command
        _command.family = _family.family
        try:
            run_bounded(["sh", "-c", "exit 3"], timeout=60, grace=0.2)
        except CommandLost as error:
            print(error)
        """,
        tmp_path,
    )
    status, out, err = finished(process)
    assert (status, err) == (0, "")
    assert out.count("`sh` is over, but its status was taken by somebody else") == 2
    assert not any(map(runs, pids(tmp_path)))


@needs_proc
def test_where_orphans_become_our_children_they_are_reaped(tmp_path: Path) -> None:
    """As in a container without an init process: nobody else would."""
    (tmp_path / "tool").write_text(STUBBORN)
    process = program(
        """
        assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER
        script = "(setsid sh tool &) ; sh tool & while [ $(cat pids | wc -l) -lt 2 ]; do sleep 0.01; done"
        run_bounded(["sh", "-c", script], timeout=60, grace=0.2)
        print([p for p in _family._processes() if p.parent == os.getpid()])
        """,
        tmp_path,
    )
    assert finished(process) == (0, "[]\n", "")


# Nothing is left in us --------------------------------------------------------------------------------------------


@needs_proc
def test_a_hundred_commands_leave_no_zombie_no_file_and_no_thread(tmp_path: Path) -> None:
    """Whether they end by themselves, by a limit, by a cancellation, or never start."""

    def files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def cancelled() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await arun_bounded(["sleep", "60"], timeout=60)

    run_bounded(["true"], timeout=60)
    asyncio.run(cancelled())
    gc.collect()
    before, threads = files(), threading.active_count()
    for _ in range(25):
        run_bounded(["true"], timeout=60)
        with pytest.raises(CommandTimeout):
            run_bounded(["sleep", "60"], timeout=0.01)
        asyncio.run(cancelled())
        with pytest.raises(OSError, match="not started"):
            run_bounded(["no-such-program"], timeout=60)
    gc.collect()
    await_that(lambda: threading.active_count() <= threads)
    assert files() <= before
