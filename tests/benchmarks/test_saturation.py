"""A dependency that saturates in a process of its own, and what clients that try again make of it: a small sample."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import saturation
from benchmarks.saturation import Load, Sender
from safewrite import ReadFailed, SafeWrite
from safewrite.core import pressure as numbers

ROOT = Path(__file__).parent.parent.parent
SMALL = Load(workers=1, service=0.1, before=1.0, during=2.0, after=2.0, timeout=0.4)
"""Ten a second: so little that no machine is too busy for it."""


@pytest.mark.slow
def test_everybody_sending_again_at_once_collapses_it_and_this_library_does_not() -> None:
    """The naive client sends a multiple of its calls; this one a tenth more at most, and answers no fewer."""
    results = {client: saturation.measure(SMALL, client) for client in saturation.CLIENTS}
    collapsed = results.pop("naive")
    assert collapsed.extra > 0.5
    for result in results.values():
        assert result.sent <= 1.1 * result.calls
        assert result.answered >= collapsed.answered
    shown = "\n".join(saturation.lines(SMALL, [collapsed, *results.values()]))
    assert re.search(r"^naive +\d+", shown, re.MULTILINE)
    assert saturation.picture(SMALL, [collapsed]).count("<polyline") == 3


def test_under_a_total_outage_it_sends_a_tenth_more_at_most(tmp_path: Path) -> None:
    """Nobody listens: two hundred reads that may be tried four times each."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and not listening: refused
        send = Sender(taken.getsockname()[1])
        with SafeWrite(f"sqlite:///{tmp_path}/reads.db") as sw:
            read = saturation.guarded(Load(), send, sw)

            async def all_at_once() -> list[object]:
                return await asyncio.gather(*(read() for _ in range(200)), return_exceptions=True)

            told = asyncio.run(all_at_once())
            assert all(isinstance(one, ReadFailed) for one in told)
            assert len(send.at) <= 200 * 1.1 + numbers.FLOOR
            assert len(sw.audit.not_fetched()) == 200


@pytest.mark.slow
def test_the_command_measures_and_draws(tmp_path: Path) -> None:
    """JSON with a result for each client that was asked for, and a picture."""
    plot = tmp_path / "saturation.svg"
    command = [sys.executable, "-m", "benchmarks.saturation", "--quick", "--json", "--only", "safewrite"]
    done = subprocess.run([*command, "--plot", plot], cwd=ROOT, capture_output=True, text=True, check=True)
    (result,) = json.loads(done.stdout)["clients"]
    assert result["client"] == "safewrite"
    assert result["extra"] <= 0.1
    assert plot.read_text().startswith("<svg")
