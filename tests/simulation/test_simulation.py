"""A sample of the simulation, and proof that it would notice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from safewrite import Applied, Attempt, NotApplied
from safewrite.core.events import Call, Moment
from safewrite.core.state import State
from safewrite.ledger.store import Store
from tests.simulation.dependency import World
from tests.simulation.play import play
from tests.simulation.seeds import ledger
from tests.simulation.stage import Stage


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Return a ledger for all seeds."""
    with ledger() as made:
        yield made


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, 150, 50))
def test_no_promise_is_broken(url: str, first: int) -> None:
    """Fifty histories: no duplicate, nothing false, no attempt lost, nothing stuck, no alarm."""
    assert [
        (p.seed, p.problems) for p in (play(url, seed) for seed in range(first, first + 50)) if p.problems
    ] == []


def test_a_seed_repeats_its_history() -> None:
    """The same seed on another ledger, after others or before them, tells the same, to the microsecond."""
    seeds = range(3, 12)
    with ledger() as one, ledger() as other:
        forwards = {seed: play(one, seed).trace for seed in seeds}
        assert forwards == {seed: play(other, seed).trace for seed in reversed(seeds)}


def test_the_world_keeps_its_own_promises() -> None:
    """What a sender left behind lands within the bound, counted from when it must have ended at the latest."""
    with ledger() as url:
        assert play(url, 4004).problems == []


# What it must notice ----------------------------------------------------------------------------------------------


def _later(
    self: World, tool: str, attempt: Attempt, ends: float, usual: Any = World.request
) -> tuple[float, int | Exception]:
    before = len(self.effects)
    came: tuple[float, int | Exception] = usual(self, tool, attempt, ends)
    for effect in self.effects[before:]:
        if effect.lands_at > self.now:
            effect.lands_at += 100.0
    return came


def _stale(self: World, tool: str, key: str) -> Applied[int] | NotApplied:
    found = self.landed(key, self.now - self.chance.uniform(0.0, 60.0))
    return Applied(found[0].number) if found else NotApplied()


def _for_ever(self: State, call: Call, now: Moment, usual: Any = State.recognised) -> bool:
    promises = call.promises
    lasting = None if promises.key_retention is None else inf
    known: bool = usual(self, replace(call, promises=replace(promises, key_retention=lasting)), now)
    return known


@pytest.mark.parametrize(
    ("place", "name", "bad"),
    [
        (World, "request", _later),
        (World, "read", _stale),
        (Stage, "_known_gone", lambda *_: True),
        (Store, "_landed", lambda *_: True),
        (State, "recognised", _for_ever),
    ],
    ids=[
        "effects after the bound",
        "reads that lag",
        "the living taken for dead",
        "a failed commit believed",
        "keys that are believed for ever",
    ],
)
def test_a_planted_fault_is_noticed(
    url: str, monkeypatch: pytest.MonkeyPatch, place: type, name: str, bad: object
) -> None:
    """A dependency that breaks its word, or a fault of our own, shows within some dozens of seeds."""
    monkeypatch.setattr(place, name, bad)
    assert any(play(url, seed).problems for seed in range(1000, 1150))
