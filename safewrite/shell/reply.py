"""What the end of a body, or of a reconcile function, says: its value or exception read as a finding or verdict."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from safewrite.core import evidence
from safewrite.core.events import Finding, OutcomeState, Verdict
from safewrite.core.intent import indexable
from safewrite.errors import ConfigurationError
from safewrite.verdicts import Applied, GoalMet, GoalNotMet, Inconclusive, NotApplied, StillRunning


@dataclass(frozen=True, slots=True)
class Reading:
    """How a tool wants its replies read."""

    classify: Callable[[object], object] | None = None
    applied_when: Callable[[object], bool | None] | None = None
    not_applied_on: tuple[type[BaseException], ...] = ()
    single_request: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """How one attempt's body ended."""

    finding: Finding
    value: object = None
    error: BaseException | None = None
    goal: bool = False
    object_id: str | None = None


_CONTROL_FLOW = frozenset({("langgraph", "GraphBubbleUp")})
"""(package, class name) of what frameworks raise to pause or to go elsewhere."""


def passes_through(error: BaseException | None) -> bool:
    """Return whether an exception is a framework's way of pausing: recorded, then raised as it is."""
    return any((c.__module__.partition(".")[0], c.__name__) in _CONTROL_FLOW for c in type(error).__mro__)


def read_error(error: BaseException, reading: Reading, now_unix: float) -> Reply:
    """Return what an exception out of the body says."""
    if passes_through(error) and isinstance(error, reading.not_applied_on):
        return Reply(
            evidence.SAID["not_sent"], error=error
        )  # it pauses before it sends: claimed again on resume
    declared = _declared(error, reading)
    finding = declared or evidence.from_exception(
        error,
        single_request=reading.single_request,
        not_applied_on=reading.not_applied_on,
        now_unix=now_unix,
    )
    return Reply(finding, error=error)


def read_value(value: object, reading: Reading) -> Reply:
    """Return what a value out of the body says."""
    match value:
        case Applied(found, object_id):
            return Reply(Finding(OutcomeState.APPLIED, "returned"), found, object_id=object_text(object_id))
        case GoalMet(found):
            return Reply(Finding(OutcomeState.APPLIED, "goal_met"), found, goal=True)
        case NotApplied():
            return Reply(Finding(OutcomeState.NOT_APPLIED, "not_applied"))
        case GoalNotMet():
            return Reply(Finding(OutcomeState.UNKNOWN, "goal_not_met"))
        case StillRunning():
            return Reply(Finding(OutcomeState.UNKNOWN, "still_running", running=True))
        case Inconclusive(reason):
            return Reply(Finding(OutcomeState.UNKNOWN, reason or "inconclusive"))
    if inspect.isawaitable(value):
        return _not_awaited(value)
    declared = _declared(value, reading) or _judged(value, reading)
    return Reply(declared or evidence.from_value(value, single_request=reading.single_request), value)


def object_text(object_id: object) -> str | None:
    """Return an object's id as text: dependencies count in numbers and UUIDs, too, and some sign what they name."""
    return None if object_id is None else indexable(str(object_id))


def _not_awaited(value: object) -> Reply:
    """A body that was to be awaited, hidden by a decorator between it and the guard: it has not even begun."""
    error = ConfigurationError(
        "the tool returned something to await, so its body is a coroutine that a plain decorator hides. "
        "Put `@sw.write` below that decorator, or make the decorator a coroutine function."
    )
    if inspect.iscoroutine(value) and inspect.getcoroutinestate(value) == inspect.CORO_CREATED:
        value.close()
        return Reply(Finding(OutcomeState.NOT_APPLIED, "not_awaited", again=True), error=error)
    return Reply(Finding(OutcomeState.UNKNOWN, "not_awaited"), error=error)


def _declared(result: object, reading: Reading) -> Finding | None:
    """Return what the dependency's own `classify` says, if it says anything."""
    if reading.classify is None:
        return None
    try:
        said = reading.classify(result)
        return None if said is None else Finding(OutcomeState(str(said)), "classified")
    except Exception:
        return Finding(OutcomeState.UNKNOWN, "classify_failed")


def _judged(value: object, reading: Reading) -> Finding | None:
    if reading.applied_when is None:
        return None
    try:
        said = reading.applied_when(value)
    except Exception:
        return Finding(OutcomeState.UNKNOWN, "applied_when_failed")
    if said is None:
        return Finding(OutcomeState.UNKNOWN, "applied_when_unsure")
    return Finding(OutcomeState.APPLIED if said else OutcomeState.NOT_APPLIED, "applied_when")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a reconcile function said: a verdict, or the objects that it found."""

    verdict: Verdict
    reason: str = ""
    value: object = None
    has_value: bool = False
    candidates: tuple[Applied[object], ...] | None = None
    listed: bool = False


def seen(result: object) -> Seen:
    """Return what the value of a reconcile function says; anything foreign is inconclusive."""
    match result:
        case Applied(value, None):
            return Seen(Verdict.APPLIED, "found", value, True)
        case Applied():
            return Seen(Verdict.APPLIED, "found", candidates=(result,))
        case NotApplied():
            return Seen(Verdict.NOT_APPLIED, "absent")
        case GoalMet(value):
            return Seen(Verdict.GOAL_MET, "goal_met", value, True)
        case GoalNotMet():
            return Seen(Verdict.GOAL_NOT_MET, "goal_not_met")
        case StillRunning():
            return Seen(Verdict.RUNNING, "still_running")
        case Inconclusive(reason):
            return Seen(Verdict.INCONCLUSIVE, reason or "inconclusive")
        case list() if all(isinstance(x, Applied) for x in result):
            if any(x.object_id is None for x in result):
                return Seen(Verdict.INCONCLUSIVE, "candidate_without_object_id")
            return Seen(Verdict.INCONCLUSIVE, "candidates", candidates=tuple(result), listed=True)
        case None:
            return Seen(Verdict.INCONCLUSIVE, "read_returned_nothing")
    return Seen(Verdict.INCONCLUSIVE, "read_returned_no_verdict")


def type_of(error: BaseException | None) -> str | None:
    """Return the full name of an exception's class, for the record."""
    return None if error is None else f"{type(error).__module__}.{type(error).__qualname__}"
