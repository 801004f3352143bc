"""`settings`: every setting, its value, where that comes from, and what it overrode."""

from __future__ import annotations

import pytest

from safewrite.settings import resolve_settings
from tests.cli.conftest import Command


def test_every_setting_is_listed_with_its_origin(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option wins over the environment, and what it overrode stands beside it."""
    monkeypatch.setenv("SAFEWRITE_DATABASE_URL", "sqlite:///env.db")
    monkeypatch.setenv("SAFEWRITE_THREADS", "8")
    rows = {row["setting"]: row for row in run("settings", "--url", "sqlite:///given.db").rows}
    assert list(rows) == [row.name for row in resolve_settings().table()]
    url = rows["database_url"]
    assert (url["value"], url["origin"]) == ("sqlite:///given.db", "argument")
    assert url["overrode"] == "environment sqlite:///env.db; default sqlite:///./safewrite.db"
    assert (rows["threads"]["value"], rows["threads"]["origin"]) == ("8", "environment")
    assert rows["grace"]["origin"] == "default"
    assert rows["threads"]["variable"] == "SAFEWRITE_THREADS"


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_passwords_are_masked_everywhere(
    run: Command, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    """In the value and in what it overrode."""
    monkeypatch.setenv("SAFEWRITE_DATABASE_URL", "postgresql+psycopg://me:hunter2@host/db")
    done = run("settings", "--url", "postgresql+psycopg://you:hunter3@host/db", *options)
    assert done.code == 0
    assert "hunter" not in done.out
    assert "you:***@host" in done.out
    assert "me:***@host" in done.out


def test_settings_as_json_keep_their_types(run: Command) -> None:
    """Numbers are numbers."""
    found = {row["name"]: row for row in run("settings", "--json").document["settings"]}
    assert found["threads"] == {
        "name": "threads", "value": 64, "origin": "default", "overrode": [], "variable": "SAFEWRITE_THREADS",
        "meaning": found["threads"]["meaning"], "note": "",
    }  # fmt: skip


def test_a_value_that_was_replaced_says_so(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unusable limit is shown as replaced, never silently."""
    monkeypatch.setenv("SAFEWRITE_OPERATION_TIMEOUT", "soon")
    rows = {row["setting"]: row for row in run("settings").rows}
    assert rows["operation_timeout"]["value"] == "20.0"
    assert "'soon'" in rows["operation_timeout"]["meaning"]
