"""What crashes and timeouts left open: look at each, settle what can be settled, and say who did it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safewrite.core.commands import Answer
from safewrite.errors import ConfigurationError, LedgerUnavailable
from safewrite.shell import aio, sync
from safewrite.shell.job import Job

if TYPE_CHECKING:
    from safewrite.guard import SafeWrite
    from safewrite.ledger.model import Intent

ACTOR = "recovery"
"""How rows that recovery writes name their worker."""


@dataclass(frozen=True, slots=True)
class Found:
    """What recovery came to for one intent."""

    key: str
    tool: str
    target: str
    state: str
    """Its outcome now: `applied`, `not_applied` or `unknown`."""
    reason: str
    may_still_land: bool
    problem: str = ""
    """Why it could not be looked at: a tool that is not declared here, an argument that was redacted."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What one recovery did."""

    found: tuple[Found, ...]

    def count(self, state: str) -> int:
        """How many intents are now in `state`."""
        return sum(f.state == state for f in self.found)

    @property
    def problems(self) -> tuple[Found, ...]:
        """The intents that could not be looked at."""
        return tuple(f for f in self.found if f.problem)


def recover(
    sw: SafeWrite, *, resend: bool = False, progress: Callable[[Found, int, int], None] | None = None
) -> Recovered:
    """Look at every open intent.  `progress(found, done, total)` is called after each.

    An intent in flight under a live lease is left alone.  Tools that are coroutine functions are only read here if
    their reconcile function is plain, or a coroutine that needs no particular event loop; to send again (`resend`)
    they need `arecover`.
    """
    found: list[Found] = []
    todo = list(_open(sw))
    for intent in todo:
        job, problem = _job(sw, intent, resend=resend, colour="plain")
        one = (
            _report(intent, None, problem) if job is None else _report(intent, job, problem, sync.drive(job))
        )
        found.append(one)
        if progress is not None:
            progress(one, len(found), len(todo))
    return Recovered(tuple(found))


async def arecover(
    sw: SafeWrite, *, resend: bool = False, progress: Callable[[Found, int, int], None] | None = None
) -> Recovered:
    """Do as `recover`, on this event loop; plain tools are carried out in the threads of the ledger."""
    threads = sw.threads
    found: list[Found] = []
    todo = await aio.shielded(threads, lambda: list(_open(sw)))
    for intent in todo:
        one = await _arecover_one(sw, intent, resend)
        found.append(one)
        if progress is not None:
            progress(one, len(found), len(todo))
    return Recovered(tuple(found))


async def _arecover_one(sw: SafeWrite, intent: Intent, resend: bool) -> Found:
    threads = sw.threads
    job, problem = await aio.shielded(threads, lambda: _job(sw, intent, resend=resend, colour="async"))
    if job is None:
        return _report(intent, None, problem)
    ready = job
    if job.tool.is_async:
        return _report(intent, job, problem, await aio.drive(job))
    return _report(intent, job, problem, await aio.shielded(threads, lambda: sync.drive(ready)))


def _open(sw: SafeWrite) -> Iterator[Intent]:
    """Yield the open intents of this namespace."""
    for intent in sw.ledger.open_intents():
        if intent.identity.namespace == sw.namespace:
            yield intent


def _job(sw: SafeWrite, intent: Intent, *, resend: bool, colour: str) -> tuple[Job | None, str]:
    try:
        tool = sw.tools.get(intent.identity.tool)
        sends = tool.options.max_attempts if resend and tool is not None else 0
        problem = ""
        if sends and tool is not None and tool.is_async and colour == "plain":
            sends, problem = 0, "a coroutine tool is sent again by `arecover` only"
        job = sw.job_for(intent, sends=sends, worker=ACTOR)
    except (ConfigurationError, LedgerUnavailable) as error:
        return None, str(error)
    job.waits = False
    if job.refusal == "redacted_argument":
        # A refusal would keep it from being read as well.
        job.refusal, job.sends = "", 0
        problem = f"{', '.join(job.missing)} redacted: it can be read, not sent again"
    return job, problem


def _report(intent: Intent, job: Job | None, problem: str, answer: Answer | None = None) -> Found:
    identity = intent.identity
    if job is None or answer is None:
        return Found(identity.key, identity.tool, identity.target, "unknown", "not_looked_at", True, problem)
    return Found(
        identity.key,
        identity.tool,
        identity.target,
        answer.outcome.value,
        answer.reason,
        answer.may_still_land,
        problem,
    )
