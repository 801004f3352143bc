"""The secrets of one call, known by what they are: kept out of every text that its body and reads leave behind."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from enum import Enum
from typing import Any
from urllib.parse import quote, quote_plus

from safewrite.ledger.hints import is_secret
from safewrite.redaction import MARK, redact_text

SHORTEST = 4
"""Characters: shorter ones stand in too many innocent words to be told from them."""


class Secrets:
    """What may not be written: the values of parameters that are secret, and secrets by type in any argument."""

    def __init__(self, arguments: Mapping[str, Any], declared: Collection[str]) -> None:
        found: set[str] = set()
        for name, value in arguments.items():
            found.update(_leaves(value, secret=name in declared))
        # As they are, and as reprs, JSON and URLs write them; the longest first, since one may hold another.
        spelled = {way for text in found if len(text) >= SHORTEST for way in _spellings(text)}
        self._spelled = sorted(spelled, key=len, reverse=True)

    def within(self, text: str) -> bool:
        """Tell whether one of them stands in a text."""
        return any(secret in text for secret in self._spelled)

    def without(self, text: str) -> str:
        """Return a text without them, and without what looks like a secret."""
        for secret in self._spelled:
            text = text.replace(secret, MARK)
        return redact_text(text)


def _spellings(text: str) -> Iterator[str]:
    yield from (text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    encodable = text.encode("utf-8", "replace")
    yield from (quote(encodable), quote(encodable, safe=""), quote_plus(encodable))


def _leaves(value: object, *, secret: bool) -> Iterator[str]:
    """Yield what in a value is secret, as text: all that it holds, or only what a secret type does."""
    pending, seen = [(value, secret)], dict[int, object]()
    while pending:
        item, hidden = pending.pop()
        if isinstance(item, str | bytes | bytearray | memoryview) and not isinstance(item, Enum):
            if hidden:
                yield from (str(item),) if isinstance(item, str) else _read(bytes(item))
        elif id(item) not in seen:
            seen[id(item)] = item
            if is_secret(type(item)):
                with suppress(Exception):  # what cannot be told cannot be found either
                    pending.append((item.get_secret_value(), True))  # type: ignore[attr-defined]
            elif (inner := _inner(item)) is not None:
                pending.extend((part, hidden) for part in inner)
            elif hidden and not isinstance(item, bool | None):  # a number, a UUID, a date
                with suppress(Exception):
                    pending.append((str(item), True))


def _read(secret: bytes) -> tuple[str, ...]:
    """Return bytes as texts show them: decoded, in the way of headers too, and as their repr."""
    return secret.decode("utf-8", "replace"), secret.decode("latin-1"), repr(secret)[2:-1]


def _inner(value: object) -> list[object] | None:
    """Return what a value is made of; None: it is one thing."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple | deque | AbstractSet):
        return list(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    if hasattr(type(value), "__get_pydantic_core_schema__"):
        return list(getattr(value, "__dict__", {}).values())
    return [value.value, str(value)] if isinstance(value, Enum) else None
