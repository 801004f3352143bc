"""What `@sw.write` knows of one tool; `declaring` checks it once."""

from __future__ import annotations

import functools
import inspect
import logging
import random
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from safewrite.core.canonical import Uncanonical, is_missing
from safewrite.core.events import Promises
from safewrite.core.intent import target_text
from safewrite.dependency import Dependency
from safewrite.durations import Duration
from safewrite.errors import ConfigurationError, MissingTarget
from safewrite.shell.reply import Reading
from safewrite.signature import call_by_name, converter, resolved, value_hint, without_input

if typing.TYPE_CHECKING:
    from safewrite.ledger.codec import Codec


_log = logging.getLogger("safewrite")


class AllArguments:
    """The explicit wide choice of a target: every argument but the attempt."""

    def __repr__(self) -> str:
        return "safewrite.ALL_ARGUMENTS"


ALL_ARGUMENTS: Final = AllArguments()
_DATA = (str, bytes, int, float, bool, dict, list, tuple, type(None))
Target = str | tuple[str, ...] | Callable[..., object] | AllArguments
Wait = Callable[[Any], float]
"""A tenacity wait strategy: called with a `RetryCallState`, returns seconds."""


@dataclass(frozen=True, slots=True)
class Options:
    """The arguments of `@sw.write`, as given."""

    target: Target
    name: str | None = None
    dependency: Dependency | None = None
    timeout: Duration | None = None
    max_attempts: int = 3
    wait: Wait | None = None
    free_text: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    precondition: str | None = None
    not_applied_on: tuple[type[BaseException], ...] = ()
    applied_when: Callable[[Any], bool | None] | None = None
    single_request: bool = True
    on_conflict: Literal["wait", "refuse"] = "wait"
    in_thread: bool | None = None
    idle: Duration | None = None
    idempotent: bool = False
    """A read that may be sent twice at once."""
    kind: Literal["write", "read"] = "write"


@dataclass
class Tool:
    """One mutating tool: its function, what its arguments mean, and how its replies are read."""

    fn: Callable[..., Any]
    name: str
    options: Options
    signature: inspect.Signature
    """Without the attempt; with `self`."""
    attempt_parameter: str | None
    receiver: str | None
    """`self` or `cls`, which never enters the key."""
    dependency: Dependency
    timeout: float | None
    idle: float | None
    is_async: bool
    reconcile: Callable[..., Any] | None = None
    reconcile_parameters: tuple[str, ...] = ()
    around: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Local names that the hints use, where the tool was declared."""
    _hints: dict[str, Any] | None = field(default=None, repr=False)
    _adapters: dict[str, Any] = field(default_factory=dict, repr=False)
    _codec: Codec | None = field(default=None, repr=False)
    _argument_codecs: dict[str, Codec] | None = field(default=None, repr=False)
    _secret: frozenset[str] | None = field(default=None, repr=False)
    _promises: dict[float | None, Promises] = field(default_factory=dict, repr=False)
    _parameters: tuple[tuple[str, Any], ...] = field(init=False, repr=False)
    """The name and kind of every parameter, the attempt's included."""
    _positional: tuple[str, ...] = field(init=False, repr=False)
    """The parameters that are passed by position or by name, in order; none where others are passed by place alone."""
    _defaults: dict[str, Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._parameters = tuple((p.name, p.kind) for p in inspect.signature(self.fn).parameters.values())
        here = self.signature.parameters.values()
        usual = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) for p in here)
        self._positional = tuple(p.name for p in here if usual and p.kind is p.POSITIONAL_OR_KEYWORD)
        self._defaults = {p.name: p.default for p in here if p.default is not p.empty}

    # What the shells ask ---------------------------------------------------------------------------------

    @functools.cached_property
    def reading(self) -> Reading:
        """How replies are read: the options are checked by the time it is asked for."""
        o = self.options
        return Reading(self.dependency.classify, o.applied_when, o.not_applied_on, o.single_request)

    def promises(self, max_stall: float | None) -> Promises:
        """Return what is promised, for the machine."""
        known = self._promises.get(max_stall)
        if known is None:
            d = self.dependency
            known = self._promises[max_stall] = Promises(
                d.key_retention, d.replays_errors, d.honours_deadline, d.work_bound, d.read_lag, d.clock_skew,
                max_stall,
            )  # fmt: skip
        return known

    @property
    def system(self) -> str:
        """The name under which budget, breaker and limit are shared: the dependency's, else this tool's own."""
        return self.dependency.name if self.options.dependency is not None else f"tool {self.name}"

    @property
    def hints(self) -> dict[str, Any]:
        """The resolved hints; those that cannot be resolved are left out, and their values taken as they are."""
        if self._hints is None:
            self._hints = resolved(self.fn, self.around)
        return self._hints

    @property
    def hints_as_written(self) -> dict[str, Any]:
        """The function's own annotations, text or not, without the attempt's."""
        return {k: v for k, v in inspect.get_annotations(self.fn).items() if k != self.attempt_parameter}

    @property
    def argument_codecs(self) -> dict[str, Codec]:
        """How each argument is stored."""
        if self._argument_codecs is None:
            from safewrite.ledger.codec import Codec

            names = self.signature.parameters
            self._argument_codecs = {n: Codec(self.hints.get(n, inspect.Signature.empty)) for n in names}
        return self._argument_codecs

    @property
    def codec(self) -> Codec:
        """How values are stored."""
        if self._codec is None:
            from safewrite.ledger.codec import Codec

            self._codec = Codec(value_hint(self.hints.get("return", inspect.Signature.empty)))
        return self._codec

    def as_value(self, value: object) -> object:
        """Return a value that came by another road as this tool would have returned it.

        Raises `ConfigurationError` if it does not fit the return hint.
        """
        hint = value_hint(self.hints.get("return", inspect.Signature.empty))
        if hint in (inspect.Signature.empty, Any):
            return value
        try:
            return converter(hint, inspect.Parameter.KEYWORD_ONLY)(value)
        except ValueError as bad:
            raise ConfigurationError(
                f"a value of `{self.name}` that does not fit its return hint was not recorded: {bad}",
                tool=self.name,
            ) from None

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name: bound, defaulted, validated and converted by the hints.

        Raises `TypeError` as Python does for a call that does not fit, and pydantic's `ValidationError`;
        `ConfigurationError` where plain data stands in the place of `self`.
        """
        if self.receiver is not None and args and type(args[0]) in _DATA:
            # Attributes of a method are those of its function: `obj.cancel.outcome("a")` binds no `obj`.
            raise ConfigurationError(
                f"`{self.name}` is a method, and its `{self.receiver}` would be {type(args[0]).__name__} data. Ask on "
                f"the class, with the instance first: `Class.{self.fn.__name__}.outcome(instance, ...)`.",
                tool=self.name,
            )
        arguments, hints = self._bound(args, kwargs), self.hints
        for name, value in arguments.items():
            hint = hints.get(name, Any)
            if hint is not Any and type(value) is not hint and name != self.receiver:
                arguments[name] = self._convert(name, hint, value)
        return arguments

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        given = {**dict(zip(self._positional, args, strict=False)), **kwargs}
        found, names = {**self._defaults, **given}, self.signature.parameters
        # Every argument has a name of its own, and every name a value: else Python is to say what is wrong.
        if len(given) == len(args) + len(kwargs) and found.keys() == names.keys() and self._positional:
            return {name: found[name] for name in names}
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            error.add_note(f"In a call of `{self.name}`. Nothing was sent.")
            raise
        bound.apply_defaults()
        return dict(bound.arguments)

    def _convert(self, name: str, hint: Any, value: Any) -> Any:
        adapter = self._adapters.get(name)
        if adapter is None:
            adapter = self._adapters[name] = converter(hint, self.signature.parameters[name].kind)
        note = f"In a call of `{self.name}`, for `{name}`. Nothing was sent."
        try:
            return adapter(value)
        except Exception as error:
            if name not in self.secret():
                error.add_note(note)  # pydantic's names the type, not the parameter
                raise
            told = without_input(error, name)
        told.add_note(note)
        try:
            raise told  # outside the handler: it must not bring the other one along
        finally:
            del told  # with its traceback it would hold itself, and the value

    def body(self, arguments: Mapping[str, Any]) -> Callable[[], Any]:
        """Return a call of the function that passes each argument as its parameter wants it."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for name, kind in self._parameters:
            if name not in arguments:
                continue
            if kind is inspect.Parameter.VAR_POSITIONAL:
                args.extend(arguments[name])
            elif kind is inspect.Parameter.VAR_KEYWORD:
                kwargs.update(arguments[name])
            elif kind is inspect.Parameter.KEYWORD_ONLY:
                kwargs[name] = arguments[name]
            else:
                args.append(arguments[name])
        return functools.partial(self.fn, *args, **kwargs)

    def content(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments without the receiver: what is compared, recorded and hashed."""
        return (
            {k: v for k, v in arguments.items() if k != self.receiver} if self.receiver else dict(arguments)
        )

    def target_text(self, arguments: Mapping[str, Any]) -> str:
        """Return the canonical text of the target.

        Raises `MissingTarget` for an empty one and `ConfigurationError` for one that has no canonical form.
        """
        target = self.options.target
        names: tuple[str, ...] = ()
        if isinstance(target, str):
            names, chosen = (target,), arguments[target]
        elif isinstance(target, tuple):
            names, chosen = target, {name: arguments[name] for name in target}
        elif isinstance(target, AllArguments):
            chosen = self.content(arguments)
            names = tuple(chosen)
        else:
            chosen = call_by_name(target, self.content(arguments))
        if is_missing(chosen):
            raise MissingTarget(tool=self.name, parameters=names)
        try:
            return target_text(chosen)
        except Uncanonical as bad:
            raise ConfigurationError(
                f"the target of `{self.name}` cannot be a key: {bad}", tool=self.name
            ) from None

    def left_out(self) -> frozenset[str]:
        """Return the parameters that are recorded, not compared."""
        return frozenset(self.options.free_text)

    def secret(self) -> frozenset[str]:
        """Return the parameters whose values never reach the ledger: declared, or secret by type."""
        if self._secret is None:
            from safewrite.ledger.hints import secret_parameters

            self._secret = frozenset(self.options.redact) | secret_parameters(self.hints)
        return self._secret

    def wait_before(self, number: int, error: BaseException | None = None) -> float:
        """Return what the wait strategy proposes before the `number`-th repetition, after `error`.

        Something was sent by then: a strategy that fails costs its own proposal, never the record.
        """
        if self.options.wait is not None:
            try:
                return _proposed(self.options.wait, number, error)
            except Exception:
                _log.exception("the wait strategy of `%s` failed; the default one is used", self.name)
        return random.uniform(0.0, min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** (max(1, number) - 1)))  # noqa: S311


# Waiting -----------------------------------------------------------------------------------------------------


_FIRST_WAIT, _LONGEST_WAIT = 0.1, 5.0
"""Seconds of the default strategy: `wait_random_exponential(0.1, 5)`, without asking tenacity for every write."""


def _proposed(strategy: Wait, number: int, error: BaseException | None) -> float:
    import tenacity

    state = tenacity.RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
    state.attempt_number = max(1, number)
    # Some strategies ask what went wrong; a read that could not tell raised nothing.
    future = tenacity.Future(state.attempt_number)
    future.set_exception(error if error is not None else TimeoutError("no answer that settles it"))
    state.outcome = future
    return max(0.0, _in_seconds(strategy(state)))


def _in_seconds(proposed: object) -> float:
    """Return a wait in seconds: a number or a `timedelta`.  Raises `TypeError`."""
    if isinstance(proposed, timedelta):
        return proposed.total_seconds()
    return float(proposed)  # type: ignore[arg-type]
