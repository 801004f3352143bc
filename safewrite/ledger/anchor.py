"""Where a relative URL leads: to the working directory of the moment it was given."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from safewrite.errors import ConfigurationError


def anchored(url: str) -> str:
    """Return the URL with the path of a SQLite file made absolute.

    The file is opened later, and again after `close`: a change of the working directory in between must not lead to
    another one, in which nothing was ever sent.  Raises `ConfigurationError` where there is no such directory.
    """
    scheme, found, rest = url.partition(":///")
    path, mark, query = rest.partition("?")
    uri, name = ("file:", path[len("file:") :]) if path.startswith("file:") else ("", path)
    if not found or not scheme.startswith("sqlite") or name in ("", ":memory:") or "mode=memory" in query:
        return url
    try:
        if uri and not name.startswith("/"):
            name = f"{_in_url(quote(str(Path.cwd())))}/{name}"
        elif not uri and not Path(name).is_absolute():
            name = f"{_in_url(str(Path.cwd()))}/{Path(name)}"
        return f"{scheme}:///{uri}{name}{mark}{query}"
    except OSError as error:
        raise ConfigurationError(
            f"`{url}` lies in the working directory, which is gone. Write an absolute path."
        ) from error


def _in_url(folder: str) -> str:
    """Return a folder as SQLAlchemy reads it in a URL, which depends on its version."""
    if not {"%", "?"} & {*folder}:
        return folder
    from sqlalchemy.engine import URL, make_url  # slow to import, and seldom needed

    written = URL.create("sqlite", database=folder).render_as_string()
    if make_url(written).database != folder:
        raise ConfigurationError(
            f"The working directory `{folder}` cannot stand in a database URL. Name a ledger in another folder."
        )
    return written.removeprefix("sqlite:///")
