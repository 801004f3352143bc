"""Who a write is: its target as canonical text, its idempotency key, and the fingerprint of its arguments.

Two wishes are one intent exactly if their canonical texts are equal, so the text is written by structure and
never by joining.  What counts as equal, and what does not:

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

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import hashlib
import math
import pathlib
import unicodedata
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from json.encoder import encode_basestring_ascii
from typing import Any, NamedTuple, cast

KEY_VERSION = "sw1"
"""Names the derivation in every key; another derivation gets another name, never the same one."""
MAX_TARGET_TEXT = 512
"""Characters of a stored target, or of an object's id: short enough for an index on every database."""

_MAX_DEPTH = 100
_MAX_DIGITS = 40
_PLAIN = 10**_MAX_DIGITS
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_quoted = encode_basestring_ascii
_BLOCK = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))


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
        text = ""
        for way in reversed(ways):
            text += _step_text(way.step)
            if id(way.value) in seen:
                break
            seen.add(id(way.value))
        return text

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


def _text(value: str) -> str:
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
    (str, _text),
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
    (pathlib.PurePath, lambda value: _text(value.as_posix())),
)
_EXACT: dict[type, Callable[[Any], str]] = dict(_LEAVES)


# Structure ------------------------------------------------------------------------------------------------


def canonical(value: object, name: str = "value") -> str:
    """Return the one ASCII text of `value`; values that mean the same have the same text, others never.

    `name` is what the error calls the value.  Raises `Uncanonical` for secrets, cycles, nesting beyond a
    hundred levels and every type that is not listed at the top of this module.
    """
    leaf = _EXACT.get(type(value))
    if leaf is not None:
        return leaf(value)
    return _compound(value, _At(None, name, value, 0, False))


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
        return _text(str(value))
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


# The key --------------------------------------------------------------------------------------------------


def target_text(target: object) -> str:
    """Return the text under which a target is stored, compared and put into the key.

    It is the canonical text; beyond `MAX_TARGET_TEXT` characters its beginning and its digest.  Raises
    `Uncanonical`.
    """
    return indexable(canonical(target, "target"))


def indexable(text: str) -> str:
    """Return a text as an index holds it: beyond `MAX_TARGET_TEXT` characters its beginning and its digest."""
    if len(text) <= MAX_TARGET_TEXT:
        return text
    digest = f"...sha256:{_digest(text.encode('utf-8', 'surrogatepass'))}"
    return text[: MAX_TARGET_TEXT - len(digest)] + digest


def turn_text(turn: str | int) -> str:
    """Return the text of a turn, 3 and "3" being the same.

    Raises `ValueError` for anything but text that is not blank and whole numbers.
    """
    return _ordinal(turn, "turn")


def intent_key(
    *, namespace: str, run: str, turn: str, tool: str, target: str, occurrence: int | str | None = None
) -> str:
    """Return the idempotency key of an intent: `sw1_` and 43 characters of A-Z, a-z, 0-9, `_` and `-`.

    `turn` is what `turn_text` returned, `target` what `target_text` or `canonical` did.  Occurrences 2 and
    "2" are the same, and None is none of them.  The key is a SHA-256 over all six: nothing can be read from
    it.  Raises `ValueError` for an occurrence that is neither text nor a whole number.
    """
    told = "null" if occurrence is None else _text(_ordinal(occurrence, "occurrence"))
    parts = f"[{_text(namespace)},{_text(run)},{_text(turn)},{_text(tool)},{_text(target)},{told}]"
    return f"{KEY_VERSION}_{_digest(b'safewrite intent 1 ' + parts.encode())}"


def _ordinal(value: str | int, what: str) -> str:
    if isinstance(value, str) and value.strip():
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    raise ValueError(f"`{what}` is text or a whole number, the same when the run is resumed; not {value!r}")


def _digest(material: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(material).digest()).rstrip(b"=").decode()


# The fingerprint ------------------------------------------------------------------------------------------


def fingerprint(
    arguments: Mapping[str, object],
    *,
    leave_out: Collection[str] = (),
    redacted: Collection[str] = (),
    salt: bytes = b"",
) -> dict[str, str]:
    """Return a digest of each argument, so that a mismatch can name the parameters that differ.

    `leave_out` names free text, which is not compared.  The digests of `redacted` ones are keyed with the
    `salt` of the intent, and secrets in them are opened; elsewhere a secret raises `Uncanonical`.  Raises
    `ValueError` if something is redacted and there is no salt.
    """
    if redacted and not salt:
        raise ValueError("redacted arguments need a `salt`: without one their digests could be guessed")
    return {
        name: keyed(text, salt) if name in redacted else _digest(text)
        for name, text in digestible(arguments, leave_out=leave_out, opened=redacted).items()
    }


def digestible(
    arguments: Mapping[str, object], *, leave_out: Collection[str] = (), opened: Collection[str] = ()
) -> dict[str, bytes]:
    """Return what is digested of each argument; secrets in those that are `opened` are opened.

    Raises `Uncanonical`.
    """
    found: dict[str, bytes] = {}
    for name, value in sorted(arguments.items()):
        if name not in leave_out:
            leaf = _EXACT.get(type(value))
            text = leaf(value) if leaf else _inside(value, _At(None, "", None, -1, name in opened), name)
            found[name] = f"{_text(name)}:{text}".encode()
    return found


def keyed(text: bytes, salt: bytes) -> str:
    """Return the digest of what `digestible` returned for an argument, keyed with the salt of the intent."""
    # HMAC-SHA-256 written out: the detour by which OpenSSL finds its own costs several times as much as the hashes.
    key = (salt if len(salt) <= _BLOCK else hashlib.sha256(salt).digest()).ljust(_BLOCK, b"\0")
    inner = hashlib.sha256(key.translate(_INNER) + text).digest()
    return _digest(hashlib.sha256(key.translate(_OUTER) + inner).digest())


def differing(recorded: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the parameters whose digests differ, or that only one side has; sorted."""
    return tuple(sorted(name for name in {*recorded, *now} if recorded.get(name) != now.get(name)))


def fingerprint_digest(digests: Mapping[str, str]) -> str:
    """Return one digest over all: equal exactly if nothing differs."""
    return f"fp1_{_digest(canonical(digests).encode())}"
