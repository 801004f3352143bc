"""`python -m benchmarks`: that it runs, and what it prints; never how fast anything is."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from benchmarks import growth, measure, report
from safewrite.ledger.sql import Ledger
from safewrite.ledger.tables import intent as intents

ROOT = Path(__file__).parent.parent.parent


def run(*words: str) -> str:
    """Run the command from the root of the project; return what it prints."""
    command = [sys.executable, "-m", "benchmarks", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_quick_run_tells_every_figure_beside_its_floor(tmp_path: Path) -> None:
    """One command gives every case of both databases as a ratio, what stands in for it, and a picture."""
    plot = tmp_path / "plot.svg"
    told = json.loads(run("--quick", "--growth", "--json", "--place", str(tmp_path), "--plot", str(plot)))
    rows: list[dict[str, Any]] = told["rows"]
    ours = {(row["group"], row["case"]): row for row in rows if row["by"] == "safewrite"}
    for group in ("SQLite", "PostgreSQL"):
        assert {
            (group, "one sync caller"),
            (group, "one async caller"),
            (group, "32 callers"),
            (group, "256 callers"),
            (group, "replay"),
        } <= set(ours)
        floors = [r for r in rows if r["group"] == group and r["by"] == "bare driver"]
        assert [r["p50"] for r in floors[:2]] == [1.0, 1.0]
    assert {"Import", "Memory", "Growth"} <= {row["group"] for row in rows}
    assert all(row["p25"] <= row["p50"] <= row["p75"] for row in rows)
    assert all(row["reached"] == (row["p50"] <= row["target"]) for row in rows if row["target"] is not None)
    assert ET.parse(plot).getroot().tag.endswith("svg")
    assert list(tmp_path.iterdir()) == [plot]


def test_copied_intents_are_those_that_the_ledger_would_have_written(tmp_path: Path) -> None:
    """A ledger that was filled for a measurement has the intents asked for, and its own check finds no flaw."""
    growth.fill(tmp_path / "ledger.db", 12, lambda _: None)
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    found = ledger.select(select(intents))
    assert len(found) == len({row["key"] for row in found}) == 12
    assert [flaw for row in found for flaw in ledger.verify(row["id"])] == []
    assert all((known := ledger.find(row["key"])) and known.state.outcome == "applied" for row in found)
    ledger.close()


def test_a_case_is_compared_with_its_floor_of_the_same_round() -> None:
    """What slows a whole round down slows both, and leaves the ratio as it is."""
    calls = itertools.count()
    floor = measure.Case("floor", lambda _: [10.0 ** (next(calls) // 2)], 1, by="bare driver")
    case = measure.Case("case", lambda _: [3 * 10.0 ** (next(calls) // 2)], 1, "floor", 3.0)
    (_, row), failed = measure.measure("group", [floor, case], 4, lambda _: None)
    assert (row.p25, row.p50, row.p75, failed) == (3.0, 3.0, 3.0, [])


def test_a_peer_that_fails_is_left_out_and_said_so() -> None:
    """Another library's failure costs its own rows only; a failure of ours ends the run."""

    def broken(_: int) -> list[float]:
        raise OSError("no such thing")

    floor = measure.Case("floor", lambda _: [1.0], 1, by="bare driver")
    peer = measure.Case("case", broken, 1, "floor", by="peer 1.0", peer=True)
    rows, failed = measure.measure("group", [floor, peer], 1, lambda _: None)
    assert ([row.case for row in rows], failed) == (
        ["floor"],
        ["group, case, peer 1.0: OSError: no such thing"],
    )
    with pytest.raises(OSError, match="no such thing"):
        measure.measure("group", [floor, measure.Case("case", broken, 1, "floor")], 1, lambda _: None)


def test_the_table_says_which_targets_are_reached(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody sits at a terminal, the table is Markdown."""
    rows = [
        measure.figure("group", (case, "safewrite"), "x floor", [2.0], 1.5 + n) for n, case in enumerate("ab")
    ]
    report.show(report.Report(1, rows, ["a note"]))
    printed = capsys.readouterr().out
    assert " 1.5 no |" in printed
    assert " 2.5 yes |" in printed
    assert printed.endswith("a note\n")
