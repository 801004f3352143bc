"""The pytest plugin, as users have it: real pytest runs over test files that use nothing else."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import httpx
import pytest

import safewrite
from safewrite import SafeWrite
from safewrite import testing as kit
from safewrite.audit.cases import Case, Difference, export_case
from safewrite.testing import ManualClock, lab
from safewrite.testing.script import BEHAVIOURS
from tests.testing.asking import ROOT

PLUGIN = (
    "-p",
    "no:safewrite",
    "-p",
    "safewrite.testing.plugin",
    "-p",
    "no:asyncio",
    "-W",
    "error",
    "-W",
    "ignore:Module already",
)
TOOL = """
import httpx, safewrite
from safewrite import Applied, Attempt, Dependency, NotApplied, SafeWrite

sw = SafeWrite("sqlite:///never-made.db")
billing = Dependency("billing", work_bound=60.0, read_lag=0.0)
client = httpx.Client(base_url="http://billing")

@sw.write(target="sub_id", name="cancel", dependency=billing, timeout=30.0)
def cancel(sub_id: str, attempt: Attempt) -> str:
    reply = client.post(f"/subs/{sub_id}/cancel", headers=attempt.headers, timeout=attempt.timeout)
    return reply.raise_for_status().text

@cancel.reconcile
def _(sub_id: str, attempt: Attempt):
    rows = client.get("/effects", params={"key": attempt.key}).json()["rows"]
    return Applied("found") if rows else NotApplied()
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project of a user, with a tool of its own."""
    pytester.makepyfile(tools=TOOL)
    pytester.syspathinsert()
    return pytester


def test_fixtures_are_enough_to_test_a_tool(project: pytest.Pytester) -> None:
    """Ledgers, run and turn, clock, dependency, crash and resume, and two workers, without any set-up."""
    project.makepyfile(
        """
        import httpx, pytest, tools
        from freezegun import freeze_time
        from safewrite.shell import clock as seam

        @pytest.fixture(autouse=True)
        def billing(lab, monkeypatch):
            lab.use(tools.sw)
            inner = httpx.Client(base_url="http://billing", transport=lab.dependency.transport())
            monkeypatch.setattr(tools, "client", inner)

        def test_a_timed_out_write(lab, dependency, manual_clock, run_and_turn):
            dependency.script("hang_after")
            assert tools.cancel.outcome("sub_1").evidence == "reconciled"
            assert dependency.effects("sub_1") == 1
            assert lab.dependency is dependency and lab.clock is manual_clock is seam.clock()
            assert manual_clock.elapsed >= 15.0
            assert run_and_turn == ("run-1", "1")

        def test_a_crash(lab, dependency, run_and_turn):
            with lab.crash(at="after_send"):
                tools.cancel("sub_1")
            assert tools.cancel("sub_1") == "found"
            assert dependency.effects("sub_1") == 1

        def test_a_race(lab, dependency, two_workers, run_and_turn):
            first, second = two_workers(tools.cancel)
            told = lab.together(lambda: first.outcome("sub_1"), lambda: second.outcome("sub_1"))
            assert {outcome.state for outcome in told} == {"applied"}
            assert dependency.effects("sub_1") == 1

        @freeze_time("2026-11-29 12:00:00")  # which begins after the fixtures
        def test_a_frozen_wall(lab, dependency, memory_ledger, file_ledger, run_and_turn):
            assert lab.sw.write(target="sub_id", name="touch")(lambda sub_id: sub_id)("a") == "a"
            assert lab.clock.now().unix == 1_795_953_600.0 + lab.clock.elapsed

        @pytest.mark.parametrize("ledger", ["memory_ledger", "file_ledger"])
        @pytest.mark.parametrize("_", "ab")
        def test_ledgers_are_fresh(request, ledger, _, run_and_turn, tmp_path):
            sw = request.getfixturevalue(ledger)
            assert sw.audit.runs() == ()
            tool = sw.write(target="thing", name="touch")(lambda thing: thing)
            assert tool("a") == "a"
            assert (tmp_path / "ledger.db").exists() is (ledger == "file_ledger")
        """
    )
    project.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=8)
    assert not (project.path / "never-made.db").exists()


def test_a_wrong_number_of_effects_is_explained(project: pytest.Pytester) -> None:
    """The failure lists effects and requests; other comparisons are shown as ever."""
    project.makepyfile(
        """
        import httpx

        def test_effects(dependency):
            client = httpx.Client(base_url="http://billing", transport=dependency.transport())
            for number in range(2):
                client.post("/subs/sub_1/cancel", headers={"X-Attempt-Id": f"a{number}"})
            assert dependency.effects("sub_1") == 1

        def test_numbers():
            assert 1 == 2
        """
    )
    project.runpytest_inprocess(*PLUGIN).stdout.fnmatch_lines(
        [
            "E       assert 2 == 1",
            "E         2 effects on sub_1",
            "E         #1 sub_1 cancel by attempt a0",
            "E         #2 sub_1 cancel by attempt a1",
            "E         requests: POST /subs/sub_1/cancel (ok), POST /subs/sub_1/cancel (ok)",
            "E       assert 1 == 2",
        ]
    )


def case(where: Path) -> str:
    """Write the case of a timed-out write that was found applied, and return its text."""
    with ManualClock(auto=True), SafeWrite("sqlite://") as sw:
        tools: dict[str, object] = {"sw": sw, "__name__": "tools"}
        exec(TOOL.replace('sw = SafeWrite("sqlite:///never-made.db")', ""), tools)
        cancel: object = tools["cancel"]
        tools["client"] = _Lost()
        with safewrite.run("run-1"), safewrite.turn(1):
            outcome = cancel.outcome("sub_1")  # type: ignore[attr-defined]
        found = export_case(sw.ledger, outcome.key)
    assert found is not None
    where.write_text(found.text())
    return found.text()


class _Lost:
    """A client that loses the response, and sees nothing where it looks."""

    def post(self, *_: object, **__: object) -> None:
        raise httpx.ReadTimeout("no answer")

    def get(self, *_: object, **__: object) -> httpx.Response:
        return httpx.Response(200, json={"rows": [1]})


def test_a_marked_case_is_decided_again_before_its_test(project: pytest.Pytester) -> None:
    """The same decisions: the test runs, with the case as a fixture; other ones fail it, readably."""
    text = case(project.path / "same.json")
    (project.path / "other.json").write_text(text.replace('"rule": "L1"', '"rule": "U1"'))
    project.makepyfile(
        """
        import pytest, tools
        from safewrite import Dependency, SafeWrite

        blind = SafeWrite("sqlite://").write(target="sub_id", name="cancel")(lambda sub_id: None)

        @pytest.mark.safewrite_case("same.json", tool=tools.cancel)
        def test_same(safewrite_case):
            assert safewrite_case.intent.tool == "cancel"

        @pytest.mark.safewrite_case("other.json")
        def test_other():
            raise AssertionError("not reached")

        @pytest.mark.safewrite_case("same.json", tool=blind)
        def test_through_another_declaration():
            raise AssertionError("not reached")

        @pytest.mark.safewrite_case("none.json")
        def test_unreadable():
            pass

        @pytest.mark.safewrite_case("same.json", tol=tools.cancel)
        def test_misspelled():
            pass

        @pytest.mark.safewrite_case("same.json", tool=tools.sw.write(target="a", name="x")(lambda a: None))
        def test_of_another_tool():
            pass

        def test_without(safewrite_case):
            pass
        """
    )
    result = project.runpytest_inprocess(*PLUGIN, "--strict-markers")
    result.assert_outcomes(passed=1, failed=5, errors=1)
    result.stdout.no_fnmatch_line("*not reached*")
    result.stdout.fnmatch_lines_random(
        [
            "*through the machine: decided otherwise now.",
            "  then: * (U1: Open, and there is no way to look: unknown.)",
            "  now:  * (L1: An attempt is open: look before anything else.)",
            "*through the declaration of `cancel`, whose body did not run: decided otherwise now.",
            "*none.json` cannot be read: No such file or directory.",
            "*write it as safewrite_case(path, tool=None), not with*",
            "*same.json: the case is of the tool `cancel`, not of `x`.",
            "*the test has no marker `safewrite_case(path)`*",
        ]
    )


def test_a_marked_case_runs_the_tools_own_code(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fixture's transport in its client the body of today runs; one that was broken fails its test."""
    monkeypatch.setattr("safewrite.testing.world.PAST_PYTHON", ())
    case(project.path / "incident.json")
    project.makepyfile(
        """
        import asyncio, httpx, pytest, tools
        from safewrite import Applied, SafeWrite

        SHOWN = {"applied": {"rows": [1]}}
        mark = pytest.mark.safewrite_case("incident.json", tool=tools.cancel)

        @pytest.fixture
        def world(safewrite_case, monkeypatch):
            client = httpx.Client(base_url="http://billing", transport=safewrite_case.transport)
            monkeypatch.setattr(tools, "client", client)
            return safewrite_case

        @mark
        def test_same(world):
            assert world.replay(tools.cancel, replies=SHOWN).same

        @mark
        def test_swallowed(world, monkeypatch):
            def cancel(sub_id, attempt):
                try:
                    tools.client.post("/cancel", headers=attempt.headers, timeout=attempt.timeout)
                except httpx.TimeoutException:
                    return None
            monkeypatch.setattr(tools.cancel.tool, "fn", cancel)
            world.replay(tools.cancel, replies=SHOWN)

        @mark
        def test_forgotten(safewrite_case):
            safewrite_case.replay(tools.cancel, replies=SHOWN)

        @mark
        def test_a_coroutine(world):
            declared = {"target": "sub_id", "name": "cancel", "dependency": tools.billing, "timeout": 30.0}

            @SafeWrite("sqlite://").write(**declared)
            async def cancel(sub_id, attempt):
                async with httpx.AsyncClient(base_url="http://billing", transport=world.transport) as client:
                    sent = {"headers": attempt.headers, "timeout": attempt.timeout}
                    return (await client.post("/cancel", **sent)).text

            @cancel.reconcile
            async def _(attempt):
                return Applied("found")

            world.replay(cancel)
        """
    )
    result = project.runpytest_inprocess(*PLUGIN, "--strict-markers")
    result.stdout.fnmatch_lines_random(
        [
            "*AssertionError: *through the body of `cancel`: decided otherwise now.",
            "*  then: Attempt 1 ended: unknown (`read_timeout`). *",
            "*  now:  Attempt 1 ended: applied (`returned`). The body returned a value.*",
            "*CaseUnusable: nothing stands between the body and the real world.*",
        ]
    )
    result.assert_outcomes(passed=2, failed=2)


def test_the_reference_names_all_that_there_is() -> None:
    """Every fixture, step, point of a crash and name of the package."""
    page = (ROOT / "docs/reference/testing.md").read_text()
    fixtures = re.findall(r"@pytest.fixture\ndef (\w+)", (ROOT / "safewrite/testing/plugin.py").read_text())
    assert len(fixtures) == 8
    for name in (*fixtures, *BEHAVIOURS, *lab._POINTS, *kit.__all__):
        assert re.search(rf"`{name}\b", page), name
    fields = (*Case.model_fields, *(f.name for f in dataclasses.fields(Difference)))
    assert not [name for name in fields if f"`{name}`" not in page]


def test_it_imports_nothing_of_ours_until_it_is_used(tmp_path: Path) -> None:
    """Found by its entry point in every project, it costs nothing where no fixture of it is used."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    metadata = tmp_path / "entry" / "declared-1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 1\n")
    points = "".join(f"{name} = {module}\n" for name, module in declared.items())
    (metadata / "entry_points.txt").write_text(f"[pytest11]\n{points}")
    (tmp_path / "test_it.py").write_text(
        """
import sys

def test_nothing_is_loaded(pytestconfig):
    assert pytestconfig.pluginmanager.has_plugin("safewrite")
    ours = {name for name in sys.modules if name.split(".")[0] == "safewrite"}
    assert ours == {"safewrite", "safewrite.testing", "safewrite.testing.plugin"}
    assert not {"httpx", "sqlalchemy", "pydantic", "typer", "tenacity", "alembic", "rich"} & set(sys.modules)

def test_until_a_fixture_is_used(manual_clock):
    assert "safewrite.testing.clock" in sys.modules
"""
    )
    others = {found.name for found in entry_points(group="pytest11")} - set(declared)
    without = [part for name in sorted(others) for part in ("-p", f"no:{name}")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *without, "test_it.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "entry"), str(ROOT)]),
            "PYTEST_ADDOPTS": "",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
