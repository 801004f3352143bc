"""A dependency in this process: it does to each write what a script says, and raises what real clients raise."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from safewrite import Attempt
from safewrite.shell.clock import clock
from safewrite.testing import ManualClock

REQUEST = httpx.Request("POST", "https://billing.example/writes")


class Gate:
    """Shut until it is opened; plain and coroutine code can wait at it."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._lock = threading.Lock()
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def open(self) -> None:
        with self._lock:
            self.event.set()
            waiting, self._waiting = self._waiting, []
        for loop, future in waiting:
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda f=future: f.done() or f.set_result(None))

    def future(self) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if self.event.is_set():
                future.set_result(None)
            else:
                self._waiting.append((loop, future))
        return future


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect that really happened."""

    target: str
    key: str
    attempt: int
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to one write: apply or not, then raise, hang or answer."""

    applies: bool = True
    raises: Callable[[], BaseException] | None = None
    hangs: bool = False
    stubborn: bool = False
    """While it hangs it takes no notice of a cancellation, as a thread does."""
    applies_after: bool = False
    """It is applied once the gate is open."""


def timed_out() -> BaseException:
    """Return what httpx raises when no answer comes in time."""
    return httpx.ReadTimeout("no answer", request=REQUEST)


def refused() -> BaseException:
    """Return what httpx raises when nobody listens."""
    return httpx.ConnectError("[Errno 111] Connection refused", request=REQUEST)


def status(code: int, **headers: str) -> Callable[[], BaseException]:
    """Return what `raise_for_status` raises for a status."""

    def make() -> BaseException:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = httpx.Response(code, headers=named, request=REQUEST)
        try:
            response.raise_for_status()
        except httpx.HTTPStatusError as error:
            return error
        raise AssertionError(code)

    return make


OK = Step()
LOSE = Step(raises=timed_out)
"""Applied, and the answer is lost."""
DROP = Step(applies=False, raises=timed_out)
"""Never applied, and no answer comes."""
REFUSE = Step(applies=False, raises=refused)
"""Nobody listens."""
HANG = Step(hangs=True)
"""Applied, then silent."""
NEVER = Step(applies=False, hangs=True)
"""Never applied, silent."""
LATE = Step(applies=False, hangs=True, stubborn=True, applies_after=True)
"""Silent, whatever its caller does; applied and answered once the gate is open."""


def reject(code: int = 422) -> Step:
    """The dependency says no."""
    return Step(applies=False, raises=status(code))


def fail(error: BaseException, *, applies: bool = True) -> Step:
    """The client raises `error`."""
    return Step(applies=applies, raises=lambda: error)


class Remote:
    """What the tools of these tests write to, in either colour: coroutines that a plain tool runs to their end."""

    def __init__(self, colour: str) -> None:
        self.colour = colour
        self.gate = Gate()
        self.arrived = Gate()
        """Open once a write hangs."""
        self.recognises_keys = False
        self.effects: list[Effect] = []
        self.attempts: list[tuple[int, str, dict[str, Any]]] = []
        """Every write that arrived: number and key of its attempt, and its body."""
        self.reads = 0
        self._steps: list[Step] = []
        self._lock = threading.Lock()

    def next(self, *steps: Step) -> None:
        """Say what happens to the next writes; without a word they are applied and answered."""
        self._steps.extend(steps)

    async def write(self, target: str, attempt: Attempt | None = None, **body: Any) -> str:
        """Carry out a write."""
        key, number = (attempt.key, attempt.number) if attempt is not None else ("", 0)
        with self._lock:
            step = self._steps.pop(0) if self._steps else OK
            self.attempts.append((number, key, body))
        if step.applies:
            self._apply(target, key, number, body)
        if step.hangs:
            await self._hang(step, attempt)
        if step.applies_after:
            self._apply(target, key, number, body)
        if step.raises is not None:
            raise step.raises()
        return f"{target} done"

    def _apply(self, target: str, key: str, number: int, body: dict[str, Any]) -> None:
        with self._lock:
            if self.recognises_keys and any(e.key == key for e in self.effects):
                return
            self.effects.append(Effect(target, key, number, body))

    async def _hang(self, step: Step, attempt: Attempt | None) -> None:
        self.arrived.open()
        if self.colour == "plain":
            self._hang_here(step, attempt)
            return
        while not self.gate.event.is_set():
            try:
                await _blocked(self.gate.future())
            except asyncio.CancelledError:
                if not step.stubborn:
                    raise

    def _hang_here(self, step: Step, attempt: Attempt | None) -> None:
        given_up = attempt.cancelled if attempt is not None and not step.stubborn else threading.Event()
        both = threading.Event()
        for one in (self.gate.event, given_up):
            threading.Thread(target=lambda e=one: (e.wait(30), both.set()), daemon=True).start()
        now = clock()
        if isinstance(now, ManualClock):
            now.block(both)
        else:
            both.wait(30)
        if not self.gate.event.is_set():
            raise timed_out()

    # Reads -----------------------------------------------------------------------------------------------

    def count(self, target: str | None = None) -> int:
        """Return how many effects there are."""
        return sum(target in (None, e.target) for e in self.effects)

    def by_key(self, key: str) -> Effect | None:
        """Look one effect up by its idempotency key."""
        self.reads += 1
        return next((e for e in self.effects if e.key == key), None)


async def _blocked(future: asyncio.Future[None]) -> None:
    now = clock()
    if isinstance(now, ManualClock):
        await now.ablock(future)
    else:
        await future
