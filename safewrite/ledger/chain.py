"""The hash chain of an intent: its rows prove each other, and the newest one is named in the intent's row.

It shows that a row was altered, removed or moved.  Whoever can rewrite every row from some point on, and the head,
leaves no trace here: that takes a copy of the head kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from safewrite.ledger.columns import Stamp, audit_columns
from safewrite.ledger.rows import parse
from safewrite.ledger.texts import stamp_text

GENESIS = "0" * 64
"""Stands where the first row of an intent names the hash of the row before."""


def row_hash(prev_hash: str, body: str) -> str:
    """Return the hash of a row, as hexadecimal text: SHA-256 over the hash before, a line feed, and the body."""
    return sha256(f"{prev_hash}\n{body}".encode("utf-8", "surrogatepass")).hexdigest()


def commitment(salt: str, text: str) -> str:
    """Return what a row keeps of a content: SHA-256 over its salt and text.  Without the salt nobody can guess it."""
    return sha256(bytes.fromhex(salt) + text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class Flaw:
    """What does not fit, and in which row."""

    sequence: int
    """The number of the row in its intent; 0: the intent's own row."""
    kind: str
    """`missing`, `hash`, `link`, `column`, `unreadable`, `head`, `projection` or `content`."""
    detail: str


def verify_chain(
    rows: Sequence[Mapping[str, Any]],
    *,
    intent_id: str,
    head: str,
    revision: int,
    stamp: Stamp = stamp_text,
) -> tuple[Flaw, ...]:
    """Return what is wrong with the rows of one intent, given all their columns in order of sequence.

    `head` and `revision` are those of the intent's row, or better of an earlier copy kept elsewhere: without them a
    cut-off end does not show.  `stamp` writes instants as this database holds them.
    """
    flaws: list[Flaw] = []
    before = GENESIS
    for expected, row in enumerate(rows, 1):
        flaws += _flaws(row, expected, before, intent_id, stamp)
        before = str(row["hash"])
    if len(rows) != revision:
        flaws.append(Flaw(len(rows), "missing", f"{len(rows)} rows are there, of {revision}"))
    if before != head:
        flaws.append(Flaw(len(rows), "head", "the newest row is not the one that the intent names"))
    return tuple(flaws)


def _flaws(
    row: Mapping[str, Any], expected: int, before: str, intent_id: str, stamp: Stamp
) -> Iterable[Flaw]:
    if row["sequence"] != expected:
        yield Flaw(expected, "missing", f"row {row['sequence']} stands in its place")
    if row["prev_hash"] != before:
        yield Flaw(expected, "link", "it does not follow on the row before")
    if row["hash"] != row_hash(str(row["prev_hash"]), str(row["body"])):
        yield Flaw(expected, "hash", "the body is not what was hashed")
    try:
        body = parse(str(row["body"]))
        drawn = audit_columns(body, stamp)
    except Exception as error:  # whatever stands in its place
        yield Flaw(expected, "unreadable", str(error))
        return
    if (drawn["intent_id"], drawn["sequence"]) != (intent_id, expected):
        yield Flaw(expected, "column", "the body is that of another row")
    for name, value in drawn.items():
        if name not in row or row[name] != value or type(row[name]) is not type(value):
            yield Flaw(expected, "column", f"`{name}` is not what the body says")


def verify_contents(
    commitments: Mapping[str, str], contents: Mapping[str, tuple[str, str]], sequence: int
) -> tuple[Flaw, ...]:
    """Return what is wrong with the contents (name -> salt and text) of a row.  A missing one was redacted."""
    flaws = []
    for name, (salt, text) in contents.items():
        try:
            # Blanks and capitals spell the same bytes.
            kept = commitment(salt, text) if bytes.fromhex(salt).hex() == salt else ""
        except (ValueError, TypeError, AttributeError):  # a salt that is none, a text that is none
            kept = ""
        if commitments.get(name) != kept:
            flaws.append(Flaw(sequence, "content", f"`{name}` is not what the row committed to"))
    return tuple(flaws)
