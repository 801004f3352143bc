"""A person's word on what no read and no late response can tell any more."""

from __future__ import annotations

from safewrite.audit.queries import Audit
from safewrite.audit.records import IntentRecord
from safewrite.core.events import Event, OutcomeState, Resolved
from safewrite.core.phrases import EVIDENCE
from safewrite.errors import ConfigurationError
from safewrite.ledger.model import Meta
from safewrite.ledger.sql import Ledger
from safewrite.redaction import redact_text
from safewrite.shell.clock import clock


def resolve(ledger: Ledger, key: str, *, applied: bool, by: str, note: str) -> IntentRecord:
    """Record that a person looked, and found the write `applied` or not; return the intent after it.

    `key` is the intent's key, its id, or the id of one of its attempts; `by` says who looked and `note` what they
    saw, with secrets that show taken out.  The outcome's evidence is `person` then, and nothing is sent for the
    intent again.  Proof that comes later wins, with an alarm where it says otherwise.

    Raises `ConfigurationError`, with nothing recorded, for a key that is not on record, an empty `by` or `note`, and
    an intent that is not unknown: what is known, by proof or by another person's word, is not overruled.
    """
    who, why = _checked(key, applied, by, note)
    audit = Audit(ledger)
    found = audit.find(key)
    if not found:
        raise ConfigurationError(
            f"No intent `{key}` is in the ledger, so nothing was recorded. `safewrite unknown` lists the open ones."
        )
    one, *more = found
    if more:
        keys = ", ".join(f"`{intent.key}`" for intent in found)
        raise ConfigurationError(
            f"`{key}` names several intents, so nothing was recorded. Name one by its key: {keys}."
        )
    _refuse_known(one)
    intent = ledger.load(one.id)
    assert intent is not None
    event = Event(clock().now(), Resolved(applied, who, why), promises=audit.promises(intent.id))
    ledger.record(intent, event, Meta(person=who))
    return audit.find(intent.id)[0]


def _checked(key: object, applied: object, by: object, note: object) -> tuple[str, str]:
    if not isinstance(applied, bool):
        raise ConfigurationError(f"`applied` is {applied!r}. Write True or False; nothing was recorded.")
    for name, text in (("key", key), ("by", by), ("note", note)):
        if not isinstance(text, str) or not text.strip():
            wanted = {"key": "the key of an intent", "by": "who looked", "note": "what they saw, and where"}[
                name
            ]
            raise ConfigurationError(f"`{name}` is {text!r}. Write {wanted}; nothing was recorded.")
    return str(by).strip(), redact_text(str(note).strip())


def _refuse_known(found: IntentRecord) -> None:
    if found.outcome == OutcomeState.UNKNOWN:
        return
    state = found.outcome.replace("_", " ")
    if found.person:
        how = f"{found.person} said so"
    elif not found.attempts:
        how = "nothing was ever sent"
    else:
        how = f"known from {EVIDENCE.get(found.evidence, found.evidence)}"
    raise ConfigurationError(
        f"The intent `{found.key}` is {state} already ({how}), so nothing was recorded. "
        "Only what is unknown can be resolved.",
        key=found.key,
        tool=found.tool,
    )
