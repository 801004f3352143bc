"""Breadth first through every world of a setting: the shortest way to a broken promise, or none.

A sample follows so many states whole, and from there on some of each depth, to the end of the world: what comes late,
such as a third attempt or the end of a key's retention, lies behind more states than a sample can follow.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.core.catalog import chosen, combinations, pairs
from tests.core.play import Broken, World, twilight
from tests.core.setting import Setting
from tests.core.world import Play

MOST = 10_000
"""States of one world that the sample follows whole."""
WIDE = 20
"""States of each further depth that it goes on from."""


@dataclass
class Explored:
    """What one exploration found."""

    setting: Setting
    states: int = 0
    moves: int = 0
    seconds: float = 0.0
    whole: bool = True
    """Every state was followed; false where `most` was reached first."""
    worlds: list[World] = field(default_factory=list, repr=False)
    happened: set[str] = field(default_factory=set, repr=False)
    """The moves that were made, by their names."""
    broken: str = ""
    trace: list[str] = field(default_factory=list)
    rules: set[str] = field(default_factory=set)
    """The rules that decided something."""

    def __str__(self) -> str:
        head = f"{self.setting.name}: {self.states} states, {self.moves} moves, {self.seconds:.1f} s"
        head += "" if self.whole else " (cut)"
        if not self.broken:
            return head
        return "\n".join(
            [head, *(f"  {n}. {step}" for n, step in enumerate(self.trace, 1)), f"  => {self.broken}"]
        )


def explore(setting: Setting, most: int = 10**9) -> Explored:
    """Follow every interleaving of `setting`, breadth first, until a promise breaks or `most` states are known.

    From there on `WIDE` states of each depth are followed, drawn by the setting's name, to the end of the world.
    """
    play, found, began = Play(setting), Explored(setting), time.process_time()
    queue, came = found.worlds, [(-1, "")]
    queue.append(play.start())
    seen: dict[World, int] = {queue[0]: 0}

    def follow(place: int) -> range:
        """Make every move of one world; return the places of those that nobody knew."""
        first = len(queue)
        for label, leads_to in play.moves(queue[place]):
            found.moves += 1
            found.happened.add(label)
            try:
                nexts = leads_to()
            except Broken as why:
                found.broken = str(why)
                found.trace = [*_way(came, place), label]
                break
            for after in map(twilight, nexts):
                if seen.setdefault(after, len(queue)) == len(queue):
                    queue.append(after)
                    came.append((place, label))
        return range(first, len(queue))

    place, chance = 0, random.Random(setting.name)
    while place < len(queue) and len(queue) < most and not found.broken:
        follow(place)
        place += 1
    found.whole = place == len(queue)
    level = list(range(place, len(queue)))
    while level and not found.broken:
        some = level if len(level) <= WIDE else chance.sample(level, WIDE)
        level = [new for place in some if not found.broken for new in follow(place)]
    found.states, found.seconds = len(queue), time.process_time() - began
    found.rules = {command.rule for _, command in play.engine.remembered()}
    return found


def _way(came: list[tuple[int, str]], place: int) -> list[str]:
    way: list[str] = []
    while place > 0:
        place, label = came[place]
        way.append(label)
    return way[::-1]


def main() -> None:
    """Explore from the command line: every world, and with what came of it."""
    ask = argparse.ArgumentParser(prog="python -m tests.core.world", description=__doc__)
    ask.add_argument("--deep", action="store_true", help="follow every world to its end")
    ask.add_argument("--most", type=int, default=MOST, help="states per world, unless --deep")
    ask.add_argument(
        "--only", default="", metavar="TEXT", help="worlds (or mutants) that have this in their name"
    )
    ask.add_argument(
        "--mutants", action="store_true", help="plant each known-bad rule and show what catches it"
    )
    given = ask.parse_args()
    most = 10**9 if given.deep else given.most
    if given.mutants:
        from tests.core.mutants import MUTANTS, hunt

        hunts = ((m.belief, m.sounds, hunt(m, most)) for m in MUTANTS if given.only in m.belief)
        sys.exit(_show_mutants(hunts))
    worlds = (*chosen(), *combinations(), *pairs())
    sys.exit(_show(explore(s, most) for s in worlds if given.only in s.name))


def _show(explored: Iterable[Explored]) -> int:
    states = moves = broken = 0
    seconds = 0.0
    rules: set[str] = set()
    for found in explored:
        print(found, flush=True)
        states, moves, seconds = states + found.states, moves + found.moves, seconds + found.seconds
        broken += bool(found.broken)
        rules |= found.rules
    rate = states / seconds if seconds else 0.0
    print(f"\n{states} states, {moves} moves, {seconds:.0f} s, {rate:.0f} states/s, {broken} broken")
    print(f"rules that decided: {' '.join(sorted(rules))}")
    return 1 if broken else 0


def _show_mutants(hunts: Iterable[tuple[str, str, Explored]]) -> int:
    alive = 0
    for belief, sounds, found in hunts:
        caught = bool(found.broken) and sounds in found.broken
        told = f"{len(found.trace):2} moves" if caught else "NOT CAUGHT"
        print(f"{told}  {belief} ({found.setting.name}: {found.broken or 'nothing broke'})", flush=True)
        if found.broken and not caught:
            print(f"            the check that must find it says: {sounds}", flush=True)
        alive += not caught
    return 1 if alive else 0
