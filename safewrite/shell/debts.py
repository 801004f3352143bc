"""What the ledger could not store when it happened: kept in this process, and stored before the next decision."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from safewrite.core.fold import Impossible
from safewrite.errors import LedgerUnavailable
from safewrite.shell.steps import Steps

MOST = 1000
"""Intents of which something is owed; the oldest is let go, and a later look has to find out."""

_log = logging.getLogger("safewrite")


@dataclass(frozen=True, slots=True)
class Debt:
    """One fact that is owed to the ledger."""

    key: str
    """The key of its intent."""
    what: str
    pay: Callable[[], Steps[object]]
    """Stores it; raises `LedgerUnavailable` where that still cannot be done."""


class Debts:
    """What is owed, by the key of its intent."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[str, list[Debt]] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, debt: Debt) -> None:
        """Keep a fact for later."""
        with self._lock:
            self._by_key.setdefault(debt.key, []).append(debt)
            forgotten = len(self._by_key) > MOST and self._by_key.popitem(last=False)
        if forgotten:
            _log.error("safewrite lets go of what it could not record of %s", forgotten[0])

    def settle(self, key: str) -> Steps[None]:
        """Store what is owed of an intent, as far as the ledger lets it."""
        if key not in self._by_key:
            return
        with self._lock:
            debts = self._by_key.pop(key, [])
        for place, debt in enumerate(debts):
            try:
                yield from debt.pay()
            except LedgerUnavailable:
                with self._lock:
                    self._by_key[key] = debts[place:] + self._by_key.pop(key, [])
                return
            except Impossible:  # the record knows more by now
                _log.warning("safewrite owed %s of %s, which stands otherwise", debt.what, key)
