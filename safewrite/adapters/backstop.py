"""The outermost limit: answers whatever hangs or throws, after every limit within it, and before the host's.

A hook, a handler or an upstream without a limit of its own must not leave its caller waiting for ever.  Knows no
protocol but the shapes of JSON-RPC and MCP, and sends through whatever function it is given.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from safewrite.context import current_trace
from safewrite.core.events import Alarmed, OutcomeState
from safewrite.deadline import Deadline, outermost
from safewrite.durations import Duration, seconds
from safewrite.errors import ConfigurationError
from safewrite.report import WriteReport
from safewrite.settings import resolve_settings
from safewrite.shell.clock import clock
from safewrite.shell.idle import await_while
from safewrite.shell.steps import carry
from safewrite.told import outcome_of
from safewrite.words import look, named

if TYPE_CHECKING:
    from safewrite.guard import SafeWrite
    from safewrite.outcome import Outcome

T = TypeVar("T")
_log = logging.getLogger("safewrite")

NO_ANSWER: Final = -32001
"""JSON-RPC error code of an answer to a method that is no tool call."""
TOOL_CALL: Final = "tools/call"
ASIDE: Final = 0.25
"""Seconds for each thing beside the answer: looking at the ledger, flushing, recording."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """The answer in place of one that did not come."""

    text: str
    trace: str
    report: WriteReport | None = None
    """Of a guarded write: its fate, as a normal result."""
    tool_call: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return what a JSON-RPC response has beside its id: `result` of a tool call, else `error`."""
        if not self.tool_call:
            return {"error": {"code": NO_ANSWER, "message": self.text, "data": {"trace": self.trace}}}
        result: dict[str, Any] = {
            "content": [{"type": "text", "text": self.text}],
            "isError": self.report is None,
        }
        if self.report is not None:
            result["structuredContent"] = self.report.model_dump(mode="json")
        return {"result": result}


class Backstop:
    """Answers in place of a handler that does not: `await backstop.answer(handle, send, tool="cancel")`.

    - `sw`: whose guarded writes are answered with a `WriteReport`; its `operation_timeout` (which holds the reserve)
      and `grace` are one of the limits within.
    - `inner`: the others, by name: deadlines of runs, timeouts of clients.
    - `limit`: the backstop's own; default: the longest of those and the setting `backstop` (30 s).
    - `host_limit`: what the proxy, worker or job around it allows; default: not known.

    Durations are seconds or `timedelta`.  Raises `ConfigurationError`, with both numbers, if the backstop is not
    later than every limit within, or not earlier than the host's.
    """

    def __init__(
        self,
        sw: SafeWrite | None = None,
        *,
        inner: Mapping[str, Duration] | None = None,
        limit: Duration | None = None,
        host_limit: Duration | None = None,
    ) -> None:
        settings = sw.settings if sw is not None else resolve_settings({})
        self.inner = {name: seconds(value, name=name) for name, value in (inner or {}).items()}
        if sw is not None or not self.inner:
            self.inner["operation_timeout + grace"] = settings.operation_timeout + settings.grace
        name, longest = max(self.inner.items(), key=lambda one: one[1])
        self.limit = longest + settings.backstop if limit is None else seconds(limit, name="limit")
        self.host_limit = seconds(host_limit, name="host_limit", allow_none=True)
        said = f"the backstop of {self.limit:g} s is not later than `{name}` = {longest:g} s"
        if self.limit <= longest:
            raise ConfigurationError(
                f"{said}, and would answer in place of whoever knows more. Make it later."
            )
        if self.host_limit is not None and self.host_limit <= self.limit:
            raise ConfigurationError(
                f"`host_limit` = {self.host_limit:g} s is not later than the backstop of {self.limit:g} s, so the host "
                f"would break the request off first. Shorten `{name}` = {longest:g} s, or the setting `backstop`."
            )
        self._sw = sw

    async def answer(
        self,
        handle: Callable[[], Awaitable[T]],
        send: Callable[[T | Fallback], Awaitable[None]],
        *,
        method: str = TOOL_CALL,
        tool: str = "",
        trace: str = "",
        flush: Callable[[], Awaitable[object]] | None = None,
        passes: tuple[type[BaseException], ...] = (),
    ) -> None:
        """Send what `handle()` returns, or a `Fallback` if it raises or does not return in time.

        `tool` is the name of a guarded write or of any other tool; `trace` the code under which the calls made in
        `handle` are recorded (default: a new one).  `flush` is called before sending, for a quarter of a second at
        most.  Exceptions in `passes`, a protocol's own, and those of `send` are raised.  A deadline made in `handle`
        that pauses suspends this limit, too.  A handler that hangs is cancelled after its answer, not waited for.
        """
        trace = trace or os.urandom(8).hex()
        deadline, inside = Deadline(self.limit, name="backstop"), contextvars.copy_context()
        inside.run(outermost.set, deadline)
        inside.run(current_trace.set, trace)
        task = asyncio.get_running_loop().create_task(_called(handle), context=inside)
        try:
            ended = await await_while(task, deadline.remaining)
        except asyncio.CancelledError:
            task.cancel()
            raise
        error = _error(task)
        if isinstance(error, passes):
            raise error
        fell = None if ended and error is None else await self._fallback(method, tool, trace, ended, error)
        if flush is not None:
            await _aside(_called(flush), "what was to be flushed")
        try:
            await send(task.result() if fell is None else fell)
        finally:
            if fell is not None:
                _log.error("safewrite backstop: %s", fell.text, exc_info=error)
                task.cancel()
                task.add_done_callback(_error)
                await self._ask(_record, fell)

    async def _fallback(
        self, method: str, tool: str, trace: str, ended: bool, error: BaseException | None
    ) -> Fallback:
        what = f"{named(tool or method)} gave no answer within {self.limit:g} s (`backstop`, the outermost limit)."
        if ended:
            what = f"{named(tool or method)} was ended by an error of the program around it ({type(error).__name__})."
        still = f"{what} The work may still be running and may yet take effect."
        if method != TOOL_CALL:
            return Fallback(f"{still} {look(trace)}", trace, tool_call=False)
        if self._sw is None or tool not in self._sw.tools:
            return Fallback(f"{still} Do not call it again before you know what it did. {look(trace)}", trace)
        known, found = await self._ask(_on_record, tool, trace)
        if found is not None and (ended or found.state == OutcomeState.APPLIED.value):
            report = WriteReport.of(found, found.error.for_model() if found.error is not None else None)
            return Fallback(report.message, trace, report)
        sent = not (known and ended)  # what is not on record was not sent
        fate = f"{still} Nobody knows whether it took effect: do not call it again."
        text = f"{fate if sent else f'{what} Nothing was sent for it.'} {look(trace)}"
        key = found.key if found is not None else ""
        report = WriteReport(
            state="unknown" if sent else "not_applied", reason="backstop", message=text, do_not_repeat=sent,
            may_still_land=sent, key=key, trace=trace,
        )  # fmt: skip
        return Fallback(text, trace, report)

    async def _ask(self, question: Callable[..., T], *about: object) -> tuple[bool, T | None]:
        """Ask the ledger something, in one of its threads; return whether it answered, and what."""
        if self._sw is None:
            return False, None
        threads, work = self._sw.threads, partial(question, self._sw, *about)
        return await _aside(asyncio.get_running_loop().run_in_executor(threads, work), "the ledger")


async def _called(fn: Callable[[], Awaitable[T]]) -> T:
    return await fn()


async def _aside(work: Awaitable[T], what: str) -> tuple[bool, T | None]:
    """Await something for a bounded time; whatever becomes of it, the answer goes on."""
    task = asyncio.ensure_future(work)
    ended = await clock().wait_for(task, ASIDE)
    if ended and _error(task) is None:
        return True, task.result()
    _log.warning(
        "safewrite backstop: %s %s", what, "failed" if ended else "took too long", exc_info=_error(task)
    )
    task.cancel()
    return False, None


def _error(task: asyncio.Future[Any]) -> BaseException | None:
    """Return what a task raised, a cancellation included; None while it runs."""
    if not task.done():
        return None
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _on_record(sw: SafeWrite, tool: str, trace: str) -> Outcome[Any] | None:
    intent = sw.ledger.find(trace)
    if intent is None:
        return None
    if intent.identity.tool != tool:
        raise LookupError(f"another tool, {intent.identity.tool!r}, was called last under this trace")
    job = sw.job_for(intent, trace=trace)
    return outcome_of(job, job.look())


def _record(sw: SafeWrite, fell: Fallback) -> None:
    intent = sw.ledger.find(fell.trace)
    if intent is not None:
        carry(sw.job_for(intent, trace=fell.trace).record(Alarmed("backstop", fell.text), heard=False))
