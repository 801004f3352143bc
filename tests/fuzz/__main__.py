"""`python -m tests.fuzz`: bytes at everything that reads those of others, led by what they reach; 1: a finding.

With `atheris` (`pip install -e '.[dev,fuzz]'`) an input that reaches new code is kept and altered further; without it
inputs are altered blindly.  The folder of `--corpus` keeps what was reached: the next run goes on from there.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

READERS = [
    *(f"safewrite.ledger.{name}" for name in ("codec", "rows", "tagged", "texts")),
    *(f"safewrite.core.{name}" for name in ("fold", "intent", "statuses")), "safewrite.audit.cases", "safewrite.cli",
]  # fmt: skip
"""What leads the battery: to follow all of the package takes longer than it tells."""


def guided(name: str, seconds: float, seed: int, corpus: Path) -> None:
    """Let atheris fuzz one target in this process, and end it."""
    import atheris  # type: ignore[import-not-found, unused-ignore]

    with atheris.instrument_imports(include=READERS):
        from tests.fuzz.targets import TARGETS

    words = corpus / f"{name}.words"
    spelt = ("".join(f"\\x{byte:02x}" for byte in word) for word in TARGETS[name].words if 0 < len(word) < 60)
    words.write_text("".join(f'"{word}"\n' for word in spelt))
    options = {
        "max_total_time": int(seconds), "seed": seed, "artifact_prefix": f"{corpus / name}-", "dict": words,
        "print_final_stats": 1, "timeout": 60, "rss_limit_mb": 4096, "close_fd_mask": 0,
    }  # fmt: skip
    atheris.Setup(
        ["fuzz", *(f"-{key}={value}" for key, value in options.items()), str(corpus / name)],
        TARGETS[name].check,
    )
    atheris.Fuzz()


def blind(name: str, seconds: float, seed: int, corpus: Path) -> None:
    """Alter inputs at random, and say how many there were as atheris does."""
    from tests.fuzz.targets import TARGETS

    target, chance, until, count = TARGETS[name], random.Random(seed), time.monotonic() + seconds, 0
    known = [path.read_bytes() for path in sorted((corpus / name).iterdir())]
    while time.monotonic() < until:
        data, count = target.mutant(chance, known), count + 1
        try:
            target.check(data)
        except BaseException:
            corpus.joinpath(f"{name}-crash-{seed}-{count}").write_bytes(data)
            raise
        finally:
            print(f"stat::number_of_executed_units: {count}") if count % 1000 == 0 else None
    print(f"stat::number_of_executed_units: {count}")


def fuzz(name: str, given: argparse.Namespace, seconds: float) -> bool:
    """Fuzz one target in a process of its own; tell, and return whether there was a finding."""
    from tests.fuzz.targets import TARGETS

    folder = given.corpus / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(TARGETS[name].seeds):
        (folder / f"seed-{number}").write_bytes(seed)
    before = set(given.corpus.glob(f"{name}-*"))
    log, began = given.corpus / f"{name}.log", time.monotonic()
    options = [
        "--one",
        name,
        "--seconds",
        f"{seconds:g}",
        "--seed",
        str(given.seed),
        "--corpus",
        str(given.corpus),
    ]
    options += ["--blind"] if given.blind else []
    with log.open("w") as told:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.fuzz", *options], stdout=told, stderr=told, check=False
        )
    counts = re.findall(r"stat::number_of_executed_units: (\d+)", log.read_text(errors="replace"))
    count, kept = counts[-1] if counts else "no", len(list(folder.iterdir()))
    took = time.monotonic() - began
    found = sorted(set(given.corpus.glob(f"{name}-*")) - before)
    words = "no finding" if not ended.returncode else f"A FINDING, see {log}"
    print(f"{name:<10} {count:>9} inputs in {took:4.0f} s, {kept:>5} kept, {words}", flush=True)
    for path in found:
        print(f"  {path.read_bytes()[:200]!r}\n  python -m tests.fuzz --repeat {name} {path}", flush=True)
    return ended.returncode != 0


def main() -> int:
    """Fuzz, or repeat one input; return the status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=6.0, help="for all targets together (default: 6)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--corpus", type=Path, default=Path("corpus"), help="kept from run to run (default: corpus)"
    )
    parser.add_argument("--targets", help="some of them, with commas between")
    parser.add_argument(
        "--repeat", nargs=2, metavar=("TARGET", "FILE"), help="one input again, with its traceback"
    )
    parser.add_argument("--blind", action="store_true", help="without atheris, though it is there")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.blind = given.blind or find_spec("atheris") is None
    if given.one:
        (blind if given.blind else guided)(given.one, given.seconds, given.seed, given.corpus)
        return 0
    from tests.fuzz.targets import TARGETS

    if given.repeat:
        TARGETS[given.repeat[0]].check(Path(given.repeat[1]).read_bytes())
        print("no finding")
        return 0
    names = given.targets.split(",") if given.targets else list(TARGETS)
    print(f"seed {given.seed}, {'blind' if given.blind else 'led by atheris'}", flush=True)
    findings = [name for name in names if fuzz(name, given, 60 * given.minutes / len(names))]
    print(f"findings in {', '.join(findings)}" if findings else f"{len(names)} targets, no finding")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
