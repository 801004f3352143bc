"""The decision table, cell by cell, and every rule that stands under it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import pytest

from safewrite.core.commands import Answer, AnswerKind, Send
from safewrite.core.events import OutcomeState, Verdict
from tests.core.history import History, told

APPLIED, NOT, UNKNOWN = OutcomeState.APPLIED, OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN
FOUND, ABSENT, MET, UNMET, BLANK = (
    Verdict.APPLIED, Verdict.NOT_APPLIED, Verdict.GOAL_MET, Verdict.GOAL_NOT_MET, Verdict.INCONCLUSIVE,
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One row of the table: how the single attempt, whose reply was lost, stands when the read begins."""

    promises: dict[str, Any]
    precondition: bool = False
    read_at: float = 0.0
    """When the first read begins; the attempt ended at 0."""
    left: float = 10.0


ROWS = {
    "K": Row({"key_retention": inf}),
    "K, in time": Row({"key_retention": 100.0}, read_at=5.0),
    "P": Row({}, precondition=True),
    "K, P and S": Row(
        {"key_retention": inf, "work_bound": 5.0, "read_lag": 0.0}, precondition=True, read_at=6.0
    ),
    "S and R": Row({"work_bound": 5.0, "read_lag": 0.0}, read_at=6.0),
    "S and R, by the deadline": Row({"honours_deadline": True, "read_lag": 0.0}, read_at=11.0, left=10.0),
    "S, read lags": Row({"work_bound": 5.0, "read_lag": 2.0}, read_at=6.0),
    "S, read lags too long": Row({"work_bound": 5.0, "read_lag": 60.0}, read_at=6.0),
    "S, read lags nobody knows how far": Row({"work_bound": 5.0}, read_at=6.0),
    "not S, comes in time": Row({"work_bound": 5.0, "read_lag": 0.0}),
    "not S, comes too late": Row({"work_bound": 50.0, "read_lag": 0.0}),
    "not S, ever": Row({"read_lag": 0.0}),
}
SENDS = ("send",)
PROVEN = ("send", NOT)
Cell = tuple[Any, ...]

# What the call comes to: ("send", rule) or (outcome, evidence, attributable, may_still_land).
YES: Cell = (APPLIED, "reconciled", True, False)
MET_OPEN: Cell = (APPLIED, "goal_state", False, True)
MET_SETTLED: Cell = (APPLIED, "goal_state", False, False)
OPEN: Cell = (UNKNOWN, "", False, True)
SETTLED: Cell = (UNKNOWN, "", False, False)
K1, P2, S2 = ("send", "K1"), ("send", "P2"), ("send", "S2")

TABLE: dict[str, tuple[Cell, Cell, Cell, Cell, Cell, Cell]] = {
    # row:                              Applied  GoalMet     NotApplied  GoalNotMet  failed   no read
    "K":                                (YES, MET_OPEN, K1, K1, K1, K1),
    "K, in time":                       (YES, MET_OPEN, K1, K1, K1, K1),
    "P":                                (YES, MET_OPEN, P2, P2, P2, P2),
    "K, P and S":                       (YES, MET_SETTLED, S2, K1, K1, K1),
    "S and R":                          (YES, MET_SETTLED, S2, SETTLED, SETTLED, SETTLED),
    "S and R, by the deadline":         (YES, MET_SETTLED, S2, SETTLED, SETTLED, SETTLED),
    "S, read lags":                     (YES, MET_SETTLED, S2, SETTLED, SETTLED, SETTLED),
    "S, read lags too long":            (YES, MET_SETTLED, SETTLED, SETTLED, SETTLED, SETTLED),
    "S, read lags nobody knows how far": (YES, MET_SETTLED, SETTLED, SETTLED, SETTLED, SETTLED),
    "not S, comes in time":             (YES, MET_OPEN, S2, SETTLED, SETTLED, OPEN),
    "not S, comes too late":            (YES, MET_OPEN, OPEN, OPEN, OPEN, OPEN),
    "not S, ever":                      (YES, MET_OPEN, OPEN, OPEN, OPEN, OPEN),
}  # fmt: skip
COLUMNS = (FOUND, MET, ABSENT, UNMET, BLANK, None)
CELLS = [(row, column, TABLE[row][n]) for row in TABLE for n, column in enumerate(COLUMNS)]


@pytest.mark.parametrize(("row", "verdict", "expected"), CELLS, ids=[f"{r} x {v}" for r, v, _ in CELLS])
def test_the_table(row: str, verdict: Verdict | None, expected: Cell) -> None:
    """Each cell of the decision table comes to what it says, waiting and reading again where it says so."""
    given = ROWS[row]
    h = History(left=given.left, reads=verdict is not None, **given.promises)
    h.lost(precondition=given.precondition)
    h.another(precondition=given.precondition)
    h.now, h.ends_at = given.read_at, given.read_at + 10.0
    _, last = h.follow(h.ask(), verdict or BLANK, "read_failed")
    if isinstance(last, Send):
        assert expected == ("send", last.rule)
    else:
        assert expected == (last.outcome, last.evidence, last.attributable, last.may_still_land)
    assert h.folded_again() == h.state


@pytest.mark.parametrize("row", [r for r in ROWS if not r.startswith(("K", "P"))])
@pytest.mark.parametrize("verdict", [UNMET, BLANK, Verdict.RUNNING])
def test_without_k_or_p_only_a_proven_absence_sends_again(row: str, verdict: Verdict) -> None:
    """A read that proves nothing never leads to a second send, whatever else holds."""
    given = ROWS[row]
    h = History(left=given.left, **given.promises)
    h.lost()
    h.another()
    h.now, h.ends_at = given.read_at, given.read_at + 10.0
    _, last = h.follow(h.ask(), verdict)
    assert isinstance(last, Answer)
    assert (last.kind, last.rule) == (AnswerKind.UNKNOWN, "U3")


def test_every_row_reads_before_it_sends_again() -> None:
    """Where there is a read it comes before every second send, under K and P too."""
    for given in ROWS.values():
        h = History(**given.promises)
        h.lost(precondition=given.precondition)
        h.another(precondition=given.precondition)
        assert h.ask().rule == "L1"


def test_not_s_waits_for_s_inside_the_deadline_and_reads_again() -> None:
    """The tempting wrong cell: absent but not settled waits out the bound, reads again, and only then may send."""
    h = History(work_bound=5.0, read_lag=0.0)
    h.lost()
    h.another()
    rules, last = h.follow(h.ask(), ABSENT)
    assert (rules, last) == (["L1", "W3", "L2", "S2"], Send("S2", 2))
    assert h.now >= 5.0


def test_absent_while_the_read_lags_waits_the_lag_and_reads_again() -> None:
    """Settled, but the read may not see it yet: the lag is waited out after the bound."""
    h = History(work_bound=2.0, read_lag=3.0)
    h.lost()
    h.another()
    rules, last = h.follow(h.ask(), ABSENT)
    assert (rules, last.rule) == (["L1", "W3", "L2", "S2"], "S2")
    assert h.now >= 5.0


def test_a_read_that_may_lag_behind_what_is_settled_is_made_again() -> None:
    """It began when nothing could land any more, but may not have seen what had: the rest of the lag is waited out."""
    h = History(work_bound=2.0, read_lag=3.0)
    h.lost()
    h.another()
    h.now = 2.5
    rules, _ = h.follow(h.ask(), ABSENT)
    assert rules == ["L1", "W3", "L2", "S2"]


def test_unknown_says_why() -> None:
    """The reason of an unknown names what the last read said."""
    for verdict, reason, expected in (
        (ABSENT, "", "absent_not_proven"),
        (UNMET, "", "goal_not_met"),
        (Verdict.RUNNING, "", "still_running"),
        (BLANK, "read_timeout", "read_timeout"),
        (BLANK, "", "inconclusive"),
    ):
        h = History()
        h.lost()
        h.another()
        _, last = h.follow(h.ask(), verdict, reason)
        assert told(last).reason == expected
