"""The reference says what there is: every command, option, exit code, field, column, event and rule."""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer

from safewrite.audit import records
from safewrite.cli.app import app
from safewrite.cli.exits import MEANINGS
from safewrite.core import commands
from safewrite.core.phrases import EVIDENCE
from safewrite.core.rules import RULES
from safewrite.ledger.rows import COMMANDS, FACTS
from tests.cli.conftest import ROOT, Filled

REFERENCE = ROOT / "docs" / "reference"
CLI = (REFERENCE / "cli.md").read_text(encoding="utf-8")
TABLES = (REFERENCE / "audit-table.md").read_text(encoding="utf-8")


def every_command(group: Any = None, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return every command by its words, groups included."""
    group = group if group is not None else typer.main.get_command(app)
    found = {}
    for name, command in group.commands.items():
        found[" ".join((*path, name))] = command
        if hasattr(command, "commands"):
            found |= every_command(command, (*path, name))
    return found


def section(page: str, heading: str) -> str:
    """Return the part of a page under a heading, up to the next of its rank or higher."""
    found = re.search(rf"^(#+) {re.escape(heading)}(?:[^\w\n][^\n]*)?$", page, re.MULTILINE)
    assert found is not None, f"`{heading}` has no section"
    rest = page[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def first_cells(text: str) -> list[str]:
    """Return the first cell of every row of the tables in a text, without its back quotes."""
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


@pytest.mark.parametrize("name", every_command())
def test_every_command_is_documented_with_its_help(name: str) -> None:
    """It has a section, with its help in it, and so with its options."""
    text = section(CLI, f"`safewrite {name}`")
    assert f"<!-- help: {name} -->" in text
    command = every_command()[name]
    for parameter in command.params:
        for option in getattr(parameter, "opts", ()):
            if option.startswith("-"):
                assert re.search(rf"(^|[\s,]){re.escape(option)}\b", text), f"{name} {option}"


def test_every_option_before_the_command_is_documented() -> None:
    """Those of `safewrite` itself."""
    top = CLI.partition("## What all commands share")[0]
    for option in ("--url", "--no-color", "--traceback", "--version", "--help"):
        assert option in top


def test_every_exit_code_is_documented() -> None:
    """Number and meaning, and no others."""
    rows = re.findall(r"^\| (\d+) \| (.+) \|$", section(CLI, "Exit codes"), re.MULTILINE)
    assert rows == [(str(code.value), meaning) for code, meaning in MEANINGS.items()]


@pytest.mark.parametrize(
    "kind", ["RunRecord", "IntentRecord", "AttemptRecord", "RowRecord", "ContentRecord", "OpenRecord"]
)
def test_every_field_of_a_json_document_is_documented(kind: str) -> None:
    """With a meaning, in the order in which it is printed."""
    text = CLI.partition(f"<!-- fields: {kind} -->")[2].partition("<!-- end -->")[0]
    fields = vars(records)[kind].__dataclass_fields__
    assert first_cells(text) == list(fields)
    assert "|  |" not in text


def test_the_written_parts_are_up_to_date() -> None:
    """Rules, help, exit codes and fields are what the code says: run scripts/docs."""
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "docs", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_not_up_to_date_is_seen(tmp_path: Path) -> None:
    """The check above fails when it should."""
    for name in ("scripts", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "safewrite").symlink_to(ROOT / "safewrite")
    (tmp_path / "docs" / "reference").mkdir()
    (tmp_path / "scripts" / "docs").write_bytes((ROOT / "scripts" / "docs").read_bytes())
    stale = CLI.replace("| 0 | done; nothing to report |", "| 0 | fine |")
    assert stale != CLI
    (tmp_path / "docs" / "reference" / "cli.md").write_text(stale, encoding="utf-8")
    script = [sys.executable, tmp_path / "scripts" / "docs"]
    done = subprocess.run([*script, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert [line.split()[0] for line in done.stderr.splitlines()] == [
        "docs/reference/rules.md",
        "docs/reference/cli.md",
    ]
    subprocess.run(script, check=True)
    assert (tmp_path / "docs" / "reference" / "cli.md").read_text(encoding="utf-8") == CLI
    assert subprocess.run([*script, "--check"], check=False).returncode == 0


def test_every_rule_is_on_its_page() -> None:
    """Id and sentence."""
    page = (REFERENCE / "rules.md").read_text(encoding="utf-8")
    assert dict(re.findall(r"^\| `(\w\d)` \| (.+) \|$", page, re.MULTILINE)) == RULES


def test_every_table_and_column_is_documented(original: Filled) -> None:
    """In the order of the table, whatever is in a ledger that was really made, the view included."""
    with closing(sqlite3.connect(original.path)) as ledger:
        names = [
            name
            for (name,) in ledger.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            if not name.startswith("sqlite_")
        ]
        assert len(names) == 7
        for name in names:
            columns = [row[1] for row in ledger.execute(f"PRAGMA table_info({name})")]
            text = section(TABLES, f"`{name}`").partition("\n### ")[0]
            assert first_cells(text) == columns, name


def test_every_event_command_and_kind_of_evidence_is_documented() -> None:
    """The codes that stand in the columns."""
    assert first_cells(section(TABLES, "Events")) == list(FACTS)
    told = re.search(r"^\| `command` .*$", TABLES, re.MULTILINE)
    assert told is not None
    assert re.findall(r"`(\w+)`", told[0])[1:] == list(COMMANDS)
    assert len(COMMANDS) == len(commands.Command.__args__)  # type: ignore[attr-defined]
    told = re.search(r"^\| `evidence` .*$", TABLES, re.MULTILINE)
    assert told is not None
    assert set(re.findall(r"`(\w+)`", told[0])[1:]) == set(EVIDENCE)


def test_the_query_in_the_reference_runs(original: Filled) -> None:
    """What is printed there to be copied works."""
    (query,) = re.findall(r"```sql\n(.*?)```", TABLES, re.DOTALL)
    with closing(sqlite3.connect(original.path)) as ledger:
        assert ledger.execute(query).fetchall() == []


def test_words_that_the_project_does_not_use_are_not_on_these_pages() -> None:
    """Nothing here is promised that nobody can keep."""
    for path in sorted(REFERENCE.glob("*.md")):
        text = path.read_text(encoding="utf-8").lower()
        for word in ("exactly-once", "immutable", "guaranteed"):
            assert word not in text, path.name
