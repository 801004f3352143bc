"""`@sw.read`: from a call of a reading tool to what it brought, or to what is said of what it did not."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

from safewrite.calls import Guard
from safewrite.context import current_attempt, current_run, current_turn
from safewrite.core.canonical import Uncanonical, canonical
from safewrite.core.intent import target_text
from safewrite.core.replacing import replace
from safewrite.errors import ReadFailed
from safewrite.shell import read_drivers
from safewrite.shell.job import new_call
from safewrite.shell.pressure import pressure_of
from safewrite.shell.reads import Reading
from safewrite.tool import ALL_ARGUMENTS, Tool
from safewrite.verdicts import NotFetched, Partial
from safewrite.wrap import dressed

if TYPE_CHECKING:
    from safewrite.guard import SafeWrite

P = ParamSpec("P")
R = TypeVar("R")


class Read(Protocol[P, R]):
    """A guarded reading tool: called like its function."""

    fn: Callable[P, R]
    """The undecorated function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Read, and return what the function does, or raise `ReadFailed`."""
        ...

    def as_tool(self) -> Callable[P, Any]:
        """Return this tool for agent frameworks: it returns a `NotFetched` where not all was fetched."""
        ...


class Reader:
    """One reading tool under one `SafeWrite`."""

    def __init__(self, sw: SafeWrite, tool: Tool) -> None:
        self.sw, self.tool = sw, tool
        self._guard = Guard(sw, tool)

    def reading(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Reading:
        """Return one call; no I/O."""
        from safewrite.ledger.model import Identity

        tool, run, inside = self.tool, current_run(), current_attempt()
        arguments, call = tool.bind(args, kwargs), new_call()
        limits, refusal, words = self._guard.allowance(run)
        if tool.options.idempotent and tool.options.in_thread is None and not tool.is_async:
            limits = replace(limits, threaded=True)  # a second copy needs a thread beside the first
        where = (run.id if run is not None else "", current_turn() or "")
        identity = Identity(self.sw.namespace, *where, tool.name, self._about(arguments), "", f"read_{call}")
        return Reading(
            self.sw,
            tool,
            identity,
            arguments,
            limits,
            self.sw.pool,
            pressure_of(tool.system),
            self._guard.meta(run, call, limits, {}),
            run,
            refusal,
            words(0.0) if refusal else "",
            nested=inside is not None,
            passes=inside is not None and inside.settles,
            shares=inside is not None and inside.system == tool.system,
        )

    def _about(self, arguments: Mapping[str, Any]) -> str:
        """Return what a read is about: nothing secret, and nothing that has no canonical form."""
        if self.tool.options.target is not ALL_ARGUMENTS:
            return self.tool.target_text(arguments)
        told: dict[str, Any] = {}
        for name, value in self.tool.content(arguments).items():
            try:
                canonical(value)
            except Uncanonical:  # a client, or a secret
                continue
            if name not in self.tool.secret():
                told[name] = value
        return target_text(told)


def reader(of: Reader) -> Read[Any, Any]:
    """Return the function that stands in the place of the decorated one."""
    hints = dict(of.tool.hints_as_written)
    made = _made(of, hints, _raised, lambda value, _: value)
    made.fn, made.reading_tool = of.tool.fn, of.tool
    returns: Any = typing.Union[of.tool.hints.get("return", Any), NotFetched]  # noqa: UP007 - it may be any form
    made.as_tool = lambda: _made(of, hints | {"return": returns}, _told, _or_part)
    return cast("Read[Any, Any]", made)


def _raised(error: ReadFailed) -> Any:
    raise error


def _told(error: ReadFailed) -> Any:
    return error.about


def _or_part(value: Any, reading: Reading) -> Any:
    if not isinstance(value, Partial):
        return value
    who = reading.identity
    return NotFetched(who.tool, who.target, value.reason, value.reached, True, True, value.value)


def _made(
    of: Reader,
    hints: dict[str, Any],
    told: Callable[[ReadFailed], Any],
    finish: Callable[[Any, Reading], Any],
) -> Any:
    """Return a function of the tool's colour."""
    # It runs with the globals of the tool's module: what it needs, it closes over.
    failed, drive, adrive = ReadFailed, read_drivers.drive, read_drivers.adrive
    if of.tool.is_async:

        async def acall(*args: Any, **kwargs: Any) -> Any:
            reading = of.reading(args, kwargs)
            try:
                return finish(await adrive(reading), reading)
            except failed as error:
                return told(error)

        return dressed(of.tool, acall, hints)

    def call(*args: Any, **kwargs: Any) -> Any:
        reading = of.reading(args, kwargs)
        try:
            return finish(drive(reading), reading)
        except failed as error:
            return told(error)

    return dressed(of.tool, call, hints)
