"""Values that come by another road have the tool's own type."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

import safewrite
from safewrite import ConfigurationError, SafeWrite


class Refund(BaseModel):
    payment: str
    cents: int


@pytest.fixture
def lost(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A tool whose only attempt got no answer, its `SafeWrite`, and that attempt's id."""
    with SafeWrite(f"sqlite:///{tmp_path}/agent.db") as sw:

        @sw.write(target="payment")
        def refund(payment: str) -> Refund:
            raise TimeoutError

        with safewrite.run("run"), safewrite.turn(1):
            assert refund.outcome("p").state == "unknown"
            found = sw.ledger.find(refund.key("p"))
            assert found is not None
            yield refund, sw, found.state.attempts[0].id


def test_a_delivered_dict_becomes_the_tools_model(lost) -> None:  # type: ignore[no-untyped-def]
    """A replay returns what the tool would have returned."""
    refund, sw, attempt = lost
    assert sw.deliver(attempt, {"payment": "p", "cents": "5"}).value == Refund(payment="p", cents=5)
    assert refund("p") == Refund(payment="p", cents=5)


def test_a_delivery_that_does_not_fit_is_refused_and_changes_nothing(lost) -> None:  # type: ignore[no-untyped-def]
    """The error says what is wrong, and the outcome stays unknown."""
    refund, sw, attempt = lost
    with pytest.raises(ConfigurationError, match="cents"):
        sw.deliver(attempt, {"payment": "p"})
    assert refund.peek("p").state == "unknown"
