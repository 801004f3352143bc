"""Evidence from gRPC, MCP and AWS clients: every code, and what real servers and SDKs make of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import mcp_types
import pytest
from mcp.client.client import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from safewrite.core import tables_rpc
from safewrite.core.events import Finding, OutcomeState
from safewrite.core.evidence import from_exception, from_value
from tests.core.wire import Script, Wire, answer, closed_port, cut_request, reset, stall, wire

NOT_APPLIED, UNKNOWN = OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN


def raised(body: Callable[[], object]) -> BaseException:
    """Return the exception of a body that must fail."""
    try:
        body()
    except Exception as exc:
        return exc
    pytest.fail("nothing was raised")


# gRPC

SAID_BY_THE_APPLICATION = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
}


class Failed(grpc.RpcError):
    """An error as a channel raises it."""

    def __init__(self, code: object, details: object = "") -> None:
        self._code, self._details = code, details

    def code(self) -> object:
        return self._code

    def details(self) -> object:
        return self._details


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_grpc_by_code(code: grpc.StatusCode) -> None:
    """Codes that only the application sets are refusals, all others are open."""
    refused = code.name in SAID_BY_THE_APPLICATION
    assert Finding(NOT_APPLIED if refused else UNKNOWN, f"grpc_{code.name.lower()}") == from_exception(
        Failed(code)
    )
    assert code.name in tables_rpc.GRPC


def test_a_method_that_the_server_does_not_have_was_not_run() -> None:
    """UNIMPLEMENTED alone may be about the shape of an answer."""
    code = grpc.StatusCode.UNIMPLEMENTED
    assert Finding(NOT_APPLIED, "grpc_method_not_found") == from_exception(Failed(code, "Method not found!"))
    assert Finding(UNKNOWN, "grpc_unimplemented") == from_exception(Failed(code, None))


class Broken(grpc.RpcError):
    def code(self) -> object:
        raise RuntimeError("no code")


@pytest.mark.parametrize(
    "exc",
    [
        grpc.RpcError(),
        Failed(None),
        Failed(14),
        Failed(SimpleNamespace(name=["INTERNAL"])),
        Failed(grpc.StatusCode.OK),
        Broken(),
    ],
)
def test_a_grpc_error_without_a_code_is_unknown(exc: Exception) -> None:
    """Some are raised before there is one."""
    assert Finding(UNKNOWN, "grpc_unlisted") == from_exception(exc)


@contextmanager
def grpc_server(behave: Callable[[bytes, Any], bytes]) -> Iterator[str]:
    """Serve one method of raw bytes."""
    handler = grpc.method_handlers_generic_handler("s.S", {"Do": grpc.unary_unary_rpc_method_handler(behave)})
    with futures.ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool, handlers=(handler,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


def call(address: str, method: str = "/s.S/Do") -> Finding:
    """Return what a real call ends in, by the blocking and by the asynchronous client, which must agree."""

    async def call_async() -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            await channel.unary_unary(method)(b"x", timeout=20)

    with grpc.insecure_channel(address) as channel:
        found = from_exception(raised(lambda: channel.unary_unary(method)(b"x", timeout=20)))
    assert found == from_exception(raised(lambda: asyncio.run(call_async())))
    return found


def test_real_grpc_calls() -> None:
    """A refusal by the application, a method that is not there, a tool that fails, a server that is not there."""

    def refuse(_: bytes, context: Any) -> bytes:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "closed")
        return b""

    def fail(_: bytes, __: Any) -> bytes:
        raise KeyError("after the effect")

    with grpc_server(refuse) as address:
        assert Finding(NOT_APPLIED, "grpc_failed_precondition") == call(address)
        assert Finding(NOT_APPLIED, "grpc_method_not_found") == call(address, "/s.S/Nothing")
    with grpc_server(fail) as address:
        assert Finding(UNKNOWN, "grpc_unknown") == call(address)
    with closed_port() as port:
        assert Finding(UNKNOWN, "grpc_unavailable") == call(f"127.0.0.1:{port}")


# MCP


def mcp(code: int, message: str = "", data: object = None) -> Finding:
    """Return what an MCP error with this code says."""
    return from_exception(MCPError(code=code, message=message, data=data))


@pytest.mark.parametrize(
    ("code", "finding"),
    [
        (-32700, Finding(NOT_APPLIED, "mcp_parse_error")),
        (-32600, Finding(NOT_APPLIED, "mcp_invalid_request")),
        (-32601, Finding(NOT_APPLIED, "mcp_method_not_found")),
        (-32602, Finding(UNKNOWN, "mcp_invalid_params")),
        (-32603, Finding(UNKNOWN, "mcp_internal_error")),
        (-32000, Finding(UNKNOWN, "mcp_connection_closed")),
        (-32001, Finding(UNKNOWN, "mcp_request_timeout")),
        (408, Finding(UNKNOWN, "mcp_request_timeout")),
        (-32002, Finding(UNKNOWN, "mcp_unlisted")),
        (-32020, Finding(UNKNOWN, "mcp_unlisted")),
        (32600, Finding(UNKNOWN, "mcp_unlisted")),
        (0, Finding(UNKNOWN, "mcp_unlisted")),
    ],
)
def test_mcp_by_code(code: int, finding: Finding) -> None:
    """What the protocol rejects before a tool is a refusal, all else is open."""
    assert finding == mcp(code)


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("Unknown tool: pay", True),
        ("MCP error -32602: Tool pay not found", True),
        ("MCP error -32602: Input validation error: Invalid arguments for tool pay", True),
        ("Invalid arguments for tool pay: amount", True),
        ("Output validation error: Invalid structured content for tool pay", False),
        ("Invalid request parameters", False),
        ("Account not found", False),
        ("The upstream said: Unknown tool", False),
    ],
)
def test_invalid_params_are_a_refusal_only_where_the_text_says_that_no_tool_was_entered(
    text: str, refused: bool
) -> None:
    """Tools raise this code themselves, and an answer that does not fit its schema gets it, too."""
    expected = (
        Finding(NOT_APPLIED, "mcp_tool_not_entered") if refused else Finding(UNKNOWN, "mcp_invalid_params")
    )
    assert expected == mcp(-32602, text)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-32700, "Failed to parse JSON response: 1 validation error"),
        (-32700, "Failed to parse SSE message: x"),
        (-32600, "Unexpected content type: text/html"),
        (-32600, "server answered a request with 202 Accepted"),
        (-32600, "Redirect to http://a/ not followed; use that URL as the endpoint"),
        (-32600, "Elicitation not supported"),
        (-32600, "Sampling not supported"),
        (-32600, "List roots not supported"),
        (-32600, "Cannot send 'elicitation/create': this transport context has no back-channel"),
    ],
)
def test_errors_that_sdks_make_up_after_the_tool_began_are_unknown(code: int, text: str) -> None:
    """The code says that nothing was run, the text says otherwise."""
    assert Finding(UNKNOWN, "mcp_after_dispatch") == mcp(code, text)


def test_a_method_that_somebody_else_does_not_have_is_unknown() -> None:
    """A tool passes on that its client, or a server behind it, lacks a method."""
    assert Finding(NOT_APPLIED, "mcp_method_not_found") == mcp(-32601, "Method not found", "tools/call")
    assert Finding(NOT_APPLIED, "mcp_method_not_found") == mcp(-32601, "Method not found", "")
    assert Finding(UNKNOWN, "mcp_after_dispatch") == mcp(-32601, "Method not found", "roots/list")


class McpError(Exception):
    """The error of the first SDK: code and message on `.error`."""

    __module__ = "mcp.shared.exceptions"

    def __init__(self, error: object) -> None:
        super().__init__("x")
        self.error = error


def test_the_error_of_the_first_sdk_is_read_alike() -> None:
    """Its data stand on `.error`, or on itself; an error without a code, or with an odd one, is unknown."""
    old = McpError(mcp_types.ErrorData(code=-32600, message="bad"))
    assert Finding(NOT_APPLIED, "mcp_invalid_request") == from_exception(old)
    assert Finding(UNKNOWN, "mcp_unlisted") == from_exception(McpError(None))
    assert Finding(UNKNOWN, "mcp_unlisted") == from_exception(McpError(SimpleNamespace(code=[-32600])))
    bare = McpError(None)
    bare.code = -32600  # type: ignore[attr-defined]
    assert Finding(NOT_APPLIED, "mcp_invalid_request") == from_exception(bare)


class Answer(BaseModel):
    sure: bool


def shop() -> tuple[MCPServer[Any], list[str]]:
    """Return a server whose tools act and then fail, each in its way, and the list of what they did."""
    server: MCPServer[Any] = MCPServer("shop")
    done: list[str] = []

    @server.tool()
    async def ask(context: Context[Any]) -> str:
        done.append("ask")
        await context.elicit("sure?", Answer)
        return "never"

    @server.tool()
    async def fail() -> str:
        done.append("fail")
        raise KeyError("after the effect")

    return server, done


@pytest.mark.parametrize("mode", ["legacy", "auto"])
def test_a_real_tool_that_acted_is_never_a_refusal(mode: Any) -> None:
    """Through the real SDK: both ways of asking a client that cannot answer, and a tool that fails."""
    server, done = shop()

    async def body() -> list[Finding]:
        found = []
        async with Client(server, mode=mode) as client:
            for name in ("ask", "fail", "nothing"):
                try:
                    found.append(from_value(await client.call_tool(name, {})))
                except MCPError as exc:
                    found.append(from_exception(exc))
        return found

    found = asyncio.run(body())
    assert done == ["ask", "fail"]
    assert [one.outcome for one in found] == [UNKNOWN] * 3
    assert [one.reason for one in found] == ["mcp_after_dispatch", "tool_error", "tool_error"]


# AWS


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a factory of real clients for a table at a URL."""
    session = pytest.importorskip("botocore.session").get_session()
    config = pytest.importorskip("botocore.config").Config
    session.set_credentials("id", "secret")

    def make(url: str, attempts: int = 1, **more: Any) -> Any:
        retries = {"total_max_attempts": attempts, "mode": "standard"}
        options = config(retries=retries, connect_timeout=20, read_timeout=0.2, **more)
        return session.create_client("sqs", region_name="eu-west-1", endpoint_url=url, config=options)

    return make


def sends(client: Any) -> Finding:
    """Return what a real send ends in."""
    try:
        return from_exception(raised(lambda: client.send_message(QueueUrl="http://q/", MessageBody="x")))
    finally:
        client.close()


def aws_error(status: int, code: str) -> Script:
    """Return a script that answers with an error as AWS shapes it."""
    body = f'{{"__type": "{code}", "message": "no"}}'.encode()
    return answer(f"{status} No", "Content-Type: application/x-amz-json-1.0", body)


def test_aws_errors_are_their_status(client: Callable[..., Any]) -> None:
    """A refusal is not applied, an internal error is open."""
    with wire(aws_error(400, "Invalid"), aws_error(500, "Internal")) as server:
        assert Finding(NOT_APPLIED, "http_400", status=400) == sends(client(server.url))
        assert Finding(UNKNOWN, "http_500", status=500) == sends(client(server.url))


def test_aws_that_cannot_connect_was_sent_nothing(client: Callable[..., Any]) -> None:
    """One attempt, refused: not applied, may be sent again."""
    with closed_port() as port:
        found = sends(client(f"http://127.0.0.1:{port}/"))
    assert Finding(NOT_APPLIED, "connect_failed", again=True) == found


def test_aws_that_is_not_answered_is_unknown(client: Callable[..., Any]) -> None:
    """A read timeout, and a connection that breaks."""
    with wire(stall, cut_request(10, reset)) as server:
        assert Finding(UNKNOWN, "read_timeout") == sends(client(server.url))
        assert Finding(UNKNOWN, "server_disconnected") == sends(client(server.url))


def test_a_refusal_after_the_client_sent_again_by_itself_is_unknown(client: Callable[..., Any]) -> None:
    """The first send was reset, the second refused, by the server or for want of one."""
    refused = Finding(UNKNOWN, "earlier_request", status=400)
    with wire(cut_request(10, reset), aws_error(400, "Invalid")) as server:
        assert refused == sends(client(server.url, attempts=2))

    def last(server: Wire, connection: Any) -> None:
        server.leave()
        cut_request(10, reset)(server, connection)

    with wire(last) as server:
        assert Finding(UNKNOWN, "earlier_request") == sends(client(server.url, attempts=2))


def test_what_the_aws_client_refuses_itself_was_not_sent(client: Callable[..., Any]) -> None:
    """Parameters that do not fit, and no credentials."""
    with closed_port() as port:
        one = client(f"http://127.0.0.1:{port}/")
        found = from_exception(raised(lambda: one.send_message(QueueUrl=5)))
        one.close()
    assert Finding(NOT_APPLIED, "aws_invalid_parameters") == found
    errors = pytest.importorskip("botocore.exceptions")
    assert Finding(NOT_APPLIED, "aws_no_credentials") == from_exception(errors.NoCredentialsError())


def test_aws_by_class() -> None:
    """Connect timeouts are never sent, proxies and the rest are open."""
    errors = pytest.importorskip("botocore.exceptions")
    never = Finding(NOT_APPLIED, "connect_timeout", again=True)
    assert never == from_exception(errors.ConnectTimeoutError(endpoint_url="x"))
    assert Finding(UNKNOWN, "transport_error") == from_exception(errors.ProxyConnectionError(proxy_url="x"))
    assert Finding(UNKNOWN, "transport_error") == from_exception(errors.HTTPClientError(error="x"))


@pytest.mark.parametrize(
    ("about", "finding"),
    [
        ({"HTTPStatusCode": 200}, Finding(UNKNOWN, "error_beside_success", status=200)),
        (
            {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "2"}, "RetryAttempts": 0},
            Finding(NOT_APPLIED, "http_429", again=True, status=429, retry_after=2.0),
        ),
        ({"HTTPStatusCode": 412, "RetryAttempts": 1}, Finding(UNKNOWN, "earlier_request", status=412)),
        ({"HTTPStatusCode": 429, "RetryAttempts": 1}, Finding(UNKNOWN, "earlier_request", status=429)),
        ({"HTTPStatusCode": 503, "RetryAttempts": 1}, Finding(UNKNOWN, "http_503", status=503)),
        ({}, Finding(UNKNOWN, "http_error")),
        (None, Finding(UNKNOWN, "http_error")),
        (
            {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "Sun, 06 Nov 1994 08:49:47 GMT"}},
            Finding(UNKNOWN, "http_503", status=503, retry_after=10.0),
        ),
    ],
)
def test_aws_client_errors_by_their_metadata(about: Any, finding: Finding) -> None:
    """Status, Retry-After and the number of attempts stand in the metadata, or nowhere."""
    errors = pytest.importorskip("botocore.exceptions")
    response = {"Error": {"Code": "X"}} | ({} if about is None else {"ResponseMetadata": about})
    exc = errors.ClientError(response, "SendMessage")
    assert finding == from_exception(exc, now_unix=784111777.0)
    exc.response = None
    assert Finding(UNKNOWN, "http_error") == from_exception(exc)
