"""How often this process was forked off: what was opened before a fork belongs to the parent."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakValueDictionary

_generation = 0


class Holder(Protocol):
    """What has something open that a child must not find open."""

    def before_fork(self) -> None:
        """Close it, and keep it closed."""
        ...

    def after_fork(self) -> None:
        """Let it be opened again.  Called in the parent alone."""
        ...


_holders: WeakValueDictionary[int, Holder] = WeakValueDictionary()


def generation() -> int:
    """Return a number that is another one in a child than in its parent."""
    return _generation


def tell(holder: Holder) -> None:
    """Have a holder told of every fork, as long as anybody holds it."""
    _holders[id(holder)] = holder


def _before() -> None:
    for known in _holders.valuerefs():
        holder = known()
        if holder is not None:
            holder.before_fork()


def _after() -> None:
    for known in _holders.valuerefs():
        holder = known()
        if holder is not None:
            holder.after_fork()


def _forked() -> None:
    global _generation
    _generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_forked)
