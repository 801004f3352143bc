"""Several ledgers of one process, first used at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from safewrite.ledger.sql import Ledger


def test_ledgers_that_are_first_used_together_get_their_own_tables(tmp_path: Path) -> None:
    """Each of twelve files ends up with all tables, though the tool that makes them is global to the process."""
    together = threading.Barrier(12)

    def use(number: int) -> tuple[str, ...]:
        ledger = Ledger(f"sqlite:///{tmp_path / f'{number}.db'}")
        together.wait()
        ledger.upgrade()
        problems = ledger.check().problems
        ledger.close()
        return problems

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(use, range(12))) == [()] * 12
