"""What the columns say, drawn from a row's body and from an intent's state: for people, for SQL, and for `verify`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from safewrite.core.events import Event, Promises
from safewrite.core.machine import MACHINE_VERSION
from safewrite.core.state import AttemptState, State
from safewrite.ledger.model import Identity
from safewrite.ledger.rows import Json, dumps
from safewrite.ledger.texts import stamp_text, storable

Stamp = Callable[[float], Any]
"""Takes Unix seconds; returns an instant as a database holds it: text on SQLite."""

_MOST_MS = 2**53


def audit_columns(body: Json, stamp: Stamp) -> dict[str, Any]:
    """Return the columns of an audit row, but for its number, body and hashes, drawn from its body alone."""
    fact, call, who = body["fact"], body.get("call", {}), body.get("who", {})
    promises = call.get("promises", {}) if call else body.get("promises", {})
    return {
        "intent_id": body["intent"],
        "sequence": body["sequence"],
        "event": body["event"],
        "attempt": fact.get("number"),
        "attempt_id": _text(body.get("attempt_id")),
        "reason": storable(_reason(fact)),
        "occurred_at": stamp(float(body["at"][0])),
        "recorded_at": stamp(body["recorded_at"]),
        "evidence": dumps(who["evidence"]) if "evidence" in who else None,
        "contents": dumps(body["contents"]) if "contents" in body else None,
        "outcome": body["outcome"],
        "command": body["command"],
        "rule": body["decision"]["rule"],
        "machine": body["machine"],
        "granted_ms": who.get("granted_ms"),
        "left_ms": milliseconds(float(call["left"])) if call else None,
        "deadline_at": _deadline(body, stamp),
        "promises": _promises_text(tuple(promises.items())) if promises else None,
        "run": storable(body["run"]),
        "agent": storable(who.get("agent", "")),
        "worker": storable(who.get("worker", "")),
        "person": storable(who.get("person", "")),
        "tool_call_id": storable(who.get("tool_call_id", "")),
        "trace": storable(who.get("trace", "")),
    }


@lru_cache(maxsize=64)
def _promises_text(promises: tuple[tuple[str, Any], ...]) -> str:
    """Every row of a tool has the same."""
    return dumps(dict(promises))


def milliseconds(seconds: float) -> int | None:
    """Return whole milliseconds, or None for a time that has no end."""
    return int(max(seconds * 1000, -_MOST_MS)) if seconds * 1000 < _MOST_MS else None


def _text(value: str | None) -> str | None:
    return None if value is None else storable(value)


def _reason(fact: Json) -> str:
    """Return the code that says most about a fact."""
    found = fact.get("finding")
    if found is not None:
        return str(found["reason"])
    for name in ("reason", "verdict", "kind", "how", "note"):
        if name in fact:
            return str(fact[name])
    return ""


def _deadline(body: Json, stamp: Stamp) -> Any:
    """Return the absolute deadline: the attempt's own where it is claimed, else that of the call."""
    if body["fact"].get("deadline_at") is not None:
        return stamp(float(body["fact"]["deadline_at"]))
    left = float(body["call"]["left"]) if "call" in body else float("inf")
    return stamp(float(body["at"][0]) + left) if milliseconds(left) is not None else None


def identity_columns(identity: Identity, fingerprint: Mapping[str, str], dependency: str) -> dict[str, Any]:
    """Return what an intent's row says of which intent it is."""
    return {
        "namespace": storable(identity.namespace),
        "run": storable(identity.run),
        "turn": storable(identity.turn),
        "tool": storable(identity.tool),
        "target": storable(identity.target),
        "occurrence": storable(identity.occurrence),
        "key": storable(identity.key),
        "wish": identity.wish,
        "fingerprint": dumps(dict(fingerprint)),
        "dependency": storable(dependency),
    }


def intent_columns(state: State, event: Event, stamp: Stamp) -> dict[str, Any]:
    """Return what an intent's row says of its state after `event`, the newest of its rows."""
    promises = event.call.promises if event.call is not None else event.promises or Promises()
    lease, first = state.lease, state.first_claim
    return {
        "outcome": str(state.outcome),
        "evidence": state.evidence,
        "attributable": state.attributable,
        # As of this row: time alone can settle it later.
        "may_still_land": state.may_still_land(promises, event.at),
        "epoch": state.epoch,
        "revision": state.revision,
        "attempts": dumps([_attempt(attempt) for attempt in state.attempts]),
        "applied_sequence": state.applied_at,
        "value_sequence": state.value_at,
        "lease_call": storable(lease.call) if lease is not None else None,
        "lease_owner": storable(lease.owner) if lease is not None else None,
        "lease_expires_at": stamp(lease.since.unix + lease.length) if lease is not None else None,
        "first_claim_at": stamp(first.unix) if first is not None else None,
        "person": storable(state.person),
        "machine": MACHINE_VERSION,
    }


def _attempt(a: AttemptState) -> Json:
    return {
        "number": a.number,
        "id": a.id,
        "call": a.call,
        "claimed_at": stamp_text(a.claimed_at.unix),
        "concluded_at": stamp_text(a.concluded_at.unix) if a.concluded_at is not None else None,
        "outcome": str(a.outcome),
        "evidence": a.evidence,
        "reason": a.reason,
    }
