"""A scripted dependency for the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from safewrite.testing import ScriptedDependency
from tests.testing.asking import NO_TLS


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedDependency]:
    """One process for the whole module."""
    with ScriptedDependency() as running:
        yield running


@pytest.fixture
def dependency(server: ScriptedDependency) -> ScriptedDependency:
    """The process, with nothing left of the test before."""
    server.reset()
    return server


@pytest.fixture
def client(dependency: ScriptedDependency) -> Iterator[httpx.Client]:
    """A client that keeps its connections."""
    with httpx.Client(base_url=dependency.url, timeout=5.0, verify=NO_TLS) as opened:
        yield opened
