"""What an HTTP status says about the one attempt that got it, and what the hops before it take away.

The statuses stand in one table.  A status that is not in it says nothing: unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.matching import peek, take_back

APPLIED: Final = OutcomeState.APPLIED
NOT_APPLIED: Final = OutcomeState.NOT_APPLIED
UNKNOWN: Final = OutcomeState.UNKNOWN


@dataclass(frozen=True, slots=True)
class Status:
    """One row: what the status says, in one sentence, and what follows."""

    outcome: OutcomeState
    says: str
    again: bool = False
    running: bool = False
    precondition_failed: bool = False


_NO = "HTTP {}: the server refused the request ({})."
_MAYBE = "HTTP {}: the request may have been carried out before this answer ({})."


def _rows(outcome: OutcomeState, sentence: str, names: Mapping[int, str]) -> dict[int, Status]:
    return {status: Status(outcome, sentence.format(status, name)) for status, name in names.items()}


STATUSES: Final[Mapping[int, Status]] = {
    200: Status(APPLIED, "HTTP 200: the server says that it was done."),
    201: Status(APPLIED, "HTTP 201: the server says that it was created."),
    202: Status(UNKNOWN, "HTTP 202: accepted, and still being worked on.", running=True),
    204: Status(APPLIED, "HTTP 204: the server says that it was done."),
    206: Status(UNKNOWN, "HTTP 206: a part of an answer; what was done stands in the body."),
    207: Status(UNKNOWN, "HTTP 207: several answers in one; what was done stands in the body."),
    301: Status(UNKNOWN, "HTTP 301: moved; clients differ in what they send on, so the write may be done."),
    302: Status(UNKNOWN, "HTTP 302: found elsewhere; sent after a write as often as before it."),
    303: Status(APPLIED, "HTTP 303: done; the result is to be read elsewhere."),
    304: Status(NOT_APPLIED, "HTTP 304: the condition in the request did not hold, nothing was done."),
    307: Status(NOT_APPLIED, "HTTP 307: not done here; the request has to be sent elsewhere."),
    308: Status(NOT_APPLIED, "HTTP 308: not done here; the request has to be sent elsewhere."),
    **_rows(
        NOT_APPLIED,
        _NO,
        {
            400: "bad request",
            401: "not authenticated",
            402: "payment declined",
            403: "forbidden",
            404: "not found",
            405: "method not allowed",
            406: "not acceptable",
            410: "gone",
            411: "length required",
            413: "content too large",
            414: "URI too long",
            415: "unsupported media type",
            417: "expectation failed",
            421: "misdirected",
            422: "unprocessable content",
            423: "locked",
            424: "failed dependency",
            428: "a precondition is required",
            431: "header fields too large",
            451: "unavailable for legal reasons",
            501: "not implemented",
            505: "HTTP version not supported",
            511: "network authentication required",
        },
    ),
    408: Status(
        UNKNOWN, "HTTP 408: the request was late or cut short; gateways also say it of a slow server."
    ),
    409: Status(UNKNOWN, "HTTP 409: in conflict, or the same key is being worked on; nobody declared which."),
    412: Status(
        NOT_APPLIED, "HTTP 412: the version that the attempt named is gone.", precondition_failed=True
    ),
    425: Status(NOT_APPLIED, "HTTP 425: the server would not risk a request in early data.", again=True),
    429: Status(NOT_APPLIED, "HTTP 429: too many requests, this one was turned away.", again=True),
    **_rows(
        UNKNOWN,
        _MAYBE,
        {
            500: "internal error",
            502: "bad gateway",
            503: "unavailable",
            504: "gateway timeout",
            507: "insufficient storage",
            508: "loop detected",
            520: "the origin answered strangely",
            522: "the gateway timed out on the origin",
            524: "the origin was too slow",
        },
    ),
    521: Status(NOT_APPLIED, "HTTP 521: the gateway was refused by the origin."),
    523: Status(NOT_APPLIED, "HTTP 523: the gateway did not reach the origin."),
    525: Status(NOT_APPLIED, "HTTP 525: no TLS handshake between gateway and origin."),
    526: Status(NOT_APPLIED, "HTTP 526: the gateway did not trust the certificate of the origin."),
}
"""Status -> row.  The refusals are convention: no standard forbids an effect beside a 400."""

UNLISTED: Final = Status(UNKNOWN, "An HTTP status that is not in the table.")

NOT_APPLIED_HEADER: Final = "X-Not-Applied"
SAID_NOT_APPLIED: Final = "http_not_applied"

ASKED_AGAIN: Final = frozenset({401, 407})
"""Hops that only asked for credentials: not a redirect, and nothing was done."""
SENT_ON: Final = frozenset({307, 308})
"""Hops that passed the same request on."""


def reason(status: int) -> str:
    """Return the reason code of a status: `http_503`, or `http_unlisted`."""
    return f"http_{status}" if status in STATUSES else "http_unlisted"


def from_status(
    status: int,
    *,
    retry_after: str | None = None,
    date_now_unix: float | None = None,
    history: bool | Sequence[int] = False,
    not_applied: str | None = None,
) -> Finding:
    """Return what an HTTP status says about the attempt that got it.

    `retry_after` is the header as it came: seconds, or an HTTP date, which needs `date_now_unix` (wall time in
    seconds); anything else in it is ignored.

    `history` tells of earlier hops of the same call (redirects, sends repeated by the transport): True that
    there were some, or their statuses in order.  After any, a refusal by the last hop proves nothing about the
    first; with True alone an acceptance does not either (302 to a log-in page answers 200).  With statuses,
    401 and 407 do not count, a 303 is itself the acceptance, and 307 and 308 let a final acceptance stand.

    `not_applied` is the header `X-Not-Applied`: with it a server says, beside whatever status, that it turned the
    request away before it did anything.
    """
    row = STATUSES.get(status, UNLISTED)
    found = Finding(
        row.outcome,
        reason(status),
        again=row.again,
        status=status,
        retry_after=_seconds(retry_after, date_now_unix),
        precondition_failed=row.precondition_failed,
        running=row.running,
    )
    if not_applied is not None:
        again = row.again or row.outcome is not NOT_APPLIED  # a definite no stays one
        found = replace(found, outcome=NOT_APPLIED, reason=SAID_NOT_APPLIED, again=again, running=False)
    if isinstance(history, bool):
        return _after_hops(found) if history else found
    return _fold_hops(history, found)


def from_reply(source: object, now_unix: float | None) -> Finding | None:
    """Return what a response, or an exception that carries one's status, says; None without a status.

    Reads `status_code`, `status` or `code`, the headers Retry-After and X-Not-Applied, and the hops before.
    """
    status = peek(source, "status_code", "status", "code")
    if not isinstance(status, int):
        return None
    return from_status(
        int(status),
        retry_after=_header(source, "Retry-After"),
        date_now_unix=now_unix,
        history=hops(source),
        not_applied=_header(source, NOT_APPLIED_HEADER),
    )


def beside_error(found: Finding | None) -> Finding | None:
    """Take an exception at its word: 200 beside an error is not an acceptance, 303 is (clients raise on it)."""
    if found is not None and found.outcome is APPLIED and found.reason != "http_303":
        return Finding(UNKNOWN, "error_beside_success", status=found.status)
    return found


def hops(source: object) -> tuple[int, ...]:
    """Return the statuses of the earlier hops of a response, in order; 0 for a send that got no answer.

    Those are the redirects that a client followed (`history`), and what urllib3 sent again by itself.
    """
    followed = peek(source, "history")
    by_requests = peek(peek(source, "raw"), "retries")
    by_urllib3 = peek(source, "retries")
    again = peek(by_requests if by_urllib3 is None else by_urllib3, "history")
    return tuple(_hop(one) for one in (*_listed(again), *_listed(followed)))


def _listed(found: object) -> Iterable[object]:
    return found if isinstance(found, list | tuple) else ()


def _hop(one: object) -> int:
    status = peek(one, "status_code", "status")
    return status if isinstance(status, int) else 0


def _fold_hops(statuses: Sequence[int], last: Finding) -> Finding:
    moved = False
    for status in statuses:
        if status in ASKED_AGAIN:
            continue
        moved = True
        if status == 303:
            return Finding(APPLIED, "http_303", status=last.status, retry_after=last.retry_after)
        if status not in SENT_ON:
            return _after_hops(last)
    return _after_hops(last) if moved and last.outcome is NOT_APPLIED else last


def _after_hops(last: Finding) -> Finding:
    return last if last.outcome is UNKNOWN else take_back(last, "after_redirect")


def _header(source: object, name: str) -> str | None:
    """Return a header of a response in any client's clothes."""
    headers = peek(source, "headers")
    get = peek(headers, "get")
    if not callable(get):
        return None
    try:
        value = get(name) or get(name.lower())
    except Exception:  # a foreign mapping may do anything
        return None
    return value if isinstance(value, str) else None


def _seconds(text: str | None, now_unix: float | None) -> float | None:
    if text is None:
        return None
    text = text.strip()  # float() knows fewer blanks than that
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        seconds = float(text)
    elif now_unix is None:
        return None
    else:
        try:
            date = parsedate_to_datetime(text)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        if date.tzinfo is None:  # asctime has no zone; HTTP dates are always GMT
            date = date.replace(tzinfo=UTC)
        seconds = max(0.0, date.timestamp() - now_unix)
    return seconds if math.isfinite(seconds) else None
