"""One whole demonstration: play the scenarios in order, then hold both sides against each other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safewrite.audit.records import IntentRecord
from safewrite.demo.agent import Told
from safewrite.demo.judge import Happened, Played, problems
from safewrite.demo.record import about, attempt_ids, read, why
from safewrite.demo.scenario import Scenario
from safewrite.demo.stage import Stage, stage
from safewrite.dependency import Dependency

Watcher = Callable[[Scenario, "Result | None"], object]
"""Called as each scenario begins (without a result) and ends."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one scenario."""

    played: Played
    dependency: Dependency
    """The promises that the tool declares."""
    colour: str
    """`plain` or `async`: what kind of function the tool is."""
    problems: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether both sides agree, and everything is as expected."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        p, s = self.played, self.played.scenario
        return {
            "scenario": s.name,
            "tool": s.tool,
            "colour": self.colour,
            "target": s.target,
            "promises": promises(self.dependency),
            "dependency": {
                "name": self.dependency.name,
                "script": [step.as_json() for step in s.script],
                "effects": len(p.happened.effects),
                "sent": len(p.happened.sent),
                "ledger": list(p.happened.effects),
            },
            "told": [{**told.as_json(), **_why(told, p.records)} for told in p.told],
            "expected": {
                "effects": s.effects,
                "sent": s.requests,
                "told": [call.told for call in s.calls if call.told is not None],
            },
            "agree": self.agrees,
            "problems": list(self.problems),
        }


def _why(told: Told, records: Sequence[IntentRecord]) -> dict[str, str | None]:
    row = why(told, records)
    return {"rule": row.rule if row else None, "because": row.because if row else None}


@dataclass(frozen=True, slots=True)
class Performance:
    """What came of all of them."""

    run: str
    results: tuple[Result, ...]
    records: tuple[IntentRecord, ...]
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether both sides agree everywhere."""
        return all(result.agrees for result in self.results)

    def as_json(self) -> dict[str, Any]:
        """Return the one document that `--json` prints."""
        return {
            "agree": self.agrees,
            "run": self.run,
            "seconds": round(self.seconds, 3),
            "writes": [result.as_json() for result in self.results],
            "audit": [record.to_dict() for record in self.records],
        }


def perform(folder: Path, scenarios: Sequence[Scenario], watch: Watcher = lambda *_: None) -> Performance:
    """Play scenarios in a folder, which holds the ledger and the dependency's file afterwards.

    Whatever ends it, an interrupt too, no process is left.  Raises `OSError` or `RuntimeError` where a process
    cannot be started or stops answering.
    """
    began, run = time.monotonic(), f"demo-{os.urandom(4).hex()}"
    with stage(folder, run) as opened:
        opened.start_ahead(sum(scenario.processes for scenario in scenarios))
        played: list[tuple[Scenario, list[Told]]] = []
        for scenario in scenarios:
            watch(scenario, None)
            played.append((scenario, _play(opened, scenario)))
            watch(scenario, _result(opened, *played[-1], read(folder, run)))
        records = read(folder, run)
        results = tuple(_result(opened, scenario, told, records) for scenario, told in played)
    return Performance(run, results, records, time.monotonic() - began)


def _play(opened: Stage, scenario: Scenario) -> list[Told]:
    declared = opened.agent.sw.tools[scenario.tool].dependency
    keys = scenario.keys or ("off" if declared.key_retention is None else "forever")
    opened.dependency.promise(keys=keys)
    opened.dependency.script(*scenario.script, target=scenario.target)
    return scenario.play(opened, scenario)


def _result(opened: Stage, scenario: Scenario, told: list[Told], records: Sequence[IntentRecord]) -> Result:
    effects = opened.dependency.effects_log(scenario.target)
    sent = [r for r in opened.dependency.requests(scenario.target) if r["method"] == "POST"]
    own = about(records, scenario.target)
    played = Played(scenario, told, Happened(effects, sent), own, attempt_ids(records))
    tool = opened.agent.sw.tools[scenario.tool]
    return Result(played, tool.dependency, "async" if tool.is_async else "plain", tuple(problems(played)))


def promises(dependency: Dependency) -> list[str]:
    """Return what a dependency promises, in words."""
    return list(_promises(dependency)) or ["promises nothing"]


def _promises(d: Dependency) -> Iterator[str]:
    if d.key_retention is not None:
        yield "recognises keys"
    if d.work_bound is not None:
        yield f"works at most {d.work_bound:g} s on"
    if d.read_lag is not None:
        yield "reads see every write"
