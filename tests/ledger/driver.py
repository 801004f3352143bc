"""A small driver that makes what a call brings to the ledger, and says what it recorded."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from safewrite.core.events import (
    Call,
    Claimed,
    Ended,
    Event,
    Fact,
    Finding,
    Moment,
    OutcomeState,
    Promises,
)
from safewrite.ledger.model import Identity, Intent, Meta, Ticket
from safewrite.ledger.sql import Ledger

APPLIED = Finding(OutcomeState.APPLIED, "returned")
UNKNOWN = Finding(OutcomeState.UNKNOWN, "read_timeout")
REJECTED = Finding(OutcomeState.NOT_APPLIED, "http_422", status=422)

_ids = itertools.count(1)


def _call_id() -> str:
    return f"call-{os.getpid()}-{next(_ids)}"


def moment(seconds: float = 0.0) -> Moment:
    """Return an instant so many seconds after the tests' own beginning."""
    return Moment(1_750_000_000.0 + seconds, seconds, "test")


def digests(salt: bytes, arguments: Mapping[str, str]) -> dict[str, str]:
    """Return a digest for every argument, as a call would."""
    return {name: hashlib.sha256(salt + text.encode()).hexdigest()[:16] for name, text in arguments.items()}


def differing(recorded: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments that differ; `reason` is free text."""
    names = recorded.keys() | now.keys()
    return tuple(sorted(n for n in names if n != "reason" and recorded.get(n) != now.get(n)))


@dataclass(frozen=True)
class Caller:
    """One call of the tool `cancel`: what it brings, and what it does."""

    ledger: Ledger
    run: str = "run-1"
    turn: str = "1"
    target: str = '"sub_1"'
    tool: str = "cancel"
    namespace: str = "default"
    arguments: Mapping[str, str] = field(
        default_factory=lambda: {"sub_id": "sub_1", "reason": "asked for it"}
    )
    call: Call = field(
        default_factory=lambda: Call(_call_id(), 10.0, 3, True, Promises(key_retention=60.0), lease=15.0)
    )
    meta: Meta = field(default_factory=lambda: Meta(worker="worker-1", dependency="billing"))

    def __call__(self, **changes: Any) -> Caller:
        """Return another call."""
        if "call" not in changes:
            changes["call"] = replace(self.call, id=_call_id())
        return replace(self, **changes)

    @property
    def identity(self) -> Identity:
        key = hashlib.sha256(
            repr((self.namespace, self.run, self.turn, self.tool, self.target)).encode("utf-8", "replace")
        )
        return Identity(
            self.namespace, self.run, self.turn, self.tool, self.target, "", f"sw1_{key.hexdigest()[:40]}"
        )

    @property
    def ticket(self) -> Ticket:
        return Ticket(
            self.identity,
            lambda salt: digests(salt, self.arguments),
            lambda: repr(dict(self.arguments)),
            lambda number, call, at: Claimed(
                number,
                f"attempt-{call.id}-{number}",
                "host:1",
                at.unix + 5.0,
                beside=tuple(o.id for o in call.others),
            ),
            differing,
        )

    def ask(self, at: float = 0.0, **changes: Any) -> tuple[Intent, Any]:
        """Ask the ledger what to do."""
        return self.ledger.ask(self.ticket, replace(self.call, **changes), moment(at), self.meta)

    def tell(
        self, intent: Intent, fact: Fact, at: float = 1.0, *, quiet: bool = False, **more: Any
    ) -> tuple[Intent, Any]:
        """Record a fact of this call (or, quiet, of none)."""
        event = Event(moment(at), fact, None if quiet else self.call, promises=self.call.promises)
        return self.ledger.record(intent, event, more.pop("meta", self.meta), **more)

    def end(
        self, intent: Intent, finding: Finding = APPLIED, at: float = 1.0, value: str = '"done"', **more: Any
    ) -> tuple[Intent, Any]:
        """Record that the body of the newest attempt ended."""
        kept = finding.outcome is OutcomeState.APPLIED
        fact = Ended(intent.state.epoch, finding, kept=kept, **more)
        return self.tell(intent, fact, at, contents={"value": value} if kept else {})

    def write(self) -> Intent:
        """Carry out a quiet write."""
        intent, _ = self.ask()
        return self.end(intent)[0]
