"""What is shipped: built as for a release, installed in an environment made from nothing, used from elsewhere."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]


def run(*command: str | Path, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, without what this environment would lend to it."""
    lent = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {
        name: text
        for name, text in os.environ.items()
        if name not in lent and not name.startswith("SAFEWRITE_")
    }
    done = subprocess.run(
        command, cwd=cwd, env={**kept, **environ}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the sdist, and the wheel that was built from that sdist."""
    place = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", place, ROOT, cwd=place)
    return place


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """Return the wheel."""
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of a new environment that holds the wheel and what it depends on."""
    place = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", place, cwd=place.parent)
    programs = place / "bin"
    run(programs / "python", "-m", "pip", "install", "--disable-pip-version-check", wheel, cwd=place.parent)
    return programs


def test_the_wheel_holds_the_package_and_its_migrations(wheel: Path) -> None:
    """Every module and every migration is in it, and nothing else of the project."""
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "safewrite").rglob("*.py")}
    migrations = {
        f"safewrite/_migrations/{path.relative_to(ROOT / 'migrations')}"
        for path in (ROOT / "migrations").rglob("*.py")
    }
    assert "safewrite/_migrations/env.py" in migrations
    assert len(migrations) > 1
    assert modules | migrations | {"safewrite/py.typed"} <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"safewrite"}
    assert not [name for name in names if "__pycache__" in name or name.endswith((".db", ".pyc"))]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_sdist_holds_all_that_it_takes_to_build_and_check(built: Path) -> None:
    """Source, migrations, tests, docs and scripts are in it; from it a packager can do everything again."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "pyproject.toml"} <= names
    assert {"migrations/env.py", "safewrite/errors.py", "scripts/check", "tests/test_packaging.py"} <= names
    assert any(name.startswith("docs/") for name in names)
    assert not [name for name in names if name.startswith((".venv", ".git/")) or "__pycache__" in name]


def test_every_module_imports_with_the_core_dependencies_alone(installed: Path, tmp_path: Path) -> None:
    """Nothing but adapters and the PostgreSQL ledger, behind extras, needs a package that an install does not bring."""
    behind = (
        "safewrite.adapters.",
        "safewrite._migrations",
        "safewrite.ledger.lines",
        "safewrite.ledger.pool",
        "safewrite.testing.plugin",  # imported by pytest
    )
    code = (
        "import importlib, pkgutil, safewrite\n"
        "for found in pkgutil.walk_packages(safewrite.__path__, 'safewrite.'):\n"
        f"    if not found.name.startswith({behind!r}):\n"
        "        importlib.import_module(found.name)\n"
        "print(safewrite.__file__)\n"
    )
    done = run(installed / "python", "-W", "error", "-c", code, cwd=tmp_path)
    assert done.stdout.strip().startswith(str(installed.parent))


def test_the_command_is_there(installed: Path, tmp_path: Path) -> None:
    """`safewrite --help` names the commands."""
    done = run(installed / "safewrite", "--help", cwd=tmp_path, NO_COLOR="1", COLUMNS="120")
    for command in ("demo", "db", "runs", "run", "show", "unknown", "recover", "resolve", "settings"):
        assert f" {command} " in done.stdout


def test_an_installed_safewrite_migrates_a_database(installed: Path, tmp_path: Path) -> None:
    """The migrations are found in the wheel: `db upgrade` makes the tables, `db check` finds them current."""
    url = {"SAFEWRITE_DATABASE_URL": "sqlite:///ledger.db"}
    run(installed / "safewrite", "db", "upgrade", cwd=tmp_path, **url)
    run(installed / "safewrite", "db", "check", cwd=tmp_path, **url)
    ledger = sqlite3.connect(tmp_path / "ledger.db")
    try:
        tables = {name for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    finally:
        ledger.close()
    assert {"safewrite_intent", "safewrite_audit", "safewrite_alembic_version"} <= tables


def test_an_installed_safewrite_runs_its_demo(installed: Path, tmp_path: Path) -> None:
    """`safewrite demo` ends with 0: what happened at the dependency and what was told agree on every line."""
    done = run(installed / "safewrite", "demo", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)
