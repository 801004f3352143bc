"""A write whose answer did not come: sent again only where that is safe, found out where it can be, else unknown."""

from __future__ import annotations

import subprocess
from typing import Any

import botocore.exceptions
import httpx
import psycopg
import pytest
import requests
import sqlalchemy.exc
from tenacity import wait_fixed

from safewrite import (
    Applied,
    Attempt,
    Dependency,
    GoalMet,
    Inconclusive,
    NotApplied,
    NotSent,
    Outcome,
    OutcomeUnknown,
    Rejected,
    SafeWrite,
    StillRunning,
    WriteNotSent,
    WriteRejected,
)
from safewrite.testing import ManualClock
from tests.shell.conftest import KEYED, SETTLES, Shell, Tools
from tests.shell.remote import DROP, LATE, LOSE, OK, REFUSE, REQUEST, Remote, fail, reject, status, timed_out

pytestmark = pytest.mark.usefixtures("run", "clock")


def reasons(sw: SafeWrite, outcome: Outcome[Any]) -> list[str]:
    """Return why each attempt of an intent is what it is."""
    intent = sw.ledger.find(outcome.key)
    return [a.reason for a in intent.state.attempts] if intent is not None else []


AMBIGUOUS: dict[str, BaseException] = {
    "builtin timeout": TimeoutError("no answer"),
    "httpx.ReadTimeout": timed_out(),
    "httpx.WriteTimeout": httpx.WriteTimeout("no answer", request=REQUEST),
    "httpx.ReadError": httpx.ReadError("reset", request=REQUEST),
    "httpx.RemoteProtocolError": httpx.RemoteProtocolError("closed", request=REQUEST),
    "requests.ReadTimeout": requests.exceptions.ReadTimeout("no answer"),
    "requests.ConnectionError": requests.exceptions.ConnectionError("reset by peer"),
    "psycopg.OperationalError": psycopg.OperationalError("server closed the connection unexpectedly"),
    "sqlalchemy.OperationalError": sqlalchemy.exc.OperationalError(
        "COMMIT", {}, psycopg.OperationalError("gone")
    ),
    "subprocess.TimeoutExpired": subprocess.TimeoutExpired(["git", "push"], 1.0),
    "subprocess.CalledProcessError": subprocess.CalledProcessError(1, ["git", "push"]),
    "botocore.ReadTimeoutError": botocore.exceptions.ReadTimeoutError(endpoint_url="https://s3.example"),
    "botocore.ClientError": botocore.exceptions.ClientError(
        {"Error": {"Code": "InternalError"}}, "PutObject"
    ),
    "HTTP 500": status(500)(),
    "HTTP 502": status(502)(),
    "HTTP 504": status(504)(),
    "undeclared HTTP 409": status(409)(),
    "RuntimeError with a status in its text": RuntimeError("HTTP 502"),
    "unlisted": KeyError("no idea"),
}


@pytest.mark.parametrize("error", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_an_ambiguous_error_is_unknown_and_never_sent_again_blindly(
    error: BaseException, shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Whatever the client raises after the write was applied: one effect, told as unknown, now and at the next call."""
    cancel = tool(read=None)
    remote.next(fail(error))
    with pytest.raises(OutcomeUnknown) as told:
        shell.call(cancel, "sub_1")
    assert told.value.__cause__ is error
    assert told.value.may_still_land
    for _ in range(3):
        with pytest.raises(OutcomeUnknown):
            shell.call(cancel, "sub_1")
    assert (remote.count(), len(remote.attempts)) == (1, 1)


@pytest.mark.parametrize("error", list(AMBIGUOUS.values())[1::4], ids=list(AMBIGUOUS)[1::4])
def test_the_call_that_lost_its_answer_reads_it_back_itself(
    error: BaseException, shell: Shell, remote: Remote, tool: Tools
) -> None:
    """A read that finds the effect by its key gives the value within the same call."""
    cancel = tool()
    remote.next(fail(error))
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.value, outcome.evidence) == ("applied", "sub_1 done", "reconciled")
    assert outcome.attributable
    assert outcome.sent
    assert not outcome.may_still_land
    assert (remote.count(), remote.reads) == (1, 1)


NEVER_SENT: dict[str, BaseException] = {
    "httpx.ConnectError": httpx.ConnectError("refused", request=REQUEST),
    "httpx.ConnectTimeout": httpx.ConnectTimeout("slow", request=REQUEST),
    "httpx.PoolTimeout": httpx.PoolTimeout("busy", request=REQUEST),
    "requests.ConnectTimeout": requests.exceptions.ConnectTimeout("slow"),
    "HTTP 425": status(425)(),
    "HTTP 429": status(429)(),
    "raised on purpose": NotSent("queue full"),
}


@pytest.mark.parametrize("error", NEVER_SENT.values(), ids=NEVER_SENT)
def test_what_was_never_delivered_is_sent_again_without_a_read(
    error: BaseException, shell: Shell, remote: Remote, tool: Tools
) -> None:
    """A refused connection, an exhausted pool, a 429: nothing has happened, so the next attempt follows at once."""
    cancel = tool()
    remote.next(fail(error, applies=False))
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts, remote.count(), remote.reads) == ("applied", 2, 1, 0)


@pytest.mark.parametrize("error", NEVER_SENT.values(), ids=NEVER_SENT)
def test_what_is_never_delivered_ends_as_not_sent(
    error: BaseException, shell: Shell, remote: Remote, tool: Tools
) -> None:
    """After `max_attempts` refusals the caller learns that nothing was sent, and may call again."""
    cancel = tool(max_attempts=2)
    remote.next(*[fail(error, applies=False)] * 2)
    with pytest.raises(WriteNotSent) as told:
        shell.call(cancel, "sub_1")
    assert told.value.__cause__ is error
    assert told.value.attempts == 2
    assert shell.call(cancel, "sub_1") == "sub_1 done"
    assert (remote.count(), len(remote.attempts)) == (1, 3)


@pytest.mark.parametrize("error", [status(400)(), status(404)(), status(422)(), Rejected("declined")])
def test_a_refusal_by_the_dependency_is_told_with_its_cause_and_replayed(
    error: BaseException, shell: Shell, remote: Remote, tool: Tools
) -> None:
    """The dependency's no ends the intent: the same turn hears it again without anything being sent."""
    cancel = tool()
    remote.next(fail(error, applies=False))
    with pytest.raises(WriteRejected) as told:
        shell.call(cancel, "sub_1")
    assert told.value.__cause__ is error
    assert "Do not repeat it unchanged" in told.value.for_model()
    with pytest.raises(WriteRejected) as again:
        shell.call(cancel, "sub_1")
    assert again.value.outcome is not None
    assert again.value.outcome.replayed
    assert (remote.count(), len(remote.attempts), remote.reads) == (0, 1, 0)


def test_a_refusal_after_an_ambiguous_attempt_says_nothing_about_that_attempt(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Attempt 1 is open, attempt 2 is rejected: the intent is unknown, not rejected, until a read finds it."""
    cancel = tool(read=None, dependency=KEYED)
    remote.next(LOSE, reject(422))
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts) == ("unknown", 2)
    assert remote.count() == 1


def test_absence_is_believed_only_where_nothing_can_land_any_more(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """A body seen to end, no work bound left and a read that sees all: proven absent, so it is sent again."""
    cancel = tool(dependency=SETTLES)
    remote.next(DROP)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.evidence, outcome.attempts) == ("applied", "response", 2)
    assert (remote.count(), remote.reads) == (1, 1)
    assert len({key for _, key, _ in remote.attempts}) == 1


def test_a_proven_absence_is_reported_where_no_attempt_is_left(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """With one attempt a call the caller learns that nothing happened, and a further call may send."""
    cancel = tool(dependency=SETTLES, max_attempts=1)
    remote.next(DROP)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.evidence, outcome.may_still_land) == ("not_applied", "reconciled", False)
    assert shell.call(cancel, "sub_1") == "sub_1 done"
    assert (remote.count(), len(remote.attempts)) == (1, 2)


@pytest.mark.parametrize(
    "dependency",
    [
        None,
        Dependency("no bound", read_lag=0.0),
        Dependency("no lag", work_bound=0.0),
        Dependency("long bound", work_bound=3600.0, read_lag=0.0),
        Dependency("long lag", work_bound=0.0, read_lag=3600.0),
    ],
)
def test_absence_without_promises_is_unknown_and_nothing_is_sent(
    dependency: Dependency | None, shell: Shell, remote: Remote, tool: Tools
) -> None:
    """The read says no, but nobody promised that nothing can land later or that reads see it: unknown."""
    cancel = tool(dependency=dependency)
    remote.next(DROP)
    with pytest.raises(OutcomeUnknown) as told:
        shell.call(cancel, "sub_1")
    assert told.value.reason == "absent_not_proven"
    assert len(remote.attempts) == 1
    assert remote.reads >= 1


def test_the_work_bound_is_waited_for_inside_the_deadline_and_then_read_again(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """The first read finds nothing, the effect lands within the bound, the read after the bound finds it."""
    cancel = tool(dependency=Dependency("slow", work_bound=3.0, read_lag=0.5), timeout=2.0)
    remote.next(DROP)
    first = remote.by_key

    def lands_before_the_second_read(key: str) -> Any:
        if remote.reads == 1:
            remote._apply("sub_1", key, 1, {})
        return first(key)

    remote.by_key = lands_before_the_second_read  # type: ignore[method-assign]
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts, remote.count()) == ("applied", 1, 1)
    assert 3.5 <= clock.elapsed <= 4.5


def test_a_read_proves_what_was_so_when_it_began(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """It looked within the work bound and answered after it: what landed meanwhile it cannot have seen."""
    cancel = tool(dependency=Dependency("slow", work_bound=3.0, read_lag=0.0), timeout=6.0)
    remote.next(DROP)
    first = remote.by_key

    def answers_late(key: str) -> Any:
        found = first(key)
        if remote.reads == 1:
            clock.advance(4.0)
            remote._apply("sub_1", key, 1, {})
        return found

    remote.by_key = answers_late  # type: ignore[method-assign]
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.attempts, remote.count(), remote.reads) == ("applied", 1, 1, 2)


def test_a_read_that_cannot_tell_leaves_it_unknown(shell: Shell, remote: Remote, tool: Tools) -> None:
    """Inconclusive gives its own reason, and nothing is sent again even where all is settled."""

    async def unsure() -> Inconclusive:
        return Inconclusive("search is down")

    cancel = tool(read=unsure, dependency=SETTLES)
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown) as told:
        shell.call(cancel, "sub_1")
    assert (told.value.reason, told.value.may_still_land) == ("search is down", False)
    assert len(remote.attempts) == 1


@pytest.mark.parametrize(
    "foreign", [None, True, False, "applied", {"state": "applied"}, 0, [Applied("x"), "y"], NotApplied]
)
def test_a_read_that_returns_anything_else_proves_nothing(
    foreign: object, shell: Shell, remote: Remote, tool: Tools
) -> None:
    """A foreign return, a verdict's class instead of a verdict, a mixed list: inconclusive, not sent again."""

    async def read() -> Any:
        return foreign

    cancel = tool(read=read, dependency=SETTLES)
    remote.next(DROP)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, len(remote.attempts)) == ("unknown", 1)


def test_a_read_that_raises_proves_nothing_and_is_tried_again(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """An exception out of the read is inconclusive; the next read within the budget may still find it."""
    reads: list[int] = []

    async def read(attempt: Attempt) -> Applied[str]:
        reads.append(1)
        if len(reads) == 1:
            raise ConnectionError("search is down")
        return Applied("found")

    cancel = tool(read=read)
    remote.next(LOSE)
    assert shell.call(cancel, "sub_1") == "found"
    assert (len(reads), len(remote.attempts)) == (2, 1)


def test_a_recognised_key_makes_the_second_send_the_question(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Where the dependency knows the key, an ambiguous attempt is sent again under it, with one effect."""
    cancel = tool(read=None, dependency=KEYED)
    remote.recognises_keys = True
    remote.next(LOSE)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.evidence, outcome.attempts, remote.count()) == (
        "applied",
        "response",
        2,
        1,
    )
    assert len({key for _, key, _ in remote.attempts}) == 1


def test_a_read_comes_before_the_second_send_even_where_the_key_is_recognised(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """One read finds the effect, so nothing has to be sent again."""
    cancel = tool(dependency=KEYED)
    remote.next(LOSE)
    assert shell.call(cancel, "sub_1") == "sub_1 done"
    assert (len(remote.attempts), remote.reads) == (1, 1)


def test_past_the_retention_of_the_key_nothing_is_sent_again(
    shell: Shell, remote: Remote, tool: Tools, clock: ManualClock
) -> None:
    """A forgotten key would be a fresh request: unknown after its time, however often it is asked."""
    cancel = tool(read=None, dependency=Dependency("short memory", key_retention=3600.0), max_attempts=1)
    remote.recognises_keys = True
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1")
    clock.advance(25 * 3600.0)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1")
    assert len(remote.attempts) == 1


def test_a_body_that_never_read_its_key_is_not_sent_again_under_it(
    shell: Shell, remote: Remote, sw: SafeWrite
) -> None:
    """The dependency recognises keys, but this body did not send one: no second send, and an alarm says so."""
    alarms: list[str] = []
    sw.on_alarm(lambda alert: alarms.append(alert.kind))

    async def charge(card: str) -> str:
        return await remote.write(card)

    tool = sw.write(target="card", dependency=KEYED)(shell.colours(charge))
    remote.next(LOSE)
    with pytest.raises(OutcomeUnknown):
        shell.call(tool, "card_1")
    assert (len(remote.attempts), remote.count(), alarms) == (1, 1, ["key_not_carried"])


def test_a_body_that_was_left_behind_without_its_key_is_not_sent_again_under_it(
    shell: Shell, remote: Remote, sw: SafeWrite
) -> None:
    """Nobody saw it end, but it is known that it had read no key until it was given up."""

    async def charge(card: str) -> str:
        return await remote.write(card)

    tool = sw.write(target="card", dependency=KEYED, timeout=2.0)(shell.colours(charge))
    remote.next(LATE)
    with pytest.raises(OutcomeUnknown):
        shell.call(tool, "card_1")
    assert len(remote.attempts) == 1


def test_a_replayed_error_is_not_asked_for_again(shell: Shell, remote: Remote, tool: Tools) -> None:
    """A dependency that stores a 500 under the key would only repeat it: one attempt, unknown."""
    cancel = tool(
        read=None, dependency=Dependency("stores errors", key_retention=86_400.0, replays_errors=True)
    )
    remote.next(fail(status(500)(), applies=False))
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1")
    assert len(remote.attempts) == 1


def test_a_burnt_key_is_reported_where_the_absence_is_proven(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """A proven absence after a replayed error is told as not applied, and not sent again under that key."""
    dependency = Dependency(
        "stores errors", key_retention=86_400.0, replays_errors=True, work_bound=0, read_lag=0
    )
    cancel = tool(dependency=dependency)
    remote.next(fail(status(500)(), applies=False))
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.reason, outcome.again, len(remote.attempts)) == (
        "not_applied",
        "key_burnt",
        False,
        1,
    )


def test_under_one_precondition_it_is_sent_again_with_the_first_version(
    shell: Shell, remote: Remote, sw: SafeWrite
) -> None:
    """Every attempt names the same version, so at most one can take effect; a later call cannot change it."""
    versions: list[int] = []

    async def rename(sub_id: str, version: int, attempt: Attempt) -> str:
        versions.append(version)
        return await remote.write(sub_id, attempt)

    tool = sw.write(target="sub_id", precondition="version", free_text=("version",), wait=wait_fixed(0))(
        shell.colours(rename)
    )
    remote.next(DROP, DROP, DROP)
    with pytest.raises(OutcomeUnknown):
        shell.call(tool, "sub_1", version=7)
    assert shell.call(tool, "sub_1", version=8) == "sub_1 done"
    assert versions == [7, 7, 7, 7]


def test_without_a_version_in_hand_nothing_is_sent_again(shell: Shell, remote: Remote, sw: SafeWrite) -> None:
    """A precondition that is None guards nothing."""

    async def rename(sub_id: str, attempt: Attempt, version: int | None = None) -> str:
        return await remote.write(sub_id, attempt)

    tool = sw.write(target="sub_id", precondition="version")(shell.colours(rename))
    remote.next(DROP)
    with pytest.raises(OutcomeUnknown):
        shell.call(tool, "sub_1")
    assert len(remote.attempts) == 1


def test_a_failed_precondition_settles_what_came_before(shell: Shell, remote: Remote, sw: SafeWrite) -> None:
    """A 412 says that the version is gone: no attempt can land any more, so a read decides."""

    async def rename(sub_id: str, version: int, attempt: Attempt) -> str:
        return await remote.write(sub_id, attempt)

    async def read(attempt: Attempt) -> Applied[str] | NotApplied:
        return Applied("renamed") if remote.by_key(attempt.key) and remote.reads > 1 else NotApplied()

    tool = sw.write(target="sub_id", precondition="version", wait=wait_fixed(0))(shell.colours(rename))
    tool.reconcile(shell.colours(read))
    remote.next(LOSE, fail(status(412)(), applies=False))
    outcome = shell.call(tool.outcome, "sub_1", version=7)
    assert (outcome.state, outcome.value, outcome.attempts, remote.count()) == ("applied", "renamed", 2, 1)


def test_a_goal_that_is_met_is_an_answer_without_authorship(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """A state tool's read gives the value, and says that nobody knows who did it."""
    cancel = tool(read="state")
    remote.next(LOSE)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.evidence, outcome.attributable) == ("applied", "goal_state", False)
    assert outcome.may_still_land
    assert "not who did it" in outcome.for_model()


def test_a_goal_that_is_not_met_never_licenses_a_second_send(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """Somebody may have undone it: even a settled intent stays unknown."""
    cancel = tool(read="state", dependency=SETTLES)
    remote.next(DROP)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert (outcome.state, outcome.reason, outcome.may_still_land) == ("unknown", "goal_not_met", False)
    assert len(remote.attempts) == 1


def test_what_is_still_running_is_waited_for_and_never_sent_again(
    shell: Shell, remote: Remote, sw: SafeWrite
) -> None:
    """A 202 is read with backoff until its work is done."""
    reads: list[int] = []

    async def submit(job: str, attempt: Attempt) -> Applied[str] | StillRunning:
        await remote.write(job, attempt)
        return StillRunning()

    async def read(job: str) -> Applied[str] | StillRunning:
        reads.append(1)
        return Applied("finished") if len(reads) == 4 else StillRunning()

    tool = sw.write(target="job", dependency=KEYED, wait=wait_fixed(1.0))(shell.colours(submit))
    tool.reconcile(shell.colours(read))
    assert shell.call(tool, "job_1") == "finished"
    assert (len(reads), len(remote.attempts)) == (4, 1)


def test_what_runs_on_after_the_deadline_is_unknown_and_may_still_land(
    shell: Shell, remote: Remote, sw: SafeWrite
) -> None:
    """Work that is not done in time is reported as running, not as failed."""

    async def submit(job: str, attempt: Attempt) -> StillRunning:
        await remote.write(job, attempt)
        return StillRunning()

    async def read(job: str) -> StillRunning:
        return StillRunning()

    tool = sw.write(target="job", wait=wait_fixed(1.0))(shell.colours(submit))
    tool.reconcile(shell.colours(read))
    outcome = shell.call(tool.outcome, "job_1")
    assert (outcome.state, outcome.reason, outcome.may_still_land) == ("unknown", "still_running", True)
    assert len(remote.attempts) == 1


@pytest.mark.parametrize(
    ("reply", "state"),
    [
        ({"ok": True}, "applied"),
        ({"error": "denied"}, "not_applied"),
        ({"data": None, "errors": ["?"]}, "unknown"),
        ({"ok": "boom"}, "unknown"),
    ],
)
def test_a_reply_that_says_no_in_its_body_is_read_by_its_author(
    reply: dict[str, Any], state: str, shell: Shell, sw: SafeWrite
) -> None:
    """`applied_when` reads a 200 with an error inside: True applied, False rejected, None or an exception unknown."""

    def applied(value: dict[str, Any]) -> bool | None:
        if "errors" in value:
            return None
        if "error" in value:
            return False
        return [True][{True: 0}[value["ok"]]]

    async def mutate(order: str) -> dict[str, Any]:
        return reply

    tool = sw.write(target="order", applied_when=applied)(shell.colours(mutate))
    outcome = shell.call(tool.outcome, "o1")
    assert outcome.state == state
    assert outcome.value == (reply if state == "applied" else None)


def test_a_dependency_may_classify_what_its_client_raises_and_returns(shell: Shell, sw: SafeWrite) -> None:
    """`classify` comes before the shipped table; None leaves it to the table, and its own fault is unknown."""

    class Declined(Exception):
        pass

    def classify(seen: object) -> object:
        if isinstance(seen, Declined):
            return "not_applied"
        if seen == "queued":
            return "unknown"
        if seen == "broken":
            raise ZeroDivisionError
        return None

    replies: list[Any] = [Declined("card"), "queued", "broken", "fine"]

    async def pay(order: str) -> str:
        reply = replies[int(order)]
        if isinstance(reply, Exception):
            raise reply
        return str(reply)

    tool = sw.write(target="order", dependency=Dependency("bank", classify=classify))(shell.colours(pay))
    told = [shell.call(tool.outcome, str(n)) for n in range(4)]
    assert [(o.state, reasons(sw, o)) for o in told[:3]] == [
        ("not_applied", ["classified"]),
        ("unknown", ["classified"]),
        ("unknown", ["classify_failed"]),
    ]
    assert (told[3].state, told[3].value) == ("applied", "fine")


def test_an_exception_after_the_effect_is_unknown_unless_its_author_declared_it(
    shell: Shell, remote: Remote, tool: Tools
) -> None:
    """The receipt mail failed after the charge: unknown; a declared type means that nothing happened."""
    cancel = tool(read=None, name="a")
    remote.next(fail(ValueError("receipt mail failed")))
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1")
    declared = tool(read=None, name="b", not_applied_on=(ValueError,))
    remote.next(fail(ValueError("invalid amount"), applies=False))
    with pytest.raises(WriteRejected):
        shell.call(declared, "sub_1")
    assert remote.count() == 1


def test_a_body_of_many_requests_takes_the_table_back(shell: Shell, remote: Remote, tool: Tools) -> None:
    """With `single_request=False` a refused connection may have come after an earlier write: unknown."""
    cancel = tool(read=None, single_request=False)
    remote.next(REFUSE)
    with pytest.raises(OutcomeUnknown):
        shell.call(cancel, "sub_1")
    assert len(remote.attempts) == 1


def test_an_error_of_a_nested_write_is_unknown_for_the_outer_one(
    shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite
) -> None:
    """The inner write was refused, but what else the outer body did nobody knows; and only one layer sends again."""
    inner = tool(sw, name="inner", max_attempts=3)

    async def outer(order: str) -> str:
        await remote.write(order)
        result = inner(order)
        return await result if not shell.plain else result

    write = sw.write(target="order", name="outer", max_attempts=3)(shell.colours(outer))
    remote.next(OK, REFUSE, REFUSE, REFUSE)
    outcome = shell.call(write.outcome, "o1")
    assert (outcome.state, reasons(sw, outcome)) == ("unknown", ["nested_write"])
    assert isinstance(outcome.error.__cause__, WriteNotSent)
    assert len(remote.attempts) == 4


def test_a_conflict_is_looked_into(shell: Shell, remote: Remote, tool: Tools) -> None:
    """A 409 that nobody declared may be the echo of an effect: it is read back, not told as a refusal."""
    cancel = tool(dependency=KEYED)
    remote.next(fail(status(409)()))
    assert shell.call(cancel, "sub_1") == "sub_1 done"
    assert remote.reads == 1


def test_a_verdict_may_be_returned_by_the_body(shell: Shell, sw: SafeWrite) -> None:
    """A body that sees the goal already met says so; one that finds nothing done says that."""

    async def cancel(sub_id: str) -> GoalMet[str] | Applied[str] | NotApplied:
        return {"a": GoalMet("already"), "b": Applied("new", object_id="o-1"), "c": NotApplied()}[sub_id]

    tool = sw.write(target="sub_id")(shell.colours(cancel))
    a, b, c = (shell.call(tool.outcome, sub) for sub in "abc")
    assert (a.state, a.value, a.attributable) == ("applied", "already", False)
    assert (b.state, b.value, b.attributable) == ("applied", "new", True)
    assert (c.state, c.value) == ("not_applied", None)
