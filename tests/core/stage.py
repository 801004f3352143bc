"""What callers of an explored world say to the real machine, and by which clocks."""

from __future__ import annotations

from functools import cache

from safewrite.core.commands import Command
from safewrite.core.events import Asked, Call, Claimed, Event, Fact, Moment, Other, OutcomeState
from safewrite.core.fold import Impossible
from safewrite.core.state import State
from tests.core.play import Broken, Engine, World
from tests.core.setting import Setting

NAMES = "abcd"


class Stage:
    """One setting, and the machine in it."""

    def __init__(self, setting: Setting) -> None:
        self.s = setting
        self.engine = Engine(setting.alarms)
        self.promises = setting.promises
        self.moment = cache(self._moment)
        self._facts = cache(self._facts)  # type: ignore[method-assign]
        self.two = any(c.intent for c in setting.callers)
        self.rows: list[tuple[int, Event]] | None = None
        """Every row that is recorded, with its intent, where somebody collects them."""

    # The machine -----------------------------------------------------------------------------------------

    def state(self, w: World, k: int) -> State:
        """Return the machine's state of intent `k`."""
        return self.engine.states[w.ids[k]]

    def _record(
        self,
        w: World,
        k: int,
        fact: Fact,
        i: int | None,
        observer: int = 0,
        *,
        over: bool = False,
        licensed: bool = True,
    ) -> tuple[World, Command]:
        number, command = self._step(w, k, fact, i, observer, over=over, licensed=licensed)
        return w._replace(ids=(*w.ids[:k], number, *w.ids[k + 1 :])), command

    def _step(
        self,
        w: World,
        k: int,
        fact: Fact,
        i: int | None,
        observer: int = 0,
        *,
        over: bool = False,
        licensed: bool = True,
    ) -> tuple[int, Command]:
        who = observer if i is None else i
        call = None if i is None else self._call_now(w, i)

        def build() -> Event:
            lease_at = Moment(float(w.t), float(w.t), "db") if self.s.skew else None
            return Event(self.moment(w.t, who), fact, call, lease_at, over, self.promises)

        try:
            after = self.engine.step(w.ids[k], (w.t, who, fact, id(call), over), build, licensed=licensed)
        except Impossible as why:
            if self.s.split and isinstance(fact, Claimed):
                raise
            raise Broken(f"impossible: {why}") from why
        if self.rows is not None and not isinstance(fact, Asked):
            self.rows.append((k, build()))
        return after

    def _call_now(self, w: World, i: int) -> Call:
        c, spec = w.calls[i], self.s.callers[i]
        left = max(0.0, float(self._until(w, i) - w.t))
        others = () if c.looking or not self.two else self._others(w, i)
        return self._facts(i, left, c.looking, c.looked, others, spec.quiet or c.looking)

    def _facts(
        self,
        i: int,
        left: float,
        looking: bool,
        looked: tuple[str, ...],
        others: tuple[Other, ...],
        quiet: bool,
    ) -> Call:
        spec, s = self.s.callers[i], self.s
        return Call(
            f"{NAMES[i]}'" if looking else NAMES[i],
            left,
            0 if looking else spec.sends,
            bool(s.reads),
            promises=self.promises,
            lease=left + spec.margin,
            backoff=1.0,
            waits=spec.waits,
            precondition=s.precondition if spec.precondition is None else spec.precondition,
            same_payload=spec.same_payload,
            refusal=spec.refusal,
            others=others,
            looked_at=looked,
            beside_unknown=spec.beside_unknown,
            quiet=quiet,
        )

    def _others(self, w: World, i: int) -> tuple[Other, ...]:
        if not self.two:
            return ()
        k = self.s.callers[i].intent
        other = self.state(w, 1 - k)
        if not other.revision or other.outcome is OutcomeState.NOT_APPLIED:
            return ()
        if other.outcome is OutcomeState.APPLIED and w.wishes[k].after_answer:
            return ()
        return (Other(f"i{1 - k}", f"k{1 - k}", other.outcome, False, self.s.same_content),)

    def _subject(self, w: World, i: int) -> int:
        k = self.s.callers[i].intent
        return 1 - k if w.calls[i].looking else k

    def _until(self, w: World, i: int) -> int:
        return w.calls[i].begin + self.s.callers[i].length

    def _moment(self, t: int, i: int) -> Moment:
        if not self.s.skew:
            return Moment(float(t), float(t), "boot")
        return Moment(float(t + self.s.skew[i]), t + 100.0 * (i + 1), f"boot{i}")
