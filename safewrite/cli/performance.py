"""How the demonstration is shown: each write as it ends, the audit of the run, and a closing table."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from safewrite.cli.views import target, then, words

if TYPE_CHECKING:
    from safewrite.cli.output import Output
    from safewrite.demo.agent import Told
    from safewrite.demo.performance import Performance, Result


def begins(output: Output, count: int) -> None:
    """Say what is about to be seen."""
    output.say(
        f"{_counted(count, 'write')} of one agent, over real HTTP, against a dependency in a process of its own that "
        "keeps its own ledger of what it really did."
    )


def ended(output: Output, result: Result) -> None:
    """Show one write: what happened at the dependency beside what the agent was told, and why."""
    output.heading(result.played.scenario.name)
    output.fields(_write(result))


def whole(output: Output, performance: Performance) -> None:
    """Show the audit of the run, the closing table, and whether both sides agree."""
    output.heading(f"Audit of the run {performance.run}: every attempt, read and decision")
    for record in performance.records:
        output.heading(f"{record.tool}({target(record.target)}) in turn {record.turn}, key {record.key}")
        rows = [(str(row.sequence), f"{row.happened} {then(row)}") for row in record.rows]
        output.fields([*rows, ("", record.summary)])
    output.heading("Both sides")
    output.table(
        ("write", "at the dependency", "told the agent", "agree"),
        [
            (r.played.scenario.name, _effects(r), [words(t.state) for t in r.played.told], _agree(r))
            for r in performance.results
        ],
    )
    output.lines("")
    output.say(_verdict(performance))


def kept(output: Output, folder: Path, files: Iterable[Path], performance: Performance) -> None:
    """Say where everything is, and the commands that show it."""
    told = [told for result in performance.results for told in result.played.told]
    key = next((t.key for t in told if t.attempts > 1), told[0].key)
    output.lines(
        "",
        f"Kept in {folder}: {', '.join(file.name for file in files)}",
        f"    cd {shlex.quote(str(folder))}",
        "    safewrite runs",
        f"    safewrite run {performance.run}",
        f"    safewrite show {key}",
        "    safewrite unknown",
    )


def nothing_kept(output: Output) -> None:
    """Say how to look around next time."""
    output.lines("", "The ledger is gone with its folder. To look around in one: safewrite demo --keep DIR")


def _write(result: Result) -> Iterator[tuple[str, object]]:
    from safewrite.demo.performance import promises
    from safewrite.demo.record import why

    p, s = result.played, result.played.scenario
    kind = "a coroutine function" if result.colour == "async" else "a plain function"
    yield "write", f"{s.tool}({s.target!r}), {kind}"
    yield "promises", f"{result.dependency.name}: {', '.join(promises(result.dependency))}"
    script = ", ".join(step.name for step in s.script) or "as it should"
    times = {0: "never", 1: "once", 2: "twice"}.get(len(p.happened.sent), f"{len(p.happened.sent)} times")
    yield "dependency", f"{_effects(result)}; sent {times}; answered: {script}"
    for told in p.told:
        yield "told", _told(told)
        row = why(told, p.records)
        if row is not None:
            yield "why", f"{row.happened} {row.because} ({row.rule})"
    yield "agree", _agree(result)
    for problem in result.problems:
        yield "", problem


def _told(told: Told) -> str:
    text = f"{told.who}, turn {told.turn}: {words(told.state)} ({told.evidence or told.reason})"
    if told.state == "unknown":
        text += ", may still land" if told.may_still_land else ", settled"
        if told.blocked_by_key is not None:
            text += ", for the write of an earlier turn is open"
    if not told.sent:
        text += ", nothing sent by this call"
    return f"{text}, after {told.seconds:.2f} s"


def _agree(result: Result) -> str:
    return "yes" if result.agrees else "NO"


def _effects(result: Result) -> str:
    count = len(result.played.happened.effects)
    return "no effect" if count == 0 else _counted(count, "effect")


def _verdict(performance: Performance) -> str:
    writes, taken = _counted(len(performance.results), "write"), f"{performance.seconds:.1f} s"
    if performance.agrees:
        answers = _counted(sum(len(result.played.told) for result in performance.results), "answer")
        return f"{writes}, {answers}: what happened and what was told agree on every line ({taken})."
    wrong = sum(not result.agrees for result in performance.results)
    return f"{wrong} of {writes}: what happened and what was told do NOT agree ({taken})."


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
