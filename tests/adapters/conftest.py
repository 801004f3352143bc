"""What tests of adapters share."""

from __future__ import annotations

from tests.postgres import _ledger_url, postgres_ledger_url, postgres_url

__all__ = ["_ledger_url", "postgres_ledger_url", "postgres_url"]
