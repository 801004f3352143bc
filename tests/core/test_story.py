"""Rows told in plain sentences: each row, the whole intent, and what the machine of today would decide otherwise."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from safewrite.core import commands, events, machine, phrases
from safewrite.core.commands import Answer, AnswerKind, Nothing
from safewrite.core.events import (
    Alarmed,
    Answered,
    Asked,
    Blocked,
    Call,
    Claimed,
    Delivered,
    Ended,
    Event,
    Fact,
    Fenced,
    Finding,
    GaveUp,
    Gone,
    Missed,
    Moment,
    OutcomeState,
    Promises,
    ReadEnded,
    Refused,
    Resolved,
    Verdict,
    Withheld,
)
from safewrite.core.reasons import REASONS
from safewrite.core.rules import GROUPS, RULES
from safewrite.core.state import State
from safewrite.core.story import Line, Row, Story, tell

CORE = Path(machine.__file__).parent
OWNER = "web-1/boot-7/pid:[1]/4711/99"
PROMISES = Promises(work_bound=5.0, read_lag=0.0, clock_skew=1.0)
CALL = Call("call-1", left=10.0, sends=3, reads=True, promises=PROMISES, lease=20.0)
RETURNED = Finding(OutcomeState.APPLIED, "returned")
LOST = Finding(OutcomeState.UNKNOWN, "read_timeout")
NO = Finding(OutcomeState.NOT_APPLIED, "http_403", status=403)


def at(seconds: float) -> Moment:
    """Return an instant of the one clock of these tests."""
    return Moment(1_000_000.0 + seconds, seconds, "boot-7")


def rows(*facts: Fact, call: Call | None = CALL, promises: Promises | None = None) -> list[Row]:
    """Return the rows that these facts make, one second apart, each with what the machine decides."""
    state, made = State(), []
    for place, fact in enumerate(facts):
        event = Event(at(place), fact, call, promises=promises)
        state, command = machine.refold(state, event)
        made.append(Row(place + 1, event, command))
    return made


def told(*facts: Fact, call: Call | None = CALL, now: float | None = None) -> Story:
    """Return the story of these facts."""
    return tell(rows(*facts, call=call), None if now is None else at(now))


CLAIM = Claimed(1, "a-1", OWNER)
SECOND = Claimed(2, "a-2", OWNER)


def sentence(line: Line) -> str:
    """Return all that a line tells."""
    then = f"Then: {line.decided}. {line.because}" if line.decided else line.because
    return f"{line.happened} {then} ({line.rule})" + (f" Today: {line.differs}." if line.differs else "")


def read(
    verdict: Verdict, began: float, reason: str = "", *, seen: int = 2, object_id: str | None = None
) -> Fact:
    """Return a read that began at an instant."""
    return ReadEnded(verdict, at(began), seen, 1, reason, object_id=object_id)


# One row ------------------------------------------------------------------------------------------------------


def test_a_quiet_write_is_two_sentences_and_a_summary() -> None:
    """Claim, then reply: each row says what was reported, what was decided, and by which rule in words."""
    story = told(CLAIM, Ended(1, RETURNED, kept=True))
    assert [sentence(line) for line in story.lines] == [
        (
            "Attempt 1 was written down before anything was sent. Then: run the body of attempt 1. "
            "The attempt is durably claimed: its body may run. (R1)"
        ),
        (
            "Attempt 1 ended: applied (`returned`). The body returned a value. "
            "Then: answer that it was applied, known from the reply to an attempt. "
            "Some evidence says applied: that is the outcome, whatever else was heard. (A1)"
        ),
    ]
    assert [line.outcome.value for line in story.lines] == ["unknown", "applied"]
    assert story.summary == "Applied, known from the reply to an attempt, after 1 attempt."
    assert (story.settles_in, story.may_still_land) == (0.0, False)


def test_a_row_that_nobody_waited_for_says_nothing_of_what_was_next() -> None:
    """A late response is evidence: the sentence ends with why, not with a command."""
    lost = rows(CLAIM, GaveUp(1, "timeout"))
    late = Row(3, Event(at(9), Ended(1, RETURNED), None, promises=PROMISES), Nothing("N1"))
    line = tell([*lost, late]).lines[-1]
    assert line.decided == ""
    assert sentence(line) == (
        "Attempt 1 ended, late: applied (`returned`). The body returned a value. "
        "Nobody waits for an answer: the fact is kept as evidence. (N1)"
    )


PLACE = {
    "beside": (
        [replace(CLAIM, beside=("i-8", "i-9"))],
        ("Attempt 1 was written down before anything was sent. "
        "Open with the same wish, and passed by as the caller chose: i-8, i-9."),
    ),
    "asked": ([Asked()], "A call asked what to do."),
    "withheld": (
        [CLAIM, Withheld(1, "lease_lost")],
        ("The body of attempt 1 never ran, and never will (`lease_lost`). The lease had run out before the body "
        "began."),
    ),
    "withheld for a reason unknown here": (
        [CLAIM, Withheld(1, "moonlight")],
        "The body of attempt 1 never ran, and never will (`moonlight`).",
    ),
    "gave up": (
        [CLAIM, GaveUp(1, "timeout")],
        "The caller stopped waiting for attempt 1 (`timeout`); its body may go on.",
    ),
    "superseded": (
        [CLAIM, SECOND, Ended(1, LOST)],
        ("Attempt 1 ended, late: unknown (`read_timeout`). No answer came in time; the request may have arrived "
        "whole."),
    ),
    "asked to wait": (
        [CLAIM, Ended(1, replace(NO, reason="http_429", retry_after=1234.5))],
        "Attempt 1 ended: not applied (`http_429`). " + REASONS["http_429"]
        + " The dependency asked to wait 1234 s before another.",
    ),
    "object": (
        [CLAIM, Ended(1, RETURNED, object_id="re_1")],
        "Attempt 1 ended: applied (`returned`). The body returned a value. It made the object `re_1`.",
    ),
    "gone": (
        [CLAIM, Gone(OWNER)],
        "The process that ran attempt 1 is known to be gone (process 4711 on web-1): it runs no body any more.",
    ),
    "gone, without a body": (
        [CLAIM, Ended(1, LOST), Gone("someone")],
        "The process that held the lease is known to be gone (someone): it runs no body any more.",
    ),
    "gone, two bodies": (
        [CLAIM, SECOND, Gone(OWNER)],
        "The process that ran attempt 1, 2 is known to be gone (process 4711 on web-1): it runs no body any more.",
    ),
    "gone, after its body": (
        [CLAIM, Ended(1, LOST), Gone(OWNER)],
        "The process that held the lease is known to be gone (process 4711 on web-1): it runs no body any more.",
    ),
    "gone, beside another's body": (
        [CLAIM, Gone("someone")],
        "The process that held the lease is known to be gone (someone): it runs no body any more.",
    ),
    "fenced": ([CLAIM, Fenced(1, "epoch 2")], "The dependency refuses attempts up to number 1 from now on (epoch 2)."),
    "read: found": (
        [CLAIM, Ended(1, LOST), read(Verdict.APPLIED, 1.5, "found", object_id="re_1")],
        "A reconciling read ended: it found the effect, and that it is this intent's. The object is `re_1`.",
    ),
    "read: goal": (
        [CLAIM, Ended(1, LOST), read(Verdict.GOAL_MET, 1.5)],
        "A reconciling read ended: the goal is met, whoever met it.",
    ),
    "read: nothing, too early": (
        [CLAIM, Ended(1, LOST), read(Verdict.NOT_APPLIED, 1.5)],
        ("A reconciling read ended: it found nothing of this intent. An attempt could still take effect when it "
        "began, or reads may lag: that proves nothing yet."),
    ),
    "read: nothing, settled": (
        [CLAIM, Ended(1, LOST), read(Verdict.NOT_APPLIED, 7.0)],
        ("A reconciling read ended: it found nothing of this intent. No attempt could take effect any more when it "
        "began: that proves it."),
    ),
    "read: nothing, of what was rejected": (
        [CLAIM, Ended(1, NO), read(Verdict.NOT_APPLIED, 7.0)],
        "A reconciling read ended: it found nothing of this intent.",
    ),
    "read: inconclusive": (
        [CLAIM, Ended(1, LOST), read(Verdict.INCONCLUSIVE, 1.5, "too_few_candidates")],
        ("A reconciling read ended: it could not tell (`too_few_candidates`). There are fewer free objects than "
        "intents that may have made one."),
    ),
    "read: late": (
        [CLAIM, Ended(1, LOST), read(Verdict.INCONCLUSIVE, 1.5, "read_timeout")],
        "A reconciling read ended: it could not tell (`read_timeout`). The read did not answer in time.",
    ),
    "read: without a reason": (
        [CLAIM, Ended(1, LOST), read(Verdict.INCONCLUSIVE, 1.5)],
        "A reconciling read ended: it could not tell.",
    ),
    "mismatch": (
        [Refused("other_content", ("amount", "unit"))],
        ("A call was refused, and sent nothing (`other_content`). The same intent came with other arguments. "
        "They differ in `amount`, `unit`."),
    ),
    "other": (
        [Refused("same_wish_open", other="i-9")],
        ("A call was refused, and sent nothing (`same_wish_open`). Another intent with the same wish is open. "
        "The other intent is i-9."),
    ),
    "cut off": (
        [CLAIM, Refused("call_cancelled")],
        "The call was cancelled between two of its steps, and was told nothing.",
    ),
    "blocked": ([Blocked(("i-8", "i-9"))], "Open with the same wish, so nothing was sent beside: i-8, i-9."),
    "answered": (
        [CLAIM, Ended(1, RETURNED), Answered()],
        "The applied outcome was told to a caller for the first time.",
    ),
    "delivered": (
        [CLAIM, Delivered(1, object_id="re_1")],
        "The result of attempt 1 came by another road: applied. It made the object `re_1`.",
    ),
    "delivered, without an object": (
        [CLAIM, Delivered(1)],
        "The result of attempt 1 came by another road: applied.",
    ),
    "resolved": (
        [CLAIM, Resolved(True, "Ada", "seen in the console")],
        "Ada said that it was applied. Their note: seen in the console",
    ),
    "resolved, without a note": ([CLAIM, Resolved(False, "Ada")], "Ada said that it was not applied."),
    "alarmed": ([Alarmed("two_effects", "attempts 1 and 2")], "Alarm `two_effects`: attempts 1 and 2."),
    "missed": (
        [Missed("read_timeout", 2, "page 7")],
        ("A read brought nothing, after 2 requests (`read_timeout`). No answer came in time; the request may have "
        "arrived whole. It had reached page 7."),
    ),
    "missed, refused": (
        [Missed("breaker_open")],
        "A read brought nothing, and sent nothing (`breaker_open`). The dependency is being spared.",
    ),
    "missed, a part": ([Missed("cut", 1, part=True)], "A read brought only a part, after 1 request (`cut`)."),
    "missed, a copy": (
        [Missed("hedge_lost", 2)],
        "A read was answered, after 2 requests (`hedge_lost`). Another copy of the read answered first.",
    ),
    "alarmed, without detail": ([Alarmed("two_effects")], "Alarm `two_effects`."),
}  # fmt: skip


@pytest.mark.parametrize(("facts", "expected"), PLACE.values(), ids=PLACE)
def test_every_fact_is_told(facts: list[Fact], expected: str) -> None:
    """The last of these facts is told so."""
    assert told(*facts).lines[-1].happened == expected


def test_no_fact_is_left_untold() -> None:
    """Each fact that there is has a case above."""
    tested = {type(facts[-1]) for facts, _ in PLACE.values()}
    assert tested | {Ended} == set(events.Fact.__args__)  # type: ignore[attr-defined]


ANSWERS = {
    AnswerKind.VALUE: (
        Answer("A1", AnswerKind.VALUE, OutcomeState.APPLIED, "applied", "sign from above"),
        "answer that it was applied, known from sign from above",
    ),
    AnswerKind.REJECTED: (
        Answer("D1", AnswerKind.REJECTED, OutcomeState.NOT_APPLIED, "http_403"),
        "answer that the dependency said no (`http_403`)",
    ),
    AnswerKind.NOT_SENT: (
        Answer("B1", AnswerKind.NOT_SENT, OutcomeState.NOT_APPLIED, "budget_exhausted"),
        "answer that it was not applied, and nothing is open (`budget_exhausted`)",
    ),
    AnswerKind.UNKNOWN: (
        Answer("U1", AnswerKind.UNKNOWN, OutcomeState.UNKNOWN, "no_reconcile", may_still_land=True),
        "answer that it is unknown, and may still land (`no_reconcile`)",
    ),
    AnswerKind.IN_FLIGHT: (
        Answer("F2", AnswerKind.IN_FLIGHT, OutcomeState.UNKNOWN, "in_flight"),
        "answer that another call is carrying it out",
    ),
    AnswerKind.MISMATCH: (
        Answer("M1", AnswerKind.MISMATCH, OutcomeState.UNKNOWN, "other_content", names=("amount", "unit")),
        "answer that `amount`, `unit` differ from the record",
    ),
    AnswerKind.OTHER: (
        Answer("T3", AnswerKind.OTHER, OutcomeState.APPLIED, "same_wish", other="i-9"),
        "answer with the outcome of the intent i-9",
    ),
}
COMMANDS = [
    (commands.Send("S1", 1), "claim attempt 1"),
    (commands.Run("R1", 2), "run the body of attempt 2"),
    (commands.Read("L1"), "ask the reconcile function"),
    (commands.ReadOther("T2", "i-9"), "look at the intent i-9 first"),
    (commands.Wait("W1", 0.12345), "wait 0.123 s"),
    (commands.Watch("F1"), "wait for the record of the attempt in flight"),
    (commands.Note("A2", Answered()), "write this down before answering"),
    (commands.Nothing("N1"), ""),
    *ANSWERS.values(),
]


@pytest.mark.parametrize(("command", "expected"), COMMANDS, ids=lambda x: getattr(x, "rule", None))
def test_every_command_is_told(command: commands.Command, expected: str) -> None:
    """A command is the end of a sentence."""
    assert phrases.decided(command) == expected


def test_no_command_and_no_answer_is_left_untold() -> None:
    """Each command and each kind of answer that there is has a case above."""
    assert {type(command) for command, _ in COMMANDS} == set(commands.Command.__args__)  # type: ignore[attr-defined]
    assert set(ANSWERS) == set(AnswerKind)


@pytest.mark.parametrize(
    ("length", "text"),
    [(0.0, "0 s"), (0.12345, "0.123 s"), (99.96, "100 s"), (999.4, "999 s"), (999.5, "1000 s"), (999.7, "1000 s"),
     (1000.0, "1000 s"), (1234.5, "1234 s")],
)  # fmt: skip
def test_a_length_of_time_has_three_digits_and_no_exponent(length: float, text: str) -> None:
    """Beyond that, whole seconds."""
    assert phrases.seconds(length) == text


def test_an_unknown_that_is_settled_is_told_so() -> None:
    """The two unknowns are never told alike."""
    settled = Answer("U3", AnswerKind.UNKNOWN, OutcomeState.UNKNOWN, "goal_not_met")
    assert phrases.decided(settled) == "answer that it is unknown, and settled (`goal_not_met`)"


# The whole ----------------------------------------------------------------------------------------------------


def test_no_rows_are_nothing_sent() -> None:
    """An intent without rows was never sent, and nothing of it can land."""
    story = tell([])
    assert (story.lines, story.summary) == ((), "Not applied: nothing was ever sent.")
    assert (story.settles_in, story.may_still_land) == (0.0, False)


def test_a_lost_reply_may_still_land_until_it_is_settled() -> None:
    """With a work bound the story says when, and after that moment that it is settled."""
    lost = [CLAIM, Ended(1, LOST)]
    before, after = told(*lost, now=3.0), told(*lost, now=6.0)
    assert (before.settles_in, before.may_still_land) == (3.0, True)
    assert before.summary == (
        "Unknown after 1 attempt. Attempt 1: unknown (`read_timeout`). No answer came in time; the request may have "
        "arrived whole. It may still land: the attempts are settled in 3 s, if nothing new is heard."
    )
    assert (after.settles_in, after.may_still_land) == (0.0, False)
    assert after.summary.endswith("whole. Settled: no attempt can take effect any more.")


def test_without_a_moment_it_is_told_as_of_the_newest_row() -> None:
    """Time that has passed since then is not guessed."""
    assert told(CLAIM, Ended(1, LOST)).settles_in == 5.0


def test_on_another_clock_the_declared_skew_is_taken_off() -> None:
    """A reader elsewhere knows wall time only: it must not call settled what may not be."""
    elsewhere = Moment(1_000_000.0 + 6.5, 0.0, "another machine")
    assert tell(rows(CLAIM, Ended(1, LOST)), elsewhere).settles_in == pytest.approx(0.5)


def test_without_a_work_bound_nothing_tells_when() -> None:
    """What was not declared is not assumed."""
    none = replace(CALL, promises=Promises())
    story = told(CLAIM, Ended(1, LOST), call=none, now=1e9)
    assert (story.settles_in, story.may_still_land) == (None, True)
    assert story.summary.endswith(
        "whole. It may still land, and nothing tells until when: the dependency declares no work bound."
    )


def test_an_end_that_was_not_seen_is_named() -> None:
    """A claim whose process may live on is open without end, and the summary says which attempt."""
    story = told(CLAIM, Ended(1, LOST), SECOND, now=1e9)
    assert story.settles_in is None
    assert "Attempt 2: unknown (`no_end_seen`). Its end was not seen." in story.summary
    assert story.summary.endswith(
        "It may still land, and nothing tells until when: the end of attempt 2 was not seen."
    )
    assert told(CLAIM, SECOND, now=1e9).settling.endswith("the end of attempt 1, 2 was not seen.")


def test_promises_of_rows_without_a_call_count() -> None:
    """A fact that no call brought carries the promises itself."""
    facts: list[Row] = rows(CLAIM, Ended(1, LOST), call=replace(CALL, promises=Promises()))
    word = Event(at(2), Alarmed("x"), None, promises=PROMISES)
    story = tell([*facts, Row(3, word, Nothing("N1"))], at(3))
    assert story.promises == PROMISES
    assert story.settles_in == 3.0
    silent = Row(4, Event(at(3), Alarmed("y")), Nothing("N1"))
    assert tell([*facts, Row(3, word, Nothing("N1")), silent], at(3)).promises == PROMISES


def test_a_read_that_brought_nothing_is_the_whole_of_its_story() -> None:
    """Whatever rows stand beside it: nothing was to be changed, so nothing can land."""
    missing = Missed("read_timeout", 2)
    story = told(missing, Refused("call_cancelled"))
    assert story == Story(
        story.lines,
        phrases.missed(missing),
        State(revision=2),
        PROMISES,
        0.0,
        "A read changes nothing.",
    )
    assert not story.may_still_land


def test_a_rejection_names_its_reason() -> None:
    """Not applied, with what the dependency said of each attempt."""
    assert told(CLAIM, Ended(1, NO)).summary == (
        f"Not applied: the attempt did not take effect, and cannot any more. Attempt 1: not applied (`http_403`). "
        f"{REASONS['http_403']}"
    )


def test_several_attempts_that_were_not_applied_are_told_one_by_one() -> None:
    """Each attempt has its own reason."""
    busy = Finding(OutcomeState.NOT_APPLIED, "connect_refused", again=True)
    assert told(CLAIM, Ended(1, busy), SECOND, Ended(2, NO)).summary == (
        "Not applied: none of 2 attempts took effect, or can any more. "
        f"Attempt 1: not applied (`connect_refused`). {REASONS['connect_refused']} "
        f"Attempt 2: not applied (`http_403`). {REASONS['http_403']}"
    )


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (
            "budget_exhausted",
            "Not applied: nothing was ever sent (`budget_exhausted`). Too little time was left to send.",
        ),
        ("moonlight", "Not applied: nothing was ever sent (`moonlight`)."),
    ],
)
def test_a_call_that_was_refused_says_why_nothing_was_sent(reason: str, expected: str) -> None:
    """The newest refusal is the reason; rows after it that are none do not hide it."""
    assert told(Refused("pool_exhausted"), Refused(reason), Blocked(("i-9",))).summary == expected


@pytest.mark.parametrize(
    ("applied", "expected"),
    [
        (True, ("Applied, known from a person's word (Ada), after 1 attempt. It may still land: the attempts are "
               "settled in 5 s, if nothing new is heard.")),
        (False, "Not applied, on the word of Ada, after 1 attempt. Nothing will be sent for it."),
    ],
)  # fmt: skip
def test_a_person_is_named_in_the_summary(applied: bool, expected: str) -> None:
    """What rests on somebody's word says whose."""
    story = told(CLAIM, Ended(1, LOST), Resolved(applied, "Ada", "looked"), now=1.0)
    assert story.summary == expected


def test_a_goal_seen_is_not_claimed_as_ours() -> None:
    """The goal is met, by whom is unproven, and a lost attempt may still land."""
    story = told(CLAIM, Ended(1, LOST), read(Verdict.GOAL_MET, 1.5), now=2.0)
    assert story.summary == (
        "Applied, known from a read that saw the goal met, though not by whom, after 1 attempt. "
        "It may still land: the attempts are settled in 4 s, if nothing new is heard."
    )
    assert story.may_still_land


def test_what_was_applied_for_sure_waits_for_nothing() -> None:
    """An earlier attempt that was lost is accounted for by the effect that was seen."""
    story = told(CLAIM, Ended(1, LOST), SECOND, Ended(2, RETURNED), now=3.0)
    assert story.settles_in == 3.0
    assert not story.may_still_land
    assert story.settling == "Applied: no further effect is expected."
    assert story.summary == "Applied, known from the reply to an attempt, after 2 attempts."


def test_alarms_end_the_summary() -> None:
    """What the promises do not allow is never left out."""
    story = told(CLAIM, Ended(1, RETURNED), Resolved(False, "Ada", "no"))
    assert story.summary.endswith("after 1 attempt. Alarms: `against_person`.")
    twice = told(CLAIM, Ended(1, RETURNED), Resolved(False, "Ada"), Resolved(False, "Bo"))
    assert twice.summary.endswith("Alarms: `against_person`, `against_person`.")


def test_evidence_that_this_version_has_no_words_for_is_named_by_its_code() -> None:
    """A code without a sentence is shown as it is."""
    assert phrases.explain("moonlight") == ""
    reason = replace(LOST, reason="moonlight")
    assert "Attempt 1: unknown (`moonlight`). It may" in told(CLAIM, Ended(1, reason)).summary


# Where the machine of today differs -----------------------------------------------------------------------------


def test_what_today_would_be_decided_otherwise_stands_beside() -> None:
    """The recorded decision stays; the other one is named with its rule."""
    first, second = rows(CLAIM, Ended(1, LOST))
    then = Answer("U1", AnswerKind.UNKNOWN, OutcomeState.UNKNOWN, "no_reconcile", may_still_land=True)
    line = tell([first, replace(second, command=then)]).lines[1]
    assert (line.rule, line.decided) == (
        "U1",
        "answer that it is unknown, and may still land (`no_reconcile`)",
    )
    assert line.differs == "ask the reconcile function, by rule L1"
    assert sentence(line).endswith("(U1) Today: ask the reconcile function, by rule L1.")


def test_nothing_instead_of_a_command_is_a_difference() -> None:
    """Deciding nothing is told in a word."""
    (first,) = rows(CLAIM, call=CALL)
    over = Row(2, Event(at(1), Ended(1, LOST), CALL, over=True), commands.Read("L1"))
    assert tell([first, over]).lines[1].differs == "nothing, by rule N2"


def test_the_same_rule_with_another_number_is_no_difference() -> None:
    """How long a wait was reckoned then is not decided again."""
    first, second = rows(CLAIM, Ended(1, LOST))
    assert tell([first, replace(second, command=commands.Read("L1"))]).lines[1].differs == ""
    wait, other = commands.Wait("W1", 1.0), commands.Wait("W1", 2.0)
    busy = Finding(OutcomeState.NOT_APPLIED, "http_429", again=True, status=429, retry_after=2.0)
    first, second = rows(CLAIM, Ended(1, busy))
    assert isinstance(second.command, commands.Wait)
    assert [tell([first, replace(second, command=c)]).lines[1].differs for c in (wait, other)] == ["", ""]


def test_a_row_that_cannot_follow_is_told_and_changes_nothing() -> None:
    """Rows that were taken out or put in do not stop the story."""
    first, second = rows(CLAIM, Ended(1, RETURNED))
    story = tell([second, first])
    assert [line.sequence for line in story.lines] == [2, 1]
    assert "this row cannot follow on those before it" in story.lines[0].differs
    assert story.lines[0].outcome is OutcomeState.NOT_APPLIED
    assert story.state.epoch == 1


def test_an_outcome_that_was_stored_otherwise_is_told() -> None:
    """What was stored is shown; that today's fold comes to something else stands beside."""
    first, second = rows(CLAIM, Ended(1, RETURNED))
    stored = [replace(first, outcome=OutcomeState.UNKNOWN), replace(second, outcome=OutcomeState.UNKNOWN)]
    lines = tell(stored).lines
    assert [line.outcome.value for line in lines] == ["unknown", "unknown"]
    assert [line.differs for line in lines] == ["", "the outcome after it is applied"]


def test_a_rule_of_another_version_is_told_as_such() -> None:
    """A newer ledger can be read, as far as it goes."""
    (first,) = rows(CLAIM)
    line = tell([replace(first, command=commands.Run("Q9", 1))]).lines[0]
    assert line.because == "A rule that this version does not know."


# The words are complete -----------------------------------------------------------------------------------------


def constants(module: str, pattern: str) -> set[str]:
    """Return the text constants of a module that match a pattern."""
    tree = ast.parse((CORE.parent / module).read_text())
    found = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return {text for text in found if isinstance(text, str) and re.fullmatch(pattern, text)}


def test_every_rule_is_in_the_book_and_in_use() -> None:
    """The ids that the machine names are those that the book explains, each under a heading."""
    used = constants("core/machine.py", r"[A-Z]\d") | constants("calls.py", r"[A-Z]\d")
    assert set(RULES) == used
    assert {rule[0] for rule in RULES} == set(GROUPS)


@pytest.mark.parametrize(
    "module", ["core/machine.py", "core/objects.py", "shell/reply.py", "shell/sync.py", "shell/aio.py"]
)
def test_every_reason_has_a_sentence(module: str) -> None:
    """A code that a caller or an auditor can meet is explained."""
    codes = constants(module, r"[a-z]+(_[a-z]+)+")
    known = {*phrases.CODES, *REASONS, *phrases.EVIDENCE}
    assert codes - known == set()


def test_every_kind_of_outcome_and_verdict_has_words() -> None:
    """The tables of words are complete."""
    assert set(phrases.OUTCOMES) == set(OutcomeState)
    assert set(phrases.VERDICTS) == set(Verdict)
