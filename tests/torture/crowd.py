"""What the processes of a crowd do: all make one call at the same moment, or each a lot of its own."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import safewrite
from safewrite import SafeWrite

LEDGER = {"threads": 64, "busy_timeout": 30.0, "connect_timeout": 30.0}
"""Settings with room for a machine that is busy."""


def race(url: str, folder: str, together: Any, threads: int) -> None:
    """Make one call in each of several threads, with those of other processes; keep what was told."""
    with SafeWrite(url, namespace="race", settings=LEDGER) as sw:

        @sw.write(target="thing", name="touch")
        def touch(thing: str) -> int:
            """Touch a thing."""
            Path(folder, f"sent-{uuid4().hex}").touch()
            return os.getpid()

        def work(number: int) -> None:
            together.wait(120)
            with safewrite.run("run", deadline=120.0, call_cap=120.0), safewrite.turn(1):
                outcome = touch.outcome("thing")
            told = f"{outcome.state} {outcome.value}{' sent' * outcome.sent}"
            Path(folder, f"told-{os.getpid()}-{number}").write_text(told)

        sw.ledger.find("nothing")  # it is open
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, range(threads)))
    os._exit(0)


def many(url: str, folder: str, who: int, intents: int) -> None:
    """Write so many things, and keep what was told."""
    with SafeWrite(url, namespace="many", settings=LEDGER) as sw, Path(folder, f"{who}").open("w") as file:

        @sw.write(target="thing", name="touch")
        def touch(thing: str) -> str:
            """Touch a thing."""
            return thing

        for turn in range(intents):
            with safewrite.run(f"run {who}", deadline=120.0, call_cap=120.0), safewrite.turn(turn):
                outcome = touch.outcome(f"thing {turn}")
            file.write(f"{outcome.state} {outcome.recorded} {outcome.reason}\n")
    os._exit(0)
