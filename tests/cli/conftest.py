"""Ledgers made by real tools, and two ways to run the command line: in this process, and as one of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import safewrite
from safewrite import Dependency, Rejected, SafeWrite
from safewrite.cli.app import app

ROOT = Path(__file__).parent.parent.parent
BILLING = Dependency("billing", work_bound=3600.0, read_lag=0.0)


@dataclass(frozen=True)
class Ended:
    """How a run of the command line ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The JSON document on standard output, which must be all that is there."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, str]]:
        """The plain table on standard output, by its line of names."""
        names, *lines = [line.split("\t") for line in self.out.splitlines()]
        return [dict(zip(names, line, strict=True)) for line in lines]


Command = Callable[..., Ended]


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the environment of whoever runs the tests out of them."""
    for name in list(os.environ):
        if name.startswith("SAFEWRITE_") or name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
            monkeypatch.delenv(name)


@pytest.fixture
def run() -> Command:
    """Return the command line, run in this process."""

    def invoke(*args: str) -> Ended:
        result = CliRunner().invoke(app, args)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ended(result.exit_code, result.stdout, result.stderr)

    return invoke


@pytest.fixture
def process(tmp_path: Path) -> Command:
    """Return the command line, run as a process of its own in an empty folder, its output piped."""

    def invoke(*args: str, **environ: str) -> Ended:
        done = subprocess.run(
            [sys.executable, "-c", "from safewrite.cli import main; main()", *args],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", **environ},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return invoke


@dataclass(frozen=True)
class Filled:
    """A ledger with the intents of two runs, and how they were called."""

    path: Path
    keys: dict[str, str]
    ids: dict[str, str]
    traces: dict[str, str]

    @property
    def url(self) -> str:
        """The URL of the ledger."""
        return f"sqlite:///{self.path}"


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """Make a ledger for all tests."""
    return fill(tmp_path_factory.mktemp("ledger") / "agent.db")


def fill(path: Path) -> Filled:
    """Make a ledger: one write applied, one lost, one rejected, one held back by the lost one, one elsewhere."""
    keys: dict[str, str] = {}
    ids: dict[str, str] = {}
    traces: dict[str, str] = {}
    with SafeWrite(f"sqlite:///{path}") as sw, SafeWrite(f"sqlite:///{path}", namespace="acme") as other:

        @sw.write(
            target="sub_id", name="cancel", dependency=BILLING, free_text=("reason",), redact=("token",)
        )
        def cancel(sub_id: str, reason: str, token: str = "") -> dict[str, str]:
            if sub_id == "lost":
                raise httpx.ReadTimeout("no answer, and password=hunter2 in the text")
            if sub_id == "no":
                raise Rejected("already cancelled")
            return {"id": sub_id, "reason": reason}

        @other.write(target=("account", "year"), name="close")
        def close(account: str, year: int) -> None:
            """Close the books of a year."""

        def keep(name: str, outcome: Any) -> None:
            keys[name], ids[name], traces[name] = outcome.key, outcome.intent_id, outcome.trace

        with safewrite.run("run-1", deadline=60.0, agent="clerk"), safewrite.turn(1):
            keep("applied", cancel.outcome("sub_1", reason="asked for it", token="t0p-s3cret"))
            keep("lost", cancel.outcome("lost", reason="asked for it"))
            keep("rejected", cancel.outcome("no", reason="asked for it"))
        with safewrite.run("run-1", deadline=60.0), safewrite.turn(2):
            keep("held back", cancel.outcome("lost", reason="please"))
        with safewrite.run("run-2"), safewrite.turn(1):
            keep("closed", close.outcome("acme", 2025))
    return Filled(path, keys, ids, traces)


@pytest.fixture
def filled(original: Filled, tmp_path: Path) -> Filled:
    """Return a copy of that ledger, to be changed at will."""
    path = tmp_path / "filled" / "agent.db"
    path.parent.mkdir()
    shutil.copy(original.path, path)
    return Filled(path, original.keys, original.ids, original.traces)


KILLED = """
import os, signal, sys
import safewrite
from safewrite import SafeWrite

sw = SafeWrite(sys.argv[1])

@sw.write(target="sub_id")
def cancel(sub_id: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)

with safewrite.run("run-1", deadline=60.0), safewrite.turn(1):
    print(cancel.key("sub_1"), flush=True)
    cancel("sub_1")
"""


@pytest.fixture
def killed(tmp_path: Path) -> Filled:
    """Return a ledger whose one write was sent by a process that was killed in it."""
    path = tmp_path / "killed.db"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, f"sqlite:///{path}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -9, done.stderr
    return Filled(path, {"killed": done.stdout.strip()}, {}, {})
