"""`python -m tests.simulation`: thousands of small histories in virtual time, each from a seed that repeats it.

The guard, the shell and the ledger are the shipped ones; the dependency, the clocks, the processes and what befalls
them are drawn.  Ends with status 1 where a promise was broken, and names the seed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safewrite import SafeWrite
from tests.simulation.play import Played, play


@contextmanager
def ledger() -> Iterator[str]:
    """Yield the URL of a ledger that all seeds share, each in a namespace of its own, in memory where that can be."""
    fast = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        prefix="safewrite-simulation-", dir=fast if fast.is_dir() else None
    ) as folder:
        url = f"sqlite:///{folder}/safewrite.db"
        with SafeWrite(url) as sw:
            sw.upgrade()
        yield url


def seeds(first: int, count: int | None, seconds: float | None) -> Iterator[Played]:
    """Play seeds one after the other: so many, or for so long."""
    until = None if seconds is None else time.monotonic() + seconds
    seed = first
    with ledger() as url:
        while (count is None or seed < first + count) and (until is None or time.monotonic() < until):
            try:
                played = play(url, seed)
            except Exception as error:
                error.add_note(f"in seed {seed}")
                raise
            yield played
            seed += 1


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--first", type=int, default=0, metavar="SEED", help="the first seed (default: %(default)s)"
    )
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="how many (default: 1000, unless --minutes is given)"
    )
    parser.add_argument("--minutes", type=float, help="go on for so long instead")
    parser.add_argument("--json", action="store_true", help="print the sums as JSON")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)  # alarms are judged, not read
    count = given.seeds if given.seeds is not None or given.minutes is not None else 1000
    sums, problems, began = Counter[str](), [], time.monotonic()
    try:
        for played in seeds(given.first, count, None if given.minutes is None else given.minutes * 60.0):
            sums += played.sums
            problems += [f"seed {played.seed}: {problem}" for problem in played.problems]
            if sums["histories"] % 100 == 0 and sys.stderr.isatty():
                print(f"\r{sums['histories']} histories, {len(problems)} problems", end="", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped before the end", file=sys.stderr)
    told = {**sums, "seconds": round(time.monotonic() - began, 1), "problems": problems}
    if given.json:
        print(json.dumps(told, indent=2))
    else:
        print(", ".join(f"{value} {name}" for name, value in told.items() if name != "problems"))
        print("\n".join(problems) or "Nothing was broken.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
