"""The process of a scripted dependency: HTTP/1.1 on 127.0.0.1, doing to each request what the script says.

`python -m safewrite.testing.server` prints a line of JSON with `port` and `data_dir`, obeys commands (a JSON
object per line of its standard input, answered by a line on its standard output) and stops when its input ends.
POSIX only.

    POST /{kind}/{target}/{verb}    apply an effect on the target
    GET  /{kind}/{target}           {"target", "state", "effects", "version", "keys", "numbers"}, and an ETag
    GET  /effects?key=K[&target=T]  {"effects", "rows"}: look up by idempotency key
    GET  /_control                  {"effects", "requests", "pending"}
    POST /_control                  a command, see `Server.command`
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from safewrite.testing.effects import Effects, Promises, Reply, Request, parse_keys, refusal
from safewrite.testing.exchange import Exchange
from safewrite.testing.script import Behaviour
from safewrite.testing.wire import HEAD_LIMIT, Caller, Malformed

HOST = "127.0.0.1"
_PLAIN = Behaviour()


class Server:
    """One scripted dependency on a port; everything happens on the event loop that runs it."""

    def __init__(self, effects: Effects) -> None:
        self.effects, self.exchange = effects, Exchange(effects)
        self.port = 0
        self._listener: asyncio.Server | None = None
        self._held: socket.socket | None = None
        self._connections: dict[asyncio.Task[None], Caller] = {}
        self._running: set[asyncio.Task[bool]] = set()

    async def listen(self, port: int) -> None:
        """Hold a port (0: a free one) for as long as the process lives, and accept connections on it."""
        self._held = _bind(port)
        self.port = self._held.getsockname()[1]
        await self._accept()

    async def command(self, order: Any) -> dict[str, object]:
        """Carry out one command; ValueError or TypeError says what is wrong with it.

        `{"do": "script", "steps": […], "path": …, "target": …}`, `{"do": "promise", "keys": …}` (or another
        promise), `{"do": "reset"}`, `{"do": "pause"}`, `{"do": "resume"}`, `{"do": "report"}`.
        """
        match order:
            case {"do": "reset"}:
                await self._reset()
            case {"do": "pause"}:
                await self._refuse()
            case {"do": "resume"}:
                await self._accept()
            case _:
                return self.exchange.command(order)
        return {"done": order["do"]}

    async def _accept(self) -> None:
        if self._listener is None:
            bound = _bind(self.port)
            self._listener = await asyncio.start_server(self._connected, sock=bound, limit=HEAD_LIMIT)

    async def _refuse(self) -> None:
        """Stop listening and drop idle connections, so that the next request of any client is refused."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        idle = [caller for caller in self._connections.values() if caller.idle]
        await asyncio.gather(*(caller.close() for caller in idle), return_exceptions=True)

    async def _reset(self) -> None:
        """Forget effects, requests, keys and steps; end what is under way, so that nothing lands later."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self.exchange.command({"do": "reset"})
        await self._accept()

    def _start(self, work: Coroutine[Any, Any, bool]) -> asyncio.Task[bool]:
        """Start work that a reset ends."""
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = Caller(reader, writer)
        task = asyncio.create_task(self._serve(caller))
        self._connections[task] = caller
        task.add_done_callback(self._connections.pop)

    async def _serve(self, caller: Caller) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                while await self._serve_next(caller):
                    pass
            finally:
                await caller.close()

    async def _serve_next(self, caller: Caller) -> bool:
        """Serve one request; False where the connection ends with it."""
        try:
            request = await caller.receive()
        except Malformed as problem:
            return await caller.answer(refusal(problem.status, "malformed"), _PLAIN, last=True)
        if request is None:
            return False
        if request.path == "/_control":
            return await caller.answer(await self._control(request), _PLAIN, request.closes)
        exchange = self._start(self._exchange(request, caller))
        await asyncio.wait({exchange})
        return not exchange.cancelled() and exchange.result()

    async def _control(self, request: Request) -> Reply:
        order = {"do": "report"} if request.method == "GET" else request.content()
        try:
            return Reply(200, await self.command(order))
        except (TypeError, ValueError) as problem:
            return refusal(400, str(problem))

    async def _exchange(self, request: Request, caller: Caller) -> bool:
        begun = self.exchange.begin(request)
        plan = begun.plan
        await asyncio.sleep(plan.wait)
        if plan.apply_after is not None:
            self._start(self._commit_later(plan.apply_after, request, begun.claimed))
        return await caller.answer(self.exchange.answer(begun), plan, request.closes)

    async def _commit_later(self, seconds: float, request: Request, claimed: bool) -> bool:
        await asyncio.sleep(seconds)
        return self.effects.commit(request, claimed).status == 200


def _bind(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # The port stays ours while nobody listens: a second socket, bound only, shares it with the listener.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((HOST, port))
    return bound


def _obey(server: Server, loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """Carry out the commands on standard input, and stop the server where it ends.  Runs in a thread."""
    with contextlib.suppress(RuntimeError, BrokenPipeError), open(0, "rb", closefd=False) as commands:
        for line in commands:
            try:
                done = asyncio.run_coroutine_threadsafe(server.command(json.loads(line)), loop).result()
            except (TypeError, ValueError) as problem:
                done = {"error": str(problem)}
            print(json.dumps(done), flush=True)
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(stopped.set)


async def serve(folder: Path, port: int, promises: Promises) -> None:
    """Serve until standard input ends."""
    effects = Effects(folder, promises)
    server, stopped = Server(effects), asyncio.Event()
    await server.listen(port)
    print(json.dumps({"port": server.port, "data_dir": str(folder)}), flush=True)
    threading.Thread(target=_obey, args=(server, asyncio.get_running_loop(), stopped), daemon=True).start()
    await stopped.wait()
    effects.close()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m safewrite.testing.server", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--data-dir", type=Path, help="where effects are kept; default: a new folder")
    keys = "how long idempotency keys are recognised: off (default), forever or seconds"
    parser.add_argument("--keys", type=parse_keys, metavar="KEYS", help=keys)
    parser.add_argument("--replays-errors", action="store_true", help="store answers of 5xx under their key")
    parser.add_argument("--honours-deadline", action="store_true", help="408 after X-Request-Deadline-At")
    given = parser.parse_args()
    folder = given.data_dir or Path(tempfile.mkdtemp(prefix="safewrite-dependency-"))
    promises = Promises(given.keys, given.replays_errors, given.honours_deadline)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(folder, given.port, promises))


if __name__ == "__main__":
    main()
