"""`python -m benchmarks.saturation`: a spike meets a dependency that saturates, and clients that try again.

The dependency is a real server in a process of its own: so many workers, a fixed time for each request, and a queue
without end; a request whose caller has left is worked on all the same, as most servers do.  Callers come at a fixed
rate, whatever became of those before: calmly, then for a while at a multiple of what it can serve, then calmly again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safewrite import Dependency, ReadFailed, SafeWrite
from safewrite.shell import pressure

ROOT = Path(__file__).resolve().parent.parent
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
Read = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Load:
    """What comes, and what can be served; times in seconds, rates in requests a second."""

    workers: int = 4
    service: float = 0.04
    calm: float = 0.5
    """Share of the capacity that is asked for before and after the spike."""
    spike: float = 3.0
    """Share of it during the spike."""
    before: float = 3.0
    during: float = 3.0
    after: float = 14.0
    timeout: float = 0.5
    tries: int = 4

    @property
    def capacity(self) -> float:
        """What the dependency can serve."""
        return self.workers / self.service

    def rate(self, at: float) -> float:
        """Return what is asked for at an instant."""
        spiking = self.before <= at < self.before + self.during
        return self.capacity * (self.spike if spiking else self.calm)

    @property
    def length(self) -> float:
        """How long it all takes."""
        return self.before + self.during + self.after


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one client's calls; the lists have a number for each second."""

    client: str
    calls: int
    answered: int
    sent: int
    """Requests that were sent, retries included."""
    offered: list[float]
    goodput: list[float]
    requests: list[float]
    recovered: float | None
    """Seconds from the end of the spike until nine of ten calls were answered again, and stayed so; None: never."""

    @property
    def extra(self) -> float:
        """Requests beyond the first of each call, as a share of the calls."""
        return max(0.0, self.sent / self.calls - 1.0)


# The dependency ----------------------------------------------------------------------------------------------


async def serve(workers: int, service: float) -> None:
    """Serve, and print the port."""
    free = asyncio.Semaphore(workers)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            async with free:
                await asyncio.sleep(service)
            writer.write(ANSWER)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # its caller has left; the work was done all the same
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until whoever started it is gone


@contextmanager
def dependency(load: Load) -> Iterator[int]:
    """Start the dependency; give its port."""
    command = [sys.executable, "-m", "benchmarks.saturation", "--serve", f"{load.workers},{load.service}"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.kill()


class Sender:
    """Sends requests, and remembers when."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.at: list[float] = []

    async def __call__(self) -> str:
        """Send one request, and return what was answered."""
        self.at.append(time.monotonic())
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(b"GET / HTTP/1.1\r\nHost: dependency\r\n\r\n")
            answer = await reader.read()
        finally:
            writer.close()
        if not answer:
            raise ConnectionResetError("no answer")
        return answer.decode()


# The clients -------------------------------------------------------------------------------------------------


def naive(load: Load, send: Sender) -> Read:
    """Return a client that sends again at once, whenever its time is over."""

    async def read() -> str:
        for left in reversed(range(load.tries)):
            try:
                return await asyncio.wait_for(send(), load.timeout)
            except (TimeoutError, OSError):
                if not left:
                    raise
        raise AssertionError

    return read


def guarded(load: Load, send: Sender, sw: SafeWrite, most: int | None = None) -> Read:
    """Return a reading tool of this library; `most`: its dependency's `max_concurrency`."""
    crm = Dependency("saturating", max_concurrency=most)

    @sw.read(name="read", dependency=crm, timeout=load.timeout, max_attempts=load.tries)
    async def read() -> str:
        return await send()

    return read


CLIENTS = ("naive", "safewrite", "safewrite, limited")


async def drive(load: Load, client: str, read: Read, send: Sender) -> Result:
    """Have callers come at the rate of the load; return what became of their calls."""
    began, calls = time.monotonic(), list[tuple[float, asyncio.Task[bool]]]()

    async def call() -> bool:
        try:
            await read()
        except (TimeoutError, OSError, ReadFailed):
            return False
        return True

    at = 0.0
    while at < load.length:
        await asyncio.sleep(max(0.0, began + at - time.monotonic()))
        calls.append((at, asyncio.get_running_loop().create_task(call())))
        at += 1.0 / load.rate(at)
    answered = [(at, await task) for at, task in calls]
    seconds = range(int(load.length))
    offered = [float(sum(int(at) == second for at, _ in answered)) for second in seconds]
    good = [float(sum(ok and int(at) == second for at, ok in answered)) for second in seconds]
    requests = [float(sum(int(at - began) == second for at in send.at)) for second in seconds]
    over = int(load.before + load.during)
    bad = [second for second in seconds if second >= over and good[second] < 0.9 * offered[second]]
    recovered = None if bad and bad[-1] == seconds[-1] else float(bad[-1] + 1 - over if bad else 0)
    return Result(
        client,
        len(answered),
        sum(ok for _, ok in answered),
        len(send.at),
        offered,
        good,
        requests,
        recovered,
    )


def measure(load: Load, client: str) -> Result:
    """Return what became of the calls of one client, against a dependency of its own."""
    with tempfile.TemporaryDirectory() as folder, dependency(load) as port:
        send, sw = Sender(port), SafeWrite(f"sqlite:///{folder}/reads.db")
        pressure.forget()
        with sw:
            sw.prepare()
            half = max(1, int(load.capacity * load.timeout / 2))
            read = {
                "naive": lambda: naive(load, send),
                "safewrite": lambda: guarded(load, send, sw),
                "safewrite, limited": lambda: guarded(load, send, sw, half),
            }[client]()
            return asyncio.run(drive(load, client, read, send))


# What is shown -----------------------------------------------------------------------------------------------


def lines(load: Load, results: list[Result]) -> Iterator[str]:
    """Yield the results as a table."""
    yield (
        f"Capacity {load.capacity:.0f} a second; asked for {load.calm:.0%} of it, for {load.during:g} s "
        f"{load.spike:.0%}, and {load.calm:.0%} again. Timeout {load.timeout:g} s, {load.tries} tries."
    )
    yield f"{'client':20} {'calls':>7} {'answered':>9} {'sent':>7} {'extra':>7}  recovered after the spike"
    for one in results:
        recovered = "not at all" if one.recovered is None else f"in {one.recovered:.0f} s"
        share = f"{one.answered / one.calls:.0%}"
        yield f"{one.client:20} {one.calls:7} {share:>9} {one.sent:7} {one.extra:7.0%}  {recovered}"


def picture(load: Load, results: list[Result]) -> str:
    """Return a picture (SVG): for each client what was offered, sent, and answered, second by second."""
    wide, high, colours = 640, 150, {"offered": "#999999", "requests": "#c0392b", "goodput": "#1e8449"}
    parts = []
    for place, one in enumerate(results):
        top = 40 + place * (high + 60)
        most = max(*one.requests, *one.offered, 1.0)
        parts.append(f'<text x="40" y="{top - 8}">{one.client} (up to {most:.0f} a second)</text>')
        parts.append(f'<rect x="40" y="{top}" width="{wide}" height="{high}" fill="none" stroke="#cccccc"/>')
        for name, colour in colours.items():
            numbers = getattr(one, name)
            step = wide / max(1, len(numbers) - 1)
            points = " ".join(
                f"{40 + n * step:.1f},{top + high - number / most * high:.1f}"
                for n, number in enumerate(numbers)
            )
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
    bottom = 40 + len(results) * (high + 60)
    for n, (name, colour) in enumerate(colours.items()):
        parts.append(f'<text x="{40 + n * 120}" y="{bottom}" fill="{colour}">{name}</text>')
    style = 'font-family="sans-serif" font-size="13"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide + 80}" height="{bottom + 20}" {style}>'
        f"{''.join(parts)}</svg>\n"
    )


def main() -> int:
    """Measure, and show it."""
    parser = argparse.ArgumentParser("python -m benchmarks.saturation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small sample, to see that it runs")
    parser.add_argument("--only", action="append", choices=CLIENTS, help="only this; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a picture (SVG) as well")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve is not None:
        workers, service = asked.serve.split(",")
        asyncio.run(serve(int(workers), float(service)))
        return 0
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    load = Load(workers=2, service=0.05, before=1.0, during=2.0, after=3.0) if asked.quick else Load()
    results = [measure(load, client) for client in asked.only or CLIENTS]
    if asked.plot is not None:
        asked.plot.write_text(picture(load, results), encoding="utf-8")
    if asked.json:
        told: dict[str, Any] = {"load": asdict(load), "capacity": load.capacity}
        told["clients"] = [{**asdict(one), "extra": one.extra} for one in results]
        sys.stdout.write(f"{json.dumps(told, indent=1)}\n")
    else:
        sys.stdout.write("".join(f"{line}\n" for line in lines(load, results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
