"""Connections, and the units of work that run on them: one writes at a time, many read.

The connections are the ledger's own.  One is held for writing, behind a lock and a queue: whoever finds it free leads,
carries out all that wait in one transaction with one commit, and then leaves the lead to the next, so that only one
of a process meets the other processes.  Reading uses it too while it is free, for its cache is warm; else one of a
few that only read.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import uniform
from threading import Lock, RLock, Thread, get_ident
from typing import Any, TypeVar

from safewrite.errors import ConfigurationError
from safewrite.ledger.forks import generation, tell
from safewrite.ledger.places import Place
from safewrite.ledger.sqlite import SQLite
from safewrite.ledger.ticks import monotonic
from safewrite.ledger.units import Hold, Proof, Trouble, Unit

T = TypeVar("T")

LONGEST_WAIT = 86_400.0
"""Seconds that any wait is cut to: drivers count milliseconds in 32 bits."""

_PATIENCE = 1.0
"""Seconds that closing waits for a unit beyond what units wait for each other."""

_PAUSE = (0.0002, 0.002)
"""Seconds between two looks whether another process is done: at least and at most."""

_READERS = 8
"""Connections for reading that are kept."""

_POLL = 0.05
"""Seconds after which who waits looks by itself whether anybody leads: an interrupt can take a call with it."""

_IDLE = 5.0
"""Seconds without work after which the ledger's own thread ends."""


@dataclass(eq=False, slots=True)
class _Held:
    """A connection: as the pool knows it, and as the driver does."""

    pooled: Any
    raw: Any
    durable: bool = False
    """It was made ready for writing."""

    def close(self) -> None:
        with contextlib.suppress(Exception):  # it is given up, whatever state it is in
            self.pooled.close()


@dataclass(eq=False)  # no slots: the ledger's own thread refers to it weakly
class _Connections:
    """What one process has open.  A child of it makes its own, and never touches these."""

    lock: Any = field(default_factory=RLock)
    """Held around the connection that writes.  Reentrant only because such a lock knows its owner."""
    thread: int = 0
    """The thread that holds it, by its identifier."""
    writer: _Held | None = None
    readers: deque[_Held] = field(default_factory=deque)
    checked: bool = False
    """The tables were seen to be those of this version."""
    proven: bool = False
    """It could be written: what fails from now on is no matter of configuration."""
    queue: deque[Place] = field(default_factory=deque)
    """What is to be written, in the order in which it came."""
    bell: Any = field(default_factory=Lock)
    """Released to call the thread of the ledger's own, if there is one."""
    server: Thread | None = None
    gate: Any = field(default_factory=RLock)
    """Passed by those that read aside, and shut around a fork."""
    aside: deque[int] = field(default_factory=deque)
    """The threads that read aside."""
    forking: bool = False


class Store:
    """The connections to one database.  `check` is called once per process, before anything else is done."""

    def __init__(self, database: SQLite, *, wait: float, check: Callable[[SQLite, Any, float], None]) -> None:
        self._database = database
        self._wait = min(wait, LONGEST_WAIT)
        self._check = check
        self._closed = False
        self._first = generation()
        self._processes: dict[int, _Connections] = {}
        if not database.memory:
            tell(self)

    # Writing -----------------------------------------------------------------------------------------------------

    def write(self, work: Callable[[Unit], tuple[T, Proof | None]], locks: tuple[Hold, ...] = ()) -> T:  # noqa: ARG002
        """Run a unit in one durable transaction.  It may be run again, so it does nothing but database work.

        Units that come together share a transaction and its commit: whoever finds the connection free leads, and
        carries out all that wait.  Nobody else writes meanwhile: no `locks` are needed.  Raises `Trouble` with
        nothing written, or whatever the unit raises, likewise.
        """
        own, me = self._own(), get_ident()
        if own.thread == me:
            raise Trouble("ledger_nested")
        place = Place(work, until=monotonic() + self._wait)
        try:
            own.queue.append(place)
            while not place.done:
                if self._lead(own, me):
                    continue
                left = place.until - monotonic()
                if left <= 0.0 and place.withdraw():
                    raise Trouble("ledger_busy")
                place.bell.acquire(timeout=min(left, _POLL) if left > 0.0 else _POLL)
        except BaseException:
            self._leave(own, place)
            raise
        result: T = place.result()
        return result

    def submit(self, place: Place) -> None:
        """Have a place carried out without waiting for it: by whoever leads, or by a thread of the ledger's own."""
        own = self._own()
        place.until = monotonic() + self._wait
        own.queue.append(place)
        self._call(own)

    def _lead(self, own: _Connections, me: int) -> bool:
        """Carry out all that waits; return False, with nothing done, where somebody else does."""
        try:
            if not own.lock.acquire(blocking=False):
                return False
            own.thread = me
            self._carry_out(own)
            return True
        finally:
            # An interrupt can strike between taking the lock and knowing it, so what is not held is let go as well;
            # and nothing is called before that, for an interrupt would come out of the call.
            if own.thread == me:
                own.thread = 0
            try:
                own.lock.release()
            except RuntimeError:
                pass
            else:
                self._hand_over(own)

    def _hand_over(self, own: _Connections) -> None:
        """Tell the first that waits, if any, that nobody leads."""
        if own.queue:
            first = next((p for p in tuple(own.queue) if not (p.done or p.withdrawn)), None)
            if first is not None and not first.ring():
                self._call(own)

    def _leave(self, own: _Connections, place: Place) -> None:
        """Give up waiting.  A unit that runs already is waited for: it stands, or it never will."""
        try:
            if not place.withdraw() and not place.done:
                own.lock.acquire(timeout=self._wait + _PATIENCE)
        finally:
            try:  # noqa: SIM105
                own.lock.release()
            except RuntimeError:
                pass
        self._hand_over(own)

    # Leading: the lock is held -----------------------------------------------------------------------------------

    def _carry_out(self, own: _Connections) -> None:
        """Carry out all that waits, in its order, in as few transactions as it takes.

        Places stay in the queue until they are done, so that an interrupt here loses none: whoever leads next begins
        anew, and a unit knows what of it stands.
        """
        waiting = [place for place in tuple(own.queue) if place.take()]
        try:
            groups = deque([[place for place in waiting if not self._looked(own, place)]])
            while groups:
                if group := groups.popleft():
                    groups.extendleft(reversed(self._together(own, group)))
        finally:
            for place in waiting:
                place.taken = False
            while own.queue and own.queue[0].done:
                own.queue.popleft()

    def _looked(self, own: _Connections, place: Place) -> bool:
        """Whether a look was enough for a place, which then is done."""
        if place.look is None:
            return False
        try:
            try:
                found = self._asked(own, self._writer(own), place.look)
            except Trouble as trouble:
                if trouble.reason != "ledger_busy" or self._database.memory:
                    raise
                found = self._aside(own, place.look)
        except Exception as error:
            place.end(error=error)
            return True
        if found is None and place.write is not None:
            return False
        place.end(found)
        return True

    def _together(self, own: _Connections, group: list[Place]) -> list[list[Place]]:
        """Run units in one transaction.  Return what is to be run yet, in new groups: nothing if this one is done.

        Where a unit fails, those before it, itself, and those after it are run apart: it fails by itself alone.
        """
        at, until = 0, group[0].until
        try:
            held = self._ready(own, until)
        except Exception as error:
            for place in group:
                place.end(error=error)
            return []
        try:
            self._begin(held.raw, until)
            unit = self._unit(held)
            for place in group:
                place.run(unit)
                at += 1
            self._commit(held.raw, until)
        except BaseException as error:
            ours, whole = isinstance(error, self._database.errors), at == len(group)
            self._undo(own, held, certain=not (ours and whole))
            if not isinstance(error, Exception):
                raise
            if not (ours and whole and self._landed(own, group)):
                if len(group) > 1:
                    return [[place] for place in group] if whole else _parted(group, at)
                group[0].end(error=self._told(error))
                return []
        for place in group:
            place.end(place.value)
        return []

    def _ready(self, own: _Connections, until: float) -> _Held:
        """Return the connection that writes, ready for it."""
        held = self._writer(own)
        if not held.durable:
            self._usable(own, lambda: self._database.make_durable(held.raw, until))
            held.durable = own.proven = True
        return held

    def _told(self, error: Exception) -> Exception:
        """Return an error as the unit's caller is told of it."""
        if not isinstance(error, self._database.errors):
            return error
        trouble = Trouble(self._database.reason(error))
        trouble.__cause__ = error
        return trouble

    def _begin(self, raw: Any, until: float) -> None:
        """Begin a transaction that writes, when no other process is in one.

        Short pauses of chance length make it fair: a database's own waiting sleeps longer the longer it has waited,
        so that under load the unlucky one starves.
        """
        while True:
            try:
                raw.execute(self._database.begin)
                return
            except self._database.errors as error:
                if self._database.reason(error) != "ledger_busy" or monotonic() >= until:
                    raise
                time.sleep(uniform(*_PAUSE))  # noqa: S311

    def _commit(self, raw: Any, until: float) -> None:
        while True:
            try:
                raw.execute("COMMIT")
                return
            except self._database.errors as error:
                if not self._database.may_repeat(error, raw) or monotonic() >= until:
                    raise
                time.sleep(uniform(*_PAUSE))  # noqa: S311

    def _undo(self, own: _Connections, held: _Held, *, certain: bool) -> None:
        """Roll back; give the connection up where that fails, or where it may say what is not on the disk."""
        try:
            if held.raw.in_transaction:
                held.raw.execute("ROLLBACK")
        except self._database.errors:
            certain = False
        if not certain and not self._database.memory:
            own.writer = None
            held.close()

    def _landed(self, own: _Connections, group: list[Place]) -> bool:
        """Whether units stand although their commit ended with an error: look for the newest row, on another line."""
        proof = next((place.proof for place in reversed(group) if place.proof is not None), None)
        if proof is None:
            return True
        asked = {"intent": proof.intent, "sequence": proof.sequence}
        try:
            found = self._asked(own, self._writer(own), lambda unit: unit.row(unit.sql.hash, asked))
        except Trouble:
            return False
        return found is not None and found[0] == proof.hash

    # Leading for those who do not wait ---------------------------------------------------------------------------

    def _call(self, own: _Connections) -> None:
        """Wake the thread that leads for places in which no thread waits; start it if there is none."""
        with contextlib.suppress(RuntimeError):  # it has been called already
            own.bell.release()
        if own.server is None:
            about = (weakref.ref(self), weakref.ref(own), own.bell)
            own.server = Thread(target=_serve, args=about, name="safewrite-ledger", daemon=True)
            own.server.start()

    def _served(self, own: _Connections, *, called: bool) -> float:
        """Lead, on the ledger's own thread, if something waits; return for how long to wait for a call, 0.0 to end."""
        if own.queue and not self._lead(own, get_ident()):
            now = monotonic()
            for place in tuple(own.queue):
                if place.told is not None and place.until < now and place.withdraw():
                    place.end(error=Trouble("ledger_busy"))
        if not called and not own.queue:
            own.server = None
            return _POLL if own.queue else 0.0  # did something come between the two looks?
        return _POLL if own.queue else _IDLE

    # Reading -----------------------------------------------------------------------------------------------------

    def read(self, query: Callable[[Unit], T], *, long: bool = False) -> T:
        """Run a unit that only reads; `long` keeps it off the connection that writes.  Raises `Trouble`."""
        own, me = self._own(), get_ident()
        must = not own.checked or self._database.memory
        if not must and (long or own.thread == me):
            return self._aside(own, query)
        try:
            if own.lock.acquire(timeout=self._wait) if must else own.lock.acquire(blocking=False):
                own.thread = me
                return self._asked(own, self._writer(own), query)
        except Trouble as trouble:
            # The connection that writes does not wait by itself; those that only read do.
            if trouble.reason != "ledger_busy" or must:
                raise
        finally:
            if own.thread == me:
                own.thread = 0
            try:
                own.lock.release()
            except RuntimeError:
                pass
            else:
                self._hand_over(own)
        if must:
            raise Trouble("ledger_busy")
        return self._aside(own, query)

    def _asked(self, own: _Connections, held: _Held, query: Callable[[Unit], T]) -> T:
        try:
            return query(self._unit(held))
        except self._database.errors as error:
            self._undo(own, held, certain=False)
            raise Trouble(self._database.reason(error)) from error

    def _aside(self, own: _Connections, query: Callable[[Unit], T]) -> T:
        try:
            with own.gate:
                own.aside.append(get_ident())
            return self._read_aside(own, query)
        finally:
            with contextlib.suppress(ValueError):  # an interrupt came before it
                own.aside.remove(get_ident())

    def _read_aside(self, own: _Connections, query: Callable[[Unit], T]) -> T:
        try:
            held = own.readers.pop()
        except IndexError:
            held = self._open(own)
        try:
            result = query(self._unit(held))
        except BaseException as error:
            held.close()
            if isinstance(error, self._database.errors):
                raise Trouble(self._database.reason(error)) from error
            raise
        own.readers.append(held)
        if self._closed or len(own.readers) > _READERS:
            self._drain(own, 0 if self._closed else _READERS)
        return result

    # Connections -------------------------------------------------------------------------------------------------

    def _own(self) -> _Connections:
        """Return what this process has open.  What a parent has stays referred to here, and is never closed here."""
        if self._closed:
            raise Trouble("ledger_closed")
        process = generation()
        if self._database.memory and process != self._first:
            raise Trouble("ledger_forked")
        return self._processes.get(process) or self._processes.setdefault(process, _Connections())

    def _writer(self, own: _Connections) -> _Held:
        """Return the connection that writes, opened and looked over if need be.  The lock is held."""
        if self._closed:
            raise Trouble("ledger_closed")
        if own.writer is None:
            own.writer = self._open(own)
        if own.writer.raw.in_transaction:  # an interrupt came while one was being undone
            self._undo(own, own.writer, certain=False)
            return self._writer(own)
        if not own.checked:
            self._check(self._database, own.writer.raw, self._wait)
            own.checked = True
        return own.writer

    def _open(self, own: _Connections) -> _Held:
        pooled = self._usable(own, self._database.connect)
        return _Held(pooled, pooled.driver_connection)

    def _usable(self, own: _Connections, step: Callable[[], T]) -> T:
        """Take a step towards using the database: that it cannot be used is told so only before it ever was."""
        try:
            return step()
        except ConfigurationError as error:
            if not own.proven:
                raise
            cause = error.__cause__ or error
            raise Trouble(self._database.reason(cause)) from cause

    def _unit(self, held: _Held) -> Unit:
        return Unit(held.raw, self._database.sql, self._database.stamp)

    # Forks -------------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Close every connection, and open none until the fork is over; units that run are waited for.

        SQLite keeps by file, for the whole process, which locks are held.  A child that finds the file open takes
        its parent's locks for its own: it waits for one that nobody lets go of, and writes on where the parent, as
        the last that it knows of, has taken the log away.
        """
        own = self._processes.get(generation())
        if own is None or own.thread == get_ident():
            return
        until = monotonic() + self._wait + _PATIENCE
        own.gate.acquire(timeout=self._wait + _PATIENCE)
        own.forking = True
        if own.lock.acquire(timeout=max(0.0, until - monotonic())):
            held, own.writer = own.writer, None
            if held is not None:
                held.close()
        while own.aside and monotonic() < until:
            time.sleep(_PAUSE[0])
        self._drain(own, 0)

    def after_fork(self) -> None:
        """Let connections be opened again, in the parent: the child has its own."""
        own = self._processes.get(generation())
        if own is None or not own.forking:
            return
        own.forking = False
        for lock in (own.lock, own.gate):
            with contextlib.suppress(RuntimeError):  # it could not be had in time
                lock.release()
        self._hand_over(own)

    # The end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every connection of this process.  Units that run are waited for; later ones raise `Trouble`."""
        own = self._processes.get(generation())
        if own is None:
            self._closed = True
            return
        self._closed = True
        held = None
        try:
            # A unit that never ends keeps its connection: it is closed with the process.
            if own.lock.acquire(timeout=self._wait + _PATIENCE):
                held, own.writer = own.writer, None
        finally:
            try:
                own.lock.release()
            except RuntimeError:
                pass
            else:
                self._hand_over(own)
        if held is not None:
            held.close()
        self._drain(own, 0)
        self._database.engine.dispose()

    def _drain(self, own: _Connections, keep: int) -> None:
        while len(own.readers) > keep:
            with contextlib.suppress(IndexError):
                own.readers.popleft().close()


def _serve(store: weakref.ref[Store], own: weakref.ref[_Connections], bell: Any) -> None:
    """Be a ledger's own thread.  While it waits it holds nothing: a ledger that nobody holds is closed by its end."""
    wait = _IDLE
    while wait:
        called = bell.acquire(timeout=wait)
        ledger, connections = store(), own()
        if ledger is None or connections is None:
            return
        wait = ledger._served(connections, called=called)
        del ledger, connections


def _parted(group: list[Place], at: int) -> list[list[Place]]:
    """Return a group as three: what comes before the place that failed, itself, and what comes after it."""
    return [part for part in (group[:at], [group[at]], group[at + 1 :]) if part]
