"""A PostgreSQL server that goes away in the middle of calls: restarted, crashed, replaced by its standby."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

import safewrite
from safewrite import Applied, Attempt, ConfigurationError, Dependency, NotApplied, Outcome, SafeWrite
from tests.postgres import Own, administering

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("server_goes")]

WORKERS = 6
SETTINGS = {"operation_timeout": 5.0, "connect_timeout": 2.0, "statement_timeout": 2.0, "busy_timeout": 2.0}
SURE = Dependency("sure", work_bound=0.0, read_lag=0.0, clock_skew=0.0)


@dataclass
class Dependent:
    """A tool over a ledger, its dependency in this process, and what callers were told."""

    sw: SafeWrite
    effects: dict[str, int] = field(default_factory=dict)
    told: list[tuple[str, str, int]] = field(default_factory=list)
    """Thing, state, and how many effects there were of it when that was told."""

    def __post_init__(self) -> None:
        lock = threading.Lock()

        @self.sw.write(target="thing", dependency=SURE, timeout=3.0)
        def touch(thing: str, attempt: Attempt) -> str:
            """Touch a thing."""
            with lock:
                self.effects[attempt.key] = self.effects.get(attempt.key, 0) + 1
            return thing

        @touch.reconcile
        def _(thing: str, attempt: Attempt) -> Applied[str] | NotApplied:
            return Applied(thing) if self.effects.get(attempt.key) else NotApplied()

        self.touch = touch

    def call(self, thing: str) -> Outcome[Any]:
        """Make a call, and keep what it was told."""
        with safewrite.run(thing), safewrite.turn(1):
            outcome: Outcome[Any] = self.touch.outcome(thing)
        self.told.append((thing, outcome.state, self.effects.get(outcome.key or "", 0)))
        return outcome

    @contextmanager
    def busy(self) -> Iterator[Callable[[int], None]]:
        """Make calls all the time, each about another thing; give what waits until so many more were answered."""
        over, numbers = threading.Event(), count()

        def work() -> None:
            while not over.is_set():
                self.call(f"thing {next(numbers)}")

        def more(answers: int) -> None:
            until = len(self.told) + answers
            while len(self.told) < until and not any(one.done() for one in working):
                over.wait(0.01)

        with ThreadPoolExecutor(WORKERS) as threads:
            working = [threads.submit(work) for _ in range(WORKERS)]
            try:
                yield more
            finally:
                over.set()
            for one in working:
                one.result()

    def settled(self) -> None:
        """Everything that was told is true, and is found out by now: one effect each, an unaltered record."""
        false = [
            (thing, state, effects)
            for thing, state, effects in self.told
            if effects > 1 or (state == "applied") > effects or (state == "not_applied" and effects)
        ]
        assert not false
        for thing in sorted({thing for thing, _, _ in self.told}):
            outcome = self.call(thing)
            assert outcome.state == "applied", (thing, outcome, self.sw.ledger.rows(outcome.intent_id or ""))
            assert self.sw.ledger.verify(outcome.intent_id or "") == ()
        assert set(self.effects.values()) == {1}


@pytest.fixture
def own() -> Iterator[Own]:
    """A server of this test's own, in a folder that another user may enter: it refuses to be root."""
    with tempfile.TemporaryDirectory(prefix="safewrite-own-") as folder:
        Path(folder).chmod(0o777)
        with Own(Path(folder) / "data") as made:
            yield made


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restart_in_the_middle_of_calls(own: Own, mode: str) -> None:
    """Orderly or as after a crash: nobody is told what is not so, later calls work, nothing is sent twice."""
    with SafeWrite(own.url, settings=SETTINGS) as sw:
        sw.upgrade()
        dependent = Dependent(sw)
        with dependent.busy() as more:
            more(20)
            own.control("restart", "-m", mode)
            more(20)
            own.control("stop", "-m", mode)
            more(WORKERS)
            own.control("start")
            more(20)
        assert {state for _, state, _ in dependent.told} >= {"applied", "unknown"}
        dependent.settled()


def test_a_standby_takes_over(own: Own) -> None:
    """It is refused as long as it only follows; once it leads, calls go on there by the same URL of both."""
    standby = own.folder.with_name("standby")
    own.run("pg_basebackup", "-D", str(standby), "-d", own.conninfo, "-R", "-c", "fast")
    (standby / ".s.PGSQL.5432.lock").unlink()  # the other one's, which listens in its folder
    hosts = [make_url(own.url).query["host"], str(standby)]
    both = make_url(own.url).update_query_dict({"host": hosts, "target_session_attrs": "read-write"})
    try:
        own.control("start", folder=standby)
        with administering(own.url) as run:
            run("ALTER SYSTEM SET synchronous_standby_names = '*'")
            run("ALTER SYSTEM SET synchronous_commit = remote_apply")  # what is looked for there is there
            run("SELECT pg_reload_conf()")
        with SafeWrite(both.render_as_string(hide_password=False), settings=SETTINGS) as sw:
            sw.upgrade()
            with SafeWrite(str(make_url(own.url).update_query_dict({"host": str(standby)}))) as follower:
                with pytest.raises(ConfigurationError, match="is read-only: a replica"):
                    Dependent(follower).call("thing")
            dependent = Dependent(sw)
            with dependent.busy() as more:
                more(20)
                own.control("stop", "-m", "immediate")
                more(WORKERS)
                own.control("promote", folder=standby)
                more(20)
            dependent.settled()
    finally:
        own.control("stop", "-m", "immediate", folder=standby)
