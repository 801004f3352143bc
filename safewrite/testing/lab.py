"""A place for tests of crashes and races: a fresh ledger, and processes that die where the test says."""

from __future__ import annotations

import contextvars
import copy
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Literal, Self, TypeVar, cast

from safewrite.calls import CallOptions, Guard
from safewrite.core.commands import Run
from safewrite.core.events import Call, Claimed, Ended, Event, Fact, GaveUp, ReadEnded, Withheld
from safewrite.guard import SafeWrite
from safewrite.ledger.append import Appended
from safewrite.ledger.model import Intent
from safewrite.ledger.orders import Order
from safewrite.ledger.places import Place
from safewrite.ledger.sql import Ledger
from safewrite.shell import process
from safewrite.shell.debts import Debts
from safewrite.shell.threads import Pool
from safewrite.testing.clock import ManualClock
from safewrite.testing.dependency import ScriptedDependency
from safewrite.wrap import Write, wrapper

T = TypeVar("T")
At = Literal["before_claim", "after_claim", "after_send", "after_record", "after_read"]
_POINTS: Final[dict[str, tuple[tuple[type[Fact], ...], bool]]] = {
    "before_claim": ((Claimed,), False),
    "after_claim": ((Claimed,), True),
    "after_send": ((Ended, GaveUp), False),
    "after_record": ((Ended, GaveUp), True),
    "after_read": ((ReadEnded,), False),
}
"""Where a process can die -> the fact that is about to be recorded, and whether it still is."""
_graves = itertools.count(1 << 22)  # no kernel gives such process ids


class Crashed(SystemExit):
    """The process died here.  Nothing in it runs on: like SystemExit, it passes every `except Exception`."""


class Lab:
    """A fresh ledger at `url`, a `clock` that moves by itself, a `dependency` in this process, and crashes.

    Hand over the application's own `SafeWrite` with `use`, or take `lab.sw`.
    """

    def __init__(self, url: str, clock: ManualClock, dependency: ScriptedDependency) -> None:
        self.url, self.clock, self.dependency = url, clock, dependency
        self._used: list[SafeWrite] = []
        self._pools: list[Pool] = []
        self._ending = ExitStack()
        self.crashing: Crash | None = None
        self._sw: SafeWrite | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        # What still hangs ends now, and is heard of, or not, before the ledgers are put back.
        self.dependency.hang_up()
        for pool, _ in itertools.product(self._pools, range(200)):
            if pool.busy:
                time.sleep(0.005)
        self.resume()
        self._ending.close()

    @property
    def sw(self) -> SafeWrite:
        """A SafeWrite of this test alone: for tools that the test declares."""
        if self._sw is None:
            self._sw = self.use(SafeWrite(self.url))
        return self._sw

    def use(self, sw: SafeWrite) -> SafeWrite:
        """Lead an application's SafeWrite, with its tools, to this test's ledger until the test ends."""
        before = sw._url
        sw.close()
        sw._url, sw.debts = self.url, Debts()
        self._used.append(sw)
        self._pools.append(sw.pool)

        def back() -> None:
            sw.close()
            sw._url, sw.debts = before, Debts()

        self._ending.callback(back)
        return sw

    # Crashes -------------------------------------------------------------------------------------------------

    def crash(self, at: At) -> Crash:
        """From now on the process dies at the first `at` that one of its calls comes to.

        As a context manager it fails if nothing died in it, and resumes at its end.  `at`: "before_claim" (nothing
        is on record), "after_claim" (on record, nothing sent), "after_send" (the body has ended, nobody knows how),
        "after_record" (on record, nobody was told), "after_read" (a reconciling read has ended, nobody knows how).
        """
        if at not in _POINTS:
            raise ValueError(f"a process can die at {', '.join(_POINTS)}, not at {at!r}")
        self.resume()
        self.crashing = crash = Crash(self, at)
        for sw in self._used or [self.sw]:
            sw._ledger = cast("Ledger", Doomed(sw.ledger, crash))
        # Known to be gone to whoever looks later, as a process is that was killed on this machine.
        mine = process.owner().split("/")
        process._known = (os.getpid(), "/".join([*mine[:3], str(next(_graves)), "1"]))
        return crash

    def resume(self) -> None:
        """Go on as a new process over the same ledger; what is left of the dead one records nothing any more."""
        if self.crashing is not None:
            self.crashing = process._known = None
            for sw in self._used:
                sw.debts, sw.pool = Debts(), Pool(sw.pool.size)
                self._pools.append(sw.pool)

    # Workers -------------------------------------------------------------------------------------------------

    def workers(self, tool: Write[Any, Any], count: int = 2) -> tuple[Write[Any, Any], ...]:
        """Return the same tool in `count` workers, each with connections of its own to this test's ledger."""
        known = cast("Any", tool).tool
        owner = next((sw for sw in self._used if sw.tools.get(known.name) is known), None)
        if owner is None:
            raise ValueError(f"`{known.name}` is no tool of this lab: `lab.use(sw)` takes its SafeWrite")
        return tuple(wrapper(Guard(self._twin(owner, n), known), CallOptions()) for n in range(1, count + 1))

    def _twin(self, sw: SafeWrite, number: int) -> SafeWrite:
        twin = copy.copy(sw)
        twin._ledger, twin._threads, twin._opening, twin.prepared = None, None, {}, False
        twin.pool, twin.debts, twin._worker = Pool(sw.pool.size), Debts(), f"worker-{number}"
        self._pools.append(twin.pool)
        self._ending.callback(twin.close)
        return twin

    def together(self, *calls: Callable[[], T]) -> list[T]:
        """Make calls at once, each in a thread, in this run and turn; return what each of them returned."""
        start = threading.Barrier(len(calls))

        def one(call: Callable[[], T]) -> T:
            start.wait()
            return call()

        self.clock.shared = True
        try:
            with ThreadPoolExecutor(len(calls)) as threads:
                running = [threads.submit(contextvars.copy_context().run, one, call) for call in calls]
        finally:
            self.clock.shared = False
        return [each.result() for each in running]


class Crash:
    """One death of a process; `happened` says whether it came to it."""

    def __init__(self, lab: Lab, at: str) -> None:
        self._lab, self.at = lab, at
        self.happened = False
        self.attempts: set[tuple[str, int]] = set()
        """Intents and numbers of the attempts that this process has claimed."""
        self._calls: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._lab.resume()
        if kind is None and not self.happened:
            raise AssertionError(
                f"nothing died: no write came to `{self.at}`. Is its SafeWrite handed over by `lab.use(sw)`?"
            )
        return kind is not None and issubclass(kind, Crashed)

    @property
    def over(self) -> bool:
        """Another process runs by now."""
        return self._lab.crashing is not self

    def strikes(self, kind: type[Fact], call: Call | None, attempt: tuple[str, int]) -> bool:
        """Return whether the process dies once a fact is recorded.  Raises `Crashed` if it is dead, or dies before."""
        if self.over:
            dead = attempt in self.attempts and kind in (Ended, GaveUp, Withheld)
            if dead or (call is not None and call.id in self._calls):
                raise Crashed
            return False
        if call is not None:
            self._calls.add(call.id)
        facts, after = _POINTS[self.at]
        self.happened = self.happened or (kind in facts and not after)
        if self.happened:
            raise Crashed
        return kind in facts


class Doomed:
    """A ledger as a process sees it that is to die: what it asks is carried out up to that point, then nothing."""

    def __init__(self, ledger: Ledger, crash: Crash) -> None:
        self._ledger, self._crash = ledger, crash

    def __getattr__(self, name: str) -> Any:
        if self._crash.happened and not self._crash.over:
            raise Crashed
        return getattr(self._ledger, name)

    def asking(self, ticket: Any, call: Call, *more: Any) -> Any:
        """Do as the ledger does; a claim may be the last thing that is recorded."""
        dies = self._crash.strikes(Claimed, call, ("", 0))
        return Then(self._ledger.asking(ticket, call, *more), partial(self._end, dies))

    def recording(self, intent: Intent, event: Event, *more: Any) -> Any:
        """Do as the ledger does; this may be the last thing that is recorded."""
        attempt = (intent.id, getattr(event.fact, "number", 0))
        dies = self._crash.strikes(type(event.fact), event.call, attempt)
        return Then(self._ledger.recording(intent, event, *more), partial(self._end, dies))

    def _end(self, dies: bool, came: Appended) -> None:
        crash, claimed = self._crash, isinstance(came.command, Run)
        if claimed and not crash.over:
            crash.attempts.add((came.intent.id, came.intent.state.epoch))
        if dies and not crash.over and (claimed or crash.at != "after_claim"):
            crash.happened = True
            raise Crashed


class Then:
    """An order of a ledger, and what follows on it."""

    def __init__(self, order: Order[Appended], then: Callable[[Appended], None]) -> None:
        self._order, self._then = order, then
        self.later = order.later

    def now(self) -> Appended:
        """Carry it out."""
        came = self._order.now()
        self._then(came)
        return came

    def outcome(self, place: Place) -> Appended:
        """Return what came of it."""
        came = self._order.outcome(place)
        self._then(came)
        return came
