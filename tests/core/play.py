"""The parts of one explored world: small hashable values, and the real machine with its states numbered."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from safewrite.core import machine
from safewrite.core.commands import Command
from safewrite.core.events import Claimed, Event, Finding, OutcomeState
from safewrite.core.rules import RULES
from safewrite.core.state import State

RANK = {OutcomeState.UNKNOWN: 0, OutcomeState.NOT_APPLIED: 1, OutcomeState.APPLIED: 2}
REPLIES = {
    "ok": Finding(OutcomeState.APPLIED, "returned"),
    "no": Finding(OutcomeState.NOT_APPLIED, "http_422", status=422),
    "412": Finding(OutcomeState.NOT_APPLIED, "http_412", status=412, precondition_failed=True),
    "429": Finding(OutcomeState.NOT_APPLIED, "http_429", again=True, status=429, retry_after=1.0),
    "500": Finding(OutcomeState.UNKNOWN, "http_500", status=500),
    "lost": Finding(OutcomeState.UNKNOWN, "read_timeout"),
    "nothing sent": Finding(OutcomeState.NOT_APPLIED, "not_sent", unsent=True),
    "refused": Finding(OutcomeState.NOT_APPLIED, "connect_refused", again=True),
}


class Broken(Exception):
    """A promise did not hold."""


class Att(NamedTuple):
    """One attempt: what its body and its request do, and what has been recorded of it."""

    intent: int
    number: int
    call: int
    claimed: int
    lease_end: int
    deadline: int
    pre: bool
    same: bool
    body: str = "claimed"
    """`claimed`, `runs`, `left` (goes on without its caller), `ended`, `dead` (its process is)."""
    request: str = ""
    """Empty: not sent; `flies`; `over`: nothing more comes of it; else the reply that waits to be heard."""
    did: bool = False
    """It took effect."""
    start: int = -1
    end: int = -1
    """When its body's end was recorded."""
    concluded: int = -1
    fence: int = -1
    known: str = "u"
    """What the record proves of it: `u`nknown or `n`ot applied."""
    told: bool = False
    """A webhook told of it."""


class Stand(NamedTuple):
    """Where one call stands."""

    does: str = "idle"
    """`idle`, `sends`, `body`, `reads`, `waits`, `watches`, `done`, `dead`."""
    begin: int = 0
    until: float = 0.0
    since: int = 0
    """When its read began."""
    revision: int = 0
    epoch: int = 0
    verdict: str = ""
    failed: bool = False
    read_at: int = -1
    """When its last finished read of its own intent began."""
    looked: tuple[str, ...] = ()
    began_at: int = -1
    """When its last read began, of whichever intent, and at which revision."""
    began_revision: int = 0
    looking: bool = False
    """It reconciles the other intent just now."""
    known: int = 0
    """The machine's state when it claimed, which is all that it knows where the ledger fails."""
    gone: bool = False
    """Others know that its process is gone."""


class Wish(NamedTuple):
    """What has been promised about one intent, and what is true of it at the dependency."""

    effects: int = 0
    first: int = -1
    """When its first effect came."""
    key_at: int = -1
    key_kind: str = ""
    told_not: int = 0
    """Attempts up to this number were told not to take effect, ever."""
    told_settled: int = 0
    told_applied: bool = False
    proven: bool = False
    """An applied outcome is on record."""
    person: str = ""
    burnt: bool = False
    """An error that the dependency replays is on record."""
    begun: bool = False
    beside: bool = False
    """Its first call began after the other intent was told to be applied: a further effect is wanted."""
    after_answer: bool = False
    """The other intent was answered, by the record, before its first call began."""


class World(NamedTuple):
    """One state of the world; `ids` are the machine's states of the intents."""

    t: int
    ids: tuple[int, ...]
    calls: tuple[Stand, ...]
    atts: tuple[Att, ...] = ()
    wishes: tuple[Wish, ...] = ()
    version: int = 0
    goal: bool = False
    ever: bool = False
    """The goal was met at some moment."""
    acts: int = 0
    """How often somebody else acted; a person and a fence act once."""
    fenced: bool = False


class Engine:
    """The real `step`, remembered: states are numbered, so that worlds are small."""

    def __init__(self, alarms: frozenset[str] = frozenset()) -> None:
        self._alarms = alarms
        """The kinds that are due in this world."""
        self.states = [State()]
        self._ids = {self.states[0]: 0}
        self._memo: dict[object, tuple[int, Command]] = {}

    def remembered(self) -> list[tuple[int, Command]]:
        """Return every step taken: the state that it led to, and the command."""
        return list(self._memo.values())

    def step(
        self, at: int, key: object, build: Callable[[], Event], *, licensed: bool = True
    ) -> tuple[int, Command]:
        """Return what follows on state `at`; `key` stands for the event that `build` makes.

        Not `licensed`: a claim is taken as it stands, as by a ledger that is at fault.
        """
        found = self._memo.get((at, key))
        if found is None:
            before, event = self.states[at], build()
            after, command = (machine.step if licensed else machine.refold)(before, event)
            _rises(before, after, event)
            if command.rule not in RULES:
                raise Broken(f"{command} is by no rule of the book")
            for alarm in after.alarms[len(before.alarms) :]:
                if alarm.kind not in self._alarms:
                    raise Broken(f"a false alarm: {alarm.kind}, {alarm.detail}")
            number = self._ids.setdefault(after, len(self.states))
            if number == len(self.states):
                self.states.append(after)
            found = self._memo[at, key] = (number, command)
        return found


def _rises(before: State, after: State, event: Event) -> None:
    """Verdicts only rise, but for the claim; nothing leaves applied."""
    claim = isinstance(event.fact, Claimed) and before.outcome is OutcomeState.NOT_APPLIED
    first = before.revision == 0
    if RANK[after.outcome] < RANK[before.outcome] and not claim and not first:
        raise Broken(f"the intent fell from {before.outcome} to {after.outcome} by {event.fact}")
    for a, b in zip(before.attempts, after.attempts, strict=False):
        if RANK[b.outcome] < RANK[a.outcome]:
            raise Broken(f"attempt {a.number} fell from {a.outcome} to {b.outcome} by {event.fact}")


def twilight(w: World) -> World:
    """Return `w` without what no longer matters where nobody is left to be told: only what still lands does."""
    for c in w.calls:
        if c.does not in ("done", "dead"):
            return w
    done = tuple(Stand(does="done") for _ in w.calls)
    atts = tuple(
        a._replace(body="dead" if a.request == "flies" else "ended", known="u", told=True, concluded=0)
        if a.request == "flies"
        else Att(a.intent, a.number, a.call, 0, 0, 0, False, True, body="ended", request="over")
        for a in w.atts
    )
    wishes = tuple(
        x._replace(proven=False, told_applied=False, after_answer=False, begun=False) for x in w.wishes
    )
    return World(w.t, (0,) * len(w.ids), done, atts, wishes, w.version, acts=2, fenced=True)


def with_call(w: World, i: int, **changes: object) -> World:
    """Return `w` with one call changed."""
    return w._replace(calls=(*w.calls[:i], w.calls[i]._replace(**changes), *w.calls[i + 1 :]))


def with_att(w: World, n: int, **changes: object) -> World:
    """Return `w` with one attempt changed."""
    return w._replace(atts=(*w.atts[:n], w.atts[n]._replace(**changes), *w.atts[n + 1 :]))


def with_wish(w: World, k: int, **changes: object) -> World:
    """Return `w` with one wish changed."""
    return w._replace(wishes=(*w.wishes[:k], w.wishes[k]._replace(**changes), *w.wishes[k + 1 :]))
