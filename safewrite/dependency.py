"""What a dependency promises.  Everything the library decides about an ambiguous write rests on these lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from safewrite.durations import Duration, seconds
from safewrite.errors import ConfigurationError

Classify = Callable[[Any], Any]
"""Takes an exception or a response; returns an outcome, or `None` to leave it to the shipped table."""

LONGEST_NAME = 128
"""Characters of a dependency's name: beside an object's id it fits into an index on every database."""


@dataclass(frozen=True, slots=True, init=False)
class Dependency:
    """A remote system, and what it promises.  What is not declared is not assumed.

    Arguments (durations are seconds or a `timedelta`, and are kept as float seconds):

    - `name`: how ledger, logs and errors call it; at most 128 characters.
    - `key_retention`: how long it recognises an idempotency key; `timedelta.max` (kept as `math.inf`): for ever;
      `None`, the default: it does not.  Declaring it also promises that no request is sent, or takes effect,
      later than half of it after the last check (or, with a work bound and `max_stall`, than their sum).
    - `replays_errors`: it stores a 5xx and replays it under the same key.  Default: False.
    - `honours_deadline`: it refuses to commit after the instant in `X-Request-Deadline-At`.  Default: False.
    - `work_bound`: the longest time, after the body of an attempt was seen to end, in which that attempt can
      still take effect; 0: none at all; `None`, the default: no bound is known.
    - `read_lag`: how long until its reads see a write; 0: at once; `None`, the default: not known.
    - `clock_skew`: the most that any two clocks of workers, database and dependency differ.  Default: 1.0.
    - `max_concurrency`: how many calls of this process may be under way at once; `None`, the default: no limit.
    - `classify`: extends the shipped table of what exceptions and responses mean.

    A promise that is false can lead to a duplicate, which the audit then shows.  Raises `ConfigurationError`,
    which names the argument, its value and what to write.  Two declarations with equal promises are equal.
    """

    name: str
    key_retention: float | None
    replays_errors: bool
    honours_deadline: bool
    work_bound: float | None
    read_lag: float | None
    clock_skew: float
    max_concurrency: int | None
    classify: Classify | None

    def __init__(
        self,
        name: str,
        *,
        key_retention: Duration | None = None,
        replays_errors: bool = False,
        honours_deadline: bool = False,
        work_bound: Duration | None = None,
        read_lag: Duration | None = None,
        clock_skew: Duration = 1.0,
        max_concurrency: int | None = None,
        classify: Classify | None = None,
    ) -> None:
        def keep(field: str, kept: object) -> None:
            object.__setattr__(self, field, kept)  # the instance is frozen

        def label(field: str) -> str:
            return f"Dependency({name!r}).{field}"

        def duration(field: str, value: object, none_means: str = "", **allow: bool) -> None:
            keep(field, seconds(value, name=label(field), none_means=none_means, **allow))

        keep("name", _name(name))
        duration("key_retention", key_retention, "it recognises no key", allow_none=True, allow_infinite=True)
        keep("replays_errors", _flag(replays_errors, label("replays_errors")))
        keep("honours_deadline", _flag(honours_deadline, label("honours_deadline")))
        duration("work_bound", work_bound, "no bound is known", allow_none=True, allow_zero=True)
        duration("read_lag", read_lag, "it is not known", allow_none=True, allow_zero=True)
        duration("clock_skew", clock_skew, allow_zero=True)
        keep("max_concurrency", _places(max_concurrency, label("max_concurrency")))
        keep("classify", _callable(classify, label("classify")))


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise ConfigurationError(
            f"`Dependency.name` is {name!r}. Write the name of the system, such as 'billing'."
        )
    if len(name) > LONGEST_NAME:
        raise ConfigurationError(
            f"`Dependency.name` has {len(name)} characters (`{name[:20]}…`). Write at most {LONGEST_NAME}: the system, "
            "not what it does."
        )
    return name


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"`{name}` is {value!r}. Write True if it promises so, else False.")
    return value


def _places(value: int | None, name: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"`{name}` is {value!r}. Write a whole number of at least 1, or None.")
    return value


def _callable(value: Classify | None, name: str) -> Classify | None:
    if value is not None and not callable(value):
        raise ConfigurationError(
            f"`{name}` is {value!r}. Write a function of one argument, the exception or response, or None."
        )
    return value


NO_PROMISES = Dependency("unnamed")
"""What a tool without a declaration has: nothing is assumed."""
