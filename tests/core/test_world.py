"""Every interleaving around the real machine: no promise breaks in a world that keeps what it declares.

`python -m tests.core.world` prints the figures; `--deep`, or SAFEWRITE_DEEP=1 for these tests, follows every world to
its end instead of a sample.
"""

from __future__ import annotations

import os

import pytest

from tests.core.catalog import chosen
from tests.core.explore import explore
from tests.core.setting import Setting

MOST = 10**9 if os.environ.get("SAFEWRITE_DEEP") else 10_000
CHOSEN = list(chosen())


@pytest.mark.parametrize("setting", CHOSEN, ids=[s.name for s in CHOSEN])
def test_no_promise_breaks(setting: Setting) -> None:
    """No interleaving of callers, dependency, crashes and others breaks a promise."""
    found = explore(setting, MOST)
    assert not found.broken, str(found)
