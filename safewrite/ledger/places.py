"""Places in the queue of those that write: what waits there is carried out by whoever leads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from safewrite.ledger.units import Hold, Proof, Trouble, Unit


def _closed() -> Any:
    lock = Lock()
    lock.acquire()
    return lock


@dataclass(eq=False, slots=True)
class Place:
    """A unit in the queue of those that write: what it does, how long it waits, and what came of it."""

    write: Callable[[Unit], tuple[Any, Proof | None]] | None
    look: Callable[[Unit], Any] | None = None
    """Asked first, outside of any transaction; an answer that is not None is enough."""
    locks: tuple[Hold, ...] = ()
    until: float = 0.0
    """When it stops waiting for others, on the monotonic clock."""
    told: Callable[[], None] | None = None
    """Called, by whoever leads, when it is done; `None`: a thread waits for its bell."""
    bell: Any = field(default_factory=_closed)
    done: bool = False
    taken: bool = False
    """Somebody is carrying it out."""
    withdrawn: bool = False
    """Nobody waits for it any more."""
    value: Any = None
    proof: Proof | None = None
    error: Exception | None = None

    def take(self) -> bool:
        """Return whether it is to be carried out."""
        self.taken = (
            True  # before the look at `withdrawn`, as `withdraw` does the reverse: one of them sees the other
        )
        if self.withdrawn and not self.done:
            self.end(error=Trouble("ledger_busy"))
        return not self.done

    def withdraw(self) -> bool:
        """Return whether it certainly will never be carried out; else somebody is at it."""
        self.withdrawn = True
        return not self.taken

    def run(self, unit: Unit) -> None:
        """Run it inside a transaction."""
        assert self.write is not None
        self.value, self.proof = self.write(unit)

    def end(self, value: Any = None, error: Exception | None = None) -> None:
        """Say what came of it."""
        self.value, self.error, self.done = value, error, True
        if self.told is None:
            self.ring()
        else:
            self.told()

    def ring(self) -> bool:
        """Wake the thread that waits for it; return False where none does."""
        if self.told is None:
            with suppress(RuntimeError):  # it is awake already
                self.bell.release()
        return self.told is None

    def result(self) -> Any:
        """Return what came of it, or raise its error."""
        if self.error is None:
            return self.value
        try:
            raise self.error
        finally:
            self.error = None  # no cycle between the traceback and this place
