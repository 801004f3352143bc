"""How the demonstration is shown: each write as it ends, the audit of the run, and a closing table.

On a terminal with colours and tables, else as plain lines that nothing wraps.  Everything is ASCII.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from safewrite.demo.agent import Told
from safewrite.demo.performance import Performance, Result, promises
from safewrite.demo.record import Recorded, why

STYLES = {
    "applied": "green",
    "not_applied": "yellow",
    "unknown": "bold red",
    "yes": "green",
    "NO": "bold red",
}
"""The colour of each word that matters."""
Lines = Iterable[tuple[str, Text]]
"""Labels, and what stands beside each."""


class Report:
    """Writes to a console what a performance comes to: in tables for a person at a terminal, else plainly."""

    def __init__(self, console: Console, *, tables: bool) -> None:
        self._console = console
        self._tables = tables

    def begins(self, count: int) -> None:
        """Say what is about to be seen."""
        self._say(
            Text(
                f"{_counted(count, 'write')} of one agent, over real HTTP, against a dependency in a process of its "
                "own that keeps its own ledger of what it really did."
            )
        )

    def ended(self, result: Result) -> None:
        """Show one write: what happened at the dependency beside what the agent was told, and why."""
        self._say(Text(""))
        self._say(Text(result.played.scenario.name, style="bold"))
        self._lines(list(_write(result)))

    def whole(self, performance: Performance) -> None:
        """Show the audit of the run, and the closing table."""
        self._say(Text(""))
        self._say(Text(f"Audit of the run {performance.run}: every attempt, read and decision", style="bold"))
        for record in performance.records:
            self._audit(record)
        self._say(Text(""))
        self._table(performance.results)
        self._say(Text(""))
        self._say(_verdict(performance))

    def kept(self, folder: Path, files: Iterable[Path], performance: Performance) -> None:
        """Say where everything is, and how to look at it."""
        self._say(Text(""))
        self._say(Text(f"Kept in {folder}: {', '.join(file.name for file in files)}"))
        for command in commands(folder, performance):
            self._say(Text(f"    {command}"))

    # Two ways to show the same ---------------------------------------------------------------------------

    def _say(self, text: Text) -> None:
        self._console.print(text, soft_wrap=not self._tables)

    def _lines(self, lines: Lines, width: int = 11) -> None:
        if not self._tables:
            for label, text in lines:
                self._say(Text(f"    {label:<{width}} ") + text)
            return
        grid = Table.grid(padding=(0, 1))
        grid.add_column(style="dim", no_wrap=True, min_width=width + 4)
        grid.add_column()
        for label, text in lines:
            grid.add_row(f"    {label}", text)
        self._console.print(grid)

    def _audit(self, record: Recorded) -> None:
        self._say(Text(""))
        head = f"{record.tool}({record.target!r}) in turn {record.turn}, key {record.key}"
        self._say(Text(head, style="bold"))
        rows = [(str(entry.line.sequence), Text(entry.line.sentence)) for entry in record.entries]
        self._lines([*rows, ("", Text(record.story.summary, style=STYLES.get(record.outcome, "")))], width=3)

    def _table(self, results: Iterable[Result]) -> None:
        head = ("write", "at the dependency", "told the agent", "agree")
        rows = [_row(result) for result in results]
        if self._tables:
            table = Table(*head, header_style="bold")
            for row in rows:
                table.add_row(*row)
            self._console.print(table)
            return
        widths = [
            max(len(text) for text in column)
            for column in zip(head, *(map(str, row) for row in rows), strict=True)
        ]
        for row in [tuple(map(Text, head)), *rows]:
            cells = (f"{text!s:<{width}}" for text, width in zip(row, widths, strict=True))
            self._say(Text("  ".join(cells).rstrip()))


def _write(result: Result) -> Iterator[tuple[str, Text]]:
    p, s = result.played, result.played.scenario
    kind = "a coroutine function" if result.colour == "async" else "a plain function"
    yield "write", Text(f"{s.tool}({s.target!r}), {kind}")
    yield "promises", Text(f"{result.dependency.name}: {', '.join(promises(result.dependency))}")
    script = ", ".join(step.name for step in s.script) or "as it should"
    yield "dependency", Text(f"{_effects(result)}; sent {_times(len(p.happened.sent))}; answered: {script}")
    for told in p.told:
        yield "told", _told(told)
        line = why(told, p.records)
        if line is not None:
            yield "why", Text(f"{line.happened} {line.because} ({line.rule})")
    yield "agree", _agree(result)
    for problem in result.problems:
        yield "", Text(problem, style="bold red")


def _told(told: Told) -> Text:
    known = told.evidence or told.reason
    text = (
        Text(f"{told.who}, turn {told.turn}: ")
        + Text(told.state, style=STYLES[told.state])
        + Text(f" ({known})")
    )
    if told.state == "unknown":
        text += Text(", may still land" if told.may_still_land else ", settled")
    if told.blocked_by_key is not None and told.state == "unknown":
        text += Text(", for the write of an earlier turn is open")
    if not told.sent:
        text += Text(", nothing sent by this call")
    return text + Text(f", after {told.seconds:.2f} s")


def _row(result: Result) -> tuple[Text, ...]:
    states = Text(", ").join([Text(told.state, style=STYLES[told.state]) for told in result.played.told])
    return Text(result.played.scenario.name), Text(_effects(result)), states, _agree(result)


def _agree(result: Result) -> Text:
    word = "yes" if result.agrees else "NO"
    return Text(word, style=STYLES[word])


def _effects(result: Result) -> str:
    count = len(result.played.happened.effects)
    return "no effect" if count == 0 else _counted(count, "effect")


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")


def _verdict(performance: Performance) -> Text:
    count, taken = len(performance.results), f"{performance.seconds:.1f} s"
    if performance.agrees:
        whole = f"{_counted(count, 'write')}, {_counted(performance.answers, 'answer')}"
        return Text(
            f"{whole}: what happened and what was told agree on every line ({taken}).", style=STYLES["yes"]
        )
    wrong = sum(not result.agrees for result in performance.results)
    return Text(
        f"{wrong} of {_counted(count, 'write')}: what happened and what was told do NOT agree ({taken}).",
        style=STYLES["NO"],
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def commands(folder: Path, performance: Performance) -> Iterator[str]:
    """Yield the commands that show what was kept."""
    yield f"cd {shlex.quote(str(folder))}"
    yield "safewrite runs"
    yield f"safewrite run {performance.run}"
    keys = [told.key for result in performance.results for told in result.played.told if told.attempts > 1]
    keys += [told.key for result in performance.results for told in result.played.told]
    yield f"safewrite show {keys[0]}"
    yield "safewrite unknown"
