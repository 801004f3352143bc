"""What a call leaves behind: a row for everything that happened, no secret in any of them, and each object once."""

from __future__ import annotations

import enum
import json
import logging
import sqlite3
from collections import deque
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus
from uuid import UUID

import pytest
from pydantic import BaseModel, SecretStr

import safewrite
from safewrite import (
    Applied,
    Attempt,
    Dependency,
    Inconclusive,
    IntentMismatch,
    NotApplied,
    SafeWrite,
    ValueNotKept,
)
from safewrite.shell.secrets import Secrets
from safewrite.testing import ManualClock
from tests.shell.conftest import KEYED, SETTLES, Shell, Tools, attempts, rows
from tests.shell.remote import DROP, LOSE, REFUSE, Remote, fail, reject

pytestmark = pytest.mark.usefixtures("run", "clock")


def events(sw: SafeWrite, outcome: Any) -> list[str]:
    """Return what the rows of an intent record, oldest first."""
    return [row["event"] for row in rows(sw, outcome)]


# Rows --------------------------------------------------------------------------------------------------------------


def test_a_quiet_write_leaves_a_claim_and_an_ending(shell: Shell, tool: Tools, sw: SafeWrite) -> None:
    """Two rows, written before the send and after it; a replay adds none."""
    cancel = tool(sw)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert events(sw, outcome) == ["claimed", "ended"]
    shell.call(cancel, "sub_1")
    assert events(sw, outcome) == ["claimed", "ended"]


def test_the_claim_stands_before_the_body_runs(
    shell: Shell, remote: Remote, sw: SafeWrite, database: Path
) -> None:
    """Whoever looks from the body, on a connection of his own, sees it."""
    seen: list[Any] = []

    async def cancel(sub_id: str, attempt: Attempt) -> str:
        with closing(sqlite3.connect(database)) as connection:
            seen.extend(connection.execute("SELECT event, attempt_id FROM safewrite_audit").fetchall())
        assert [row[1] for row in seen] == [attempt.id]
        return await remote.write(sub_id, attempt)

    shell.call(sw.write(target="sub_id")(shell.colours(cancel)), "sub_1")
    assert [row[0] for row in seen] == ["claimed"]


@pytest.mark.parametrize(
    ("steps", "options", "expected"),
    [
        ((LOSE,), {}, ["claimed", "ended", "read_ended"]),
        ((DROP,), {"dependency": SETTLES}, ["claimed", "ended", "read_ended", "claimed", "ended"]),
        ((REFUSE,), {}, ["claimed", "ended", "claimed", "ended"]),
        ((reject(),), {}, ["claimed", "ended"]),
        ((LOSE,), {"read": None, "dependency": KEYED}, ["claimed", "ended", "claimed", "ended"]),
    ],
    ids=["read back", "proven absent", "refused", "rejected", "key recognised"],
)
def test_every_attempt_and_every_read_has_its_row(
    steps: Any,
    options: dict[str, Any],
    expected: list[str],
    shell: Shell,
    remote: Remote,
    tool: Tools,
    sw: SafeWrite,
) -> None:
    """Nothing that was sent or looked at goes unrecorded, with the rule that decided what came next."""
    cancel = tool(sw, **options)
    remote.next(*steps)
    outcome = shell.call(cancel.outcome, "sub_1")
    assert events(sw, outcome) == expected
    assert all(row["rule"] for row in rows(sw, outcome))
    assert len(attempts(sw, outcome)) == len(remote.attempts) == outcome.attempts
    assert sw.ledger.verify(outcome.intent_id) == ()


def test_refusals_have_rows_too(shell: Shell, remote: Remote, tool: Tools, sw: SafeWrite) -> None:
    """A mismatch, a spent deadline, an unknown told again: each call that sent nothing says why."""
    cancel = tool(sw, read=None)
    remote.next(LOSE)
    first = shell.call(cancel.outcome, "sub_1", amount=1)
    with pytest.raises(IntentMismatch):
        shell.call(cancel, "sub_1", amount=2)
    shell.call(cancel.outcome, "sub_1", amount=1)
    with safewrite.turn(2):
        second = shell.call(cancel.outcome, "sub_1", amount=1)
    assert events(sw, first).count("refused") >= 2
    assert {"blocked", "refused"} <= set(events(sw, second))


def test_a_call_refused_for_time_is_on_record(
    shell: Shell, tool: Tools, sw: SafeWrite, clock: ManualClock
) -> None:
    """Although nothing was ever sent for it."""
    cancel = tool(sw)
    deadline = safewrite.Deadline(1.0)
    clock.advance(5.0)
    outcome = shell.call(cancel.options(deadline=deadline).outcome, "sub_1")
    assert (outcome.state, events(sw, outcome), outcome.attempts) == ("not_applied", ["refused"], 0)


def test_a_row_says_who_asked_and_through_what(
    shell: Shell, tool: Tools, open_sw: Callable[..., SafeWrite]
) -> None:
    """Agent, worker, trace and dependency stand in the rows."""
    sw = open_sw(worker="worker-7")
    cancel = tool(sw, dependency=KEYED)
    with safewrite.run("r5", agent="planner"), safewrite.turn(1):
        outcome = shell.call(cancel.outcome, "sub_1")
    text = str(rows(sw, outcome))
    assert all(word in text for word in ("worker-7", "planner", outcome.trace, "billing"))


# Secrets -----------------------------------------------------------------------------------------------------------


class Settings(BaseModel):
    """Something with a secret inside."""

    host: str
    secret: SecretStr


TOKENS = ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "hunter2-argument", "hunter2-nested", "hunter2-url")


def test_no_secret_reaches_the_ledger_or_the_log(
    shell: Shell, sw: SafeWrite, remote: Remote, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Declared, secret by type at any depth, or recognised in an exception's text: none is written anywhere."""
    caplog.set_level(logging.DEBUG)
    seen: list[Any] = []

    async def deploy(app: str, token: str, settings: Settings, key: SecretStr, attempt: Attempt) -> str:
        seen.append((token, settings.secret.get_secret_value(), key.get_secret_value()))
        return await remote.write(app, attempt)

    tool = sw.write(target="app", redact=("token",))(shell.colours(deploy))
    remote.next(fail(RuntimeError(f"401 for {TOKENS[0]} at https://u:{TOKENS[3]}@host")))
    arguments = {"token": TOKENS[1], "settings": Settings(host="h", secret=SecretStr(TOKENS[2]))}
    outcome = shell.call(tool.outcome, "app_1", key=SecretStr(TOKENS[1]), **arguments)
    assert seen == [(TOKENS[1], TOKENS[2], TOKENS[1])]
    sw.close()
    written = b"".join(path.read_bytes() for path in database.parent.glob(f"{database.name}*"))
    told = f"{caplog.text}{outcome!r}{outcome.for_model()}{outcome.error}"
    for token in TOKENS:
        assert token.encode() not in written
        assert token not in told
    assert b"app_1" in written


ODD = 'blue"berry & pie'
"""A secret that looks like none, and that JSON, reprs and URLs write otherwise."""


@pytest.mark.parametrize(
    "where", ["exception", "read raises", "read's reason", "body's reason", "value", "read's value"]
)
def test_a_secret_argument_is_in_no_text_that_the_call_leaves(
    where: str, shell: Shell, sw: SafeWrite, remote: Remote, database: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A declared secret has no looks to know it by: it is known by its value, wherever a body or a read repeats it."""
    caplog.set_level(logging.DEBUG)

    async def deploy(app: str, token: str, settings: Settings, attempt: Attempt) -> Any:
        await remote.write(app, attempt)
        told = f"{token!r} {json.dumps(token)} {quote(token)} {settings.secret.get_secret_value()}"
        if where == "value":
            return {"told": [token]}
        if where == "body's reason":
            return Inconclusive(told)
        raise RuntimeError(told)

    async def read(token: str, settings: Settings) -> Any:
        if where == "read raises":
            raise RuntimeError(f"{token} {settings.secret.get_secret_value()}")
        return Applied(token) if where == "read's value" else Inconclusive(f"nothing under {token}")

    tool = sw.write(target="app", redact=("token",))(shell.colours(deploy))
    tool.reconcile(shell.colours(read))
    outcome = shell.call(tool.outcome, "a", ODD, Settings(host="host", secret=SecretStr("raspberry")))
    report = "" if outcome.error is None else f"{outcome.error} {outcome.error.for_model()}"
    told = f"{caplog.text}{outcome.reason}{outcome.for_model()}{report}"
    again = shell.call(tool.outcome, "a", ODD, Settings(host="host", secret=SecretStr("raspberry")))
    if where in ("value", "read's value"):
        assert (again.state, again.has_value) == ("applied", False)
        assert isinstance(again.error, ValueNotKept)
    sw.close()
    written = b"".join(path.read_bytes() for path in database.parent.glob(f"{database.name}*"))
    for secret in (ODD, json.dumps(ODD)[1:-1], quote(ODD), "raspberry"):
        assert secret.encode() not in written
        assert secret not in told
    assert (b"[redacted]" in written) == (where != "value")


class Card(enum.Enum):
    """Secrets that have names."""

    TEST = "4000-0000-0000-0002"


TEXT = enum.Enum("TEXT", {"TEST": "4000-0000-0000-0002"}, type=str)
"""The same, each of which is a text, too."""


@pytest.mark.parametrize(
    "secret",
    [31415926, 2718.28, Decimal("1414.21"), UUID(int=0xFEED), Card.TEST, TEXT.TEST],
    ids=lambda s: type(s).__name__,
)
def test_a_secret_may_be_something_else_than_a_text(
    secret: Any, shell: Shell, sw: SafeWrite, database: Path
) -> None:
    """A number, a UUID, a member of an enumeration: what it looks like in a text is kept out of it."""
    told = str(secret.value if isinstance(secret, enum.Enum) else secret)

    async def pay(order: str, code: Any) -> Any:
        raise RuntimeError(f"{told} is no code for {order}")

    outcome = shell.call(
        sw.write(target="order", redact=("code",))(shell.colours(pay)).outcome, "o-1", secret
    )
    (evidence,) = [
        sw.ledger.content(outcome.intent_id, row["sequence"], "evidence") for row in rows(sw, outcome)
    ][1:]
    assert evidence is not None
    assert "[redacted] is no code for o-1" in evidence
    assert told not in evidence


@pytest.mark.parametrize("where", ["exception", "value", "reason"])
def test_a_secret_is_kept_out_whatever_the_body_makes_of_its_arguments(
    where: str, shell: Shell, sw: SafeWrite, database: Path
) -> None:
    """It takes what it needs out of them, repeats what only its type tells, or says one that reads like a code."""

    async def deploy(app: str, login: Any, key: Any) -> Any:
        password = login.pop("password")
        if where == "value":
            return {"told": key.get_secret_value()}
        if where == "reason":
            return Inconclusive(password)
        raise RuntimeError(f"{password} and {key.get_secret_value()}")

    declared = () if where == "value" else ("login",)
    tool = sw.write(target="app", redact=declared, max_attempts=1)(shell.colours(deploy))
    login = {"password": SecretStr("blueberry") if where == "value" else "blueberry"}
    outcome = shell.call(tool.outcome, "a", login, SecretStr("raspberry"))
    assert outcome.state == ("applied" if where == "value" else "unknown")
    told = f"{outcome.reason}{outcome.for_model()}{outcome.error}"
    sw.close()
    written = b"".join(path.read_bytes() for path in database.parent.glob(f"{database.name}*"))
    for secret in ("blueberry", "raspberry"):
        assert secret.encode() not in written
        assert secret not in told


SPELLED: list[Callable[[str], str]] = [
    str, repr, json.dumps, partial(json.dumps, ensure_ascii=False), quote, partial(quote, safe=""), quote_plus,
]  # fmt: skip


@pytest.mark.parametrize("spelled", SPELLED)
def test_a_secret_is_known_however_it_is_spelled(spelled: Callable[[str], str]) -> None:
    """Writers of JSON escape the quote in it, and its other letters or not; those of URLs the slash and the blank."""
    secret = "blåbær\"' /paj"
    told = Secrets({"token": secret}, {"token"}).without(f"422: {spelled(secret)} is no token")
    assert "paj" not in told
    assert told.startswith("422: ")


@pytest.mark.parametrize("secret", [b"plum/paj", b"\xff\x00plum'paj\n", b"\xfe\"plum'paj"])
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_secret_of_bytes_is_known_as_text_and_as_its_repr(
    kind: Callable[[bytes], object], secret: bytes
) -> None:
    """A signing key: what it is given as, and what of it is no text, changes nothing."""
    hides = Secrets({"key": kind(secret)}, {"key"})
    for spelled in (repr(secret), secret.decode("utf-8", "replace"), secret.decode("latin-1")):
        told = hides.without(f"401: {spelled} is no key")
        assert "plum" not in told
        assert told.startswith("401: ")


@pytest.mark.parametrize("names", [("account", "token"), ("token", "account")])
def test_a_secret_that_begins_with_another_one_leaves_no_rest(names: tuple[str, str]) -> None:
    """An account number, and a token made of it and more: the whole token goes, not its beginning alone."""
    arguments = dict(zip(names, ("pear", "pear-and-a-plum"), strict=True))
    assert Secrets(arguments, names).without("failed for pear-and-a-plum, of pear") == (
        "failed for [redacted], of [redacted]"
    )


def test_a_redacted_argument_may_change_from_call_to_call(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """A renewed token is the same wish: replayed, not a mismatch."""

    async def deploy(app: str, token: str, attempt: Attempt) -> str:
        return await remote.write(app, attempt)

    tool = sw.write(target="app", redact=("token",))(shell.colours(deploy))
    shell.call(tool, "a", token="first")
    assert shell.call(tool.outcome, "a", token="second").replayed
    assert remote.count() == 1


@pytest.mark.parametrize(("second", "sent"), [("first", 2), ("other", 1)])
def test_an_open_attempt_is_sent_again_under_its_key_only_with_the_same_redacted_arguments(
    second: str, sent: int, shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """The payload under one key never changes; what the ledger does not know is compared by its digest."""
    tokens: list[str] = []

    async def deploy(app: str, token: str, attempt: Attempt, pin: str = "the same") -> str:
        tokens.append(token)
        return await remote.write(app, attempt)

    options = {"target": "app", "redact": ("token", "pin"), "dependency": KEYED, "max_attempts": 1}
    tool = sw.write(**options)(shell.colours(deploy))
    remote.next(DROP)
    assert shell.call(tool.outcome, "a", token="first").state == "unknown"
    outcome = shell.call(tool.outcome, "a", token=second)
    assert outcome.state == ("applied" if sent == 2 else "unknown")
    assert tokens == ["first"] * sent


def test_what_is_sent_again_is_the_redacted_argument_as_it_was_given(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """What an earlier body took out of it is there again, at every depth; what is no data comes as it is."""
    seen: list[Any] = []
    client = object()

    async def deploy(app: str, login: dict[str, Any], client: Any, attempt: Attempt) -> str:
        seen.append((login.pop("password"), login["of"].pop(), client))
        return await remote.write(app, attempt)

    tool = sw.write(target="app", redact=("login", "client"), name="deploy", dependency=KEYED)(
        shell.colours(deploy)
    )
    remote.next(reject(429), reject(429))
    login = {"password": "plum", "of": ["me"]}
    assert shell.call(tool.outcome, "a", login, client).attempts == 3
    assert seen == [("plum", "me", client)] * 3


@pytest.mark.parametrize("given", [[["plum"]], (["plum"],), deque([["plum"]]), {0: ["plum"]}])
def test_what_can_be_changed_in_a_redacted_argument_is_as_it_was_given_too(
    given: Any, shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """Also in a tuple, which itself cannot."""
    seen: list[str] = []

    async def deploy(app: str, login: Any, attempt: Attempt) -> str:
        seen.append(login[0].pop())
        return await remote.write(app, attempt)

    tool = sw.write(target="app", redact=("login",), dependency=KEYED)(shell.colours(deploy))
    remote.next(reject(429))
    assert shell.call(tool.outcome, "a", deepcopy(given)).attempts == 2
    assert seen == ["plum"] * 2


def test_recovery_says_which_argument_it_lacks_and_sends_nothing(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """What was redacted cannot be sent from the record; it can be read."""

    async def deploy(app: str, token: str, attempt: Attempt) -> str:
        return await remote.write(app, attempt)

    tool = sw.write(target="app", redact=("token",), dependency=KEYED, max_attempts=1)(shell.colours(deploy))
    remote.next(DROP)
    shell.call(tool.outcome, "a", token="first")
    found = sw.recover(resend=True) if shell.plain else shell.call(sw.arecover, resend=True)
    assert "token" in found.problems[0].problem
    assert len(remote.attempts) == 1


@pytest.mark.parametrize("dependency", [KEYED, SETTLES], ids=["keyed", "settles"])
def test_recovery_sends_nothing_without_an_argument_that_was_redacted(
    dependency: Dependency, shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """However safe it were to send: neither under its key nor where the read has proved that nothing happened."""
    told: list[Any] = [NotApplied(), Inconclusive()]

    async def deploy(app: str, token: str, attempt: Attempt) -> str:
        return await remote.write(app, attempt)

    async def read(app: str) -> Any:
        return told[-1]

    tool = sw.write(target="app", redact=("token",), dependency=dependency, max_attempts=1)(
        shell.colours(deploy)
    )
    tool.reconcile(shell.colours(read))
    remote.next(DROP)
    outcome = shell.call(tool.outcome, "a", token="first")
    assert outcome.state == "unknown"
    told.pop()
    found = sw.recover(resend=True) if shell.plain else shell.call(sw.arecover, resend=True)
    assert "token" in found.problems[0].problem
    assert (len(attempts(sw, outcome)), len(remote.attempts)) == (1, 1)


def test_a_read_that_needs_what_was_redacted_is_not_made_from_the_record(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """Asked with nothing in its place it would not find what is there, and would say that nothing happened."""
    asked: list[str] = []

    async def deploy(app: str, token: str, attempt: Attempt) -> str:
        return await remote.write(app, attempt)

    async def read(app: str, token: str) -> Applied[str] | NotApplied:
        asked.append(token)
        return Applied("found") if token == "mine" else NotApplied()

    tool = sw.write(target="app", redact=("token",), dependency=SETTLES, max_attempts=1)(
        shell.colours(deploy)
    )
    remote.next(LOSE)
    assert shell.call(tool.outcome, "a", token="mine").state == "unknown"
    tool.reconcile(shell.colours(read))
    (found,) = (sw.recover() if shell.plain else shell.call(sw.arecover)).found
    assert (found.state, found.reason, asked) == ("unknown", "read_failed", [])


# Objects -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def create(shell: Shell, sw: SafeWrite, remote: Remote) -> Callable[..., Any]:
    """Makes a tool that creates tickets, whose read offers the objects that `found` holds."""

    def declare(found: list[Any], **options: Any) -> Any:
        async def create(title: str, attempt: Attempt) -> Applied[str]:
            await remote.write(title, attempt)
            return Applied("made", object_id=f"t-{remote.count()}")

        async def read(title: str) -> Any:
            return list(found)

        options = {"target": "title", "dependency": SETTLES, "name": "create", "max_attempts": 1, **options}
        tool = sw.write(**options)(shell.colours(create))
        tool.reconcile(shell.colours(read))
        return tool

    return declare


def test_an_object_proves_one_intent_only(shell: Shell, remote: Remote, create: Callable[..., Any]) -> None:
    """The ticket of turn 1 is no evidence for the one that turn 2 lost: proven not applied, since it is claimed."""
    tool = create([Applied("old", object_id="t-1")])
    assert shell.call(tool, "Disk full") == "made"
    remote.next(DROP)
    with safewrite.turn(2):
        outcome = shell.call(tool.outcome, "Disk full")
    assert (outcome.state, outcome.evidence) == ("not_applied", "reconciled")
    assert remote.count() == 1


@pytest.mark.parametrize(("reads", "told"), [("key", (True, False)), ("headers", (True, True))])
def test_what_a_body_has_read_of_its_attempt_is_on_record(
    reads: str, told: tuple[bool, bool], shell: Shell, sw: SafeWrite
) -> None:
    """The key alone tells the other side of no deadline; the headers tell it of both."""

    async def create(name: str, *, attempt: Attempt) -> str:
        getattr(attempt, reads)
        return name

    outcome = shell.call(sw.write(target="name")(shell.colours(create)).outcome, "a")
    (attempt,) = attempts(sw, outcome)
    assert (attempt.key_carried, attempt.deadline_carried) == told


@pytest.mark.parametrize("object_id", [5, 0, UUID(int=5)])
def test_an_object_may_be_numbered(object_id: Any, shell: Shell, sw: SafeWrite, remote: Remote) -> None:
    """From a body, a read, and a delivery: the id is kept as text, and the write is never lost over it."""
    ids: list[str] = []

    async def make(name: str, attempt: Attempt) -> Any:
        ids.append(attempt.id)
        await remote.write(name, attempt)
        return Applied(name, object_id=object_id)

    tool = sw.write(target="name", dependency=SETTLES, max_attempts=1)(shell.colours(make))
    assert shell.call(tool, "a") == "a"
    assert shell.call(tool.outcome, "a").replayed
    remote.next(DROP)
    assert shell.call(tool.outcome, "b").state == "unknown"
    alarms: list[Any] = []
    sw.on_alarm(alarms.append)
    assert sw.deliver(ids[-1], "b", object_id=object_id).state == "applied"
    assert len(alarms) == 1


def test_a_free_object_proves_the_intent_that_lost_its_answer(
    shell: Shell, remote: Remote, create: Callable[..., Any]
) -> None:
    """One open intent, one object that nobody has claimed: that is it."""
    tool = create([Applied("found", object_id="t-1")])
    remote.next(LOSE)
    outcome = shell.call(tool.outcome, "Disk full")
    assert (outcome.state, outcome.value, outcome.attributable) == ("applied", "found", True)


def test_fewer_objects_than_open_intents_prove_nothing(
    shell: Shell, remote: Remote, create: Callable[..., Any]
) -> None:
    """Two runs may have made it, and there is one: nobody can tell whose."""
    found: list[Any] = []
    tool = create(found, dependency=None)
    remote.next(LOSE, DROP)
    shell.call(tool.outcome, "Disk full")
    found.append(Applied("found", object_id="t-1"))
    with safewrite.run("r2"), safewrite.turn(1):
        outcome = shell.call(tool.outcome, "Disk full")
    assert (outcome.state, outcome.reason) == ("unknown", "too_few_candidates")


def test_a_candidate_without_an_object_id_proves_nothing(
    shell: Shell, remote: Remote, create: Callable[..., Any]
) -> None:
    """A list offers objects, so each must say which it is."""
    tool = create([Applied("found")])
    remote.next(LOSE)
    outcome = shell.call(tool.outcome, "Disk full")
    assert (outcome.state, outcome.reason) == ("unknown", "candidate_without_object_id")


def test_one_candidate_without_an_object_id_leaves_the_whole_list_without_proof(
    shell: Shell, remote: Remote, create: Callable[..., Any]
) -> None:
    """The one beside it says which it is, and yet nobody can tell which of the two is ours."""
    tool = create([Applied("one", object_id="t-9"), Applied("another")])
    remote.next(LOSE)
    outcome = shell.call(tool.outcome, "Disk full")
    assert (outcome.state, outcome.reason) == ("unknown", "candidate_without_object_id")


def test_an_empty_list_says_that_there_is_none(
    shell: Shell, remote: Remote, create: Callable[..., Any]
) -> None:
    """Settled, and nothing of ours is there: not applied."""
    tool = create([])
    remote.next(DROP)
    assert shell.call(tool.outcome, "Disk full").state == "not_applied"


def test_two_writes_answered_with_one_object_raise_an_alarm_and_both_stand(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """A collision on a direct response never fails the write."""
    alarms: list[str] = []
    sw.on_alarm(lambda alert: alarms.append(alert.kind))

    async def create(title: str, attempt: Attempt) -> Applied[str]:
        await remote.write(title, attempt)
        return Applied("made", object_id="t-1")

    tool = sw.write(target="title", dependency=SETTLES)(shell.colours(create))
    assert shell.call(tool, "a") == "made"
    assert shell.call(tool, "b") == "made"
    assert alarms == ["object_collision"]


def test_an_alarm_callback_that_fails_harms_nobody(
    shell: Shell, sw: SafeWrite, remote: Remote, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; the write stands, and the other callbacks are called."""
    alarms: list[Any] = []

    @sw.on_alarm
    def broken(alert: Any) -> None:
        raise ZeroDivisionError

    sw.on_alarm(alarms.append)

    async def charge(card: str) -> str:
        return await remote.write(card)

    tool = sw.write(target="card", dependency=KEYED)(shell.colours(charge))
    assert shell.call(tool, "c1") == "c1 done"
    assert [a.kind for a in alarms] == ["key_not_carried"]
    assert "an alarm callback failed" in caplog.text
