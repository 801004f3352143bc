"""Texts, instants and ids in the form in which any database can hold them."""

from __future__ import annotations

import random
import subprocess
import sys
import time
import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, select

from safewrite.audit.queries import Audit, of_run
from safewrite.core.events import Ended
from safewrite.core.intent import MAX_TARGET_TEXT
from safewrite.dependency import LONGEST_NAME, Dependency
from safewrite.ledger import tables
from safewrite.ledger.model import Meta
from safewrite.ledger.sql import Ledger
from safewrite.ledger.texts import EARLIEST, LATEST, new_id, restored, stamp, stamp_text, storable, unix
from tests.ledger.driver import APPLIED, Caller

TEXTS = (
    st.text(st.characters(codec=None))
    | st.text(st.sampled_from('json:"\\u0\x00\ud800'))
    | st.just('json:"x"')
)


@given(TEXTS)
def test_every_text_comes_back_and_can_be_stored(text: str) -> None:
    """What is stored is fit for UTF-8 and holds no NUL; reading gives what was written."""
    kept = storable(text)
    assert restored(kept) == text
    assert "\x00" not in kept
    kept.encode()


@given(TEXTS, TEXTS)
def test_different_texts_stay_different(one: str, other: str) -> None:
    """What equals in a column equals in the world: look-ups by stored text find the right one."""
    assert (storable(one) == storable(other)) == (one == other)


def test_usual_text_is_stored_as_it_is() -> None:
    """People can read and search the columns."""
    for text in ("", "sub_1", '"sub_1"', "Zoë", "日本", "a\\b", "json", "json:x"):
        assert storable(text) == text


@given(st.floats(min_value=-6e10, max_value=2.5e11))
def test_an_instant_comes_back_to_the_microsecond(seconds: float) -> None:
    """Aware, in UTC, and sorted as text as in time."""
    assert abs(unix(stamp_text(seconds)) - seconds) < 1e-4
    assert stamp(seconds).tzinfo is UTC
    assert stamp_text(seconds).endswith("+00:00")
    assert len(stamp_text(seconds)) == 32


@given(st.floats(0, 4e9), st.floats(0, 4e9))
def test_texts_of_instants_sort_as_the_instants(one: float, other: float) -> None:
    """SQL may compare and order the columns."""
    if stamp(one) < stamp(other):
        assert stamp_text(one) < stamp_text(other)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(float("inf"), LATEST), (1e300, LATEST), (-1e300, EARLIEST), (float("-inf"), EARLIEST)],
)
def test_what_no_calendar_holds_is_held_to_its_ends(seconds: float, expected: datetime) -> None:
    """An endless deadline is the last instant there is."""
    assert stamp(seconds) == expected
    assert stamp_text(seconds) == expected.isoformat(timespec="microseconds")


def test_ids_are_uuids_in_the_order_of_time() -> None:
    """Version 7, unique, sorted by when they were made."""
    made = [new_id(float(second)) for second in range(1, 2000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert {uuid.UUID(one).version for one in made} == {7}
    assert {uuid.UUID(one).variant for one in made} == {uuid.RFC_4122}
    assert len({new_id(5.0) for _ in range(1000)}) == 1000
    for odd in (-5.0, 1e30, float("inf")):
        assert uuid.UUID(new_id(odd)).version == 7


LOS_ANGELES = """
import sqlite3, sys, time
time.tzset()
assert time.localtime(1750000000).tm_hour == 8
from safewrite.ledger.sql import Ledger
from tests.ledger.driver import Caller
ledger = Ledger("sqlite://", now=lambda: 1750000000.25)
intent = Caller(ledger).write()
row = ledger.rows(intent.id)[0]
print(row["occurred_at"], row["recorded_at"], ledger.load(intent.id).created_at, ledger.verify(intent.id))
"""


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Asia/Kathmandu", "UTC"])
def test_the_zone_of_the_machine_changes_nothing(zone: str) -> None:
    """Instants are UTC wherever the process runs, and come back as the same instant."""
    script = (
        LOS_ANGELES
        if zone == "America/Los_Angeles"
        else LOS_ANGELES.replace("assert time.localtime", "bool # ")
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={"TZ": zone, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert (
        done.stdout == "2025-06-15T15:06:40.000000+00:00 2025-06-15T15:06:40.250000+00:00 1750000000.25 ()\n"
    )


def test_rows_are_stamped_by_the_wall_clock_alone(open_ledger: object) -> None:
    """`occurred_at` is the event's own moment, `recorded_at` that of the row."""
    ledger = Ledger("sqlite://", now=lambda: 1_800_000_000.0)
    intent = Caller(ledger).write()
    row = ledger.rows(intent.id)[1]
    assert row["occurred_at"] == "2025-06-15T15:06:41.000000+00:00"
    assert row["recorded_at"] == "2027-01-15T08:00:00.000000+00:00"
    assert time.time() != 1_800_000_000.0
    ledger.close()


@pytest.mark.parametrize("part", ["run", "turn", "tool", "target", "namespace"])
def test_ids_of_any_length_are_kept_and_found(caller: Caller, part: str) -> None:
    """However little they can be compressed: an index that holds them whole would have a limit."""
    noise = random.Random(part)
    one, two = (caller(**{part: "".join(noise.choices(_WIDE, k=20_000))}) for _ in range(2))
    assert one.write().identity == one.identity
    two.write()
    found = Audit(caller.ledger).run(one.run, namespace=one.namespace)
    assert getattr(found[0], part) == getattr(one, part)
    assert len(found) == (1 if part in ("run", "namespace") else 2)


def test_a_run_is_found_by_its_index(caller: Caller, ledger_url: str) -> None:
    """Whatever the database is: a question about one run does not read all of them."""
    caller().write()
    engine = create_engine(ledger_url)
    asked = (
        select(tables.intent.c.id)
        .where(of_run(caller().run))
        .compile(engine, compile_kwargs={"literal_binds": True})
    )
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # so few rows are quicker read all
        plan = connection.exec_driver_sql(
            f"EXPLAIN {'QUERY PLAN' if engine.dialect.name == 'sqlite' else ''} {asked}"
        )
        assert "ix_safewrite_intent_run" in str(plan.all())
    engine.dispose()


def test_an_object_of_a_dependency_fits_the_index(caller: Caller) -> None:
    """The longest name that a dependency may have, and the longest id, in letters of four bytes."""
    noise = random.Random(1)
    name, made = ("".join(noise.choices(_WIDE, k=k)) for k in (LONGEST_NAME, MAX_TARGET_TEXT))
    one = caller(meta=Meta(worker="worker-1", dependency=name))
    intent, _ = one.ask()
    fact = Ended(intent.state.epoch, APPLIED, object_id=made, kept=False)
    assert one.tell(intent, fact)[0].state.outcome == "applied"
    assert Dependency(name).name == name


_WIDE = [chr(point) for point in range(0x20000, 0x28000)]
"""Letters of four bytes each."""
