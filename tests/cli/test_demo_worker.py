"""The agent's other processes: what they serve, and what is noticed when they do not."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from safewrite.demo import worker
from safewrite.demo.stage import stage

ROOT = Path(__file__).parents[2]


def test_a_worker_serves_orders_until_its_input_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line says that it is ready, and one answers each order."""
    with stage(tmp_path, "run-1") as opened:
        where = {"folder": str(tmp_path), "url": opened.dependency.url, "who": "worker 9"}
        order = {"tool": "charge_card", "target": "card_1", "note": "", "run": "run-1", "turn": 1}
        orders = "".join(json.dumps(line) + "\n" for line in (where, order, order))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(orders.encode())))
        worker.serve()
        assert opened.dependency.effects("card_1") == 1
    ready, first, again = map(json.loads, capfd.readouterr().out.splitlines())
    assert ready == {"ready": os.getpid()}
    assert (first["state"], first["replayed"], again["replayed"]) == ("applied", False, True)


def test_a_worker_that_ends_or_hangs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is waited for without end."""
    with stage(tmp_path, "run-1") as opened:
        ended = opened.worker()
        ended.release()
        with pytest.raises(RuntimeError, match="process `worker 1` ended with status 0"):
            ended.told()
        monkeypatch.setattr(worker, "PATIENCE", 0.01)
        opened.start_ahead(1)
        with pytest.raises(RuntimeError, match=r"process `worker 2` was silent for 0\.01 s"):
            opened.worker()


def test_where_it_is_installed_a_worker_needs_no_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of a checkout is put on the path of its processes, the folder of installed packages is not."""
    monkeypatch.setenv("PYTHONPATH", "before")
    assert worker._environment()["PYTHONPATH"] == os.pathsep.join([str(ROOT), "before"])
    monkeypatch.setattr(worker, "__file__", "/opt/python/site-packages/safewrite/demo/worker.py")
    assert worker._environment()["PYTHONPATH"] == "before"
