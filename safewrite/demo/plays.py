"""How the calls of a scenario are made: by whom, in which turn, and what happens to whoever makes them."""

from __future__ import annotations

from safewrite.demo.agent import Told
from safewrite.demo.scenario import Scenario
from safewrite.demo.stage import Stage


def one_turn_each(stage: Stage, scenario: Scenario) -> list[Told]:
    """Make every call in a turn of its own, in the agent's own process."""
    told = []
    for call in scenario.calls:
        if call.once_landed:
            stage.dependency.wait_for_effects(scenario.target, scenario.effects)
        order = stage.order(scenario.tool, scenario.target, call.note, stage.next_turn())
        told.append(stage.witnessed(scenario, stage.agent.ask(order)))
    return told


def two_workers(stage: Stage, scenario: Scenario) -> list[Told]:
    """Let two processes make the same call of the same turn at the same time."""
    workers, turn = [stage.worker(), stage.worker()], stage.next_turn()
    for worker, call in zip(workers, scenario.calls, strict=True):
        worker.tell(stage.order(scenario.tool, scenario.target, call.note, turn))
    told = [stage.witnessed(scenario, worker.told()) for worker in workers]
    for worker in workers:
        worker.release()
    return told


def killed_and_resumed(stage: Stage, scenario: Scenario) -> list[Told]:
    """Kill a process once the dependency has its request, and resume the same turn, reworded, in another one."""
    turn = stage.next_turn()
    first, again = scenario.calls
    victim = stage.worker()
    victim.tell(stage.order(scenario.tool, scenario.target, first.note, turn))
    if scenario.killed_after_effect:
        stage.dependency.wait_for_effects(scenario.target)
    else:
        stage.dependency.wait_for_requests(scenario.target)
    victim.kill()
    heir = stage.worker()
    heir.tell(stage.order(scenario.tool, scenario.target, again.note, turn))
    told = stage.witnessed(scenario, heir.told())
    heir.release()
    return [told]
