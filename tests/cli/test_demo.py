"""The demonstration, played against the real dependency: what each write comes to, and what is held against it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from safewrite.cli import demo as command
from safewrite.cli.exits import Exit
from safewrite.cli.output import Output
from safewrite.demo.judge import Happened, Played, problems
from safewrite.demo.performance import Performance, Result, perform
from safewrite.demo.record import about
from safewrite.demo.scenario import Call, Scenario
from safewrite.demo.scenarios import SCENARIOS
from safewrite.demo.tools import BILLING, LETTERS, PAYMENTS, TICKETS
from safewrite.ledger.sql import Ledger
from safewrite.testing.script import late, reset_after

NAMES = [scenario.name for scenario in SCENARIOS]


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
    (record,) = about(performance.records, "pay_drip")
    assert [row.event for row in record.rows] == ["claimed", "gave_up", "read_ended", "ended"]
    assert [row.rule for row in record.rows] == ["R1", "L1", "A1", "N1"]


@whole
@pytest.mark.slow
def test_the_call_beside_an_open_one_is_recorded_in_its_own_turn(performance: Performance) -> None:
    """Three turns ask for one thing: three intents, of which one was ever sent."""
    records = about(performance.records, "ticket_again")
    turns = [record.turn for record in records]
    assert turns == sorted(set(turns), key=int)
    claimed = [[row.event for row in record.rows].count("claimed") for record in records]
    assert claimed == [1, 0, 0]
    assert "T5" in [row.rule for row in records[1].rows]


@whole
@pytest.mark.slow
def test_every_answer_can_be_traced_to_its_rows(performance: Performance, folder: Path) -> None:
    """The turn that was asked is the turn on record, and a call that wrote rows is found by its trace."""
    turns = {record.key: record.turn for record in performance.records}
    traces = {row.trace for record in performance.records for row in record.rows}
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


def recorded(outcome: str = "applied", alarms: tuple[str, ...] = ()) -> Callable[[Played], Played]:
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
    "the ledger holds an alarm": recorded(alarms=("two_effects",)),
    "the ledger says applied, and the dependency has no effect": happened(effects=0),
    "the ledger says not_applied, and the dependency has an effect": recorded(outcome="not_applied"),
}


@pytest.mark.parametrize("complaint", PLANTED)
def test_every_kind_of_disagreement_is_seen(quiet: Played, complaint: str) -> None:
    """Each one is planted into a write that went well."""
    found = problems(PLANTED[complaint](quiet))
    assert [problem for problem in found if complaint in problem], found


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
