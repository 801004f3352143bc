"""Options that several commands share, and the session that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from safewrite.cli.output import Output


def option(name: str, metavar: str, help: str, *also: str) -> Any:
    """Return an option whose default, if it has one to tell, stands in its help."""
    return typer.Option(name, *also, metavar=metavar, help=help, show_default=False)


Url = Annotated[
    str | None,
    option(
        "--url",
        "URL",
        "The ledger, such as sqlite:///agent.db. Default: SAFEWRITE_DATABASE_URL, else ./safewrite.db.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, and nothing else.")]
NoColor = Annotated[
    bool, typer.Option("--no-color", help="Print without colours; so does the variable NO_COLOR.")
]
Namespace = Annotated[str | None, option("--namespace", "NAME", "Only this namespace. Default: all.")]
Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=1, help="No more than N. Default: all.", show_default=False),
]
Reference = Annotated[
    str,
    typer.Argument(
        metavar="KEY|INTENT|ATTEMPT|TRACE",
        help="The key of an intent, its id, the id of one of its attempts, or the trace of a call.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class Given:
    """What was given before the name of the command."""

    url: str | None = None
    no_color: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """What one command works with."""

    url: str | None
    output: Output


def session(
    context: typer.Context, url: str | None = None, *, as_json: bool = False, no_color: bool = False
) -> Session:
    """Return the session of a command: its own options, else those before its name."""
    given: Given = context.find_object(Given) or Given()
    output = Output(as_json=as_json, no_color=no_color or given.no_color)
    return Session(url if url is not None else given.url, output)
