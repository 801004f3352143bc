"""What an exception, a status or a return value says about the attempt that got it.

Three answers, in this order of caution.  Not applied: the request cannot have taken effect, now or later.
Applied: it did.  Unknown: all else, and everything that is not listed.  The rules stand in tables, one file for
each kind of dependency; each row has a stable reason code, and `REASONS` says each code in a sentence.

The tables hold for bodies whose last request is their only write.  An exception is read together with its chain
and its traceback: a refused connection proves nothing once the same call was redirected, was sent before by the
transport, or came while an earlier failure was being handled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from safewrite.core import tables_http, tables_local, tables_rpc, tables_sql
from safewrite.core.events import Finding, OutcomeState
from safewrite.core.matching import (
    Link,
    Table,
    chain,
    find,
    keys,
    never_sent,
    peek,
    refused,
    take_back,
    unknown,
)
from safewrite.core.phases import resent
from safewrite.core.reasons import REASONS
from safewrite.core.statuses import from_reply, from_status

__all__ = ["REASONS", "describe", "from_exception", "from_status", "from_value"]

DEPENDENCIES: Final[Table] = {**tables_http.TABLE, **tables_sql.TABLE, **tables_rpc.TABLE}
TABLE: Final[Table] = {**DEPENDENCIES, **tables_local.TABLE}
"""(package, class name) -> row: the whole shipped table."""

SAID: Final[Mapping[str, Finding]] = {
    "not_sent": replace(never_sent("not_sent").finding(), unsent=True),
    "rejected": refused("rejected").finding(),
}
"""`_safewrite_finding` of an exception class that a body raises on purpose -> finding."""

WRAPPER_DEPTH: Final = 8
"""How many wrappers around one exception are opened."""


def from_exception(
    exc: BaseException,
    *,
    single_request: bool = True,
    not_applied_on: tuple[type[BaseException], ...] = (),
    now_unix: float | None = None,
) -> Finding:
    """Return what an exception out of the body of an attempt says about that attempt.

    The first that fits decides: `NotSent` or `Rejected` raised on purpose (also when they carry a cause); a type
    in `not_applied_on`, the author's word; any other error of safewrite, from a nested write, which is unknown;
    the shipped table; unknown, `unlisted_exception`.

    `single_request` False says that the body sends more than its one write: then the table proves nothing.
    `now_unix` (wall time in seconds) is needed for a Retry-After that holds a date.
    """
    said = getattr(type(exc), "_safewrite_finding", None)
    if isinstance(said, str) and said in SAID:
        # `NotSent(again=False)`: nothing was sent, nor would it be next time.
        return replace(SAID[said], again=SAID[said].again and bool(getattr(exc, "again", True)))
    if isinstance(exc, not_applied_on):
        return refused("declared_not_applied").finding()
    if _nested(exc) and find(exc, DEPENDENCIES) is None:
        return unknown("nested_write").finding()
    found = _shipped(exc, now_unix)
    if found.outcome is OutcomeState.UNKNOWN:
        return found
    if not single_request:
        return take_back(found, "multi_request")
    if found.outcome is OutcomeState.NOT_APPLIED and _earlier_request(exc):
        return take_back(found, "earlier_request")
    return found


def from_value(value: object, *, single_request: bool = True, now_unix: float | None = None) -> Finding:
    """Return what the value returned by a body says: a response by its status, an MCP tool error unknown.

    Responses of httpx, requests, urllib3, aiohttp and the standard library are known by their class names; the
    redirects and repeated sends that they remember count (see `from_status`), and an acceptance whose body was
    not read yet is unknown.  Anything else was returned by a body that ended well: applied.  `single_request` False:
    a refusal of the last request proves nothing.
    """
    if type(value) in _PLAIN:
        return _RETURNED
    if not tables_http.REPLIES.isdisjoint(keys(type(value))):
        found = from_reply(value, now_unix)
        if found is not None and found.outcome is OutcomeState.APPLIED and tables_http.unread(value):
            return take_back(found, "response_unread")
        if found is not None and found.outcome is OutcomeState.NOT_APPLIED and not single_request:
            return take_back(found, "multi_request")
        if found is not None:
            return found
    if peek(value, "isError", "is_error") is True:
        return unknown("tool_error").finding()
    return _RETURNED


_PLAIN = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict})
"""What is no response of any client, without looking closer."""
_RETURNED = Finding(OutcomeState.APPLIED, "returned")


def describe(exc: BaseException, limit: int = 2000) -> str:
    """Return an exception and all that hangs on it as text of at most `limit` characters, one link a line.

    Type names, messages and notes; members of groups, causes, and contexts even where they were suppressed.  No
    traceback.  Nothing is redacted.  One message gets a quarter of the space at most, so that a long one cannot
    hide its cause.
    """
    room = max(80, limit // 4)
    return _cut("\n".join(_line(link, room) for link in chain(exc)), limit)


def _nested(exc: BaseException) -> bool:
    return bool(getattr(type(exc), "_safewrite_error", False))


def _shipped(exc: BaseException, now_unix: float | None) -> Finding:
    """Classify by the table, wrappers by what is inside them."""
    outer: Finding | None = None
    for _ in range(WRAPPER_DEPTH):
        rule = find(exc, TABLE)
        if rule is None:
            break
        inner = rule.inner(exc) if rule.inner else None
        if inner is None:
            return (rule.look and rule.look(exc, now_unix)) or rule.finding()
        outer, exc = rule.finding(), inner
    return outer or unknown("unlisted_exception").finding()


def _earlier_request(exc: BaseException) -> bool:
    """Return whether anything tells of another request before the one that failed, with its outcome unknown.

    A retry written as `except ReadTimeout: send()` leaves the first error in the chain of the second.  Bare
    errors of a connection count only below another bare one: clients have their own of those underneath.
    """
    bare = find(exc, DEPENDENCIES) is None
    return resent(exc) or any(_left_open(link.exception, bare) for link in chain(exc))


def _left_open(exc: BaseException, bare: bool) -> bool:
    rule = find(exc, DEPENDENCIES)
    if rule is None:
        if not (bare and isinstance(exc, ConnectionError | TimeoutError)):
            return _nested(exc)
    elif rule.inner is not None and rule.inner(exc) is not None:
        return False  # a wrapper's own word is no evidence; what is inside hangs on the chain as well
    return _shipped(exc, None).outcome is OutcomeState.UNKNOWN


def _line(link: Link, room: int) -> str:
    kind = type(link.exception)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    role = f"{link.role} " if link.role else ""
    notes = getattr(link.exception, "__notes__", None)
    texts = [_text(link.exception), *(f"({note})" for note in notes or () if isinstance(note, str))]
    message = _cut(" ".join(text for text in texts if text), room)
    return f"{'  ' * link.depth}{role}{name}{': ' if message else ''}{message}"


def _text(exc: BaseException) -> str:
    try:
        return str(exc)
    except Exception as failure:  # a foreign __str__ may do anything
        return f"<no message: {type(failure).__name__}>"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: max(0, limit - 1)] + "…" * min(1, limit)
