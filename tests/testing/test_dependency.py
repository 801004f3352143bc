"""The scripted dependency, through real sockets: what each step does, and what can be asked afterwards."""

from __future__ import annotations

import socket
import time

import httpx
import pytest

from safewrite.testing import ScriptedDependency
from safewrite.testing.script import (
    Step,
    accepted,
    drip,
    error,
    error_after,
    hang_after,
    in_progress,
    key_reused,
    late,
    lose_response,
    never,
    ok,
    read_fails,
    reset,
    reset_after,
    reset_at,
    slow,
)
from tests.testing.asking import BRIEF, CANCEL, NO_TLS, READ, keyed

# What happens to one write -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "seen", "effects"),
    [
        (lose_response(), httpx.RemoteProtocolError, 1),
        (hang_after(), httpx.ReadTimeout, 1),
        (never(), httpx.ReadTimeout, 0),
        (late(30.0), httpx.ReadTimeout, 0),
        (reset(), httpx.ReadError, 0),
        (reset_after(), httpx.ReadError, 1),
        (reset_at(0), httpx.ReadError, 1),
        (reset_at(100), httpx.ReadError, 1),
        (ok(), 200, 1),
        (error_after(), 500, 1),
        (error_after(502), 502, 1),
        (error(503), 503, 0),
        (error(204), 204, 0),
        (error(599), 599, 0),
        (accepted(30.0), 202, 0),
        (in_progress(), 409, 0),
        (key_reused(), 422, 0),
    ],
    ids=lambda value: f"{value.name}{[*dict(value.parameters).values()]}" if isinstance(value, Step) else "",
)
def test_a_step_decides_what_the_caller_sees_and_what_is_applied(
    dependency: ScriptedDependency,
    client: httpx.Client,
    step: Step,
    seen: int | type[Exception],
    effects: int,
) -> None:
    """The caller's view and the number of effects are as the step says, and the next write is an ordinary one."""
    dependency.script(step)
    if isinstance(seen, int):
        assert client.post(CANCEL).status_code == seen
    else:
        with pytest.raises(seen):
            client.post(CANCEL, timeout=BRIEF)
    dependency.wait_for_requests("sub_1")
    assert dependency.wait_for_effects("sub_1", count=effects) == effects
    assert [request["step"] for request in dependency.requests("sub_1")] == [step.name]
    assert client.post(CANCEL).status_code == 200
    assert dependency.effects("sub_1") == effects + 1


def test_a_lost_response_is_an_orderly_end(dependency: ScriptedDependency) -> None:
    """A lost response ends in FIN without a byte, a reset one in RST: a program that looks can tell them apart."""
    request = f"POST {CANCEL} HTTP/1.1\r\nContent-Length: 0\r\n\r\n".encode()
    port = int(dependency.url.rpartition(":")[2])
    dependency.script(lose_response(), reset_after())
    with socket.create_connection(("127.0.0.1", port)) as orderly:
        orderly.sendall(request)
        assert orderly.recv(100) == b""
    with socket.create_connection(("127.0.0.1", port)) as hard:
        hard.sendall(request)
        with pytest.raises(ConnectionResetError):
            hard.recv(100)


def test_a_late_write_lands_after_its_caller_left(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """The first attempt takes effect although its caller gave up, and nothing was applied when it did."""
    dependency.script(late(0.5))
    with pytest.raises(httpx.ReadTimeout):
        client.post(CANCEL, timeout=BRIEF)
    assert client.get(READ).json()["effects"] == 0
    assert dependency.wait_for_effects("sub_1") == 1


def test_an_accepted_write_lands_after_its_answer(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """202 is answered at once, and the effect comes by itself."""
    dependency.script(accepted(0.3))
    assert client.post(CANCEL).status_code == 202
    assert dependency.effects("sub_1") == 0
    assert dependency.wait_for_effects("sub_1") == 1


def test_a_slow_write_applies_even_if_its_caller_left(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """Waiting comes before the effect; who stays gets the answer, who leaves changes nothing."""
    dependency.script(slow(0.1), slow(0.5))
    began = time.monotonic()
    assert client.post(CANCEL).json()["effects"] == 1
    assert time.monotonic() - began >= 0.1
    with pytest.raises(httpx.ReadTimeout):
        client.post(CANCEL, timeout=BRIEF)
    assert dependency.effects("sub_1") == 1
    assert dependency.wait_for_effects("sub_1", count=2) == 2


def test_a_drip_outlives_a_timeout_per_read(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """Bytes keep coming, so a timeout of 0.3 s per read never fires although the answer takes 0.6 s."""
    dependency.script(drip(0.6, chunk=8))
    began = time.monotonic()
    assert client.post(CANCEL, timeout=0.3).json()["effects"] == 1
    assert 0.6 <= time.monotonic() - began < 3.0


def test_a_caller_that_leaves_a_drip_does_no_harm(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """The effect was applied before the first byte; the dependency goes on serving."""
    dependency.script(drip(0.2))
    with client.stream("POST", CANCEL) as reply:
        assert reply.status_code == 200
    assert client.get(READ).json()["effects"] == 1


def test_a_reset_within_the_body_leaves_the_status(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """Cut after the head, the caller has the status and loses the rest."""
    dependency.script(reset_at(120))
    with client.stream("POST", CANCEL) as reply:
        assert reply.status_code == 200
        with pytest.raises(httpx.ReadError):
            reply.read()


@pytest.mark.parametrize("value", [7, "Wed, 21 Oct 2026 07:28:00 GMT", "soon"])
def test_retry_after_is_sent_as_it_was_given(
    dependency: ScriptedDependency, client: httpx.Client, value: int | str
) -> None:
    """Seconds, dates and nonsense all reach the caller."""
    dependency.script(error(429, retry_after=value))
    reply = client.post(CANCEL)
    assert (reply.status_code, reply.headers["Retry-After"]) == (429, str(value))


# Which request uses which step ---------------------------------------------------------------------------------


def test_steps_wait_for_the_requests_that_they_are_for(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """A step for a target, for a path or for any write is used by the first write that fits it, in order."""
    dependency.script(error(401), target="sub_1")
    dependency.script(error(402), path="/subscriptions/sub_2/pause")
    dependency.script("in_progress", {"step": "error", "status": 404})
    assert len(dependency.pending()) == 4
    assert client.post("/subscriptions/sub_2/cancel").status_code == 409
    assert client.post("/subscriptions/sub_1/cancel").status_code == 401
    assert client.post("/subscriptions/sub_2/pause").status_code == 402
    left = {"step": "error", "status": 404, "path": None, "target": None}
    assert dependency.pending() == [left]
    assert client.post("/subscriptions/sub_1/cancel").status_code == 404
    assert dependency.pending() == []


def test_steps_for_writes_and_for_reads_do_not_mix(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """A read leaves the steps of writes alone, and the other way round."""
    dependency.script(error(500), read_fails(502))
    assert client.get(READ).status_code == 502
    assert client.get(READ).status_code == 200
    assert client.post(CANCEL).status_code == 500


def test_another_process_can_script_over_http(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """The control path takes every command, reports what happened, and says what was wrong with a command."""
    order = {"do": "script", "steps": ["never", {"step": "error", "status": 418}], "target": "sub_1"}
    assert client.post("/_control", json=order).json() == {"done": "script"}
    with pytest.raises(httpx.ReadTimeout):
        client.post(CANCEL, timeout=BRIEF)
    assert client.post(CANCEL).status_code == 418
    client.post("/_control", json={"do": "promise", "keys": "forever"})
    for _ in range(2):
        client.post(CANCEL, headers=keyed("k"))
    report = client.get("/_control").json()
    assert [effect["key"] for effect in report["effects"]] == ["k"]
    assert [request["step"] for request in report["requests"]] == ["never", "error", "ok", "ok"]
    assert report["pending"] == []
    assert client.post("/_control", json={"do": "reset"}).status_code == 200
    assert dependency.effects() == 0


@pytest.mark.parametrize(
    ("order", "complaint"),
    [
        ({"do": "script", "steps": ["explode"]}, "no step is called 'explode'"),
        (
            {"do": "script", "steps": [{"step": "late"}]},
            "step `late`: missing a required argument: 'seconds'",
        ),
        ({"do": "promise", "keys": -1}, "keys are kept"),
        ({"do": "promise", "colour": 1}, "colour"),
        ({"do": "promise", "keys": None}, "NoneType"),
        ({"do": "script", "steps": [7]}, "no step is called 7"),
        ({"do": "dance"}, "no such command"),
        ([], "no such command"),
    ],
)
def test_a_wrong_command_is_explained(client: httpx.Client, order: object, complaint: str) -> None:
    """A command that cannot be carried out is a 400 that says why."""
    reply = client.post("/_control", json=order)
    assert reply.status_code == 400
    assert complaint in reply.json()["error"]


# What is left to be asked --------------------------------------------------------------------------------------


def test_the_logs_hold_what_was_sent_and_done(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """Effects carry key, attempt id, body and time; requests carry everything, unanswered ones and misses too."""
    before = time.time()
    headers = keyed('"k1"', **{"X-Attempt-Id": "a1"})
    client.post("/subscriptions/sub%201/cancel", json={"reason": "späť"}, headers=headers)
    client.post("/subscriptions/sub_2/cancel", content=b"\xff plain")
    client.get("/nowhere")
    [first] = dependency.effects_log("sub 1")
    assert {**first, "at": 0} == {
        "number": 1,
        "kind": "subscriptions",
        "target": "sub 1",
        "verb": "cancel",
        "key": "k1",
        "attempt_id": "a1",
        "body": {"reason": "späť"},
        "at": 0,
    }
    assert before <= first["at"] <= time.time()
    assert [effect["body"] for effect in dependency.effects_log()] == [{"reason": "späť"}, "\ufffd plain"]
    [request] = dependency.requests("sub 1")
    assert (request["method"], request["path"]) == ("POST", "/subscriptions/sub%201/cancel")
    assert (request["headers"]["x-attempt-id"], request["body"]) == ("a1", {"reason": "späť"})
    assert [row["step"] for row in dependency.requests()] == ["ok", "ok", None]


def test_waiting_gives_up_with_a_count(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """A wait that ends in vain says how far it came."""
    client.post(CANCEL)
    assert dependency.wait_for_requests("sub_1") == 1
    with pytest.raises(TimeoutError, match=r"1 of 2 effects on sub_1 after 0\.02 s"):
        dependency.wait_for_effects("sub_1", count=2, within=0.02)
    with pytest.raises(TimeoutError, match="1 of 3 requests about all targets"):
        dependency.wait_for_requests(count=3, within=0.02)


def test_a_reset_leaves_nothing_behind(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """After a reset nothing scripted, promised or under way before it can be seen or can land."""
    dependency.promise(keys="forever")
    client.post(CANCEL, headers=keyed("k"))
    dependency.script(accepted(0.2), never(), error(500))
    client.post(CANCEL)
    with httpx.Client(base_url=dependency.url, verify=NO_TLS) as other, pytest.raises(httpx.ReadTimeout):
        other.post(CANCEL, timeout=BRIEF)
    dependency.pause_listening()
    dependency.reset()
    assert (dependency.effects(), dependency.requests(), dependency.pending()) == (0, [], [])
    assert client.post("/subscriptions/sub_2/x", headers=keyed("k")).json()["effect"] == 1
    assert client.post("/subscriptions/sub_2/x", headers=keyed("k")).json()["effect"] == 2
    dependency.script(accepted(0.3))
    client.post("/subscriptions/sub_3/x")
    assert dependency.wait_for_effects("sub_3") == 1
    assert dependency.effects("sub_1") == 0


def test_a_reset_leaves_idle_connections_alone(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """Who has had every reply can go on with the same connection."""
    for _ in range(50):
        assert client.post(CANCEL).json()["effect"] == 1
        dependency.reset()
