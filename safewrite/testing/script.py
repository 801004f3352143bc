"""The steps that a scripted dependency can take, and what each of them does to one request.  Pure.

Every step is a function below that returns a `Step`: its name, its parameters and a `Behaviour`, which says in
plain values when the effect is applied and what the caller gets.  A form of the dependency (a process, a
transport, in process) carries out behaviours and knows no names, so a new step is one function here.
As JSON, a step is its name, or an object such as `{"step": "late", "seconds": 2.0}`.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, ParamSpec

_P = ParamSpec("_P")


class Ending(StrEnum):
    """How an exchange ends for the caller."""

    REPLY = "reply"
    CLOSE = "close"
    """The connection is closed in order (FIN), without a reply."""
    RESET = "reset"
    """The connection is reset (RST), without a reply."""
    SILENCE = "silence"
    """Nothing comes, until the caller leaves."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What happens to one request, in this order: wait, apply, answer.  Durations are seconds."""

    wait: float = 0.0
    """Before anything else happens."""
    applies: bool = True
    """Whether the effect is applied at all."""
    apply_after: float | None = None
    """The effect is applied on its own, so long after the request, while the answer goes its own way."""
    ending: Ending = Ending.REPLY
    status: int | None = None
    """The status of the reply; None: the one that follows from what was done."""
    error: str | None = None
    """The code told as `error` in the reply."""
    retry_after: float | str | None = None
    """The header Retry-After; text is sent as it stands, so a date or nonsense can be sent too."""
    cut: int | None = None
    """The connection is reset after so many bytes of the reply."""
    drip: float | None = None
    """The reply takes so long, sent in pieces of `chunk` bytes."""
    chunk: int = 1
    reads: bool = False
    """The step is for a read, not for a write."""
    stale: bool = False
    """The read shows nothing that was applied after the step was scripted."""
    times: int = 1
    """So many requests use the step."""
    lasts: float | None = None
    """Instead of `times`: every request uses it, so long after it was scripted."""

    def __post_init__(self) -> None:
        for name, kind, low, high in _LIMITS:
            value: Any = getattr(self, name)
            number = isinstance(value, kind) and not isinstance(value, bool)
            if value is not None and not (number and low <= value < high):
                raise ValueError(f"`{name}` must be a number from {low} to below {high}, not {value!r}")


_LIMITS: tuple[tuple[str, tuple[type, ...], int, float], ...] = (
    *((name, (int, float), 0, math.inf) for name in ("wait", "apply_after", "drip", "lasts")),
    ("status", (int,), 200, 600),
    ("cut", (int,), 0, math.inf),
    ("chunk", (int,), 1, math.inf),
    ("times", (int,), 1, math.inf),
)


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    """One scripted step: a name of this module, the parameters that it was given, and what they mean."""

    name: str
    parameters: tuple[tuple[str, object], ...]
    behaviour: Behaviour

    def __repr__(self) -> str:
        """Return the step as it is written in a test."""
        order = inspect.signature(BEHAVIOURS[self.name]).parameters
        given = zip(order, self.parameters, strict=False)
        shown = [repr(value) if name == place else f"{name}={value!r}" for place, (name, value) in given]
        return f"{self.name}({', '.join(shown)})"

    def as_json(self) -> dict[str, object]:
        """Return the step in the form that `parse` reads."""
        return {"step": self.name, **dict(self.parameters)}


BEHAVIOURS: dict[str, Callable[..., Step]] = {}
"""Every step by its name."""


def _step(describe: Callable[_P, Behaviour]) -> Callable[_P, Step]:
    signature = inspect.signature(describe)

    @functools.wraps(describe)
    def make(*args: _P.args, **kwargs: _P.kwargs) -> Step:
        given = signature.bind(*args, **kwargs).arguments
        return Step(describe.__name__, tuple(given.items()), describe(*args, **kwargs))

    BEHAVIOURS[describe.__name__] = make
    return make


@_step
def ok() -> Behaviour:
    """Apply and answer: what happens without a script."""
    return Behaviour()


@_step
def slow(seconds: float) -> Behaviour:
    """Wait, then apply and answer, whether or not the caller is still there."""
    return Behaviour(wait=seconds)


@_step
def lose_response() -> Behaviour:
    """Apply, then close the connection without an answer."""
    return Behaviour(ending=Ending.CLOSE)


@_step
def hang_after() -> Behaviour:
    """Apply, then never answer."""
    return Behaviour(ending=Ending.SILENCE)


@_step
def never() -> Behaviour:
    """Read the request, never process it, never answer."""
    return Behaviour(applies=False, ending=Ending.SILENCE)


@_step
def late(seconds: float) -> Behaviour:
    """Never answer; apply so long after the request, whether or not the caller is still there."""
    return Behaviour(apply_after=seconds, ending=Ending.SILENCE)


@_step
def accepted(seconds: float) -> Behaviour:
    """Answer 202 at once; apply so long afterwards."""
    return Behaviour(apply_after=seconds, status=202)


@_step
def reset() -> Behaviour:
    """Reset the connection once the request is read; nothing is processed."""
    return Behaviour(applies=False, ending=Ending.RESET)


@_step
def reset_after() -> Behaviour:
    """Apply, then reset the connection without an answer."""
    return Behaviour(ending=Ending.RESET)


@_step
def reset_at(n: int) -> Behaviour:
    """Apply, answer, and reset the connection after `n` bytes of the answer, counted from its status line."""
    return Behaviour(cut=n)


@_step
def drip(seconds: float, chunk: int = 1) -> Behaviour:
    """Apply, then send the answer in pieces of `chunk` bytes, spread over `seconds`."""
    return Behaviour(drip=seconds, chunk=chunk)


@_step
def error(status: int, retry_after: float | str | None = None) -> Behaviour:
    """Answer with `status`; nothing is applied."""
    return Behaviour(applies=False, status=status, error="scripted", retry_after=retry_after)


@_step
def error_after(status: int = 500) -> Behaviour:
    """Apply, then answer with `status`."""
    return Behaviour(status=status, error="scripted")


@_step
def in_progress() -> Behaviour:
    """Answer 409: a request with this idempotency key is being worked on; nothing is applied."""
    return Behaviour(applies=False, status=409, error="in_progress")


@_step
def key_reused() -> Behaviour:
    """Answer 422: this idempotency key came with another payload; nothing is applied."""
    return Behaviour(applies=False, status=422, error="key_reused")


@_step
def read_fails(status: int = 503) -> Behaviour:
    """Answer the next read with `status`."""
    return Behaviour(reads=True, status=status, error="scripted")


@_step
def read_hangs() -> Behaviour:
    """Never answer the next read."""
    return Behaviour(reads=True, ending=Ending.SILENCE)


@_step
def stale_read(reads: int = 1, seconds: float | None = None) -> Behaviour:
    """Show the next reads only what was applied before this step was scripted.

    It serves so many reads or, where `seconds` is given, every read within that time of the scripting.
    """
    return Behaviour(reads=True, stale=True, times=reads, lasts=seconds)


def parse(given: Step | str | Mapping[str, object]) -> Step:
    """Return the step that a step, a name or a JSON object stands for; ValueError says what is wrong."""
    if isinstance(given, Step):
        return given
    parameters = dict(given) if isinstance(given, Mapping) else {"step": given}
    name = parameters.pop("step", None)
    if not isinstance(name, str) or name not in BEHAVIOURS:
        raise ValueError(f"no step is called {name!r}; there are: {', '.join(sorted(BEHAVIOURS))}")
    try:
        return BEHAVIOURS[name](**parameters)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"step `{name}`: {problem}") from problem


class Used(NamedTuple):
    """The step that one request uses; a stale read shows only the first `horizon` effects (None: all)."""

    step: Step
    horizon: int | None = None


@dataclass(slots=True)
class _Waiting:
    step: Step
    path: str | None
    target: str | None
    horizon: int
    left: int
    until: float | None


class Script:
    """The steps that wait for their requests: each uses the first that fits it, in the order of scripting."""

    def __init__(self) -> None:
        self._waiting: list[_Waiting] = []

    def add(
        self, steps: Iterable[Step], *, path: str | None, target: str | None, effects: int, at: float
    ) -> None:
        """Append steps for `path` and `target` (None: any), scripted when there were so many `effects`."""
        for step in steps:
            lasts = step.behaviour.lasts
            until = None if lasts is None else at + lasts
            self._waiting.append(_Waiting(step, path, target, effects, step.behaviour.times, until))

    def take(self, *, reads: bool, path: str, target: str | None, at: float) -> Used:
        """Use up and return the step for a request; `ok` where none fits."""
        self._waiting = [one for one in self._waiting if one.until is None or at < one.until]
        for one in self._waiting:
            fits = one.path in (None, path) and one.target in (None, target)
            if not fits or one.step.behaviour.reads is not reads:
                continue
            if one.until is None:
                one.left -= 1
            if one.left == 0:
                self._waiting.remove(one)
            return Used(one.step, one.horizon if one.step.behaviour.stale else None)
        return Used(ok())

    def clear(self) -> None:
        """Forget every step."""
        self._waiting.clear()

    def pending(self) -> list[dict[str, object]]:
        """Return the steps that no request has used up."""
        return [{**one.step.as_json(), "path": one.path, "target": one.target} for one in self._waiting]
