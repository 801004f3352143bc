"""Durations as people write them, turned into seconds: numbers or `timedelta`, checked once, at the edge."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Literal, overload

from safewrite.errors import ConfigurationError

Duration = float | timedelta
"""Seconds, or a `timedelta`; `timedelta.max` means for ever."""


_SHOWN = 80  # characters of an unusable value that an error repeats


@overload
def seconds(
    value: object,
    *,
    name: str,
    allow_zero: bool = False,
    allow_infinite: bool = False,
    allow_none: Literal[False] = False,
    none_means: str = "",
) -> float: ...
@overload
def seconds(
    value: object,
    *,
    name: str,
    allow_zero: bool = False,
    allow_infinite: bool = False,
    allow_none: bool = False,
    none_means: str = "",
) -> float | None: ...
def seconds(
    value: object,
    *,
    name: str,
    allow_zero: bool = False,
    allow_infinite: bool = False,
    allow_none: bool = False,
    none_means: str = "",
) -> float | None:
    """Return `value` (a whole number, a float or a `timedelta`) as float seconds.

    `None` is passed through with `allow_none`; `timedelta.max` and `math.inf` are `math.inf` with
    `allow_infinite`.  Finite values have no upper limit.  `none_means` completes the advice "or `None`: ...".
    Raises `ConfigurationError`, which names `name`, the value and what to write, for everything else: text,
    bool, NaN, negative, and, unless allowed, zero, infinite and `None`.
    """
    if value is None and allow_none:
        return None
    number = _number(value)
    if number is not None and (number > 0 or (number == 0 and allow_zero)):
        if number < math.inf:
            return number + 0.0
        if allow_infinite:
            return math.inf
    advice = _advice(allow_zero, allow_infinite, allow_none, none_means)
    raise ConfigurationError(
        f"`{name}` is {_shown(value)}, which is {_fault(value, number)}. Write {advice}."
    )


def _number(value: object) -> float | None:
    """Return the value in seconds, NaN and infinities as they are; `None` if it is no duration at all."""
    if isinstance(value, bool):
        return None
    if isinstance(value, timedelta):
        return math.inf if value == timedelta.max else value.total_seconds()
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except (
        Exception
    ):  # a whole number of very many digits has no text, and a foreign __repr__ may do anything
        return f"something of type {type(value).__name__} that cannot be shown"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _fault(value: object, number: float | None) -> str:
    if number is None:
        return f"no duration ({type(value).__name__})"
    if math.isnan(number):
        return "not a number"
    if number < 0:
        return "negative"
    return "infinite" if number else "zero"


def _advice(allow_zero: bool, allow_infinite: bool, allow_none: bool, none_means: str) -> str:
    ways = [f"{'zero or ' if allow_zero else ''}a positive number of seconds", "a `timedelta`"]
    if allow_infinite:
        ways.append("`timedelta.max` for ever")
    if allow_none:
        ways.append(f"`None`{none_means and f' ({none_means})'}")
    return f"{', '.join(ways[:-1])} or {ways[-1]}"
