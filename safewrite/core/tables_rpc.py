"""gRPC, MCP and AWS clients: what their errors prove, by code.

Cannot be told from the exception alone: that a gRPC channel repeated the call under a retry policy; that an MCP
server's tool raised a protocol error by itself after it had acted (its SDKs pass such codes through), except for
the texts that the SDKs are known to write; that an MCP tool error came before the effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.matching import Rule, Table, never_sent, peek, refused, take_back, unknown
from safewrite.core.statuses import beside_error, from_status

_APPLICATION = "INVALID_ARGUMENT NOT_FOUND ALREADY_EXISTS FAILED_PRECONDITION ABORTED OUT_OF_RANGE"
_ACCESS = "UNAUTHENTICATED PERMISSION_DENIED"
_EITHER = (
    "CANCELLED UNKNOWN DEADLINE_EXCEEDED RESOURCE_EXHAUSTED UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS"
)

GRPC: Final[Mapping[str, Rule]] = {
    **{name: refused(f"grpc_{name.lower()}") for name in f"{_APPLICATION} {_ACCESS}".split()},
    **{name: unknown(f"grpc_{name.lower()}") for name in _EITHER.split()},
}
"""gRPC status name -> row.  The refusals are codes that no library generates by itself."""

MCP: Final[Mapping[int, Rule]] = {
    -32700: refused("mcp_parse_error"),
    -32600: refused("mcp_invalid_request"),
    -32601: refused("mcp_method_not_found"),
    -32602: unknown("mcp_invalid_params"),
    -32603: unknown("mcp_internal_error"),
    -32000: unknown("mcp_connection_closed"),
    -32001: unknown("mcp_request_timeout"),
    408: unknown("mcp_request_timeout"),
}
"""JSON-RPC error code -> row."""

AFTER_DISPATCH: Final = re.compile(
    r"Failed to parse|Unexpected content type|server answered a request with 202|Redirect to "  # the client
    r"|Cannot send '|(?:Elicitation|Sampling|List roots) not supported"  # the server, out of a running tool
)
"""How SDKs begin the texts of -32700 and -32600 that they make up once the tool may have run."""

BEFORE_TOOL: Final = re.compile(
    r"(?:MCP error -32602: )?"
    r"(?:Unknown tool\b|Tool .{1,200} not found\b|Input validation error\b|Invalid arguments for tool\b)"
)
"""How servers begin the texts of -32602 for a tool that was never entered."""

TOOL_CALL: Final = "tools/call"


def _by_grpc_code(exc: BaseException, _: float | None) -> Finding | None:
    name = peek(_called(exc, "code"), "name")
    rule = GRPC.get(name) if isinstance(name, str) else None
    if name == "UNIMPLEMENTED" and "method not found" in str(_called(exc, "details")).lower():
        return refused("grpc_method_not_found").finding()
    return rule.finding() if rule else None


def _called(exc: BaseException, name: str) -> object:
    method = peek(exc, name)
    try:
        return method() if callable(method) else None
    except Exception:  # a foreign method may do anything
        return None


def _by_mcp_code(exc: BaseException, _: float | None) -> Finding | None:
    error = peek(exc, "error")
    error = exc if error is None else error
    code, text, data = peek(error, "code"), str(peek(error, "message") or ""), peek(error, "data")
    rule = MCP.get(code) if isinstance(code, int) else None
    if rule is None:
        return None
    if code == -32602 and BEFORE_TOOL.match(text):
        return refused("mcp_tool_not_entered").finding()
    passed_on = code == -32601 and isinstance(data, str) and data not in ("", TOOL_CALL)
    if rule.outcome is OutcomeState.NOT_APPLIED and (passed_on or AFTER_DISPATCH.match(text)):
        return unknown("mcp_after_dispatch").finding()
    return rule.finding()


def _by_aws_response(exc: BaseException, now_unix: float | None) -> Finding | None:
    response = peek(exc, "response")
    about = response.get("ResponseMetadata") if isinstance(response, Mapping) else None
    status = about.get("HTTPStatusCode") if isinstance(about, Mapping) else None
    if not isinstance(about, Mapping) or not isinstance(status, int):
        return None
    headers = about.get("HTTPHeaders")
    after = headers.get("retry-after") if isinstance(headers, Mapping) else None
    found = beside_error(from_status(status, retry_after=after, date_now_unix=now_unix))
    if found is not None and found.outcome is OutcomeState.NOT_APPLIED and about.get("RetryAttempts"):
        return take_back(found, "earlier_request")
    return found


TABLE: Final[Table] = {
    ("grpc", "RpcError"): Rule(OutcomeState.UNKNOWN, "grpc_unlisted", look=_by_grpc_code),
    ("mcp", "MCPError"): Rule(OutcomeState.UNKNOWN, "mcp_unlisted", look=_by_mcp_code),
    ("mcp", "McpError"): Rule(OutcomeState.UNKNOWN, "mcp_unlisted", look=_by_mcp_code),
    ("botocore", "ClientError"): Rule(OutcomeState.UNKNOWN, "http_error", look=_by_aws_response),
    ("botocore", "EndpointConnectionError"): never_sent("connect_failed"),
    ("botocore", "ConnectTimeoutError"): never_sent("connect_timeout"),
    ("botocore", "ParamValidationError"): refused("aws_invalid_parameters"),
    ("botocore", "NoCredentialsError"): refused("aws_no_credentials"),
    ("botocore", "ReadTimeoutError"): unknown("read_timeout"),
    ("botocore", "ConnectionClosedError"): unknown("server_disconnected"),
    ("botocore", "BotoCoreError"): unknown("transport_error"),
}
