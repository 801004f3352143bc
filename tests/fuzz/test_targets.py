"""A sample of the battery, and proof that it would notice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from safewrite.core import statuses
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", TARGETS)
def test_a_sample_has_no_finding(name: str) -> None:
    """A few hundred inputs, always the same ones."""
    target, chance = TARGETS[name], random.Random(1)
    for data in target.seeds:
        target.check(data)
    for _ in range(15 if name == "arguments" else 400):
        data = target.mutant(chance, list(target.seeds))
        try:
            target.check(data)
        except BaseException as error:
            error.add_note(f"{name}: {data!r}")
            raise


def _read(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


@pytest.mark.parametrize("name", ["stored", "rows", "cases"])
def test_the_sample_gets_past_the_reader_of_json(name: str) -> None:
    """Of documents that are no JSON any more, nothing but that is found out."""
    target, chance = TARGETS[name], random.Random(1)
    known = [data for data in target.seeds if _read(data)]
    made = [target.mutant(chance, known) for _ in range(400)]
    assert known
    assert sum(map(_read, made)) > 60


def test_a_finding_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A header that would make a wait without end is found by the sample."""
    monkeypatch.setattr(
        statuses, "_seconds", lambda text, _: None if text is None else float(text.strip("\n"))
    )
    with pytest.raises(ValueError, match="could not convert"):
        test_a_sample_has_no_finding("headers")


def test_the_command_says_what_it_did_and_repeats_an_input(tmp_path: Path) -> None:
    """Counts, a folder to go on from, and one input again."""
    command = [sys.executable, "-m", "tests.fuzz"]
    options = ["--minutes", "0.02", "--targets", "keys", "--blind", "--corpus", str(tmp_path)]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + (tmp_path / "keys.log").read_text()
    assert "1 targets, no finding" in done.stdout
    again = subprocess.run(
        [*command, "--repeat", "keys", str(tmp_path / "keys" / "seed-0")],
        cwd=ROOT, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert (again.returncode, again.stdout) == (0, "no finding\n"), again.stderr
