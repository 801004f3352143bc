"""`safewrite db`: the tables of the ledger."""

from __future__ import annotations

import typer

from safewrite.cli.exits import Exit, Stop
from safewrite.cli.opening import look, opened
from safewrite.cli.options import AsJson, NoColor, Url, session

app = typer.Typer(help="Make, migrate and check the tables of the ledger.", rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def upgrade(context: typer.Context, url: Url = None, no_color: NoColor = False) -> None:
    """Bring the ledger's tables to this version: make them where there are none, migrate older ones.

    What is up to date already is left as it is, but for triggers that are gone: they are made again.
    """
    from safewrite.errors import ConfigurationError

    given = session(context, url, no_color=no_color)
    with opened(given.url) as ledger:
        before = look(ledger)
        try:
            ledger.upgrade()
        except ConfigurationError as error:
            raise Stop(str(error), Exit.LEDGER) from error
        after = look(ledger)
    if after.problems:
        raise Stop(f"{after.database}: {' '.join(after.problems)}", Exit.LEDGER)
    was = f"from {before.found} " if before.found not in (None, after.found) else ""
    done = "is up to date" if before.current else f"was brought {was}to {after.found}"
    given.output.say(f"{after.database} {done}.")


@app.command()
def check(
    context: typer.Context, url: Url = None, as_json: AsJson = False, no_color: NoColor = False
) -> None:
    """Say whether the ledger's tables are those of this version, without changing anything.

    Exits with 0 if they are, 1 if something must be done first, 3 if there is no ledger of ours to look into.
    """
    given = session(context, url, as_json=as_json, no_color=no_color)
    with opened(given.url) as ledger:
        status = look(ledger)
    if as_json:
        given.output.document(
            {
                "database": status.database.strip("`"),
                "current": status.current,
                "found": status.found,
                "needed": status.needed,
                "problems": list(status.problems),
            }
        )
    else:
        given.output.fields(
            [
                ("database", status.database.strip("`")),
                ("found", status.found or "no tables of safewrite"),
                ("needed", status.needed),
                ("problems", list(status.problems) or "none"),
            ]
        )
    if status.problems:
        ours = status.found is not None and status.found.startswith("sw_")
        raise typer.Exit(Exit.PROBLEM if ours else Exit.LEDGER)
