"""Every rule by its id, in words: stored with each decision, and the source of the reference page.

Ids are kept for ever: they stand in audit rows.  The letter says which question the rule answers.
"""

from __future__ import annotations

from typing import Final

GROUPS: Final[dict[str, str]] = {
    "N": "Nobody waits for an answer",
    "M": "The call does not fit the record",
    "A": "The write is applied, or an answer is noted",
    "R": "An attempt is claimed",
    "F": "An attempt is in flight elsewhere",
    "P": "A person's word, and preconditions",
    "D": "The dependency said no",
    "K": "The dependency recognises the key",
    "B": "The call may not, or cannot, send",
    "S": "Nothing is open: send",
    "L": "Something is open: look",
    "W": "Wait",
    "U": "It stays unknown",
    "T": "Another intent with the same wish",
    "X": "The ledger cannot be written",
}
"""The letter with which an id begins -> what its rules are about."""

RULES: Final[dict[str, str]] = {
    "N1": "Nobody waits for an answer: the fact is kept as evidence.",
    "N2": "The caller is gone (cancelled, interrupted): the fact is recorded and the lease is free.",
    "M1": "The intent is on record with other content: refused, naming the parameters that differ.",
    "A1": "Some evidence says applied: that is the outcome, whatever else was heard.",
    "A2": "An applied outcome that no caller has been told yet is noted as told before it is told.",
    "A3": "A call that sends nothing and repeats no recorded outcome leaves a row that says why.",
    "R1": "The attempt is durably claimed: its body may run.",
    "F1": "An attempt is in flight elsewhere: wait for its record inside the deadline.",
    "F2": "An attempt is in flight elsewhere, and this call does not wait: told so.",
    "P1": "A person said that it was not applied: replayed, never sent.",
    "D1": "The dependency said no to an attempt and nothing is open: told, and replayed later.",
    "K2": "The dependency replays an error under this key: a further attempt cannot get through.",
    "B1": "This call may not send (budget, pool, breaker) and nothing is open: not sent.",
    "B2": "This call has made its attempts, and none was applied: not sent again.",
    "B3": "What is left of the call is less than an attempt needs: not sent.",
    "B4": "This call may not send, and an earlier attempt is open: unknown, with the refusal as its reason.",
    "B5": "Nothing was sent, and sending again would not help, says the tool: not sent.",
    "S1": "Nothing was sent for this intent yet: claim the first attempt.",
    "S2": "Every attempt is known not to be applied: claim a further one.",
    "K1": "The dependency recognises the key of every open attempt: sending again cannot apply twice.",
    "P2": "Every open attempt carried the same precondition: sending again cannot apply twice.",
    "L1": "An attempt is open: look before anything else.",
    "L2": "Nothing can take effect any more since the last look: look again, for this one can prove absence.",
    "L3": "The last look did not settle it and time is left: look again.",
    "W1": "Not applied: wait as the strategy or the dependency says, then send again.",
    "W2": "Open under K or P: wait as the strategy or the dependency says, then send again.",
    "W3": "The open attempts settle inside the deadline: wait for that, never send before.",
    "W4": "Wait before looking again.",
    "U1": "Open, and there is no way to look: unknown.",
    "U2": "Open, and no time is left to look: unknown.",
    "U3": "Open, and looking did not settle it: unknown.",
    "T1": "Another intent with the same wish is open: noted before it is looked at.",
    "T2": "Another intent with the same wish is open: look at that one first.",
    "T3": "Another intent with the same wish turned out applied: that is this call's answer.",
    "T4": "Another intent with the same wish but other content turned out applied: not sent, naming it.",
    "T5": "Another intent with the same wish stays open: unknown, nothing sent.",
    "X1": "The ledger could not store the outcome, and it is not one that stays true: unknown.",
    "X2": "The ledger cannot be read, so nobody knows what stands in it: unknown, and nothing was sent.",
}
"""Id -> the rule, in one sentence."""
