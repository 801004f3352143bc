"""The time settings of an agent runtime: which origin wins, and what they come to."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence

from safewrite.core.edges import Edge, Ours, edges
from safewrite.core.runtime import Budgets, Given, Limits, Server, budgets, unverified

__all__ = ["Budgets", "Edge", "Given", "Limits", "Ours", "Server", "edges", "runtime_budgets", "unverified"]

_log = logging.getLogger("safewrite")


def runtime_budgets(
    executor: Mapping[str, str] | None = None,
    profile: Mapping[str, str] | None = None,
    servers: Sequence[Server] = (),
) -> Budgets:
    """Return what the time settings of an agent runtime come to, in milliseconds.

    `executor`: the environment in which the agent is started (default: this process's); `profile`: what its profile
    sets.  The first of executor, profile, our managed defaults and the client's own that has a variable wins, and each
    override is logged.  `.environment` is what is to be handed to the client.
    """
    found = budgets(os.environ if executor is None else executor, profile or {}, servers)
    for words in found.overrides:
        _log.info("%s", words)
    return found
