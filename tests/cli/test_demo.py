"""The demonstration, played against the real dependency: what each write comes to, and how the command ends."""

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
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer
from rich.console import Console

from safewrite.cli import demo as command
from safewrite.cli.exits import Exit
from safewrite.cli.output import Output
from safewrite.demo import worker
from safewrite.demo.judge import Happened, Played, problems
from safewrite.demo.performance import Performance, Result, perform
from safewrite.demo.record import read
from safewrite.demo.report import Report
from safewrite.demo.scenario import Call, Scenario
from safewrite.demo.scenarios import SCENARIOS
from safewrite.demo.signals import delayed, termination_interrupts, undisturbed
from safewrite.demo.stage import stage
from safewrite.demo.tools import BILLING, LETTERS, PAYMENTS, TICKETS
from safewrite.ledger.sql import Ledger
from safewrite.testing.script import late, reset_after
from tests.cli.conftest import Command

ROOT = Path(__file__).parents[2]
NAMES = [scenario.name for scenario in SCENARIOS]
LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="asks /proc who is still there")


def named(name: str) -> Scenario:
    """Return the scenario of that name."""
    return next(scenario for scenario in SCENARIOS if scenario.name == name)


# The performance -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the one whole performance of this module takes place."""
    return tmp_path_factory.mktemp("stage")


@pytest.fixture(scope="module")
def performance(folder: Path) -> Performance:
    """Play every scenario once."""
    return perform(folder, SCENARIOS)


whole = pytest.mark.xdist_group("demo")


@whole
@pytest.mark.slow
def test_both_sides_agree_on_every_write_in_under_thirty_seconds(performance: Performance) -> None:
    """The demonstration ends well, and soon."""
    assert {r.played.scenario.name: r.problems for r in performance.results if r.problems} == {}
    assert performance.agrees
    assert performance.seconds < 30.0


EXPECTED: dict[str, tuple[list[tuple[str, str, str]], int, int]] = {
    # name: the answers (state, reason, evidence), the effects, how often it was sent
    "quiet write": ([("applied", "applied", "response")], 1, 1),
    "response lost after it was applied": ([("applied", "applied", "reconciled")], 1, 1),
    "500 after it was applied": ([("applied", "applied", "reconciled")], 1, 1),
    "the dependency says no": ([("not_applied", "http_422", "response")], 0, 1),
    "connection reset, not processed": ([("applied", "applied", "response")], 1, 2),
    "connection reset after it was applied": ([("applied", "applied", "response")], 1, 2),
    "slow drip: the total limit ends it": ([("applied", "applied", "reconciled")], 1, 1),
    "rejection after an ambiguous attempt": ([("applied", "goal_state", "goal_state")], 1, 2),
    "never processed: sent again": ([("applied", "applied", "response")], 1, 2),
    "never processed: one attempt allowed": ([("not_applied", "proven_absent", "reconciled")], 0, 1),
    "applied late, after the first look": ([("applied", "applied", "reconciled")], 1, 1),
    "no promise, no read: response lost": ([("unknown", "no_reconcile", "")], 1, 1),
    "no promise, no read: never processed": ([("unknown", "no_reconcile", "")], 0, 1),
    "asked again while it is unknown": (
        [
            ("unknown", "absent_not_proven", ""),
            ("unknown", "same_wish_open", ""),
            ("applied", "applied", "reconciled"),
        ],
        1,
        1,
    ),
    "two workers, one intent": ([("applied", "applied", "response")] * 2, 1, 1),
    "kill -9 after it was applied": ([("applied", "applied", "reconciled")], 1, 1),
    "kill -9, never processed": ([("applied", "applied", "response")], 1, 2),
}


@whole
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_each_write_comes_to_what_is_known_of_it(performance: Performance, name: str) -> None:
    """State, reason and evidence told, effects and requests at the dependency."""
    (result,) = [r for r in performance.results if r.played.scenario.name == name]
    told = [(t.state, t.reason, t.evidence) for t in result.played.told]
    happened = result.played.happened
    assert (told, len(happened.effects), len(happened.sent)) == EXPECTED[name]


@whole
@pytest.mark.slow
def test_every_case_has_its_scenario_and_its_colour(performance: Performance) -> None:
    """Nothing is asserted that is not played, and both colours are played against every kind of promise."""
    assert set(EXPECTED) == set(NAMES)
    assert {result.colour for result in performance.results} == {"plain", "async"}
    assert {r.dependency.name for r in performance.results} == {
        d.name for d in (BILLING, PAYMENTS, TICKETS, LETTERS)
    }


@whole
@pytest.mark.slow
def test_a_killed_write_is_resumed_with_the_words_of_the_first_call(performance: Performance) -> None:
    """The model words its reason anew after the crash; the payload under the key stays what it was."""
    (result,) = [r for r in performance.results if r.played.scenario.name == "kill -9, never processed"]
    first, again = result.played.scenario.calls
    sent = [request["body"] for request in result.played.happened.sent]
    assert sent == [{"note": first.note}, {"note": first.note}]
    assert first.note != again.note


@whole
@pytest.mark.slow
def test_of_two_workers_one_sends_and_the_other_waits_for_its_record(performance: Performance) -> None:
    """Both are told applied; who sent nothing is told that it is a replay."""
    (result,) = [r for r in performance.results if r.played.scenario.name == "two workers, one intent"]
    assert sorted((t.sent, t.replayed) for t in result.played.told) == [(False, True), (True, False)]


@whole
@pytest.mark.slow
def test_a_slow_drip_is_heard_out_as_evidence(performance: Performance) -> None:
    """The thread that was given up delivers its response later: it is in the audit, and changed nothing."""
    (record,) = [record for record in performance.records if record.target == "pay_drip"]
    assert [entry.event for entry in record.entries] == ["claimed", "gave_up", "read_ended", "ended"]
    assert [entry.line.rule for entry in record.entries] == ["R1", "L1", "A1", "N1"]


@whole
@pytest.mark.slow
def test_the_call_beside_an_open_one_is_recorded_in_its_own_turn(performance: Performance) -> None:
    """Three turns ask for one thing: three intents, of which one was ever sent."""
    records = [record for record in performance.records if record.target == "ticket_again"]
    turns = [record.turn for record in records]
    assert turns == sorted(set(turns), key=int)
    claimed = [[entry.event for entry in record.entries].count("claimed") for record in records]
    assert claimed == [1, 0, 0]
    assert "T5" in [entry.line.rule for entry in records[1].entries]


@whole
@pytest.mark.slow
def test_every_answer_can_be_traced_to_its_rows(performance: Performance, folder: Path) -> None:
    """The turn that was asked is the turn on record, and a call that wrote rows is found by its trace."""
    turns = {record.key: record.turn for record in performance.records}
    traces = {entry.trace for record in performance.records for entry in record.entries}
    told = [t for result in performance.results for t in result.played.told]
    assert [t.key for t in told if t.blocked_by_key is None and turns[t.key] != str(t.turn)] == []
    assert [t.key for t in told if t.trace not in traces and not t.replayed and t.sent] == []
    blocked = [t for t in told if t.blocked_by_key is not None]
    assert len(blocked) == 2
    with closing(Ledger(f"sqlite:///{folder / command.LEDGER}")) as ledger:
        assert all(ledger.find(t.trace) is not None for t in blocked)


@whole
@pytest.mark.slow
def test_the_document_says_it_all(performance: Performance) -> None:
    """What `--json` prints can be written as JSON, and holds both sides, the rules and the audit."""
    document = json.loads(json.dumps(performance.as_json()))
    assert document["agree"] is True
    assert [write["scenario"] for write in document["writes"]] == NAMES
    for write in document["writes"]:
        assert write["dependency"]["effects"] == write["expected"]["effects"]
        assert [told["state"] for told in write["told"]] == write["expected"]["told"]
        assert all(told["rule"] and told["because"] and told["text"] for told in write["told"])
    assert {row["event"] for intent in document["audit"] for row in intent["rows"]} >= {
        "claimed", "ended", "gave_up", "gone", "read_ended", "blocked", "refused", "answered"
    }  # fmt: skip
    assert {intent["outcome"] for intent in document["audit"]} == {"applied", "not_applied", "unknown"}


# Disagreement ----------------------------------------------------------------------------------------------------


DUPLICATED = replace(
    named("connection reset after it was applied"), name="a key that is not recognised", keys="off"
)
LANDS_LATER = replace(
    named("applied late, after the first look"), name="a bound that is not kept", script=(late(1.6),)
)
VAGUE = replace(
    named("no promise, no read: response lost"), name="expected to be known", calls=(Call("", "applied"),)
)


def test_a_dependency_that_breaks_its_promise_is_caught(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two effects where a recognised key was declared: said in so many words, and the exit code is 1."""
    assert DUPLICATED.script == (reset_after(),)
    assert command.show([DUPLICATED], Output()) is Exit.PROBLEM
    said = capsys.readouterr().out
    assert "2 effects" in said
    assert "the dependency holds 2 effects of one wish" in said
    assert "NO" in said
    assert "1 of 1 write: what happened and what was told do NOT agree" in said


def test_an_answer_that_is_less_precise_than_it_could_be_is_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unknown where an answer was to be had: exit code 1, also in the document."""
    assert command.show([VAGUE], Output(as_json=True)) is Exit.PROBLEM
    document = json.loads(capsys.readouterr().out)
    assert document["agree"] is False
    assert document["writes"][0]["problems"] == ["told unknown (`no_reconcile`), applied expected"]


def test_an_effect_after_the_declared_bound_is_caught(tmp_path: Path) -> None:
    """What lands after a false bound is a second effect, and the ledger itself raises the alarm or shows both."""

    def wait(opened: object, scenario: Scenario) -> list[object]:
        told = LANDS_LATER.play(opened, scenario)  # type: ignore[arg-type]
        opened.dependency.wait_for_effects(scenario.target, 2)  # type: ignore[attr-defined]
        return told  # type: ignore[return-value]

    played = perform(tmp_path, [replace(LANDS_LATER, play=wait)])  # type: ignore[arg-type]
    assert not played.agrees
    assert "the dependency holds 2 effects of one wish" in played.results[0].problems


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Performance:
    """A performance of one write that goes well."""
    return perform(tmp_path_factory.mktemp("quiet"), [named("quiet write")])


@pytest.fixture
def quiet(alone: Performance) -> Played:
    """Both sides of that write."""
    return alone.results[0].played


def test_a_quiet_write_is_nothing_to_complain_about(quiet: Played) -> None:
    """The judge is content where both sides say the same."""
    assert problems(quiet) == []


def told(**changes: object) -> Callable[[Played], Played]:
    """Return what puts another answer into the agent's ear."""
    return lambda p: replace(p, told=[replace(p.told[0], **changes)])


def happened(effects: int = 1, sent: int = 1) -> Callable[[Played], Played]:
    """Return what makes the dependency have done it so often."""
    return lambda p: replace(
        p, happened=Happened(list(p.happened.effects) * effects, list(p.happened.sent) * sent)
    )


def other_note(p: Played) -> Played:
    """Let the write be sent twice, with two payloads under one key."""
    first = p.happened.sent[0]
    sent = [first, {**first, "body": {"note": "reworded"}}]
    return replace(p, happened=replace(p.happened, sent=sent), scenario=replace(p.scenario, requests=2))


def both(*changes: Callable[[Played], Played]) -> Callable[[Played], Played]:
    """Return all changes, one after the other."""

    def change(p: Played) -> Played:
        for one in changes:
            p = one(p)
        return p

    return change


def recorded(outcome: str = "applied", alarms: int = 0) -> Callable[[Played], Played]:
    """Return what makes the ledger hold something else."""
    return lambda p: replace(p, records=[replace(r, outcome=outcome, alarms=alarms) for r in p.records])


PLANTED: dict[str, Callable[[Played], Played]] = {
    "the dependency holds 2 effects of one wish": happened(effects=2),
    "the dependency holds 0 effects, 1 expected": happened(effects=0),
    "told applied, and the dependency had no effect": told(effects_then=0),
    "told not_applied, and the dependency has an effect": told(state="not_applied"),
    "told that nothing can land any more, and something did": told(
        state="unknown", may_still_land=False, effects_then=0
    ),
    "told unknown (`lost`), applied expected": told(state="unknown", reason="lost", may_still_land=True),
    "answered after 9 s, expected within 3 s": told(seconds=9.0),
    "0 answers, 1 expected": lambda p: replace(p, told=[]),
    "the write was sent 2 times, 1 expected": happened(sent=2),
    "is not in the ledger": lambda p: replace(p, claimed=frozenset()),
    "one idempotency key came with different payloads": other_note,
    "the ledger holds an alarm": recorded(alarms=1),
    "the ledger says applied, and the dependency has no effect": happened(effects=0),
    "the ledger says not_applied, and the dependency has an effect": recorded(outcome="not_applied"),
}


@pytest.mark.parametrize("complaint", PLANTED)
def test_every_kind_of_disagreement_is_seen(quiet: Played, complaint: str) -> None:
    """Each one is planted into a write that went well."""
    found = problems(PLANTED[complaint](quiet))
    assert [problem for problem in found if complaint in problem], found


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


def gone(mark: str, within: float = 10.0) -> bool:
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
    workers = {entry.worker for entry in intent.entries}
    assert len(workers) == 1
    assert workers <= {"worker 1", "worker 2"}


def test_what_a_killed_process_left_in_its_log_is_kept(
    tmp_path: Path, kept: Path, performance: Performance
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
    command._keep(tmp_path, kept, performance)
    with closing(sqlite3.connect(kept / command.LEDGER)) as reading:
        assert reading.execute("SELECT number FROM row").fetchall() == [(1,)]


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
    table = [line for line in said.splitlines() if line.endswith(" yes")]
    assert [line.split() for line in table][-1][-6:] == [
        "1", "effect", "unknown,", "unknown,", "applied", "yes"
    ]  # fmt: skip
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


def test_for_a_person_there_are_colours_and_a_table(alone: Performance, tmp_path: Path) -> None:
    """States are coloured, long texts wrapped under themselves, and the closing table has lines."""
    written = io.StringIO()
    report = Report(Console(file=written, force_terminal=True, width=100, legacy_windows=False), tables=True)
    report.begins(1)
    report.ended(alone.results[0])
    report.whole(alone)
    said = written.getvalue()
    assert "\x1b[32mapplied\x1b[0m" in said
    assert "told the agent" in said
    assert "\u2502" in said
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
    assert b"\x1b[32mapplied\x1b[0m" in said


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

    monkeypatch.setattr("safewrite.demo.report.Report.begins", broken)
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
        ("writes of one agent", _as_ctrl_c),
        ("no promise, no read: never processed", _as_ctrl_c),
        ("kill -9 after it was applied", _as_ctrl_c),
        ("no promise, no read: never processed", subprocess.Popen.terminate),
    ],
    ids=["ctrl-c at the start", "ctrl-c in a wait", "ctrl-c among workers", "sigterm"],
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
    assert process.returncode == 130
    assert err == "Interrupted: every process was ended, and nothing is kept.\n"
    assert gone(mark)
    assert [*empty.iterdir(), *kept.iterdir(), *temporary.iterdir()] == []


@LINUX
def test_killed_it_takes_its_processes_along(empty: Path) -> None:
    """After kill -9 of the demonstration itself, dependency and workers end by themselves soon."""
    mark = uuid4().hex
    with started("--only", "asked again", "--only", "two workers", cwd=empty, env={"MARK": mark}) as process:
        assert process.stdout is not None
        assert any("asked again" in line for line in process.stdout)
        assert len(alive(mark)) == 4
        process.kill()
    assert gone(mark)


# The agent's other processes -------------------------------------------------------------------------------------


def test_a_worker_serves_orders_until_its_input_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line says that it is ready, and one answers each order."""
    with stage(tmp_path, "run-1") as opened:
        where = {"folder": str(tmp_path), "url": opened.dependency.url, "who": "worker 9"}
        order = {"tool": "charge_card", "target": "card_1", "note": "", "run": "run-1", "turn": 1}
        orders = "".join(json.dumps(line) + "\n" for line in (where, order, order))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(orders.encode())))
        worker.serve()
        assert opened.dependency.effects("card_1") == 1
    ready, first, again = map(json.loads, capfd.readouterr().out.splitlines())
    assert ready == {"ready": os.getpid()}
    assert (first["state"], first["replayed"], again["replayed"]) == ("applied", False, True)


def test_a_worker_that_ends_or_hangs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is waited for without end."""
    with stage(tmp_path, "run-1") as opened:
        ended = opened.worker()
        ended.release()
        with pytest.raises(RuntimeError, match="process `worker 1` ended with status 0"):
            ended.told()
        monkeypatch.setattr(worker, "PATIENCE", 0.01)
        opened.start_ahead(1)
        with pytest.raises(RuntimeError, match=r"process `worker 2` was silent for 0\.01 s"):
            opened.worker()


def test_where_it_is_installed_a_worker_needs_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a checkout is put on the path of its processes, the folder of installed packages is not."""
    monkeypatch.setenv("PYTHONPATH", "before")
    assert worker._environment()["PYTHONPATH"] == os.pathsep.join([str(ROOT), "before"])
    monkeypatch.setattr(worker, "__file__", "/opt/python/site-packages/safewrite/demo/worker.py")
    assert worker._environment()["PYTHONPATH"] == "before"


@pytest.fixture(autouse=True)
def _signals_are_as_they_were() -> Iterator[None]:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_results_are_told_as_they_come(tmp_path: Path) -> None:
    """The watcher hears of each beginning, and of each end with its result."""
    heard: list[tuple[str, bool]] = []

    def watch(scenario: Scenario, result: Result | None) -> None:
        heard.append((scenario.name, result is not None and result.agrees))

    perform(tmp_path, [named("quiet write"), named("the dependency says no")], watch)
    assert heard == [
        ("quiet write", False), ("quiet write", True),
        ("the dependency says no", False), ("the dependency says no", True),
    ]  # fmt: skip
