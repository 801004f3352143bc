"""Every Python example in README and docs runs, as it stands, in an empty folder.  `run_page` says how they are marked.

Each page is a process of its own, so that no example lives on what another page left.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.run_page import Block, Malformed, blocks

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BEFORE: Mapping[str, str] = {
    "README.md": """
import atexit
from safewrite.testing import ScriptedDependency
dependency = ScriptedDependency(keys="forever")
dependency.start()
atexit.register(dependency.close)
BILLING_URL = dependency.url
""",
}
"""Page -> what its reader has: code that runs before its blocks.  Other pages make what they need in hidden blocks."""


def run_page(page: Path, where: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """Run the examples of a page in a folder."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SAFEWRITE_")}
    return subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "tests" / "run_page.py"), str(page)],
        input=before,
        cwd=where,
        env={**environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page: Path, tmp_path: Path) -> None:
    """In order, from an empty folder, with warnings as errors."""
    done = run_page(page, tmp_path, BEFORE.get(str(page.relative_to(ROOT)), ""))
    assert done.returncode == 0, done.stderr


def write(where: Path, text: str) -> Path:
    """Write a page."""
    page = where / "page.md"
    page.write_text(text)
    return page


def test_a_broken_example_is_seen(tmp_path: Path) -> None:
    """The check above fails when it should, and names the line of the page."""
    page = write(tmp_path, "# Page\n\n```python\nx = 1\n```\n\nText.\n\n```python\nassert x == 2\n```\n")
    done = run_page(page, tmp_path)
    assert done.returncode != 0
    assert f'"{page}", line 10' in done.stderr
    assert "AssertionError" in done.stderr


def test_what_is_not_to_be_run_is_compiled(tmp_path: Path) -> None:
    """`python notest` may need what is not there, but it has to be Python."""
    assert (
        run_page(write(tmp_path, "```python notest\nimport nowhere_at_all\n```\n"), tmp_path).returncode == 0
    )
    done = run_page(write(tmp_path, "```python notest\nimport from\n```\n"), tmp_path)
    assert "SyntaxError" in done.stderr


def test_hidden_blocks_run_in_their_place(tmp_path: Path) -> None:
    """What a reader does not see makes and checks what the examples use."""
    page = write(
        tmp_path, "<!--python\nx = 1\n-->\n\n```python\nx += 1\n```\n\n<!--python\nassert x == 3\n-->\n"
    )
    assert "line 10" in run_page(page, tmp_path).stderr


def test_examples_may_await(tmp_path: Path) -> None:
    """A block with `await` at its top is run in a loop of its own."""
    example = "import asyncio\nawait asyncio.sleep(0)\nopen('ran', 'w').close()\n"
    page = write(tmp_path, f"```python\n{example}```\n")
    assert run_page(page, tmp_path).stderr == ""
    assert (tmp_path / "ran").exists()


def test_other_languages_are_left_alone() -> None:
    """Also where a block shows how a block is written, or stands in a list."""
    shown = "```sh\nrm -rf x\n```\n````md\n```python\nraise\n```\n````\n"
    listed = "- so:\n  ```python\n  if 1:\n      x = 1\n  ```\n"
    assert list(blocks(shown + listed)) == [Block(11, "if 1:\n    x = 1\n", True)]


@pytest.mark.parametrize("text", ["```python\nx = 1\n", "```python no-test\n```\n", "<!--python\nx = 1\n"])
def test_a_page_that_cannot_be_read_is_an_error(text: str) -> None:
    """A block that does not end, or a misspelled mark, would hide examples from the check."""
    with pytest.raises(Malformed, match="line 1"):
        list(blocks(text))
