"""The worlds that are explored: every combination of promises, by one caller and by two, and chosen ones by several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tests.core.setting import EVER, Caller, Setting

SHORT = Caller(length=1, sends=1)
CALL = Caller(length=2, sends=1)
TWICE = Caller(length=2, sends=2)
PAIR = (CALL, CALL)
SHORTS = (SHORT, SHORT)


def pairs() -> Iterator[Setting]:
    """Yield a world with two callers, three attempts and deaths for every combination of promises."""
    for world in combinations():
        yield replace(world, name=f"two callers, {world.name}", callers=(TWICE, SHORT), crashes=True)


def combinations() -> Iterator[Setting]:
    """Yield a world with one caller for every combination of promises."""
    for key, burns, bound, lag, reads, pre, deadline, stall in product(
        (None, 4, EVER), (False, True), (None, 1), (0.0, 1.0, None), ("key", "goal", ""), (False, True),
        (False, True), (None, 1),
    ):  # fmt: skip
        useless = (
            (burns and key is None)
            or (not reads and lag != 0.0)
            or (stall is not None and bound is None)
            or (burns and pre)
        )
        if useless:
            continue
        yield Setting(
            f"key={key} burns={burns} bound={bound} lag={lag} reads={reads or 'none'} precondition={pre} "
            f"deadline={deadline} stall={stall}",
            key=key,
            replays_errors=burns,
            bound=bound,
            lag=lag,
            reads=reads,
            precondition=pre,
            deadline=deadline,
            max_stall=stall,
            callers=(TWICE,),
            horizon=5 if key == 4 else 2,  # long enough for the key to expire
            leaves=True,
            errors=burns,
            actor=pre or reads == "goal",
        )


def chosen() -> Iterator[Setting]:
    """Yield worlds in which several act, each for one kind of trouble."""
    yield Setting("a call sends once", callers=(CALL,), refuses=True, horizon=2)
    yield Setting("a body is left", bound=1, callers=SHORTS, leaves=True, rejects=True, horizon=3)
    yield Setting("a body ends in the very moment", bound=0, callers=(TWICE,), leaves=True)
    yield Setting("a process dies", bound=1, callers=(SHORT, CALL), crashes=True)
    yield Setting("a process dies unknown", bound=1, callers=(SHORT, CALL), crashes=True, known_gone=False)
    yield Setting(
        "a process dies, stalls are bounded", bound=1, max_stall=0, callers=(SHORT, CALL), crashes=True,
        known_gone=False, horizon=5,
    )  # fmt: skip
    yield Setting("the key lasts", key=EVER, callers=(SHORT, SHORT), leaves=True, crashes=True, horizon=3)
    yield Setting("the key lasts, no read", key=EVER, reads="", callers=PAIR, leaves=True, crashes=True)
    yield Setting(
        "three attempts under a key", key=EVER, reads="", callers=(TWICE, CALL), leaves=True, rejects=True
    )
    yield Setting("the key expires", key=4, reads="", callers=PAIR, leaves=True, horizon=7)
    yield Setting("the key expires, three attempts", key=4, reads="", callers=(TWICE, CALL), horizon=4)
    yield Setting(
        "the key expires, leases differ", key=4, bound=1, max_stall=0, reads="", leaves=True, horizon=5,
        callers=(replace(SHORT, margin=4), replace(SHORT, margin=0)),
    )  # fmt: skip
    yield Setting(
        "errors are replayed",
        key=EVER,
        replays_errors=True,
        errors=True,
        bound=1,
        callers=(TWICE, SHORT),
        horizon=3,
    )
    yield Setting(
        "errors are not replayed", key=EVER, errors=True, bound=1, callers=(TWICE, SHORT), horizon=3
    )
    yield Setting("the key is not carried", key=EVER, carries=False, bound=1, callers=(TWICE,), leaves=True)
    yield Setting(
        "another payload", key=EVER, reads="", callers=(CALL, replace(CALL, same_payload=False)), leaves=True
    )
    yield Setting("reads lag", bound=1, lag=2, callers=(TWICE,), leaves=True, fails=True)
    yield Setting(
        "reads lag, nobody knows how far", bound=0, lag=None, callers=SHORTS, leaves=True, horizon=3
    )
    yield Setting("the goal is undone", reads="goal", bound=1, callers=SHORTS, actor=True, horizon=3)
    yield Setting("the deadline is kept", deadline=True, callers=SHORTS, leaves=True, horizon=3)
    yield Setting("the deadline is not carried", deadline=True, carries=False, callers=(TWICE,), leaves=True)
    yield Setting(
        "a precondition", precondition=True, actor=True, callers=SHORTS, leaves=True, rejects=True, horizon=3
    )
    yield Setting(
        "a precondition from the second attempt on", callers=(SHORT, replace(TWICE, precondition=True)), leaves=True,
        horizon=3,
    )  # fmt: skip
    yield Setting(
        "a precondition from the second attempt on, under a key", key=EVER, bound=1, actor=True,
        callers=(SHORT, replace(CALL, precondition=True)), horizon=3,
    )  # fmt: skip
    yield Setting("reads overtake a second send", key=EVER, bound=1, callers=(TWICE, SHORT), horizon=3)
    yield Setting(
        "the ledger cannot be written", key=EVER, unwritable=True, callers=SHORTS, rejects=True, horizon=3
    )
    yield Setting(
        "the ledger cannot be written, and another takes over", key=EVER, reads="", unwritable=True, rejects=True,
        callers=(replace(SHORT, margin=0), SHORT), horizon=3,
    )  # fmt: skip
    yield Setting("others act before the claim", key=EVER, split=True, callers=SHORTS, leaves=True, horizon=3)
    yield Setting("still running", key=EVER, bound=1, running=True, callers=SHORTS, leaves=True, horizon=3)
    yield Setting("asked to wait", limits=True, bound=1, callers=(TWICE, SHORT), horizon=3)
    yield Setting("connections are refused", key=EVER, refuses=True, callers=SHORTS, leaves=True, horizon=3)
    yield Setting("bodies send nothing", declines=True, bound=1, callers=(TWICE, SHORT), horizon=3)
    yield Setting("reads fail", key=4, fails=True, bound=1, callers=SHORTS, leaves=True, horizon=3)
    yield Setting(
        "a caller is cancelled",
        bound=1,
        callers=(replace(TWICE, cancelled=True), SHORT),
        rejects=True,
        horizon=3,
    )
    yield Setting(
        "a person speaks", bound=1, person=True, refuses=True, callers=SHORTS, leaves=True, horizon=3
    )
    yield Setting(
        "a person speaks beside a key", key=EVER, reads="", person=True, refuses=True, callers=SHORTS, leaves=True,
        horizon=3,
    )  # fmt: skip
    yield Setting("a webhook tells", key=EVER, webhook=True, callers=SHORTS, leaves=True, horizon=3)
    yield Setting("a fence", fence=True, callers=SHORTS, leaves=True, horizon=3)
    yield Setting(
        "a call may not send", key=EVER, callers=(SHORT, replace(SHORT, refusal="breaker_open")), leaves=True,
        rejects=True, horizon=3,
    )  # fmt: skip
    yield Setting(
        "a call does not wait", bound=1, callers=(CALL, replace(SHORT, waits=False)), leaves=True, horizon=3
    )
    for name, skew in (("behind", (0, -1)), ("ahead", (0, 1))):
        yield Setting(
            f"another clock, {name}",
            bound=1,
            max_stall=0,
            skew=skew,
            callers=(SHORT, CALL),
            crashes=True,
            horizon=5,
        )
        yield Setting(
            f"another clock, {name}, a deadline", deadline=True, skew=skew, callers=(SHORT, CALL), leaves=True
        )
        yield Setting(
            f"another clock, {name}, a key",
            key=4,
            reads="",
            skew=skew,
            callers=(SHORT, CALL),
            leaves=True,
            horizon=5,
        )
    yield from turns()


def turns() -> Iterator[Setting]:
    """Yield worlds in which a later turn asks for the same again."""
    next_turn = replace(CALL, intent=1)
    shortly = replace(SHORT, intent=1)
    yield Setting(
        "the next turn acts before the claim", bound=1, split=True, callers=(SHORT, shortly), horizon=3
    )
    yield Setting("the next turn asks", bound=1, callers=(SHORT, next_turn), leaves=True, rejects=True)
    yield Setting(
        "the next turn asks, a key", key=EVER, reads="", callers=(SHORT, shortly), leaves=True, crashes=True
    )
    yield Setting("the next turn words it otherwise", bound=1, callers=(SHORT, next_turn), same_content=False)
    yield Setting(
        "the next turn asks for a state", reads="goal", bound=1, actor=True, callers=(SHORT, shortly)
    )
    yield Setting(
        "recovery looks between the turns", horizon=2,
        callers=(SHORT, shortly, replace(SHORT, sends=0, quiet=True)),
    )  # fmt: skip
    yield Setting(
        "the next turn sends beside",
        bound=1,
        callers=(SHORT, replace(next_turn, beside_unknown=True)),
        leaves=True,
    )
    yield Setting(
        "the next turn sends beside, a key", key=EVER, reads="", horizon=3,
        callers=(TWICE, replace(shortly, beside_unknown=True)),
    )  # fmt: skip
    yield Setting("both turns go on", bound=1, callers=(SHORT, shortly, SHORT), refuses=True, horizon=3)
