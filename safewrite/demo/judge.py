"""Whether what the dependency did and what the agent was told agree, and both with what the scenario expects.

Pure: values in, sentences out.  The dependency's side comes from its own ledger alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from safewrite.audit.records import IntentRecord
from safewrite.demo.agent import Told
from safewrite.demo.scenario import Scenario
from safewrite.testing.effects import EffectRow, RequestRow


@dataclass(frozen=True, slots=True)
class Happened:
    """What the dependency holds about one target: what it did, and every request that sent the write."""

    effects: Sequence[EffectRow]
    sent: Sequence[RequestRow]


@dataclass(frozen=True, slots=True)
class Played:
    """A scenario, and what each side says of it."""

    scenario: Scenario
    told: Sequence[Told]
    happened: Happened
    records: Sequence[IntentRecord]
    """The intents about the target, as the ledger has them."""
    claimed: Collection[str]
    """The ids of all attempts in the ledger."""


def problems(played: Played) -> list[str]:
    """Return where the two sides disagree, or something expected is missing; nothing: they agree."""
    return [*_effects(played), *_answers(played), *_requests(played), *_record(played)]


def _effects(p: Played) -> list[str]:
    found, wanted = len(p.happened.effects), p.scenario.effects
    if found > 1:
        return [f"the dependency holds {found} effects of one wish"]
    return [] if found == wanted else [f"the dependency holds {found} effects, {wanted} expected"]


def _answers(p: Played) -> list[str]:
    wanted = [call for call in p.scenario.calls if call.told is not None]
    if len(p.told) != len(wanted):
        return [f"{len(p.told)} answers, {len(wanted)} expected"]
    found: list[str] = []
    for told, call in zip(p.told, wanted, strict=True):
        found += _answer(told, len(p.happened.effects))
        if told.state != call.told:
            found.append(f"told {told.state} (`{told.reason}`), {call.told} expected")
        if told.seconds > call.within:
            found.append(f"answered after {told.seconds:g} s, expected within {call.within:g} s")
    return found


def _answer(told: Told, in_the_end: int) -> list[str]:
    """Hold one answer against the effects there were when it was given, and those there are in the end."""
    if told.state == "applied" and told.effects_then == 0:
        return ["told applied, and the dependency had no effect"]
    if told.state == "not_applied" and in_the_end:
        return ["told not_applied, and the dependency has an effect"]
    if told.state == "unknown" and not told.may_still_land and in_the_end != told.effects_then:
        return ["told that nothing can land any more, and something did"]
    return []


def _requests(p: Played) -> list[str]:
    sent, wanted = p.happened.sent, p.scenario.requests
    found = [] if len(sent) == wanted else [f"the write was sent {len(sent)} times, {wanted} expected"]
    for request in sent:
        attempt = request["headers"].get("x-attempt-id")
        if attempt not in p.claimed:
            found.append(f"attempt {attempt} was sent and is not in the ledger")
    bodies: dict[str | None, set[str]] = {}
    for request in sent:
        key = request["headers"].get("idempotency-key")
        bodies.setdefault(key, set()).add(json.dumps(request["body"], sort_keys=True))
    if any(len(several) > 1 for several in bodies.values()):
        found.append("one idempotency key came with different payloads")
    return found


def _record(p: Played) -> list[str]:
    effects, found = len(p.happened.effects), []
    if any(record.alarms for record in p.records):
        found.append("the ledger holds an alarm")
    outcomes = [record.outcome for record in p.records]
    if "applied" in outcomes and not effects:
        found.append("the ledger says applied, and the dependency has no effect")
    if outcomes and effects and all(outcome == "not_applied" for outcome in outcomes):
        found.append("the ledger says not_applied, and the dependency has an effect")
    return found
