"""What the rows of an intent tell: a plain sentence for each, and one for the whole.

For auditors, the command line, the web page and replay.  The state is rebuilt by the fold that decided then; where
the machine of today would decide otherwise, that is said beside what was decided, which is never rewritten.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from safewrite.core.commands import Command
from safewrite.core.events import Event, Missed, Moment, OutcomeState, Promises, Refused
from safewrite.core.fold import Impossible
from safewrite.core.machine import refold
from safewrite.core.phrases import EVIDENCE, OUTCOMES, counted, decided, explain, happened, missed, seconds
from safewrite.core.replacing import replace
from safewrite.core.rules import RULES
from safewrite.core.state import State


@dataclass(frozen=True, slots=True)
class Row:
    """One row of an intent: what was reported, and what was decided then."""

    sequence: int
    event: Event
    command: Command
    outcome: OutcomeState | None = None
    """The intent's outcome that was stored with it; None: not known, the fold's is told."""


@dataclass(frozen=True, slots=True)
class Line:
    """What one row tells."""

    sequence: int
    happened: str
    """What was reported, in sentences."""
    decided: str
    """What was to be done next, as the end of a sentence; empty: nothing, for nobody waited."""
    rule: str
    """The id of the rule that decided."""
    because: str
    """That rule in words."""
    outcome: OutcomeState
    """The intent's outcome after this row."""
    differs: str = ""
    """What the machine of today makes of the row, where that is something else; else empty."""


@dataclass(frozen=True, slots=True)
class Story:
    """What all rows of an intent tell together."""

    lines: tuple[Line, ...]
    summary: str
    """The intent in one or two sentences."""
    state: State
    """The fold of the rows."""
    promises: Promises
    """The promises in force at the newest row that tells any."""
    settles_in: float | None
    """Seconds until no attempt can still take effect; 0.0: none can any more; None: nothing tells when."""
    settling: str
    """The same in words."""

    @property
    def may_still_land(self) -> bool:
        """Whether an effect may still come that is not yet accounted for."""
        return self.settles_in != 0.0 and not (
            self.state.outcome is OutcomeState.APPLIED and self.state.attributable
        )


def tell(rows: Iterable[Row], now: Moment | None = None) -> Story:
    """Return the story of one intent's rows, in their order.

    `now` is the instant for which it is told whether an attempt may still take effect; default: that of the newest
    row.  Never fails: a row that cannot follow on those before it is told as such, and changes nothing.
    """
    state, promises, lines, at, refused, read = State(), Promises(), [], now, "", None
    for row in rows:
        line, state = _line(row, state)
        lines.append(line)
        promises = _promises(row.event) or promises
        at = now or row.event.at
        refused = row.event.fact.reason if isinstance(row.event.fact, Refused) else refused
        read = row.event.fact if isinstance(row.event.fact, Missed) else read
    settles_in = 0.0 if at is None else _finite(state.settles_in(promises, at))
    settling = _settling(state, promises, settles_in)
    if read is not None:
        return Story(tuple(lines), missed(read), state, promises, 0.0, "A read changes nothing.")
    story = Story(tuple(lines), "", state, promises, settles_in, settling)
    return replace(story, summary=_summary(story, refused))


def _promises(event: Event) -> Promises | None:
    return event.call.promises if event.call is not None else event.promises


def _finite(length: float) -> float | None:
    return None if length == inf else length


def _line(row: Row, before: State) -> tuple[Line, State]:
    try:
        after, command = refold(before, row.event)
        differs = _differs(command, row.command) or _drifted(after.outcome, row.outcome)
    except Impossible as error:
        after, differs = before, f"this row cannot follow on those before it ({error})"
    rule = row.command.rule
    line = Line(
        row.sequence,
        happened(row.event.fact, before, after),
        decided(row.command),
        rule,
        RULES.get(rule, "A rule that this version does not know."),
        row.outcome or after.outcome,
        differs,
    )
    return line, after


def _differs(today: Command, then: Command) -> str:
    """Return what is decided today, if that is another command or rests on another rule."""
    if (type(today), today.rule) == (type(then), then.rule):
        return ""
    return f"{decided(today) or 'nothing'}, by rule {today.rule}"


def _drifted(today: OutcomeState, then: OutcomeState | None) -> str:
    return "" if then in (None, today) else f"the outcome after it is {OUTCOMES[today]}"


# The whole ---------------------------------------------------------------------------------------------------


def _summary(story: Story, refused: str) -> str:
    state = story.state
    made = counted(state.epoch, "attempt")
    if state.outcome is OutcomeState.APPLIED:
        text = _applied(state, made)
    elif state.outcome is OutcomeState.NOT_APPLIED:
        text = _not_applied(state, made, refused)
    else:
        text = f"Unknown after {made}. {_each(state)}"
    still = story.may_still_land and state.outcome is not OutcomeState.NOT_APPLIED
    if still or state.outcome is OutcomeState.UNKNOWN:
        text = f"{text} {story.settling}"
    if state.alarms:
        text = f"{text} Alarms: {', '.join(f'`{alarm.kind}`' for alarm in state.alarms)}."
    return text


def _applied(state: State, made: str) -> str:
    by = f" ({state.person})" if state.evidence == "person" else ""
    return f"Applied, known from {EVIDENCE[state.evidence]}{by}, after {made}."


def _not_applied(state: State, made: str, refused: str) -> str:
    if not state.attempts:
        nothing = "Not applied: nothing was ever sent"
        return _joined(f"{nothing} (`{refused}`).", explain(refused)) if refused else f"{nothing}."
    if any(a.evidence == "person" for a in state.attempts):
        return f"Not applied, on the word of {state.person}, after {made}. Nothing will be sent for it."
    none = (
        "the attempt did not take effect, and cannot"
        if state.epoch == 1
        else f"none of {made} took effect, or can"
    )
    return f"Not applied: {none} any more. {_each(state)}"


def _each(state: State) -> str:
    """Return what is known of every attempt that is not applied."""
    told = []
    for a in state.attempts:
        reason = a.reason or "no_end_seen"
        words = explain(reason) if a.reason else "Its end was not seen."
        told.append(_joined(f"Attempt {a.number}: {a.outcome.replace('_', ' ')} (`{reason}`).", words))
    return " ".join(told)


def _joined(first: str, second: str) -> str:
    return f"{first} {second}" if second else first


def _settling(state: State, promises: Promises, settles_in: float | None) -> str:
    if state.outcome is OutcomeState.APPLIED and state.attributable:
        return "Applied: no further effect is expected."
    if settles_in == 0.0:
        return "Settled: no attempt can take effect any more."
    if settles_in is not None:
        return (
            f"It may still land: the attempts are settled in {seconds(settles_in)}, if nothing new is heard."
        )
    if promises.work_bound is None:
        return "It may still land, and nothing tells until when: the dependency declares no work bound."
    open_ones = [a.number for a in state.attempts if a.open and a.ended_at is None]
    which = f"attempt {', '.join(map(str, open_ones))}"
    return f"It may still land, and nothing tells until when: the end of {which} was not seen."
