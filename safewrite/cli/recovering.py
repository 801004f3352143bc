"""`safewrite recover`: take up what crashes and timeouts left open, with the tools of an application."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from safewrite.cli import views
from safewrite.cli.exits import Exit, Stop
from safewrite.cli.opening import there
from safewrite.cli.options import AsJson, NoColor, session
from safewrite.cli.output import Output, clean, note

if TYPE_CHECKING:
    from safewrite.guard import SafeWrite
    from safewrite.recovery import Found, Recovered


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    app.command()(recover)


def recover(
    context: typer.Context,
    place: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:SW",
            help="Where the application's SafeWrite is, or a function that makes it, such as app.tools:sw.",
            show_default=False,
        ),
    ],
    resend: Annotated[
        bool,
        typer.Option(
            "--resend", help="Send again what is proven not applied. Default: only look, and settle."
        ),
    ] = False,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0.1,
            help="Go on: look again after so many seconds, until SIGTERM or Ctrl-C. Default: look once.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
    no_color: NoColor = False,
) -> None:
    """Settle what is open with an application's own tools.

    Every open intent of its namespace is looked at with the reconcile function of its tool. MODULE is imported from
    the working directory, so that its tools are declared; its SafeWrite names the ledger.
    What its code prints goes to standard error. Any number of these may run at once, on any machine: no two look at
    one intent. SIGTERM or Ctrl-C ends it after the intent it is at, a second one at once. Exits with 0 if nothing
    stays unknown, else with 1; with `--every` with 0 once it is told to stop.
    """
    from safewrite.durations import seconds

    given = session(context, as_json=as_json, no_color=no_color)
    every = seconds(every, name="--every", allow_none=True)
    if given.url is not None:
        raise Stop(f"`{place}` names its own ledger: leave `--url` out.", Exit.USAGE)
    with Stopping() as stop:
        with contextlib.redirect_stdout(sys.stderr):
            sw = find(place)
            stop.listen()  # the application may have taken the signals for itself
            # Made here, it would be empty: a wrong working directory would look like nothing to do.
            there(sw.ledger, f"`{place}` names it: run this where the application runs, with its settings.")
        with contextlib.closing(sw):
            while True:
                recovered = _pass(given.output, sw, stop, resend=resend, goes_on=every is not None)
                if every is None or stop.wait(every):
                    break
    if every is None and (recovered is None or recovered.stopped or recovered.count("unknown")):
        raise typer.Exit(Exit.PROBLEM)


# Finding the SafeWrite of an application ---------------------------------------------------------------------


def find(place: str) -> SafeWrite:
    """Return the SafeWrite that `MODULE:NAME` names, made by calling it where it is a function."""
    from safewrite.guard import SafeWrite

    name, colon, path = place.partition(":")
    if not name or not colon or not path:
        raise Stop(
            f"`{place}` is not of the form MODULE:SW. Write, for instance, `app.tools:sw`.", Exit.USAGE
        )
    if name.endswith(".py") or "/" in name:
        raise Stop(f"`{name}` is a file. Write the module's name: `app.tools` for app/tools.py.", Exit.USAGE)
    module = found = _import(name)
    for part in path.split("."):
        if not hasattr(found, part):
            raise Stop(f"`{name}` has no `{path}`.{_there(module, SafeWrite)}", Exit.USAGE)
        found = getattr(found, part)
    if not isinstance(found, SafeWrite) and callable(found):
        found = _called(place, found)
    if not isinstance(found, SafeWrite):
        raise Stop(
            f"`{place}` is a `{type(found).__name__}`, not a SafeWrite or a function that makes one.",
            Exit.USAGE,
        )
    return found


def _import(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise Stop(
                f"There is no module `{name}` here ({Path.cwd()}) or among what is installed.", Exit.USAGE
            ) from error
        raise Stop(f"`{name}` needs `{error.name}`, which is not installed.", Exit.USAGE) from error
    except (Exception, SystemExit) as error:
        raise Stop(f"`{name}` cannot be imported: {type(error).__name__}: {error}.", Exit.USAGE) from error


def _there(module: Any, kind: type) -> str:
    names = (
        [name for name, value in vars(module).items() if isinstance(value, kind)]
        if inspect.ismodule(module)
        else []
    )
    return f" There is {', '.join(f'`{name}`' for name in names)}." if names else ""


def _called(place: str, factory: Callable[[], Any]) -> Any:
    if inspect.iscoroutinefunction(factory):
        raise Stop(
            f"`{place}` is a coroutine function. Name a plain function that makes the SafeWrite.", Exit.USAGE
        )
    try:
        return factory()
    except Exception as error:
        raise Stop(f"`{place}()` failed: {type(error).__name__}: {error}.", Exit.USAGE) from error


_YEAR = 365 * 86400.0
"""Longer than that the system waits for nothing."""

# Recovering --------------------------------------------------------------------------------------------------


class Stopping:
    """Within it SIGTERM and Ctrl-C only ask to stop; the second one does as it would without."""

    _signals = (signal.SIGTERM, signal.SIGINT)

    def __enter__(self) -> Self:
        # A pipe, for a handler may run while this very thread holds whatever lock it would need.
        self._ear, self._bell = os.pipe()
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}
        self.listen()
        return self

    def listen(self) -> None:
        """Take the signals, again where somebody else has taken them since, unless it is asked already."""
        for number in () if self._asked else self._signals:
            before = signal.signal(number, self._ask)
            if before != self._ask:
                self._before[number] = before

    def __exit__(self, *exc: object) -> None:
        self._restore()
        os.close(self._ear)
        os.close(self._bell)

    def _ask(self, *_: object) -> None:
        self._asked = True
        os.write(self._bell, b"!")
        self._restore()
        with contextlib.suppress(OSError):
            os.write(2, b"Stopping after the intent it is at; the same again stops at once.\n")

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_set(self) -> bool:
        """Whether somebody has asked."""
        return self._asked

    def wait(self, seconds: float) -> bool:
        """Wait so long, or until somebody asks; return whether somebody has."""
        select.select([self._ear], [], [], min(seconds, _YEAR))
        return self._asked


def _pass(output: Output, sw: SafeWrite, stop: Stopping, *, resend: bool, goes_on: bool) -> Recovered | None:
    """Look once at all that is open, and tell; None: the ledger cannot be reached now, and there is a next time."""
    from safewrite.errors import LedgerUnavailable

    try:
        with contextlib.redirect_stdout(sys.stderr):
            recovered = _recover(sw, stop, resend=resend)
    except LedgerUnavailable as error:
        if not goes_on:
            raise
        note(str(error))
        return None
    _report(output, recovered, goes_on=goes_on)
    sys.stdout.flush()
    return recovered


def _recover(sw: SafeWrite, stop: Stopping, *, resend: bool) -> Recovered:
    """Recover; with coroutine tools, on an event loop of its own."""
    from safewrite import recovery

    progress = _progress if sys.stderr.isatty() else None
    if any(tool.is_async or inspect.iscoroutinefunction(tool.reconcile) for tool in sw.tools.values()):
        import asyncio

        return asyncio.run(recovery.arecover(sw, resend=resend, progress=progress, stop=stop))
    return recovery.recover(sw, resend=resend, progress=progress, stop=stop)


def _progress(found: Found, done: int, total: int) -> None:
    state = found.state.replace("_", " ")
    sys.stderr.write(f"[{done}/{total}] {clean(found.tool)} {clean(views.target(found.target))}: {state}\n")


def _report(output: Output, recovered: Recovered, *, goes_on: bool) -> None:
    found = recovered.found
    numbers = {state: recovered.count(state) for state in ("applied", "not_applied", "unknown")}
    if output.as_json:
        from safewrite.audit.records import target_value

        told = [
            {
                "key": f.key,
                "tool": f.tool,
                "target": target_value(f.target),
                "outcome": f.state,
                "reason": f.reason,
                "may_still_land": f.may_still_land,
                "problem": f.problem,
            }
            for f in found
        ]
        output.document(
            {"found": told, **numbers, "problems": len(recovered.problems), "stopped": recovered.stopped},
            one_of_many=goes_on,
        )
        return
    if found:
        views.recovered(output, found)
    counted = ", ".join(f"{number} {state.replace('_', ' ')}" for state, number in numbers.items())
    problems = f"; {len(recovered.problems)} with a problem" if recovered.problems else ""
    stopped = " It was stopped before the end." if recovered.stopped else ""
    nothing = "It was stopped before it looked at anything." if recovered.stopped else "Nothing was open."
    output.say(f"{len(found)} open: now {counted}{problems}.{stopped}" if found else nothing)
