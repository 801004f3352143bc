"""What the pages must say, and that what they say leads somewhere."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import safewrite
from safewrite import errors, settings
from safewrite.ledger import tables

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
API = (ROOT / "docs/reference/api.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_pages(page: Path) -> None:
    """Every relative link of a page leads to something that is there."""
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_names_a_machine(page: Path) -> None:
    """Pages hold no path of the machine that they were written on."""
    assert not re.search(r"(?<![\w.])/(home|root|work|tmp)/", page.read_text())


@pytest.mark.parametrize("name", safewrite.__all__)
def test_every_public_name_is_in_the_reference(name: str) -> None:
    """The API reference names whatever can be imported from the package."""
    assert f"`{name}" in API


def test_every_parameter_and_field_is_in_the_reference() -> None:
    """Parameters of `SafeWrite` and `@sw.write`, fields of what comes back."""
    wanted = {
        *inspect.signature(safewrite.SafeWrite).parameters,
        *inspect.signature(safewrite.SafeWrite.write).parameters,
        *(f.name for f in dataclasses.fields(safewrite.Outcome)),
        *safewrite.WriteReport.model_fields,
        *(f.name for f in dataclasses.fields(safewrite.Alert)),
        *(n for n, _ in inspect.getmembers(safewrite.SafeWrite, inspect.isfunction) if not n.startswith("_")),
    } - {"self", "ledger", "threads", "job_for", "other"}
    assert not {name for name in wanted if not re.search(rf"`(await sw\.|sw\.)?{name}\b", API)}


def test_every_error_is_in_the_reference() -> None:
    """The page of errors has a row, or a line, for each."""
    page = (ROOT / "docs/reference/errors.md").read_text()
    assert not [name for name in errors.__all__ if f"`{name}" not in page]


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    """The page of settings has each name and its default."""
    page = (ROOT / "docs/reference/settings.md").read_text()
    for row in settings.resolve_settings({}, {}).table():
        default = f"{row.value:g}" if isinstance(row.value, float) else str(row.value)
        line = next((x for x in page.splitlines() if x.startswith(f"| `{row.name}` ")), "")
        assert default in line, f"{row.name}: {default} is not in {line!r}"


def test_every_table_is_in_the_reference() -> None:
    """The tables and their columns are public, and documented."""
    page = (ROOT / "docs/reference/audit-table.md").read_text()
    for table in tables.metadata.sorted_tables:
        assert table.name in page
        assert not [c.name for c in table.columns if f"`{c.name}`" not in page]
