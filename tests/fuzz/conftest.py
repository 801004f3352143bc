"""What tests of this floor share."""

from __future__ import annotations

from tests.cli.conftest import _no_settings

__all__ = ["_no_settings"]
