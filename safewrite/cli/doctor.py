"""`safewrite doctor`: what the time settings around an agent come to, and where they get in each other's way."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safewrite.cli.exits import Exit, Stop
from safewrite.cli.options import AsJson, NoColor, Url, option, session
from safewrite.cli.output import Output
from safewrite.cli.recovering import find

if TYPE_CHECKING:
    from collections.abc import Iterable

    from safewrite.core.edges import Edge, Ours
    from safewrite.core.runtime import Budgets, Server
    from safewrite.settings import Settings
    from safewrite.tool import Tool

_Seconds = float | None


def add_to(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command()(doctor)


def doctor(
    context: typer.Context,
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:SW",
            help="An application's SafeWrite: its settings and tools are looked at as well.",
            show_default=False,
        ),
    ] = None,
    profile: Annotated[
        Path | None, option("--profile", "FILE", "The agent's profile: a JSON file with `env`.")
    ] = None,
    servers: Annotated[
        Path | None,
        option(
            "--servers", "FILE", "Its MCP servers: a JSON file with `mcpServers`. Default: one a transport."
        ),
    ] = None,
    call: Annotated[
        _Seconds,
        option(
            "--call",
            "SECONDS",
            "The most that one call may take: its cap, else its run's deadline. Default: `operation_timeout`.",
        ),
    ] = None,
    client_timeout: Annotated[
        _Seconds,
        option(
            "--client-timeout", "SECONDS", "The limit of the HTTP client in your tools. Default: httpx's 5."
        ),
    ] = None,
    backstop: Annotated[
        _Seconds,
        option("--backstop", "SECONDS", "The backstop's own limit. Default: as the settings give it."),
    ] = None,
    host_limit: Annotated[
        _Seconds,
        option(
            "--host-limit", "SECONDS", "What the proxy, worker or job around it allows. Default: not known."
        ),
    ] = None,
    cli_version: Annotated[
        str | None, option("--cli-version", "VERSION", "The version of the client.")
    ] = None,
    sdk_version: Annotated[str | None, option("--sdk-version", "VERSION", "That of its agent SDK.")] = None,
    url: Url = None,
    as_json: AsJson = False,
    no_color: NoColor = False,
) -> None:
    """Print what the time settings around an agent come to, and every edge of them.

    `MCP_TIMEOUT` and the like are read from this environment, as the executor's: run it where the agent is started.
    Exits with 1 if an edge is a problem, with 0 if there are only things to bear in mind.
    """
    from safewrite.durations import seconds
    from safewrite.runtime import edges, runtime_budgets, unverified
    from safewrite.settings import resolve_settings

    given = session(context, url, as_json=as_json, no_color=no_color)
    limits = {
        name: None if value is None else seconds(value, name=name)
        for name, value in {
            "--call": call, "--client-timeout": client_timeout, "--backstop": backstop, "--host-limit": host_limit,
        }.items()
    }  # fmt: skip
    tools: Iterable[Tool] = ()
    settings = resolve_settings({"database_url": given.url})
    if place is not None:
        if given.url is not None:
            raise Stop(f"`{place}` names its own ledger: leave `--url` out.", Exit.USAGE)
        with contextlib.redirect_stdout(sys.stderr), contextlib.closing(find(place)) as sw:
            settings, tools = sw.settings, list(sw.tools.values())
    budgets = runtime_budgets(profile=_profile(profile), servers=_servers(servers))
    ours = _ours(settings, limits)
    found = [*edges(budgets, ours), *_of_tools(tools)]
    unsure = unverified({"cli": cli_version, "agent_sdk": sdk_version})
    if as_json:
        given.output.document(_document(budgets, ours, found, unsure))
    else:
        _show(given.output, budgets, ours, found, unsure)
    if any(edge.problem for edge in found):
        raise typer.Exit(Exit.PROBLEM)


def _ours(settings: Settings, limits: dict[str, float | None]) -> Ours:
    from safewrite.core.edges import Ours

    usual = settings.operation_timeout + settings.grace
    sqlite = settings.database_url.startswith("sqlite")
    return Ours(
        call=usual if limits["--call"] is None else limits["--call"] + settings.grace,
        backstop=limits["--backstop"] or usual + settings.backstop,
        share=settings.reserve_share,
        floor=settings.reserve_floor,
        grace=settings.grace,
        keepalive=settings.keepalive,
        keepalive_from=next(row.origin for row in settings.table() if row.name == "keepalive"),
        lease_margin=settings.lease_margin,
        sqlite=sqlite,
        busy=settings.busy_timeout if sqlite else settings.connect_timeout + settings.statement_timeout,
        client=limits["--client-timeout"],
        host=limits["--host-limit"],
    )


def _of_tools(tools: Iterable[Tool]) -> list[Edge]:
    from safewrite.core.edges import of_tool

    found = [
        of_tool(
            tool.name,
            keyed=tool.dependency.key_retention is not None or tool.options.precondition is not None,
            reads=tool.reconcile is not None,
            settles=tool.dependency.work_bound is not None or tool.dependency.honours_deadline,
        )
        for tool in tools
    ]
    return [edge for edge in found if edge is not None]


# What is given in files --------------------------------------------------------------------------------------


def _object(file: Path, name: str, option: str) -> dict[str, Any]:
    """Return the object `name` of the JSON object in a file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))[name]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Stop(f"`{option}`: {file} is no JSON object with `{name}` ({error}).", Exit.USAGE) from None
    if not isinstance(found, dict):
        raise Stop(f"`{option}`: `{name}` in {file} is no object.", Exit.USAGE)
    return found


def _profile(file: Path | None) -> dict[str, str]:
    return {} if file is None else {k: str(v) for k, v in _object(file, "env", "--profile").items()}


def _servers(file: Path | None) -> list[Server]:
    from safewrite.core.runtime import Server

    if file is None:
        return [Server(f"any {transport}", transport) for transport in ("stdio", "http")]
    made = []
    for name, entry in _object(file, "mcpServers", "--servers").items():
        about = entry if isinstance(entry, dict) else {}
        own = about.get("timeout")
        numeric = isinstance(own, int | float) and not isinstance(own, bool)
        made.append(Server(name, str(about.get("type") or "stdio"), own if numeric else None))
    return made


# What is printed ---------------------------------------------------------------------------------------------


def _document(budgets: Budgets, ours: Ours, found: list[Edge], unsure: tuple[str, ...]) -> dict[str, Any]:
    from safewrite.core.runtime import READ

    return {
        "read": {name: {"version": version, "published": at} for name, (version, at) in READ.items()},
        "unverified": list(unsure),
        "runtime_ms": asdict(budgets),
        "environment": budgets.environment,
        "overrides": list(budgets.overrides),
        "ours_seconds": {**asdict(ours), "slice": ours.slice},
        "edges": [asdict(edge) for edge in found],
        "problems": sum(edge.problem for edge in found),
    }


def _show(output: Output, b: Budgets, ours: Ours, found: list[Edge], unsure: tuple[str, ...]) -> None:
    from safewrite.core.runtime import READ

    read = ", ".join(f"{name} {version} ({at})" for name, (version, at) in READ.items())
    output.fields(
        [
            ("read from", [read, *unsure]),
            ("connect", _ms(b.connect)),
            ("first turn", f"waits up to {_ms(b.first_turn)}, once a launch"),
            (
                "our call",
                f"{ours.call:g} s, of which {ours.slice:g} s for an attempt beside a reconciling read",
            ),
            ("keepalive", f"{ours.keepalive:g} s"),
            ("backstop", f"{ours.backstop:g} s"),
            ("host limit", "not known" if ours.host is None else f"{ours.host:g} s"),
        ]
    )
    output.heading("Settings of the runtime")
    output.table(
        ("variable", "value", "origin", "overrode"),
        [
            (
                g.name,
                "by transport" if g.value is None else g.value,
                g.origin,
                [f"{o} {v}" for o, v in g.overrode],
            )
            for g in b.given
        ],
    )
    output.heading("What they come to")
    output.table(
        ("server", "transport", "tool call", "request", "idle", "silent call ends"),
        [
            (s.server, s.transport, _ms(s.tool), _ms(s.fetch), "off" if s.idle is None else _ms(s.idle), _ms(s.silent))
            for s in b.servers
        ],
    )  # fmt: skip
    output.heading("Edges")
    output.table(
        ("kind", "server", "what"),
        [("problem" if edge.problem else "note", edge.server, edge.words) for edge in found],
    )


def _ms(milliseconds: int) -> str:
    return f"{milliseconds / 1000:g} s"
