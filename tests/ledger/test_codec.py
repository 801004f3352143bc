"""Stored results and arguments: the first call and every replay return the same."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import io
import json
import pathlib
import re
import sqlite3
import subprocess
import sys
import uuid
import warnings
from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import freezegun
import pydantic
import pytest
import typing_extensions
from hypothesis import given
from hypothesis import strategies as st

from safewrite.ledger.codec import (
    Codec,
    Encoded,
    Undecodable,
    Unstorable,
    decode_arguments,
    encode_arguments,
    holds_secret,
)
from safewrite.ledger.hints import named_classes, secret_parameters
from safewrite.ledger.sameness import same
from safewrite.ledger.tagged import Tagger, Untaggable

ROOT = pathlib.Path(__file__).parents[2]
BERLIN = ZoneInfo("Europe/Berlin")
CET = dt.timezone(dt.timedelta(hours=2))
SECRET = pydantic.SecretStr("hunter2")
T = TypeVar("T")


def shown(value: object) -> str:
    """Name a case the same in every process: without the addresses of objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))[:50]


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    OWN = 4


class Point(NamedTuple):
    x: int
    y: Any


class Noted(Point):
    """A named tuple with room for more than its fields."""


@dataclasses.dataclass(frozen=True)
class Line:
    sku: str
    extra: Any = None
    total: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        if not self.sku:
            raise ValueError("a line needs a sku")


@dataclasses.dataclass
class Slotted:
    __slots__ = ("a",)
    a: Any


class Order(pydantic.BaseModel):
    id: str
    at: dt.datetime | None = None
    lines: list[Line] = []
    extra: Any = None


class Renamed(pydantic.BaseModel):
    sub_id: str = pydantic.Field(validation_alias="subId", serialization_alias="sub-id")


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: int
    _note: str = pydantic.PrivateAttr(default="")


class Aliased(pydantic.BaseModel):
    sub_id: str = pydantic.Field(alias="subId")


class Closed(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    id: int

    @pydantic.computed_field
    def double(self) -> int:
        return self.id * 2


class Derived(Order):
    more: int = 1


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class Excluding(pydantic.BaseModel):
    id: int
    hidden: str = pydantic.Field(default="", exclude=True)


class Box(pydantic.BaseModel, Generic[T]):
    item: T


class Row(typing_extensions.TypedDict):  # pydantic wants this one before Python 3.12
    id: int
    at: dt.date


class Plain:
    """No equality, but a schema."""

    def __init__(self, a: object) -> None:
        self.a = a

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as cs

        return cs.no_info_plain_validator_function(
            lambda told: told if isinstance(told, cls) else cls(told),
            serialization=cs.plain_serializer_function_ser_schema(lambda it: it.a),
        )


class Stamped(Plain):
    """What it is made of differs every time it is made."""

    def __init__(self, a: object) -> None:
        super().__init__(a)
        self.made = object()


class Unknown:
    pass


def kept(value: object, annotation: Any = ..., way: str | None = None) -> Any:
    """Encode, check where it can be stored, decode with another codec as another process would."""
    of = () if annotation is ... else (annotation,)
    encoded = Codec(*of).encode(value)
    assert encoded.reason is None
    assert encoded.text is not None
    assert encoded.text.isascii()
    assert "\x00" not in encoded.text
    if way is not None:
        assert json.loads(encoded.text)["as"] == way
    return Codec(*of).decode(encoded.text)


def reason(value: object, annotation: Any = ..., **options: Any) -> str:
    """Say why the value is not kept."""
    encoded = Codec(*(() if annotation is ... else (annotation,))).encode(value, **options)
    assert encoded.text is None
    assert encoded.reason is not None
    return encoded.reason


def told(value: Any) -> object:
    """Say type and value at every level, independently of the code under test."""
    kind = type(value).__name__
    match value:
        case dict():
            return kind, [(told(key), told(item)) for key, item in value.items()]
        case set() | frozenset():
            return kind, sorted(repr(told(item)) for item in value)
        case tuple() | list():
            return kind, [told(item) for item in value]
        case dt.datetime() | dt.time():
            return kind, value.replace(tzinfo=None), value.fold, value.utcoffset()
        case int():
            return kind, hex(value)
        case Plain():
            return kind, told(value.a)
        case pydantic.BaseModel() | Line() | Slotted():
            return kind, [(name, told(getattr(value, name))) for name in fields_of(value)]
        case _:
            return kind, repr(value)


def fields_of(value: Any) -> list[str]:
    """Return the names of the fields of a model or dataclass."""
    if isinstance(value, pydantic.BaseModel):
        return [*type(value).model_fields]
    return [field.name for field in dataclasses.fields(value)]


NAIVE = dt.datetime(2026, 10, 25, 2, 30, 0, 6)  # noqa: DTZ001
PLAIN = [
    None, True, False, 0, 1, -(2**70), 10**5000, 1.5, -0.0, 1e300, float("nan"), float("inf"), float("-inf"),
    "", "text", "caf\u00e9 \U0001f600", "a\x00b", "\ud800", "\ud83d\ude00", "\\u0000", b"", b"\xff\x00",
    bytearray(b"ab"), [], [1, [True, None]], (), (1, (2,)), {}, {"a": 1}, {1: "a"}, {("a", "b"): 1},
    {"$tuple": [1]}, {"\ud800": 1}, {"\ud83d\ude00": 1},
    {None: 1, 1.5: 2, b"k": 3}, {1, 2}, set(), frozenset({"a", (1, 2)}),
    {frozenset({1}), frozenset()}, Decimal("1.10"), Decimal("-0"), Decimal("NaN"), Decimal("1E+400"),
    NAIVE, NAIVE.replace(fold=1), NAIVE.replace(tzinfo=dt.UTC), NAIVE.replace(tzinfo=CET),
    NAIVE.replace(tzinfo=BERLIN, fold=1), dt.date(2026, 1, 2), dt.time(3, 4, tzinfo=CET), dt.time(3, 4, tzinfo=BERLIN),
    dt.time(3, 4, fold=1), dt.timedelta(days=-1, seconds=5, microseconds=7), uuid.UUID(int=7), pathlib.Path("a/b"),
    pathlib.Path("a\udcff"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("c:\\x"),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("annotation", [..., Any, "its type"])
def test_plain_values_come_back_equal_and_of_the_same_type(value: object, annotation: Any) -> None:
    """Without an annotation and with the right one."""
    assert told(kept(value, type(value) if annotation == "its type" else annotation)) == told(value)


def test_zones_keep_their_rules() -> None:
    """A time in a zone stays in that zone, so that sums across a change of clocks stay right."""
    back = kept(dt.datetime(2026, 10, 24, 12, tzinfo=BERLIN), dt.datetime, "tagged")
    assert back.tzinfo is BERLIN
    assert kept([dt.datetime(2026, 1, 1, tzinfo=CET)], list[dt.datetime], "adapter")[
        0
    ].utcoffset() == CET.utcoffset(None)


line = Line("s")
object.__setattr__(line, "total", 7)
noted = Noted(1, 2)
noted.note = "n"  # type: ignore[attr-defined]
private = Open(id=1, also="x")  # type: ignore[call-arg]
private._note = "n"


@pytest.mark.parametrize(
    ("value", "annotation", "way"),
    [
        (Order(id="o", at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), lines=[Line("s")]), Order, "adapter"),
        ([Order(id="o")], list[Order] | None, "adapter"),
        ({"a": Colour.RED}, dict[str, Colour], "adapter"),
        ({"id": 1, "at": dt.date(2026, 1, 1)}, Row, "adapter"),
        (Box[Colour](item=Colour.RED), Box[Colour], "adapter"),
        (collections.OrderedDict(b=1, a=2), collections.OrderedDict[str, int], "adapter"),
        ((1, "a"), tuple[int, str], "adapter"),
        ({Decimal("1.1")}, set[Decimal], "adapter"),
        (Plain("x"), Plain, "adapter"),
        (Aliased(subId="s"), Aliased, "adapter"),
        (Closed(id=1), Closed, "adapter"),
        # What pydantic would change on the way
        (Order(id="o", extra=(1, 2)), Order, "tagged"),
        (Order(id="o\x00", extra=float("nan")), Order, "tagged"),
        (Order(id="\ud800"), Order, "tagged"),
        (Renamed(subId="s"), Renamed, "tagged"),  # type: ignore[call-arg]
        (private, Open, "tagged"),
        (Box[Any](item=b"\xff"), Box[Any], "tagged"),
        (Box[Any](item=Line("s")), Box[Any] | Line, "tagged"),
        (line, Line, "tagged"),
        (Slotted((1, 2)), Slotted, "tagged"),
        (Point(1, {2}), Point, "tagged"),
        (Point(1, [Line("s", {1: 2})]), tuple[Point, Line] | Point, "tagged"),
        ({"a": 1}, Order, "tagged"),  # not what was promised, but plain
        (("a", 1), list[Any], "tagged"),
        ("text", int, "tagged"),
        ([1.0, 2], list[float], "tagged"),
        ([True], list[int], "tagged"),
        ([Colour.RED, Rights.READ | Rights.WRITE, Rights.OWN, Rights(0)], list[Any] | Colour | Rights, "tagged"),
        ({Colour.RED: 1}, dict[Literal[Colour.RED], float], "tagged"),
        (Colour.BLUE, Colour, "adapter"),
    ],
    ids=shown,
)  # fmt: skip
def test_known_classes_come_back_equal_and_of_the_same_type(value: Any, annotation: Any, way: str) -> None:
    """By the annotation if pydantic changes nothing, else taken apart and built again."""
    back = kept(value, annotation, way)
    assert told(back) == told(value)
    if isinstance(value, pydantic.BaseModel):
        assert type(back) is type(value)
        assert (back.__pydantic_extra__, back.__pydantic_private__) == (
            value.__pydantic_extra__,
            value.__pydantic_private__,
        )
        assert way == "adapter" or back.model_fields_set == value.model_fields_set
    assert kept(back, annotation, way) is not None


def test_values_that_break_their_annotation_raise_no_warning() -> None:
    """Whether a result is what the tool promised is the tool's matter."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Codec(Order).encode({"a": 1})
        Codec(Order).encode(Order.model_construct(id=[1]))
    assert caught == []


def test_times_of_a_frozen_clock_are_kept_as_real_ones() -> None:
    """Tests of tools freeze the clock; what they write must be kept as it would be without."""
    with freezegun.freeze_time("2026-01-01T12:00:00"):
        now, today = dt.datetime.now(dt.UTC), dt.date.today()  # noqa: DTZ011
    assert type(now) is not dt.datetime
    assert told(kept([now, today])) == told([dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC), dt.date(2026, 1, 1)])
    assert kept(Order(id="o", at=now), Order, "adapter").at == now


def test_sets_have_one_text() -> None:
    """Digests are made of the text, so the order of a set must not depend on the process."""
    script = (
        "from safewrite.ledger.codec import Codec;"
        "print(Codec().encode([{'a','b','c','d',1}, frozenset('xyz'), {frozenset('ab'), frozenset('cd')}]).text)"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(texts) == 1


def test_classes_without_equality_are_kept_alike() -> None:
    """What cannot be compared is kept by the schema that its author wrote, if the types are right."""
    back = kept([Stamped("x")], list[Stamped], "alike")
    assert type(back[0]) is Stamped
    assert back[0].a == "x"


@pytest.mark.parametrize(
    ("value", "annotation", "why"),
    [
        (object(), ..., "`object`"),
        (Order(id="o"), ..., "`Order`"),
        (Derived(id="o", more=2), Order, "`Derived`"),
        (Colour.RED, Any, "`Colour`"),
        (Line("s"), list["Nowhere"], "`Line`"),  # type: ignore[name-defined] # noqa: F821
        (Excluding(id=1, hidden="x"), Excluding, "excludes fields"),
        (collections.OrderedDict(a=1), ..., "`OrderedDict`"),
        ({1j}, ..., "`complex`"),
        (noted, Noted, "does not come back the same"),
        (iter([1]), list[int], "`list_iterator` can be read only once"),
        ([io.StringIO("x")], ..., "`StringIO` can be read only once"),
    ],
)
def test_what_cannot_be_kept_says_so(value: object, annotation: Any, why: str) -> None:
    """Nothing is kept under another type, or cut; the reason names the type."""
    told = reason(value, annotation)
    assert told.startswith("not_storable: ")
    assert why in told


def test_reading_once_is_left_to_the_caller() -> None:
    """Encoding an iterator must not use it up."""
    items = iter([1, 2])
    reason(items, Iterator[int])
    assert [*items] == [1, 2]


def test_encoding_never_raises() -> None:
    """The write is done: neither cycles nor hostile classes may make it look failed."""

    class Hostile(Plain):
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no")

        __hash__ = None  # type: ignore[assignment]

    loop: list[object] = []
    loop.append(loop)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert reason(loop) == "not_storable: RecursionError"
    assert reason(loop, list[Any]).startswith("not_storable: ")
    assert reason(deep) == "not_storable: RecursionError"
    assert reason(Hostile(1), Hostile) == "not_storable: RuntimeError"


def test_interrupts_are_not_swallowed() -> None:
    """Only an `Exception` is turned into a reason."""

    class Interrupting(Plain):
        def __eq__(self, other: object) -> bool:
            raise KeyboardInterrupt

        __hash__ = None  # type: ignore[assignment]

    with pytest.raises(KeyboardInterrupt):
        Codec(Interrupting).encode(Interrupting(1))


def test_oversize_values_are_not_kept() -> None:
    """The limit is on the text, and the reason gives both numbers."""
    assert reason("x" * 1_000_001).startswith("too_large: ")
    size = len(Codec().encode("xyz").text or "")
    assert Codec().encode("xyz", max_bytes=size).text is not None
    assert reason("xyz", max_bytes=size - 1) == f"too_large: {size} bytes, {size - 1} are kept"


class Hiding(Plain):
    pass


remembering = Open(id=1)
remembering._note = SECRET  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (SECRET, ...),
        (SECRET, pydantic.SecretStr),
        ([{"a": (1, {SECRET})}], ...),
        ({SECRET: 1}, ...),
        (Login(user="u", password=SECRET), Login),
        (Box[Any](item=pydantic.SecretBytes(b"hunter2")), Box[Any]),
        (Open(id=1, also=SECRET), Open),  # type: ignore[call-arg]
        (remembering, Open),
        (Line("s", SECRET), Line),
        (Hiding(SECRET), Hiding),
        (pydantic.Secret[int](7), ...),
        ([iter([1]), SECRET], ...),
        ("hunter2", pydantic.SecretStr),
        (["hunter2"], list[pydantic.SecretStr]),
        ("hunter2", Annotated[pydantic.SecretStr | None, "note"]),
    ],
)
def test_secrets_are_never_kept(value: object, annotation: Any) -> None:
    """By their type, anywhere in the value, or by the annotation even if the value is plain."""
    assert reason(value, annotation) == "redacted"


def test_what_only_might_have_been_secret_is_kept() -> None:
    """None is no secret, nor is the plain half of a union with a model that could hold one."""
    assert kept(None, pydantic.SecretStr | None) is None
    assert kept("ok", str | Login) == "ok"


def test_secrets_in_values_can_be_asked_for() -> None:
    """At any depth, and never by what plain text looks like."""
    assert holds_secret({"a": [1, Line("s", (SECRET,))]}) is True
    assert holds_secret({"a": [1, Line("s", ("hunter2",))]}) is False


def test_texts_survive_a_real_database() -> None:
    """NUL, lone surrogates, nan and enormous numbers are escaped, so every database takes the text."""
    value = ["a\x00b", "\ud800", "\\u0000", float("nan"), 10**5000, "caf\u00e9"]
    with sqlite3.connect(":memory:") as database:
        text = Codec().encode(value).text
        (stored,) = database.execute("SELECT ?", (text,)).fetchone()
    database.close()
    assert told(Codec().decode(stored)) == told(value)


def test_adapter_texts_are_ascii_too() -> None:
    """Databases that are not in UTF-8 take the text as well."""
    encoded = Codec(Order).encode(Order(id="caf\u00e9 \U0001f600\x00")).text
    assert (
        encoded
        == '{"v":1,"as":"adapter","value":{"id":"caf\\u00e9 \\ud83d\\ude00\\u0000","at":null,"lines":[],"extra":null}}'
    )
    assert Codec(Order).decode(encoded) == Order(id="caf\u00e9 \U0001f600\x00")


@pytest.mark.parametrize(
    ("text", "annotation", "why"),
    [
        ("", ..., "not known"),
        ("null", ..., "not known"),
        ('{"v":2,"as":"adapter","value":1}', int, "newer version"),
        ('{"v":1,"as":"tagged","value":{"$new":1}}', ..., "no longer fits"),
        ('{"v":1,"as":"tagged","value":', ..., "no longer fits"),
        ('{"v":1,"as":"tagged","value":{"$decimal":"x"}}', ..., "no longer fits"),
        ('{"v":1,"as":"adapter","value":"x"}', int, "no longer fits"),
        ('{"v":1,"as":"adapter","value":"x"}', ..., "no longer fits"),
        ('{"v":1,"as":"tagged","value":{"$enum":"os:system","member":"x"}}', Colour, "no longer fits"),
    ],
)
def test_texts_that_no_longer_fit_are_refused(text: str, annotation: Any, why: str) -> None:
    """A changed annotation or a newer form is an error of one kind, never another value."""
    with pytest.raises(Undecodable, match=why):
        Codec(*(() if annotation is ... else (annotation,))).decode(text)


def test_stored_names_never_decide_what_is_built() -> None:
    """Only classes that the annotation names are built, whatever the text says."""
    text = Codec(Line).encode(line).text
    assert text is not None
    assert '"$dataclass":"' in text
    with pytest.raises(Undecodable) as caught:
        Codec(Order | None).decode(text.replace(":Line", ":Slotted"))
    assert "Slotted" in str(caught.value.__cause__)


def test_classes_may_move_to_another_module() -> None:
    """The bare name finds the class, unless two of the annotation share it."""
    text = Codec(Line).encode(line).text
    assert text is not None
    moved = text.replace(f'"{Line.__module__}:', '"old.place:')
    assert moved != text
    assert Codec(Line).decode(moved) == line
    other = dataclasses.make_dataclass("Line", [("sku", str)])
    other.__module__ = "elsewhere"
    with pytest.raises(Undecodable):
        Codec(Line | other).decode(moved)
    assert Codec(Line | other).decode(text) == line


def test_constructors_and_validators_do_not_run_again() -> None:
    """What was built once is put together as it was, though its constructor would refuse it today."""
    odd = Line("s")
    object.__setattr__(odd, "sku", "")
    assert kept(odd, Line, "tagged").sku == ""


# Arguments ------------------------------------------------------------------------------------------------

HINTS: dict[str, Any] = {"sub_id": str, "order": Order, "token": pydantic.SecretStr, "amount": Decimal}


def test_arguments_come_back_as_they_went() -> None:
    """Each by its own annotation or, without one, by its tags."""
    arguments = {"sub_id": "s\x00", "order": Order(id="\u00e9"), "amount": Decimal("1.10"), "free": (1, {2})}
    text = encode_arguments(arguments, HINTS)
    assert text.isascii()
    assert decode_arguments(text, HINTS) == (arguments, ())
    assert json.loads(text)["arguments"]["amount"] == {"v": 1, "as": "adapter", "value": "1.10"}


def test_codecs_can_be_given_in_place_of_annotations() -> None:
    """So that a tool builds them once."""
    codecs = {name: Codec(hint) for name, hint in HINTS.items()}
    text = encode_arguments({"order": Order(id="o")}, codecs)
    assert decode_arguments(text, codecs) == ({"order": Order(id="o")}, ())
    assert text == encode_arguments({"order": Order(id="o")}, HINTS)


def test_redacted_arguments_are_left_out_and_listed() -> None:
    """By declaration, by annotation and by type; nothing of them is in the text."""
    arguments = {
        "sub_id": "s",
        "token": "hunter2",
        "declared": "hunter2",
        "found": [Login(user="u", password=SECRET)],
    }
    text = encode_arguments(arguments, HINTS, redact={"declared", "absent"})
    assert "hunter2" not in text
    assert decode_arguments(text, HINTS) == ({"sub_id": "s"}, ("declared", "found", "token"))


def test_an_argument_that_cannot_be_recorded_is_named() -> None:
    """It is refused before anything is sent, since a later attempt would have nothing to send."""
    with pytest.raises(Unstorable, match=r"`client` cannot be recorded \(not_storable: `Unknown`") as caught:
        encode_arguments({"sub_id": "s", "client": Unknown()}, HINTS)
    assert caught.value.parameter == "client"
    assert isinstance(caught.value, TypeError)
    with pytest.raises(Unstorable, match="too_large"):
        encode_arguments({"sub_id": "s" * 50}, HINTS, max_bytes=50)


def test_arguments_that_no_longer_fit_are_named() -> None:
    """A changed signature is told by the parameter."""
    text = encode_arguments({"order": Order(id="o")}, HINTS)
    with pytest.raises(Undecodable, match="the argument `order`: "):
        decode_arguments(text, {"order": int})
    for odd in ("", "[]", "{}", '{"arguments":1,"missing":[]}'):
        with pytest.raises(Undecodable, match="form that is not known"):
            decode_arguments(odd, HINTS)


# Annotations ----------------------------------------------------------------------------------------------

Alias = typing_extensions.TypeAliasType("Alias", list[pydantic.SecretStr])
Token = NewType("Token", pydantic.SecretStr)
Bound = TypeVar("Bound", bound=Login)
Either = TypeVar("Either", int, pydantic.SecretBytes)


class Creds(TypedDict):
    token: typing_extensions.NotRequired[pydantic.SecretStr]


class Tree(NamedTuple):
    left: Tree | None
    leaf: Login


@dataclasses.dataclass
class Held:
    login: Login


@dataclasses.dataclass
class Unresolved:
    other: Nowhere  # type: ignore[name-defined] # noqa: F821
    login: Login


@pytest.mark.parametrize(
    "hint",
    [pydantic.SecretStr, pydantic.SecretBytes, pydantic.Secret[int], pydantic.SecretStr | None, Login, list[Login],
     dict[str, tuple[int, Login]], Annotated[Login, "x"], Alias, Token, Bound, Either, Creds, Tree, Held, Box[Login],
     type("Sub", (pydantic.SecretStr,), {})],
    ids=shown,
)  # fmt: skip
def test_secret_parameters_are_found(hint: Any) -> None:
    """However deep in the annotation the secret is."""
    assert secret_parameters({"a": hint, "b": str, "c": Order}) == {"a"}


def test_annotations_that_cannot_be_resolved_are_passed_over() -> None:
    """Names for type checkers only, texts and cycles end the search, not the program."""
    assert Unresolved in named_classes(Unresolved)
    assert secret_parameters({"a": "Login", "b": Unresolved, "c": ..., "d": None, "e": Tree | None}) == {"e"}


# Sameness -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True), (1, 1.0), (0.0, -0.0), ([1], (1,)), ([1], [1, 2]), ("a", "b"), (object(), object()),
        ({"a": 1}, {"a": True}), ({"a": 1, "b": 2}, {"b": 2, "a": 1}), ({1}, {True}), ({1}, {1, 2}),
        ({(1, frozenset({2}))}, {(True, frozenset({2}))}), ({frozenset({2})}, {frozenset({2.0})}),
        (Decimal("1.10"), Decimal("1.1")), (Order(id="o"), Derived(id="o")), (Order(id="o"), Order(id="p")),
        (Line("a"), Line("b")), (Line, Slotted), (Colour.RED, Colour.BLUE), (Plain(1), Plain(2)),
        (Open(id=1), Open(id=1, x=2)), (dt.time(1, fold=1), dt.time(1)),  # type: ignore[call-arg]
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, 2, tzinfo=CET)),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, tzinfo=CET)),
        (dt.datetime(2026, 7, 1, tzinfo=BERLIN), dt.datetime(2026, 7, 1, tzinfo=CET)),
    ],
    ids=shown,
)  # fmt: skip
def test_what_differs_in_value_or_type_is_not_the_same(one: object, other: object) -> None:
    """At any depth, where Python's own equality would let it pass."""
    assert same(one, one)
    assert not same(one, other)


def test_the_same_needs_no_identity() -> None:
    """Built twice, nan, and objects that only their attributes compare."""
    assert same({float("nan"): [Plain(1)]}, {float("nan"): [Plain(1)]})
    assert same({float("nan"), Decimal("NaN")}, {float("nan"), Decimal("NaN")})
    assert same(object(), object(), opaque=True)
    assert not same(Colour.RED, Colour.BLUE, opaque=True)
    assert not same([object(), 1], [object(), 2], opaque=True)


def test_only_fields_are_taken_from_classes_that_hold_no_more() -> None:
    """A dataclass that is also a list, or an exception, is more than its fields."""

    @dataclasses.dataclass
    class Listed(list[int]):
        a: int = 1

    with pytest.raises(Untaggable):
        Tagger([Listed]).tree(Listed())
    assert reason(Listed([1]), Listed).startswith("not_storable")
    assert not same(Listed([1]), Listed([2]))
    one, other = Listed(), Listed()
    other.a = 2
    assert not same(one, other)


def test_what_a_subclass_adds_counts() -> None:
    """A list with attributes of its own is not the same without them."""

    class Page(list[int]):
        after: str

    one, other = Page([1]), Page([1])
    assert same(one, other)
    one.after = "x"
    assert not same(one, other)


# Properties -----------------------------------------------------------------------------------------------

hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(), max_size=5) | st.binary(max_size=5)
    | st.floats()
    | st.decimals(allow_nan=False) | st.just(Decimal("NaN")) | st.dates() | st.timedeltas() | st.uuids(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
values = st.recursive(
    hashable | st.datetimes(timezones=st.none() | st.timezones(), allow_imaginary=False) | st.times()
    | st.sets(hashable, max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(hashable, inner, max_size=4)
    | st.builds(Order, id=st.text(max_size=3), extra=inner) | st.builds(Line, st.text(min_size=1, max_size=3), inner),
    max_leaves=10,
)  # fmt: skip


@given(values)
def test_any_value_comes_back_equal_and_of_the_same_type(value: object) -> None:
    """Whatever is kept comes back the same, and plain data is always kept."""
    annotation = list[Any] | Order | Line | Any
    codec = Codec(annotation)
    encoded = codec.encode(value)
    assert encoded.text is not None, encoded.reason
    assert encoded.text.isascii()
    assert told(Codec(annotation).decode(encoded.text)) == told(value)


def test_encoded_says_one_or_the_other() -> None:
    """A text has no reason, a reason no text."""
    assert Codec().encode(1) == Encoded('{"v":1,"as":"tagged","value":1}')
    assert Codec().encode(SECRET) == Encoded(None, "redacted")
