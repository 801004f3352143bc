"""The HTTP/1.1 side of a scripted dependency: framing, and the ways in which a connection can go wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from http import HTTPStatus

from safewrite.testing.effects import Reply, Request
from safewrite.testing.script import Behaviour, Ending

HEAD_LIMIT = 64 * 1024


class Malformed(Exception):
    """What arrived cannot be framed: answer with `status` and close."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Caller:
    """One connection of one caller."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.idle = True
        """Owed nothing: between the last piece of a reply and the end of the next request."""

    async def receive(self) -> Request | None:
        """Return the next request, None where the caller has left; Malformed if it cannot be framed."""
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError:
            raise Malformed(431) from None
        method, uri, version, headers = _parse_head(head)
        if "transfer-encoding" in headers:
            raise Malformed(411)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise Malformed(400)
        body = await self._reader.readexactly(int(length))
        self.idle = False
        if version == "HTTP/1.0":
            headers.setdefault("connection", "close")
        return Request(method, uri, headers, body)

    async def answer(self, reply: Reply, plan: Behaviour, last: bool = False) -> bool:
        """End an exchange as planned; False if the connection ends with it, as it does with the `last`."""
        if plan.ending is Ending.SILENCE:
            while await self._reader.read(HEAD_LIMIT):
                pass
        if plan.ending is Ending.RESET:
            self._abort()
        if plan.ending is not Ending.REPLY:
            return False
        whole = encode(reply, last)
        if plan.cut is not None:
            self._writer.write(whole[: plan.cut])
            self._abort()
            return False
        await self._drip(whole, plan.drip or 0.0, len(whole) if plan.drip is None else plan.chunk)
        return not last

    async def _drip(self, whole: bytes, seconds: float, size: int) -> None:
        """Send pieces of `size` bytes, the last one after `seconds`."""
        clock = asyncio.get_running_loop().time
        began = clock()
        for start in range(0, len(whole), size):
            piece = whole[start : start + size]
            await asyncio.sleep(began + seconds * (start + len(piece)) / len(whole) - clock())
            # Told before it is sent: who has the reply must find the connection idle.
            self.idle = start + len(piece) == len(whole)
            self._writer.write(piece)
            await self._writer.drain()

    def _abort(self) -> None:
        """Reset the connection: with no time to linger, closing it sends RST instead of FIN."""
        no_time = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_time)
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection in order and wait until it is."""
        self._writer.close()
        await self._writer.wait_closed()


def _parse_head(head: str) -> tuple[str, str, str, dict[str, str]]:
    first, *lines = head[:-4].split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Malformed(400)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or name != name.strip():
            raise Malformed(400)
        name, value = name.lower(), value.strip()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return words[0], words[1], words[2], headers


def encode(reply: Reply, last: bool) -> bytes:
    """Return the bytes of a reply; 204 and 304 have no body."""
    body = b"" if reply.status in (204, 304) else json.dumps(reply.document).encode()
    phrase = HTTPStatus(reply.status).phrase if reply.status in set(HTTPStatus) else "Scripted"
    headers = list(reply.headers)
    if "version" in reply.document:
        headers.append(("ETag", f'"{reply.document["version"]}"'))
    if body:
        headers += [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if last:
        headers.append(("Connection", "close"))
    lines = [f"HTTP/1.1 {reply.status} {phrase}", *(f"{name}: {value}" for name, value in headers), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body
