"""Replies of any client: their status, their headers, and the hops that they remember."""

from __future__ import annotations

import email
import time
from types import SimpleNamespace
from typing import Any

import pytest

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.statuses import STATUSES, from_reply, from_status, hops

NOON = 784111777.0
"""Sun, 06 Nov 1994 08:49:37 GMT."""
NOT_APPLIED = OutcomeState.NOT_APPLIED


def some(**fields: Any) -> SimpleNamespace:
    """Return a response, or a part of one, in some client's clothes."""
    return SimpleNamespace(**fields)


@pytest.mark.parametrize(
    "reply",
    [
        some(status_code=429, headers={"Retry-After": "7"}),
        some(status=429, headers={"retry-after": "7"}),
        some(code=429, headers={"Retry-After": "7"}),
        some(status_code=None, status=None, code=429, headers=email.message_from_string("RETRY-AFTER: 7")),
    ],
)
def test_a_reply_is_read_in_any_clients_clothes(reply: SimpleNamespace) -> None:
    """Its status by any of three names, its headers in any case."""
    assert from_reply(reply, None) == Finding(
        NOT_APPLIED, "http_429", again=True, status=429, retry_after=7.0
    )
    refused = from_reply(some(status=500, headers={"X-Not-Applied": "1"}), None)
    assert refused == Finding(NOT_APPLIED, "http_not_applied", again=True, status=500)


@pytest.mark.parametrize("date", ["Sun, 06 Nov 1994 08:49:47 GMT", "Sun Nov  6 08:49:47 1994"])
def test_a_date_does_not_depend_on_the_zone_of_the_machine(
    date: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HTTP dates are always GMT, also the old form, which does not say so."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    try:
        time.tzset()
        assert from_status(503, retry_after=date, date_now_unix=NOON).retry_after == 10.0
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("odd", [some(), some(status="429"), some(code=b"200"), object(), None])
def test_a_reply_without_a_status_says_nothing(odd: object) -> None:
    """What is no number is none."""
    assert from_reply(odd, None) is None


@pytest.mark.parametrize(
    ("reply", "before"),
    [
        (some(), ()),
        (some(history=[some(status_code=307), some(status=303), some(status="odd")]), (307, 303, 0)),
        (some(history=(some(status=302),)), (302,)),
        (some(history="302"), ()),
        (some(retries=some(history=(some(status=503), some(status=None)))), (503, 0)),
        (
            some(raw=some(retries=some(history=(some(status=503),))), history=[some(status_code=308)]),
            (503, 308),
        ),
    ],
)
def test_the_hops_that_a_client_remembers(reply: SimpleNamespace, before: tuple[int, ...]) -> None:
    """Redirects that it followed, after what its transport sent again; 0 where no answer came."""
    assert hops(reply) == before


def test_a_pause_that_is_asked_for_after_a_303_is_kept() -> None:
    """The acceptance is that of the first hop, the pause that of the last."""
    found = from_status(503, retry_after="7", history=(303,))
    assert found == Finding(OutcomeState.APPLIED, "http_303", status=503, retry_after=7.0)


def test_the_sentence_of_a_status_names_it() -> None:
    """By its number, and what people call it."""
    assert all(row.says.startswith(f"HTTP {status}: ") for status, row in STATUSES.items())
    assert STATUSES[404].says == "HTTP 404: the server refused the request (not found)."
    assert STATUSES[502].says == (
        "HTTP 502: the request may have been carried out before this answer (bad gateway)."
    )
