"""How results and arguments are kept, so that a replay returns what the first call did: equal, and of the same type.

Three ways are tried, and the text says which one was taken:

- `adapter`: pydantic, by the annotation, if what comes back is the same value and type all the way down;
- `tagged`: JSON that tells its types (`safewrite.ledger.tagged`), if it knows every type in the value;
- `alike`: pydantic again, if what comes back is of the same types but cannot be compared, because a class defines
  no equality.

Otherwise the value is not kept, and the reason says why.  Texts are ASCII without NUL, the same on every database.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from safewrite.ledger.hints import is_secret, named_classes, secret_parameters
from safewrite.ledger.sameness import same
from safewrite.ledger.tagged import Tagger, Untaggable

if TYPE_CHECKING:
    import pydantic

__all__ = [
    "MAX_VALUE_BYTES",
    "Codec",
    "Encoded",
    "Undecodable",
    "Unstorable",
    "decode_arguments",
    "encode_arguments",
    "holds_secret",
    "secret_parameters",
]

MAX_VALUE_BYTES = 1_000_000
"""Bytes of text of one value or argument; what is larger is not kept."""
REDACTED = "redacted"

_ADAPTER, _TAGGED, _ALIKE = (f'{{"v":1,"as":"{way}","value":' for way in ("adapter", "tagged", "alike"))
_SIMPLE = frozenset({type(None), bool, int, float, str, bytes})
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_NON_ASCII = re.compile(r"[^\x00-\x7f]+")


class Unstorable(TypeError):
    """An argument that cannot be recorded, so that the write cannot be sent; `parameter` names it."""

    def __init__(self, parameter: str, reason: str) -> None:
        super().__init__(
            f"the argument `{parameter}` cannot be recorded ({reason}), so nothing was sent: pass plain data, "
            "annotate the parameter with a type that pydantic can write, or name it in `redact`"
        )
        self.parameter = parameter
        self.reason = reason


class Undecodable(ValueError):
    """A stored text that this version of the tool cannot read back: its annotation or its classes have changed."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """What is kept of a value: its text, or None and the reason."""

    text: str | None
    reason: str | None = None
    """A stable code, with details after a colon: `redacted`, `too_large: …`, `not_storable: …`."""


class Codec:
    """Writes and reads the values of one annotation; without one, those that tell their own type.

    Building it is cheap; pydantic is imported and asked for its adapter at the first use that needs it.
    """

    def __init__(self, annotation: object = inspect.Signature.empty) -> None:
        self._annotation: Any = annotation
        self._secret = any(map(is_secret, named_classes(annotation, fields=False)))
        self._tagger = Tagger(named_classes(annotation))
        self._adapter_kept: pydantic.TypeAdapter[Any] | None = None
        self._adapter_tried = False

    def encode(self, value: object, *, max_bytes: int = MAX_VALUE_BYTES) -> Encoded:
        """Return the text of `value`, or why it is not kept; never raises an `Exception`.

        Secrets, and what holds one, are not kept, nor what can be read only once.
        """
        try:
            encoded = self._encode(value)
        except Exception as error:  # the write is done: how it is kept must not make it look failed
            return Encoded(None, f"not_storable: {type(error).__name__}")
        if encoded.text is not None and len(encoded.text) > max_bytes:
            return Encoded(None, f"too_large: {len(encoded.text)} bytes, {max_bytes} are kept")
        return encoded

    def decode(self, text: str) -> Any:
        """Return the value of a text that `encode` made.  Raises `Undecodable`."""
        try:
            for prefix in (_ADAPTER, _ALIKE):
                if text.startswith(prefix):
                    return self._from_adapter(text[len(prefix) : -1])
            if text.startswith(_TAGGED):
                return self._tagger.value(json.loads(text[len(_TAGGED) : -1]))
        except Exception as error:  # pydantic's, or whatever the author's validators raise
            raise Undecodable(f"the stored value no longer fits `{self._annotation}`") from error
        raise Undecodable(
            "the stored value is in a form that is not known: was it written by a newer version?"
        )

    def _encode(self, value: object) -> Encoded:
        if self._secret and value is not None:
            return Encoded(None, REDACTED)
        if type(value) in _SIMPLE:
            return Encoded(self._to_tags(value))
        obstacle = _obstacle(value)
        if obstacle is not None:
            return Encoded(None, obstacle)
        body, back = self._through_adapter(value)
        if body is not None and same(value, back):
            return Encoded(f"{_ADAPTER}{body}}}")
        try:
            text = self._to_tags(value)
            if same(value, self.decode(text)):
                return Encoded(text)
            reason = "it does not come back the same"
        except Untaggable as error:
            reason = str(error)
        if body is not None and same(value, back, opaque=True):
            return Encoded(f"{_ALIKE}{body}}}")
        return Encoded(None, f"not_storable: {reason}")

    def _to_tags(self, value: object) -> str:
        return f"{_TAGGED}{_to_json(self._tagger.tree(value))}}}"

    def _through_adapter(self, value: object) -> tuple[str | None, object]:
        """Return what pydantic writes of `value` and what it reads back, or (None, None)."""
        with contextlib.suppress(Exception):  # whatever the author's serializers and validators raise
            adapter = self._adapter()
            if adapter is not None:
                body = adapter.dump_json(value, by_alias=True, round_trip=True, warnings=False).decode()
                if not body.isascii():
                    body = _NON_ASCII.sub(lambda run: json.dumps(run[0])[1:-1], body)
                return body, adapter.validate_json(body)
        return None, None

    def _from_adapter(self, body: str) -> Any:
        adapter = self._adapter()
        if adapter is None:
            raise TypeError("pydantic has no adapter for the annotation")
        return adapter.validate_json(body)

    def _adapter(self) -> pydantic.TypeAdapter[Any] | None:
        if not self._adapter_tried:
            if self._annotation not in (inspect.Signature.empty, Any, object):
                import pydantic

                with contextlib.suppress(Exception):  # no schema for it, or a name that is not defined
                    self._adapter_kept = pydantic.TypeAdapter(self._annotation)
            self._adapter_tried = True
        return self._adapter_kept


def holds_secret(value: object) -> bool:
    """Tell whether `value` is, or contains, a secret such as pydantic's SecretStr."""
    return _obstacle(value) == REDACTED


def _obstacle(value: object) -> str | None:
    """Return why `value` must not be written, or None; a secret outweighs everything else."""
    found: str | None = None
    seen: dict[int, object] = {}  # holds what it has seen: an id is only unique while its object lives
    pending = [value]
    while pending:
        item = pending.pop()
        kind = type(item)
        if kind in _SIMPLE or id(item) in seen:
            continue
        seen[id(item)] = item
        if kind is list or kind is tuple or kind is dict:  # the common ones need no questions
            pending.extend(_contents(item))
            continue
        if is_secret(kind):
            return REDACTED
        if isinstance(item, Iterator | AsyncIterator | Awaitable):
            found = f"not_storable: `{kind.__qualname__}` can be read only once"
        else:
            pending.extend(_contents(item))
    return found


def _contents(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | deque | AbstractSet):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if hasattr(type(value), "__get_pydantic_core_schema__"):
        hidden = [getattr(value, f"__pydantic_{name}__", None) for name in ("extra", "private")]
        return [*getattr(value, "__dict__", {}).values(), *hidden]
    return []


# Arguments ------------------------------------------------------------------------------------------------


def encode_arguments(
    arguments: Mapping[str, object],
    annotations: Mapping[str, object],
    redact: Collection[str] = (),
    *,
    max_bytes: int = MAX_VALUE_BYTES,
) -> str:
    """Return the text of the arguments of a call, those that are secret left out and listed.

    `annotations` gives each parameter's hint, or, cheaper if there are many calls, its `Codec`.  Left out are the
    parameters in `redact` and every argument that is or contains a secret.  `max_bytes` bounds each of the others.

    Every attempt, the first included, is to run with what `decode_arguments` makes of the text, so that their
    payloads are the same.  Raises `Unstorable`, which names the parameter.
    """
    kept: list[str] = []
    missing: list[str] = []
    for name, value in arguments.items():
        if name in redact:
            missing.append(name)
            continue
        encoded = _codec(annotations, name).encode(value, max_bytes=max_bytes)
        if encoded.text is not None:
            kept.append(f"{json.dumps(name)}:{encoded.text}")
        elif encoded.reason == REDACTED:
            missing.append(name)
        else:
            raise Unstorable(name, encoded.reason or "")
    return f'{{"v":1,"arguments":{{{",".join(kept)}}},"missing":{json.dumps(sorted(missing))}}}'


def decode_arguments(text: str, annotations: Mapping[str, object]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the recorded arguments by name, and the names of those that were left out.

    Raises `Undecodable`, which names the parameter.
    """
    try:
        record = json.loads(text)
        entries, missing = record["arguments"].items(), record["missing"]
        if not isinstance(missing, list) or not all(isinstance(name, str) for name in missing):
            raise TypeError("`missing` is no list of names")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise Undecodable("the stored arguments are in a form that is not known") from error
    arguments: dict[str, Any] = {}
    for name, entry in entries:
        try:
            arguments[name] = _codec(annotations, name).decode(_to_json(entry))
        except Undecodable as error:
            raise Undecodable(f"the argument `{name}`: {error}") from error
    return arguments, tuple(missing)


def _codec(annotations: Mapping[str, object], name: str) -> Codec:
    known = annotations.get(name, inspect.Signature.empty)
    return known if isinstance(known, Codec) else Codec(known)
