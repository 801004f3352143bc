"""What a function's signature and hints say: which parameter is the attempt, and how arguments are to be taken."""

from __future__ import annotations

import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from safewrite.errors import ConfigurationError
from safewrite.redaction import MARK

_NAME = re.compile(r"[A-Za-z_]\w*")


def own_globals(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the names among which hints written as text are resolved: those of the innermost wrapped function."""
    found: dict[str, Any] = getattr(inspect.unwrap(fn), "__globals__", {})
    return found


def names_around(fn: Callable[..., Any], place: types.FrameType | None) -> dict[str, Any]:
    """Return the local names of `place`, where `fn` is declared, that its hints use: classes made in a function."""
    texts = [text for text in inspect.get_annotations(fn).values() if isinstance(text, str)]
    if place is None or place.f_locals is place.f_globals:
        return {}
    names = {name for text in texts for name in _NAME.findall(text)}
    return {name: place.f_locals[name] for name in names if name in place.f_locals}


def resolved(fn: Callable[..., Any], around: Mapping[str, Any]) -> dict[str, Any]:
    """Return the hints of a function; those that cannot be resolved are left out."""
    known, local = own_globals(fn), dict(around)
    try:
        return typing.get_type_hints(fn, known, local, include_extras=True)
    except Exception:
        return dict(_one_by_one(fn, known, local))


def _one_by_one(
    fn: Callable[..., Any], known: dict[str, Any], local: dict[str, Any]
) -> typing.Iterator[tuple[str, Any]]:
    for name, hint in inspect.get_annotations(fn).items():
        alone = types.SimpleNamespace(__annotations__={name: hint})
        try:
            yield from typing.get_type_hints(alone, known, local, include_extras=True).items()
        except Exception:  # noqa: S112 - a name that only type checkers know
            continue


def attempt_parameter(
    fn: Callable[..., Any], signature: inspect.Signature, around: Mapping[str, Any]
) -> str | None:
    """Return the parameter that takes the attempt, if there is one.  Raises `ConfigurationError` for a useless one."""
    known = {**own_globals(fn), **around}
    for p in signature.parameters.values():
        if _means_attempt(p.annotation, known) or (p.name == "attempt" and p.annotation is p.empty):
            if p.kind is p.POSITIONAL_ONLY:
                raise ConfigurationError(f"`{p.name}` of `{fn.__qualname__}` must not be positional-only.")
            return p.name
    return None


def _means_attempt(hint: Any, known: dict[str, Any]) -> bool:
    from safewrite.attempt import Attempt

    if isinstance(hint, str):
        try:
            hint = eval(hint, known)  # noqa: S307 - as `typing.get_type_hints` does, one hint at a time
        except Exception:  # a name that only type checkers know
            return "Attempt" in _NAME.findall(hint)
    return hint is Attempt or any(part is Attempt for part in typing.get_args(hint))


def receiver(fn: Callable[..., Any], signature: inspect.Signature) -> str | None:
    """Return `self` or `cls` of a method."""
    first = next(iter(signature.parameters), None)
    return first if first in ("self", "cls") and "." in fn.__qualname__ else None


def converter(hint: Any, kind: Any) -> Callable[[Any], Any]:
    """Return what validates and converts an argument by its hint, as pydantic does."""
    from pydantic import ConfigDict, TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

    def as_it_is(value: Any) -> Any:
        return value

    if kind is inspect.Parameter.VAR_POSITIONAL:
        hint = tuple[hint, ...]
    elif kind is inspect.Parameter.VAR_KEYWORD:
        hint = dict[str, hint]
    try:
        return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python
    except PydanticSchemaGenerationError:
        return as_it_is
    except PydanticUserError:  # a type that brings its own configuration
        pass
    try:
        return TypeAdapter(hint).validate_python
    except PydanticUserError:
        return as_it_is


def without_input(error: Exception, name: str) -> ValueError:
    """Return what pydantic raises about the parameter `name`, telling of `error` no more than which kinds it is.

    Words and place are left out with the value: a validator's message quotes what it got, a mapping's place is a key.
    """
    from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

    title, kinds = name, [type(error).__name__]
    if isinstance(error, ValidationError):
        title, kinds = error.title, [line["type"] for line in error.errors()]
    custom = typing.cast("Callable[[str, str], PydanticCustomError]", PydanticCustomError)  # any text will do
    lines: list[InitErrorDetails] = [
        {"type": custom(kind, "It does not fit, and is not shown: it is a secret"), "input": MARK}
        for kind in kinds
    ]
    return ValidationError.from_exception_data(title, lines, hide_input=True)


def value_hint(hint: Any) -> Any:
    """Return the type of the value: of `Applied[T] | StillRunning`, T; of an unannotated function, nothing."""
    from safewrite import verdicts

    kinds = (verdicts.Applied, verdicts.GoalMet)
    empty = (verdicts.NotApplied, verdicts.GoalNotMet, verdicts.StillRunning, verdicts.Inconclusive)
    if typing.get_origin(hint) in kinds:
        return typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [value_hint(a) for a in typing.get_args(hint) if a not in empty]
        return functools.reduce(lambda a, b: a | b, parts) if parts else inspect.Signature.empty
    return inspect.Signature.empty if hint in (*kinds, *empty) else hint


def call_by_name(fn: Callable[..., object], content: Mapping[str, Any]) -> object:
    """Call a target function with the arguments that it names; with one unknown name, with all of them."""
    parameters = inspect.signature(fn).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return fn(**content)
    names = [p.name for p in parameters]
    if all(n in content for n in names):
        return fn(**{n: content[n] for n in names})
    if len(names) == 1:
        return fn(dict(content))
    missing = [n for n in names if n not in content]
    raise ConfigurationError(f"the target function takes `{missing[0]}`, which is no parameter of the tool.")
