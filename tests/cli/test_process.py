"""The command line as a process of its own: pipes, terminals, Ctrl-C, exit codes and what it imports."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import MetaPathFinder
from pathlib import Path

import pytest
import typer

import safewrite
from safewrite import cli
from safewrite.audit.queries import Audit
from safewrite.cli.app import run as run_here
from safewrite.cli.exits import MEANINGS, Exit
from tests.cli.conftest import ROOT, Command, Filled

PROGRAM = [sys.executable, "-c", "from safewrite.cli import main; main()"]
# Tests that run in the background of a shell inherit that Ctrl-C is ignored.
HEEDS = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
INTERRUPTIBLE = [sys.executable, "-c", f"{HEEDS}from safewrite.cli import main; main()"]
ESCAPE = "\x1b["


def read_all(end: int) -> str:
    """Return all that is shown on a terminal, until nobody has it open any more."""
    shown = b""
    while True:
        try:
            part = os.read(end, 65536)
        except OSError:  # Linux: the other end was closed
            break
        if not part:
            break
        shown += part
    os.close(end)
    return shown.decode().replace("\r\n", "\n")


Terminal = Callable[..., tuple[int, str]]


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return the command line with a real terminal for its output: gives its exit code and all that it showed."""

    def invoke(*args: str, width: int = 100, **environ: str) -> tuple[int, str]:
        ours, theirs = pty.openpty()
        for name, text in {"TERM": "xterm-256color", "COLUMNS": str(width), **environ}.items():
            monkeypatch.setenv(name, text)
        with ThreadPoolExecutor(1) as reader, monkeypatch.context() as patch:
            shown = reader.submit(read_all, ours)
            with open(theirs, "w", encoding="utf-8") as terminal:  # noqa: PTH123  # it is no path
                patch.setattr(sys, "stdout", terminal)
                patch.setattr(sys, "stderr", terminal)
                code = run_here(args)
            return code, shown.result(30)

    return invoke


def unstyled(text: str) -> str:
    """Return what was shown, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


# Pipes and terminals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("environ", [{}, {"FORCE_COLOR": "1"}, {"TERM": "xterm-256color", "COLUMNS": "30"}])
def test_a_pipe_gets_plain_text(process: Command, filled: Filled, environ: dict[str, str]) -> None:
    """Tab-separated lines, whatever is said about colours and widths."""
    done = process("runs", "--url", filled.url, **environ)
    assert (done.code, done.err) == (0, "")
    assert [row["run"] for row in done.rows] == ["run-2", "run-1"]
    assert ESCAPE not in done.out


def test_a_terminal_gets_tables_in_colour(on_terminal: Terminal, filled: Filled) -> None:
    """The lines are drawn, the outcomes stand out, and a key is not broken where it fits."""
    code, shown = on_terminal("run", "run-1", "--url", filled.url)
    assert code == 0
    assert ESCAPE in shown
    assert "\u2500" * 20 in shown
    assert "\t" not in shown
    assert filled.keys["lost"] in unstyled(shown)
    assert re.search(r"\x1b\[1;31munknown", shown)


@pytest.mark.parametrize(
    ("args", "environ"), [((), {"NO_COLOR": "1"}), (("--no-color",), {})], ids=["NO_COLOR", "--no-color"]
)
def test_colours_can_be_left_out(
    on_terminal: Terminal, filled: Filled, args: tuple[str, ...], environ: dict[str, str]
) -> None:
    """The table stays, without any escape sequence; before the command or after it."""
    for line in ((*args, "unknown"), ("unknown", *args)):
        code, shown = on_terminal(*line, "--url", filled.url, **environ)
        assert code == 0
        assert "\u2500" * 20 in shown
        assert ESCAPE not in shown


def test_an_empty_no_color_means_nothing(on_terminal: Terminal, filled: Filled) -> None:
    """As the convention says."""
    assert ESCAPE in on_terminal("unknown", "--url", filled.url, NO_COLOR="")[1]


def test_json_on_a_terminal_is_still_one_document(on_terminal: Terminal, filled: Filled) -> None:
    """No colour, no table: what is shown can be copied."""
    code, shown = on_terminal("runs", "--json", "--url", filled.url)
    assert code == 0
    assert shown.startswith('{\n  "runs": [')
    assert ESCAPE not in shown


@pytest.mark.parametrize("width", [70, 80, 200])
def test_terminals_of_any_width_show_everything(on_terminal: Terminal, filled: Filled, width: int) -> None:
    """Nothing is cut off: what does not fit is folded."""
    _, shown = on_terminal("show", filled.keys["lost"], "--url", filled.url, width=width, NO_COLOR="1")
    assert max(map(len, shown.splitlines())) <= width
    together = re.sub(r"[\s\u2500]+", "", shown)
    for text in (
        filled.keys["lost"],
        filled.ids["lost"],
        filled.traces["lost"],
        "askedforit",
        "Open,andthereisnoway",
    ):
        assert text in together


@pytest.mark.parametrize("command", ["runs", "unknown", "settings", "db check"])
def test_every_list_has_its_place_on_a_terminal(on_terminal: Terminal, filled: Filled, command: str) -> None:
    """Each reading command works there as well."""
    code, shown = on_terminal(*command.split(), "--url", filled.url, NO_COLOR="1")
    assert code == 0
    assert {"runs": "run-2", "unknown": "1 unknown.", "settings": "statement_timeout", "db check": "sw_0001"}[
        command
    ] in shown


def test_a_process_on_a_terminal_sees_it(filled: Filled) -> None:
    """The same as a process of its own, its width found out from the terminal."""
    ours, theirs = pty.openpty()
    kept = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    child = subprocess.Popen(
        [*PROGRAM, "unknown", "--url", filled.url],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
    )
    os.close(theirs)
    shown = read_all(ours)
    assert child.wait(60) == 0
    assert ESCAPE in shown
    assert "1 unknown." in shown


def test_progress_of_a_recovery_is_shown_on_a_terminal(
    on_terminal: Terminal, killed: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line for each intent as it is done, then what came of it."""
    (killed.path.parent / "rescue.py").write_text(
        'from safewrite import SafeWrite\nsw = SafeWrite("sqlite:///killed.db")\n'
    )
    monkeypatch.chdir(killed.path.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "rescue", raising=False)
    code, shown = on_terminal("recover", "rescue:sw", NO_COLOR="1")
    assert code == 1
    assert shown.splitlines()[0] == "[1/1] cancel sub_1: unknown"
    assert killed.keys["killed"] in shown
    assert "`cancel` is not declared" in re.sub(r"\s+", " ", shown)
    assert shown.splitlines()[-1] == "1 open: now 0 applied, 0 not applied, 1 unknown; 1 with a problem."


def test_what_is_in_flight_is_shown_as_such(on_terminal: Terminal, killed: Filled) -> None:
    """A lease that still runs is told with its end."""
    _, shown = on_terminal("unknown", "--url", killed.url, width=200, NO_COLOR="1")
    assert re.search(r"in flight until 20\d\d-", shown)
    assert "the end of the newest attempt was" in shown
    _, shown = on_terminal("show", killed.keys["killed"], "--url", killed.url, NO_COLOR="1")
    assert re.search(r"^in flight until +20\d\d-", shown, re.MULTILINE)


def test_text_that_the_terminal_cannot_show_is_escaped(process: Command, filled: Filled) -> None:
    """A stream that only takes ASCII is no reason to fail."""
    note = "gesehen in der Übersicht"
    done = process(
        "resolve", filled.keys["lost"], "applied", "--by", "Åsa", "--note", note, "--url", filled.url,
        PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert done.code == 0
    assert "\\xc5sa" in done.out


def test_a_reader_that_goes_away_ends_the_command(filled: Filled) -> None:
    """`safewrite ... | head` ends without a traceback, with the code of a closed pipe."""
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [*PROGRAM, "show", filled.keys["lost"], "--json", "--url", filled.url],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
    )
    os.close(writing)
    os.close(reading)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (Exit.PIPE, "")


def test_a_reader_that_goes_away_is_told_apart_from_an_error(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small output fails when it is flushed, large output while it is written: both are the same code."""
    for command in (("runs",), ("show", filled.keys["lost"], "--json")):
        reading, writing = os.pipe()
        os.close(reading)
        with open(writing, "w", buffering=1, encoding="utf-8") as closed, monkeypatch.context() as patch:  # noqa: PTH123
            patch.setattr(sys, "stdout", closed)
            assert run_here([*command, "--url", filled.url]) == Exit.PIPE


# Interrupts ---------------------------------------------------------------------------------------------------

SLOW = """
import sys, threading
from safewrite import Dependency, SafeWrite

sw = SafeWrite("sqlite:///killed.db")

@sw.write(target="sub_id", name="cancel")
{colour}def cancel(sub_id: str) -> None: ...

@cancel.reconcile
{colour}def _(sub_id: str) -> None:
    print("reading", file=sys.stderr, flush=True)
    {waits}
"""


@pytest.mark.parametrize(
    ("colour", "waits"),
    [("", "threading.Event().wait()"), ("async ", "import asyncio; await asyncio.Event().wait()")],
    ids=["plain", "coroutine"],
)
def test_ctrl_c_twice_ends_with_130_and_no_traceback(killed: Filled, colour: str, waits: str) -> None:
    """In the middle of a read; what was read so far stands, and the intent stays open."""
    place = killed.path.parent
    (place / "tools.py").write_text(SLOW.format(colour=colour, waits=waits))
    child = subprocess.Popen(
        [*INTERRUPTIBLE, "recover", "tools:sw"],
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    err = b""
    until = time.monotonic() + 30
    for told in (b"reading", b"the same again stops at once"):
        while told not in err and time.monotonic() < until:
            ready, _, _ = select.select([child.stderr], [], [], 1.0)
            err += os.read(child.stderr.fileno(), 4096) if ready else b""
        assert told in err
        child.send_signal(signal.SIGINT)
    out, rest = child.communicate(timeout=30)
    assert (child.returncode, out) == (130, b""), (err + rest).decode()
    assert b"Traceback" not in err + rest


class _Interrupt(MetaPathFinder):
    """Ctrl-C while the modules of the command line are imported."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "safewrite.cli.app":
            raise KeyboardInterrupt


def test_ctrl_c_while_it_starts_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even before a command is known."""
    monkeypatch.setattr(sys, "meta_path", [_Interrupt(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "safewrite.cli.app")
    monkeypatch.delattr(cli, "app")
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130


def test_main_runs_the_arguments_of_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And exits with the code of the command."""
    monkeypatch.setattr(sys, "argv", ["safewrite", "--version"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{safewrite.__version__}\n"


@pytest.mark.parametrize("kind", [KeyboardInterrupt, typer.Abort])
def test_ctrl_c_in_a_command_ends_with_130(
    run: Command, filled: Filled, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    """Wherever it strikes, and in whichever form it arrives."""

    def interrupted(*args: object, **kwargs: object) -> None:
        raise kind

    monkeypatch.setattr(Audit, "runs", interrupted)
    done = run("runs", "--url", filled.url)
    assert (done.code, done.out, done.err) == (130, "", "")


# Faults, and what stands in the help ----------------------------------------------------------------------------


def test_a_fault_of_our_own_is_one_line(
    run: Command, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug is told as one, not as a mistake of whoever called; `--traceback` shows where."""

    def bug(*args: object, **kwargs: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Audit, "runs", bug)
    done = run("runs", "--url", filled.url)
    assert (done.code, done.out) == (Exit.FAULT, "")
    (line,) = done.err.splitlines()
    assert line.startswith("safewrite: Something went wrong that is safewrite's fault: KeyError: 'a bug'.")
    assert "in bug" in run("--traceback", "runs", "--url", filled.url).err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("forget",), "No such command 'forget'"),
        (("show",), "Missing argument 'KEY|INTENT|ATTEMPT|TRACE'. See `safewrite show --help`."),
        (("runs", "--limit", "0"), "--limit"),
        (("runs", "--colour"), "No such option: --colour"),
        (("--colour", "runs"), "No such option: --colour"),
        (("db", "downgrade"), "No such command 'downgrade'"),
        (("shwo",), "No such command 'shwo'. Did you mean 'show'? See `safewrite --help`."),
        (("resolve", "sw1_x"), "Choose from: applied, not-applied. See `safewrite resolve --help`."),
    ],
)
def test_a_command_line_that_cannot_be_used_is_one_line(
    run: Command, args: tuple[str, ...], said: str
) -> None:
    """It says what is wrong and where help is."""
    done = run(*args)
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith("safewrite: ")
    assert said in line
    assert "--help`." in line


def test_help_names_every_command_and_exit_code(run: Command, process: Command) -> None:
    """Alone, or asked for."""
    done = process("--help")
    assert done.code == 0
    assert process().out == done.out
    assert run().out == run("--help").out
    for command in ("demo", "db", "runs", "run", "show", "unknown", "recover", "resolve", "settings"):
        assert f" {command} " in done.out
    for code, meaning in MEANINGS.items():
        assert re.search(rf"^ +{code.value} +{re.escape(meaning)}$", done.out, re.MULTILINE)
    assert set(MEANINGS) == set(Exit)


def test_the_version_can_be_asked_for(process: Command) -> None:
    """It is that of the package."""
    assert process("--version").out == f"{safewrite.__version__}\n"


def test_importing_the_command_line_is_light(tmp_path: Path) -> None:
    """`import safewrite.cli` imports nothing but the package; help needs no database and no event loop."""
    heavy = {"alembic", "asyncio", "httpx", "pydantic", "pydantic_settings", "rich", "sqlalchemy", "tenacity"}
    code = (
        "import sys; before = set(sys.modules); import safewrite.cli\n"
        "new = {name for name in set(sys.modules) - before if name.startswith('safewrite')}\n"
        "import safewrite.cli.app\n"
        f"print(sorted(new), sorted({heavy!r} & set(sys.modules)))"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['safewrite', 'safewrite.cli'] []"
