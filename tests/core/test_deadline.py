"""Slices, caps and floors."""

from __future__ import annotations

from math import inf

import pytest

from safewrite.core.deadline import attempt_limit, call_limit, reserve_of


@pytest.mark.parametrize(
    ("left", "reads", "expected"),
    [
        (8.0, False, 0.0),
        (8.0, True, 2.0),
        (1.2, True, 0.5),
        (1.0, True, 0.5),
        (0.6, True, 0.3),
        (0.0, True, 0.0),
        (inf, True, 0.5),
        (inf, False, 0.0),
    ],
)
def test_the_reserve_for_the_read(left: float, reads: bool, expected: float) -> None:
    """A share of what is left, at least the floor where that fits, never more than half."""
    assert reserve_of(left, reads=reads, share=0.25, floor=0.5) == expected


@pytest.mark.parametrize(
    ("left", "timeout", "reserve", "expected"),
    [
        (8.0, None, 2.0, 6.0),
        (8.0, 3.0, 2.0, 3.0),
        (8.0, 7.0, 2.0, 6.0),
        (1.0, 3.0, 2.0, 0.0),
        (inf, None, 0.5, inf),
    ],
)
def test_what_an_attempt_gets(left: float, timeout: float | None, reserve: float, expected: float) -> None:
    """Its timeout, or what is left less the reserve; never less than nothing."""
    assert attempt_limit(left, timeout, reserve) == expected


@pytest.mark.parametrize(
    ("cap", "remaining", "expected"),
    [
        (9.0, 18.0, 9.0),
        (9.0, 4.0, 4.0),
        (None, 4.0, 4.0),
        (9.0, None, 9.0),
        (None, None, 20.0),
        (9.0, -1.0, 0.0),
    ],
)
def test_what_a_call_gets(cap: float | None, remaining: float | None, expected: float) -> None:
    """The smaller of its cap and what the deadline leaves, else the setting."""
    assert call_limit(cap, remaining, 20.0) == expected
