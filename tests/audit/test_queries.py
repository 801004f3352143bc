"""What `sw.audit` answers: over real SQLite files, written by real tools."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import safewrite
from safewrite import Applied, Dependency, GoalMet, NotApplied, NotSent, Rejected, SafeWrite
from safewrite.audit import records
from safewrite.audit.queries import Audit
from safewrite.audit.reading import shown
from safewrite.audit.records import IntentRecord, Record
from safewrite.core.events import Moment
from safewrite.core.machine import MACHINE_VERSION
from safewrite.ledger.sql import Ledger
from safewrite.shell import clock as clocks

SETTLES = Dependency("billing", work_bound=0.0, read_lag=0.0)
BOUND = Dependency("billing", work_bound=30.0, read_lag=0.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the ledger of a test is."""
    return tmp_path / "agent.db"


@pytest.fixture
def sw(path: Path) -> Iterator[SafeWrite]:
    """Return a SafeWrite over it."""
    with SafeWrite(f"sqlite:///{path}") as made:
        yield made


@contextmanager
def turn(number: int = 1, run: str = "run-1") -> Iterator[None]:
    """Open a run and a turn with time enough."""
    with safewrite.run(run, deadline=60.0, agent="clerk"), safewrite.turn(number):
        yield


def told(record: IntentRecord) -> list[tuple[str, str, str]]:
    """Return event, command and rule of every row."""
    return [(row.event, row.command, row.rule) for row in record.rows]


# Every way in which a call ends --------------------------------------------------------------------------------


def test_a_quiet_write_is_on_record_from_claim_to_value(sw: SafeWrite) -> None:
    """Two rows, one attempt, its arguments and its value, and who did it."""

    @sw.write(target="sub_id", name="cancel", dependency=SETTLES)
    def cancel(sub_id: str, amount: Decimal) -> dict[str, str]:
        return {"id": sub_id}

    with turn():
        outcome = cancel.outcome("sub_1", Decimal("1.10"))
    found = sw.audit.intent(outcome.key)
    assert found is not None
    assert told(found) == [("claimed", "run", "R1"), ("ended", "answer", "A1")]
    assert (found.outcome, found.evidence, found.attributable) == ("applied", "response", True)
    assert (found.tool, found.target, found.run, found.turn) == ("cancel", '"sub_1"', "run-1", "1")
    assert (found.dependency, found.namespace, found.occurrence) == ("billing", "default", "")
    assert found.arguments == {"sub_id": "sub_1", "amount": "1.10"}
    assert (found.value, found.value_kept) == ({"id": "sub_1"}, True)
    assert {row.agent for row in found.rows} == {"clerk"}
    assert {row.trace for row in found.rows} == {outcome.trace}
    (attempt,) = found.attempts
    assert (attempt.number, attempt.outcome, attempt.ended) == (1, "applied", True)
    assert {(row.attempt, row.attempt_id) for row in found.rows} == {(1, attempt.id)}
    assert attempt.trace == outcome.trace


def test_times_are_aware_and_in_order(sw: SafeWrite) -> None:
    """Every instant is in UTC: claimed, then concluded, within the call's deadline."""

    @sw.write(target="sub_id")
    def cancel(sub_id: str) -> None: ...

    before = datetime.now(UTC)
    with turn():
        cancel("sub_1")
    after = datetime.now(UTC)
    (found,) = sw.audit.run("run-1")
    (attempt,) = found.attempts
    assert attempt.concluded_at is not None
    assert attempt.deadline_at is not None
    assert (
        before - timedelta(seconds=1)
        <= attempt.claimed_at
        <= attempt.concluded_at
        <= after + timedelta(seconds=1)
    )
    assert attempt.concluded_at < attempt.deadline_at
    for row in found.rows:
        assert row.occurred_at.tzinfo is UTC
        assert row.recorded_at.tzinfo is UTC
        assert row.deadline_at is not None
        assert abs(row.deadline_at - row.occurred_at) <= timedelta(seconds=61)
    assert found.created_at.tzinfo is UTC


@pytest.mark.parametrize(
    ("raised", "outcome", "summary"),
    [
        (Rejected("no"), "not_applied", "the attempt did not take effect"),
        (NotSent("no", again=False), "not_applied", "the attempt did not take effect"),
        (TimeoutError("late"), "unknown", "Unknown after 1 attempt."),
        (RuntimeError("odd"), "unknown", "`unlisted_exception`"),
    ],
)  # fmt: skip
def test_every_end_leaves_its_row(sw: SafeWrite, raised: Exception, outcome: str, summary: str) -> None:
    """Failed ones as well: claim, then end, with the exception as evidence."""

    @sw.write(target="sub_id", max_attempts=1)
    def cancel(sub_id: str) -> None:
        raise raised

    with turn():
        cancel.outcome("sub_1")
    (found,) = sw.audit.run("run-1")
    assert [row.event for row in found.rows] == ["claimed", "ended"]
    assert found.outcome == outcome
    assert summary in found.summary
    assert found.rows[1].evidence is not None
    assert found.rows[1].evidence["type"] == f"{type(raised).__module__}.{type(raised).__qualname__}"
    (text,) = found.rows[1].contents
    assert (text.name, text.kept) == ("evidence", True)
    assert str(raised) in text.shown


def test_a_read_that_proves_absence_and_the_second_attempt_are_told(sw: SafeWrite) -> None:
    """Lost, read, proven absent, sent again: each step with its rule, and nothing that today's machine disputes."""
    calls = []

    @sw.write(target="sub_id", dependency=SETTLES, wait=lambda state: 0.0)
    def cancel(sub_id: str) -> str:
        calls.append(sub_id)
        if len(calls) == 1:
            raise TimeoutError
        return "done"

    @cancel.reconcile
    def _(sub_id: str) -> NotApplied:
        return NotApplied()

    with turn():
        assert cancel("sub_1") == "done"
    (found,) = sw.audit.run("run-1")
    assert [row.event for row in found.rows] == ["claimed", "ended", "read_ended", "claimed", "ended"]
    assert found.rows[2].happened.endswith(
        "No attempt could take effect any more when it began: that proves it."
    )
    assert [(a.number, a.outcome, a.evidence) for a in found.attempts] == [
        (1, "not_applied", "reconciled"),
        (2, "applied", "response"),
    ]
    assert found.value == "done"


def test_no_row_is_disputed_by_the_machine_that_wrote_it(sw: SafeWrite) -> None:
    """Told again, every decision on record is the one that is decided today."""

    @sw.write(target="sub_id", dependency=SETTLES, max_attempts=2, wait=lambda state: 0.0)
    def cancel(sub_id: str) -> str:
        if sub_id == "no":
            raise Rejected("no")
        raise TimeoutError

    @cancel.reconcile
    def _(sub_id: str) -> Any:
        return {"found": Applied("x"), "met": GoalMet("x"), "absent": NotApplied()}.get(sub_id)

    with safewrite.run("run-1", deadline=4.0):
        for number in (1, 2):
            for sub_id in ("found", "met", "absent", "no"):
                with safewrite.turn(number):
                    cancel.outcome(sub_id)
    found = sw.audit.run("run-1")
    assert len(found) == 8
    for one in found:
        for row in one.rows:
            assert (row.differs, row.machine) == ("", MACHINE_VERSION), (row.sequence, row.happened)


def test_a_killed_process_leaves_an_open_row(tmp_path: Path) -> None:
    """A claim without an end is visible as open, with its lease."""
    import os
    import subprocess
    import sys

    from tests.cli.conftest import KILLED, ROOT

    url = f"sqlite:///{tmp_path / 'killed.db'}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", KILLED, url], env=environ, timeout=60, check=False, capture_output=True
    )
    with SafeWrite(url) as sw:
        (one,) = sw.audit.unknown()
        assert (one.tool, one.reason, one.attempts, one.may_still_land) == ("cancel", "", 1, True)
        assert one.lease_until is not None
        assert one.lease_until > datetime.now(UTC)
        assert one.settles_at is None
        (found,) = sw.audit.run("run-1")
        assert [row.event for row in found.rows] == ["claimed"]
        assert not found.attempts[0].ended
        assert found.attempts[0].process.startswith("process ")


# What is open, refused, held back ------------------------------------------------------------------------------


def lose(sw: SafeWrite, dependency: Dependency) -> Any:
    """Return a tool whose replies are lost."""

    @sw.write(target="sub_id", name="cancel", dependency=dependency)
    def cancel(sub_id: str) -> None:
        raise TimeoutError

    return cancel


def test_unknown_tells_when_a_write_settles(sw: SafeWrite) -> None:
    """With a declared bound there is an instant; without one there is none; after it, it is settled."""
    cancel = lose(sw, BOUND)

    @sw.write(target="sub_id", name="close")
    def close(sub_id: str) -> None:
        raise TimeoutError

    with turn():
        cancel.outcome("sub_1")
        close.outcome("sub_1")
    bound, unbound = sw.audit.unknown()
    assert (bound.tool, bound.may_still_land, bound.lease_until) == ("cancel", True, None)
    assert bound.settles_at is not None
    assert timedelta(seconds=29) < bound.settles_at - bound.since < timedelta(seconds=35)
    assert (unbound.tool, unbound.may_still_land, unbound.settles_at) == ("close", True, None)
    assert unbound.settling.endswith("the dependency declares no work bound.")


def test_unknown_is_settled_once_the_bound_has_passed(sw: SafeWrite) -> None:
    """It is open all the same: nobody has seen whether it took effect."""
    cancel = lose(sw, SETTLES)
    with turn():
        cancel.outcome("sub_1")
    (one,) = sw.audit.unknown()
    assert (one.may_still_land, one.settles_at) == (False, None)
    assert one.settling == "Settled: no attempt can take effect any more."


class _Later:
    """A clock some seconds ahead."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._real = seconds, clocks.clock()

    def now(self) -> Moment:
        at = self._real.now()
        return at._replace(unix=at.unix + self._seconds, ticks=at.ticks + self._seconds)


def test_the_answer_is_as_of_now(sw: SafeWrite) -> None:
    """The same rows asked for later are settled then, without a row in between."""
    cancel = lose(sw, BOUND)
    with turn():
        cancel.outcome("sub_1")
    before = clocks.use(_Later(31.0))  # type: ignore[arg-type]
    try:
        (one,) = sw.audit.unknown()
        (found,) = sw.audit.run("run-1")
    finally:
        clocks.use(before)
    assert not one.may_still_land
    assert not found.may_still_land
    assert "Settled" in found.summary


def test_unknown_can_be_narrowed(path: Path, sw: SafeWrite) -> None:
    """By namespace, tool and number."""
    cancel = lose(sw, BOUND)
    with SafeWrite(f"sqlite:///{path}", namespace="acme") as other:
        theirs = lose(other, BOUND)
        with turn():
            cancel.outcome("sub_1")
            theirs.outcome("sub_1")
    assert [one.namespace for one in sw.audit.unknown()] == ["default", "acme"]
    assert [one.namespace for one in sw.audit.unknown(namespace="acme")] == ["acme"]
    assert [one.namespace for one in sw.audit.unknown(limit=1)] == ["default"]
    assert sw.audit.unknown(tool="close") == ()
    assert len(sw.audit.unknown(tool="cancel")) == 2


def test_refused_calls_are_told_with_what_stood_in_their_way(sw: SafeWrite) -> None:
    """The same wish in the next turn, other arguments in the same turn, and no time left: the newest first."""

    @sw.write(target="sub_id", name="cancel")
    def cancel(sub_id: str, reason: str = "") -> None:
        if sub_id == "lost":
            raise TimeoutError

    with turn(1):
        lost = cancel.outcome("lost")
        cancel.outcome("sub_1", reason="a")
        with pytest.raises(safewrite.IntentMismatch):
            cancel.outcome("sub_1", reason="b")
    with turn(2):
        held = cancel.outcome("lost")
    with safewrite.run("run-2", deadline=0.5, minimum=1.0), safewrite.turn(1):
        late = cancel.outcome("sub_2")
    refused = sw.audit.refused()
    assert [(r.event, r.reason, r.run, r.turn) for r in refused] == [
        ("refused", "budget_exhausted", "run-2", "1"),
        ("refused", "same_wish_open", "run-1", "2"),
        ("blocked", "same_wish_open", "run-1", "2"),
        ("refused", "other_content", "run-1", "1"),
    ]
    assert [r.key for r in refused[:3]] == [late.key, held.key, held.key]
    assert refused[1].others == refused[2].others == (lost.intent_id,)
    assert refused[3].names == ("reason",)
    assert "They differ in `reason`." in refused[3].happened
    assert {r.agent for r in refused[1:]} == {"clerk"}
    assert refused[0].at.tzinfo is UTC
    assert [r.run for r in sw.audit.refused(run="run-2")] == ["run-2"]
    assert len(sw.audit.refused(limit=2)) == 2
    assert sw.audit.refused(namespace="acme") == ()


# Finding --------------------------------------------------------------------------------------------------------


def test_runs_are_counted(path: Path, sw: SafeWrite) -> None:
    """Intents by outcome, attempts, alarms; the run with the newest intent first; the same name apart."""

    @sw.write(target="sub_id", name="cancel", max_attempts=2, wait=lambda state: 0.0)
    def cancel(sub_id: str) -> None:
        if sub_id == "lost":
            raise TimeoutError
        if sub_id == "away":
            raise NotSent("nobody there")

    with SafeWrite(f"sqlite:///{path}", namespace="acme") as other:
        theirs = lose(other, BOUND)
        for run in ("run-1", "run-2"):
            with turn(run=run):
                for sub_id in ("sub_1", "lost", "away"):
                    cancel.outcome(sub_id)
        with turn(run="run-1"):
            theirs.outcome("sub_9")
    found = sw.audit.runs()
    assert [(r.namespace, r.run) for r in found] == [
        ("acme", "run-1"),
        ("default", "run-2"),
        ("default", "run-1"),
    ]
    numbers = [(r.intents, r.applied, r.not_applied, r.unknown, r.attempts, r.alarms) for r in found]
    assert numbers == [(1, 0, 0, 1, 1, 0), (3, 1, 1, 1, 4, 0), (3, 1, 1, 1, 4, 0)]
    assert found[1].began_at <= found[1].last_at
    assert sw.audit.runs(limit=1) == found[:1]
    assert sw.audit.runs(namespace="default") == found[1:]


def test_a_run_keeps_its_order_and_its_namespace(path: Path, sw: SafeWrite) -> None:
    """Intents come as they were first recorded; `namespace` takes one of two runs of the same name."""
    cancel = lose(sw, BOUND)
    with SafeWrite(f"sqlite:///{path}", namespace="acme") as other:
        theirs = lose(other, BOUND)
        with turn():
            for place, tool in enumerate((cancel, theirs, cancel, cancel)):
                tool.outcome(f"sub_{place}")
    assert [i.target for i in sw.audit.run("run-1")] == [f'"sub_{n}"' for n in range(4)]
    assert [i.target for i in sw.audit.run("run-1", namespace="acme")] == ['"sub_1"']
    assert sw.audit.run("run-9") == ()


def test_an_intent_is_found_by_every_name_it_has(sw: SafeWrite) -> None:
    """Key, id, attempt id, trace; nothing for nothing."""
    cancel = lose(sw, BOUND)
    with turn():
        outcome = cancel.outcome("sub_1")
        cancel.outcome("sub_2")
    found = sw.audit.intent(outcome.key)
    assert found is not None
    for name in (outcome.intent_id, found.attempts[0].id, outcome.trace):
        other = sw.audit.intent(name)
        assert other == replace_volatile(found, other)
    assert sw.audit.rows(outcome.intent_id) == found.rows
    for name in ("", "nothing", "default", "run-1"):
        assert sw.audit.intent(name) is None
        assert sw.audit.find(name) == ()
        assert sw.audit.rows(name) == ()


def replace_volatile(record: IntentRecord, other: IntentRecord | None) -> IntentRecord:
    """Return the record with what depends on the moment of asking taken from the other."""
    import dataclasses

    assert other is not None
    names = ("summary", "settling", "settles_at", "may_still_land")
    return dataclasses.replace(record, **{name: getattr(other, name) for name in names})


def test_a_trace_names_all_that_its_call_wrote_to_its_own_first(sw: SafeWrite) -> None:
    """The call in turn 2 reads turn 1's intent again: both have rows of its trace."""

    @sw.write(target="sub_id", name="cancel", dependency=BOUND)
    def cancel(sub_id: str) -> None:
        raise TimeoutError

    @cancel.reconcile
    def _(sub_id: str) -> None:
        """Tell nothing."""

    with safewrite.run("run-1", deadline=1.5), safewrite.turn(1):
        first = cancel.outcome("sub_1")
    with safewrite.run("run-1", deadline=1.5), safewrite.turn(2):
        second = cancel.outcome("sub_1")
    assert [i.key for i in sw.audit.find(second.trace)] == [second.key, first.key]
    own = sw.audit.intent(second.trace)
    assert own is not None
    assert own.key == second.key


def test_intents_are_found_by_their_target(sw: SafeWrite) -> None:
    """By the value, by a mapping for a tuple of names, or by the canonical text; narrowed by tool."""

    @sw.write(target="sub_id", name="cancel")
    def cancel(sub_id: str) -> None: ...

    @sw.write(target="sub_id", name="resume")
    def resume(sub_id: str) -> None: ...

    @sw.write(target=("account", "year"), name="close")
    def close(account: str, year: int) -> None: ...

    with turn():
        cancel("sub_1")
        resume("sub_1")
        cancel("sub_2")
        close("acme", 7)
    assert [i.tool for i in sw.audit.by_target("sub_1")] == ["cancel", "resume"]
    assert [i.tool for i in sw.audit.by_target('"sub_1"')] == ["cancel", "resume"]
    assert [i.tool for i in sw.audit.by_target("sub_1", tool="resume")] == ["resume"]
    assert [i.tool for i in sw.audit.by_target("sub_1", limit=1)] == ["cancel"]
    assert [i.tool for i in sw.audit.by_target({"year": 7, "account": "acme"})] == ["close"]
    assert sw.audit.by_target("sub_1", namespace="acme") == ()
    assert sw.audit.by_target("sub_9") == ()


# What is kept and what is not ------------------------------------------------------------------------------------


def test_secrets_are_named_and_never_shown(sw: SafeWrite) -> None:
    """Redacted arguments are listed by name, by declaration and by type; a secret value is not kept."""

    @sw.write(target="name", redact=("token",))
    def make(name: str, token: str, password: SecretStr, note: str) -> SecretStr:
        return SecretStr("s3cret")

    with turn():
        outcome = make.outcome("x", "t0p", SecretStr("hunter2"), "plain")
    found = sw.audit.intent(outcome.key)
    assert found is not None
    assert found.arguments == {"name": "x", "note": "plain"}
    assert found.redacted == ("password", "token")
    assert (found.value, found.value_kept) == (None, False)
    assert found.rows[0].contents[0].shown == {
        "name": "x", "note": "plain", "password": "[redacted]", "token": "[redacted]",
    }  # fmt: skip
    text = json.dumps(found.to_dict())
    for secret in ("t0p", "hunter2", "s3cret"):
        assert secret not in text


def test_contents_that_were_deleted_leave_the_rest_whole(path: Path, sw: SafeWrite) -> None:
    """The row still says that they were there; nothing else changes."""

    @sw.write(target="sub_id")
    def cancel(sub_id: str) -> str:
        return "done"

    with turn():
        outcome = cancel.outcome("sub_1")
    with closing(sqlite3.connect(path)) as ledger, ledger:
        ledger.execute("DELETE FROM safewrite_content")
    found = sw.audit.intent(outcome.key)
    assert found is not None
    assert (found.arguments, found.redacted, found.value, found.value_kept) == ({}, (), None, False)
    contents = [(c.name, c.kept, c.shown) for row in found.rows for c in row.contents]
    assert contents == [("arguments", False, None), ("value", False, None)]
    assert found.outcome == "applied"


@pytest.mark.parametrize("text", ["", "no JSON", "[]", "3", '{"v":1}', '{"arguments":{"a":3},"missing":[]}'])
def test_contents_of_another_form_are_shown_as_they_are(text: str) -> None:
    """What this version cannot take apart is not hidden, and stops nothing."""
    assert shown("arguments", text) == text
    assert shown("value", text) == text
    assert shown("evidence", text) == text


def test_arguments_of_another_form_are_left_out(path: Path, sw: SafeWrite) -> None:
    """The record is told without them."""

    @sw.write(target="sub_id")
    def cancel(sub_id: str) -> None: ...

    with turn():
        outcome = cancel.outcome("sub_1")
    for text in ("no JSON", '{"v":2}', '{"missing":["sub_id"]}'):
        with closing(sqlite3.connect(path)) as ledger, ledger:
            ledger.execute("UPDATE safewrite_content SET text = ? WHERE name = 'arguments'", (text,))
        found = sw.audit.intent(outcome.key)
        assert found is not None
        assert found.arguments == {}
        assert found.outcome == "applied"


def test_rows_that_cannot_be_read_are_told_and_the_rest_stands(path: Path, sw: SafeWrite) -> None:
    """An altered body, or one of a newer version, hides nothing else."""
    cancel = lose(sw, BOUND)

    @sw.write(target="sub_id", name="close")
    def close(sub_id: str, reason: str) -> None: ...

    with turn():
        outcome = cancel.outcome("sub_1")
        close("sub_1", reason="a")
        with pytest.raises(safewrite.IntentMismatch):
            close("sub_1", reason="b")
    with closing(sqlite3.connect(path)) as ledger, ledger:
        ledger.execute("DROP TRIGGER safewrite_audit_no_update")
        ledger.execute("UPDATE safewrite_audit SET body = '{}' WHERE sequence = 2 OR event = 'refused'")
    found = sw.audit.intent(outcome.key)
    assert found is not None
    assert found.rows[0].happened.startswith("Attempt 1 was written down")
    assert found.rows[1].happened.startswith("This row cannot be read: ")
    assert (found.rows[1].event, found.rows[1].reason, found.rows[1].rule) == ("ended", "timeout", "U1")
    assert found.summary.startswith("Row 2 cannot be read, and is left out here. Unknown after 1 attempt.")
    assert (found.outcome, found.evidence, found.attributable) == ("unknown", "", False)
    (refused,) = sw.audit.refused()
    assert (refused.reason, refused.happened, refused.names) == ("other_content", "", ())
    for body in (
        '{"at":',
        '{"v":1,"event":"moved","fact":{},"at":[0,0,"x"]}',
        '{"at":[1,1,"c"],"event":"answered"}',
    ):
        with closing(sqlite3.connect(path)) as ledger, ledger:
            ledger.execute("UPDATE safewrite_audit SET body = ? WHERE sequence = 2", (body,))
        found = sw.audit.intent(outcome.key)
        assert found is not None
        assert found.rows[1].happened.startswith("This row cannot be read: ")


def test_an_open_intent_without_a_row_that_can_be_read_is_listed_all_the_same(
    path: Path, sw: SafeWrite
) -> None:
    """Who takes its rows away does not make it disappear."""
    cancel = lose(sw, BOUND)
    with turn():
        outcome = cancel.outcome("sub_1")
    with closing(sqlite3.connect(path)) as ledger, ledger:
        ledger.execute("DROP TRIGGER safewrite_audit_no_update")
        ledger.execute("UPDATE safewrite_audit SET body = ''")
    (one,) = sw.audit.unknown()
    assert (one.key, one.attempts, one.reason) == (outcome.key, 0, "")
    found = sw.audit.intent(outcome.key)
    assert found is not None
    assert (one.since, found.outcome) == (found.created_at, "unknown")
    assert found.summary.startswith("Row 1, 2 cannot be read")


def test_what_was_hashed_counts_not_the_columns_drawn_from_it(path: Path, sw: SafeWrite) -> None:
    """A column that was altered by itself deceives nobody here."""
    cancel = lose(sw, BOUND)
    with turn():
        outcome = cancel.outcome("sub_1")
    with closing(sqlite3.connect(path)) as ledger, ledger:
        ledger.execute("DROP TRIGGER safewrite_audit_no_update")
        ledger.execute(
            "UPDATE safewrite_audit SET rule = 'A1', outcome = 'applied', person = 'Eve', reason = 'returned'"
        )
    found = sw.audit.intent(outcome.key)
    assert found is not None
    assert [(r.rule, r.outcome, r.person, r.reason) for r in found.rows] == [
        ("R1", "unknown", "", ""),
        ("U1", "unknown", "", "timeout"),
    ]


def test_names_that_no_database_can_hold_come_back_as_they_were(sw: SafeWrite) -> None:
    """NUL, lone surrogates, and what looks like our own mark."""
    names = ["a\x00b", "x\ud800", 'json:"x"', "ümlaut"]

    @sw.write(target="name", name="make\x00")
    def make(name: str) -> None: ...

    for name in names:
        with safewrite.run(name), safewrite.turn(name):
            make(name)
    assert [r.run for r in sw.audit.runs()] == names[::-1]
    for name in names:
        (found,) = sw.audit.run(name)
        assert (found.run, found.turn, found.tool) == (name, name, "make\x00")
        assert [i.id for i in sw.audit.by_target(name)] == [found.id]


# Records ---------------------------------------------------------------------------------------------------------

KINDS = [kind for kind in vars(records).values() if is_dataclass(kind)]


def test_records_are_json(sw: SafeWrite) -> None:
    """`to_dict()` of every kind holds all of its fields, and nothing that JSON cannot hold."""
    cancel = lose(sw, BOUND)
    with turn():
        cancel.outcome("sub_1")
    with turn(2):
        cancel.outcome("sub_1")
    found = [*sw.audit.runs(), *sw.audit.run("run-1"), *sw.audit.unknown(), *sw.audit.refused()]
    found += [a for i in sw.audit.run("run-1") for a in i.attempts]
    found += [r for i in sw.audit.run("run-1") for r in i.rows]
    found += [c for i in sw.audit.run("run-1") for r in i.rows for c in r.contents]
    assert {type(one) for one in found} == set(KINDS)
    for one in found:
        document = one.to_dict()
        assert list(document) == [field.name for field in fields(one)]
        assert json.loads(json.dumps(document, allow_nan=False)) == document


@pytest.mark.parametrize(
    ("text", "value"),
    [('"sub_1"', "sub_1"), ('{"a":1}', {"a": 1}), ("7", 7), ('text"ed"', 'text"ed"'), ("nan", "nan")],
)
def test_a_target_is_the_value_that_its_text_stands_for(text: str, value: object) -> None:
    """Canonical text is JSON for all that JSON has; the rest stays text."""
    assert records.target_value(text) == value


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_records_are_frozen(kind: type[Record]) -> None:
    """Nobody rewrites what was done, not even in memory."""
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert not hasattr(kind, "__dict__") or "__slots__" in vars(kind)


def test_asking_changes_nothing(path: Path, sw: SafeWrite) -> None:
    """Every question leaves the ledger as it is."""
    cancel = lose(sw, BOUND)
    with turn():
        outcome = cancel.outcome("sub_1")

    def dump() -> list[str]:
        with closing(sqlite3.connect(path)) as ledger:
            return list(ledger.iterdump())

    before = dump()
    audit = sw.audit
    audit.runs(), audit.run("run-1"), audit.intent(outcome.key), audit.unknown(), audit.refused()
    audit.by_target("sub_1"), audit.rows(outcome.intent_id), audit.promises(outcome.intent_id)
    assert dump() == before


def test_the_audit_stands_on_a_ledger_alone(path: Path, sw: SafeWrite) -> None:
    """No tool has to be declared to look: an auditor has none."""
    cancel = lose(sw, BOUND)
    with turn():
        outcome = cancel.outcome("sub_1")
    ledger = Ledger(f"sqlite:///{path}")
    try:
        audit = Audit(ledger)
        found = audit.intent(outcome.key)
        assert found is not None
        assert found.tool == "cancel"
        assert audit.promises(outcome.intent_id).work_bound == 30.0
        assert audit.promises("nothing").work_bound is None
    finally:
        ledger.close()
