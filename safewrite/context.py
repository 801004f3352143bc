"""Run, turn, deadline and attempt, carried as context variables from the host to the tool.

A run is one execution of an agent, a turn one step of it.  Both come from the host and must be the same when the
host resumes or replays: they are part of every idempotency key.
"""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from safewrite.core.intent import turn_text
from safewrite.deadline import Deadline, deadline_headers
from safewrite.durations import Duration, seconds
from safewrite.errors import ConfigurationError
from safewrite.settings import resolve_settings
from safewrite.shell.clock import clock

if TYPE_CHECKING:
    from safewrite.attempt import Attempt
    from safewrite.outcome import Outcome
    from safewrite.verdicts import NotFetched

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """The run that is open: its id, its deadline, and who acts in it (for the audit)."""

    id: str
    deadline: Deadline | None = None
    call_cap: float | None = None
    agent: str = ""
    missed: list[NotFetched] = field(default_factory=list["NotFetched"], repr=False, compare=False)

    @property
    def not_fetched(self) -> tuple[NotFetched, ...]:
        """What the reads in it did not bring, or not all of, in order."""
        return tuple(self.missed)

    def for_model(self) -> str:
        """Return what to tell a language model of what was not fetched; empty: all was."""
        return "\n".join(dict.fromkeys(one.for_model() for one in self.missed))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What a framework says of the tool call that it carries out, and what it is to hear of it."""

    id: str = ""
    """The framework's own name of it: for the audit, never part of a key."""
    occurrence: str | None = None
    """Of the writes made in it, where `.options` gives none."""
    heard: list[Outcome[Any]] = field(default_factory=list["Outcome[Any]"], compare=False)
    """The outcomes of the writes made in it, in order."""


_run: ContextVar[Run | None] = ContextVar("safewrite_run", default=None)
_turn: ContextVar[str | None] = ContextVar("safewrite_turn", default=None)
_tool_call: ContextVar[ToolCall | None] = ContextVar("safewrite_tool_call", default=None)
_attempt: ContextVar[Attempt | None] = ContextVar("safewrite_attempt", default=None)
_request: ContextVar[Deadline | None] = ContextVar("safewrite_request", default=None)
current_trace: ContextVar[str] = ContextVar("safewrite_trace", default="")
"""The code under which all calls made here can be found again; empty: each call has one of its own."""


class _Scope(Generic[T]):
    """Sets context variables on entry and puts them back on exit, also when the exit is in another context."""

    def __init__(self, values: dict[ContextVar[Any], Any], told: T) -> None:
        self._values, self._told = values, told
        self._tokens: list[tuple[ContextVar[Any], Token[Any]]] = []

    def __enter__(self) -> T:
        if self._tokens:
            raise ConfigurationError(
                "this scope is open already; call `safewrite.run` or `safewrite.turn` anew"
            )
        self._tokens = [(variable, variable.set(value)) for variable, value in self._values.items()]
        return self._told

    def __exit__(self, *exc: object) -> None:
        for variable, token in reversed(self._tokens):
            try:
                variable.reset(token)
            except ValueError:  # the exit runs in another context than the entry
                variable.set(None if token.old_value is Token.MISSING else token.old_value)
        self._tokens = []

    async def __aenter__(self) -> T:
        return self.__enter__()

    async def __aexit__(self, *exc: object) -> None:
        self.__exit__()


def run(
    id: str,
    *,
    deadline: Duration | Deadline | None = None,
    call_cap: Duration | None = None,
    minimum: Duration | None = None,
    agent: str = "",
) -> _Scope[Run]:
    """Open a run: `with safewrite.run("run-42", deadline=18.0, call_cap=9.0): ...`.

    `id` is the host's name of this execution, the same when it resumes.  `deadline` bounds all calls in it together,
    `call_cap` each of them; `minimum` is the least with which a call starts (default: that of a `Deadline` that is
    given, else the setting `minimum`, 1 s).  A run inside a run has its own identity and the smaller deadline and
    cap; its turn must be opened anew.  Raises `ConfigurationError`.
    """
    if not isinstance(id, str) or not id.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"`run` got {id!r}. Write the host's name of this execution, such as 'run-42'."
        )
    outer, above = _run.get(), current_deadline()
    cap = None if call_cap is None else seconds(call_cap, name="call_cap")
    limit = _limit(id, deadline, call_cap, minimum, above)
    if cap is None and limit is not None:
        cap = limit.call_cap
    if outer is not None and outer.call_cap is not None:
        cap = outer.call_cap if cap is None else min(cap, outer.call_cap)
    opened = Run(id, limit, cap, agent or (outer.agent if outer is not None else ""))
    return _Scope({_run: opened, _turn: None, _tool_call: None}, opened)


def _limit(
    id: str,
    deadline: Duration | Deadline | None,
    call_cap: Duration | None,
    minimum: Duration | None,
    above: Deadline | None,
) -> Deadline | None:
    """Return the deadline of a run that lies in `above`."""
    least = None if minimum is None else seconds(minimum, name="minimum", allow_zero=True)
    if deadline is not None and not isinstance(deadline, Deadline):
        floor = resolve_settings().minimum if least is None else least
        return Deadline(deadline, call_cap, floor, origin=f"the argument of run `{id}`", parent=above)
    given = [one for one in (deadline, above) if one is not None]
    if not given or (least is None and all(one is given[0] for one in given)):
        return given[0] if given else None
    return Deadline.first_of(*given, minimum=least)


def turn(id: str | int) -> _Scope[str]:
    """Open a turn of the run that is open: `with safewrite.turn(3): ...`; 3 and "3" are the same turn."""
    try:
        text = turn_text(id)
    except ValueError as bad:
        raise ConfigurationError(str(bad)) from None
    return _Scope({_turn: text}, text)


def tool_call(id: str = "", *, occurrence: str | None = None) -> _Scope[ToolCall]:
    """Carry out a framework's tool call: what it is called there, and which of several equal ones it is."""
    call = ToolCall(id, occurrence)
    return _Scope({_tool_call: call}, call)


def current_run() -> Run | None:
    """Return the open run."""
    return _run.get()


def current_turn() -> str | None:
    """Return the open turn, as text."""
    return _turn.get()


def current_tool_call() -> ToolCall | None:
    """Return the framework's tool call that is being carried out."""
    return _tool_call.get()


def within(deadline: Deadline) -> _Scope[Deadline]:
    """Do something for a request that has a deadline: all that is done in this scope takes it by itself."""
    return _Scope({_request: deadline}, deadline)


def current_deadline() -> Deadline | None:
    """Return the tightest deadline that this code runs under: of the attempt, the run, the request it serves."""
    run, attempt = _run.get(), _attempt.get()
    found = [run.deadline if run is not None else None, _request.get()]
    if attempt is None and found == [None, None]:
        return None
    if attempt is not None:
        left = max(attempt.remaining(), 1e-9)
        found.append(Deadline(left, minimum=0.0, name="what the attempt has left", origin=f"`{attempt.id}`"))
    return min((one for one in found if one is not None), key=Deadline.remaining, default=None)


def onward_headers() -> dict[str, str]:
    """Return the headers that pass the current deadline on with a request; none where there is no deadline."""
    deadline = current_deadline()
    if deadline is None:
        return {}
    left = deadline.remaining()
    return deadline_headers(left, clock().now().unix + left)


def current_attempt() -> Attempt | None:
    """Return the attempt whose body this code runs in: for tools that take no `attempt` parameter."""
    return _attempt.get()
