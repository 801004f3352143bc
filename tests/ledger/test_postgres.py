"""A ledger in PostgreSQL: what it is refused for, what is lost on the wire, who waits for whom."""

from __future__ import annotations

import contextlib
import hashlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.engine import make_url

import safewrite
from safewrite import Applied, SafeWrite, StillRunning
from safewrite.core.commands import Answer, Run, Watch
from safewrite.core.events import Ended, Event, Missed, OutcomeState, ReadEnded, Verdict
from safewrite.errors import ConfigurationError, LedgerUnavailable, OutcomeUnknown, SchemaOutdated
from safewrite.ledger import migrate, pool
from safewrite.ledger.lines import Leg
from safewrite.ledger.model import Candidates
from safewrite.ledger.postgres import PostgreSQL
from safewrite.ledger.sql import Ledger
from safewrite.ledger.statements import PREPARED
from safewrite.ledger.units import Hold
from tests.ledger.driver import APPLIED, UNKNOWN, Caller, moment
from tests.ledger.faults import in_child
from tests.ledger.proxy import PASSWORD_PLEASE, Wire, fatal, scripted, wire
from tests.postgres import administering, database, postgres_url, server

__all__ = ["postgres_url"]

Opens = Callable[..., Ledger]


@pytest.fixture
def opened() -> Iterator[Opens]:
    """Opens ledgers by their URL, and closes them."""
    made: list[Ledger] = []

    def opening(url: str, **options: Any) -> Ledger:
        made.append(Ledger(url, **options))
        return made[-1]

    yield opening
    for ledger in made:
        ledger.close()


@pytest.fixture
def ledger(postgres_ledger_url: str, opened: Opens) -> Ledger:
    """An empty ledger in PostgreSQL."""
    return opened(postgres_ledger_url)


@pytest.fixture
def caller(ledger: Ledger) -> Caller:
    """A first call on it."""
    return Caller(ledger)


@pytest.fixture
def line(postgres_ledger_url: str) -> Iterator[Wire]:
    """A wire to that ledger."""
    with wire(postgres_ledger_url) as made:
        yield made


def changed(url: str, **parts: Any) -> str:
    """Return a URL with other parts."""
    return make_url(url).set(**parts).render_as_string(hide_password=False)


# What cannot be used -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"database": "nothing_here"}, 'database "nothing_here" does not exist'),
        ({"username": "nobody_here"}, 'role "nobody_here" does not exist'),
    ],
)
def test_a_url_that_leads_nowhere(
    postgres_url: str, opened: Opens, parts: dict[str, Any], match: str
) -> None:
    """What the server, or the way to it, says no to is a matter of configuration, told at the first use."""
    ledger = opened(changed(postgres_url, **parts))
    for use in (lambda: Caller(ledger).ask(), ledger.check, ledger.upgrade):
        with pytest.raises(ConfigurationError, match=match) as caught:
            use()
        assert "Nothing was sent" in str(caught.value)
        assert "Look at host, database, user and password" in str(caught.value) or "cannot be used" in str(
            caught.value
        )


@pytest.mark.parametrize(
    "query",
    [
        "nonsense=1",
        "autocommit=1",
        "prepare_threshold=5",
        "row_factory=x",
        "port=abc",
        "host=h1:1&host=h2:2&port=3",
        "host=h1&host=h2&port=1&port=2&port=3",
    ],
)
def test_an_option_that_leads_nowhere_is_refused_when_it_is_given(query: str) -> None:
    """Also one that is the driver's own affair: it would end what the ledger sets, or be no option of a server's."""
    with pytest.raises(ConfigurationError, match="cannot be used") as caught:
        Ledger(f"postgresql://ana:secret@/db?password=secret&sslpassword=secret&{query}")
    assert "secret" not in str(caught.value) + repr(caught.value.__context__)


def test_a_password_that_is_wrong_is_told_without_it(opened: Opens) -> None:
    """The one clear error, and no password in it."""
    refusal = fatal("28P01", 'password authentication failed for user "ana"')
    with scripted(PASSWORD_PLEASE, refusal) as url:
        with pytest.raises(
            ConfigurationError, match='password authentication failed for user "ana"'
        ) as caught:
            Caller(opened(url)).ask()
    assert "secret" not in repr(caught.value) + repr(caught.value.__cause__)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("57P03", "the database system is starting up"),
        ("57P03", "the database system is not accepting connections: recovery"),
        ("53300", "sorry, too many clients already"),
    ],
)
def test_a_server_that_will_do_later_is_unavailable(opened: Opens, code: str, message: str) -> None:
    """Nothing is wrong with the URL: the call is refused, and the next one may go through."""
    with scripted(fatal(code, message)) as url:
        with pytest.raises(LedgerUnavailable) as caught:
            Caller(opened(url)).ask()
    assert caught.value.reason == "ledger_unreachable"
    assert message in str(caught.value.__cause__)


def test_a_server_that_is_not_there_is_unavailable(opened: Opens, line: Wire) -> None:
    """Nobody listens on that port (yet)."""
    line.close()
    with pytest.raises(LedgerUnavailable) as caught:
        Caller(opened(line.url)).ask()
    assert caught.value.reason == "ledger_unreachable"


DOWN = "postgresql+psycopg://ana:secret@127.0.0.1:1/agents"
NAMELESS = "postgresql+psycopg://ana:secret@no.such.host.invalid/agents"


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        (DOWN, "127.0.0.1.*port 1 failed.*refused"),
        (NAMELESS, "failed to resolve host 'no.such.host.invalid'.*"),
    ],
)
def test_a_server_that_cannot_be_reached_is_named_with_the_cause(opened: Opens, url: str, cause: str) -> None:
    """A name that does not resolve passes like a port that refuses: in one line, without the password."""
    ledger = opened(url)
    told: list[BaseException] = []
    uses = (lambda: Caller(ledger).ask(), ledger.check, ledger.upgrade, lambda: ledger.load("x"))
    for use in uses:
        with pytest.raises(LedgerUnavailable) as caught:
            use()
        assert caught.value.reason == "ledger_unreachable"
        told.append(caught.value)
    with SafeWrite(url) as sw, safewrite.run("run-1"), safewrite.turn(1):

        @sw.write(target=safewrite.ALL_ARGUMENTS)
        def cancel(sub: str) -> None: ...

        with pytest.raises(OutcomeUnknown) as unknown:
            cancel("sub_1")
        assert unknown.value.reason == "ledger_unavailable"
        told.append(unknown.value)
    for error in told:
        assert re.search(cause, str(error))
        assert url.replace("secret", "***") in str(error)
        assert "secret" not in str(error)
        assert "\n" not in str(error)


def test_a_server_that_says_nothing_is_unavailable_within_the_limit(opened: Opens, line: Wire) -> None:
    """It takes connections and queries, and answers none: the call returns within the ledger's own limits."""
    line.decide = lambda number, query: "stall"
    ledger = opened(line.url, busy_timeout=0.1, statement_timeout=0.1)
    began = time.monotonic()
    with pytest.raises(LedgerUnavailable) as caught:
        Caller(ledger).ask()
    assert caught.value.reason == "ledger_unreachable"
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("name", ["postgresql+psycopg2://u@h/d", "postgresql+asyncpg://u@h/d"])
def test_another_driver_is_refused(name: str) -> None:
    """Only psycopg is known, whatever else is installed."""
    with pytest.raises(ConfigurationError, match="names a driver that cannot be used"):
        Ledger(name)


@pytest.mark.parametrize("schema", ["", "  "])
def test_a_schema_without_a_name_is_refused(schema: str) -> None:
    """It would be another ledger than the one that was meant."""
    with pytest.raises(ConfigurationError, match="schema"):
        Ledger("postgresql://u@h/d", schema=schema)


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional, and named where it is missing."""
    monkeypatch.delitem(sys.modules, "safewrite.ledger.lines")
    monkeypatch.delattr(sys.modules["safewrite.ledger"], "lines")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'safewrite\[postgres\]'"):
        Ledger("postgresql+psycopg://u@h/d")


def test_a_database_that_is_not_utf8_is_refused(opened: Opens) -> None:
    """It could not hold the names that people give."""
    with server() as url, administering(url) as run:
        run("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
        try:
            with pytest.raises(ConfigurationError, match="encoding is LATIN1"):
                Caller(opened(changed(url, database="latin"))).ask()
        finally:
            run("DROP DATABASE latin WITH (FORCE)")


def test_an_old_server_is_refused(opened: Opens, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it lacks would show in the middle of things."""
    monkeypatch.setattr("safewrite.ledger.postgres.OLDEST", 990_000)
    with pytest.raises(ConfigurationError, match="must be 14 or newer"):
        opened(postgres_url).check()


@contextmanager
def role(url: str, *rights: str) -> Iterator[str]:
    """Give the URL of a role with these rights alone."""
    with administering(url) as run:
        run("DROP ROLE IF EXISTS app")
        run("CREATE ROLE app LOGIN PASSWORD 'app'")
        for right in rights:
            run(f"GRANT {right} TO app")
        try:
            yield changed(url, username="app", password="app")
        finally:
            run("DROP OWNED BY app")
            run("DROP ROLE app")


def test_a_role_without_rights_is_told_which(postgres_ledger_url: str, opened: Opens) -> None:
    """Before the first write, with the role, the rights that are missing, and where they are described."""
    with role(postgres_ledger_url) as url:
        with pytest.raises(
            ConfigurationError, match=r"permission denied .* use-postgresql|use-postgresql.md"
        ):
            Caller(opened(url)).ask()
    with role(postgres_ledger_url, "SELECT ON ALL TABLES IN SCHEMA public") as url:
        ledger = opened(url)
        assert ledger.open_intents() == []
        with pytest.raises(
            ConfigurationError, match=r"Nothing was sent\. The role `app` lacks .*INSERT on `safewrite_audit`"
        ):
            Caller(ledger).ask()


HOWTO = Path(__file__).parents[2] / "docs" / "howto" / "use-postgresql.md"


def test_the_documented_rights_are_enough_and_no_more(postgres_ledger_url: str, opened: Opens) -> None:
    """A worker with the rights of the how-to page does everything, and can alter no audit row."""
    (grants,) = re.findall(r"```sql\n(.*?)```", HOWTO.read_text(), re.DOTALL)
    with administering(postgres_ledger_url) as run:
        run(grants)
        try:
            url = changed(postgres_ledger_url, username="agents_app", password="change-me")
            ledger = opened(url)
            caller = Caller(ledger)
            done = caller.write()
            intent, _ = caller(turn="2", target='"2"').ask()
            caller(turn="2", target='"2"').tell(
                intent, Ended(1, APPLIED, object_id="sub_1", key_carried=False)
            )
            assert ledger.verify(done.id) == ledger.verify(intent.id) == ()
            assert ledger.take(done.id, "me", 1.0)
            ledger.give(done.id, "me")
            assert ledger.check().problems == ()
            with pytest.raises(ConfigurationError, match=r"must be owner|permission denied"):
                ledger.upgrade()
            with administering(url) as worker:
                assert worker("SELECT count(*) FROM safewrite_attempt") == [(2,)]
                for statement in (
                    *GUARDED[:5],
                    "DROP TABLE safewrite_audit",
                    "DELETE FROM safewrite_content",
                ):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        worker(statement)
        finally:
            run("DROP OWNED BY agents_app")
            run("DROP ROLE agents_app")


def test_a_replica_is_refused_before_the_first_write(postgres_ledger_url: str, opened: Opens) -> None:
    """What may only be read is read; a write is told that it needs another server."""
    name = make_url(postgres_ledger_url).database
    Caller(opened(postgres_ledger_url)).write()
    with administering(postgres_ledger_url) as run:
        run(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        try:
            ledger = opened(postgres_ledger_url)
            assert len(ledger.rows(ledger.select(_ids())[0]["id"])) == 2
            with pytest.raises(ConfigurationError, match="is read-only: a replica"):
                Caller(ledger, target='"new"').ask()
        finally:
            run("SET default_transaction_read_only = off")
            run(f"ALTER DATABASE {name} RESET default_transaction_read_only")


def _ids() -> Any:
    from sqlalchemy import select

    from safewrite.ledger.tables import intent

    return select(intent.c.id)


def test_a_server_that_became_a_replica_is_left(caller: Caller) -> None:
    """After a failover the old server takes no writes: the call is refused, and the next one asks for a new line."""
    done = caller.write()
    store = caller.ledger._store
    (before,) = store._own().idle  # type: ignore[union-attr]
    before.execute("SET default_transaction_read_only = on")
    with pytest.raises(LedgerUnavailable) as caught:
        caller(turn="2", target='"other"').ask()
    assert caught.value.reason == "ledger_read_only"
    assert before.closed
    caller(turn="2", target='"other"').write()
    assert caller.ledger.verify(done.id) == ()


# The tables --------------------------------------------------------------------------------------------------------


def test_nothing_is_made_unasked(opened: Opens) -> None:
    """An empty database is outdated before the first write, told what to do, and left empty."""
    with database() as url, administering(url) as run:
        ledger = opened(url)
        with pytest.raises(SchemaOutdated, match=r"no tables of safewrite yet.*Run `safewrite db upgrade`"):
            Caller(ledger).ask()
        assert ledger.check().problems == (
            "It has no tables of safewrite yet: run `safewrite db upgrade`, or call `sw.upgrade()`.",
        )
        assert run("SELECT count(*) FROM pg_class WHERE relname LIKE 'safewrite%'") == [(0,)]
        ledger.upgrade()
        assert ledger.check().current
        Caller(ledger).write()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ("UPDATE safewrite_alembic_version SET version_num = 'sw_0000'", SchemaOutdated, "tables of revision sw_0000"),
        ("UPDATE safewrite_alembic_version SET version_num = 'sw_9999'", SchemaOutdated, "A newer version made them"),
        ("ALTER TABLE safewrite_object RENAME COLUMN source TO origin", SchemaOutdated, "were altered"),
        ("DROP TABLE safewrite_alembic_version", ConfigurationError, "not a ledger of safewrite"),
    ],
)  # fmt: skip
def test_other_tables_are_refused(opened: Opens, change: str, error: type[Exception], match: str) -> None:
    """Older ones, newer ones, altered ones, somebody else's: nothing is sent, and nothing changed."""
    with database() as url, administering(url) as run:
        opened(url).upgrade()
        run(change)
        ledger = opened(url)
        with pytest.raises(error, match=match):
            Caller(ledger).ask()
        if error is SchemaOutdated:
            assert ledger.check().problems
        else:
            with pytest.raises(error, match=match):
                ledger.check()


def test_alembic_finds_no_difference_and_leaves_others_alone(opened: Opens) -> None:
    """What the migrations make is what the tables say; the application's own version table stays as it was."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext
    from sqlalchemy import create_engine

    from safewrite.ledger.tables import metadata

    with database() as url, administering(url) as run:
        run("CREATE TABLE alembic_version (version_num text)")
        run("INSERT INTO alembic_version VALUES ('theirs')")
        opened(url).upgrade()
        engine = create_engine(url)
        with engine.connect() as connection:
            options = {"include_name": lambda name, kind, _: kind != "table" or name in metadata.tables}
            context = MigrationContext.configure(connection, opts=options)
            assert compare_metadata(context, metadata) == []
        engine.dispose()
        assert run("SELECT * FROM alembic_version") == [("theirs",)]
        identity = "SELECT identity_generation FROM information_schema.columns WHERE column_name = 'id' AND "
        assert run(identity + "table_name = 'safewrite_audit'") == [("ALWAYS",)]


@pytest.mark.parametrize(
    ("schema", "setting"),
    [
        (None, ""),
        ("agents", ""),
        (None, "default_transaction_isolation = 'repeatable read'"),
        ("agents", "default_transaction_isolation = 'serializable'"),
        (None, "lock_timeout = '1ms'"),
    ],
)
def test_upgrades_of_six_at_once_take_turns(opened: Opens, schema: str | None, setting: str) -> None:
    """One makes the schema and the tables, the others find them, whatever is set for transactions there."""
    with database() as url, administering(url) as run:
        if setting:
            run(f"ALTER DATABASE {make_url(url).database} SET {setting}")
        ledgers = [opened(url, schema=schema) for _ in range(6)]
        gate = threading.Barrier(6)

        def upgrade(ledger: Ledger) -> None:
            gate.wait(30)
            ledger.upgrade()

        with ThreadPoolExecutor(6) as threads:
            list(threads.map(upgrade, ledgers))
        assert ledgers[0].check().problems == ()
        Caller(ledgers[1]).write()


def test_tables_that_are_made_between_two_looks_are_used(
    opened: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts beside an upgrade finds none of them, then all: they are not taken to be altered."""
    with database() as url:
        older = migrate._older

        def meanwhile(*about: Any) -> bool:
            monkeypatch.setattr(migrate, "_older", older)
            opened(url).upgrade()
            return older(*about)

        monkeypatch.setattr(migrate, "_older", meanwhile)
        assert opened(url).find("sw1_none") is None


def test_an_upgrade_that_waits_too_long_is_refused(opened: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one has been at it for longer than is waited."""
    monkeypatch.setattr(migrate.upgrade, "__defaults__", (0.1,))
    with database() as url, administering(url) as run:
        run("SELECT pg_advisory_lock(%s)", Hold(migrate.VERSION_TABLE).number)
        with pytest.raises(LedgerUnavailable) as caught:
            opened(url).upgrade()
        assert caught.value.reason == "ledger_busy"


def test_schemas_are_ledgers_of_their_own(opened: Opens) -> None:
    """Two schemas of one database hold two ledgers; the schema is made by the upgrade, whatever its name."""
    with database() as url:
        one, two = opened(url, schema='Agents "1"'), opened(url, schema="agents_2")
        for ledger in (one, two):
            with pytest.raises(
                SchemaOutdated, match=r"Call `sw.upgrade\(\)` of a .* with `schema='"
            ) as caught:
                Caller(ledger).ask()
            assert "Run `safewrite db upgrade`" not in str(caught.value)  # it would make them elsewhere
            (problem,) = ledger.check().problems
            assert "call `sw.upgrade()`" in problem
            ledger.upgrade()
            ledger.upgrade()
            assert ledger.check().problems == ()
        done = Caller(one).write()
        assert one.verify(done.id) == ()
        assert one.open_intents() == two.open_intents() == []
        assert two.find(done.id) is None
        assert [row["id"] for row in one.select(_ids())] == [done.id]
        assert isinstance(Caller(two).ask()[1], Run)
        with pytest.raises(SchemaOutdated):  # nothing is in the schema that the role finds by itself
            Caller(opened(url)).ask()


GUARDED = [
    "UPDATE safewrite_audit SET body = ''",
    "DELETE FROM safewrite_audit",
    "TRUNCATE safewrite_audit",
    "TRUNCATE safewrite_intent CASCADE",
    "DELETE FROM safewrite_intent",
    "INSERT INTO safewrite_audit SELECT * FROM safewrite_audit",
]


@pytest.mark.parametrize("statement", GUARDED)
@pytest.mark.parametrize("replica", [False, True])
def test_rows_are_only_added_even_by_their_owner(
    caller: Caller, postgres_ledger_url: str, statement: str, replica: bool
) -> None:
    """Triggers hold the owner off, in sessions that claim to replicate as well; the numbers are the database's own."""
    done = caller.write()
    with administering(postgres_ledger_url) as run:
        if replica:
            run("SET session_replication_role = replica")
        with pytest.raises(psycopg.Error, match=r"is refused on|GENERATED ALWAYS|non-DEFAULT value"):
            run(statement)
    assert caller.ledger.verify(done.id) == ()


def test_triggers_that_are_gone_or_sleep_are_told_and_made_again(opened: Opens) -> None:
    """`db check` names them; the upgrade makes them anew, and leaves the rights on the view."""
    with database() as url, administering(url) as run, role(url) as _:
        ledger = opened(url)
        ledger.upgrade()
        run("GRANT SELECT ON safewrite_attempt TO app")
        run("DROP TRIGGER safewrite_audit_no_truncate ON safewrite_audit")
        run("ALTER TABLE safewrite_intent ENABLE TRIGGER safewrite_intent_no_delete")
        told = "".join(ledger.check().problems)
        assert "`safewrite_audit_no_truncate` is gone" in told
        assert "`safewrite_intent_no_delete` is gone" in told
        ledger.upgrade()
        assert ledger.check().problems == ()
        assert run("SELECT has_table_privilege('app', 'safewrite_attempt', 'SELECT')") == [(True,)]


def test_attempts_are_rows_for_people_who_know_sql(caller: Caller, postgres_ledger_url: str) -> None:
    """The view has a row for every attempt, with instants as instants."""
    intent, _ = caller.ask()
    caller.end(intent, UNKNOWN)
    with administering(postgres_ledger_url) as run:
        found = run(
            "SELECT attempt, outcome, reason, intent_outcome, claimed_at::text FROM safewrite_attempt"
        )
    assert found == [(1, "unknown", "read_timeout", "unknown", "2025-06-15 15:06:40+00")]


# On the wire -------------------------------------------------------------------------------------------------------


def whole(caller: Caller) -> list[Any]:
    """Carry out a write, an outcome of each step: what was lost is done again, as a caller would."""
    told: list[Any] = []
    intent = None
    for _ in range(3):
        try:
            intent, command = caller.ask()
        except LedgerUnavailable as error:
            told.append(error.reason)
        else:
            told.append(type(command).__name__)
            break
    assert intent is not None
    for _ in range(3):
        try:
            caller.end(intent)
        except LedgerUnavailable as error:
            told.append(error.reason)
        else:
            told.append("recorded")
            break
    return told


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("place", range(5))
def test_a_wire_cut_at_any_message(opened: Opens, line: Wire, place: int, side: str) -> None:
    """On either side of it, in a first write: one claim, one end, and nobody is told what is not so."""
    first = opened(line.url)
    Caller(first, run="before").write()
    line.cut()
    line.queries = 0
    line.decide = lambda number, query: side if number == place else ""
    caller = Caller(first)
    told = whole(caller)
    line.decide = lambda number, query: ""
    assert told[-2:] == ["Run", "recorded"]
    found = first.find(caller.identity.key)
    assert found is not None
    facts = [row["event"] for row in first.rows(found.id)]
    assert facts == ["claimed", "ended"]
    assert first.verify(found.id) == ()


def test_a_commit_whose_answer_was_lost_counts(opened: Opens, line: Wire) -> None:
    """It is found by its row, on another line, and the caller goes on as if nothing had been."""
    caller = Caller(opened(line.url))
    intent, _ = caller.ask()
    commits = iter(["after"])
    line.decide = lambda number, query: next(commits, "") if b"COMMIT" in query else ""
    after, command = caller.end(intent)
    assert isinstance(command, Answer)
    assert after.state.outcome is OutcomeState.APPLIED
    assert len(caller.ledger.rows(intent.id)) == 2


def test_what_was_not_committed_when_its_line_was_lost_is_written_on_another(
    opened: Opens, line: Wire
) -> None:
    """One cut wire is no reason to refuse a call: its claim is not there, so it is made, once."""
    caller = Caller(opened(line.url))
    commits = iter(["before"])
    line.decide = lambda number, query: next(commits, "") if b"COMMIT" in query else ""
    intent, command = caller.ask()
    assert isinstance(command, Run)
    assert len(caller.ledger.rows(intent.id)) == 1


def test_a_unit_whose_line_an_administrator_ends_is_run_on_another(caller: Caller) -> None:
    """The server says so in an error of its own, and hangs up then: a restart or a failover in the middle."""
    tries: list[int] = []

    def work(unit: Leg) -> Any:
        tries.append(1)
        if len(tries) == 1:
            unit.line.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return unit.rows(unit.sql.version, {}), None

    assert caller.ledger._store.write(work) == [(migrate.HEAD,)]
    assert len(tries) == 2


def test_a_commit_that_nobody_can_look_up_is_a_refusal(opened: Opens, line: Wire) -> None:
    """The server is gone with it: nobody is told that it stands, and where it does not it is recorded later."""
    caller = Caller(opened(line.url))
    intent, _ = caller.ask()

    def decide(number: int, query: bytes) -> str:
        line.up = b"COMMIT" not in query
        return "" if line.up else "before"

    line.decide = decide
    with pytest.raises(LedgerUnavailable) as caught:
        caller.end(intent)
    assert caught.value.reason == "ledger_unreachable"
    line.up, line.decide = True, lambda number, query: ""
    assert len(caller.ledger.rows(intent.id)) == 1
    assert caller.end(intent)[0].state.outcome is OutcomeState.APPLIED


def test_a_note_whose_commit_got_no_answer_is_not_made_again(opened: Opens, line: Wire) -> None:
    """It is the first row under a key of its own, which a second try would find taken."""
    caller = Caller(opened(line.url, busy_timeout=0.2))
    caller.write()
    commits = iter(["after"])
    line.decide = lambda number, query: next(commits, "") if b"COMMIT" in query else ""
    identity = replace(caller.identity, key="read_1")
    noted = caller.ledger.noting(identity, Event(moment(1.0), Missed("timeout", 1)), caller.meta, {}).now()
    assert len(caller.ledger.rows(noted.intent.id)) == 1


def test_a_server_that_is_gone_in_the_middle_is_unavailable_and_found_again(
    opened: Opens, line: Wire
) -> None:
    """Nothing is half-written; the next call connects anew, and so does every line that was held."""
    caller = Caller(opened(line.url))
    intent, _ = caller.ask()
    line.up = False
    line.cut()
    for use in (lambda: caller.end(intent), lambda: caller(turn="2").ask(), lambda: caller.ledger.find("x")):
        with pytest.raises(LedgerUnavailable) as caught:
            use()
        assert caught.value.reason == "ledger_unreachable"
    line.up = True
    assert caller.end(intent)[0].state.outcome is OutcomeState.APPLIED


def test_lines_that_the_server_closed_are_not_used(caller: Caller, postgres_ledger_url: str) -> None:
    """A restart ends every connection: the next calls do not notice."""
    done = caller.write()
    (before,) = caller.ledger._store._own().idle  # type: ignore[union-attr]
    with administering(postgres_ledger_url) as run:
        run("SELECT pg_terminate_backend(%s)", before.info.backend_pid)
    deadline = time.monotonic() + 10
    while before.alive and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    caller(turn="2", target='"2"').write()
    assert caller.ledger.find(done.id) is not None
    assert before.closed


# Who waits for whom ------------------------------------------------------------------------------------------------


def test_a_wish_is_looked_at_by_one_at_a_time(opened: Opens, postgres_ledger_url: str) -> None:
    """Claims and answers of one wish wait for each other, up to the limit; those of others do not."""
    ledger = opened(postgres_ledger_url, busy_timeout=0.2)
    caller = Caller(ledger)
    intent, _ = caller.ask()
    with administering(postgres_ledger_url) as run:
        run("SELECT pg_advisory_lock(%s)", Hold(caller.identity.wish).number)
        for use in (lambda: caller(turn="2").ask(), lambda: caller.end(intent)):
            with pytest.raises(LedgerUnavailable) as caught:
                use()
            assert caught.value.reason == "ledger_busy"
        Caller(ledger, target='"other"').write()
    assert caller.end(intent)[0].state.outcome is OutcomeState.APPLIED


def test_what_was_answered_is_ordered_as_it_was_seen(opened: Opens, postgres_ledger_url: str) -> None:
    """Of two turns with one wish, at once: whoever came second saw the first, open or answered, never neither."""
    ledgers = [opened(postgres_ledger_url) for _ in range(2)]
    for n in range(20):
        callers = [Caller(ledger, run=f"run-{n}", turn=str(turn)) for turn, ledger in enumerate(ledgers)]
        gate = threading.Barrier(2)

        def write(caller: Caller, gate: threading.Barrier = gate) -> str:
            gate.wait(10)
            intent, command = caller.ask()
            if not isinstance(command, Run):
                return "held"
            caller.end(intent)
            return "sent"

        with ThreadPoolExecutor(2) as threads:
            told = list(threads.map(write, callers))
        rows = ledgers[0].select(_numbers(f"run-{n}"))
        first, second = sorted(rows, key=lambda row: row["first_row"])
        assert first["answered_row"] is not None
        # The second sent only where the first had been answered before it began.
        assert told.count("sent") == 1 + (first["answered_row"] < second["first_row"])


def _numbers(run: str) -> Any:
    from sqlalchemy import select

    from safewrite.ledger.tables import intent

    return select(intent.c.first_row, intent.c.answered_row, intent.c.outcome).where(intent.c.run == run)


def test_the_loser_of_a_race_reads_the_winner(
    opened: Opens, postgres_ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should two claim one intent at once all the same, the index lets one through, and the other finds it."""
    opening = PostgreSQL.opening
    monkeypatch.setattr(PostgreSQL, "opening", lambda self, locks: opening(self, ()))  # nobody waits
    loser, winner = Caller(opened(postgres_ledger_url)), Caller(opened(postgres_ledger_url))
    licence = loser.ticket
    beaten: list[Any] = []

    def claim(number: int, call: Any, at: Any) -> Any:
        if not beaten:
            beaten.append(winner.ask()[1])
        return licence.claim(number, call, at)

    _, command = loser.ledger.ask(replace(licence, claim=claim), loser.call, moment(), loser.meta)
    assert isinstance(beaten[0], Run)
    assert isinstance(command, Watch)


@pytest.mark.parametrize("error", [psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected])
def test_a_unit_that_had_to_give_way_is_run_again(caller: Caller, error: type[psycopg.Error]) -> None:
    """As a whole, until the limit."""
    licence, failures = caller.ticket, [error("first"), error("second")]

    def claim(number: int, call: Any, at: Any) -> Any:
        if failures:
            raise failures.pop()
        return licence.claim(number, call, at)

    _, command = caller.ledger.ask(replace(licence, claim=claim), caller.call, moment(), caller.meta)
    assert isinstance(command, Run)


def test_giving_way_has_an_end(opened: Opens, postgres_ledger_url: str) -> None:
    """The limit of waiting bounds it."""
    caller = Caller(opened(postgres_ledger_url, busy_timeout=0.05))

    def claim(number: int, call: Any, at: Any) -> Any:
        raise psycopg.errors.DeadlockDetected("again")

    with pytest.raises(LedgerUnavailable) as caught:
        caller.ledger.ask(replace(caller.ticket, claim=claim), caller.call, moment(), caller.meta)
    assert caught.value.reason == "ledger_busy"


def test_a_handle_that_is_behind_is_written_after_all(caller: Caller) -> None:
    """A record that was taken to succeed and missed is made again from what the intent has become."""
    intent, _ = caller.ask()
    caller.tell(intent, Ended(1, UNKNOWN), at=1.0)
    read = ReadEnded(Verdict.APPLIED, moment(2.0), 2, 1)
    after, _ = caller.tell(intent, read, at=3.0)
    assert [row["event"] for row in caller.ledger.rows(intent.id)] == ["claimed", "ended", "read_ended"]
    assert after.state.outcome is OutcomeState.APPLIED
    assert caller.ledger.verify(intent.id) == ()


def test_two_reads_of_one_list_never_prove_the_same_object(opened: Opens, postgres_ledger_url: str) -> None:
    """Two intents of two runs look at the same objects at once: each is judged beside what the other claimed."""
    ledgers = [opened(postgres_ledger_url) for _ in range(2)]
    for n in range(10):
        callers = [Caller(ledger, run=f"run-{n}-{i}", target=f'"{n}"') for i, ledger in enumerate(ledgers)]
        intents = [caller.end(caller.ask()[0], UNKNOWN)[0] for caller in callers]
        gate = threading.Barrier(2)
        objects = (f"{n}-a", f"{n}-b")

        def look(
            which: int,
            callers: Any = callers,
            intents: Any = intents,
            objects: Any = objects,
            gate: threading.Barrier = gate,
        ) -> Any:
            found = Candidates(objects, lambda place: {"value": objects[place]}, listed=True)
            gate.wait(10)
            return callers[which].tell(
                intents[which], ReadEnded(Verdict.APPLIED, moment(2.0), 2, 1), at=3.0, candidates=found
            )

        with ThreadPoolExecutor(2) as threads:
            after = [found for found, _ in threads.map(look, range(2))]
        assert {ledgers[0].value(intent) for intent in after} == set(objects)
        assert all(intent.state.alarms == () for intent in after)


@pytest.mark.parametrize("listed", [False, True])
def test_an_object_s_id_may_be_longer_than_an_index_holds(postgres_ledger_url: str, listed: bool) -> None:
    """Some dependencies sign what they name.  It is claimed as any other, whatever shares its beginning."""
    signed = "".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(100))
    alarms = []
    with SafeWrite(postgres_ledger_url) as sw, safewrite.run("run-1"):
        sw.on_alarm(lambda alert: alarms.append(alert.kind))

        @sw.write(target="name")
        def make(name: str) -> Any:
            return StillRunning() if listed else Applied(name, object_id=signed + name)

        @make.reconcile
        def _(name: str) -> Any:
            return [Applied(name, object_id=signed + name)]

        for turn, name in enumerate(("one", "two")):
            with safewrite.turn(turn):
                outcome = make.outcome(name)
                assert (outcome.state, outcome.recorded, outcome.attributable) == ("applied", True, True)
        assert alarms == []
        if not listed:
            with safewrite.turn("again"):
                make.options(occurrence=2, run="run-2")("one")
            assert alarms == ["object_collision"]


def test_units_wait_for_a_line_no_longer_than_for_each_other(opened: Opens, postgres_ledger_url: str) -> None:
    """There are so many lines; long reads have lines of their own, and hold up nobody."""
    ledger = opened(postgres_ledger_url, busy_timeout=0.1)
    Caller(ledger).write()
    together, go = threading.Barrier(pool.LINES + 1), threading.Event()

    def hold(unit: Any) -> None:
        together.wait(10)
        go.wait(10)

    with ThreadPoolExecutor(pool.LINES) as threads:
        held = [threads.submit(ledger._store.read, hold) for _ in range(pool.LINES)]
        together.wait(10)
        with pytest.raises(LedgerUnavailable) as caught:
            ledger.find("x")
        assert caught.value.reason == "ledger_busy"
        assert ledger.open_intents() == []
        go.set()
        for one in held:
            one.result()
    assert ledger.find("x") is None


# Its lines ---------------------------------------------------------------------------------------------------------


def test_a_recovery_has_an_intent_by_the_server_s_clock(opened: Opens, postgres_ledger_url: str) -> None:
    """A worker whose own clock is an hour ahead takes nothing from another, nor keeps it from others for longer."""
    wrong = opened(postgres_ledger_url, now=lambda: time.time() + 3600.0)
    right = opened(postgres_ledger_url)
    one, two = (Caller(right)(turn=name, target=name).ask()[0] for name in ("one", "two"))
    assert right.take(one.id, "right", 30.0)
    assert not wrong.take(one.id, "wrong", 30.0)
    assert wrong.take(two.id, "wrong", 0.0)
    assert right.take(two.id, "right", 30.0)


def test_leases_run_by_the_server_s_clock(opened: Opens, postgres_ledger_url: str) -> None:
    """A worker whose own clock is hours off neither breaks a lease nor waits for one that is over."""
    here, elsewhere = Caller(opened(postgres_ledger_url)), Caller(opened(postgres_ledger_url))
    intent, _ = here.ask()
    lease = intent.state.lease
    assert lease is not None
    with administering(postgres_ledger_url) as run:
        name = run("SELECT 'db:' || system_identifier FROM pg_control_system()")[0][0]
    assert lease.since.clock == name
    assert abs(lease.since.unix - time.time()) < 60  # the worker said 2025
    assert isinstance(elsewhere.ask(at=50_000.0)[1], Watch)
    moved, now = elsewhere.ledger.whether_moved_on(intent).now()
    assert not moved
    assert now is not None
    assert 14.0 < lease.left(now, 1.0) <= 15.0
    brief = here(turn="2", target='"2"', call=replace(here.call, id="brief", lease=0.05))
    brief.ask()
    threading.Event().wait(0.1)
    assert not isinstance(elsewhere(turn="2", target='"2"').ask(at=0.01)[1], Watch)


def test_every_commit_waits_for_the_disk(
    caller: Caller, postgres_ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the role's default; only a stronger wish is left alone.  Nothing stays set on the line."""
    with administering(postgres_ledger_url) as run:
        run("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
        try:
            caller.write()

            def query(unit: Leg) -> Any:
                cursor = unit.line.execute("SELECT current_setting('synchronous_commit')")
                return cursor.fetchall()

            store = caller.ledger._store
            assert store.write(lambda unit: ((unit.rows(unit.sql.version, {}), query(unit))[1], None)) == [
                ("on",)
            ]
            assert store.read(query) == [("off",)]
        finally:
            run("ALTER ROLE CURRENT_USER RESET synchronous_commit")


@pytest.mark.parametrize(
    ("busy", "statement", "set_to"),
    [(1.5, 7.0, ["1500ms", "7s"]), (0.0, 1e12, ["1ms", "1d"]), (1e-6, 5.0, ["1ms", "5s"])],
)
def test_a_unit_that_writes_has_the_limits_that_are_set(
    opened: Opens, postgres_ledger_url: str, busy: float, statement: float, set_to: list[str]
) -> None:
    """It waits for another's lock as long as for other writers; never without a limit, which a zero would be."""
    ledger = opened(postgres_ledger_url, busy_timeout=busy, statement_timeout=statement)

    def query(unit: Leg) -> Any:
        unit.rows(unit.sql.version, {})
        return [
            unit.line.execute(f"SHOW {name}").fetchall()[0][0]
            for name in ("lock_timeout", "statement_timeout")
        ], None

    assert ledger._store.write(query) == set_to


def test_a_lock_has_one_number_in_every_process_and_version() -> None:
    """Two that reckon it otherwise would both hold it: both would claim."""
    assert Hold("wish").number == Hold("wish", shared=True).number == 657068592522681489
    assert Hold("object:billing").number == -2745866469005060626


def test_a_table_that_is_altered_beside_a_worker_costs_no_call(
    caller: Caller, postgres_ledger_url: str
) -> None:
    """What it has prepared fits no more, which the server says by another code than of a statement that it forgot."""
    caller.write()
    with administering(postgres_ledger_url) as run:
        run("ALTER TABLE safewrite_intent ALTER COLUMN evidence TYPE varchar")
    assert caller(turn="2").write().state.outcome.value == "applied"


def test_nothing_stays_set_on_a_line(caller: Caller, postgres_ledger_url: str) -> None:
    """Behind a pooler others are given it next, whose statements have limits of their own, or none."""
    names = ("statement_timeout", "lock_timeout", "synchronous_commit")
    with administering(postgres_ledger_url) as run:
        defaults = [list(run(f"SHOW {name}")) for name in names]
    caller.write()

    def query(unit: Leg) -> Any:
        return [unit.line.execute(f"SHOW {name}").fetchall() for name in names]

    assert caller.ledger._store.read(query) == defaults


def test_a_line_says_who_it_is(caller: Caller, postgres_ledger_url: str, opened: Opens) -> None:
    """The server's own views name the library, unless the URL says otherwise."""
    caller.write()
    other = opened(f"{postgres_ledger_url}&application_name=billing" if "?" in postgres_ledger_url else
                   f"{postgres_ledger_url}?application_name=billing")  # fmt: skip
    other.find("x")
    with administering(postgres_ledger_url) as run:
        found = run("SELECT application_name FROM pg_stat_activity WHERE datname = current_database()")
    assert {"safewrite", "billing"} <= {name for (name,) in found}


def test_a_child_makes_lines_of_its_own_and_leaves_its_parent_s(caller: Caller) -> None:
    """After a fork both write, and closing in the child closes nothing of the parent."""
    caller.write()

    def child() -> object:
        done = caller(turn="child", target='"child"').write()
        caller.ledger.close()
        return done.state.outcome.value

    assert in_child(child) == "applied"
    assert caller(turn="parent", target='"parent"').write().state.outcome is OutcomeState.APPLIED
    assert caller.ledger.find(caller(turn="child", target='"child"').identity.key) is not None


def test_after_closing_nothing_is_open(postgres_ledger_url: str) -> None:
    """A unit that runs is waited for; later ones are refused."""
    ledger = Ledger(postgres_ledger_url, busy_timeout=1.0)
    caller = Caller(ledger)
    caller.write()
    inside, go = threading.Event(), threading.Event()

    def hold(unit: Any) -> int:
        inside.set()
        go.wait(10)
        return len(unit.rows(unit.sql.version, {}))

    with ThreadPoolExecutor(2) as threads:
        held = threads.submit(ledger._store.read, hold)
        inside.wait(10)
        closing = threads.submit(ledger.close)
        go.set()
        assert held.result() == 1
        closing.result()
    with pytest.raises(LedgerUnavailable) as caught:
        caller(turn="2").ask()
    assert caught.value.reason == "ledger_closed"
    with administering(postgres_ledger_url) as run:
        ours = "application_name = 'safewrite' AND datname = current_database()"
        assert run(f"SELECT count(*) FROM pg_stat_activity WHERE {ours}") == [(0,)]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_leaves_a_ledger_that_works(caller: Caller, interrupt: type[BaseException]) -> None:
    """In the middle of a unit: nothing of it stands, and its line is not used in that state again."""
    licence = caller.ticket

    def claim(number: int, call: Any, at: Any) -> Any:
        raise interrupt

    with pytest.raises(interrupt):
        caller.ledger.ask(replace(licence, claim=claim), caller.call, moment(), caller.meta)
    assert caller.ledger.find(caller.identity.key) is None
    caller.write()


def test_what_every_call_sends_is_planned_once(caller: Caller) -> None:
    """The server keeps those statements for a line: a claim, an outcome, a replay and a look run by their names."""
    caller.write()
    caller.ask()
    line = caller.ledger._store._own().idle[-1]  # type: ignore[union-attr]
    counts = "SELECT count(*), sum(generic_plans + custom_plans) FROM pg_prepared_statements"
    ((known, used),) = line.execute(counts).fetchall()
    assert known == len(PREPARED)
    assert used >= 5
    zoneless = "'timestamp'::regtype = ANY (parameter_types)"
    assert line.execute(f"SELECT name FROM pg_prepared_statements WHERE {zoneless}").fetchall() == []
    assert not caller.ledger._database.prepare(line)  # type: ignore[attr-defined]  # lent before: it says so


def test_a_line_that_is_lost_while_it_is_made_ready_does_not_count_against_preparing(
    line: Wire, opened: Opens
) -> None:
    """The call is refused or repeated as for any lost line; the next line is made ready like the first."""
    ledger, cut = opened(line.url), iter(["before"])
    line.decide = lambda _, query: next(cut, "") if b"PREPARE" in query else ""
    with contextlib.suppress(LedgerUnavailable):
        ledger.find("k")
    assert ledger.find("k") is None
    assert ledger._store._prepares  # type: ignore[union-attr]
    assert next(cut, None) is None


@pytest.mark.parametrize("step", ["look", "claim", "record"])
def test_a_line_that_forgets_what_was_prepared_costs_one_more_message(caller: Caller, step: str) -> None:
    """A pooler cleared it between two transactions: the unit is sent again as a whole, once, and nothing twice."""
    intent, _ = caller(turn="0", target='"0"').ask()
    line = caller.ledger._store._own().idle[-1]  # type: ignore[union-attr]
    if step == "claim":
        asked = caller.ledger._store.read
        caller.ledger._store.read = lambda query, long=False: (asked(query), line.execute("DISCARD ALL"))[0]  # type: ignore[method-assign]
        caller.write()
    else:
        line.execute("DISCARD ALL")
        if step == "record":
            caller(turn="0", target='"0"').tell(intent, Ended(1, APPLIED))
        assert caller.ledger.find(intent.identity.key) is not None
    assert caller.ledger.verify(intent.id) == ()
    assert not caller.ledger._store._prepares  # type: ignore[union-attr]


def test_a_pooler_may_change_the_connection_between_transactions(
    caller: Caller, postgres_ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one in transaction mode does: every transaction on another server process, cleared of all that was set."""
    line_type = type(caller.ledger._store._database.connect())  # type: ignore[attr-defined]
    others = [
        line_type.connect(**caller.ledger._database._arguments, autocommit=True, prepare_threshold=None)
        for _ in range(3)
    ]  # type: ignore[attr-defined]
    sent = line_type.execute
    turns = {"n": 0}
    used = set()

    def execute(self: Any, query: str, values: Any = None, **options: Any) -> Any:
        if self in others or not query.strip():
            return sent(self, query, values, **options)
        real = getattr(self, "behind", None)
        if real is None:
            turns["n"] += 1
            real = others[turns["n"] % 3]
            sent(real, "DISCARD ALL")
        used.add(real.info.backend_pid)
        self.behind = None
        cursor = sent(real, query, values, **options)
        if not real.settled:
            self.behind = real
        return cursor

    monkeypatch.setattr(line_type, "execute", execute)
    for n in range(6):
        intent, _ = caller(turn=str(n), target=f'"{n}"').ask()
        caller(turn=str(n), target=f'"{n}"').tell(intent, Ended(1, APPLIED))
        assert caller.ledger.verify(intent.id) == ()
    assert len(used) == 3
    assert not caller.ledger._store._prepares  # type: ignore[union-attr]  # seen, and no longer tried
    for other in others:
        other.close()
