"""`doctor`: what the time settings around an agent come to, and every edge of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from safewrite.cli.output import Output
from safewrite.core.runtime import VARIABLES
from tests.cli.conftest import Command
from tests.cli.test_plan import table

FITS = [
    "--client-timeout",
    "20",
    "--host-limit",
    "60",
    "--cli-version",
    "2.1.258",
    "--sdk-version",
    "0.3.257",
]


@pytest.fixture(autouse=True)
def _no_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the runtime of whoever runs the tests out of them."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def write(path: Path, document: Any) -> str:
    """Write a JSON file, and return its name."""
    path.write_text(json.dumps(document))
    return str(path)


def test_the_plan_is_printed_with_the_versions_it_was_read_from(run: Command) -> None:
    """Versions nobody named are said to be unverified; nothing is a problem, so it ends with 0."""
    done = run("doctor")
    assert (done.code, done.err) == (0, "")
    assert "read from   cli 2.1.258 (2026-09-01), agent_sdk 0.3.257 (2026-09-10)" in done.out
    assert "cli (its version is not known) is unverified" in done.out
    assert "first turn  waits up to 25 s, once a launch" in done.out
    assert [row["value"] for row in table(done.out, "variable")] == ["30000", "7200000", "by transport"]
    stdio, http = table(done.out, "server")
    assert (stdio["tool call"], stdio["idle"], stdio["silent call ends"]) == ("7200 s", "1800 s", "1825 s")
    assert (http["idle"], http["silent call ends"]) == ("300 s", "325 s")
    assert done.out.count("\nnote\t") == 2


def test_limits_that_fit_have_no_edges(run: Command) -> None:
    """And versions that were read are not called unverified."""
    done = run("doctor", *FITS)
    assert done.code == 0
    assert "unverified" not in done.out
    assert done.out.endswith("Edges\nkind\tserver\twhat\n")


def test_a_problem_ends_it_with_1(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the executor set is named, with what it overrode."""
    monkeypatch.setenv("MCP_TIMEOUT", "7200000")
    done = run("doctor", *FITS)
    assert done.code == 1
    assert table(done.out, "variable")[0]["overrode"] == "managed defaults 30000; client 30000"
    assert (
        "problem\t\t`MCP_TIMEOUT` = 7200 s (set by executor) lets the first turn wait up to 7195 s"
        in done.out
    )


def test_profile_and_servers_come_from_files(run: Command, tmp_path: Path) -> None:
    """As the runtime's own files have them; in JSON everything is in it, with the settings that would be handed on."""
    profile = write(tmp_path / "settings.json", {"env": {"MCP_TOOL_TIMEOUT": 10000}})
    servers = write(
        tmp_path / "mcp.json",
        {
            "mcpServers": {
                "a": {"command": "x"},
                "b": {"type": "sdk", "timeout": 60_000},
                "c": 1,
                "d": {"timeout": True},
            }
        },
    )
    done = run("doctor", "--profile", profile, "--servers", servers, "--json", *FITS)
    document = done.document
    assert document["environment"] == {"MCP_TIMEOUT": "30000", "MCP_TOOL_TIMEOUT": "10000"}
    assert [
        (s["server"], s["transport"], s["tool"], s["idle"]) for s in document["runtime_ms"]["servers"]
    ] == [
        ("a", "stdio", 10_000, 10_000),
        ("b", "sdk", 60_000, None),
        ("c", "stdio", 10_000, 10_000),
        ("d", "stdio", 10_000, 10_000),
    ]
    assert "agent profile (10000) wins over managed defaults (7200000)" in document["overrides"][1]
    assert (document["unverified"], document["read"]["cli"]) == (
        [],
        {"version": "2.1.258", "published": "2026-09-01"},
    )
    assert [(e["code"], e["server"]) for e in document["edges"]] == [
        (code, server) for server in "acd" for code in ("ours_longer", "keepalive_slower")
    ]
    assert (document["problems"], done.code) == (6, 1)


def test_our_own_limits_come_from_settings_and_options(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's deadline that the backstop was not told of; a ledger on a server."""
    monkeypatch.setenv("SAFEWRITE_KEEPALIVE", "15")
    done = run("doctor", *FITS, "--call", "60", "--url", "postgresql+psycopg://me@host/db", "--json")
    ours = done.document["ours_seconds"]
    assert (ours["call"], ours["backstop"], ours["slice"]) == (60.5, 50.5, 45.0)
    assert (ours["keepalive"], ours["keepalive_from"], ours["sqlite"], ours["busy"]) == (
        15.0,
        "environment",
        False,
        10.0,
    )
    codes = [edge["code"] for edge in done.document["edges"] if edge["problem"]]
    assert codes == ["backstop_inside", "client_shorter"]
    assert run("doctor", *FITS, "--call", "19", "--backstop", "90.5", "--host-limit", "91").code == 0


APP = """
from safewrite import Dependency, SafeWrite
sw = SafeWrite("sqlite:///never-made.db", settings={"grace": 2.0})
bounded = Dependency("billing", work_bound=30.0)
sw.write(target="n", name="blocks", dependency=bounded)(lambda n: None)
sw.write(target="n", name="keyed", dependency=Dependency("keyed", key_retention=60))(lambda n: None)
looks = sw.write(target="n", name="looks")(lambda n: None)
looks.reconcile(lambda n: None)
settles = sw.write(target="n", name="settles", dependency=bounded)(lambda n: None)
settles.reconcile(lambda n: None)
print("noise")
"""


def test_an_application_is_looked_at_with_its_settings_and_tools(
    run: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes whose unknown cannot end are named, and no ledger is made for that."""
    (tmp_path / "doctored_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    done = run("doctor", "doctored_app:sw", *FITS, "--json")
    assert done.code == 1
    assert done.document["ours_seconds"]["call"] == 22.0
    assert [(e["problem"], e["words"].split(":")[0]) for e in done.document["edges"]] == [
        (True, "`blocks`"),
        (False, "`looks`"),
    ]
    assert not (tmp_path / "never-made.db").exists()
    refused = run("doctor", "doctored_app:sw", "--url", "sqlite://")
    assert (refused.code, "leave `--url` out" in refused.err) == (2, True)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"env": 1, "mcpServers": []}', None])
@pytest.mark.parametrize("option", ["--profile", "--servers"])
def test_a_file_that_cannot_be_used_is_a_line_and_a_code(
    run: Command, tmp_path: Path, option: str, text: str | None
) -> None:
    """The option, the file, and what it should hold."""
    file = tmp_path / "settings.json"
    if text is not None:
        file.write_text(text)
    done = run("doctor", option, str(file))
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"`{option}`: " in done.err


@pytest.mark.parametrize("option", ["--call", "--client-timeout", "--backstop", "--host-limit"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_limit_that_is_none_is_refused(run: Command, option: str, value: str) -> None:
    """Positive, finite seconds."""
    done = run("doctor", option, value)
    assert done.code == 2
    assert f"`{option}` is " in done.err


def test_on_a_terminal_it_is_tables(run: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without tabs; in a pipe there is no colour."""
    assert "\x1b" not in run("doctor").out
    monkeypatch.setattr(Output, "rich", property(lambda self: True))
    out = run("doctor").out
    assert "\t" not in out
    assert "───" in out
