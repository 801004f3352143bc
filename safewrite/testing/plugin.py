"""The pytest plugin: fixtures, and the marker `safewrite_case`.

pytest loads it in every project where safewrite is installed, so it imports nothing of safewrite until a fixture or
the marker is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from safewrite.guard import SafeWrite
    from safewrite.testing import Case, Lab, ManualClock, RecordedWorld, ScriptedDependency

MARKER = (
    "safewrite_case(path, tool=None): replay a case file, relative to the test's own, before the test runs; "
    "tool: the application's tool, to replay it through that as well"
)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", MARKER)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Replay the cases of a test before it runs; a difference fails it."""
    for mark in reversed(list(pyfuncitem.iter_markers("safewrite_case"))):
        case, tool = _case(pyfuncitem, mark), mark.kwargs.get("tool")
        from safewrite.testing import CaseUnusable, replay

        try:
            replays = [replay(case)] if tool is None else [replay(case), replay(case, tool)]
        except CaseUnusable as error:
            raise pytest.fail.Exception(f"{mark.args[0]}: {error}", pytrace=False) from None
        told = [str(each) for each in replays if not each.same]
        if told:
            pytest.fail("\n\n".join(told), pytrace=False)


def _case(item: pytest.Item, mark: pytest.Mark) -> Case:
    from safewrite.testing import Case, CaseUnusable

    if len(mark.args) != 1 or set(mark.kwargs) - {"tool"}:
        pytest.fail(
            f"write it as {MARKER.partition(':')[0]}, not with {mark.args} {mark.kwargs}", pytrace=False
        )
    try:
        return Case.load(item.path.parent / Path(mark.args[0]))
    except CaseUnusable as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Show the effects and requests behind `dependency.effects(...) == 1`."""
    told = getattr(left, "told", None) or getattr(right, "told", None)
    if not isinstance(told, tuple) or not isinstance(left, int) or not isinstance(right, int):
        return None
    return [f"{left} {op} {right}", *map(str, told)]


@pytest.fixture
def safewrite_case(request: pytest.FixtureRequest) -> RecordedWorld:
    """Return the recorded world of the case of the marker nearest to the test: its `replay` runs a tool's own code."""
    from safewrite.testing import RecordedWorld

    mark = request.node.get_closest_marker("safewrite_case")
    if mark is None:
        pytest.fail("the test has no marker `safewrite_case(path)`", pytrace=False)
    return RecordedWorld(_case(request.node, mark))


@pytest.fixture
def manual_clock() -> Iterator[ManualClock]:
    """Return the clock of the test: it moves by itself, so that minutes of waiting take no time."""
    from safewrite.testing import ManualClock

    # Patient: on a busy machine, a body that is merely slow is not taken for one that hangs.
    with ManualClock(auto=True, patience=1.0) as clock:
        yield clock


@pytest.fixture
def dependency() -> Iterator[ScriptedDependency]:
    """Return a scripted dependency in this process: `httpx.Client(transport=dependency.transport())`."""
    from safewrite.testing import ScriptedDependency

    made = ScriptedDependency()
    made.transport()
    yield made
    made.close()


@pytest.fixture
def memory_ledger() -> Iterator[SafeWrite]:
    """Return a SafeWrite over a fresh ledger in memory."""
    from safewrite.guard import SafeWrite

    with SafeWrite("sqlite://") as sw:
        yield sw


@pytest.fixture
def file_ledger(tmp_path: Path) -> Iterator[SafeWrite]:
    """Return a SafeWrite over a fresh ledger in a file of the test's own folder."""
    from safewrite.guard import SafeWrite

    with SafeWrite(f"sqlite:///{tmp_path / 'ledger.db'}") as sw:
        yield sw


@pytest.fixture
def run_and_turn() -> Iterator[tuple[str, str]]:
    """Open a run and a turn around the test, and return their names."""
    from safewrite.context import run, turn

    with run("run-1") as opened, turn(1) as name:
        yield opened.id, name


@pytest.fixture
def lab(tmp_path: Path, manual_clock: ManualClock, dependency: ScriptedDependency) -> Iterator[Lab]:
    """Return a place for crashes and races, over a fresh ledger in a file, with the fixtures it is made of."""
    from safewrite.testing import Lab

    with Lab(f"sqlite:///{tmp_path / 'lab.db'}", manual_clock, dependency) as made:
        yield made


@pytest.fixture
def two_workers(lab: Lab) -> Callable[[Any], tuple[Any, Any]]:
    """Return a function of a tool that gives it back twice: in two workers over one ledger."""

    def both(tool: Any) -> tuple[Any, Any]:
        first, second = lab.workers(tool, 2)
        return first, second

    return both
