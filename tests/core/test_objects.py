"""An object proves one intent only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

import pytest

from safewrite.core import objects
from safewrite.core.events import Verdict
from safewrite.core.objects import Judgement, judge

MINE, THEIRS, READ = ("me", "response"), ("other", "response"), ("other", "read")
Claims = dict[str, tuple[str, str]]
CASES: list[tuple[list[str], Claims, int, bool, Judgement]] = [
    # candidates, claims, open intents, all there are?, what it proves
    (["a"], {}, 1, False, Judgement(Verdict.APPLIED, 0, "found")),
    (["a"], {}, 9, False, Judgement(Verdict.APPLIED, 0, "found")),
    (["a"], {"a": MINE}, 1, False, Judgement(Verdict.APPLIED, 0, "claimed")),
    (["a"], {"a": THEIRS}, 1, False, Judgement(Verdict.INCONCLUSIVE, None, "object_of_another_intent")),
    ([], {}, 1, True, Judgement(Verdict.NOT_APPLIED, None, "no_candidate")),
    (["a"], {"a": THEIRS}, 1, True, Judgement(Verdict.NOT_APPLIED, None, "no_candidate")),
    (["a"], {"a": ("other", "key")}, 1, True, Judgement(Verdict.NOT_APPLIED, None, "no_candidate")),
    (["a"], {"a": READ}, 1, True, Judgement(Verdict.INCONCLUSIVE, None, "object_of_another_intent")),
    (
        ["a", "b"],
        {"a": THEIRS, "b": READ},
        1,
        True,
        Judgement(Verdict.INCONCLUSIVE, None, "object_of_another_intent"),
    ),
    (["a", "b"], {"a": THEIRS}, 1, True, Judgement(Verdict.APPLIED, 1, "found")),
    (["a", "b"], {"b": MINE}, 3, True, Judgement(Verdict.APPLIED, 1, "claimed")),
    (["a"], {}, 2, True, Judgement(Verdict.INCONCLUSIVE, None, "too_few_candidates")),
    (["a", "b"], {}, 2, True, Judgement(Verdict.APPLIED, 0, "found")),
    (["a", "a"], {}, 2, True, Judgement(Verdict.INCONCLUSIVE, None, "too_few_candidates")),
    (["a", "a", "b"], {"a": THEIRS}, 1, True, Judgement(Verdict.APPLIED, 2, "found")),
]


@pytest.mark.parametrize(("candidates", "claims", "open_intents", "listed", "expected"), CASES)
def test_what_candidates_prove(
    candidates: list[str], claims: Claims, open_intents: int, listed: bool, expected: Judgement
) -> None:
    """One found by a look-up proves what is not taken; a list proves by counting."""
    assert judge(candidates, claims, "me", open_intents, listed=listed) == expected


# Every order in which up to three intents of one wish make objects, hear of them, and look ------------------------


class Shop(NamedTuple):
    """Intents by number: what they made, and what is on record."""

    made: frozenset[int] = frozenset()
    absent: frozenset[int] = frozenset()
    """Known never to make one."""
    held: tuple[tuple[int, int, str], ...] = ()
    """(object, holder, how it was known); an object has the number of its maker."""


def moves(shop: Shop, intents: int) -> Iterator[Shop]:
    """Yield what may be next: an object is made or never will be, a reply is heard, somebody looks."""
    holders = {holder for _, holder, _ in shop.held}
    taken = {thing for thing, _, _ in shop.held}
    for i in range(intents):
        if i not in shop.made and i not in shop.absent:
            yield shop._replace(made=shop.made | {i})
            yield shop._replace(absent=shop.absent | {i})
        if i in shop.made and i not in holders and i not in taken:
            yield shop._replace(held=(*shop.held, (i, i, "response")))
        things = sorted(shop.made)
        for size in range(len(things) + 1):
            for seen in combinations(things, size):
                # A page may come twice, and a list may be old: it shows some of what there is.
                yield from look(shop, intents, i, [*seen, *seen[:1]], whole=size == len(things))


def look(shop: Shop, intents: int, i: int, seen: list[int], *, whole: bool) -> Iterator[Shop]:
    """Yield what a list comes to, which shows all there is where it is `whole`."""
    holders = {holder for _, holder, _ in shop.held}
    waiting = [j for j in range(intents) if j == i or (j not in shop.absent and j not in holders)]
    claims = {str(thing): (str(holder), how) for thing, holder, how in shop.held}
    verdict, chosen, _ = objects.judge(list(map(str, seen)), claims, str(i), len(waiting), listed=True)
    if verdict is Verdict.APPLIED:
        assert i in shop.made, (shop, i, seen)
        assert chosen is not None
        if i not in holders:
            yield shop._replace(held=(*shop.held, (seen[chosen], i, "read")))
    if verdict is Verdict.NOT_APPLIED and whole:
        assert i not in shop.made, (shop, i, seen)


def follow(intents: int) -> int:
    """Follow every order of things, and return in how many ways they can stand."""
    seen = {Shop()}
    waiting = [Shop()]
    while waiting:
        shop = waiting.pop()
        for after in moves(shop, intents):
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    return len(seen)


@pytest.mark.parametrize(("intents", "states"), [(1, 5), (2, 26), (3, 150), (4, 1002)])
def test_no_order_of_things_proves_a_write_that_was_not_made(intents: int, states: int) -> None:
    """Nor denies one that was, where the list shows all there is."""
    assert follow(intents) == states


def test_counting_is_what_keeps_it_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adopting the first free candidate proves what was not made."""

    def greedy(
        candidates: list[str], claims: Claims, me: str, open_intents: int, *, listed: bool
    ) -> Judgement:
        return judge(candidates, claims, me, 1, listed=listed)

    monkeypatch.setattr(objects, "judge", greedy)
    with pytest.raises(AssertionError):
        follow(2)


def test_a_page_that_comes_twice_is_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting the same object twice proves what was not made."""

    def double(
        candidates: list[str], claims: Claims, me: str, open_intents: int, *, listed: bool
    ) -> Judgement:
        numbered = [f"{n}:{found}" if found not in claims else found for n, found in enumerate(candidates)]
        return judge(numbered, claims, me, open_intents, listed=listed)

    monkeypatch.setattr(objects, "judge", double)
    with pytest.raises(AssertionError):
        follow(2)
