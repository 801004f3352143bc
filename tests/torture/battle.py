"""A battle: many processes make calls, are killed and frozen, lose responses; then everybody's story is compared."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from sqlalchemy import select

from safewrite.ledger import tables
from safewrite.testing.dependency import ScriptedDependency
from safewrite.testing.effects import FILE_NAME, read_rows
from safewrite.testing.script import (
    Step,
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
from tests.torture.fighter import AT_ONCE, BLIND, TOOLS, WORK_BOUND, Field, Tools, fight, open_ledger

FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(
    ["tests.torture.fighter", "safewrite.ledger.sql", "safewrite.recovery", "alembic.command", "psycopg"]
)
KILL_EVERY, FREEZE_EVERY = 90, 130
"""Answers between two kills, and between two freezes, on average; more often in a small battle."""
AT_LEAST = 8.0
"""Seconds after which there is one anyway."""
FROZEN = (0.1, 6.0)
"""Seconds that a process is frozen: at least and at most."""
AGAIN = 0.06
"""How much of the orders are given twice: at once to another process, or later."""
PATIENCE = 90.0
"""Seconds that recovery is given to settle everything, and that nothing may happen before a battle is given up."""
ROUNDS = 12
"""How often an intent is asked about, while the answer is unknown, before recovery alone has to do with it."""

FAULTS: tuple[tuple[int, tuple[Step, ...]], ...] = (
    (60, ()),
    (8, (slow(0.05),)),
    (6, (lose_response(),)),
    (4, (reset_after(),)),
    (4, (reset(),)),
    (3, (error_after(500),)),
    (3, (error(422),)),
    (2, (error(503),)),
    (2, (hang_after(),)),
    (2, (never(),)),
    (2, (late(2.0),)),
    (1, (late(0.5), reset())),
    (1, (lose_response(), read_fails(503))),
    (1, (never(), lose_response())),
    (1, (reset(), reset(), reset_after())),
)
"""What the dependency does to the requests about a target, each with its weight."""


@dataclass(slots=True)
class Result:
    """What a battle came to.  The five promises are numbers that must be 0."""

    database: str
    seed: int
    processes: int
    intents: int = 0
    seconds: float = 0.0
    answers: int = 0
    requests: int = 0
    effects: int = 0
    kills: int = 0
    freezes: int = 0
    applied: int = 0
    not_applied: int = 0
    honest_unknown: int = 0
    """Of the tool whose dependency promises nothing and cannot be asked."""
    refused: int = 0
    """Never claimed, and told so."""
    without_value: int = 0
    """Answers that say applied, and that the value is not known."""
    told_unknown: int = 0
    """Answers, not intents: most of them were found out later."""
    duplicates: int = 0
    false_applied: int = 0
    false_not_applied: int = 0
    stuck: int = 0
    lost_attempts: int = 0
    """Requests whose attempt is not in the ledger."""
    errors: int = 0
    """Calls that ended in anything but an answer."""
    alarms: int = 0
    details: list[str] = field(default_factory=list)

    @property
    def broken(self) -> int:
        """How often a promise was broken."""
        return sum(getattr(self, name) for name in PROMISES)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**asdict(self), "details": self.details[:50]}


PROMISES = (
    "duplicates", "false_applied", "false_not_applied", "stuck", "lost_attempts", "errors", "alarms",
)  # fmt: skip


@dataclass(eq=False, slots=True)
class Fighter:
    """A process, seen from the command."""

    process: Any
    orders: Connection
    todo: set[int] = field(default_factory=set)
    thaws: float = 0.0
    """When it goes on, if it is frozen."""


class Battle:
    """`intents` writes by `processes` processes over a ledger.  `say` is told how it goes, a few times a second."""

    faults = FAULTS
    work_bound = WORK_BOUND

    def __init__(
        self, url: str, folder: Path, *, intents: int, processes: int, seed: int, say: Callable[[str], None]
    ) -> None:
        self._chance = random.Random(seed)
        self._folder, self._say = folder, say
        self._url = url
        self._orders = [(number, self._chance.choice(TOOLS), f"thing-{number}") for number in range(intents)]
        self._left = deque(range(intents))
        self._asked: Counter[int] = Counter()
        self._read: dict[Path, int] = {}
        self._told: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        self._fighters: list[Fighter] = []
        self._done: set[int] = set()
        self.result = Result(url.partition(":")[0].partition("+")[0], seed, processes, intents)

    def fight(self) -> Result:
        """Fight, recover, compare."""
        began = time.monotonic()
        with ExitStack() as stack:
            keys = stack.enter_context(ScriptedDependency(keys="forever", data_dir=self._dir("keys")))
            plain = stack.enter_context(ScriptedDependency(data_dir=self._dir("plain")))
            self._dependencies = {"charge": keys}
            self._plain = plain
            self._field = Field(self._url, "torture", keys.url, plain.url, str(self._folder), self.work_bound)
            with open_ledger(self._field, "before") as sw:
                sw.upgrade()
            try:
                for _ in range(self.result.processes):
                    self._enlist()
                self._fight()
            finally:
                for fighter in self._fighters:
                    fighter.process.kill()
                    fighter.process.join()
            self._hear()
            self._recover()
        self._compare()
        self.result.seconds = round(time.monotonic() - began, 1)
        return self.result

    def _dir(self, name: str) -> Path:
        made = self._folder / name
        made.mkdir()
        return made

    # Fighting ----------------------------------------------------------------------------------------------------

    def _enlist(self) -> None:
        here, there = FORK.Pipe()
        process = FORK.Process(target=fight, args=(self._field, there))
        process.start()
        there.close()
        self._fighters.append(Fighter(process, here))

    def _fight(self) -> None:
        tell, heard = time.monotonic() + 5.0, time.monotonic() + PATIENCE
        kill, freeze = self._next(KILL_EVERY), self._next(FREEZE_EVERY)
        while len(self._done) < len(self._orders):
            self._order()
            ready = wait([f.orders for f in self._fighters if not f.thaws], timeout=0.05)
            if sum(self._listen(f) for f in list(self._fighters) if f.orders in ready):
                heard = time.monotonic() + PATIENCE
            now = time.monotonic()
            for fighter in self._fighters:
                if fighter.thaws and now >= fighter.thaws:
                    os.kill(fighter.process.pid, signal.SIGCONT)
                    fighter.thaws = 0.0
            if self._due(kill, now):
                self._kill(self._chance.choice(self._fighters))
                kill = self._next(KILL_EVERY)
            if self._due(freeze, now):
                self._freeze(self._chance.choice(self._fighters), now)
                freeze = self._next(FREEZE_EVERY)
            if now >= tell:
                r = self.result
                self._say(f"{len(self._done)} of {r.intents} answered, {r.kills} kills, {r.freezes} freezes")
                tell = now + 5.0
            if now >= heard:
                self.result.details.append(f"no answer for {PATIENCE:g} s: {self._waiting()}")
                return

    def _next(self, every: int) -> tuple[float, float]:
        """Return at how many answers, or when, something is to happen next."""
        usual = min(every, len(self._orders) / 10)
        return len(self._done) + self._chance.expovariate(1 / usual), time.monotonic() + AT_LEAST

    def _due(self, at: tuple[float, float], now: float) -> bool:
        return len(self._done) >= at[0] or now >= at[1]

    def _waiting(self) -> str:
        return ", ".join(str(number) for number in range(len(self._orders)) if number not in self._done)[:500]

    def _order(self) -> None:
        """Give every process that is free something to do."""
        for fighter in self._fighters:
            while self._left and not fighter.thaws and len(fighter.todo) < AT_ONCE + 2:
                number = self._left.popleft()
                if number in fighter.todo:  # to somebody else, in a moment
                    self._left.append(number)
                    break
                if not self._asked[number]:
                    self._script(number)
                    if self._chance.random() < AGAIN:
                        at = self._chance.randrange(min(len(self._left), 60) + 1)
                        self._left.insert(at, number)
                self._asked[number] += 1
                fighter.todo.add(number)
                with suppress(OSError):
                    fighter.orders.send(self._orders[number])

    def _script(self, number: int) -> None:
        _, tool, thing = self._orders[number]
        weights = [weight for weight, _ in self.faults]
        _, steps = self._chance.choices(self.faults, weights)[0]
        if steps:
            self._dependencies.get(tool, self._plain).script(*steps, target=thing)

    def _listen(self, fighter: Fighter) -> bool:
        """Hear which calls a process has ended; ask again what is unknown to the caller."""
        try:
            while fighter.orders.poll():
                fighter.todo.discard(fighter.orders.recv())
        except (EOFError, OSError):
            self._fall(fighter)
        return self._hear()

    def _hear(self) -> bool:
        news = False
        for path in self._folder.glob("told-*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = self._read.get(path, 0) + len(whole + newline)
            for line in whole.splitlines():
                news = True
                self._note(json.loads(line))
        return news

    def _note(self, told: dict[str, Any]) -> None:
        number = told["number"]
        self._told[number].append(told)
        if told["state"] in ("applied", "not_applied", "error") or told["tool"] == BLIND:
            self._done.add(number)
        elif number not in self._done:
            if len(self._told[number]) < ROUNDS:
                self._left.append(number)
            else:
                self._done.add(number)

    def _kill(self, fighter: Fighter) -> None:
        fighter.process.kill()
        self.result.kills += 1
        self._fall(fighter)

    def _fall(self, fighter: Fighter) -> None:
        """Bury a process, put another in its place, and have its calls made again."""
        fighter.process.kill()
        fighter.process.join()
        fighter.orders.close()
        self._fighters.remove(fighter)
        self._hear()
        again = [number for number in sorted(fighter.todo) if number not in self._done]
        self._left.extendleft(again)
        self._enlist()

    def _freeze(self, fighter: Fighter, now: float) -> None:
        """Stop a process for a while.  Half the time its calls are given to others meanwhile."""
        if fighter.thaws:
            return
        os.kill(fighter.process.pid, signal.SIGSTOP)
        self.result.freezes += 1
        fighter.thaws = now + self._chance.uniform(*FROZEN)
        if self._chance.random() < 0.5:
            self._left.extend(number for number in sorted(fighter.todo) if number not in self._done)

    # Recovering --------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Recover until nothing is open that can be found out."""
        until = time.monotonic() + PATIENCE
        with open_ledger(self._field, "recovery") as sw:
            self._tools = Tools(sw, self._field)
            while True:
                found = sw.recover(resend=True).found
                still = [f for f in found if f.state == "unknown" and f.tool != BLIND]
                self._say(f"recovered {len(found)}, of which {len(still)} are still open")
                if not still or time.monotonic() >= until:
                    break
                time.sleep(WORK_BOUND / 4)

    # Comparing ---------------------------------------------------------------------------------------------------

    def _rows(self) -> tuple[dict[str, dict[str, Any]], dict[str, int], dict[str, str]]:
        """Return the ledger's intents by thing, the numbers of its attempts, and the things of these."""
        with open_ledger(self._field, "afterwards") as sw:
            t = tables.intent.c
            intents = sw.ledger.select(select(t.id, t.target, t.tool, t.outcome, t.alarms))
            a = tables.audit.c
            claims = sw.ledger.select(
                select(a.attempt_id, a.attempt, a.intent_id).where(a.event == "claimed")
            )
        things = {row["id"]: str(json.loads(row["target"])) for row in intents}
        return (
            {things[row["id"]]: row for row in intents},
            {row["attempt_id"]: row["attempt"] for row in claims},
            {row["attempt_id"]: things[row["intent_id"]] for row in claims},
        )

    def _compare(self) -> None:
        """Hold the dependency's own ledger against what was told and what our ledger says."""
        effects: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in self._of_dependencies("effect"):
            effects[row["target"]].append(row)
        intents, numbers, things = self._rows()
        for row in self._of_dependencies("request"):
            if row["method"] == "POST":
                self.result.requests += 1
                attempt = row["headers"].get("x-attempt-id")
                if things.get(attempt) != row["target"]:
                    self._wrong("lost_attempts", f"a request about {row['target']} with attempt {attempt}")
        self.result.effects = sum(map(len, effects.values()))
        for number, tool, thing in self._orders:
            had, row = effects[thing], intents.get(thing)
            if len(had) > 1:
                self._wrong("duplicates", f"{tool} {thing}: {len(had)} effects")
            for told in self._told[number]:
                self._judge(told, had, numbers)
            self._settled(tool, thing, row, had, self._told[number])
        self.result.answers = sum(map(len, self._told.values()))

    def _of_dependencies(self, kind: str) -> Iterator[dict[str, Any]]:
        for name in ("keys", "plain"):
            yield from (dict(row) for row in read_rows(self._folder / name / FILE_NAME, kind))

    def _judge(self, told: dict[str, Any], had: list[dict[str, Any]], numbers: dict[str, int]) -> None:
        """Hold one answer against the effects."""
        what = f"{told['tool']} {told['thing']} was told {told['state']} ({told['reason']})"
        match told["state"]:
            case "applied":
                if not had or (told["has_value"] and told["value"] not in [row["number"] for row in had]):
                    self._wrong("false_applied", f"{what}, effect {told['value']}")
                if not told["has_value"]:
                    self.result.without_value += 1
            case "not_applied":
                # A later attempt may have been made, and applied, by another call.
                if any(numbers.get(row["attempt_id"], 0) <= told["attempts"] for row in had):
                    self._wrong("false_not_applied", what)
            case "unknown":
                self.result.told_unknown += 1
            case _:
                self._wrong("errors", what)

    def _settled(
        self,
        tool: str,
        thing: str,
        row: dict[str, Any] | None,
        had: list[dict[str, Any]],
        answers: list[dict[str, Any]],
    ) -> None:
        """Hold what the ledger says in the end against the effects."""
        if row is None:
            # Refused before it was claimed, by a ledger that was held up or a call that had no time left.
            if had or not any(told["state"] == "not_applied" for told in answers):
                self._wrong("stuck", f"{tool} {thing} is not in the ledger")
            else:
                self.result.refused += 1
            return
        if row["alarms"]:
            self._wrong("alarms", f"{tool} {thing} has {row['alarms']} alarms")
        match row["outcome"]:
            case "applied":
                self.result.applied += 1
                if not had:
                    self._wrong("false_applied", f"{tool} {thing} stands as applied")
            case "not_applied":
                self.result.not_applied += 1
                if had:
                    self._wrong("false_not_applied", f"{tool} {thing} stands as not applied")
            case _ if tool == BLIND:
                self.result.honest_unknown += 1
            case _:
                self._wrong("stuck", f"{tool} {thing} is still unknown")

    def _wrong(self, promise: str, detail: str) -> None:
        setattr(self.result, promise, getattr(self.result, promise) + 1)
        self.result.details.append(f"{promise}: {detail}")
