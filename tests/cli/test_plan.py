"""`plan`: the arithmetic of caps, from numbers as people write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from safewrite.cli.app import app
from safewrite.cli.output import Output
from tests.cli.conftest import Command

THIRTY = [
    "--total",
    "30",
    "--gateway",
    "2",
    "--turns",
    "4",
    "--seconds-per-turn",
    "2",
    "--slack",
    "2",
    "--calls",
    "6",
]
RATES = ["--rate", "3=6%", "--rate", "9=1.5%,12=0.7%", "--median", "0.4"]


def table(out: str, first: str) -> list[dict[str, str]]:
    """Return the plain table whose line of names begins so."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"{first}\t"))
    names, *rows = [line.split("\t") for line in lines[start : lines.index("", start)]]
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_thirty_seconds_are_shared_out(run: Command) -> None:
    """18 s are left for tools; an even split of 3 s cuts 6 % of calls and hits 31 % of tasks."""
    done = run("plan", *THIRTY, *RATES, "--also-cap", "12")
    assert (done.code, done.err) == (0, "")
    assert "tools         18 s, besides gateway 2 s, model 8 s, slack 2 s" in done.out
    assert "typical       2.4 s" in done.out
    assert "run deadline  26 s" in done.out
    split, p99, alone, under, _ = table(done.out, "strategy")
    assert split == {
        "strategy": "even split", "cap": "3 s", "calls cut": "6.0%", "tasks hit": "31.0%", "worst case": "18 s",
        "fits": "yes", "left after one worst": "15 s", "times rest": "7.5",
    }  # fmt: skip
    assert (p99["strategy"], p99["calls cut"]) == ("p99 of a call", "1.0%")
    assert (alone["cap"], alone["tasks hit"], alone["worst case"], alone["fits"]) == (
        "12 s",
        "4.1%",
        "72 s",
        "no",
    )
    assert (under["cap"], under["tasks hit"], under["worst case"]) == ("9 s", "8.7%", "18 s")
    assert (under["left after one worst"], under["times rest"]) == ("9 s", "4.5")


def test_cuts_by_the_deadline_are_simulated(run: Command) -> None:
    """The same seed tells the same, another one something else."""
    one, same, other = (run("plan", *THIRTY, *RATES, "--seed", seed, "--tasks", "500").out for seed in "112")
    assert one == same != other
    assert "500 tasks simulated" in one
    (row,) = table(one, "cap")
    assert (row["cap"], row["longest"]) == ("9 s", "18 s")
    assert row["refused"] != ""


def test_the_caveat_is_printed(run: Command) -> None:
    """Nobody reads 1 - (1 - p)^n as a fact."""
    assert "takes calls to be independent. They are not" in run("plan", *THIRTY, *RATES).out


def test_a_plan_as_json_is_what_the_function_returns(run: Command) -> None:
    """Numbers unrounded, and nothing else on standard output."""
    document = run("plan", *THIRTY, *RATES, "--json").document
    assert (document["tools"], document["run_deadline"]) == (18.0, 26.0)
    assert document["rows"][0]["calls_cut"] == 0.06
    assert document["rows"][-1]["simulated"]["tasks"] == 20_000


def test_what_is_not_known_is_said(run: Command) -> None:
    """One rate alone: bounds are marked, and there is neither a median nor a simulation."""
    done = run("plan", *THIRTY, "--rate", "3=0.06")
    split, under = table(done.out, "strategy")
    assert (split["calls cut"], under["calls cut"], under["tasks hit"]) == (
        "6.0%",
        "at most 6.0%",
        "at most 31.0%",
    )
    assert under["times rest"] == ""
    assert "typical       not known" in done.out
    assert "simulated\n" not in done.out


def test_percentiles_and_calls_may_be_distributions(run: Command) -> None:
    """`-p 50=0.4,99=9` and `--calls 4:70%,9:30%` are what they look like."""
    document = run(
        "plan", "--total", "18", "--calls", "4:70%,9:30%", "-p", "50=0.4,94=3", "-p", "99=9", "--json"
    ).document
    assert (document["calls"], document["typical"]) == (9, 1.6)
    assert [row["cap"] for row in document["rows"]] == [2.0, 9.0, 9.0]


def test_samples_come_from_a_file_or_a_pipe(run: Command, tmp_path: Path) -> None:
    """Parted by blanks, commas or lines."""
    file = tmp_path / "seconds.txt"
    file.write_text("0.4, 0.5\n0.6 0.7\n")
    args = ["plan", "--total", "18", "--calls", "6", "--json", "--samples"]
    from_file = run(*args, str(file)).document
    piped = CliRunner().invoke(app, [*args, "-"], input=file.read_text())
    assert piped.exit_code == 0
    assert from_file["median"] == 0.5
    assert '"median": 0.5' in piped.stdout


def test_on_a_terminal_it_is_a_table(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a head that is underlined, and no tabs."""
    monkeypatch.setattr(Output, "rich", property(lambda self: True))
    out = run("plan", *THIRTY, *RATES).out
    assert "\t" not in out
    assert "───" in out
    assert "31.0%" in out


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--calls", "x"], "`--calls` is 'x'"),
        (["--calls", "4:x"], "`--calls` is '4:x'"),
        (["--calls", "4:1:2"], "`--calls` is '4:1:2'"),
        (["--calls", "0", "-p", "50=1"], "`calls` is 0"),
        (["-p", "50"], "`--percentile` is '50'. Write it as 99=9.0"),
        (["-p", "50=0.4,99"], "`--percentile` is '99'"),
        (["-p", "99=1,50=2"], "Percentile 50 is 2 s, but percentile 99 is 1 s"),
        (["-p", "50=-1"], "negative"),
        (["-p", "nan=1"], "percentile is nan"),
        (["--rate", "3=lots"], "`--rate` is '3=lots'. Write it as 3=6%"),
        (["--rate", "3=6"], "`rates[3.0]` is 6.0"),
        (["--samples", "/nowhere/at-all"], "/nowhere/at-all cannot be read: No such file or directory"),
        ([], "How long calls take is given by nothing"),
        (["-p", "50=1", "--slack", "18"], "Nothing is left for tools"),
        (["-p", "50=1", "--cap", "0"], "`call_cap` is 0.0"),
    ],
)
def test_what_cannot_be_used_is_a_line_and_a_code(run: Command, args: list[str], named: str) -> None:
    """Exit code 2, the option and what to write; nothing on standard output."""
    given: list[Any] = ["--total", "18", *([] if "--calls" in args else ["--calls", "6"])]
    done = run("plan", *given, *args)
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"0.4 fast", "'fast'"),
        (b"\xff\xfe0", "it is not text"),
        (b"", "`samples` is empty"),
        (b"0.4 -1", "negative"),
    ],
)
def test_samples_that_cannot_be_used_are_named(
    run: Command, tmp_path: Path, content: bytes, named: str
) -> None:
    """The word that is no number, not the whole file."""
    file = tmp_path / "seconds.txt"
    file.write_bytes(content)
    done = run("plan", "--total", "18", "--calls", "6", "--samples", str(file))
    assert done.code == 2
    assert named in done.err
