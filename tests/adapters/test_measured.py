"""The page that says what frameworks do to a write says what is measured now."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PAGE = (HERE.parent.parent / "docs/explanation/what-frameworks-do.md").read_text()


def rows() -> Iterator[Any]:
    """Yield each row of each framework, with the module that measures it."""
    for path in sorted(HERE.glob("measured_*.py")):
        module = importlib.import_module(f"tests.adapters.{path.stem}")
        for row in module.ROWS:
            yield pytest.param(module, row, id=f"{module.FRAMEWORK}: {row.configuration}")


@pytest.mark.slow
@pytest.mark.parametrize(("module", "row"), list(rows()))
def test_a_row_of_the_page_is_what_is_measured(module: Any, row: Any, tmp_path: Path) -> None:
    """As often as the page says without the adapter, as often as it was wanted with it."""
    line = next(line for line in PAGE.splitlines() if line.startswith(f"| {row.configuration} | "))
    _, _, wanted, without, guarded, *_ = (cell.strip(" *") for cell in line.split(" | ".strip()))
    (tmp_path / "without").mkdir()
    (tmp_path / "with").mkdir()
    assert str(module.measure(row, tmp_path / "without", guarded=False)[0]) == without
    assert (
        str(module.measure(row, tmp_path / "with", guarded=True)[0]) == guarded == wanted == str(row.wanted)
    )
