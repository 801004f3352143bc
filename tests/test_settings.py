"""Settings and where they come from: argument, else tool, else environment, else default."""

from __future__ import annotations

import logging
import math
import subprocess
import sys

import pytest

import safewrite
from safewrite import environment, settings
from safewrite.errors import ConfigurationError
from safewrite.settings import Setting, Settings, resolve_settings

DEFAULTS = {
    "database_url": "sqlite:///./safewrite.db",
    "namespace": "default",
    "operation_timeout": 20.0,
    "minimum": 1.0,
    "reserve_share": 0.25,
    "reserve_floor": 0.5,
    "lease_margin": 5.0,
    "grace": 0.5,
    "threads": 64,
    "busy_timeout": 5.0,
    "connect_timeout": 5.0,
    "statement_timeout": 5.0,
    "idle": 300.0,
    "keepalive": 20.0,
    "backstop": 30.0,
}
TEXTS = {
    "database_url": "sqlite:///other.db",
    "namespace": "shop",
    "operation_timeout": "30",
    "minimum": "0.25",
    "reserve_share": "0.5",
    "reserve_floor": "0",
    "lease_margin": "7.5",
    "grace": "2",
    "threads": "8",
    "busy_timeout": "1.5",
    "connect_timeout": "3",
    "statement_timeout": "4",
    "idle": "60",
    "keepalive": "5",
    "backstop": "10",
}


def row(resolved: Settings, name: str) -> Setting:
    """Return the row of one setting."""
    (found,) = (setting for setting in resolved.table() if setting.name == name)
    return found


@pytest.fixture(autouse=True)
def _nothing_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "_warned", set())


def test_defaults_hold_where_nothing_is_given() -> None:
    """Every setting has a default, says so, and is an attribute and a row of the table."""
    resolved = resolve_settings({}, {})
    assert {setting.name: setting.value for setting in resolved.table()} == DEFAULTS
    assert {name: getattr(resolved, name) for name in DEFAULTS} == DEFAULTS
    assert {(setting.origin, setting.overrode, setting.note) for setting in resolved.table()} == {
        ("default", (), "")
    }
    assert [type(getattr(resolved, name)) for name in DEFAULTS] == [
        type(value) for value in DEFAULTS.values()
    ]
    assert all(setting.meaning for setting in resolved.table())


def test_every_setting_has_a_variable() -> None:
    """`SAFEWRITE_` and the name in capitals gives any setting, as a value of its type."""
    assert set(environment._Variables.model_fields) == set(DEFAULTS) == set(TEXTS)
    resolved = resolve_settings({}, {f"SAFEWRITE_{name.upper()}": text for name, text in TEXTS.items()})
    for name, text in TEXTS.items():
        found = row(resolved, name)
        assert found.variable == f"SAFEWRITE_{name.upper()}"
        assert found.value == type(DEFAULTS[name])(text)
        assert type(found.value) is type(DEFAULTS[name])
        assert (found.origin, found.overrode) == ("environment", (("default", DEFAULTS[name]),))


def test_the_process_has_the_environment_unless_one_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping, the variables of the process are read, each time anew."""
    monkeypatch.setenv("SAFEWRITE_THREADS", "5")
    assert resolve_settings().threads == 5
    assert resolve_settings(environ={}).threads == 64
    monkeypatch.setenv("SAFEWRITE_THREADS", "6")
    assert resolve_settings().threads == 6


def test_no_file_gives_a_setting(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `.env` that happens to lie in the working directory is not read."""
    (tmp_path / ".env").write_text("SAFEWRITE_THREADS=5\n")
    monkeypatch.chdir(tmp_path)
    assert resolve_settings(environ={}).threads == 64


def test_argument_beats_tool_beats_environment_beats_default() -> None:
    """The nearest origin wins, and what it overrode is told, the nearest first."""
    environ = {"SAFEWRITE_THREADS": "7"}
    resolved = resolve_settings({"threads": 9}, environ, tool={"threads": 8})
    found = row(resolved, "threads")
    assert resolved.threads == 9
    assert found.origin == "argument"
    assert found.overrode == (("tool", 8), ("environment", 7), ("default", 64))
    assert row(resolve_settings({}, environ, tool={"threads": 8}), "threads").origin == "tool"
    assert row(resolve_settings({}, environ), "threads").origin == "environment"


def test_a_tool_is_laid_between() -> None:
    """`for_tool` overrides the environment, not an argument, and leaves the settings it came from alone."""
    resolved = resolve_settings({"grace": 2}, {"SAFEWRITE_THREADS": "7"})
    of_tool = resolved.for_tool({"threads": 1, "grace": 3, "keepalive": None})
    assert (of_tool.threads, of_tool.grace, of_tool.keepalive) == (1, 2.0, 20.0)
    assert row(of_tool, "grace").overrode == (("tool", 3.0), ("default", 0.5))
    assert resolved.threads == 7
    assert of_tool.for_tool({}) == resolved


def test_none_is_not_given() -> None:
    """An argument of `None` leaves the setting to the next origin."""
    resolved = resolve_settings({"database_url": None}, {"SAFEWRITE_DATABASE_URL": "sqlite:///x.db"})
    assert resolved.database_url == "sqlite:///x.db"


@pytest.mark.parametrize("text", ["", "  ", "abc", "20s", "0", "-5", "nan", "inf", "-inf", "1e999"])
def test_an_unusable_operation_timeout_falls_back(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """20 s is used, the text is shown with the setting, and a warning is logged, once."""
    for _ in range(2):
        found = row(resolve_settings({}, {"SAFEWRITE_OPERATION_TIMEOUT": text}), "operation_timeout")
        assert (found.value, found.origin, found.overrode) == (20.0, "default", ())
        assert f"SAFEWRITE_OPERATION_TIMEOUT is {text!r}" in found.note
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("safewrite", logging.WARNING, found.note)
    ]


def test_another_unusable_text_is_warned_of_as_well(caplog: pytest.LogCaptureFixture) -> None:
    """Once means once a text."""
    for text in ("abc", "def", "abc"):
        resolve_settings({}, {"SAFEWRITE_OPERATION_TIMEOUT": text})
    assert len(caplog.records) == 2


def test_the_text_of_an_unusable_operation_timeout_is_shown_beside_an_argument() -> None:
    """An argument makes the environment not matter, but its fault is still told."""
    found = row(
        resolve_settings({"operation_timeout": 5}, {"SAFEWRITE_OPERATION_TIMEOUT": "abc"}),
        "operation_timeout",
    )
    assert (found.value, found.origin) == (5.0, "argument")
    assert "'abc'" in found.note


@pytest.mark.parametrize(
    ("arguments", "environ", "origin"),
    [
        ({}, {"SAFEWRITE_OPERATION_TIMEOUT": "0.3"}, "environment"),
        ({"operation_timeout": 0.3}, {}, "argument"),
    ],
)
def test_an_operation_timeout_below_the_minimum_is_raised(
    arguments: dict, environ: dict, origin: str
) -> None:
    """No leg is granted less than `minimum`, so no call is either; the note says what was raised."""
    found = row(resolve_settings(arguments, environ), "operation_timeout")
    assert (found.value, found.origin) == (1.0, origin)
    assert found.note == "0.3 s is below `minimum` and was raised to it"
    lower = resolve_settings({**arguments, "minimum": 0.1}, environ)
    assert lower.operation_timeout == 0.3


def test_both_notes_are_kept() -> None:
    """An unusable text and a raised argument are both told."""
    environ = {"SAFEWRITE_OPERATION_TIMEOUT": "abc"}
    found = row(resolve_settings({"operation_timeout": 0.3}, environ), "operation_timeout")
    assert "'abc'" in found.note
    assert found.note.endswith("; 0.3 s is below `minimum` and was raised to it")


def test_an_operation_timeout_has_no_upper_limit() -> None:
    """A large finite value is taken as it is."""
    assert resolve_settings({}, {"SAFEWRITE_OPERATION_TIMEOUT": "1e12"}).operation_timeout == 1e12


@pytest.mark.parametrize("name", sorted(set(DEFAULTS) - {"operation_timeout"}))
def test_an_empty_variable_is_not_set(name: str) -> None:
    """Empty, or only spaces, leaves the default."""
    for text in ("", "  "):
        assert getattr(resolve_settings({}, {f"SAFEWRITE_{name.upper()}": text}), name) == DEFAULTS[name]


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        ("MINIMUM", "abc", "Write a positive number of seconds"),
        ("MINIMUM", "0", "Write a positive number of seconds"),
        ("CONNECT_TIMEOUT", "nan", "Write a positive number of seconds"),
        ("GRACE", "-1", "Write zero or a positive number of seconds"),
        ("STATEMENT_TIMEOUT", "inf", "Write a positive number of seconds"),
        ("THREADS", "abc", "Write a whole number, 1 or more."),
        ("THREADS", "2.5", "Write a whole number, 1 or more."),
        ("THREADS", "0", "Write a whole number, 1 or more."),
        ("RESERVE_SHARE", "1", "Write a share from 0"),
        ("RESERVE_SHARE", "nan", "Write a share from 0"),
        ("RESERVE_SHARE", "half", "Write a share from 0"),
    ],
)
def test_any_other_unusable_variable_is_an_error(name: str, text: str, advice: str) -> None:
    """The error names the variable, its value and what to write."""
    with pytest.raises(ConfigurationError) as caught:
        resolve_settings({}, {f"SAFEWRITE_{name}": text})
    assert str(caught.value).startswith(f"`SAFEWRITE_{name}` is ")
    assert text in str(caught.value)
    assert advice in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("operation_timeout", value) for value in (0, -1, math.nan, math.inf, "20", True)),
        *(("threads", value) for value in (0, -1, 2.0, True, "3")),
        *(("reserve_share", value) for value in (-0.1, 1, True, "0.5", math.nan)),
        *(("database_url", value) for value in ("", " ", 7)),
        ("namespace", ""),
    ],
    ids=str,
)
@pytest.mark.parametrize("layer", ["argument", "tool"])
def test_an_unusable_argument_is_an_error(name: str, value: object, layer: str) -> None:
    """What a program gives is never replaced in silence."""
    given = {"arguments": {name: value}} if layer == "argument" else {"tool": {name: value}}
    with pytest.raises(ConfigurationError, match=f"`{name}` is "):
        resolve_settings(environ={}, **given)


def test_an_unknown_name_is_an_error_with_a_hint() -> None:
    """A near name is suggested, otherwise all are listed; a value of `None` does not hide it."""
    with pytest.raises(ConfigurationError, match=r"no setting `thread`\. Do you mean `threads`\?"):
        resolve_settings({"thread": 3}, {})
    with pytest.raises(
        ConfigurationError, match=r"no setting `colour`\. There are: database_url, namespace, "
    ):
        resolve_settings({}, {}).for_tool({"colour": None})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SAFEWRITE_OPERATION_TIMEOT", "SAFEWRITE_OPERATION_TIMEOUT"),
        ("SAFEWRITE_OPERATION_TIME_OUT", "SAFEWRITE_OPERATION_TIMEOUT"),
        ("safewrite_namspace", "SAFEWRITE_NAMESPACE"),
        ("SAFEWRITE_KEEP_ALIVE", "SAFEWRITE_KEEPALIVE"),
        ("SAFEWRITE_THREAD", "SAFEWRITE_THREADS"),
    ],
)
def test_a_misspelt_variable_is_an_error_with_a_hint(variable: str, meant: str) -> None:
    """A limit that somebody believes to have set is not passed over, even beside the one that is meant."""
    for environ in ({variable: "5"}, {variable: "5", "SAFEWRITE_NAMESPACE": "shop"}):
        with pytest.raises(ConfigurationError) as caught:
            resolve_settings({}, environ)
        assert str(caught.value).startswith(f"`{variable}` sets nothing. Do you mean `{meant}`?")
    assert resolve_settings({}, {variable: " "}) == resolve_settings({}, {})


@pytest.mark.parametrize(
    "variable",
    [
        "SAFEWRITE_TEST_POSTGRES_URL",
        "SAFEWRITE_TEST_DATABASE_URL",
        "SAFEWRITE_DEEP",
        "SAFEWRITE_TORTURE",
        "SAFEWRITE_COMMAND",
        "SAFEWRITE_MCP_SERVER",
        "SAFEWRITE_MCP1_PYTHON",
        "SAFEWRITE_SERVICE_HOST",
        "SAFEWRITE_PORT_80_TCP",
        "SAFEWRITER_GRACES",
        "THREADS",
    ],
)
def test_foreign_variables_are_left_alone(variable: str) -> None:
    """What tests, commands, clusters and other programs call their variables is no error."""
    assert resolve_settings({}, {variable: "0"}) == resolve_settings({}, {})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://bob:s3cret@db/app", "postgresql+psycopg://bob:***@db/app"),
        ("postgresql+psycopg://bob:s3cr/e@t@db/app", "postgresql+psycopg://bob:***@db/app"),
        (
            "postgresql+psycopg://db/app?user=bob&password=s3cret&x=1",
            "postgresql+psycopg://db/app?user=bob&password=***&x=1",
        ),
        (
            "postgresql+psycopg://bob@db/app?sslkey=k&sslpassword=s3cret",
            "postgresql+psycopg://bob@db/app?sslkey=k&sslpassword=***",
        ),
        ("postgresql+psycopg://bob@db/app", "postgresql+psycopg://bob@db/app"),
        ("sqlite:////data/agent.db", "sqlite:////data/agent.db"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    """Neither table nor repr gives away what the URL of the ledger hides; the value itself is whole."""
    resolved = resolve_settings({"database_url": url}, {"SAFEWRITE_DATABASE_URL": url})
    found = row(resolved, "database_url")
    assert (resolved.database_url, found.shown) == (url, shown)
    assert "s3cr" not in f"{resolved!r}{resolved.table()!r}"
    assert repr(found) == (
        f"<Setting database_url={shown} from argument, overrode environment {shown}, "
        "overrode default sqlite:///./safewrite.db>"
    )


@pytest.mark.parametrize(("given", "needed"), [({}, False), ({"SAFEWRITE_GRACE": "1"}, True)])
def test_nothing_heavy_is_imported_unless_a_variable_is_to_be_read(
    given: dict[str, str], needed: bool
) -> None:
    """The module alone does not import pydantic, nor does resolving where no variable is ours."""
    code = (
        "import sys, safewrite.settings as s;"
        "heavy = {'pydantic', 'pydantic_settings', 'sqlalchemy', 'httpx'};"
        f"before = heavy & set(sys.modules); s.resolve_settings(None, {{'PATH': '/bin', **{given!r}}});"
        "print(sorted(before), 'pydantic_settings' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"[] {needed}"


@pytest.mark.parametrize(
    ("idle", "keepalive", "wrong"), [("20", "20", True), ("20.5", "20", False), ("300", "400", True)]
)
def test_keepalives_are_checked_against_the_idle_limit_at_start_up(
    monkeypatch: pytest.MonkeyPatch, idle: str, keepalive: str, wrong: bool
) -> None:
    """When `SafeWrite` is made, not in the first slow call: both numbers, and where they came from."""
    monkeypatch.setenv("SAFEWRITE_IDLE", idle)
    if not wrong:
        with safewrite.SafeWrite("sqlite://", settings={"keepalive": float(keepalive)}):
            return
    said = rf"`idle` = {idle} s \(set by environment\).*`keepalive` = {keepalive} s \(set by argument\)"
    with pytest.raises(ConfigurationError, match=said):
        safewrite.SafeWrite("sqlite://", settings={"keepalive": float(keepalive)})
