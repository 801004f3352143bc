"""What the body of a tool is given of the attempt that runs it."""

from __future__ import annotations

import threading
from typing import Literal

from safewrite.core.idle import Watch
from safewrite.deadline import deadline_headers
from safewrite.shell.clock import clock

Role = Literal["write", "reconcile", "read"]
LEAST_TIMEOUT = 0.001
"""Seconds: transports take zero for "no limit" or refuse it, so a spent attempt still names a limit."""


class Attempt:
    """One dispatch of a write: what identifies it, and how long it may take.

    `id` names this attempt alone, `number` counts from 1, `key` is the intent's idempotency key, the same for
    every attempt.  Pass `headers` and `timeout` to the client that sends.
    """

    def __init__(
        self,
        *,
        id: str,
        number: int,
        key: str,
        end: float,
        deadline_at: float,
        idle: float | None = None,
        role: Role = "write",
        system: str = "",
    ) -> None:
        self.id = id
        self.number = number
        self.cancelled = threading.Event()
        """Set when nobody waits for this attempt any more: a function in a thread may look at it and stop."""
        self.deadline_at = deadline_at
        self.key_read = False
        self.deadline_read = False
        self.progress_count = 0
        self.role: Role = role
        self.system = system
        """What runs in it: a write, a reconciling read of one, or a reading tool, whose attempts have no key."""
        self.reached = ""
        self.cut = ""
        """Which of its limits had run out when it was given up, with the values of both."""
        self.reads = role != "write"
        """It is that of a read: nothing is written."""
        self.settles = role == "reconcile"
        """It settles an open write, as does what is read in it: no breaker and no limit keeps it from looking."""
        self.delivered = False
        """An adapter saw a write that may have taken effect."""
        self.more_requests = False
        """An adapter saw a further request after or beside that: what became of the last one proves nothing."""
        self.under_way: set[object] = set()
        """Requests that an adapter sent, without an answer as yet."""
        self.fence = ""
        """How a reconciling read made the dependency refuse this attempt and all before it."""
        self._key = key
        self.end = end
        now = clock().now().ticks
        self._watch = Watch(now, end, max(0.0, end - now), idle)

    @property
    def key(self) -> str:
        """The idempotency key."""
        self.key_read = True
        return self._key

    @property
    def headers(self) -> dict[str, str]:
        """The headers that carry key, attempt and deadline (milliseconds left; Unix milliseconds) to the dependency."""
        self.key_read = self.deadline_read = True
        return {
            **({"Idempotency-Key": self._key} if self._key else {}),
            "X-Attempt-Id": self.id,
            **deadline_headers(self.remaining(), self.deadline_at),
        }

    def remaining(self) -> float:
        """Return the seconds this attempt has left, never negative."""
        return max(0.0, self.end - clock().now().ticks)

    @property
    def timeout(self) -> float:
        """What is left, as a limit that every client takes: never zero."""
        return max(LEAST_TIMEOUT, self.remaining())

    def progress(self, reached: str = "") -> None:
        """Say that the work moved, to the idle limit of `@sw.write(idle=...)`: never later than the attempt's end.

        `reached` ("page 7") is told of a read that is cut after it.
        """
        self.progress_count += 1
        self.reached = reached or self.reached
        self.dispatched()

    def dispatched(self) -> None:
        """Start the idle limit: the body begins now."""
        self._watch = self._watch.moved(clock().now().ticks)

    def left(self) -> float:
        """Return the seconds until a limit may have run out: the attempt's end, or how long it may be silent."""
        return self._watch.left(clock().now().ticks)

    def give_up(self) -> str:
        """Ask the body to stop; return which limit ran out, `timeout` or `idle`, and keep it in words in `cut`."""
        self.cancelled.set()
        if self._watch.idle is not None:
            self.cut = self._watch.words(clock().now().ticks)
        return self._watch.runs_out

    def __repr__(self) -> str:
        return f"Attempt(id={self.id!r}, number={self.number}, remaining={self.remaining():.3f})"
