"""`run_bounded`: what goes in, what comes out, and what is refused.  How commands end is tested beside it."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from safewrite import ConfigurationError
from safewrite.adapters import _command, _ended
from safewrite.adapters import subprocess as adapter
from safewrite.adapters._kept import Kept
from safewrite.adapters.subprocess import (
    CommandError,
    CommandFailed,
    CommandNotStarted,
    CommandTimeout,
    Completed,
    arun_bounded,
    run_bounded,
)
from safewrite.attempt import Attempt
from safewrite.context import _attempt
from safewrite.core.events import OutcomeState
from safewrite.core.evidence import describe, from_exception
from safewrite.shell.clock import ticks


def sh(script: str, **options: Any) -> Completed[Any]:
    """Run a script."""
    return run_bounded(["sh", "-c", script], **{"timeout": 60, **options})


@contextmanager
def attempt(left: float) -> Iterator[Attempt]:
    """Be in the body of an attempt with `left` seconds."""
    now = Attempt(id="a1", number=1, key="k", end=ticks() + left, deadline_at=0.0)
    token = _attempt.set(now)
    try:
        yield now
    finally:
        _attempt.reset(token)


# Output and input -------------------------------------------------------------------------------------------------


def test_a_command_that_ends_by_itself_is_told_as_it_was() -> None:
    """Both streams, the status, the program's name, and nothing left behind."""
    done = sh("echo out; echo err >&2; exit 3")
    assert (done.program, done.returncode, done.stdout, done.stderr) == ("sh", 3, "out\n", "err\n")
    assert (done.stdout_dropped, done.stderr_dropped, done.escaped) == (0, 0, ())
    assert done.searched is (sys.platform == "linux")
    assert done.seconds > 0.0


def test_a_status_of_a_signal_is_negative() -> None:
    """As `subprocess` has it."""
    assert sh("kill -9 $$").returncode == -9


def test_outputs_are_not_in_the_repr() -> None:
    """What a program writes may be secret, and reprs end up in logs."""
    assert "hunter2" not in repr(sh("echo hunter2; echo hunter2 >&2"))


def test_text_is_decoded_and_never_fails() -> None:
    """UTF-8 unless told otherwise; what cannot be decoded is replaced."""
    assert sh(r"printf 'gr\303\274n\377'").stdout == "grün\ufffd"
    assert sh(r"printf 'gr\374n'", encoding="latin-1").stdout == "grün"


def test_bytes_stay_bytes() -> None:
    """Every byte comes through, and nothing is translated."""
    every = bytes(range(256)) * 10
    done = run_bounded(["cat"], input=every, text=False, timeout=60)
    assert (done.stdout, done.stderr) == (every, b"")


def test_input_is_text_for_a_text_command() -> None:
    """In the same encoding as the output."""
    assert run_bounded(["cat"], input="grün", timeout=60, encoding="utf-16").stdout == "grün"
    assert run_bounded(["cat"], input="", timeout=60).stdout == ""


def test_more_than_a_pipe_holds_goes_both_ways() -> None:
    """Writing and reading at once: a program that answers while it reads does not block."""
    much = "x" * 3_000_000
    assert run_bounded(["cat"], input=much, timeout=60, max_output=4_000_000).stdout == much


def test_a_program_need_not_read_its_input() -> None:
    """Its end of the pipe is closed: that is its own affair."""
    assert run_bounded(["true"], input="x" * 3_000_000, timeout=60).returncode == 0


def test_without_input_there_is_nothing_to_read() -> None:
    """Our own stdin is never the program's: it would wait for a terminal."""
    assert run_bounded(["cat"], timeout=60).stdout == ""


def test_long_output_keeps_beginning_and_end() -> None:
    """And says in between how much was dropped; the count is there as well."""
    done = sh("echo begin; head -c 5000000 /dev/zero | tr '\\0' x; echo end", max_output=1000)
    assert done.stdout.startswith("begin\nxxx")
    assert done.stdout.endswith("xxxend\n")
    assert done.stdout_dropped == 5_000_000 + len("begin\nend\n") - 1000
    assert f"\n[... {done.stdout_dropped} bytes dropped ...]\n" in done.stdout
    assert done.stderr_dropped == 0


def test_long_bytes_hold_no_foreign_text() -> None:
    """In bytes only the count tells of the gap."""
    done = sh("head -c 500 /dev/zero; head -c 500 /dev/zero >&2", text=False, max_output=100)
    assert (done.stdout, done.stdout_dropped) == (bytes(100), 400)
    assert (done.stderr, done.stderr_dropped) == (bytes(100), 400)


@pytest.mark.parametrize("limit", [0, 1, 2, 5, 9, 10, 11])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_head_and_tail_are_those_of_the_stream(limit: int, size: int) -> None:
    """However the stream comes in, however little is kept."""
    stream = b"0123456789"
    kept = Kept(limit)
    for start in range(0, len(stream), size):
        kept.add(stream[start : start + size])
    head, tail = (limit + 1) // 2, limit // 2
    whole = limit >= len(stream)
    assert kept.raw() == (stream if whole else stream[:head] + stream[len(stream) - tail :])
    assert kept.dropped == (0 if whole else len(stream) - limit)
    assert kept.end(3) == (stream[-3:] if whole else stream[len(stream) - min(3, tail) :])


def test_what_was_dropped_is_counted_once() -> None:
    """Looking at what was kept changes nothing about it."""
    kept = Kept(4)
    for chunk in (b"abc", b"def", b"ghi"):
        kept.add(chunk)
        kept.text("utf-8")
    assert kept.text("utf-8") == "ab\n[... 5 bytes dropped ...]\nhi"


def test_environment_and_directory_are_given_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`env` replaces the environment but for the marker, as `subprocess.run` does; without it ours is inherited."""
    monkeypatch.setenv("OURS", "1")
    done = sh("echo $OURS-$THEIRS-$SAFEWRITE_COMMAND; pwd", env={"THEIRS": "2"}, cwd=tmp_path)
    values, where = done.stdout.split()
    assert values.startswith("-2-")
    assert len(values) > 20
    assert Path(where) == tmp_path.resolve()
    assert sh("echo $OURS").stdout == "1\n"


def test_a_command_of_a_command_carries_both_markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the outer one finds what the inner one left."""
    monkeypatch.setenv("SAFEWRITE_COMMAND", "outer")
    outer, inner = sh("echo $SAFEWRITE_COMMAND").stdout.strip().split(":")
    assert outer == "outer"
    assert len(inner) == 32


# Errors -----------------------------------------------------------------------------------------------------------


def test_a_failure_is_an_error_on_demand() -> None:
    """With the program's name and the status, and as `subprocess.CalledProcessError`, for those who catch that."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        sh("echo out; echo broken >&2; exit 7 # --password-file", check=True)
    error = caught.value
    assert isinstance(error, CommandFailed)
    assert (error.program, error.returncode, error.stdout, error.stderr) == ("sh", 7, "out\n", "broken\n")
    assert str(error) == (
        "`sh` ended with status 7. It may have done part of its work. The end of its stderr:\nbroken"
    )
    with pytest.raises(CommandFailed, match="ended with signal 9"):
        sh("kill -9 $$", check=True)
    assert sh("true", check=True).returncode == 0


def test_an_error_never_shows_the_command_line() -> None:
    """Arguments may hold secrets: neither message, repr, description nor `cmd` has them."""
    with pytest.raises(CommandFailed) as caught:
        run_bounded(["/bin/sh", "-c", "exit 1", "s3cret-argument"], timeout=60, check=True)
    error = caught.value
    for text in (str(error), repr(error), describe(error), str(error.cmd)):
        assert "s3cret" not in text
    assert error.cmd == "sh"


def test_stderr_in_an_error_is_redacted_and_short() -> None:
    """The last 2000 bytes, redacted before they are cut, so that half a secret is recognised, too."""
    script = "printf 'password=%s' $(head -c 2010 /dev/zero | tr '\\0' s) >&2; echo ' end' >&2; exit 1"
    with pytest.raises(CommandFailed) as caught:
        sh(script, check=True)
    assert caught.value.stderr_tail == "password=[redacted] end"
    assert "ssss" not in str(caught.value)
    with pytest.raises(CommandFailed) as caught:
        sh("head -c 9000 /dev/zero | tr '\\0' '.' >&2; echo end >&2; exit 1", check=True)
    assert caught.value.stderr_tail == "." * 1996 + "end"


def test_stderr_of_another_encoding_is_redacted_as_well() -> None:
    """It is read as it was written: UTF-16 taken for UTF-8 would hide a secret between zeros."""
    with pytest.raises(CommandFailed) as caught:
        run_bounded(
            ["sh", "-c", "cat >&2; exit 1"], timeout=60, input="password=abc", encoding="utf-16", check=True
        )
    assert caught.value.stderr_tail == "password=[redacted]"


def test_errors_survive_a_process_boundary() -> None:
    """Pickled and back, all that they carry is there."""
    for error in errors_of_all_kinds():
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def errors_of_all_kinds() -> list[Exception]:
    """Return one of each."""
    found: list[Exception] = []
    for args, options in (
        (["sh", "-c", "sleep 60"], {"timeout": 0.05}),
        (["sh", "-c", "exit 3"], {"timeout": 60, "check": True}),
    ):
        with pytest.raises(CommandError) as caught:
            run_bounded(args, **options)  # type: ignore[call-overload]
        found.append(caught.value)
    found.append(adapter.CommandLost("lost", program="sh", escaped=(12,), stdout=b"", stderr=b""))
    return found


def test_what_a_command_did_is_unknown_whatever_happened_to_it() -> None:
    """After a kill, a status or a lost status the write is unknown, with a reason of its own."""
    reasons = []
    for error in errors_of_all_kinds():
        finding = from_exception(error)
        assert finding.outcome is OutcomeState.UNKNOWN
        reasons.append(finding.reason)
    assert reasons == ["process_timeout", "process_failed", "unlisted_exception"]


def test_what_still_runs_is_named() -> None:
    """The person who reads the message has to know where to look."""
    assert str(errors_of_all_kinds()[-1]) == "lost Still running: 12."


def refused(args: Any, **options: Any) -> CommandNotStarted:
    """Return the error of a command that cannot be started."""
    with pytest.raises(CommandNotStarted) as caught:
        run_bounded(args, **{"timeout": 60, **options})
    return caught.value


def test_what_could_not_be_started_was_not_done(tmp_path: Path) -> None:
    """No such program, no right to it, no such directory, an impossible argument: not applied, proven."""
    not_executable = tmp_path / "tool"
    not_executable.write_text("#!/bin/sh\n")
    for error, cause in (
        (refused(["no-such-program", "s3cret"]), FileNotFoundError),
        (refused([not_executable]), PermissionError),
        (refused(["true"], cwd=tmp_path / "none"), FileNotFoundError),
        (refused(["true", "a\0b"]), ValueError),
    ):
        assert isinstance(error.__cause__, cause)
        assert isinstance(error, OSError)
        assert error.again is False
        assert "s3cret" not in str(error)
        assert "was not started" in str(error)
        assert from_exception(error).outcome is OutcomeState.NOT_APPLIED


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EAGAIN, errno.ENOMEM])
def test_a_machine_without_room_may_be_asked_again(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many files or processes pass; a missing program does not."""

    def full(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(subprocess.Popen, "_execute_child", full)
    assert refused(["true"]).again is True
    monkeypatch.undo()
    monkeypatch.setattr(_command.os, "pipe", full)
    assert refused(["true"]).again is True


# Limits -----------------------------------------------------------------------------------------------------------


def test_a_limit_ends_the_command() -> None:
    """With what it wrote until then, its name and its budget; `except subprocess.TimeoutExpired` catches it, too."""
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        sh("echo out; echo err >&2; exec sleep 60", timeout=1)
    error = caught.value
    assert isinstance(error, CommandTimeout)
    assert (error.program, error.budget, error.timeout, error.cmd) == ("sh", 1.0, 1.0, "sh")
    assert (error.stdout, error.stderr, error.stderr_tail) == ("out\n", "err\n", "err")
    assert "with a limit of 1.000 s" in str(error)


def test_a_limit_may_be_a_timedelta() -> None:
    """As everywhere else."""
    with pytest.raises(CommandTimeout) as caught:
        sh("sleep 60", timeout=timedelta(milliseconds=50), grace=timedelta(seconds=1), text=False)
    assert (caught.value.budget, caught.value.stdout) == (0.05, b"")


def test_in_an_attempt_the_limit_is_what_is_left_of_it() -> None:
    """A little less, so that the command's own error is told before nobody listens any more."""
    with attempt(1.0), pytest.raises(CommandTimeout) as caught:
        sh("sleep 60", timeout=None)
    assert 0.8 < caught.value.budget <= 0.9
    with attempt(9.0):
        assert 8.4 < adapter._limit(None, "sh") <= 8.5
        assert adapter._limit(2.0, "sh") == 2.0
        assert 8.4 < adapter._limit(600.0, "sh") <= 8.5


def test_a_command_is_not_started_for_an_attempt_that_is_over() -> None:
    """Nothing runs, and the error says so."""
    with attempt(-1.0):
        error = refused(["true"])
    assert "nothing is left of the attempt" in str(error)
    assert from_exception(error).outcome is OutcomeState.NOT_APPLIED


def test_output_is_progress() -> None:
    """The idle watchdog sees that the work moves."""
    with attempt(60.0) as now:
        sh("echo one; read _; echo two", input="\n")
        assert now.progress_count >= 1


def test_in_a_tool_nobody_waits_for_the_command_is_ended() -> None:
    """An attempt that was given up takes its command along."""
    with attempt(60.0) as now:
        now.cancelled.set()
        with pytest.raises(CommandTimeout, match="nobody waits for it any more"):
            sh("sleep 60")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"timeout": None}, "`timeout` was left out"),
        ({"timeout": 0}, "`timeout` is 0"),
        ({"timeout": -1}, "`timeout` is -1"),
        ({"timeout": float("nan")}, "`timeout` is nan"),
        ({"timeout": float("inf")}, "`timeout` is inf"),
        ({"timeout": "5"}, "`timeout` is '5'"),
        ({"timeout": True}, "`timeout` is True"),
        ({"grace": -1}, "`grace` is -1"),
        ({"grace": float("nan")}, "`grace` is nan"),
        ({"max_output": -1}, "`max_output` is -1"),
        ({"max_output": 1.5}, "`max_output` is 1.5"),
        ({"max_output": True}, "`max_output` is True"),
        ({"input": b"x"}, "`input` is bytes"),
        ({"input": "x", "text": False}, "`input` is str"),
        ({"encoding": "utf-99"}, "`encoding` is 'utf-99'"),
        ({"args": "rm -rf x"}, "`args` is a str."),
        ({"args": []}, "`args` is a list that is empty"),
        ({"args": Path("x")}, "`args` is a PosixPath"),
        ({"args": {"git"}}, "`args` is a set"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], named: str) -> None:
    """The error names the argument, its value and what to write; nothing is started."""
    given = {"args": ["true"], "timeout": 5, **options}
    with pytest.raises(ConfigurationError) as sync_error:
        run_bounded(given.pop("args"), **given)
    assert named in str(sync_error.value)
    given = {"args": ["true"], "timeout": 5, **options}
    with pytest.raises(ConfigurationError) as async_error:
        asyncio.run(arun_bounded(given.pop("args"), **given))
    assert str(sync_error.value) == str(async_error.value)


def test_windows_is_told_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are no process groups: an error before anything is started."""
    monkeypatch.setattr(adapter, "sys", SimpleNamespace(platform="win32"))
    with pytest.raises(ConfigurationError, match="Windows"):
        run_bounded(["true"], timeout=5)


def test_the_grace_is_two_seconds_unless_it_is_given() -> None:
    """Between TERM and KILL, for both colours."""
    for run in (run_bounded, arun_bounded):
        assert inspect.signature(run).parameters["grace"].default == 2.0


def test_public_names_live_where_they_are_imported_from() -> None:
    """Tracebacks and records say `safewrite.adapters.subprocess.CommandTimeout`."""
    for name in adapter.__all__:
        assert getattr(adapter, name).__module__ == "safewrite.adapters.subprocess"
    assert _ended.CommandTimeout is CommandTimeout
