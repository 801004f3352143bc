"""A reconciling read of a call: where it begins, what it is given, and what it said, recorded.  Nothing here waits."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Any

from safewrite import context
from safewrite.attempt import Attempt
from safewrite.core.commands import Command
from safewrite.core.events import Fenced, Moment, ReadEnded, Verdict
from safewrite.core.evidence import describe
from safewrite.core.intent import indexable
from safewrite.ledger.model import Candidates
from safewrite.shell.clock import clock
from safewrite.shell.job import Job
from safewrite.shell.reply import seen, type_of
from safewrite.shell.steps import Steps
from safewrite.verdicts import Inconclusive


@dataclass(slots=True)
class ReadStart:
    """Where a reconciling read began, and the seconds that it may take."""

    at: Moment
    revision: int
    epoch: int
    limit: float


def begin(job: Job) -> ReadStart:
    """Return where a read begins, and what it may take."""
    assert job.intent is not None
    now, state = clock().now(), job.intent.state
    limit = min(job.left(now), job.limits.timeout if job.limits.timeout is not None else inf)
    return ReadStart(now, state.revision, state.epoch, limit)


def body(job: Job, start: ReadStart) -> tuple[Callable[[], Any], contextvars.Context]:
    """Return the call of the reconcile function, and the context that it runs in."""
    tool, state = job.tool, job.intent.state if job.intent is not None else None
    assert tool.reconcile is not None
    assert state is not None
    available = job.first_arguments()
    newest, inside = state.newest, contextvars.copy_context()
    if newest is not None:
        available["attempt"] = Attempt(
            id=newest.id,
            number=newest.number,
            key=job.ticket.identity.key,
            end=start.at.ticks + start.limit,
            deadline_at=start.at.unix + start.limit,
            role="reconcile",
        )
        job.reader = available["attempt"]
        inside.run(context._attempt.set, job.reader)
    fn, names = tool.reconcile, tool.reconcile_parameters

    def call() -> Any:
        missing = [n for n in names if n not in available]
        if missing:
            raise LookupError(f"`{missing[0]}` was redacted, so this read cannot be made from the record")
        return fn(**{n: available[n] for n in names})

    return call, inside


def ended(
    job: Job,
    start: ReadStart,
    result: object,
    error: BaseException | None,
    *,
    failed: str = "",
    over: bool = False,
) -> Steps[Command]:
    """Record what a read said.  `failed`: why it gave no answer at all."""
    contents: dict[str, str] = {}
    candidates: Candidates | None = None
    if error is not None or failed:
        fact = _fact(start, Verdict.INCONCLUSIVE, failed or "read_failed")
        if error is not None:
            contents["evidence"] = job.secrets.without(describe(error))
    else:
        said = seen(result)
        if said.has_value:
            contents = job.content_of(said.value)
        words = job.secrets.without(said.reason) if isinstance(result, Inconclusive) else said.reason
        fact = _fact(start, said.verdict, words, kept="value" in contents)
        if said.candidates is not None:
            candidates = _candidates(job, said.candidates, said.listed)
    yield from _fenced(job, start)
    about = {"reason": fact.reason, "type": type_of(error)}
    command = yield from job.record(fact, contents, evidence=about, over=over, candidates=candidates)
    if job.intent is not None and "value" in contents:
        # Where it could not be recorded, it would have been the next row's.
        job.texts[job.intent.state.revision + (not job.recorded)] = contents["value"]
    return command


def _fenced(job: Job, start: ReadStart) -> Steps[None]:
    """Record the fence that a read has set, once; only a read that begins after that proves anything."""
    assert job.intent is not None
    attempts = job.intent.state.attempts[: start.epoch]
    if job.reader is not None and job.reader.fence and any(a.fenced_at is None for a in attempts):
        yield from job.record(Fenced(start.epoch, job.reader.fence), heard=False)


def _fact(start: ReadStart, verdict: Verdict, reason: str, *, kept: bool = False) -> ReadEnded:
    return ReadEnded(verdict, start.at, start.revision, start.epoch, reason, kept)


def _candidates(job: Job, found: tuple[Any, ...], listed: bool) -> Candidates:
    def contents_of(place: int) -> dict[str, str]:
        return job.content_of(found[place].value)

    ids = tuple(indexable(str(x.object_id)) for x in found)
    return Candidates(ids, contents_of, listed)
