"""Units of work on PostgreSQL, where several write at once: each on a line of its own, held between units."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import BoundedSemaphore
from typing import Any, TypeVar

import psycopg

from safewrite.ledger.database import used
from safewrite.ledger.forks import generation
from safewrite.ledger.lines import Leg, Limited
from safewrite.ledger.places import Place
from safewrite.ledger.postgres import PostgreSQL
from safewrite.ledger.ticks import monotonic
from safewrite.ledger.units import Hold, Proof, Trouble, Unit

T = TypeVar("T")

LINES, ASIDE = 4, 2
"""The most lines that one process has: for units that are short, and for those that may read for long."""
_PATIENCE = 1.0
"""Seconds that closing waits for units beyond what they wait for each other."""


@dataclass(eq=False, slots=True)
class _Lines:
    """What one process has open.  A child of it makes its own, and never touches these."""

    places: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(LINES))
    aside: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(ASIDE))
    idle: deque[Limited] = field(default_factory=deque)
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(LINES, thread_name_prefix="safewrite-ledger")
    )
    """For those that do not wait in a thread."""
    checked: bool = False
    """The tables were seen to be those of this version."""
    proven: bool = False
    """It could be written: what fails from now on is no matter of configuration."""


class Pool:
    """The lines to one server.  `check` is called once per process, before anything else is done."""

    def __init__(
        self, database: PostgreSQL, *, wait: float, check: Callable[[PostgreSQL, Limited, float], None]
    ) -> None:
        self._database = database
        self._wait = wait
        self._check = check
        self._closed = False
        self._prepares = True
        """Until a server turns out not to keep what was prepared on a line."""
        self._processes: dict[int, _Lines] = {}

    # Writing -----------------------------------------------------------------------------------------------------

    def write(self, work: Callable[[Unit], tuple[T, Proof | None]], locks: tuple[Hold, ...] = ()) -> T:
        """Run a unit in one durable transaction.  It may be run again, so it does nothing but database work.

        Again: for the loser of a race, who finds the winner's rows then, and where the connection was lost and what
        was to be committed is not there.  Raises `Trouble` with nothing written, or whatever the unit raises,
        likewise.
        """
        own, until, eager, lost = self._own(), monotonic() + self._wait, False, False
        opening = self._database.opening(locks)
        while True:
            leg: Leg | None = None
            done: tuple[T, Proof | None] | None = None
            try:
                with self._line(own, own.places, writes=True) as line:
                    leg = self._leg(line, opening, eager)
                    done = work(leg)
                    if leg.finish():
                        return done[0]
                eager = True  # it was taken to move the intent on, and did not
            except self._database.errors as error:
                reason = self._database.reason(error)
                again = self._database.beaten(error) or self._forgotten(leg, error)
                if reason == "ledger_unreachable" and leg is not None:
                    if done is not None and leg.committing and self._landed(own, opening, done[1]):
                        return done[0]
                    lost, again = True, not lost
                if not again or monotonic() >= until:
                    raise Trouble(reason) from error

    def submit(self, place: Place) -> None:
        """Have a place carried out without waiting for it: by threads of the ledger's own, one for each line."""
        self._own().threads.submit(self._carry_out, place)

    def _carry_out(self, place: Place) -> None:
        try:
            found = self.read(place.look) if place.look is not None else None
            if found is None and place.write is not None:
                found = self.write(place.write, place.locks)
        except Exception as error:
            place.end(error=error)
        else:
            place.end(found)

    def _landed(self, own: _Lines, opening: str, proof: Proof | None) -> bool:
        """Whether a unit stands although its connection was lost while it was committed.

        Behind the same locks: whatever the server was still doing of it is over then.
        """
        if proof is None:
            return True
        try:
            with self._line(own, own.places) as line:
                leg = self._leg(line, opening, eager=True)
                found = leg.row(leg.sql.hash, {"intent": proof.intent, "sequence": proof.sequence})
        except (psycopg.Error, Trouble):
            return False
        return found is not None and found[0] == proof.hash

    # Reading -----------------------------------------------------------------------------------------------------

    def read(self, query: Callable[[Unit], T], *, long: bool = False) -> T:
        """Run a unit that only reads.  Raises `Trouble`.

        A `long` one has lines of its own, and the server holds it to its limit; a short one is given up from here.
        """
        own = self._own()
        opening = self._database.opening(()) if long else ""
        while True:
            leg: Leg | None = None
            try:
                with self._line(own, own.aside if long else own.places) as line:
                    leg = self._leg(line, opening, eager=True)
                    return query(leg)
            except self._database.errors as error:
                if not self._forgotten(leg, error):
                    raise Trouble(self._database.reason(error)) from error

    # Lines -------------------------------------------------------------------------------------------------------

    def _leg(self, line: Limited, opening: str, eager: bool) -> Leg:
        # psycopg takes literal texts only; ours are compiled once, from the statements.
        connection: Any = line
        sql, stamp = self._database.sql, self._database.stamp
        return Leg(connection, sql, stamp, line, opening, eager, prepared=self._prepares)

    def _forgotten(self, leg: Leg | None, error: BaseException) -> bool:
        """Whether a leg failed for what it had prepared, behind a pooler for instance: from now on nothing is."""
        found = leg is not None and leg.prepared and getattr(error, "sqlstate", None) in ("26000", "0A000")
        self._prepares = self._prepares and not found
        return found

    def _own(self) -> _Lines:
        """Return what this process has open.  What a parent has stays referred to here, and is never closed here."""
        if self._closed:
            raise Trouble("ledger_closed")
        process = generation()
        return self._processes.get(process) or self._processes.setdefault(process, _Lines())

    @contextmanager
    def _line(self, own: _Lines, places: BoundedSemaphore, *, writes: bool = False) -> Iterator[Limited]:
        """Lend a line.  It is kept for the next unit if it is in no transaction, or can be got out of it."""
        if not places.acquire(timeout=self._wait):
            raise Trouble("ledger_busy")
        line: Limited | None = None
        try:
            line = _held(own) or used(self._database, lambda: self._open(own), proven=own.proven)
            if writes and not own.proven:
                ready = line
                used(self._database, lambda: self._database.usable(ready), proven=own.proven)
                own.proven = True
            yield line
            _leave(line)
        except BaseException as error:
            # A server that turned into a replica is asked for anew, under its name.
            if line is not None and self._database.reason(error) != "ledger_read_only":
                _leave(line)
            elif line is not None:
                line.close()
            raise
        finally:
            if line is not None and line.settled:
                own.idle.append(line)
            elif line is not None:
                line.close()
            places.release()
            if self._closed:
                _drain(own)

    def _open(self, own: _Lines) -> Limited:
        if self._closed:
            raise Trouble("ledger_closed")
        line = self._database.connect()
        try:
            if not own.checked:
                self._check(self._database, line, self._wait)
                own.checked = True
            if self._prepares:
                self._prepares = self._database.prepare(line)
        except BaseException:
            line.close()
            raise
        return line

    # The end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every line of this process.  Units that run are waited for; later ones raise `Trouble`."""
        own, self._closed = self._processes.get(generation()), True
        if own is None:
            return
        until = monotonic() + self._wait + _PATIENCE
        for places, count in ((own.places, LINES), (own.aside, ASIDE)):
            for _ in range(count):
                # A unit that never ends keeps its line: it is closed when it comes back, or with the process.
                places.acquire(timeout=max(0.0, until - monotonic()))
        _drain(own)
        own.threads.shutdown(wait=False)


def _held(own: _Lines) -> Limited | None:
    """Return the line that was used last, of those that the server still holds."""
    while True:
        try:
            line = own.idle.pop()
        except IndexError:
            return None
        if line.alive:
            return line
        line.close()


def _leave(line: Limited) -> None:
    """Get a line out of its transaction, if it is in one and nothing is under way."""
    if not line.settled and not line.closed and not line.busy:
        with contextlib.suppress(Exception):
            line.execute("ROLLBACK")


def _drain(own: _Lines) -> None:
    while own.idle:
        with contextlib.suppress(IndexError):
            own.idle.pop().close()
