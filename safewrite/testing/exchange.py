"""What a scripted dependency does with one request: the step that it uses and what comes of it, without a network."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from safewrite.testing.effects import Effects, Reply, Request, parse_keys, refusal
from safewrite.testing.script import Behaviour, Script, parse

_PLAIN = Behaviour()


@dataclass(frozen=True, slots=True)
class Begun:
    """One request that has arrived, and the step that it uses."""

    request: Request
    plan: Behaviour = _PLAIN
    reads: bool = False
    horizon: int | None = None
    claimed: bool = False
    """It holds its key."""
    misfit: Reply | None = None
    """What is wrong with its path or method."""


class Exchange:
    """The script of one dependency and its effects; whoever holds it brings requests, and time."""

    def __init__(self, effects: Effects, now: Callable[[], float] = time.time) -> None:
        self.effects, self.script, self._now = effects, Script(), now
        self._first_promises = effects.promises

    def command(self, order: Any) -> dict[str, object]:
        """Carry out one command; ValueError or TypeError says what is wrong with it."""
        match order:
            case {"do": "script", "steps": [*steps]}:
                about = {"path": order.get("path"), "target": order.get("target")}
                parsed = [parse(step) for step in steps]
                self.script.add(parsed, **about, effects=len(self.effects), at=self._now())
            case {"do": "promise"}:
                changes: dict[str, Any] = {name: value for name, value in order.items() if name != "do"}
                if "keys" in changes:
                    changes["keys"] = parse_keys(changes["keys"])
                self.effects.promises = replace(self.effects.promises, **changes)
            case {"do": "reset"}:
                self.script.clear()
                self.effects.clear()
                self.effects.promises = self._first_promises
            case {"do": "report"}:
                return {**self.effects.report(), "pending": self.script.pending()}
            case _:
                raise ValueError(
                    "no such command: script (with steps), promise, reset, pause, resume, report"
                )
        return {"done": order["do"]}

    def begin(self, request: Request) -> Begun:
        """Take note of a request, and of the step that it uses up."""
        misfit = _misfit(request)
        if misfit is not None:
            self.effects.note(request, None)
            return Begun(request, misfit=misfit)
        reads = request.method == "GET"
        step, horizon = self.script.take(
            reads=reads, path=request.path, target=request.target, at=self._now()
        )
        self.effects.note(request, step.name)
        claimed = not reads and step.behaviour.applies and self.effects.claim(request)
        return Begun(request, step.behaviour, reads, horizon, claimed)

    def answer(self, begun: Begun, *, commits: bool = True) -> Reply:
        """Return the reply, after the effect where it comes first; not `commits`: it comes later, or never."""
        request, plan = begun.request, begun.plan
        if begun.misfit is not None:
            return begun.misfit
        done = Reply(200, {})
        if begun.reads:
            done = self.effects.read(request, begun.horizon)
        elif commits and plan.applies and plan.apply_after is None:
            done = self.effects.commit(request, begun.claimed)
        scripted = _scripted(request, plan)
        if scripted is not None and not begun.reads:
            self.effects.failed(request, scripted)
        return scripted or done


def _misfit(request: Request) -> Reply | None:
    """Return what is wrong with the path or the method; None for a write or a read that exists."""
    wanted = {3: "POST", 2: "GET"}.get(len(request.parts), "GET" if request.parts == ["effects"] else None)
    if wanted is None or not all(request.parts) or not request.path.startswith("/"):
        return refusal(404, "no_such_path")
    return None if request.method == wanted else refusal(405, "wrong_method", ("Allow", wanted))


def _scripted(request: Request, plan: Behaviour) -> Reply | None:
    """Return the reply that the script asks for in place of the one that follows from what was done."""
    if plan.status is None:
        return None
    retry_after = () if plan.retry_after is None else (("Retry-After", str(plan.retry_after)),)
    document = {"error": plan.error} if plan.error is not None else {"target": request.target}
    return Reply(plan.status, {**document}, retry_after)
