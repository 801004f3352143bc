"""The time settings of an agent runtime, as the process has them."""

from __future__ import annotations

import logging

import pytest

from safewrite.runtime import runtime_budgets


def test_each_override_is_logged_with_winner_and_loser(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process's environment is the executor's, unless one is given."""
    monkeypatch.setenv("MCP_TIMEOUT", "60000")
    with caplog.at_level(logging.INFO, "safewrite"):
        assert runtime_budgets(profile={"MCP_TIMEOUT": "9"}).connect == 60_000
    assert [record.getMessage() for record in caplog.records] == [
        "MCP_TIMEOUT: executor (60000) wins over agent profile (9)",
        "MCP_TIMEOUT: executor (60000) wins over managed defaults (30000)",
        "MCP_TIMEOUT: executor (60000) wins over client (30000)",
        "MCP_TOOL_TIMEOUT: managed defaults (7200000) wins over client (100000000)",
    ]
    assert runtime_budgets({}).connect == 30_000
