"""Runs the Python blocks of one page, in order and in one namespace: `python tests/run_page.py PAGE`.

A block fenced as `python` is run, one fenced as `python notest` is only compiled.  What stands in a comment that
begins with `<!--python` is run, too, and not shown to readers: it makes what a block needs, or checks what it did.
A block may use `await` and `async with` at its top.

Test files are shown as `python notest`, with their name in a comment on the first line; a hidden
`run_tests(__file__)` writes all that stand above it, and runs pytest over those whose name begins with `test_`.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_OPENING = re.compile(
    r"^(?P<indent> *)(?:(?P<fence>`{3,}|~{3,}) *(?P<info>[^`]*?)|<!--(?P<hidden>python)) *$"
)
_INFOS = {"python": True, "python notest": False}


class Malformed(Exception):
    """A page cannot be read: a block that does not end, or an unknown word behind `python`."""


@dataclass(frozen=True)
class Block:
    """One block of Python: where it begins, and whether it is run."""

    line: int
    source: str
    runs: bool


def blocks(text: str) -> Iterator[Block]:
    """Yield the Python blocks of a page."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        opening = _OPENING.match(line)
        if opening is None:
            continue
        end = "-->" if opening["hidden"] else opening["fence"]
        inside: list[str] = []
        for _, inner in lines:
            if inner.strip() == end:
                break
            inside.append(inner.removeprefix(opening["indent"]))
        else:
            raise Malformed(f"line {number}: the block does not end")
        info = opening["hidden"] or opening["info"]
        if info.split()[:1] == ["python"]:
            if info not in _INFOS:
                raise Malformed(f"line {number}: `{info}` is neither `python` nor `python notest`")
            yield Block(number + 1, "\n".join(inside) + "\n", _INFOS[info])


def run_tests(page: str, only: str = ".") -> None:
    """Write the files that a page shows above the caller's line, and run their tests, or those of one of them."""
    line = sys._getframe(1).f_lineno
    for block in blocks(Path(page).read_text(encoding="utf-8")):
        name = re.match(r"# (\w+\.py)\n", block.source)
        if name is not None and block.line < line:
            Path(name[1]).write_text(block.source, encoding="utf-8")
    plugin = ("-p", "safewrite.testing.plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "--strict-markers", *plugin, only],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)


def run(page: Path, before: str = "") -> None:
    """Run the blocks of a page, after the code in `before`."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(page), "run_tests": run_tests}
    exec(compile(before, "<before>", "exec"), namespace)
    for block in blocks(page.read_text(encoding="utf-8")):
        # Lines in front, so that a traceback names the line of the page.
        source = "\n" * (block.line - 1) + block.source
        code = compile(source, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if block.runs and code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, namespace))
        elif block.runs:
            exec(code, namespace)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.stdin.read())
