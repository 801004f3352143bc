"""What reads bytes of others, each as a function that raises where it breaks its promise."""

from __future__ import annotations

import atexit
import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from safewrite.audit.cases import Case, CaseUnusable, through_machine
from safewrite.core.canonical import canonical
from safewrite.core.events import OutcomeState
from safewrite.core.intent import intent_key, turn_text
from safewrite.core.rules import RULES
from safewrite.core.statuses import STATUSES, from_status
from safewrite.errors import SchemaOutdated
from safewrite.ledger.codec import Codec, Undecodable, decode_arguments
from safewrite.ledger.rows import COMMANDS, FACTS, Unreadable, command_of, decode_event, parse
from safewrite.ledger.tagged import _READERS
from safewrite.ledger.texts import restored, storable
from tests.fuzz.arguments import NUMBERS, OTHERS, TEXTS, URLS, Desk, commands, harmless

_WORD = re.compile(rb'"[^"]*"|[\w.+-]+')


@dataclass(frozen=True)
class Target:
    """One reader: `check` raises for a finding; `seeds` are good inputs, `words` what stands in them."""

    check: Callable[[bytes], None]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = field(default=(), repr=False)

    def mutant(self, chance: random.Random, known: list[bytes]) -> bytes:
        """Return a known input with a few things altered, without looking at what that reaches.

        Half the time they are whole words: of a document in which any bytes are altered, nothing is read.
        """
        made, by_words = bytearray(chance.choice(known)), chance.random() < 0.5
        for _ in range(chance.randint(1, 2 if by_words else 4)):
            at, length = chance.randint(0, len(made)), chance.choice([0, 0, 1, 4])
            if by_words and (words := list(_WORD.finditer(made))):
                at, length = (word := chance.choice(words)).start(), len(word[0])
            made[at : at + length] = chance.choice([bytes([chance.randrange(256)]), b"", *self.words])
        return bytes(made)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


CODEC = Codec()
GENESIS_ROW = (
    '{"at":[1750000000.5,0.5,"c"],"event":"claimed","fact":{"number":1,"attempt":"a","owner":"o"},"call":{"id":"c",'
    '"left":9.5,"sends":3,"reads":true,"promises":{"key_retention":"inf"},"lease":1.5},"promises":true,'
    '"command":"run","decision":{"rule":"R1","number":1},"outcome":"unknown","machine":1}'
)


def stored(data: bytes) -> None:
    """Values and arguments: a value or `Undecodable`."""
    with suppress(Undecodable):
        CODEC.decode(_text(data))
    with suppress(Undecodable):
        found, missing = decode_arguments(_text(data), {})
        assert {type(name) for name in (*found, *missing)} <= {str}


def rows(data: bytes) -> None:
    """Events and commands: one, or a refusal that says whose fault it is."""
    with suppress(Unreadable, SchemaOutdated):
        decode_event(_text(data))
    with suppress(Unreadable, SchemaOutdated):
        command_of(parse(_text(data)))


@cache
def _folder() -> Path:
    made = tempfile.mkdtemp(prefix="safewrite-fuzz-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def cases(data: bytes) -> None:
    """Case files: a replay or `CaseUnusable`."""
    path = _folder() / "case.json"
    path.write_bytes(data)
    with suppress(CaseUnusable):
        assert str(through_machine(Case.load(path)))


def headers(data: bytes) -> None:
    """A status, and Retry-After behind it: no header makes an outcome, or a wait that is none."""
    status, _, text = data.decode("latin-1").partition("\n")
    if re.fullmatch("[0-9]{1,4}", status, re.ASCII):
        found, bare = (
            from_status(int(status), retry_after=given, date_now_unix=784111777.0) for given in (text, None)
        )
        assert (found.outcome, found.reason) == (bare.outcome, bare.reason)
        assert found.outcome is not OutcomeState.NOT_APPLIED or int(status) in STATUSES
        assert found.retry_after is None or 0.0 <= found.retry_after < float("inf")


def keys(data: bytes) -> None:
    """Texts that a key is made of: always the same key of the same form, and text that a database can hold."""
    text = _text(data)
    with suppress(ValueError):
        turn, target = turn_text(text), canonical([text, {text: data}])
        made = [intent_key(namespace=text, run=text, turn=turn, tool=text, target=target) for _ in range(2)]
        assert made[0] == made[1]
        assert re.fullmatch(r"sw1_[A-Za-z0-9_-]{43}", made[0])
        assert target.isascii()
    assert restored(storable(text)) == text
    assert "\x00" not in storable(text)
    restored(text)


WORDS = sorted(
    {name for params in commands().values() for one in params for name in one.opts if name[0] == "-"}
)
WORDS += [word for path in commands() for word in path] + NUMBERS + TEXTS + URLS + OTHERS


@cache
def _desk() -> Desk:
    return Desk(_folder())


def arguments(data: bytes) -> None:
    """Command lines, a line for each word; no path leads out of the folder."""
    words = [_text(line).replace("/", "") if line not in _SAFE else _text(line) for line in data.split(b"\n")]
    if harmless(words):
        _desk().run(words)


def _lines(*texts: str) -> tuple[bytes, ...]:
    return tuple(text.encode("utf-8", "surrogateescape") for text in texts)


def _quoted(names: Iterable[str]) -> tuple[bytes, ...]:
    return _lines(*(f'"{name}"' for name in names))


_SAFE = {word.encode("utf-8", "surrogatepass") for word in WORDS}
_INTENT = dict.fromkeys(
    ("key", "namespace", "run", "turn", "tool", "target", "occurrence", "dependency"), "x"
)
_CASE = {"safewrite_case": 1, "intent": _INTENT, "arguments": {}, "rows": [json.loads(GENESIS_ROW)]}
_ODD = _lines("null", "true", "-1", "1e400", "NaN", '"inf"', '"\\ud800"', "[]", "{}", "[" * 99, "9" * 40)
_TAGGED = (f'{{"v":1,"as":"tagged","value":{{"{tag}":["2020-01-01"]}}}}' for tag in _READERS)
TARGETS = {
    "stored": Target(stored, _lines('{"arguments":{"a":{"v":1,"as":"tagged","value":1}},"missing":["b"]}', *_TAGGED),
                     _quoted(_READERS) + _ODD),
    "rows": Target(rows, _lines(GENESIS_ROW), _quoted([*FACTS, *COMMANDS, *RULES]) + _ODD),
    "cases": Target(cases, (json.dumps(_CASE).encode(),), _quoted([*FACTS, *COMMANDS, *RULES]) + _ODD),
    "headers": Target(headers, _lines("429\n7", "503\nSun, 06 Nov 1994 08:49:47 GMT", "999\n1.5"),
                      (b"\n", b" +9999", b"\x1c", b"9999", b"Nov", b" GMT")),
    "keys": Target(keys, _lines("run-1", 'json:"x"', "é", "\udcff"), (b'json:"', b"\x00", b"\xed\xa0\x80", b"\\u")),
    "arguments": Target(arguments, _lines("runs\n--json", "unknown\n--limit\n3", "run\nrun-1", "settings", "show\nx",
                                          "plan\n--total\n18\n--calls\n6\n--rate\n3=6%", "replay\ncase.json"),
                        (b"\n", *_SAFE)),
}  # fmt: skip
"""Name -> what is fuzzed."""
