"""Settings, each with its origin: argument, else tool, else environment, else default.

`resolve_settings` returns a `Settings`: values by attribute, and `table()` for people who ask where a value comes
from.  Durations are float seconds.
"""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from safewrite.core.idle import too_slow
from safewrite.durations import seconds
from safewrite.errors import ConfigurationError

Value = str | int | float
Origin = Literal["argument", "tool", "environment", "default"]

_PRECEDENCE: tuple[Origin, ...] = get_args(Origin)
_LOG = logging.getLogger("safewrite")
_NEAR = 0.85
"""How like a setting's name a variable is that is taken for a slip: `TEST_DATABASE_URL` (0.83) is none."""
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its value, where that comes from, and what it overrode (the nearest first)."""

    name: str
    value: Value
    origin: Origin
    overrode: tuple[tuple[Origin, Value], ...]
    variable: str
    """The environment variable that can give it."""
    meaning: str
    note: str = ""
    """What was done to the value, or why another one was not used; else empty."""

    @property
    def shown(self) -> str:
        """The value as text, without a password."""
        return _masked(self.value)

    def __repr__(self) -> str:
        overrode = "".join(f", overrode {origin} {_masked(value)}" for origin, value in self.overrode)
        return f"<Setting {self.name}={self.shown} from {self.origin}{overrode}>"


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, resolved.  Built by `resolve_settings`."""

    database_url: str = field(repr=False)
    namespace: str
    operation_timeout: float
    minimum: float
    reserve_share: float
    reserve_floor: float
    lease_margin: float
    grace: float
    threads: int
    busy_timeout: float
    connect_timeout: float
    statement_timeout: float
    idle: float
    keepalive: float
    backstop: float
    _rows: tuple[Setting, ...] = field(repr=False, compare=False)
    _layers: Mapping[Origin, Mapping[str, Value]] = field(repr=False, compare=False)
    _notes: Mapping[str, str] = field(repr=False, compare=False)

    def table(self) -> list[Setting]:
        """Return every setting with its origin, in a fixed order."""
        return list(self._rows)

    def checked(self) -> Settings:
        """Return these settings, at start-up.

        Raises `ConfigurationError` for a database URL of another kind, and, with both numbers and where they came
        from, if keepalives would come too late for the idle limit.
        """
        supported(self.database_url)
        rows = {row.name: row for row in self._rows}
        if problem := too_slow(self.keepalive, rows["keepalive"].origin, self.idle, rows["idle"].origin):
            raise ConfigurationError(problem)
        return self

    def for_tool(self, tool: Mapping[str, object]) -> Settings:
        """Return these settings with those of one tool laid under the arguments and over the environment.

        `None` values count as not given.  Raises `ConfigurationError` as `resolve_settings` does.
        """
        return _settle({**self._layers, "tool": _checked(tool)}, self._notes)


def supported(url: str) -> None:
    """Raise `ConfigurationError` for a database URL that names no database a ledger can be in; opens nothing."""
    how = "Write `sqlite:///path/to/agent.db` or `postgresql+psycopg://user@host/database`."
    scheme, found, _ = str(url).partition("://")
    if not found or not scheme:
        # Without its text: it may hold a password.
        raise ConfigurationError(f"The database URL cannot be read. {how}")
    backend = scheme.partition("+")[0]
    if backend not in ("sqlite", "postgresql"):
        raise ConfigurationError(f"A ledger in `{backend}` is not supported. {how}")


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    default: Value
    check: Callable[[object, str], Value]
    meaning: str

    @property
    def variable(self) -> str:
        return f"SAFEWRITE_{self.name.upper()}"


def resolve_settings(
    arguments: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    tool: Mapping[str, object] | None = None,
) -> Settings:
    """Return the settings that arguments, a tool and the environment (default: the process's) give.

    `None` values count as not given.  Raises `ConfigurationError`, which names the setting or variable, its value
    and what to write, for unknown names, misspelt variables and unusable values; but an unusable
    `SAFEWRITE_OPERATION_TIMEOUT` is replaced by the default, noted in the table and warned of once.  An
    `operation_timeout` below `minimum` is raised to it; it has no upper limit.
    """
    environment, notes = _environment(environ)
    layers: dict[Origin, Mapping[str, Value]] = {
        "argument": _checked(arguments or {}),
        "tool": _checked(tool or {}),
        "environment": environment,
        "default": {known.name: known.default for known in _CATALOGUE},
    }
    return _settle(layers, notes)


def _settle(layers: Mapping[Origin, Mapping[str, Value]], notes: Mapping[str, str]) -> Settings:
    """Let the nearest origin win, setting by setting."""
    rows = {known.name: _row(known, layers, notes.get(known.name, "")) for known in _CATALOGUE}
    rows["operation_timeout"] = _raised(rows["operation_timeout"], rows["minimum"])
    values: dict[str, Any] = {name: row.value for name, row in rows.items()}
    return Settings(**values, _rows=tuple(rows.values()), _layers=layers, _notes=notes)


def _row(known: _Known, layers: Mapping[Origin, Mapping[str, Value]], note: str) -> Setting:
    given: list[tuple[Origin, Value]] = [
        (origin, layers[origin][known.name]) for origin in _PRECEDENCE if known.name in layers[origin]
    ]
    (origin, value), *rest = given
    return Setting(known.name, value, origin, tuple(rest), known.variable, known.meaning, note)


def _raised(row: Setting, minimum: Setting) -> Setting:
    if row.value >= minimum.value:  # type: ignore[operator]  # both are durations
        return row
    note = f"{row.value} s is below `minimum` and was raised to it"
    note = f"{row.note}; {note}" if row.note else note
    return Setting(row.name, minimum.value, row.origin, row.overrode, row.variable, row.meaning, note)


def _checked(given: Mapping[str, object]) -> dict[str, Value]:
    """Check names and values; leave out what is `None`."""
    for name in given:
        if name not in _BY_NAME:
            near = difflib.get_close_matches(str(name), _BY_NAME, n=1)
            hint = f"Do you mean `{near[0]}`?" if near else f"There are: {', '.join(_BY_NAME)}."
            raise ConfigurationError(f"There is no setting `{name}`. {hint}")
    return {name: _BY_NAME[name].check(value, name) for name, value in given.items() if value is not None}


def _environment(environ: Mapping[str, str] | None) -> tuple[dict[str, Value], dict[str, str]]:
    """Return what the environment gives, and a note for what it gave but cannot be used."""
    given = os.environ if environ is None else environ
    if not any(name.upper().startswith("SAFEWRITE_") for name in given):
        return {}, {}
    from safewrite import environment  # late: it imports pydantic_settings

    _spelt(given)
    values: dict[str, Value] = {}
    notes: dict[str, str] = {}
    for name, value in environment.read_environment(given).items():
        known = _BY_NAME[name]
        if name != "operation_timeout":
            values[name] = known.check(value, known.variable)
        elif (usable := _operation_timeout(str(value))) is not None:
            values[name] = usable
        else:
            notes[name] = _unusable(known, str(value))
    return values, notes


def _spelt(environ: Mapping[str, str]) -> None:
    """Raise for a variable that is nearly ours: what somebody believes to have set must not be passed over.

    Others may begin with `SAFEWRITE_`, too: tests have some, and so has a cluster with a service of that name.
    """
    for variable, text in environ.items():
        prefix, _, name = variable.upper().partition("_")
        if prefix != "SAFEWRITE" or name.lower() in _BY_NAME or not text.strip():
            continue
        if near := difflib.get_close_matches(name.lower(), _BY_NAME, n=1, cutoff=_NEAR):
            raise ConfigurationError(
                f"`{variable}` sets nothing. Do you mean `{_BY_NAME[near[0]].variable}`? "
                "If not, give it a name that is less like it."
            )


def _operation_timeout(text: str) -> float | None:
    try:
        return seconds(float(text), name="operation_timeout")
    except ValueError:
        return None


def _unusable(known: _Known, text: str) -> str:
    note = f"{known.variable} is {text!r}, which is not a positive number of seconds: {known.default} is used"
    if note not in _warned:
        _warned.add(note)
        _LOG.warning("%s", note)
    return note


# What there is ---------------------------------------------------------------------------------------------------


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigurationError(f"`{name}` is {value!r}. Write a text that is not empty.")
    return value


def _positive(value: object, name: str) -> float:
    return seconds(value, name=name)


def _zero_or_more(value: object, name: str) -> float:
    return seconds(value, name=name, allow_zero=True)


def _share(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigurationError(f"`{name}` is {value!r}. Write a share from 0 up to, but not including, 1.")
    return float(value)


def _count(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"`{name}` is {value!r}. Write a whole number, 1 or more.")
    return value


_CATALOGUE = (
    _Known("database_url", "sqlite:///./safewrite.db", _text, "where the ledger is"),
    _Known("namespace", "default", _text, "keeps the intents of several applications in one ledger apart"),
    _Known("operation_timeout", 20.0, _positive, "bounds a call that has no deadline and no cap"),
    _Known("minimum", 1.0, _positive, "less than this left of a deadline: nothing is sent"),
    _Known("reserve_share", 0.25, _share, "part of what is left that is kept for a reconciling read"),
    _Known("reserve_floor", 0.5, _zero_or_more, "the least that is kept for it, where that fits"),
    _Known("lease_margin", 5.0, _zero_or_more, "how much longer than its call a lease lives"),
    _Known("grace", 0.5, _zero_or_more, "how long a call may clean up after its limit"),
    _Known("threads", 64, _count, "the most bodies that run in our threads at once"),
    _Known("busy_timeout", 5.0, _zero_or_more, "how long to wait for a lock of the ledger (SQLite)"),
    _Known("connect_timeout", 5.0, _positive, "how long to wait for a connection to the ledger"),
    _Known("statement_timeout", 5.0, _positive, "how long one statement of the ledger may take"),
    _Known(
        "idle", 300.0, _positive, "how long work that can report progress may be silent before it is given up"
    ),
    _Known("keepalive", 20.0, _positive, "how often a slow tool says that it is still there"),
    _Known("backstop", 30.0, _positive, "how long after the innermost limits the outermost one answers"),
)
_BY_NAME = {known.name: known for known in _CATALOGUE}

_PASSWORD = re.compile(r"(?<=://)([^/@:]*):.*@|(password=)[^&\s]*", re.IGNORECASE)


def _masked(value: Value) -> str:
    return _PASSWORD.sub(lambda m: f"{m[2]}***" if m[2] else f"{m[1]}:***@", str(value))
