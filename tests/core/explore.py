"""Breadth first through every world of a setting: the shortest way to a broken promise, or none."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tests.core.play import Broken, World, twilight
from tests.core.setting import Setting
from tests.core.world import Play


@dataclass
class Explored:
    """What one exploration found."""

    setting: Setting
    states: int = 0
    moves: int = 0
    seconds: float = 0.0
    whole: bool = True
    """Every state was followed; false where `most` was reached first."""
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
    """Follow every interleaving of `setting`, breadth first, until a promise breaks or `most` states are known."""
    play, found, began = Play(setting), Explored(setting), time.process_time()
    start = play.start()
    seen: dict[World, int] = {start: 0}
    queue: list[World] = [start]
    came: list[tuple[int, str]] = [(-1, "")]
    place = 0
    while place < len(queue) and len(queue) < most:
        world = queue[place]
        for label, follow in play.moves(world):
            found.moves += 1
            try:
                nexts = follow()
            except Broken as why:
                found.broken = str(why)
                found.trace = [*_way(came, place), label]
                break
            for after in map(twilight, nexts):
                if seen.setdefault(after, len(queue)) == len(queue):
                    queue.append(after)
                    came.append((place, label))
        if found.broken:
            break
        place += 1
    found.states, found.seconds = len(queue), time.process_time() - began
    found.whole = place == len(queue)
    found.rules = {command.rule for _, command in play.engine.remembered()}
    return found


def _way(came: list[tuple[int, str]], place: int) -> list[str]:
    way: list[str] = []
    while place > 0:
        place, label = came[place]
        way.append(label)
    return way[::-1]
