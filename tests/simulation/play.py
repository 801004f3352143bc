"""One seed from its beginning to its end, and what was broken by it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass

from sqlalchemy import select

from safewrite.ledger import tables
from tests.simulation.dependency import PROMISES, READABLE
from tests.simulation.stage import Stage, Told


@dataclass(frozen=True)
class Played:
    """What one seed came to."""

    seed: int
    sums: Counter[str]
    problems: list[str]
    trace: str
    """All that was told, in order: equal for equal seeds."""


def play(url: str, seed: int, *, acts: int = 10) -> Played:
    """Let a seed happen on a ledger that is there, and hold what was told and recorded against what was done."""
    stage = Stage(url, seed)
    tools = stage.chance.sample(tuple(PROMISES), 2)
    stage.things = tuple((tool, turn) for tool in tools for turn in (1, 2))
    stage.thing = stage.things[0]
    with stage.played():
        for host in "AAB":
            stage.hire(host)
        for _ in range(acts):
            if stage.chance.random() < 0.2:
                stage.advance(stage.chance.choice((0.2, 4.0, 30.0, 500.0)))
            stage.act(stage.workers)
            for worker in [w for w in stage.workers if w.dead]:
                stage.workers.remove(worker)
                stage.hire(worker.host)
        return _judged(stage, *_settled(stage))


def _settled(stage: Stage) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Let all time pass and everything be recovered; return the intents and the claims on record."""
    stage.quiet = True
    last = stage.hire("A")
    stage.acting.append(last)
    for _ in range(3):
        stage.advance(1000.0)
        last.sw.recover()
    i, a = tables.intent.c, tables.audit.c
    mine = i.namespace == stage.namespace
    intents = last.sw.ledger.select(select(i.id, i.key, i.tool, i.outcome, i.evidence, i.alarms).where(mine))
    claims = last.sw.ledger.select(
        select(a.attempt_id, a.attempt, a.intent_id, a.evidence)
        .join(tables.intent, i.id == a.intent_id)
        .where(mine, a.event == "claimed")
    )
    stage.acting.pop()
    return intents, claims


def _judged(stage: Stage, intents: list[dict[str, object]], claims: list[dict[str, object]]) -> Played:
    world, problems = stage.world, stage.problems
    by_key = {row["key"]: row for row in intents}
    of_attempt = {row["attempt_id"]: row for row in claims}
    for request in world.requests:
        if request.attempt not in of_attempt:
            problems.append(f"lost attempt: {request.tool} was sent {request.attempt}, which has no row")
    per_key = Counter(effect.key for effect in world.effects)
    problems += [
        f"duplicate: {by_key[key]['tool']} {key}: {n} effects" for key, n in per_key.items() if n > 1
    ]
    for told in stage.told:
        _judge_told(stage, told, problems)
    for row in intents:
        _judge_row(stage, row, [c for c in claims if c["intent_id"] == row["id"]], per_key, problems)
    sums = Counter(str(row["outcome"]) for row in intents) + Counter(
        histories=1,
        calls=len(stage.told),
        requests=len(world.requests),
        effects=len(world.effects),
        kills=len(stage.gone),
    )
    told = [(t.tool, round(t.at, 6), t.outcome.state, t.outcome.reason, t.outcome.value) for t in stage.told]
    return Played(stage.seed, sums, problems, json.dumps(told))


def _judge_told(stage: Stage, told: Told, problems: list[str]) -> None:
    o = told.outcome
    what = f"{told.tool} {o.key} was told {o.state} ({o.reason}, {o.evidence})"
    had = [e for e in stage.world.effects if e.key == o.key]
    if o.state == "applied" and not o.blocked_by_key:
        there = [e for e in had if e.lands_at <= told.at]
        if not there or (o.has_value and o.value not in [e.number for e in there]):
            problems.append(f"false applied: {what}")
    if o.state == "not_applied":
        numbers = {r.attempt: r.number for r in stage.world.requests}
        if any(numbers[e.attempt] <= o.attempts for e in had):
            problems.append(f"false not_applied: {what}, {o.attempts} attempts")


def _judge_row(
    stage: Stage,
    row: dict[str, object],
    claims: list[dict[str, object]],
    per_key: Counter[str],
    problems: list[str],
) -> None:
    what = f"{row['tool']} {row['key']} stands as {row['outcome']} ({row['evidence']})"
    had = per_key[str(row["key"])]
    if row["alarms"]:
        problems.append(f"alarm: {what}")
    if row["outcome"] == "applied" and not had:
        problems.append(f"false applied: {what}")
    if row["outcome"] == "not_applied" and had:
        problems.append(f"false not_applied: {what}")
    ends_known = stage.max_stall is not None or all('"A/' in str(c["evidence"]) for c in claims)
    bounded = PROMISES[str(row["tool"])].work_bound is not None
    if row["outcome"] == "unknown" and row["tool"] in READABLE and bounded and ends_known:
        problems.append(f"stuck: {what}")
