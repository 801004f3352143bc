"""Long histories of explored worlds of any make: more callers, attempts and time than can be followed whole."""

from __future__ import annotations

import os
from dataclasses import replace

from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from safewrite.core.machine import refold
from safewrite.core.state import State
from tests.core.catalog import chosen
from tests.core.play import World
from tests.core.setting import EVER, Caller, Setting
from tests.core.world import TICK, Play

EXAMPLES = 5000 if os.environ.get("SAFEWRITE_DEEP") else 300
CHOSEN = list(chosen())
yes = st.booleans()

CALLERS = st.builds(
    Caller,
    intent=st.sampled_from((0, 0, 0, 1)),
    length=st.integers(1, 5),
    sends=st.sampled_from((2, 1, 3, 2, 1, 0)),
    refusal=st.sampled_from(("", "", "", "", "", "breaker_open")),
    waits=st.sampled_from((True, True, False)),
    precondition=st.sampled_from((None, None, False, True)),
    same_payload=st.sampled_from((True, True, False)),
    quiet=st.sampled_from((False, False, False, True)),
    margin=st.integers(0, 3),
    cancelled=yes,
)


def sensible(setting: Setting) -> Setting:
    """Return the setting without what cannot be declared, and without callers whose author gave a false word."""
    callers = tuple(replace(c, sends=0) if c.quiet else c for c in setting.callers)
    callers = (
        replace(callers[0], intent=0, sends=max(1, callers[0].sends), refusal="", quiet=False),
        *callers[1:],
    )
    if not setting.carries:
        # Of a body that nobody heard of, it is believed that it carried what its author says it does.
        return replace(setting, callers=callers[:1], crashes=False, leaves=True, skew=())
    return replace(setting, callers=callers, skew=setting.skew[: len(callers)])


SETTINGS = st.builds(
    Setting,
    name=st.just("any"),
    key=st.sampled_from((None, 4, 6, 10, EVER)),
    replays_errors=yes,
    bound=st.sampled_from((None, 0, 1, 2)),
    lag=st.sampled_from((None, 0.0, 1.0, 2.0)),
    reads=st.sampled_from(("key", "key", "goal", "")),
    precondition=yes,
    deadline=yes,
    max_stall=st.sampled_from((None, 0, 2)),
    carries=st.sampled_from((True, True, True, False)),
    callers=st.lists(CALLERS, min_size=2, max_size=4).map(tuple),
    horizon=st.just(14),
    claims=st.just(8),
    crashes=yes,
    known_gone=yes,
    leaves=yes,
    errors=yes,
    rejects=yes,
    limits=yes,
    refuses=yes,
    fails=yes,
    declines=yes,
    running=yes,
    actor=yes,
    person=st.sampled_from((False, False, True)),
    webhook=yes,
    fence=st.sampled_from((False, False, True)),
    skew=st.sampled_from(((), (), (0, 1, 0, 1), (0, -1, -1, 0))),
    same_content=yes,
    unwritable=yes,
    split=yes,
).map(sensible)


@st.composite
def enlarged(draw: st.DrawFn) -> Setting:
    """Return one of the chosen worlds with longer calls, more of them, and more that can happen."""
    world = draw(st.sampled_from(CHOSEN))
    more = draw(st.integers(0, 1))
    longer = draw(st.integers(0, 2))
    callers = [
        replace(c, length=c.length + longer, sends=c.sends + longer) for c in world.callers if not c.quiet
    ]
    callers += [c for c in world.callers if c.quiet]
    happens = {
        name: getattr(world, name) or draw(yes)
        for name in ("leaves", "errors", "rejects", "refuses", "fails")
    }
    skew = (*world.skew, *world.skew[-1:] * more)
    extra = tuple(callers[-1:] * more) if world.carries else ()
    return sensible(
        replace(world, callers=(*callers, *extra), horizon=world.horizon + 4, claims=8, skew=skew, **happens)
    )


def over(w: World) -> bool:
    """Whether nobody is left to be told, and nothing can land any more."""
    return all(c.does in ("done", "dead") for c in w.calls) and all(a.request != "flies" for a in w.atts)


class Histories(RuleBasedStateMachine):
    """One world, one move after another; every promise is checked in every move."""

    world: World
    play: Play

    @initialize(setting=st.one_of(enlarged(), enlarged(), SETTINGS))
    def begin(self, setting: Setting) -> None:
        self.play = Play(setting)
        self.play.rows = []
        self.world = self.play.start()

    @rule(choice=st.integers(0, 2**16), outcome=st.integers(0, 2**16))
    def move(self, choice: int, outcome: int) -> None:
        moves = list(self.play.moves(self.world))
        if not moves or over(self.world):
            note("the same world from its beginning")
            self.play.rows, self.world = [], self.play.start()
            return
        # Scattered, for what is drawn is mostly small; and time passes seldom, for there are fewer ticks than moves.
        drawn = choice * 2654435761 % 2**32
        quick = [m for m in moves if m[0] != TICK]
        label, follow = quick[drawn % len(quick)] if quick and drawn % 11 else moves[drawn % len(moves)]
        note(label)
        rows, self.play.rows = self.play.rows, []
        worlds = follow()
        assert rows is not None
        self.play.rows = [*rows, *self.play.rows] if worlds else rows
        if worlds:
            self.world = worlds[outcome * 2654435761 % 2**32 % len(worlds)]

    @invariant()
    def the_rows_alone_give_the_same_states(self) -> None:
        states = [State() for _ in self.world.ids]
        for k, row in self.play.rows or ():
            states[k], _ = refold(states[k], row)
        assert states == [self.play.state(self.world, k) for k in range(len(states))]


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=100,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
