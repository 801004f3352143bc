"""Slices, caps and floors: arithmetic on numbers of seconds."""

from __future__ import annotations

from math import inf


def reserve_of(left: float, *, reads: bool, share: float, floor: float) -> float:
    """Return what of `left` is kept for the reconciling read: a share of it, at least `floor` where that fits."""
    if not reads:
        return 0.0
    if left == inf:
        return floor
    return min(max(left * share, floor), left / 2)


def attempt_limit(left: float, timeout: float | None, reserve: float) -> float:
    """Return what one attempt gets: its timeout, or what is left of the call less the reserve."""
    return max(0.0, min(inf if timeout is None else timeout, left - reserve))


def call_limit(cap: float | None, remaining: float | None, operation_timeout: float) -> float:
    """Return what one call gets: the smaller of its cap and what the deadline leaves, else the setting."""
    given = [x for x in (cap, remaining) if x is not None]
    return max(0.0, min(given)) if given else operation_timeout
