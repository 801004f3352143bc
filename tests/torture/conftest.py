"""What of the torture runs by itself: being killed at any moment.  The longer batteries run on request."""

from __future__ import annotations

import os

collect_ignore = (
    []
    if os.environ.get("SAFEWRITE_TORTURE")
    else ["test_crash_points.py", "test_ledger_faults.py", "test_many_workers.py"]
)
"""`SAFEWRITE_TORTURE=1 pytest tests/torture` runs them all: minutes, and a PostgreSQL of their own."""
