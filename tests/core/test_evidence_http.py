"""Evidence from HTTP: every status, every listed class of every client, and what real sockets make of them."""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import h11
import httpcore
import httpx
import httpx2
import pytest
import requests
import urllib3
from hypothesis import given
from hypothesis import strategies as st
from tenacity import AsyncRetrying, Retrying, stop_after_attempt

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.evidence import from_exception, from_status, from_value
from safewrite.core.statuses import STATUSES, hops
from tests.core.wire import (
    Script,
    Wire,
    answer,
    closed_port,
    cut_request,
    finish,
    reset,
    send,
    silent,
    stall,
    wire,
)

APPLIED, NOT_APPLIED, UNKNOWN = OutcomeState.APPLIED, OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN

SECONDS = 20.0
SOON = 0.2


def ending(body: Callable[[], object]) -> Finding:
    """Return what the end of a body says, be it a value or an exception."""
    try:
        value = body()
    except Exception as exc:
        return from_exception(exc)
    return from_value(value)


def raised(body: Callable[[], object]) -> BaseException:
    """Return the exception of a body that must fail."""
    try:
        body()
    except Exception as exc:
        return exc
    pytest.fail("nothing was raised")


# Statuses


def listed(text: str) -> set[int]:
    """Return the statuses of a text."""
    return {int(word) for word in text.split()}


REFUSALS = listed(
    "304 307 308 400 401 402 403 404 405 406 410 411 412 413 414 415 417 421 422 423 424 425 428 429 431 451"
    " 501 505 511 521 523 525 526"
)
ACCEPTED = listed("200 201 204 303")
OPEN = listed("202 206 207 301 302 408 409 500 502 503 504 507 508 520 522 524")


@pytest.mark.parametrize("status", range(100, 600))
def test_a_status_says_what_the_table_says_and_else_nothing(status: int) -> None:
    """Every three-digit status, listed or not."""
    expected = NOT_APPLIED if status in REFUSALS else APPLIED if status in ACCEPTED else UNKNOWN
    found = from_status(status)
    assert (expected, status) == (found.outcome, found.status)
    assert (f"http_{status}" if status in REFUSALS | ACCEPTED | OPEN else "http_unlisted") == found.reason
    assert (status in {425, 429}) == found.again
    assert (status == 412) == found.precondition_failed
    assert (status == 202) == found.running
    assert not found.proof


def test_the_table_of_statuses_is_the_one_tested_here() -> None:
    """No row without a test."""
    assert STATUSES.keys() == REFUSALS | ACCEPTED | OPEN


NOON = 784111777.0
"""Sun, 06 Nov 1994 08:49:37 GMT."""


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 1.5 ", 1.5),
        ("7\x1c", 7.0),
        ("Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        ("Sunday, 06-Nov-94 08:49:47 GMT", 10.0),
        ("Sun Nov  6 08:49:47 1994", 10.0),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0.0),
        ("-5", None),
        ("soon", None),
        ("", None),
        ("9" * 400, None),
        ("Sun, 99 Nov 1994 08:49:47 GMT", None),
        (None, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(header: str | None, expected: float | None) -> None:
    """Both forms count from the moment given; garbage is ignored."""
    found = from_status(429, retry_after=header, date_now_unix=NOON)
    assert expected == found.retry_after


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the zone of a process cannot be set here")
def test_a_date_that_names_no_zone_is_gmt_wherever_the_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours of waiting, or none at all, would come of reading it in the machine's own zone."""
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    time.tzset()
    try:
        assert time.localtime(NOON).tm_hour == 0
        found = from_status(429, retry_after="Sun Nov  6 08:49:47 1994", date_now_unix=NOON)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert found.retry_after == 10.0


def test_a_date_without_a_now_is_ignored() -> None:
    """The core has no clock, so a date alone is no number of seconds."""
    assert None is from_status(503, retry_after="Sun, 06 Nov 1994 08:49:47 GMT").retry_after
    assert from_status(503, retry_after="7").retry_after == 7.0


ODD = st.sampled_from(
    ["1", "9", ".", "-", " ", "\t", "\n", "\x1c", "\x85", "\xa0", "\u2003", "\u0661", "e", "inf", "nan", "Sun, ",
     "06 Nov", " 1994", " 08:49:37", ":", "99", " GMT", " +9999", " -2400", "+", "0001", "9999", "0000", ",", "(", ")",
     '"', "\ud800"]
)  # fmt: skip


@given(st.text(max_size=60) | st.lists(ODD, max_size=12).map("".join) | st.tuples(ODD, ODD, ODD).map("".join))
def test_no_header_is_too_odd(header: str) -> None:
    """Whatever stands there, the answer is a number that is not negative, or none."""
    seconds = from_status(429, retry_after=header, date_now_unix=NOON).retry_after
    assert seconds is None or seconds >= 0.0


# What the hops before a status take away


@pytest.mark.parametrize("status", sorted(STATUSES))
def test_after_hops_of_which_nothing_is_known_a_status_proves_nothing(status: int) -> None:
    """A later hop's refusal is no proof, and its acceptance may be a log-in page."""
    found = from_status(status, history=True)
    assert (found.outcome, found.again, found.precondition_failed) == (UNKNOWN, False, False)
    assert (f"http_{status}" if status in OPEN else "after_redirect") == found.reason


@pytest.mark.parametrize(
    ("before", "last", "outcome", "reason"),
    [
        ((), 404, NOT_APPLIED, "http_404"),
        ((307,), 200, APPLIED, "http_200"),
        ((308, 307), 201, APPLIED, "http_201"),
        ((307,), 404, UNKNOWN, "after_redirect"),
        ((307,), 503, UNKNOWN, "http_503"),
        ((302,), 200, UNKNOWN, "after_redirect"),
        ((301,), 404, UNKNOWN, "after_redirect"),
        ((303,), 404, APPLIED, "http_303"),
        ((307, 303), 500, APPLIED, "http_303"),
        ((302, 303), 200, UNKNOWN, "after_redirect"),
        ((401,), 200, APPLIED, "http_200"),
        ((401, 407), 400, NOT_APPLIED, "http_400"),
        ((401, 303), 200, APPLIED, "http_303"),
        ((200,), 400, UNKNOWN, "after_redirect"),
        ((503,), 400, UNKNOWN, "after_redirect"),
        ((0,), 400, UNKNOWN, "after_redirect"),
    ],
)
def test_hops_are_folded_in_order(
    before: Sequence[int], last: int, outcome: OutcomeState, reason: str
) -> None:
    """303 is the acceptance itself, 307 and 308 hand the request on, 401 and 407 are no redirect."""
    found = from_status(last, history=before)
    assert (outcome, reason, last) == (found.outcome, found.reason, found.status)


# Classes, by name


HTTPX_NEVER = {
    "ConnectError": "connect_failed",
    "ConnectTimeout": "connect_timeout",
    "PoolTimeout": "pool_timeout",
}
HTTPX_REFUSED = {"UnsupportedProtocol": "unsupported_protocol"}
HTTPX_UNKNOWN = {
    "ProxyError": "proxy_error",
    "LocalProtocolError": "local_protocol_error",
    "RemoteProtocolError": "remote_protocol_error",
    "ReadTimeout": "read_timeout",
    "WriteTimeout": "write_timeout",
    "ReadError": "read_error",
    "WriteError": "write_error",
}
HTTPX_MORE = {
    "CloseError": "close_error",
    "DecodingError": "response_unreadable",
    "TooManyRedirects": "too_many_redirects",
    "NetworkError": "transport_error",
    "TimeoutException": "transport_error",
    "TransportError": "transport_error",
}
REQUESTS = {
    "ConnectTimeout": "connect_timeout",
    "InvalidURL": "invalid_url",
    "InvalidProxyURL": "invalid_url",
    "MissingSchema": "invalid_url",
    "InvalidSchema": "unsupported_protocol",
    "ConnectionError": "connection_error",
    "SSLError": "connection_error",
    "ProxyError": "connection_error",
    "ReadTimeout": "read_timeout",
    "Timeout": "timeout",
    "ChunkedEncodingError": "response_incomplete",
    "ContentDecodingError": "response_unreadable",
    "TooManyRedirects": "too_many_redirects",
    "HTTPError": "http_error",
    "RetryError": "transport_error",
    "InvalidHeader": "transport_error",
    "RequestException": "transport_error",
}
SURE = {"connect_failed", "connect_timeout", "pool_timeout", "invalid_url", "unsupported_protocol"}
NEVER = {"connect_failed", "connect_timeout", "pool_timeout"}


@pytest.mark.parametrize("module", [httpx, httpx2, httpcore, pytest.importorskip("httpcore2")])
@pytest.mark.parametrize(
    ("name", "reason"), [*HTTPX_NEVER.items(), *HTTPX_REFUSED.items(), *HTTPX_UNKNOWN.items()]
)
def test_httpx_and_httpcore_and_their_successors_classify_alike(module: Any, name: str, reason: str) -> None:
    """The same rows, found by name, whatever the package is called."""
    found = from_exception(getattr(module, name)("x"))
    assert Finding(NOT_APPLIED if reason in SURE else UNKNOWN, reason, again=reason in NEVER) == found


@pytest.mark.parametrize("module", [httpx, httpx2])
@pytest.mark.parametrize(("name", "reason"), HTTPX_MORE.items())
def test_what_only_httpx_raises_is_unknown(module: Any, name: str, reason: str) -> None:
    """Errors after the status, and the bases of what is not listed."""
    assert Finding(UNKNOWN, reason) == from_exception(getattr(module, name)("x"))


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_an_invalid_url_is_never_sent_and_would_fail_again(module: Any) -> None:
    """Not applied, but nothing to send again."""
    assert Finding(NOT_APPLIED, "invalid_url") == from_exception(module.InvalidURL("x"))


@pytest.mark.parametrize(("name", "reason"), REQUESTS.items())
def test_requests_by_class(name: str, reason: str) -> None:
    """Connect timeouts and URLs that cannot be are never sent, all else is unknown."""
    found = from_exception(getattr(requests.exceptions, name)())
    assert Finding(NOT_APPLIED if reason in SURE else UNKNOWN, reason, again=reason in NEVER) == found


POOL: Any = urllib3.HTTPConnectionPool("127.0.0.1")
URLLIB3: list[tuple[Exception, str]] = [
    (urllib3.exceptions.NewConnectionError(POOL, "x"), "connect_failed"),
    (urllib3.exceptions.NameResolutionError("h", POOL, OSError()), "connect_failed"),  # type: ignore[arg-type]
    (urllib3.exceptions.ConnectTimeoutError(), "connect_timeout"),
    (urllib3.exceptions.EmptyPoolError(POOL, "x"), "pool_timeout"),
    (urllib3.exceptions.LocationParseError("x"), "invalid_url"),
    (urllib3.exceptions.URLSchemeUnknown("x"), "unsupported_protocol"),
    (urllib3.exceptions.ReadTimeoutError(POOL, "/", "x"), "read_timeout"),
    (urllib3.exceptions.ProtocolError("x", ConnectionRefusedError()), "connection_error"),
    (urllib3.exceptions.IncompleteRead(1, 2), "response_incomplete"),
    (urllib3.exceptions.DecodeError(), "response_unreadable"),
    (urllib3.exceptions.HTTPError(), "transport_error"),
    (urllib3.exceptions.MaxRetryError(POOL, "/"), "connection_error"),
    (urllib3.exceptions.MaxRetryError(POOL, "/", Exception("odd")), "connection_error"),
    (urllib3.exceptions.ProxyError("x", ValueError()), "proxy_error"),
    (urllib3.exceptions.SSLError("x"), "tls_error"),
]


@pytest.mark.parametrize(("exc", "reason"), URLLIB3)
def test_urllib3_by_class(exc: Exception, reason: str) -> None:
    """New connections that failed and full pools are never sent, all else is unknown."""
    found = from_exception(exc)
    assert Finding(NOT_APPLIED if reason in SURE else UNKNOWN, reason, again=reason in NEVER) == found


def test_an_answer_that_is_not_json_is_unknown() -> None:
    """The error of requests hides the status that came with it."""
    exc = requests.exceptions.JSONDecodeError("no value", "<html>", 0)
    assert from_exception(exc) == Finding(UNKNOWN, "response_unreadable")


def test_wrappers_are_opened() -> None:
    """Requests around urllib3 around the reason, proxies too."""
    refused = urllib3.exceptions.NewConnectionError(POOL, "x")
    proxy = urllib3.exceptions.ProxyError("x", refused)
    for reason in (refused, proxy):
        wrapped = requests.ConnectionError(urllib3.exceptions.MaxRetryError(POOL, "/", reason))
        assert Finding(NOT_APPLIED, "connect_failed", again=True) == from_exception(wrapped)
    assert from_exception(requests.ConnectionError(ConnectionResetError)).reason == "connection_error"


def test_wrappers_that_wrap_themselves_end() -> None:
    """A ring of wrappers is opened a few times and then left."""
    ring = requests.ConnectionError()
    ring.args = (ring,)
    assert Finding(UNKNOWN, "connection_error") == from_exception(ring)


def test_the_standard_library_by_class() -> None:
    """What is inside a URLError counts; the others are unknown."""
    assert from_exception(urllib.error.URLError(ConnectionRefusedError())).reason == "connect_refused"
    assert Finding(UNKNOWN, "connection_error") == from_exception(urllib.error.URLError("text"))
    assert Finding(UNKNOWN, "server_disconnected") == from_exception(http.client.RemoteDisconnected("x"))
    assert Finding(UNKNOWN, "response_incomplete") == from_exception(http.client.IncompleteRead(b""))
    assert Finding(UNKNOWN, "remote_protocol_error") == from_exception(http.client.BadStatusLine("x"))
    assert Finding(UNKNOWN, "remote_protocol_error") == from_exception(h11.RemoteProtocolError("x"))


def test_a_refused_tunnel_is_told_from_a_forwarding_proxy() -> None:
    """For https the request is behind the tunnel, for http it may be on its way, without a request nothing is known."""
    exc = httpx.ProxyError("403 Forbidden")
    assert Finding(UNKNOWN, "proxy_error") == from_exception(exc)
    exc.request = httpx.Request("POST", "http://a/")
    assert Finding(UNKNOWN, "proxy_error") == from_exception(exc)
    exc.request = httpx.Request("POST", "https://a/")
    assert Finding(NOT_APPLIED, "tunnel_refused", again=True) == from_exception(exc)


# Status errors


def reply(status: int, *, text: str = "", **headers: str) -> httpx.Response:
    """Return a response of httpx."""
    return httpx.Response(status, headers=headers, text=text, request=httpx.Request("POST", "http://a/"))


def test_a_status_error_is_its_status() -> None:
    """The response on the exception is read: status, Retry-After, hops."""
    exc = raised(reply(429, **{"Retry-After": "3"}).raise_for_status)
    assert Finding(NOT_APPLIED, "http_429", again=True, status=429, retry_after=3.0) == from_exception(exc)
    dated = raised(reply(429, **{"Retry-After": "Sun, 06 Nov 1994 08:49:47 GMT"}).raise_for_status)
    assert from_exception(dated, now_unix=NOON).retry_after == 10.0
    moved = reply(404)
    moved.history = [reply(302)]
    assert from_exception(raised(moved.raise_for_status)).reason == "after_redirect"


def test_see_other_is_an_acceptance_also_where_a_client_raises_on_it() -> None:
    """Httpx raises on redirects that it does not follow."""
    assert Finding(APPLIED, "http_303", status=303) == from_exception(raised(reply(303).raise_for_status))


def test_a_success_beside_an_error_is_unknown() -> None:
    """A body that finds an error inside a 200 and raises has seen more than the status."""
    response = reply(200)
    exc = httpx.HTTPStatusError("errors in the body", request=response.request, response=response)
    assert Finding(UNKNOWN, "error_beside_success", status=200) == from_exception(exc)


def test_a_status_error_of_requests_is_read_although_its_response_is_false() -> None:
    """A `requests.Response` with an error status is false in a condition."""
    response = requests.Response()
    response.status_code = 409
    assert from_exception(raised(response.raise_for_status)).reason == "http_409"


def test_what_the_transport_sent_again_counts_as_a_hop() -> None:
    """urllib3 keeps its own repeats on the response; a send without an answer is hop 0."""
    response = requests.Response()
    response.status_code = 400
    response.raw = urllib3.HTTPResponse(
        status=400, retries=urllib3.Retry(3).increment("PUT", "/", error=OSError())
    )
    assert hops(response) == (0,)
    assert Finding(UNKNOWN, "after_redirect", status=400) == from_exception(raised(response.raise_for_status))
    assert Finding(UNKNOWN, "after_redirect", status=400) == from_value(response.raw)


class Odd:
    """Headers that fail when they are read."""

    def get(self, *_: object) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("headers", [None, Odd(), {"Retry-After": 5}, {"retry-after": "5"}])
def test_odd_headers_do_no_harm(headers: object) -> None:
    """A Retry-After is taken only where it can be read and is text."""
    response = requests.Response()
    response.status_code = 429
    response.headers = headers  # type: ignore[assignment]
    expected = 5.0 if headers == {"retry-after": "5"} else None
    assert expected == from_value(response).retry_after


# Returned responses


def test_a_returned_response_is_its_status() -> None:
    """A body that does not raise on a status has not judged it."""
    assert Finding(APPLIED, "http_201", status=201) == from_value(reply(201))
    assert Finding(NOT_APPLIED, "http_422", status=422) == from_value(httpx2.Response(422))
    assert Finding(UNKNOWN, "http_202", status=202, running=True) == from_value(reply(202))
    moved = reply(200)
    moved.history = [reply(302)]
    assert Finding(UNKNOWN, "after_redirect", status=200) == from_value(moved)
    assert Finding(UNKNOWN, "http_503", status=503) == from_value(httpcore.Response(503))
    assert (
        from_value(reply(503, **{"Retry-After": "Sun, 06 Nov 1994 08:49:47 GMT"}), now_unix=NOON).retry_after
        == 10.0
    )


def test_a_response_without_a_status_was_returned() -> None:
    """A response that was never filled is a value like any other."""
    assert Finding(APPLIED, "returned") == from_value(requests.Response())


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_a_streamed_acceptance_is_unknown_until_it_is_read(module: Any) -> None:
    """A body that returns before the answer has ended has not seen whether it worked."""
    with wire(answer("200 OK")) as server, module.Client() as client:
        request = client.build_request("POST", server.url)
        response = client.send(request, stream=True)
        assert Finding(UNKNOWN, "response_unread", status=200) == from_value(response)
        response.read()
        assert Finding(APPLIED, "http_200", status=200) == from_value(response)


def test_a_streamed_answer_of_requests_is_unknown_until_it_is_read() -> None:
    """The same for `stream=True`; a refusal needs no reading."""
    with wire(answer("200 OK"), answer("400 Bad Request")) as server:
        with requests.post(server.url, stream=True, timeout=SECONDS) as response:
            assert Finding(UNKNOWN, "response_unread", status=200) == from_value(response)
            assert response.content == b"{}"
            assert Finding(APPLIED, "http_200", status=200) == from_value(response)
        with requests.post(server.url, stream=True, timeout=SECONDS) as response:
            assert Finding(NOT_APPLIED, "http_400", status=400) == from_value(response)


# Real sockets: every client against the same server

Post = Callable[..., object]
"""Sends a write to a URL; the seconds that it waits for an answer may follow."""


def with_httpx(module: Any) -> Post:
    """Post with a blocking client."""

    def post(url: str, read: float = SECONDS) -> object:
        with module.Client(timeout=module.Timeout(SECONDS, read=read)) as client:
            return client.post(url, json={"a": 1})

    return post


def with_async_httpx(module: Any) -> Post:
    """Post with an asynchronous client."""

    async def send_one(url: str, read: float) -> object:
        async with module.AsyncClient(timeout=module.Timeout(SECONDS, read=read)) as client:
            return await client.post(url, json={"a": 1})

    return lambda url, read=SECONDS: asyncio.run(send_one(url, read))


def with_requests(url: str, read: float = SECONDS) -> object:
    """Post with a session of requests."""
    with requests.Session() as session:
        return session.post(url, json={"a": 1}, timeout=(SECONDS, read))


def with_urllib3(url: str, read: float = SECONDS) -> object:
    """Post with a pool that retries nothing."""
    with urllib3.PoolManager(retries=False) as pool:
        timeout = urllib3.Timeout(connect=SECONDS, read=read)
        return pool.request("POST", url, body=b"{}", timeout=timeout)


def with_urllib(url: str, read: float = SECONDS) -> object:
    """Post with the standard library."""
    with urllib.request.urlopen(url, b"{}", timeout=read) as response:
        response.read()
        return response


def with_aiohttp(url: str, read: float = SECONDS) -> object:
    """Post with aiohttp."""
    aiohttp = pytest.importorskip("aiohttp")

    async def send_one() -> object:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=read)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, json={}) as response:
            await response.read()
            return response

    return asyncio.run(send_one())


CLIENTS: dict[str, Post] = {
    "httpx": with_httpx(httpx),
    "httpx async": with_async_httpx(httpx),
    "httpx2": with_httpx(httpx2),
    "httpx2 async": with_async_httpx(httpx2),
    "requests": with_requests,
    "urllib3": with_urllib3,
    "urllib": with_urllib,
    "aiohttp": with_aiohttp,
}
every_client = pytest.mark.parametrize("post", CLIENTS.values(), ids=CLIENTS)


@every_client
def test_refused_is_never_sent(post: Post) -> None:
    """Nobody listens: not applied, and may be sent again."""
    with closed_port() as port:
        assert Finding(NOT_APPLIED, "connect_refused", again=True) == ending(
            lambda: post(f"http://127.0.0.1:{port}/")
        )


@every_client
def test_a_name_that_does_not_resolve_is_never_sent(post: Post) -> None:
    """No address: not applied, and may be sent again."""
    found = ending(lambda: post("http://nobody.invalid/"))
    assert Finding(NOT_APPLIED, "name_not_resolved", again=True) == found


@every_client
def test_a_failed_handshake_is_never_sent(post: Post) -> None:
    """TLS spoken to a server that answers in plain text: the request did not leave."""
    with wire(lambda _, connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        found = ending(lambda: post(f"https://127.0.0.1:{server.port}/"))
    assert (found.outcome, found.again) == (NOT_APPLIED, True)
    assert found.reason in {"tls_failed", "connect_failed"}
    assert server.received == []


@every_client
def test_an_answer_that_does_not_come_is_unknown(post: Post) -> None:
    """The server has the whole request and is silent."""
    with wire(stall) as server:
        found = ending(lambda: post(server.url, SOON))
    assert found.outcome == UNKNOWN
    assert found.reason in {"read_timeout", "connection_error", "timeout"}


@every_client
@pytest.mark.parametrize("status", [201, 202, 400, 409, 429, 503])
def test_a_real_answer_is_its_status(post: Post, status: int) -> None:
    """Every client's response, or status error, is read alike."""
    with wire(answer(f"{status} Told", "Retry-After: 4")) as server:
        found = ending(lambda: post(server.url))
    assert from_status(status, retry_after="4") == found


@every_client
def test_a_redirect_that_was_followed_takes_a_later_refusal_back(post: Post) -> None:
    """The first hop got the write and a 302, the second connection is refused or refuses."""
    with closed_port() as port:
        target = f"http://127.0.0.1:{port}/"
        with wire(answer("302 Found", f"Location: {target}")) as server:
            found = ending(lambda: post_following(post, server.url))
    assert found.outcome == UNKNOWN
    assert found.reason in {"earlier_request", "http_302"}


def post_following(post: Post, url: str) -> object:
    """Follow redirects also with httpx, which does not by itself."""
    for name, module in (("httpx", httpx), ("httpx2", httpx2)):
        if post is CLIENTS[name]:
            with module.Client(follow_redirects=True) as client:
                return client.post(url)
        if post is CLIENTS[f"{name} async"]:

            async def send_one(module: Any = module) -> object:
                async with module.AsyncClient(follow_redirects=True) as client:
                    return await client.post(url)

            return asyncio.run(send_one())
    if post is with_urllib3:
        with urllib3.PoolManager() as pool:
            return pool.request("POST", url, body=b"{}")
    return post(url)


def test_a_redirect_that_ends_in_a_refusal_is_unknown_with_the_standard_library() -> None:
    """Urllib follows a 302 silently, and its error shows only the last hop."""
    with wire(answer("404 Not Found")) as last, wire(answer("302 Found", f"Location: {last.url}")) as first:
        found = ending(lambda: with_urllib(first.url))
    assert Finding(UNKNOWN, "earlier_request", status=404) == found


def test_a_repeat_by_the_transport_takes_a_refusal_back() -> None:
    """urllib3 retried a PUT whose first send was reset; the second found nobody, or was refused by the server."""
    retry = urllib3.Retry(total=1, backoff_factor=0)

    def put(url: str) -> object:
        with requests.Session() as session:
            session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
            return session.put(url, json={}, timeout=SECONDS)

    with wire(cut_request(10, reset), answer("400 Bad Request")) as server:
        assert Finding(UNKNOWN, "after_redirect", status=400) == ending(lambda: put(server.url))

    def last(server: Wire, connection: socket.socket) -> None:
        server.leave()
        cut_request(10, reset)(server, connection)

    with wire(last) as server:
        assert ending(lambda: put(server.url)) == Finding(UNKNOWN, "earlier_request")
    with closed_port() as port, wire(answer("307 On", f"Location: http://127.0.0.1:{port}/")) as server:
        assert Finding(UNKNOWN, "earlier_request") == ending(lambda: put(server.url))


def test_a_full_pool_is_never_sent() -> None:
    """All connections are taken: not applied, and may be sent again."""
    with (
        wire(answer("200 OK")) as server,
        httpx.Client(
            limits=httpx.Limits(max_connections=1), timeout=httpx.Timeout(SECONDS, pool=0.01)
        ) as client,
    ):
        with client.stream("POST", server.url):
            found = ending(lambda: client.post(server.url))
        assert Finding(NOT_APPLIED, "pool_timeout", again=True) == found
    with wire(answer("200 OK")) as server:
        pool = urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1, block=True)
        held = pool.urlopen("POST", "/", preload_content=False)
        found = ending(lambda: pool.urlopen("POST", "/", pool_timeout=0.01))  # type: ignore[arg-type]
        held.close()
        pool.close()
        assert Finding(NOT_APPLIED, "pool_timeout", again=True) == found


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_a_header_that_cannot_be_written_is_never_sent(module: Any) -> None:
    """The client connected, and wrote no byte of a request."""
    with wire(cut_request(1, reset)) as server, module.Client() as client:
        found = ending(lambda: client.post(server.url, headers={"X-Reason": "a\nb"}))
    assert Finding(NOT_APPLIED, "illegal_header") == found
    assert [data for data in server.received if data] == []


@pytest.mark.parametrize(("length", "reason"), [("1", "Too much"), ("9", "Too little")])
def test_a_body_that_does_not_fit_its_length_is_unknown(length: str, reason: str) -> None:
    """The server has the headers, and may have the whole body that it was told of."""
    with wire(stall) as server, httpx.Client() as client:
        exc = raised(
            lambda: client.post(server.url, content=iter([b"ab"]), headers={"Content-Length": length})
        )
    assert isinstance(exc, h11.LocalProtocolError)
    assert str(exc).startswith(reason)
    assert Finding(UNKNOWN, "local_protocol_error") == from_exception(exc)


def test_an_error_of_the_bodys_own_generator_is_unknown() -> None:
    """The headers had left when it was raised."""

    def broken() -> Any:
        yield b"a"
        raise KeyError("no more")

    with wire(stall) as server, httpx.Client() as client:
        found = ending(lambda: client.post(server.url, content=broken()))
    assert Finding(UNKNOWN, "unlisted_exception") == found


@pytest.mark.parametrize("module", [httpx, httpx2])
def test_a_bad_header_of_an_earlier_request_proves_nothing_about_this_one(module: Any) -> None:
    """Only causes are read for proofs, never what was being handled."""

    def body() -> object:
        try:
            raise h11.LocalProtocolError("Illegal header value b'a'")
        except h11.LocalProtocolError:
            raise module.LocalProtocolError("odd")  # noqa: B904

    assert Finding(UNKNOWN, "local_protocol_error") == ending(body)


@pytest.mark.parametrize("first", [requests.ReadTimeout(), requests.ConnectTimeout()])
def test_tenacity_around_the_request_takes_a_refusal_back(first: Exception) -> None:
    """The last of several tries says nothing about the ones before, of which only the number is left."""
    tries: list[Exception] = [first, requests.ConnectTimeout()]

    def post() -> None:
        raise tries.pop(0)

    def body() -> None:
        Retrying(stop=stop_after_attempt(2), reraise=True)(post)

    assert Finding(UNKNOWN, "earlier_request") == ending(body)


def test_tenacity_that_tried_once_takes_nothing_back() -> None:
    """One try is one request."""

    def post() -> None:
        raise requests.ConnectTimeout

    async def post_soon() -> None:
        post()

    def body() -> None:
        Retrying(stop=stop_after_attempt(1), reraise=True)(post)

    assert ending(body).reason == "connect_timeout"
    once, twice = (AsyncRetrying(stop=stop_after_attempt(n), reraise=True) for n in (1, 2))
    assert ending(lambda: asyncio.run(once(post_soon))).reason == "connect_timeout"
    assert ending(lambda: asyncio.run(twice(post_soon))).reason == "earlier_request"


# Cut at every byte

REPLY = (
    b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n" + b'{"id": "s_1"}'
)


@contextmanager
def sender(module: Any) -> Iterator[Post]:
    """Keep one client for many requests."""
    session = requests.Session() if module is requests else module.Client(verify=False)
    with session as client:
        yield lambda url: client.post(url, json={"a": 1}, timeout=SECONDS)


@contextmanager
def async_sender() -> Iterator[Post]:
    """Keep one event loop and one client for many requests."""
    with asyncio.Runner() as runner:
        client = httpx.AsyncClient(verify=False, timeout=SECONDS)
        yield lambda url: runner.run(client.post(url, json={"a": 1}))
        runner.run(client.aclose())


SENDERS: dict[str, Callable[[], AbstractContextManager[Post]]] = {
    "httpx": lambda: sender(httpx),
    "httpx2": lambda: sender(httpx2),
    "httpx async": async_sender,
    "requests": lambda: sender(requests),
}


def sweep(name: str, scripts: Sequence[Script]) -> list[Finding]:
    """Return what a client's requests end in, each served by the next script."""
    with wire(*scripts) as server, SENDERS[name]() as post:
        return [ending(lambda: post(server.url)) for _ in scripts]


@pytest.mark.parametrize("close", [finish, reset])
@pytest.mark.parametrize("name", SENDERS)
def test_a_request_cut_at_any_byte_is_unknown(name: str, close: Any) -> None:
    """From the first byte on, a FIN or a RST leaves it open what the server did."""
    with wire(send(REPLY)) as server, SENDERS[name]() as post:
        assert Finding(APPLIED, "http_201", status=201) == ending(lambda: post(server.url))
    length = len(server.received[0])
    found = sweep(name, [cut_request(after, close) for after in range(1, length + 1)])
    assert [UNKNOWN] * length == [one.outcome for one in found]
    assert {"read_error", "remote_protocol_error", "connection_error"} >= {one.reason for one in found}


@pytest.mark.parametrize("close", [finish, reset])
@pytest.mark.parametrize("name", ["httpx", "httpx2", "httpx async"])
def test_a_response_cut_at_any_byte_is_unknown(name: str, close: Any) -> None:
    """An answer that did not end is neither an acceptance nor a refusal."""
    found = sweep(name, [send(REPLY[:length], close) for length in range(len(REPLY))])
    assert [UNKNOWN] * len(REPLY) == [one.outcome for one in found]


@pytest.mark.parametrize("close", [finish, reset])
def test_a_response_cut_at_any_byte_is_never_a_refusal_with_requests(close: Any) -> None:
    """Requests shows a cut after the status code as a complete answer; the code at least is the server's."""
    found = sweep("requests", [send(REPLY[:length], close) for length in range(len(REPLY))])
    shown = {length for length, one in enumerate(found) if one.outcome is APPLIED}
    assert {201} >= {found[length].status for length in shown}
    assert {UNKNOWN} == {one.outcome for length, one in enumerate(found) if length not in shown}
    assert all(len(b"HTTP/1.1 201") <= length < REPLY.index(b"{") for length in shown)
    assert shown or close is reset


def test_silence_after_connecting_is_unknown_or_a_read_timeout() -> None:
    """A server that accepts and never reads has the request in its buffer."""
    with wire(silent) as server:
        assert Finding(UNKNOWN, "read_timeout") == ending(lambda: with_httpx(httpx)(server.url, SOON))


# Certificates


def test_a_certificate_that_is_not_trusted_is_never_sent(tmp_path: Any) -> None:
    """The handshake ends before the request, with each client."""
    certificate = pytest.importorskip("tests.core.certificate")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.write(tmp_path))

    def greet(server: Any, connection: Any) -> None:
        with context.wrap_socket(connection, server_side=True) as secure:
            server.received.append(secure.recv(1))

    for name, post in CLIENTS.items():
        with wire(greet) as server:
            found = ending(lambda: post(f"https://127.0.0.1:{server.port}/"))  # noqa: B023
        assert (name, NOT_APPLIED, "tls_failed", True) == (name, found.outcome, found.reason, found.again)
        assert server.received == []


# aiohttp


def test_aiohttp_by_class() -> None:
    """Connectors and connection timeouts are never sent, redirects that went wrong are unknown."""
    aiohttp = pytest.importorskip("aiohttp")
    info: Any = None
    key = aiohttp.client_reqrep.ConnectionKey("h", 1, False, True, None, None, None)
    errors = aiohttp.client_exceptions
    for exc, expected in [
        (errors.ClientConnectorError(key, OSError()), Finding(NOT_APPLIED, "connect_failed", again=True)),
        (errors.ClientConnectorDNSError(key, OSError()), Finding(NOT_APPLIED, "connect_failed", again=True)),
        (
            errors.ClientProxyConnectionError(key, OSError()),
            Finding(NOT_APPLIED, "connect_failed", again=True),
        ),
        (errors.ConnectionTimeoutError(), Finding(NOT_APPLIED, "connect_timeout", again=True)),
        (errors.ClientHttpProxyError(info, ()), Finding(NOT_APPLIED, "tunnel_refused", again=True)),
        (errors.InvalidUrlClientError("x"), Finding(NOT_APPLIED, "invalid_url")),
        (errors.NonHttpUrlClientError("x"), Finding(NOT_APPLIED, "unsupported_protocol")),
        (errors.InvalidUrlRedirectClientError("x"), Finding(UNKNOWN, "after_redirect")),
        (errors.NonHttpUrlRedirectClientError("x"), Finding(UNKNOWN, "after_redirect")),
        (errors.TooManyRedirects(info, ()), Finding(UNKNOWN, "too_many_redirects")),
        (errors.ServerTimeoutError(), Finding(UNKNOWN, "read_timeout")),
        (errors.SocketTimeoutError(), Finding(UNKNOWN, "read_timeout")),
        (errors.ServerDisconnectedError(), Finding(UNKNOWN, "server_disconnected")),
        (errors.ClientOSError(), Finding(UNKNOWN, "connection_error")),
        (errors.ClientPayloadError(), Finding(UNKNOWN, "response_incomplete")),
        (errors.ClientError(), Finding(UNKNOWN, "transport_error")),
        (errors.ClientResponseError(info, (), status=404), Finding(NOT_APPLIED, "http_404", status=404)),
        (errors.ContentTypeError(info, (), status=200), Finding(UNKNOWN, "error_beside_success", status=200)),
    ]:
        assert expected == from_exception(exc), type(exc)


def test_aiohttp_that_repeated_a_put_takes_a_refusal_back() -> None:
    """A kept-alive connection broke under a PUT, which aiohttp sends again by itself, and then nobody listens."""
    aiohttp = pytest.importorskip("aiohttp")

    def once_and_leave(server: Any, connection: Any) -> None:
        kept = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        send(kept, lambda _: None)(server, connection)
        server.leave()
        cut_request(10, reset)(server, connection)

    async def body(url: str, method: str) -> object:
        async with aiohttp.ClientSession() as session:
            async with session.get(url):
                pass
            async with session.request(method, url, data=b"x"):
                pass
        return None

    with wire(once_and_leave) as server:
        found = ending(lambda: asyncio.run(body(server.url, "PUT")))
    assert Finding(UNKNOWN, "earlier_request") == found
    with wire(once_and_leave) as server:
        assert ending(lambda: asyncio.run(body(server.url, "POST"))).outcome == UNKNOWN
