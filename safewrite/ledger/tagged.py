"""Values as JSON that tells their types: what went in comes out, in another process and years later.

JSON's own values stand for themselves; everything else is an object whose first name begins with `$`:
`{"$decimal": "1.10"}`, `{"$tuple": [1, 2]}`, `{"$dict": [[1, "a"]]}`.  A dict stands for itself if all its keys
are text without a `$` at the start.

Instances of enums, dataclasses, named tuples and pydantic models are taken apart and put together without running
their constructors or validators; only classes given to the `Tagger` are built, whatever the text names.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import pathlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from zoneinfo import ZoneInfo

from safewrite.ledger.hints import is_model, is_named_tuple, real_kind

Tree = Any
"""What `json` writes and reads: None, bool, int, float, str, list and dict with str keys."""

_SAFE_BITS = 63


class Untaggable(TypeError):
    """A value of a type that the tags do not know and the annotation does not name."""


class Tagger:
    """Writes values as trees and reads them back; `classes` are those that it may take apart and build."""

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._names: dict[type, str] = {}
        self._classes: dict[str, type] = {}
        for kind in classes:
            if _writer(kind) is not None:
                self._names[kind] = f"{kind.__module__}:{kind.__qualname__}"
                # Its bare name finds it too, as long as it is unambiguous: modules move between deployments.
                bare = kind.__qualname__
                self._classes[bare] = _Ambiguous if bare in self._classes else kind
        self._classes.update({name: kind for kind, name in self._names.items()})

    def tree(self, value: object) -> Tree:
        """Return the tree of `value`.  Raises `Untaggable`."""
        kind = type(value)
        if value is None or kind is bool:
            return value
        leaf = _LEAVES.get(real_kind(kind))
        if leaf is not None:
            return leaf(value)
        if kind is list:
            return [self.tree(item) for item in _items(value)]
        if kind is dict:
            return self._dict(value)  # type: ignore[arg-type]
        if kind is tuple:
            return {"$tuple": [self.tree(item) for item in _items(value)]}
        if kind is set or kind is frozenset:
            trees = [self.tree(item) for item in _items(value)]
            return {f"${kind.__name__}": sorted(trees, key=json.dumps)}  # sorted: one value, one text
        name = self._names.get(kind)
        if name is None:
            raise Untaggable(
                f"`{kind.__qualname__}` is neither a type with a tag nor named by the annotation"
            )
        writer = _writer(kind)
        assert writer is not None
        return writer(self, name, value)

    def _dict(self, value: dict[object, object]) -> Tree:
        if all(type(key) is str and not key.startswith("$") and _is_clean(key) for key in value):
            return {key: self.tree(item) for key, item in value.items()}
        return {"$dict": [[self.tree(key), self.tree(item)] for key, item in value.items()]}

    def value(self, tree: Tree) -> Any:
        """Return the value of a tree.  Raises `ValueError` for a tag or a class that is not known."""
        if isinstance(tree, list):
            return [self.value(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        tag = next(iter(tree), "")
        if not tag.startswith("$"):
            return {key: self.value(item) for key, item in tree.items()}
        reader = _READERS.get(tag)
        if reader is None:
            raise ValueError(f"the tag `{tag}` is not known: was it written by a newer version?")
        return reader(self, tree)

    def build(self, name: str) -> type:
        """Return the class of that name among those given.  Raises `ValueError`."""
        kind = self._classes.get(name) or self._classes.get(name.rpartition(":")[2])
        if kind is None or kind is _Ambiguous:
            raise ValueError(f"the annotation does not name a class `{name}`")
        return kind


class _Ambiguous:
    """Stands for a bare name that two classes share."""


def _items(value: object) -> Iterable[object]:
    assert isinstance(value, Iterable)
    return value


# Leaves ---------------------------------------------------------------------------------------------------


def _is_clean(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _str(value: str) -> Tree:
    if value.isascii() or _is_clean(value):
        return value
    # JSON's escapes cannot tell a pair of lone surrogates from the character that they spell in UTF-16.
    return {"$str": value.encode("utf-8", "surrogatepass").hex()}


def _int(value: int) -> Tree:
    # Other readers of JSON lose large numbers, and Python refuses to write or read them in decimal.
    return value if value.bit_length() <= _SAFE_BITS else {"$int": hex(value)}


def _float(value: float) -> Tree:
    return value if math.isfinite(value) else {"$float": repr(value)}


def _moment(tag: str, value: dt.datetime | dt.time) -> Tree:
    tree: dict[str, Tree] = {tag: value.isoformat()}
    if value.fold:
        tree["fold"] = 1
    if isinstance(value.tzinfo, ZoneInfo) and value.tzinfo.key is not None:
        tree["zone"] = value.tzinfo.key
    return tree


def _read_moment(kind: type[dt.datetime | dt.time], tag: str) -> Callable[[Tagger, Tree], object]:
    def read(_: Tagger, tree: Tree) -> object:
        value = kind.fromisoformat(tree[tag]).replace(fold=tree.get("fold", 0))
        return value.replace(tzinfo=ZoneInfo(tree["zone"])) if "zone" in tree else value

    return read


def _path(tag: str) -> Callable[[Any], Tree]:
    return lambda value: {tag: _str(str(value))}


_LEAVES: dict[type, Callable[[Any], Tree]] = {
    str: _str,
    int: _int,
    float: _float,
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode()},
    bytearray: lambda value: {"$bytearray": base64.b64encode(value).decode()},
    decimal.Decimal: lambda value: {"$decimal": str(value)},
    dt.datetime: lambda value: _moment("$datetime", value),
    dt.time: lambda value: _moment("$time", value),
    dt.date: lambda value: {"$date": value.isoformat()},
    dt.timedelta: lambda value: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    uuid.UUID: lambda value: {"$uuid": str(value)},
    type(pathlib.Path()): _path("$path"),
    pathlib.PurePosixPath: _path("$posixpath"),
    pathlib.PureWindowsPath: _path("$windowspath"),
}


# Instances of known classes -------------------------------------------------------------------------------


def _write_enum(tagger: Tagger, name: str, value: Any) -> Tree:
    if value.name in type(value).__members__:
        return {"$enum": name, "member": value.name}
    return {"$enum": name, "value": tagger.tree(value.value)}  # flags that were combined have no member


def _read_enum(tagger: Tagger, tree: Tree) -> object:
    kind: Any = tagger.build(tree["$enum"])
    return kind[tree["member"]] if "member" in tree else kind(tagger.value(tree["value"]))


def _write_dataclass(tagger: Tagger, name: str, value: Any) -> Tree:
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {"$dataclass": name, "fields": tagger.tree(fields)}


def _read_dataclass(tagger: Tagger, tree: Tree) -> object:
    kind = tagger.build(tree["$dataclass"])
    built: object = object.__new__(kind)
    for name, value in tagger.value(tree["fields"]).items():
        object.__setattr__(built, name, value)
    return built


def _write_named_tuple(tagger: Tagger, name: str, value: Any) -> Tree:
    return {"$namedtuple": name, "items": [tagger.tree(item) for item in value]}


def _read_named_tuple(tagger: Tagger, tree: Tree) -> object:
    kind: Any = tagger.build(tree["$namedtuple"])
    return tuple.__new__(kind, [tagger.value(item) for item in tree["items"]])


def _write_model(tagger: Tagger, name: str, value: Any) -> Tree:
    fields = type(value).model_fields
    if any(field.exclude for field in fields.values()):
        raise Untaggable(f"`{name}` excludes fields from what is written of it")
    return {
        "$model": name,
        "fields": tagger.tree({key: item for key, item in vars(value).items() if key in fields}),
        "set": sorted(value.__pydantic_fields_set__),
        "extra": tagger.tree(value.__pydantic_extra__),
        "private": tagger.tree(value.__pydantic_private__),
    }


def _read_model(tagger: Tagger, tree: Tree) -> object:
    kind: Any = tagger.build(tree["$model"])
    built = kind.__new__(kind)
    built.__setstate__({
        "__dict__": tagger.value(tree["fields"]),
        "__pydantic_fields_set__": set(tree["set"]),
        "__pydantic_extra__": tagger.value(tree["extra"]),
        "__pydantic_private__": tagger.value(tree["private"]),
    })  # fmt: skip
    return built


def _writer(kind: type) -> Callable[[Tagger, str, Any], Tree] | None:
    """Return what takes instances of `kind` apart, or None: there is more in them than its fields."""
    if issubclass(kind, enum.Enum):
        return _write_enum
    if is_named_tuple(kind):
        return _write_named_tuple
    if is_model(kind):
        return _write_model
    if dataclasses.is_dataclass(kind) and not issubclass(kind, _WITH_CONTENT):
        return _write_dataclass
    return None


_WITH_CONTENT = (
    str,
    bytes,
    bytearray,
    int,
    float,
    complex,
    list,
    tuple,
    Mapping,
    set,
    frozenset,
    BaseException,
)

_READERS: dict[str, Callable[[Tagger, Tree], object]] = {
    "$str": lambda _, tree: bytes.fromhex(tree["$str"]).decode("utf-8", "surrogatepass"),
    "$int": lambda _, tree: int(tree["$int"], 16),
    "$float": lambda _, tree: float(tree["$float"]),
    "$bytes": lambda _, tree: base64.b64decode(tree["$bytes"]),
    "$bytearray": lambda _, tree: bytearray(base64.b64decode(tree["$bytearray"])),
    "$decimal": lambda _, tree: decimal.Decimal(tree["$decimal"]),
    "$datetime": _read_moment(dt.datetime, "$datetime"),
    "$time": _read_moment(dt.time, "$time"),
    "$date": lambda _, tree: dt.date.fromisoformat(tree["$date"]),
    "$timedelta": lambda _, tree: dt.timedelta(*tree["$timedelta"]),
    "$uuid": lambda _, tree: uuid.UUID(tree["$uuid"]),
    "$path": lambda tagger, tree: pathlib.Path(tagger.value(tree["$path"])),
    "$posixpath": lambda tagger, tree: pathlib.PurePosixPath(tagger.value(tree["$posixpath"])),
    "$windowspath": lambda tagger, tree: pathlib.PureWindowsPath(tagger.value(tree["$windowspath"])),
    "$tuple": lambda tagger, tree: tuple(tagger.value(tree["$tuple"])),
    "$set": lambda tagger, tree: set(tagger.value(tree["$set"])),
    "$frozenset": lambda tagger, tree: frozenset(tagger.value(tree["$frozenset"])),
    "$dict": lambda tagger, tree: {tagger.value(key): tagger.value(item) for key, item in tree["$dict"]},
    "$enum": _read_enum,
    "$dataclass": _read_dataclass,
    "$namedtuple": _read_named_tuple,
    "$model": _read_model,
}
