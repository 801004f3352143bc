"""Whether a value that came back from the ledger is the one that went in: in value, and in type at every level.

Python's `==` is too kind for that: it says that True is 1, that 1 is 1.0, and that a list of subclasses is a list
of their bases.  And it is too strict for nan.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import cast
from zoneinfo import ZoneInfo

from safewrite.ledger.hints import is_model, real_kind

_SCALARS = frozenset({bool, int, str, bytes})


def same(one: object, other: object, *, opaque: bool = False) -> bool:
    """Tell whether `other` is `one` in value and in type, all the way down.

    Objects whose class defines no equality are compared by their attributes; with `opaque` their type is enough.
    """
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other) and real_kind(kind) is not real_kind(type(other)):
        return False
    if kind in _SCALARS:  # before the questions that only rarer types need
        return bool(one == other)
    if isinstance(one, enum.Enum):
        return False
    if isinstance(one, float):
        return repr(one) == repr(other)  # 0.0 is not -0.0 here, and nan is nan
    if isinstance(one, decimal.Decimal):
        return str(one) == str(other)
    if isinstance(one, dt.datetime | dt.time):
        assert isinstance(other, dt.datetime | dt.time)
        return _same_time(one, other)
    if isinstance(one, AbstractSet):
        assert isinstance(other, AbstractSet)
        return len(one) == len(other) and {*map(_strict, one)} == {*map(_strict, other)}
    parts = _parts(one)
    if parts is not None:
        others = _parts(other)
        assert others is not None
        return len(parts) == len(others) and all(
            same(part, back, opaque=opaque) for part, back in zip(parts, others, strict=True)
        )
    if kind.__eq__ is object.__eq__:
        return opaque or (hasattr(one, "__dict__") and same(vars(one), vars(other)))
    return bool(one == other)


def _same_time(one: dt.datetime | dt.time, other: dt.datetime | dt.time) -> bool:
    bare = one.replace(tzinfo=None) == other.replace(tzinfo=None) and one.fold == other.fold
    if not bare or one.utcoffset() != other.utcoffset():
        return False
    # A zone has rules that its offset of the day has not: what is computed from the value later would differ.
    return not isinstance(one.tzinfo, ZoneInfo) or str(one.tzinfo) == str(other.tzinfo)


def _parts(value: object) -> list[object] | None:
    """Return what a container, dataclass or model is made of, in order, or None."""
    kind = type(value)
    if kind is list or kind is tuple:
        return list(cast("list[object]", value))
    if kind is dict:
        entries = cast("dict[object, object]", value)
        return [*entries, *entries.values()]
    if is_model(kind):
        fields = [vars(value).get(name) for name in type(value).model_fields]  # type: ignore[attr-defined]
        return [*fields, value.__pydantic_extra__, value.__pydantic_private__]  # type: ignore[attr-defined]
    parts: list[object] = []
    if isinstance(value, Mapping):
        parts = [part for pair in value.items() for part in pair]
    elif isinstance(value, list | tuple | deque):
        parts = list(value)
    elif not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return [*parts, *(getattr(value, field.name) for field in dataclasses.fields(value))]
    return [*parts, *getattr(value, "__dict__", {}).items()]  # what a subclass adds to its container


def _strict(member: object) -> object:
    """Return a stand-in for a member of a set that is equal only to one of the same type and value."""
    if isinstance(member, tuple):
        return type(member), tuple(map(_strict, member))
    if isinstance(member, frozenset):
        return type(member), frozenset(map(_strict, member))
    if isinstance(member, float | decimal.Decimal):
        return type(member), repr(member)
    return type(member), member
