"""The command line in this process: run on any arguments, in a folder of its own, and held to what it promises."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from safewrite.cli.app import app, run
from safewrite.cli.exits import Exit
from tests.cli.conftest import Ended, Filled, fill

APP = "from safewrite import SafeWrite\ndef sw(): return SafeWrite('sqlite:///safewrite.db')\nnone = 3\n"
DOCTORED = (
    '{"env": {"MCP_TIMEOUT": "x", "MCP_TOOL_TIMEOUT": "99999999999999999999", "API_TIMEOUT_MS": 1e308},'
    ' "mcpServers": {"a": {"timeout": 1e308}, "b": [], "c": {"type": "http", "timeout": -1}, "d": {"timeout": NaN}}}'
)
FILES = {
    "fuzzed_app.py": APP, "agent.json": DOCTORED, "odd.json": '{"env": [], "mcpServers": 7}', "samples.txt": "1 2,3",
    "odd.txt": "1 nan inf -1 1e400", "bad.db": "no database " * 99, "empty.db": "",
}  # fmt: skip
NUMBERS = [
    "0", "1", "-1", "3", "0.5", "1e400", "nan", "inf", "-inf", "1e308", "9" * 30, "9" * 5000, "1_0", "0x10", "٣",
]  # fmt: skip
TEXTS = [
    "", "-", "--", " ", "\x00", "\udcff", "\ud800", "é", "\u202e", "\n", "a\nb", "\x1b[31m", "%", "{}", "x" * 5000,
]  # fmt: skip
URLS = [
    "sqlite:///safewrite.db", "sqlite://", "sqlite:///bad.db", "sqlite:///empty.db", "sqlite:///folder", "sqlite:///new.db",
    "sqlite:///no/where.db", "sqlite:///safewrite.db?mode=ro", "sqlite:///file:safewrite.db?mode=ro&uri=true",
    "sqlite:///safewrite.db?timeout=x", "sqlite:///safewrite.db?check_same_thread=7", "sqlite:///safewrite.db?nothing=1",
    "sqlite:///\x00", "sqlite:///\udcff.db", "sqlite:///safewrite.db?uri=x", "sqlite:///file:safewrite.db?timeout=x&uri=true",
    "sqlite+aiosqlite:///x", "sqlite+none:///x", "sqlite://host/x", "mysql://x", "x",
    "http://[::1", "postgresql://127.0.0.1:99999/x", "postgresql://127.0.0.1:x/x", "postgresql+none://127.0.0.1/x",
]  # fmt: skip
OTHERS = [
    "case", "applied", "not-applied", "run-1", "run-2", "acme", "default", "cancel", "case.json", *FILES, "folder",
    "missing", "no/where", "fuzzed_app:sw", "fuzzed_app:none", "fuzzed_app:x.y", "fuzzed_app", "missing:sw", ".:sw",
    ":", "a.py:b", "6", "4:70%,9:30%", "4:nan,9:1", "6:1e308,7:1e308", "99=9", "50=0.4", "3=6%", "nan=1", "1=inf",
    "99=1e308", "=", "1.2.3",
]  # fmt: skip
WRITERS = {"upgrade", "resolve", "recover"}
"""The commands that may change a ledger."""


def command_line(arguments: Sequence[str]) -> Ended:
    """Run the command line as `safewrite` does, with nothing to read and pipes for its output."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    before, sys.stdin = sys.stdin, io.StringIO()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(arguments)
            out.flush()
            err.flush()
    finally:
        sys.stdin = before
    told, said = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
    return Ended(code, told, said)


def commands() -> dict[tuple[str, ...], list[Any]]:
    """Return every command that is fuzzed, with its parameters; `demo` takes none but names, and starts processes."""
    root: Any = typer.main.get_command(app)
    found = {(name,): command.params for name, command in root.commands.items() if name not in ("demo", "db")}
    found |= {("db", name): command.params for name, command in root.commands["db"].commands.items()}
    return {(): root.params, **found}


class Desk:
    """A folder with a ledger and the files that arguments name; it is as it was after every run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.filled: Filled = fill(folder / "safewrite.db")
        for name, text in FILES.items():
            (folder / name).write_text(text)
        (folder / "folder").mkdir()
        lost = self.filled.keys["lost"]
        with contextlib.chdir(folder):
            assert command_line(["export", lost, "--output", "case.json"]).code == 0
        self._files = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        named = (self.filled.keys, self.filled.ids, self.filled.traces)
        self.names = [name for names in named for name in names.values()]
        self.values = [*self.names, *NUMBERS, *TEXTS, *URLS, *OTHERS]

    def run(self, arguments: Sequence[str]) -> Ended:
        """Run the command line, hold it to what it promises, and put the folder in order again."""
        with contextlib.chdir(self.folder):
            path, os.environ["SAFEWRITE_CONNECT_TIMEOUT"] = list(sys.path), "0.2"
            try:
                ended = command_line(arguments)
            finally:
                sys.path[:] = path
                del os.environ["SAFEWRITE_CONNECT_TIMEOUT"]
                changed = self._put_back()
        assert ended.code in (Exit.OK, Exit.PROBLEM, Exit.USAGE, Exit.LEDGER), (arguments, ended.err)
        if "--traceback" not in arguments:
            assert "Traceback" not in ended.out + ended.err
            *_, line = ended.err.splitlines() or [""]
            # `db check` says it as its result.
            failed = ended.code in (Exit.USAGE, Exit.LEDGER) and "check" not in arguments
            assert not failed or len(line.removeprefix("safewrite: ")) >= 10, (arguments, ended)
            assert not failed or line.startswith("safewrite: "), (arguments, ended)
        may = ended.code in (Exit.OK, Exit.PROBLEM) and WRITERS.intersection(arguments)
        if not may and not any(one.startswith("--output") for one in arguments):
            assert changed == [], arguments
        return ended

    def _put_back(self) -> list[str]:
        """Put the folder in order; return what was changed in it."""
        changed = []
        for path in self.folder.iterdir():
            if path not in self._files and path.name not in ("folder", "__pycache__"):
                changed += [] if path.name.endswith(("-wal", "-shm")) else [path.name]
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path, before in self._files.items():
            if not path.exists() or path.read_bytes() != before:
                changed.append(path.name)
                path.write_bytes(before)
        return changed


def harmless(arguments: Sequence[str]) -> bool:
    """Whether a run comes to an end soon: it neither goes on for ever, nor simulates what somebody asked for."""
    text = " ".join(arguments)
    return "demo" not in arguments and "--every" not in text and "--tasks" not in text
