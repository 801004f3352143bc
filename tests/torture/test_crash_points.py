"""Kill -9 before, during or after every call of the ledger's driver, on every path of a call; then resume.

The killed process is a real one, and so is whoever resumes.  Afterwards the dependency, what was told, and the ledger
are held against each other.  `SAFEWRITE_DEEP=1` takes every call of every path, and kills the resumed call as well;
else a sample, by a seed that is printed (`TORTURE_SEED=7`: another one).
"""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from safewrite.guard import SafeWrite
from tests.postgres import database
from tests.torture.crash import PATHS, Place, Trap, die, listening, victim

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("crash_points")]

DEEP = bool(os.environ.get("SAFEWRITE_DEEP"))
SEED = int(os.environ.get("TORTURE_SEED", "20260301"))
SAMPLE = 2 if os.environ.get("SAFEWRITE_TORTURE") else 1
"""Calls of each path at which a process is killed, where not at all of them."""
PATIENCE = 120.0
"""Seconds that a process is given to come to its end, on a machine that has much else to do."""
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["tests.torture.crash", "safewrite.ledger.sql", "alembic.command", "psycopg"])


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a ledger whose tables are made."""
    if request.param == "sqlite":
        found = f"sqlite:///{tmp_path_factory.mktemp('ledger') / 'safewrite.db'}"
        with SafeWrite(found) as sw:
            sw.upgrade()
        yield found
        return
    with database() as found:
        with SafeWrite(found) as sw:
            sw.upgrade()
        yield found


@pytest.fixture(scope="module")
def places(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield places without end, each with a dependency and a namespace of its own."""
    return (Place(url, tmp_path_factory.mktemp("place"), f"trial {number}", "quiet") for number in count(1))


def _killed(place: Place, at: int | None, when: str, does: str = "call") -> bool:
    """Run a process that is killed at a call of its driver; return whether it came to that."""
    process = FORK.Process(target=victim, args=(place, at, when, does))
    process.start()
    process.join(PATIENCE)
    pid, status = process.pid, process.exitcode
    process.kill()
    process.join()
    process.close()
    assert status not in (None, 1), "the victim hangs, or it ended with an error: see what it wrote"
    return not (place.folder / f"survived-{pid}").exists()


def _resumed(place: Place, *, recover_first: bool) -> list[str]:
    """Make the call again in this process, and recover; return what is wrong."""
    with place.opened("heir") as heir:
        if recover_first:
            heir.sw.recover()
        heir.call()
        recovered = heir.sw.recover()
        told = heir.call()
        wrong = [f"recovery: {found}" for found in recovered.found]
        if told.state != ("not_applied" if place.path == "refused" else "applied"):
            wrong.append(f"it came to {told.state} ({told.reason})")
        wrong += [f"alarm {alert.kind}" for alert in heir.alerts]
        lost = [row for row in place.log.sends() if heir.sw.ledger.attempt(row["attempt"]) is None]
        wrong += [f"an attempt that was sent is lost: {row}" for row in lost]
        intent = heir.sw.ledger.find(told.key)
        assert intent is not None
        wrong += [f"altered: {flaw}" for flaw in heir.sw.ledger.verify(intent.id)]
    return wrong + false_told(place)


def false_told(place: Place) -> list[str]:
    """Hold what was told against the effects; return what is wrong."""
    effects, wrong = place.log.effects(), []
    if len(effects) > 1:
        wrong.append(f"{len(effects)} effects")
    for told in place.log.told():
        if told["state"] == "applied" and (not effects or told["value"] != 1):
            wrong.append(f"told falsely: {told}")
        # A later call may have sent it again, and applied it.
        if told["state"] == "not_applied" and any(row["attempt"] in told["sent"] for row in effects):
            wrong.append(f"told falsely: {told}")
    if len({row["key"] for row in place.log.sends()}) > 1:
        wrong.append("several keys")
    return wrong


def _trial(place: Place, kills: list[tuple[int, str, str]]) -> tuple[list[str], bool]:
    """Kill, resume and compare; return what is wrong, and whether the last kill came in time."""
    struck = [_killed(place, at, when, does) for at, when, does in kills]
    wrong = _resumed(place, recover_first=kills[-1][0] % 2 == 0)
    return [f"{place.path}, killed {kills}: {problem}" for problem in wrong], struck[-1]


def _points(chance: random.Random, most: int) -> list[int]:
    """Return the calls to be killed at: all, or some of those that are there."""
    return list(range(1, most + 1)) if DEEP else sorted(chance.sample(range(1, most + 1), min(SAMPLE, most)))


def _length(place: Place) -> int:
    """Return how many calls of the driver it takes."""
    with place.opened("counts") as stage:
        trap = Trap(None, "", die).install(stage.sw)
        stage.call()
        return trap.count


def _recovery(place: Place, died: tuple[int, str, str]) -> int:
    """Return how many calls of the driver it takes to recover what a killed process left."""
    assert _killed(place, *died)
    with place.opened("counts") as stage:
        trap = Trap(None, "", die).install(stage.sw)
        stage.sw.recover()
        return trap.count


def _all(trials: list[tuple[Place, list[tuple[int, str, str]]]]) -> list[bool]:
    """Carry out trials side by side; fail with everything that is wrong; return which last kills came in time."""
    print(f"seed {SEED}, {len(trials)} trials")
    with ThreadPoolExecutor(3) as threads:
        done = list(threads.map(lambda trial: _trial(*trial), trials))
    wrong = "\n".join(problem for problems, _ in done for problem in problems)
    assert not wrong, wrong
    return [struck for _, struck in done]


def _whens(chance: random.Random, url: str) -> list[str]:
    """Return when to kill around one call: in each way, or in one of them."""
    ways = ["before", "after"] if url.startswith("sqlite") else ["before", "during", "after"]
    return ways if DEEP else [chance.choice(ways)]


def _on(places: Iterator[Place], path: str) -> Place:
    return replace(next(places), path=path)


@pytest.mark.parametrize("path", PATHS)
def test_killed_at_a_call_of_the_driver(places: Iterator[Place], url: str, path: str) -> None:
    """One effect and the true answer, wherever on a path the process was killed."""
    chance = random.Random(f"{SEED} {path}")
    most = _length(_on(places, path))
    points = [(at, when) for at in _points(chance, most) for when in _whens(chance, url)]
    struck = _all([(_on(places, path), [(at, when, "call")]) for at, when in points])
    assert sum(struck) >= len(struck) * 0.8, "the kills came too late"


@pytest.mark.parametrize("path", PATHS)
def test_killed_again_while_it_is_resumed(places: Iterator[Place], url: str, path: str) -> None:
    """The heir of a killed process is killed as well, and the heir of that one finds out all the same."""
    chance = random.Random(f"{SEED} again {path}")
    most = _length(_on(places, path))
    trials = []
    for _ in range(40 if DEEP else 1):
        does = chance.choice(["call", "recover"])
        kills = [
            (chance.randint(1, most), chance.choice(_whens(chance, url)), "call"),
            (chance.randint(1, most), chance.choice(_whens(chance, url)), does),
        ]
        trials.append((_on(places, path), kills))
    struck = _all(trials)
    assert not DEEP or sum(struck) >= len(struck) * 0.5, "the kills came too late"


@pytest.mark.parametrize(
    "path", ["quiet", "lost, and read", "gone, and sent again", "sent again under its key"]
)
def test_killed_while_it_recovers(places: Iterator[Place], url: str, path: str) -> None:
    """A process dies in its body, the one that recovers is killed at a call of its driver: nothing is lost."""
    chance = random.Random(f"{SEED} recovery {path}")
    died = (0, "before", "dies in its body")
    most = _recovery(_on(places, path), died)
    points = [(at, when) for at in _points(chance, most) for when in _whens(chance, url)]
    struck = _all([(_on(places, path), [died, (at, when, "recover")]) for at, when in points])
    assert sum(struck) >= len(struck) * 0.8, "the kills came too late"


def test_killed_while_it_makes_the_tables(tmp_path: Path) -> None:
    """Tables are made whole or not at all: the next process makes them, and its call is told the truth."""

    def place(name: str) -> Place:
        folder = tmp_path / name
        folder.mkdir()
        return Place(f"sqlite:///{folder / 'safewrite.db'}", folder, "default", "quiet")

    chance = random.Random(f"{SEED} tables")
    with listening(Trap(None, "", die)) as trap, place("length").opened("counts") as stage:
        stage.sw.upgrade()
    most = trap.count
    assert most > 30, "the statements that make the tables were not counted"
    points = range(1, most + 1) if DEEP else sorted(chance.sample(range(1, most + 1), 6))
    struck = _all([(place(str(at)), [(at, "before", "tables")]) for at in points])
    assert all(struck)
