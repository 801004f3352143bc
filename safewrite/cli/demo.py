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

from safewrite.cli.exits import Exit, Stop
from safewrite.cli.options import AsJson, NoColor, session
from safewrite.cli.output import Output
from safewrite.demo.signals import termination_interrupts, undisturbed

if TYPE_CHECKING:
    from rich.console import Console

    from safewrite.demo.performance import Performance, Result
    from safewrite.demo.scenario import Scenario

LEDGER, EFFECTS, DOCUMENT = "safewrite.db", "dependency.jsonl", "demo.json"
"""What `--keep` leaves: the ledger, what the dependency wrote of itself, and the document of `--json`."""


def demo(
    context: typer.Context,
    json: AsJson = False,
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
    no_color: NoColor = False,
) -> None:
    """Run an agent against a real dependency that misbehaves, and hold what it was told against what happened.

    Exits with 0 if both agree on every write, and with 1 if they do not.
    """
    from safewrite.demo.scenarios import SCENARIOS

    scenarios = [s for s in SCENARIOS if not only or any(text in s.name for text in only)]
    if not scenarios:
        names = ", ".join(f"`{s.name}`" for s in SCENARIOS)
        raise typer.BadParameter(f"no write is called so. There are: {names}.", param_hint="--only")
    if keep is not None:
        check(keep)
    output = session(context, as_json=json, no_color=no_color).output
    raise typer.Exit(show(scenarios, output, keep))


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


def show(scenarios: Sequence[Scenario], output: Output, keep: Path | None = None) -> Exit:
    """Perform, print, keep, and return the exit code.  Raises `Stop` where a process cannot be started."""
    from safewrite.cli import performance as report
    from safewrite.demo.performance import perform

    try:
        with (
            termination_interrupts(),
            _working_folder(keep) as folder,
            _progress(output).status("", spinner="line") as status,
        ):
            if not output.as_json:
                report.begins(output, len(scenarios))

            def watch(scenario: Scenario, result: Result | None) -> None:
                if result is None:
                    status.update(f"{scenario.name} ...")
                elif not output.as_json:
                    report.ended(output, result)

            performance = perform(folder, scenarios, watch)
            status.update("")
            kept = _keep(folder, keep, performance) if keep is not None else []
    except KeyboardInterrupt:
        sys.stderr.write("Interrupted: every process was ended, and nothing is kept.\n")
        return Exit.INTERRUPTED
    except BrokenPipeError:  # nobody reads the report any more
        raise
    except (OSError, RuntimeError) as error:
        raise Stop(f"The demonstration could not go on: {error}", Exit.FAULT) from error
    if output.as_json:
        output.document(performance.as_json())
    else:
        report.whole(output, performance)
        if keep is not None:
            report.kept(output, keep, kept, performance)
        else:
            report.nothing_kept(output)
    return Exit.OK if performance.agrees else Exit.PROBLEM


def _progress(output: Output) -> Console:
    """Return where progress is shown: beside the report on a terminal, else on standard error, if that is one."""
    from rich.console import Console

    if output.rich and not output.as_json:
        return output.console
    return Console(stderr=True, highlight=False, force_terminal=None if sys.stderr.isatty() else False)


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
