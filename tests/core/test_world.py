"""Every interleaving around the real machine: no promise breaks in a world that keeps what it declares.

`python -m tests.core.world` prints the figures; `--deep`, or SAFEWRITE_DEEP=1 for these tests, follows every world to
its end instead of a sample.
"""

from __future__ import annotations

import os

import pytest

from tests.core.catalog import chosen, combinations, pairs
from tests.core.explore import MOST, explore
from tests.core.setting import Setting

DEEP = bool(os.environ.get("SAFEWRITE_DEEP"))
CHOSEN = list(chosen())
COMBINATIONS: dict[tuple[float | None, str, int], list[Setting]] = {}
for setting in (*combinations(), *pairs()):
    COMBINATIONS.setdefault((setting.key, setting.reads, len(setting.callers)), []).append(setting)


@pytest.mark.parametrize("setting", CHOSEN, ids=[s.name for s in CHOSEN])
def test_no_promise_breaks_where_several_act(setting: Setting) -> None:
    """No interleaving of callers, dependency, crashes and others breaks a promise."""
    found = explore(setting, 10**9 if DEEP else MOST)
    assert not found.broken, str(found)


@pytest.mark.parametrize(
    "group", COMBINATIONS, ids=[f"key={k} reads={r or 'none'} callers={n}" for k, r, n in COMBINATIONS]
)
def test_no_promise_breaks_under_any_combination_of_promises(group: tuple[float | None, str, int]) -> None:
    """Whatever is declared, one that is cut off, left and answered late is told the truth; so are two, who may die."""
    for setting in COMBINATIONS[group]:
        found = explore(setting, 10**9 if DEEP else MOST // 8)
        assert not found.broken, str(found)
