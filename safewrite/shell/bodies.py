"""What becomes of a body: it begins, ends, is given up, or never runs; each is recorded.  Nothing here waits."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Any

from safewrite import context
from safewrite.attempt import Attempt
from safewrite.core import machine
from safewrite.core.commands import Command, Nothing
from safewrite.core.events import Ended, Finding, GaveUp, Moment, OutcomeState, Refused, Withheld
from safewrite.core.evidence import describe
from safewrite.core.pressure import LOCAL, healthy, quiet_at, silent
from safewrite.core.replacing import replace
from safewrite.errors import LedgerUnavailable
from safewrite.shell.clock import clock
from safewrite.shell.debts import Debt
from safewrite.shell.job import Job
from safewrite.shell.pressure import FREE
from safewrite.shell.reply import Reply, passes_through, read_error, read_value, type_of
from safewrite.shell.steps import Steps
from safewrite.verdicts import Inconclusive


def withhold(job: Job, number: int) -> str:
    """Return why the claimed attempt may not start after all: asked just before its body."""
    assert job.intent is not None
    now = clock().now()
    return machine.withhold(job.intent.state, number, job.facts(now), now)


def body(job: Job) -> tuple[Callable[[], Any], contextvars.Context]:
    """Return the body of the current attempt, and the context that it runs in."""
    assert job.attempt is not None
    attempt, tool = job.attempt, job.tool
    job.sent += 1
    arguments = job.first_arguments()
    if tool.attempt_parameter is not None:
        arguments[tool.attempt_parameter] = attempt
    inside = contextvars.copy_context()
    inside.run(context._attempt.set, attempt)
    return tool.body(arguments), inside


def leave(job: Job, how: str) -> Steps[Command]:
    """Record that this call was `how` ("cancelled", "interrupted"), so that its claim and lease hold up nobody."""
    attempt, job.attempt = job.attempt, None
    if attempt is not None:
        try:
            return (yield from _never_began(job, attempt, how))
        except LedgerUnavailable:
            job.host.debts.add(
                Debt(
                    job.ticket.identity.key,
                    f"that attempt {attempt.id} never began",
                    lambda: _never_began(job, attempt, how),
                )
            )
            return Nothing("X1")
    return (yield from _left(job, how))


def _never_began(job: Job, attempt: Attempt, how: str) -> Steps[Command]:
    """Record that no body of `attempt` will run, if its claim stands.  Raises `LedgerUnavailable`."""
    found = yield job.ledger.claimed(attempt.id)
    if found is None:
        return (yield from _left(job, how))
    job.intent, number = found
    return (yield from withheld(job, number, f"{how}_before_start", over=True))


def _left(job: Job, how: str) -> Steps[Command]:
    """Record that this call is over, if it holds the lease."""
    if job.unfinished:
        return (yield from job.record(Refused(f"call_{how}"), over=True))
    return Nothing("N2")


def withheld(job: Job, number: int, reason: str, *, over: bool = False) -> Steps[Command]:
    """Record that the body of an attempt never ran."""
    job.seats.pop(number, FREE).unsent()
    return job.record(Withheld(number, reason), over=over)


def ended(
    job: Job,
    attempt: Attempt,
    value: object,
    error: BaseException | None,
    *,
    cut: str = "",
    over: bool = False,
    heard: bool = True,
) -> Steps[Command]:
    """Record how the body of an attempt ended.  `cut`: why we ended it, where its exception is our doing."""
    now = clock().now()
    reply = _reply(job, value, error, cut, now, single=not attempt.more_requests)
    if attempt.delivered and reply.finding.outcome is OutcomeState.NOT_APPLIED:
        reply = _reply(job, value, error, cut, now, single=False)  # it is about something after the write
    if isinstance(value, Inconclusive):  # words of the tool's author, not a code of ours
        words = job.secrets.without(reply.finding.reason)
        reply = replace(reply, finding=replace(reply.finding, reason=words))
    _give_back(job, attempt, reply.finding, now.ticks)
    contents = job.content_of(reply.value) if reply.finding.outcome is OutcomeState.APPLIED else {}
    if error is not None:
        told = "\n".join(filter(None, (cut and attempt.cut, describe(error))))
        contents["evidence"] = job.secrets.without(told)
    fact = Ended(
        attempt.number,
        reply.finding,
        key_carried=attempt.key_read,
        deadline_carried=attempt.deadline_read,
        goal=reply.goal,
        kept="value" in contents,
        object_id=reply.object_id,
    )
    job.originals[attempt.number] = reply
    about = {"reason": reply.finding.reason, "status": reply.finding.status, "type": type_of(error)}
    pauses = error is not None and not over and heard and passes_through(error)
    command = yield from job.record(fact, contents, evidence=about, over=over or pauses, heard=heard)
    if pauses and error is not None:
        raise error
    if heard and job.recorded and "value" in contents and job.intent is not None:
        job.texts[job.intent.state.revision] = contents["value"]
    return command


def _reply(
    job: Job, value: object, error: BaseException | None, cut: str, now: Moment, *, single: bool
) -> Reply:
    reading = job.tool.reading if single else replace(job.tool.reading, single_request=False)
    if error is None:
        return read_value(value, reading)
    if cut and isinstance(error, asyncio.CancelledError):
        return Reply(Finding(OutcomeState.UNKNOWN, cut), error=error)
    return read_error(error, reading, now.unix)


def gave_up(job: Job, attempt: Attempt, reason: str, *, over: bool = False) -> Steps[Command]:
    """Record that nobody waits any more for a body that goes on."""
    ours = reason not in ("timeout", "idle")
    until = _quiet_at(job, attempt, clock().now().ticks)
    job.seats.get(attempt.number, FREE).gave_up(until, healthy=None if ours else False)
    fact = GaveUp(attempt.number, reason, attempt.key_read, attempt.deadline_read)
    return job.record(fact, {"evidence": attempt.cut} if attempt.cut else None, over=over)


def _give_back(job: Job, attempt: Attempt, found: Finding, now: float) -> None:
    seat = job.seats.pop(attempt.number, FREE)
    if found.reason in LOCAL:
        seat.unsent()
    else:
        seat.ended(healthy(found), _quiet_at(job, attempt, now) if silent(found) else 0.0)


def _quiet_at(job: Job, attempt: Attempt, now: float) -> float:
    return quiet_at(job.promises, now, attempt.end, deadline_carried=attempt.deadline_read)


def late(job: Job, attempt: Attempt, value: object, error: BaseException | None) -> Steps[Command]:
    """Record the end of a body that was given up: evidence, never this call's result."""
    return ended(job, attempt, value, error, heard=False)
