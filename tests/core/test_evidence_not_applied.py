"""A server that says by `X-Not-Applied` that it turned the request away before it did anything."""

from __future__ import annotations

import httpx
import pytest

from safewrite.core.events import OutcomeState
from safewrite.core.evidence import REASONS, from_exception, from_status, from_value

REQUEST = httpx.Request("POST", "https://billing.example/writes")


def said(status: int) -> httpx.Response:
    """Return a response that carries the header."""
    return httpx.Response(status, headers={"x-not-applied": "deadline"}, request=REQUEST)


@pytest.mark.parametrize("status", [408, 409, 500, 503, 504, 200, 202, 299])
def test_a_status_that_alone_says_nothing_is_not_applied_with_the_header(status: int) -> None:
    """The request was turned away, so it may be sent again without a read."""
    found = from_value(said(status))
    assert (found.outcome, found.reason, found.again, found.status, found.running) == (
        OutcomeState.NOT_APPLIED, "http_not_applied", True, status, False,
    )  # fmt: skip
    assert REASONS[found.reason]


@pytest.mark.parametrize("status", [400, 403, 412, 422])
def test_a_definite_no_stays_one(status: int) -> None:
    """The header adds nothing to a refusal that the same request would get again."""
    found = from_value(said(status))
    assert (found.outcome, found.again) == (OutcomeState.NOT_APPLIED, False)
    assert found.precondition_failed == (status == 412)


@pytest.mark.parametrize("status", [425, 429])
def test_what_may_be_sent_again_stays_so(status: int) -> None:
    """425 and 429 ask for another try, with the header or without."""
    assert from_status(status, not_applied="").again is True


def test_an_error_of_a_client_carries_the_header_too() -> None:
    """`raise_for_status` keeps the response, and with it the header."""
    with pytest.raises(httpx.HTTPStatusError) as raised:
        said(504).raise_for_status()
    assert from_exception(raised.value).outcome is OutcomeState.NOT_APPLIED


def test_without_the_header_the_same_status_says_nothing() -> None:
    """A gateway also says 408 of a server that was slow."""
    assert from_value(httpx.Response(408, request=REQUEST)).outcome is OutcomeState.UNKNOWN


@pytest.mark.parametrize("hops", [True, [302]])
def test_after_a_redirect_the_header_speaks_for_the_last_hop_only(hops: bool | list[int]) -> None:
    """An earlier hop may have carried the request out."""
    found = from_status(408, history=hops, not_applied="deadline")
    assert (found.outcome, found.again) == (OutcomeState.UNKNOWN, False)
