"""The ledger: one synchronous object that reads, decides by the machine, and writes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from safewrite.core.commands import Answer, Command, Note, Read, Run, Send, Watch
from safewrite.core.events import Asked, Call, Event, Fact, Moment, Other, OutcomeState
from safewrite.core.machine import step
from safewrite.core.replacing import replace
from safewrite.core.state import Alarm
from safewrite.errors import ConfigurationError, LedgerUnavailable
from safewrite.ledger import lookup, migrate
from safewrite.ledger.anchor import anchored
from safewrite.ledger.append import Appended, append, unwritten
from safewrite.ledger.chain import Flaw
from safewrite.ledger.claims import claim, judged, objects
from safewrite.ledger.database import Database
from safewrite.ledger.lookup import IntentRow
from safewrite.ledger.migrate import Status
from safewrite.ledger.model import ARGUMENTS, VALUE, Candidates, Contents, Identity, Intent, Meta, Ticket
from safewrite.ledger.orders import Order
from safewrite.ledger.sqlite import SQLite
from safewrite.ledger.store import LONGEST_WAIT, Store
from safewrite.ledger.tables import intent as intents
from safewrite.ledger.texts import restored, storable
from safewrite.ledger.units import Hold, Proof, Trouble, Unit
from safewrite.ledger.verify import audit_rows, verify
from safewrite.settings import supported

_LOG = logging.getLogger("safewrite")
if TYPE_CHECKING:
    from safewrite.ledger.pool import Pool

T = TypeVar("T")
_LONGEST_SAID = 300
"""Characters of a database's words that a message quotes."""
OnAlarm = Callable[[Intent, Alarm], None]


class Ledger:
    """Where intents, their audit rows and their contents stand.  Safe to share between threads, and across a fork.

    `url` is a database URL (`sqlite:///agent.db`; `sqlite://`: in memory, gone with the process).  `busy_timeout`
    bounds, in seconds, the wait for other writers.  `now` is the wall clock: it only stamps rows.  Nothing is opened
    before the first use, which makes or upgrades the tables of a SQLite file.

    Methods raise `LedgerUnavailable` where the database does not do its work, with nothing half-written;
    `ConfigurationError` where it cannot be used at all; `SchemaOutdated` where its tables are not this version's.
    """

    on_alarm: OnAlarm | None = None
    """Called with the intent and each alarm, after the commit; what it raises is logged."""

    def __init__(
        self,
        url: str,
        *,
        busy_timeout: float = 5.0,
        connect_timeout: float = 5.0,
        statement_timeout: float = 30.0,
        schema: str | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        for name, given in (
            ("busy_timeout", busy_timeout),
            ("connect_timeout", connect_timeout),
            ("statement_timeout", statement_timeout),
        ):
            if not (isfinite(given) and given >= 0.0):
                raise ConfigurationError(f"`{name}` is {given!r}; it must be a number of seconds, 0 or more.")
        busy_timeout = min(busy_timeout, LONGEST_WAIT)
        self._database: Database
        self._store: Store | Pool
        parsed = _parsed(url)
        if parsed.get_backend_name() == "postgresql":
            from safewrite.ledger.postgres import PostgreSQL

            server = PostgreSQL(
                parsed,
                busy_timeout=busy_timeout,
                connect_timeout=min(connect_timeout, LONGEST_WAIT),
                statement_timeout=min(statement_timeout, LONGEST_WAIT),
                schema=schema,
            )
            from safewrite.ledger.pool import Pool

            self._database, self._store = server, Pool(server, wait=busy_timeout, check=migrate.ready)
        else:
            file = _file(parsed, busy_timeout, schema)
            self._database, self._store = file, Store(file, wait=busy_timeout, check=migrate.ready)
        self._now = now

    # Deciding and recording --------------------------------------------------------------------------------------

    def ask(self, ticket: Ticket, call: Call, at: Moment, meta: Meta) -> tuple[Intent, Command]:
        """Return what a call is to do now, and the intent as it stands: `asking`, on this thread."""
        appended = self.asking(ticket, call, at, meta).now()
        return appended.intent, appended.command

    def asking(self, ticket: Ticket, call: Call, at: Moment, meta: Meta) -> Order[Appended]:
        """Order what a call is to do now, and the intent as it stands.

        What only repeats the record is answered from a plain read.  A claim, and a fact that must stand before the
        answer, are recorded first: the command is `Run` then, or the answer.
        """
        arguments: list[str] = []

        def look(unit: Unit) -> Appended | None:
            intent, lease_at = lookup.known(unit, ticket.identity, call.id)
            if intent is None:
                return None
            asked = Event(at, Asked(), _of_content(ticket, call, intent), lease_at)
            command = step(intent.state, asked)[1]
            return Appended(intent, command) if isinstance(command, Answer | Read | Watch | Run) else None

        def write(unit: Unit) -> tuple[Appended, Proof | None]:
            appended = self._asked(unit, ticket, call, at, meta, arguments[-1])
            return appended, appended.proof

        def prepare() -> None:
            arguments.append(ticket.arguments())

        def refused(trouble: Trouble) -> LedgerUnavailable:
            return self._unavailable(trouble, identity=ticket.identity)

        locks = (Hold(ticket.identity.wish),)
        return Order(self._store, look, write, refused, self._alarms, locks, prepare)

    def _asked(
        self, unit: Unit, ticket: Ticket, call: Call, at: Moment, meta: Meta, arguments: str
    ) -> Appended:
        """Look and claim as one step: nobody else writes meanwhile."""
        identity, key, now = ticket.identity, storable(ticket.identity.key), self._now()
        seen = unit.rows(unit.sql.look, {"key": key, "wish": identity.wish})
        rows = [IntentRow._make(found) for found in seen]
        own = next((row for row in rows if row.key == key), None)
        others = tuple(_other(ticket, row) for row in rows if row.key != key)
        if own is not None:
            intent = lookup.of_row(unit, own)
            call = _of_content(ticket, call, intent)
        else:
            salt = os.urandom(16)
            intent = unwritten(identity, dict(ticket.fingerprint(salt)), salt, now)
        call = replace(call, others=others) if others else call
        lease_at = unit.moment()
        command = step(intent.state, Event(at, Asked(), call, lease_at))[1]
        if isinstance(command, Send):
            fact: Fact = ticket.claim(command.number, call, at)
        elif isinstance(command, Note):
            fact = command.fact
        else:
            return Appended(intent, command)
        contents = {ARGUMENTS: arguments} if own is None else {}
        return append(unit, intent, Event(at, fact, call, lease_at), meta, contents, now)

    def record(
        self,
        intent: Intent,
        event: Event,
        meta: Meta,
        contents: Contents | None = None,
        candidates: Candidates | None = None,
    ) -> tuple[Intent, Command]:
        """Add one fact to an intent; return the intent after it, and what to do next: `recording`, on this thread."""
        appended = self.recording(intent, event, meta, contents, candidates).now()
        return appended.intent, appended.command

    def recording(
        self,
        intent: Intent,
        event: Event,
        meta: Meta,
        contents: Contents | None = None,
        candidates: Candidates | None = None,
    ) -> Order[Appended]:
        """Order that one fact is added to an intent; what comes of it says what to do next.

        If the intent has moved on since it was read, the fact is added to what it has become.  An event that stands
        already is not added again.  `candidates` are the objects that a read found: what they prove, and which one's
        contents are kept, is decided here, beside the claims of other intents.
        """

        def write(unit: Unit) -> tuple[Appended, Proof | None]:
            appended = self._recorded(unit, intent, event, meta, contents, candidates)
            return appended, appended.proof

        def refused(trouble: Trouble) -> LedgerUnavailable:
            return self._unavailable(trouble, "what happened could not be recorded", intent.identity)

        locks = (Hold(intent.identity.wish), *objects(event, candidates, meta.dependency))
        return Order(self._store, None, write, refused, self._alarms, locks)

    def _recorded(
        self,
        unit: Unit,
        intent: Intent,
        event: Event,
        meta: Meta,
        contents: Contents | None,
        candidates: Candidates | None,
    ) -> Appended:
        now = self._now()
        event, kept = judged(unit, intent, event, contents or {}, candidates, meta.dependency)
        alarms = claim(unit, intent, event, candidates, meta.dependency, now)
        return append(unit, intent, event, meta, kept, now, alarms=alarms)

    def noting(self, identity: Identity, event: Event, meta: Meta, contents: Contents) -> Order[Appended]:
        """Order that a fact is noted under a key of its own: of a read, which is no intent."""
        now = self._now()
        fresh = unwritten(identity, {}, os.urandom(16), now)

        def write(unit: Unit) -> tuple[Appended, Proof | None]:
            appended = append(unit, fresh, event, meta, contents, now)
            return appended, appended.proof

        return Order(self._store, None, write, partial(self._unavailable, what="a read could not be noted"))

    # Looking up --------------------------------------------------------------------------------------------------

    def load(self, intent_id: str) -> Intent | None:
        """Return an intent by its id, folded from its rows."""
        return self._read(lambda unit: lookup.by_id(unit, storable(intent_id)))

    def find(self, key: str) -> Intent | None:
        """Return the intent with this key, id, attempt id or trace (of several with one trace the newest)."""
        return self._read(lambda unit: lookup.search(unit, storable(key)))

    def attempt(self, attempt_id: str) -> tuple[Intent, int] | None:
        """Return the intent of an attempt, and the attempt's number."""
        return self.claimed(attempt_id).now()

    def claimed(self, attempt_id: str) -> Order[tuple[Intent, int] | None]:
        """Order what `attempt` returns."""
        return self._look(lambda unit: lookup.attempt(unit, storable(attempt_id)))

    def whether_moved_on(self, intent: Intent) -> Order[tuple[bool, Moment | None]]:
        """Order whether an intent has moved on since it was read, and the instant by which its lease is compared.

        The instant is `None` where that is the worker's own clock.
        """
        return self._look(lambda unit: lookup.moved_on(unit, intent))

    def _look(self, look: Callable[[Unit], T]) -> Order[T]:
        return Order(
            self._store, look, None, lambda trouble: self._unavailable(trouble, "it could not be read")
        )

    def content(self, intent_id: str, sequence: int, name: str) -> str | None:
        """Return a content of the row `sequence`, or None where none was kept, or it was redacted."""
        return self._read(lambda unit: lookup.content(unit, storable(intent_id), sequence, name))

    def arguments(self, intent_id: str) -> str:
        """Return the encoded arguments that came with the first row; where they were deleted, all are left out."""
        return self.first_arguments(intent_id).now()

    def first_arguments(self, intent_id: str) -> Order[str]:
        """Order what `arguments` returns."""
        return self._look(lambda unit: lookup.arguments(unit, storable(intent_id)))

    def value(self, intent: Intent) -> str | None:
        """Return the text of an applied intent's value, or None where none was kept.  Usually it came along."""
        if intent.value is not None or intent.state.value_at is None:
            return intent.value
        return self.content(intent.id, intent.state.value_at, VALUE)

    def open_intents(
        self, *, tool: str | None = None, namespace: str | None = None, limit: int = 1000, after: str = ""
    ) -> list[Intent]:
        """Return the intents that are unknown, the oldest first: those that began after the one with the id `after`."""

        def query(unit: Unit) -> list[Intent]:
            rows = lookup.open_ones(unit, tool=tool, namespace=namespace, limit=limit, after=after)
            return [lookup.of_row(unit, row) for row in rows]

        return self._read(query, long=True)

    def open_count(self, namespace: str) -> int:
        """Return how many intents of a namespace are unknown."""
        which = intents.c.outcome == OutcomeState.UNKNOWN.value, intents.c.namespace == storable(namespace)
        (row,) = self.select(select(func.count().label("open")).select_from(intents).where(*which))
        return int(row["open"])

    # For recovery: several may run at once, and no two look at one intent -----------------------------------------

    def take(self, intent_id: str, owner: str, seconds: float) -> bool:
        """Return whether an intent is this recovery's for so long: no other one has it."""

        def work(unit: Unit) -> tuple[bool, None]:
            found = unit.row(unit.sql.revision, {"id": intent_id})
            at = unit.moment(found[1]) if found is not None else None
            now = self._now() if at is None else at.unix  # workers' clocks differ, where there are several
            asked = {"intent_id": intent_id, "owner": owner}
            asked_until = {"until": unit.stamp(now + seconds), "now": unit.stamp(now)}
            return unit.row(unit.sql.take, asked | asked_until) is not None, None

        return self._aside(work)

    def give(self, intent_id: str, owner: str) -> None:
        """Let go of what `take` took."""

        def work(unit: Unit) -> tuple[None, None]:
            unit.run(unit.sql.give, {"intent_id": intent_id, "owner": owner})
            return None, None

        self._aside(work)

    def _aside(self, work: Callable[[Unit], tuple[T, None]]) -> T:
        try:
            return self._store.write(work)
        except Trouble as trouble:
            raise self._unavailable(trouble, "a recovery could not be noted") from (
                trouble.__cause__ or trouble
            )

    # For the audit -----------------------------------------------------------------------------------------------

    def select(self, statement: Select[Any]) -> list[dict[str, Any]]:
        """Return the rows of a SELECT over the tables (`safewrite.ledger.tables`), by the names of their columns.

        Instants come as the database holds them; names and targets as `storable` wrote them.
        """

        def query(unit: Unit) -> list[dict[str, Any]]:
            cursor = unit.execute(self._database.compiled(statement), {})
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

        return self._read(query, long=True)

    def rows(self, intent_id: str) -> list[dict[str, Any]]:
        """Return the audit rows of an intent with all their columns, in order."""
        return self._read(lambda unit: audit_rows(unit, storable(intent_id)), long=True)

    def verify(self, intent_id: str) -> tuple[Flaw, ...]:
        """Return what was altered in an intent's rows, contents or columns; nothing: they fit together.

        Others may write meanwhile.  Raises `LookupError` where there is no such intent.
        """

        def query(unit: Unit) -> tuple[Flaw, ...]:
            before, flaws = -1, tuple[Flaw, ...]()
            while True:  # several questions: what was written between two of them is no flaw
                found = unit.row(unit.sql.by_id, {"id": storable(intent_id)})
                if found is None:
                    raise LookupError(f"no intent {intent_id!r} is in the ledger")
                row = IntentRow._make(found[: len(IntentRow._fields)])
                if row.revision == before:
                    return flaws
                before, flaws = row.revision, verify(unit, row)
                if not flaws:
                    return ()

        return self._read(query, long=True)

    # The database ------------------------------------------------------------------------------------------------

    def upgrade(self) -> None:
        """Bring the tables to this version's revision, and make the triggers anew."""
        self._database.check_path()
        try:
            migrate.upgrade(self._database)
        except Trouble as trouble:
            raise self._unavailable(trouble, "it could not be upgraded") from trouble.__cause__ or trouble

    def check(self) -> Status:
        """Return what stands in the database, without changing it."""
        try:
            return migrate.check(self._database)
        except Trouble as trouble:
            raise self._unavailable(trouble, "it could not be looked at") from trouble.__cause__ or trouble

    def close(self) -> None:
        """Release every connection.  Later calls raise `LedgerUnavailable`."""
        self._store.close()

    def _alarms(self, appended: Appended) -> None:
        for alarm in appended.alarms:
            self._tell(appended.intent, alarm)

    def _read(self, query: Callable[[Unit], T], *, long: bool = False) -> T:
        try:
            return self._store.read(query, long=long)
        except Trouble as trouble:
            raise self._unavailable(trouble, "it could not be read") from trouble.__cause__ or trouble

    def _unavailable(
        self, trouble: Trouble, what: str = "", identity: Identity | None = None
    ) -> LedgerUnavailable:
        """Return what the caller is told of a database that did not do its work; `what`: which, if not a claim."""
        key, tool = (identity.key, identity.tool) if identity is not None else (None, None)
        named, said = self._database.named, _said(trouble)
        message = f"The ledger {named} is not available: {what} (`{trouble.reason}`{said}). See `safewrite db check`."
        return LedgerUnavailable(
            message if what else "", reason=trouble.reason, key=key, tool=tool, ledger=f"{named}{said}"
        )

    def _tell(self, intent: Intent, alarm: Alarm) -> None:
        if self.on_alarm is None:
            return
        try:
            self.on_alarm(intent, alarm)
        except Exception:  # the row stands; a listener's fault is not the write's
            _LOG.exception("The listener for alarms failed on `%s` of intent %s.", alarm.kind, intent.id)


def _said(trouble: Trouble) -> str:
    """Return the first line of what the database said, if it did: the others may hold values."""
    cause = getattr(trouble.__cause__, "orig", None) or trouble.__cause__
    lines = str(cause).split("\n") if cause is not None else [""]
    return f": {lines[0].strip()[:_LONGEST_SAID].rstrip('.')}" if lines[0].strip() else ""


def _of_content(ticket: Ticket, call: Call, intent: Intent) -> Call:
    """Return the call with what its content has to do with the recorded one."""
    now = ticket.fingerprint(intent.salt)
    differs = ticket.differing(intent.fingerprint, now)
    if differs:
        call = replace(call, differs=differs)
    if ticket.same_payload is not None:
        call = replace(call, same_payload=ticket.same_payload(intent.fingerprint, now))
    return call


def _other(ticket: Ticket, row: IntentRow) -> Other:
    known = lookup.fingerprint_of(row)
    same = not ticket.differing(known, ticket.fingerprint(bytes.fromhex(row.salt)))
    return Other(
        row.id, restored(row.key), OutcomeState(row.outcome), restored(row.turn) == ticket.identity.turn, same
    )


def _parsed(url: str) -> URL:
    supported(url)
    url = anchored(url)
    try:
        str(url).encode()  # no driver takes what is no Unicode
        parsed: URL = make_url(url)
    except (ArgumentError, ValueError, TypeError):
        # Without its text: it may hold a password.
        raise ConfigurationError(
            "The database URL cannot be read: look at its host, its port, and the characters of its password and path."
        ) from None
    return parsed


def _file(url: URL, busy_timeout: float, schema: str | None) -> SQLite:
    if schema is not None:
        raise ConfigurationError(f"`schema` is {schema!r}, but SQLite has no schemas. Leave it out.")
    return SQLite(url, busy_timeout)
