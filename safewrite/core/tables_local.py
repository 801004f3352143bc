"""The standard library: sockets, TLS, subprocesses, tasks.

A name that does not resolve and a connect that fails come before the first byte.  The same error numbers can
come out of a connection that was open: "no route to host" is how the kernel reports a peer that died, and even
"connection refused" can be the late answer to a datagram, or to a connection that a firewall closed.  So the
traceback decides: an error that came out of `connect` was never sent, any other is unknown.  The exception is
`ConnectionRefusedError`, which is never sent unless the traceback shows a send or a receive.

Cannot be told from the exception alone: whether a subprocess acted before it failed, was killed or was given up.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Final

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.matching import Rule, Table, named, never_sent, unknown
from safewrite.core.phases import Phase, phase_of

CONNECTING: Final[Mapping[tuple[str, str], str]] = {
    ("builtins", "TimeoutError"): "connect_timeout",
    ("ssl", "SSLError"): "tls_failed",
}
"""(package, class name) of what a connect raised -> reason."""


def _by_phase(exc: BaseException, _: float | None) -> Finding | None:
    """Ask the traceback whether the connection was still being made."""
    phase = phase_of(exc)
    if phase is Phase.TRANSFER and isinstance(exc, ConnectionRefusedError):
        return unknown("connection_error").finding()
    already_open = isinstance(exc, OSError) and exc.errno == errno.EISCONN
    if phase is not Phase.CONNECT or already_open or isinstance(exc, ConnectionRefusedError):
        return None
    return never_sent(named(exc, CONNECTING) or "connect_failed").finding()


def _socket(reason: str) -> Rule:
    return Rule(OutcomeState.UNKNOWN, reason, look=_by_phase)


TABLE: Final[Table] = {
    ("socket", "gaierror"): never_sent("name_not_resolved"),
    ("builtins", "ConnectionRefusedError"): Rule(
        OutcomeState.NOT_APPLIED, "connect_refused", again=True, look=_by_phase
    ),
    ("builtins", "ConnectionResetError"): _socket("connection_reset"),
    ("builtins", "ConnectionAbortedError"): _socket("connection_reset"),
    ("builtins", "BrokenPipeError"): _socket("connection_reset"),
    ("builtins", "TimeoutError"): _socket("timeout"),
    ("builtins", "OSError"): _socket("os_error"),
    ("ssl", "SSLCertVerificationError"): never_sent("tls_failed"),
    ("ssl", "SSLError"): _socket("tls_error"),
    ("subprocess", "CalledProcessError"): unknown("process_failed"),
    ("subprocess", "TimeoutExpired"): unknown("process_timeout"),
    ("asyncio", "CancelledError"): unknown("cancelled"),
    ("concurrent", "CancelledError"): unknown("cancelled"),
    ("concurrent", "BrokenExecutor"): unknown("executor_broken"),
    ("builtins", "KeyboardInterrupt"): unknown("interrupted"),
    ("builtins", "SystemExit"): unknown("interrupted"),
    ("builtins", "GeneratorExit"): unknown("interrupted"),
    ("builtins", "BaseExceptionGroup"): unknown("exception_group"),
}
