"""`safewrite demo`: see it work, against a real dependency that misbehaves."""

from __future__ import annotations

import json as json_text
import os
import shlex
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safewrite.demo.signals import termination_interrupts, undisturbed

if TYPE_CHECKING:
    from rich.console import Console

    from safewrite.demo.performance import Performance, Result
    from safewrite.demo.scenario import Scenario

LEDGER, EFFECTS, DOCUMENT = "safewrite.db", "dependency.jsonl", "demo.json"
"""What `--keep` leaves: the ledger, what the dependency wrote of itself, and the document of `--json`."""

AGREE, DISAGREE, UNUSABLE, INTERRUPTED = 0, 1, 2, 130
"""Exit codes."""


def demo(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="DIR",
            help="Keep the ledger and the dependency's own file in DIR, a folder that exists.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="TEXT", help="Only writes whose name holds TEXT; may be repeated."),
    ] = None,
) -> None:
    """Run an agent against a real dependency that misbehaves, and hold what it was told against what happened.

    Exits with 0 if both agree on every write, 1 if they do not, 2 if it cannot be carried out, 130 on Ctrl-C.
    """
    from safewrite.demo.scenarios import SCENARIOS

    scenarios = [s for s in SCENARIOS if not only or any(text in s.name for text in only)]
    if not scenarios:
        names = ", ".join(f"`{s.name}`" for s in SCENARIOS)
        raise typer.BadParameter(f"no write is called so. There are: {names}.", param_hint="--only")
    if keep is not None:
        check(keep)
    raise typer.Exit(show(scenarios, as_json=json, keep=keep))


def check(folder: Path) -> None:
    """Raise `typer.BadParameter` for a folder that cannot take what is to be kept."""
    problem = ""
    if not folder.exists():
        problem = f"`{folder}` does not exist. Make it first: `mkdir -p {shlex.quote(str(folder))}`."
    elif not folder.is_dir():
        problem = f"`{folder}` is no folder."
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = f"`{folder}` cannot be written to. Name another folder, or change its permissions."
    else:
        there = [name for name in (LEDGER, EFFECTS, DOCUMENT) if (folder / name).exists()]
        if there:
            problem = f"`{folder}` holds `{there[0]}` already. Name an empty folder."
    if problem:
        raise typer.BadParameter(f"{problem} Nothing was started.", param_hint="--keep")


def show(scenarios: Sequence[Scenario], *, as_json: bool, keep: Path | None) -> int:
    """Perform, print, keep, and return the exit code."""
    from safewrite.demo.performance import perform
    from safewrite.demo.report import Report

    console, progress = _consoles(as_json)
    report = Report(console)
    try:
        with (
            termination_interrupts(),
            _working_folder(keep) as folder,
            progress.status("", spinner="line") as status,
        ):
            if not as_json:
                report.begins(len(scenarios))

            def watch(scenario: Scenario, result: Result | None) -> None:
                if result is None:
                    status.update(f"{scenario.name} ...")
                elif not as_json:
                    report.ended(result)

            performance = perform(folder, scenarios, watch)
            status.update("")
            kept = _keep(folder, keep, performance) if keep is not None else []
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted: every process was ended, and nothing is kept.\n")
        return INTERRUPTED
    except BrokenPipeError:  # nobody reads the report any more
        raise
    except (OSError, RuntimeError) as error:
        sys.stderr.write(f"The demonstration could not go on: {error}\n")
        return UNUSABLE
    if as_json:
        sys.stdout.write(json_text.dumps(performance.as_json(), indent=2) + "\n")
    else:
        report.whole(performance)
        if keep is not None:
            report.kept(keep, kept, performance)
    return AGREE if performance.agrees else DISAGREE


def _consoles(as_json: bool) -> tuple[Console, Console]:
    """Return the console for the report, and the one for progress: the same, or standard error beside a pipe."""
    from rich.console import Console

    console = Console(highlight=False)
    return console, console if console.is_terminal and not as_json else Console(stderr=True, highlight=False)


@contextmanager
def _working_folder(keep: Path | None) -> Iterator[Path]:
    """Make the folder in which everything happens, and remove it, whatever comes.

    It lies in the folder that is to keep what is left: that it can be written to is seen before anything starts,
    and everything is moved there at once in the end, so that an interrupt leaves nothing.
    """
    try:
        made = tempfile.TemporaryDirectory(prefix=".safewrite-demo-", dir=keep)
    except OSError as error:
        raise typer.BadParameter(f"`{keep}` cannot be written to: {error}. Nothing was started.") from error
    try:
        yield Path(made.name).resolve()
    finally:
        with undisturbed():
            made.cleanup()


def _keep(folder: Path, keep: Path, performance: Performance) -> list[Path]:
    """Move what is to be kept into place, and return where it is now."""
    document = folder / DOCUMENT
    document.write_text(json_text.dumps(performance.as_json(), indent=2) + "\n", encoding="utf-8")
    with closing(sqlite3.connect(folder / LEDGER)) as ledger:
        # Whoever closed last was perhaps killed, and left its newest rows in the log beside the file.
        ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with undisturbed():
        return [(folder / name).replace(keep / name) for name in (LEDGER, EFFECTS, DOCUMENT)]


if __name__ == "__main__":
    typer.run(demo)
