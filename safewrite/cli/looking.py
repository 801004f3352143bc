"""`safewrite runs`, `run`, `show` and `unknown`: what is on record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safewrite.cli import views
from safewrite.cli.exits import Exit, Stop
from safewrite.cli.opening import existing
from safewrite.cli.options import AsJson, Limit, Namespace, NoColor, Reference, Url, option, session
from safewrite.cli.output import note

if TYPE_CHECKING:
    from safewrite.audit.records import Record


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    for command in (runs, run, show, unknown):
        app.command()(command)


def runs(
    context: typer.Context,
    namespace: Namespace = None,
    limit: Limit = None,
    url: Url = None,
    as_json: AsJson = False,
    no_color: NoColor = False,
) -> None:
    """List the runs in numbers, the newest first."""
    from safewrite.audit.queries import Audit

    given = session(context, url, as_json=as_json, no_color=no_color)
    with existing(given.url) as ledger:
        found = Audit(ledger).runs(namespace=namespace, limit=limit)
    if as_json:
        given.output.document({"runs": _dicts(found)})
        return
    views.runs(given.output, found)


def run(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="RUN", help="The name of the run.", show_default=False)],
    namespace: Namespace = None,
    url: Url = None,
    as_json: AsJson = False,
    no_color: NoColor = False,
) -> None:
    """Show the intents of a run in order, with their attempts, and what its reads did not fetch.

    `--json` adds their rows.
    """
    from safewrite.audit.queries import Audit

    given = session(context, url, as_json=as_json, no_color=no_color)
    with existing(given.url) as ledger:
        found = Audit(ledger).run(run, namespace=namespace)
        missed = Audit(ledger).not_fetched(run=run, namespace=namespace)[::-1]
    if not found and not missed:
        raise Stop(
            f"There is no run `{run}` in the ledger. `safewrite runs` lists those that are.", Exit.USAGE
        )
    if as_json:
        given.output.document({"run": run, "intents": _dicts(found), "not_fetched": _dicts(missed)})
        return
    views.run(given.output, found)
    given.output.lines(*(f"Not fetched: {views.read(one)}" for one in missed))


def show(
    context: typer.Context,
    reference: Reference,
    url: Url = None,
    as_json: AsJson = False,
    no_color: NoColor = False,
) -> None:
    """Show one intent, its attempts, and every row with its rule.

    A trace shows every intent that the call wrote to. Rows that were altered are told on standard error, and end the
    command with 1.
    """
    from safewrite.audit.queries import Audit

    given = session(context, url, as_json=as_json, no_color=no_color)
    with existing(given.url) as ledger:
        found = Audit(ledger).find(reference)
        flaws = [(intent.key, flaw) for intent in found for flaw in ledger.verify(intent.id)]
    if not found:
        raise Stop(
            f"Nothing in the ledger has the key, id or trace `{reference}`. `safewrite runs` and "
            "`safewrite run RUN` lead to what is there.",
            Exit.USAGE,
        )
    if as_json:
        given.output.document({"intents": _dicts(found)})
    else:
        for place, intent in enumerate(found):
            if place:
                given.output.lines("")
            views.intent(given.output, intent)
    for key, flaw in flaws:
        where = f"row {flaw.sequence}" if flaw.sequence else "its summary"
        note(f"{key}, {where}: {flaw.detail}. Somebody has altered the ledger.")
    if flaws:
        raise typer.Exit(Exit.PROBLEM)


def unknown(
    context: typer.Context,
    tool: Annotated[
        str | None,
        option("--tool", "NAME", "Only this tool. Default: all."),
    ] = None,
    namespace: Namespace = None,
    limit: Limit = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 if any intent is unknown, for scripts.")
    ] = False,
    url: Url = None,
    as_json: AsJson = False,
    no_color: NoColor = False,
) -> None:
    """List the intents whose outcome nobody knows, oldest first."""
    from safewrite.audit.queries import Audit

    given = session(context, url, as_json=as_json, no_color=no_color)
    with existing(given.url) as ledger:
        found = Audit(ledger).unknown(tool=tool, namespace=namespace, limit=limit)
    if as_json:
        given.output.document({"unknown": _dicts(found)})
    else:
        views.unknown(given.output, found)
    if exit_code and found:
        raise typer.Exit(Exit.PROBLEM)


def _dicts(found: Sequence[Record]) -> list[dict[str, Any]]:
    return [record.to_dict() for record in found]
