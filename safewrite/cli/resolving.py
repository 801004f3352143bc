"""`safewrite resolve`: a person's word on what stays unknown."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from safewrite.cli.opening import existing
from safewrite.cli.options import NoColor, Url, option, session
from safewrite.cli.output import moment, note


class Word(StrEnum):
    """What a person found."""

    APPLIED = "applied"
    NOT_APPLIED = "not-applied"


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(resolve)


def resolve(
    context: typer.Context,
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="The key of the intent, as `unknown` shows it.", show_default=False
        ),
    ],
    word: Annotated[
        Word, typer.Argument(metavar="applied|not-applied", help="What you found.", show_default=False)
    ],
    by: Annotated[str, option("--by", "NAME", "Who looked.")],
    reason: Annotated[str, option("--note", "TEXT", "What was seen, and where.")],
    url: Url = None,
    no_color: NoColor = False,
) -> None:
    """Record a person's word on an intent that is unknown.

    Only what is unknown can be resolved. Nothing is sent for the intent again; proof that comes later wins, with an
    alarm where it says otherwise.
    """
    from safewrite.audit.queries import Audit
    from safewrite.audit.resolve import resolve as record

    given = session(context, url, no_color=no_color)
    with existing(given.url) as ledger:
        before = Audit(ledger).intent(key)
        if before is not None and before.lease_until is not None:
            note(
                f"A call was at work on it, and its end is awaited until {moment(before.lease_until)}; if that says "
                "otherwise, an alarm is raised."
            )
        after = record(ledger, key, applied=word is Word.APPLIED, by=by, note=reason)
    given.output.say(f"{after.key}: {after.summary}")
