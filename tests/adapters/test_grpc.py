"""A deadline in gRPC's forms, read back by a real server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any

import grpc
import pytest

from safewrite import Deadline
from safewrite.adapters.grpc import grpc_deadline_seconds, grpc_timeout
from safewrite.attempt import Attempt
from safewrite.errors import ConfigurationError
from safewrite.testing import ManualClock

SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "S": 1.0, "M": 60.0, "H": 3600.0}


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("9000m", 9.0),
        ("1000m", 1.0),
        ("999999u", 0.9999999),
        ("400u", 0.0004),
        ("1u", 0.0),
        ("1u", -3.0),
        ("1u", 1e-9),
        ("1234m", 1.2349),  # rounded down: nobody is promised more than there is
        ("99999999m", 99_999.999),
        ("100000S", 100_000.0),
        ("1666666M", 1e8),
        ("2777777H", 1e10),
        ("99999999H", inf),
    ],
)
def test_the_header_has_at_most_eight_digits_and_is_never_zero(value: str, left: float) -> None:
    """The finest unit that the number fits into."""
    assert grpc_timeout(left) == value


def test_the_header_is_what_is_left() -> None:
    """Over many magnitudes it has the form of the protocol, and means what is left, never more."""
    left = 0.0011
    while left < 1e12:
        found = re.fullmatch(r"([1-9][0-9]{0,7})([numSMH])", grpc_timeout(left))
        assert found is not None
        means = int(found[1]) * SECONDS[found[2]]
        assert 0.9 * left <= means <= left * (1 + 1e-9) or means == 99_999_999 * 3600.0
        left *= 1.37


def test_a_deadline_and_an_attempt_say_what_they_have_left() -> None:
    """The same for both, and for a timeout in seconds; with none left a millisecond, never `None`."""
    with ManualClock() as clock:
        attempt = Attempt(id="a", number=1, key="k", end=clock.now().ticks + 9.0, deadline_at=0.0)
        for one in (Deadline(9.0), attempt):
            assert (grpc_timeout(one), grpc_deadline_seconds(one)) == ("9000m", 9.0)
        clock.advance(10.0)
        assert (grpc_timeout(attempt), grpc_deadline_seconds(attempt)) == ("1u", 0.001)


class Service(grpc.GenericRpcHandler):
    """Answers every call with what it has left, in milliseconds."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        return grpc.unary_unary_rpc_method_handler(
            lambda _, call: str(int(call.time_remaining() * 1000)).encode()
        )


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    """A channel to a server of this test's own."""
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([Service()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as made:
        yield made
    server.stop(None).wait()


def test_a_server_is_told(channel: grpc.Channel) -> None:
    """What the caller has left is what the server has left, less the way."""
    call = channel.unary_unary("/billing/cancel")
    left = int(call(b"", timeout=grpc_deadline_seconds(Deadline(9.0)), wait_for_ready=True))
    assert 5_000 < left <= 9_000


@pytest.mark.parametrize("made", [grpc_timeout, grpc_deadline_seconds])
def test_what_is_not_a_number_is_a_typed_error(made: Any) -> None:
    """It would be a deadline that nobody can read."""
    with pytest.raises(ConfigurationError, match="not a number"):
        made(float("nan"))
