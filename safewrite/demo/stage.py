"""Where the demonstration takes place: a folder, the dependency's process, the agent, and further agents' processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from safewrite.demo.agent import Agent, Order, Told
from safewrite.demo.scenario import Scenario
from safewrite.demo.signals import delayed, undisturbed
from safewrite.demo.worker import Worker
from safewrite.testing.dependency import ScriptedDependency


@dataclass(slots=True)
class Stage:
    """What the scenarios play on."""

    folder: Path
    run: str
    dependency: ScriptedDependency
    agent: Agent
    turn: int = 0
    """The newest turn of the run."""
    workers: list[Worker] = field(default_factory=list)
    """All processes that were started, ended or not."""
    waiting: list[Worker] = field(default_factory=list)
    """Those that were started ahead and have nothing to do yet."""

    def next_turn(self) -> int:
        """Begin a turn and return its number."""
        self.turn += 1
        return self.turn

    def order(self, tool: str, target: str, note: str, turn: int) -> Order:
        """Return a call in this run."""
        return Order(tool, target, note, self.run, turn)

    def witnessed(self, scenario: Scenario, told: Told) -> Told:
        """Return an answer with what the dependency had done when it was given."""
        return replace(told, effects_then=self.dependency.effects(scenario.target))

    def start_ahead(self, count: int) -> None:
        """Start processes now, so that they need not be waited for when their turn comes."""
        self.waiting += [self._start() for _ in range(count)]

    def worker(self) -> Worker:
        """Return a process that is ready to make calls."""
        worker = self.waiting.pop(0) if self.waiting else self._start()
        return worker.ready()

    def _start(self) -> Worker:
        with delayed():
            worker = Worker(self.folder, self.dependency.url, f"worker {len(self.workers) + 1}")
            self.workers.append(worker)
        return worker

    def end_workers(self) -> None:
        """End all processes that are still there."""
        for worker in self.workers:
            worker.kill()


@contextmanager
def stage(folder: Path, run: str) -> Iterator[Stage]:
    """Open a stage in a folder; at the end no process and no connection is left."""
    with ExitStack() as stack:
        with delayed():
            dependency = stack.enter_context(ScriptedDependency(data_dir=folder))
        agent = stack.enter_context(Agent(folder, dependency.url, "agent"))
        opened = Stage(folder, run, dependency, agent)
        stack.callback(opened.end_workers)
        try:
            yield opened
        finally:
            with undisturbed():
                stack.close()
