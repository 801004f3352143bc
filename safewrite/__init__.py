"""Write-safety middleware for tools that change things.

At most one applied effect, or an honest `unknown`: see the README for what that means and how it is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from safewrite.attempt import Attempt
    from safewrite.context import current_attempt, current_deadline, onward_headers, run, turn
    from safewrite.deadline import Deadline
    from safewrite.dependency import Dependency
    from safewrite.errors import (
        BreakerOpen,
        BudgetExhausted,
        ConfigurationError,
        DuplicateTool,
        IntentInFlight,
        IntentMismatch,
        LedgerUnavailable,
        MissingTarget,
        NoRunContext,
        NotSent,
        OutcomeUnknown,
        ReadFailed,
        Rejected,
        SafeWriteError,
        SchemaOutdated,
        ValueNotKept,
        WriteNotSent,
        WriteRejected,
    )
    from safewrite.guard import Alert, SafeWrite
    from safewrite.outcome import Outcome
    from safewrite.planning import Plan, plan
    from safewrite.report import WriteReport
    from safewrite.tool import ALL_ARGUMENTS
    from safewrite.verdicts import (
        Applied,
        GoalMet,
        GoalNotMet,
        Inconclusive,
        NotApplied,
        NotFetched,
        Partial,
        StillRunning,
    )

_ROOMS = {
    "attempt": ("Attempt",),
    "context": ("current_attempt", "current_deadline", "onward_headers", "run", "turn"),
    "deadline": ("Deadline",),
    "dependency": ("Dependency",),
    "errors": (
        "BreakerOpen",
        "BudgetExhausted",
        "ConfigurationError",
        "DuplicateTool",
        "IntentInFlight",
        "IntentMismatch",
        "LedgerUnavailable",
        "MissingTarget",
        "NoRunContext",
        "NotSent",
        "OutcomeUnknown",
        "ReadFailed",
        "Rejected",
        "SafeWriteError",
        "SchemaOutdated",
        "ValueNotKept",
        "WriteNotSent",
        "WriteRejected",
    ),
    "guard": ("Alert", "SafeWrite"),
    "outcome": ("Outcome",),
    "planning": ("Plan", "plan"),
    "report": ("WriteReport",),
    "tool": ("ALL_ARGUMENTS",),
    "verdicts": (
        "Applied",
        "GoalMet",
        "GoalNotMet",
        "Inconclusive",
        "NotApplied",
        "NotFetched",
        "Partial",
        "StillRunning",
    ),
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names}

__version__ = "0.1.0"
__all__ = [
    "ALL_ARGUMENTS",
    "Alert",
    "Applied",
    "Attempt",
    "BreakerOpen",
    "BudgetExhausted",
    "ConfigurationError",
    "Deadline",
    "Dependency",
    "DuplicateTool",
    "GoalMet",
    "GoalNotMet",
    "Inconclusive",
    "IntentInFlight",
    "IntentMismatch",
    "LedgerUnavailable",
    "MissingTarget",
    "NoRunContext",
    "NotApplied",
    "NotFetched",
    "NotSent",
    "Outcome",
    "OutcomeUnknown",
    "Partial",
    "Plan",
    "ReadFailed",
    "Rejected",
    "SafeWrite",
    "SafeWriteError",
    "SchemaOutdated",
    "StillRunning",
    "ValueNotKept",
    "WriteNotSent",
    "WriteRejected",
    "WriteReport",
    "current_attempt",
    "current_deadline",
    "onward_headers",
    "plan",
    "run",
    "turn",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use, so that `import safewrite` stays light."""
    room = _HOME.get(name)
    if room is None:
        raise AttributeError(f"module 'safewrite' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"safewrite.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
