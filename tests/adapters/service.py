"""A service behind `DeadlineMiddleware`, in a process of its own: `python -m tests.adapters.service FOLDER [DATABASE]`.

It prints its port; `/events` tells what its handlers noted.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import coverage
import httpx
import sqlalchemy as sa
import uvicorn

import safewrite
from safewrite import Attempt, SafeWrite
from safewrite.adapters.asgi import DeadlineMiddleware
from safewrite.adapters.httpx import guarded
from safewrite.adapters.sqlalchemy import bound_statements

FOLDER, DATABASE = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
EVENTS: list[str] = []
sw = SafeWrite(f"sqlite:///{FOLDER}/service.db")


@sw.write(target="n", name="nested")
async def nested(n: int, attempt: Attempt) -> float:
    """Say what it was given."""
    return attempt.remaining()


class Exchange:
    """What a handler is given."""

    def __init__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scope, self.receive, self.send = scope, receive, send

    async def begin(self, status: int = 200) -> None:
        await self.send({"type": "http.response.start", "status": status, "headers": []})

    async def body(self, content: bytes, more: bool = False) -> None:
        await self.send({"type": "http.response.body", "body": content, "more_body": more})

    async def answer(self, value: object) -> None:
        await self.begin()
        await self.body(json.dumps(value).encode())


async def deadline(exchange: Exchange) -> None:
    """Say what is left."""
    found = safewrite.current_deadline()
    await exchange.answer(None if found is None else found.remaining())


async def write(exchange: Exchange) -> None:
    """Make a nested write, in the turn that the query names."""
    with safewrite.run("r1"), safewrite.turn(exchange.scope["query_string"].decode()):
        outcome = await nested.outcome(1)
    await exchange.answer([outcome.state, outcome.value, str(outcome.error or "")])


async def headers(exchange: Exchange) -> None:
    """Say what headers came."""
    given = {k.decode(): v.decode() for k, v in exchange.scope["headers"] if k.startswith(b"x-")}
    await exchange.answer(given)


async def onward(exchange: Exchange) -> None:
    """Ask oneself for the headers that came."""
    host, port = exchange.scope["server"]
    async with httpx.AsyncClient() as client:
        reply = await client.get(f"http://{host}:{port}/headers", headers=safewrite.onward_headers())
    await exchange.answer(reply.json())


async def guarded_onward(exchange: Exchange) -> None:
    """The same with a guarded client, which carries them by itself."""
    host, port = exchange.scope["server"]
    async with guarded(httpx.AsyncClient()) as client:
        reply = await client.get(f"http://{host}:{port}/headers")
    await exchange.answer(reply.json())


async def sql(exchange: Exchange) -> None:
    """Say what limit PostgreSQL has."""
    engine = sa.create_engine(DATABASE)
    with engine.begin() as connection, bound_statements(connection):
        shown = connection.scalar(sa.text("SHOW statement_timeout"))
    engine.dispose()
    await exchange.answer(shown)


async def slow(exchange: Exchange) -> None:
    """Take thirty seconds."""
    EVENTS.append("slow began")
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        EVENTS.append("slow cancelled")
        raise


async def stubborn(exchange: Exchange) -> None:
    """Take no notice of the first cancellation, and answer too late."""
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        await asyncio.sleep(0.6)
    await exchange.answer("late")
    EVENTS.append("stubborn answered")


async def in_grace(exchange: Exchange) -> None:
    """Answer while cleaning up."""
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        await exchange.answer("just in time")


async def stream(exchange: Exchange) -> None:
    """Answer the first part, and take thirty seconds."""
    await exchange.begin()
    await exchange.body(b"a part", more=True)
    await asyncio.sleep(30)


async def afterwards(exchange: Exchange) -> None:
    """Go on after the response."""
    await exchange.answer("done")
    await asyncio.sleep(0.5)
    message = await exchange.receive()
    EVENTS.append(f"afterwards {message['type']}")


async def upload(exchange: Exchange) -> None:
    """Count the body, and wait for the end."""
    size, more = 0, True
    while more:
        message = await exchange.receive()
        size, more = size + len(message["body"]), message.get("more_body", False)
    gone = asyncio.ensure_future(exchange.receive())
    await asyncio.sleep(0)
    await exchange.answer([size, gone.done()])
    EVENTS.append(f"upload {(await gone)['type']} {(await exchange.receive())['type']}")


async def fails(exchange: Exchange) -> None:
    """Fail."""
    raise RuntimeError("a fault of the handler")


async def fails_late(exchange: Exchange) -> None:
    """Fail while being cancelled."""
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        raise RuntimeError("a fault while cleaning up") from None


async def events(exchange: Exchange) -> None:
    """Say what was noted."""
    await exchange.answer(EVENTS)


HANDLERS: dict[str, Callable[[Exchange], Awaitable[None]]] = {
    f"/{handler.__name__}": handler
    for handler in (deadline, write, headers, onward, guarded_onward, sql, slow, stubborn, in_grace, stream, afterwards,
                    upload, fails, fails_late, events)
}  # fmt: skip


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Serve what is asked for."""
    if scope["type"] == "lifespan":
        await receive()
        sw.upgrade()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await HANDLERS[scope["path"]](Exchange(scope, receive, send))


def end_with_the_test() -> None:
    """Stop where whoever started this process is gone."""
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until told to stop."""
    threading.Thread(target=end_with_the_test, daemon=True).start()
    measuring = coverage.Coverage(data_suffix=True) if "MEASURED" in os.environ else None
    if measuring is not None:
        measuring.start()
    bound = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(DeadlineMiddleware(app), lifespan="on", log_level="warning")
    print(bound.getsockname()[1], flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # after the server has stopped, it raises it again
    try:
        uvicorn.Server(config).run([bound])
    finally:
        if measuring is not None:
            measuring.stop()
            measuring.save()


if __name__ == "__main__":
    main()
