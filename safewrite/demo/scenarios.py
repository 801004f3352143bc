"""The table of scenarios: name, tool and target, what the dependency does, the calls, and what must hold."""

from __future__ import annotations

from safewrite.demo.plays import killed_and_resumed, one_turn_each, two_workers
from safewrite.demo.scenario import Call, Scenario
from safewrite.testing.script import (
    drip,
    error,
    error_after,
    hang_after,
    late,
    lose_response,
    never,
    read_fails,
    reset,
    reset_after,
    slow,
)

SCENARIOS = (
    Scenario(
        "quiet write", "cancel_subscription", "sub_quiet",
        (),
        (Call("asked for it", "applied", within=3.0),),
        effects=1, requests=1, play=one_turn_each,
    ),
    Scenario(
        "response lost after it was applied", "capture_payment", "pay_lost",
        (lose_response(),),
        (Call("goods were sent", "applied", within=3.0),),
        effects=1, requests=1, play=one_turn_each,
    ),
    Scenario(
        "500 after it was applied", "capture_payment", "pay_500",
        (error_after(500),),
        (Call("goods were sent", "applied", within=3.0),),
        effects=1, requests=1, play=one_turn_each,
    ),
    Scenario(
        "the dependency says no", "cancel_subscription", "sub_refused",
        (error(422),),
        (Call("asked for it", "not_applied", within=3.0),),
        effects=0, requests=1, play=one_turn_each,
    ),
    Scenario(
        "connection reset, not processed", "cancel_subscription", "sub_reset",
        (reset(),),
        (Call("moved abroad", "applied", within=3.0),),
        effects=1, requests=2, play=one_turn_each,
    ),
    Scenario(
        "connection reset after it was applied", "charge_card", "card_reset",
        (reset_after(),),
        (Call("order 17", "applied", within=3.0),),
        effects=1, requests=2, play=one_turn_each,
    ),
    Scenario(
        "slow drip: the total limit ends it", "refund_payment", "pay_drip",
        (drip(2.0),),
        (Call("broken on arrival", "applied", within=1.9),),
        effects=1, requests=1, play=one_turn_each,
    ),
    Scenario(
        "rejection after an ambiguous attempt", "cancel_subscription", "sub_twice",
        (lose_response(), error(422), read_fails(503)),
        (Call("asked for it", "applied", within=3.0),),
        effects=1, requests=2, play=one_turn_each,
    ),
    Scenario(
        "never processed: sent again", "refund_payment", "pay_never",
        (never(),),
        (Call("broken on arrival", "applied"),),
        effects=1, requests=2, play=one_turn_each,
    ),
    Scenario(
        "never processed: one attempt allowed", "refund_once", "pay_never_once",
        (never(),),
        (Call("broken on arrival", "not_applied"),),
        effects=0, requests=1, play=one_turn_each,
    ),
    Scenario(
        "applied late, after the first look", "refund_payment", "pay_late",
        (late(0.6),),
        (Call("broken on arrival", "applied"),),
        effects=1, requests=1, play=one_turn_each,
    ),
    Scenario(
        "no promise, no read: response lost", "send_letter", "letter_lost",
        (lose_response(),),
        (Call("reminder", "unknown", within=3.0),),
        effects=1, requests=1, play=one_turn_each,
    ),
    Scenario(
        "no promise, no read: never processed", "send_letter", "letter_never",
        (never(),),
        (Call("reminder", "unknown", within=3.0),),
        effects=0, requests=1, play=one_turn_each,
    ),
    Scenario(
        "asked again while it is unknown", "close_ticket", "ticket_again",
        (late(2.5),),
        (
            Call("solved", "unknown", within=3.0),
            Call("the customer is happy", "unknown", within=3.0),
            Call("please close it now", "applied", once_landed=True),
        ),
        effects=1, requests=1, play=one_turn_each,
    ),
    Scenario(
        "two workers, one intent", "refund_payment", "pay_workers",
        (slow(0.2),),
        (Call("broken on arrival", "applied"), Call("it arrived broken", "applied")),
        effects=1, requests=1, play=two_workers, processes=2,
    ),
    Scenario(
        "kill -9 after it was applied", "capture_payment", "pay_killed",
        (hang_after(),),
        (Call("goods were sent", None), Call("the parcel has left the house", "applied")),
        effects=1, requests=1, play=killed_and_resumed, processes=2,
    ),
    Scenario(
        "kill -9, never processed", "refund_payment", "pay_killed_never",
        (never(),),
        (Call("broken on arrival", None), Call("the customer got it in pieces", "applied")),
        effects=1, requests=2, play=killed_and_resumed, processes=2, killed_after_effect=False,
    ),
)  # fmt: skip
