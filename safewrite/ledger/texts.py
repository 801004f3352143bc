"""Texts and instants in the form in which any of the databases can hold them.

Names and targets are other people's text.  What a database cannot store (NUL, lone surrogates) is written as a JSON
string behind a mark, and so is text that begins with the mark itself: reading gives back exactly what was written.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from functools import lru_cache

_MARK = 'json:"'

# A day from the ends, so that they can be told in every zone of the earth.
EARLIEST = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
LATEST = datetime.max.replace(tzinfo=UTC) - timedelta(days=1)
_FIRST, _LAST = EARLIEST.timestamp(), LATEST.timestamp()


def storable(text: str) -> str:
    """Return `text` as a column can hold it.  Reversed by `restored`; equal texts stay equal, others different."""
    if (text.isascii() or _is_unicode(text)) and "\x00" not in text and not text.startswith(_MARK):
        return text
    return "json:" + json.dumps(text)


def restored(text: str) -> str:
    """Return what `storable` was given; a text that it cannot have written as it is."""
    if not text.startswith(_MARK):
        return text
    try:
        return str(json.loads(text[len("json:") :]))
    except ValueError:
        return text


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def stamp(unix: float) -> datetime:
    """Return Unix seconds as an aware instant in UTC, held to the years that a database can store."""
    if _FIRST < unix < _LAST:
        return datetime.fromtimestamp(unix, UTC)
    return EARLIEST if unix < 0 else LATEST


@lru_cache(maxsize=64)
def stamp_text(unix: float) -> str:
    """Return Unix seconds as ISO 8601 text in UTC, always with microseconds: texts sort as the instants do."""
    return stamp(unix).isoformat(timespec="microseconds")


def unix(held: str | datetime) -> float:
    """Return the Unix seconds of an instant as a column holds it."""
    return (datetime.fromisoformat(held) if isinstance(held, str) else held).timestamp()


def new_id(now: float) -> str:
    """Return a new id: 32 hexadecimal digits, a UUID of version 7.

    It begins with the time, so that rows made together lie together, in the tables and in their indexes.
    """
    noise = os.urandom(10).hex()
    moment = int(min(max(now, 0.0), 2.0**47) * 1000) & (2**48 - 1)
    return f"{moment:012x}7{noise[:3]}{'89ab'[int(noise[3], 16) & 3]}{noise[4:19]}"
