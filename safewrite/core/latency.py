"""How long calls take, as far as that is known: percentiles, or times that were measured.

Both answer the same three questions: which share of calls takes longer than a cap, how long is a call of a given
rank, and how long is the call that a random number stands for.

**Between two known percentiles** the logarithm of the latency runs linearly in the normal score of the percentile:
pieces of log-normal distributions, joined where they are known, and monotone.  The 0th and the 100th percentile
have no normal score; in a piece that ends there, the logarithm runs linearly in the percentile itself.
**Below the lowest** known percentile a call counts as taking as long as that one, and **above the highest** as never
ending: what is not known is taken at its worst, and the answer says that it is a bound.  **Measured times** are not
interpolated: a share is the share of the samples.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, Protocol

_NORMAL: Final = NormalDist()


@dataclass(frozen=True, slots=True)
class Share:
    """A share of calls, from 0 to 1; `at_most` says that only this upper bound is known."""

    value: float
    at_most: bool = False


class Latency(Protocol):
    """What a plan needs to know of how long calls take."""

    def longer(self, seconds: float) -> Share:
        """Return the share of calls that takes longer than `seconds`."""
        ...

    def at(self, longer: float) -> float | None:
        """Return the seconds that a share of `longer` exceeds; None where that is not known."""
        ...

    def draw(self, number: float) -> float:
        """Return the seconds of the call that `number`, uniform from 0 up to but not including 1, stands for."""
        ...


@dataclass(frozen=True, slots=True)
class Curve:
    """Known points, joined.  `longer` falls from point to point, `seconds` (positive) never does."""

    longer_than: tuple[float, ...]
    """Shares of calls that take longer than the seconds of the same position."""
    seconds: tuple[float, ...]

    def longer(self, seconds: float) -> Share:
        """Return the share of calls that takes longer than `seconds`."""
        known = bisect_right(self.seconds, seconds)
        if known == 0:
            return Share(1.0, at_most=self.longer_than[0] < 1.0)
        share = self.longer_than[known - 1]
        if known == len(self.seconds):
            return Share(share, at_most=share > 0.0 and seconds > self.seconds[-1])
        if self.seconds[known - 1] == seconds:
            return Share(share)
        slow, fast = self.seconds[known], self.seconds[known - 1]
        return Share(_mix(share, self.longer_than[known], math.log(seconds / fast) / math.log(slow / fast)))

    def at(self, longer: float) -> float | None:
        """Return the seconds that a share of `longer` exceeds; None outside the known points."""
        if not self.longer_than[-1] <= longer <= self.longer_than[0]:
            return None
        after = next(i for i, share in enumerate(self.longer_than) if share <= longer)
        share = self.longer_than[after]
        if share == longer:
            return self.seconds[after]
        part = _part(self.longer_than[after - 1], share, longer)
        fast, slow = self.seconds[after - 1], self.seconds[after]
        return math.exp(math.log(fast) + part * (math.log(slow) - math.log(fast)))

    def draw(self, number: float) -> float:
        """Return the seconds of one call: the fastest that is known below, infinite above what is known."""
        if number < self.longer_than[-1]:
            return math.inf
        return self.at(min(number, self.longer_than[0])) or math.inf


@dataclass(frozen=True, slots=True)
class Measured:
    """Times that were measured, sorted."""

    seconds: tuple[float, ...]

    def longer(self, seconds: float) -> Share:
        """Return the share of the samples that took longer than `seconds`."""
        return Share((len(self.seconds) - bisect_right(self.seconds, seconds)) / len(self.seconds))

    def at(self, longer: float) -> float | None:
        """Return the fastest sample that no more than a share of `longer` exceeds."""
        exceeding = math.floor(longer * len(self.seconds) + 1e-9)  # 0.29 * 100 is a little less than 29
        return self.seconds[max(0, len(self.seconds) - 1 - exceeding)]

    def draw(self, number: float) -> float:
        """Return one of the samples, each as likely as the others."""
        return self.seconds[int(number * len(self.seconds))]


def _mix(before: float, after: float, part: float) -> float:
    """Return the share that lies `part` of the way between two known ones."""
    if before >= 1.0 or after <= 0.0:
        return before + part * (after - before)
    return _NORMAL.cdf(_score(before) + part * (_score(after) - _score(before)))


def _part(before: float, after: float, share: float) -> float:
    """Return how far `share` lies on the way between two known ones: `_mix` backwards."""
    if before >= 1.0 or after <= 0.0:
        return (share - before) / (after - before)
    return (_score(share) - _score(before)) / (_score(after) - _score(before))


def _score(longer: float) -> float:
    return _NORMAL.inv_cdf(longer)
