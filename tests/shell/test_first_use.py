"""The first call of a process, on a ledger that has no tables yet."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from pathlib import Path
from typing import Any

import pytest

import safewrite
from safewrite import Attempt, ConfigurationError, SafeWrite, current_attempt
from safewrite.ledger import migrate
from safewrite.ledger.sql import Ledger
from safewrite.testing import ManualClock


@pytest.mark.parametrize("colour", ["plain", "coroutine"])
def test_making_the_tables_takes_nothing_from_what_a_call_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, colour: str
) -> None:
    """The cap of a call is counted from when the ledger is there."""
    upgrade = migrate.upgrade
    with ManualClock() as clock, SafeWrite(f"sqlite:///{tmp_path}/agent.db") as sw:

        def slowly(*args: Any) -> None:
            upgrade(*args)
            clock.advance(30.0)

        monkeypatch.setattr(migrate, "upgrade", slowly)

        @sw.write(target="name", name="write")
        def write(name: str, attempt: Attempt) -> float:
            return attempt.remaining()

        @sw.write(target="name", name="awrite")
        async def awrite(name: str, attempt: Attempt) -> float:
            return attempt.remaining()

        with safewrite.run("run", call_cap=5.0), safewrite.turn(1):
            left = write("a") if colour == "plain" else asyncio.run(awrite("a"))
        assert (left, clock.elapsed) == (5.0, 30.0)


def test_a_call_that_is_cancelled_while_the_tables_are_made_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made to the end, and then the caller hears that it was cancelled."""
    upgrade, begun, go_on = migrate.upgrade, threading.Event(), threading.Event()
    sent: list[str] = []

    def held(*args: Any) -> None:
        begun.set()
        go_on.wait(20)
        upgrade(*args)

    monkeypatch.setattr(migrate, "upgrade", held)

    async def main(sw: SafeWrite) -> None:
        @sw.write(target="name")
        async def write(name: str) -> None:
            sent.append(name)

        with safewrite.run("run"), safewrite.turn(1):
            task = asyncio.create_task(write("a"))
        assert await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    with SafeWrite(f"sqlite:///{tmp_path}/agent.db") as sw:
        asyncio.run(main(sw))
        assert (sent, sw.prepared) == ([], True)


def test_of_two_first_uses_at_once_one_opens_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever comes second finds it open: two would keep two connections that write, and close one."""
    sw = SafeWrite(f"sqlite:///{tmp_path}/agent.db")
    opened: list[object] = []

    class Beaten:
        """The lock of one who has seen no ledger, and whom another one beats to it."""

        def __enter__(self) -> None:
            monkeypatch.undo()
            opened.append(sw.ledger)
            sw._lock.acquire()

        def __exit__(self, *_: object) -> None:
            sw._lock.release()

    monkeypatch.setattr(SafeWrite, "_lock", property(lambda _: Beaten()))
    assert sw.ledger is opened[0]
    sw.close()


def test_a_reconciling_read_knows_its_attempt(tmp_path: Path) -> None:
    """Code below a reconcile function finds the attempt, and the run, where a body would."""
    seen = []
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db") as sw:

        @sw.write(target="name", timeout=1.0)
        def write(name: str) -> str:
            raise TimeoutError

        @write.reconcile
        def _(name: str) -> safewrite.GoalMet[str]:
            seen.append(current_attempt())
            return safewrite.GoalMet("done")

        with safewrite.run("run"), safewrite.turn(1):
            assert write("a") == "done"
            key = write.key("a")
    assert [attempt.key for attempt in seen if attempt is not None] == [key]


@pytest.mark.parametrize(("again", "runs"), [(True, 3), (False, 1)])
def test_what_was_not_sent_is_sent_again_unless_that_would_not_help(
    tmp_path: Path, again: bool, runs: int
) -> None:
    """`NotSent(again=False)` ends the matter at once, and is told as not sent, not as a rejection."""
    ran = []
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db") as sw:

        @sw.write(target="name", wait=lambda _: 0.0)
        def write(name: str) -> str:
            ran.append(name)
            raise safewrite.NotSent("no such program", again=again)

        with safewrite.run("run"), safewrite.turn(1):
            outcome = write.outcome("a")
            assert (outcome.state, outcome.reason, outcome.sent) == ("not_applied", "not_sent", False)
            assert len(ran) == runs
            with pytest.raises(safewrite.WriteNotSent):  # the same turn again: claimed again
                write("a")
            assert len(ran) == 2 * runs


def test_a_change_of_directory_leads_to_no_other_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A relative path means the folder in which the guard was made: at the first use, and after closing as well."""
    caplog.set_level(logging.INFO, "safewrite")
    monkeypatch.delenv("SAFEWRITE_DATABASE_URL", raising=False)
    monkeypatch.chdir(tmp_path)
    made = {
        "safewrite.db": SafeWrite(),
        "given.db": SafeWrite("sqlite:///given.db"),
        "told.db": SafeWrite("sqlite:///file:told.db?uri=true"),
    }
    bodies: list[str] = []

    def body(name: str) -> str:
        bodies.append(name)
        return name

    for name, sw in made.items():
        bodies.clear()
        write = sw.write(target="name")(body)
        for folder in ("a", "b"):
            (tmp_path / folder).mkdir(exist_ok=True)
            monkeypatch.chdir(tmp_path / folder)
            with safewrite.run("run"), safewrite.turn(1):
                assert write("x") == "x"
            sw.close()
            assert list((tmp_path / folder).iterdir()) == []
        assert bodies == ["x"]
        assert (tmp_path / name).exists()
        assert re.search(f"the ledger is sqlite:///(file:)?{tmp_path / name}", caplog.text)


def test_where_a_server_is_is_not_logged(postgres_ledger_url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Its URL may hold a password, which the logs are no place for."""
    caplog.set_level(logging.INFO, "safewrite")
    with SafeWrite(postgres_ledger_url) as sw:
        assert sw.prepare()
    assert "postgresql" not in caplog.text


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_ledger_in_memory_has_no_path(url: str) -> None:
    """Good for tests of one's own tools: it works, and leaves nothing."""
    with SafeWrite(url) as sw:

        @sw.write(target="name")
        def write(name: str) -> str:
            return name

        with safewrite.run("run"), safewrite.turn(1):
            assert (write("x"), write.outcome("x").replayed) == ("x", True)


def test_a_working_directory_that_is_gone_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means nothing there; an absolute one works."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for made in (SafeWrite, Ledger):
        with pytest.raises(ConfigurationError, match="absolute path"):
            made("sqlite:///agent.db")
    SafeWrite(f"sqlite:///{tmp_path}/agent.db").close()
