"""What a ledger is asked to do, so that a thread may do it and wait, or a coroutine may wait without a thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from safewrite.ledger.places import Place
from safewrite.ledger.store import Store
from safewrite.ledger.units import Hold, Proof, Trouble, Unit

if TYPE_CHECKING:
    from safewrite.ledger.pool import Pool

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Order(Generic[T]):
    """A look that may be enough, and what is written if it finds nothing.  May be carried out more than once."""

    store: Store | Pool
    look: Callable[[Unit], T | None] | None
    write: Callable[[Unit], tuple[T, Proof | None]] | None
    refused: Callable[[Trouble], Exception]
    """Returns what is raised where the database does not do it."""
    told: Callable[[T], object] = lambda _: None
    """Called with what came of it, once that is durable."""
    locks: tuple[Hold, ...] = ()
    """What is held while it writes."""
    prepare: Callable[[], object] = lambda: None
    """Called before it writes, by whoever waits for it: for people's own code, which no lock is to wait for."""

    def now(self) -> T:
        """Carry it out on this thread, and return what came of it."""
        return self._outcome(self._carried_out)

    def _carried_out(self) -> T | None:
        found = self.store.read(self.look) if self.look is not None else None
        if found is not None or self.write is None:
            return found
        self.prepare()
        return self.store.write(self.write, self.locks)

    def later(self, told: Callable[[], None]) -> Place:
        """Have it carried out by others; `told` is called, on any thread, when `outcome` has something to return."""
        self.prepare()
        place = Place(self.write, self.look, self.locks, told=told)
        try:
            self.store.submit(place)
        except Trouble as trouble:
            place.end(error=trouble)
        return place

    def outcome(self, place: Place) -> T:
        """Return what came of it, or raise what it was refused with."""
        return self._outcome(place.result)

    def _outcome(self, result: Callable[[], Any]) -> T:
        try:
            came: T = result()  # None only where T holds it: what a look does not find is written
        except Trouble as trouble:
            raise self.refused(trouble) from trouble.__cause__ or trouble
        self.told(came)
        return came
