"""Units of work on the connections to one SQLite database: one writes at a time, many read.

Those that write wait in a queue for the one connection that does: whoever finds it free leads, carries out all that
wait in one transaction with one commit, and then leaves the lead to the next, so that only one of a process meets the
other processes.  Reading uses it too while it is free, for its cache is warm; else one of a few that only read.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import deque
from collections.abc import Callable
from random import uniform
from threading import Thread, get_ident
from typing import Any, TypeVar

from safewrite.ledger.forks import tell
from safewrite.ledger.keeper import PATIENCE, Connections, Keeper
from safewrite.ledger.places import Place
from safewrite.ledger.sqlite import SQLite
from safewrite.ledger.ticks import monotonic
from safewrite.ledger.units import Hold, Proof, Trouble, Unit

T = TypeVar("T")

LONGEST_WAIT = 86_400.0
"""Seconds that any wait is cut to: drivers count milliseconds in 32 bits."""

_PAUSE = (0.0002, 0.002)
"""Seconds between two looks whether another process is done: at least and at most."""

_POLL = 0.05
"""Seconds after which who waits looks by itself whether anybody leads: an interrupt can take a call with it."""

_IDLE = 5.0
"""Seconds without work after which the ledger's own thread ends."""


class Store:
    """Runs units on one database.  `check` is called once per process, before anything else is done."""

    def __init__(self, database: SQLite, *, wait: float, check: Callable[[SQLite, Any, float], None]) -> None:
        self._database = database
        self._wait = min(wait, LONGEST_WAIT)
        self._keeper = Keeper(database, wait=self._wait, check=check)
        self._own = self._keeper.own
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

    def _lead(self, own: Connections, me: int) -> bool:
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

    def _hand_over(self, own: Connections) -> None:
        """Tell the first that waits, if any, that nobody leads."""
        if own.queue:
            first = next((p for p in tuple(own.queue) if not (p.done or p.withdrawn)), None)
            if first is not None and not first.ring():
                self._call(own)

    def _leave(self, own: Connections, place: Place) -> None:
        """Give up waiting.  A unit that runs already is waited for: it stands, or it never will."""
        try:
            if not place.withdraw() and not place.done:
                own.lock.acquire(timeout=self._wait + PATIENCE)
        finally:
            try:  # noqa: SIM105
                own.lock.release()
            except RuntimeError:
                pass
        self._hand_over(own)

    # Leading: the lock is held -----------------------------------------------------------------------------------

    def _carry_out(self, own: Connections) -> None:
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

    def _looked(self, own: Connections, place: Place) -> bool:
        """Whether a look was enough for a place, which then is done."""
        if place.look is None:
            return False
        try:
            try:
                found = self._keeper.asked(own, self._keeper.writer(own), place.look)
            except Trouble as trouble:
                if trouble.reason != "ledger_busy" or self._database.memory:
                    raise
                found = self._keeper.aside(own, place.look)
        except Exception as error:
            place.end(error=error)
            return True
        if found is None and place.write is not None:
            return False
        place.end(found)
        return True

    def _together(self, own: Connections, group: list[Place]) -> list[list[Place]]:
        """Run units in one transaction.  Return what is to be run yet, in new groups: nothing if this one is done.

        Where a unit fails, those before it, itself, and those after it are run apart: it fails by itself alone.
        """
        at, until = 0, group[0].until
        try:
            held = self._keeper.ready(own, until)
        except Exception as error:
            for place in group:
                place.end(error=error)
            return []
        try:
            self._begin(held.raw, until)
            unit = self._keeper.unit(held)
            for place in group:
                place.run(unit)
                at += 1
            self._commit(held.raw, until)
        except BaseException as error:
            ours, whole = isinstance(error, self._database.errors), at == len(group)
            self._keeper.undo(own, held, certain=not (ours and whole))
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

    def _landed(self, own: Connections, group: list[Place]) -> bool:
        """Whether units stand although their commit ended with an error: look for the newest row, on another line."""
        proof = next((place.proof for place in reversed(group) if place.proof is not None), None)
        if proof is None:
            return True
        asked = {"intent": proof.intent, "sequence": proof.sequence}
        try:
            found = self._keeper.asked(
                own, self._keeper.writer(own), lambda unit: unit.row(unit.sql.hash, asked)
            )
        except Trouble:
            return False
        return found is not None and found[0] == proof.hash

    # Leading for those who do not wait ---------------------------------------------------------------------------

    def _call(self, own: Connections) -> None:
        """Wake the thread that leads for places in which no thread waits; start it if there is none."""
        with contextlib.suppress(RuntimeError):  # it has been called already
            own.bell.release()
        if own.server is None:
            about = (weakref.ref(self), weakref.ref(own), own.bell)
            own.server = Thread(target=_serve, args=about, name="safewrite-ledger", daemon=True)
            own.server.start()

    def _served(self, own: Connections, *, called: bool) -> float:
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
            return self._keeper.aside(own, query)
        try:
            if own.lock.acquire(timeout=self._wait) if must else own.lock.acquire(blocking=False):
                own.thread = me
                return self._keeper.asked(own, self._keeper.writer(own), query)
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
        return self._keeper.aside(own, query)

    # Forks, and the end ------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Close every connection, and open none until the fork is over; units that run are waited for."""
        self._keeper.before_fork()

    def after_fork(self) -> None:
        """Let connections be opened again, in the parent: the child has its own."""
        self._keeper.after_fork(self._hand_over)

    def close(self) -> None:
        """Close every connection of this process.  Units that run are waited for; later ones raise `Trouble`."""
        self._keeper.close(self._hand_over)


def _serve(store: weakref.ref[Store], own: weakref.ref[Connections], bell: Any) -> None:
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
