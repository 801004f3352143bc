"""Events and commands as JSON, and back: what a row of the audit table keeps, whole.

Compact and canonical: fields that equal their default are left out, the order is that of the classes, numbers of
seconds are written by `repr`, those that JSON has no number for (`inf`) as text, and everything is ASCII, so that
any database can hold it.  Names in `FACTS` and `COMMANDS` are kept for ever: rows are read by later versions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from functools import cache
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from safewrite.core import commands, events
from safewrite.core.commands import Command
from safewrite.core.events import Call, Event, Fact, Moment, Promises
from safewrite.errors import SchemaOutdated

FACTS: dict[str, type] = {
    "claimed": events.Claimed,
    "withheld": events.Withheld,
    "ended": events.Ended,
    "gave_up": events.GaveUp,
    "gone": events.Gone,
    "fenced": events.Fenced,
    "read_ended": events.ReadEnded,
    "refused": events.Refused,
    "blocked": events.Blocked,
    "answered": events.Answered,
    "delivered": events.Delivered,
    "resolved": events.Resolved,
    "alarmed": events.Alarmed,
    "missed": events.Missed,
}
COMMANDS: dict[str, type] = {
    "send": commands.Send,
    "run": commands.Run,
    "read": commands.Read,
    "read_other": commands.ReadOther,
    "wait": commands.Wait,
    "watch": commands.Watch,
    "note": commands.Note,
    "answer": commands.Answer,
    "nothing": commands.Nothing,
}
_FACT_NAMES = {kind: name for name, kind in FACTS.items()}
_COMMAND_NAMES = {kind: name for name, kind in COMMANDS.items()}

Json = dict[str, Any]

dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode
"""Write plain values as compact JSON in ASCII."""


class Unreadable(ValueError):
    """A row is not what this library writes: it was altered, or is not a row of ours."""


# Writing ---------------------------------------------------------------------------------------------------------


def event_json(event: Event) -> Json:
    """Return the plain form of an event: `at`, `event` (its name), `fact`, and what else is not at its default."""
    body: Json = {
        "at": _pack_moment(event.at),
        "event": _FACT_NAMES[type(event.fact)],
        "fact": _pack(event.fact),
    }
    if event.call is not None:
        body["call"] = _pack(event.call)
    if event.lease_at is not None:
        body["lease_at"] = _pack_moment(event.lease_at)
    if event.over:
        body["over"] = True
    if event.promises is not None:
        same = event.call is not None and event.promises == event.call.promises
        body["promises"] = True if same else _pack(event.promises)
    return body


def command_json(command: Command) -> Json:
    """Return the plain form of a command: `command` (its name) and `decision` (its fields)."""
    decision = _pack(command)
    if isinstance(command, commands.Note):
        decision["fact"] = {"event": _FACT_NAMES[type(command.fact)], **_pack(command.fact)}
    return {"command": _COMMAND_NAMES[type(command)], "decision": decision}


def _pack(value: Any) -> Json:
    packed: Json = {}
    kind: Any = type(value)
    for name, default, pack in _packing(kind):
        part = getattr(value, name)
        if part is not default and part != default:
            packed[name] = part if pack is None or part is None else pack(part)
    return packed


@cache
def _packing(kind: Any) -> tuple[tuple[str, object, Callable[[Any], Any] | None], ...]:
    """Return, for every field of a class, its name, its default and what makes its value plain."""
    hints = get_type_hints(kind)
    return tuple((f.name, f.default, _packer(_needed(hints[f.name]))) for f in fields(kind))


def _packer(hint: Any) -> Callable[[Any], Any] | None:
    if hint is float:
        return _pack_float
    if hint is Moment:
        return _pack_moment
    if get_origin(hint) is tuple:
        inner = _packer(get_args(hint)[0])
        return list if inner is None else lambda values: [inner(value) for value in values]
    if hint in (str, int, bool) or (isinstance(hint, type) and issubclass(hint, StrEnum)):
        return None
    return _pack


def _pack_float(value: float) -> float | str:
    return float(value) if isfinite(value) else repr(float(value))


def _pack_moment(value: Moment) -> list[Any]:
    return [_pack_float(value.unix), _pack_float(value.ticks), value.clock]


# Reading ---------------------------------------------------------------------------------------------------------


def decode_event(text: str) -> Event:
    """Return the event in a row's body, or in what `event_json` made.

    Raises `SchemaOutdated` for what a newer version has written, and `Unreadable` for what none has.
    """
    return event_of(parse(text))


def parse(text: str) -> Json:
    """Return the JSON object in `text`; raises `Unreadable`."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    return _object(body, "a row")


def event_of(body: Json) -> Event:
    """Do as `decode_event`, with the text parsed already."""
    kind = _kind(FACTS, body.get("event"), "event")
    fact: Fact = _unpack(kind, body.get("fact"))
    call: Call | None = _unpack(Call, body["call"]) if "call" in body else None
    promises: Promises | None = None
    if body.get("promises") is True and call is not None:
        promises = call.promises
    elif "promises" in body:
        promises = _unpack(Promises, body["promises"])
    return Event(
        _moment(body.get("at")),
        fact,
        call,
        _moment(body["lease_at"]) if "lease_at" in body else None,
        _exactly(bool, body.get("over", False)),
        promises,
    )


def command_of(body: Json) -> Command:
    """Return the command in a parsed body; raises as `decode_event` does."""
    kind = _kind(COMMANDS, body.get("command"), "command")
    decision = dict(_object(body.get("decision"), "a decision"))
    if kind is commands.Note:
        noted = dict(_object(decision.pop("fact", None), "a noted fact"))
        fact = _unpack(_kind(FACTS, noted.pop("event", None), "event"), noted)
        return commands.Note(_exactly(str, decision.pop("rule", None)), fact)
    command: Command = _unpack(kind, decision)
    return command


def _unpack(kind: type, packed: object) -> Any:
    readers = _unpacking(kind)
    values = {}
    for name, value in _object(packed, kind.__name__).items():
        if name not in readers:
            raise _newer(f"`{name}` of {kind.__name__}")
        values[name] = readers[name](value)
    try:
        return kind(**values)
    except TypeError as error:
        raise Unreadable(f"{kind.__name__} is not whole: {error}") from None


@cache
def _unpacking(kind: Any) -> Mapping[str, Callable[[Any], Any]]:
    hints = get_type_hints(kind)
    return {f.name: _reader(hints[f.name]) for f in fields(kind)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    needed = _needed(hint)
    if needed is not hint:
        read = _reader(needed)
        return lambda value: None if value is None else read(value)
    if hint is float:
        return _float
    if hint is Moment:
        return _moment
    if get_origin(hint) is tuple:
        item = _reader(get_args(hint)[0])
        return lambda values: tuple(item(value) for value in _exactly(list, values))
    if hint in (str, int, bool):
        return lambda value: _exactly(hint, value)
    if issubclass(hint, StrEnum):
        return lambda value: _member(hint, value)
    return lambda value: _unpack(hint, value)


def _needed(hint: Any) -> Any:
    """Return `X` of `X | None`, else the hint itself."""
    if get_origin(hint) in (Union, UnionType):
        rest = [arm for arm in get_args(hint) if arm is not NoneType]
        return rest[0] if len(rest) == 1 else hint
    return hint


def _kind(kinds: Mapping[str, type], name: object, what: str) -> type:
    if not isinstance(name, str):
        raise Unreadable(f"it names no {what}")
    if name not in kinds:
        raise _newer(f"the {what} `{name}`")
    return kinds[name]


def _member(kind: type[StrEnum], value: object) -> StrEnum:
    try:
        return kind(_exactly(str, value))
    except Unreadable:
        raise
    except ValueError:
        raise _newer(f"`{value}` as a {kind.__name__}") from None


def _float(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Unreadable(f"{value!r} is no number")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise Unreadable(f"{value!r} is no number") from None


def _moment(value: object) -> Moment:
    if not isinstance(value, list) or len(value) != len(Moment._fields):
        raise Unreadable(f"{value!r} is no moment")
    return Moment(_float(value[0]), _float(value[1]), _exactly(str, value[2]))


def _exactly(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise Unreadable(f"{value!r} is no {kind.__name__}")
    return value


def _object(value: object, what: str) -> Json:
    if not isinstance(value, dict):
        raise Unreadable(f"{what} is no object")
    return value


def _newer(what: str) -> SchemaOutdated:
    return SchemaOutdated(
        f"A row of the ledger holds {what}, which this version of safewrite does not know: a newer one wrote it. "
        "Update safewrite. Nothing was sent."
    )


# For people's own values -----------------------------------------------------------------------------------------

_DEPTH = 20
"""Levels of nesting that evidence is kept to."""


def plain(value: object, depth: int = _DEPTH) -> Any:
    """Return `value` made of what JSON can say; what it cannot say becomes text.  Never fails."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value) if abs(value) < 1 << 63 else hex(value)
    if isinstance(value, float):
        return _pack_float(value)
    if depth and isinstance(value, Mapping):
        return {_name(key): plain(part, depth - 1) for key, part in value.items()}
    if depth and isinstance(value, list | tuple | set | frozenset):
        return [plain(part, depth - 1) for part in value]
    return _name(value)


def _name(value: object) -> str:
    try:
        return str(value)
    except Exception:  # a foreign object's own method: a row is never lost for it
        return f"<{type(value).__name__}>"
