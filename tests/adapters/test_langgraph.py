"""LangChain's agents and LangGraph's graphs, the installed ones: one effect, and the right answer each time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ToolRetryMiddleware,
    before_model,
)
from langchain.tools import tool
from langchain_core.messages import RemoveMessage, ToolMessage
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphInterrupt, NodeTimeoutError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, RetryPolicy, TimeoutPolicy, interrupt

import safewrite
from safewrite import ConfigurationError, NoRunContext
from safewrite.adapters.langgraph import SafeWriteMiddleware
from tests.adapters.graphs import ASK, THREAD, Bench, answers, refund, steps

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    """Plain tools and `invoke`, or coroutine tools and `ainvoke`."""
    return str(request.param)


@pytest.fixture
def bench(tmp_path: Path, colour: str) -> Any:
    """Tools, ledger, checkpoints and effects of one test."""
    made = Bench(tmp_path, colour)
    yield made
    made.sw.close()


def blind(tmp_path: Path, colour: str) -> Bench:
    """Return a bench whose write nobody can look up."""
    (tmp_path / "blind").mkdir()
    return Bench(tmp_path / "blind", colour, reads=False)


# What the model sees and is told ---------------------------------------------------------------------------------


def test_the_model_sees_the_schema_of_the_undecorated_tool(bench: Bench) -> None:
    """The attempt is in no schema, and nothing else differs."""

    def refund(order: str, amount: int = 5) -> str:
        """Refund an order."""
        raise NotImplementedError

    assert convert_to_openai_tool(bench.tool) == convert_to_openai_tool(tool(refund))
    assert convert_to_openai_tool(tool(bench.write.as_tool())) == convert_to_openai_tool(tool(refund))


def test_a_write_is_made_under_thread_and_turn(bench: Bench) -> None:
    """The run is the thread id, the turn our counter; the call's id is in the audit, not in the key."""
    told = answers(bench.go(bench.agent(steps([refund()]))))
    assert [m.content for m in told] == ["refunded 5"]
    assert told[0].artifact["state"] == "applied"
    assert bench.write.options(run="thread-1", turn=1).key(order="o1") == told[0].artifact["key"]


@pytest.mark.parametrize("kind", ["agent", "graph"])
def test_an_unknown_is_a_normal_message(tmp_path: Path, colour: str, kind: str) -> None:
    """It says not to repeat, that it may still be running, and how to look; the data lie beside it."""
    bench = blind(tmp_path, colour)
    bench.mode = "lost"
    make = bench.agent(steps([refund()])) if kind == "agent" else bench.graph(steps([refund()]))
    (told,) = answers(bench.go(make))
    assert told.status == "success"
    assert "not known whether `refund` took effect" in told.content
    assert "may still be running" in told.content
    assert "Do not call this tool again" in told.content
    assert f"safewrite show {told.artifact['key']}" in told.content
    assert told.artifact["state"] == "unknown"
    assert told.artifact["do_not_repeat"] is True
    assert len(bench.effects) == 1


def test_a_write_that_was_not_sent_is_told_as_failed(bench: Bench) -> None:
    """Nothing happened, and the message says that it may be called again."""
    bench.mode = "unsent"
    (told,) = answers(bench.go(bench.agent(steps([refund()]))))
    assert (told.status, told.artifact["state"]) == ("error", "not_applied")
    assert "You may call it again" in told.content


def test_misuse_by_the_model_is_told_to_it(bench: Bench) -> None:
    """An empty target, and other values for the same target in one turn."""
    told = answers(bench.go(bench.agent(steps([refund("")], [refund(), refund(amount=7)]))))
    assert told[0].artifact["reason"] == "missing_target"
    applied, refused = sorted(
        told[1:], key=lambda m: "Nothing was sent" in m.content
    )  # which of them is first is open
    assert (bench.effects[0].split()[1] in applied.content, refused.artifact["do_not_repeat"]) == (True, True)
    assert "other values of `amount`" in refused.content
    assert len(bench.effects) == 1


# Run again by the framework ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["above", "below"])
@pytest.mark.parametrize("reads", [True, False])
def test_a_retry_middleware_writes_once(tmp_path: Path, colour: str, place: str, reads: bool) -> None:
    """Above ours it sees no error; below, the same write is found again, and its text is put right."""
    (tmp_path / "x").mkdir()
    bench = Bench(tmp_path / "x", colour, reads=reads)
    bench.mode = "lost"
    retry, safe = ToolRetryMiddleware(initial_delay=0.0), SafeWriteMiddleware()
    middleware = [retry, safe] if place == "above" else [safe, retry]
    (told,) = answers(bench.go(bench.agent(steps([refund()]), middleware=middleware)))
    assert len(bench.effects) == 1
    if reads:
        assert (told.content, told.artifact["evidence"]) == ("refunded 5", "reconciled")
    else:
        assert told.status == "success"
        assert "not known whether" in told.content
        assert "try again" not in told.content


def test_a_retry_policy_writes_once(bench: Bench) -> None:
    """The node is run again because of another call in it; the write beside it is answered from the record."""
    tries = []

    @tool
    def flaky() -> str:
        """Fail at first."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return "well"

    make = bench.graph(
        steps([refund(), {"name": "flaky", "args": {}}]),
        retry=RetryPolicy(initial_interval=0.001),
        also=[flaky],
    )
    told = answers(bench.go(make))
    assert (len(tries), len(bench.effects)) == (3, 1)
    assert [m.content for m in told] == ["refunded 5", "well"]
    assert told[0].artifact["replayed"] is True


def test_error_texts_of_a_tool_node_do_not_reach_the_model(tmp_path: Path, colour: str) -> None:
    """With `handle_tool_errors=True` the node would say "please fix your mistakes"."""
    bench = blind(tmp_path, colour)
    bench.mode = "lost"
    (told,) = answers(bench.go(bench.graph(steps([refund()]), handle_tool_errors=True)))
    assert "not known whether" in told.content
    assert "fix" not in told.content


def test_an_error_behind_a_write_that_was_applied_is_not_told_in_its_place(
    tmp_path: Path, colour: str
) -> None:
    """What LangChain cannot make a message of was written all the same: told to fix it, a model writes again."""
    bench = blind(tmp_path, colour)
    bench.tool = tool(response_format="content_and_artifact")(bench.write)
    (told,) = answers(bench.go(bench.graph(steps([refund()]), handle_tool_errors=True)))
    assert (told.status, told.artifact["state"], len(bench.effects)) == ("success", "applied", 1)
    assert "fix" not in told.content


def test_as_tool_is_told_in_words(tmp_path: Path, colour: str) -> None:
    """A `WriteReport` out of `.as_tool()` reaches the model as its message."""
    bench = blind(tmp_path, colour)
    bench.mode = "lost"
    bench.tool = tool(bench.write.as_tool())
    (told,) = answers(bench.go(bench.agent(steps([refund()]))))
    assert told.content.startswith("It is not known whether")
    assert told.artifact["state"] == "unknown"


# Resumed and replayed --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("durability", "reads"), [("sync", True), ("async", True), ("exit", True), ("sync", False)]
)
def test_a_killed_process_is_resumed_with_one_effect(
    tmp_path: Path, colour: str, durability: str, reads: bool
) -> None:
    """Killed in the write, after its effect: the next process finds it, or says that nobody knows."""
    bench = Bench(tmp_path, colour, reads=reads)
    bench.mode = "die"
    child = [sys.executable, "-m", "tests.adapters.graphs", str(tmp_path), colour, durability]
    killed = subprocess.run(child, cwd=ROOT, check=False, capture_output=True, text=True, timeout=120)
    assert killed.returncode == -9, killed.stderr
    assert len(bench.effects) == 1

    bench.mode = "ok"
    make = bench.agent(steps([refund()]))
    stored = bench.history(make)
    result = bench.go(make, None if stored and stored[0].next else ASK, durability=durability)
    told = answers(result)[-1]
    bench.sw.close()
    assert len(bench.effects) == 1
    assert result["safewrite_turn"] in (2, 3)
    if reads:
        assert (told.content, told.artifact["state"]) == ("refunded 5", "applied")
    else:
        assert (told.status, told.artifact["state"]) == ("success", "unknown")


def test_time_travel_writes_once(bench: Bench) -> None:
    """From before the model, which calls under a new id, and from after it: the answer is the first one."""
    make = bench.agent(steps([refund()]))
    first = answers(bench.go(make))
    places = [snapshot for snapshot in bench.history(make) if snapshot.next]
    assert len(places) >= 5
    for snapshot in places:
        told = answers(bench.go(make, None, snapshot.config))
        assert [m.content for m in told] == ["refunded 5"], snapshot.next
        assert told[0].artifact["key"] == first[0].artifact["key"]
    assert {snapshot.next[0] for snapshot in places} >= {"model", "tools", "SafeWriteMiddleware.before_model"}
    assert len(bench.effects) == 1


def test_a_graph_of_ones_own_keeps_its_turns_in_time_travel(bench: Bench) -> None:
    """The node that calls the model opens the turn, and does so again with the same number."""
    make = bench.graph(steps([refund()], [refund()]))
    bench.go(make)
    for snapshot in [one for one in bench.history(make) if one.next]:
        bench.go(make, None, snapshot.config)
    assert len(bench.effects) == 2


def test_trimming_the_history_leaves_the_turns_apart(bench: Bench) -> None:
    """The same write wanted in three turns is made three times, though the history is cut down to one message."""
    turns = iter([[refund()], [refund()], [refund()], []])

    @before_model
    def trim(state: Any, runtime: Any) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *state["messages"][-1:]]}

    result = bench.go(bench.agent(lambda _: next(turns), trim))
    assert len(bench.effects) == 3
    assert result["safewrite_turn"] == 4


def test_turns_go_on_over_the_messages_of_a_thread(bench: Bench) -> None:
    """The same wish in the next message of the user is another write; in another thread, too."""
    make = bench.agent(steps([refund()]))
    bench.go(make)
    bench.go(make)
    bench.go(make, config={"configurable": {"thread_id": "thread-2"}})
    assert len(bench.effects) == 3


# Several calls in one message -------------------------------------------------------------------------------------


def test_equal_calls_of_one_message_are_one_write_and_told_so(bench: Bench) -> None:
    """They have other ids; the second one says that nothing was sent for it."""
    told = answers(bench.go(bench.agent(steps([refund(), refund()]))))
    assert len(bench.effects) == 1
    assert told[0].artifact["key"] == told[1].artifact["key"]
    assert sum("nothing was sent for this one" in m.content for m in told) <= 1
    assert all(m.content.startswith("refunded 5") for m in told)


def test_equal_calls_are_told_apart_by_their_position(bench: Bench) -> None:
    """On request; a replay from before the model finds both, whatever their ids."""
    make = bench.agent(
        steps([refund(), refund(), refund("o2")]), middleware=[SafeWriteMiddleware(occurrences=True)]
    )
    bench.go(make)
    assert sorted(line.split()[0] for line in bench.effects) == ["o1", "o1", "o2"]
    for snapshot in [one for one in bench.history(make) if one.next]:
        bench.go(make, None, snapshot.config)
    assert len(bench.effects) == 3


def test_parallel_calls_of_which_one_fails_are_answered_each(bench: Bench) -> None:
    """One is lost and not seen, the others are applied; nobody is cut off or repeated."""
    bench.mode = "lost o2"
    bench.write.tool.reconcile = None
    told = answers(bench.go(bench.agent(steps([refund("o1"), refund("o2"), refund("o3")]))))
    assert [m.artifact["state"] for m in told] == ["applied", "unknown", "applied"]
    assert sorted(line.split()[0] for line in bench.effects) == ["o1", "o2", "o3"]


def test_a_resume_after_a_failing_sibling_writes_once(bench: Bench) -> None:
    """Another tool aborts the run; resumed, its sibling's write stands."""
    fails = [True]

    @tool
    def broken() -> str:
        """Break at first."""
        if fails:
            fails.clear()
            raise RuntimeError("broken")
        return "well"

    make = bench.agent(steps([refund(), {"name": "broken", "args": {}}]), tools=[bench.tool, broken])
    with pytest.raises(RuntimeError, match="broken"):
        bench.go(make)
    told = answers(bench.go(make, None))
    assert [m.content for m in told] == ["refunded 5", "well"]
    assert len(bench.effects) == 1


def test_a_sibling_that_is_cut_off_writes_once(tmp_path: Path) -> None:
    """A failing call cancels the coroutine beside it in the middle of its write; resumed, it is looked up."""
    bench = Bench(tmp_path, "async")
    fails = [True]

    @tool
    async def broken() -> str:
        """Break once the write has begun."""
        while fails:
            await asyncio.sleep(0.01)
            if bench.effects:
                fails.clear()
                raise RuntimeError("broken")
        return "well"

    make = bench.agent(steps([refund(), {"name": "broken", "args": {}}]), tools=[bench.tool, broken])
    bench.mode = "hang"
    with pytest.raises(RuntimeError, match="broken"):
        bench.go(make)
    bench.mode = "ok"
    told = answers(bench.go(make, None))
    bench.sw.close()
    assert [m.content for m in told] == ["refunded 5", "well"]
    assert told[0].artifact["evidence"] == "reconciled"
    assert len(bench.effects) == 1


def test_writes_beside_a_pause_are_not_made_again(bench: Bench) -> None:
    """The whole node runs again on resume, and from before the model in another order: each write is found."""
    if bench.colour == "sync":

        @tool
        def ask() -> Any:
            """Ask a person."""
            return interrupt("well?")
    else:

        @tool
        async def ask() -> Any:
            """Ask a person."""
            return interrupt("well?")

    calls = [refund("o1"), {"name": "ask", "args": {}}, refund("o2")]
    make = bench.graph(steps(calls), also=[ask])
    assert bench.go(make)["__interrupt__"]
    told = answers(bench.go(make, Command(resume="yes")))
    assert [m.content for m in told] == ["refunded 5", "yes", "refunded 5"]
    place = [one for one in bench.history(make) if one.next == ("model",)][-1]
    bench.go(bench.graph(steps(calls[::-1]), also=[ask]), None, place.config)
    assert sorted(line.split()[0] for line in bench.effects) == ["o1", "o2"]


def test_an_id_that_a_provider_uses_again_is_no_identity(bench: Bench) -> None:
    """`call_0` in every message: the second turn's write is made, the first one's is not made again."""
    make = bench.agent(
        steps([refund("o1", id="call_0")], [refund("o2", id="call_0")], [refund("o1", id="call_0")])
    )
    assert [m.artifact["sent"] for m in answers(bench.go(make))] == [True, True, True]
    assert [line.split()[0] for line in bench.effects] == ["o1", "o2", "o1"]


def test_an_unknown_inside_another_tool_is_told(tmp_path: Path, colour: str) -> None:
    """A tool that is no write itself calls one whose response is lost."""
    bench = blind(tmp_path, colour)
    bench.mode = "lost"
    if colour == "sync":

        @tool
        def close_order(order: str) -> str:
            """Close an order."""
            return str(bench.write(order))
    else:

        @tool
        async def close_order(order: str) -> str:
            """Close an order."""
            return str(await bench.write(order))

    make = bench.agent(steps([{"name": "close_order", "args": {"order": "o1"}}]), tools=[close_order])
    (told,) = answers(bench.go(make))
    assert (told.status, told.artifact["state"]) == ("success", "unknown")
    assert "Do not call this tool again" in told.content


# Approval ---------------------------------------------------------------------------------------------------------


def approvals(mode: str, decision: dict[str, Any]) -> Any:
    """Return the value that answers an approval of the middleware."""
    return {"decisions": [decision]} if mode == "batched" else decision


@pytest.mark.parametrize("order", ["ours first", "ours last"])
@pytest.mark.parametrize("mode", ["batched", "per_call"])
def test_an_edited_approval_writes_what_was_approved(bench: Bench, mode: str, order: str) -> None:
    """Resumed twice from the same stored interrupt: one effect, the same answer; another edit is told the first."""
    human, safe = HumanInTheLoopMiddleware({"refund": True}, interrupt_mode=mode), SafeWriteMiddleware()
    make = bench.agent(
        steps([refund(amount=50)]), middleware=[safe, human] if order == "ours first" else [human, safe]
    )
    paused = bench.go(make)
    assert paused["__interrupt__"]
    assert bench.effects == []
    config = bench.history(make)[0].config

    def resume(amount: int) -> Any:
        edited = {
            "type": "edit",
            "edited_action": {"name": "refund", "args": {"order": "o1", "amount": amount}},
        }
        return answers(bench.go(make, Command(resume=approvals(mode, edited)), config))[-1]

    first, second = resume(7), resume(7)
    assert "refunded 7" in first.content
    assert "refunded 7" in second.content
    assert second.artifact["replayed"] is True

    earlier = [one for one in bench.history(make) if one.next == ("SafeWriteMiddleware.before_model",)][-1]
    bench.go(make, None, earlier.config)  # the model asks again, under a new id, and is edited otherwise
    config = bench.history(make)[0].config
    assert "other values of `amount`" in resume(9).content
    assert [line.split()[1] for line in bench.effects] == ["7"]


def test_a_rejected_approval_writes_nothing(bench: Bench) -> None:
    """The human's answer is the tool's."""
    make = bench.agent(steps([refund()]), HumanInTheLoopMiddleware({"refund": True}))
    bench.go(make)
    told = answers(bench.go(make, Command(resume={"decisions": [{"type": "reject"}]})))
    assert "User rejected" in told[0].content
    assert bench.effects == []


def test_an_interrupt_before_a_write_passes_through(bench: Bench) -> None:
    """A tool that asks first, and then calls the write: asked once, resumed twice, one effect."""
    if bench.colour == "sync":

        @tool
        def refund_if_allowed(order: str) -> Any:
            """Ask, then refund."""
            return bench.write(order) if interrupt("may I?") else "no"
    else:

        @tool
        async def refund_if_allowed(order: str) -> Any:
            """Ask, then refund."""
            return await bench.write(order) if interrupt("may I?") else "no"

    calls = steps([{"name": "refund_if_allowed", "args": {"order": "o1"}}])
    make = bench.agent(calls, tools=[refund_if_allowed])
    assert bench.go(make)["__interrupt__"][0].value == "may I?"
    config = bench.history(make)[0].config
    for _ in range(2):
        assert answers(bench.go(make, Command(resume=True), config))[-1].content == "refunded 5"
    assert len(bench.effects) == 1


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("in_thread", [None, True])
def test_an_interrupt_inside_a_body_passes_through(
    tmp_path: Path, colour: str, declared: bool, in_thread: bool | None
) -> None:
    """It is on record and raised as it is; resumed, a body that is declared to ask first runs, another is unknown."""
    if colour == "async" and in_thread:
        pytest.skip("coroutines run on their loop")
    bench = Bench(tmp_path, colour)
    options = {"not_applied_on": (GraphInterrupt,)} if declared else {}
    asked = []

    def ask(order: str) -> str:
        """Refund an order."""
        asked.append(order)
        interrupt("may I?")
        (tmp_path / "done").write_text(order)
        return "done"

    async def aask(order: str) -> str:
        """Refund an order."""
        return ask(order)

    body = ask if colour == "sync" else aask
    write = bench.sw.write(target="order", name="ask", in_thread=in_thread, **options)(body)
    make = bench.agent(steps([{"name": body.__name__, "args": {"order": "o1"}}]), tools=[tool(write)])
    assert bench.go(make)["__interrupt__"][0].value == "may I?"
    assert asked == ["o1"]
    (told,) = answers(bench.go(make, Command(resume=True)))
    bench.sw.close()
    if declared:
        assert (told.content, told.artifact["attempts"]) == ("done", 2)
    else:
        assert told.artifact["state"] == "unknown"
        assert not (tmp_path / "done").exists()


# Identity ---------------------------------------------------------------------------------------------------------


def test_without_thread_or_checkpointer_nothing_is_called(bench: Bench) -> None:
    """The run is refused, not invented; the model is not even asked."""
    asked: list[int] = []
    make = bench.agent(lambda _: asked.append(1) or [refund()])
    with pytest.raises(ConfigurationError, match="no thread id"):
        make(None).invoke(ASK)
    with pytest.raises(ConfigurationError, match="no checkpointer"):
        make(None).invoke(ASK, THREAD)
    assert (asked, bench.effects) == ([], [])


def test_the_run_of_the_host_stands_in(bench: Bench) -> None:
    """Without a thread the host's own `safewrite.run` is the run, and the graph counts its turns."""
    if bench.colour == "async":
        pytest.skip("invoked as it is")
    for _ in range(2):
        with safewrite.run("run-7"):
            told = answers(bench.agent(steps([refund()], [refund()]))(None).invoke(ASK))
    assert [m.content for m in told] == ["refunded 5"] * 2
    assert len(bench.effects) == 2


def test_a_graph_without_a_turn_is_refused(bench: Bench) -> None:
    """A write is, other tools are not; the message names the key and the function."""
    with pytest.raises(ConfigurationError, match="next_turn"):
        bench.go(bench.graph(steps([refund()]), counts=False))
    assert bench.effects == []


def test_other_tools_need_no_turn(bench: Bench) -> None:
    """In a graph that counts none they are carried out as ever."""

    @tool
    def search() -> str:
        """Search."""
        return "found"

    make = bench.graph(steps([{"name": "search", "args": {}}]), counts=False, also=[search])
    assert answers(bench.go(make))[0].content == "found"


def test_a_fault_of_the_set_up_is_raised(bench: Bench) -> None:
    """No model can mend it: the run ends with it."""

    @tool
    def misuse() -> str:
        """Call a write under an option that there is not."""
        return str(bench.write.options(tenant=1))

    with pytest.raises(ConfigurationError, match="tenant"):
        bench.go(bench.agent(steps([{"name": "misuse", "args": {}}]), tools=[misuse]))


def test_a_write_without_the_middleware_is_refused(bench: Bench) -> None:
    """Nothing is sent where nobody opened a run and turn."""
    with pytest.raises(NoRunContext):
        bench.go(bench.agent(steps([refund()]), middleware=[]))
    assert bench.effects == []


def test_the_deadline_of_the_host_holds_inside(bench: Bench) -> None:
    """A run that is open around the graph bounds its writes: too little is left to send."""
    with safewrite.run("outside", deadline=0.5):
        (told,) = answers(bench.go(bench.agent(steps([refund()]))))
    assert told.artifact["reason"] == "budget_exhausted"
    assert bench.effects == []


def test_a_step_limit_is_a_deadline(bench: Bench) -> None:
    """What the graph allows a step is what a write gets: half a second is too little to begin with."""
    safe = SafeWriteMiddleware(step_limit=0.5)
    (told,) = answers(bench.go(bench.agent(steps([refund()]), middleware=[safe])))
    assert told.artifact["reason"] == "budget_exhausted"
    assert bench.effects == []


@pytest.mark.parametrize("beats", [True, False])
def test_a_heartbeat_puts_off_the_idle_limit_of_the_node(tmp_path: Path, beats: bool) -> None:
    """A write that takes longer than its node may be silent: cut off without the heartbeat, and written once."""
    bench = Bench(tmp_path, "async")
    bench.sw.prepare()
    bench.mode = "slow"
    silent = TimeoutPolicy(idle_timeout=2.0, refresh_on="heartbeat")
    safe = SafeWriteMiddleware(heartbeat=0.1 if beats else None)
    make = bench.graph(steps([refund()]), safe=safe, timeout=silent)
    if beats:
        assert answers(bench.go(make))[0].content == "refunded 5"
    else:
        with pytest.raises(NodeTimeoutError):
            bench.go(make)
        bench.mode = "ok"
        assert answers(bench.go(make, None))[0].content == "refunded 5"
    bench.sw.close()
    assert len(bench.effects) == 1


# Graphs in graphs -------------------------------------------------------------------------------------------------


def test_a_sub_agent_counts_below_the_turn_of_its_caller(bench: Bench) -> None:
    """Each delegation counts anew, and still the same write in two turns is made twice, and replayed as two."""
    sub = bench.agent(steps([refund()]))(None)
    if bench.colour == "sync":

        @tool
        def delegate(task: str) -> str:
            """Hand it to a sub-agent."""
            return str(answers(sub.invoke(ASK))[-1].content)
    else:

        @tool
        async def delegate(task: str) -> str:
            """Hand it to a sub-agent."""
            return str(answers(await sub.ainvoke(ASK))[-1].content)

    call = {"name": "delegate", "args": {"task": "refund"}}
    make = bench.agent(steps([call], [call]), tools=[delegate])
    assert [m.content for m in answers(bench.go(make))] == ["refunded 5"] * 2
    assert len(bench.effects) == 2
    for snapshot in [one for one in bench.history(make) if one.next]:
        bench.go(make, None, snapshot.config)
    assert len(bench.effects) == 2


class Counting(MessagesState):
    """The state of a graph that knows the turns of the agent in it."""

    safewrite_turn: int


@pytest.mark.parametrize("schema", [MessagesState, Counting])
def test_an_agent_that_is_a_node_counts_in_the_state_of_its_graph(bench: Bench, schema: Any) -> None:
    """Where that state has no counter, turns would begin at 1 at each visit: it is refused."""

    def make(saver: Any) -> Any:
        graph = StateGraph(schema)
        graph.add_node("agent", bench.agent(steps([refund()]))(None))
        graph.add_edge(START, "agent")
        return graph.compile(checkpointer=saver)

    if schema is MessagesState:
        with pytest.raises(ConfigurationError, match="safewrite_turn"):
            bench.go(make)
        return
    assert bench.go(make, {**ASK, "safewrite_turn": 0})["safewrite_turn"] == 2
    assert bench.go(make, ASK)["safewrite_turn"] == 4
    assert len(bench.effects) == 2


def test_what_is_no_message_passes_through(bench: Bench) -> None:
    """A tool that returns a command is left as it is."""

    @tool
    def stop() -> Any:
        """Stop."""
        return Command(goto="__end__", update={"messages": [ToolMessage("stopped", tool_call_id="call")]})

    calls = steps([{"name": "stop", "args": {}, "id": "call"}])
    assert answers(bench.go(bench.graph(calls, also=[stop])))[0].content == "stopped"


def test_a_position_is_shown_beside_blocks_of_content(bench: Bench) -> None:
    """A tool that returns blocks gets the note as one more block."""
    blocks = [{"type": "text", "text": "refunded"}]
    bench.write.tool.fn = (lambda order, attempt, amount: blocks) if bench.colour == "sync" else ablocks
    told = answers(bench.go(bench.agent(steps([refund(), refund()]))))
    assert {len(m.content) for m in told} <= {1, 2}


async def ablocks(order: str, attempt: Any, amount: int) -> list[dict[str, str]]:
    """Return blocks."""
    return [{"type": "text", "text": "refunded"}]
