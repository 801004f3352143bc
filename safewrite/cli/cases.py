"""`safewrite export` and `safewrite replay`: from an incident to a regression test."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from safewrite.cli.exits import Exit, Stop
from safewrite.cli.opening import existing
from safewrite.cli.options import AsJson, Reference, Url, session
from safewrite.cli.output import clean


class Form(StrEnum):
    """What an intent can be exported as."""

    CASE = "case"


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (export, replay):
        app.command()(command)


def export(
    context: typer.Context,
    reference: Reference,
    form: Annotated[Form, typer.Option("--as", help="A case, to be replayed in tests.")] = Form.CASE,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Where to write it. Default: standard output.",
            show_default=False,
        ),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Write the recorded history of an intent as a case: a small JSON file without the value and without secrets.

    `safewrite replay` and the pytest marker `safewrite_case` decide it again.
    """
    from safewrite.audit.cases import export_case

    given = session(context, url, as_json=as_json)
    with existing(given.url) as ledger:
        case = export_case(ledger, reference)
    if case is None:
        raise Stop(f"Nothing in the ledger has the key, id or trace `{reference}`.", Exit.USAGE)
    if output is None:
        given.output.lines(case.text().removesuffix("\n"))
        return
    try:
        output.write_text(case.text(), encoding="ascii")
    except OSError as error:
        raise Stop(f"`{output}` cannot be written: {error.strerror}.", Exit.USAGE) from error
    if as_json:
        given.output.document(
            {"file": str(output), "as": form.value, "key": case.intent.key, "rows": len(case.rows)}
        )
    else:
        given.output.say(f"{output}: {len(case.rows)} rows of {case.intent.key}.")


def replay(
    context: typer.Context,
    case: Annotated[Path, typer.Argument(metavar="CASE", help="A case file.", show_default=False)],
    tool: Annotated[
        str | None,
        typer.Option(
            "--tool",
            metavar="MODULE:SW",
            help="Replay it through the application's own tool as well, such as app.tools:sw.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decide a case again, and compare with what was decided then.

    Nothing is sent, and no ledger is opened: the machine folds the recorded rows, and with `--tool` the application's
    tool, as it is declared today, is called with the recorded replies. Its body does not run: the fixture
    `safewrite_case` does that in a test. Exits with 0 if all is decided as then, with 1 if not, and with 2 for a file
    that is no case or that this version cannot read.
    """
    from safewrite.audit.cases import Case, CaseUnusable
    from safewrite.cli.recovering import find
    from safewrite.testing.replaying import replay as again

    given = session(context, as_json=as_json)
    try:
        loaded = Case.load(case)
        came = [again(loaded)]
        if tool is not None:
            tools = find(tool).tools
            if loaded.intent.tool not in tools:
                raise Stop(
                    f"`{tool}` has no tool `{loaded.intent.tool}`: import the module that declares it.",
                    Exit.USAGE,
                )
            came.append(again(loaded, tools[loaded.intent.tool]))
    except CaseUnusable as error:
        raise Stop(str(error), Exit.USAGE) from error
    same = all(one.same for one in came)
    if as_json:
        given.output.document({"same": same, "replays": [one.to_dict() for one in came]})
    else:
        given.output.lines(*(clean(line) for one in came for line in str(one).splitlines()))
    if not same:
        raise typer.Exit(Exit.PROBLEM)
