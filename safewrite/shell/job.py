"""One call of a tool between machine and ledger: what both shells share, and nothing that waits."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from safewrite import context
from safewrite.attempt import Attempt
from safewrite.core import machine
from safewrite.core.commands import Answer, AnswerKind, Command, Nothing, Run
from safewrite.core.deadline import attempt_limit, reserve_of
from safewrite.core.events import (
    Asked,
    Call,
    Claimed,
    Ended,
    Event,
    Fact,
    Fenced,
    Finding,
    GaveUp,
    Gone,
    Moment,
    OutcomeState,
    Promises,
    ReadEnded,
    Refused,
    Verdict,
    Withheld,
)
from safewrite.core.evidence import describe
from safewrite.core.fold import fold
from safewrite.core.intent import indexable
from safewrite.core.pressure import LOCAL, healthy, quiet_at, silent
from safewrite.core.replacing import replace
from safewrite.core.state import State
from safewrite.errors import LedgerUnavailable
from safewrite.ledger.codec import decode_arguments
from safewrite.ledger.model import Candidates, Intent, Meta, Ticket
from safewrite.shell import process
from safewrite.shell.apart import apart
from safewrite.shell.clock import clock
from safewrite.shell.debts import Debt, Debts
from safewrite.shell.pressure import FREE, Seat, pressure_of
from safewrite.shell.reply import Reply, passes_through, read_error, read_value, seen
from safewrite.shell.secrets import Secrets
from safewrite.shell.steps import Steps, one
from safewrite.shell.threads import Pool
from safewrite.verdicts import Inconclusive

if TYPE_CHECKING:
    from safewrite.ledger.append import Appended
    from safewrite.ledger.sql import Ledger
    from safewrite.tool import Tool


_log = logging.getLogger("safewrite")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may spend, in seconds."""

    call: float
    timeout: float | None
    floor: float
    share: float
    reserve_floor: float
    grace: float
    lease_margin: float
    threaded: bool
    """The body of a plain function runs in a thread that can be abandoned."""


def new_call() -> str:
    """Return the id of a call that begins."""
    return os.urandom(8).hex()


class _NoPlace(Exception):
    """Nothing may be sent now; the message is the code that says why."""


class Host(Protocol):
    """Who owns the ledger."""

    @property
    def ledger(self) -> Ledger:
        """The ledger, opened at first use."""
        ...

    @property
    def debts(self) -> Debts:
        """What the ledger could not store yet."""
        ...

    @property
    def threads(self) -> Executor:
        """Threads for what a coroutine may not wait for."""
        ...


@dataclass(slots=True)
class ReadStart:
    """Where a reconciling read began."""

    at: Moment
    revision: int
    epoch: int
    limit: float


@dataclass(slots=True)
class Job:
    """One call: asks and tells the ledger, and keeps what only this call knows."""

    host: Host
    tool: Tool
    ticket: Ticket
    arguments: Mapping[str, Any]
    """The arguments at hand, with the receiver."""
    limits: Limits
    pool: Pool
    meta: Meta
    sends: int
    waits: bool = True
    looks_on: bool = True
    """After a read that told nothing it reads again, as long as there is time; else it leaves that to a later call."""
    quiet: bool = False
    max_stall: float | None = None
    beside_unknown: bool = False
    same_payload: bool = True
    refusal: str = ""
    too_little: Callable[[float], str] = lambda _: ""
    """Takes what the call has left; says which number ran out."""
    missing: tuple[str, ...] = ()
    """Arguments that were redacted, of an intent that is looked at from the record."""
    open_other: Callable[[Job, str], Job] | None = None
    """Makes the job that looks at another intent with the same wish."""
    id: str = field(default_factory=new_call)
    intent: Intent | None = None
    looked_at: tuple[str, ...] = ()
    attempt: Attempt | None = None
    reader: Attempt | None = None
    """What the newest reconciling read was given."""
    place: bool = False
    """A place in the pool is reserved for the next body."""
    seats: dict[int, Seat] = field(default_factory=dict)
    """Leave to send, by attempt, until it is given back."""
    sent: int = 0
    """Bodies that began."""
    recorded: bool = True
    failure: BaseException | None = None
    """What kept this call from the ledger."""
    texts: dict[int, str] = field(default_factory=dict)
    """Values that this call stored, by revision."""
    originals: dict[int, Reply] = field(default_factory=dict)
    """How the bodies of this call ended, by attempt."""
    began: Moment = field(default_factory=lambda: clock().now())
    _backoffs: dict[tuple[int, int], float] = field(default_factory=dict)
    _recorded: dict[str, Any] | None = None
    _secrets: Secrets | None = None

    promises: Promises = field(init=False)
    """What is promised, for the machine."""

    def __post_init__(self) -> None:
        self.promises = self.tool.promises(self.max_stall)
        if not self.meta.trace:
            self.meta = replace(self.meta, trace=self.id)

    @property
    def ledger(self) -> Ledger:
        """The ledger."""
        return self.host.ledger

    # What is left, told to the machine -------------------------------------------------------------------

    def left(self, now: Moment | None = None) -> float:
        """Return the seconds this call still has."""
        return max(0.0, self.limits.call - ((now or clock().now()).ticks - self.began.ticks))

    def facts(self, now: Moment) -> Call:
        """Return what the machine must know of this call now."""
        left = self.left(now)
        return Call(
            self.id,
            left,
            self.sends,
            self.tool.reconcile is not None,
            promises=self.promises,
            floor=self.limits.floor,
            lease=min(left, 1e9) + self.limits.grace + self.limits.lease_margin,
            backoff=self._backoff(),
            waits=self.waits,
            precondition=self._precondition(),
            same_payload=self.same_payload,
            refusal=self.refusal,
            looked_at=self.looked_at,
            beside_unknown=self.beside_unknown,
            quiet=self.quiet,
        )

    def _backoff(self) -> float:
        """Return the next wait: drawn once for each attempt and read, so that asking twice gives one answer."""
        state = self.intent.state if self.intent is not None else None
        read = state.read_of(self.id) if state is not None else None
        reads = read.count if read is not None else 0
        made = state.sends_of(self.id) if state is not None else 0
        if not self.looks_on:
            return inf
        if not made and not reads:
            return 0.0
        if (made, reads) not in self._backoffs:
            self._backoffs[made, reads] = self.tool.wait_before(made + reads, self.newest_error)
        return self._backoffs[made, reads]

    @property
    def newest_error(self) -> BaseException | None:
        """Return the newest exception out of a body of this call."""
        return next((r.error for r in reversed(self.originals.values()) if r.error is not None), None)

    def _precondition(self) -> bool:
        name = self.tool.options.precondition
        return name is not None and self.arguments.get(name) is not None

    # Asking and recording --------------------------------------------------------------------------------

    def ask(self) -> Steps[Command]:
        """Ask the machine what to do now; claims an attempt where it says so."""
        yield from self.host.debts.settle(self.ticket.identity.key)
        at = clock().now()
        call, ticket = self.facts(at), replace(self.ticket, claim=self.claim)
        try:
            came: Appended = yield self.ledger.asking(ticket, call, at, self.meta)
        except _NoPlace as refused:
            call = replace(call, refusal=str(refused))
            came = yield self.ledger.asking(ticket, call, at, self.meta)
        self.intent, command = came.intent, came.command
        for other in self._owners():
            if process.known_gone(other):
                command = yield from self.record(Gone(other))
        return command

    def in_flight(self) -> Steps[bool]:
        """Return whether an attempt elsewhere still holds the lease, nothing new is on record, and time is left."""
        assert self.intent is not None
        newer, lease_at = yield self.ledger.whether_moved_on(self.intent)
        lease, now = self.intent.state.lease, clock().now()
        if newer or lease is None or self.left(now) <= 0.0:
            return False
        gone = process.known_gone(lease.owner)
        return not gone and lease.left(lease_at or now, self.tool.dependency.clock_skew) > 0.0

    def _owners(self) -> set[str]:
        """Return the other processes that something waits for: a body that may still run, or a live lease.

        A process can be gone between two steps of its call, when no body runs: its lease then holds up nobody.
        """
        assert self.intent is not None
        state = self.intent.state
        owners = {a.owner for a in state.attempts if a.ended_at is None and a.open}
        if state.lease is not None and state.outcome is not OutcomeState.APPLIED:
            owners.add(state.lease.owner)
        return owners - {process.owner()}

    def claim(self, number: int, call: Call, at: Moment) -> Claimed:
        """Return the fact that claims attempt `number`, and make the attempt that its body will be given.

        A body that needs a thread needs a place for it first, and every one leave from its dependency's budget,
        breaker and limit: without them nothing is claimed.
        """
        o = self.limits
        if o.threaded and not self.place:
            self.place = self.pool.reserve()
            if not self.place:
                raise _NoPlace("pool_exhausted")
        if number not in self.seats:
            self._unused()  # of a claim that was lost to somebody else
            most = self.tool.dependency.max_concurrency
            seat = pressure_of(self.tool.system).enter(most, further=self.sent > 0)
            if isinstance(seat, str):
                raise _NoPlace(seat)
            self.seats[number] = seat
        reserve = reserve_of(call.left, reads=call.reads, share=o.share, floor=o.reserve_floor)
        limit = attempt_limit(call.left, o.timeout, reserve)
        self.attempt = Attempt(
            id=os.urandom(8).hex(),
            number=number,
            key=self.ticket.identity.key,
            end=at.ticks + limit,
            deadline_at=at.unix + limit,
            idle=self.tool.idle,
            system=self.tool.system,
        )
        return Claimed(number, self.attempt.id, process.owner(), self.attempt.deadline_at)

    def record(
        self,
        fact: Fact,
        contents: Mapping[str, str] | None = None,
        *,
        evidence: Mapping[str, object] | None = None,
        over: bool = False,
        candidates: Candidates | None = None,
        heard: bool = True,
    ) -> Steps[Command]:
        """Record a fact and return what follows.  `heard`: this call waits for it (else it is only evidence)."""
        assert self.intent is not None
        at = clock().now()
        call = self.facts(at)
        event = Event(at, fact, call if heard else None, over=over, promises=call.promises)
        meta = self.meta if evidence is None else replace(self.meta, evidence=evidence)
        try:
            came: Appended = yield self.ledger.recording(self.intent, event, meta, contents or {}, candidates)
        except LedgerUnavailable as error:
            _log.error("safewrite could not record %s of %s: %s", fact, self.ticket.identity.key, error)
            answer = self._unrecorded(event) if heard and not over else Nothing("X1")
            told = isinstance(answer, Answer) and answer.kind is AnswerKind.VALUE
            # The call ends here, whatever the fact leads to.
            owed = event if told else replace(event, over=True)
            recording = partial(self.ledger.recording, self.intent, owed, meta, contents or {}, candidates)
            self.host.debts.add(Debt(self.ticket.identity.key, str(fact), lambda: one(recording())))
            return answer
        if heard:
            self.intent = came.intent
        return came.command

    def _unrecorded(self, event: Event) -> Answer:
        assert self.intent is not None
        assert event.call is not None
        self.recorded = False
        state = fold(self.intent.state, event)
        command = machine.decide(state, event)
        return machine.unrecorded(state, command, event.call, event.at)

    # Bodies ----------------------------------------------------------------------------------------------

    def withhold(self, number: int) -> str:
        """Return why the claimed attempt may not start after all: asked just before its body."""
        assert self.intent is not None
        now = clock().now()
        return machine.withhold(self.intent.state, number, self.facts(now), now)

    def body(self) -> tuple[Callable[[], Any], contextvars.Context]:
        """Return the body of the current attempt, and the context that it runs in."""
        assert self.attempt is not None
        attempt, tool = self.attempt, self.tool
        self.sent += 1
        arguments = self._first_arguments()
        if tool.attempt_parameter is not None:
            arguments[tool.attempt_parameter] = attempt
        inside = contextvars.copy_context()
        inside.run(context._attempt.set, attempt)
        return tool.body(arguments), inside

    @property
    def unfinished(self) -> bool:
        """Whether a call that ends here leaves something behind: a claim whose body never began, or its lease."""
        lease = self.intent.state.lease if self.intent is not None else None
        return self.attempt is not None or (lease is not None and lease.call == self.id)

    def leave(self, how: str) -> Steps[Command]:
        """Record that this call was `how` ("cancelled", "interrupted"), so that its claim and lease hold up nobody."""
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            try:
                return (yield from self._never_began(attempt, how))
            except LedgerUnavailable:
                self.host.debts.add(
                    Debt(
                        self.ticket.identity.key,
                        f"that attempt {attempt.id} never began",
                        lambda: self._never_began(attempt, how),
                    )
                )
                return Nothing("X1")
        return (yield from self._left(how))

    def _never_began(self, attempt: Attempt, how: str) -> Steps[Command]:
        """Record that no body of `attempt` will run, if its claim stands.  Raises `LedgerUnavailable`."""
        found = yield self.ledger.claimed(attempt.id)
        if found is None:
            return (yield from self._left(how))
        self.intent, number = found
        return (yield from self.withheld(number, f"{how}_before_start", over=True))

    def _left(self, how: str) -> Steps[Command]:
        """Record that this call is over, if it holds the lease."""
        if self.unfinished:
            return (yield from self.record(Refused(f"call_{how}"), over=True))
        return Nothing("N2")

    def withheld(self, number: int, reason: str, *, over: bool = False) -> Steps[Command]:
        """Record that the body of an attempt never ran."""
        self.seats.pop(number, FREE).unsent()
        return self.record(Withheld(number, reason), over=over)

    def ended(
        self,
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
        reply = self._reply(value, error, cut, now, single=not attempt.more_requests)
        if attempt.delivered and reply.finding.outcome is OutcomeState.NOT_APPLIED:
            reply = self._reply(value, error, cut, now, single=False)  # it is about something after the write
        if isinstance(value, Inconclusive):  # words of the tool's author, not a code of ours
            words = self.secrets.without(reply.finding.reason)
            reply = replace(reply, finding=replace(reply.finding, reason=words))
        self._give_back(attempt, reply.finding, now.ticks)
        contents = self._value(reply.value) if reply.finding.outcome is OutcomeState.APPLIED else {}
        if error is not None:
            told = "\n".join(filter(None, (cut and attempt.cut, describe(error))))
            contents["evidence"] = self.secrets.without(told)
        fact = Ended(
            attempt.number,
            reply.finding,
            key_carried=attempt.key_read,
            deadline_carried=attempt.deadline_read,
            goal=reply.goal,
            kept="value" in contents,
            object_id=reply.object_id,
        )
        self.originals[attempt.number] = reply
        about = {"reason": reply.finding.reason, "status": reply.finding.status, "type": _type_of(error)}
        pauses = error is not None and not over and heard and passes_through(error)
        command = yield from self.record(fact, contents, evidence=about, over=over or pauses, heard=heard)
        if pauses and error is not None:
            raise error
        if heard and self.recorded and "value" in contents and self.intent is not None:
            self.texts[self.intent.state.revision] = contents["value"]
        return command

    def _reply(
        self, value: object, error: BaseException | None, cut: str, now: Moment, *, single: bool
    ) -> Reply:
        reading = self.tool.reading if single else replace(self.tool.reading, single_request=False)
        if error is None:
            return read_value(value, reading)
        if cut and isinstance(error, asyncio.CancelledError):
            return Reply(Finding(OutcomeState.UNKNOWN, cut), error=error)
        return read_error(error, reading, now.unix)

    def gave_up(self, attempt: Attempt, reason: str, *, over: bool = False) -> Steps[Command]:
        """Record that nobody waits any more for a body that goes on."""
        ours = reason not in ("timeout", "idle")
        until = self._quiet_at(attempt, clock().now().ticks)
        self.seats.get(attempt.number, FREE).gave_up(until, healthy=None if ours else False)
        fact = GaveUp(attempt.number, reason, attempt.key_read, attempt.deadline_read)
        return self.record(fact, {"evidence": attempt.cut} if attempt.cut else None, over=over)

    def _give_back(self, attempt: Attempt, found: Finding, now: float) -> None:
        seat = self.seats.pop(attempt.number, FREE)
        if found.reason in LOCAL:
            seat.unsent()
        else:
            seat.ended(healthy(found), self._quiet_at(attempt, now) if silent(found) else 0.0)

    def _quiet_at(self, attempt: Attempt, now: float) -> float:
        return quiet_at(self.promises, now, attempt.end, deadline_carried=attempt.deadline_read)

    def late(self, attempt: Attempt, value: object, error: BaseException | None) -> Steps[Command]:
        """Record the end of a body that was given up: evidence, never this call's result."""
        return self.ended(attempt, value, error, heard=False)

    # Reads -----------------------------------------------------------------------------------------------

    def read_start(self) -> ReadStart:
        """Return where a read begins, and what it may take."""
        assert self.intent is not None
        now, state = clock().now(), self.intent.state
        limit = min(self.left(now), self.limits.timeout if self.limits.timeout is not None else inf)
        return ReadStart(now, state.revision, state.epoch, limit)

    def read_body(self, start: ReadStart) -> tuple[Callable[[], Any], contextvars.Context]:
        """Return the call of the reconcile function, and the context that it runs in."""
        tool, state = self.tool, self.intent.state if self.intent is not None else None
        assert tool.reconcile is not None
        assert state is not None
        available = self._first_arguments()
        newest, inside = state.newest, contextvars.copy_context()
        if newest is not None:
            available["attempt"] = Attempt(
                id=newest.id,
                number=newest.number,
                key=self.ticket.identity.key,
                end=start.at.ticks + start.limit,
                deadline_at=start.at.unix + start.limit,
                role="reconcile",
            )
            self.reader = available["attempt"]
            inside.run(context._attempt.set, self.reader)
        fn, names = tool.reconcile, tool.reconcile_parameters

        def call() -> Any:
            missing = [n for n in names if n not in available]
            if missing:
                raise LookupError(f"`{missing[0]}` was redacted, so this read cannot be made from the record")
            return fn(**{n: available[n] for n in names})

        return call, inside

    def _first_arguments(self) -> dict[str, Any]:
        """Return the arguments of the first call, so that the payload under one key never changes.

        Redacted ones come from the call at hand, if there is one.
        """
        assert self.knows_arguments
        _ = self.secrets  # as they are before a body has them
        given = {**self.arguments, **(self._recorded or {})}
        self.arguments = {n: apart(v) if n in self.tool.secret() else v for n, v in self.arguments.items()}
        return given

    @property
    def knows_arguments(self) -> bool:
        """Whether the first call's arguments are at hand, without asking the ledger."""
        assert self.intent is not None
        own = self.intent.state.revision == 1 and self.intent.state.sends_of(self.id) > 0
        return own or self._recorded is not None  # this call's own claim made the record

    def fetch(self) -> Steps[None]:
        """Read the first call's arguments from the ledger, if they are not at hand."""
        if not self.knows_arguments:
            assert self.intent is not None
            text = yield self.ledger.first_arguments(self.intent.id)
            self._recorded, _ = decode_arguments(text, self.tool.argument_codecs)

    def read_ended(
        self,
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
            fact = self._read_fact(start, Verdict.INCONCLUSIVE, failed or "read_failed")
            if error is not None:
                contents["evidence"] = self.secrets.without(describe(error))
        else:
            said = seen(result)
            if said.has_value:
                contents = self._value(said.value)
            words = self.secrets.without(said.reason) if isinstance(result, Inconclusive) else said.reason
            fact = self._read_fact(start, said.verdict, words, kept="value" in contents)
            if said.candidates is not None:
                candidates = self._candidates(said.candidates, said.listed)
        yield from self._fenced(start)
        about = {"reason": fact.reason, "type": _type_of(error)}
        command = yield from self.record(fact, contents, evidence=about, over=over, candidates=candidates)
        if self.intent is not None and "value" in contents:
            # Where it could not be recorded, it would have been the next row's.
            self.texts[self.intent.state.revision + (not self.recorded)] = contents["value"]
        return command

    def _fenced(self, start: ReadStart) -> Steps[None]:
        """Record the fence that a read has set, once; only a read that begins after that proves anything."""
        assert self.intent is not None
        attempts = self.intent.state.attempts[: start.epoch]
        if self.reader is not None and self.reader.fence and any(a.fenced_at is None for a in attempts):
            yield from self.record(Fenced(start.epoch, self.reader.fence), heard=False)

    def _read_fact(self, start: ReadStart, verdict: Verdict, reason: str, *, kept: bool = False) -> ReadEnded:
        return ReadEnded(verdict, start.at, start.revision, start.epoch, reason, kept)

    def _candidates(self, found: tuple[Any, ...], listed: bool) -> Candidates:
        def contents_of(place: int) -> dict[str, str]:
            return self._value(found[place].value)

        ids = tuple(indexable(str(x.object_id)) for x in found)
        return Candidates(ids, contents_of, listed)

    # What may be written ---------------------------------------------------------------------------------

    @property
    def secrets(self) -> Secrets:
        """The secrets among the arguments at hand."""
        if self._secrets is None:
            self._secrets = Secrets(self.tool.content(self.arguments), self.tool.secret())
        return self._secrets

    def _value(self, value: object) -> dict[str, str]:
        """Return the content that keeps a value; none if it cannot be stored, or repeats a secret argument."""
        text = self.tool.codec.encode(value).text
        if text is None or self.secrets.within(text):
            return {}
        return {"value": text}

    # The end ---------------------------------------------------------------------------------------------

    def has_value(self, answer: Answer) -> bool:
        """Whether the value of an answer is at hand, without asking the ledger."""
        came_along = self.intent is not None and self.intent.value is not None
        return answer.value_at is None or answer.value_at in self.texts or came_along

    def look(self, refusal: str = "") -> Answer:
        """Return what the record alone says; sends, reads and records nothing.  `refusal`: why nothing was sent."""
        now, state = clock().now(), self.intent.state if self.intent is not None else State()
        call = replace(self.facts(now), sends=0, reads=False, waits=False, quiet=True, refusal=refusal)
        answer = machine.decide(state, Event(now, Asked(), call))
        if isinstance(answer, Run):
            # Its own claim, which it came to know of too late: as anybody else sees it.
            answer = machine.decide(state, Event(now, Asked(), replace(call, id="")))
        assert isinstance(answer, Answer)
        return answer

    def close(self) -> None:
        """Give back what was reserved and not used."""
        if self.place:
            self.place = False
            self.pool.release()
        self._unused()

    def _unused(self) -> None:
        for seat in tuple(self.seats.values()):  # a body that was left behind may end meanwhile
            seat.unsent()  # those that a claim was asked for and not made; the others were told already


def _type_of(error: BaseException | None) -> str | None:
    return None if error is None else f"{type(error).__module__}.{type(error).__qualname__}"
