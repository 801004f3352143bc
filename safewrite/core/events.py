"""What the world reported: the vocabulary of facts that the machine folds.

Every value here is frozen and made of plain numbers and text, so that a row in the ledger can hold it whole
and a later process can fold it again.  Nothing here decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class OutcomeState(StrEnum):
    """Whether a write took effect: of one attempt, and folded over all evidence, of the intent."""

    UNKNOWN = "unknown"
    NOT_APPLIED = "not_applied"
    APPLIED = "applied"


class Moment(NamedTuple):
    """One instant, told by two clocks.

    `ticks` are seconds of a clock that nobody can set and that runs while the machine sleeps; they compare only
    with ticks of the same `clock` (a boot of one machine).  `unix` is wall time, good for stamps and, less a
    declared skew, for comparing across clocks.
    """

    unix: float
    ticks: float
    clock: str

    def seconds_to(self, later: Moment, skew: float) -> float:
        """Return how long it certainly was from here to `later`: exact on one clock, else less `skew`."""
        if self.clock == later.clock:
            return later.ticks - self.ticks
        return later.unix - self.unix - skew


@dataclass(frozen=True, slots=True)
class Finding:
    """What one exception, status or return value says about the attempt that got it."""

    outcome: OutcomeState
    reason: str
    """A stable code, such as `connect_refused`, `read_timeout`, `http_503`, `returned`."""
    again: bool = False
    """Not applied, and may be sent again without a read: never sent, 425, 429."""
    status: int | None = None
    """The HTTP status, where there was one."""
    retry_after: float | None = None
    """Seconds the dependency asked us to wait."""
    proof: bool = False
    """A transport proof that the request was not processed (REFUSED_STREAM, GOAWAY below our stream)."""
    precondition_failed: bool = False
    """A definite 412: the version that the attempt named is gone."""
    running: bool = False
    """Accepted, and still being worked on: 202, a verdict of StillRunning, a 409 for a key in progress."""
