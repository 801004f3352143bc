"""The dependency of an explored world: what may come of a request that arrives, and what a read may see.

It honours what the setting declares, and is otherwise as hostile as it may be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.core.play import Att, Broken, World, with_att, with_wish
from tests.core.setting import Setting


def landings(s: Setting, w: World, n: int) -> Iterator[tuple[str, Callable[[], World]]]:
    """Yield what may come of a request that arrives now."""
    a = w.atts[n]
    x = w.wishes[a.intent]
    if s.deadline and s.carries and w.t >= a.deadline:
        yield "too late, refused", lambda: _replied(w, n, "no")
        return
    stale = a.pre and w.version != 0
    known = s.key is not None and s.carries and a.same and x.key_kind and w.t < x.key_at + s.key
    if stale:
        yield "other version, refused", lambda: _replied(w, n, "412")
    if known:
        yield f"known, {x.key_kind} again", lambda: _replied(w, n, x.key_kind)
    if stale or known:
        return
    yield "takes effect", lambda: _effect(s, w, n, "ok")
    if s.errors:
        yield "takes effect, answers 500", lambda: _effect(s, w, n, "500")
        yield (
            "answers 500",
            lambda: _replied(_keyed(s, w, a, "500") if s.replays_errors else w, n, "500"),
        )
    if s.rejects:
        yield "rejected", lambda: _replied(w, n, "no")
    if s.limits:
        yield "asked to wait", lambda: _replied(w, n, "429")


def _effect(s: Setting, w: World, n: int, reply: str) -> World:
    a = w.atts[n]
    x = w.wishes[a.intent]
    if x.effects:
        raise Broken("two effects of one intent")
    if a.number <= x.told_not:
        raise Broken("false not_applied: it took effect after that was told")
    if a.number <= x.told_settled:
        raise Broken("it took effect after it was told that nothing may still land")
    w = with_wish(w, a.intent, effects=1, first=w.t)
    if sum(y.effects for y in w.wishes) > 1 and not any(y.beside or y.person == "not" for y in w.wishes):
        raise Broken("two effects of one wish, asked for in two turns")
    w = _keyed(s, w, a, "500" if reply == "500" and s.replays_errors else "ok")
    return _replied(w._replace(version=w.version + 1, goal=True, ever=True), n, reply, did=True)


def _keyed(s: Setting, w: World, a: Att, kind: str) -> World:
    return with_wish(w, a.intent, key_at=w.t, key_kind=kind) if s.key is not None and s.carries else w


def sights(s: Setting, w: World, k: int) -> list[str]:
    """Return what a read that looks now may see: the newest state, and older ones that the lag allows."""
    if s.reads == "goal":
        now = "goal_met" if w.goal else "goal_not_met"
        older = {"goal_not_met", "goal_met" if w.ever else now} if s.lag != 0.0 else set()
        return sorted({now, *older})
    x = w.wishes[k]
    if not x.effects:
        return ["not_applied"]
    seen = s.lag is not None and x.first + s.lag <= w.t
    return ["applied"] if seen else ["applied", "not_applied"]


def fenced(w: World, k: int) -> World:
    """Return the world in which the attempts made so far are on record as refused from now on."""
    return w._replace(
        atts=tuple(a._replace(fence=w.t) if a.intent == k and a.fence < 0 else a for a in w.atts)
    )


def _replied(w: World, n: int, reply: str, *, did: bool = False) -> World:
    heard = w.atts[n].body in ("runs", "left")
    return with_att(w, n, request=reply if heard else "over", did=did)
