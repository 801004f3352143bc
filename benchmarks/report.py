"""What was measured, as a table, as JSON, and as a picture."""

from __future__ import annotations

import json
import math
import os
import platform
import sqlite3
import sys
from dataclasses import asdict, dataclass, field
from html import escape

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.measure import TIMES, Row


@dataclass(slots=True)
class Report:
    """One run of the command."""

    rounds: int
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was left out and why, and what a reader must know."""
    machine: dict[str, object] = field(
        default_factory=lambda: {
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            "system": platform.platform(terse=True),
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
        }
    )
    """`load`: of its last minute, when the command began."""


def reached(row: Row) -> bool | None:
    """Whether the median is at the target or below it; None: there is none."""
    return None if row.target is None else row.p50 <= row.target


def show(report: Report, *, as_json: bool = False) -> None:
    """Print it: as JSON, or as a table for a person, or as one in Markdown where nobody sits at a terminal."""
    if as_json:
        rows = [{**asdict(row), "reached": reached(row)} for row in report.rows]
        sys.stdout.write(json.dumps({**asdict(report), "rows": rows}, indent=1) + "\n")
        return
    person = sys.stdout.isatty()
    console = Console(width=None if person else 200, highlight=False, no_color=not person)
    about = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    console.print(f"{about}; {report.rounds} rounds, interleaved.\n", soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD if person else box.MARKDOWN)
    for title in ("", "case", "by", "median", "quartiles", "unit", "target", "time", "CPU"):
        words = title in ("", "case", "by", "unit")
        table.add_column(title, justify="left" if words else "right", no_wrap=True)
    before = ""
    for row in report.rows:
        if person and before not in ("", row.group):
            table.add_section()
        group, before = "" if row.group == before else row.group, row.group
        quartiles = f"{_number(row.p25)} to {_number(row.p75)}"
        target = "" if row.target is None else f"{row.target:g} {'yes' if reached(row) else 'no'}"
        times = (_time(row.seconds), _time(row.cpu))
        table.add_row(group, row.case, row.by, _number(row.p50), quartiles, row.unit, target, *times)
    console.print(table)
    for note in report.notes:
        console.print(note, soft_wrap=True)


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e6:.0f} us"


# A picture ---------------------------------------------------------------------------------------------------------

_LEFT, _WIDE, _LINE, _TOP = 330, 470, 20, 46
_TITLE = "Time of one operation, in times the bare driver's (logarithmic; black: quartiles, red: target)"


def as_svg(report: Report) -> str:
    """Return a picture of all ratios: a bar for each median, a line for its quartiles, a mark for its target."""
    rows = [row for row in report.rows if row.unit == TIMES]
    low, high = 0.1, max([10.0, *(row.p75 for row in rows)]) * 1.1
    bottom = _TOP + _LINE * len(rows)

    def x(value: float) -> str:
        return f"{_LEFT + _WIDE * math.log(max(value, low) / low) / math.log(high / low):.1f}"

    def line(x1: str, x2: str, y1: int, y2: int, colour: str) -> str:
        return f'<line x1="{x1}" x2="{x2}" y1="{y1}" y2="{y2}" stroke="{colour}"/>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDE + 60} {bottom + 10}" font-size="11">',
        "<style>text { font-family: sans-serif }</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="8" y="16" font-size="13">{_TITLE}</text>',
    ]
    for tick in (tick for tick in (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64) if tick <= high):
        parts.append(line(x(tick), x(tick), _TOP - 8, bottom, "#555" if tick == 1 else "#ddd"))
        parts.append(f'<text x="{x(tick)}" y="{_TOP - 12}" text-anchor="middle">{tick:g}</text>')
    for y, row in zip(range(_TOP, bottom, _LINE), rows, strict=True):
        colour = {"safewrite": "#2a6fb0", "bare driver": "#999"}.get(row.by, "#d9a441")
        label = f"{row.group}: {row.case}" + ("" if row.by == "safewrite" else f" ({row.by})")
        wide = float(x(row.p50)) - _LEFT
        parts += [
            f'<text x="{_LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{_LEFT}" y="{y + 3}" width="{wide:.1f}" height="12" fill="{colour}"/>',
            line(x(row.p25), x(row.p75), y + 9, y + 9, "#000"),
            f'<text x="{x(max(row.p50, row.p75))}" dx="6" y="{y + 13}">{_number(row.p50)}</text>',
            "" if row.target is None else line(x(row.target), x(row.target), y, y + 18, "#c00"),
        ]
    return "\n".join([*filter(None, parts), "</svg>", ""])
