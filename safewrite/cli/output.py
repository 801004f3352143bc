"""How results are shown: tables on a terminal, plain text in a pipe, one JSON document for programs.

Plain tables are tab-separated with a line of names on top.  Texts out of the ledger are other people's: what is not
printable is shown escaped, so that it can neither steer a terminal nor break a line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

STYLES: Mapping[str, str] = {
    "applied": "green",
    "not applied": "yellow",
    "unknown": "bold red",
    "problem": "bold red",
    "yes": "green",
    "NO": "bold red",
}
"""Words that stand out on a terminal, where a cell holds nothing else."""


INTENT, KEY_WIDTH = "intent", 47
"""The column that names an intent, and the length of its key."""


def clean(value: object) -> str:
    """Return a value as text on one line, what is not printable escaped."""
    text = value if isinstance(value, str) else _text(value)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, int):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def moment(at: datetime) -> str:
    """Return an instant as people read it: UTC, to the millisecond."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


class Output:
    """Where one command writes.  `as_json`: nothing but the document reaches standard output."""

    def __init__(self, *, as_json: bool = False, no_color: bool = False) -> None:
        self.as_json = as_json
        self._no_color = no_color
        self._console: Console | None = None

    @property
    def console(self) -> Console:
        """The terminal, or what stands in its place."""
        if self._console is None:
            from rich.console import Console

            plain = self._no_color or bool(os.environ.get("NO_COLOR"))
            # No colour system is no escape sequence at all: bold is left out as well.
            self._console = Console(color_system=None if plain else "auto", highlight=False)
        return self._console

    @property
    def rich(self) -> bool:
        """Whether a person looks at a terminal: asked of the stream, for FORCE_COLOR makes no terminal of a pipe."""
        return sys.stdout.isatty()

    def document(self, document: Mapping[str, Any], *, one_of_many: bool = False) -> None:
        """Write the JSON document: ASCII, so that every terminal and pipe can hold it; one of many on one line."""
        sys.stdout.write(json.dumps(document, indent=None if one_of_many else 2) + "\n")

    def table(self, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write a table, each cell on one line; several lines in a cell are given as a list of texts."""
        if self.rich:
            self._rich_table(names, rows)
            return
        self.lines("\t".join(names))
        for row in rows:
            self.lines("\t".join(_cell(value, "; ") for value in row))

    def _rich_table(self, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for name in names:
            # A key is there to be copied: its column is the last to be folded.
            table.add_column(name, overflow="fold", min_width=KEY_WIDTH if name == INTENT else None)
        for row in rows:
            cells = [_cell(value, "\n") for value in row]
            table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in cells))
        self.console.print(table)

    def fields(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Write names and values, one a line; a value of several lines continues under itself."""
        told = [(name, _cell(value, "\n")) for name, value in pairs]
        width = max((len(name) for name, _ in told), default=0)
        for name, value in told:
            first, *rest = value.split("\n")
            self._line(name.ljust(width), first, STYLES.get(first, ""))
            for line in rest:
                self._line(" " * width, line, "")

    def _line(self, name: str, value: str, style: str) -> None:
        if not self.rich:
            self.lines(f"{name}  {value}".rstrip())
            return
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=len(name), no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(Text(name, style="bold"), Text(value, style=style))
        self.console.print(Padding(grid, 0))

    def entry(self, head: str, texts: Iterable[str]) -> None:
        """Write a line, and sentences under it, each wrapped by itself; for terminals."""
        from rich.padding import Padding
        from rich.text import Text

        self.console.print(Text(clean(head), style="bold"))
        for text in texts:
            self.console.print(Padding(Text(clean(text)), (0, 0, 0, 4)))

    def heading(self, text: str) -> None:
        """Write a line that begins a part."""
        if self.rich:
            from rich.text import Text

            self.console.print(Text(f"\n{clean(text)}", style="bold"))
        else:
            self.lines("", clean(text))

    def lines(self, *lines: str) -> None:
        """Write lines of plain text as they are."""
        sys.stdout.write("".join(f"{line}\n" for line in lines))

    def say(self, text: str) -> None:
        """Write a sentence, wrapped on a terminal."""
        if self.rich:
            from rich.text import Text

            self.console.print(Text(clean(text)))
        else:
            self.lines(clean(text))


def note(text: str) -> None:
    """Write a line for people to standard error, beside the result."""
    sys.stderr.write(f"safewrite: {clean(text)}\n")


def _cell(value: object, between: str) -> str:
    if isinstance(value, list):
        return between.join(map(clean, value))
    return clean(value)
