"""What a call returns: the first time and every time, and what happens where it cannot be kept."""

from __future__ import annotations

import datetime as dt
import enum
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import pytest
from pydantic import BaseModel, SecretStr

from safewrite import Applied, Attempt, GoalMet, SafeWrite, ValueNotKept
from safewrite.ledger.codec import decode_arguments
from tests.shell.conftest import Shell
from tests.shell.remote import LOSE, Remote

pytestmark = pytest.mark.usefixtures("run")


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: tuple[int, ...]


class Pair(NamedTuple):
    left: str
    right: Decimal


class Typed(TypedDict):
    at: dt.datetime


class Model(BaseModel):
    id: uuid.UUID
    when: dt.date


WHEN = dt.datetime(2026, 11, 29, 12, 0, tzinfo=dt.UTC)
KEPT: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "text": (str, "done"),
    "nul": (str, "a\x00b"),
    "lone surrogate": (str, "\ud800"),
    "an escape as text": (str, "\\u0000"),
    "nan": (float, math.nan),
    "infinity": (float, -math.inf),
    "huge": (int, 2**70),
    "decimal": (Decimal, Decimal("1.10")),
    "bytes": (bytes, b"\xff\x00"),
    "aware datetime": (dt.datetime, WHEN),
    "timedelta": (dt.timedelta, dt.timedelta(microseconds=1)),
    "tuple": (tuple, (1, "2", (3.0,))),
    "dict with whole numbers as keys": (dict, {1: "a", 2: "b"}),
    "dict with tuples as keys": (dict, {("a", "b"): 1}),
    "set": (set, {1, 2}),
    "path": (Path, Path("a/b")),
    "uuid": (uuid.UUID, uuid.UUID(int=7)),
    "enum": (Colour, Colour.RED),
    "dataclass": (Point, Point(1, (2, 3))),
    "named tuple": (Pair, Pair("l", Decimal(2))),
    "typed dict": (Typed, {"at": WHEN}),
    "model": (Model, Model(id=uuid.UUID(int=7), when=dt.date(2026, 11, 29))),
    "list of models": (list[Model], [Model(id=uuid.UUID(int=7), when=dt.date(2026, 11, 29))]),
    "optional": (Model | None, None),
}


def same(a: object, b: object) -> bool:
    """Return whether two values are equal and of one type, nan included."""
    return type(a) is type(b) and (a == b or (a != a and b != b))


@pytest.mark.parametrize(("hint", "value"), KEPT.values(), ids=KEPT)
def test_a_replay_returns_the_same_value_of_the_same_type(
    hint: Any, value: Any, shell: Shell, open_sw: Callable[..., SafeWrite], remote: Remote
) -> None:
    """The first call and one after a restart give equal values of equal type, from one effect."""

    def declare() -> Any:
        async def make(x: str, attempt: Attempt) -> Any:
            await remote.write(x, attempt)
            return value

        make.__annotations__["return"] = hint
        return open_sw().write(target="x", name="make")(shell.colours(make))

    first = shell.call(declare(), "a")
    again = shell.call(declare(), "a")
    assert same(first, value)
    assert same(again, value)
    assert remote.count() == 1


def test_a_value_is_the_decoded_one_from_the_first_call_on(shell: Shell, sw: SafeWrite) -> None:
    """What the body keeps hold of and changes later is not what the caller was given."""
    kept: list[int] = [1]

    async def make(x: str) -> list[int]:
        return kept

    first = shell.call(sw.write(target="x")(shell.colours(make)), "a")
    kept.append(2)
    assert first == [1]


class Handle:
    """Something that cannot be stored."""


def test_a_value_that_cannot_be_stored_is_returned_once_and_never_costs_the_write(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """Applied, returned as it is; a replay says that it was not kept, and sends nothing."""
    handle = Handle()

    async def make(x: str, attempt: Attempt) -> Any:
        await remote.write(x, attempt)
        return handle

    tool = sw.write(target="x")(shell.colours(make))
    assert shell.call(tool, "a") is handle
    with pytest.raises(ValueNotKept) as told:
        shell.call(tool, "a")
    outcome = shell.call(tool.outcome, "a")
    assert (outcome.state, outcome.has_value, outcome.value) == ("applied", False, None)
    assert "took effect" in told.value.for_model()
    assert remote.count() == 1


def test_a_value_that_is_too_large_is_returned_and_not_kept(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """Ten megabytes are no reason to fail a write that is done."""

    async def make(x: str, attempt: Attempt) -> str:
        await remote.write(x, attempt)
        return "x" * 10_000_000

    tool = sw.write(target="x")(shell.colours(make))
    assert len(shell.call(tool, "a")) == 10_000_000
    with pytest.raises(ValueNotKept):
        shell.call(tool, "a")
    assert remote.count() == 1


def test_a_secret_value_is_returned_and_not_kept(
    shell: Shell, sw: SafeWrite, remote: Remote, database: Path
) -> None:
    """A SecretStr reaches the caller, and no file."""

    async def make(x: str, attempt: Attempt) -> SecretStr:
        await remote.write(x, attempt)
        return SecretStr("hunter2-value")

    tool = sw.write(target="x")(shell.colours(make))
    assert shell.call(tool, "a").get_secret_value() == "hunter2-value"
    with pytest.raises(ValueNotKept):
        shell.call(tool, "a")
    assert b"hunter2" not in contents_of(database)


def contents_of(database: Path) -> bytes:
    """Return the bytes of a ledger, its log included."""
    return b"".join(path.read_bytes() for path in database.parent.glob(f"{database.name}*"))


@pytest.mark.usefixtures("clock")
def test_a_value_that_a_read_brings_has_the_type_of_the_tool(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """`Applied(value)` and `GoalMet(value)` are stored and replayed like a returned one."""
    model = Model(id=uuid.UUID(int=1), when=dt.date(2026, 1, 1))
    for n, verdict in enumerate((Applied(model), GoalMet(model))):

        async def make(x: str, attempt: Attempt) -> Model:
            await remote.write(x, attempt)
            return model

        async def read(verdict: Any = verdict) -> Any:
            return verdict

        tool = sw.write(target="x", name=f"make-{n}")(shell.colours(make))
        tool.reconcile(shell.colours(read))
        remote.next(LOSE)
        assert shell.call(tool, "a") == model
        replayed = shell.call(tool, "a")
        assert (type(replayed), replayed) == (Model, model)


def test_a_value_whose_type_has_changed_since_is_not_guessed_at(
    shell: Shell, open_sw: Callable[..., SafeWrite], remote: Remote
) -> None:
    """After a deploy the stored value no longer fits: applied, not kept, and not sent again."""

    def declare(hint: Any) -> Any:
        async def make(x: str, attempt: Attempt) -> Any:
            await remote.write(x, attempt)
            return Model(id=uuid.UUID(int=1), when=dt.date(2026, 1, 1))

        make.__annotations__["return"] = hint
        return open_sw().write(target="x", name="make")(shell.colours(make))

    shell.call(declare(Model), "a")
    with pytest.raises(ValueNotKept):
        shell.call(declare(int), "a")
    assert remote.count() == 1


# Arguments -----------------------------------------------------------------------------------------------------------


def test_a_body_that_changes_its_arguments_changes_neither_key_nor_record(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """The audit shows what was asked, not what it became; the same call again is replayed."""

    async def create(order: dict[str, Any], attempt: Attempt) -> str:
        order["seen"] = True
        return await remote.write("x", attempt)

    tool = sw.write(target="order")(shell.colours(create))
    first = shell.call(tool.outcome, {"a": 1})
    second = shell.call(tool.outcome, {"a": 1})
    assert (second.key, second.replayed, remote.count()) == (first.key, True, 1)
    assert '"seen"' not in sw.ledger.arguments(first.intent_id)


def test_a_body_that_changes_its_arguments_and_raises_is_read_with_the_first_ones(
    shell: Shell, sw: SafeWrite, remote: Remote, clock: Any
) -> None:
    """The read is asked about what was asked for."""
    seen: list[Any] = []

    async def create(order: dict[str, Any], attempt: Attempt) -> str:
        order["seen"] = True
        return await remote.write("x", attempt)

    async def read(order: dict[str, Any]) -> Applied[str]:
        seen.append(dict(order))
        return Applied("found")

    tool = sw.write(target="order")(shell.colours(create))
    tool.reconcile(shell.colours(read))
    remote.next(LOSE)
    given = {"a": 1}
    assert shell.call(tool, given) == "found"
    assert seen == [{"a": 1}]


ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "uuid": (uuid.UUID, uuid.UUID(int=1)),
    "date": (dt.date, dt.date(2026, 1, 1)),
    "datetime": (dt.datetime, WHEN),
    "timedelta": (dt.timedelta, dt.timedelta(seconds=90)),
    "decimal": (Decimal, Decimal("1.10")),
    "enum": (Colour, Colour.RED),
    "bytes": (bytes, b"\xff"),
    "set": (set[int], {1, 2}),
    "path": (Path, Path("a/b")),
    "dataclass": (Point, Point(1, (2, 3))),
    "named tuple": (Pair, Pair("l", Decimal(1))),
    "typed dict": (Typed, {"at": WHEN}),
    "model": (Model, Model(id=uuid.UUID(int=1), when=dt.date(2026, 1, 1))),
    "mixed keys": (Any, {1: "a", "b": 2}),
}


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("hint", "value"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_the_usual_kinds_are_targets_and_come_back_the_same(
    hint: Any, value: Any, shell: Shell, open_sw: Callable[..., SafeWrite], remote: Remote
) -> None:
    """They make a key, are recorded, and a later attempt would get them as they were, type and all."""
    seen: list[Any] = []

    def declare() -> Any:
        async def make(x: Any, attempt: Attempt) -> str:
            seen.append(x)
            return await remote.write("x", attempt)

        make.__annotations__["x"] = hint
        return open_sw().write(target="x", name="make")(shell.colours(make))

    first = shell.call(declare().outcome, value)
    assert first.state == "applied"
    assert shell.call(declare().outcome, value).key == first.key
    sw = open_sw()
    recorded, missing = decode_arguments(sw.ledger.arguments(first.intent_id), {"x": hint})
    assert same(recorded["x"], value)
    assert (missing, len(seen)) == ((), 1)
