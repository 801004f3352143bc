"""The decorated function: the same to every reader of signatures and hints, and what can be asked of it."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import inspect
import re
import threading
import types
import typing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, create_model

import safewrite
from safewrite import (
    ALL_ARGUMENTS,
    Attempt,
    BudgetExhausted,
    IntentMismatch,
    MissingTarget,
    NoRunContext,
    OutcomeUnknown,
    SafeWrite,
    WriteReport,
)
from safewrite import Attempt as Renamed
from safewrite.context import current_run, current_tool_call, tool_call
from tests.shell.conftest import KEYED, Shell, Tools, attempts
from tests.shell.remote import LOSE, REFUSE, Remote, reject


class Money(BaseModel):
    """An argument."""

    amount: int


# Signatures, as frameworks read them -----------------------------------------------------------------------------


async def simple(x: str) -> str:
    """Simple."""
    return x


async def with_default(x: str, n: int = 3, *, flag: bool = False) -> dict[str, int]:
    """With defaults."""
    return {x: n}


async def with_attempt(x: str, attempt: Attempt, note: str | None = None) -> str:
    """With an attempt."""
    return x


async def with_attempt_of_another_name(x: str, *, this: Renamed) -> str:
    """With an attempt of another name."""
    return this.key


async def with_attempt_unannotated(x: str, attempt) -> str:  # type: ignore[no-untyped-def]
    """With a bare attempt."""
    return str(attempt.key)


async def annotated(x: Annotated[str, Field(description="which")], way: Literal["a", "b"] = "a") -> Money:
    """Annotated."""
    return Money(amount=1)


async def with_model(x: str, money: Money, more: list[Money] | None = None) -> list[Money]:
    """With a model."""
    return [money]


async def variadic(x: str, *rest: int, **more: str) -> None:
    """Variadic."""


async def untyped(x, y=1):  # type: ignore[no-untyped-def]
    """Untyped."""
    return x


FUNCTIONS = [simple, with_default, annotated, with_model, variadic, untyped]
WITH_ATTEMPT = [with_attempt, with_attempt_of_another_name, with_attempt_unannotated]


def schema(fn: Callable[..., Any], leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what a framework makes of a tool: its parameters as JSON schema, from hints and signature."""
    hints = typing.get_type_hints(fn, include_extras=True)
    fields: dict[str, Any] = {}
    for name, p in inspect.signature(fn).parameters.items():
        if name not in leave_out:
            fields[name] = (hints.get(name, Any), ... if p.default is p.empty else p.default)
    return create_model("Arguments", **fields).model_json_schema()


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_the_wrapper_shows_what_its_function_shows(
    fn: Callable[..., Any], shell: Shell, sw: SafeWrite
) -> None:
    """Name, module, docstring, signature, hints and colour: a schema read from either is the same."""
    plain = shell.colours(fn)
    tool = sw.write(target="x")(plain)
    assert inspect.signature(tool) == inspect.signature(fn)
    assert tool.__annotations__ == fn.__annotations__
    assert repr(typing.get_type_hints(tool, include_extras=True)) == repr(
        typing.get_type_hints(fn, include_extras=True)
    )
    assert schema(tool) == schema(fn)
    assert inspect.iscoroutinefunction(tool) == inspect.iscoroutinefunction(plain)
    assert (tool.__name__, tool.__qualname__, tool.__module__, tool.__doc__) == (
        fn.__name__, fn.__qualname__, fn.__module__, fn.__doc__,
    )  # fmt: skip
    assert tool.fn is plain


@pytest.mark.parametrize("fn", WITH_ATTEMPT, ids=lambda fn: fn.__name__)
def test_the_attempt_is_in_no_schema(fn: Callable[..., Any], shell: Shell, sw: SafeWrite) -> None:
    """It is gone from the signature and from the annotations, and still reaches the body."""
    tool = sw.write(target="x")(shell.colours(fn))
    hidden = tuple(n for n in ("attempt", "this") if n in inspect.signature(fn).parameters)
    assert not set(hidden) & inspect.signature(tool).parameters.keys()
    assert not set(hidden) & tool.__annotations__.keys()
    assert schema(tool) == schema(fn, leave_out=hidden)
    with safewrite.run("r1"), safewrite.turn(1):
        assert shell.call(tool, "a") in ("a", tool.key("a"))


@pytest.mark.parametrize("fn", FUNCTIONS + WITH_ATTEMPT, ids=lambda fn: fn.__name__)
def test_as_tool_differs_in_what_it_returns_alone(
    fn: Callable[..., Any], shell: Shell, sw: SafeWrite
) -> None:
    """The same parameters and colour; the return annotation says that a report may come."""
    made = sw.write(target="x")(shell.colours(fn))
    tool = made.as_tool()
    ours, theirs = inspect.signature(tool), inspect.signature(made)
    assert ours.parameters == theirs.parameters
    assert schema(tool) == schema(made)
    assert inspect.iscoroutinefunction(tool) != shell.plain
    assert (tool.__name__, tool.__doc__) == (fn.__name__, fn.__doc__)
    returns = typing.get_type_hints(tool)["return"]
    assert returns is Any or WriteReport in typing.get_args(returns)
    TypeAdapter(returns)


def test_local_classes_in_text_annotations_do_no_harm(
    shell: Shell, sw: SafeWrite, remote: Remote, run: None
) -> None:
    """A class made where the tool is declared is known to it, also where its hint is text."""

    class Local(BaseModel):
        n: int

    async def cancel(sub_id: str, local: Local) -> str:
        return await remote.write(f"{sub_id} {local.n}")

    tool = sw.write(target="sub_id")(shell.colours(cancel))
    assert shell.call(tool, "a", Local(n=2)) == "a 2 done"
    assert shell.call(tool.outcome, "a", {"n": "2"}).replayed


def test_hints_that_nobody_can_resolve_do_no_harm(
    shell: Shell, sw: SafeWrite, remote: Remote, run: None
) -> None:
    """The others are used; of the one that only type checkers know the value is taken as it is."""

    async def cancel(sub_id: int, way: OnlyForCheckers, attempt: AlsoOnly.Attempt) -> str:  # type: ignore[name-defined] # noqa: F821
        return await remote.write(f"{sub_id} {way}", attempt)

    tool = sw.write(target="sub_id")(shell.colours(cancel))
    assert shell.call(tool, "42", ["as", "it is"]) == "42 ['as', 'it is'] done"
    assert shell.call(tool.outcome, 42, ["as", "it is"]).replayed
    assert list(inspect.signature(tool).parameters) == ["sub_id", "way"]


@pytest.mark.parametrize(
    "hint", [Attempt, Attempt | None, "Attempt", "safewrite.Attempt | None", "Renamed", None]
)
def test_the_attempt_is_known_however_it_is_written(
    hint: Any, shell: Shell, sw: SafeWrite, run: None
) -> None:
    """By its class, under another name, optional, or bare."""

    async def cancel(sub_id: str, attempt: Any = None) -> str:
        return str(attempt.key)

    cancel.__annotations__["attempt"] = hint
    if hint is None:
        del cancel.__annotations__["attempt"]
    tool = sw.write(target="sub_id")(shell.colours(cancel))
    assert shell.call(tool, "a") == tool.key("a")


def test_an_attempt_of_somebody_else_is_an_argument(shell: Shell, sw: SafeWrite, run: None) -> None:
    """A class of the application that happens to have that name."""

    class Attempt(BaseModel):
        score: int

    async def grade(student: str, attempt: Attempt) -> int:
        return attempt.score

    tool = sw.write(target="student")(shell.colours(grade))
    assert shell.call(tool, "a", Attempt(score=3)) == 3
    assert "attempt" in inspect.signature(tool).parameters


def test_a_coroutine_hidden_by_a_plain_decorator_is_never_taken_for_done(
    sw: SafeWrite, run: None, clock: Any
) -> None:
    """Nobody awaited it, so nothing was sent: said so, with what to write instead."""

    async def cancel(sub_id: str) -> str:
        raise AssertionError("never awaited")

    @functools.wraps(cancel)
    def logged(*args: Any) -> Any:
        return cancel(*args)

    tool = sw.write(target="sub_id", max_attempts=1)(logged)
    with pytest.raises(safewrite.WriteNotSent) as told:
        tool("a")
    assert "@sw.write" in str(told.value.__cause__)


def test_a_task_that_a_plain_tool_returns_is_unknown(sw: SafeWrite, run: None) -> None:
    """It may be running: nothing is concluded from it."""

    async def main() -> Any:
        @sw.write(target="sub_id")
        def cancel(sub_id: str) -> Any:
            return asyncio.get_running_loop().create_task(asyncio.sleep(0))

        return cancel.outcome("a")

    outcome = asyncio.run(main())
    assert (outcome.state, outcome.may_still_land) == ("unknown", True)


def test_a_coroutine_that_has_begun_is_unknown(sw: SafeWrite, run: None) -> None:
    """A decorator sent it on its way: what it did until then may stand, and what it will do may come."""
    sent: list[str] = []
    begun: list[Any] = []

    @types.coroutine
    def pause() -> Any:
        yield

    async def cancel(sub_id: str) -> None:
        sent.append(sub_id)
        await pause()

    @functools.wraps(cancel)
    def started(sub_id: str) -> Any:
        begun.append(cancel(sub_id))
        begun[0].send(None)
        return begun[0]

    outcome = sw.write(target="sub_id", max_attempts=1)(started).outcome("a")
    assert (outcome.state, sent) == ("unknown", ["a"])
    assert inspect.getcoroutinestate(begun[0]) == inspect.CORO_SUSPENDED
    begun[0].close()


def test_an_occurrence_of_the_caller_s_own_is_not_the_framework_s(sw: SafeWrite, run: None) -> None:
    """Which of several equal calls it is: a framework counts only where the caller does not, from 0 on."""

    @sw.write(target="sub_id")
    def cancel(sub_id: str) -> None:
        """Cancel a subscription."""

    outside = cancel.options(occurrence=0).key("a")
    with tool_call("call_1", occurrence="second"):
        assert cancel.options(occurrence=0).key("a") == outside
        assert cancel.key("a") == cancel.options(occurrence="second").key("a") != outside


def test_what_a_framework_says_of_its_tool_call_is_not_said_of_a_run_inside_it(
    sw: SafeWrite, run: None
) -> None:
    """An agent that is called as a tool opens a run of its own: its writes are not counted by the outer call."""

    @sw.write(target="sub_id")
    def cancel(sub_id: str) -> None:
        """Cancel a subscription."""

    with safewrite.run("inner"), safewrite.turn(1):
        inner = cancel.key("a")
    with tool_call("call_1", occurrence="second") as outer:
        with safewrite.run("inner"), safewrite.turn(1):
            assert cancel.key("a") == inner
            assert current_tool_call() is None
        assert current_tool_call() is outer


def test_a_scope_that_is_left_in_another_context_is_over_there() -> None:
    """A framework enters in one task and leaves in another, to which the values were handed on."""
    scope, entered = safewrite.run("r1"), contextvars.copy_context()
    entered.run(scope.__enter__)
    elsewhere = entered.copy()

    def leave() -> list[Any]:
        before = current_run()
        scope.__exit__(None, None, None)
        return [before is not None and before.id, current_run()]

    assert elsewhere.run(leave) == ["r1", None]


def test_attributes_of_the_function_are_kept(shell: Shell, sw: SafeWrite) -> None:
    """What another decorator has put on it is there above."""

    async def cancel(sub_id: str) -> str:
        return sub_id

    made = shell.colours(cancel)
    made.__dict__["tags"] = ["billing"]
    assert sw.write(target="sub_id")(made).tags == ["billing"]


def test_it_works_below_another_decorator(shell: Shell, sw: SafeWrite, remote: Remote, run: None) -> None:
    """A wrapper around the guarded tool sees a normal function."""

    async def cancel(sub_id: str) -> str:
        return await remote.write(sub_id)

    guarded = sw.write(target="sub_id")(shell.colours(cancel))
    if shell.plain:

        @functools.wraps(guarded)
        def above(*args: Any, **kwargs: Any) -> Any:
            return guarded(*args, **kwargs)
    else:

        @functools.wraps(guarded)
        async def above(*args: Any, **kwargs: Any) -> Any:
            return await guarded(*args, **kwargs)

    assert inspect.signature(above) == inspect.signature(cancel)
    assert shell.call(above, "a") == "a done"


# Methods, closures ---------------------------------------------------------------------------------------------------


def test_what_a_closure_holds_is_in_no_key_and_a_name_is(
    shell: Shell, sw: SafeWrite, remote: Remote, run: None
) -> None:
    """Two tools that one function makes are one to the ledger, unless each has its name."""

    def made(tenant: str, name: str | None = None) -> Any:
        async def cancel(sub_id: str) -> str:
            return await remote.write(f"{sub_id} of {tenant}")

        return sw.write(target="sub_id", name=name)(shell.colours(cancel))

    assert shell.call(made("one"), "a") == "a of one done"
    assert shell.call(made("two"), "a") == "a of one done"
    assert shell.call(made("two", "cancel_of_two"), "a") == "a of two done"
    assert len(remote.effects) == 2


def test_methods_are_tools_and_self_is_in_no_key(
    shell: Shell, sw: SafeWrite, remote: Remote, run: None
) -> None:
    """Two instances share the intent; the body runs on the instance that was called."""
    used: list[str] = []

    class Billing:
        def __init__(self, name: str) -> None:
            self.name = name

        async def cancel(self, sub_id: str, attempt: Attempt) -> str:
            used.append(self.name)
            return await remote.write(sub_id, attempt)

        @classmethod
        async def close(cls, sub_id: str) -> str:
            return await remote.write(f"{cls.__name__} {sub_id}")

        @staticmethod
        async def ping(sub_id: str) -> str:
            return await remote.write(f"ping {sub_id}")

    for name, target in {"cancel": "sub_id", "close": ALL_ARGUMENTS, "ping": "sub_id"}.items():
        found = inspect.getattr_static(Billing, name)
        kind = type(found) if isinstance(found, classmethod | staticmethod) else None
        guarded = sw.write(target=target)(shell.colours(found.__func__ if kind else found))
        setattr(Billing, name, kind(guarded) if kind else guarded)
    first, second = Billing("first"), Billing("second")
    assert shell.call(first.cancel, "a") == "a done"
    assert shell.call(second.cancel, "a") == "a done"
    assert shell.call(Billing.cancel, second, "b") == "b done"
    assert used == ["first", "second"]
    assert shell.call(Billing.close, "c") == "Billing c done"
    assert shell.call(first.ping, "d") == "ping d done"
    assert shell.call(Billing.cancel.outcome, first, "a").replayed
    assert Billing.cancel.key(first, "a") == Billing.cancel.key(second, "a")
    assert list(inspect.signature(first.cancel).parameters) == ["sub_id"]


def test_a_method_asked_through_its_instance_says_how_to_ask(
    shell: Shell, sw: SafeWrite, remote: Remote, run: None
) -> None:
    """Python binds no `self` there: what would be taken for it is refused before anything is sent."""

    class Billing:
        async def cancel(self, sub_id: str, note: str = "") -> str:
            return await remote.write(sub_id)

    Billing.cancel = sw.write(target="sub_id")(shell.colours(Billing.cancel))  # type: ignore[method-assign]
    billing: Any = Billing()
    for ask in (billing.cancel.outcome, billing.cancel.options(occurrence=1), billing.cancel.as_tool()):
        for arguments in (("a",), ("a", "b")):
            with pytest.raises(safewrite.ConfigurationError, match=r"Class\.cancel\.outcome\(instance"):
                shell.call(ask, *arguments)
    assert remote.attempts == []
    assert shell.call(Billing.cancel.outcome, billing, "a").state == "applied"  # type: ignore[attr-defined]


def test_a_method_may_be_read_back_by_its_class(
    shell: Shell, sw: SafeWrite, remote: Remote, run: None, clock: Any
) -> None:
    """A read that takes `self` gets the instance of the call."""

    class Billing:
        found = "found"

        async def cancel(self, sub_id: str, attempt: Attempt) -> str:
            return await remote.write(sub_id, attempt)

        async def read(self, sub_id: str) -> Any:
            return safewrite.Applied(f"{self.found} {sub_id}")

    guarded = sw.write(target="sub_id")(shell.colours(Billing.cancel))
    guarded.reconcile(shell.colours(Billing.read))
    Billing.cancel = guarded  # type: ignore[method-assign]
    remote.next(LOSE)
    assert shell.call(Billing().cancel, "a") == "found a"


# Keys --------------------------------------------------------------------------------------------------------------


def test_every_way_to_call_gives_one_key(shell: Shell, sw: SafeWrite) -> None:
    """By place or by name, with a default given or left out."""

    async def pay(order: int, amount: int = 100, *, reason: str = "dup") -> None: ...

    pay_tool = sw.write(target=ALL_ARGUMENTS)(shell.colours(pay)).options(run="r1", turn=1)
    keys = {
        pay_tool.key(1),
        pay_tool.key(1, 100),
        pay_tool.key(order=1),
        pay_tool.key("1", amount="100", reason="dup"),
        pay_tool.key(amount=100, order=1),
    }
    assert len(keys) == 1
    (key,) = keys
    assert key.startswith("sw1_")
    assert len(key) <= 64
    assert pay_tool.key(2) not in keys
    assert pay_tool.key(1, reason="x") not in keys


def test_three_and_its_text_are_one_turn(shell: Shell, tool: Tools, remote: Remote) -> None:
    """Whichever the host passes after a resume."""
    cancel = tool()
    for turn in (3, "3"):
        with safewrite.run("r1"), safewrite.turn(turn):
            shell.call(cancel, "sub_1")
    assert remote.count() == 1
    assert cancel.options(run="r1", turn=3).key("a") == cancel.options(run="r1", turn="3").key("a")


def test_run_turn_tool_namespace_target_and_occurrence_make_the_key(
    shell: Shell, tool: Tools, open_sw: Callable[..., SafeWrite]
) -> None:
    """A change of any of them is another intent; a change of anything else is not."""
    cancel = tool(name="cancel")
    base: dict[str, Any] = {"run": "r1", "turn": 1}
    keys = [
        cancel.options(**base).key("a"),
        cancel.options(**{**base, "run": "r2"}).key("a"),
        cancel.options(**{**base, "turn": 2}).key("a"),
        cancel.options(**base, occurrence=1).key("a"),
        cancel.options(**base).key("b"),
        tool(name="close").options(**base).key("a"),
        tool(open_sw(namespace="tenant-b"), name="cancel").options(**base).key("a"),
    ]
    assert len(set(keys)) == len(keys)
    assert cancel.options(**base, deadline=5.0, beside_unknown=True).key("a", reason="x", amount=7) == keys[0]
    assert all("a" not in key.split("_")[0] for key in keys)


def test_a_moved_function_keeps_its_keys_under_its_given_name(
    shell: Shell, open_sw: Callable[..., SafeWrite]
) -> None:
    """`name=` is what the key knows, not the place in the code."""

    async def before(order: str) -> None: ...

    async def after(order: str) -> None: ...

    keys = {
        open_sw().write(target="order", name="refund")(shell.colours(fn)).options(run="r", turn=1).key("o1")
        for fn in (before, after)
    }
    assert len(keys) == 1


def test_tenants_share_nothing(
    shell: Shell, tool: Tools, remote: Remote, open_sw: Callable[..., SafeWrite], run: None
) -> None:
    """The same run and target in two namespaces are two writes, and neither sees the other's value."""
    for namespace in ("tenant-a", "tenant-b"):
        outcome = shell.call(tool(open_sw(namespace=namespace)).outcome, "o1")
        assert not outcome.replayed
        assert namespace not in repr(outcome)
    assert remote.count() == 2


def test_two_tools_with_the_same_target_share_nothing(
    shell: Shell, tool: Tools, remote: Remote, sw: SafeWrite, run: None
) -> None:
    """The tool's name is part of the key."""
    for name in ("refund", "ship"):
        shell.call(tool(sw, name=name), "o1")
    assert remote.count() == 2


# Asking ------------------------------------------------------------------------------------------------------------


def test_peek_tells_the_record_and_does_nothing(
    shell: Shell, tool: Tools, remote: Remote, sw: SafeWrite, run: None
) -> None:
    """None before the first call; afterwards the outcome; it sends, reads and records nothing, and needs no loop."""
    cancel = tool(sw)
    assert cancel.peek("sub_1") is None
    shell.call(cancel, "sub_1")
    before = sw.ledger.find(cancel.key("sub_1")).state.revision  # type: ignore[union-attr]
    seen = cancel.peek("sub_1")
    assert (seen.state, seen.value, seen.replayed, seen.sent) == ("applied", "sub_1 done", True, False)
    assert sw.ledger.find(cancel.key("sub_1")).state.revision == before  # type: ignore[union-attr]
    assert (remote.count(), remote.reads) == (1, 0)


@pytest.mark.usefixtures("clock")
def test_peek_at_an_unknown_does_not_read(shell: Shell, tool: Tools, remote: Remote, run: None) -> None:
    """It shows what stands there."""
    cancel = tool()
    remote.by_key = lambda key: None  # type: ignore[method-assign,assignment,return-value]
    remote.next(LOSE)
    shell.call(cancel.outcome, "sub_1")
    seen = cancel.peek("sub_1")
    assert (seen.state, seen.may_still_land) == ("unknown", True)
    assert len(remote.attempts) == 1


@pytest.mark.usefixtures("clock")
def test_outcome_raises_only_for_misuse(shell: Shell, tool: Tools, remote: Remote, run: None) -> None:
    """Unknown, rejected, never sent: an Outcome each; a mismatch, a missing target, no run: raised."""
    cancel = tool(read=None, max_attempts=1)
    remote.next(LOSE, reject(), REFUSE)
    states = [shell.call(cancel.outcome, target).state for target in ("a", "b", "c", "d")]
    assert states == ["unknown", "not_applied", "not_applied", "applied"]
    with pytest.raises(IntentMismatch):
        shell.call(cancel.outcome, "d", amount=9)
    with pytest.raises(MissingTarget):
        shell.call(cancel.outcome, "")
    with pytest.raises(TypeError):
        shell.call(cancel.outcome)


def test_options_set_the_run_the_turn_and_the_deadline_of_a_call(
    shell: Shell, tool: Tools, remote: Remote
) -> None:
    """No context is needed then; options add up, and bind nothing but their own copy."""
    cancel = tool()
    here = cancel.options(run="r9").options(turn="x")
    assert shell.call(here, "sub_1") == "sub_1 done"
    with pytest.raises(NoRunContext):
        shell.call(cancel, "sub_1")
    with pytest.raises(BudgetExhausted):
        shell.call(here.options(deadline=safewrite.Deadline(0.5, minimum=1.0)), "sub_2")
    with safewrite.run("r9"), safewrite.turn("x"):
        assert shell.call(cancel.outcome, "sub_1").replayed
    assert shell.call(here.outcome, "sub_1").replayed
    assert here.peek("sub_1").state == "applied"
    assert shell.call(here.as_tool(), "sub_1") == "sub_1 done"


# For agents ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
def test_as_tool_never_raises_for_the_fate_of_a_write(
    shell: Shell, tool: Tools, remote: Remote, run: None
) -> None:
    """Unknown, rejected, never sent, mismatch, missing target: a report each, that says what to do."""
    cancel = tool(read=None, max_attempts=1).as_tool()
    remote.next(LOSE, reject(), REFUSE)
    unknown, rejected, not_sent, done = (shell.call(cancel, target) for target in ("a", "b", "c", "d"))
    mismatch = shell.call(cancel, "d", amount=9)
    missing = shell.call(cancel, "")
    assert done == "d done"
    told = [unknown, rejected, not_sent, mismatch, missing]
    assert all(isinstance(report, WriteReport) for report in told)
    assert [r.state for r in told] == ["unknown", "not_applied", "not_applied", "applied", "not_applied"]
    assert [r.do_not_repeat for r in told] == [True, True, False, True, False]
    assert unknown.may_still_land
    assert "Do not call this tool again" in unknown.message
    assert "`amount`" in mismatch.message
    assert "nothing was sent" in mismatch.message.lower()
    assert all(WriteReport.model_validate(r.model_dump()) == r for r in told)


def test_as_tool_raises_for_faults_of_the_set_up(shell: Shell, tool: Tools, run: None) -> None:
    """A program error is for a person: no run, arguments that do not fit."""
    cancel = tool().as_tool()
    with pytest.raises(TypeError):
        shell.call(cancel)
    with safewrite.run("r2"), pytest.raises(NoRunContext):
        shell.call(cancel, "a")


@pytest.mark.usefixtures("clock")
def test_as_tool_tells_a_goal_that_may_still_be_undone(
    shell: Shell, tool: Tools, remote: Remote, run: None
) -> None:
    """A state that is so while an attempt may still land comes as a report, not as a bare value."""
    cancel = tool(read="state").as_tool()
    remote.next(LOSE)
    report = shell.call(cancel, "sub_1")
    assert isinstance(report, WriteReport)
    assert report.value == "sub_1 done"
    assert (report.state, report.may_still_land, report.do_not_repeat) == ("applied", True, True)


# The attempt, and the context --------------------------------------------------------------------------------------


def test_the_attempt_tells_who_it_is_and_what_is_left(
    shell: Shell, sw: SafeWrite, remote: Remote, run: None, clock: Any
) -> None:
    """Key, number, id, headers and time: fixed for the attempt but for what is left of it."""
    seen: list[tuple[Attempt, dict[str, str], float]] = []

    async def cancel(sub_id: str, attempt: Attempt) -> str:
        seen.append((attempt, attempt.headers, attempt.timeout))
        clock.advance(2.0)
        seen.append((attempt, attempt.headers, attempt.remaining()))
        return await remote.write(sub_id, attempt)

    tool = sw.write(target="sub_id", timeout=9.0)(shell.colours(cancel))
    outcome = shell.call(tool.outcome, "sub_1")
    (attempt, first, timeout), (_, second, remaining) = seen
    assert (attempt.number, attempt.key) == (1, outcome.key)
    assert first["Idempotency-Key"] == outcome.key
    assert first["X-Attempt-Id"] == attempt.id == attempts(sw, outcome)[0].id
    assert first["X-Request-Deadline-At"] == second["X-Request-Deadline-At"]
    assert (first["X-Request-Deadline-Ms"], second["X-Request-Deadline-Ms"]) == ("9000", "7000")
    assert (timeout, remaining) == (pytest.approx(9.0), pytest.approx(7.0))
    assert outcome.key not in repr(attempt)


def test_the_current_attempt_is_there_where_no_parameter_is_wanted(
    shell: Shell, sw: SafeWrite, remote: Remote, run: None
) -> None:
    """In the body, in what it calls, and nowhere else."""
    seen: list[Attempt | None] = []

    async def cancel(sub_id: str) -> str:
        seen.append(safewrite.current_attempt())
        return await remote.write(sub_id)

    tool = sw.write(target="sub_id", timeout=5.0)(shell.colours(cancel))
    outcome = shell.call(tool.outcome, "sub_1")
    assert seen[0] is not None
    assert seen[0].key == outcome.key
    assert safewrite.current_attempt() is None


VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="lost")


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_bodies_and_reads_see_the_callers_context(
    timeout: float | None, shell: Shell, sw: SafeWrite, remote: Remote, run: None, clock: Any
) -> None:
    """Context variables are carried into the threads of bodies and of reads, and what a body sets stays inside."""
    seen: list[str] = []

    async def cancel(sub_id: str, attempt: Attempt) -> str:
        seen.append(VARIABLE.get())
        VARIABLE.set("the body's")
        return await remote.write(sub_id, attempt)

    async def read(sub_id: str) -> Any:
        seen.append(VARIABLE.get())
        return safewrite.Applied("found")

    tool = sw.write(target="sub_id", timeout=timeout)(shell.colours(cancel))
    tool.reconcile(shell.colours(read))
    remote.next(LOSE)
    VARIABLE.set("the caller's")
    assert shell.call(tool, "sub_1") == "found"
    assert seen == ["the caller's", "the caller's"]
    assert VARIABLE.get() == "the caller's"


def test_a_coroutine_read_of_a_plain_tool_runs_on_a_loop_of_its_own(
    sw: SafeWrite, run: None, clock: Any
) -> None:
    """The colours of tool and read are independent."""
    remote = Remote("plain")

    @sw.write(target="sub_id")
    def cancel(sub_id: str) -> str:
        raise TimeoutError

    @cancel.reconcile
    async def _(sub_id: str) -> Any:
        await asyncio.sleep(0)
        return safewrite.Applied(VARIABLE.get())

    VARIABLE.set("carried")
    assert cancel("sub_1") == "carried"
    assert remote.count() == 0


def test_a_plain_read_of_a_coroutine_tool_runs_in_a_thread(sw: SafeWrite, run: None, clock: Any) -> None:
    """It may block without holding up the loop, and sees the context."""
    where: list[threading.Thread] = []

    @sw.write(target="sub_id")
    async def cancel(sub_id: str) -> str:
        raise TimeoutError

    @cancel.reconcile
    def _(sub_id: str) -> Any:
        where.append(threading.current_thread())
        return safewrite.Applied(VARIABLE.get())

    VARIABLE.set("carried")
    assert asyncio.run(_awaited(cancel("sub_1"))) == "carried"
    assert where[0] is not threading.main_thread()


async def _awaited(call: Any) -> Any:
    return await call


def test_a_thread_without_context_is_refused_and_never_inherits_a_stale_run(
    shell: Shell, tool: Tools, remote: Remote
) -> None:
    """A pool thread that worked for run A knows nothing of it under run B; `to_thread` carries the right one."""
    cancel = tool()

    def work() -> str:
        return str(shell.call(cancel, "sub_1"))

    with ThreadPoolExecutor(1) as pool:
        with safewrite.run("A"), safewrite.turn(1):
            assert pool.submit(contextvars.copy_context().run, work).result() == "sub_1 done"
        with safewrite.run("B"), safewrite.turn(1), pytest.raises(NoRunContext):
            pool.submit(work).result()
    assert remote.count() == 1


def test_a_run_left_in_another_context_is_closed_all_the_same() -> None:
    """Framework hooks enter and leave in different tasks; nothing raises and nothing leaks."""
    scope = safewrite.run("r1")
    contextvars.copy_context().run(scope.__enter__)
    scope.__exit__(None, None, None)
    with scope as opened:
        assert opened.id == "r1"
        with pytest.raises(safewrite.ConfigurationError, match="open already"):
            scope.__enter__()
    from safewrite.context import current_run

    assert current_run() is None


def test_runs_and_turns_are_context_managers_of_both_colours(
    shell: Shell, tool: Tools, remote: Remote
) -> None:
    """`async with` opens them as well."""
    cancel = tool()

    async def main() -> None:
        async with safewrite.run("r1", agent="planner") as opened, safewrite.turn(1) as turn:
            assert (opened.agent, turn) == ("planner", "1")
            result = cancel("sub_1")
            if not shell.plain:
                await result

    other = Shell("coroutine")
    other.call(main)
    other.close()
    assert remote.count() == 1


def test_a_tool_that_was_declared_knows_itself(shell: Shell, tool: Tools, sw: SafeWrite) -> None:
    """The wrapper can be copied with its module, and asked for its function."""
    cancel = tool(sw)
    assert copy.copy(cancel) is cancel
    assert sw.tools["cancel"].fn is cancel.fn
    with pytest.raises(OutcomeUnknown):
        raise OutcomeUnknown(key="sw1_x", tool="cancel")


def test_variadic_arguments_are_converted_recorded_and_passed_on(
    shell: Shell, sw: SafeWrite, remote: Remote, run: None, clock: Any
) -> None:
    """Positional and named ones alike, also for a later attempt, which gets them from the record."""
    seen: list[Any] = []

    async def tag(sub_id: str, *rest: int, attempt: Attempt, **more: int) -> str:
        seen.append((rest, more))
        return await remote.write(sub_id, attempt)

    tool = sw.write(target="sub_id", dependency=KEYED)(shell.colours(tag))
    remote.next(LOSE)
    assert shell.call(tool, "a", "1", 2, x="3") == "a done"
    assert seen == [((1, 2), {"x": 3})] * 2


def test_a_target_may_be_a_function_of_all_arguments(shell: Shell, sw: SafeWrite) -> None:
    """By their names, as one mapping, or by keywords of any name."""

    async def pay(order: str, amount: int) -> None: ...

    targets: list[Callable[..., Any]] = [
        lambda order, amount: (order, amount),
        lambda given: (given["order"], given["amount"]),
        lambda **given: (given["order"], given["amount"]),
    ]
    keys = set()
    for target in targets:
        tool = sw.write(target=target, name="pay")(shell.colours(pay))
        keys.add(tool.options(run="r", turn=1).key("o1", 5))
        sw.tools.clear()
    assert len(keys) == 1


@pytest.mark.usefixtures("clock")
def test_the_type_of_a_value_is_read_out_of_the_verdicts_in_the_hint(
    shell: Shell, sw: SafeWrite, remote: Remote, run: None
) -> None:
    """`Applied[Money] | StillRunning` returns a Money, the first time and in a replay."""

    async def charge(card: str) -> safewrite.Applied[Money] | safewrite.StillRunning:
        return safewrite.Applied(Money(amount=3))

    async def nothing(card: str) -> safewrite.NotApplied | safewrite.StillRunning:
        return safewrite.NotApplied()

    tool = sw.write(target="card")(shell.colours(charge))
    assert [shell.call(tool, "c") for _ in range(2)] == [Money(amount=3)] * 2
    assert shell.call(sw.write(target="card")(shell.colours(nothing)).outcome, "c").state == "not_applied"


# Arguments by name -----------------------------------------------------------------------------------------------


def _usual(a: Any, b: Any = 2, *, c: Any, d: Any = 4) -> None: ...


def _by_place(a: Any, /, b: Any = 2) -> None: ...


def _more(a: Any, *more: Any, **named: Any) -> None: ...


def _named(*, a: Any, b: Any = 2) -> None: ...


GIVEN: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (
    ((), {}),
    ((1,), {}),
    ((1, 5), {}),
    ((1, 5, 6), {}),
    ((1,), {"c": 3}),
    ((1, 5), {"d": 7, "c": 3}),
    ((1,), {"a": 1, "c": 3}),
    ((1,), {"c": 3, "e": 5}),
    ((), {"c": 3, "a": 1}),
    ((), {"c": 3, "e": 1}),
    ((), {"a": 1, "b": 2}),
    ((1, 5, 6), {"c": 3}),
    ((1, 5, 6, 7), {"e": 3}),
)


@pytest.mark.parametrize("fn", [_usual, _by_place, _more, _named])
@pytest.mark.parametrize("given", GIVEN)
def test_arguments_have_the_names_that_python_gives_them(
    sw: SafeWrite, fn: Callable[..., Any], given: tuple[tuple[Any, ...], dict[str, Any]]
) -> None:
    """In the order of the signature, and what does not fit is refused in Python's words."""
    tool: Any = sw.write(target="a")(fn)
    args, kwargs = given
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
    except TypeError as error:
        with pytest.raises(TypeError, match=re.escape(str(error))):
            tool.tool.bind(args, kwargs)
        return
    bound.apply_defaults()
    assert list(tool.tool.bind(args, kwargs).items()) == list(bound.arguments.items())
