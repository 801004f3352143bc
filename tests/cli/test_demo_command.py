"""The command `demo`: what it prints and keeps, what it refuses, and that it leaves nothing when it is ended early."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer
from rich.console import Console

from safewrite.cli import demo as command
from safewrite.cli import performance as report
from safewrite.cli.exits import Exit
from safewrite.cli.output import Output
from safewrite.demo.performance import Performance, perform
from safewrite.demo.record import read
from safewrite.demo.scenario import Scenario
from safewrite.demo.scenarios import SCENARIOS
from safewrite.demo.signals import delayed, termination_interrupts, undisturbed
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]
LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="asks /proc who is still there")


def named(name: str) -> Scenario:
    """Return the scenario of that name."""
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Performance:
    """A performance of one write that goes well."""
    return perform(tmp_path_factory.mktemp("quiet"), [named("quiet write")])


# The command -----------------------------------------------------------------------------------------------------


def started(*arguments: str, cwd: Path, **options: Any) -> subprocess.Popen[str]:
    """Start the command as a process of its own, in a folder of its own."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    environ |= options.pop("env", {})
    program = [
        sys.executable,
        "-W",
        "error",
        "-c",
        "from safewrite.cli import main; main()",
        "demo",
        *arguments,
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen(program, cwd=cwd, env=environ, text=True, start_new_session=True, **pipes)


def alive(mark: str) -> list[int]:
    """Return the processes that have the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def gone(mark: str, within: float = 60.0) -> bool:
    """Return whether no process with the mark is left in time."""
    end = time.monotonic() + within
    while alive(mark):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """Return a folder to start in, which must be as empty afterwards."""
    place = tmp_path / "empty"
    place.mkdir()
    return place


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a folder for what is kept."""
    place = tmp_path / "kept"
    place.mkdir()
    return place


@LINUX
def test_what_is_kept_can_be_looked_at_and_nothing_else_is_left(empty: Path, kept: Path) -> None:
    """One document on standard output, three files in DIR, the ledger readable, and no process."""
    mark = uuid4().hex
    done = started("--json", "--keep", str(kept), "--only", "two workers", cwd=empty, env={"MARK": mark})
    out, err = done.communicate(timeout=60)
    assert (done.returncode, err) == (0, "")
    assert gone(mark)
    assert list(empty.iterdir()) == []
    assert sorted(p.name for p in kept.iterdir()) == ["demo.json", "dependency.jsonl", "safewrite.db"]
    document = json.loads(out)
    assert document == json.loads((kept / "demo.json").read_text())
    (intent,) = read(kept, document["run"])
    assert intent.outcome == "applied"
    workers = {row.worker for row in intent.rows}
    assert len(workers) == 1
    assert workers <= {"worker 1", "worker 2"}


def test_what_a_killed_process_left_in_its_log_is_kept(
    tmp_path: Path, kept: Path, alone: Performance
) -> None:
    """A process that is killed leaves its newest rows beside the file of the ledger: they come along."""
    living, killed = tmp_path / "living.db", tmp_path / command.LEDGER
    with closing(sqlite3.connect(living)) as writing:
        writing.execute("PRAGMA journal_mode = WAL")
        writing.execute("CREATE TABLE row AS SELECT 1 AS number")
        writing.commit()
        for suffix in ("", "-wal"):
            shutil.copy(f"{living}{suffix}", f"{killed}{suffix}")
    (tmp_path / command.EFFECTS).touch()
    command._keep(tmp_path, kept, alone)
    with closing(sqlite3.connect(kept / command.LEDGER)) as reading:
        assert reading.execute("SELECT number FROM row").fetchall() == [(1,)]


def test_a_report_of_which_nothing_is_kept_says_how_to_keep_it(run: Command) -> None:
    """Otherwise the next thing that somebody types, `safewrite runs`, finds no ledger."""
    said = run("demo", "--only", "quiet").out
    assert said.splitlines()[-1].endswith("safewrite demo --keep DIR")


def test_the_report_says_how_to_look_around(run: Command, process: Command, kept: Path) -> None:
    """Plain lines when piped: both sides, the rule, the audit, the closing table, and commands that work."""
    ended = run("demo", "--keep", str(kept), "--only", "500 after", "--only", "asked again")
    said = ended.out
    assert (ended.code, ended.err) == (0, "")
    assert "\x1b" not in said
    assert said.isascii()
    assert "1 effect; sent once; answered: error_after" in said
    assert "agent, turn 1: applied (reconciled)" in said
    assert "Some evidence says applied: that is the outcome, whatever else was heard. (A1)" in said
    assert "unknown (absent_not_proven), may still land, after" in said
    assert "for the write of an earlier turn is open, nothing sent by this call" in said
    assert "Then: ask the reconcile function. An attempt is open: look before anything else. (L1)" in said
    assert "2 writes, 4 answers: what happened and what was told agree on every line" in said
    table = [line.split("\t") for line in said.splitlines() if line.endswith("\tyes")]
    assert table[-1][1:] == ["1 effect", "unknown; unknown; applied", "yes"]
    document = json.loads((kept / "demo.json").read_text())
    cd, *commands = [line.strip() for line in said.splitlines()[-5:]]
    assert cd == f"cd {kept}"
    key = document["writes"][0]["told"][0]["key"]
    assert commands == [
        "safewrite runs", f"safewrite run {document['run']}", f"safewrite show {key}", "safewrite unknown"
    ]  # fmt: skip
    for line in commands:
        _, *arguments = line.split()
        looked = process(*arguments, SAFEWRITE_DATABASE_URL=f"sqlite:///{kept / 'safewrite.db'}")
        assert (looked.code, looked.err) == (0, "")


def test_for_a_person_there_are_colours_and_a_table(
    alone: Performance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words that matter are coloured, long texts wrapped under themselves, and the closing table has lines."""
    written, output = io.StringIO(), Output()
    monkeypatch.setattr(Output, "rich", property(lambda self: True))
    output._console = Console(file=written, force_terminal=True, width=100, legacy_windows=False)
    report.begins(output, 1)
    report.ended(output, alone.results[0])
    report.whole(output, alone)
    said = written.getvalue()
    assert "\x1b[32mapplied" in said
    assert "told the agent" in said
    assert "\u2500" in said
    assert max(len(re.sub("\x1b\\[[0-9;]*m", "", line)) for line in said.splitlines()) <= 100


def test_on_a_terminal_there_is_progress(empty: Path) -> None:
    """A real terminal shows what is being waited for, and then the report, all on the one screen."""
    screen, terminal = os.openpty()
    environ = {"TERM": "xterm-256color", "COLUMNS": "100"}
    with started("--only", "quiet", cwd=empty, env=environ, stdout=terminal, stderr=terminal) as process:
        os.close(terminal)
        said = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(screen, 65536):
                said += part
    os.close(screen)
    assert process.returncode == 0
    assert b"quiet write ..." in said
    assert b"\x1b[32mapplied" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing", "does not exist. Make it first: `mkdir -p"),
        ("file", "is no folder."),
        ("used", "holds `safewrite.db` already. Name an empty folder."),
    ],
)
def test_a_folder_that_cannot_keep_anything_is_refused_before_anything_starts(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    """What is wrong, what to do, and that nothing was started."""
    monkeypatch.setattr(subprocess, "Popen", None)
    (tmp_path / "file").touch()
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "safewrite.db").touch()
    refused = run("demo", "--keep", str(tmp_path / name))
    assert (refused.code, refused.out) == (2, "")
    assert words in refused.err
    assert "--keep" in refused.err
    assert "Nothing was started. See `safewrite demo --help`.\n" in refused.err


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_starts(
    run: Command, monkeypatch: pytest.MonkeyPatch, kept: Path
) -> None:
    """Asked of the permissions first, and then of the file system, which may know better."""
    monkeypatch.setattr(subprocess, "Popen", None)
    refused = run("demo", "--keep", "/proc")
    assert refused.code == 2
    assert "cannot be written to" in refused.err
    assert "Nothing was started" in refused.err
    monkeypatch.setattr("safewrite.cli.demo.os.access", lambda *_: False)
    with pytest.raises(typer.BadParameter, match="Name another folder"):
        command.check(kept)


def test_a_write_that_is_not_there_is_named_with_those_that_are(run: Command) -> None:
    """`--only` with a word that fits nothing."""
    refused = run("demo", "--only", "loud write")
    assert refused.code == 2
    assert "no write is called so. There are: `quiet write`" in refused.err


def test_what_cannot_be_started_is_said_in_one_line(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """No traceback where the machine will not start another process."""

    def refuse(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    ended = run("demo")
    assert ended.code == Exit.FAULT
    assert "could not go on: [Errno 11] Resource temporarily unavailable" in ended.err


def test_nobody_reading_is_no_error_of_the_demonstration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broken pipe goes on to whoever runs commands, who ends quietly."""

    def broken(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("safewrite.cli.performance.begins", broken)
    with pytest.raises(BrokenPipeError):
        command.show([named("quiet write")], Output())


def test_termination_ends_it_as_an_interrupt_does_and_tidying_up_is_left_alone() -> None:
    """SIGTERM raises KeyboardInterrupt; while everything is being ended, neither signal does anything."""
    with pytest.raises(KeyboardInterrupt), termination_interrupts():
        signal.raise_signal(signal.SIGTERM)
    with undisturbed():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_waits_until_what_is_being_started_can_be_ended() -> None:
    """The first signal is raised afterwards; a second one at once, for the start may hang."""
    reached = []

    def start(*signals: int) -> None:
        with delayed():
            for number in signals:
                signal.raise_signal(number)
            reached.append(signals)

    with pytest.raises(KeyboardInterrupt):
        start(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        start(signal.SIGTERM, signal.SIGINT)
    assert reached == [(signal.SIGINT,)]


def test_beside_the_main_thread_signals_are_not_touched() -> None:
    """Only the main thread may set them; elsewhere the demonstration does without."""
    seen: list[object] = []

    def elsewhere() -> None:
        with termination_interrupts(), undisturbed(), delayed():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGINT)]


def test_interrupted_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kept: Path
) -> None:
    """Nothing is printed that looks like a result, and nothing is kept."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("safewrite.demo.performance.perform", interrupted)
    assert command.show([named("quiet write")], Output(as_json=True), kept) is Exit.INTERRUPTED
    assert capsys.readouterr() == ("", "Interrupted: every process was ended, and nothing is kept.\n")
    assert list(kept.iterdir()) == []


# Ended early -----------------------------------------------------------------------------------------------------


def _as_ctrl_c(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGINT)  # a terminal tells the whole group


@LINUX
@pytest.mark.parametrize(
    ("after", "stop"),
    [
        ("no promise, no read: never processed", _as_ctrl_c),
        ("two workers, one intent", _as_ctrl_c),
        ("no promise, no read: never processed", subprocess.Popen.terminate),
    ],
    ids=["ctrl-c in a wait", "ctrl-c among workers", "sigterm"],
)
def test_ended_early_it_leaves_nothing(
    empty: Path, kept: Path, after: str, stop: Callable[[subprocess.Popen[str]], None]
) -> None:
    """No process, no file in DIR, nothing in the folder for temporary ones, and exit code 130."""
    mark, temporary = uuid4().hex, kept.parent / "tmp"
    temporary.mkdir()
    names = ["never processed", "asked again", "two workers", "kill -9"]
    only = [word for name in names for word in ("--only", name)]
    env = {"MARK": mark, "TMPDIR": str(temporary)}
    with started("--keep", str(kept), *only, cwd=empty, env=env) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if after in line:
                break
        assert alive(mark)
        stop(process)
        _, err = process.communicate(timeout=30)
    told = "Interrupted: every process was ended, and nothing is kept.\n"
    assert (process.returncode, err) == (130, told)
    assert gone(mark)
    assert [*empty.iterdir(), *kept.iterdir(), *temporary.iterdir()] == []


@LINUX
def test_killed_it_takes_its_processes_along(empty: Path) -> None:
    """After kill -9 of the demonstration itself, dependency and workers end by themselves soon."""
    mark = uuid4().hex
    with started("--only", "never processed", cwd=empty, env={"MARK": mark}) as process:
        assert process.stdout is not None
        # The next write waits for more than a second, while the processes for the last one stand ready.
        assert any("never processed: sent again" in line for line in process.stdout)
        assert len(alive(mark)) == 4
        process.kill()
    assert gone(mark)


@pytest.fixture(autouse=True)
def _signals_are_as_they_were() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
