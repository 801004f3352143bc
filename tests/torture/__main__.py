"""`python -m tests.torture`: many processes, killed and frozen at random, against real dependencies.

Afterwards the dependencies' own ledgers are compared with what was told, and with what the ledger says.
Ends with status 1 where a promise was broken.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.torture.battle import PROMISES, Battle, Result

_SHOWN = (
    "intents", "processes", "seconds", "kills", "freezes", "answers", "requests", "effects", "applied", "not_applied",
    "honest_unknown", "refused", "told_unknown", "without_value",
)  # fmt: skip


@contextmanager
def _ledger(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'safewrite.db'}"
        return
    from tests.postgres import database

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with database() as url:
            yield url


def torture(kind: str, *, intents: int, processes: int, seed: int, quiet: bool = False) -> Result:
    """Fight one battle on a database of its own: "sqlite" or "postgresql"."""

    def say(text: str) -> None:
        if not quiet:
            print(f"{kind}: {text}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="safewrite-torture-") as name, _ledger(kind, Path(name)) as url:
        battle = Battle(url, Path(name), intents=intents, processes=processes, seed=seed, say=say)
        return battle.fight()


def _shown(results: list[Result]) -> Table:
    table = Table(title=f"safewrite under torture, seed {results[0].seed}")
    table.add_column("")
    for result in results:
        table.add_column(result.database, justify="right")
    for name in (*_SHOWN, *PROMISES):
        if name == PROMISES[0]:
            table.add_section()
        table.add_row(name.replace("_", " "), *(f"{getattr(result, name):,}" for result in results))
    return table


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="sqlite")
    parser.add_argument(
        "--intents", type=int, default=1000, help="writes on each database (default: %(default)s)"
    )
    parser.add_argument("--processes", type=int, default=6, help="processes at a time (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=20260301, help="default: %(default)s")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    given = parser.parse_args()
    kinds = ["sqlite", "postgresql"] if given.database == "both" else [given.database]
    results = [
        torture(kind, intents=given.intents, processes=given.processes, seed=given.seed) for kind in kinds
    ]
    if given.json:
        print(json.dumps([result.as_json() for result in results], indent=2))
    else:
        Console().print(_shown(results))
        for result in results:
            for detail in result.details[:20]:
                print(f"{result.database}: {detail}")
    return 1 if any(result.broken or result.details for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
