"""A case replayed through the body and the reconcile function of a tool, in the recorded world."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, cast

from safewrite.attempt import Attempt
from safewrite.audit.cases import CaseUnusable, Replay
from safewrite.calls import CallOptions, Guard
from safewrite.core.events import Ended, Event, GaveUp, ReadEnded
from safewrite.core.replacing import replace
from safewrite.shell import aio
from safewrite.shell.job import Job
from safewrite.testing.lab import Crashed
from safewrite.testing.replaying import Play, Told
from safewrite.testing.wall import closed
from safewrite.tool import Tool

if TYPE_CHECKING:
    import httpx

    from safewrite.testing.world import RecordedWorld

_BY_ITSELF = ("not_sent", "rejected", "declared_not_applied", "not_applied", "not_awaited")
"""Reasons of bodies that may have sent nothing."""
_SAFE = ("GET", "HEAD", "OPTIONS")
_CANCELLED = 5
"""How often the tasks of a loop that ends are cancelled."""
_PATIENCE = 1000
"""How often bodies that still run are waited for, 5 ms each."""


def replay_bodies(world: RecordedWorld, tool: Any, arguments: Mapping[str, Any], *, faked: bool) -> Replay:
    """Return whether a tool's own code leads to the recorded decisions.  Raises `CaseUnusable`."""
    known = cast("Tool", getattr(tool, "tool", tool))
    if known.name != world.intent.tool:
        raise CaseUnusable(f"the case is of the tool `{world.intent.tool}`, not of `{known.name}`.")
    play = Bodies(world, known, arguments, faked=faked)
    world.play = play
    try:
        with ThreadPoolExecutor(1) as apart:  # a coroutine gets a loop of its own, whatever runs here
            came = apart.submit(contextvars.Context().run, play.perform).result()
    finally:
        world.play = None
    if play.refused:
        raise CaseUnusable(play.refused)
    return came


class Bodies(Play):
    """One case, carried out again by the tool's own code."""

    through = "the body of {}"

    def __init__(self, world: RecordedWorld, known: Tool, given: Mapping[str, Any], *, faked: bool) -> None:
        self.world, self.given, self.faked = world, given, faked
        self.asked: dict[int, bool] = {}
        """Attempts that sent a write through the transport, and whether the key was in any."""
        self._runner: asyncio.Runner | None = None
        self.refused = ""
        """Why it cannot be replayed."""
        super().__init__(world.case, known)

    def complete(self, known: Tool, missing: tuple[str, ...]) -> None:
        """Take the arguments that the test gives, and what has a default today."""
        parameters = known.signature.parameters
        foreign = [name for name in self.given if name not in parameters]
        if foreign:
            raise CaseUnusable(f"`{known.name}` takes no `{foreign[0]}`.")
        for name, value in self.given.items():
            plain = name == known.receiver or name not in known.hints
            self.arguments[name] = value if plain else known._convert(name, known.hints[name], value)
        lacks: list[str] = []
        for name, parameter in parameters.items():
            if name in self.arguments or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if name in missing or parameter.default is inspect.Parameter.empty:
                lacks.append(name)
            else:
                self.arguments[name] = parameter.default
        if lacks:
            wanted = ", ".join(f"{name!r}: ..." for name in lacks)
            raise CaseUnusable(
                f"the case does not hold {', '.join(f'`{name}`' for name in lacks)} of `{known.name}`. Give what a "
                f"test may know: `arguments={{{wanted}}}`."
            )

    def prepare(self, tool: Tool) -> None:
        """Leave the tool its code."""

    # Carrying it out -----------------------------------------------------------------------------------------

    def perform(self) -> Replay:
        """Play it, with the real world closed until the last body has ended."""
        with closed(self._reached):
            return super().perform()

    def make(self, guard: Guard, options: CallOptions) -> None:
        """Carry out a call, on one loop for all of them."""
        if self.tool.is_async:
            self._on_loop(guard.acall(options, (), self.arguments))
        else:
            super().make(guard, options)

    def look(self, job: Job) -> None:
        """Carry out what looks at the intent, on the same loop."""
        if self.tool.is_async:
            self._on_loop(aio.drive(job))
        else:
            super().look(job)

    def _on_loop(self, steps: Coroutine[Any, Any, object]) -> None:
        self._runner = self._runner or asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        try:
            self._runner.run(steps, context=contextvars.copy_context())
        except Crashed:
            self._close_loop()  # what is left of the process that died ends with it
            raise

    def _close_loop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        loop = runner.get_loop()
        for _ in range(_CANCELLED):  # each may die in its end, which ends the run of the loop
            left = asyncio.all_tasks(loop)
            if not left:
                break
            for task in left:
                task.cancel()
                task.add_done_callback(_seen)
            with suppress(Crashed):
                loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        runner.close()

    def end(self) -> None:
        """Wait for the bodies that still run: what they do in their end must not get out either."""
        self._close_loop()
        for _ in range(_PATIENCE):
            if not self.sw.pool.busy:
                return
            time.sleep(0.005)
        ExitStack().enter_context(closed(lambda _: None))  # never opened again
        self.refuse(
            "a body still runs, seconds after its case was over. This process reaches nothing any more."
        )

    # What the world asks -------------------------------------------------------------------------------------

    def end_of(self, attempt: Attempt) -> Event | None:
        """Return the recorded end of an attempt, or of the read that runs."""
        if attempt.reads:
            return self.fact_of(ReadEnded)
        return self.fact_of(Ended, attempt.number) or self.fact_of(GaveUp, attempt.number)

    def asks(self, request: httpx.Request, attempt: Attempt | None) -> bool:
        """Take note of a request; return whether the recorded end is its answer."""
        if attempt is None or attempt.reads:
            return True
        text = b"\n".join(
            [str(request.url).encode(), *(value for _, value in request.headers.raw), request.content]
        )
        first = attempt.number not in self.asked and request.method not in _SAFE
        if request.method not in _SAFE:
            self.asked[attempt.number] = (
                self.asked.get(attempt.number, False) or attempt._key.encode() in text
            )
        return first

    def check_over(self) -> None:
        """End a body that hung until the play was over: nothing in it runs on.  Raises `Crashed`."""
        if self.over.is_set():
            raise Crashed

    def refuse(self, why: str) -> Crashed:
        """Take note of why it cannot go on; return what ends the body."""
        self.refused, self.stopped = self.refused or why, True
        return Crashed()

    def beyond(self) -> Crashed:
        """Return what ends a body or a read whose end is not on record: its process died, or it goes otherwise."""
        self.stopped = self.stopped or not self.crashes
        return Crashed()

    def _reached(self, what: str) -> None:
        self.refuse(
            f"the real world was reached for, and nothing was sent: {what}. Make the body's client with the case's "
            "`transport`, or fake it."
        )

    # Comparing -----------------------------------------------------------------------------------------------

    def as_told(self, event: Event) -> Event:
        """Return an event as it is told now; a key that no request held was not carried."""
        fact = event.fact
        if not isinstance(fact, Ended | GaveUp):
            return event
        reason = fact.finding.reason if isinstance(fact, Ended) else fact.reason
        if fact.number not in self.asked and not self.faked and reason not in _BY_ITSELF:
            raise self.refuse(
                f"attempt {fact.number} ended (`{reason}`) without a write through the case's `transport`. Make the "
                "client of the body with it."
            )
        if not self.asked.get(fact.number, True):
            fact = replace(fact, key_carried=False)
        return replace(event, fact=fact)

    def contents(self, *more: Any) -> tuple[Any, ...]:
        """Return what is kept beside a row."""
        return more

    def gist(self, row: Told) -> tuple[object, ...]:
        """Compare what the code made of the world as well."""
        fact = row[0].fact
        found = fact.finding.outcome if isinstance(fact, Ended) else None
        return (*super().gist(row), found, fact.verdict if isinstance(fact, ReadEnded) else None)

    def lost(self, then: Event, now: Event) -> tuple[str, str, str, str, str] | None:
        """Return that key or deadline are not carried any more."""
        one, other = then.fact, now.fact
        if not isinstance(one, Ended | GaveUp) or not isinstance(other, Ended | GaveUp):
            return None
        for name, what in (("key_carried", "the idempotency key"), ("deadline_carried", "the deadline")):
            if getattr(one, name) and not getattr(other, name):
                happened = f"attempt {one.number} carries less"
                return happened, f"it carried {what}", "", f"it does not carry {what}", ""
        return None


def _seen(task: asyncio.Task[Any]) -> None:
    """Leave no failure unseen, of which asyncio would tell."""
    if not task.cancelled():
        task.exception()
