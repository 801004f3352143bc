"""From one call of a tool to a job: binding, identity, limits; and from the job's answer to an outcome."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from safewrite.context import (
    Run,
    current_attempt,
    current_deadline,
    current_run,
    current_tool_call,
    current_trace,
    current_turn,
)
from safewrite.core.canonical import Uncanonical, canonical
from safewrite.core.commands import Answer, AnswerKind
from safewrite.core.deadline import call_limit
from safewrite.core.events import Call, Claimed, Moment, OutcomeState
from safewrite.core.intent import differing, digestible, intent_key, keyed, turn_text
from safewrite.core.replacing import replace
from safewrite.deadline import Deadline, too_little
from safewrite.errors import ConfigurationError, LedgerUnavailable, NoRunContext
from safewrite.ledger.codec import Unstorable, encode_arguments, holds_secret
from safewrite.ledger.model import Identity, Meta, Ticket
from safewrite.outcome import Outcome
from safewrite.shell import aio, sync
from safewrite.shell.job import Job, Limits, new_call
from safewrite.told import outcome_of
from safewrite.tool import Tool

if TYPE_CHECKING:
    from safewrite.guard import SafeWrite

_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What `.options(...)` sets for one call."""

    occurrence: str | int | None = None
    run: str | None = None
    turn: str | int | None = None
    deadline: Deadline | None = None
    beside_unknown: bool = False


class Guard:
    """One tool under one `SafeWrite`: makes a job of each call and an outcome of each job."""

    def __init__(self, sw: SafeWrite, tool: Tool) -> None:
        self.sw, self.tool = sw, tool

    # Calls -----------------------------------------------------------------------------------------------

    def call(self, options: CallOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Outcome[Any]:
        """Carry out one call of a plain tool."""
        job = self.job(options, args, kwargs)
        try:
            if self.sw.prepare():  # the first use makes the tables: that is not this call's time
                job = self.job(options, args, kwargs)
            answer = sync.drive(job)
            if answer.kind is AnswerKind.OTHER and answer.other is not None:
                job = self.sw.other(job, answer.other, quiet=False)
                return replace(outcome_of(job, sync.drive(job)), blocked_by_key=job.ticket.identity.key)
        except LedgerUnavailable as error:
            return self._without_ledger(job, error)
        return outcome_of(job, answer)

    async def acall(
        self, options: CallOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Outcome[Any]:
        """Carry out one call of a coroutine tool."""
        threads = self.sw.threads
        job = self.job(options, args, kwargs)
        try:
            if not self.sw.prepared:
                await aio.shielded(threads, self.sw.prepare)
                job = self.job(options, args, kwargs)
            answer = await aio.drive(job)
            if answer.kind is AnswerKind.OTHER and (other := answer.other) is not None:
                first = job
                job = await aio.shielded(threads, lambda: self.sw.other(first, other, quiet=False))
                told = await aio.drive(job)
                found = await aio.shielded(threads, lambda: outcome_of(job, told))
                return replace(found, blocked_by_key=job.ticket.identity.key)
        except LedgerUnavailable as failed:
            error = failed
            return await aio.shielded(threads, lambda: self._without_ledger(job, error))
        if answer.other is None and job.has_value(answer):
            return outcome_of(job, answer)
        return await aio.shielded(threads, lambda: outcome_of(job, answer))

    def peek(
        self, options: CallOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Outcome[Any] | None:
        """Return the outcome on record, or None; never sends, reads or records."""
        job = self.job(options, args, kwargs)
        job.intent = self.sw.ledger.find(job.ticket.identity.key)
        if job.intent is None or not job.intent.state.attempts:
            return None
        return outcome_of(job, job.look())

    def _without_ledger(self, job: Job, error: LedgerUnavailable) -> Outcome[Any]:
        """The ledger failed before anything was sent: what it still shows decides what may be told."""
        try:
            job.intent = self.sw.ledger.find(job.ticket.identity.key)
        except LedgerUnavailable:
            answer = Answer(
                "X2", AnswerKind.UNKNOWN, OutcomeState.UNKNOWN, "ledger_unavailable", may_still_land=True
            )
        else:
            answer = job.look(refusal="ledger_unavailable")
        job.failure = error
        return outcome_of(job, answer)

    # Making a job ----------------------------------------------------------------------------------------

    def identity(
        self, options: CallOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Identity, dict[str, Any], Run | None]:
        """Return what identifies the intent of a call, and its arguments.

        Raises `NoRunContext`, `MissingTarget`, `ConfigurationError`, and what Python and pydantic raise for
        arguments that do not fit.
        """
        tool = self.tool
        arguments = tool.bind(args, kwargs)
        opened = current_run()
        run = options.run if options.run is not None else (opened.id if opened is not None else None)
        turn = turn_text(options.turn) if options.turn is not None else current_turn()
        if run is None or turn is None:
            raise NoRunContext(tool=tool.name)
        target = tool.target_text(arguments)
        occurrence, within = options.occurrence, current_tool_call()
        if occurrence is None and within is not None:
            occurrence = within.occurrence
        key = intent_key(
            namespace=self.sw.namespace, run=run, turn=turn, tool=tool.name, target=target, occurrence=occurrence
        )  # fmt: skip
        told = "" if occurrence is None else str(occurrence)
        return Identity(self.sw.namespace, run, turn, tool.name, target, told, key), arguments, opened

    def job(self, options: CallOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Job:
        """Return the job of one call; no I/O."""
        inside = current_attempt()
        if inside is not None and inside.role == "read":
            raise ConfigurationError(
                f"`{self.tool.name}` is a write inside the body of a reading tool, which may be sent twice. Nothing "
                "was sent: call it beside the read.",
                tool=self.tool.name,
            )
        identity, arguments, run = self.identity(options, args, kwargs)
        tool, sw = self.tool, self.sw
        limits, refusal, words = self.allowance(run, options.deadline)
        call = new_call()
        return Job(
            sw,
            tool,
            self.ticket(identity, arguments),
            arguments,
            limits,
            sw.pool,
            self.meta(run, call, limits, {"budget": words(0.0)} if refusal else {}),
            tool.options.max_attempts,
            waits=tool.options.on_conflict == "wait",
            max_stall=sw.max_stall,
            beside_unknown=options.beside_unknown,
            refusal=refusal,
            too_little=words,
            open_other=sw.other,
            id=call,
        )

    def meta(self, run: Run | None, call: str, limits: Limits, evidence: Mapping[str, object]) -> Meta:
        """Return who and what stands behind the rows of a call."""
        within = current_tool_call()
        return Meta(
            worker=self.sw.worker,
            agent=run.agent if run is not None else "",
            tool_call_id=within.id if within is not None else "",
            trace=current_trace.get() or call,
            dependency=self.tool.dependency.name,
            granted_ms=None if limits.call == inf else int(limits.call * 1000),
            evidence=evidence,
        )

    def allowance(
        self, run: Run | None, given: Deadline | None = None
    ) -> tuple[Limits, str, Callable[[float], str]]:
        """Return what a call may spend, why it may not start (if so), and what says which number ran out."""
        tool, sw = self.tool, self.sw
        found = [one for one in (given, current_deadline()) if one is not None]
        deadline = min(found, key=Deadline.remaining, default=None)
        caps = [one.call_cap for one in (run, *found) if one is not None and one.call_cap is not None]
        cap = min(caps, default=None)
        remaining = deadline.remaining() if deadline is not None else None
        explicit = (
            tool.timeout is not None or tool.idle is not None or remaining is not None or cap is not None
        )
        floor = deadline.minimum if deadline is not None else 0.0
        refusal = (
            "budget_exhausted" if remaining is not None and (remaining < floor or remaining <= 0.0) else ""
        )
        limit = call_limit(cap, remaining, sw.settings.operation_timeout)
        limits = self.limits(limit, floor=min(floor, limit), explicit=explicit)
        return limits, refusal, partial(self._too_little, deadline, cap, limit, floor)

    def _too_little(
        self, deadline: Deadline | None, cap: float | None, limit: float, floor: float, left: float
    ) -> str:
        """Return which number ran out, and where it was set; `left` is what the call has."""
        tool, row = self.tool, next(r for r in self.sw.settings.table() if r.name == "operation_timeout")
        who = f"`{tool.name}`" + (
            f" of dependency `{tool.dependency.name}`" if tool.options.dependency else ""
        )
        if deadline is not None and (cap is None or limit < cap or deadline.remaining() < floor):
            return deadline.refusal(who, deadline.remaining(), floor)
        if cap is not None:
            return too_little(who, left, ("call_cap", cap, "argument"), floor)
        return too_little(who, left, (row.name, limit, row.origin), floor)

    def limits(self, limit: float, *, floor: float, explicit: bool) -> Limits:
        """Return what a call may spend."""
        s, tool = self.sw.settings, self.tool
        wanted = tool.options.in_thread
        threaded = not tool.is_async and (explicit if wanted is None else wanted)
        return Limits(
            limit, tool.timeout, floor, s.reserve_share, s.reserve_floor, s.grace, s.lease_margin, threaded
        )  # fmt: skip

    def ticket(self, identity: Identity, arguments: Mapping[str, Any]) -> Ticket:
        """Return what the ledger needs of a call: identity, fingerprint, and the text of its arguments.

        Raises `ConfigurationError`, naming the parameter, for an argument that cannot be compared; so does asking for
        the text of one that cannot be recorded.
        """
        tool = self.tool
        content = tool.content(arguments)
        secret = tool.secret() | {n for n, v in content.items() if type(v) not in _PLAIN and holds_secret(v)}
        comparable = (
            {n: _comparable(v) if n in secret else v for n, v in content.items()} if secret else content
        )

        def digests(salt: bytes) -> dict[str, str]:
            # All of them keyed with the intent's salt: where contents are deleted, nothing can be guessed from these.
            return {name: keyed(part, salt) for name, part in digested.items()}

        def compare(recorded: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
            # What is redacted may change from call to call (a token is renewed): that costs the key, not the call.
            return tuple(n for n in differing(recorded, now) if n not in secret)

        def same_payload(recorded: Mapping[str, str], now: Mapping[str, str]) -> bool:
            return all(recorded.get(n) == now.get(n) for n in secret)

        def text() -> str:
            try:
                return encode_arguments(content, tool.argument_codecs, secret)
            except Unstorable as bad:
                raise unrecordable(bad) from None

        def unrecordable(bad: Exception) -> ConfigurationError:
            return ConfigurationError(
                f"`{tool.name}` was called with something that cannot be recorded: {bad}",
                tool=tool.name,
                key=identity.key,
            )

        try:
            digested = digestible(comparable, leave_out=tool.left_out(), opened=comparable)
        except Uncanonical as bad:
            text()  # where it cannot be recorded either, that is told
            raise unrecordable(bad) from None
        return Ticket(identity, digests, text, _unclaimed, compare, same_payload if secret else None)


def _comparable(value: object) -> object:
    """Return a redacted value as it is compared: a client, of which nothing can be told, equals no other call's."""
    try:
        canonical(value)
    except Uncanonical:
        return f"only of this call: {os.urandom(16).hex()}"
    return value


def _unclaimed(_number: int, _call: Call, _at: Moment) -> Claimed:
    raise AssertionError("a job claims for itself")
