"""Which of the objects that a read found is this intent's: an object proves one intent only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from safewrite.core.events import Verdict

BY_KEY = frozenset({"response", "key"})
"""Sources of a claim that name the intent by themselves: a reply of its own, or a look-up by its key."""


class Judgement(NamedTuple):
    """What the candidates prove: a verdict, and which of them (its place) it rests on."""

    verdict: Verdict
    chosen: int | None
    reason: str


def judge(
    candidates: Sequence[str],
    claims: Mapping[str, tuple[str, str]],
    me: str,
    open_intents: int,
    *,
    listed: bool,
) -> Judgement:
    """Return what object ids found by a read prove for intent `me`.

    `claims` maps an object id to the intent that holds it and how that was known (`response`, `key`, `read`);
    `open_intents` counts the intents of this tool and target, this one included, that may have made an object and
    hold none.  `listed` says that the read returned all candidates there are (a list), not the one it looked up.
    """
    for place, found in enumerate(candidates):
        if found in claims and claims[found][0] == me:
            return Judgement(Verdict.APPLIED, place, "claimed")
    # The same object on two pages of a list is one object.
    free = [
        place
        for place, found in enumerate(candidates)
        if found not in claims and found not in candidates[:place]
    ]
    if not listed:
        return Judgement(Verdict.APPLIED, 0, "found") if free else _taken(Verdict.INCONCLUSIVE)
    if not free:
        sure = all(claims[found][1] in BY_KEY for found in candidates)
        return Judgement(Verdict.NOT_APPLIED, None, "no_candidate") if sure else _taken(Verdict.INCONCLUSIVE)
    if len(free) >= open_intents:
        return Judgement(Verdict.APPLIED, free[0], "found")
    return Judgement(Verdict.INCONCLUSIVE, None, "too_few_candidates")


def _taken(verdict: Verdict) -> Judgement:
    return Judgement(verdict, None, "object_of_another_intent")
