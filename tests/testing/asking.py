"""What the tests of the scripted dependency ask with."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path

import httpx

CANCEL = "/subscriptions/sub_1/cancel"
READ = "/subscriptions/sub_1"
ROOT = Path(__file__).parents[2]
BRIEF = httpx.Timeout(5.0, read=0.05)
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def keyed(key: str, **more: str) -> dict[str, str]:
    """Return headers with an idempotency key."""
    return {"Idempotency-Key": key, **more}


def poll(reached: Callable[[], bool], within: float = 5.0) -> bool:
    """Return whether something came true in time."""
    end = time.monotonic() + within
    while not reached():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def listening(url: str) -> bool:
    """Return whether anybody accepts connections there."""
    port = int(url.rpartition(":")[2])
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True
