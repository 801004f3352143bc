"""What of the torture runs by itself: samples.  The longest battery runs on request."""

from __future__ import annotations

import os

collect_ignore = [] if {"SAFEWRITE_TORTURE", "SAFEWRITE_DEEP"} & {*os.environ} else ["test_ledger_faults.py"]
"""`SAFEWRITE_TORTURE=1 pytest tests/torture` runs it too, and larger samples; `SAFEWRITE_DEEP=1` everything."""
