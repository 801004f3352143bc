"""One call of a reading tool: its tries, a second copy of one that is slow, and what is said of what it did not bring.

Written once, as steps, which `read_drivers` carries out on threads or on an event loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from safewrite import context
from safewrite.attempt import Attempt
from safewrite.core import pressure
from safewrite.core.deadline import attempt_limit
from safewrite.core.events import Event, Finding, Missed, OutcomeState
from safewrite.core.evidence import describe
from safewrite.core.replacing import replace
from safewrite.errors import ReadFailed, SafeWriteError
from safewrite.ledger.model import Identity, Meta
from safewrite.shell.apart import apart
from safewrite.shell.clock import clock
from safewrite.shell.job import Host, Limits, new_call
from safewrite.shell.pressure import FREE, Pressure, Seat
from safewrite.shell.reply import passes_through, read_error, read_value, type_of
from safewrite.shell.secrets import Secrets
from safewrite.shell.steps import Steps
from safewrite.shell.threads import Pool
from safewrite.verdicts import NotFetched, Partial

if TYPE_CHECKING:
    from safewrite.context import Run
    from safewrite.tool import Tool

_log = logging.getLogger("safewrite")
_NONE_LEFT = 1e-6
"""Seconds that are none: sums of floats are not exact."""


@dataclass(slots=True, eq=False)
class Copy:
    """One request of a read, and how it ended."""

    attempt: Attempt
    seat: Seat
    began: float
    work: Any = None
    stopped: str = ""
    """Why we stopped waiting for it."""
    found: Finding | None = None
    """What its end says, once it has ended or is waited for no more."""
    brought: bool = False
    value: object = None
    error: BaseException | None = None


Step = tuple[Literal["start", "await", "stop", "pause", "note"], Any]
"""What the steps ask of their shell, and about what:

- start: run the body of a copy; stop: cancel it, if that can be, and give it so many seconds to clean up;
- await: wait until a copy ends, for so many seconds at most; pause: let so many pass;
- note: ask the ledger.
"""
Asked = Generator[Step, None, Any]


@dataclass(slots=True)
class Reading:
    """One call of a reading tool."""

    host: Host
    tool: Tool
    identity: Identity
    arguments: Mapping[str, Any]
    limits: Limits
    pool: Pool
    pressure: Pressure
    meta: Meta
    run: Run | None
    refusal: str = ""
    too_little: str = ""
    nested: bool = False
    """It stands inside an attempt, which owns the retries: one try, no second copy."""
    passes: bool = False
    """It settles an open write: no breaker and no limit keeps it from looking."""
    shares: bool = False
    """The attempt it stands in has leave from the same dependency, which is good for both."""
    sent: int = 0
    copies: list[Copy] = field(default_factory=list)
    """Those of the newest try."""
    tell: Callable[[], object] = lambda: None
    """Called, on any thread, when a copy has ended."""
    _hides: Secrets | None = None
    _end: float = 0.0
    _quiet: float = 0.0

    def steps(self) -> Asked:
        """Read; return what was read, or raise `ReadFailed`."""
        try:
            return (yield from self._tries())
        except (Exception, GeneratorExit):
            raise
        except BaseException as cut:  # the caller is cancelled or interrupted, and is told nothing
            reason = "cancelled" if isinstance(cut, asyncio.CancelledError) else "interrupted"
            for copy in self.copies:
                if copy.found is None:
                    self._let_go(copy, reason)
                    if copy.work is not None:
                        copy.work.cancel()
            yield from self._missed(reason)
            raise

    def _tries(self) -> Asked:
        self._end = clock().now().ticks + self.limits.call
        tries, most = 0, 1 if self.nested else self.tool.options.max_attempts
        if self.refusal:
            raise (yield from self._missed(self.refusal, words=self.too_little))
        while True:
            tries += 1
            seat = self._enter()
            if isinstance(seat, str):
                found, error = Finding(OutcomeState.NOT_APPLIED, seat, again=seat != "breaker_open"), None
            else:
                copy = yield from self._race(seat)
                if copy.brought:
                    return (yield from self._brought(copy))
                found, error = _of(copy), copy.error
                if error is not None and passes_through(error):  # a framework's way of pausing
                    raise error
            now = clock().now().ticks
            then = pressure.next_try(
                found,
                left=self._end - now,
                floor=self.limits.floor,
                backoff=self.tool.wait_before(tries, error),
                quiet_in=max(0.0, self._quiet - now),
                last=tries >= most,
            )
            if then.wait is not None and self.sent and not self.pressure.can_pay():
                then = pressure.Next("retry_budget_spent")
            if then.wait is None:
                raise (yield from self._missed(then.reason, error, last=found.reason))
            yield "pause", then.wait

    def _enter(self) -> Seat | str:
        """Return leave to send, and a place in the pool of threads if the body needs one; or why not."""
        if self.limits.threaded and not self.pool.reserve():
            return "pool_exhausted"
        most, further = self.tool.dependency.max_concurrency, self.sent > 0
        seat = FREE if self.passes else self.pressure.enter(most, further=further, within=self.shares)
        if isinstance(seat, str) and self.limits.threaded:
            self.pool.release()
        return seat

    # One try -------------------------------------------------------------------------------------------------

    def _race(self, seat: Seat) -> Asked:
        """Run one copy, and a second one if it is slow; return the one that decides."""
        now = clock().now()
        limit = attempt_limit(self._end - now.ticks, self.limits.timeout, 0.0)
        first = self._copy(seat, now.ticks + limit)
        self.copies[:] = [first]
        hedges = self.tool.options.idempotent and not self.nested
        delay = self.pressure.hedge_delay(self.tool.name, limit) if hedges else None
        yield "start", first
        while not any(c.brought for c in self.copies) and any(c.found is None for c in self.copies):
            left, until_hedge = first.attempt.remaining(), float("inf")
            if left <= _NONE_LEFT:
                break
            if delay is not None:
                until_hedge = first.began + delay - clock().now().ticks
                if until_hedge <= _NONE_LEFT:
                    delay = None
                    yield from self._hedge(first)
                    continue
            yield "await", min(left, until_hedge)
        won = next((c for c in self.copies if c.brought), None)
        for copy in self.copies:
            if copy.found is None:
                copy.stopped = "hedge_lost" if won is not None else "timeout"
                copy.attempt.give_up()
                # Whoever has an answer does not wait for the other copy to clean up.
                yield "stop", (copy, 0.0 if won is not None else self.limits.grace)
                if copy.found is None:
                    self._let_go(copy, copy.stopped)
        return won or next((c for c in self.copies if pressure.silent(_of(c))), first)

    def _hedge(self, first: Copy) -> Asked:
        """Send the same read once more, under the same deadline, if nothing is amiss."""
        if self.limits.threaded and not self.pool.reserve():
            return
        seat = self.pressure.hedge(self.tool.dependency.max_concurrency)
        if seat is not None:
            self.copies.append(self._copy(seat, first.attempt.end))
            yield "start", self.copies[-1]
        elif self.limits.threaded:
            self.pool.release()

    def _copy(self, seat: Seat, end: float) -> Copy:
        now = clock().now()
        self.sent += 1
        made = Attempt(
            id=new_call(),
            number=self.sent,
            key="",
            end=end,
            deadline_at=now.unix + end - now.ticks,
            role="read",
            system=self.tool.system,
        )
        made.settles = self.passes
        return Copy(made, seat, now.ticks)

    def body(self, copy: Copy) -> tuple[Callable[[], Any], contextvars.Context]:
        """Return the body of a copy, and the context that it runs in."""
        self._secrets()  # as they are before a body has them
        arguments = dict(self.arguments)
        self.arguments = {name: apart(value) for name, value in arguments.items()}
        if self.tool.attempt_parameter is not None:
            arguments[self.tool.attempt_parameter] = copy.attempt
        inside = contextvars.copy_context()
        inside.run(context._attempt.set, copy.attempt)
        return self.tool.body(arguments), inside

    def ended(self, copy: Copy, value: object, error: BaseException | None) -> None:
        """Take in how the body of a copy ended, on whichever thread it did."""
        now = clock().now()
        if error is None:
            reply = read_value(value, self.tool.reading)
            error, found = reply.error, reply.finding
        elif copy.stopped and isinstance(error, asyncio.CancelledError):
            found = Finding(OutcomeState.UNKNOWN, copy.stopped)
        else:
            found = read_error(error, self.tool.reading, now.unix).finding
        bad = found.status is not None and (found.status in pressure.BUSY or found.status >= 500)
        brought = error is None and not bad
        if found.reason in pressure.LOCAL:
            copy.seat.unsent()
        else:
            until = self._silent(copy, now.ticks) if pressure.silent(found) else 0.0
            copy.seat.ended(pressure.healthy(found), until)
        if brought:
            self.pressure.took(self.tool.name, now.ticks - copy.began)
        if copy.found is None:
            copy.value, copy.error, copy.brought = value, error, brought and not copy.stopped
            copy.found = Finding(OutcomeState.UNKNOWN, copy.stopped) if brought and copy.stopped else found
        self.tell()

    def _let_go(self, copy: Copy, reason: str) -> None:
        """Wait for a copy no longer: its place is taken until it ends, or is known to be over."""
        copy.stopped = reason
        copy.attempt.give_up()
        copy.found = Finding(OutcomeState.UNKNOWN, reason)
        healthy = False if reason == "timeout" else None
        copy.seat.gave_up(self._silent(copy, clock().now().ticks), healthy=healthy)

    def _silent(self, copy: Copy, now: float) -> float:
        """Return until when a copy without an answer may hold the dependency; no other is sent before."""
        told, promises = copy.attempt.deadline_read, self.tool.promises(None)
        until = pressure.quiet_at(promises, now, copy.attempt.end, deadline_carried=told)
        self._quiet = max(self._quiet, until)
        return until

    # What is said -------------------------------------------------------------------------------------------

    def _brought(self, copy: Copy) -> Asked:
        if isinstance(copy.value, Partial):
            yield from self._missed(copy.value.reason, part=copy.value, last="cut")
        elif len(self.copies) > 1:
            self.identity = replace(self.identity, key=self.identity.key.replace("read_", "hedge_"))
            yield "note", self._row(Missed("hedge_lost", self.sent), {}, {})
        return copy.value

    def _missed(
        self,
        reason: str,
        error: BaseException | None = None,
        *,
        part: Partial[Any] | None = None,
        last: str = "",
        words: str = "",
    ) -> Generator[Step, None, BaseException]:
        """Write down what was not fetched, for the audit and for the run; return the error that says it."""
        copies = [part.reached] if part is not None else [c.attempt.reached for c in self.copies]
        reached = next(filter(None, (*copies, getattr(error, "reached", ""))), "")
        hides = self._secrets().without
        reason, reached = reason if part is None else hides(reason), hides(reached)
        who, sent = self.identity, self.sent > 0
        about = NotFetched(who.tool, who.target, reason, reached, sent, part is not None)
        if self.run is not None:
            self.run.missed.append(about)
        contents = {"evidence": hides(describe(error))} if error is not None else {}
        fact = Missed(reason, self.sent, reached, part is not None)
        yield "note", self._row(fact, contents, {"reason": last or reason, "type": type_of(error)})
        if isinstance(error, SafeWriteError) and isinstance(error, ValueError | RuntimeError):
            return error  # misuse, such as a write inside a read
        failed = ReadFailed(words, about=about, tool=self.tool.name, trace=self.meta.trace)
        failed.__cause__ = error
        return failed

    def _secrets(self) -> Secrets:
        if self._hides is None:
            self._hides = Secrets(self.tool.content(self.arguments), self.tool.secret())
        return self._hides

    def _row(self, fact: Missed, contents: Mapping[str, str], evidence: Mapping[str, object]) -> Steps[None]:
        event, meta = Event(clock().now(), fact, promises=self.tool.promises(None)), self.meta
        try:
            yield self.host.ledger.noting(self.identity, event, replace(meta, evidence=evidence), contents)
        except SafeWriteError as failed:  # what was read, or not, is told all the same
            _log.error("safewrite could not record that `%s` missed something: %s", self.tool.name, failed)


def _of(copy: Copy) -> Finding:
    assert copy.found is not None
    return copy.found
