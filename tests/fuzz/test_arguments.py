"""Any arguments: an exit code that is documented, a line that says what was wrong, and a ledger as it was."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.arguments import NUMBERS, OTHERS, TEXTS, URLS, Desk, commands, harmless
from tests.fuzz.documents import examples

COMMANDS = commands()
OPTIONS = sorted(
    {name for params in COMMANDS.values() for one in params for name in one.opts if name[0] == "-"}
)
TYPED = [
    (path, one.opts[0])
    for path, params in COMMANDS.items()
    for one in params
    if one.opts[0] == "--as" or (one.opts[0][0] == "-" and one.metavar in ("N", "SECONDS"))
]
GOOD: dict[str, list[str]] = {
    "run": ["run-1"], "replay": ["case.json"], "recover": ["fuzzed_app:sw"], "show": [], "export": [], "resolve": [],
}  # fmt: skip
TEXT = st.text(st.characters(exclude_characters="/"), max_size=4)
VALUES = st.sampled_from([*NUMBERS, *TEXTS, *URLS, *OTHERS]) | TEXT


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """One desk for all examples."""
    return Desk(tmp_path_factory.mktemp("desk"))


@examples(60)
@given(
    words=st.lists(
        st.sampled_from([*OPTIONS, *(word for path in COMMANDS for word in path)]) | VALUES, max_size=6
    )
)
def test_any_words_at_all(desk: Desk, words: list[str]) -> None:
    """Names of commands and options, values, and any text, in any order."""
    if harmless(words):
        desk.run(words)


@st.composite
def likely(draw: st.DrawFn, names: list[str]) -> list[str]:
    """Return a command as somebody might write it, with a few values that are not what they should be."""
    path = draw(st.sampled_from([path for path in COMMANDS if path]))
    made, command = list(path), path[-1]
    params = COMMANDS[path]
    for place, _ in enumerate(one for one in params if one.opts[0][0] != "-" and one.required):
        good = ["applied", "not-applied"] if place else GOOD.get(command, []) or names
        made.append(draw(st.sampled_from(good)) if draw(st.integers(0, 5)) else draw(VALUES))
    if command == "plan":
        made += ["--total", "18", "--calls", "6", "-p", "50=0.4,99=9", "--tasks", "10"]
    if command == "resolve":
        made += ["--by", draw(VALUES), "--note", draw(VALUES)]
    for one in draw(st.lists(st.sampled_from([one for one in params if one.opts[0][0] == "-"]), max_size=3)):
        name = draw(st.sampled_from(one.opts))
        if name in ("--every", "--tasks", "--help"):
            continue
        suits = URLS if name == "--url" else NUMBERS if one.metavar in ("N", "SECONDS") else OTHERS
        value = draw(st.sampled_from(suits) | VALUES)
        made += [name] if one.is_flag else [f"{name}={value}"] if draw(st.booleans()) else [name, value]
    return made


@examples(80)
@given(data=st.data())
def test_any_values_of_a_command(desk: Desk, data: st.DataObject) -> None:
    """A command that is nearly right gets further than one that is not."""
    desk.run(data.draw(likely(desk.names)))


def is_number(text: str) -> bool:
    """Whether Python takes a text for a number."""
    with contextlib.suppress(ValueError):
        float(text)
        return True
    return False


@pytest.mark.parametrize(
    ("path", "option"), TYPED, ids=lambda part: part if isinstance(part, str) else " ".join(part)
)
@examples(2)
@given(text=TEXT.filter(lambda text: not is_number(text) and text != "case"))
def test_what_is_no_number_is_named_with_its_option(
    desk: Desk, path: tuple[str, ...], option: str, text: str
) -> None:
    """Every option that takes numbers, or one of a few words."""
    ended = desk.run([*path, *required(path, option), option, text])
    assert (ended.code, ended.out) == (2, "")
    assert option in ended.err


def required(path: tuple[str, ...], option: str) -> list[str]:
    """Return what a command cannot do without, besides one option."""
    made: list[str] = []
    for one in COMMANDS[path]:
        if one.required and one.opts[0] != option:
            made += [one.opts[0], "1"] if one.opts[0][0] == "-" else ["1"]
    return made


@pytest.mark.parametrize("every", ["nan", "inf", "-inf", "0", "1e400", "-1"])
def test_a_pause_that_is_none_is_refused(desk: Desk, every: str) -> None:
    """Before anything is done, for it would only be found out after that."""
    ended = desk.run(["recover", "fuzzed_app:sw", "--every", every])
    assert ended.code == 2
    assert "--every" in ended.err


@given(name=TEXT.filter(str.isprintable).filter(lambda text: text.strip() and "=" not in text))
@examples(10)
def test_what_does_not_exist_is_named(desk: Desk, name: str) -> None:
    """An option and a command that nobody knows."""
    unknown: list[Any] = [f"--no-{name}", f"no-{name}"]
    for word in unknown:
        ended = desk.run([word])
        assert ended.code == 2
        assert word in ended.err


@pytest.mark.parametrize("url", URLS)
def test_every_kind_of_url(desk: Desk, url: str) -> None:
    """Good ones, broken ones, and those that the driver itself would choke on."""
    desk.run(["runs", "--url", url])
    desk.run(["db", "check", "--url", url])
