"""Idle and absolute limits as arithmetic: which one runs out, and when."""

from __future__ import annotations

from math import inf, nan

import pytest

from safewrite.core.idle import Watch, effective_idle, too_slow


@pytest.mark.parametrize(
    ("in_force", "idle", "per_server", "timeout"),
    [
        (300.0, 300.0, 0.0, inf),
        (1.0, 0.2, 0.0, 60.0),  # never below a second
        (45.0, 10.0, 45.0, 60.0),  # what a server asks for, if that is longer
        (60.0, 300.0, 45.0, 60.0),  # never beyond the tool's own limit
        (0.5, 0.2, 0.0, 0.5),
    ],
)
def test_the_idle_limit_in_force(in_force: float, idle: float, per_server: float, timeout: float) -> None:
    """min(max(idle, per_server, 1 s), tool timeout)."""
    assert effective_idle(idle, per_server=per_server, timeout=timeout) == in_force


@pytest.mark.parametrize("wrong", [-1.0, nan, -inf])
@pytest.mark.parametrize("name", ["idle", "per_server", "timeout"])
def test_what_is_no_limit_is_refused(name: str, wrong: float) -> None:
    """NaN would win every comparison or none, by the order of the arguments."""
    with pytest.raises(ValueError, match=f"`{name}` is {wrong!r}"):
        effective_idle(**{"idle": 300.0, name: wrong})


def test_there_is_none_where_progress_cannot_be_carried() -> None:
    """On such a transport silence says nothing."""
    assert effective_idle(300.0, timeout=60.0, carries_progress=False) is None


def run(watch: Watch, step: float, until: float = inf) -> tuple[float, str]:
    """Let progress come every `step` seconds until `until`; return when a limit fires, and which."""
    now = watch.heard
    while watch.left(now) > 1e-9:
        moves = now + step <= until
        now += min(watch.left(now), step if moves else inf)
        if moves:
            watch = watch.moved(now)
    return round(now, 6), watch.runs_out


def dispatched(at: float, *, idle: float | None, cap: float) -> Watch:
    """Return the watch of work that begins at `at`."""
    return Watch(at, at + cap, cap, idle)


@pytest.mark.parametrize(
    ("fires_at", "which", "idle", "cap", "step", "until"),
    [
        (1.0, "timeout", 0.2, 1.0, 0.1, inf),  # progress for ever never moves the absolute limit
        (0.3, "timeout", 5.0, 0.3, inf, 0.0),  # the first wait is the shorter of the two
        (0.7, "idle", 0.2, 5.0, 0.1, 0.5),
        (300.0, "idle", 300.0, 600.0, inf, 0.0),  # silent over HTTP
        (600.0, "timeout", 300.0, 600.0, 20.0, inf),  # with a sign of life every 20 s
        (60.0, "timeout", None, 60.0, inf, 0.0),
        (2.0, "timeout", 2.0, 2.0, inf, 0.0),  # together: the absolute one is told
    ],
)
def test_which_limit_fires_and_when(
    fires_at: float, which: str, idle: float | None, cap: float, step: float, until: float
) -> None:
    """The idle limit runs from the last progress, the absolute one from the dispatch."""
    assert run(dispatched(0.0, idle=idle, cap=cap), step, until) == (fires_at, which)


def test_with_progress_every_20_s_work_is_alive_at_535_s() -> None:
    """An idle limit of 300 s has then 285 s left."""
    watch = dispatched(0.0, idle=300.0, cap=3600.0)
    for at in range(20, 521, 20):
        watch = watch.moved(float(at))
    assert watch.left(535.0) == 285.0


def test_progress_that_is_told_late_moves_nothing_back() -> None:
    """Two threads may report in the wrong order."""
    assert dispatched(0.0, idle=5.0, cap=60.0).moved(4.0).moved(3.0).heard == 4.0


def test_the_words_name_the_limit_that_fired_and_both_values() -> None:
    """Whoever reads them knows which number to change."""
    idle = dispatched(0.0, idle=300.0, cap=600.0).words(300.0)
    assert idle.startswith("The idle limit of 300 s has passed: nothing was heard of it for 300.000 s")
    assert "300.000 s of 600 s were left" in idle
    absolute = dispatched(0.0, idle=300.0, cap=600.0).moved(580.0).words(600.0)
    assert absolute.startswith("The limit of 600 s has passed; the idle limit is 300 s")
    assert "20.000 s" in absolute
    short = dispatched(0.0, idle=0.5, cap=0.75).words(0.5)
    assert short == (
        "The idle limit of 0.5 s has passed: nothing was heard of it for 0.500 s; 0.250 s of 0.75 s were left."
    )
    assert dispatched(0.0, idle=None, cap=60.0).words(60.0) == (
        "The limit of 60 s has passed; there is no idle limit."
    )


@pytest.mark.parametrize(
    ("interval", "idle", "slow"), [(20.0, 300.0, False), (20.0, 20.0, True), (20.0, 5.0, True)]
)
def test_keepalives_must_come_before_the_idle_limit(interval: float, idle: float, slow: bool) -> None:
    """A limit at or below the interval is told with both numbers and where they came from."""
    said = too_slow(interval, "environment", idle, "the host")
    assert bool(said) is slow
    if slow:
        assert f"`idle` = {idle:g} s (set by the host)" in said
        assert f"`keepalive` = {interval:g} s (set by environment)" in said
        assert said.endswith("cut off. Make the interval a third of the idle limit, or less.")
