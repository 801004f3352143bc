"""Many workers on one intent, many processes on one file, and a small battle on each database."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import safewrite
from safewrite import SafeWrite
from safewrite.testing.script import late
from tests.torture.__main__ import torture
from tests.torture.battle import Battle
from tests.torture.crowd import many, race
from tests.torture.test_crash_points import DEEP, SEED, url

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("many_workers")]
__all__ = ["url"]  # the fixture

WORKERS = 64
PROCESSES, INTENTS = 8, 200 if DEEP or os.environ.get("SAFEWRITE_TORTURE") else 25
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(
    ["tests.torture.crowd", "tests.torture.fighter", "safewrite.ledger.sql", "alembic.command", "psycopg"]
)


def test_64_threads_on_one_intent(url: str) -> None:
    """One sends; everybody gets the record."""
    with SafeWrite(url, namespace="threads", settings={"threads": WORKERS}) as sw:
        sent: list[int] = []

        @sw.write(target="thing", name="touch")
        def touch(thing: str) -> int:
            """Touch a thing."""
            sent.append(1)
            return len(sent)

        together = threading.Barrier(WORKERS)

        def work(_: int) -> tuple[str, int | None, bool]:
            together.wait()
            with safewrite.run("run", deadline=30.0), safewrite.turn(1):
                outcome = touch.outcome("thing")
            return outcome.state, outcome.value, outcome.sent

        with ThreadPoolExecutor(WORKERS) as threads:
            told = Counter(threads.map(work, range(WORKERS)))
    assert told == {("applied", 1, True): 1, ("applied", 1, False): WORKERS - 1}
    assert len(sent) == 1


def test_64_coroutines_on_one_intent(url: str) -> None:
    """One sends; everybody gets the record."""
    with SafeWrite(url, namespace="coroutines") as sw:
        sent: list[int] = []

        @sw.write(target="thing", name="touch")
        async def touch(thing: str) -> int:
            """Touch a thing."""
            await asyncio.sleep(0)
            sent.append(1)
            return len(sent)

        async def work() -> tuple[str, int | None, bool]:
            with safewrite.run("run", deadline=30.0), safewrite.turn(1):
                outcome = await touch.outcome("thing")
            return outcome.state, outcome.value, outcome.sent

        async def all_of_them() -> list[tuple[str, int | None, bool]]:
            return await asyncio.gather(*(work() for _ in range(WORKERS)))

        told = Counter(asyncio.run(all_of_them()))
    assert told == {("applied", 1, True): 1, ("applied", 1, False): WORKERS - 1}
    assert len(sent) == 1


def test_64_workers_in_8_processes_on_one_intent(url: str, tmp_path: Path) -> None:
    """One of them sends; all get the same answer."""
    together = FORK.Barrier(WORKERS)
    processes = [
        FORK.Process(target=race, args=(url, str(tmp_path), together, WORKERS // PROCESSES))
        for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    told = Counter(file.read_text() for file in tmp_path.glob("told-*"))
    assert len(list(tmp_path.glob("sent-*"))) == 1
    (sent,) = [text for text in told if text.endswith(" sent")]
    assert told == {sent: 1, sent.removesuffix(" sent"): WORKERS - 1}


def test_8_processes_on_one_ledger(url: str, tmp_path: Path) -> None:
    """Nobody is told that the database is locked, and every write is applied and recorded."""
    processes = [
        FORK.Process(target=many, args=(url, str(tmp_path), who, INTENTS)) for who in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    told = Counter(line for file in tmp_path.iterdir() for line in file.read_text().splitlines())
    assert told == {"applied True applied": PROCESSES * INTENTS}


def test_a_small_battle(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No duplicate, nothing told falsely, nothing stuck; `python -m tests.torture` fights the large ones."""
    kind = "sqlite" if url.startswith("sqlite") else "postgresql"
    if kind == "postgresql":
        monkeypatch.setenv("SAFEWRITE_TEST_POSTGRES_URL", url)  # the server that is running already
    result = torture(kind, intents=1000 if DEEP else 60, processes=3, seed=SEED, quiet=True)
    assert result.intents == result.applied + result.not_applied + result.honest_unknown + result.refused
    assert result.kills > 0
    assert (result.broken, result.details) == (0, [])


def test_a_battle_sees_a_promise_that_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects that come after the work bound that was declared, and so a second time, are reported as duplicates."""
    # Half of what a call may take: each has time to look too early and to send again, on a busy machine, too.
    monkeypatch.setattr(Battle, "faults", ((1, (late(6.0),)),))
    monkeypatch.setattr(Battle, "work_bound", 0.0)
    result = torture("sqlite", intents=24, processes=2, seed=SEED, quiet=True)
    assert result.duplicates > 0
    assert any(detail.startswith("duplicates: ") for detail in result.details)
