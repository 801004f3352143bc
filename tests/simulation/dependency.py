"""A dependency in virtual time: what it promises, how it misbehaves within that, and what really took effect."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from random import Random
from typing import Final

import httpx

from safewrite import Applied, Attempt, Dependency, NotApplied

CALL_CAP: Final = 20.0
"""Seconds that one call may take."""
MARGIN: Final = 5.0
"""Seconds that a lease goes on after its call."""
SKEW: Final = 1.0
"""Seconds by which any two clocks may differ."""

RETENTION: Final = 400.0

PROMISES: Final = {
    "forever": Dependency("forever", key_retention=timedelta.max),
    "keys": Dependency("keys", key_retention=RETENTION),
    "burning": Dependency("burning", key_retention=timedelta.max, replays_errors=True),
    "bounded": Dependency("bounded", work_bound=5.0, read_lag=0.0),
    "lagging": Dependency("lagging", work_bound=5.0, read_lag=3.0),
    "both": Dependency("both", key_retention=timedelta.max, work_bound=5.0, read_lag=0.0),
    "deadlines": Dependency("deadlines", honours_deadline=True, read_lag=0.0),
    "blind": Dependency("blind"),
}
"""Name of a tool -> what its dependency promises.  All of it is kept."""
READABLE: Final = ("bounded", "lagging", "both", "deadlines")


@dataclass
class Effect:
    """One effect, or what may yet become one."""

    key: str
    attempt: str
    number: int
    lands_at: float
    bound: float = inf
    """Seconds after the end of its sender in which it lands."""


@dataclass
class Request:
    """One request as it arrived."""

    tool: str
    key: str
    attempt: str
    number: int
    """Which attempt of its intent it was."""
    at: float


@dataclass
class World:
    """What really happened.  `now` is the true time; the dependency's clock shows it."""

    chance: Random
    now: float = 0.0
    requests: list[Request] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    burnt: dict[str, int] = field(default_factory=dict)
    """Key -> the error that is replayed under it."""

    def landed(self, key: str, at: float | None = None) -> list[Effect]:
        """Return the effects under a key, as they stand at an instant (default: now)."""
        instant = self.now if at is None else at
        return [e for e in self.effects if e.key == key and e.lands_at <= instant]

    def read(self, tool: str, key: str) -> Applied[int] | NotApplied:
        """Look an intent up by its key, no staler than the promise."""
        lag = PROMISES[tool].read_lag or 0.0
        found = self.landed(key, self.now - self.chance.uniform(0.0, lag))
        return Applied(found[0].number) if found else NotApplied()

    def request(self, tool: str, attempt: Attempt, ends: float = inf) -> tuple[float, int | Exception]:
        """Take a request in; return after how many seconds what comes back: a value, or an exception.

        `ends`: when its sender will have ended at the latest, as somebody promises: a work bound counts from there.
        """
        promise = PROMISES[tool]
        key, headers = attempt.key, attempt.headers
        fate = self.chance.choices(tuple(_FATES), tuple(_FATES.values()))[0]
        if fate == "refused":
            return 0.1, httpx.ConnectError("refused")
        self.requests.append(Request(tool, key, headers["X-Attempt-Id"], attempt.number, self.now))
        if key in self.burnt:
            return 0.1, _status(self.burnt[key])
        if known := self._recognised(tool, key):  # what was begun is finished, and answered again
            known.lands_at = min(known.lands_at, self.now)
            return self._answer(fate, known.number)
        if fate == "rejected":
            return 0.1, _status(422)
        if fate == "busy":
            return 0.1, _status(503, {"Retry-After": "1", "X-Not-Applied": "busy"})
        if fate == "never":
            return self.chance.uniform(1.0, 30.0), httpx.ReadTimeout("no answer")
        number = len(self.effects) + 1
        waits, answer = self._answer(fate, number)
        delay = 0.0
        if fate == "late":
            delay = waits + self.chance.uniform(
                0.0, promise.work_bound if promise.work_bound is not None else 60.0
            )
        bound = inf if promise.work_bound is None else promise.work_bound
        effect = Effect(key, headers["X-Attempt-Id"], number, min(self.now + delay, ends + bound), bound)
        if not promise.honours_deadline or effect.lands_at <= attempt.deadline_at:
            self.effects.append(effect)
        elif fate != "late":
            return 0.1, httpx.ReadTimeout("too late, and nothing was said")
        if isinstance(answer, httpx.HTTPStatusError) and promise.replays_errors:
            self.burnt[key] = 500
        return waits, answer

    def _recognised(self, tool: str, key: str) -> Effect | None:
        """Return what was begun under a key, unless it is forgotten: its retention counts from the first request."""
        retention = PROMISES[tool].key_retention
        first = next(request.at for request in self.requests if request.key == key)
        if retention is None or self.now - first >= retention:
            return None
        return next((e for e in self.effects if e.key == key), None)

    def _answer(self, fate: str, number: int) -> tuple[float, int | Exception]:
        if fate in ("lost", "late"):
            return self.chance.uniform(1.0, 30.0), httpx.ReadTimeout("no answer")
        if fate == "reset":
            return 0.2, httpx.RemoteProtocolError("Server disconnected without sending a response.")
        if fate == "failed after it":
            return 0.2, _status(500)
        return self.chance.choice((0.1, 0.1, 3.0)), number

    def sender_ended(self, attempt: str) -> None:
        """Keep the promise of the work bound when the sender of an attempt is killed now."""
        for effect in self.effects:
            if effect.attempt == attempt:
                effect.lands_at = min(effect.lands_at, max(self.now, self.now + effect.bound))


_FATES: Final = {
    "ok": 40, "lost": 14, "late": 14, "never": 10, "reset": 6, "failed after it": 4, "refused": 4, "rejected": 4,
    "busy": 4,
}  # fmt: skip
"""What becomes of a request -> how often, in a hundred."""


def _status(code: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://dependency.example/")
    return httpx.HTTPStatusError(str(code), request=request, response=httpx.Response(code, headers=headers))
