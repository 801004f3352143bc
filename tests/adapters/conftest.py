"""What tests of adapters share."""

from __future__ import annotations

from tests.postgres import postgres_url

__all__ = ["postgres_url"]
