"""Canonical text: two values have the same one exactly if they mean the same, so it is written by structure.

What counts as equal, and what does not:

- numbers by value: 10, 10.0 and Decimal("10.00"); -0.0 and 0.  A whole float is exact; any other is the
  shortest decimal that reads back as the same float, so 0.1 equals Decimal("0.1").  True, 1, "1" differ;
- text by its NFC form;
- mappings without regard to order, keys of any kind; sets without order; lists and tuples alike, in order;
- an aware datetime by its instant, a naive one as something else; dates, times, durations and bytes each as
  themselves, never as text that looks like them;
- what merely wraps an identifier as that identifier: an Enum as its value, a UUID, path or URL as its text;
- dataclasses by the fields that take part in their equality, pydantic models by `model_dump()`: both equal a
  mapping of the same names.

Secrets are refused, and so is everything else: `Uncanonical` says where in the value it stood.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import pathlib
import unicodedata
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple, cast

_MAX_DEPTH = 100
_MAX_DIGITS = 40
_PLAIN = 10**_MAX_DIGITS
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_quoted = encode_basestring_ascii


class Uncanonical(TypeError):
    """A value that has, or may have, no canonical text: `path` says where it stood, `kind` its type."""

    def __init__(self, path: str, kind: str, why: str) -> None:
        super().__init__(f"`{path}` is a `{kind}`: {why}")
        self.path = path
        self.kind = kind


class _At(NamedTuple):
    """Where the walk stands: the way from the root, for the message, and whether secrets may be opened."""

    parent: _At | None
    step: object
    value: object
    depth: int
    opened: bool

    def path(self) -> str:
        """Write the way from the root: `target.lines[0]['sku']`; cut where a cycle closes."""
        ways: list[_At] = []
        at: _At | None = self
        while at is not None:
            ways.append(at)
            at = at.parent
        seen: set[int] = set()
        told = ""
        for way in reversed(ways):
            told += _step_text(way.step)
            if id(way.value) in seen:
                break
            seen.add(id(way.value))
        return told

    def refusal(self, why: str) -> Uncanonical:
        """Return the error that names this place."""
        return Uncanonical(self.path(), type(self.value).__qualname__, why)


def _step_text(step: object) -> str:
    if isinstance(step, str):
        return step
    if isinstance(step, tuple):
        return f"[{step[0]!r:.60}]"
    return f"[{step}]"


# Leaves ---------------------------------------------------------------------------------------------------


def text(value: str) -> str:
    """Return the canonical text of a text: its NFC form, quoted as JSON does."""
    if value.isascii():
        return _quoted(str.__str__(value))
    normal = unicodedata.normalize("NFC", value)
    try:
        normal.encode()
    except UnicodeEncodeError:
        # JSON's escapes cannot tell a pair of lone surrogates from the character that they spell in UTF-16.
        return f'text"{normal.encode("utf-8", "surrogatepass").hex()}"'
    return _quoted(normal)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _whole(value: int) -> str:
    if -_PLAIN < value < _PLAIN:
        return int.__repr__(value)
    # By way of Decimal: Python refuses to write integers of more than some thousands of digits.
    return _decimal(decimal.Decimal(int.__index__(value)))


def _real(value: float) -> str:
    if math.isfinite(value) and value.is_integer():
        return _whole(int(value))
    return _decimal(decimal.Decimal(float.__repr__(value)))


def _decimal(value: decimal.Decimal) -> str:
    if value.is_nan():
        return "nan"
    if value.is_infinite():
        return "-inf" if value < 0 else "inf"
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    written = "".join(map(str, digits))
    kept = written.rstrip("0")
    if not kept:
        return "0"
    exponent += len(written) - len(kept)
    return ("-" if sign else "") + _placed(kept, exponent)


def _placed(digits: str, exponent: int) -> str:
    if exponent == 0 or (exponent > 0 and len(digits) + exponent <= _MAX_DIGITS):
        return digits + "0" * exponent
    if -_MAX_DIGITS <= exponent < 0:
        padded = digits.rjust(1 - exponent, "0")
        return f"{padded[:exponent]}.{padded[exponent:]}"
    return f"{digits}e{exponent}"


def _bytes(value: bytes | bytearray | memoryview) -> str:
    return f'bytes"{bytes(value).hex()}"'


def _datetime(value: dt.datetime) -> str:
    if value.utcoffset() is None:
        return f'local"{value.replace(tzinfo=None).isoformat()}"'
    try:
        instant = value.astimezone(dt.UTC).replace(tzinfo=None).isoformat() + "Z"
    except OverflowError:  # beyond the years 1 to 9999 once it is moved to UTC
        instant = f"{(value - _EPOCH) // _MICROSECOND}us"
    return f'instant"{instant}"'


_LEAVES: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (str, text),
    (bool, _bool),
    (int, _whole),
    (float, _real),
    (type(None), lambda _: "null"),
    (decimal.Decimal, _decimal),
    (uuid.UUID, lambda value: _quoted(str(value))),
    (dt.datetime, _datetime),
    (dt.date, lambda value: f'date"{value.isoformat()}"'),
    (dt.time, lambda value: f'time"{value.isoformat()}"'),
    (dt.timedelta, lambda value: f'duration"{value // _MICROSECOND}us"'),
    (bytes, _bytes),
    (bytearray, _bytes),
    (memoryview, _bytes),
    (pathlib.PurePath, lambda value: text(value.as_posix())),
)
_EXACT: dict[type, Callable[[Any], str]] = dict(_LEAVES)


# Structure ------------------------------------------------------------------------------------------------


def canonical(value: object, name: str = "value", *, opened: bool = False) -> str:
    """Return the one ASCII text of `value`; values that mean the same have the same text, others never.

    `name` is what the error calls the value.  Raises `Uncanonical` for secrets, unless `opened`; for cycles,
    nesting beyond a hundred levels and every type that is not listed at the top of this module.
    """
    leaf = _EXACT.get(type(value))
    if leaf is not None:
        return leaf(value)
    return _compound(value, _At(None, name, value, 0, opened))


def _inside(value: object, at: _At, step: object) -> str:
    leaf = _EXACT.get(type(value))
    if leaf is not None:
        return leaf(value)
    return _compound(value, _At(at, step, value, at.depth + 1, at.opened))


def _compound(value: object, at: _At) -> str:
    if at.depth > _MAX_DEPTH:
        raise at.refusal("cyclic, or nested too deeply; pass the identifiers that the write is about")
    wrapped = _wrapped(value, at)
    if wrapped is not None:
        return _inside(wrapped[0], at, "")
    for kind, leaf in _LEAVES:
        if isinstance(value, kind):
            return leaf(value)
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        return _pairs(((key, item, (key,)) for key, item in entries), at)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _pairs(((name, getattr(value, name), f".{name}") for name in _compared(value)), at)
    if isinstance(value, AbstractSet):
        members = cast("AbstractSet[object]", value)
        return f"set[{','.join(sorted({_inside(item, at, '{}') for item in members}))}]"
    if isinstance(value, Sequence):
        items = cast("Sequence[object]", value)
        return f"[{','.join([_inside(item, at, index) for index, item in enumerate(items)])}]"
    if _is_identifier(type(value)):
        return text(str(value))
    raise at.refusal(
        "no canonical text is known for it; pass text, a number, a UUID, a date, "
        "or a mapping, sequence, dataclass or pydantic model of such"
    )


def _pairs(parts: Iterable[tuple[object, object, object]], at: _At) -> str:
    pairs = sorted([(_inside(key, at, step), _inside(item, at, step)) for key, item, step in parts])
    return f"{{{','.join([f'{key}:{item}' for key, item in pairs])}}}"


def _compared(value: object) -> list[str]:
    """Return the names of the fields that take part in the dataclass's own equality."""
    return [field.name for field in dataclasses.fields(value) if field.compare]  # type: ignore[arg-type]


def _wrapped(value: object, at: _At) -> tuple[object] | None:
    """Return, in a tuple, what `value` merely wraps: an Enum's value, a model's fields, an opened secret."""
    if isinstance(value, enum.Enum):
        return (value.value,)
    opener = getattr(type(value), "get_secret_value", None)
    if opener is not None:
        if not at.opened:
            raise at.refusal("a secret never enters a key or a fingerprint; leave it out, or redact it")
        return (opener(value),)
    dump = getattr(type(value), "model_dump", None)
    if dump is None:
        return None
    try:
        return (dump(value),)
    except Exception as error:
        raise at.refusal(f"its `model_dump()` raised {type(error).__name__}; pass its identifiers") from error


def _is_identifier(kind: type) -> bool:
    """Tell whether `str()` of it is its identity: IP addresses, and the URLs of pydantic."""
    return kind.__module__ == "ipaddress" or hasattr(kind, "unicode_string")


def is_missing(target: object) -> bool:
    """Tell whether `target` names nothing: None, empty text, an empty container, or one of only such leaves.

    0 and False are values, and so is anything that `canonical` would refuse.
    """
    return _is_void(target, 0)


def _is_void(value: object, depth: int) -> bool:
    if value is None:
        return True
    if isinstance(value, str | bytes | bytearray):
        return len(value) == 0
    if depth > _MAX_DEPTH:
        return False
    items: Iterable[object]
    if isinstance(value, enum.Enum):
        items = (value.value,)
    elif isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).values()
    elif isinstance(value, AbstractSet | Sequence):
        items = cast("Sequence[object]", value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [getattr(value, name) for name in _compared(value)]
    elif isinstance(getattr(type(value), "model_fields", None), Mapping):
        items = vars(value).values()
    else:
        return False
    return all(_is_void(item, depth + 1) for item in items)
