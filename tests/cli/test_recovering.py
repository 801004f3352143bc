"""`recover`: an application's own tools settle what was left open."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from safewrite import recovery
from safewrite.errors import LedgerUnavailable
from tests.cli.conftest import Command
from tests.cli.test_opening import change, refused

TOOLS = """
import asyncio

from safewrite import Applied, Dependency, Inconclusive, NotApplied, SafeWrite

print("the module says hello")
BILLING = Dependency("billing", work_bound=0.0, read_lag=0.0)
FOUND = {}
sw = SafeWrite("sqlite:///agent.db", settings={"operation_timeout": 1.0})
other = 3


def make():
    return sw


async def amake():
    return sw


def broken():
    raise RuntimeError("no such tenant")


@sw.write(target="sub_id", name="cancel", dependency=BILLING, redact=("token",))
def cancel(sub_id: str, token: str = "") -> dict[str, str]:
    raise AssertionError("never sent again")


@cancel.reconcile
def _(sub_id: str):
    print("reading", sub_id)
    return FOUND.get(sub_id, Inconclusive("dark"))


@sw.write(target="sub_id", name="acancel", dependency=BILLING)
async def acancel(sub_id: str) -> dict[str, str]:
    if FOUND.get("works"):
        return {"id": sub_id}
    raise AssertionError("not to be sent")


@acancel.reconcile
async def _(sub_id: str):
    await asyncio.sleep(0)
    return FOUND.get(sub_id, Inconclusive("dark"))
"""

FILL = """
import asyncio

import safewrite
from safewrite import Dependency, SafeWrite

BILLING = Dependency("billing", work_bound=0.0, read_lag=0.0)
sw = SafeWrite("sqlite:///agent.db")


@sw.write(target="sub_id", name="cancel", dependency=BILLING, redact=("token",))
def cancel(sub_id: str, token: str = "") -> dict[str, str]:
    raise TimeoutError


@sw.write(target="sub_id", name="acancel", dependency=BILLING)
async def acancel(sub_id: str) -> dict[str, str]:
    raise TimeoutError


with safewrite.run("run-1"), safewrite.turn(1):
    cancel.outcome("sub_1")
    cancel.outcome("sub_2", token="secret")
    asyncio.run(acancel.outcome("sub_3"))
sw.close()  # all of it into the one file that is copied
"""


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a ledger with three open intents: two of a plain tool, one of a coroutine tool."""
    import os
    import subprocess

    place = tmp_path_factory.mktemp("lost")
    (place / "fill.py").write_text(FILL)
    root = Path(__file__).parent.parent.parent
    environ = {**os.environ, "PYTHONPATH": str(root)}
    subprocess.run(
        [sys.executable, "fill.py"], cwd=place, env=environ, check=True, timeout=60, stdout=subprocess.PIPE
    )
    return place / "agent.db"


@pytest.fixture
def place(lost: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a working directory with that ledger; what is imported from it is forgotten afterwards."""
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "agent.db").write_bytes(lost.read_bytes())
    monkeypatch.chdir(folder)
    before, path = set(sys.modules), list(sys.path)
    yield folder
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("tools", "needy", "failing", "leaving", "pack"):
            del sys.modules[name]


def tools(place: Path, more: str = "") -> None:
    """Write the application's module."""
    (place / "tools.py").write_text(TOOLS + dedent(more))


def test_what_reads_can_tell_is_settled(run: Command, place: Path) -> None:
    """Each open intent is looked at by its own tool, plain or coroutine, and the rest stays unknown: exit 1."""
    tools(place, 'FOUND.update(sub_1=Applied({"id": "sub_1"}), sub_3=Applied({"id": "sub_3"}))')
    done = run("recover", "tools:sw")
    assert done.code == 1
    *lines, last = done.out.splitlines()
    names, *rows = [line.split("\t") for line in lines]
    told = {row[1]: dict(zip(names, row, strict=True)) for row in rows}
    assert {target: row["outcome"] for target, row in told.items()} == {
        "sub_1": "applied", "sub_2": "unknown", "sub_3": "applied",
    }  # fmt: skip
    assert told["sub_2"]["reason"] == "dark"
    assert last == "3 open: now 2 applied, 0 not applied, 1 unknown."


def test_nothing_left_unknown_ends_well(run: Command, place: Path) -> None:
    """All settled: exit 0; and a second run finds nothing open."""
    tools(place, "FOUND.update(sub_1=NotApplied(), sub_2=NotApplied(), sub_3=NotApplied())")
    done = run("recover", "tools:sw", "--json")
    assert (done.code, done.document["not_applied"], done.document["unknown"]) == (0, 3, 0)
    assert run("recover", "tools:sw").out == "Nothing was open.\n"


def test_what_the_module_prints_goes_to_standard_error(run: Command, place: Path) -> None:
    """Standard output is the answer alone, so that it stays one document."""
    tools(place, "FOUND.update(sub_1=NotApplied())")
    done = run("recover", "tools:sw", "--json")
    assert [f["target"] for f in done.document["found"]] == ["sub_1", "sub_2", "sub_3"]
    assert "the module says hello" in done.err
    assert "reading sub_1" in done.err


def test_proven_not_applied_is_sent_again_only_when_asked(run: Command, place: Path) -> None:
    """With `--resend` it is sent; what lacks a redacted argument is read and settled all the same, and says so."""
    tools(place, "FOUND.update(sub_1=NotApplied(), sub_2=NotApplied(), sub_3=NotApplied(), works=True)")
    done = run("recover", "tools:sw", "--resend", "--json")
    found = {f["target"]: f for f in done.document["found"]}
    assert {target: f["outcome"] for target, f in found.items()} == {
        "sub_1": "not_applied", "sub_2": "not_applied", "sub_3": "applied",
    }  # fmt: skip
    assert found["sub_1"]["problem"] == "token redacted: it can be read, not sent again"
    assert (found["sub_3"]["problem"], done.code) == ("", 0)


def test_tools_that_are_not_declared_are_reported(run: Command, place: Path) -> None:
    """An intent of an unknown tool stays unknown, and the line says what is missing."""
    (place / "tools.py").write_text('from safewrite import SafeWrite\nsw = SafeWrite("sqlite:///agent.db")\n')
    done = run("recover", "tools:sw", "--json")
    assert done.code == 1
    assert done.document["problems"] == 3
    assert "`cancel` is not declared" in done.document["found"][0]["problem"]
    assert "3 with a problem" in run("recover", "tools:sw").out


@pytest.mark.parametrize("name", ["make", "Holder.sw"])
def test_the_safewrite_can_be_made_by_a_function_or_be_an_attribute(
    run: Command, place: Path, name: str
) -> None:
    """A function without parameters is called; dots lead inside."""
    tools(
        place,
        "FOUND.update(sub_1=NotApplied(), sub_2=NotApplied(), sub_3=NotApplied())\nclass Holder: sw = sw",
    )
    assert run("recover", f"tools:{name}").code == 0


def test_a_module_in_a_package_is_found(run: Command, place: Path) -> None:
    """The working directory is looked in first."""
    (place / "pack").mkdir()
    (place / "pack" / "__init__.py").touch()
    (place / "pack" / "inner.py").write_text(
        'from safewrite import SafeWrite\nsw = SafeWrite("sqlite:///new.db")\n'
    )
    assert run("db", "upgrade", "--url", "sqlite:///new.db").code == 0
    assert run("recover", "pack.inner:sw").out == "Nothing was open.\n"


def test_a_ledger_that_is_not_there_is_not_made(run: Command, place: Path) -> None:
    """Run in the wrong folder, it must not report that all is well."""
    tools(place)
    (place / "agent.db").unlink()
    done = run("recover", "tools:sw")
    assert (done.code, done.out) == (3, "")
    assert f"There is no ledger in `{place / 'agent.db'}`" in done.err.splitlines()[-1]
    assert not (place / "agent.db").exists()


BAD = {
    "no colon": ("tools", "is not of the form MODULE:SW"),
    "no name": ("tools:", "is not of the form MODULE:SW"),
    "a file": ("tools.py:sw", "`tools.py` is a file"),
    "no module": ("nowhere:sw", "There is no module `nowhere`"),
    "no module in a package": ("nowhere.at.all:sw", "There is no module `nowhere.at.all`"),
    "no attribute": ("tools:sv", "`tools` has no `sv`. There is `sw`."),
    "something else": ("tools:other", "is a `int`, not a SafeWrite"),
    "a coroutine function": ("tools:amake", "is a coroutine function"),
    "a function that fails": ("tools:broken", "`tools:broken()` failed: RuntimeError: no such tenant"),
    "a module that needs another": ("needy:sw", "`needy` needs `nowhere`, which is not installed"),
    "a module that fails": ("failing:sw", "`failing` cannot be imported: ZeroDivisionError"),
    "a module that exits": ("leaving:sw", "`leaving` cannot be imported: SystemExit"),
}


@pytest.mark.parametrize(("where", "said"), BAD.values(), ids=BAD)
def test_what_leads_to_no_safewrite_is_bad_input(run: Command, place: Path, where: str, said: str) -> None:
    """Each mistake is told in one line, and nothing is looked at."""
    tools(place)
    (place / "needy.py").write_text("import nowhere")
    (place / "failing.py").write_text("1 / 0")
    (place / "leaving.py").write_text("raise SystemExit('bye')")
    done = run("recover", where)
    assert (done.code, done.out) == (2, "")
    assert said in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


def test_a_url_beside_a_module_is_refused(run: Command, place: Path) -> None:
    """Two ledgers are one too many."""
    tools(place)
    assert "leave `--url` out" in refused(run("--url", "sqlite:///agent.db", "recover", "tools:sw"), 2)


def test_a_ledger_that_cannot_be_used_is_told_so(run: Command, place: Path) -> None:
    """The application's own ledger is checked first; a newer one ends with 3."""
    tools(place)
    change(place / "agent.db", "UPDATE safewrite_alembic_version SET version_num = 'sw_9999'")
    done = run("recover", "tools:sw")
    assert (done.code, done.out) == (3, "")
    assert "sw_9999" in done.err.splitlines()[-1]
    (place / "agent.db").write_text("no database, but long enough to be looked at " * 9)
    done = run("recover", "tools:sw")
    assert done.code == 3
    assert "is not a SQLite database" in done.err.splitlines()[-1]


# Going on ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at_import", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_it_goes_on_until_it_is_told_to_stop(place: Path, at_import: str) -> None:
    """A summary for every look; SIGTERM ends it between two, a good end, whoever took that signal before."""
    tools(place, f'FOUND.update(sub_1=Applied({{"id": "sub_1"}}))\n{at_import}')
    command = [sys.executable, "-c", "from safewrite.cli import main; main()"]
    with subprocess.Popen(
        [*command, "recover", "tools:sw", "--every", "0.1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert (first["applied"], first["unknown"], first["stopped"]) == (1, 2, False)
    assert (second["applied"], second["unknown"]) == (0, 2)


@pytest.mark.parametrize(("more", "code"), [((), 1), (("--every", "0.1"), 0)])
def test_a_stop_while_the_application_is_imported_is_a_stop(
    place: Path, more: tuple[str, ...], code: int
) -> None:
    """The import comes to its end, and nothing is looked at."""
    tools(place, "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    done = subprocess.run(
        [sys.executable, "-c", "from safewrite.cli import main; main()", "recover", "tools:sw", *more],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert (done.returncode, done.stdout) == (code, "It was stopped before it looked at anything.\n")


def test_a_look_that_is_stopped_says_so_and_is_not_complete(
    run: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The intent it is at is finished; Ctrl-C again would have ended it at once."""
    more = """
    import os, signal


    class Interrupting(dict):
        def get(self, sub_id, _):
            os.kill(os.getpid(), signal.SIGINT)
            return Applied({"id": sub_id})


    FOUND = Interrupting()
    """
    tools(place, more)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = run("recover", "tools:sw")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == 1
    assert done.out.splitlines()[-1] == (
        "1 open: now 1 applied, 0 not applied, 0 unknown. It was stopped before the end."
    )


def test_a_look_that_is_stopped_at_once_does_not_say_that_nothing_was_open(
    run: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told to stop before it looks, it knows nothing of what is open."""
    tools(place)
    arecover = recovery.arecover

    def told(*args: Any, **more: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return arecover(*args, **more)

    monkeypatch.setattr("safewrite.recovery.arecover", told)
    assert run("recover", "tools:sw").out == "It was stopped before it looked at anything.\n"


def test_a_ledger_that_is_away_for_a_while_does_not_end_it(
    run: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--every` it is told, and there is a next time; without, the command fails."""
    tools(place)
    monkeypatch.setattr("safewrite.cli.recovering.Stopping.wait", lambda *_: True)

    def away(*_: object, **__: object) -> None:
        raise LedgerUnavailable("the ledger is away", reason="ledger_unreachable")

    monkeypatch.setattr("safewrite.recovery.arecover", away)
    done = run("recover", "tools:sw", "--every", "5")
    assert (done.code, done.out) == (0, "")
    assert "the ledger is away" in done.err
    assert run("recover", "tools:sw").code != 0
