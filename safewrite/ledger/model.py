"""What goes into the ledger and comes out of it, as plain values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256

from safewrite.core.events import Call, Claimed, Moment
from safewrite.core.state import State

Contents = Mapping[str, str]
"""Texts that belong to one row, by name.  They are kept apart from it, and can be deleted."""

ARGUMENTS = "arguments"
"""The name under which the arguments of the first row are kept."""
VALUE = "value"
"""The name under which the value of an applied write is kept."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which intent: the parts of its name, and the key derived from them."""

    namespace: str
    run: str
    turn: str
    tool: str
    target: str
    """The canonical text of the target."""
    occurrence: str
    key: str

    @property
    def wish(self) -> str:
        """What is wished for, whatever the turn: the digest of `subject`'s parts, then that of the run.

        One column answers two questions so: equal, the same wish in the same run; equal up to `SUBJECT` digits,
        the same tool and target in any run.
        """
        return _wish(self.namespace, self.tool, self.target, self.run)


SUBJECT = 32
"""How many digits of a wish tell its subject."""


def subject(namespace: str, tool: str, target: str) -> str:
    """Return the digest of a tool and its target: the first `SUBJECT` digits of every wish about them."""
    return _digest(namespace, tool, target)


@lru_cache(maxsize=64)
def _wish(namespace: str, tool: str, target: str, run: str) -> str:
    """Every write asks for it several times."""
    return subject(namespace, tool, target) + _digest(run)


def _digest(*parts: str) -> str:
    # As JSON, so that no two lists of parts run together into one text.
    return sha256(json.dumps(parts).encode()).hexdigest()[:SUBJECT]


@dataclass(frozen=True, slots=True)
class Meta:
    """Who and what stands behind a row: for the audit, never for the machine."""

    worker: str = ""
    agent: str = ""
    person: str = ""
    tool_call_id: str = ""
    trace: str = ""
    granted_ms: int | None = None
    """What the call was granted in all, in milliseconds."""
    dependency: str = ""
    evidence: Mapping[str, object] = field(default_factory=dict)
    """Small and fit for JSON: chain of exceptions, status, digest of the response."""


@dataclass(frozen=True, slots=True)
class Intent:
    """An intent as it stood when it was read or last written.  Operations return the newer one."""

    id: str
    identity: Identity
    state: State
    fingerprint: Mapping[str, str]
    salt: bytes
    head: str
    """The hash of its newest row."""
    created_at: float
    """Unix seconds of its first row."""
    value: str | None = field(default=None, repr=False)
    """The text of its value, where that came along with the reading."""
    whole: bool = True
    """False: the state was not folded from the rows; it holds what a replay needs, and is read anew to add a row."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """What one call brings to `Ledger.ask`: the identity of its intent, and the ledger's questions to the call."""

    identity: Identity
    fingerprint: Callable[[bytes], Mapping[str, str]]
    """Takes the intent's salt; returns a digest for every parameter."""
    arguments: Callable[[], str]
    """Returns the encoded arguments: kept with the first row, if this call makes it."""
    claim: Callable[[int, Call, Moment], Claimed]
    """Makes the fact that claims attempt number n.  May be asked more than once; the recorded one counts."""
    differing: Callable[[Mapping[str, str], Mapping[str, str]], tuple[str, ...]]
    """Takes the recorded fingerprint and this call's; returns the compared parameters that differ."""
    same_payload: Callable[[Mapping[str, str], Mapping[str, str]], bool] | None = None
    """Takes the same two; sets `Call.same_payload`.  `None`: the call says so itself."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The objects that a read found, in its order."""

    objects: tuple[str, ...]
    contents_of: Callable[[int], Contents]
    """Takes the place of the chosen one; returns what is to be kept of it."""
    listed: bool
    """They are all there are (a list was returned), not the one that was looked up."""
