"""A deadline in the forms that gRPC takes.

`stub.Cancel(request, timeout=grpc_deadline_seconds(attempt))`: the library sends it on as the header `grpc-timeout`,
the server reads it back with `context.time_remaining()` and cancels at it.  `grpc_timeout` makes that header's value,
for transports that are handed headers.
"""

from __future__ import annotations

from math import isnan

from safewrite.attempt import LEAST_TIMEOUT
from safewrite.deadline import Remaining
from safewrite.errors import ConfigurationError

_UNITS = (("u", 1e-6), ("m", 1e-3), ("S", 1.0), ("M", 60.0), ("H", 3600.0))
_MOST = 10**8 - 1  # eight digits


def grpc_timeout(deadline: Remaining | float) -> str:
    """Return what is left (seconds, if it is a number) as a value of `grpc-timeout`: at most 8 digits and a unit.

    Rounded down, so that nobody is promised more than there is, but never zero.
    """
    left = _left(deadline)
    units = _UNITS[left >= 1.0 :]  # below a second to the microsecond
    unit, seconds = next((u for u in units if left <= _MOST * u[1]), units[-1])
    return f"{max(1, int(min(_MOST, left / seconds + 1e-9)))}{unit}"


def grpc_deadline_seconds(deadline: Remaining | float) -> float:
    """Return what is left as the `timeout` of a call, in seconds: never `None`, zero or negative."""
    return max(LEAST_TIMEOUT, _left(deadline))


def _left(deadline: Remaining | float) -> float:
    left = float(deadline) if isinstance(deadline, int | float) else deadline.remaining()
    if isnan(left):
        raise ConfigurationError("a deadline that is not a number. Write seconds, or a `Deadline`.")
    return left
