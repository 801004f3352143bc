"""The commands put together, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from safewrite.cli import cases, db, doctor, looking, plan, recovering, resolving, settings
from safewrite.cli.demo import demo
from safewrite.cli.exits import MEANINGS, Exit, Stop
from safewrite.cli.opening import unanswered
from safewrite.cli.options import Given, NoColor, Url
from safewrite.cli.output import note

HELP = """
Look after writes that tools made: what was sent, what became of it, and what nobody knows.

The ledger is read as it stands: reading commands neither make nor migrate it. Options of one command stand in
`safewrite COMMAND --help`.
"""
EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code.value:<4} {words}" for code, words in MEANINGS.items())


class Commands(TyperGroup):
    """The group of all commands: what goes wrong in one ends in a line to standard error and an exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; exit with its code, or return it."""
        try:
            ended = super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
            code = Exit(ended) if isinstance(ended, int) else Exit.OK
            sys.stdout.flush()
        except BrokenPipeError:
            code = _nobody_reads()
        except (KeyboardInterrupt, typer.Abort):
            code = Exit.INTERRUPTED
        except Exception as error:
            code = _told(error, traceback="--traceback" in (sys.argv[1:] if args is None else args))
        if standalone_mode:
            sys.exit(code)
        return code

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a pipe that nobody reads is told apart from other errors here."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise typer.Exit(_nobody_reads()) from None


app = typer.Typer(
    name="safewrite", cls=Commands, help=HELP, epilog=EPILOG, rich_markup_mode=None, add_completion=False
)


@app.callback(invoke_without_command=True)
def _globals(
    context: typer.Context,
    url: Url = None,
    no_color: NoColor = False,
    _traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of an unexpected error.")
    ] = False,  # looked for where errors are told: there are some before this is called
    version: Annotated[bool, typer.Option("--version", help="Print the version, and exit.")] = False,
) -> None:
    context.obj = Given(url, no_color)
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("safewrite"))
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


app.command("demo")(demo)
app.add_typer(db.app, name="db")
for module in (looking, cases, plan, recovering, resolving, settings, doctor):
    module.add_to(app)


def run(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    # Texts of other people may hold what this terminal cannot show: it is escaped, never an error.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    return int(typer.main.get_command(app).main(args, prog_name="safewrite", standalone_mode=False))


def _told(error: Exception, *, traceback: bool) -> Exit:
    """Tell a person what went wrong, in one line, and return the code."""
    from safewrite.errors import ConfigurationError, LedgerUnavailable, SafeWriteError, SchemaOutdated

    if traceback:
        import traceback as traces

        traces.print_exception(error)
    match error:
        case Stop(code=code):
            note(str(error))
            return code
        case LedgerUnavailable():
            note(f"{_one_line(unanswered(error))} `safewrite db check` shows what is there.")
            return Exit.LEDGER
        case SchemaOutdated():
            note(str(error))
            return Exit.LEDGER
        case ConfigurationError() | SafeWriteError():
            note(str(error))
            return Exit.USAGE
        case _ if hasattr(error, "format_message"):  # typer's own: a command line that cannot be used
            note(_usage(error))
            return Exit.USAGE
    note(
        f"Something went wrong that is safewrite's fault: {type(error).__name__}: {error}. `--traceback` shows where."
    )
    return Exit.FAULT


def _usage(error: Any) -> str:
    message = _one_line(str(error.format_message())).rstrip(".")
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "safewrite"
    return f"{message}{'' if message.endswith('?') else '.'} See `{where} --help`."


def _one_line(text: str) -> str:
    """Return what others wrote over several lines as one sentence after the other."""
    return " ".join(text.split())


def _nobody_reads() -> Exit:
    """Let nothing more be written to a pipe that is closed, not even when Python ends."""
    with contextlib.suppress(Exception):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.PIPE
