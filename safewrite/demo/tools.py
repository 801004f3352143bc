"""The tools of the demonstration's agent: what an application would write, over real HTTP.

Six tools, plain and coroutine functions, over four systems that promise different things.  All four are the one
scripted dependency, which keeps exactly the promises that are declared here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
from pydantic import BaseModel
from tenacity import wait_fixed

from safewrite.attempt import Attempt
from safewrite.dependency import Dependency
from safewrite.guard import SafeWrite
from safewrite.verdicts import Applied, GoalMet, GoalNotMet, NotApplied
from safewrite.wrap import Write

BILLING = Dependency("billing", key_retention=timedelta.max)
"""Recognises idempotency keys."""
PAYMENTS = Dependency("payments", work_bound=0.8, read_lag=0.0, clock_skew=0.1)
"""Knows no keys; what it has not done 0.8 s after the request was dropped it never does, and reads see all."""
TICKETS = Dependency("tickets", read_lag=0.0, clock_skew=0.1)
"""Reads see all, but nobody knows how long a request may still lie in a queue."""
LETTERS = Dependency("letters")
"""Promises nothing, and cannot be asked."""

ALIKE: dict[str, Any] = {"wait": wait_fixed(0.1), "free_text": ("note",)}
PROMPT = 2.0
"""Seconds for an attempt of which an answer is expected."""
SHORT = 0.4
"""Seconds for an attempt that may be left without an answer."""


class Receipt(BaseModel):
    """What a write returns."""

    target: str
    state: str
    effect: int = 0
    """The number of the effect in the dependency's own ledger; 0: not told."""


Tools = dict[str, Write[..., Any]]


def declare(sw: SafeWrite, http: httpx.Client, ahttp: Callable[[], httpx.AsyncClient]) -> Tools:
    """Return the tools by name."""
    return {**_billing(sw, http, ahttp), **_payments(sw, http, ahttp), **_others(sw, http, ahttp)}


def _billing(sw: SafeWrite, http: httpx.Client, ahttp: Callable[[], httpx.AsyncClient]) -> Tools:
    @sw.write(target="sub_id", name="cancel_subscription", dependency=BILLING, timeout=PROMPT, **ALIKE)
    async def cancel_subscription(sub_id: str, note: str, attempt: Attempt) -> Receipt:
        """Cancel a subscription: a tool that brings about a state."""
        return _receipt(await ahttp().post(f"/subscriptions/{sub_id}/cancel", **_sent(note, attempt)))

    @cancel_subscription.reconcile
    async def _(sub_id: str) -> GoalMet[Receipt] | GoalNotMet:
        found = _receipt(await ahttp().get(f"/subscriptions/{sub_id}"))
        return GoalMet(found) if found.state == "cancel" else GoalNotMet()

    @sw.write(target="card_id", name="charge_card", dependency=BILLING, timeout=PROMPT, **ALIKE)
    def charge_card(card_id: str, note: str, attempt: Attempt) -> Receipt:
        """Charge a card: nothing can be read, so sending again under the same key is the question."""
        return _receipt(http.post(f"/cards/{card_id}/charge", **_sent(note, attempt)))

    return {"cancel_subscription": cancel_subscription, "charge_card": charge_card}


def _payments(sw: SafeWrite, http: httpx.Client, ahttp: Callable[[], httpx.AsyncClient]) -> Tools:
    @sw.write(target="payment_id", name="capture_payment", dependency=PAYMENTS, timeout=SHORT, **ALIKE)
    async def capture_payment(payment_id: str, note: str, attempt: Attempt) -> Receipt:
        """Capture a payment."""
        return _receipt(await ahttp().post(f"/payments/{payment_id}/capture", **_sent(note, attempt)))

    @capture_payment.reconcile
    async def _(payment_id: str, attempt: Attempt) -> Applied[Receipt] | NotApplied:
        return _by_key(await ahttp().get("/effects", params={"key": attempt.key, "target": payment_id}))

    def refund(payment_id: str, note: str, attempt: Attempt) -> Receipt:
        """Refund a payment."""
        return _receipt(http.post(f"/payments/{payment_id}/refund", **_sent(note, attempt)))

    def refunded(payment_id: str, attempt: Attempt) -> Applied[Receipt] | NotApplied:
        return _by_key(http.get("/effects", params={"key": attempt.key, "target": payment_id}))

    tools: Tools = {}
    for name, most in {"refund_payment": 3, "refund_once": 1}.items():
        write = sw.write(
            target="payment_id", name=name, dependency=PAYMENTS, timeout=SHORT, max_attempts=most, **ALIKE
        )
        tools[name] = write(refund)
        tools[name].reconcile(refunded)
    return {"capture_payment": capture_payment, **tools}


def _others(sw: SafeWrite, http: httpx.Client, ahttp: Callable[[], httpx.AsyncClient]) -> Tools:
    @sw.write(target="ticket_id", name="close_ticket", dependency=TICKETS, timeout=SHORT, **ALIKE)
    async def close_ticket(ticket_id: str, note: str, attempt: Attempt) -> Receipt:
        """Close a ticket: it can be looked up, but no look proves that nothing is still on its way."""
        return _receipt(await ahttp().post(f"/tickets/{ticket_id}/close", **_sent(note, attempt)))

    @close_ticket.reconcile
    async def _(ticket_id: str, attempt: Attempt) -> Applied[Receipt] | NotApplied:
        return _by_key(await ahttp().get("/effects", params={"key": attempt.key, "target": ticket_id}))

    @sw.write(target="letter_id", name="send_letter", dependency=LETTERS, timeout=SHORT, **ALIKE)
    def send_letter(letter_id: str, note: str, attempt: Attempt) -> Receipt:
        """Send a letter: no promise and no way to ask, so an ambiguous attempt stays one."""
        return _receipt(http.post(f"/letters/{letter_id}/send", **_sent(note, attempt)))

    return {"close_ticket": close_ticket, "send_letter": send_letter}


def _sent(note: str, attempt: Attempt) -> dict[str, Any]:
    return {"json": {"note": note}, "headers": attempt.headers, "timeout": attempt.timeout}


def _receipt(reply: httpx.Response) -> Receipt:
    return Receipt.model_validate(reply.raise_for_status().json())


def _by_key(reply: httpx.Response) -> Applied[Receipt] | NotApplied:
    """Read a look-up by idempotency key: what is there names this intent, and nothing there is ever erased."""
    rows = reply.raise_for_status().json()["rows"]
    if not rows:
        return NotApplied()
    return Applied(Receipt(target=rows[0]["target"], state=rows[0]["verb"], effect=rows[0]["number"]))
