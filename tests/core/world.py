"""Every interleaving of callers, a dependency, crashes and others around the real machine.

Nothing here models the machine: each world holds the numbers of real `State`s, and every move that the machine would
see goes through `machine.step`.  The dependency honours what the setting declares, and is otherwise as hostile as
it may be.  `moves` lists what can happen next; a move whose outcome breaks a promise raises `Broken`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from safewrite.core import machine
from safewrite.core.commands import Answer, Command, Note, Read, ReadOther, Run, Send, Wait, Watch
from safewrite.core.events import (
    Asked,
    Claimed,
    Delivered,
    Ended,
    Event,
    Fenced,
    Finding,
    GaveUp,
    Gone,
    OutcomeState,
    ReadEnded,
    Resolved,
    Verdict,
    Withheld,
)
from safewrite.core.fold import Impossible, fold
from tests.core.dependency import fenced, landings, sights
from tests.core.oracle import landing_ends, proven_absent
from tests.core.play import REPLIES, Att, Broken, Stand, Wish, World, with_att, with_call, with_wish
from tests.core.stage import NAMES, Stage
from tests.core.told import told

ASKED = Asked()
EARLY = 0.01
"""Ticks by which a wait may be cut: the world has whole ticks only."""
TICK = "a tick passes"
Move = tuple[str, Callable[[], list[World]]]


class Play(Stage):
    """One setting, and the moves in it."""

    def start(self) -> World:
        """Return the world before anything happened."""
        wishes = (Wish(),) * (2 if self.two else 1)
        return World(0, (0,) * len(wishes), tuple(Stand() for _ in self.s.callers), wishes=wishes)

    # What can happen -------------------------------------------------------------------------------------

    def moves(self, w: World) -> Iterator[Move]:
        """Yield every move that is possible now: what it is, and how to get the worlds that it leads to.

        The first caller begins at once: whatever begins later is the same world some ticks on.
        """
        if w.calls[0].does == "idle":
            yield "a begins", lambda: self._begin(w, 0)
            return
        if w.t < self.s.horizon:
            yield TICK, lambda: [w._replace(t=w.t + 1)]
        for i in range(len(w.calls)):
            yield from self._of_call(w, i)
        for n in range(len(w.atts)):
            yield from self._of_attempt(w, n)
        yield from self._of_others(w)

    def _of_call(self, w: World, i: int) -> Iterator[Move]:
        c, name = w.calls[i], NAMES[i]
        if c.does == "idle":
            yield f"{name} begins", lambda: self._begin(w, i)
        elif c.does == "waits" and w.t >= c.until - EARLY:
            yield f"{name} has waited", lambda: self._ask(w, i)
        elif c.does == "watches" and self._seen(w, i):
            yield f"{name} looks again", lambda: self._ask(w, i)
        elif c.does == "sends":
            yield f"{name} claims", lambda: self._claim_decided(w, i)
        elif c.does == "reads":
            yield f"{name}'s read ends: {c.verdict}", lambda: self._read_ends(w, i)
        if self.s.callers[i].cancelled and c.does in ("waits", "watches", "reads"):
            yield f"{name} is cancelled", lambda: [with_call(w, i, does="done")]
        if self.s.crashes and c.does not in ("idle", "dead"):
            works = any(a.call == i and a.body in ("claimed", "runs", "left") for a in w.atts)
            if c.does != "done" or works:
                yield f"{name}'s process dies", lambda: [self._dies(w, i)]
        if self.s.known_gone and c.does == "dead" and not c.gone:
            yield f"{name}'s process is known to be gone", lambda: self._gone(w, i)

    def _of_attempt(self, w: World, n: int) -> Iterator[Move]:
        a, who = w.atts[n], _who(w.atts[n])
        cancelled = self.s.callers[a.call].cancelled
        if a.body == "claimed":
            yield f"{who}'s body starts", lambda: self._starts(w, n)
            if self.s.fault == "two winners":
                yield f"{who} is given up before it starts, and starts", lambda: self._both_win(w, n)
            if cancelled:
                yield (
                    f"{who} is cancelled before it starts",
                    lambda: self._withheld(w, n, "cancelled", over=True),
                )
        if a.body in ("runs", "left"):
            for reply in self._endings(a):
                yield f"{who} ends: {reply}", lambda reply=reply: self._ends(w, n, reply)
                if self.s.unwritable and a.body == "runs":
                    yield (
                        f"{who} ends: {reply}, unrecorded",
                        lambda reply=reply: self._unrecorded(w, n, reply),
                    )
        if a.body == "runs" and self.s.leaves:
            yield f"{who} is left to itself", lambda: self._left(w, n)
        if a.body == "runs" and cancelled:
            yield f"{who} is left by a cancelled caller", lambda: self._left(w, n, over=True)
        if a.request == "flies" and landing_ends(self.s, a) > w.t:
            for label, landed in landings(self.s, w, n):
                yield f"{who} arrives: {label}", lambda landed=landed: [landed()]
        if self.s.webhook and a.did and not a.told:
            yield f"a webhook tells of {who}", lambda: self._webhook(w, n)

    def _of_others(self, w: World) -> Iterator[Move]:
        if self.s.actor and w.acts < 2:
            goal = not w.goal
            yield (
                f"somebody else makes the goal {goal}",
                lambda: [w._replace(goal=goal, ever=w.ever or goal, version=w.version + 1, acts=w.acts + 1)],
            )
        if self.s.person and w.wishes[0].begun and not w.wishes[0].person:
            for applied in (True, False):
                yield f"a person says applied={applied}", lambda applied=applied: self._resolved(w, applied)
        if self.s.fence and w.atts and not w.fenced:
            yield "the dependency fences all attempts", lambda: self._fence(w)

    # Callers ---------------------------------------------------------------------------------------------

    def _begin(self, w: World, i: int) -> list[World]:
        k = self.s.callers[i].intent
        if not w.wishes[k].begun:
            told = after = False
            if self.two:
                other = 1 - k
                told, after = w.wishes[other].told_applied, self.state(w, other).answered
            w = with_wish(
                w, k, begun=True, beside=told or self.s.callers[i].beside_unknown, after_answer=after
            )
        return self._ask(with_call(w, i, begin=w.t), i)

    def _ask(self, w: World, i: int) -> list[World]:
        _, command = self._step(w, self._subject(w, i), ASKED, i)
        return self._carry(w, i, command)

    def _carry(self, w: World, i: int, command: Command) -> list[World]:
        """Carry out a command, up to where the world has a say."""
        left = self._until(w, i) - w.t
        if left <= 0 and not isinstance(command, Answer | Note | Run):
            raise Broken(f"late: {command} when no time is left")
        match command:
            case Answer():
                return self._answered(w, i, command)
            case Note(fact=fact):
                w, command = self._record(w, self._subject(w, i), fact, i)
                if isinstance(command, Note):
                    raise Broken(f"livelock: {command} follows a note")
                return self._carry(w, i, command)
            case Send(number=number):
                return self._sends(w, i, number)
            case Run():
                return [with_call(w, i, does="body")]
            case Read():
                return self._reads(w, i)
            case ReadOther():
                return self._ask(with_call(w, i, looking=True, began_at=-1), i)
            case Wait(seconds=seconds):
                if not 0.0 < seconds <= left + EARLY:
                    raise Broken(f"a wait of {seconds} with {left} left")
                return [with_call(w, i, does="waits", until=w.t + seconds)]
            case Watch():
                return [with_call(w, i, does="watches", revision=self.state(w, self._subject(w, i)).revision)]
            case _:
                raise Broken(f"a caller cannot do {command}")

    def _seen(self, w: World, i: int) -> bool:
        s = self.state(w, self._subject(w, i))
        ended = s.lease is None or w.t >= s.lease.since.unix + s.lease.length
        return ended or s.revision != w.calls[i].revision or w.t >= self._until(w, i)

    def _sends(self, w: World, i: int, number: int) -> list[World]:
        if not self.s.split and self.s.fault != "stale claim":
            return self._claim(w, i, number)
        s = self.state(w, self._subject(w, i))
        return [with_call(w, i, does="sends", revision=s.revision, epoch=number)]

    def _claim_decided(self, w: World, i: int) -> list[World]:
        """Claim what was decided some moves ago: only if nothing has happened since, or by whoever is at fault."""
        c, s = w.calls[i], self.state(w, self.s.callers[i].intent)
        by_epoch = self.s.fault == "stale claim" and s.epoch + 1 == c.epoch
        if not by_epoch and (s.revision != c.revision or w.t >= self._until(w, i)):
            return self._ask(w, i)
        try:
            return self._claim(w, i, c.epoch)
        except Impossible:
            return self._ask(w, i)

    def _claim(self, w: World, i: int, number: int) -> list[World]:
        k = self.s.callers[i].intent
        if len(w.atts) >= self.s.claims:
            return []
        spec = self.s.callers[i]
        if spec.refusal or sum(a.call == i for a in w.atts) >= spec.sends:
            raise Broken("sent by a call that may not, or not as often")
        if w.wishes[k].burnt:
            raise Broken("sent under a burnt key")
        if w.calls[i].verdict == "still_running":
            raise Broken("sent beside what is still running")
        call = self._call_now(w, i)
        limit = 1 if self.s.deadline else int(call.left)
        at = self.moment(w.t, i)
        beside = tuple(o.id for o in call.others) if call.beside_unknown else ()
        fact = Claimed(number, f"{k}.{number}", f"p{i}", at.unix + limit, beside)
        w, command = self._record(w, k, fact, i, licensed=self.s.fault != "stale claim")
        if self.two and not beside and any(o.outcome is OutcomeState.UNKNOWN for o in call.others):
            raise Broken("sent beside an open intent with the same wish")
        attempt = Att(
            k,
            number,
            i,
            w.t,
            w.t + int(call.lease),
            int(at.unix) + limit,
            call.precondition,
            call.same_payload,
        )
        if self.s.unwritable:
            w = with_call(w, i, known=w.ids[k])
        return self._carry(w._replace(atts=(*w.atts, attempt)), i, command)

    def _reads(self, w: World, i: int) -> list[World]:
        k = self._subject(w, i)
        s = self.state(w, k)
        c = w.calls[i]
        if c.began_at == w.t and s.concluded <= c.began_revision:
            raise Broken(f"livelock: {NAMES[i]} reads again without a pause, and nothing has ended since")
        now = {"does": "reads", "since": w.t, "revision": s.revision, "epoch": s.epoch}
        now |= {"began_at": w.t, "began_revision": s.revision}
        worlds = [with_call(w, i, verdict=v, **now) for v in sights(self.s, w, k)]
        if self.s.running and any(
            a.intent == k and a.request == "flies" and landing_ends(self.s, a) > w.t for a in w.atts
        ):
            worlds.append(with_call(w, i, verdict="still_running", **now))
        if self.s.fails and not w.calls[i].failed:
            worlds.append(with_call(w, i, verdict="inconclusive", failed=True, **now))
        return worlds

    def _read_ends(self, w: World, i: int) -> list[World]:
        c, k = w.calls[i], self._subject(w, i)
        fact = ReadEnded(Verdict(c.verdict), self.moment(c.since, i), c.revision, c.epoch)
        if c.verdict in ("applied", "goal_met") and any(a.known == "u" for a in w.atts if a.intent == k):
            w = with_wish(w, k, proven=True)
        if c.verdict == "applied":
            w = with_wish(w, k, proven=True)
        if c.verdict == "not_applied":
            w = proven_absent(self.s, w, k, c.since, c.epoch)
        w, command = self._record(w, k, fact, i)
        read_at, running = (
            (c.read_at if c.looking else c.since),
            c.verdict if c.verdict == "still_running" else "",
        )
        w = with_call(w, i, read_at=read_at, since=0, revision=0, epoch=0, verdict=running)
        return self._carry(w, i, command)

    def _dies(self, w: World, i: int) -> World:
        atts = [
            a._replace(body="dead", request="over" if a.body == "claimed" else a.request)
            if a.call == i and a.body in ("claimed", "runs", "left")
            else a
            for a in w.atts
        ]
        return with_call(w._replace(atts=tuple(atts)), i, does="dead")

    def _gone(self, w: World, i: int) -> list[World]:
        observer = next((j for j in range(len(w.calls)) if j != i), i)
        for k in range(len(w.ids)):
            if self.state(w, k).revision:
                w, _ = self._record(w, k, Gone(f"p{i}"), None, observer)
        atts = [
            a._replace(end=w.t, concluded=w.t) if a.call == i and a.body == "dead" and a.end < 0 else a
            for a in w.atts
        ]
        return [with_call(w._replace(atts=tuple(atts)), i, gone=True)]

    # Bodies ----------------------------------------------------------------------------------------------

    def _starts(self, w: World, n: int) -> list[World]:
        a = w.atts[n]
        state = self.state(w, a.intent)
        reason = machine.withhold(state, a.number, self._call_now(w, a.call), self.moment(w.t, a.call))
        if reason:
            return self._withheld(w, n, reason)
        if w.t >= a.lease_end:
            raise Broken("a body started after its lease had ended")
        fenced = self.s.fence and a.fence >= 0
        return [with_att(w, n, body="runs", request="over" if fenced else "flies", start=w.t)]

    def _withheld(self, w: World, n: int, reason: str, *, over: bool = False) -> list[World]:
        a = w.atts[n]
        w = with_att(w, n, body="ended", request="over", known="n", end=w.t, concluded=w.t)
        w, command = self._record(w, a.intent, Withheld(a.number, reason), a.call, over=over)
        return [with_call(w, a.call, does="done")] if over else self._carry(w, a.call, command)

    def _both_win(self, w: World, n: int) -> list[World]:
        return [with_att(x, n, request="flies", start=w.t) for x in self._withheld(w, n, "no_thread_in_time")]

    def _endings(self, a: Att) -> list[str]:
        if a.request == "flies":
            more = {"refused": self.s.refuses, "nothing sent": self.s.declines}
            return ["lost", *(reply for reply, can in more.items() if can)]
        return ["lost"] if a.request == "over" else ["lost", a.request]

    def _ends(self, w: World, n: int, reply: str) -> list[World]:
        a = w.atts[n]
        finding: Finding = REPLIES[reply]
        fact = Ended(a.number, finding, key_carried=self.s.carries, deadline_carried=self.s.carries)
        request = "flies" if a.request == "flies" and reply == "lost" else "over"
        known = "n" if finding.outcome is OutcomeState.NOT_APPLIED else a.known
        w = with_att(w, n, body="ended", request=request, end=w.t, concluded=w.t, known=known)
        if reply == "ok":
            w = with_wish(w, a.intent, proven=True)
        if reply == "500" and self.s.replays_errors:
            w = with_wish(w, a.intent, burnt=True)
        if reply == "412" and all(x.pre for x in w.atts if x.intent == a.intent):
            w = fenced(w, a.intent)
        heard = a.body == "runs"
        w, command = self._record(w, a.intent, fact, a.call if heard else None, a.call)
        return self._carry(w, a.call, command) if heard else [w]

    def _unrecorded(self, w: World, n: int, reply: str) -> list[World]:
        """Tell what may be told of an end that the ledger could not store."""
        a = w.atts[n]
        call, state = self._call_now(w, a.call), self.engine.states[w.calls[a.call].known]
        fact = Ended(a.number, REPLIES[reply], key_carried=self.s.carries, deadline_carried=self.s.carries)
        event = Event(self.moment(w.t, a.call), fact, call)
        after = fold(state, event)
        answer = machine.unrecorded(after, machine.decide(after, event), call, event.at)
        request = "flies" if a.request == "flies" and reply == "lost" else "over"
        return self._answered(with_att(w, n, body="dead", request=request), a.call, answer)

    def _left(self, w: World, n: int, *, over: bool = False) -> list[World]:
        a = w.atts[n]
        w = with_att(w, n, body="left", concluded=w.t)
        fact = GaveUp(a.number, "timeout", self.s.carries, self.s.carries)
        w, command = self._record(w, a.intent, fact, a.call, over=over)
        return [with_call(w, a.call, does="done")] if over else self._carry(w, a.call, command)

    def _answered(self, w: World, i: int, answer: Answer) -> list[World]:
        c, k = w.calls[i], self._subject(w, i)
        if c.looking:
            return self._ask(with_call(w, i, looking=False, began_at=-1, looked=(*c.looked, f"i{k}")), i)
        w = told(self.s, w, i, answer, self.state(w, k), self._others(w, i))
        return [with_call(w, i, does="done")]

    # Others ----------------------------------------------------------------------------------------------

    def _webhook(self, w: World, n: int) -> list[World]:
        a = w.atts[n]
        w = with_wish(with_att(w, n, told=True), a.intent, proven=True)
        return [self._record(w, a.intent, Delivered(a.number), None, a.call)[0]]

    def _resolved(self, w: World, applied: bool) -> list[World]:
        w = with_wish(w, 0, person="applied" if applied else "not")
        if not applied and not w.wishes[0].proven:
            w = w._replace(atts=tuple(a._replace(known="n") if a.intent == 0 else a for a in w.atts))
        elif applied and (not w.atts or any(a.known == "u" for a in w.atts if a.intent == 0)):
            w = with_wish(w, 0, proven=True)
        return [self._record(w, 0, Resolved(applied, "p"), None, 0)[0]]

    def _fence(self, w: World) -> list[World]:
        k = w.atts[0].intent
        number = self.state(w, k).epoch
        atts = [a._replace(request="over") if a.request == "flies" and a.intent == k else a for a in w.atts]
        w = fenced(w._replace(atts=tuple(atts), fenced=True), k)
        return [self._record(w, k, Fenced(number, "epoch"), None, 0)[0]]


def _who(a: Att) -> str:
    return f"{'' if not a.intent else 'the other intent '}#{a.number}"


if __name__ == "__main__":
    from tests.core.explore import main

    main()
