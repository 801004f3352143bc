"""What a scripted dependency keeps: effects, requests and keys, in an append-only file of JSON lines.

`Effects` decides what a write or a read comes to, without any network: a recognised key, a passed deadline, a
failed precondition, and otherwise an effect.  An effect is on disk before its caller can learn of it: a kill
loses none.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Self, TypedDict, cast
from urllib.parse import parse_qs, unquote

FILE_NAME = "dependency.jsonl"


class EffectRow(TypedDict):
    """One effect: `number` counts from 1 over all targets, `at` is Unix time, `body` parsed JSON or text."""

    number: int
    kind: str
    target: str
    verb: str
    key: str | None
    attempt_id: str | None
    body: object
    at: float


class _StoredEffect(EffectRow):
    row: str
    fingerprint: str
    reply: dict[str, object]


class RequestRow(TypedDict):
    """One request as it arrived: header names in lower case, values untouched, and the step that it used."""

    method: str
    path: str
    target: str | None
    headers: dict[str, str]
    body: object
    at: float
    step: str | None


class EffectCount(int):
    """A number of effects, which shows what they were: `assert dependency.effects("sub_1") == 1`."""

    told: tuple[str, ...]
    """A line for every effect, and one for all requests."""

    def __new__(
        cls, effects: Sequence[EffectRow], requests: Sequence[RequestRow], target: str | None
    ) -> Self:
        """Count, and keep what is shown."""
        made = super().__new__(cls, len(effects))
        asked = [f"{row['method']} {row['path']} ({row['step']})" for row in requests]
        made.told = (
            f"{len(effects)} effect{'' if len(effects) == 1 else 's'} on {target or 'all targets'}",
            *(f"#{e['number']} {e['target']} {e['verb']} by attempt {e['attempt_id']}" for e in effects),
            f"requests: {', '.join(asked) or 'none'}",
        )
        return made

    def __repr__(self) -> str:
        return f"<{'; '.join(self.told)}>"

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """A copy of it is a plain number."""
        return int, (int(self),)

    __str__ = int.__repr__


@dataclass(frozen=True, slots=True)
class Promises:
    """What the dependency keeps to; `keys`: how many seconds it recognises a key (None: not at all)."""

    keys: float | None = None
    replays_errors: bool = False
    honours_deadline: bool = False


def parse_keys(text: str | float) -> float | None:
    """Return the retention that `off`, `forever` or a number of seconds stands for; ValueError otherwise."""
    if text in ("off", "forever"):
        return None if text == "off" else math.inf
    seconds = float(text)
    if not seconds > 0:
        raise ValueError(f"keys are kept `off`, `forever` or for a number of seconds > 0, not {text!r}")
    return seconds


@dataclass(frozen=True, slots=True)
class Request:
    """One request; header names in lower case."""

    method: str
    uri: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        """The path, without the query, as it was sent."""
        return self.uri.partition("?")[0]

    @property
    def parts(self) -> list[str]:
        """The decoded segments: kind, target and verb."""
        return [unquote(part) for part in self.path.split("/")[1:]]

    @property
    def target(self) -> str | None:
        """What the request is about: the second segment, or the query parameter `target`."""
        return self.parts[1] if len(self.parts) > 1 else self.query("target")

    @property
    def key(self) -> str | None:
        """The idempotency key, with or without the quotes of a structured field."""
        return self.headers.get("idempotency-key", "").strip('"') or None

    @property
    def closes(self) -> bool:
        """Whether the caller wants the connection closed after the reply."""
        return "close" in self.headers.get("connection", "").lower()

    def query(self, name: str) -> str | None:
        """Return the first value of a query parameter."""
        return parse_qs(self.uri.partition("?")[2]).get(name, [None])[0]

    def content(self) -> object:
        """Return the body as parsed JSON, else as text; None where it is empty."""
        try:
            return json.loads(self.body) if self.body else None
        except (ValueError, RecursionError):
            return self.body.decode("utf-8", "replace")

    def fingerprint(self) -> str:
        """Return the digest that tells another payload under the same key."""
        return hashlib.sha256(b"\0".join([self.method.encode(), self.uri.encode(), self.body])).hexdigest()


@dataclass(frozen=True, slots=True)
class Reply:
    """What is answered: a status and a JSON object, with the headers that are special to it."""

    status: int
    document: dict[str, object]
    headers: tuple[tuple[str, str], ...] = ()


def refusal(status: int, code: str, *headers: tuple[str, str]) -> Reply:
    """Return the reply that says no, or that something went wrong."""
    return Reply(status, {"error": code}, headers)


def read_rows(path: Path, *wanted: str) -> list[dict[str, Any]]:
    """Return the rows of the wanted sorts in a file, oldest first; a last line that was cut off is none."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [row for row in map(json.loads, lines) if row["row"] in wanted]


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is known under a key; without a reply, its request is being worked on."""

    fingerprint: str
    at: float
    reply: Reply | None = None


class Effects:
    """The effects of one dependency, its memory of keys, and its requests.

    One process writes a folder; without a folder all of it is in memory.
    """

    def __init__(self, folder: Path | None, promises: Promises, now: Callable[[], float] = time.time) -> None:
        self.promises = promises
        self._now = now
        self._memory: list[dict[str, Any]] = []
        self._effects: list[_StoredEffect] = []
        self._by_target: defaultdict[tuple[str, str], list[_StoredEffect]] = defaultdict(list)
        self._kept: dict[str, _Kept] = {}
        self._path = None if folder is None else folder / FILE_NAME
        self._file = None if self._path is None else self._load(self._path)

    def rows(self, *wanted: str) -> list[dict[str, Any]]:
        """Return the rows of the wanted sorts, oldest first."""
        if self._path is not None:
            return read_rows(self._path, *wanted)
        return [row for row in self._memory if row["row"] in wanted]

    def _load(self, path: Path) -> BinaryIO:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("ab")
        whole, newline, _torn = path.read_bytes().rpartition(b"\n")
        file.truncate(len(whole + newline))
        for row in read_rows(path, "effect", "answer"):
            if row["row"] == "effect":
                self._hold(cast(_StoredEffect, row))
            else:
                reply = Reply(row["status"], row["reply"])
                self._kept[row["key"]] = _Kept(row["fingerprint"], row["at"], reply)
        return file

    def _hold(self, effect: _StoredEffect) -> None:
        self._effects.append(effect)
        self._by_target[effect["kind"], effect["target"]].append(effect)
        if effect["key"] is not None:
            reply = Reply(200, effect["reply"])
            self._kept[effect["key"]] = _Kept(effect["fingerprint"], effect["at"], reply)

    def _append(self, row: Mapping[str, object], durable: bool = True) -> None:
        if self._file is None:
            self._memory.append(json.loads(json.dumps(row)))
            return
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()
        if durable:
            os.fsync(self._file.fileno())

    def __len__(self) -> int:
        return len(self._effects)

    def clear(self) -> None:
        """Forget everything, on disk as well."""
        self._memory.clear()
        self._effects.clear()
        self._by_target.clear()
        self._kept.clear()
        if self._file is not None:
            self._file.truncate(0)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def note(self, request: Request, step: str | None) -> None:
        """Record that a request arrived and which step it uses, before anything is done with it."""
        row = {"row": "request", "method": request.method, "path": request.uri, "target": request.target}
        about = {"headers": request.headers, "body": request.content(), "at": self._now(), "step": step}
        self._append({**row, **about}, durable=False)

    def claim(self, request: Request) -> bool:
        """Mark the key of a request as being worked on; False if there is none, or it is known already."""
        if self._known(request) is not None or self.promises.keys is None or request.key is None:
            return False
        self._kept[request.key] = _Kept(request.fingerprint(), self._now())
        return True

    def _known(self, request: Request) -> _Kept | None:
        kept = self._kept.get(request.key or "")
        retention = self.promises.keys
        return kept if kept and retention is not None and self._now() < kept.at + retention else None

    def commit(self, request: Request, claimed: bool) -> Reply:
        """Apply a write, once under its key, or say why not; `claimed`: this request holds its key."""
        known = None if claimed else self._known(request)
        if known is not None:
            return self._recognised(request, known)
        refused = self._refused(request)
        if refused is None:
            return self._apply(request)
        if claimed:
            self._kept.pop(request.key or "", None)
        return refused

    def _recognised(self, request: Request, known: _Kept) -> Reply:
        if known.fingerprint != request.fingerprint():
            return refusal(422, "key_reused")
        if known.reply is None:
            return refusal(409, "in_progress")
        return replace(known.reply, headers=(("Idempotency-Replayed", "true"),))

    def _refused(self, request: Request) -> Reply | None:
        headers = request.headers
        try:
            deadline = float(headers.get("x-request-deadline-at", math.inf)) / 1000.0
        except ValueError:
            return refusal(400, "bad_deadline")
        if self.promises.honours_deadline and self._now() > deadline:
            return refusal(408, "deadline_passed", ("X-Not-Applied", "deadline"))
        version = str(self._shown(request, None)["version"])
        if headers.get("if-match", "*").strip() not in ("*", f'"{version}"', version):
            return refusal(412, "precondition_failed", ("ETag", f'"{version}"'))
        return None

    def _apply(self, request: Request) -> Reply:
        kind, target, verb = request.parts
        effect: _StoredEffect = {
            "row": "effect",
            "number": len(self) + 1,
            "kind": kind,
            "target": target,
            "verb": verb,
            "key": request.key,
            "attempt_id": request.headers.get("x-attempt-id"),
            "body": request.content(),
            "at": self._now(),
            "fingerprint": request.fingerprint(),
            "reply": {},
        }
        earlier = self._by_target[kind, target]
        effect["reply"] = {**_state(target, [*earlier, effect]), "effect": effect["number"]}
        self._append(effect)
        self._hold(effect)
        return Reply(200, effect["reply"])

    def failed(self, request: Request, reply: Reply) -> None:
        """Store a failure under its key, where that is promised: the key is burnt."""
        burns = self.promises.replays_errors and self.promises.keys is not None and reply.status >= 500
        if not burns or request.key is None:
            return
        kept = _Kept(request.fingerprint(), self._now(), reply)
        row = {"row": "answer", "key": request.key, "fingerprint": kept.fingerprint, "at": kept.at}
        self._append({**row, "status": reply.status, "reply": reply.document})
        self._kept[request.key] = kept

    def read(self, request: Request, horizon: int | None) -> Reply:
        """Show a target, or what a key has done, as it was after the first `horizon` effects (None: now)."""
        if len(request.parts) == 2:
            return Reply(200, self._shown(request, horizon))
        key, target = request.query("key"), request.target
        rows = [row for row in self._effects[:horizon] if row["key"] == key]
        rows = [row for row in rows if target in (None, row["target"])]
        return Reply(200, {"effects": len(rows), "rows": [public(row, EffectRow) for row in rows]})

    def _shown(self, request: Request, horizon: int | None) -> dict[str, object]:
        kind, target = request.parts[:2]
        rows = self._by_target.get((kind, target), [])
        return _state(target, [row for row in rows if horizon is None or row["number"] <= horizon])

    def report(self) -> dict[str, object]:
        """Return every effect and every request, oldest first."""
        requests = [public(row, RequestRow) for row in self.rows("request")]
        return {"effects": [public(row, EffectRow) for row in self._effects], "requests": requests}


def _state(target: str, effects: Sequence[EffectRow]) -> dict[str, object]:
    """Return what a read shows after these effects; the state is what the last body named, else its verb."""
    state: object = "initial"
    if effects:
        body = effects[-1]["body"]
        state = body.get("state", effects[-1]["verb"]) if isinstance(body, dict) else effects[-1]["verb"]
    shown = {"target": target, "state": state, "effects": len(effects), "version": len(effects)}
    return {**shown, "keys": [one["key"] for one in effects], "numbers": [one["number"] for one in effects]}


def public(row: Mapping[str, Any], of: type[EffectRow | RequestRow]) -> dict[str, Any]:
    """Return the documented fields of a row."""
    return {name: row[name] for name in of.__annotations__}
