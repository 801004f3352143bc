"""`safewrite export --as case` and `safewrite replay`: from a ledger to a file, and from the file to a verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Filled

TOOLS = """
import safewrite
from safewrite import Dependency, SafeWrite

sw = SafeWrite("sqlite:///never.db")

@sw.write(target="sub_id", name="cancel", dependency=Dependency("billing", work_bound=3600.0, read_lag=0.0),
          free_text=("reason",), redact=("token",))
def cancel(sub_id: str, reason: str, token: str = "") -> dict[str, str]:
    raise AssertionError("a replay sends nothing")

other = SafeWrite("sqlite:///never.db")
keyed = SafeWrite("sqlite:///never.db")

@keyed.write(target="sub_id", name="cancel", dependency=Dependency("billing", key_retention=7200.0))
def cancel(sub_id: str, reason: str, token: str = "") -> dict[str, str]:
    raise AssertionError("a replay sends nothing")
"""


@pytest.fixture
def case(run: Command, filled: Filled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Export the write whose response was lost, beside an application."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kit_tools.py").write_text(TOOLS)
    path = tmp_path / "case.json"
    done = run("export", filled.keys["lost"], "--as", "case", "--output", str(path), "--url", filled.url)
    assert (done.code, done.out) == (0, f"{path}: 2 rows of {filled.keys['lost']}.\n")
    return path


def test_an_intent_is_exported_by_any_of_its_names(run: Command, filled: Filled, tmp_path: Path) -> None:
    """Key, id and trace give one and the same document, on standard output or in a file."""
    texts = {
        run("export", name, "--as", "case", "--url", filled.url).out
        for name in (filled.keys["lost"], filled.ids["lost"], filled.traces["lost"])
    }
    (text,) = texts
    assert json.loads(text)["intent"]["key"] == filled.keys["lost"]
    path = tmp_path / "case.json"
    told = run("export", filled.keys["lost"], "--output", str(path), "--json", "--url", filled.url)
    assert told.document == {"file": str(path), "as": "case", "key": filled.keys["lost"], "rows": 2}
    assert path.read_text() == text


def test_no_secret_leaves_the_ledger(run: Command, filled: Filled) -> None:
    """Neither the redacted argument nor what an exception said is in the case."""
    for name in ("applied", "lost"):
        done = run("export", filled.keys[name], "--url", filled.url)
        assert done.code == 0
        assert "t0p-s3cret" not in done.out
        assert "hunter2" not in done.out


def test_what_cannot_be_exported_is_told(run: Command, filled: Filled, tmp_path: Path) -> None:
    """A name that nothing has, a place that cannot be written, a form that there is not."""
    missing = run("export", "nothing", "--url", filled.url)
    assert (missing.code, missing.out) == (2, "")
    assert "Nothing in the ledger has the key, id or trace `nothing`" in missing.err
    there = run("export", filled.keys["lost"], "--output", str(tmp_path), "--url", filled.url)
    assert (there.code, "cannot be written" in there.err) == (2, True)
    assert run("export", filled.keys["lost"], "--as", "tea", "--url", filled.url).code == 2


def test_a_case_that_is_decided_as_then_ends_with_0(run: Command, case: Path) -> None:
    """By the machine alone, and through the application's tool; no ledger is made, nothing is sent."""
    assert run("replay", str(case)).out.endswith("through the machine: 2 rows, decided as then.\n")
    through = run("replay", str(case), "--tool", "kit_tools:sw")
    assert (through.code, len(through.out.splitlines())) == (0, 2)
    assert not (case.parent / "never.db").exists()


def test_a_case_that_is_decided_otherwise_ends_with_1(run: Command, case: Path) -> None:
    """With both decisions and both rules, for people and as JSON."""
    told = run("replay", str(case), "--tool", "kit_tools:keyed")
    assert told.code == 1
    assert "the declaration of `cancel`, whose body did not run: decided otherwise now.\nrow 3: " in told.out
    assert "  then: nothing more is recorded\n  now:  " in told.out
    told = run("replay", str(case), "--tool", "kit_tools:keyed", "--json")
    machine, tool = told.document["replays"]
    assert (told.code, told.document["same"], machine["same"], tool["same"]) == (1, False, True, False)
    (difference,) = tool["differences"]
    assert (difference["row"], difference["then_rule"], difference["now_rule"]) == (3, "", "N1")


def test_what_cannot_be_replayed_ends_with_2(run: Command, case: Path) -> None:
    """No file, another version, an application without the tool."""
    assert run("replay", "none.json").code == 2
    newer = case.with_name("newer.json")
    newer.write_text(case.read_text().replace('"safewrite_case": 1', '"safewrite_case": 2'))
    told = run("replay", str(newer))
    assert (told.code, "of version 2, and this safewrite reads version 1" in told.err) == (2, True)
    told = run("replay", str(case), "--tool", "kit_tools:other")
    assert (told.code, "has no tool `cancel`" in told.err) == (2, True)


def test_a_case_leaves_no_line_that_steers_a_terminal(run: Command, case: Path) -> None:
    """What others wrote into a file is shown with everything unprintable escaped."""
    told = json.loads(case.read_text())
    told["intent"]["key"] = "k\x1b[31m"
    case.write_text(json.dumps(told))
    shown = run("replay", str(case)).out
    assert "\x1b" not in shown
