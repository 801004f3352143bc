"""What crashes and timeouts left open: look at each, settle what can be settled, and say who did it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Protocol

from safewrite.core.commands import Answer
from safewrite.core.events import OutcomeState
from safewrite.errors import ConfigurationError, LedgerUnavailable
from safewrite.shell import aio, process, sync
from safewrite.shell.job import Job

if TYPE_CHECKING:
    from safewrite.guard import SafeWrite
    from safewrite.ledger.model import Intent

ACTOR = "recovery"
"""How rows that recovery writes name their worker."""
_PAGE = 100
"""Intents that are read at once."""


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
    stopped: bool = False
    """It was told to stop before it came to the end."""

    def count(self, state: str) -> int:
        """How many intents are now in `state`."""
        return sum(f.state == state for f in self.found)

    @property
    def problems(self) -> tuple[Found, ...]:
        """The intents that could not be looked at."""
        return tuple(f for f in self.found if f.problem)


Progress = Callable[[Found, int, int], None]


class Stop(Protocol):
    """What is asked before each intent: a `threading.Event`, for instance."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


def recover(
    sw: SafeWrite, *, resend: bool = False, progress: Progress | None = None, stop: Stop | None = None
) -> Recovered:
    """Look at every open intent.  `progress(found, done, total)` is called after each; `stop` ends it between two.

    An intent in flight under a live lease is left alone, and so is one that another recovery is at.  Tools that are
    coroutine functions are only read here if their reconcile function is plain, or a coroutine that needs no
    particular event loop; to send again (`resend`) they need `arecover`.
    """
    this = _Pass(sw, progress, stop)
    for intent in this.open():
        taken, found = this.take(intent)
        if taken is not None:
            try:
                job, problem = _job(sw, taken, resend=resend, colour="plain")
                found = _report(taken, job, problem, None if job is None else sync.drive(job))
            except LedgerUnavailable as error:
                found = _report(taken, None, str(error))
            finally:
                this.give(taken)
        this.note(found)
    return this.result()


async def arecover(
    sw: SafeWrite, *, resend: bool = False, progress: Progress | None = None, stop: Stop | None = None
) -> Recovered:
    """Do as `recover`, on this event loop; plain tools are carried out in the threads of the ledger."""
    threads = sw.threads
    this = _Pass(sw, progress, stop)
    intents = this.open()
    while (intent := await aio.shielded(threads, lambda: next(intents, None))) is not None:
        taken, found = await aio.shielded(threads, partial(this.take, intent))
        if taken is not None:
            try:
                found = await _arecover_one(sw, taken, resend)
            except LedgerUnavailable as error:
                found = _report(taken, None, str(error))
            finally:
                await aio.shielded(threads, partial(this.give, intent))
        this.note(found)
    return this.result()


async def _arecover_one(sw: SafeWrite, intent: Intent, resend: bool) -> Found:
    threads = sw.threads
    job, problem = await aio.shielded(threads, lambda: _job(sw, intent, resend=resend, colour="async"))
    if job is None:
        return _report(intent, None, problem)
    ready = job
    if job.tool.is_async:
        return _report(intent, job, problem, await aio.drive(job))
    return _report(intent, job, problem, await aio.shielded(threads, lambda: sync.drive(ready)))


class _Pass:
    """One recovery: what it goes through, what of it is its own, and what it found."""

    def __init__(self, sw: SafeWrite, progress: Progress | None, stop: Stop | None) -> None:
        self._sw, self._progress = sw, progress
        self._stop: Stop = stop if stop is not None else Event()
        self._me = f"{process.owner()}/{os.urandom(4).hex()}"
        s = sw.settings
        self._longest = s.operation_timeout + s.grace + s.lease_margin
        self._found: list[Found] = []
        self._total = 0
        self._stopped = False

    def open(self) -> Iterator[Intent]:
        """Yield the open intents of this namespace, the oldest first, until it is told to stop."""
        ledger, namespace = self._sw.ledger, self._sw.namespace
        self._total = ledger.open_count(namespace)
        page = ledger.open_intents(namespace=namespace, limit=_PAGE)
        while page:
            for intent in page:
                self._stopped = self._stop.is_set()
                if self._stopped:
                    return
                yield intent
            page = ledger.open_intents(namespace=namespace, limit=_PAGE, after=page[-1].id)

    def take(self, intent: Intent) -> tuple[Intent | None, Found]:
        """Return the intent as it stands, if it is this recovery's to look at now; else what is to be told of it."""
        elsewhere = _report(intent, None, "")
        try:
            if not self._sw.ledger.take(intent.id, self._me, self._longest):
                return None, elsewhere
            newest = self._sw.ledger.load(intent.id)
        except LedgerUnavailable as error:
            return None, _report(intent, None, str(error))
        if newest is not None and newest.state.revision == intent.state.revision:
            return newest, elsewhere
        self.give(intent)  # somebody looked at it, or called it, since it was listed
        return None, elsewhere if newest is None else _report(newest, None, "")

    def give(self, intent: Intent) -> None:
        """Let others look at it."""
        with suppress(LedgerUnavailable):  # it is over by itself in a while
            self._sw.ledger.give(intent.id, self._me)

    def note(self, found: Found) -> None:
        """Keep what was found, and tell how far this is."""
        self._found.append(found)
        if self._progress is not None:
            self._progress(found, len(self._found), max(self._total, len(self._found)))

    def result(self) -> Recovered:
        """Return what was found."""
        return Recovered(tuple(self._found), self._stopped)


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
    job.waits = job.looks_on = False  # there are others to look at, and there is a next time
    if job.refusal == "redacted_argument":
        # A refusal would keep it from being read as well.
        job.refusal, job.sends = "", 0
        problem = f"{', '.join(job.missing)} redacted: it can be read, not sent again"
    return job, problem


def _report(intent: Intent, job: Job | None, problem: str, answer: Answer | None = None) -> Found:
    identity, state = intent.identity, intent.state
    if job is None or answer is None:
        reason = "not_looked_at" if problem else "looked_at_elsewhere"
        lands = state.outcome is OutcomeState.UNKNOWN
        return Found(
            identity.key, identity.tool, identity.target, state.outcome.value, reason, lands, problem
        )
    return Found(
        identity.key,
        identity.tool,
        identity.target,
        answer.outcome.value,
        answer.reason,
        answer.may_still_land,
        problem,
    )
