"""Output that is kept up to a bound: its beginning and its end, and how much was dropped between them."""

from __future__ import annotations


class Kept:
    """Head and tail of a stream, `limit` bytes together at most."""

    def __init__(self, limit: int) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._head_room = (limit + 1) // 2
        self._tail_room = limit // 2
        self._added = 0

    def add(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self._added += len(chunk)
        free = self._head_room - len(self._head)
        self._head += chunk[:free]
        self._tail += chunk[free:]
        if len(self._tail) > 2 * self._tail_room:  # not at every chunk: moving the tail costs
            self._trim()

    @property
    def dropped(self) -> int:
        """How many bytes between head and tail were dropped."""
        return self._added - len(self.raw())

    def raw(self) -> bytes:
        """Return what was kept, without a sign of the gap."""
        self._trim()
        return bytes(self._head + self._tail)

    def text(self, encoding: str) -> str:
        """Return what was kept as text, with a line in place of what was dropped; undecodable bytes are replaced."""
        raw, dropped = self.raw(), self.dropped
        if not dropped:
            return raw.decode(encoding, "replace")
        head, tail = raw[: self._head_room], raw[self._head_room :]
        gap = f"\n[... {dropped} bytes dropped ...]\n"
        return f"{head.decode(encoding, 'replace')}{gap}{tail.decode(encoding, 'replace')}"

    def end(self, most: int) -> bytes:
        """Return the last bytes of the stream, at most `most`, and nothing from before a gap."""
        self._trim()
        return bytes(self._tail if self.dropped else self._head + self._tail)[-most:]

    def _trim(self) -> None:
        del self._tail[: max(0, len(self._tail) - self._tail_room)]
