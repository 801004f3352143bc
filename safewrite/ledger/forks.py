"""How often this process was forked off: what was opened before a fork belongs to the parent."""

from __future__ import annotations

import os

_generation = 0


def generation() -> int:
    """Return a number that is another one in a child than in its parent."""
    return _generation


def _forked() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
