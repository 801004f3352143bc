"""What an annotation names: the classes that a decoder may build, and the secrets that a parameter may hold.

Stored text never decides which class is built: only the annotations of the tool do.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import typing
from collections.abc import Iterator, Mapping


def is_secret(kind: type) -> bool:
    """Tell whether `kind` hides what it holds, as pydantic's SecretStr, SecretBytes and Secret do."""
    return hasattr(kind, "get_secret_value")


def secret_parameters(annotations: Mapping[str, object]) -> frozenset[str]:
    """Return the names whose annotation is a secret or contains one, at any depth."""
    return frozenset(
        name for name, annotation in annotations.items() if any(map(is_secret, named_classes(annotation)))
    )


def named_classes(annotation: object, *, fields: bool = True) -> list[type]:
    """Return every class that `annotation` names: in unions, aliases and type arguments, once each.

    With `fields` (the default) also those in the fields of dataclasses, pydantic models, named tuples and typed
    dicts.  Names that cannot be resolved are passed over.
    """
    found: list[type] = []
    seen: dict[int, object] = {}  # holds what it has seen: an id is only unique while its object lives
    pending = [annotation]
    while pending:
        hint = pending.pop()
        if id(hint) in seen or hint is inspect.Parameter.empty:
            continue
        seen[id(hint)] = hint
        if isinstance(hint, enum.Enum):  # of a Literal
            hint = type(hint)
        if isinstance(hint, type) and typing.get_origin(hint) is None:
            found.append(hint)
            if fields:
                pending.extend(_field_hints(hint))
        else:
            pending.extend(_inner_hints(hint))
    return list(dict.fromkeys(found))


def _inner_hints(hint: object) -> Iterator[object]:
    """Yield what a generic, a union, an alias, a new type or a type variable is made of."""
    yield from typing.get_args(hint)
    yield typing.get_origin(hint)
    for name in ("__value__", "__supertype__", "__bound__"):
        yield getattr(hint, name, None)
    yield from getattr(hint, "__constraints__", ())


def _field_hints(kind: type) -> Iterator[object]:
    if is_model(kind):
        for field in kind.model_fields.values():  # type: ignore[attr-defined]
            yield field.annotation
    elif dataclasses.is_dataclass(kind) or typing.is_typeddict(kind) or is_named_tuple(kind):
        try:
            yield from typing.get_type_hints(kind, include_extras=True).values()
        except Exception:  # a name that only exists for type checkers: its class stays unknown
            yield from vars(kind).get("__annotations__", {}).values()


def is_model(kind: type) -> bool:
    """Tell whether `kind` is a pydantic model, without importing pydantic."""
    return isinstance(getattr(kind, "model_fields", None), Mapping) and hasattr(
        kind, "__pydantic_validator__"
    )


def real_kind(kind: type) -> type:
    """Return the class that `kind` stands in for: freezegun's dates and times are the real ones otherwise."""
    return kind.__mro__[1] if kind.__module__ == "freezegun.api" else kind


def is_named_tuple(kind: type) -> bool:
    """Tell whether `kind` is a named tuple."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")
