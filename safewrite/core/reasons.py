"""What each reason code of the evidence tables says, in one sentence.

The codes are stable: they stand in audit rows and in `Outcome.reason`.  A documentation page is made of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from safewrite.core.statuses import SAID_NOT_APPLIED, STATUSES, UNLISTED

_SAID: Final[Mapping[str, str]] = {
    "returned": "The body returned a value.",
    "not_sent": "The body said so itself: it raised NotSent.",
    "rejected": "The body said so itself: it raised Rejected.",
    "declared_not_applied": "The author declared this type of exception to mean that nothing was done.",
    "nested_write": "A write inside the body ended with an error of its own, whose fate is told there.",
    "unlisted_exception": "An exception that is not in the tables says nothing about the write.",
    "exception_group": "Several tasks ended together; one error does not speak for the others.",
    "multi_request": "The body sends several requests, so the error of one proves nothing about the others.",
    "earlier_request": "An earlier request of the same call may have been carried out.",
    "after_redirect": "The call was redirected before, and an earlier hop may have been carried out.",
    "tool_error": "A tool said that it failed, not whether it had acted before.",
    "leg_not_sent": "Too little of the deadline was left for a request of the body, so it was not sent.",
    "response_unread": "A response was returned before its body was read to the end.",
    "error_beside_success": "The status says done, and an error was raised beside it.",
}

_CONNECTION: Final[Mapping[str, str]] = {
    "connect_failed": "No connection came about, so no byte of the request left.",
    "connect_refused": "The connection was refused, so no byte of the request left.",
    "connect_timeout": "No connection came about in time, so no byte of the request left.",
    "name_not_resolved": "The name of the host did not resolve, so there was nobody to send to.",
    "tls_failed": "The TLS handshake failed, so no byte of the request left.",
    "pool_timeout": "No connection of the pool became free in time, so nothing was sent.",
    "invalid_url": "The URL is not valid, so nothing was sent.",
    "unsupported_protocol": "The client does not speak the scheme of the URL, so nothing was sent.",
    "tunnel_refused": "The proxy opened no tunnel to the server, so the request did not leave.",
    "illegal_header": "A header was not valid, so the client wrote no request.",
    "refused_stream": "HTTP/2 REFUSED_STREAM: closed before any processing, which the protocol guarantees.",
    "goaway": "HTTP/2 GOAWAY below our stream: not processed, which the protocol guarantees.",
    "read_timeout": "No answer came in time; the request may have arrived whole.",
    "write_timeout": "The request could not be written in time; what arrived may have been enough.",
    "read_error": "The connection broke while the answer was awaited.",
    "write_error": "The connection broke while the request was written; what arrived may have been enough.",
    "close_error": "The connection could not be closed in order, which says nothing about the request.",
    "server_disconnected": "The server closed the connection without an answer.",
    "connection_error": "The connection broke, at a point that the exception does not tell.",
    "connection_reset": "The peer reset the connection; it may have acted before.",
    "remote_protocol_error": "The answer broke the protocol or ended early.",
    "local_protocol_error": "The request broke the protocol while being sent; a part or all of it arrived.",
    "proxy_error": "A proxy failed, and it may have passed the request on.",
    "tls_error": "TLS failed, perhaps after the request was sent.",
    "transport_error": "The client failed in a way that does not tell whether the request left.",
    "too_many_redirects": "The call was redirected until the client gave up.",
    "response_incomplete": "The answer began and did not end; its status is not in the exception.",
    "response_unreadable": "The answer could not be decoded; its status is not in the exception.",
    "http_error": "A client's status error without a status.",
    "timeout": "Time ran out, which says nothing about the other side.",
    "os_error": "The operating system reported an error that does not tell whether anything left.",
}

_SQL: Final[Mapping[str, str]] = {
    "sql_connect_failed": "No connection to the database came about, so nothing was run.",
    "sql_starting_up": "The database is not taking connections at the moment, so nothing was run.",
    "sql_too_many_connections": "The database takes no more connections, so nothing was run.",
    "sql_not_authorized": "The database did not let us in.",
    "sql_constraint": "A constraint refused the write, and the database undid it.",
    "sql_serialization_failure": "The transaction lost against a concurrent one and was rolled back.",
    "sql_deadlock": "The transaction was rolled back to end a deadlock.",
    "sql_rolled_back": "The database rolled the transaction back.",
    "sql_cancelled": "The statement was cancelled, which aborted its transaction.",
    "sql_terminated": "The session was ended during a statement, which aborted its transaction.",
    "sql_idle_in_transaction": "The session was ended for idling in its transaction, which was rolled back.",
    "sql_lock_not_available": "A lock was not available, which aborted the statement.",
    "sql_rejected": "The database rejected the statement, and nothing of it remains.",
    "sql_stopped_at_commit": "The session was cancelled or ended in its COMMIT, which may have gone through.",
    "sql_connection_lost": "The connection to the database was lost; the transaction may be committed, or be yet.",
    "sql_completion_unknown": "The database itself says that it does not know whether the statement completed.",
    "sql_resolution_unknown": "The database itself says that it does not know how the transaction ended.",
    "sql_unlisted": "A database error that is not in the tables.",
    "sqlite_busy": "Another connection held the lock, so the statement did not run.",
    "sqlite_io_error": "SQLite could not write; only opening the file again shows what is in it.",
    "sqlite_not_one_statement": "SQLite refused what may have been a COMMIT, whose transaction then stays open, "
    "or one of several statements.",
}

_CODES: Final[Mapping[str, str]] = {
    "grpc_invalid_argument": "gRPC INVALID_ARGUMENT: the application refused the call.",
    "grpc_not_found": "gRPC NOT_FOUND: the application found no such thing.",
    "grpc_already_exists": "gRPC ALREADY_EXISTS: this attempt made nothing; an earlier one may have.",
    "grpc_failed_precondition": "gRPC FAILED_PRECONDITION: the application refused the call.",
    "grpc_aborted": "gRPC ABORTED: the application gave the call up.",
    "grpc_out_of_range": "gRPC OUT_OF_RANGE: the application refused the call.",
    "grpc_unauthenticated": "gRPC UNAUTHENTICATED: the server did not know the caller.",
    "grpc_permission_denied": "gRPC PERMISSION_DENIED: the caller may not do this.",
    "grpc_method_not_found": "gRPC UNIMPLEMENTED, and the server says that it has no such method.",
    "grpc_cancelled": "gRPC CANCELLED: waiting ended, not necessarily the work.",
    "grpc_unknown": "gRPC UNKNOWN: an error that nobody classified.",
    "grpc_deadline_exceeded": "gRPC DEADLINE_EXCEEDED: no answer came in time.",
    "grpc_resource_exhausted": "gRPC RESOURCE_EXHAUSTED: also said when only the answer was too large.",
    "grpc_unimplemented": "gRPC UNIMPLEMENTED: also said when the call ran and answered in a wrong shape.",
    "grpc_internal": "gRPC INTERNAL: also said when only the answer could not be read.",
    "grpc_unavailable": "gRPC UNAVAILABLE: the connection may have broken after the call was sent.",
    "grpc_data_loss": "gRPC DATA_LOSS: something was lost, perhaps after an effect.",
    "grpc_unlisted": "A gRPC error without a known code.",
    "mcp_parse_error": "MCP -32700: the server could not read the request.",
    "mcp_invalid_request": "MCP -32600: the server did not take the request.",
    "mcp_method_not_found": "MCP -32601: the server has no such method.",
    "mcp_tool_not_entered": "MCP -32602, and the server says: no such tool, or arguments that do not fit.",
    "mcp_invalid_params": "MCP -32602: tools raise it too, after they have begun.",
    "mcp_internal_error": "MCP -32603: the server failed, perhaps after it had acted.",
    "mcp_connection_closed": "MCP -32000: the connection closed before an answer.",
    "mcp_request_timeout": "MCP: no answer came in time.",
    "mcp_after_dispatch": "An MCP protocol error of the kind that arises after the tool may have run.",
    "mcp_unlisted": "An MCP error code that is not in the tables.",
    "aws_invalid_parameters": "The AWS client rejected the parameters, so nothing was sent.",
    "aws_no_credentials": "The AWS client had no credentials to sign with, so nothing was sent.",
    "process_failed": "A command ended with an error, which does not say what it had done.",
    "process_timeout": "A command did not end in time; what it had sent can still take effect.",
    "cancelled": "Waiting was cancelled, which says nothing about the other side.",
    "interrupted": "The program was interrupted, which says nothing about the other side.",
    "executor_broken": "The worker that ran the body died.",
}

REASONS: Final[dict[str, str]] = {
    **_SAID,
    **_CONNECTION,
    **{f"http_{status}": row.says for status, row in STATUSES.items()},
    "http_unlisted": UNLISTED.says,
    SAID_NOT_APPLIED: "The response says, by its header `X-Not-Applied`, that nothing was done for this request.",
    **_SQL,
    **_CODES,
}
"""Reason code -> one sentence."""
