"""Every interleaving around the real machine: no promise breaks in a world that keeps what it declares.

`python -m tests.core.world` prints the figures; `--deep`, or SAFEWRITE_DEEP=1 for these tests, follows every world to
its end instead of a sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.core.catalog import chosen, combinations, pairs
from tests.core.explore import MOST, Explored, explore
from tests.core.setting import EVER, Setting

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
    due: set[str] = set()
    came: set[str] = set()
    for setting in COMBINATIONS[group]:
        found = explore(setting, 10**9 if DEEP else MOST // 20)
        assert not found.broken, str(found)
        due |= {what for what, (is_due, _) in SITUATIONS.items() if is_due(setting)}
        came |= {what for what, (_, happened) in SITUATIONS.items() if happened(found)}
    assert due <= came


def named(text: str) -> Callable[[Explored], bool]:
    """Return whether a move was made whose name has this in it."""
    return lambda found: any(text in move for move in found.happened)


def expired(found: Explored) -> bool:
    """Whether time went on after the dependency had forgotten a key."""
    ends = found.setting.key or 0.0
    return any(wish.key_kind and w.t >= wish.key_at + ends for w in found.worlds for wish in w.wishes)


SITUATIONS: dict[str, tuple[Callable[[Setting], bool], Callable[[Explored], bool]]] = {
    "a key expires": (lambda s: s.key not in (None, EVER), expired),
    "a key is recognised": (lambda s: s.key is not None, named("arrives: known, ok")),
    "an error is replayed": (lambda s: s.errors, named("arrives: known, 500")),
    "a third attempt is made": (
        lambda s: s.crashes and s.key is not None, lambda found: any(len(w.atts) == 3 for w in found.worlds)
    ),
    "a sender dies": (lambda s: s.crashes, lambda found: any(a.body == "dead" for w in found.worlds for a in w.atts)),
    "a read sees nothing": (lambda s: s.reads == "key", named("read ends: not_applied")),
    "a goal is met": (lambda s: s.reads == "goal", named("read ends: goal_met")),
    "a precondition fails": (lambda s: s.precondition, named("ends: 412")),
    "a deadline passes": (lambda s: s.deadline, named("arrives: too late")),
}  # fmt: skip
"""What combinations are there for: where it is due, and whether it came to pass."""
