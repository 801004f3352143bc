"""Objects: which of those that a read found is the intent's, and which intent holds which."""

from __future__ import annotations

from safewrite.core.events import Alarmed, Delivered, Ended, Event, OutcomeState, ReadEnded, Verdict
from safewrite.core.objects import judge
from safewrite.core.replacing import replace
from safewrite.ledger.model import SUBJECT, Candidates, Contents, Intent
from safewrite.ledger.texts import storable
from safewrite.ledger.units import Hold, Unit

COLLISION = "object_collision"
"""The alarm where two intents were answered with one object."""


def judged(
    unit: Unit,
    intent: Intent,
    event: Event,
    contents: Contents,
    candidates: Candidates | None,
    dependency: str,
) -> tuple[Event, Contents]:
    """Return a read's event with the verdict that its objects bear out, and the contents that belong to it."""
    fact = event.fact
    if not isinstance(fact, ReadEnded):
        return event, contents
    if candidates is None:
        if fact.verdict is not Verdict.APPLIED or fact.object_id is None:
            return event, contents
        candidates = Candidates((fact.object_id,), lambda _: contents, listed=False)
    judgement = judge(
        candidates.objects,
        _claims(unit, candidates.objects, dependency),
        intent.id,
        _unclaimed(unit, intent),
        listed=candidates.listed,
    )
    chosen = judgement.chosen if judgement.verdict is Verdict.APPLIED else None
    kept = candidates.contents_of(chosen) if chosen is not None else {}
    fact = replace(
        fact,
        verdict=judgement.verdict,
        reason=judgement.reason,
        object_id=candidates.objects[chosen] if chosen is not None else None,
        kept=bool(kept),
    )
    return replace(event, fact=fact), kept


def objects(event: Event, candidates: Candidates | None, dependency: str) -> tuple[Hold, ...]:
    """Return what a unit with this event must hold: a read is judged while nobody else claims an object there."""
    if isinstance(event.fact, ReadEnded):
        found = candidates is not None or event.fact.object_id is not None
        return (Hold(f"object:{dependency}"),) if found else ()
    return (Hold(f"object:{dependency}", shared=True),) if _named(event, candidates)[0] is not None else ()


def claim(
    unit: Unit, intent: Intent, event: Event, candidates: Candidates | None, dependency: str, now: float
) -> tuple[Alarmed, ...]:
    """Claim the object that a fact names; return the alarm for one that another intent holds.  Never fails."""
    object_id, source = _named(event, candidates)
    if object_id is None:
        return ()
    columns = {
        "dependency": storable(dependency),
        "object_id": storable(object_id),
        "intent_id": intent.id,
        "source": source,
        "claimed_at": unit.stamp(now),
    }
    if unit.row(unit.sql.claim_object, columns) is not None:
        return ()
    holder = unit.row(unit.sql.holder, columns)
    if holder is None or holder[0] == intent.id:
        return ()
    return (Alarmed(COLLISION, f"object {object_id} is that of the intent with the key {holder[1]}"),)


def _named(event: Event, candidates: Candidates | None) -> tuple[str | None, str]:
    match event.fact:
        case Ended(object_id=found, finding=finding, goal=False) if finding.outcome is OutcomeState.APPLIED:
            return found, "response"
        case Delivered(object_id=found):
            return found, "response"
        case ReadEnded(object_id=found, verdict=Verdict.APPLIED):
            return found, "read" if candidates is not None and candidates.listed else "key"
        case _:
            return None, ""


def _claims(unit: Unit, objects: tuple[str, ...], dependency: str) -> dict[str, tuple[str, str]]:
    held = {}
    for found in objects:
        asked = {"dependency": storable(dependency), "object_id": storable(found)}
        holder = unit.row(unit.sql.holder, asked)
        if holder is not None:
            held[found] = (str(holder[0]), str(holder[2]))
    return held


def _unclaimed(unit: Unit, intent: Intent) -> int:
    """Count the intents of this tool and target, in any run, that may have made an object and hold none.

    This one is among them also where it is known not to be applied: a read that finds an object doubts just that.
    """
    low = intent.identity.wish[:SUBJECT]
    # Digits end at "f": nothing with this beginning comes after "g".
    found = unit.row(unit.sql.unclaimed, {"low": low, "high": low + "g", "id": intent.id})
    return int(found[0]) if found is not None else 0
