"""What a test of a mutating tool needs: dependencies that misbehave on request, and can say what they did.

`ScriptedDependency` is a real HTTP server in a process of its own; `script` holds the steps that it can be
told to take.  Names are loaded on first use, and nothing here imports the rest of safewrite.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from safewrite.testing import script
    from safewrite.testing.dependency import ScriptedDependency

__all__ = ["ScriptedDependency", "script"]

_HOMES = {"ScriptedDependency": "safewrite.testing.dependency"}


def __getattr__(name: str) -> object:
    if name == "script":
        return import_module("safewrite.testing.script")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
