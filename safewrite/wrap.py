"""The decorated function: the same to every reader of signatures and hints, less the attempt."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

from safewrite.calls import CallOptions, Guard
from safewrite.context import current_tool_call
from safewrite.core.intent import turn_text
from safewrite.deadline import Deadline
from safewrite.declaring import check_reconcile
from safewrite.durations import Duration
from safewrite.errors import ConfigurationError, IntentMismatch, MissingTarget, SafeWriteError
from safewrite.outcome import Outcome
from safewrite.signature import own_globals, value_hint
from safewrite.told import value_or_error
from safewrite.tool import Tool

if TYPE_CHECKING:
    from safewrite.report import WriteReport

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=Callable[..., Any])


class Write(Protocol[P, R]):
    """A guarded tool: called like its function, with ways to ask for more."""

    fn: Callable[P, R]
    """The undecorated function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Write, and return the value or raise a typed error."""
        ...

    def reconcile(self, fn: C) -> C:
        """Declare the function that finds out, by observation, whether the write happened."""
        ...

    def outcome(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Write, and return the `Outcome` (awaitable for a coroutine tool); raises only on misuse."""
        ...

    def options(
        self,
        *,
        occurrence: str | int | None = None,
        run: str | None = None,
        turn: str | int | None = None,
        deadline: Duration | Deadline | None = None,
        beside_unknown: bool = False,
    ) -> Write[P, R]:
        """Return this tool with options for its next call."""
        ...

    def as_tool(self) -> Callable[P, Any]:
        """Return this tool for agent frameworks: it returns a `WriteReport` where this one raises."""
        ...

    def peek(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[Any] | None:
        """Return the outcome on record, or None; never sends."""
        ...

    def key(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the idempotency key of this call."""
        ...


def wrapper(guard: Guard, options: CallOptions) -> Write[Any, Any]:
    """Return the function that stands in the place of the decorated one."""
    tool = guard.tool
    made = dressed(tool, _carry(guard, options, value_or_error), tool.hints_as_written)
    made.fn = tool.fn
    made.tool = tool
    made.outcome = _carry(guard, options, _outcome)
    made.reconcile = lambda fn: _reconcile(guard, fn)
    made.options = lambda **given: wrapper(guard, _options(options, given))
    made.as_tool = lambda: _as_tool(guard, options)
    made.peek = lambda *args, **kwargs: guard.peek(options, args, kwargs)
    made.key = lambda *args, **kwargs: guard.identity(options, args, kwargs)[0].key
    return cast("Write[Any, Any]", made)


def _carry(guard: Guard, options: CallOptions, finish: Callable[[Outcome[Any]], Any]) -> Callable[..., Any]:
    """Return a function of the tool's colour that carries out a call and finishes with its outcome."""
    heard = _heard  # the functions below run with the globals of the tool's module: they close over what they need
    if guard.tool.is_async:

        async def acall(*args: Any, **kwargs: Any) -> Any:
            return finish(heard(await guard.acall(options, args, kwargs)))

        return acall

    def call(*args: Any, **kwargs: Any) -> Any:
        return finish(heard(guard.call(options, args, kwargs)))

    return call


def _heard(outcome: Outcome[Any]) -> Outcome[Any]:
    """Return it; the adapter that carries out the framework's tool call, if any, hears of it."""
    within = current_tool_call()
    if within is not None:
        within.heard.append(outcome)
    return outcome


def _outcome(outcome: Outcome[Any]) -> Outcome[Any]:
    """Return it; a mismatch is misuse, and raised even here."""
    if isinstance(outcome.error, IntentMismatch):
        raise outcome.error
    return outcome


def _reconcile(guard: Guard, fn: C) -> C:
    tool = guard.tool
    if tool.reconcile is not None:
        known = getattr(tool.reconcile, "__qualname__", repr(tool.reconcile))
        raise ConfigurationError(f"`{tool.name}` is reconciled by `{known}` already. Keep one of the two.")
    tool.reconcile_parameters = check_reconcile(tool, fn)
    tool.reconcile = fn
    return fn


def _options(before: CallOptions, given: dict[str, Any]) -> CallOptions:
    known = {f.name for f in dataclasses.fields(CallOptions)}
    for name in given:
        if name not in known:
            raise ConfigurationError(f"`.options` has no `{name}`. It has: {', '.join(sorted(known))}.")
    deadline = given.get("deadline")
    if deadline is not None and not isinstance(deadline, Deadline):
        given["deadline"] = Deadline(deadline)
    if given.get("turn") is not None:
        try:
            turn_text(given["turn"])
        except ValueError as bad:
            raise ConfigurationError(str(bad)) from None
    run = given.get("run")
    if run is not None and (not isinstance(run, str) or not run.strip()):
        raise ConfigurationError(f"`run` is {run!r}. Write the host's name of this execution.")
    occurrence = given.get("occurrence")
    if occurrence is not None and (isinstance(occurrence, bool) or not isinstance(occurrence, str | int)):
        raise ConfigurationError(f"`occurrence` is {occurrence!r}. Write text or a whole number.")
    if isinstance(occurrence, str) and not occurrence.strip():
        raise ConfigurationError(f"`occurrence` is {occurrence!r}. Leave it out, or name it.")
    return dataclasses.replace(before, **given)


def _as_tool(guard: Guard, options: CallOptions) -> Callable[..., Any]:
    from safewrite.report import WriteReport

    tool = guard.tool
    hints = dict(tool.hints_as_written)
    returns = value_hint(tool.hints.get("return", Any))  # a verdict is never seen outside
    returns = Any if returns is inspect.Signature.empty else returns
    # The function below runs with the globals of the tool's module: what it needs, it closes over.
    missing, misuse = MissingTarget, _misuse_report
    hints["return"] = typing.Union[returns, WriteReport]  # noqa: UP007 - `returns` may be any form

    carry = _carry(guard, options, _report)
    if tool.is_async:

        async def acall(*args: Any, **kwargs: Any) -> Any:
            try:
                return await carry(*args, **kwargs)
            except missing as error:
                return misuse(error)

        made: Callable[..., Any] = acall
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return carry(*args, **kwargs)
            except missing as error:
                return misuse(error)

        made = call
    clothed: Callable[..., Any] = dressed(tool, made, hints)
    clothed.tool = tool  # type: ignore[attr-defined]
    return clothed


def _report(outcome: Outcome[Any]) -> Any:
    from safewrite.report import WriteReport

    error = outcome.error
    if error is None and not (outcome.evidence == "goal_state" and outcome.may_still_land):
        return outcome.value
    return WriteReport.of(outcome, error.for_model() if error is not None else None)


def _misuse_report(error: SafeWriteError) -> WriteReport:
    from safewrite.report import WriteReport

    return WriteReport(
        state="not_applied",
        reason="missing_target",
        message=error.for_model(),
        do_not_repeat=False,
        key=error.key or "",
    )


def dressed(tool: Tool, made: Callable[..., Any], hints: dict[str, Any]) -> Any:
    """Return `made` with the name, signature and hints of the tool, its globals included.

    Hints written as text are resolved by whoever reads them in the function's own module, so the function must
    have that module's globals; its code needs none of its own.
    """
    fn = tool.fn
    clothed: Any = types.FunctionType(
        made.__code__, own_globals(fn), fn.__name__, made.__defaults__, made.__closure__
    )
    clothed.__kwdefaults__ = made.__kwdefaults__
    clothed.__qualname__, clothed.__module__, clothed.__doc__ = fn.__qualname__, fn.__module__, fn.__doc__
    clothed.__annotations__ = hints
    signature = tool.signature
    if "return" in hints:
        signature = signature.replace(return_annotation=hints["return"])
    clothed.__signature__ = signature
    for name, value in vars(fn).items():
        if name not in ("__wrapped__", "__signature__"):
            clothed.__dict__.setdefault(name, value)
    return clothed
