"""The public contract, as it is promised to users: their code runs as written, against a real server."""

from __future__ import annotations

import ast
import asyncio
import inspect
import types
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

import safewrite
from safewrite.testing import ScriptedDependency

CONTRACT = '''
from safewrite import SafeWrite, Dependency, Attempt, Applied, GoalMet, GoalNotMet, NotApplied, StillRunning, Inconclusive
import safewrite

billing = Dependency(
    "billing",
    key_retention=timedelta(hours=24),   # how long it recognises an idempotency key (timedelta.max: for ever); None: it does not
    replays_errors=False,                # it stores and replays 5xx under the key
    honours_deadline=False,              # it refuses to commit after X-Request-Deadline-At
    work_bound=None,                     # seconds or timedelta; None: no bound is known
    read_lag=None,                       # seconds until reads see a write; 0.0: at once; None: unknown
    clock_skew=1.0,                      # seconds, between any two of workers, database and dependency
    classify=None,                       # callable(exception or response) -> outcome or None: extends the shipped table
)

sw = SafeWrite("sqlite:///agent.db")     # or postgresql+psycopg://…; no argument: SAFEWRITE_DATABASE_URL, else ./safewrite.db
                                         # (its absolute path is logged at first use)

@sw.write(target="sub_id", dependency=billing, timeout=9.0, max_attempts=3, free_text=("reason",))
async def cancel_subscription(sub_id: str, reason: str, attempt: Attempt) -> Subscription:
    """Cancel a subscription."""
    reply = await client.post(f"/subscriptions/{sub_id}/cancel", json={"reason": reason},
                              headers=attempt.headers, timeout=attempt.timeout)
    reply.raise_for_status()
    return Subscription.model_validate(reply.json())

@cancel_subscription.reconcile
async def _(sub_id: str) -> GoalMet[Subscription] | GoalNotMet: ...

with safewrite.run("run-42", deadline=18.0, call_cap=9.0), safewrite.turn(3):
    subscription = await cancel_subscription("sub_1", reason="asked for it")          # the value, or a typed error
    outcome = await cancel_subscription.outcome("sub_1", reason="asked for it")       # an Outcome; raises only on misuse
'''  # noqa: E501 - as it is printed


class Subscription(BaseModel):
    """What the dependency answers."""

    target: str
    state: str
    effects: int


@pytest.fixture(scope="module")
def server() -> Iterator[ScriptedDependency]:
    """A billing system that recognises keys for a day."""
    with ScriptedDependency(keys=86_400.0) as running:
        yield running


@pytest.fixture
def billing(
    server: ScriptedDependency, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ScriptedDependency:
    """The same with nothing in it, and a working directory of its own for the ledger."""
    server.reset()
    monkeypatch.chdir(tmp_path)
    return server


def contract(billing: ScriptedDependency, *more: str) -> dict[str, Any]:
    """Run the contract, and what follows it, as one file; return its names."""
    module = types.ModuleType("contract")

    async def main() -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=billing.url) as client:
            names = module.__dict__ | {"timedelta": timedelta, "Subscription": Subscription, "client": client}
            for text in (CONTRACT, *more):
                code = compile(text, "contract.py", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                if code.co_flags & inspect.CO_COROUTINE:
                    await eval(code, names)
                else:
                    exec(code, names)
            names["sw"].close()
            return names

    return asyncio.run(main())


def test_the_contract_runs_as_written(billing: ScriptedDependency) -> None:
    """The value comes back, the same call again is replayed, and the dependency was asked once, with the key."""
    names = contract(billing)
    assert names["subscription"] == Subscription(target="sub_1", state="cancel", effects=1)
    outcome = names["outcome"]
    assert (outcome.state, outcome.value, outcome.replayed) == ("applied", names["subscription"], True)
    assert type(outcome.value) is Subscription
    (request,) = billing.requests("sub_1")
    assert request["headers"]["idempotency-key"] == outcome.key
    assert {"x-attempt-id", "x-request-deadline-ms", "x-request-deadline-at"} <= request["headers"].keys()
    assert 0 < int(request["headers"]["x-request-deadline-ms"]) <= 9000


def test_the_contract_holds_where_the_response_is_lost(billing: ScriptedDependency) -> None:
    """Applied, then silence: the key is recognised, so the second send is answered with the first one's effect."""
    billing.script("lose_response", target="sub_1")
    names = contract(billing)
    assert names["subscription"].effects == 1
    assert (billing.effects("sub_1"), names["outcome"].attempts) == (1, 2)
    assert len({r["headers"]["idempotency-key"] for r in billing.requests("sub_1")}) == 1


def test_the_contract_holds_for_a_model_that_rewords_and_for_later_turns(billing: ScriptedDependency) -> None:
    """Another reason in the same turn replays; the next turn, after an answer, is a new wish."""
    names = contract(
        billing,
        """
with safewrite.run("run-42"), safewrite.turn("3"):
    reworded = await cancel_subscription.outcome("sub_1", reason="other words")
with safewrite.run("run-42"), safewrite.turn(4):
    later = await cancel_subscription.outcome("sub_1", reason="asked for it")
""",
    )
    assert (names["reworded"].replayed, names["reworded"].key) == (True, names["outcome"].key)
    assert (names["later"].replayed, names["later"].key != names["outcome"].key) == (False, True)
    assert billing.effects("sub_1") == 2


def test_the_contract_survives_its_process(billing: ScriptedDependency) -> None:
    """The same file run again, as after a restart, replays from the ledger that it left behind."""
    first, second = contract(billing), contract(billing)
    assert second["subscription"] == first["subscription"]
    assert second["outcome"].key == first["outcome"].key
    assert billing.effects("sub_1") == 1


def test_a_call_outside_a_run_is_misuse(billing: ScriptedDependency) -> None:
    """Nothing is sent, and the error says what to open."""
    with pytest.raises(safewrite.NoRunContext, match=r"safewrite\.run"):
        contract(billing, 'await cancel_subscription("sub_2", reason="x")')
    assert billing.effects("sub_2") == 0


def test_every_name_of_the_contract_is_public() -> None:
    """What the contract imports is in `__all__`."""
    imported = [
        alias.name
        for node in ast.parse(CONTRACT, mode="exec", type_comments=False).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert set(imported) <= set(safewrite.__all__)
