"""A cheaper `replace` for frozen dataclasses with slots, which all of the core's are."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def replace(value: T, /, **changes: Any) -> T:
    """Return a copy of `value` with some of its fields changed.  Raises `AttributeError` for a name it has not."""
    copy, put = object.__new__(type(value)), object.__setattr__
    for name in value.__slots__:  # type: ignore[attr-defined]
        put(copy, name, getattr(value, name))
    for name, part in changes.items():
        put(copy, name, part)
    return copy
