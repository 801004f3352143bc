"""Opening the ledger that a command asks for: to read it as it stands, or to change it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from safewrite.cli.exits import Exit, Stop
from safewrite.cli.output import note

if TYPE_CHECKING:
    from safewrite.errors import LedgerUnavailable
    from safewrite.ledger.migrate import Status
    from safewrite.ledger.sql import Ledger


@contextmanager
def opened(url: str | None) -> Iterator[Ledger]:
    """Yield the ledger of a URL (None: of the settings), not looked into yet, and close it afterwards."""
    from safewrite.ledger.sql import Ledger
    from safewrite.settings import resolve_settings

    settings = resolve_settings({"database_url": url})
    ledger = Ledger(
        settings.database_url,
        busy_timeout=settings.busy_timeout,
        connect_timeout=settings.connect_timeout,
        statement_timeout=settings.statement_timeout,
    )
    try:
        yield ledger
    finally:
        ledger.close()


@contextmanager
def existing(url: str | None) -> Iterator[Ledger]:
    """Yield a ledger that is there and up to date: it is neither made nor migrated here."""
    with opened(url) as ledger:
        status = there(ledger)
        if status.found != status.needed:
            raise Stop(f"{status.database}: {' '.join(status.problems)}", Exit.LEDGER)
        for problem in status.problems:
            note(f"{status.database}: {problem}")
        yield ledger


def look(ledger: Ledger) -> Status:
    """Return what stands in the database; a database that cannot be looked into ends the command."""
    from safewrite.errors import ConfigurationError, LedgerUnavailable

    try:
        return ledger.check()
    except LedgerUnavailable as error:
        raise Stop(unanswered(error), Exit.LEDGER) from error
    except ConfigurationError as error:
        raise Stop(str(error), Exit.LEDGER) from error


ELSEWHERE = (
    "Name another one with `--url` or SAFEWRITE_DATABASE_URL, or make one with `safewrite db upgrade`."
)


def there(ledger: Ledger, advice: str = ELSEWHERE) -> Status:
    """Do as `look`; a database without a ledger in it ends the command as well, with advice."""
    status = look(ledger)
    if status.found is None:
        raise Stop(f"There is no ledger in {status.database}. {advice}", Exit.LEDGER)
    return status


def unanswered(error: LedgerUnavailable) -> str:
    """Return what to say of a ledger that did not answer: which, and what it said."""
    return f"The ledger did not answer (`{error.reason}`): {error.ledger or error.__cause__}."
