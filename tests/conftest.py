"""What every test has: examples of Hypothesis are counted, not timed; and no test knows a dependency from another."""

import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from safewrite.shell import pressure

settings.register_profile("safewrite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("safewrite")

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # a shell that starts this behind itself ignores Ctrl-C for it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _strangers() -> Iterator[None]:
    """A dependency that failed in one test is not spared in the next."""
    pressure.forget()
    yield
    pressure.forget()
