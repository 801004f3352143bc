"""The house: arrows point down, the core is pure, importing is light, and the public names are complete."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import safewrite
from safewrite import errors

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "safewrite"
CORE = sorted((PACKAGE / "core").rglob("*.py"))

IMPURE_NAMES = {"open", "print", "input", "eval", "exec", "compile", "breakpoint", "__import__", "hash"}
"""Built-ins that do I/O or differ from process to process."""
IMPURE_MODULES = {
    "asyncio", "getpass", "io", "logging", "multiprocessing", "os", "platform", "random", "secrets", "signal", "socket",
    "subprocess", "sys", "tempfile", "threading", "time", "urllib", "warnings",
}  # fmt: skip
IMPURE_METHODS = {
    "datetime.now", "datetime.today", "datetime.utcnow", "date.today", "datetime.datetime.now",
    "datetime.datetime.utcnow", "datetime.date.today", "uuid.uuid1", "uuid.uuid4", "Path.cwd", "Path.home",
}  # fmt: skip
METHODS_OF_PATHS = {
    "read_text",
    "read_bytes",
    "write_text",
    "write_bytes",
    "exists",
    "iterdir",
    "stat",
    "resolve",
}


def lint_imports(where: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of the project in a folder."""
    command = Path(sys.executable).with_name("lint-imports")
    environ = {**os.environ, "COLUMNS": "200", "PYTHONPATH": str(where)}
    return subprocess.run(
        [command, "--no-cache", "--no-logo"],
        cwd=where,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )


def test_arrows_point_down() -> None:
    """Every room uses only those below it, and every room has its place."""
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "line", "broken"),
    [
        ("core/events.py", "import time", "safewrite.core is not allowed to import time"),
        (
            "core/events.py",
            "from safewrite import errors",
            "safewrite.core is not allowed to import safewrite.errors",
        ),
        (
            "errors.py",
            "import safewrite.settings",
            "safewrite.errors is not allowed to import safewrite.settings",
        ),
        ("settings.py", "import pydantic_settings", "safewrite is not allowed to import pydantic_settings"),
        ("cellar.py", "", "cellar"),
    ],
)
def test_an_arrow_that_points_up_is_seen(tmp_path: Path, module: str, line: str, broken: str) -> None:
    """The check above fails when it should: for a bad import, and for a room without a place."""
    shutil.copytree(PACKAGE, tmp_path / "safewrite", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "safewrite" / module).open("a") as source:
        source.write(f"\n{line}\n")
    done = lint_imports(tmp_path)
    assert done.returncode != 0
    assert broken in done.stdout + done.stderr


# Purity of the core -----------------------------------------------------------------------------------------------


def impurities(source: str) -> Iterator[str]:
    """Yield what a module imports or names that a pure one may not."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if not _may_import(alias.name))
            case ast.ImportFrom(module=module, names=names):
                if not _may_import(module or "", relative=node.level > 0):
                    yield str(module)
                full = (f"{module}.{alias.name}" for alias in names)
                yield from (name for name in full if name in IMPURE_METHODS)
            case ast.Name(id=name) if name in IMPURE_NAMES:
                yield name
            case ast.Attribute(attr=attr):
                name = ast.unparse(node)
                if (
                    name in IMPURE_METHODS
                    or attr in METHODS_OF_PATHS
                    or name.partition(".")[0] in IMPURE_MODULES
                ):
                    yield name


def _may_import(module: str, relative: bool = False) -> bool:
    top = module.partition(".")[0]
    if relative or top == "safewrite":
        return not relative and (module == "safewrite.core" or module.startswith("safewrite.core."))
    return top in sys.stdlib_module_names and top not in IMPURE_MODULES


@pytest.mark.parametrize("module", CORE, ids=lambda path: path.name)
def test_the_core_is_pure(module: Path) -> None:
    """No clock, I/O, randomness or logging; nothing but the standard library and the core itself."""
    assert list(impurities(module.read_text())) == []


@pytest.mark.parametrize(
    "line",
    [
        "import time",
        "from time import monotonic",
        "import logging",
        "import os.path",
        "import httpx",
        "from safewrite.errors import SafeWriteError",
        "from safewrite import core",
        "from . import events",
        "from uuid import uuid4",
        "at = time.time()",
        "at = datetime.now(UTC)",
        "at = datetime.datetime.now()",
        "day = date.today()",
        "text = open('x').read()",
        "text = path.read_text()",
        "print(1)",
        "key = hash('x')",
        "name = random.choice('ab')",
    ],
)
def test_an_impurity_is_seen(line: str) -> None:
    """The check above fails when it should."""
    assert len(list(impurities(line))) >= 1


@pytest.mark.parametrize(
    "line",
    [
        "now = call.now",
        "from safewrite.core.events import Moment",
        "import math, re, hashlib",
        "from datetime import datetime, timedelta",
        "'open the logging of time.time()'  # random",
    ],
)
def test_purity_is_not_overdone(line: str) -> None:
    """Values, words in texts and pure modules are no impurity."""
    assert list(impurities(line)) == []


# Names and imports ------------------------------------------------------------------------------------------------


def test_no_room_imports_through_the_front_door() -> None:
    """Inside, modules import from each other: a public name taken from `safewrite` would hide an arrow."""
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    for path in sorted(PACKAGE.rglob("*.py")):
        if path == PACKAGE / "__init__.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "safewrite":
                taken = {alias.name for alias in node.names}
                assert taken <= rooms, f"{path.relative_to(ROOT)}:{node.lineno}"


LONGER = {"errors.py", "guard.py", "ledger/sql.py"}
"""One surface in one piece each: the tree of errors, `SafeWrite`, the ledger."""


def test_no_module_is_two() -> None:
    """Beyond four hundred lines a module is two things; those that are one are named here and in CONTRIBUTING.md."""
    lines = {str(m.relative_to(PACKAGE)): len(m.read_text().splitlines()) for m in PACKAGE.rglob("*.py")}
    assert {name for name, count in lines.items() if count > 400} == LONGER
    told = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(f"`{name}`" in told for name in LONGER)


def test_importing_safewrite_is_light() -> None:
    """`import safewrite` imports none of the packages that it depends on."""
    heavy = {
        "alembic",
        "asyncio",
        "httpx",
        "pydantic",
        "pydantic_settings",
        "rich",
        "sqlalchemy",
        "tenacity",
        "typer",
    }
    code = f"import sys; import safewrite; print(*sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


PUBLIC = {
    "ALL_ARGUMENTS", "Applied", "Attempt", "Deadline", "Dependency", "GoalMet", "GoalNotMet", "Inconclusive",
    "NotApplied", "Outcome", "SafeWrite", "StillRunning", "WriteReport", "current_attempt", "run", "turn",
    *errors.__all__,
}  # fmt: skip


def test_all_public_names_are_there() -> None:
    """`__all__` is sorted, holds every documented name and every error, and each can be had."""
    names = list(safewrite.__all__)
    assert sorted(names) == names
    assert set(names) >= PUBLIC
    assert set(names) <= set(dir(safewrite))
    for name in names:
        assert getattr(safewrite, name) is not None
    for name in errors.__all__:
        assert getattr(safewrite, name) is getattr(errors, name)


def test_type_checkers_see_the_same_names() -> None:
    """What `__init__` imports for type checkers is what `__all__` lists, and what is imported late."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    seen = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("safewrite.")
        for alias in node.names
    }
    assert {name for name in safewrite.__all__ if not name.startswith("__")} == seen


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A late import does not hide a misspelling."""
    with pytest.raises(AttributeError, match="SafeWrit"):
        _ = safewrite.SafeWrit  # type: ignore[attr-defined]


# The two commands -------------------------------------------------------------------------------------------------


def test_ci_runs_what_the_readme_says() -> None:
    """The second command of the README is the one that CI runs."""
    assert "\n./scripts/check\n" in (ROOT / "README.md").read_text()
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith(" ./scripts/check")
    for script in (ROOT / "scripts" / "check", ROOT / ".ci" / "run"):
        assert os.access(script, os.X_OK)
        assert "set -euo pipefail" in script.read_text()
