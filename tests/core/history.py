"""One intent told to the real machine fact by fact: for tests that follow a single thread of events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from safewrite.core.commands import Answer, AnswerKind, Command, Note, Nothing, Read, Run, Send, Wait
from safewrite.core.events import (
    Asked,
    Call,
    Claimed,
    Ended,
    Event,
    Fact,
    Finding,
    Moment,
    OutcomeState,
    Promises,
    ReadEnded,
    Verdict,
)
from safewrite.core.machine import refold, step
from safewrite.core.state import State

LOST = Finding(OutcomeState.UNKNOWN, "read_timeout")
DONE = Finding(OutcomeState.APPLIED, "returned")
REJECTED = Finding(OutcomeState.NOT_APPLIED, "http_422", status=422)
STALE = Finding(OutcomeState.NOT_APPLIED, "http_412", status=412, precondition_failed=True)
REFUSED = Finding(OutcomeState.NOT_APPLIED, "connect_refused", again=True)
FAILED = Finding(OutcomeState.UNKNOWN, "http_500", status=500)


class History:
    """One intent, one dependency, and a clock that is moved by hand.  Every row is kept, to be folded again."""

    def __init__(self, *, left: float = 10.0, sends: int = 3, reads: bool = True, **promises: Any) -> None:
        promises.setdefault("clock_skew", 0.0)
        self.now = 0.0
        self.state = State()
        self.rows: list[Event] = []
        self.call = Call(
            "a", left, sends, reads, promises=Promises(**promises), lease=left + 1.0, backoff=1.0
        )
        self.ends_at = left

    # Callers ---------------------------------------------------------------------------------------------

    def another(self, name: str = "b", *, left: float = 10.0, **changes: Any) -> None:
        """Let another call of the same turn begin now; what follows is told by it."""
        self.call = replace(self.call, id=name, left=left, lease=left + 1.0, **changes)
        self.ends_at = self.now + left

    def facts(self, **changes: Any) -> Call:
        """Return what the call says of itself now."""
        return replace(self.call, **{"left": max(0.0, self.ends_at - self.now), **changes})

    def moment(self, at: float | None = None) -> Moment:
        """Return an instant of the one clock there is."""
        at = self.now if at is None else at
        return Moment(at, at, "boot")

    # Steps -----------------------------------------------------------------------------------------------

    def ask(self, **changes: Any) -> Command:
        """Ask what to do now."""
        return step(self.state, Event(self.moment(), Asked(), self.facts(**changes)))[1]

    def tell(self, fact: Fact, *, over: bool = False, **changes: Any) -> Command:
        """Record a fact that this call noticed."""
        return self._record(Event(self.moment(), fact, self.facts(**changes), over=over))

    def hear(self, fact: Fact) -> Command:
        """Record a fact that no call waits for."""
        return self._record(Event(self.moment(), fact, promises=self.call.promises))

    def _record(self, event: Event) -> Command:
        self.state, command = step(self.state, event)
        self.rows.append(event)
        return command

    def send(self, **changes: Any) -> int:
        """Claim the next attempt, which the machine must license, and return its number."""
        command = self.ask(**changes)
        assert isinstance(command, Send), command
        number = command.number
        owner = f"process of {self.call.id}"
        fact = Claimed(number, f"attempt-{number}", owner, self.ends_at)
        assert self.tell(fact, **changes) == Run("R1", number)
        return number

    def end(self, finding: Finding, number: int | None = None, **told: Any) -> Command:
        """Let the body of an attempt end, the newest if no number is named."""
        return self.tell(Ended(number or self.state.epoch, finding, **told))

    def read(
        self, verdict: Verdict, began: float | None = None, *, epoch: int | None = None, **told: Any
    ) -> Command:
        """Let a read end that began then, or now, and knew of every row that there is."""
        return self.tell(
            ReadEnded(
                verdict,
                self.moment(began),
                self.state.revision,
                self.state.epoch if epoch is None else epoch,
                **told,
            )
        )

    def lost(self, **changes: Any) -> None:
        """Send, lose the reply, and let the caller be cancelled over it: nothing holds the intent."""
        self.send(**changes)
        assert self.tell(Ended(self.state.epoch, LOST), over=True, **changes) == Nothing("N2")

    # To the end ------------------------------------------------------------------------------------------

    def follow(self, command: Command, verdict: Verdict, reason: str = "") -> tuple[list[str], Answer | Send]:
        """Wait and read, each time with this verdict, up to an answer or a send; return the rules on the way."""
        rules = []
        while True:
            rules.append(command.rule)
            match command:
                case Answer() | Send():
                    return rules, command
                case Note(fact=fact):
                    command = self.tell(fact)
                case Wait(seconds=seconds):
                    self.now += seconds
                    command = self.ask()
                case Read():
                    command = self.read(verdict, reason=reason)
                case _:
                    raise AssertionError(command)

    def folded_again(self) -> State:
        """Return the state that the recorded rows alone give."""
        state = State()
        for row in self.rows:
            state, _ = refold(state, row)
        return state


def told(command: Command) -> Answer:
    """Return the answer that a command is."""
    assert isinstance(command, Answer), command
    return command


__all__ = ["DONE", "FAILED", "LOST", "REFUSED", "REJECTED", "STALE", "AnswerKind", "History", "told"]
