"""Workers that share a ledger, in one thread and in virtual time: the shipped guard, shell and ledger, and a seed.

Wherever a worker calls the driver of its ledger, and at each step of its body, something may come between: it is
killed, it is frozen, its disk fails, or other workers act.  What is drawn depends on the seed alone.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Final
from unittest import mock

from tenacity import wait_fixed

import safewrite
from safewrite import Applied, Attempt, NotApplied, SafeWrite
from safewrite.core.events import Moment
from safewrite.errors import ConfigurationError, LedgerUnavailable
from safewrite.outcome import Outcome
from safewrite.shell import pressure, process
from safewrite.testing import ManualClock
from tests.simulation.dependency import CALL_CAP, MARGIN, PROMISES, READABLE, RETENTION, SKEW, World
from tests.torture.crash import watched

DEPTH: Final = 2
"""How many calls may be under way inside each other."""
PATIENCE: Final = 60.0
"""Real seconds that a thread is waited for."""
LONGEST_LATE: Final = 90.0
"""Seconds, more than any request needs to land."""


class Killed(BaseException):
    """What a killed worker's own code sees: nothing of what it does afterwards counts."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker.name)
        self.worker = worker


@dataclass(frozen=True, slots=True)
class Told:
    """What one caller was told, and when."""

    tool: str
    at: float
    outcome: Outcome[Any]


@dataclass(eq=False)
class Worker:
    """One process of the application."""

    name: str
    host: str
    sw: SafeWrite
    tools: dict[str, Any] = field(default_factory=dict)
    dead: bool = False
    raws: list[Any] = field(default_factory=list)
    """The connections of its driver."""
    attempt: str = ""
    """The attempt whose request it sent last."""


class Stage(ManualClock):
    """All that one seed does, and the clock by which it happens."""

    def __init__(self, url: str, seed: int) -> None:
        super().__init__(auto=True, start=1_750_000_000.0)
        self.url, self.seed, self.namespace = url, seed, f"seed-{seed}"
        self.chance = Random(seed)
        self.world = World(self.chance)
        self.max_stall = self.chance.choice((None, 8.0))
        self.skews = {host: self.chance.uniform(-SKEW / 2, SKEW / 2) for host in "AB"}
        self.kills, self.fails, self.stalls, self.between = (
            self.chance.choice((0.0, low, high))
            for low, high in ((0.004, 0.03), (0.004, 0.02), (0.01, 0.05), (0.01, 0.05))
        )
        self.quiet = False
        self.workers: list[Worker] = []
        self.gone: set[str] = set()
        self.acting: list[Worker] = []
        self.told: list[Told] = []
        self.problems: list[str] = []
        self._hired = 0

    # The clock: true time, shown askew by each host ---------------------------------------------------------------

    def now(self) -> Moment:
        """Return this instant, by the clock of the host that asks."""
        host = self.acting[-1].host if self.acting else "A"
        true = super().now()
        return Moment(true.unix + self.skews[host], true.ticks, f"boot-{host}")

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for a thread to end, and say whether it did in time: at no moment do two threads draw from the seed."""
        until = self._ticks + seconds
        if not event.wait(PATIENCE):
            raise RuntimeError(f"a thread goes on for more than {PATIENCE:g} real seconds")
        return self._ticks <= until

    def _to(self, instant: float) -> None:
        super()._to(instant)
        self.world.now = self._start + self._ticks

    @contextmanager
    def played(self) -> Iterator[None]:
        """Put this stage's clock, processes and chance in place of the real ones; nothing of another one counts."""
        pressure.forget()
        with (
            self,
            mock.patch.object(os, "urandom", Random(self.seed).randbytes),
            mock.patch.object(process, "owner", self._owner),
            mock.patch.object(process, "known_gone", self._known_gone),
            mock.patch.object(threading, "excepthook", _unless_killed),
        ):
            self.world.now = self._start
            try:
                yield
            finally:
                for worker in self.workers:
                    if not worker.dead:
                        worker.sw.close()

    def _owner(self) -> str:
        worker = self.acting[-1]
        return f"{worker.host}/{worker.name}"

    def _known_gone(self, other: str) -> bool:
        return other.split("/", maxsplit=1)[0] == self.acting[-1].host and other in self.gone

    # Workers ------------------------------------------------------------------------------------------------------

    def hire(self, host: str) -> Worker:
        """Start a process."""
        self._hired += 1
        name = f"{self.namespace}-{self._hired}"
        sw = SafeWrite(
            self.url,
            namespace=self.namespace,
            worker=name,
            lease_margin=MARGIN,
            max_stall=self.max_stall,
            settings={"operation_timeout": CALL_CAP, "busy_timeout": 1.0},
        )
        worker = Worker(name, host, sw)
        for tool in dict(self.things):
            worker.tools[tool] = self._declare(worker, tool)
        sw.ledger._now = lambda: self.now().unix
        database: Any = sw.ledger._database
        connect, trap = database.connect, _Trap(self, worker)
        database.connect = lambda: watched(trap.known(connect()), trap)
        self.workers.append(worker)
        return worker

    def _declare(self, worker: Worker, tool: str) -> Any:
        @worker.sw.write(
            target="thing", name=tool, dependency=PROMISES[tool], in_thread=False, wait=wait_fixed(0.5)
        )
        def write(thing: str, attempt: Attempt) -> int:
            return self._body(worker, tool, attempt)

        if tool in READABLE:

            @write.reconcile
            def _(thing: str, attempt: Attempt) -> Applied[int] | NotApplied:
                self.boundary(worker)
                if not self.quiet and self.chance.random() < 0.1:
                    raise TimeoutError("the read was not answered")
                found = self.world.read(tool, attempt.key)
                self.boundary(worker)
                return found

        return write

    def _body(self, worker: Worker, tool: str, attempt: Attempt) -> int:
        self.boundary(worker, often=8)
        if self.world.now > self._latest(tool, attempt):
            self.kill(worker)  # what promises that no request is sent later
        worker.attempt = attempt.headers["X-Attempt-Id"]
        ends = inf if self.max_stall is None else self._latest(tool, attempt)
        seconds, answer = self.world.request(tool, attempt, ends)
        self.boundary(worker, often=4)
        self.advance(seconds)
        self.boundary(worker)
        if self.max_stall is not None and self.world.now > self._latest(tool, attempt):
            self.kill(worker)  # what promises that no body goes on for longer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _latest(self, tool: str, attempt: Attempt) -> float:
        """Return until when the promises let an attempt be sent."""
        ends = attempt.deadline_at - SKEW
        if self.max_stall is not None:
            return ends + self.max_stall
        if PROMISES[tool].key_retention == RETENTION:
            return ends - CALL_CAP + RETENTION / 2 - LONGEST_LATE
        return inf

    # What comes between -------------------------------------------------------------------------------------------

    def boundary(self, worker: Worker, *, open_: bool = False, often: int = 1) -> None:
        """Let something happen to a worker, or beside it, `often` times as likely; `open_`: it is in a transaction."""
        if worker.dead:
            raise Killed(worker)
        if self.quiet:
            return
        drawn = self.chance.random()
        if drawn < self.kills:
            self.kill(worker)
        drawn -= self.kills
        if drawn < self.stalls:
            self.advance(self.chance.choice((0.5, 3.0, 12.0, 40.0)))
            return
        drawn -= self.stalls
        if drawn < self.between * often and not open_ and len(self.acting) < DEPTH:
            self.act([other for other in self.workers if other not in self.acting])

    def kill(self, worker: Worker) -> None:
        """End a process as `kill -9` does."""
        worker.dead = True
        for raw in worker.raws:
            with suppress(sqlite3.ProgrammingError):  # it was closed before
                raw.rollback()  # what is not committed is not there
        self.gone.add(f"{worker.host}/{worker.name}")
        self.world.sender_ended(worker.attempt)
        raise Killed(worker)

    # What workers do ----------------------------------------------------------------------------------------------

    def act(self, free: list[Worker]) -> None:
        """Let one of these workers do something."""
        alive = [worker for worker in free if not worker.dead]
        if not alive:
            return
        worker = self.chance.choice(alive)
        self.acting.append(worker)
        try:
            self._does(worker)
        except ConfigurationError as refused:  # its ledger failed at first use: the application did not start
            if "Nothing was sent." not in str(refused):
                raise
        except Killed as killed:
            if killed.worker is not worker:
                raise
        finally:
            self.acting.pop()

    def _does(self, worker: Worker) -> None:
        drawn = self.chance.random()
        if drawn < 0.8:
            beside = len(self.acting) > 1 and self.chance.random() < 0.6  # somebody's call of the same
            self.call(worker, self.thing if beside else self.chance.choice(self.things))
            return
        with suppress(LedgerUnavailable):  # said to whoever recovers, or delivers: to be done again
            if drawn < 0.9:
                worker.sw.recover(resend=self.chance.random() < 0.5)
            elif landed := [e for e in self.world.effects if e.lands_at <= self.world.now]:
                effect = self.chance.choice(landed)
                worker.sw.deliver(effect.attempt, effect.number)

    things: tuple[tuple[str, int], ...] = ()
    """The tool and the turn of each intent."""
    thing: tuple[str, int] = ("", 0)
    """What was called last."""

    def call(self, worker: Worker, thing: tuple[str, int]) -> None:
        """Make one call, and keep what it was told."""
        self.thing, (tool, turn) = thing, thing
        with safewrite.run(self.namespace, call_cap=CALL_CAP), safewrite.turn(turn):
            outcome = worker.tools[tool].outcome(f"thing of {tool}")
        self.told.append(Told(tool, self.world.now, outcome))


def _unless_killed(args: threading.ExceptHookArgs) -> None:
    if args.exc_type is not Killed:
        threading.__excepthook__(args)


class _Trap:
    """Stands between a worker and the driver of its ledger."""

    def __init__(self, stage: Stage, worker: Worker) -> None:
        self._stage, self._worker = stage, worker

    def known(self, made: Any) -> Any:
        """Keep a connection that the worker opens."""
        self._worker.raws.append(made.driver_connection)
        return made

    def around(self, raw: Any, call: Callable[[], Any]) -> Any:
        stage, worker = self._stage, self._worker
        if not stage.acting or stage.acting[-1] is not worker:
            return call()  # it is hired, or let go
        stage.boundary(worker, open_=raw.in_transaction)
        if not stage.quiet and stage.chance.random() < stage.fails:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error
        result = call()
        stage.boundary(worker, open_=True)
        return result
