"""`resolve`: a person's word on an intent that stays unknown."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Command, Filled
from tests.cli.test_opening import refused

WHO = ("--by", "Ada", "--note", "seen in the console, api_key=abcdef123456")


@pytest.mark.parametrize(("word", "outcome"), [("applied", "applied"), ("not-applied", "not_applied")])
def test_a_word_settles_an_unknown(run: Command, filled: Filled, word: str, outcome: str) -> None:
    """It is on record with who said it and why, without the secret in the note."""
    done = run("resolve", filled.keys["lost"], word, *WHO, "--url", filled.url)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"{filled.keys['lost']}: ")
    shown = run("show", filled.keys["lost"], "--url", filled.url, "--json").document["intents"][0]
    assert (shown["outcome"], shown["person"]) == (outcome, "Ada")
    row = shown["rows"][-1]
    assert (row["event"], row["person"]) == ("resolved", "Ada")
    assert row["happened"] == (
        f"Ada said that it was {outcome.replace('_', ' ')}. Their note: seen in the console, api_key=[redacted]"
    )
    assert run("unknown", "--url", filled.url, "--exit-code").code == 0


@pytest.mark.parametrize("name", ["applied", "rejected", "held back"])
def test_what_is_known_is_not_overruled(run: Command, filled: Filled, name: str) -> None:
    """The line says what is known; nothing is recorded."""
    line = refused(run("resolve", filled.keys[name], "applied", *WHO, "--url", filled.url), 2)
    assert "already" in line
    shown = run("show", filled.keys[name], "--url", filled.url, "--json").document["intents"][0]
    assert "resolved" not in [row["event"] for row in shown["rows"]]


def test_a_word_is_given_once(run: Command, filled: Filled) -> None:
    """Neither the other word nor the same one again changes it."""
    assert run("resolve", filled.keys["lost"], "applied", *WHO, "--url", filled.url).code == 0
    for word in ("applied", "not-applied"):
        line = refused(run("resolve", filled.keys["lost"], word, *WHO, "--url", filled.url), 2)
        assert "Ada said so" in line


def test_a_key_that_is_not_there_is_bad_input(run: Command, filled: Filled) -> None:
    """The line says where keys are."""
    line = refused(run("resolve", "sw1_nothing", "applied", *WHO, "--url", filled.url), 2)
    assert "No intent `sw1_nothing`" in line
    assert "`safewrite unknown`" in line


@pytest.mark.parametrize(
    "given",
    [
        ("applied", "--by", "", "--note", "seen"),
        ("applied", "--by", "Ada", "--note", "  "),
        ("applied", "--by", "Ada"),
        ("applied", "--note", "seen"),
        ("perhaps", *WHO),
        (),
    ],
)
def test_who_and_why_are_never_left_out(run: Command, filled: Filled, given: tuple[str, ...]) -> None:
    """Each is bad input, and nothing is recorded."""
    refused(run("resolve", filled.keys["lost"], *given, "--url", filled.url), 2)
    assert run("unknown", "--url", filled.url, "--exit-code").code == 1


def test_a_word_on_a_write_that_may_be_in_flight_is_warned_of(run: Command, killed: Filled) -> None:
    """A process that was killed leaves a lease: the word is taken, and what may follow is said."""
    done = run("resolve", killed.keys["killed"], "not-applied", *WHO, "--url", killed.url)
    assert done.code == 0
    (line,) = done.err.splitlines()
    assert line.startswith("safewrite: A call was at work on it, and its end is awaited until 20")
    assert "Not applied, on the word of Ada, after 1 attempt." in done.out
