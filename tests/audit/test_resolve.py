"""A person's word: on record with who and why, never against what is known, and never the last word on a proof."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import safewrite
from safewrite import ConfigurationError, Dependency, SafeWrite
from safewrite.audit.records import IntentRecord

SAID = {"by": "Ada", "note": "looked it up in the console"}


@pytest.fixture
def sw(tmp_path: Path) -> Iterator[SafeWrite]:
    """Return a SafeWrite over a ledger of its own."""
    with SafeWrite(f"sqlite:///{tmp_path / 'agent.db'}") as made:
        yield made


@pytest.fixture
def cancel(sw: SafeWrite) -> Any:
    """Return a tool that loses the reply for `lost`, is rejected for `no`, and else is applied."""

    @sw.write(target="sub_id", name="cancel", dependency=Dependency("billing", work_bound=30.0))
    def cancel(sub_id: str) -> str:
        if sub_id == "lost":
            raise TimeoutError
        if sub_id == "no":
            raise safewrite.Rejected("no")
        return "done"

    return cancel


def call(cancel: Any, sub_id: str, turn: int = 1) -> Any:
    """Call the tool in a turn."""
    with safewrite.run("run-1", deadline=60.0), safewrite.turn(turn):
        return cancel.outcome(sub_id)


@pytest.mark.parametrize(("applied", "state"), [(True, "applied"), (False, "not_applied")])
def test_a_word_becomes_the_outcome(sw: SafeWrite, cancel: Any, applied: bool, state: str) -> None:
    """Its evidence is the person, it is not attributable, and the row says who and why."""
    lost = call(cancel, "lost")
    after = sw.resolve(lost.key, applied=applied, **SAID)
    assert isinstance(after, IntentRecord)
    assert (after.outcome, after.evidence, after.person) == (state, "person", "Ada")
    assert after.attributable is False
    row = after.rows[-1]
    assert (row.event, row.person, row.rule) == ("resolved", "Ada", "N1")
    assert row.happened.endswith("Their note: looked it up in the console")
    assert row.promises == {"work_bound": 30.0}


@pytest.mark.parametrize("applied", [True, False])
def test_what_a_person_said_is_replayed_and_never_sent(sw: SafeWrite, cancel: Any, applied: bool) -> None:
    """The same turn again gets that word; nothing leaves."""
    lost = call(cancel, "lost")
    sw.resolve(lost.key, applied=applied, **SAID)
    again = call(cancel, "lost")
    assert (again.state, again.evidence) == ("applied" if applied else "not_applied", "person")
    assert again.sent is False
    found = sw.audit.intent(lost.key)
    assert found is not None
    assert len(found.attempts) == 1


def test_a_word_unblocks_the_same_wish_in_the_next_turn(sw: SafeWrite, cancel: Any) -> None:
    """Until then it is held back; then it is its own write."""
    lost = call(cancel, "lost")
    assert call(cancel, "lost", turn=2).blocked_by_key == lost.key
    sw.resolve(lost.key, applied=False, **SAID)
    assert call(cancel, "lost", turn=3).sent


@pytest.mark.parametrize("name", ["key", "id", "attempt"])
def test_the_intent_can_be_named_by_key_id_or_attempt(sw: SafeWrite, cancel: Any, name: str) -> None:
    """All lead to the same intent."""
    lost = call(cancel, "lost")
    (one,) = sw.audit.run("run-1")
    names = {"key": lost.key, "id": lost.intent_id, "attempt": one.attempts[0].id}
    assert sw.resolve(names[name], applied=True, **SAID).key == lost.key


def test_a_trace_of_several_intents_names_none(sw: SafeWrite, cancel: Any) -> None:
    """The word must be about one: the error names their keys."""

    @cancel.reconcile
    def _(sub_id: str) -> None:
        """Tell nothing."""

    with safewrite.run("run-1", deadline=1.5), safewrite.turn(1):
        first = cancel.outcome("lost")
    with safewrite.run("run-1", deadline=1.5), safewrite.turn(2):
        second = cancel.outcome("lost")
    with pytest.raises(ConfigurationError, match="names several intents") as refused:
        sw.resolve(second.trace, applied=True, **SAID)
    assert first.key in str(refused.value)
    assert second.key in str(refused.value)


@pytest.mark.parametrize(
    ("sub_id", "known"),
    [("sub_1", "is applied already"), ("no", "is not applied already")],
)
@pytest.mark.parametrize("applied", [True, False])
def test_proof_is_not_overruled(sw: SafeWrite, cancel: Any, sub_id: str, known: str, applied: bool) -> None:
    """Neither way, and nothing is recorded."""
    outcome = call(cancel, sub_id)
    before = sw.audit.rows(outcome.intent_id)
    with pytest.raises(ConfigurationError, match=known) as refused:
        sw.resolve(outcome.key, applied=applied, **SAID)
    assert (refused.value.key, refused.value.tool) == (outcome.key, "cancel")
    assert "known from the reply to an attempt" in str(refused.value)
    assert sw.audit.rows(outcome.intent_id) == before


def test_what_was_never_sent_needs_no_word(sw: SafeWrite, cancel: Any) -> None:
    """A call that was held back has no attempt that anybody could have seen."""
    call(cancel, "lost")
    held = call(cancel, "lost", turn=2)
    with pytest.raises(ConfigurationError, match="nothing was ever sent"):
        sw.resolve(held.key, applied=True, **SAID)


def test_another_persons_word_stands(sw: SafeWrite, cancel: Any) -> None:
    """Who comes second is told who came first."""
    lost = call(cancel, "lost")
    sw.resolve(lost.key, applied=True, **SAID)
    with pytest.raises(ConfigurationError, match=r"is applied already \(Ada said so\)"):
        sw.resolve(lost.key, applied=False, by="Bob", note="no trace of it")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"key": "sw1_nothing"}, "No intent `sw1_nothing`"),
        ({"key": ""}, "`key` is ''"),
        ({"by": ""}, "`by` is ''. Write who looked"),
        ({"by": " \t"}, "Write who looked"),
        ({"by": None}, "Write who looked"),
        ({"note": ""}, "Write what they saw"),
        ({"note": "\n"}, "Write what they saw"),
        ({"applied": "not_applied"}, "`applied` is 'not_applied'. Write True or False"),
        ({"applied": None}, "Write True or False"),
    ],
)
def test_bad_input_records_nothing(sw: SafeWrite, cancel: Any, given: dict[str, Any], said: str) -> None:
    """Each is one clear error."""
    lost = call(cancel, "lost")
    arguments = {"key": lost.key, "applied": True, **SAID, **given}
    with pytest.raises(ConfigurationError) as refused:
        sw.resolve(arguments.pop("key"), **arguments)
    assert said in str(refused.value)
    assert "othing was recorded" in str(refused.value)
    assert [i.tool for i in sw.audit.unknown()] == ["cancel"]


def test_a_secret_in_the_note_is_taken_out(sw: SafeWrite, cancel: Any) -> None:
    """People paste what they see."""
    lost = call(cancel, "lost")
    after = sw.resolve(
        lost.key, applied=True, by=" Ada ", note="curl -H 'Authorization: Bearer abcdef0123456789'"
    )
    assert "abcdef0123456789" not in str(after.to_dict())
    assert after.person == "Ada"


@pytest.mark.parametrize("applied", [True, False])
def test_proof_that_comes_later_wins_over_a_word(sw: SafeWrite, cancel: Any, applied: bool) -> None:
    """A delivery proves it applied; where the word said otherwise, an alarm is raised and a callback told."""
    alarms: list[str] = []
    sw.on_alarm(lambda alert: alarms.append(alert.kind))
    lost = call(cancel, "lost")
    (one,) = sw.audit.run("run-1")
    sw.resolve(lost.key, applied=applied, **SAID)
    assert sw.deliver(one.attempts[0].id, "done").state == "applied"
    after = sw.audit.intent(lost.key)
    assert after is not None
    assert (after.outcome, after.evidence, after.attributable) == ("applied", "delivered", True)
    assert after.value == "done"
    assert after.alarms == (() if applied else ("against_person",))
    assert alarms == list(after.alarms)
