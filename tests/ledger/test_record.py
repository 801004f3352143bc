"""What `record` appends, on whatever the intent has become meanwhile."""

from __future__ import annotations

import json
import logging
import math
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from safewrite.core.commands import Answer, AnswerKind, Nothing, Read
from safewrite.core.events import (
    Delivered,
    Ended,
    Event,
    GaveUp,
    Gone,
    OutcomeState,
    ReadEnded,
    Refused,
    Resolved,
    Verdict,
    Withheld,
)
from safewrite.core.fold import Impossible
from safewrite.core.state import Alarm
from safewrite.errors import LedgerUnavailable
from safewrite.ledger import lookup
from safewrite.ledger.lookup import IntentRow
from safewrite.ledger.model import Intent, Meta
from safewrite.ledger.sql import Ledger
from safewrite.ledger.texts import stamp_text, unix
from tests.ledger.driver import APPLIED, REJECTED, UNKNOWN, Caller, digests, moment


def test_the_end_of_a_body_is_recorded_with_its_value(caller: Caller) -> None:
    """The command answers the call, the value is kept, and the handle is the newer one."""
    intent, _ = caller.ask()
    after, command = caller.end(intent, value='{"n":1}')
    assert isinstance(command, Answer)
    assert (command.kind, command.value_at) == (AnswerKind.VALUE, 2)
    assert after.value == '{"n":1}'
    assert caller.ledger.value(replace(after, value=None)) == '{"n":1}'
    assert caller.ledger.content(after.id, 2, "value") == '{"n":1}'
    assert after.state.revision == 2
    assert after.head != intent.head


def test_the_first_value_stays(caller: Caller) -> None:
    """A later delivery is evidence; the value is that of the first row that kept one."""
    done = caller.write()
    after, command = caller.tell(done, Delivered(1, kept=True), quiet=True, contents={"value": '"other"'})
    assert isinstance(command, Nothing)
    assert after.value == '"done"'
    assert caller.ledger.content(after.id, 3, "value") == '"other"'


def test_no_value_is_none(caller: Caller) -> None:
    """An applied write whose value was not kept has none."""
    intent, _ = caller.ask()
    after, _ = caller.tell(intent, Ended(1, APPLIED))
    assert caller.ledger.value(after) is None
    assert caller.ledger.content(after.id, 2, "value") is None


def test_deleted_contents_are_left_out(caller: Caller, path: Path) -> None:
    """After redaction the arguments count as left out, each by its name; the value is gone."""
    done = caller.write()
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM safewrite_content")
    db.close()
    assert json.loads(caller.ledger.arguments(done.id)) == {
        "v": 1,
        "arguments": {},
        "missing": ["reason", "sub_id"],
    }
    assert json.loads(caller.ledger.arguments("nobody"))["missing"] == []
    assert caller.ledger.value(replace(done, value=None)) is None
    assert caller.ledger.verify(done.id) == ()


# Somebody else was there before --------------------------------------------------------------------------------


def test_a_fact_lands_on_what_the_intent_has_become(caller: Caller) -> None:
    """A stale handle is read anew, folded, and the fact judged on that: a late response stays late."""
    intent, _ = caller.ask()
    caller.tell(intent, GaveUp(1, "timeout"), at=9.0)
    after, command = caller.end(intent, at=12.0)
    assert isinstance(command, Answer)
    assert after.state.revision == 3
    assert after.state.attempts[0].evidence == "late_response"
    assert [row["sequence"] for row in caller.ledger.rows(after.id)] == [1, 2, 3]


def test_a_fact_that_only_the_newer_intent_allows_is_taken(caller: Caller) -> None:
    """What cannot follow on a stale handle may follow on the record."""
    stale, _ = caller.ask()
    caller.end(stale, replace(REJECTED, again=True, status=429))
    newer, _ = caller().ask(at=30.0)
    assert newer.state.epoch == 2
    after, _ = caller.tell(stale, Delivered(2), at=31.0, quiet=True)
    assert after.state.outcome is OutcomeState.APPLIED


def test_a_fact_that_nothing_allows_is_refused_and_leaves_nothing(caller: Caller) -> None:
    """An impossible fact raises, and no row was added."""
    intent, _ = caller.ask()
    with pytest.raises(Impossible):
        caller.tell(intent, Withheld(7, "x"))
    done, _ = caller.end(intent)
    with pytest.raises(Impossible):
        caller.end(done, at=5.0)
    assert [row["event"] for row in caller.ledger.rows(intent.id)] == ["claimed", "ended"]


@pytest.mark.parametrize("reads", [False, True])
def test_an_event_is_recorded_once(caller: Caller, reads: bool) -> None:
    """Recording the same event again, after an interrupt for instance, changes nothing and answers the same."""
    intent, _ = caller.ask()
    if reads:
        intent, _ = caller.end(intent, UNKNOWN)
        fact: Ended | ReadEnded = ReadEnded(Verdict.INCONCLUSIVE, moment(2.0), 2, 1, "nothing")
    else:
        fact = Ended(1, APPLIED)
    event = Event(moment(3.0), fact, caller.call)
    once = caller.ledger.record(intent, event, caller.meta)
    twice = caller.ledger.record(intent, event, caller.meta)
    assert twice[1] == once[1]
    assert twice[0].state == once[0].state
    assert twice[0].head == once[0].head


def test_an_event_that_a_stale_handle_does_not_allow_is_recorded_once(caller: Caller) -> None:
    """Even where the fact cannot follow on what the caller knows, it is recognised on record."""
    stale, _ = caller.ask()
    caller.end(stale, replace(REJECTED, again=True, status=429))
    caller().ask(at=30.0)
    once, _ = caller.tell(stale, Delivered(2), at=31.0, quiet=True)
    twice, _ = caller.tell(stale, Delivered(2), at=31.0, quiet=True)
    assert twice.state == once.state
    assert len(caller.ledger.rows(stale.id)) == 4


def test_a_row_without_anybody_s_name(caller: Caller) -> None:
    """Nothing need be known of who recorded a fact."""
    intent, _ = caller.ask()
    after, _ = caller.tell(intent, Ended(1, APPLIED), meta=Meta())
    assert "who" not in json.loads(caller.ledger.rows(after.id)[1]["body"])
    assert caller.ledger.verify(after.id) == ()


def test_a_reading_takes_the_rows_that_its_intent_knows(caller: Caller) -> None:
    """A row that was added between two statements of one reading belongs to the next reading."""
    intent, _ = caller.ask()
    row = caller.ledger._store.read(lambda unit: unit.row(unit.sql.by_id, {"id": intent.id}))
    caller.end(intent)
    assert row is not None
    before = IntentRow._make(row[:-1])
    assert caller.ledger._store.read(lambda unit: lookup.folded(unit, before)) == intent.state


def test_an_equal_fact_of_another_moment_is_another_event(caller: Caller) -> None:
    """Two refusals by two calls are two rows."""
    done = caller.write()
    caller.tell(done, Refused("pool_exhausted"), at=5.0)
    caller.tell(done, Refused("pool_exhausted"), at=6.0)
    assert [row["event"] for row in caller.ledger.rows(done.id)][2:] == ["refused", "refused"]


def test_many_threads_append_to_one_intent(open_ledger: Callable[[], Ledger]) -> None:
    """Every fact gets a row of its own, the numbers have no gap, and the chain holds."""
    ledger = open_ledger()
    caller = Caller(ledger)
    intent, _ = caller.ask()
    barrier = threading.Barrier(8)

    def go(number: int) -> None:
        barrier.wait()
        for step in range(5):
            caller.tell(intent, Refused(f"{number}-{step}"), at=1.0 + number + step / 10)

    threads = [threading.Thread(target=go, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = ledger.rows(intent.id)
    assert [row["sequence"] for row in rows] == list(range(1, 42))
    assert {row["reason"] for row in rows[1:]} == {f"{n}-{s}" for n in range(8) for s in range(5)}
    assert ledger.verify(intent.id) == ()


def test_an_intent_that_is_gone_is_said_to_be_lost(caller: Caller, path: Path) -> None:
    """A ledger that was rolled back behind our back takes no fact."""
    intent, _ = caller.ask()
    with sqlite3.connect(path) as db:
        for trigger in ("safewrite_audit_no_delete", "safewrite_intent_no_delete"):
            db.execute(f"DROP TRIGGER {trigger}")
        for table in ("safewrite_content", "safewrite_audit", "safewrite_intent"):
            db.execute(f"DELETE FROM {table}")
    db.close()
    with pytest.raises(LedgerUnavailable) as caught:
        caller.end(intent)
    assert caught.value.reason == "ledger_lost"


# Alarms --------------------------------------------------------------------------------------------------------


def test_an_alarm_has_a_row_of_its_own_and_is_told_after_the_commit(caller: Caller, path: Path) -> None:
    """The alarm stands in the same transaction as its fact; the listener can already read it."""
    heard: list[tuple[str, int, int]] = []

    def listen(intent: Intent, alarm: Alarm) -> None:
        with sqlite3.connect(path) as db:
            (count,) = db.execute("SELECT count(*) FROM safewrite_audit WHERE event = 'alarmed'").fetchone()
        db.close()
        heard.append((alarm.kind, intent.state.revision, count))

    caller.ledger.on_alarm = listen
    intent, _ = caller.ask()
    fact = Ended(1, APPLIED, key_carried=False)
    after, command = caller.tell(intent, fact, meta=replace(caller.meta, evidence={"status": 200}))
    assert isinstance(command, Answer)
    assert command.kind is AnswerKind.VALUE
    assert heard == [("key_not_carried", 3, 1)]
    rows = caller.ledger.rows(after.id)
    assert [row["event"] for row in rows] == ["claimed", "ended", "alarmed"]
    assert [row["evidence"] is None for row in rows] == [True, False, True]
    assert caller.ledger.verify(after.id) == ()
    row = caller.ledger.select(_intent())[0]
    assert (row["alarms"], row["revision"]) == (1, 3)


def _intent() -> object:
    from sqlalchemy import select

    from safewrite.ledger.tables import intent

    return select(intent)


def test_a_failing_listener_is_logged_and_harms_nothing(
    caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    """What a listener raises is its own fault."""

    def listen(intent: Intent, alarm: Alarm) -> None:
        raise ZeroDivisionError

    caller.ledger.on_alarm = listen
    intent, _ = caller.ask()
    with caplog.at_level(logging.ERROR, "safewrite"):
        caller.tell(intent, Ended(1, APPLIED, key_carried=False))
    assert "key_not_carried" in caplog.text


def test_without_a_listener_alarms_only_stand_in_the_ledger(caller: Caller) -> None:
    """Nobody has to listen."""
    intent, _ = caller.ask()
    after, _ = caller.tell(intent, Ended(1, APPLIED, key_carried=False))
    assert after.state.revision == 3


def test_an_alarm_told_once_is_not_told_by_the_next_fact(caller: Caller) -> None:
    """Only the fact that raised it writes its row."""
    intent, _ = caller.ask()
    after, _ = caller.tell(intent, Ended(1, APPLIED, key_carried=False))
    caller.tell(after, Refused("x"), at=9.0)
    assert [row["event"] for row in caller.ledger.rows(after.id)].count("alarmed") == 1


# What the row says ---------------------------------------------------------------------------------------------


def test_who_and_what_stand_in_the_row(caller: Caller) -> None:
    """Meta is told in the columns, and evidence as JSON, whatever it holds."""
    intent, _ = caller.ask()
    meta = replace(
        caller.meta,
        agent="a",
        person="p",
        tool_call_id="tc",
        trace="t",
        granted_ms=10**30,
        evidence={
            "status": 200,
            "left": math.inf,
            "who": object,
            "deep": {"x": [1, (2,)]},
            3: {1},
            "big": 1 << 80,
        },
    )
    after, _ = caller.tell(intent, Ended(1, APPLIED), meta=meta)
    row = caller.ledger.rows(after.id)[1]
    assert (row["agent"], row["person"], row["tool_call_id"], row["trace"]) == ("a", "p", "tc", "t")
    assert row["granted_ms"] == 2**53
    assert json.loads(row["evidence"]) == {
        "status": 200,
        "left": "inf",
        "who": "<class 'object'>",
        "deep": {"x": [1, [2]]},
        "3": [1],
        "big": "0x100000000000000000000",
    }
    assert caller.ledger.verify(after.id) == ()


def test_evidence_that_cannot_be_told_costs_no_row(caller: Caller) -> None:
    """A foreign object whose text fails, and nesting without end, are cut short."""

    class Sullen:
        def __str__(self) -> str:
            raise RuntimeError

    endless: dict[str, object] = {}
    endless["self"] = endless
    intent, _ = caller.ask()
    meta = replace(caller.meta, evidence={"sullen": Sullen(), "endless": endless})
    after, _ = caller.tell(intent, Ended(1, APPLIED), meta=meta)
    assert json.loads(caller.ledger.rows(after.id)[1]["evidence"])["sullen"] == "<Sullen>"


def test_a_call_without_an_end_has_no_deadline_on_record(caller: Caller) -> None:
    """An endless budget and an absurd deadline are told, not stumbled over."""
    _, _ = caller.ask(left=math.inf, lease=math.inf)
    (row,) = caller.ledger.rows(caller.ledger.find(caller.identity.key).id)  # type: ignore[union-attr]
    assert row["left_ms"] is None
    intent, _ = caller(turn="2").ask(left=math.inf, refusal="x", at=50.0)
    assert caller.ledger.rows(intent.id)[0]["deadline_at"] is None


def test_the_view_has_one_row_for_every_attempt(caller: Caller, path: Path) -> None:
    """People who only know SQL see each attempt's highest evidence beside the intent's outcome."""
    intent, _ = caller.ask()
    caller.end(intent, replace(REJECTED, again=True, status=429))
    newer, _ = caller().ask(at=30.0)
    caller.tell(newer, GaveUp(2, "timeout"), at=40.0)
    with sqlite3.connect(path) as db:
        db.row_factory = sqlite3.Row
        rows = [dict(row) for row in db.execute("SELECT * FROM safewrite_attempt ORDER BY attempt")]
    db.close()
    assert [(r["attempt"], r["outcome"], r["reason"], r["intent_outcome"]) for r in rows] == [
        (1, "not_applied", "http_422", "unknown"),
        (2, "unknown", "timeout", "unknown"),
    ]
    assert rows[0]["key"] == caller.identity.key
    assert rows[0]["claimed_at"] == "2025-06-15T15:06:40.000000+00:00"
    assert rows[1]["attempt_id"] == newer.state.attempts[1].id


def test_the_intent_s_row_tells_where_it_stands(caller: Caller) -> None:
    """Lease, outcome and whether it may still land are columns, and follow every fact."""
    intent, _ = caller.ask()
    (row,) = caller.ledger.select(_intent())
    assert (row["outcome"], row["may_still_land"], row["lease_owner"], row["epoch"]) == (
        "unknown",
        1,
        "host:1",
        1,
    )
    assert stamp_text(unix(row["lease_expires_at"])) == "2025-06-15T15:06:55.000000+00:00"
    assert stamp_text(unix(row["first_claim_at"])) == "2025-06-15T15:06:40.000000+00:00"
    caller.end(intent)
    (row,) = caller.ledger.select(_intent())
    assert (row["outcome"], row["may_still_land"], row["lease_owner"], row["evidence"]) == (
        "applied",
        0,
        None,
        "response",
    )
    assert row["fingerprint"] == json.dumps(digests(intent.salt, caller.arguments), separators=(",", ":"))


def test_a_goal_that_is_met_leaves_open_what_may_still_land(caller: Caller) -> None:
    """A read saw the state as wished, and not by whom: the attempt beside it may take effect yet."""
    intent, _ = caller.ask()
    seen, _ = caller.tell(intent, GaveUp(1, "timeout"))
    caller.tell(seen, ReadEnded(Verdict.GOAL_MET, moment(2.0), 2, 1), at=3.0)
    (row,) = caller.ledger.select(_intent())
    assert (row["outcome"], row["attributable"], row["may_still_land"]) == ("applied", 0, 1)


def test_a_value_is_told_from_what_else_its_row_keeps(caller: Caller) -> None:
    """An exception that the dependency's own `classify` takes for success: its text stands beside the value."""
    intent, _ = caller.ask()
    kept = {"evidence": "boom", "value": '"done"', "zone": "?"}
    done, _ = caller.tell(intent, Ended(1, APPLIED, kept=True), contents=kept)
    for found in (caller.ledger.load(done.id), caller.ledger.find(done.identity.key), caller.ask(2.0)[0]):
        assert found is not None
        assert caller.ledger.value(found) == '"done"'


def test_the_lease_in_the_intent_s_row_is_that_of_the_claim(caller: Caller) -> None:
    """What is learnt while it is held makes it no longer."""
    intent, _ = caller.ask()
    (claimed,) = caller.ledger.select(_intent())
    caller.end(intent, UNKNOWN, at=5.0)
    (row,) = caller.ledger.select(_intent())
    assert row["lease_owner"] == "host:1"
    assert row["lease_expires_at"] == claimed["lease_expires_at"]


# Looking up ----------------------------------------------------------------------------------------------------


def test_an_intent_is_found_by_key_id_attempt_and_trace(caller: Caller) -> None:
    """Whatever a person has at hand leads to the intent; of several with one trace the newest."""
    caller = replace(caller, meta=replace(caller.meta, trace="trace-1"))
    first = caller.write()
    second, _ = caller(turn="2", target='"sub_2"').ask()
    find = caller.ledger.find
    assert find(first.identity.key).id == first.id  # type: ignore[union-attr]
    assert find(first.id).id == first.id  # type: ignore[union-attr]
    assert find(second.state.attempts[0].id).id == second.id  # type: ignore[union-attr]
    assert find("trace-1").id == second.id  # type: ignore[union-attr]
    assert find("nothing") is None
    assert find("") is None
    assert find("\x00") is None
    found, number = caller.ledger.attempt(first.state.attempts[0].id)  # type: ignore[misc]
    assert (found.id, number) == (first.id, 1)
    assert caller.ledger.attempt("nothing") is None
    assert caller.ledger.load("nothing") is None


def test_a_waiter_is_told_whether_the_intent_moved_on(caller: Caller) -> None:
    """It polls for little: not before, once it has, and never for an intent that is not there."""

    def moved_on(intent: Intent) -> tuple[bool, Any]:
        return caller.ledger.whether_moved_on(intent).now()

    intent, _ = caller.ask()
    assert moved_on(intent)[0] is False
    after, _ = caller.end(intent)
    assert moved_on(intent)[0] is True
    assert moved_on(after)[0] is False
    assert moved_on(replace(after, id="nobody")) == (False, None)


def test_open_intents_are_the_unknown_ones_oldest_first(caller: Caller) -> None:
    """Recovery sees every unknown intent, by tool, namespace and in pages."""
    opened = [caller(turn=str(n), target=f'"s{n}"', tool="a" if n % 2 else "b").ask()[0] for n in range(4)]
    caller.write()
    ids = [intent.id for intent in opened]
    listed = caller.ledger.open_intents()
    assert [intent.id for intent in listed] == ids
    assert listed[0].state == opened[0].state
    assert [i.id for i in caller.ledger.open_intents(tool="a")] == ids[1::2]
    assert [i.id for i in caller.ledger.open_intents(limit=2, after=ids[0])] == ids[1:3]
    assert caller.ledger.open_intents(namespace="other") == []


def test_a_gone_process_ends_its_attempts(caller: Caller) -> None:
    """The fact that a process is gone frees the lease, so that the next call may look at once."""
    intent, _ = caller.ask()
    after, command = caller().tell(intent, Gone("host:1"), at=2.0)
    assert isinstance(command, Read)
    assert after.state.lease is None


def test_a_person_resolves(caller: Caller) -> None:
    """The person's word stands in the intent's row and in the audit."""
    intent, _ = caller.ask()
    after, _ = caller.tell(intent, Resolved(False, "ana\x00", "looked"), quiet=True)
    assert after.state.outcome is OutcomeState.NOT_APPLIED
    (row,) = caller.ledger.select(_intent())
    assert row["person"] == 'json:"ana\\u0000"'
    assert caller.ledger.rows(after.id)[1]["reason"] == "looked"
    assert caller.ledger.verify(after.id) == ()


# Names that databases cannot store -------------------------------------------------------------------------------


@pytest.mark.parametrize("odd", ["a\x00b", "\ud800", 'json:"x"', "ß", "\U0001f600", "\\u0000", ""])
def test_names_and_contents_come_back_as_they_were(caller: Caller, odd: str) -> None:
    """Targets, names and contents are kept reversibly, and found again."""
    caller = caller(run=odd, target=odd, turn=odd, meta=replace(caller.meta, agent=odd, dependency=odd))
    intent, _ = caller.ask()
    after, _ = caller.tell(
        intent, Ended(1, APPLIED, kept=True, object_id=odd), contents={"value": odd, odd or "x": odd}
    )
    found = caller.ledger.load(intent.id)
    assert found is not None
    assert found.identity == caller.identity
    assert caller.ledger.value(replace(after, value=None)) == odd
    assert caller.ledger.content(after.id, 2, odd or "x") == odd
    assert caller.ledger.verify(after.id) == ()
    again, _ = caller(turn="2").ask(at=50.0)
    assert again.identity.target == odd
