"""`python -m tests.simulation`: thousands of small histories in virtual time, each from a seed that repeats it.

The guard, the shell and the ledger are the shipped ones; the dependency, the clocks, the processes and what befalls
them are drawn.  Ends with status 1 where a promise was broken, and names the seed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter

from tests.simulation.seeds import PORTION, seeds


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
    parser.add_argument(
        "--processes",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="at once (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the sums as JSON")
    given = parser.parse_args()
    count = given.seeds if given.seeds is not None or given.minutes is not None else 1000
    sums, problems, began = Counter[str](), [], time.monotonic()
    try:
        for played in seeds(
            given.first, count, None if given.minutes is None else given.minutes * 60.0, given.processes
        ):
            sums += played.sums
            problems += [f"seed {played.seed}: {problem}" for problem in played.problems]
            if sums["histories"] % PORTION == 0 and sys.stderr.isatty():
                print(f"\r{sums['histories']} histories, {len(problems)} problems", end="", file=sys.stderr)
    except KeyboardInterrupt:
        print("stopped before the end", file=sys.stderr)
    seconds = time.monotonic() - began
    told = {**sums, "seconds": round(seconds, 1), "calls a second": round(sums["calls"] / seconds)}
    told["problems"] = problems
    if given.json:
        print(json.dumps(told, indent=2))
    else:
        print(", ".join(f"{value} {name}" for name, value in told.items() if name != "problems"))
        print("\n".join(problems) or "Nothing was broken.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
