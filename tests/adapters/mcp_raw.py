"""A server on stdio without any SDK, which does what a tool is called and writes down what it hears.

`answer` answers, `silent` never does, `late` answers the cancelled request all the same, `ticks:N:S` reports progress N
times every S seconds and answers unless N is 0 (then it never stops), `error:C:M` answers
with a JSON-RPC error, `deaf` reads nothing any more.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

HEARD = Path(sys.argv[1]) / "heard"
PAGES = 60


def send(**message: Any) -> None:
    """Send one message."""
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def result(id: Any, text: str) -> None:
    """Answer a tool call."""
    send(id=id, result={"content": [{"type": "text", "text": text}], "isError": False})


def ticks(id: Any, token: Any, count: int, seconds: float) -> None:
    """Report progress, then answer."""
    n = 0
    while not count or n < count:
        time.sleep(seconds)
        n += 1
        send(method="notifications/progress", params={"progressToken": token, "progress": n})
    result(id, "ticked")


REFUSED: list[Any] = []


def called(id_: Any, params: dict[str, Any], late: list[Any]) -> None:
    """Do what a tool is called."""
    what, *numbers = params["name"].split(":")
    if what == "answer":
        result(id_, params["arguments"].get("say", ""))
    elif what == "late":
        late.append(id_)
    elif what == "refused-later" and REFUSED:
        report = {
            "state": "not_applied",
            "reason": "x",
            "message": "Nothing was sent.",
            "do_not_repeat": False,
        }
        send(id=id_, result={"content": [], "structuredContent": report})
    elif what == "refused-later":
        REFUSED.append(id_)
    elif what == "ticks":
        token = params["_meta"]["progressToken"]
        threading.Thread(
            target=ticks, args=(id_, token, int(numbers[0]), float(numbers[1])), daemon=True
        ).start()
    elif what == "error":
        send(id=id_, error={"code": int(numbers[0]), "message": numbers[1]})
    elif what == "deaf":
        time.sleep(600)


def handle(message: dict[str, Any], late: list[Any]) -> None:
    """Do what one message asks."""
    id_, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if method == "initialize":
        about = {"name": "raw", "version": "1"}
        version = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": about}
        send(id=id_, result=version)
    elif method == "ping":
        send(id=id_, result={})
    elif method == "tools/list":
        page = int(params.get("cursor") or 1)
        if page == 4 and (HEARD.parent / "slow").exists():
            return
        tool = {"name": f"tool-{page}", "inputSchema": {"type": "object"}}
        more = {"nextCursor": str(page + 1)} if page < PAGES or (HEARD.parent / "endless").exists() else {}
        send(id=id_, result={"tools": [tool], **more})
    elif method == "tools/call":
        called(id_, params, late)
    elif method == "notifications/cancelled" and late:
        result(late.pop(), "too late")
    elif id_ is not None and method is not None:
        send(id=id_, error={"code": -32601, "message": "Method not found"})


if __name__ == "__main__":
    waiting: list[Any] = []
    for line in sys.stdin:
        said = json.loads(line)
        with HEARD.open("a") as out:
            out.write(json.dumps([said.get("method"), said.get("id"), said.get("params") or {}]) + "\n")
        handle(said, waiting)
