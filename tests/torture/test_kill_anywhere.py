"""Kill -9 at any moment of a write, as often as you like, then resume: never two effects of one intent.

The writes are those of the demonstration, over real HTTP and real SQLite files.  Every trial starts a process that
makes a call, kills it at a moment, and may do so again; then the call is resumed, reworded, and both sides are held
against each other.  Moments are told by the dependency's own file and by the ledger's, or are random, by a seed that
is printed.  Trials are about different targets and so run side by side.

`TORTURE_ROUNDS=500 pytest tests/torture/test_kill_anywhere.py` makes so many random trials (default: 24), and
`TORTURE_SEED=7` other ones.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import pytest

from safewrite.demo.agent import CALL_CAP, LEDGER, Agent, Order, Told
from safewrite.demo.record import about, attempt_ids, read
from safewrite.testing.dependency import ScriptedDependency
from safewrite.testing.effects import FILE_NAME
from safewrite.testing.script import (
    Step,
    drip,
    error,
    error_after,
    hang_after,
    late,
    lose_response,
    never,
    read_fails,
    reset,
    reset_after,
    slow,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kill_anywhere")]

ROUNDS = int(os.environ.get("TORTURE_ROUNDS", "24"))
SEED = int(os.environ.get("TORTURE_SEED", "20260301"))
SIDE_BY_SIDE = 6
RUN = "torture"
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(
    ["safewrite.demo.agent", "safewrite.demo.tools", "safewrite.ledger.sql", "alembic.command"]
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A write of the demonstration."""

    tool: str
    steps: tuple[Step, ...]
    keys: bool
    """The dependency recognises keys."""
    definite: bool
    """It can always be found out what became of it: the answer after the kills says so."""
    lasts: float
    """About how long the call takes, in seconds."""
    lands: float = 0.0
    """How long after a request an effect may still come."""


KINDS = {
    "quiet": Kind("capture_payment", (), False, True, 0.2),
    "slow": Kind("refund_payment", (slow(0.1),), False, True, 0.3),
    "lost": Kind("capture_payment", (lose_response(),), False, True, 0.3),
    "never": Kind("refund_payment", (never(),), False, True, 1.6),
    "never twice": Kind("capture_payment", (never(), never()), False, True, 2.8),
    "once": Kind("refund_once", (never(),), False, True, 1.5),
    "late": Kind("refund_payment", (late(0.6),), False, True, 1.5, 0.6),
    "drip": Kind("refund_payment", (drip(1.0),), False, True, 0.9),
    "500": Kind("capture_payment", (error_after(500), read_fails(503)), False, True, 0.5),
    "no": Kind("refund_payment", (error(422),), False, True, 0.2),
    "open": Kind("close_ticket", (late(1.0),), False, False, 0.9, 1.0),
    "blind": Kind("send_letter", (hang_after(),), False, False, 0.6),
    "key": Kind("charge_card", (reset_after(), reset()), True, True, 0.5),
    "key, slow": Kind("charge_card", (slow(0.15),), True, True, 0.4),
    "goal": Kind("cancel_subscription", (reset(),), True, True, 0.4),
    "rejected": Kind("cancel_subscription", (lose_response(), error(422), read_fails(503)), True, True, 0.5),
}


# What can be seen from outside -----------------------------------------------------------------------------------


class Watch:
    """Follows the dependency's file and the ledger's, and counts what happened to each target."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / FILE_NAME
        self._ledger = folder / LEDGER
        self._offset = self._row = 0
        self._seen: defaultdict[str, list[str]] = defaultdict(list)
        self._news = threading.Condition()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()

    def wait(self, target: str, what: str, count: int, until: Callable[[], bool]) -> bool:
        """Wait until something happened so often to a target, or `until` says that it never will."""
        with self._news:
            while self._seen[target].count(what) < count:
                if until():
                    return False
                self._news.wait(0.01)
        return True

    def _follow(self) -> None:
        with closing(sqlite3.connect(f"{self._ledger.as_uri()}?mode=ro", uri=True)) as ledger:
            while not self._over.wait(0.001):
                found = [*self._of_the_dependency(), *self._of_the_ledger(ledger)]
                if found:
                    with self._news:
                        for target, what in found:
                            self._seen[target].append(what)
                        self._news.notify_all()

    def _of_the_dependency(self) -> Iterator[tuple[str, str]]:
        with self._log.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole + newline)
        for line in whole.splitlines():
            row = json.loads(line)
            sort = {"POST": "sent", "GET": "looked up"}.get(row.get("method"), row["row"])
            yield str(row.get("target")), sort

    def _of_the_ledger(self, ledger: sqlite3.Connection) -> Iterator[tuple[str, str]]:
        rows = ledger.execute(
            "SELECT a.id, i.target, a.event FROM safewrite_audit AS a JOIN safewrite_intent AS i ON i.id = a.intent_id "
            "WHERE a.id > ? ORDER BY a.id",
            (self._row,),
        )
        for self._row, target, event in rows.fetchall():
            yield json.loads(target), event


MOMENTS = {
    "as it starts": ("", 0),
    "attempt 1 is claimed": ("claimed", 1),
    "request 1 has arrived": ("sent", 1),
    "it has taken effect": ("effect", 1),
    "attempt 1 has ended": ("ended", 1),
    "attempt 1 was given up": ("gave_up", 1),
    "look-up 1 has arrived": ("looked up", 1),
    "look-up 1 is recorded": ("read_ended", 1),
    "look-up 2 has arrived": ("looked up", 2),
    "look-up 2 is recorded": ("read_ended", 2),
    "attempt 2 is claimed": ("claimed", 2),
    "request 2 has arrived": ("sent", 2),
    "attempt 2 has ended": ("ended", 2),
    "attempt 3 is claimed": ("claimed", 3),
}
"""What is waited for, and how often it has to have been seen."""


# One trial -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Place:
    """A dependency, a ledger, and who watches both."""

    folder: Path
    dependency: ScriptedDependency
    watch: Watch
    made: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def order(self, kind: Kind, note: str = "as first said") -> Order:
        """Script the dependency for a new target, and return the call about it."""
        with self.lock:
            self.made += 1
            target = f"target-{self.made}"
        if kind.steps:
            self.dependency.script(*kind.steps, target=target)
        return Order(kind.tool, target, note, RUN, self.made)


@dataclass(frozen=True, slots=True)
class Kill:
    """When a process is killed: at a moment, and so many seconds later."""

    moment: str
    delay: float = 0.0


def _call(folder: str, url: str, order: Order) -> None:
    """Make one call: what a process that is going to be killed does."""
    with Agent(Path(folder), url, f"victim {os.getpid()}") as agent:
        agent.ask(order)


def _killed(place: Place, order: Order, kill: Kill) -> bool:
    """Start a process that makes the call, kill it at its moment, and return whether it came to that."""
    process = FORK.Process(target=_call, args=(str(place.folder), place.dependency.url, order))
    process.start()
    what, count = MOMENTS[kill.moment]
    reached = not what or place.watch.wait(order.target, what, count, lambda: not process.is_alive())
    time.sleep(kill.delay)
    alive = process.is_alive()
    process.kill()
    process.join()
    process.close()
    return reached and alive


def _resumed(place: Place, order: Order) -> Told:
    """Ask again in a process that was not killed, with other words; once more only where time ran out."""
    again = replace(order, note="put differently")
    with Agent(place.folder, place.dependency.url, f"heir {order.target}") as heir:
        told = heir.ask(again)
        return heir.ask(again) if told.state == "unknown" and told.seconds > 0.75 * CALL_CAP else told


def _trial(place: Place, kind: Kind, kills: list[Kill]) -> tuple[list[str], bool]:
    """Return what is wrong after the kills and a resume, and whether the first kill came in time."""
    order = place.order(kind)
    struck = [_killed(place, order, kill) for kill in kills]
    told = _resumed(place, order)
    if kind.lands:
        time.sleep(kind.lands)
    return _wrong(place, order, kind, told), struck[0]


def _wrong(place: Place, order: Order, kind: Kind, told: Told) -> list[str]:
    effects = place.dependency.effects_log(order.target)
    sent = [r for r in place.dependency.requests(order.target) if r["method"] == "POST"]
    records = about(read(place.folder, RUN), order.target)
    claimed = attempt_ids(records)
    wrong = []
    if len(effects) > 1:
        wrong.append(f"{len(effects)} effects")
    if told.state == "applied" and not effects:
        wrong.append("told applied without an effect")
    if told.state == "not_applied" and effects:
        wrong.append("told not_applied beside an effect")
    if told.state == "unknown" and kind.definite:
        wrong.append(f"still unknown ({told.reason})")
    if any(r["headers"]["x-attempt-id"] not in claimed for r in sent):
        wrong.append("something was sent that was not claimed first")
    if len({r["headers"]["idempotency-key"] for r in sent}) > 1:
        wrong.append("several keys")
    if len({json.dumps(r["body"]) for r in sent}) > 1:
        wrong.append("several payloads")
    if any(record.alarms for record in records):
        wrong.append("an alarm")
    if any(row.differs for record in records for row in record.rows):
        wrong.append("a row that would be decided otherwise")
    if wrong:
        wrong.append(f"told {told.state} ({told.reason}) after {told.seconds} s; the audit has:")
        wrong += [f"\n    {row.happened} ({row.rule})" for record in records for row in record.rows]
    return wrong


# All of them -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, Place]]:
    """Return a place whose dependency recognises keys, and one whose does not."""
    with ExitStack() as stack:
        opened = {}
        for keys in (True, False):
            folder = tmp_path_factory.mktemp("keys" if keys else "no-keys")
            dependency = ScriptedDependency(data_dir=folder, keys="forever" if keys else "off")
            stack.enter_context(dependency)
            stack.enter_context(Agent(folder, dependency.url, "first"))
            opened[keys] = Place(folder, dependency, stack.enter_context(Watch(folder)))
        yield opened


def _all(places: dict[bool, Place], trials: list[tuple[str, list[Kill]]]) -> list[bool]:
    """Carry out all trials side by side; fail with everything that is wrong; return which kills came in time."""

    def one(trial: tuple[str, list[Kill]]) -> tuple[list[str], bool]:
        name, kills = trial
        kind = KINDS[name]
        wrong, struck = _trial(places[kind.keys], kind, kills)
        return [f"{name}, killed {kills}: {', '.join(wrong)}"] if wrong else [], struck

    with ThreadPoolExecutor(SIDE_BY_SIDE) as threads:
        done = list(threads.map(one, trials))
    wrong = "\n".join(problem for problems, _ in done for problem in problems)
    assert not wrong, wrong
    return [struck for _, struck in done]


AT = [
    ("quiet", "as it starts"),
    ("quiet", "attempt 1 is claimed"),
    ("slow", "request 1 has arrived"),
    ("lost", "it has taken effect"),
    ("lost", "attempt 1 has ended"),
    ("lost", "look-up 1 has arrived"),
    ("late", "request 1 has arrived"),
    ("late", "attempt 1 has ended"),
    ("late", "look-up 1 is recorded"),
    ("late", "it has taken effect"),
    ("drip", "attempt 1 was given up"),
    ("drip", "look-up 1 has arrived"),
    ("500", "look-up 1 is recorded"),
    ("never", "request 1 has arrived"),
    ("never", "attempt 1 has ended"),
    ("never", "look-up 2 has arrived"),
    ("never", "look-up 2 is recorded"),
    ("never", "attempt 2 is claimed"),
    ("never", "request 2 has arrived"),
    ("never twice", "attempt 2 has ended"),
    ("never twice", "attempt 3 is claimed"),
    ("once", "look-up 1 is recorded"),
    ("open", "request 1 has arrived"),
    ("blind", "it has taken effect"),
    ("key", "attempt 1 has ended"),
    ("key", "attempt 2 is claimed"),
    ("key, slow", "request 1 has arrived"),
    ("goal", "attempt 2 is claimed"),
    ("rejected", "attempt 2 is claimed"),
    ("rejected", "request 2 has arrived"),
    ("rejected", "attempt 2 has ended"),
]


def test_killed_at_each_moment_that_can_be_seen_from_outside(places: dict[bool, Place]) -> None:
    """Every moment of the list, for writes that come to it; most kills strike before the call is over."""
    assert {moment for _, moment in AT} == set(MOMENTS)
    struck = _all(places, [(name, [Kill(moment)]) for name, moment in AT])
    missed = [trial for trial, hit in zip(AT, struck, strict=True) if not hit]
    assert len(missed) <= len(AT) // 3, missed


def test_killed_at_any_moment_and_again_while_it_is_resumed(places: dict[bool, Place]) -> None:
    """One to three kills, each after a random time within the call, or at a moment and a little later."""
    chance = random.Random(SEED)

    def kill(kind: Kind) -> Kill:
        if chance.random() < 0.5:
            return Kill("as it starts", chance.uniform(0.0, kind.lasts))
        return Kill(chance.choice([*MOMENTS]), chance.choice([0.0, 0.0, chance.uniform(0.0, 0.02)]))

    trials = []
    for _ in range(ROUNDS):
        name = chance.choice([*KINDS])
        trials.append((name, [kill(KINDS[name]) for _ in range(chance.choice([1, 1, 2, 3]))]))
    print(f"seed {SEED}, {ROUNDS} trials")
    _all(places, trials)
