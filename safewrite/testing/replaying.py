"""A case replayed: through the machine of today, or through a tool as it is declared today.

Through a tool everything is real but the world: guard, shell, ledger and clock of their own carry the calls out
again, and its body and its reads end as they are on record, at the recorded instants.  `bodies` runs its own code.
"""

from __future__ import annotations

import contextvars
import copy
import itertools
import json
import os
import threading
from collections.abc import Iterator
from math import inf, isfinite
from typing import Any, cast

from safewrite.audit.cases import Case, CaseUnusable, Difference, Replay, through_machine
from safewrite.calls import CallOptions, Guard
from safewrite.context import current_attempt, current_deadline, run, turn
from safewrite.core.commands import Answer, Command, Nothing
from safewrite.core.events import (
    Alarmed,
    Call,
    Delivered,
    Ended,
    Event,
    Fact,
    GaveUp,
    Gone,
    OutcomeState,
    ReadEnded,
    Withheld,
)
from safewrite.core.fold import Impossible
from safewrite.core.machine import refold
from safewrite.core.replacing import replace
from safewrite.core.state import State
from safewrite.core.story import Line, Row, tell
from safewrite.deadline import Deadline
from safewrite.errors import ConfigurationError
from safewrite.guard import SafeWrite
from safewrite.ledger.append import Appended
from safewrite.ledger.codec import Codec, Undecodable, decode_arguments
from safewrite.ledger.model import Intent, Meta
from safewrite.ledger.rows import command_of, event_of, parse
from safewrite.ledger.sql import Ledger
from safewrite.redaction import MARK
from safewrite.shell import process, sync
from safewrite.shell.job import Job
from safewrite.shell.reply import Reading
from safewrite.testing.clock import ManualClock
from safewrite.testing.lab import Crashed, Then
from safewrite.tool import Tool
from safewrite.verdicts import Inconclusive

Told = tuple[Event, Command, OutcomeState]


def replay(case: Case, tool: Any = None) -> Replay:
    """Return whether a case is decided as then, by the machine of today or through a tool as it is declared today.

    `tool`: the decorated function.  Raises `CaseUnusable` where the case is another tool's, or holds what one tool
    cannot play by itself: calls that overlap, a caller that was cancelled, other intents with the same wish.
    """
    if tool is None:
        return through_machine(case)
    known = getattr(tool, "tool", tool)
    if not isinstance(known, Tool):
        raise CaseUnusable(f"`tool` is {tool!r}: give the decorated function of `{case.intent.tool}` itself.")
    if known.name != case.intent.tool:
        raise CaseUnusable(f"the case is of the tool `{case.intent.tool}`, not of `{known.name}`.")
    play = Play(case, known)
    try:
        return contextvars.Context().run(play.perform)
    except ConfigurationError as error:
        raise CaseUnusable(f"the case cannot be played through a tool: {error}") from None


class Play:
    """One case, carried out again through the declaration of a tool."""

    through = "the declaration of {}, whose body did not run"

    def __init__(self, case: Case, known: Tool) -> None:
        self.case, self.rows = case, [row.told() for row in case.rows]
        self.calls = _calls(self.rows)
        self.clock = _Clock(self, self.rows[0][0].at.unix if self.rows else 0.0)
        self.over = threading.Event()
        self.stopped = False
        """Nothing more is carried out or recorded."""
        self.row = 0
        """How many rows are on record by now."""
        self.call: list[int] = []
        """The rows of the call that is carried out."""
        try:
            self.arguments, missing = decode_arguments(json.dumps(case.arguments), known.argument_codecs)
        except Undecodable as error:
            raise CaseUnusable(f"the recorded arguments no longer fit `{known.name}`: {error}.") from None
        self.complete(known, missing)
        waits, self.tool = _backoffs(self.rows), copy.copy(known)
        vars(self.tool)["bind"] = lambda _, given: dict(given)
        if known.options.wait is None:  # its waits are random: those of then are taken
            vars(self.tool)["wait_before"] = lambda *_: next(waits, 0.0)
        self.prepare(self.tool)

    def complete(self, _known: Tool, missing: tuple[str, ...]) -> None:
        """Stand in for the arguments that the case does not hold."""
        self.arguments.update(dict.fromkeys(missing, MARK))

    def prepare(self, tool: Tool) -> None:
        """Put the recorded world in the place of the tool's code."""
        tool.fn, tool.is_async, tool._codec = self._body, False, Codec()
        tool.reconcile = self._read if tool.reconcile is not None else None
        tool.reconcile_parameters = ()
        vars(tool)["reading"] = Reading()

    # The recorded world --------------------------------------------------------------------------------------

    def offset(self, event: Event) -> float:
        """Return the seconds from the first row to this one."""
        return self.rows[0][0].at.seconds_to(event.at, 0.0)

    def catch_up(self) -> None:
        """After a wait: be no earlier than the call then was, where a moment may decide."""
        event = self.rows[self.row][0] if self.row < len(self.rows) else None
        if event is None or isinstance(event.fact, Ended | GaveUp):
            return
        if isinstance(event.fact, ReadEnded):
            event = replace(event, at=event.fact.began)
        self.clock.advance(max(0.0, self.offset(event) - self.clock.elapsed))

    def fact_of(self, kind: type[Fact], number: int | None = None) -> Event | None:
        """Return the next recorded event of a kind in the call that is carried out."""
        events = [self.rows[n][0] for n in self.call if n >= self.row]
        of_kind = (e for e in events if isinstance(e.fact, kind))
        return next((e for e in of_kind if number in (None, getattr(e.fact, "number", None))), None)

    def _body(self, *_: object, **__: object) -> None:
        attempt = current_attempt()
        assert attempt is not None
        end = self.fact_of(Ended, attempt.number)
        if end is None and self.fact_of(GaveUp, attempt.number) is None:
            raise LookupError("the case does not say how this attempt ended")
        lasts = inf if end is None else self.offset(end) - self.clock.elapsed
        limit, deadline = attempt.remaining(), current_deadline()
        left = deadline.remaining() - limit if deadline is not None else inf
        self._pass(lasts, limit + sync.grace_within(float(self.sw.settings.grace), left))

    def _read(self) -> Inconclusive:
        attempt, end = current_attempt(), self.fact_of(ReadEnded)
        if end is not None and attempt is not None:
            self._pass(self.offset(end) - self.clock.elapsed, attempt.remaining())
        return Inconclusive("not_in_case")

    def _pass(self, lasts: float, limit: float) -> None:
        if lasts > limit:
            self.clock.block(self.over)
        elif lasts > 0.0:
            self.clock.sleep(lasts)

    # Carrying it out -----------------------------------------------------------------------------------------

    def perform(self) -> Replay:
        """Make the recorded calls again, and compare."""
        who, before = self.case.intent, process._known
        options = CallOptions(occurrence=who.occurrence or None)
        stall = next((e.call.promises.max_stall for e, _, _ in self.rows if e.call is not None), None)
        with self.clock, SafeWrite("sqlite://", namespace=who.namespace, max_stall=stall) as sw:
            self.sw, sw.tools[who.tool] = sw, self.tool
            guard, self.ledger = Guard(sw, self.tool), sw.ledger
            self.ledger.on_alarm = None  # what goes otherwise is told as a difference, to nobody else
            sw._ledger = cast("Ledger", _Recorded(self.ledger, self))
            try:
                with run(who.run), turn(who.turn):
                    self.key = guard.identity(options, (), self.arguments)[0].key
                for rows in self.calls:
                    if self.stopped:
                        break
                    self.call = rows
                    self._carry_out(guard, options)
                    process._known = before
                self.inject()
                through = self.through.format(f"`{who.tool}`")
                return Replay(self.case.intent.key, through, len(self.rows), tuple(self._compare()))
            finally:
                self.over.set()
                self.end()
                process._known = before

    def _carry_out(self, guard: Guard, options: CallOptions) -> None:
        self.inject()
        event = self.rows[self.call[0]][0]
        call = event.call
        assert call is not None
        self.clock.advance(max(0.0, self.offset(event) - self.clock.elapsed))
        self._be()
        try:
            if call.quiet:
                found = self.ledger.find(self.key)
                if found is not None:
                    self.look(self.sw.job_for(found, sends=call.sends, within=call.left))
                return
            left = None if call.left == inf else Deadline(max(call.left, 1e-9), minimum=call.floor)
            options = replace(options, beside_unknown=call.beside_unknown)
            with run(self.case.intent.run, deadline=left), turn(self.case.intent.turn):
                self.make(guard, options)
        except Crashed:
            pass

    def look(self, job: Job) -> None:
        """Carry out what looks at the intent for nobody who waits."""
        sync.drive(job)

    def make(self, guard: Guard, options: CallOptions) -> None:
        """Carry out a call."""
        guard.call(options, (), self.arguments)

    def end(self) -> None:
        """See to what still runs, now that the play is over."""

    def _be(self) -> None:
        """Be the process that makes the call: one that is found gone later, or one of which nobody can tell."""
        owners = {e.fact.owner for e, _, _ in self.rows if isinstance(e.fact, Gone)}
        mine = [getattr(self.rows[n][0].fact, "owner", "") for n in self.call]
        if self.crashes:
            gone = bool(owners.intersection(mine))
            where = process.owner().split("/")[:3] if gone else ["elsewhere", "", ""]
            process._known = (os.getpid(), "/".join([*where, str(1 << 22), "1"]))

    @property
    def crashes(self) -> bool:
        """Whether the call that is carried out never came to its answer."""
        return not isinstance(self.rows[self.call[-1]][1], Answer | Nothing)

    def inject(self) -> None:
        """Record what is on record next and nobody waited for: a late response, a delivery, a person's word."""
        while self.row < len(self.rows) and _aside(self.rows[self.row][0]):
            event, found = self.rows[self.row][0], self.ledger.find(self.key)
            if isinstance(event.fact, Alarmed) or found is None:
                return
            try:
                now = Event(self.clock.now(), event.fact, event.call, promises=event.promises)
                self.row = self.ledger.record(found, now, Meta())[0].state.revision
            except Impossible:  # it was decided otherwise by then, and that is told
                return

    # Comparing -----------------------------------------------------------------------------------------------

    def _compare(self) -> Iterator[Difference]:
        if self.key != self.case.intent.key and MARK not in self.case.intent.target:
            yield Difference(0, "the intent has another key", self.case.intent.key, "", self.key, "")
        found = self.ledger.find(self.key)
        bodies = [parse(row["body"]) for row in self.ledger.rows(found.id)] if found is not None else []
        now = [(event_of(b), command_of(b), OutcomeState(b["outcome"])) for b in bodies]
        both = itertools.zip_longest(
            zip(self.rows, _lines(self.rows), strict=True), zip(now, _lines(now), strict=True)
        )
        for number, (one, other) in enumerate(both, 1):
            lost = one and other and self.lost(one[0][0], other[0][0])
            if lost:
                yield Difference(number, *lost)
                return
            if one is None or other is None or self.gist(one[0]) != self.gist(other[0]):
                then, then_rule = _words(one and one[1])
                today, rule = _words(other and other[1])
                yield Difference(number, "from here on it goes otherwise", then, then_rule, today, rule)
                return

    def gist(self, row: Told) -> tuple[object, ...]:
        """Return what is compared of a row."""
        event, command, outcome = row
        return type(event.fact), getattr(event.fact, "number", 0), type(command), command.rule, outcome

    def lost(self, _then: Event, _now: Event) -> tuple[str, str, str, str, str] | None:
        """Return what an attempt of then carried and that of now does not, as the rest of a `Difference`."""
        return None

    def as_told(self, event: Event) -> Event:
        """Return an event with what the world said of it then."""
        fact = event.fact
        recorded = self.fact_of(type(fact), getattr(fact, "number", None))
        then = None if recorded is None else recorded.fact
        if isinstance(then, Ended):
            fact = replace(then, kept=False)
        elif isinstance(fact, GaveUp) and isinstance(then, GaveUp):
            fact = replace(fact, key_carried=then.key_carried, deadline_carried=then.deadline_carried)
        elif isinstance(fact, ReadEnded) and isinstance(then, ReadEnded):
            fact = replace(fact, verdict=then.verdict, reason=then.reason, object_id=then.object_id)
        return replace(event, fact=fact)

    def contents(self, *_: Any) -> tuple[Any, ...]:
        """Return what is kept beside a row: nothing, for no body ran."""
        return ()


def _aside(event: Event) -> bool:
    """Whether nobody's call led to it: it came by itself."""
    return event.call is None or isinstance(event.fact, Delivered)


def _lines(rows: list[Told]) -> tuple[Line, ...]:
    return tell(Row(n, event, command, outcome) for n, (event, command, outcome) in enumerate(rows, 1)).lines


def _words(line: Line | None) -> tuple[str, str]:
    if line is None:
        return "nothing more is recorded", ""
    return f"{line.happened} Then: {line.decided or 'nothing'}", line.rule


def _calls(rows: list[Told]) -> list[list[int]]:
    """Return the rows of each call, in order.  Raises `CaseUnusable` for what cannot be carried out again."""
    calls: dict[str, list[int]] = {}
    for number, (event, _, _) in enumerate(rows):
        call = event.call
        if call is None or _aside(event):
            continue
        odd = (
            (not all(map(isfinite, event.at[:2])), "it stands at no finite instant"),
            (event.over, "its caller was cancelled or interrupted"),
            (call.others and not call.beside_unknown, "it rests on another intent with the same wish"),
            (getattr(event.fact, "reason", "") == "no_thread_in_time", "no thread was free"),
            (call.differs, "it came with other arguments, which are not on record"),
            (call.id in calls and next(reversed(calls)) != call.id, "calls overlap"),
        )
        for wrong, why in odd:
            if wrong:
                raise CaseUnusable(
                    f"row {number + 1} cannot be played through a tool: {why}. The machine alone can replay it."
                )
        calls.setdefault(call.id, []).append(number)
    return list(calls.values())


def _backoffs(rows: list[Told]) -> Iterator[float]:
    """Yield the waits that were drawn, in order: one for each number of attempts and reads of a call."""
    state, seen = State(), ("", 0, 0)
    for event, _, _ in rows:
        call = event.call
        if call is not None:
            read = state.last_read
            reads = read.count if read is not None and read.call == call.id else 0
            drawn = (call.id, state.sends_of(call.id), reads)
            if drawn[1:] != (0, 0) and drawn != seen:
                yield call.backoff
            seen = drawn
        try:
            state = refold(state, event)[0]
        except Impossible:
            return


class _Clock(ManualClock):
    def __init__(self, play: Play, start: float) -> None:
        super().__init__(auto=True, patience=5.0, start=start)
        self._play = play

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self._play.catch_up()


class _Recorded:
    """The ledger of a play: what the world says is put in from the case."""

    def __init__(self, ledger: Ledger, play: Play) -> None:
        self._ledger, self._play = ledger, play

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def asking(self, ticket: Any, call: Call, *more: Any) -> Any:
        self._next()
        return Then(self._ledger.asking(ticket, call, *more), self._count)

    def recording(self, intent: Intent, event: Event, meta: Meta, *more: Any) -> Any:
        self._next()
        play = self._play
        order = self._ledger.recording(intent, play.as_told(event), meta, *play.contents(*more))
        return Then(order, self._count)

    def _count(self, came: Appended) -> None:
        play = self._play
        play.row = came.intent.state.revision
        here = play.rows[max(play.row - 1, 0) : play.row + 1]
        # A body that never ran then was kept from it by what time had passed since the claim.
        until = here[-1:] if here and isinstance(here[-1][0].fact, Withheld) else here[:1]
        for event, _, _ in until:
            play.clock.advance(max(0.0, play.offset(event) - play.clock.elapsed))

    def _next(self) -> None:
        """The process dies where its rows end, or where more are recorded than then; after the play nothing is."""
        play = self._play
        over = play.over.is_set() or play.stopped or play.row > len(play.rows)
        if over or (play.crashes and play.row > play.call[-1]):
            raise Crashed
        play.inject()
