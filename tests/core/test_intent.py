"""Identity: what is one wish and what is two."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import enum
import hashlib
import hmac
import ipaddress
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import types
import unicodedata
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from safewrite.core import intent
from safewrite.core.canonical import Uncanonical, canonical, is_missing
from safewrite.core.intent import (
    MAX_TARGET_TEXT,
    differing,
    fingerprint,
    fingerprint_digest,
    indexable,
    intent_key,
    target_text,
    turn_text,
)

ROOT = pathlib.Path(__file__).parents[2]
VECTORS = json.loads((ROOT / "tests/core/key_vectors.json").read_text())
UUID = uuid.UUID("12345678-1234-5678-1234-567812345678")
CET = dt.timezone(dt.timedelta(hours=2))


class Colour(enum.Enum):
    RED = "red"
    DEEP = ("red", 2)


class Level(enum.IntEnum):
    HIGH = 3


class Name(enum.StrEnum):
    ONE = "one"


class OldName(str, enum.Enum):  # noqa: UP042 - the older spelling has another __str__
    ONE = "one"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass(frozen=True)
class Line:
    sku: str
    count: int = 1
    note: str = dataclasses.field(default="", compare=False)


class Order(pydantic.BaseModel):
    id: str
    at: dt.datetime | None = None
    secret: pydantic.SecretStr | None = None


class Ids(pydantic.RootModel[list[int]]):
    pass


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "not this"


class Broken(pydantic.BaseModel):
    id: int

    def model_dump(self, **_: Any) -> dict[str, Any]:
        raise RuntimeError("no")


def nested(levels: int) -> list[object]:
    """Return an empty list within so many others."""
    return [nested(levels - 1)] if levels else []


VALUES: dict[str, object] = {
    "text": "sub_1",
    "text with quotes": 'a"b\\c\n\x00',
    "accented text": "café",
    "lone surrogate": "a\ud800",
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "negative": -12,
    "big whole": 10**60 + 7,
    "decimal": Decimal("1.10"),
    "float": 0.1,
    "tiny": Decimal("1E-50"),
    "nan": float("nan"),
    "minus infinity": float("-inf"),
    "list": ["a", 1, [None]],
    "mapping": {"b": 2, "a": {"x": 1}},
    "mixed keys": {1: "a", "b": 2, (1, "x"): 3, None: 4, False: 5},
    "set": {3, 1, "2"},
    "bytes": b"\xff\x00",
    "instant": dt.datetime(2026, 3, 1, 12, 0, tzinfo=CET),
    "naive": dt.datetime(2026, 3, 1, 12, 0),  # noqa: DTZ001
    "date": dt.date(2026, 3, 1),
    "time": dt.time(12, 0, 0, 5),
    "duration": dt.timedelta(days=1, microseconds=5),
    "uuid": UUID,
    "path": pathlib.PurePosixPath("a/b c"),
    "enum": Colour.DEEP,
    "dataclass": Line("s", 2, "noted"),
    "model": Order(id="o1"),
}

same = pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param({"a": 1, "b": [1, 2]}, {"b": [1, 2], "a": 1}, id="key order"),
        pytest.param({"a": 1}, OrderedDict(a=1), id="kinds of mapping"),
        pytest.param({"a": 1}, types.MappingProxyType({"a": 1}), id="read-only mapping"),
        pytest.param([1, 2], (1, 2), id="list and tuple"),
        pytest.param([1, 2], deque([1, 2]), id="list and deque"),
        pytest.param(Point(1, 2), (1, 2), id="named tuple"),
        pytest.param({1, 2}, frozenset([2, 1]), id="set order"),
        pytest.param(10, 10.0, id="int and float"),
        pytest.param(10, Decimal("10.00"), id="int and decimal"),
        pytest.param(10, Decimal("1E1"), id="decimal with an exponent"),
        pytest.param(10**60, Decimal("1E60"), id="large whole numbers"),
        pytest.param(10**5000, Decimal("1E5000"), id="beyond the digits that Python writes"),
        pytest.param(2**70, float(2**70), id="large whole float"),
        pytest.param(0.0, -0.0, id="negative zero"),
        pytest.param(0, Decimal("-0.000"), id="negative decimal zero"),
        pytest.param(0.1, Decimal("0.1"), id="float as its shortest decimal"),
        pytest.param(1e-60, Decimal("1e-60"), id="small float"),
        pytest.param(Decimal("1.10"), Decimal("1.1"), id="trailing zeros"),
        pytest.param(float("nan"), Decimal("sNaN"), id="kinds of nan"),
        pytest.param(float("inf"), Decimal("Infinity"), id="infinity"),
        pytest.param("caf\u00e9", "cafe\u0301", id="NFC and NFD"),
        pytest.param({"caf\u00e9": 1}, {"cafe\u0301": 1}, id="NFC and NFD in a key"),
        pytest.param(
            dt.datetime(2026, 1, 1, 12, tzinfo=CET), dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC), id="instant"
        ),
        pytest.param(
            dt.datetime(2026, 1, 1, 11, tzinfo=ZoneInfo("Europe/Berlin")),
            dt.datetime(2026, 1, 1, 10, tzinfo=dt.UTC),
            id="instant in a zone",
        ),
        pytest.param(b"ab", bytearray(b"ab"), id="bytearray"),
        pytest.param(b"ab", memoryview(b"ab"), id="memoryview"),
        pytest.param(Colour.RED, "red", id="enum"),
        pytest.param(Level.HIGH, 3, id="int enum"),
        pytest.param(Name.ONE, "one", id="str enum"),
        pytest.param(OldName.ONE, "one", id="str and enum"),
        pytest.param(Text("a"), "a", id="subclass of str"),
        pytest.param(Text("\u00e9"), "\u00e9", id="subclass of str beyond ASCII"),
        pytest.param(UUID, str(UUID), id="uuid"),
        pytest.param(pathlib.PurePosixPath("a/b"), pathlib.PureWindowsPath("a\\b"), id="path"),
        pytest.param(ipaddress.ip_address("::1"), "::1", id="address"),
        pytest.param(pydantic.HttpUrl("https://h/x"), "https://h/x", id="url"),
        pytest.param(Line("s", 2, "one wording"), Line("s", 2, "another"), id="uncompared field"),
        pytest.param(Line("s", 2), {"count": 2, "sku": "s"}, id="dataclass and mapping"),
        pytest.param(Order(id="o"), {"id": "o", "at": None, "secret": None}, id="model and mapping"),
        pytest.param(Ids([1, 2]), [1, 2], id="root model"),
    ],
)


@same
def test_what_means_the_same_is_one_text(one: object, other: object) -> None:
    """Spelling, order and representation do not make a second wish."""
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param([1, 2], [2, 1], id="sequence order"),
        pytest.param({"a": 1, "b": [1, 2]}, {"a": 1, "b": [2, 1]}, id="sequence order inside"),
        pytest.param(True, 1, id="true and 1"),
        pytest.param(False, 0, id="false and 0"),
        pytest.param(False, None, id="false and none"),
        pytest.param(1, "1", id="number and text"),
        pytest.param(True, "true", id="true and its text"),
        pytest.param(None, "null", id="none and its text"),
        pytest.param({1: "a"}, {"1": "a"}, id="keys of different kinds"),
        pytest.param({True: "a"}, {1: "a"}, id="true and 1 as keys"),
        pytest.param([["a"], "b"], [["a", "b"]], id="nesting"),
        pytest.param("a,b", ["a", "b"], id="joined text"),
        pytest.param('"a"', "a", id="quotes"),
        pytest.param([1], {1}, id="list and set"),
        pytest.param({}, [], id="empty mapping and list"),
        pytest.param(b"a", "a", id="bytes and text"),
        pytest.param(b"a", 'bytes"61"', id="bytes and their canonical text"),
        pytest.param(2**53, 2**53 + 1, id="beyond what floats can tell"),
        pytest.param(0.1, Decimal("0.1000000000000000055511151231257827"), id="decimals beyond the float"),
        pytest.param(10**60, 10**60 + 1, id="large whole numbers"),
        pytest.param(1.5, -1.5, id="sign"),
        pytest.param(float("inf"), float("-inf"), id="infinities"),
        pytest.param(
            dt.datetime(2026, 1, 1, 12),  # noqa: DTZ001
            dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC),
            id="naive",
        ),
        pytest.param(
            dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC),
            dt.datetime(2026, 1, 1, 12, 0, 0, 1, tzinfo=dt.UTC),
            id="a microsecond",
        ),
        pytest.param(
            dt.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=0),
            dt.datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
            id="the hour that comes twice",
        ),
        pytest.param(dt.date(2026, 1, 1), dt.datetime(2026, 1, 1), id="date and datetime"),  # noqa: DTZ001
        pytest.param(dt.date(2026, 1, 1), "2026-01-01", id="date and text"),
        pytest.param(dt.timedelta(seconds=1), 1, id="duration and number"),
        pytest.param("\ud83d\ude00", "\U0001f600", id="two lone surrogates and what they would spell"),
        pytest.param("A", "a", id="case"),
    ],
)
def test_what_differs_is_two_texts(one: object, other: object) -> None:
    """Nothing that could be meant differently falls together."""
    assert canonical(one) != canonical(other)


def test_instants_beyond_the_calendar_have_a_text() -> None:
    """A time that leaves the years 1 to 9999 once it is moved to UTC is still one instant."""
    last = dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=5)))
    assert canonical(last) == canonical(last.replace()) != canonical(last - dt.timedelta(microseconds=1))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("1E999999999"), "1e999999999"),  # not a gigabyte of zeros
        (10**40 - 1, "9" * 40),
        (10**40, "1e40"),
        (1 - 10**40, "-" + "9" * 40),
        (-(10**40), "-1e40"),
        (Decimal("1E39"), "1" + "0" * 39),
        (Decimal("1E40"), "1e40"),
        (Decimal("1E-40"), "0." + "0" * 39 + "1"),
        (Decimal("-1E-41"), "-1e-41"),
        (Decimal("-1.50"), "-1.5"),
        (float("inf"), "inf"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers_are_written_out_up_to_forty_digits(value: object, text: str) -> None:
    """Beyond, with an exponent; keys out there stand on these very texts."""
    assert canonical(value) == text


def test_instants_do_not_depend_on_the_zone_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker in another region has the same key."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    try:
        time.tzset()
        assert canonical(dt.datetime(2026, 1, 1, 12, tzinfo=CET)) == 'instant"2026-01-01T10:00:00Z"'
    finally:
        monkeypatch.undo()
        time.tzset()


def test_numbers_do_not_depend_on_the_decimal_context() -> None:
    """A coarse context of the caller must not make two amounts one."""
    with decimal.localcontext() as context:
        context.prec = 2
        assert canonical(Decimal("123.45")) == "123.45"
        assert canonical(10**60 + 7) == VECTORS["canonical"]["big whole"]


@pytest.mark.parametrize(
    ("value", "path", "kind"),
    [
        (object(), "target", "object"),
        ({"a": [1, {"k": object()}]}, "target['a'][1]['k']", "object"),
        ({(1, frozenset([1j])): 1}, "target[(1, frozenset({1j}))][1]{}", "complex"),
        (Line(object()), "target.sku", "object"),  # type: ignore[arg-type]
        (Order, "target", "ModelMetaclass"),
        (Line, "target", "type"),
        (iter([1]), "target", "list_iterator"),
        (pydantic.SecretStr("s3cret"), "target", "SecretStr"),
        ([Order(id="o", secret=pydantic.SecretStr("s3cret"))], "target[0]['secret']", "SecretStr"),
        (Broken(id=1), "target", "Broken"),
    ],
)
def test_refusals_name_the_place_and_the_type(value: object, path: str, kind: str) -> None:
    """What has no identity is refused before anything is sent, and the message says where it stood."""
    with pytest.raises(Uncanonical, match=re.escape(f"`{path}` is a `{kind}`: ")) as caught:
        canonical(value, "target")
    assert (path, kind) == (caught.value.path, caught.value.kind)
    assert isinstance(caught.value, TypeError)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "kind", "why"),
    [
        (
            pydantic.SecretStr("s"), "SecretStr",
            "a secret never enters a key or a fingerprint; leave it out, or redact it",
        ),
        (Broken(id=1), "Broken", "its `model_dump()` raised RuntimeError; pass its identifiers"),
        (nested(101), "list", "cyclic, or nested too deeply; pass the identifiers that the write is about"),
        (
            object(), "object",
            """no canonical text is known for it; pass text, a number, a UUID, a date, or a mapping, sequence, \
dataclass or pydantic model of such""",
        ),
    ],
)  # fmt: skip
def test_refusals_say_what_to_pass_instead(value: object, kind: str, why: str) -> None:
    """The whole sentence; what has no name given is called `value`."""
    with pytest.raises(Uncanonical) as caught:
        canonical(value)
    path = "value" + "[0]" * (101 if kind == "list" else 0)
    assert str(caught.value) == f"`{path}` is a `{kind}`: {why}"


def test_cycles_are_refused_where_they_close() -> None:
    """A value that contains itself has no text; the path stops at the first repetition."""
    loop: list[object] = [1]
    loop.append({"again": loop})
    with pytest.raises(Uncanonical, match=re.escape("`target[1]['again']` is a ")):
        canonical(loop, "target")


def test_depth_is_bounded() -> None:
    """A hundred levels pass, more are refused rather than left to the recursion limit; as a target and an argument."""
    assert canonical(nested(100)) == "[" * 101 + "]" * 101
    assert is_missing(nested(100))
    assert fingerprint({"a": nested(100)})
    assert not is_missing(nested(101))
    for refused in (canonical, lambda deep: fingerprint({"a": deep})):
        with pytest.raises(Uncanonical, match="nested too deeply"):
            refused(nested(101))


def test_a_value_shared_in_two_places_is_no_cycle() -> None:
    """Only containing itself is a cycle."""
    shared = {"x": 1}
    assert canonical([shared, shared]) == '[{"x":1},{"x":1}]'


# Missing targets ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "target",
    [None, "", b"", {}, [], (), set(), [None], {"u": None, "o": None}, ["", [None, {"x": ""}]], Line("", None),  # type: ignore[arg-type]
     Ids([]), enum.Enum("E", {"NONE": None}).NONE],  # type: ignore[attr-defined]
)  # fmt: skip
def test_a_target_that_names_nothing_is_missing(target: object) -> None:
    """Values are looked at, not keys: the null target would be one record for everybody."""
    assert is_missing(target) is True


def test_missing_looks_into_models() -> None:
    """A model of nothing but None names nothing."""

    class Who(pydantic.BaseModel):
        user: str | None = None

    assert is_missing(Who()) is True
    assert is_missing(Who(user="u")) is False


@pytest.mark.parametrize(
    "target", [0, False, 0.0, "x", " ", [0], {"u": None, "o": 1}, Line("s"), object(), Line]
)
def test_zero_and_false_are_values(target: object) -> None:
    """Falsy is not missing, and what cannot be judged is left to `canonical`."""
    assert is_missing(target) is False


def test_a_cyclic_target_is_not_missing() -> None:
    """The walk ends, and leaves the refusal to `canonical`."""
    loop: list[object] = []
    loop.append(loop)
    assert is_missing(loop) is False


# Keys -----------------------------------------------------------------------------------------------------

PARTS: dict[str, Any] = {
    "namespace": "default", "run": "run-42", "turn": "3", "tool": "cancel", "target": '"sub_1"', "occurrence": None
}  # fmt: skip


def test_key_vectors_never_change() -> None:
    """Open intents in ledgers out there stand under these keys: a changed vector is a second write after an update.

    If this fails, the code is wrong, never the file.
    """
    assert {row["key"] for row in VECTORS["keys"]} == {intent_key(**row["parts"]) for row in VECTORS["keys"]}
    for row in VECTORS["keys"]:
        assert row["key"] == intent_key(**row["parts"])
    assert VECTORS["canonical"] == {name: canonical(value) for name, value in VALUES.items()}
    told = fingerprint(VECTORS["fingerprint"]["arguments"], redacted=["token"], salt=b"salt")
    assert VECTORS["fingerprint"]["digests"] == told
    assert VECTORS["fingerprint"]["digest"] == fingerprint_digest(told)


def test_keys_are_safe_in_headers_and_show_nothing() -> None:
    """At most 64 characters that every header and log takes, and nothing of the target in them."""
    key = intent_key(**PARTS | {"target": target_text("alice@example.com\r\nX: 1")})
    assert re.fullmatch(r"sw1_[A-Za-z0-9_-]{43}", key)
    assert len(key) <= 64
    assert "alice" not in key


@pytest.mark.parametrize("part", [*PARTS])
def test_every_part_counts(part: str) -> None:
    """Changing any one of the six gives another key."""
    assert intent_key(**PARTS) != intent_key(**PARTS | {part: "other"})


def test_parts_do_not_run_into_each_other() -> None:
    """Moving a character from one part to the next gives another key."""
    one = PARTS | {"run": "a", "turn": "bc"}
    other = PARTS | {"run": "ab", "turn": "c"}
    assert intent_key(**one) != intent_key(**other)
    assert intent_key(**PARTS | {"run": 'a","b'}) != intent_key(**PARTS | {"run": "a", "turn": "b"})


def test_occurrences_2_and_text_2_are_the_same() -> None:
    """A host that resumes from JSON may hold the number as text; no occurrence is yet another thing."""
    keys = [intent_key(**PARTS | {"occurrence": told}) for told in (2, "2", 3, None, "null")]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(("turn", "text"), [(3, "3"), ("3", "3"), ("plan/2", "plan/2"), (Level.HIGH, "3"), (-1, "-1"),
                                            (OldName.ONE, "one"), (0, "0")])  # fmt: skip
def test_turns_are_text_or_whole_numbers(turn: str | int, text: str) -> None:
    """3 and "3" are one turn, since hosts store turns as either."""
    assert text == turn_text(turn)
    assert type(turn_text(turn)) is str


@pytest.mark.parametrize("turn", [None, "", "  ", True, 3.0, b"3", ["3"]])
def test_other_turns_are_refused(turn: Any) -> None:
    """A turn that might be spelled differently the next time gives no protection."""
    with pytest.raises(ValueError, match="`turn` is text or a whole number"):
        turn_text(turn)


def test_other_occurrences_are_refused() -> None:
    """An empty occurrence is no occurrence, and must be said with None."""
    with pytest.raises(ValueError, match="`occurrence` is text or a whole number"):
        intent_key(**PARTS | {"occurrence": ""})


def test_long_targets_are_stored_short_and_told_apart() -> None:
    """A target of any size fits an index, and its end still counts."""
    one, other = (target_text(["x" * 5000, end]) for end in (1, 2))
    assert MAX_TARGET_TEXT == len(one) == len(other)
    assert one != other
    assert one[:400] == other[:400] == canonical(["x" * 5000])[:400]
    assert target_text("x" * 510) == f'"{"x" * 510}"'
    assert len(target_text("x" * 511)) == MAX_TARGET_TEXT
    assert target_text("x" * 511) != target_text("x" * 512)


def test_whatever_an_object_is_called_an_index_holds_it() -> None:
    """Its id is text as it came, which may be no Unicode; long ones are told apart by their digest."""
    one, other = (indexable("\ud800" + "x" * 600 + end) for end in "ab")
    assert MAX_TARGET_TEXT == len(one) == len(other)
    assert one != other
    assert one.startswith("\ud800xxx")
    assert indexable("\ud800") == "\ud800"


def test_targets_are_named_in_refusals() -> None:
    """The error speaks of the target."""
    with pytest.raises(Uncanonical, match=re.escape("`target[0]`")):
        target_text([object()])


# Fingerprints ---------------------------------------------------------------------------------------------


def test_fingerprints_name_the_parameters_that_differ() -> None:
    """Values that differ, and parameters that only one side knows."""
    recorded = fingerprint({"sub": "s1", "amount": 5, "old": 1, "reason": "a"}, leave_out=("reason",))
    now = fingerprint({"amount": Decimal(6), "sub": "s1", "new": None, "reason": "b"}, leave_out=("reason",))
    assert differing(recorded, now) == ("amount", "new", "old")
    assert differing(recorded, dict(reversed(recorded.items()))) == ()
    assert "reason" not in recorded


def test_one_digest_tells_whether_anything_differs() -> None:
    """Equal wishes, equal digest, whatever the order; another name or value, another digest."""
    one = fingerprint_digest(fingerprint({"a": 1, "b": [2]}))
    assert one == fingerprint_digest(fingerprint({"b": (2.0,), "a": 1.0}))
    assert one != fingerprint_digest(fingerprint({"a": 1, "b": [3]}))
    assert one != fingerprint_digest(fingerprint({"a": 1, "c": [2]}))


def test_equal_values_of_two_parameters_have_different_digests() -> None:
    """A digest cannot be carried from one parameter to another."""
    told = fingerprint({"a": "x", "b": "x"})
    assert told["a"] != told["b"]


def test_redacted_arguments_are_salted_and_opened() -> None:
    """Digests of secrets compare within an intent and cannot be guessed from without."""

    def told(secret: object, salt: bytes) -> str:
        return fingerprint({"token": secret}, redacted={"token"}, salt=salt)["token"]

    secret = pydantic.SecretStr("t")
    assert told("t", b"one") == told(secret, b"one") != told("t", b"two")
    assert told("t", b"one") != told("u", b"one")
    assert told("t", b"one") != fingerprint({"token": "t"})["token"]
    assert told(Order(id="o", secret=secret), b"1") != told(
        Order(id="o", secret=pydantic.SecretStr("u")), b"1"
    )


@given(st.binary(max_size=200), st.binary(max_size=200))
@example(b"text", bytes(range(63)))
@example(b"text", bytes(range(64)))
@example(b"text", bytes(range(65)))
def test_a_keyed_digest_is_the_standard_one(text: bytes, salt: bytes) -> None:
    """That of HMAC-SHA-256, for keys of any length."""
    standard = hashlib.sha256(hmac.digest(salt, text, "sha256")).digest()
    assert intent.keyed(text, salt) == base64.urlsafe_b64encode(standard).rstrip(b"=").decode()


def test_redaction_needs_a_salt() -> None:
    """Without a salt the digest of a short secret is the secret."""
    with pytest.raises(ValueError, match=r"^redacted arguments need a `salt`"):
        fingerprint({"token": "t"}, redacted=("token",))


def test_undeclared_secrets_are_refused_by_name() -> None:
    """The refusal names the parameter and the place in it."""
    with pytest.raises(Uncanonical, match=re.escape("`auth['token']` is a `SecretStr`")):
        fingerprint({"auth": {"token": pydantic.SecretStr("t")}}, redacted=("other",), salt=b"s")


# Properties -----------------------------------------------------------------------------------------------

leaves = (
    st.none() | st.booleans() | st.integers() | st.text(st.characters()) | st.binary(max_size=4)
    | st.floats(allow_nan=False) | st.decimals(allow_nan=False) | st.dates() | st.datetimes(timezones=st.none()
    | st.just(dt.UTC) | st.just(CET))
)  # fmt: skip
hashable = st.none() | st.integers() | st.text(max_size=4) | st.booleans() | st.tuples(st.text(max_size=2))
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hashable, inner, max_size=4)
    | st.sets(hashable, max_size=4),
    max_leaves=12,
)  # fmt: skip


def meaning(value: Any) -> object:
    """Say what a value means, with Python's own equality, to hold `canonical` against."""
    match value:
        case bool() | None:
            return ("constant", str(value))
        case str():
            return ("text", unicodedata.normalize("NFC", value))
        case int() | Decimal():
            return ("number", Decimal(value))
        case float():
            return ("number", Decimal(value) if value.is_integer() else Decimal(repr(value)))
        case dt.datetime():
            return ("naive" if value.tzinfo is None else "instant", value)
        case dict():
            return ("mapping", frozenset((meaning(key), meaning(item)) for key, item in value.items()))
        case set():
            return ("set", frozenset(map(meaning, value)))
        case list() | tuple():
            return ("sequence", tuple(map(meaning, value)))
        case _:
            return (type(value).__name__, value)


@given(values, values)
def test_texts_are_equal_exactly_if_the_values_mean_the_same(one: object, other: object) -> None:
    """No two meanings share a text, no meaning has two."""
    assert (canonical(one) == canonical(other)) is (meaning(one) == meaning(other))
    assert canonical(one).isascii()


def test_characters_that_are_only_alike_are_two_texts() -> None:
    """Of all there are, what another form, another case or a blank cut off makes of it is the same only by NFC."""
    others: list[Callable[[str], str]] = [
        *(partial(unicodedata.normalize, form) for form in ("NFKC", "NFKD", "NFD")), str.casefold, str.upper, str.strip,
    ]  # fmt: skip
    for one in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(one) in ("Cn", "Co", "Cs"):  # none there, or nobody knows which
            continue
        for other in {form(one) for form in others} - {one}:
            same = unicodedata.normalize("NFC", one) == unicodedata.normalize("NFC", other)
            assert (canonical(one) == canonical(other)) is same, (one, other)


@given(st.dictionaries(hashable, values, min_size=2, max_size=5), st.randoms())
def test_order_of_keys_never_counts(mapping: dict[object, object], random: Any) -> None:
    """Any order of the same keys is the same text."""
    items = [*mapping.items()]
    random.shuffle(items)
    assert canonical(dict(items)) == canonical(mapping)


@given(st.dictionaries(st.text(), st.text()), st.dictionaries(st.text(), st.text()))
def test_named_arguments_never_collide(one: dict[str, str], other: dict[str, str]) -> None:
    """`f(a="b=1")` and `f(**{"a=b": "1"})` differ, and so does everything of that kind."""
    nfc = [
        {unicodedata.normalize("NFC", k): unicodedata.normalize("NFC", v) for k, v in d.items()}
        for d in (one, other)
    ]
    if [len(d) for d in nfc] == [len(one), len(other)]:
        assert (canonical(one) == canonical(other)) is (nfc[0] == nfc[1])
        equal = {*map(fingerprint_digest, map(fingerprint, (one, other)))}
        assert (len(equal) == 1) is (one == other or nfc[0] == nfc[1])


@given(st.tuples(*[st.text()] * 5), st.tuples(*[st.text()] * 5))
def test_keys_collide_only_for_the_same_five_texts(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    """The encoding of the parts is unambiguous for any text in them."""
    names = ("namespace", "run", "turn", "tool", "target")
    nfc = [[unicodedata.normalize("NFC", part) for part in parts] for parts in (one, other)]
    keys = [intent_key(**dict(zip(names, parts, strict=True))) for parts in (one, other)]
    assert (keys[0] == keys[1]) is (nfc[0] == nfc[1])


def test_texts_are_the_same_in_every_process() -> None:
    """Hash seeds differ from process to process; keys do not."""
    script = (
        "from safewrite.core.canonical import canonical; from safewrite.core.intent import fingerprint;"
        "print(canonical([{'a','b','c','d',1,2.5}, {'x': {b'1', None}, 3: frozenset('xyz')}]),"
        " fingerprint({'b': {'q', 'r', 's'}, 'a': 1}))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1", "2", "42")
    }  # fmt: skip
    assert len(told) == 1
    assert told.pop().startswith('[set["a","b","c","d",1,2.5],')


def test_the_common_target_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain text and numbers never enter the walk: they are the targets of nearly every write."""
    monkeypatch.delattr("safewrite.core.canonical._compound")
    assert canonical("sub_1") == '"sub_1"'
    assert canonical(7) == "7"
    assert intent_key(**PARTS).startswith("sw1_")
