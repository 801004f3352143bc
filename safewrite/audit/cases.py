"""Cases: the recorded history of one intent as a small JSON file, and what the machine of today decides on it.

A case holds what was reported and decided, row by row, with the call's numbers and promises: enough to decide again.
It holds no values, no texts of errors and no names of machines; what looks like a secret is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from safewrite.audit.reading import damage
from safewrite.core.commands import Command, Send
from safewrite.core.events import Claimed, Event, OutcomeState
from safewrite.core.fold import Impossible
from safewrite.core.machine import decide, refold
from safewrite.core.phrases import OUTCOMES, decided, happened
from safewrite.core.rules import RULES
from safewrite.core.state import State
from safewrite.errors import SchemaOutdated
from safewrite.ledger.model import Identity
from safewrite.ledger.rows import Unreadable, command_of, event_of, parse
from safewrite.ledger.sql import Ledger
from safewrite.redaction import MARK, redact_text

VERSION: Final = 1
"""The version of the format; another one is refused."""
Json = Any


class CaseUnusable(ValueError):
    """A file is no case, or one that this version cannot read."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CaseRow(_Strict):
    """One row: what was reported, and what was decided then, as the ledger keeps both."""

    at: list[float | str]
    event: str
    fact: dict[str, Json]
    call: dict[str, Json] | None = None
    lease_at: list[float | str] | None = None
    over: bool = False
    promises: dict[str, Json] | bool | None = None
    command: str
    decision: dict[str, Json]
    outcome: str
    machine: int

    def told(self) -> tuple[Event, Command, OutcomeState]:
        """Return the event, the command that was decided, and the intent's outcome after it."""
        body = self.model_dump(exclude_none=True)
        return event_of(body), command_of(body), OutcomeState(self.outcome)


class CaseIntent(_Strict):
    """Which intent it was."""

    key: str
    namespace: str
    run: str
    turn: str
    tool: str
    target: str
    occurrence: str
    dependency: str


class Case(_Strict):
    """The history of one intent."""

    safewrite_case: int
    intent: CaseIntent
    arguments: dict[str, Json]
    """The recorded arguments, as the ledger keeps them; `missing` names those that are not here."""
    rows: list[CaseRow]

    @model_validator(mode="after")
    def _readable(self) -> Self:
        for number, row in enumerate(self.rows, 1):
            try:
                row.told()
            except (Unreadable, SchemaOutdated, ValueError) as error:
                # pydantic fails at a message that is no Unicode: the row's own texts may be none.
                told = str(error).encode(errors="backslashreplace").decode()
                raise ValueError(f"row {number}: {told}") from None
        return self

    @classmethod
    def load(cls, path: str | Path) -> Case:
        """Return the case in a file.  Raises `CaseUnusable`, which says what is wrong with it."""
        try:
            found = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise CaseUnusable(f"`{path}` cannot be read: {error.strerror}.") from None
        except (ValueError, RecursionError):
            raise CaseUnusable(f"`{path}` is not JSON.") from None
        version = found.get("safewrite_case") if isinstance(found, dict) else None
        if version is None:
            raise CaseUnusable(f"`{path}` is no case: it has no field `safewrite_case`.")
        if version != VERSION:
            raise CaseUnusable(
                f"`{path}` is a case of version {version!r}, and this safewrite reads version {VERSION}. "
                "Update safewrite, or export it anew."
            )
        try:
            return cls.model_validate(found)
        except ValidationError as error:
            wrong = "; ".join(
                f"{'.'.join(map(str, e['loc'])) or 'rows'}: {e['msg']}" for e in error.errors()[:3]
            )
            raise CaseUnusable(f"`{path}` is not a case that this safewrite can read: {wrong}.") from None

    def text(self) -> str:
        """Return the text of its file: a line for each row."""
        told = self.model_dump(exclude_defaults=True)
        rows = ",\n  ".join(map(json.dumps, told.pop("rows")))
        head = json.dumps(told, indent=1).removesuffix("\n}")
        return f'{head},\n "rows": [\n  {rows}\n ]\n}}\n'


def export_case(ledger: Ledger, reference: str) -> Case | None:
    """Return the case of an intent, by its key, id, attempt or trace; None: there is none.

    Raises `LedgerUnavailable` for a ledger that somebody has altered.
    """
    intent = ledger.find(reference)
    if intent is None:
        return None
    rows, text = ledger.rows(intent.id), ledger.arguments(intent.id)
    with damage():
        return _case(intent.identity, [parse(row["body"]) for row in rows], json.loads(text))


def _case(identity: Identity, bodies: list[Json], kept: Json) -> Case:
    names = _Names()
    about = {name: getattr(identity, name) for name in CaseIntent.model_fields if name != "dependency"}
    secret = [name for name in kept["arguments"] if _secret(name)]
    arguments = {name: part for name, part in kept["arguments"].items() if name not in secret}
    depend = next((who for body in bodies if (who := body.get("who", {}).get("dependency"))), "")
    return Case.model_validate(
        {
            "safewrite_case": VERSION,
            "intent": {**about, "dependency": depend, "target": redact_text(about["target"])},
            "arguments": {
                **kept,
                "arguments": _clean(arguments),
                "missing": sorted([*kept["missing"], *secret]),
            },
            "rows": [
                {name: names.hide(_clean(body[name])) for name in CaseRow.model_fields if name in body}
                for body in bodies
            ],
        }
    )


def _secret(name: str) -> bool:
    return MARK in redact_text(f"{name}=a1b2c3d4")


def _clean(value: Json) -> Json:
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, dict):
        return {name: MARK if _secret(name) and part else _clean(part) for name, part in value.items()}
    return [_clean(part) for part in value] if isinstance(value, list) else value


class _Names:
    """Short names in place of those of machines: a clock's, and a process's."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def hide(self, value: Json) -> Json:
        """Return a part of a row without the names of machines."""
        if isinstance(value, dict):
            return {
                name: self._of(part) if name == "owner" else self.hide(part) for name, part in value.items()
            }
        if (
            isinstance(value, list)
            and len(value) == 3
            and isinstance(value[2], str)
            and not isinstance(value[0], str)
        ):
            return [*value[:2], self._of(value[2])]
        return value

    def _of(self, name: str) -> str:
        kind = "process" if "/" in name else "clock"
        return self._known.setdefault(name, f"{kind}-{len(self._known) + 1}")


# Deciding again ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Difference:
    """What was decided then on one row, and what would be decided now."""

    row: int
    happened: str
    then: str
    then_rule: str
    now: str
    now_rule: str

    def __str__(self) -> str:
        def why(rule: str) -> str:
            return f" ({rule}: {RULES.get(rule, 'a rule that this version does not know')})" if rule else ""

        return (
            f"row {self.row}: {self.happened}\n"
            f"  then: {self.then or 'nothing'}{why(self.then_rule)}\n"
            f"  now:  {self.now or 'nothing'}{why(self.now_rule)}"
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """What came of replaying a case."""

    key: str
    through: str
    """`the machine`, or the tool."""
    rows: int
    differences: tuple[Difference, ...]

    @property
    def same(self) -> bool:
        """Whether everything was decided as then."""
        return not self.differences

    def to_dict(self) -> dict[str, Json]:
        """Return it as JSON can hold it."""
        return {**asdict(self), "same": self.same}

    def __str__(self) -> str:
        if self.same:
            return f"{self.key}, through {self.through}: {self.rows} rows, decided as then."
        return "\n".join(
            [f"{self.key}, through {self.through}: decided otherwise now.", *map(str, self.differences)]
        )


def through_machine(case: Case) -> Replay:
    """Return what the machine of today decides on the rows of a case."""
    told = [row.told() for row in case.rows]
    return Replay(case.intent.key, "the machine", len(told), tuple(_differences(told)))


def _differences(rows: Iterable[tuple[Event, Command, OutcomeState]]) -> Iterable[Difference]:
    state = State()
    for number, (event, then, outcome) in enumerate(rows, 1):
        fact = event.fact
        try:
            after, now = refold(state, event)
        except Impossible as error:
            words = f"nothing: it cannot follow on the rows before it ({error})"
            yield Difference(number, happened(fact, state, state), decided(then), then.rule, words, "")
            continue
        words = happened(fact, state, after)
        # What licensed a claim left no row of its own: it is decided again, from what the claim's row holds.
        licence = decide(state, event)
        if isinstance(fact, Claimed) and licence != Send(licence.rule, fact.number):
            sent = f"attempt {fact.number} was claimed, to be sent"
            yield Difference(number, words, sent, "", decided(licence), licence.rule)
        if (type(now), now.rule) != (type(then), then.rule):
            yield Difference(number, words, decided(then), then.rule, decided(now), now.rule)
        elif after.outcome is not outcome:
            yield Difference(
                number,
                words,
                f"the outcome is {OUTCOMES[outcome]}",
                "",
                f"the outcome is {OUTCOMES[after.outcome]}",
                "",
            )
        state = after
