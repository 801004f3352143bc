"""Documents as somebody else may have written them: JSON of any shape, and good JSON with one thing altered."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

DEEP = bool(os.environ.get("SAFEWRITE_DEEP"))


def examples(few: int) -> settings:
    """Return how many examples a test takes that opens a ledger for each: few, and with `SAFEWRITE_DEEP=1` many."""
    return settings(max_examples=few * 20 if DEEP else few)


ODD: list[Any] = [
    None, True, 0, -1, 2, 1.5, 2**63, 10**400, 1e18, 1e308, -1e308, float("inf"), float("nan"), "", "x", "\x00",
    "\ud800", "inf", "nan", "claimed", "ended", "read_ended", "applied", "not_applied", "unknown", [], {},
    [[]], {"a": 1},
]  # fmt: skip
"""What stands nowhere in a good document, or in another place of it."""


def anything(names: st.SearchStrategy[str], *leaves: Any, size: int = 12) -> st.SearchStrategy[Any]:
    """Return any JSON whose objects have these names, or others."""
    leaf = st.sampled_from([*ODD, *leaves]) | st.integers() | st.floats() | st.text(max_size=6)
    return st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=4) | st.dictionaries(names | st.text(max_size=3), inner, max_size=4)
        ),
        max_leaves=size,
    )


def places(document: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to everything inside a document."""
    parts = document.items() if isinstance(document, dict) else ()
    for step, inner in enumerate(document) if isinstance(document, list) else parts:
        yield (*way, step)
        yield from places(inner, (*way, step))


@st.composite
def altered(draw: st.DrawFn, document: Any, most: int = 2) -> Any:
    """Return the document with one thing, or a few, taken out, doubled, moved or replaced."""
    made = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        ways = list(places(made))
        if not ways:
            return made
        *way, last = draw(st.sampled_from(ways))
        holder = made
        for step in way:
            holder = holder[step]
        how = draw(st.sampled_from(["replace", "replace", "nudge", "take out", "double", "turn round"]))
        if how == "take out":
            del holder[last]
        elif how == "double" and isinstance(holder, list):
            holder.insert(draw(st.integers(0, len(holder))), copy.deepcopy(holder[last]))
        elif how == "turn round" and isinstance(holder, list):
            holder.reverse()
        elif how == "nudge" and type(holder[last]) in (int, float):
            holder[last] += draw(st.sampled_from([1, -1, 0.5, 1e9, -1e9]))
        else:
            holder[last] = copy.deepcopy(draw(st.sampled_from(ODD)))
    return made
