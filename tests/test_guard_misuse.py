"""Declarations that cannot be used: each is an error where it stands, and says what to write instead."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import safewrite
from safewrite import Attempt, ConfigurationError, Deadline, DuplicateTool, SafeWrite


@pytest.fixture
def sw(tmp_path: Path) -> SafeWrite:
    """A `SafeWrite` whose ledger is never opened."""
    return SafeWrite(f"sqlite:///{tmp_path}/agent.db")


def body(sub_id: str, reason: str = "", *, attempt: Attempt) -> str:
    """Cancel a subscription."""
    raise AssertionError("nothing is ever called here")


def refused(declare: Callable[[], Any], *says: str) -> None:
    """Assert that a declaration is refused, in words that name what is meant."""
    with pytest.raises(ConfigurationError) as told:
        declare()
    for words in says:
        assert words in str(told.value)


@pytest.mark.parametrize("option", ["target", "free_text", "redact", "precondition"])
def test_names_of_parameters_that_do_not_exist_are_refused(sw: SafeWrite, option: str) -> None:
    """The unknown name is named, and the parameters that there are."""
    given: dict[str, Any] = {"target": "sub_id", option: ("nobody",)}
    if option in ("target", "precondition"):
        given[option] = "nobody"
    refused(lambda: sw.write(**given)(body), f"`{option}`", "`nobody`", "sub_id, reason")


@pytest.mark.parametrize("option", ["target", "free_text", "redact", "precondition"])
def test_the_attempt_is_no_argument_of_the_tool(sw: SafeWrite, option: str) -> None:
    """It differs for every attempt, so it can be neither target nor text."""
    given: dict[str, Any] = {"target": "sub_id", option: ("attempt",)}
    if option in ("target", "precondition"):
        given[option] = "attempt"
    refused(lambda: sw.write(**given)(body), "`attempt`")


@pytest.mark.parametrize("target", [None, 7, [], (), {"a": 1}, "", b"sub_id"])
def test_a_target_that_is_none_is_refused(sw: SafeWrite, target: Any) -> None:
    """There is no default: what the write is about has to be said."""
    refused(lambda: sw.write(target=target)(body))


def test_the_target_must_be_given(sw: SafeWrite) -> None:
    """Leaving it out is Python's own error."""
    with pytest.raises(TypeError, match="target"):
        sw.write()  # type: ignore[call-arg]


@pytest.mark.parametrize("option", ["free_text", "redact"])
def test_a_text_where_a_tuple_is_meant_is_refused(sw: SafeWrite, option: str) -> None:
    """A bare string would be read letter by letter."""
    given: dict[str, Any] = {option: "reason"}
    refused(lambda: sw.write(target="sub_id", **given)(body), f"`{option}`", "tuple")


@pytest.mark.parametrize("option", ["free_text", "redact"])
def test_the_target_is_neither_free_text_nor_secret(sw: SafeWrite, option: str) -> None:
    """What the write is about is compared and recorded."""
    given: dict[str, Any] = {option: ("sub_id",)}
    refused(lambda: sw.write(target="sub_id", **given)(body), "`sub_id`", f"`{option}`")


@pytest.mark.parametrize(
    "bad",
    [
        0,
        0.0,
        -1,
        -0.5,
        math.nan,
        math.inf,
        -math.inf,
        "5",
        True,
        timedelta(0),
        timedelta(seconds=-1),
        object(),
    ],
)
@pytest.mark.parametrize("where", ["timeout", "deadline", "call_cap", "minimum", "run", "options"])
def test_limits_that_are_no_duration_are_refused(sw: SafeWrite, where: str, bad: Any) -> None:
    """Zero, negative, infinite, not a number, text: named with its value, wherever a limit is given."""
    make: dict[str, Callable[[], Any]] = {
        "timeout": lambda: sw.write(target="sub_id", timeout=bad)(body),
        "deadline": lambda: Deadline(bad),
        "call_cap": lambda: safewrite.run("r", call_cap=bad),
        "minimum": lambda: Deadline(5.0, minimum=bad),
        "run": lambda: safewrite.run("r", deadline=bad),
        "options": lambda: sw.write(target="sub_id")(body).options(deadline=bad),
    }
    if where == "minimum" and bad in (0, 0.0, timedelta(0)) and bad is not True:
        assert make[where]().minimum == 0.0  # no least is a choice
        return
    refused(make[where])


@pytest.mark.parametrize("large", [1e9, 1e300, 2**62, timedelta(days=10_000)])
def test_large_finite_limits_are_accepted(sw: SafeWrite, large: Any) -> None:
    """Nobody is told that a year is too long."""
    sw.write(target="sub_id", timeout=large)(body)
    assert Deadline(large).remaining() > 0.0
    safewrite.run("r", deadline=large, call_cap=large)


@pytest.mark.parametrize(
    "option",
    [
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"max_attempts": 2.5},
        {"max_attempts": True},
        {"max_attempts": "3"},
        {"on_conflict": "ignore"},
        {"dependency": "billing"},
        {"not_applied_on": ValueError},
        {"not_applied_on": ("ValueError",)},
        {"not_applied_on": (int,)},
        {"applied_when": True},
        {"wait": 3.0},
        {"in_thread": 1},
        {"name": ""},
        {"name": "   "},
        {"name": 7},
    ],
    ids=str,
)
def test_options_of_another_kind_are_refused(sw: SafeWrite, option: dict[str, Any]) -> None:
    """Each names the option and its value."""
    (name, value), *_ = option.items()
    refused(lambda: sw.write(target="sub_id", **option)(body), f"`{name}`", repr(value))


def test_generators_are_refused(sw: SafeWrite) -> None:
    """A generator "succeeds" before it runs: plain or asynchronous, as a tool or as a read."""

    def generator(sub_id: str) -> Iterator[str]:
        yield sub_id

    async def agenerator(sub_id: str) -> AsyncIterator[str]:
        yield sub_id

    for fn in (generator, agenerator):
        refused(lambda fn=fn: sw.write(target="sub_id")(fn), "generator")
        refused(lambda fn=fn: sw.write(target="sub_id")(body).reconcile(fn), "generator")


def test_what_is_no_function_is_refused(sw: SafeWrite) -> None:
    """Classes, instances, partials and static methods below the decorator are told apart."""

    class Called:
        def __call__(self, sub_id: str) -> str:
            return sub_id

    for thing in (Called, Called(), functools.partial(body, "x"), 7):
        refused(lambda thing=thing: sw.write(target="sub_id")(thing), "decorates functions")


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_above_a_static_or_class_method_it_says_which_goes_first(sw: SafeWrite, kind: Any) -> None:
    """The order is named: the method kind above, the guard below."""
    refused(lambda: sw.write(target="sub_id")(kind(body)), f"Write `@{kind.__name__}` above `@sw.write`")


def test_two_functions_under_one_name_are_refused(sw: SafeWrite) -> None:
    """Both would share their records; the error names both."""

    def one(sub_id: str) -> str:
        return sub_id

    def two(sub_id: str) -> str:
        return sub_id

    sw.write(target="sub_id", name="cancel")(one)
    with pytest.raises(DuplicateTool) as told:
        sw.write(target="sub_id", name="cancel")(two)
    assert "one" in str(told.value)
    assert "two" in str(told.value)
    assert told.value.tool == "cancel"


def test_the_same_function_defined_again_replaces(sw: SafeWrite) -> None:
    """A notebook cell that is run twice is no second tool."""

    def define(value: str) -> Any:
        @sw.write(target="sub_id")
        def cancel(sub_id: str) -> str:
            return value

        return cancel

    define("old")
    cancel = define("new")
    with safewrite.run("r"), safewrite.turn(1):
        assert cancel("sub_1") == "new"
    sw.close()


def test_two_guards_may_have_a_tool_of_one_name_each(tmp_path: Path) -> None:
    """Names are unique within one `SafeWrite`."""
    for n in (1, 2):
        SafeWrite(f"sqlite:///{tmp_path}/{n}.db").write(target="sub_id", name="cancel")(body)


def test_a_read_that_takes_what_the_tool_does_not_have_is_refused(sw: SafeWrite) -> None:
    """The unknown parameter is named, and those that it may take."""
    tool = sw.write(target="sub_id")(body)

    def read(sub_id: str, customer: str) -> None: ...

    def by_position(sub_id: str, /) -> None: ...

    def many(*subs: str) -> None: ...

    refused(lambda: tool.reconcile(read), "`customer`", "attempt, reason, sub_id")
    refused(lambda: tool.reconcile(by_position), "`sub_id` by position")
    refused(lambda: tool.reconcile(many), "`subs`")


def test_a_read_may_take_any_of_the_parameters_and_defaults_of_its_own(sw: SafeWrite) -> None:
    """By name, `attempt` too; and it is returned as it was, so that it can be called."""
    tool = sw.write(target="sub_id")(body)

    def read(attempt: Attempt, sub_id: str, client: object = None) -> str:
        return sub_id

    assert tool.reconcile(read) is read
    refused(lambda: tool.reconcile(read), "`body`", "already", "Keep one of the two")


def test_a_coroutine_function_runs_on_its_loop(sw: SafeWrite) -> None:
    """`in_thread=True` means nothing for it."""

    async def cancel(sub_id: str) -> str:
        return sub_id

    refused(lambda: sw.write(target="sub_id", in_thread=True)(cancel), "`in_thread`", "event loop")


def test_a_positional_only_attempt_is_refused(sw: SafeWrite) -> None:
    """It is taken out of the signature, so it cannot be told by its place."""

    def cancel(attempt: Attempt, /, sub_id: str) -> str:
        return sub_id

    refused(lambda: sw.write(target="sub_id")(cancel), "`attempt`", "positional-only")


@pytest.mark.parametrize(
    "options",
    [
        {"occurence": 1},
        {"run": ""},
        {"run": 7},
        {"turn": ""},
        {"turn": 1.5},
        {"turn": True},
        {"occurrence": True},
        {"occurrence": " "},
        {"occurrence": 1.5},
        {"occurrence": ("a",)},
    ],
    ids=str,
)
def test_options_of_a_call_are_checked_where_they_are_given(sw: SafeWrite, options: dict[str, Any]) -> None:
    """A misspelt or impossible option is an error before the call."""
    refused(lambda: sw.write(target="sub_id")(body).options(**options))


@pytest.mark.parametrize("bad", ["", "  ", None, 7, b"r"])
def test_runs_without_a_name_are_refused(bad: Any) -> None:
    """A run id is a text that the host gives."""
    refused(lambda: safewrite.run(bad), "`run`")


@pytest.mark.parametrize("bad", ["", "  ", None, 1.5, True, b"1", object()])
def test_turns_that_are_neither_text_nor_whole_numbers_are_refused(bad: Any) -> None:
    """A turn is text or a whole number."""
    refused(lambda: safewrite.turn(bad))


@pytest.mark.parametrize("bad", ["", "  ", 7, b"x"])
def test_a_namespace_without_a_name_is_refused(bad: Any) -> None:
    """An empty namespace would pool all tenants."""
    refused(lambda: SafeWrite(namespace=bad), "`namespace`")


@pytest.mark.parametrize("option", ["lease_margin", "max_stall"])
@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf, "5"])
def test_a_guard_checks_its_own_durations(option: str, bad: Any) -> None:
    """They are named with their value."""
    given: dict[str, Any] = {option: bad}
    refused(lambda: SafeWrite(**given), f"`{option}`")


def test_settings_that_do_not_exist_are_refused() -> None:
    """With the nearest name that there is."""
    refused(lambda: SafeWrite(settings={"operation_timout": 5.0}), "operation_timeout")


def test_namespace_and_lease_margin_come_from_the_environment_where_they_are_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An argument wins over the environment, the environment over the default."""
    assert SafeWrite().namespace == "default"
    monkeypatch.setenv("SAFEWRITE_NAMESPACE", "tenant-a")
    monkeypatch.setenv("SAFEWRITE_LEASE_MARGIN", "1.5")
    assert (SafeWrite().namespace, SafeWrite().settings.lease_margin) == ("tenant-a", 1.5)
    given = SafeWrite(namespace="tenant-b", lease_margin=2.0)
    assert (given.namespace, given.settings.lease_margin) == ("tenant-b", 2.0)


def test_declaring_opens_nothing(tmp_path: Path) -> None:
    """The ledger is opened at the first call, not when a module with tools is imported."""
    sw = SafeWrite(f"sqlite:///{tmp_path}/agent.db")
    tool = sw.write(target="sub_id")(body)
    assert tool.options(run="r", turn=1).key("sub_1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("agent.db", "The database URL cannot be read."),
        ("://agent.db", "The database URL cannot be read."),
        ("mysql://root:hunter2@host/agents", "A ledger in `mysql` is not supported."),
        ("postgres://host/agents", "A ledger in `postgres` is not supported."),
    ],
)
def test_a_url_of_another_kind_is_refused_when_the_guard_is_made(url: str, says: str) -> None:
    """At start-up, not at the first call; what may be a password is not repeated."""
    with pytest.raises(ConfigurationError) as refused_:
        SafeWrite(url)
    assert str(refused_.value).startswith(says)
    assert "postgresql+psycopg://" in str(refused_.value)
    assert "hunter2" not in str(refused_.value)
