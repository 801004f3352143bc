"""What a scripted dependency shows to readers, and what it keeps to, through real sockets."""

from __future__ import annotations

import time

import httpx
import pytest

from safewrite.testing import ScriptedDependency
from safewrite.testing.script import (
    error,
    error_after,
    late,
    lose_response,
    read_hangs,
    slow,
    stale_read,
)
from tests.testing.asking import BRIEF, CANCEL, READ, keyed, poll

# Reads ---------------------------------------------------------------------------------------------------------


def test_a_read_shows_state_version_and_keys(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """State is the one that the last body named, else its verb; targets of another kind are other targets."""
    untouched = client.get(READ)
    assert untouched.json()["state"] == "initial"
    assert untouched.headers["ETag"] == '"0"'
    client.post(CANCEL, headers=keyed("a"))
    client.post("/subscriptions/sub_1/update", json={"state": "paused"}, headers=keyed("b"))
    client.post("/refunds/sub_1/create")
    shown = client.get(READ)
    assert shown.headers["ETag"] == '"2"'
    assert shown.json() == {
        "target": "sub_1",
        "state": "paused",
        "effects": 2,
        "version": 2,
        "keys": ["a", "b"],
        "numbers": [1, 2],
    }
    assert client.get("/refunds/sub_1").json()["state"] == "create"
    assert dependency.effects("sub_1") == 3


def test_an_effect_is_found_by_its_key(client: httpx.Client) -> None:
    """The look-up answers with the effects under a key, and with none for a key that did nothing."""
    client.post(CANCEL, headers=keyed("a"))
    found = client.get("/effects", params={"key": "a"}).json()
    assert found["effects"] == 1
    assert (found["rows"][0]["target"], found["rows"][0]["key"]) == ("sub_1", "a")
    assert client.get("/effects", params={"key": "a", "target": "sub_2"}).json()["effects"] == 0
    assert client.get("/effects", params={"key": "b"}).json() == {"effects": 0, "rows": []}


def test_a_stale_read_shows_the_time_of_its_scripting(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """So many reads miss what happened since, the look-up by key included; older effects stay visible."""
    client.post(CANCEL)
    dependency.script(lose_response(), stale_read(reads=2))
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(CANCEL, headers=keyed("k"))
    assert client.get(READ).json()["effects"] == 1
    assert client.get("/effects", params={"key": "k"}).json()["effects"] == 0
    assert client.get(READ).json()["effects"] == 2


def test_reads_can_lag_for_a_time(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """With seconds, every read within them is stale, and then none is."""
    dependency.script(stale_read(seconds=0.5))
    client.post(CANCEL)
    assert [client.get(READ).json()["effects"] for _ in range(3)] == [0, 0, 0]
    assert poll(lambda: client.get(READ).json()["effects"] == 1)
    assert dependency.pending() == []


def test_a_read_can_hang(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """The read gets no answer, the next one does."""
    dependency.script(read_hangs())
    with pytest.raises(httpx.ReadTimeout):
        client.get(READ, timeout=BRIEF)
    assert client.get(READ).status_code == 200


# What it promises ----------------------------------------------------------------------------------------------


def test_a_recognised_key_applies_once(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """A lost response is replayed under its key; other content under the key is refused; no key, no recognition."""
    dependency.promise(keys="forever")
    dependency.script(lose_response())
    with pytest.raises(httpx.RemoteProtocolError):
        client.post(CANCEL, json={"n": 1}, headers=keyed("k"))
    again = client.post(CANCEL, json={"n": 1}, headers=keyed("k"))
    assert (again.status_code, again.json()["effect"]) == (200, 1)
    assert again.headers["Idempotency-Replayed"] == "true"
    assert client.post(CANCEL, json={"n": 2}, headers=keyed("k")).json() == {"error": "key_reused"}
    assert dependency.effects("sub_1") == 1
    client.post(CANCEL, json={"n": 1})
    assert dependency.effects("sub_1") == 2


def test_without_the_promise_a_key_means_nothing(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """Two writes under one key are two effects."""
    for _ in range(2):
        assert "Idempotency-Replayed" not in client.post(CANCEL, headers=keyed("k")).headers
    assert dependency.effects("sub_1") == 2


def test_a_key_is_forgotten_after_its_retention(dependency: ScriptedDependency, client: httpx.Client) -> None:
    """Within the time it is recognised, afterwards the same request is a second effect."""
    dependency.promise(keys=0.5)
    client.post(CANCEL, headers=keyed("k"))
    client.post(CANCEL, headers=keyed("k"))
    assert dependency.effects("sub_1") == 1
    assert poll(lambda: "Idempotency-Replayed" not in client.post(CANCEL, headers=keyed("k")).headers)
    assert dependency.effects("sub_1") == 2


def test_a_key_that_is_being_worked_on_is_in_progress(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """While a late write is under way its key is a 409; once it has landed, its answer is replayed."""
    dependency.promise(keys="forever")
    dependency.script(late(0.5))
    with pytest.raises(httpx.ReadTimeout):
        client.post(CANCEL, headers=keyed("k"), timeout=BRIEF)
    assert client.post(CANCEL, headers=keyed("k")).json() == {"error": "in_progress"}
    dependency.wait_for_effects("sub_1")
    assert client.post(CANCEL, headers=keyed("k")).status_code == 200
    assert dependency.effects("sub_1") == 1


def test_errors_are_replayed_only_where_that_is_promised(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """A stored 5xx burns its key; else the next request is answered for what really happened; 4xx is never stored."""
    dependency.promise(keys="forever")
    dependency.script(error_after(), error(503))
    assert [client.post(CANCEL, headers=keyed("a")).status_code for _ in range(3)] == [500, 503, 200]
    assert dependency.effects("sub_1") == 1
    dependency.promise(replays_errors=True)
    dependency.script(error(503), error(404))
    assert [client.post(CANCEL, headers=keyed("b")).status_code for _ in range(3)] == [503, 404, 503]
    assert dependency.effects("sub_1") == 1
    dependency.script(error(404), error(500))
    assert [client.post(CANCEL, headers=keyed("c")).status_code for _ in range(2)] == [404, 500]
    dependency.script(error(500))
    assert [client.post(CANCEL).status_code for _ in range(2)] == [500, 200]


def test_a_deadline_is_honoured_when_the_effect_would_come(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """A write that would land after its deadline is refused, also if it arrived before; its key stays free."""
    soon = {"X-Request-Deadline-At": str(int((time.time() + 0.05) * 1000))}
    dependency.promise(keys="forever", honours_deadline=True)
    dependency.script(slow(0.1))
    refused = client.post(CANCEL, headers=keyed("k", **soon))
    assert (refused.status_code, refused.headers["X-Not-Applied"]) == (408, "deadline")
    assert client.post(CANCEL, headers=soon).status_code == 408
    assert dependency.effects("sub_1") == 0
    later = {"X-Request-Deadline-At": str(int((time.time() + 60) * 1000))}
    assert client.post(CANCEL, headers=keyed("k", **later)).status_code == 200
    assert client.post(CANCEL, headers={"X-Request-Deadline-At": "tomorrow"}).status_code == 400


def test_without_the_promise_a_deadline_means_nothing(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """A write after its deadline is applied."""
    assert client.post(CANCEL, headers={"X-Request-Deadline-At": "1"}).status_code == 200
    assert dependency.effects("sub_1") == 1


def test_a_precondition_admits_one_of_two_writes(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """Two writes that name the same version: the second is a 412 that tells the version in force."""
    seen = client.get(READ).headers["ETag"]
    assert client.post(CANCEL, headers={"If-Match": seen}).status_code == 200
    refused = client.post(CANCEL, headers={"If-Match": seen})
    assert (refused.status_code, refused.headers["ETag"]) == (412, '"1"')
    assert client.post(CANCEL, headers={"If-Match": "*"}).status_code == 200
    assert dependency.effects("sub_1") == 2
