"""From a decorated function to its tool: whatever is wrong with a declaration is said here, before any call."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from safewrite.dependency import NO_PROMISES, Dependency
from safewrite.durations import seconds
from safewrite.errors import ConfigurationError
from safewrite.signature import attempt_parameter, names_around, receiver
from safewrite.tool import AllArguments, Options, Tool


def declare(fn: Callable[..., Any], options: Options, place: types.FrameType | None = None) -> Tool:
    """Check a declaration and return its tool; `place` is the frame in which it stands.

    Raises `ConfigurationError`, which says what to write instead.
    """
    mark = f"@sw.{options.kind}"
    if isinstance(fn, staticmethod | classmethod):
        kind = type(fn).__name__
        raise ConfigurationError(f"`{mark}` stands above `@{kind}`. Write `@{kind}` above `{mark}`.")
    if not inspect.isroutine(fn):
        raise ConfigurationError(f"`{mark}` decorates functions; it got {fn!r}.")
    if isinstance(getattr(fn, "tool", getattr(fn, "reading_tool", None)), Tool):
        raise ConfigurationError(f"`{mark}` got `{fn.__qualname__}`, which is guarded already.")
    name = options.name if options.name is not None else fn.__qualname__
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(
            f"`name` is {name!r}. Write the name of the tool, such as 'cancel_subscription'."
        )
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(
            f"`{name}` is a generator: its body does not run when it is called, so nobody could say when it ended. "
            "Return one value.",
            tool=name,
        )
    whole = inspect.signature(fn)
    around = names_around(fn, place)
    attempt = attempt_parameter(fn, whole, around)
    signature = whole.replace(parameters=[p for p in whole.parameters.values() if p.name != attempt])
    tool = Tool(
        fn,
        name,
        options,
        signature,
        attempt,
        receiver(fn, signature),
        options.dependency or NO_PROMISES,
        seconds(options.timeout, name="timeout", allow_none=True),
        seconds(options.idle, name="idle", allow_none=True, none_means="it may be silent"),
        inspect.iscoroutinefunction(fn),
        around=around,
    )
    _check_names(tool)
    _check_values(tool)
    return tool


def check_reconcile(tool: Tool, fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the parameters that a reconcile function takes.  Raises `ConfigurationError` for one it cannot get."""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise ConfigurationError(
            f"the reconcile function of `{tool.name}` is a generator. Return a verdict.", tool=tool.name
        )
    known = {*tool.signature.parameters, "attempt"}
    parameters = inspect.signature(fn).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return tuple(tool.content(tool.signature.parameters))
    for p in parameters:
        if p.name not in known and p.default is p.empty:
            raise ConfigurationError(
                f"the reconcile function of `{tool.name}` takes `{p.name}`, which the tool does not have. "
                f"It may take: {', '.join(sorted(known))}.",
                tool=tool.name,
            )
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            raise ConfigurationError(
                f"the reconcile function of `{tool.name}` takes `{p.name}` by position; it is called by name.",
                tool=tool.name,
            )
    return tuple(p.name for p in parameters if p.name in known)


def _check_names(tool: Tool) -> None:
    o = tool.options
    known = [n for n in tool.signature.parameters if n != tool.receiver]
    target: tuple[str, ...] = ()
    if isinstance(o.target, str):
        target = (o.target,)
    elif isinstance(o.target, tuple):
        target = o.target
    elif not isinstance(o.target, AllArguments) and not callable(o.target):
        raise ConfigurationError(
            f"`target` is {o.target!r}. Write a parameter name, a tuple of names, a function of the arguments, "
            "or `safewrite.ALL_ARGUMENTS`.",
            tool=tool.name,
        )
    if o.target == ():
        raise ConfigurationError("`target` is empty. Name what the write is about.", tool=tool.name)
    precondition = (o.precondition,) if o.precondition is not None else ()
    for option, names in {
        "target": target,
        "free_text": o.free_text,
        "redact": o.redact,
        "precondition": precondition,
    }.items():
        if isinstance(names, str) or not isinstance(names, tuple | list):
            raise ConfigurationError(f"`{option}` is {names!r}. Write a tuple of names.", tool=tool.name)
        for n in names:
            if n not in known:
                raise ConfigurationError(
                    f"`{option}` names `{n}`, which is no parameter of `{tool.name}`. It has: {', '.join(known)}.",
                    tool=tool.name,
                )
    _check_overlaps(tool, target)


def _check_overlaps(tool: Tool, target: tuple[str, ...]) -> None:
    o = tool.options
    for option, names in {"free_text": o.free_text, "redact": o.redact}.items():
        both = [n for n in names if n in target]
        if both:
            raise ConfigurationError(
                f"`{both[0]}` of `{tool.name}` is in `target` and in `{option}`: what the write is about "
                "is compared and recorded.",
                tool=tool.name,
            )


def _check_values(tool: Tool) -> None:
    o = tool.options

    def refuse(name: str, value: object, advice: str) -> None:
        raise ConfigurationError(f"`{name}` of `{tool.name}` is {value!r}. {advice}", tool=tool.name)

    if isinstance(o.max_attempts, bool) or not isinstance(o.max_attempts, int) or o.max_attempts < 1:
        refuse("max_attempts", o.max_attempts, "Write a whole number of at least 1.")
    if o.on_conflict not in ("wait", "refuse"):
        refuse("on_conflict", o.on_conflict, "Write 'wait' or 'refuse'.")
    if o.dependency is not None and not isinstance(o.dependency, Dependency):
        refuse("dependency", o.dependency, "Write `Dependency(...)`.")
    kinds = o.not_applied_on
    if not isinstance(kinds, tuple) or not all(
        isinstance(k, type) and issubclass(k, BaseException) for k in kinds
    ):
        refuse("not_applied_on", kinds, "Write a tuple of exception types.")
    for name, hook in {"applied_when": o.applied_when, "wait": o.wait}.items():
        if hook is not None and not callable(hook):
            refuse(name, hook, "Write a function.")
    if not isinstance(o.idempotent, bool):
        refuse("idempotent", o.idempotent, "Write True if it may be sent twice at once.")
    if o.in_thread is not None and not isinstance(o.in_thread, bool):
        refuse("in_thread", o.in_thread, "Write True, False or None.")
    if o.in_thread is False and o.idle is not None:
        refuse(
            "in_thread",
            o.in_thread,
            "A body on the caller's thread cannot be given up at `idle`: leave it out.",
        )
    if o.in_thread and tool.is_async:
        refuse("in_thread", o.in_thread, "A coroutine function runs on its event loop: leave it out.")
