"""What a process has open of a SQLite ledger: opened at need, shut around a fork, closed at the end.

The connections are the ledger's own.  One is held for writing, behind a lock; the others only read.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock, RLock, Thread, get_ident
from typing import Any, TypeVar

from safewrite.ledger.database import used
from safewrite.ledger.forks import generation
from safewrite.ledger.places import Place
from safewrite.ledger.sqlite import SQLite
from safewrite.ledger.ticks import monotonic
from safewrite.ledger.units import Trouble, Unit

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds that closing waits for a unit beyond what units wait for each other."""

_PAUSE = 0.0002
"""Seconds between two looks whether those that read are done."""

_READERS = 8
"""Connections for reading that are kept."""


@dataclass(eq=False, slots=True)
class Held:
    """A connection: as the pool knows it, and as the driver does."""

    pooled: Any
    raw: Any
    durable: bool = False
    """It was made ready for writing."""

    def close(self) -> None:
        """Close it, if it can be."""
        with contextlib.suppress(Exception):  # it is given up, whatever state it is in
            self.pooled.close()


@dataclass(eq=False)  # no slots: the ledger's own thread refers to it weakly
class Connections:
    """What one process has open.  A child of it makes its own, and never touches these."""

    lock: Any = field(default_factory=RLock)
    """Held around the connection that writes.  Reentrant only because such a lock knows its owner."""
    thread: int = 0
    """The thread that holds it, by its identifier."""
    writer: Held | None = None
    readers: deque[Held] = field(default_factory=deque)
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


class Keeper:
    """Opens and closes the connections to one database; what each process has open is its own.

    `check` is called once per process, before anything else is done.  Waits are in seconds.
    """

    def __init__(self, database: SQLite, *, wait: float, check: Callable[[SQLite, Any, float], None]) -> None:
        self._database = database
        self._wait = wait
        self._check = check
        self._closed = False
        self._first = generation()
        self._processes: dict[int, Connections] = {}

    # Opening -----------------------------------------------------------------------------------------------------

    def own(self) -> Connections:
        """Return what this process has open.  What a parent has stays referred to here, and is never closed here."""
        if self._closed:
            raise Trouble("ledger_closed")
        process = generation()
        if self._database.memory and process != self._first:
            raise Trouble("ledger_forked")
        return self._processes.get(process) or self._processes.setdefault(process, Connections())

    def writer(self, own: Connections) -> Held:
        """Return the connection that writes, opened and looked over if need be.  The lock is held."""
        if self._closed:
            raise Trouble("ledger_closed")
        if own.writer is None:
            own.writer = self._open(own)
        if own.writer.raw.in_transaction:  # an interrupt came while one was being undone
            self.undo(own, own.writer, certain=False)
            return self.writer(own)
        if not own.checked:
            self._check(self._database, own.writer.raw, self._wait)
            own.checked = True
        return own.writer

    def _open(self, own: Connections) -> Held:
        pooled = used(self._database, self._database.connect, proven=own.proven)
        return Held(pooled, pooled.driver_connection)

    def ready(self, own: Connections, until: float) -> Held:
        """Return the connection that writes, ready for it."""
        held = self.writer(own)
        if not held.durable:
            used(self._database, lambda: self._database.make_durable(held.raw, until), proven=own.proven)
            held.durable = own.proven = True
        return held

    def undo(self, own: Connections, held: Held, *, certain: bool) -> None:
        """Roll back; give the connection up where that fails, or where it may say what is not on the disk."""
        try:
            if held.raw.in_transaction:
                held.raw.execute("ROLLBACK")
        except self._database.errors:
            certain = False
        if not certain and not self._database.memory:
            own.writer = None
            held.close()

    # Reading -----------------------------------------------------------------------------------------------------

    def unit(self, held: Held) -> Unit:
        """Return what a unit does its work with."""
        return Unit(held.raw, self._database.sql, self._database.stamp)

    def asked(self, own: Connections, held: Held, query: Callable[[Unit], T]) -> T:
        """Return what a unit reads on a connection whose lock is held.  Raises `Trouble`."""
        try:
            return query(self.unit(held))
        except self._database.errors as error:
            self.undo(own, held, certain=False)
            raise Trouble(self._database.reason(error)) from error

    def aside(self, own: Connections, query: Callable[[Unit], T]) -> T:
        """Return what a unit reads on a connection that only reads.  Raises `Trouble`."""
        try:
            with own.gate:
                own.aside.append(get_ident())
            return self._read_aside(own, query)
        finally:
            with contextlib.suppress(ValueError):  # an interrupt came before it
                own.aside.remove(get_ident())

    def _read_aside(self, own: Connections, query: Callable[[Unit], T]) -> T:
        try:
            held = own.readers.pop()
        except IndexError:
            held = self._open(own)
        try:
            result = query(self.unit(held))
        except BaseException as error:
            held.close()
            if isinstance(error, self._database.errors):
                raise Trouble(self._database.reason(error)) from error
            raise
        own.readers.append(held)
        if self._closed or len(own.readers) > _READERS:
            self._drain(own, 0 if self._closed else _READERS)
        return result

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
        until = monotonic() + self._wait + PATIENCE
        own.gate.acquire(timeout=self._wait + PATIENCE)
        own.forking = True
        if own.lock.acquire(timeout=max(0.0, until - monotonic())):
            held, own.writer = own.writer, None
            if held is not None:
                held.close()
        while own.aside and monotonic() < until:
            time.sleep(_PAUSE)
        self._drain(own, 0)

    def after_fork(self, hand_over: Callable[[Connections], None]) -> None:
        """Let connections be opened again, in the parent: the child has its own."""
        own = self._processes.get(generation())
        if own is None or not own.forking:
            return
        own.forking = False
        for lock in (own.lock, own.gate):
            with contextlib.suppress(RuntimeError):  # it could not be had in time
                lock.release()
        hand_over(own)

    # The end -----------------------------------------------------------------------------------------------------

    def close(self, hand_over: Callable[[Connections], None]) -> None:
        """Close every connection of this process.  Units that run are waited for; later ones raise `Trouble`."""
        own = self._processes.get(generation())
        if own is None:
            self._closed = True
            return
        self._closed = True
        held = None
        try:
            # A unit that never ends keeps its connection: it is closed with the process.
            if own.lock.acquire(timeout=self._wait + PATIENCE):
                held, own.writer = own.writer, None
        finally:
            try:
                own.lock.release()
            except RuntimeError:
                pass
            else:
                hand_over(own)
        if held is not None:
            held.close()
        self._drain(own, 0)
        self._database.engine.dispose()

    def _drain(self, own: Connections, keep: int) -> None:
        while len(own.readers) > keep:
            with contextlib.suppress(IndexError):
                own.readers.popleft().close()
