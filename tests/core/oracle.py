"""What the promises allow and what the record proves, reckoned apart from the machine: whole ticks, one clock."""

from __future__ import annotations

from math import inf

from safewrite.core.commands import Answer
from safewrite.core.events import Other
from tests.core.play import Att, World
from tests.core.setting import Setting

OPEN_RULES = ("U1", "U2", "U3")


def landing_ends(s: Setting, a: Att) -> float:
    """Return the tick from which the declared promises forbid that attempt `a` takes effect."""
    ends = [inf]
    if s.bound is not None:
        if a.end >= 0:
            ends.append(a.end + s.bound)
        if s.max_stall is not None:
            ends.append(a.lease_end + s.max_stall + s.bound)
    if s.key is not None and not (s.bound is not None and s.max_stall is not None):
        ends.append(a.start + s.key / 2 + 1)
    return min(ends)


def settles(s: Setting, a: Att) -> float:
    """Return the tick from which what is on record proves that attempt `a` can no longer take effect."""
    ends = [inf]
    if s.bound is not None:
        if a.end >= 0:
            ends.append(a.end + s.bound)
        elif s.max_stall is not None:
            ends.append(a.lease_end + s.max_stall + s.bound)
    if s.deadline and s.carries:
        ends.append(a.deadline)
    if a.fence >= 0:
        ends.append(a.fence)
    return min(ends)


def proven_absent(s: Setting, w: World, k: int, since: int, epoch: int) -> World:
    """Return the world in which a negative read that began at `since` is known to all, where it is proof."""
    open_ = [a for a in w.atts if a.intent == k and a.known == "u"]
    if s.skew or s.reads != "key" or s.lag is None or any(settles(s, a) + s.lag > since for a in open_):
        return w
    if any(since in (a.end, a.fence) for a in open_):
        return w  # in the same tick, nothing says which came first
    atts = (a._replace(known="n") if a in open_ and a.number <= epoch else a for a in w.atts)
    return w._replace(atts=tuple(atts))


def could_do_better(s: Setting, w: World, i: int, k: int, answer: Answer, others: tuple[Other, ...]) -> str:
    """Return what the rules could still have done or known where a caller was told unknown, or nothing."""
    spec, c = s.callers[i], w.calls[i]
    mine = [a for a in w.atts if a.intent == k]
    if answer.rule == "X1":
        return ""  # this caller cannot see the record
    if w.wishes[k].proven:
        return "applied is on record"
    if answer.rule not in OPEN_RULES:
        return ""
    open_ = [a for a in mine if a.known == "u"]
    if not open_:
        return "every attempt is known not to be applied"
    settled = max(settles(s, a) for a in open_)
    if answer.may_still_land and settled <= w.t and not s.skew:
        return "it is settled, and was told to be able to land"
    left = c.begin + spec.length - w.t
    if left <= 0 or s.skew:
        return ""
    if s.reads and c.read_at < max(a.concluded for a in mine):
        return "no read since the newest attempt ended"
    running = c.verdict == "still_running"
    if not running and not others and _may_send(s, w, i, mine, open_, left):
        return "K or P holds, and there is time to send again"
    sees = settled + (s.lag or 0)
    if s.reads and c.read_at < sees < w.t + left:
        return "it settles inside the deadline, and no read began after that"
    return ""


def _may_send(s: Setting, w: World, i: int, mine: list[Att], open_: list[Att], left: float) -> bool:
    if s.replays_errors:
        return False  # whether the key is burnt, which stops P as well, the machine knows; this does not
    spec, newest = s.callers[i], mine[-1]
    made = sum(a.call == i for a in mine)
    if spec.refusal or made >= spec.sends or not (_key_holds(s, w, i, mine, open_) or _version(s, i, open_)):
        return False
    if newest.known == "n" and newest.call == i:
        return False
    pause = max(0, newest.concluded + 1 - w.t) if made else 0
    return pause < left


def _key_holds(s: Setting, w: World, i: int, mine: list[Att], open_: list[Att]) -> bool:
    spec = s.callers[i]
    if s.key is None or not s.carries or not spec.same_payload or not all(a.same for a in open_):
        return False
    if s.replays_errors and s.errors:
        return False  # whether the key is burnt, the machine knows; this does not
    age = w.t - mine[0].claimed
    if s.bound is None or s.max_stall is None:
        return age < s.key / 2
    lease = max([left_of(s, w, i) + spec.margin, *(a.lease_end - w.t for a in open_ if a.end < 0)])
    return age + lease + s.max_stall + s.bound < s.key


def left_of(s: Setting, w: World, i: int) -> int:
    """Return the ticks that call `i` has left."""
    return w.calls[i].begin + s.callers[i].length - w.t


def _version(s: Setting, i: int, open_: list[Att]) -> bool:
    spec = s.callers[i]
    carries = s.precondition if spec.precondition is None else spec.precondition
    return carries and all(a.pre for a in open_)
