"""Events and commands as text, and back."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safewrite.core import commands, events
from safewrite.core.events import Call, Claimed, Event, Fact, Moment, Other, OutcomeState, Promises
from safewrite.errors import SchemaOutdated
from safewrite.ledger.rows import (
    COMMANDS,
    FACTS,
    Unreadable,
    command_json,
    command_of,
    decode_event,
    dumps,
    event_json,
    plain,
)
from tests.ledger.driver import moment


def encode_event(event: Event) -> str:
    """Return an event as the text of a row holds it."""
    return dumps(event_json(event))


TEXTS = st.text(st.characters(codec=None), max_size=8)
FLOATS = st.floats(allow_nan=False)


OTHER = {"id": "o", "key": "k", "outcome": "applied", "same_turn": True, "same_content": True}


def of(hint: Any) -> st.SearchStrategy[Any]:
    """Return what makes values for a hint: of a class with all its fields, defaults among them."""
    simple = {float: FLOATS, str: TEXTS, int: st.integers(), bool: st.booleans(), type(None): st.none()}
    if hint in simple:
        return simple[hint]
    if hint is Moment:
        return st.builds(Moment, FLOATS, FLOATS, TEXTS)
    if get_origin(hint) is tuple:
        return st.lists(of(get_args(hint)[0]), max_size=3).map(tuple)
    if get_args(hint):
        return st.one_of([of(arm) for arm in get_args(hint) if arm is not events.Asked])
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    hints = get_type_hints(hint)
    made = {}
    for field in fields(hint):
        made[field.name] = of(hints[field.name])
        if field.default is not MISSING:
            made[field.name] = st.just(field.default) | made[field.name]
    return st.builds(hint, **made)


@settings(max_examples=300, deadline=None)
@given(of(Event))
def test_every_event_comes_back_equal(event: Event) -> None:
    """Whatever a fact and its call hold, reading gives what was written, in text that any database can hold."""
    text = encode_event(event)
    assert decode_event(text) == event
    assert text.isascii()
    assert "\x00" not in text
    assert encode_event(decode_event(text)) == text


@settings(max_examples=200, deadline=None)
@given(of(commands.Command))
def test_every_command_comes_back_equal(command: Any) -> None:
    """The command that was chosen stands whole beside its event."""
    assert command_of(json.loads(dumps(command_json(command)))) == command


def test_every_fact_and_command_has_a_name() -> None:
    """A new fact or command needs a name before it can be recorded; `Asked` alone is never recorded."""
    assert set(get_args(Fact)) - set(FACTS.values()) == {events.Asked}
    assert set(get_args(commands.Command)) == set(COMMANDS.values())


KEPT = {
    "claimed": "number, attempt, owner, deadline_at=None, beside=()",
    "withheld": "number, reason",
    "ended": "number, finding, key_carried=True, deadline_carried=True, goal=False, kept=False, object_id=None",
    "gave_up": "number, reason, key_carried=False, deadline_carried=False",
    "gone": "owner",
    "fenced": "number, how",
    "read_ended": "verdict, began, began_revision, epoch, reason='', kept=False, object_id=None",
    "refused": "reason, names=(), other=None",
    "blocked": "by",
    "answered": "",
    "delivered": "number, kept=False, object_id=None",
    "resolved": "applied, by, note=''",
    "alarmed": "kind, detail=''",
    "missed": "reason, sent=0, reached='', part=False",
    "send": "rule, number",
    "run": "rule, number",
    "read": "rule",
    "read_other": "rule, intent",
    "wait": "rule, seconds",
    "watch": "rule",
    "note": "rule, fact",
    "answer": "rule, kind, outcome, reason, evidence='', attributable=False, may_still_land=False, replayed=False, "
    "value_at=None, other=None, names=()",
    "nothing": "rule",
    "an event": "at, fact, call=None, lease_at=None, over=False, promises=None",
    "call": "id, left, sends, reads, promises=Promises(key_retention=None, replays_errors=False, "
    "honours_deadline=False, work_bound=None, read_lag=None, clock_skew=1.0, max_stall=None), floor=0.0, "
    "lease=0.0, backoff=0.0, waits=True, precondition=False, same_payload=True, refusal='', differs=(), "
    "others=(), looked_at=(), beside_unknown=False, quiet=False",
    "promises": "key_retention=None, replays_errors=False, honours_deadline=False, work_bound=None, read_lag=None, "
    "clock_skew=1.0, max_stall=None",
    "finding": "outcome, reason, again=False, unsent=False, status=None, retry_after=None, proof=False, "
    "precondition_failed=False, running=False",
    "other": "id, key, outcome, same_turn, same_content",
    "outcomes": "unknown, not_applied, applied",
    "verdicts": "applied, not_applied, goal_met, goal_not_met, still_running, inconclusive",
    "answers": "value, rejected, not_sent, unknown, in_flight, mismatch, other",
}  # fmt: skip
"""Name in a row -> its fields, in their order; what equals the default after `=` is left out of a row."""


def test_what_stands_in_rows_is_called_so_for_ever() -> None:
    """Another name, or another default, would give rows of before another meaning: a new field is all that may come."""
    others = {
        "an event": Event,
        "call": Call,
        "promises": Promises,
        "finding": events.Finding,
        "other": Other,
    }
    told = {
        name: ", ".join(f.name if f.default is MISSING else f"{f.name}={f.default!r}" for f in fields(kind))
        for name, kind in {**FACTS, **COMMANDS, **others}.items()
    }
    values = {"outcomes": OutcomeState, "verdicts": events.Verdict, "answers": commands.AnswerKind}
    assert told | {name: ", ".join(kind) for name, kind in values.items()} == KEPT


def test_the_text_is_compact_and_canonical() -> None:
    """Defaults are left out, seconds are written by repr, endless ones as text."""
    call = Call("c", 0.1, 3, True, Promises(key_retention=math.inf), lease=1.5)
    event = Event(moment(0.5), Claimed(1, "a", "o"), call, promises=call.promises)
    assert encode_event(event) == (
        '{"at":[1750000000.5,0.5,"test"],"event":"claimed","fact":{"number":1,"attempt":"a","owner":"o"},'
        '"call":{"id":"c","left":0.1,"sends":3,"reads":true,"promises":{"key_retention":"inf"},"lease":1.5},'
        '"promises":true}'
    )


def test_whole_numbers_of_seconds_are_written_as_seconds() -> None:
    """An int where seconds are meant is the same text as the float."""
    one, other = Call("c", 10, 1, True), Call("c", 10.0, 1, True)
    assert encode_event(Event(moment(), events.Gone("o"), one)) == encode_event(
        Event(moment(), events.Gone("o"), other)
    )


@pytest.mark.parametrize(
    "change",
    [
        {"event": "teleported"},
        {"fact": {"number": 1, "attempt": "a", "owner": "o", "planet": "mars"}},
        {"call": {"id": "c", "left": 1.0, "sends": 1, "reads": True, "mood": 1}},
        {
            "call": {
                "id": "c",
                "left": 1.0,
                "sends": 1,
                "reads": True,
                "others": [OTHER | {"outcome": "perhaps"}],
            }
        },
    ],
)
def test_what_a_newer_version_wrote_is_said_to_be_newer(change: dict[str, Any]) -> None:
    """Unknown facts, fields and words are refused by name, never guessed at."""
    body = json.loads(encode_event(Event(moment(), Claimed(1, "a", "o"))))
    with pytest.raises(SchemaOutdated, match="newer"):
        decode_event(json.dumps(body | change))


@pytest.mark.parametrize(
    "change",
    [
        {"event": None},
        {"event": 3},
        {"at": [1.0, 2.0]},
        {"at": "now"},
        {"at": [True, 2.0, "c"]},
        {"at": [None, 2.0, "c"]},
        {"at": ["soon", 2.0, "c"]},
        {"at": [1.0, 2.0, 3]},
        {"fact": None},
        {"fact": {"number": 1}},
        {"fact": {"number": 1.0, "attempt": "a", "owner": "o"}},
        {"fact": {"number": True, "attempt": "a", "owner": "o"}},
        {"fact": {"number": 1, "attempt": "a", "owner": "o", "beside": "x"}},
        {"fact": {"number": 1, "attempt": "a", "owner": "o", "beside": [1]}},
        {"over": 1},
        {"promises": True},
        {"call": {"id": "c", "left": 1.0, "sends": 1, "reads": True, "others": [OTHER | {"outcome": 1}]}},
    ],
)  # fmt: skip
def test_what_nobody_wrote_is_unreadable(change: dict[str, Any]) -> None:
    """A row that was altered is not taken for another one."""
    body = json.loads(encode_event(Event(moment(), Claimed(1, "a", "o"))))
    with pytest.raises(Unreadable):
        decode_event(json.dumps(body | change))


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "null"])
def test_what_is_no_object_is_unreadable(text: str) -> None:
    """Text that is no JSON object is no row."""
    with pytest.raises(Unreadable):
        decode_event(text)


@pytest.mark.parametrize(
    "body",
    [
        {"command": "send"},
        {"command": "note", "decision": {"rule": "A2"}},
        {"command": "note", "decision": {"rule": 1, "fact": {"event": "answered"}}},
        {"command": "answer", "decision": {"rule": "A1"}},
    ],
)
def test_a_decision_that_is_not_whole_is_unreadable(body: dict[str, Any]) -> None:
    """A command without its fields is none."""
    with pytest.raises(Unreadable):
        command_of(body)


def test_huge_numbers_are_no_moment() -> None:
    """A number that no float can hold is refused."""
    with pytest.raises(Unreadable):
        decode_event('{"at":[' + "1" * 400 + ',0.0,"c"],"event":"answered","fact":{}}')


def test_others_are_kept_whole() -> None:
    """The other intents that were looked at stand in the row, so that the decision can be made again."""
    other = Other("i", "k", OutcomeState.APPLIED, False, True)
    event = Event(moment(), events.Answered(), Call("c", 1.0, 1, False, others=(other,), looked_at=("i",)))
    assert decode_event(encode_event(event)) == event


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (True, True),
        (None, None),
        (1 << 62, 1 << 62),
        (math.nan, "nan"),
        ({"a": (1, 2)}, {"a": [1, 2]}),
        (b"x", "b'x'"),
        (OutcomeState.APPLIED, "applied"),
    ],
)
def test_anything_is_told_in_plain_json(value: object, told: object) -> None:
    """Evidence is other people's values."""
    assert plain(value) == told
    assert type(plain(value)) in (bool, int, str, dict, list, type(None))
