"""`safewrite settings`: every setting, and where its value comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from safewrite.cli import views
from safewrite.cli.options import AsJson, NoColor, Url, session

if TYPE_CHECKING:
    from safewrite.settings import Setting, Value


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command("settings")(show_settings)


def show_settings(
    context: typer.Context, url: Url = None, as_json: AsJson = False, no_color: NoColor = False
) -> None:
    """List every setting, its value and where that comes from.

    Beside it stands what it overrode; passwords are masked. An argument wins over a tool's own setting, that over the
    environment, and that over the default. What an application gives as arguments in its code is not seen here.
    """
    from safewrite.settings import resolve_settings

    given = session(context, url, as_json=as_json, no_color=no_color)
    rows = resolve_settings({"database_url": given.url}).table()
    if as_json:
        given.output.document({"settings": [_dict(row) for row in rows]})
        return
    views.settings(given.output, rows)


def _dict(row: Setting) -> dict[str, Any]:
    overrode = [
        {"origin": origin, "value": _value(replace(row, value=value))} for origin, value in row.overrode
    ]
    names = ("name", "origin", "variable", "meaning", "note")
    return {**{name: getattr(row, name) for name in names}, "value": _value(row), "overrode": overrode}


def _value(row: Setting) -> Value:
    return row.shown if isinstance(row.value, str) else row.value
