"""Recovery on both databases: what was left open is looked at once, by whoever comes to it first."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import safewrite
from safewrite import Applied, Dependency, Inconclusive, NotApplied, OutcomeUnknown, SafeWrite, recovery
from safewrite.errors import LedgerUnavailable
from safewrite.recovery import Found
from tests.postgres import _ledger_url, postgres_ledger_url

__all__ = ["_ledger_url", "postgres_ledger_url"]

BILLING = Dependency("billing", work_bound=0.0, read_lag=0.0)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty ledger in either database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'agent.db'}"
    return str(request.getfixturevalue("postgres_ledger_url"))


class App:
    """An application with one tool, whose sends are lost and whose reads say what the test wants."""

    def __init__(self, url: str, reads: Counter[str], says: Callable[[str], Any], **options: Any) -> None:
        self.sw = SafeWrite(url, **options)

        @self.sw.write(target="sub_id", name="cancel", dependency=BILLING, max_attempts=1, in_thread=False)
        def cancel(sub_id: str) -> str:
            raise TimeoutError

        @cancel.reconcile
        def _(sub_id: str) -> Any:
            reads[sub_id] += 1
            return says(sub_id)

        self.cancel = cancel


Apps = Callable[..., App]


@pytest.fixture
def reads() -> Counter[str]:
    """How often each target was read."""
    return Counter()


@pytest.fixture
def app(url: str, reads: Counter[str]) -> Iterator[Apps]:
    """Opens the application, as often as another process would."""
    opened: list[App] = []

    def opening(says: Callable[[str], Any] = lambda _: Inconclusive("dark"), **options: Any) -> App:
        opened.append(App(url, reads, says, **options))
        return opened[-1]

    yield opening
    for one in opened:
        one.sw.close()


def lose(app: App, count: int, reads: Counter[str]) -> None:
    """Leave so many intents open."""
    for n in range(count):
        with safewrite.run(f"run-{n}", call_cap=0.5), safewrite.turn(1), pytest.raises(OutcomeUnknown):
            app.cancel(f"sub_{n}")
    reads.clear()


def test_two_at_once_read_each_intent_once(
    app: Apps, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever each of them finds taken, or looked at since it made its list, it leaves to the other."""
    lose(app(), 8, reads)
    apps = [
        app(lambda sub_id: Applied("done") if int(sub_id[-1]) % 2 else Inconclusive("dark")) for _ in range(2)
    ]
    together = threading.Barrier(2)

    def listing(ledger: Any) -> Callable[..., Any]:
        real = ledger.open_intents

        def listed(**options: Any) -> Any:
            found = real(**options)
            if "after" not in options:
                together.wait(10)  # both have their list before either looks at anything
            return found

        return listed

    def recover(which: App) -> Any:
        monkeypatch.setattr(which.sw.ledger, "open_intents", listing(which.sw.ledger))
        return which.sw.recover()

    with ThreadPoolExecutor(2) as threads:
        both = list(threads.map(recover, apps))
    assert set(reads.values()) == {1}
    assert len(reads) == 8
    for one in both:
        assert not one.problems
        assert not one.stopped
    read = [f for one in both for f in one.found if f.reason != "looked_at_elsewhere"]
    assert Counter(f.state for f in read) == {"applied": 4, "unknown": 4}


def test_an_intent_that_another_recovery_is_at_is_left_to_it(app: Apps, reads: Counter[str]) -> None:
    """It is told so; a recovery that crashed holds it up no longer than it would have taken."""
    one = app(lambda _: Applied("done"))
    lose(app(), 1, reads)
    (intent,) = one.sw.ledger.open_intents()
    assert one.sw.ledger.take(intent.id, "somebody", 60.0)
    assert not one.sw.ledger.take(intent.id, "somebody else", 60.0)
    (found,) = one.sw.recover().found
    assert (found.state, found.reason, found.problem) == ("unknown", "looked_at_elsewhere", "")
    assert found.may_still_land
    assert not reads
    one.sw.ledger.give(intent.id, "nobody")  # it is not his
    assert not one.sw.ledger.take(intent.id, "me", 60.0)
    one.sw.ledger.give(intent.id, "somebody")
    assert one.sw.ledger.take(intent.id, "somebody who crashes", -1.0)
    assert one.sw.recover().count("applied") == 1


def test_what_was_settled_since_the_list_was_made_is_told_as_it_stands(
    app: Apps, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else was quicker: nothing is read a second time."""
    lose(app(), 1, reads)
    slow, quick = app(lambda _: Applied("slow")), app(lambda _: Applied("quick"))
    listing = slow.sw.ledger.open_intents

    def late(**options: Any) -> Any:
        found = listing(**options)
        quick.sw.recover()
        return found

    monkeypatch.setattr(slow.sw.ledger, "open_intents", late)
    (found,) = slow.sw.recover().found
    assert (found.state, found.reason) == ("applied", "looked_at_elsewhere")
    assert not found.may_still_land
    assert reads == {"sub_0": 1}


def test_what_moved_on_since_the_list_was_made_is_free_for_the_next(
    app: Apps, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever leaves an intent to others keeps no hold on it: it is still open, and the next one looks at once."""
    lose(app(), 1, reads)
    slow, quick = app(lambda _: Applied("slow")), app()
    listing = slow.sw.ledger.open_intents

    def late(**options: Any) -> Any:
        found = listing(**options)
        if "after" not in options:
            quick.sw.recover()
        return found

    monkeypatch.setattr(slow.sw.ledger, "open_intents", late)
    (found,) = slow.sw.recover().found
    assert (found.state, found.reason) == ("unknown", "looked_at_elsewhere")
    assert app(lambda _: Applied("next")).sw.recover().count("applied") == 1


def test_everything_open_is_come_to_page_by_page(
    app: Apps, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest first, settled or not, with how far it is; another namespace's are none of its business."""
    monkeypatch.setattr(recovery, "_PAGE", 3)
    lose(app(namespace="other"), 1, reads)
    lose(app(), 8, reads)
    lose(app(namespace="a third"), 1, reads)
    told: list[tuple[str, int, int]] = []
    one = app(lambda sub_id: Applied("done") if sub_id in ("sub_1", "sub_2") else Inconclusive("dark"))
    done = one.sw.recover(progress=lambda found, at, total: told.append((found.target, at, total)))
    assert told == [(f'"sub_{n}"', n + 1, 8) for n in range(8)]
    assert (done.count("applied"), done.count("unknown"), done.count("not_applied")) == (2, 6, 0)


def test_it_stops_between_two(app: Apps, reads: Counter[str]) -> None:
    """The intent it is at is finished; the next one is not begun."""
    lose(app(), 3, reads)
    stop = threading.Event()
    done = app().sw.recover(progress=lambda *_: stop.set(), stop=stop)
    assert len(done.found) == 1
    assert done.stopped
    assert not app().sw.recover().stopped


def test_a_ledger_that_fails_at_one_intent_costs_only_that(
    app: Apps, reads: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told with the problem, and the others are looked at."""
    lose(app(), 3, reads)
    one = app(lambda _: Applied("done"))
    taking, failures = one.sw.ledger.take, iter([LedgerUnavailable("gone", reason="ledger_unreachable")])

    def take(*given: Any) -> bool:
        if (error := next(failures, None)) is not None:
            raise error
        return taking(*given)

    monkeypatch.setattr(one.sw.ledger, "take", take)
    done = one.sw.recover()
    assert [f.problem for f in done.found] == ["gone", "", ""]
    assert done.count("applied") == 2


def test_a_bound_that_has_passed_settles(url: str) -> None:
    """What was open only because it might still land is proven not applied, once it cannot any more."""
    bounded = Dependency("billing", work_bound=0.8, read_lag=0.0)
    with SafeWrite(url) as sw:

        @sw.write(target="sub_id", name="cancel", dependency=bounded, max_attempts=1, in_thread=False)
        def cancel(sub_id: str) -> str:
            raise TimeoutError

        @cancel.reconcile
        def _() -> NotApplied:
            return NotApplied()

        with safewrite.run("r1", call_cap=0.4), safewrite.turn(1), pytest.raises(OutcomeUnknown):
            cancel("sub_1")
        found: list[Found] = []
        while not found or found[-1].state == "unknown":
            assert len(found) < 100
            found.extend(sw.recover().found)
        assert found[-1].state == "not_applied"
        assert sw.recover().found == ()


def test_coroutine_tools_share_the_work_as_well(url: str, reads: Counter[str]) -> None:
    """`arecover` takes and gives as `recover` does."""

    async def lost(sw: SafeWrite) -> Any:
        @sw.write(target="sub_id", name="acancel", dependency=BILLING, max_attempts=1)
        async def acancel(sub_id: str) -> str:
            raise TimeoutError

        @acancel.reconcile
        async def _(sub_id: str) -> Any:
            reads[sub_id] += 1
            return Inconclusive("dark")

        return acancel

    async def scenario() -> None:
        sws = [SafeWrite(url) for _ in range(2)]
        tools = [await lost(sw) for sw in sws]
        for n in range(4):
            with safewrite.run(f"run-{n}", call_cap=0.5), safewrite.turn(1), pytest.raises(OutcomeUnknown):
                await tools[0](f"sub_{n}")
        reads.clear()
        (taken, *others) = sws[0].ledger.open_intents()
        assert sws[0].ledger.take(taken.id, "somebody", 60.0)
        done = await sws[1].arecover()
        assert reads == {f"sub_{n}": 1 for n in range(1, 4)}
        assert [f.reason for f in done.found] == ["looked_at_elsewhere", *["dark"] * 3]
        assert all(sws[0].ledger.take(intent.id, "free again", 1.0) for intent in others)
        for sw in sws:
            sw.close()

    asyncio.run(scenario())


def test_a_recovery_that_is_cancelled_lets_go_of_what_it_was_at(
    app: Apps, url: str, reads: Counter[str]
) -> None:
    """The next one looks at it at once, and not only when the first one's time would be over."""
    lose(app(), 1, reads)

    async def scenario() -> None:
        reading = asyncio.Event()
        with SafeWrite(url) as sw:

            @sw.write(target="sub_id", name="cancel", dependency=BILLING, max_attempts=1)
            async def cancel(sub_id: str) -> str:
                raise AssertionError("nothing is sent by a recovery that was not told to")

            @cancel.reconcile
            async def _(sub_id: str) -> NotApplied:
                reading.set()
                await asyncio.Event().wait()
                return NotApplied()

            task = asyncio.ensure_future(sw.arecover())
            await reading.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())
    assert app(lambda _: Applied("done")).sw.recover().count("applied") == 1
