"""Writers that come together share one durable commit, and nobody pays for what another does wrong."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from safewrite.core.commands import Run, Watch
from safewrite.core.events import GaveUp
from safewrite.errors import LedgerUnavailable
from safewrite.ledger import store as store_module
from safewrite.ledger.places import Place
from safewrite.ledger.sql import Ledger
from safewrite.ledger.units import Trouble, Unit
from safewrite.shell import steps
from tests.ledger.driver import Caller
from tests.ledger.faults import Raw, break_writer, error_of, failure, in_child

pytestmark = pytest.mark.sqlite

Work = Callable[[], Any]


def await_that(look: Callable[[], Any]) -> None:
    """Wait until something is so."""
    end = time.monotonic() + 20.0
    while not look():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.001)


def queued(ledger: Ledger, count: int) -> Callable[[], bool]:
    """Tell whether so many wait."""
    return lambda: len([p for p in tuple(ledger._store._own().queue) if not p.taken]) == count


@contextmanager
def held(ledger: Ledger) -> Iterator[Callable[[], None]]:
    """Hold the connection that writes by a unit of another thread; the value lets it go."""
    ledger.find("x")  # the tables are made
    inside, go = threading.Event(), threading.Event()

    def hold(_: Unit) -> tuple[None, None]:
        inside.set()
        assert go.wait(20)
        return None, None

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(ledger._store.write, hold)
        inside.wait(20)
        try:
            yield go.set
        finally:
            go.set()
        holding.result(20)


@contextmanager
def together(ledger: Ledger, *works: Work) -> Iterator[list[Future[Any]]]:
    """Have works wait in the queue in this order, each in a thread of its own; they are carried out at the end."""
    with ThreadPoolExecutor(len(works)) as pool, held(ledger) as let_go:
        futures = []
        for count, work in enumerate(works, 1):
            futures.append(pool.submit(work))
            await_that(queued(ledger, count))
        yield futures
        let_go()


def commits(ledger: Ledger) -> list[str]:
    """Return a list that every commit from now on adds to."""
    seen: list[str] = []
    break_writer(ledger, lambda sql, _: seen.append(sql) if sql == "COMMIT" else None)
    return seen


def writing(ledger: Ledger, work: Callable[[Unit], Any]) -> Work:
    """Return a work that is one unit."""
    return lambda: ledger._store.write(lambda unit: (work(unit), None))


def callers(ledger: Ledger, count: int) -> list[Caller]:
    """Return callers with a wish each."""
    return [Caller(ledger)(turn=str(n), target=str(n)) for n in range(count)]


# Sharing -----------------------------------------------------------------------------------------------


def test_callers_that_wait_share_one_commit(ledger: Ledger) -> None:
    """Eight claims behind one unit: two commits in all, and eight licences."""
    ones = callers(ledger, 8)
    seen = commits(ledger)
    with together(ledger, *(one.ask for one in ones)) as futures:
        pass
    assert [future.result()[1] for future in futures] == [Run("R1", 1)] * 8
    assert len(seen) == 2
    for one in ones:
        found = ledger.find(one.identity.key)
        assert found is not None
        assert ledger.verify(found.id) == ()


def test_a_single_caller_is_carried_out_on_its_own_thread(ledger: Ledger) -> None:
    """No other thread is asked: neither for the first unit nor for the next."""
    threads = [writing(ledger, lambda _: threading.get_ident())() for _ in range(3)]
    assert threads == [threading.get_ident()] * 3
    assert ledger._store._own().server is None


def test_of_callers_with_one_intent_in_one_commit_one_claims(ledger: Ledger) -> None:
    """The look and the claim are one step also among those that share a transaction."""
    one = Caller(ledger)
    with together(ledger, *(one().ask for _ in range(6))) as futures:
        pass
    kinds = [type(future.result()[1]) for future in futures]
    assert kinds == [Run, Watch, Watch, Watch, Watch, Watch]


def test_facts_of_one_intent_stand_in_the_order_in_which_they_came(caller: Caller, ledger: Ledger) -> None:
    """Of two facts in one commit the first is the first row, whatever stands between them."""
    intent, _ = caller.ask()
    with together(
        ledger,
        lambda: caller.tell(intent, GaveUp(1, "timeout")),
        caller(turn="2", target="2").ask,
        writing(ledger, lambda _: 1 // 0),
        lambda: caller.end(intent, at=2.0),
    ):
        pass
    assert [row["event"] for row in ledger.rows(intent.id)] == ["claimed", "gave_up", "ended"]
    assert ledger.verify(intent.id) == ()


# Poison -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("poison", "error"),
    [
        (lambda unit: 1 // 0, ZeroDivisionError),
        (lambda unit: unit.connection.execute("INSERT INTO safewrite_intent (id) VALUES ('x')"), Trouble),
        (lambda unit: unit.connection.execute("ROLLBACK") and 1 // 0, ZeroDivisionError),
    ],
    ids=["its own error", "the database's error", "the transaction is gone"],
)
def test_what_one_does_wrong_is_its_own_affair(
    ledger: Ledger, poison: Callable[[Unit], Any], error: type[Exception]
) -> None:
    """Its neighbours before and after it are recorded as if it had not been there, it gets its error."""
    first, *others = callers(ledger, 4)
    with together(ledger, first.ask, writing(ledger, poison), *(one.ask for one in others)) as futures:
        pass
    assert isinstance(futures.pop(1).exception(), error)
    assert [future.result()[1] for future in futures] == [Run("R1", 1)] * 4
    assert all(ledger.find(one.identity.key) for one in (first, *others))


def test_a_commit_that_fails_for_all_is_tried_for_each(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that has no room for all of them may have it for some."""
    ones = callers(ledger, 4)
    seen: list[str] = []

    def fault(sql: str, raw: Any) -> None:
        if sql == "COMMIT":
            seen.append(sql)
            if len(seen) in (2, 4):  # the commit that all share, and that of the second
                raw.execute("ROLLBACK")
                raise error_of(sqlite3.SQLITE_FULL, "database or disk is full")

    opened = ledger._store._keeper._open

    def opening(own: Any) -> Any:
        held = opened(own)
        raw = held.raw
        held.raw = Raw(raw, lambda sql: fault(sql, raw))
        return held

    monkeypatch.setattr(ledger._store._keeper, "_open", opening)
    with together(ledger, *(one.ask for one in ones)) as futures:
        pass
    told = [failure(future.result) for future in futures]
    assert [error.reason if error else None for error in told] == [None, "ledger_full", None, None]
    assert [ledger.find(one.identity.key) is not None for one in ones] == [True, False, True, True]


def test_a_shared_commit_that_failed_in_word_only_counts(ledger: Ledger) -> None:
    """It is looked for once, found, and every one of its units stands, once."""
    ones = callers(ledger, 4)
    seen: list[str] = []

    def fault(sql: str, raw: Any) -> None:
        if sql == "COMMIT":
            seen.append(sql)
            if len(seen) == 2:
                raw.execute("COMMIT")
                raise error_of(sqlite3.SQLITE_IOERR_FSYNC)

    break_writer(ledger, fault)
    with together(ledger, *(one.ask for one in ones), writing(ledger, lambda _: "nothing")) as futures:
        pass
    assert [future.result()[1] for future in futures[:4]] == [Run("R1", 1)] * 4
    assert futures[4].result() == "nothing"
    assert len(seen) == 2
    for one in ones:
        found = ledger.find(one.identity.key)
        assert found is not None
        assert found.state.revision == 1


def test_a_ledger_that_cannot_be_opened_is_told_to_all(
    open_ledger: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look is enough: those that wait do not each try for as long as it takes."""
    ledger = open_ledger()
    tried: list[int] = []

    def unreachable() -> Any:
        tried.append(1)
        raise error_of(sqlite3.SQLITE_CANTOPEN, "unable to open database file")

    with together(ledger, *(writing(ledger, lambda _: None) for _ in range(4))) as futures:
        ledger._store._own().checked = True
        own = ledger._store._own()
        writer, own.writer = own.writer, None
        monkeypatch.setattr(ledger._database.engine, "raw_connection", unreachable)
    errors = [future.exception() for future in futures]
    assert [isinstance(error, Trouble) and error.reason for error in errors] == ["ledger_io"] * 4
    assert len(tried) == 1
    assert writer is not None
    writer.close()


# Leaders and followers that go --------------------------------------------------------------------------------------


def test_a_leader_that_is_interrupted_leaves_the_others_whole(ledger: Ledger) -> None:
    """Ctrl-C while it carries out another's unit: raised to it, nothing of its own stands, the others' all does."""
    main, (one, two) = threading.get_ident(), callers(ledger, 2)

    def struck(unit: Unit) -> tuple[str, None]:
        unit.rows(unit.sql.trace, {"trace": "x"})
        if threading.get_ident() == main:
            raise KeyboardInterrupt
        return "carried out", None

    with ThreadPoolExecutor(3) as pool, held(ledger) as let_go:
        others: list[Future[Any]] = []

        def following() -> None:
            await_that(queued(ledger, 1))  # the main thread
            for work in (two.ask, lambda: ledger._store.write(struck)):
                others.append(pool.submit(work))
                await_that(queued(ledger, 1 + len(others)))
            let_go()

        pool.submit(following)
        with pytest.raises(KeyboardInterrupt):
            one.ask()
    assert others[0].result()[1] == Run("R1", 1)
    assert others[1].result() == "carried out"
    assert ledger.find(one.identity.key) is None


def test_a_leader_with_an_error_of_its_own_loses_nobody(ledger: Ledger) -> None:
    """Its unit fails, it gets its error, and the units that it led stand."""
    one, two = callers(ledger, 2)
    with together(ledger, writing(ledger, lambda _: 1 // 0), one.ask, two.ask) as futures:
        pass
    assert isinstance(futures[0].exception(), ZeroDivisionError)
    assert [future.result()[1] for future in futures[1:]] == [Run("R1", 1)] * 2


def test_a_follower_that_waited_long_enough_is_refused_for_good(open_ledger: Callable[..., Ledger]) -> None:
    """Told that the ledger is busy, its unit is never carried out afterwards; one that is begun is waited for."""
    ledger = open_ledger(busy_timeout=0.05)
    one, other = callers(ledger, 2)
    with held(ledger) as let_go, ThreadPoolExecutor(1) as pool:
        error = pool.submit(lambda: failure(one.ask)).result(10)
        assert error is not None
        assert error.reason == "ledger_busy"
        let_go()
    assert other.ask()[1] == Run("R1", 1)
    assert ledger.find(one.identity.key) is None
    assert not ledger._store._own().queue


def test_a_unit_that_is_begun_is_waited_for(open_ledger: Callable[..., Ledger]) -> None:
    """Its caller's patience ends while somebody carries it out: it gets what came of it, not that it was refused."""
    ledger = open_ledger(busy_timeout=0.3)
    inside, go = threading.Event(), threading.Event()

    def slow(unit: Unit) -> str:
        inside.set()
        assert go.wait(20)
        return "carried out"

    with (
        ThreadPoolExecutor(1) as pool,
        together(ledger, writing(ledger, slow), writing(ledger, slow)) as futures,
    ):

        def overdue() -> None:
            inside.wait(20)
            await_that(lambda: any(place.withdrawn for place in tuple(ledger._store._own().queue)))
            go.set()

        pool.submit(overdue)
    assert [future.result() for future in futures] == ["carried out"] * 2


def test_a_follower_that_is_interrupted_leaves_nothing_behind_it(ledger: Ledger) -> None:
    """Ctrl-C while it waits: its unit is never carried out, unless somebody was at it, which it waits for."""
    one, other = callers(ledger, 2)
    waiting = threading.Event()

    def interrupted() -> None:
        place = Place(lambda unit: (waiting.set(), None))
        own = ledger._store._own()
        own.queue.append(place)
        ledger._store._leave(own, place)

    with together(ledger, interrupted, one.ask) as futures:
        pass
    assert futures[1].result()[1] == Run("R1", 1)
    assert not waiting.is_set()
    assert other.ask()[1] == Run("R1", 1)


# Forks, the end -----------------------------------------------------------------------------------------------


def test_a_child_forked_while_others_wait_has_a_queue_of_its_own(ledger: Ledger) -> None:
    """What waits in the parent is the parent's: the child carries out its own, and the parent carries on."""
    one, two, three = callers(ledger, 3)

    def child() -> list[object]:
        own = ledger._store._own()
        return [len(own.queue), failure(two.ask) is not None]

    with together(ledger, one.ask) as futures:
        # The file is locked by the parent's transaction: the child waits for it in vain, and is told.
        ledger._store._wait = ledger._store._keeper._wait = 0.1
        assert in_child(child) == [0, True]
    assert futures[0].result()[1] == Run("R1", 1)
    assert in_child(lambda: type(two.ask()[1]).__name__) == "Run"
    assert three.ask()[1] == Run("R1", 1)


def test_closing_tells_those_that_wait(ledger: Ledger) -> None:
    """They are carried out or told that the ledger is closed; none is left waiting."""
    ones = callers(ledger, 5)
    with ThreadPoolExecutor(1) as pool, together(ledger, *(one.ask for one in ones)) as futures:
        closing = pool.submit(ledger.close)
        await_that(lambda: ledger._store._keeper._closed)
    closing.result(10)
    told = [failure(future.result) for future in futures]
    assert {error.reason for error in told if error is not None} <= {"ledger_closed"}
    assert any(told)


# Those that do not wait -----------------------------------------------------------------------------------------------


class Told:
    """A place that no thread waits in, and what came of it."""

    def __init__(self, ledger: Ledger, write: Callable[[Unit], Any] | None, look: Any = None) -> None:
        self.done = threading.Event()
        work = (lambda unit: (write(unit), None)) if write is not None else None
        self.place = Place(work, look, told=self.done.set)
        ledger._store.submit(self.place)

    def result(self) -> Any:
        assert self.done.wait(20)
        return self.place.result()


def test_a_place_in_which_no_thread_waits_is_carried_out_by_the_ledger_s_own(ledger: Ledger) -> None:
    """Every one of them by one thread, which is not the caller's."""
    threads = {Told(ledger, lambda _: threading.get_ident()).result() for _ in range(20)}
    assert len(threads) == 1
    assert threads != {threading.get_ident()}


def test_a_place_is_done_before_anybody_is_told_so() -> None:
    """Whoever is woken looks at once, and would wait for ever if it were not."""
    seen: list[Any] = []
    place = Place(None, told=lambda: seen.append((place.done, place.result())))
    place.end("came")
    assert seen == [(True, "came")]


def test_a_look_may_be_enough(ledger: Ledger) -> None:
    """What a look finds is told without a transaction; what it does not find is written; its error is the caller's."""
    ledger.find("x")
    seen: list[str] = []
    break_writer(ledger, lambda sql, _: seen.append(sql))
    assert Told(ledger, lambda _: "written", look=lambda _: "found").result() == "found"
    assert Told(ledger, None, look=lambda _: None).result() is None
    assert seen == []
    assert Told(ledger, lambda _: "written", look=lambda _: None).result() == "written"
    with pytest.raises(ZeroDivisionError):
        Told(ledger, None, look=lambda _: 1 // 0).result()


def test_threads_and_those_that_do_not_wait_share_a_commit(ledger: Ledger) -> None:
    """Whoever leads carries out both, and a thread hands the lead to the ledger's own."""
    ones = callers(ledger, 4)
    seen = commits(ledger)
    with together(ledger, *(one.ask for one in ones)) as futures:
        told = [Told(ledger, lambda _: "written") for _ in range(4)]
    assert [one.result() for one in told] == ["written"] * 4
    assert all(future.result()[1] == Run("R1", 1) for future in futures)
    assert len(seen) == 2
    with held(ledger):
        told = [Told(ledger, lambda _: "written") for _ in range(4)]
    assert [one.result() for one in told] == ["written"] * 4


def test_a_place_that_waited_long_enough_is_refused_for_good(open_ledger: Callable[..., Ledger]) -> None:
    """No coroutine waits longer than a thread would; its unit is never carried out afterwards."""
    ledger = open_ledger(busy_timeout=0.1)
    carried_out: list[int] = []
    with held(ledger):
        waiting = Told(ledger, lambda _: carried_out.append(1))
        with pytest.raises(Trouble, match="ledger_busy"):
            waiting.result()
    assert Told(ledger, lambda _: "written").result() == "written"
    assert carried_out == []
    assert not ledger._store._own().queue


def test_the_ledger_s_own_thread_ends_when_idle_and_comes_back(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs nothing where nobody needs it."""
    monkeypatch.setattr(store_module, "_IDLE", 0.01)
    for _ in range(3):
        assert Told(ledger, lambda _: "written").result() == "written"
        server = ledger._store._own().server
        if server is not None:
            server.join(20)
            assert not server.is_alive()


# All at once -----------------------------------------------------------------------------------------------


def test_many_threads_with_poison_among_them(ledger: Ledger) -> None:
    """Twelve threads, forty writes each, every tenth poisoned: what was told is what stands, row by row."""
    chance = random.Random(7)
    plans = [[chance.random() < 0.1 for _ in range(40)] for _ in range(12)]

    def work(thread: int) -> list[str]:
        keys = []
        for n, poisoned in enumerate(plans[thread]):
            if poisoned:
                with pytest.raises(ZeroDivisionError):
                    writing(ledger, lambda _: 1 // 0)()
            else:
                one = Caller(ledger)(turn=str(n), target=f"{thread}-{n}")
                one.write()
                keys.append(one.identity.key)
        return keys

    seen = commits(ledger)
    with ThreadPoolExecutor(12) as pool:
        keys = [key for found in pool.map(work, range(12)) for key in found]
    assert len(keys) == sum(not poisoned for plan in plans for poisoned in plan)
    assert len(seen) < 2 * len(keys)
    for key in keys:
        intent = ledger.find(key)
        assert intent is not None
        assert (intent.state.revision, intent.state.outcome.value) == (2, "applied")
        assert ledger.verify(intent.id) == ()


def test_a_refusal_in_the_queue_keeps_its_reason(open_ledger: Callable[..., Ledger]) -> None:
    """What follows from a wait that was too long is what follows from a database that is busy."""
    ledger = open_ledger(busy_timeout=0.02)
    with held(ledger), ThreadPoolExecutor(1) as pool:
        error = pool.submit(lambda: failure(Caller(ledger).ask)).result(10)
    assert isinstance(error, LedgerUnavailable)
    assert error.reason == "ledger_busy"


def test_a_wake_that_comes_while_others_are_woken_is_not_lost() -> None:
    """A thread that is done just as the loop has looked for the last time calls the loop again."""
    rounds: list[int] = []

    class Arrived(deque[steps._Waiting]):
        """What arrives, and one more just behind a look that found nothing."""

        def __bool__(self) -> bool:
            found = len(self) > 0
            if not found and not rounds:
                rounds.append(1)
                box.put(second)
            return found

    async def main() -> None:
        nonlocal box
        loop = asyncio.get_running_loop()
        box = steps._Mailbox(loop)
        box._arrived = Arrived()
        first.future, second.future = loop.create_future(), loop.create_future()
        box.put(first)
        await first.future
        await asyncio.wait_for(second.future, 10)

    box: Any = None
    first, second = steps._Waiting(), steps._Waiting()
    asyncio.run(main())
    assert rounds == [1]
