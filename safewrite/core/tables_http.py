"""HTTP clients: what their exceptions prove.

httpx, httpcore and their successors httpx2 and httpcore2; requests and urllib3; aiohttp; the standard library.

Never sent means that the exception cannot occur once a byte of the request has left: no connection, no place in
the pool, no valid URL.  All else is unknown.  After a timeout or a reset the class carries no information: a cut
at any byte of a request gives the same two classes as a cut at any byte of the response.  An exception out of the
body of a response hides the status; where an adapter kept it (`ANSWER`), it is read.

Cannot be told from the exception alone: requests and urllib3 show a response whose headers were cut as a complete
`200` without any error; aiohttp repeats PUT and DELETE once when a kept-alive connection breaks, so that a refusal
may be the answer to the second of two requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.matching import Rule, Table, causes, chain, named, never_sent, peek, refused, unknown
from safewrite.core.phases import in_body, own_stream
from safewrite.core.statuses import beside_error, from_reply

ANSWER: Final = "safewrite.answer"
"""Extension of an httpx request that holds the status and headers that came, put there by our adapter."""
REFUSED_STREAM: Final = 7
"""HTTP/2 error code: closed before any processing (RFC 9113, 8.7)."""

CONNECTING: Final[Mapping[tuple[str, str], str]] = {
    ("builtins", "ConnectionRefusedError"): "connect_refused",
    ("socket", "gaierror"): "name_not_resolved",
    ("ssl", "SSLError"): "tls_failed",
}
"""(package, class name) of what lies below a failed connect -> reason."""


def _how_connect_failed(exc: BaseException, _: float | None) -> Finding | None:
    """Name the cause of a failed connect; the outcome is the same for all."""
    reasons = (named(link.exception, CONNECTING) for link in chain(exc))
    reason = next((one for one in reasons if one is not None), None)
    return never_sent(reason).finding() if reason else None


def _tunnel(exc: BaseException, _: float | None) -> Finding | None:
    """Tell a refused tunnel (https: the request never left) from an error of a forwarding proxy."""
    scheme = peek(peek(peek(exc, "request"), "url"), "scheme")
    return never_sent("tunnel_refused").finding() if scheme == "https" else None


def _illegal_header(exc: BaseException, _: float | None) -> Finding | None:
    """Tell a header that h11 would not write (nothing left) from a body that did not fit its length."""
    for one in causes(exc):
        if type(one).__name__ == "LocalProtocolError" and str(one).startswith("Illegal header"):
            return refused("illegal_header").finding()
    return None


def _broken_body(exc: BaseException, now_unix: float | None) -> Finding | None:
    """Classify a response whose body broke by the status that had arrived, where an adapter kept it."""
    kept = peek(peek(exc, "request"), "extensions")
    answer = kept.get(ANSWER) if isinstance(kept, dict) else None
    return beside_error(from_reply(answer, now_unix))


def _refused_or_broken(exc: BaseException, now_unix: float | None) -> Finding | None:
    return _stream_refused(exc) or _broken_body(exc, now_unix)


def _stream_refused(exc: BaseException) -> Finding | None:
    """Look for the two guarantees of HTTP/2: REFUSED_STREAM, and a GOAWAY whose last stream is below ours."""
    for one in causes(exc):
        for event in one.args:
            reason = _proof(event, exc)
            if reason is not None and not in_body(exc):
                return Finding(OutcomeState.NOT_APPLIED, reason, again=True, proof=True)
    return None


def _proof(event: object, exc: BaseException) -> str | None:
    match type(event).__name__:
        case "StreamReset":
            by_peer = peek(event, "remote_reset") is not False  # h2 resets streams by itself, too
            return "refused_stream" if by_peer and peek(event, "error_code") == REFUSED_STREAM else None
        case "ConnectionTerminated":
            last = peek(event, "last_stream_id")
            ours = own_stream(exc) or 1  # a client's streams are numbered from 1
            return "goaway" if isinstance(last, int) and last < ours else None
    return None


def _status(exc: BaseException, now_unix: float | None) -> Finding | None:
    """Classify by the status that the exception, or its response, carries."""
    response = peek(exc, "response")  # never by its truth: a requests.Response with an error status is false
    return beside_error(from_reply(exc if response is None else response, now_unix))


def _argument(exc: BaseException) -> BaseException | None:
    """Return the exception that requests and urllib3 put in the arguments of their own."""
    inner = exc.args[0] if exc.args else None
    return inner if isinstance(inner, BaseException) else None


def _reason(exc: BaseException) -> BaseException | None:
    inner = peek(exc, "reason", "original_error")
    return inner if isinstance(inner, BaseException) else None


_CONNECT = Rule(OutcomeState.NOT_APPLIED, "connect_failed", again=True, look=_how_connect_failed)
_HTTP_ERROR = Rule(OutcomeState.UNKNOWN, "http_error", look=_status)

_HTTPX: Final[dict[str, Rule]] = {
    "ConnectError": _CONNECT,
    "ConnectTimeout": never_sent("connect_timeout"),
    "PoolTimeout": never_sent("pool_timeout"),
    "InvalidURL": refused("invalid_url"),
    "UnsupportedProtocol": refused("unsupported_protocol"),
    "ProxyError": Rule(OutcomeState.UNKNOWN, "proxy_error", look=_tunnel),
    "LocalProtocolError": Rule(OutcomeState.UNKNOWN, "local_protocol_error", look=_illegal_header),
    "RemoteProtocolError": Rule(OutcomeState.UNKNOWN, "remote_protocol_error", look=_refused_or_broken),
    "ReadTimeout": Rule(OutcomeState.UNKNOWN, "read_timeout", look=_broken_body),
    "WriteTimeout": unknown("write_timeout"),
    "ReadError": Rule(OutcomeState.UNKNOWN, "read_error", look=_broken_body),
    "WriteError": unknown("write_error"),
    "CloseError": unknown("close_error"),
    "DecodingError": Rule(OutcomeState.UNKNOWN, "response_unreadable", look=_broken_body),
    "TooManyRedirects": unknown("too_many_redirects"),
    "HTTPStatusError": _HTTP_ERROR,
    "TransportError": unknown("transport_error"),
}

_REQUESTS: Final[dict[str, Rule]] = {
    "ConnectTimeout": never_sent("connect_timeout"),
    "InvalidURL": refused("invalid_url"),
    "MissingSchema": refused("invalid_url"),
    "InvalidSchema": refused("unsupported_protocol"),
    "ConnectionError": Rule(OutcomeState.UNKNOWN, "connection_error", inner=_argument),
    "ReadTimeout": unknown("read_timeout"),
    "Timeout": unknown("timeout"),
    "ChunkedEncodingError": unknown("response_incomplete"),
    "ContentDecodingError": unknown("response_unreadable"),
    "JSONDecodeError": unknown("response_unreadable"),
    "TooManyRedirects": unknown("too_many_redirects"),
    "HTTPError": _HTTP_ERROR,
    "RequestException": unknown("transport_error"),
}

_URLLIB3: Final[dict[str, Rule]] = {
    "NewConnectionError": _CONNECT,
    "ConnectTimeoutError": never_sent("connect_timeout"),
    "EmptyPoolError": never_sent("pool_timeout"),
    "LocationParseError": refused("invalid_url"),
    "URLSchemeUnknown": refused("unsupported_protocol"),
    "MaxRetryError": Rule(OutcomeState.UNKNOWN, "connection_error", inner=_reason),
    "ProxyError": Rule(OutcomeState.UNKNOWN, "proxy_error", inner=_reason),
    "SSLError": Rule(OutcomeState.UNKNOWN, "tls_error", inner=_argument),
    "ReadTimeoutError": unknown("read_timeout"),
    "ProtocolError": unknown("connection_error"),
    "IncompleteRead": unknown("response_incomplete"),
    "DecodeError": unknown("response_unreadable"),
    "HTTPError": unknown("transport_error"),
}

_AIOHTTP: Final[dict[str, Rule]] = {
    "ClientConnectorError": _CONNECT,
    "ConnectionTimeoutError": never_sent("connect_timeout"),
    "ClientHttpProxyError": never_sent("tunnel_refused"),
    "InvalidURL": refused("invalid_url"),
    "NonHttpUrlClientError": refused("unsupported_protocol"),
    "InvalidUrlRedirectClientError": unknown("after_redirect"),
    "NonHttpUrlRedirectClientError": unknown("after_redirect"),
    "TooManyRedirects": unknown("too_many_redirects"),
    "ServerTimeoutError": unknown("read_timeout"),
    "ServerDisconnectedError": unknown("server_disconnected"),
    "ClientOSError": unknown("connection_error"),
    "ClientPayloadError": unknown("response_incomplete"),
    "ClientResponseError": _HTTP_ERROR,
    "ClientError": unknown("transport_error"),
}

TABLE: Final[Table] = {
    **{("httpx", name): rule for name, rule in _HTTPX.items()},
    **{("httpcore", name): rule for name, rule in _HTTPX.items()},
    **{("requests", name): rule for name, rule in _REQUESTS.items()},
    **{("urllib3", name): rule for name, rule in _URLLIB3.items()},
    **{("aiohttp", name): rule for name, rule in _AIOHTTP.items()},
    ("safewrite", "LegNotSent"): never_sent("leg_not_sent"),
    ("h11", "LocalProtocolError"): Rule(OutcomeState.UNKNOWN, "local_protocol_error", look=_illegal_header),
    ("h11", "RemoteProtocolError"): Rule(OutcomeState.UNKNOWN, "remote_protocol_error", look=_broken_body),
    ("urllib", "HTTPError"): _HTTP_ERROR,
    ("urllib", "URLError"): Rule(OutcomeState.UNKNOWN, "connection_error", inner=_reason),
    ("http", "RemoteDisconnected"): unknown("server_disconnected"),
    ("http", "IncompleteRead"): unknown("response_incomplete"),
    ("http", "HTTPException"): unknown("remote_protocol_error"),
}

REPLIES: Final[frozenset[tuple[str, str]]] = frozenset(
    {
        ("httpx", "Response"),
        ("httpcore", "Response"),
        ("requests", "Response"),
        ("urllib3", "BaseHTTPResponse"),
        ("aiohttp", "ClientResponse"),
        ("http", "HTTPResponse"),
    }
)
"""(package, class name) of the responses that a body may return."""


def unread(reply: object) -> bool:
    """Return whether a response was returned before its body was read (a stream): the status is not all."""
    if peek(reply, "is_stream_consumed") is False:  # httpx
        return True
    return peek(reply, "_content_consumed") is False and peek(reply, "raw") is not None  # requests
