"""What a test of a mutating tool needs: dependencies that misbehave on request, and time that the test moves.

`ScriptedDependency` is a real HTTP server in a process of its own, or a transport for httpx; `script` holds the
steps that it can be told to take.  `ManualClock` stands in for the clock of the shells, `Lab` lets processes die,
`Case` is what was recorded, `RecordedWorld` runs a tool's own code in it.  Names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from safewrite.audit.cases import Case, CaseUnusable
    from safewrite.testing import script
    from safewrite.testing.clock import ManualClock
    from safewrite.testing.dependency import ScriptedDependency
    from safewrite.testing.lab import Crashed, Lab
    from safewrite.testing.replaying import replay
    from safewrite.testing.world import Ending, RecordedWorld

__all__ = [
    "Case", "CaseUnusable", "Crashed", "Ending", "Lab", "ManualClock", "RecordedWorld", "ScriptedDependency",
    "replay", "script",
]  # fmt: skip

_HOMES = {
    "Case": "safewrite.audit.cases",
    "CaseUnusable": "safewrite.audit.cases",
    "Crashed": "safewrite.testing.lab",
    "Lab": "safewrite.testing.lab",
    "Ending": "safewrite.testing.world",
    "ManualClock": "safewrite.testing.clock",
    "RecordedWorld": "safewrite.testing.world",
    "ScriptedDependency": "safewrite.testing.dependency",
    "replay": "safewrite.testing.replaying",
}


def __getattr__(name: str) -> object:
    if name == "script":
        return import_module("safewrite.testing.script")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
