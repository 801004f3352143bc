"""Calls that are refused: a typed error before anything is sent, and nothing half-written."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, ValidationError, field_validator
from pydantic_core import PydanticCustomError

import safewrite
from safewrite import (
    ALL_ARGUMENTS,
    Attempt,
    ConfigurationError,
    LedgerUnavailable,
    MissingTarget,
    NoRunContext,
    SafeWrite,
    SafeWriteError,
    SchemaOutdated,
    WriteNotSent,
)
from tests.shell.conftest import KEYED, Shell, Tools
from tests.shell.remote import DROP, Remote


@pytest.fixture
def untouched(database: Path, remote: Remote) -> Iterator[None]:
    """After the test nothing was sent, and nothing stands in the ledger."""
    yield
    assert remote.attempts == []
    assert stored(database) == (0, 0, 0)


def stored(path: Path) -> tuple[int, ...]:
    """Count what stands in a ledger: intents, rows, contents."""
    with closing(sqlite3.connect(path)) as connection:
        tables = ("safewrite_intent", "safewrite_audit", "safewrite_content")
        return tuple(connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in tables)


# Who asks, and about what ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("untouched")
def test_a_call_outside_a_run_or_turn_sends_nothing(shell: Shell, tool: Tools) -> None:
    """No run, a run without a turn, a turn without a run: the error says what to open."""
    cancel = tool()
    with pytest.raises(NoRunContext, match=r"safewrite\.run"):
        shell.call(cancel, "sub_1")
    with safewrite.run("r1"), pytest.raises(NoRunContext):
        shell.call(cancel, "sub_1")
    with safewrite.turn(1), pytest.raises(NoRunContext):
        shell.call(cancel.outcome, "sub_1")
    with pytest.raises(NoRunContext):
        shell.call(cancel.options(run="r1"), "sub_1")


@pytest.mark.usefixtures("untouched")
def test_a_run_inside_a_run_needs_a_turn_of_its_own(shell: Shell, tool: Tools) -> None:
    """The outer turn says nothing about the inner run."""
    with safewrite.run("r1"), safewrite.turn(1), safewrite.run("r2"), pytest.raises(NoRunContext):
        shell.call(tool(), "sub_1")


EMPTY = [None, "", {}, [], (), set(), [None], {"u": None, "o": None}, [[], {}], {"a": {"b": None}}]


@pytest.mark.usefixtures("untouched", "run")
@pytest.mark.parametrize("empty", EMPTY, ids=repr)
def test_an_empty_target_sends_nothing(empty: object, shell: Shell, sw: SafeWrite, remote: Remote) -> None:
    """Nothing at all, or only leaves of None: never one shared record for all keyless calls."""

    async def cancel(sub_id: Any) -> str:
        return await remote.write(str(sub_id))

    for n, target in enumerate(("sub_id", ("sub_id",), lambda sub_id: sub_id, ALL_ARGUMENTS)):
        tool = sw.write(target=target, name=f"cancel-{n}")(shell.colours(cancel))
        with pytest.raises(MissingTarget) as told:
            shell.call(tool, empty)
        if not callable(target):
            assert told.value.parameters == ("sub_id",)
        assert "Do not invent one" in told.value.for_model()


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("value", [0, False, 0.0, "0", [0], {"a": None, "b": 1}, (None, "x")])
def test_values_are_not_missing(value: object, shell: Shell, sw: SafeWrite, remote: Remote) -> None:
    """Zero, False, and a target that is None in part are targets."""

    async def cancel(sub_id: Any) -> str:
        return await remote.write(str(sub_id))

    tool = sw.write(target="sub_id")(shell.colours(cancel))
    shell.call(tool, value)
    assert remote.count() == 1


@pytest.mark.usefixtures("untouched", "run")
def test_a_target_function_that_takes_what_is_not_there_sends_nothing(shell: Shell, sw: SafeWrite) -> None:
    """It names the parameter; an exception of its own comes through."""

    async def cancel(sub_id: str) -> str:
        raise AssertionError("never called")

    tool = sw.write(target=lambda customer, sub_id: customer, name="a")(shell.colours(cancel))
    with pytest.raises(ConfigurationError, match="`customer`"):
        shell.call(tool, "sub_1")
    tool = sw.write(target=lambda sub_id: {}["x"], name="b")(shell.colours(cancel))
    with pytest.raises(KeyError):
        shell.call(tool, "sub_1")


# Arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("untouched", "run")
@pytest.mark.parametrize(
    "call", [((), {}), (("a", "b", 3, 4), {}), (("a",), {"nobody": 1}), (("a",), {"sub_id": "b"})]
)
def test_arguments_that_do_not_fit_are_pythons_own_error(call: Any, shell: Shell, tool: Tools) -> None:
    """Too few, too many, unknown, twice: TypeError, as for the undecorated function."""
    args, kwargs = call
    with pytest.raises(TypeError) as told:
        shell.call(tool(), *args, **kwargs)
    assert told.value.__notes__ == ["In a call of `cancel`. Nothing was sent."]


@pytest.mark.usefixtures("untouched", "run")
def test_arguments_that_the_hints_refuse_are_pydantics_error(shell: Shell, tool: Tools) -> None:
    """Validation comes before the key and before anything is written."""
    with pytest.raises(ValidationError) as told:
        shell.call(tool(), "sub_1", amount="many")
    assert told.value.__notes__ == ["In a call of `cancel`, for `amount`. Nothing was sent."]


class Card(BaseModel, extra="forbid"):
    """A secret whose validators say what they got."""

    digits: int = 0
    kind: str = ""

    @field_validator("digits")
    @classmethod
    def long(cls, digits: int) -> int:
        """Refuse what is short, in so many words."""
        if digits < 9999:
            raise PydanticCustomError("too_short", "{digits} is too short", {"digits": digits})
        return digits

    @field_validator("kind")
    @classmethod
    def known(cls, kind: str) -> str:
        """Refuse what is not there, by whatever exception."""
        if kind == "4711 assert":
            raise AssertionError(f"what is {kind}?")
        return {"": ""}[kind]


@pytest.mark.usefixtures("untouched", "run")
@pytest.mark.parametrize("decorated", ["write", "read"])
@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        ("pin", "4711abc", "int_parsing"),
        ("card", {"digits": "4711abc"}, "int_parsing"),
        ("card", {"digits": -4711}, "too_short"),
        ("card", {"kind": "4711 assert"}, "assertion_error"),
        ("card", {"kind": "4711"}, "KeyError"),
        ("card", {"4711": 1}, "extra_forbidden"),
        ("codes", {"4711": 1}, "list_type"),
        ("token", 4711, "string_type"),
        ("others", "4711abc", "int_parsing"),
    ],
)
def test_an_error_about_a_redacted_argument_does_not_show_it(
    name: str, value: object, kind: str, decorated: str, shell: Shell, sw: SafeWrite
) -> None:
    """Declared or secret by type: it says which parameter and what kind of fault; whatever else was raised is left."""

    async def pay(
        order: str,
        pin: int = 1,
        card: Card | None = None,
        codes: dict[str, list[int]] | None = None,
        token: SecretStr | None = None,
        **others: int,
    ) -> str:
        raise AssertionError("never called")

    redact = ("pin", "card", "codes", "others")
    tool = getattr(sw, decorated)(target="order", redact=redact)(shell.colours(pay))
    with pytest.raises(ValidationError) as told:
        shell.call(tool, "o_1", **{"more" if name == "others" else name: value})
    shown = "".join(traceback.format_exception(told.value))
    assert f"for `{name}`. Nothing was sent." in shown
    assert [e["type"] for e in told.value.errors()] == [kind]
    assert "4711" not in shown + repr(told.value.errors())
    assert told.value.__context__ is None
    assert told.value.__cause__ is None


@pytest.mark.usefixtures("untouched", "run")
@pytest.mark.parametrize("redact", [(), ("extra",)])
def test_an_argument_that_was_refused_is_let_go(redact: tuple[str, ...], shell: Shell, sw: SafeWrite) -> None:
    """Once its error is forgotten nothing holds it: no cycle through a traceback."""

    class Extra:
        """Something that can be watched."""

    async def pay(order: str, extra: int = 1) -> str:
        raise AssertionError("never called")

    tool, extra = sw.write(target="order", redact=redact)(shell.colours(pay)), Extra()
    watched = weakref.ref(extra)
    gc.disable()
    try:
        try:
            shell.call(tool, "o_1", extra=extra)
        except ValidationError:
            del extra
        assert watched() is None
    finally:
        gc.enable()


@dataclass
class Opaque:
    """Something that only this process understands."""

    inside: object


@pytest.mark.usefixtures("untouched", "run")
@pytest.mark.parametrize(
    "make",
    [object, lambda: iter([1]), lambda: threading.Lock(), lambda: Opaque(object()), lambda: (n for n in "x")],
)
def test_an_argument_that_cannot_be_recorded_sends_nothing(
    make: Callable[[], object], shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """The error names the parameter, and says what else to do."""

    async def cancel(sub_id: str, extra: Any) -> str:
        return await remote.write(sub_id)

    tool = sw.write(target="sub_id")(shell.colours(cancel))
    with pytest.raises(ConfigurationError, match="`extra`") as told:
        shell.call(tool, "sub_1", make())
    assert "cannot be recorded" in str(told.value)


@pytest.mark.usefixtures("run")
def test_an_argument_that_cannot_be_recorded_may_be_redacted(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """A client object, named in `redact`, is handed to the body and never recorded."""

    async def cancel(sub_id: str, client: Any) -> str:
        assert isinstance(client, Opaque)
        return await remote.write(sub_id)

    tool = sw.write(target="sub_id", redact=("client",))(shell.colours(cancel))
    assert shell.call(tool, "sub_1", Opaque(object())) == "sub_1 done"
    assert shell.call(tool.outcome, "sub_1", Opaque(object())).replayed


@pytest.mark.usefixtures("run", "clock")
def test_a_redacted_argument_that_cannot_be_compared_costs_later_calls_the_key(
    shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """Within one call the payload is the same; of another call's client nobody can tell, so nothing is sent again."""

    async def cancel(sub_id: str, client: Any, attempt: Attempt) -> str:
        return await remote.write(sub_id, attempt)

    tool = sw.write(target="sub_id", redact=("client",), dependency=KEYED, max_attempts=2)(
        shell.colours(cancel)
    )
    remote.next(DROP, DROP)
    assert shell.call(tool.outcome, "sub_1", Opaque(object())).attempts == 2
    assert shell.call(tool.outcome, "sub_1", Opaque(object())).state == "unknown"
    assert len(remote.attempts) == 2


@pytest.mark.usefixtures("untouched", "run")
@pytest.mark.parametrize("target", [object(), Opaque(object()), [object()], {1: {object()}}])
def test_a_target_without_a_canonical_form_sends_nothing(
    target: object, shell: Shell, sw: SafeWrite, remote: Remote
) -> None:
    """What cannot be compared cannot be a key."""

    async def cancel(sub_id: Any) -> str:
        return await remote.write("x")

    tool = sw.write(target="sub_id")(shell.colours(cancel))
    with pytest.raises(ConfigurationError):
        shell.call(tool, target)


class Order(BaseModel):
    """An argument of a kind that pydantic knows."""

    number: int


@pytest.mark.usefixtures("run")
def test_arguments_are_converted_before_the_key(shell: Shell, sw: SafeWrite, remote: Remote) -> None:
    """Text "42" and 42 are one target for an int; a mapping becomes the model that the body expects."""
    seen: list[Any] = []

    async def ship(order: Order, number: int) -> str:
        seen.append((order, number))
        return await remote.write(str(number))

    tool = sw.write(target=("order", "number"))(shell.colours(ship))
    shell.call(tool, {"number": "7"}, "42")
    shell.call(tool, Order(number=7), 42)
    shell.call(tool, number=42, order=Order(number=7))
    assert seen == [(Order(number=7), 42)]


# The ledger ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def at(shell: Shell, remote: Remote, tool: Tools) -> Callable[[str], Any]:
    """Calls the tool over a ledger elsewhere, and returns the error."""

    def call(url: str) -> SafeWriteError:
        with SafeWrite(url, settings={"busy_timeout": 0.05}) as sw, pytest.raises(SafeWriteError) as told:
            with safewrite.run("r1"), safewrite.turn(1):
                shell.call(tool(sw), "sub_1")
        assert remote.attempts == []
        assert told.value.for_model()
        return told.value

    return call


def test_a_ledger_in_a_folder_that_is_not_there(at: Callable[[str], Any], tmp_path: Path) -> None:
    """The folder is named, and not made."""
    error = at(f"sqlite:///{tmp_path}/missing/agent.db")
    assert isinstance(error, ConfigurationError)
    assert f"{tmp_path}/missing" in str(error)
    assert not (tmp_path / "missing").exists()


def test_a_ledger_that_is_a_folder(at: Callable[[str], Any], tmp_path: Path) -> None:
    """It says so."""
    assert "is a folder" in str(at(f"sqlite:///{tmp_path}"))


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to this user")
def test_a_ledger_that_is_read_only(at: Callable[[str], Any], database: Path) -> None:
    """Nothing is sent where nothing can be written."""
    database.chmod(0o444)
    database.parent.chmod(0o555)
    try:
        assert "read-only" in str(at(f"sqlite:///{database}"))
    finally:
        database.parent.chmod(0o755)


def test_a_ledger_that_is_opened_read_only(at: Callable[[str], Any], database: Path) -> None:
    """The same by the URL, whoever runs this."""
    error = at(f"sqlite:///file:{database}?mode=ro&uri=true")
    assert isinstance(error, ConfigurationError | LedgerUnavailable)
    assert stored(database) == (0, 0, 0)


def test_a_file_that_is_no_database(at: Callable[[str], Any], tmp_path: Path) -> None:
    """A foreign file is refused and left as it is."""
    path = tmp_path / "notes.txt"
    path.write_text("just notes\n" * 100)
    assert isinstance(at(f"sqlite:///{path}"), ConfigurationError)
    assert path.read_text() == "just notes\n" * 100


def test_a_database_of_somebody_else_keeps_its_own_tables(
    shell: Shell, tool: Tools, remote: Remote, tmp_path: Path
) -> None:
    """The ledger may live in the application's own file: its tables and its version table stay as they are."""
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('theirs');"
        )
    with SafeWrite(f"sqlite:///{path}") as sw, safewrite.run("r1"), safewrite.turn(1):
        assert shell.call(tool(sw), "sub_1") == "sub_1 done"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [("theirs",)]


def test_a_database_with_tables_of_our_name_that_are_not_ours(
    at: Callable[[str], Any], tmp_path: Path
) -> None:
    """It is refused before the first write."""
    path = tmp_path / "foreign.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE safewrite_intent (colour TEXT)")
        connection.commit()
    assert isinstance(at(f"sqlite:///{path}"), SchemaOutdated | ConfigurationError)


def test_a_ledger_of_a_newer_version(at: Callable[[str], Any], database: Path) -> None:
    """Its revision is not known here: refused, naming the command that shows it."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("UPDATE safewrite_alembic_version SET version_num = 'sw_9999'")
        connection.commit()
    assert isinstance(at(f"sqlite:///{database}"), SchemaOutdated)
    assert stored(database) == (0, 0, 0)


def test_a_ledger_whose_audit_lost_a_column(at: Callable[[str], Any], database: Path) -> None:
    """A damaged schema is found before the dependency is called."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(
            "DROP VIEW safewrite_attempt;"
            "ALTER TABLE safewrite_audit RENAME TO was;"
            "CREATE TABLE safewrite_audit AS SELECT id, intent_id FROM was;"
        )
    assert isinstance(at(f"sqlite:///{database}"), SchemaOutdated | LedgerUnavailable | ConfigurationError)


def test_a_url_that_cannot_be_read(at: Callable[[str], Any]) -> None:
    """What only its driver can tell is told by the first call; its password is not repeated."""
    error = at("postgresql+psycopg://root:hunter2@db:no-port/agent")
    assert isinstance(error, ConfigurationError)
    assert "hunter2" not in str(error)


@pytest.mark.usefixtures("run")
def test_a_ledger_that_somebody_holds_is_waited_for_and_then_refused(
    shell: Shell, tool: Tools, remote: Remote, database: Path
) -> None:
    """Another program holds the write lock: a bounded wait, nothing sent, and the next call is carried out."""
    with SafeWrite(f"sqlite:///{database}", settings={"busy_timeout": 0.1}) as sw:
        cancel = tool(sw)
        with closing(sqlite3.connect(database, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(LedgerUnavailable) as told:
                shell.call(cancel, "sub_1")
            outcome = shell.call(cancel.outcome, "sub_1")
            other.execute("ROLLBACK")
        assert isinstance(told.value, WriteNotSent)
        assert isinstance(told.value.__cause__, LedgerUnavailable)
        assert told.value.__cause__.reason == "ledger_busy"
        assert (outcome.state, outcome.sent, outcome.again) == ("not_applied", False, True)
        assert remote.attempts == []
        assert shell.call(cancel, "sub_1") == "sub_1 done"


@pytest.mark.usefixtures("run")
def test_a_tool_that_writes_to_the_same_file_neither_blocks_nor_is_blocked(
    shell: Shell, sw: SafeWrite, database: Path
) -> None:
    """The ledger has connections and transactions of its own: the body's rollback leaves the audit in place."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE mine (x)")

    async def insert(x: str, attempt: Attempt) -> str:
        with closing(sqlite3.connect(database, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO mine VALUES (?)", (x,))
            connection.execute("ROLLBACK")
        raise safewrite.NotSent("rolled back", again=False)

    tool = sw.write(target="x", max_attempts=1)(shell.colours(insert))
    outcome = shell.call(tool.outcome, "a")
    assert outcome.state == "not_applied"
    assert stored(database)[0] == 1
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT count(*) FROM mine").fetchone() == (0,)


@pytest.mark.usefixtures("run")
def test_a_call_made_while_the_body_holds_the_same_file_is_refused_in_time(
    shell: Shell, sw: SafeWrite, tool: Tools, remote: Remote, database: Path
) -> None:
    """A tool that calls another one inside its own transaction on that file: a clear error, no deadlock."""
    with SafeWrite(f"sqlite:///{database}", settings={"busy_timeout": 0.1}) as inner_sw:
        inner = tool(inner_sw, name="inner")

        async def outer(x: str) -> str:
            with closing(sqlite3.connect(database, isolation_level=None)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    result = inner("sub_1")
                    return await result if not shell.plain else result
                finally:
                    connection.execute("ROLLBACK")

        outcome = shell.call(inner_sw.write(target="x", name="outer")(shell.colours(outer)).outcome, "a")
    assert isinstance(outcome.error.__cause__, LedgerUnavailable)
    assert remote.attempts == []


def test_a_ledger_that_is_closed_opens_again(shell: Shell, tool: Tools, sw: SafeWrite, run: None) -> None:
    """`close` lets go of connections and idle threads; the next call takes up new ones."""
    cancel = tool(sw, timeout=5.0)
    shell.call(cancel, "sub_1")
    sw.close()
    assert shell.call(cancel.outcome, "sub_1").replayed
    assert shell.call(cancel, "sub_2") == "sub_2 done"


def test_a_context_manager_closes(
    shell: Shell, tool: Tools, remote: Remote, database: Path, tmp_path: Path
) -> None:
    """`with` and `async with` let go of the file: it can be moved and is whole."""
    with SafeWrite(f"sqlite:///{database}") as sw, safewrite.run("r1"), safewrite.turn(1):
        shell.call(tool(sw), "sub_1")
    moved = tmp_path / "moved.db"
    shutil.move(database, moved)
    assert stored(moved)[0] == 1

    async def use() -> str:
        async with SafeWrite(f"sqlite:///{moved}") as asw:
            return asw.tools.__class__.__name__

    elsewhere = Shell("coroutine")
    assert elsewhere.call(use) == "dict"
    elsewhere.close()
