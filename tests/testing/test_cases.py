"""Cases: an intent's history as a file, decided again by the machine of today and by the tool as it is declared now."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import safewrite
from safewrite import Applied, Attempt, Dependency, GoalMet, GoalNotMet, NotApplied, SafeWrite
from safewrite.audit.cases import export_case
from safewrite.core.events import Ended, Event, Finding, OutcomeState, Withheld
from safewrite.core.machine import refold
from safewrite.core.state import State
from safewrite.ledger.model import Meta
from safewrite.ledger.rows import command_json, event_json
from safewrite.shell import clock as seam
from safewrite.testing import Case, CaseUnusable, Lab, ManualClock, ScriptedDependency, replay
from safewrite.testing.script import Step, error, late, slow

SURE = Dependency("billing", work_bound=5.0, read_lag=0.0)
KEYED = Dependency("billing", key_retention=3600.0)
NOTHING = Dependency("billing")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A lab whose dependency recognises keys."""
    dependency = ScriptedDependency(keys="forever")
    dependency.transport()
    with (
        ManualClock(auto=True, patience=2.0) as clock,
        Lab(f"sqlite:///{tmp_path / 'lab.db'}", clock, dependency) as made,
    ):
        yield made


def declare(
    lab: Lab,
    promises: Dependency = SURE,
    *,
    sw: SafeWrite | None = None,
    looks: str = "key",
    patient: bool = False,
    **options: Any,
) -> Any:
    """Declare the tool, as it may be declared today or tomorrow."""
    client = httpx.Client(base_url="http://inside", transport=lab.dependency.transport())
    options = {"target": "sub_id", "timeout": 10.0, "redact": ("token",), **options}

    @(sw or SafeWrite("sqlite://")).write(name="cancel", dependency=promises, **options)
    def cancel(
        sub_id: str, attempt: Attempt, cents: int = 5, token: str = "t0p-s3cret", password: str = ""
    ) -> str:
        timeout = None if patient else attempt.timeout
        reply = client.post(f"/subs/{sub_id}/cancel", headers=attempt.headers, timeout=timeout)
        return reply.raise_for_status().text

    def key(sub_id: str, attempt: Attempt) -> Applied[str] | NotApplied:
        reply = client.get(f"/effects?key={attempt.key}", timeout=attempt.timeout)
        return Applied("found") if reply.raise_for_status().json()["rows"] else NotApplied()

    def state(sub_id: str) -> GoalMet[str] | GoalNotMet:
        return GoalMet("done") if client.get(f"/subs/{sub_id}").json()["effects"] else GoalNotMet()

    if looks:
        cancel.reconcile(key if looks == "key" else state)
    return cancel


def call(tool: Any, *, turn: int = 1, cap: float = 30.0, **arguments: Any) -> Any:
    """Make one call."""
    with safewrite.run("run-1", call_cap=cap), safewrite.turn(turn):
        return tool.outcome("sub_1", **arguments)


def exported(lab: Lab, outcome: Any) -> Case:
    """Return the case of an outcome, as it comes back from its file."""
    case = export_case(lab.sw.ledger, outcome.key)
    assert case is not None
    path = Path(lab.url.removeprefix("sqlite:///")).with_name("case.json")
    path.write_text(case.text())
    assert Case.load(path) == case
    return case


HISTORIES: dict[str, tuple[list[str | Step], dict[str, Any], int]] = {
    "ok": ([], {}, 2),
    "lost, found": (["lose_response"], {}, 3),
    "never, proven absent, sent again": (["never"], {}, 6),
    "late, waited for": ([late(12.0)], {}, 4),
    "slower than its limit": ([slow(12.0)], {}, 4),
    "429 with Retry-After": ([error(429, 2)], {}, 4),
    "rejected": ([error(422)], {}, 2),
    "late, never seen to end": ([late(500.0)], {"promises": NOTHING}, 5),
    "key recognised": (["reset_after", "hang_after"], {"promises": KEYED, "looks": ""}, 6),
    "state": (["hang_after"], {"looks": "state"}, 3),
    "no way to look": (["never"], {"looks": ""}, 2),
    "reads fail": (["lose_response", "read_fails", "read_hangs", "read_fails"], {}, 6),
    "refused for want of time": ([], {"cap": 1e-6}, 1),
}
"""What the dependency does, how tool and call are, and the least number of rows that it leaves."""


@pytest.mark.parametrize("name", HISTORIES)
def test_a_history_is_decided_as_it_was(lab: Lab, name: str) -> None:
    """Recorded once, played again: by the machine and through the tool, the same rows with the same rules."""
    steps, options, least = HISTORIES[name]
    cap = options.get("cap", 30.0)
    declared = {option: value for option, value in options.items() if option != "cap"}
    lab.dependency.script(*steps)
    case = exported(lab, call(declare(lab, sw=lab.sw, **declared), cap=cap))
    assert len(case.rows) >= least
    before = len(lab.dependency.requests())
    for replayed in (replay(case), replay(case, declare(lab, **declared))):
        assert replayed.same, str(replayed)
        assert str(replayed).endswith(f"{len(case.rows)} rows, decided as then.")
    assert len(lab.dependency.requests()) == before


def crash(lab: Lab, tool: Any) -> Any:
    """Die after sending, and make it good."""
    with lab.crash(at="after_send"):
        call(tool)
    return call(tool)


def crash_looking(lab: Lab, tool: Any) -> Any:
    """Die while looking, and let recovery make it good."""
    lab.dependency.script("lose_response")
    with lab.crash(at="after_read"):
        call(tool)
    lab.sw.recover()
    return call(tool)


def delivered(lab: Lab, tool: Any) -> Any:
    """Stay unknown; then a webhook comes, and the call is made again."""
    lab.dependency.script(late(500.0), *["read_fails"] * 60)
    outcome = call(tool)
    found = lab.sw.ledger.find(outcome.key)
    assert found is not None
    lab.sw.deliver(found.state.attempts[0].id, "came by another road")
    return call(tool)


def resolved(lab: Lab, tool: Any) -> Any:
    """Stay unknown; then a person says that it was not applied."""
    lab.dependency.script("never", *["read_fails"] * 60)
    outcome = call(tool)
    lab.sw.resolve(outcome.key, applied=False, by="ada", note="password=hunter2 in the log")
    return call(tool)


def late_response(lab: Lab, tool: Any) -> Any:
    """Give a body up, and hear of its end when nobody waits any more."""
    lab.dependency.script("never", *["read_fails"] * 60)
    tool = declare(lab, sw=lab.sw, patient=True)
    outcome = call(tool)
    found = lab.sw.ledger.find(outcome.key)
    assert found is not None
    end = Ended(1, Finding(OutcomeState.APPLIED, "returned"))
    lab.sw.ledger.record(found, Event(lab.clock.now(), end), Meta())
    return call(tool)


@pytest.mark.parametrize("story", [crash, crash_looking, delivered, resolved, late_response])
def test_several_calls_crashes_and_other_roads_are_played_too(
    lab: Lab, story: Callable[[Lab, Any], Any]
) -> None:
    """Later calls, a process that died, recovery, a delivery, a person's word, a late response: all come in place."""
    case = exported(lab, story(lab, declare(lab, sw=lab.sw)))
    assert replay(case).same
    replayed = replay(case, declare(lab))
    assert replayed.same, str(replayed)


def test_what_an_older_machine_decided_otherwise_is_told_with_both_rules(lab: Lab) -> None:
    """A read that proved nothing was followed by a send: today's machine waits, and says by which rule."""
    lab.dependency.script("never")
    case = exported(lab, call(declare(lab, sw=lab.sw)))
    told = json.loads(case.text())
    first_read = next(n for n, row in enumerate(told["rows"]) if row["event"] == "read_ended")
    del told["rows"][first_read + 1]  # the read that proved it, after the work bound
    told["rows"][first_read].update(command="send", decision={"rule": "S2", "number": 2})
    replayed = replay(Case.model_validate(told))
    assert [(d.row, d.then_rule, d.now_rule) for d in replayed.differences] == [
        (3, "S2", "W3"),
        (4, "", "L2"),
    ]
    assert (
        "  then: claim attempt 2 (S2: Every attempt is known not to be applied: claim a further one.)"
        in str(replayed)
    )
    assert "  now:  wait 5" in str(replayed)
    assert "then: attempt 2 was claimed, to be sent\n" in str(replayed)
    assert replayed.to_dict()["same"] is False


def test_rows_that_fit_no_machine_are_told(lab: Lab) -> None:
    """An outcome that does not follow, and a row that cannot, are differences, not errors."""
    case = exported(lab, call(declare(lab, sw=lab.sw)))
    told = json.loads(case.text())
    told["rows"][1]["outcome"] = "not_applied"
    told["rows"].append(told["rows"][0])
    replayed = replay(Case.model_validate(told))
    assert [(d.row, d.then, d.now[:20]) for d in replayed.differences] == [
        (2, "the outcome is not applied", "the outcome is appli"),
        (3, "run the body of attempt 1", "nothing: it cannot f"),
    ]


@pytest.mark.parametrize(
    ("changed", "now"),
    [
        ({"promises": NOTHING}, "W4"),
        ({"looks": ""}, "U1"),
        ({"max_attempts": 1}, "B2"),
        ({"timeout": 40.0, "promises": KEYED}, "W2"),
    ],
)
def test_a_tool_that_is_declared_otherwise_decides_otherwise(
    lab: Lab, changed: dict[str, Any], now: str
) -> None:
    """A promise taken back, a read removed, fewer attempts: the first row that differs, by which rules."""
    lab.dependency.script("never")
    case = exported(lab, call(declare(lab, sw=lab.sw)))
    replayed = replay(case, declare(lab, **changed))
    assert [d.now_rule for d in replayed.differences] == [now]
    assert replay(case).same


def test_a_body_that_ended_just_after_its_limit_ends_so_again(lab: Lab) -> None:
    """A client's own timeout comes some milliseconds after the limit, within the grace: so it does in a replay."""

    def declared(timeout: float, **given: Any) -> Any:
        @(given.get("sw") or SafeWrite("sqlite://")).write(
            name="cancel", target="sub_id", dependency=NOTHING, timeout=timeout
        )
        def cancel(sub_id: str) -> str:
            seam.clock().sleep(10.03)
            raise httpx.ReadTimeout("timed out")

        return cancel

    outcome = call(declared(10.0, sw=lab.sw))
    case = exported(lab, outcome)
    assert [row.event for row in case.rows] == ["claimed", "ended"]
    assert replay(case, declared(10.0)).differences == ()
    (difference,) = replay(case, declared(9.0)).differences
    assert "stopped waiting" in difference.now


_CALL = {"id": "c1", "sends": 3, "reads": True, "floor": 1.0, "lease": 10.0}
_PROMISED = {"key_retention": 86400.0, "work_bound": 20.0, "read_lag": 0.0}
_READ = {
    "verdict": "inconclusive",
    "began": [103.6, 3.6, "c"],
    "began_revision": 2,
    "epoch": 1,
    "reason": "read_failed",
}
_ANSWER = {
    "rule": "U3",
    "kind": "unknown",
    "outcome": "unknown",
    "reason": "read_failed",
    "may_still_land": True,
}
ENDLESS = {
    "safewrite_case": 1,
    "intent": {
        "key": "sw1_x", "namespace": "default", "run": "run-1", "turn": "1", "tool": "refund", "target": '"pay_9"',
        "occurrence": "", "dependency": "psp",
    },
    "arguments": {
        "v": 1, "arguments": {"payment": {"v": 1, "as": "tagged", "value": "pay_9"}}, "missing": [],
    },
    "rows": [
        {
            "at": [100.0, 0.0, "c"], "event": "claimed", "command": "run", "decision": {"rule": "R1", "number": 1},
            "fact": {"number": 1, "attempt": "a1", "owner": "o", "deadline_at": 103.7},
            "call": _CALL | {"left": 4.9, "promises": _PROMISED}, "outcome": "unknown", "machine": 1,
        },
        {
            "at": [103.6, 3.6, "c"], "event": "ended", "command": "read", "decision": {"rule": "L1"},
            "fact": {"number": 1, "finding": {"outcome": "unknown", "reason": "read_timeout"}}, "promises": True,
            "call": _CALL | {"left": 1.3, "promises": _PROMISED, "backoff": 0.1}, "outcome": "unknown", "machine": 1,
        },
        {
            "at": [104.84, 4.84, "c"], "event": "read_ended", "command": "answer", "decision": _ANSWER, "fact": _READ,
            "call": _CALL | {"left": 0.06, "promises": _PROMISED, "backoff": 0.1}, "promises": True,
            "outcome": "unknown", "machine": 1,
        },
    ],
}  # fmt: skip


def test_a_call_that_would_go_on_and_on_ends_with_what_is_on_record() -> None:
    """A shorter bound lets the call look again where it gave up then; to that look nothing on record answers."""
    quick = Dependency("psp", work_bound=0.1, read_lag=0.0, key_retention=86_400.0)

    @SafeWrite("sqlite://").write(name="refund", target="payment", dependency=quick, timeout=4.0)
    def refund(payment: str) -> None:
        raise AssertionError("no body runs")

    refund.reconcile(lambda payment: NotApplied())
    case = Case.model_validate(ENDLESS)
    assert ("U3", "L2") in [(d.then_rule, d.now_rule) for d in replay(case, refund).differences]


def test_a_replay_raises_no_alarm_of_the_incident(caplog: pytest.LogCaptureFixture) -> None:
    """What goes wrong in a play concerns nobody who is on call: it is a difference, and no more."""
    keyed = Dependency("psp", key_retention=86_400.0)

    @SafeWrite("sqlite://").write(name="refund", target="payment", dependency=keyed, timeout=4.0)
    def refund(payment: str) -> None:
        raise AssertionError("no body runs")

    assert replay(Case.model_validate(ENDLESS), refund).differences
    with safewrite.run("run-1"), safewrite.turn(1):
        key = refund.key("pay_9")
    assert [record.message for record in caplog.records if key in record.message] == []


def test_what_is_no_tool_is_said() -> None:
    """The command line takes a `SafeWrite`; here it is one tool."""
    with pytest.raises(CaseUnusable, match="give the decorated function of `refund` itself"):
        replay(Case.model_validate(ENDLESS), SafeWrite("sqlite://"))


def test_a_target_that_is_chosen_otherwise_is_another_intent(lab: Lab) -> None:
    """The key is compared as well: with another one the same wish would be sent beside the old one."""
    case = exported(lab, call(declare(lab, sw=lab.sw)))
    replayed = replay(case, declare(lab, target=("sub_id", "cents")))
    assert [(d.row, d.then) for d in replayed.differences] == [(0, case.intent.key)]


def test_an_attempt_that_was_given_up_is_given_up_again(lab: Lab) -> None:
    """A body that never came back: its caller's limit passes again."""
    lab.dependency.script("never")
    case = exported(lab, call(declare(lab, NOTHING, sw=lab.sw, patient=True, looks="")))
    assert [row.event for row in case.rows] == ["claimed", "gave_up"]
    replayed = replay(case, declare(lab, NOTHING, looks=""))
    assert replayed.same, str(replayed)


def test_a_case_holds_no_secret_no_value_and_no_machine(lab: Lab) -> None:
    """What was redacted stays out, and so does what looks like a secret; values and host names are left out."""
    tool = declare(lab, sw=lab.sw)
    lab.dependency.script("hang_after", "read_fails")
    outcome = call(tool, password="hunter2", cents=7)
    call(tool, password="hunter2", cents=7)
    text = exported(lab, outcome).text()
    for secret in ("t0p-s3cret", "hunter2", socket.gethostname() + "/", "found", "/subs/"):
        assert secret not in text.replace('"reason": "found"', "")
    told = json.loads(text)
    assert told["arguments"]["missing"] == ["password", "token"]
    assert {row["fact"].get("owner", "process-2") for row in told["rows"]} == {"process-2"}
    assert replay(exported(lab, outcome), declare(lab)).same


def test_a_body_that_never_ran_does_not_run_again(lab: Lab) -> None:
    """Its deadline had passed on a machine that stood still between claim and body: so it does in the replay."""
    case = exported(lab, call(declare(lab, NOTHING, sw=lab.sw, looks=""), cap=12.0))
    event, _, _ = case.rows[0].told()
    state, _ = refold(State(), event)
    assert event.call is not None
    late = event.at._replace(unix=event.at.unix + 12.0, ticks=event.at.ticks + 12.0)
    withheld = Event(late, Withheld(1, "deadline_passed"), dataclasses.replace(event.call, left=0.0))
    state, command = refold(state, withheld)
    told = json.loads(case.text())
    row = {**event_json(withheld), **command_json(command), "outcome": state.outcome.value, "machine": 1}
    told["rows"][1:] = [json.loads(json.dumps(row))]
    stood = Case.model_validate(told)
    for replayed in (replay(stood), replay(stood, declare(lab, NOTHING, looks=""))):
        assert replayed.same, str(replayed)
    told["rows"][1]["fact"]["reason"] = "no_thread_in_time"
    with pytest.raises(CaseUnusable, match="no thread was free"):
        replay(Case.model_validate(told), declare(lab, NOTHING, looks=""))


def test_methods_and_coroutines_are_played_as_well(lab: Lab) -> None:
    """Whatever kind of function a tool is, and from a ledger whose time was real."""

    class Billing:
        @lab.sw.write(target="sub_id", name="of a method", precondition="version", dependency=NOTHING)
        def cancel(self, sub_id: str, version: int) -> str:
            raise TimeoutError

    @lab.sw.write(target="sub_id", name="coroutine", timeout=5.0, dependency=SURE)
    async def cancel(sub_id: str) -> str:
        raise TimeoutError

    @cancel.reconcile
    async def _(sub_id: str) -> NotApplied:
        return NotApplied()

    before = seam.use(seam.SystemClock())
    try:
        with safewrite.run("run-1", call_cap=1.0), safewrite.turn(1):
            method = exported(lab, Billing.cancel.outcome(Billing(), "sub_1", 3))
            coroutine = exported(lab, asyncio.run(cancel.outcome("sub_1")))
    finally:
        seam.use(before)
    assert [row.event for row in method.rows][:3] == ["claimed", "ended", "claimed"]
    for case, tool in ((method, Billing.cancel), (coroutine, cancel)):
        replayed = replay(case, tool)
        assert replayed.same, str(replayed)


def test_a_persons_note_is_cleaned(lab: Lab) -> None:
    """What a person wrote is kept less what looks like a secret."""
    text = exported(lab, resolved(lab, declare(lab, sw=lab.sw))).text()
    assert "hunter2" not in text
    assert "in the log" in text


def test_what_one_tool_cannot_play_alone_is_said(lab: Lab) -> None:
    """Another intent with the same wish, other content, a cancelled caller: the machine alone replays it."""
    tool = declare(lab, sw=lab.sw, looks="")
    lab.dependency.script("never")
    call(tool)
    beside = exported(lab, call(tool, turn=2))
    assert replay(beside).same
    with pytest.raises(CaseUnusable, match=r"row 1 cannot be played.*another intent with the same wish"):
        replay(beside, declare(lab, looks=""))
    with pytest.raises(CaseUnusable, match="of the tool `cancel`, not of `other`"):
        replay(
            beside,
            declare(lab, looks="") and SafeWrite("sqlite://").write(target="a", name="other")(lambda a: a),
        )

    with safewrite.run("run-2"), safewrite.turn(1):
        first = tool.outcome("sub_9")
        with pytest.raises(safewrite.IntentMismatch):
            tool.outcome("sub_9", cents=9)
    mismatch = exported(lab, first)
    with pytest.raises(CaseUnusable, match=r"row 3 cannot be played.*other arguments"):
        replay(mismatch, tool)
    told = json.loads(first_text := exported(lab, first).text())
    told["rows"][1]["over"] = True
    with pytest.raises(CaseUnusable, match="cancelled or interrupted"):
        replay(Case.model_validate(told), tool)
    told = json.loads(first_text)
    told["rows"] = [
        told["rows"][0],
        {**told["rows"][1], "call": {**told["rows"][1]["call"], "id": "b"}},
        told["rows"][1],
    ]
    with pytest.raises(CaseUnusable, match=r"row 3 cannot be played.*calls overlap"):
        replay(Case.model_validate(told), tool)

    @lab.sw.write(target="day", name="book")
    def book(day: int) -> None:
        """Book a day."""

    with safewrite.run("run-3"), safewrite.turn(1):
        booked = exported(lab, book.outcome(3))

    @SafeWrite("sqlite://").write(target="day", name="book")
    def rebook(day: Case) -> None:
        """Book something else."""

    with pytest.raises(CaseUnusable, match="no longer fit `book`"):
        replay(
            booked.model_copy(
                update={
                    "arguments": {"arguments": {"day": {"v": 1, "as": "adapter", "value": 3}}, "missing": []}
                }
            ),
            rebook,
        )


def test_it_plays_inside_a_run_a_frozen_clock_and_an_event_loop(lab: Lab) -> None:
    """A replay has a context and a clock of its own, whatever is open around it."""
    lab.dependency.script("never")
    tool = declare(lab, sw=lab.sw)
    case = exported(lab, call(tool))

    async def inside() -> bool:
        with safewrite.run("other", deadline=0.5), safewrite.turn(9):
            return replay(case, tool).same

    before = lab.clock.elapsed
    assert asyncio.run(inside())
    assert lab.clock.elapsed == before


GOOD = {
    "safewrite_case": 1,
    "intent": dict.fromkeys(("key", "namespace", "run", "turn", "tool", "target", "occurrence", "dependency"), "x"),
    "arguments": {},
    "rows": [
        {"at": [0, 0, "c"], "event": "answered", "fact": {}, "command": "nothing", "decision": {"rule": "N1"},
         "outcome": "applied", "machine": 1},
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\xff{", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        ([], "is no case: it has no field `safewrite_case`"),
        ({}, "is no case"),
        ({**GOOD, "safewrite_case": 2}, "of version 2, and this safewrite reads version 1. Update safewrite"),
        ({**GOOD, "extra": 1}, "extra: Extra inputs are not permitted"),
        ({**GOOD, "rows": [{**GOOD["rows"][0], "new": 1}]}, "rows.0.new: Extra inputs"),  # type: ignore[index]
        ({**GOOD, "rows": [{**GOOD["rows"][0], "event": "tea"}]}, "row 1.*the event `tea`"),  # type: ignore[index]
        ({**GOOD, "rows": [{**GOOD["rows"][0], "fact": {"x": 1}}]}, "row 1.*`x` of Answered"),  # type: ignore[index]
        ({**GOOD, "rows": [{**GOOD["rows"][0], "at": [0]}]}, "row 1.*no moment"),  # type: ignore[index]
        ({**GOOD, "rows": [{**GOOD["rows"][0], "outcome": "maybe"}]}, "row 1.*maybe"),  # type: ignore[index]
    ],
    ids=str,
)
def test_a_file_that_is_no_case_of_this_version_is_refused(
    tmp_path: Path, content: object, complaint: str
) -> None:
    """Unknown fields, events and versions are named, so that nobody believes in half a replay."""
    path = tmp_path / "case.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.raises(CaseUnusable, match=complaint):
        Case.load(path)


def test_a_good_one_is_read() -> None:
    """The example that the refusals above are made from is itself a case."""
    assert len(Case.model_validate(GOOD).rows) == 1


@settings(deadline=None)
@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner)
    | st.dictionaries(st.sampled_from(["number", "finding", "call", "at", "rule", "owner", "id", "x"]), inner)
))  # fmt: skip
def test_nothing_in_a_file_makes_it_fail_otherwise(anything: Any) -> None:
    """Whatever stands in a row is a case that can be replayed, or is refused as none."""
    row = {**GOOD["rows"][0], "event": "ended", "fact": anything, "call": anything}  # type: ignore[index]
    for wrong in (anything, {**GOOD, "rows": [row]}, {**GOOD, "rows": anything}):
        try:
            replay(Case.model_validate(wrong))
        except ValueError:  # what `load` turns into `CaseUnusable`
            continue
