"""Both shells behind one face: each behaviour is written once, as a coroutine, and run through both."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tenacity import wait_fixed

import safewrite
from safewrite import Applied, Attempt, Dependency, GoalMet, GoalNotMet, NotApplied, Outcome, SafeWrite
from safewrite.core.events import Moment
from safewrite.core.state import AttemptState
from safewrite.ledger.lines import Leg
from safewrite.shell import clock as seam
from safewrite.testing import ManualClock
from tests.postgres import _ledger_url, postgres_ledger_url
from tests.shell.remote import Remote

__all__ = ["_ledger_url", "postgres_ledger_url"]

Read = Callable[..., Any]
WITHIN = 20.0
"""Real seconds after which something that should have ended has not."""


class Shell:
    """One of the two shells: makes tools of its colour, and calls them.

    Coroutine tools run on a loop in a thread of its own, so that what is abandoned lives on after the call.
    """

    def __init__(self, colour: str) -> None:
        self.colour = colour
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def plain(self) -> bool:
        return self.colour == "plain"

    def colours(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Return a coroutine function in this shell's colour, the same in every other respect."""
        if not self.plain:
            return fn

        @functools.wraps(fn)
        def plain(*args: Any, **kwargs: Any) -> Any:
            return to_end(fn(*args, **kwargs))

        plain.__signature__ = inspect.signature(fn)  # type: ignore[attr-defined]
        return plain

    def call(self, tool: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a tool and return what it returns."""
        if self.plain:
            return tool(*args, **kwargs)
        return self.start(tool, *args, **kwargs).result(WITHIN)

    def start(self, tool: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        """Begin a call, in a thread or a task of its own, in the context of the caller."""
        context = contextvars.copy_context()
        future: Future[Any] = Future()
        if self.plain:

            def run() -> None:
                try:
                    future.set_result(context.run(tool, *args, **kwargs))
                except BaseException as error:
                    future.set_exception(error)

            threading.Thread(target=run, daemon=True).start()
            return future

        def begin() -> None:
            task = self.loop.create_task(_awaiting(tool, args, kwargs), context=context)
            asyncio.futures._chain_future(task, future)  # type: ignore[attr-defined]

        self.loop.call_soon_threadsafe(begin)
        return future

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
        return self._loop

    def close(self) -> None:
        if self._loop is None or self._thread is None:
            return
        asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result(WITHIN)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WITHIN)
        self._loop.close()


async def _awaiting(tool: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return await tool(*args, **kwargs)


async def _end_tasks() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


def to_end(coroutine: Any) -> Any:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    coroutine.close()
    raise AssertionError("a plain tool cannot wait")


@pytest.fixture(params=["plain", "coroutine"])
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    """One shell, then the other."""
    made = Shell(request.param)
    yield made
    made.close()


@pytest.fixture
def remote(shell: Shell) -> Iterator[Remote]:
    """A dependency in this process."""
    made = Remote(shell.colour)
    yield made
    made.gate.open()


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with tables and nothing in it: to copy is quicker than to migrate."""
    path = tmp_path_factory.mktemp("template") / "agent.db"
    with SafeWrite(f"sqlite:///{path}") as sw:
        sw.upgrade()
    return path


@pytest.fixture
def database(tmp_path: Path, template: Path) -> Path:
    """A ledger's file of this test's own."""
    path = tmp_path / "agent.db"
    shutil.copy(template, path)
    return path


ON_BOTH = {"test_again", "test_ambiguous", "test_gone", "test_processes"}
"""Modules whose tests run on PostgreSQL as well: who may send, who waits, who is told what."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on both databases, if it is one of those and not about a file."""
    if "ledger_url" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        both = module in ON_BOTH and "database" not in inspect.signature(metafunc.function).parameters
        databases = ["sqlite", "postgres"] if both else ["sqlite"]
        metafunc.parametrize("ledger_url", databases, indirect=True, scope="function")


@pytest.fixture
def ledger_url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of the test's ledger; the clock of a database goes with that of the test."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('database')}"

    def moment(*_: object) -> Moment:
        unix = seam.clock().now().unix
        return Moment(unix, unix, "db:test")

    monkeypatch.setattr(Leg, "moment", moment)
    return str(request.getfixturevalue("postgres_ledger_url"))


@pytest.fixture
def open_sw(ledger_url: str) -> Iterator[Callable[..., SafeWrite]]:
    """Opens the test's ledger, as often as it is asked to: as another process would."""
    opened: list[SafeWrite] = []

    def opening(**options: Any) -> SafeWrite:
        options.setdefault("url", ledger_url)
        opened.append(SafeWrite(**options))
        return opened[-1]

    yield opening
    for sw in opened:
        sw.close()


@pytest.fixture
def sw(open_sw: Callable[..., SafeWrite]) -> SafeWrite:
    """One `SafeWrite` over the test's ledger."""
    return open_sw()


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Time that moves by itself where a shell waits for nothing."""
    with ManualClock(auto=True) as made:
        yield made


@pytest.fixture
def still() -> Iterator[ManualClock]:
    """Time that only the test moves."""
    with ManualClock() as made:
        yield made


@pytest.fixture
def run() -> Iterator[None]:
    """Run "r1", turn 1."""
    with safewrite.run("r1"), safewrite.turn(1):
        yield


class Tools:
    """Makes the tool that most of these tests call, in the colour of their shell."""

    def __init__(self, shell: Shell, remote: Remote, open_sw: Callable[..., SafeWrite]) -> None:
        self._shell, self._remote, self._open = shell, remote, open_sw

    def __call__(self, sw: SafeWrite | None = None, read: Read | str | None = "key", **options: Any) -> Any:
        """Return the tool `cancel`; `read`: "key" (looks up by key), "state", None, or a coroutine function.

        Without `sw` it stands on a `SafeWrite` of its own over the test's ledger, as in another process.
        """
        remote, shell = self._remote, self._shell

        async def cancel(sub_id: str, reason: str = "", amount: int = 1, *, attempt: Attempt) -> str:
            """Cancel a subscription."""
            return await remote.write(sub_id, attempt, reason=reason, amount=amount)

        async def by_key(attempt: Attempt) -> Applied[str] | NotApplied:
            found = remote.by_key(attempt.key)
            return Applied(f"{found.target} done") if found is not None else NotApplied()

        async def state(sub_id: str) -> GoalMet[str] | GoalNotMet:
            remote.reads += 1
            return GoalMet(f"{sub_id} done") if remote.count(sub_id) else GoalNotMet()

        options.setdefault("name", "cancel")
        options.setdefault("target", "sub_id")
        options.setdefault("wait", wait_fixed(2.0))
        made = (sw or self._open()).write(**options)(shell.colours(cancel))
        reads: dict[Any, Read | None] = {"key": by_key, "state": state}
        reader = reads.get(read, read)
        if reader is not None:
            made.reconcile(shell.colours(reader))
        return made


@pytest.fixture
def tool(shell: Shell, remote: Remote, open_sw: Callable[..., SafeWrite]) -> Tools:
    """Makes the tool of these tests."""
    return Tools(shell, remote, open_sw)


def rows(sw: SafeWrite, outcome: Outcome[Any]) -> list[dict[str, Any]]:
    """Return the audit rows of an outcome's intent, oldest first."""
    return sw.ledger.rows(outcome.intent_id)


def eventually(look: Callable[[], Any], within: float = 10.0) -> Any:
    """Return the first true value that `look` gives, else the last one."""
    end = time.monotonic() + within
    while not (found := look()) and time.monotonic() < end:
        time.sleep(0.005)
    return found


def attempts(sw: SafeWrite, outcome: Outcome[Any]) -> tuple[AttemptState, ...]:
    """Return what the ledger says of each attempt."""
    intent = sw.ledger.find(outcome.key)
    assert intent is not None
    return intent.state.attempts


SETTLES = Dependency("billing", work_bound=0.0, read_lag=0.0)
"""What it has not done when its answer came, or its caller saw it end, it never does; reads see all."""
KEYED = Dependency("billing", key_retention=86_400.0)
"""Recognises keys."""
