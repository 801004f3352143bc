"""The n-th call of the ledger's driver fails, for every n; the disk is full; the ledger goes away in the middle.

What is told is true, nothing is sent without a claim that is on the disk, and a later look finds out.
`SAFEWRITE_DEEP=1` takes every call of every path; else a sample, by a seed that is printed.
"""

from __future__ import annotations

import random
import resource
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from safewrite.errors import ConfigurationError
from safewrite.ledger.sql import Ledger
from tests.ledger.faults import error_of
from tests.torture.crash import PATHS, Place, Trap, die
from tests.torture.test_crash_points import DEEP, FORK, SEED, false_told, url

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ledger_faults")]
__all__ = ["url"]  # the fixture

SAMPLE = 1


def _broken(raw: Any) -> None:
    """Fail as the driver does: a disk that cannot be read or written, or a connection that is lost."""
    if hasattr(raw, "pgconn"):
        raw.close()
        raise psycopg.OperationalError("the connection is lost")
    raise error_of(sqlite3.SQLITE_IOERR)


def _full(raw: Any) -> None:
    if hasattr(raw, "pgconn"):
        raise psycopg.errors.DiskFull("could not extend file: No space left on device")
    raise error_of(sqlite3.SQLITE_FULL, "database or disk is full")


@pytest.fixture(scope="module")
def places(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield places without end, each with a dependency and a namespace of its own."""
    return (Place(url, tmp_path_factory.mktemp("place"), f"fault {n}", "quiet") for n in count(1))


def _struck(place: Place, at: int, fault: Callable[[Any], None], when: str, every: bool) -> None:
    """Make a call while the ledger fails; have each attempt looked for, from outside, as its body begins."""
    witness = Ledger(place.url)

    def look(attempt: Any) -> None:
        if witness.attempt(attempt.id) is None:
            with (place.folder / "missing").open("a") as file:
                file.write(f"attempt {attempt.number} was sent, and is not in the ledger\n")

    with place.opened("struck") as stage:
        trap = Trap(at, when, fault, every=every).install(stage.sw)
        stage.seen = look
        try:
            stage.call()
        except ConfigurationError as error:  # it could not be opened at all
            if "Nothing was sent" not in str(error) or place.log.sends():
                raise
    witness.close()
    if trap.struck:
        (place.folder / "struck").touch()
    (place.folder / "over").touch()


def _in_a_process(place: Place, *args: Any) -> None:
    """In a process of its own: what it could not record is found out once it is known to be gone."""
    process = FORK.Process(target=_struck, args=(place, *args))
    process.start()
    process.join()
    process.close()
    assert (place.folder / "over").exists(), "it ended with an error: see what it wrote"


def _wrong(place: Place) -> list[str]:
    """Look again with a ledger that works; return what is wrong."""
    kept = place.folder / "missing"
    missing = kept.read_text().splitlines() if kept.exists() else []
    with place.opened("afterwards") as stage:
        stage.sw.recover()
        told = stage.call()
        wrong = [*missing, *(f"alarm {alert.kind}" for alert in stage.alerts)]
    if told.state != ("not_applied" if place.path == "refused" else "applied"):
        wrong.append(f"it came to {told.state} ({told.reason})")
    return [f"{place.path}: {problem}" for problem in wrong + false_told(place)]


def _points(place: Place) -> list[int]:
    with place.opened("counts") as stage:
        trap = Trap(None, "", die).install(stage.sw)
        stage.call()
    points = range(1, trap.count + 1)
    return list(points) if DEEP else sorted(random.Random(f"{SEED} {place.path}").sample(points, SAMPLE))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fault", "when", "every"),
    [
        (_broken, "before", False),
        (_broken, "after", False),
        (_broken, "before", True),
        (_full, "before", True),
    ],
    ids=["once", "after it was done", "from then on", "disk full from then on"],
)
def test_the_nth_call_of_the_driver_fails(
    places: Iterator[Place],
    path: str,
    fault: Callable[[Any], None],
    when: str,
    every: bool,
) -> None:
    """What is told is true, whichever call fails; nothing is sent that is not claimed; a later look finds out."""
    points = _points(replace(next(places), path=path))
    print(f"seed {SEED}, calls {points}")

    def one(at: int, place: Place) -> list[str]:
        _in_a_process(place, at, fault, when, every)
        return [f"call {at}: {problem}; told {place.log.told()}" for problem in _wrong(place)]

    trials = [(at, replace(next(places), path=path)) for at in points]
    with ThreadPoolExecutor(3) as threads:
        wrong = [problem for found in threads.map(lambda trial: one(*trial), trials) for problem in found]
    assert not wrong, "\n".join(wrong)
    missed = [at for at, place in trials if not (place.folder / "struck").exists()]
    assert len(missed) <= len(trials) * 0.2, f"nothing failed at {missed}"


def _full_in_the_middle(place: Place) -> None:
    """Make a call after whose body no file may grow beyond what the ledger's log has by then."""
    log = place.folder / "safewrite.db-wal"

    def full() -> None:
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, most))

    with place.opened("struck") as stage:
        stage.ended = full
        stage.call()


def _gone_in_the_middle(place: Place) -> None:
    """Make a call in whose body the ledger is lost: no call of the driver works any more.  Then try another one."""
    with place.opened("struck", connect_timeout=1.0, busy_timeout=1.0) as stage:
        trap = Trap(10**6, "before", _broken, every=True).install(stage.sw)
        stage.ended = lambda: setattr(trap, "at", 0)
        stage.call()
        stage.log.tell(stage.tool.options(run="another", turn=1).outcome("another thing"))


def _removed_in_the_middle(place: Place) -> None:
    """Make a call in whose body the ledger's folder is removed."""
    folder = place.folder / "ledger"

    def remove() -> None:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    with place.opened("struck") as stage:
        stage.ended = remove
        stage.call()


def _run(work: Callable[[Place], None], place: Place) -> None:
    process = FORK.Process(target=work, args=(place,))
    process.start()
    process.join()
    assert process.exitcode == 0


def test_a_disk_that_is_full_in_the_middle(tmp_path: Path) -> None:
    """The files may not grow any more once the write is sent: it is told as applied, and found out afterwards."""
    place = Place(f"sqlite:///{tmp_path / 'safewrite.db'}", tmp_path, "default", "quiet")
    _run(_full_in_the_middle, place)
    told = place.log.told()[-1]
    assert (told["state"], told["recorded"]) == ("applied", False)
    assert not _wrong(place)


def test_a_file_that_is_removed_in_the_middle(tmp_path: Path) -> None:
    """Who sent the write is told the truth; who finds no ledger is told so, and sends nothing."""
    (tmp_path / "ledger").mkdir()
    place = Place(f"sqlite:///{tmp_path / 'ledger' / 'safewrite.db'}", tmp_path, "default", "quiet")
    _run(_removed_in_the_middle, place)
    assert [told["state"] for told in place.log.told()] == ["applied"]
    with place.opened("second") as stage, pytest.raises(ConfigurationError, match="Nothing was sent"):
        stage.call()
    assert len(place.log.effects()) == 1


@pytest.mark.parametrize(("path", "state"), [("quiet", "applied"), ("lost, and read", "unknown")])
def test_a_ledger_that_is_gone_in_the_middle(places: Iterator[Place], path: str, state: str) -> None:
    """What is known is told, the next write is not sent (nor told as never sent: that could not be looked up)."""
    place = replace(next(places), path=path)
    _run(_gone_in_the_middle, place)
    assert [told["state"] for told in place.log.told()] == [state, "unknown"]
    assert len(place.log.sends()) == 1
    assert not _wrong(place)
