"""How a row of the evidence tables is written, and how the row for an exception is found.

A table maps (package, class name) to a `Rule`.  Classes are known by name along the method resolution order, so
that nothing here imports the packages it classifies, and a renamed successor (`httpx2`) reads the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from safewrite.core.events import Finding, OutcomeState

SUCCESSORS: Final[Mapping[str, str]] = {"httpx2": "httpx", "httpcore2": "httpcore"}
"""Packages that carry on another one under a new name: new name -> the name in the tables."""

CHAIN_LIMIT: Final = 100
"""How many linked exceptions are looked at; a longer chain is cut there."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: what the class alone proves, and where to look for more."""

    outcome: OutcomeState
    reason: str
    again: bool = False
    inner: Callable[[BaseException], BaseException | None] | None = None
    """For wrappers: the exception inside, which is classified in place of the wrapper."""
    look: Callable[[BaseException, float | None], Finding | None] | None = None
    """Looks closer (the instance, wall time now); None from it: the row stands as it is."""

    def finding(self) -> Finding:
        """Return what the row says by itself."""
        return Finding(self.outcome, self.reason, again=self.again)


Table = Mapping[tuple[str, str], Rule]
"""(package, class name) -> row."""


@dataclass(frozen=True, slots=True)
class Link:
    """One exception of a chain, and how it hangs on the one before."""

    role: str
    """`""` for the first, else `caused by`, `while handling` or `member`."""
    depth: int
    exception: BaseException


def never_sent(reason: str) -> Rule:
    """Return a row for what cannot happen once a byte of the request has left: sending again needs no read."""
    return Rule(OutcomeState.NOT_APPLIED, reason, again=True)


def refused(reason: str) -> Rule:
    """Return a row for a definite no that the same request would get again."""
    return Rule(OutcomeState.NOT_APPLIED, reason)


def unknown(reason: str) -> Rule:
    """Return a row for what both worlds can raise."""
    return Rule(OutcomeState.UNKNOWN, reason)


def take_back(found: Finding, reason: str) -> Finding:
    """Return a finding as unknown: what it proves about one request says nothing about the attempt."""
    return replace(
        found,
        outcome=OutcomeState.UNKNOWN,
        reason=reason,
        again=False,
        proof=False,
        precondition_failed=False,
    )


def package(module: str) -> str:
    """Return the package of a module's name, under the name that the tables use."""
    root = module.partition(".")[0]
    return SUCCESSORS.get(root, root)


def keys(kind: type) -> Iterator[tuple[str, str]]:
    """Return the table keys of a class, nearest first."""
    for base in kind.__mro__:
        yield package(base.__module__), base.__name__


def find(exc: BaseException, table: Table) -> Rule | None:
    """Return the row of the nearest listed class of `exc`, or None where no class of it is listed."""
    return next((table[key] for key in keys(type(exc)) if key in table), None)


def named(exc: BaseException, names: Mapping[tuple[str, str], str]) -> str | None:
    """Return the entry for the nearest of the classes of `exc`, by (package, class name)."""
    return next((names[key] for key in keys(type(exc)) if key in names), None)


def chain(exc: BaseException) -> Iterator[Link]:
    """Return `exc` and all that hangs on it: group members, causes and contexts, suppressed ones too.

    Every exception comes once, however the links run; no more than `CHAIN_LIMIT` of them.
    """
    seen: set[int] = set()
    waiting = [Link("", 0, exc)]
    while waiting and len(seen) < CHAIN_LIMIT:
        link = waiting.pop()
        if id(link.exception) in seen:
            continue
        seen.add(id(link.exception))
        yield link
        waiting.extend(reversed(list(_hanging(link))))


def causes(exc: BaseException) -> Iterator[BaseException]:
    """Return `exc` and its chain of explicit causes: what one layer made of the error of the layer below.

    Unlike `chain`, this never reaches an error of an earlier request.
    """
    seen: set[int] = set()
    link: BaseException | None = exc
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def peek(source: object, *names: str) -> object:
    """Return the first of these attributes that is there and not None, else None; never raises."""
    return next((value for value in map(partial(_attribute, source), names) if value is not None), None)


def _attribute(source: object, name: str) -> object:
    try:
        value: object = getattr(source, name, None)
    except Exception:  # a property of a foreign object may do anything
        return None
    return value


def _hanging(link: Link) -> Iterator[Link]:
    exc, depth = link.exception, link.depth + 1
    if isinstance(exc, BaseExceptionGroup):
        yield from (Link("member", depth, member) for member in exc.exceptions)
    if exc.__cause__ is not None:
        yield Link("caused by", depth, exc.__cause__)
    if exc.__context__ is not None and exc.__context__ is not exc.__cause__:
        yield Link("while handling", depth, exc.__context__)
