"""Headers and notes of others: nothing in them is a crash inside the guard, or a false `not_applied`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import safewrite
from safewrite import SafeWrite
from safewrite.adapters._mcp import Request
from safewrite.adapters.asgi import DeadlineMiddleware
from safewrite.adapters.httpx import guarded
from safewrite.adapters.mcp_server import SafeServer
from safewrite.core.events import OutcomeState
from safewrite.core.statuses import STATUSES
from safewrite.testing import ManualClock
from tests.adapters.test_mcp_inside import MCPServer
from tests.fuzz.documents import anything, examples

PIECES = st.sampled_from(
    [b"0", b"7", b"1.5", b"-1", b"1e9", b"\x1c", b"\t", b"\xff", b"\x00", b"Sun, 06 Nov 1994 08:49:37 GMT", b" +9999",
     b":", b"http://[::1", b"//", b"x", b"9" * 400, b"%", b"http://a:99999999/", b"gzip", b"text/html; charset=zz"]
)  # fmt: skip
NAMES = st.sampled_from(
    [b"Retry-After", b"Date", b"Location", b"Idempotency-Key", b"X-Not-Applied", b"X-Request-Deadline-Ms",
     b"X-Request-Deadline-At", b"Content-Encoding", b"Content-Type", b"Content-Length", b"Set-Cookie"]
)  # fmt: skip
HEADERS = st.lists(
    st.tuples(NAMES, st.lists(PIECES, max_size=3).map(b"".join) | st.binary(max_size=6)), max_size=4
)
STATUS = st.sampled_from(sorted(STATUSES)) | st.integers(100, 999)
BODIES = {
    "raise": lambda reply: reply.raise_for_status().text,
    "return": lambda reply: reply,
    "read": lambda reply: reply.json(),
}


@pytest.fixture(scope="module")
def sw() -> Iterator[SafeWrite]:
    """A ledger in memory, for all examples."""
    with ManualClock(auto=True), SafeWrite("sqlite://") as made:
        yield made


_turns = itertools.count(1)


def written(sw: SafeWrite, status: int, headers: Any, body: str, sent: Any = ()) -> Any:
    """Return the outcome of a write that was applied, and answered so."""

    def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, headers=headers, stream=httpx.ByteStream(b"{}"))

    client = guarded(httpx.Client(transport=httpx.MockTransport(answer), base_url="http://inside"))

    @sw.write(name=f"{body}-{next(_turns)}", target="sub_id", max_attempts=1)
    def cancel(sub_id: str) -> Any:
        return BODIES[body](client.post("/", headers=sent))

    with safewrite.run("r", deadline=60.0), safewrite.turn(1):
        return cancel.outcome("sub_1")


@examples(60)
@given(status=STATUS, headers=HEADERS, body=st.sampled_from(sorted(BODIES)))
@example(status=503, headers=[(b"Retry-After", b"7\x1c")], body="return")
@example(status=307, headers=[(b"Location", b"http://[::1")], body="raise")
def test_an_answer_is_never_a_false_no(sw: SafeWrite, status: int, headers: Any, body: str) -> None:
    """Only the status says no, or the header that is there to say it; and the reason is the status's own."""
    found = written(sw, status, headers, body)
    says_no = any(name == b"X-Not-Applied" for name, _ in headers)
    row = STATUSES.get(status)
    refuses = row is not None and row.outcome is OutcomeState.NOT_APPLIED
    if found.state == "not_applied":
        assert says_no or refuses
        assert found.reason in (f"http_{status}", "http_not_applied"), found.reason


@examples(20)
@given(
    headers=st.lists(
        st.tuples(st.sampled_from([b"Idempotency-Key", b"X-Attempt-Id", b"X"]), st.binary(max_size=8))
    )
)
def test_any_headers_of_the_caller_are_sent(sw: SafeWrite, headers: Any) -> None:
    """What a body sets by itself, such as a key of its own, breaks nothing."""
    assert written(sw, 200, {}, "return", headers).state == "applied"


@examples(60)
@given(headers=HEADERS)
@example(headers=[(b"X-Request-Deadline-Ms", b"-" + b"9" * 100)])
def test_any_deadline_of_a_request_is_kept_or_left_out(headers: Any) -> None:
    """The application is asked, or the request is refused as late; there is no third."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        left = safewrite.current_deadline()
        assert left is None or 0.0 < left.remaining() <= 3600.0
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> dict[str, Any]:
        return await asyncio.Future()

    asyncio.run(DeadlineMiddleware(app)({"type": "http", "headers": headers}, receive, send))
    named = any(name.startswith(b"X-Request-Deadline") for name, _ in headers)
    assert sent[0]["status"] == 200 or (sent[0]["status"] == 408 and named)


KEYS = ("run", "turn", "occurrence", "tool-call-id", "deadline-ms", "deadline-at")
META = st.sampled_from([f"dev.safewrite/{name}" for name in KEYS])


WHO = st.text(min_size=1, max_size=4)
INSTANTS = st.integers(-(10**16), 10**16) | anything(META, size=2)
SAID = st.fixed_dictionaries(
    {"dev.safewrite/run": WHO, "dev.safewrite/turn": WHO | st.integers()},
    optional={f"dev.safewrite/{name}": INSTANTS for name in KEYS[2:]},
)
"""Notes that say who calls, and something more."""


@given(meta=SAID | st.dictionaries(META, anything(META, size=3)) | anything(META, size=4))
@example(meta=[["dev.safewrite/run", "r"]])
@example(meta={"dev.safewrite/run": "r", "dev.safewrite/turn": 1, "dev.safewrite/tool-call-id": 10**5000})
def test_any_note_names_who_calls_or_is_refused(sw: SafeWrite, meta: Any) -> None:
    """Run and turn are texts, and what is left is a number or nothing."""
    server = SafeServer(MCPServer("fuzzed"), sw)
    said = server._identity(Request("tools/call", {"_meta": meta}, dict))
    if isinstance(said, str):
        assert said
        return
    assert said.run.strip()
    assert said.turn.strip()
    assert said.left is None or abs(said.left) < 1e13
