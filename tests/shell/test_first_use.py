"""The first call of a process, on a ledger that has no tables yet."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

import pytest

import safewrite
from safewrite import Attempt, ConfigurationError, SafeWrite, current_attempt
from safewrite.ledger import migrate


def test_making_the_tables_is_not_the_first_calls_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow migration leaves a call that may take 0.2 s as much as any other."""
    upgrade = migrate.upgrade

    def slowly(*args: object, **kwargs: object) -> None:
        upgrade(*args, **kwargs)  # type: ignore[arg-type]
        time.sleep(0.3)

    monkeypatch.setattr(migrate, "upgrade", slowly)
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db") as sw:

        @sw.write(target="name", timeout=0.2)
        def write(name: str, attempt: Attempt) -> float:
            return attempt.remaining()

        with safewrite.run("run"), safewrite.turn(1):
            assert write.options(deadline=None)("a") > 0.1


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
    with pytest.raises(ConfigurationError, match="absolute path"):
        SafeWrite("sqlite:///agent.db")
    SafeWrite(f"sqlite:///{tmp_path}/agent.db").close()
