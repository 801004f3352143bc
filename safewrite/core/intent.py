"""Who a write is: its idempotency key, from the canonical text of its target, and the fingerprint of its arguments."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping

from safewrite.core.canonical import canonical, text

KEY_VERSION = "sw1"
"""Names the derivation in every key; another derivation gets another name, never the same one."""
MAX_TARGET_TEXT = 512
"""Characters of a stored target, or of an object's id: short enough for an index on every database."""

_BLOCK = 64
_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))

# The key --------------------------------------------------------------------------------------------------


def target_text(target: object) -> str:
    """Return the text under which a target is stored, compared and put into the key.

    It is the canonical text; beyond `MAX_TARGET_TEXT` characters its beginning and its digest.  Raises
    `Uncanonical`.
    """
    return indexable(canonical(target, "target"))


def indexable(whole: str) -> str:
    """Return a text as an index holds it: beyond `MAX_TARGET_TEXT` characters its beginning and its digest."""
    if len(whole) <= MAX_TARGET_TEXT:
        return whole
    digest = f"...sha256:{_digest(whole.encode('utf-8', 'surrogatepass'))}"
    return whole[: MAX_TARGET_TEXT - len(digest)] + digest


def turn_text(turn: str | int) -> str:
    """Return the text of a turn, 3 and "3" being the same.

    Raises `ValueError` for anything but text that is not blank and whole numbers.
    """
    return _ordinal(turn, "turn")


def intent_key(
    *, namespace: str, run: str, turn: str, tool: str, target: str, occurrence: int | str | None = None
) -> str:
    """Return the idempotency key of an intent: `sw1_` and 43 characters of A-Z, a-z, 0-9, `_` and `-`.

    `turn` is what `turn_text` returned, `target` what `target_text` or `canonical` did.  Occurrences 2 and
    "2" are the same, and None is none of them.  The key is a SHA-256 over all six: nothing can be read from
    it.  Raises `ValueError` for an occurrence that is neither text nor a whole number.
    """
    told = "null" if occurrence is None else text(_ordinal(occurrence, "occurrence"))
    parts = f"[{text(namespace)},{text(run)},{text(turn)},{text(tool)},{text(target)},{told}]"
    return f"{KEY_VERSION}_{_digest(b'safewrite intent 1 ' + parts.encode())}"


def _ordinal(value: str | int, what: str) -> str:
    if isinstance(value, str) and value.strip():
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__repr__(value)
    raise ValueError(f"`{what}` is text or a whole number, the same when the run is resumed; not {value!r}")


def _digest(material: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(material).digest()).rstrip(b"=").decode()


# The fingerprint ------------------------------------------------------------------------------------------


def fingerprint(
    arguments: Mapping[str, object],
    *,
    leave_out: Collection[str] = (),
    redacted: Collection[str] = (),
    salt: bytes = b"",
) -> dict[str, str]:
    """Return a digest of each argument, so that a mismatch can name the parameters that differ.

    `leave_out` names free text, which is not compared.  The digests of `redacted` ones are keyed with the
    `salt` of the intent, and secrets in them are opened; elsewhere a secret raises `Uncanonical`.  Raises
    `ValueError` if something is redacted and there is no salt.
    """
    if redacted and not salt:
        raise ValueError("redacted arguments need a `salt`: without one their digests could be guessed")
    return {
        name: keyed(said, salt) if name in redacted else _digest(said)
        for name, said in digestible(arguments, leave_out=leave_out, opened=redacted).items()
    }


def digestible(
    arguments: Mapping[str, object], *, leave_out: Collection[str] = (), opened: Collection[str] = ()
) -> dict[str, bytes]:
    """Return what is digested of each argument; secrets in those that are `opened` are opened.

    Raises `Uncanonical`.
    """
    found: dict[str, bytes] = {}
    for name, value in sorted(arguments.items()):
        if name not in leave_out:
            found[name] = f"{text(name)}:{canonical(value, name, opened=name in opened)}".encode()
    return found


def keyed(said: bytes, salt: bytes) -> str:
    """Return the digest of what `digestible` returned for an argument, keyed with the salt of the intent."""
    # HMAC-SHA-256 written out: the detour by which OpenSSL finds its own costs several times as much as the hashes.
    key = (salt if len(salt) <= _BLOCK else hashlib.sha256(salt).digest()).ljust(_BLOCK, b"\0")
    inner = hashlib.sha256(key.translate(_INNER) + said).digest()
    return _digest(hashlib.sha256(key.translate(_OUTER) + inner).digest())


def differing(recorded: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the parameters whose digests differ, or that only one side has; sorted."""
    return tuple(sorted(name for name in {*recorded, *now} if recorded.get(name) != now.get(name)))


def fingerprint_digest(digests: Mapping[str, str]) -> str:
    """Return one digest over all: equal exactly if nothing differs."""
    return f"fp1_{_digest(canonical(digests).encode())}"
