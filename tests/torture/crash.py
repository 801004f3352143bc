"""One call of a tool, whose process or database is struck at the n-th call of the ledger's driver.

The dependency is a file: every line is on the disk before anything else happens, so that it survives the process.
The driver's connection is wrapped here, in the program that is struck; the product knows nothing of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

import safewrite
from safewrite import Applied, Attempt, Dependency, NotApplied, NotSent, Rejected, SafeWrite
from safewrite.guard import Alert
from safewrite.outcome import Outcome

RUN, TURN, TARGET = "run", 1, "thing"
CALL_CAP = 6.0
"""Seconds that one call may take."""

SURE = Dependency("sure", work_bound=0.0, read_lag=0.0, clock_skew=0.0)
"""What it has not done when the request's process is gone it never does, and reads see all: it is a file."""
KEYS = Dependency("keys", key_retention=timedelta.max)

PATHS: dict[str, tuple[str, ...]] = {
    "quiet": ("applies",),
    "lost, and read": ("applies, lost", "applies"),
    "gone, and sent again": ("lost", "applies"),
    "gone twice": ("lost", "lost", "applies"),
    "sent again under its key": ("applies, lost", "applies"),
    "refused": ("refuses",),
    "not sent, and sent again": ("not sent", "applies"),
    "late": ("late", "applies"),
}
"""What the body does in each attempt of a path; the last stands for all that follow."""
KEYED = "sent again under its key"


class Log:
    """The dependency: what was sent to it, and what took effect."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "effects.jsonl"
        self._told = folder / "told.jsonl"

    def sent(self, attempt: Attempt) -> None:
        """Keep that an attempt was sent."""
        self._append(self._path, {"row": "sent", "attempt": attempt.id, "key": attempt.key})

    def apply(self, attempt: Attempt, *, once: bool) -> int:
        """Take effect; `once`: not again under the same key.  Return the effect's number."""
        with self._path.open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            before = self.effects()
            for number, row in enumerate(before, 1):
                if once and row["key"] == attempt.key:
                    return number
            self._append(self._path, {"row": "effect", "attempt": attempt.id, "key": attempt.key})
            return len(before) + 1

    def effects(self) -> list[dict[str, Any]]:
        """Return what took effect."""
        return [row for row in self._rows(self._path) if row["row"] == "effect"]

    def sends(self) -> list[dict[str, Any]]:
        """Return what was sent."""
        return [row for row in self._rows(self._path) if row["row"] == "sent"]

    def tell(self, outcome: Outcome[Any]) -> None:
        """Keep what a caller was told, and what had been sent by then."""
        row = {"state": outcome.state, "reason": outcome.reason, "value": outcome.value}
        row["recorded"] = outcome.recorded
        self._append(self._told, {**row, "sent": [sent["attempt"] for sent in self.sends()]})

    def told(self) -> list[dict[str, Any]]:
        """Return what callers were told."""
        return self._rows(self._told)

    def _append(self, path: Path, row: dict[str, Any]) -> None:
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _rows(self, path: Path) -> list[dict[str, Any]]:
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclass(frozen=True, slots=True)
class Place:
    """Where one trial happens."""

    url: str
    folder: Path
    namespace: str
    path: str

    @property
    def log(self) -> Log:
        """The dependency's file."""
        return Log(self.folder)

    @contextmanager
    def opened(self, worker: str, **settings: object) -> Iterator[Stage]:
        """Open the ledger and declare the tool, as every process of an application does."""
        limits = {"operation_timeout": CALL_CAP, "minimum": 0.05, "reserve_floor": 0.1, "grace": 0.02}
        with SafeWrite(
            self.url,
            namespace=self.namespace,
            worker=worker,
            lease_margin=0.2,
            settings={
                **limits,
                "busy_timeout": 3.0,
                "connect_timeout": 3.0,
                "statement_timeout": 3.0,
                **settings,
            },
        ) as sw:
            yield Stage(sw, self)


class Stage:
    """A ledger, and the tool of a path."""

    def __init__(self, sw: SafeWrite, place: Place) -> None:
        self.sw, self.log, self.path = sw, place.log, place.path
        self.alerts: list[Alert] = []
        self.seen: Callable[[Attempt], None] = lambda _: None
        """Called as the body begins."""
        self.ended: Callable[[], None] = lambda: None
        """Called as the body is about to end."""
        sw.on_alarm(self.alerts.append)
        # Its own name: the trials of a process do not share a breaker, nor a budget of retries.
        dependency = replace(
            KEYS if self.path == KEYED else SURE, name=f"{place.namespace} in {place.folder.name}"
        )
        keyed, timeout = self.path == KEYED, 0.5 if self.path == "late" else 3.0

        @sw.write(target="thing", name="touch", dependency=dependency, timeout=timeout, wait=None)
        def touch(thing: str, attempt: Attempt) -> int:
            """Touch a thing."""
            return self._body(attempt)

        if not keyed:

            @touch.reconcile
            def _(thing: str, attempt: Attempt) -> Applied[int] | NotApplied:
                found = [n for n, row in enumerate(self.log.effects(), 1) if row["key"] == attempt.key]
                return Applied(found[0]) if found else NotApplied()

        self.tool = touch

    def _body(self, attempt: Attempt) -> int:
        self.seen(attempt)
        self.log.sent(attempt)
        todo = PATHS[self.path]
        does = todo[min(attempt.number, len(todo)) - 1]
        if does == "refuses":
            raise Rejected("no")
        if does == "not sent":
            raise NotSent("the connection was refused")
        if does == "late":
            attempt.cancelled.wait(2.0)
            time.sleep(0.06)  # past the caller's patience with a body that cleans up
        number = self.log.apply(attempt, once=self.path == KEYED) if does != "lost" else 0
        self.ended()
        if "lost" in does:
            raise TimeoutError("no answer")
        return number

    def call(self) -> Outcome[Any]:
        """Make the call, and keep what it was told; again where a busy machine left no time to send anything."""
        for _ in range(5):
            with safewrite.run(RUN, call_cap=CALL_CAP), safewrite.turn(TURN):
                outcome = self.tool.outcome(TARGET)
            self.log.tell(outcome)
            if outcome.reason != "deadline_passed":
                break
        return outcome


# Striking --------------------------------------------------------------------------------------------------------


class Trap:
    """Counts the calls of a driver, and strikes at one of them.

    `when`: "before" the call, "after" it, or "during" it: a server has been sent it, and its answer is not read.
    `every`: from that call on, at each.
    """

    def __init__(
        self, at: int | None, when: str, strike: Callable[[Any], None], *, every: bool = False
    ) -> None:
        self.count, self.struck = 0, False
        self.at, self._when, self._strike, self._every = at, when, strike, every
        self.seen: Callable[[Any], None] = lambda _: None
        """Called with each driver's connection that is used."""

    def around(self, raw: Any, call: Callable[[], Any]) -> Any:
        """Make a call of the driver."""
        self.count += 1
        self.seen(raw)
        if self.at is None or not (self.count >= self.at if self._every else self.count == self.at):
            return call()
        self.struck = True
        if self._when == "before":
            self._strike(raw)
        if self._when == "during" and hasattr(raw, "pgconn"):
            with _as_sent(raw, lambda: self._strike(raw)):
                return call()
        result = call()
        if self._when == "after":
            self._strike(raw)
        return result

    def begin(self, *_: Any) -> None:
        """Count a statement of SQLAlchemy's own engine, which makes the tables."""
        self.around(None, lambda: None)

    def install(self, sw: SafeWrite) -> Trap:
        """Watch every connection that a ledger opens from now on, and the engine that makes its tables."""
        database: Any = sw.ledger._database
        connect = database.connect
        database.connect = lambda: watched(connect(), self)
        return self


@contextmanager
def listening(trap: Trap) -> Iterator[Trap]:
    """Watch the statements, and the commits, that make the tables."""
    for name in ("before_cursor_execute", "commit"):
        event.listen(Engine, name, trap.begin)
    try:
        yield trap
    finally:
        for name in ("before_cursor_execute", "commit"):
            event.remove(Engine, name, trap.begin)


@contextmanager
def _as_sent(raw: Any, strike: Callable[[], None]) -> Iterator[None]:
    """Strike as soon as everything is sent to a server, and nothing but its answer is waited for."""
    usual = raw.wait

    def wait(gen: Any, *args: Any, **options: Any) -> Any:
        return usual(_struck(gen, strike), *args, **options)

    raw.wait = wait
    try:
        yield
    finally:
        del raw.wait


def _struck(gen: Any, strike: Callable[[], None]) -> Any:
    try:
        wanted = next(gen)
        while True:
            if int(wanted) == 1:  # to read, and no longer to write
                strike()
            wanted = gen.send((yield wanted))
    except StopIteration as stop:
        return stop.value


class Watched:
    """A driver's connection that a trap is set on."""

    def __init__(self, raw: Any, trap: Trap) -> None:
        self._raw, self._trap = raw, trap

    def execute(self, *args: Any) -> Any:
        return self._trap.around(self._raw, lambda: self._raw.execute(*args))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _Pooled:
    def __init__(self, pooled: Any, trap: Trap) -> None:
        self._pooled, self.driver_connection = pooled, Watched(pooled.driver_connection, trap)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pooled, name)


def watched(made: Any, trap: Trap) -> Any:
    """Set a trap on what a ledger has opened."""
    return _Pooled(made, trap) if hasattr(made, "driver_connection") else Watched(made, trap)


# What a process does that is going to be killed ------------------------------------------------------------------


def die(_: Any = None) -> None:
    """End this process as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def victim(place: Place, at: int | None, when: str, does: str = "call") -> None:
    """Make a call, recover, or make the tables, and die at the `at`-th call of the driver."""
    trap = Trap(at, when, die)
    watch = listening(trap) if does == "tables" else nullcontext()
    with watch, place.opened(f"victim {os.getpid()}") as stage:
        if does == "tables":
            stage.sw.upgrade()
        trap.install(stage.sw)
        if does == "dies in its body":
            stage.ended = die
        if does == "recover":
            stage.sw.recover()
        else:
            stage.call()
    (place.folder / f"survived-{os.getpid()}").touch()
