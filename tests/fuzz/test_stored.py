"""Values and arguments as the ledger keeps them: what is admitted comes back, and no stored text is a crash."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import pathlib
from collections import deque
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safewrite.ledger.codec import Codec, Undecodable, decode_arguments
from safewrite.ledger.sameness import same
from safewrite.ledger.tagged import _READERS, Tagger, Untaggable
from tests.fuzz.documents import anything


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass
class Order:
    id: object = None
    lines: object = None


class Line(NamedTuple):
    sku: object
    more: object = None


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: object = None
    _seen: object = pydantic.PrivateAttr(default=None)


@dataclasses.dataclass
class Forbidden:
    """A class that no annotation names."""


CLASSES = (Colour, Rights, Order, Line, Customer)
ANNOTATION = Colour | Rights | Order | Line | Customer | list[Any]
ZONES = st.none() | st.timezones() | st.just(dt.timezone(dt.timedelta(hours=-3, microseconds=1)))
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**20000), 2**20000) | st.floats()
    | st.text(st.characters(), max_size=6) | st.binary(max_size=6) | st.binary(max_size=6).map(bytearray)
    | st.decimals(allow_nan=False) | st.sampled_from([Decimal("-sNaN7"), Decimal("-0E+9"), Decimal("Infinity")])
    | st.datetimes(timezones=ZONES) | st.times() | st.dates() | st.timedeltas() | st.uuids()
    | st.text(st.characters(), max_size=6).map(pathlib.PurePosixPath)
    | st.text(st.characters(), max_size=6).map(pathlib.PureWindowsPath)
    | st.sampled_from(Colour) | st.integers(0, 3).map(Rights)
)  # fmt: skip
PLAIN = st.none() | st.integers() | st.text(max_size=3) | st.dates() | st.sampled_from(Colour)


def _customer(name: object, extra: dict[str, Any], seen: object) -> Customer:
    made = Customer.model_construct(**extra)
    made.name, made._seen = name, seen
    return made


VALUES = st.recursive(
    LEAVES | st.sets(PLAIN, max_size=3) | st.frozensets(PLAIN, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3) | st.sampled_from(["$int", "$"]) | PLAIN, inner, max_size=3)
        | st.builds(Order, inner, inner) | st.builds(Line, inner, inner)
        | st.builds(_customer, inner, st.dictionaries(st.sampled_from("ab"), inner), inner)
    ),
    max_leaves=8,
)  # fmt: skip


@given(VALUES)
def test_whatever_the_tags_admit_comes_back(value: object) -> None:
    """The same value and types all the way down, by way of text, in a tagger that never saw it."""
    text = json.dumps(Tagger(CLASSES).tree(value), allow_nan=False)
    assert text.isascii()
    assert same(value, Tagger(CLASSES).value(json.loads(text)))


class Text(str):
    __slots__ = ()


STRANGE = st.sampled_from(
    [1j, range(3), object(), Forbidden(), Forbidden, len, lambda: 1, Fraction(1, 3), deque([1]), Text("x"), ...,
     NotImplemented, memoryview(b"x"), iter([1]), ValueError("x"), json, type("Int", (int,), {})(3)]
)  # fmt: skip


@given(st.recursive(STRANGE, lambda inner: st.lists(inner, min_size=1, max_size=2) | st.builds(Order, inner)))
def test_what_the_tags_do_not_admit_is_named(value: object) -> None:
    """Nothing is written in part, or as something else: the refusal names the type."""
    with pytest.raises(Untaggable, match=r"`.+` is neither a type with a tag nor named by the annotation"):
        Tagger(CLASSES).tree(value)
    encoded = Codec(ANNOTATION).encode(value)
    assert encoded.text is None or same(value, Codec(ANNOTATION).decode(encoded.text), opaque=True)


NAMES = [f"{module}{kind.__qualname__}" for kind in (*CLASSES, Forbidden) for module in ("", f"{__name__}:")]
TREES = anything(
    st.sampled_from([*_READERS, "$new", "fold", "zone", "fields", "items", "value", "set", "extra", "private"]),
    "2020-01-01", "2020-01-01T00:00:00", "12:00", "UTC", "Europe/Berlin", "../x", "1.5", "1e999999999", "0x1f", "YQ==",
    "eda080", "RED", *NAMES,
)  # fmt: skip
CODEC = Codec(ANNOTATION)


def built(value: Any) -> list[type]:
    """Return the types of all that a value is made of."""
    if isinstance(value, dict):
        return [kind for pair in value.items() for part in pair for kind in built(part)]
    if isinstance(value, list | tuple | set | frozenset):
        return [type(value), *(kind for part in value for kind in built(part))]
    inner = vars(value).values() if isinstance(value, Order | Customer) else ()
    return [type(value), *(kind for part in inner for kind in built(part))]


@given(TREES, st.sampled_from(["tagged", "adapter", "alike"]))
def test_any_stored_value_is_read_or_refused(tree: Any, way: str) -> None:
    """Whatever JSON stands there: a value, made of plain types and the named classes alone, or `Undecodable`."""
    try:
        value = CODEC.decode(f'{{"v":1,"as":"{way}","value":{json.dumps(tree)}}}')
    except Undecodable:
        return
    assert Forbidden not in built(value)
    encoded = CODEC.encode(value)
    assert encoded.text is None or same(value, CODEC.decode(encoded.text), opaque=True)


ENTRIES = st.dictionaries(
    st.sampled_from("ab") | st.text(max_size=3),
    st.fixed_dictionaries({"v": st.just(1), "as": st.sampled_from(["tagged", "adapter"]), "value": TREES}),
    max_size=2,
)


@given(ENTRIES | TREES, st.lists(st.text(max_size=3), max_size=2) | TREES)
def test_any_stored_arguments_are_read_or_refused(arguments: Any, missing: Any) -> None:
    """Names are texts, whatever stands there, and what is missing is a list of them."""
    text = json.dumps({"v": 1, "arguments": arguments, "missing": missing})
    try:
        found, left_out = decode_arguments(text, {"a": CODEC})
    except Undecodable:
        return
    assert {type(name) for name in (*found, *left_out)} <= {str}
    assert left_out == tuple(missing)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"v":1,"as":"tagged","value":' + "[" * 100_000, "\ud800", "1" * 9000]
)
def test_what_json_itself_fails_at_is_refused(text: str) -> None:
    """Too deep, no text at all, or a number too long to read."""
    for decode in (CODEC.decode, lambda given: decode_arguments(given, {})):
        with pytest.raises(Undecodable):
            decode(text)
