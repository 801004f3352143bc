"""Known-bad rules, to be planted one at a time: the explored worlds must catch every one of them.

A mutant is the source of one function with some of its text replaced; shells and ledgers that are at fault are worlds
of their own.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from safewrite.core import fold, machine, state
from tests.core.catalog import chosen
from tests.core.explore import Explored, explore

Edits = tuple[tuple[str, str], ...]
WORLDS = {s.name: s for s in chosen()}


@dataclass(frozen=True)
class Mutant:
    """One bad rule: what it believes, where it is planted, and a world of the sample that catches it."""

    belief: str
    world: str
    where: tuple[Any, str] = (None, "")
    edits: Edits = ()
    also: tuple[tuple[Any, str, str, str], ...] = ()
    """Where else it is planted: the second guard, that would catch it."""
    fault: str = ""
    """Not a rule, but a shell or ledger at fault."""
    sounds: str = ""
    """Words of the one check that must find it, where another would do so as well, or none."""


STATE, ATTEMPT = state.State, state.AttemptState
MUTANTS = (
    # What a read proves
    Mutant(
        "a negative read is a fence", "a body is left", (STATE, "proves_absence"),
        ((" and self.settles_in(promises, began, lag, began_revision) <= 0.0", ""),),
    ),
    Mutant(
        "a negative covers attempts claimed after the read began", "reads overtake a second send",
        (fold, "_read_ended"),
        (
            ("proven = s.proves", "proven = replace(s, attempts=s.attempts[: f.epoch]).proves"),
            ("_each_not(s, f.epoch,", "_each_not(s, s.epoch,"),
        ),
    ),
    Mutant(
        "a state read's negative is proof", "the goal is undone", (fold, "_read_ended"),
        (("case Verdict.NOT_APPLIED if", "case Verdict.NOT_APPLIED | Verdict.GOAL_NOT_MET if"),),
    ),
    Mutant(
        "reads do not lag", "reads lag", (STATE, "proves_absence"),
        (("lag = promises.read_lag", "lag = None if promises.read_lag is None else 0.0"),),
    ),
    Mutant(
        "a lag that is not declared is none", "reads lag, nobody knows how far", (STATE, "proves_absence"),
        (("lag = promises.read_lag", "lag = promises.read_lag or 0.0"),),
    ),
    Mutant(
        "what ended in the very moment of the read ended before it", "a body ends in the very moment",
        (STATE, "proves_absence"), (("lag, began_revision)", "lag)"),),
    ),
    Mutant(
        "a goal that is met was met by us", "the goal is undone", (fold, "_read_ended"),
        (('"goal_state", attributable=False', '"goal_state", attributable=True'),),
    ),
    # How evidence adds up
    Mutant(
        "the last reply decides", "three attempts under a key", (fold, "_refold"),
        (("absent, newest = all(a.outcome is _NOT for a in s.attempts),",
          "absent, newest = all(a.outcome is _NOT for a in s.attempts[-1:]),"),),
    ),
    Mutant(
        "the first reply decides", "three attempts under a key", (fold, "_refold"),
        (("absent, newest = all(a.outcome is _NOT for a in s.attempts),",
          "absent, newest = all(a.outcome is _NOT for a in s.attempts[:1]),"),),
    ),
    Mutant(
        "a late success is of no use", "a body is left", (fold, "_ended"),
        (("s, a, found.outcome,", "s, a, _UNKNOWN if evidence == 'late_response' else found.outcome,"),),
        sounds="applied is on record",
    ),
    Mutant(
        "a late reply takes the verdict down", "a webhook tells", (fold, "_learn"),
        (("if outcome is _NOT and a.open:",
          ("if outcome is _UNKNOWN:\n        s = replace(s, outcome=_UNKNOWN)\n"
           "    if outcome is _NOT and a.open:")),),
        sounds="the intent fell from applied to unknown",
    ),
    Mutant(
        "a late reply takes the attempt down", "a webhook tells", (fold, "_learn"),
        (("if outcome is _NOT and a.open:",
          ("if outcome is _UNKNOWN:\n        a = replace(a, outcome=_UNKNOWN)\n"
           "    if outcome is _NOT and a.open:")),),
        sounds="attempt 1 fell from applied to unknown",
    ),
    Mutant(
        "two replies are two effects", "the key lasts, no read", (fold, "_second_effect"),
        (("if not (one_key and one_object):", "if True:"),), sounds="a false alarm: two_effects",
    ),
    Mutant(
        "a rejection after an unknown attempt is the answer", "three attempts under a key",
        (machine, "_something_open"),
        (("    if c.refusal:\n",
          ("    if s.newest.rejected:\n        return _not_applied('D1', s, '', AnswerKind.REJECTED)\n"
           "    if c.refusal:\n")),),
    ),
    Mutant(
        "a 412 fences attempts without the precondition", "a precondition from the second attempt on, under a key",
        (fold, "_ended"), (("all(x.precondition for x in s.attempts)", "True"),),
    ),
    Mutant(
        "a person's word is told as a proof", "a person speaks beside a key", (fold, "_refold"),
        (('any(a.evidence == "person" for a in s.attempts)', "False"),),
    ),
    Mutant(
        "who speaks last is the evidence", "a person speaks", (fold, "_resolved"),
        (("person=f.by)", "person=f.by, evidence='person')"),),
        sounds="not_applied was told on the word of a person who did not say so",
    ),
    # When an attempt can no longer take effect
    Mutant(
        "the work bound counts from the claim", "a body is left", (ATTEMPT, "settles_in"),
        (("bound - self.ended_at.seconds", "bound - self.claimed_at.seconds"),),
    ),
    Mutant(
        "an expired lease ends the body", "a process dies unknown", (ATTEMPT, "settles_in"),
        (("elif promises.max_stall is not None:", "else:"), ("+ promises.max_stall +", "+")),
    ),
    Mutant(
        "leaving a body ends it", "a body is left", (fold, "_gave_up"), (("ended=False", "ended=True"),)
    ),
    Mutant(
        "a process that is gone was gone when it was last heard of", "a process dies", (fold, "_gone"),
        (("ended=True)))", "ended=True) | {'ended_at': a.claimed_at}))"),),
    ),
    Mutant(
        "a deadline holds though it was not carried", "the deadline is not carried", (ATTEMPT, "settles_in"),
        ((" and self.deadline_carried is not False", ""),),
    ),
    Mutant(
        "clocks agree about a deadline", "another clock, ahead, a deadline", (ATTEMPT, "settles_in"),
        (("allowed + skew + lag - self.claimed_at.seconds_to(now, skew)",
          "allowed + lag - (now.unix - self.claimed_at.unix)"),),
    ),
    Mutant(
        "what was left is settled", "a body is left", (STATE, "may_still_land"), (("return not done", "return False"),)
    ),
    # K and P
    Mutant(
        "a key is good for all of its retention", "the key expires", (STATE, "recognised"),
        (("p.key_retention / 2", "p.key_retention"),),
    ),
    Mutant(
        "a key is as young as the newest claim", "the key expires, three attempts", (STATE, "recognised"),
        (("age = (self.first_claim or now)", "age = self.attempts[-1].claimed_at"),),
    ),
    Mutant(
        "a body that still runs is no matter for the margin", "the key expires, leases differ", (STATE, "recognised"),
        (("max(call.lease, *running, 0.0)", "call.lease"),),
    ),
    Mutant(
        "clocks agree about a key", "another clock, behind, a key", (STATE, "recognised"),
        (("seconds_to(now, -p.clock_skew)", "seconds_to(now, p.clock_skew)"),),
    ),
    Mutant(
        "a key that was not carried is recognised", "the key is not carried", (STATE, "recognised"),
        (("a.key_carried is False or not a.same_payload", "not a.same_payload"),),
    ),
    Mutant(
        "a body that goes on will carry its key", "the key is not carried", (fold, "_gave_up"),
        (("key_carried=f.key_carried", "key_carried=None"),),
    ),
    Mutant(
        "another payload is the same request", "another payload", (STATE, "recognised"),
        (("or self.burnt or not call.same_payload", ""),),
    ),
    Mutant(
        "a replayed error leaves the key as it was", "errors are replayed", (fold, "_ended"),
        (("replace(s, burnt=True)", "s"),),
    ),
    Mutant(
        "a precondition on the retry is enough", "a precondition from the second attempt on", (STATE, "conditional"),
        (("call.precondition and all(a.precondition for a in self.attempts if a.open)", "call.precondition"),),
    ),
    # Sending
    Mutant(
        "an expired lease licenses a send", "a process dies unknown", (machine, "_something_open"),
        (("    if c.refusal:\n",
          "    if s.lease and c.left > 0.0:\n        return Send('K1', s.epoch + 1)\n    if c.refusal:\n"),),
        also=((machine, "withhold", 'return "key_expired"', 'return ""'),),
    ),
    Mutant(
        "a person's word licenses a send", "a person speaks", (machine, "_nothing_open"),
        (("if s.person:", "if False:"),),
    ),
    Mutant(
        "what is still running may be sent again", "still running", (machine, "_something_open"),
        (("None if running else ", ""),),
    ),
    Mutant(
        "the next turn sends beside an open unknown", "the next turn asks", (machine, "_beside"),
        (("still_open = [o for o in c.others if o.outcome is OutcomeState.UNKNOWN]", "still_open = []"),),
    ),
    Mutant(
        "an applied wish of another turn is no matter", "the next turn asks", (machine, "_beside"),
        (("if other.outcome is OutcomeState.APPLIED", "if False"),),
    ),
    Mutant(
        "an open wish of another turn is an applied one", "the next turn asks", (machine, "_beside"),
        (("if other.outcome is OutcomeState.APPLIED", "if other.outcome is not OutcomeState.NOT_APPLIED"),),
        sounds="false applied: the other intent was told to be",
    ),
    Mutant(
        "another turn is noted until it is looked at", "the next turn asks", (machine, "_beside"),
        (("if s.revision == 0:", "if not c.looked_at:"),), sounds="follows a note",
    ),
    Mutant(
        "a second send looks at no other turn", "the next turn sends beside, a key", (machine, "_send_again"),
        (("beside = _beside(s, c)", "beside = None"),),
    ),
    Mutant(
        "recovery tells the model", "recovery looks between the turns", (machine, "_told"),
        ((" and not call.quiet", ""),),
    ),
    Mutant(
        "a call may send as often as it likes", "a call sends once", (machine, "_nothing_open"),
        (("if made >= c.sends:", "if False:"),),
    ),
    Mutant(
        "a third attempt goes by a third rule", "asked to wait", (machine, "_nothing_open"),
        (('"S1" if last is None else "S2"', 'f"S{s.epoch + 1}"'),), sounds="is by no rule of the book",
    ),
    Mutant(
        "a call that may not send may", "a call may not send", (machine, "_nothing_open"),
        (("    if c.refusal:", "    if False:"),),
    ),
    # Just before the body
    Mutant(
        "a claim is good for ever", "a process dies, stalls are bounded", (machine, "withhold"),
        (("if a.claimed_at.seconds_to(now, -skew) >= a.lease.length:", "if False:"),
         ("if call.left <= 0.0 or (", "if False and (")),
    ),
    Mutant(
        "a key is checked once", "the key expires", (machine, "withhold"), (('return "key_expired"', 'return ""'),)
    ),
    # Telling
    Mutant(
        "a refused call was not sent", "a call may not send", (machine, "_something_open"),
        (('return _unknown("B4", s, c, now, c.refusal)', 'return _not_applied("B1", s, c.refusal)'),),
    ),
    Mutant(
        "what could not be recorded is told", "the ledger cannot be written, and another takes over",
        (machine, "unrecorded"), (("if live and earlier and", "if"),),
    ),
    # Precision and progress
    Mutant(
        "a key is never trusted", "the key lasts, no read", (STATE, "recognised"),
        (("p = call.promises", "p = call.promises\n    return False"),),
    ),
    Mutant(
        "nothing settles in time", "asked to wait", (machine, "_look_again"),
        (('return Wait("W3"', 'return None; Wait("W3"'),),
    ),
    Mutant(
        "a read of ours is of no use", "a body is left", (machine, "_something_open"),
        (('return Read("L1")', 'return _unknown("U3", s, c, now, "") if s.epoch else Read("L1")'),),
        sounds="no read since the newest attempt ended",
    ),
    Mutant(
        "a read needs no time", "a body is left", (machine, "_something_open"),
        (('Read("L1") if c.left > READ_FLOOR else', 'Read("L1") if True else'),), sounds="late: Read",
    ),
    Mutant(
        "what settles is waited for, whatever time is left", "reads lag", (machine, "_look_again"),
        (("pause + ON_TIME + READ_FLOOR <= c.left and ", ""),), sounds="a wait of ",
    ),
    Mutant(
        "a negative is never proof", "a body is left", (STATE, "proves_absence"),
        (("lag is not None and", "False and"),), sounds="every attempt is known not to be applied",
    ),
    Mutant(
        "what is unknown may always still land", "reads lag, nobody knows how far", (machine, "_unknown"),
        (("s.may_still_land(c.promises, now)", "True"),), sounds="it is settled, and was told to be able to land",
    ),
    Mutant(
        "reads need no pause", "the goal is undone", (machine, "_look_again"),
        (("if pause > ON_TIME:", "if False:"),),
    ),
    # Shells and ledgers at fault
    Mutant(
        "a claim by epoch is as good as one by revision", "others act before the claim", fault="stale claim"
    ),
    Mutant("look and claim may be two steps", "the next turn acts before the claim", fault="stale claim"),
    Mutant("caller and body may both have won the start", "a body is left", fault="two winners"),
)  # fmt: skip


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """Run with the bad rule in place of the good one."""
    places = [
        (*mutant.where, mutant.edits),
        *((at, name, ((old, new),)) for at, name, old, new in mutant.also),
    ]
    with ExitStack() as undone:
        for where, name, edits in places:
            if where is not None:
                undone.enter_context(_replaced(where, name, edits))
        yield


@contextmanager
def _replaced(where: Any, name: str, edits: Edits) -> Iterator[None]:
    good = getattr(where, name)
    bad = _edited(good, edits)
    folds = {kind: f for kind, f in fold._FOLDS.items() if f is good}
    setattr(where, name, bad)
    fold._FOLDS.update(dict.fromkeys(folds, bad))
    try:
        yield
    finally:
        setattr(where, name, good)
        fold._FOLDS.update(folds)


def _edited(good: Callable[..., Any], edits: Edits) -> Callable[..., Any]:
    text = textwrap.dedent(inspect.getsource(good))
    for old, new in edits:
        assert text.count(old) == 1, f"{good.__qualname__} has no {old!r}, or more than one"
        text = text.replace(old, new)
    names: dict[str, Any] = {}
    exec(compile(text, f"<{good.__qualname__}, edited>", "exec"), good.__globals__, names)
    bad: Callable[..., Any] = names[good.__name__]
    return bad


def hunt(mutant: Mutant, most: int) -> Explored:
    """Explore the mutant's world with the bad rule planted."""
    world = WORLDS[mutant.world]
    if mutant.fault:
        world = replace(world, fault=mutant.fault, split=False)
    with planted(mutant):
        return explore(world, most)
