"""One call of a tool between machine and ledger: what both shells share, and nothing that waits."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Protocol

from safewrite.attempt import Attempt
from safewrite.core import machine
from safewrite.core.commands import Answer, AnswerKind, Command, Nothing, Run
from safewrite.core.deadline import attempt_limit, reserve_of
from safewrite.core.events import Asked, Call, Claimed, Event, Fact, Gone, Moment, OutcomeState, Promises
from safewrite.core.fold import fold
from safewrite.core.replacing import replace
from safewrite.core.state import State
from safewrite.errors import LedgerUnavailable
from safewrite.ledger.codec import decode_arguments
from safewrite.ledger.model import Candidates, Intent, Meta, Ticket
from safewrite.shell import process
from safewrite.shell.apart import apart
from safewrite.shell.clock import clock
from safewrite.shell.debts import Debt, Debts
from safewrite.shell.pressure import Seat, pressure_of
from safewrite.shell.reply import Reply
from safewrite.shell.secrets import Secrets
from safewrite.shell.steps import Steps, one
from safewrite.shell.threads import Pool

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

    # The first call's arguments --------------------------------------------------------------------------

    def first_arguments(self) -> dict[str, Any]:
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

    # What may be written ---------------------------------------------------------------------------------

    @property
    def secrets(self) -> Secrets:
        """The secrets among the arguments at hand."""
        if self._secrets is None:
            self._secrets = Secrets(self.tool.content(self.arguments), self.tool.secret())
        return self._secrets

    def content_of(self, value: object) -> dict[str, str]:
        """Return the content that keeps a value; none if it cannot be stored, or repeats a secret argument."""
        text = self.tool.codec.encode(value).text
        if text is None or self.secrets.within(text):
            return {}
        return {"value": text}

    # The end ---------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> bool:
        """Whether a call that ends here leaves something behind: a claim whose body never began, or its lease."""
        lease = self.intent.state.lease if self.intent is not None else None
        return self.attempt is not None or (lease is not None and lease.call == self.id)

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
