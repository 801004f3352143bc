"""Commands with a limit that ends all of their work, not only the waiting for it.

`run_bounded` and `arun_bounded` start a program in a session of its own.  On every way out (the end, the limit, a
cancellation, Ctrl-C, an error) all its processes get TERM, a grace to end, then KILL: children in the background,
and on Linux also those that left the group.  A process that holds a pipe open delays nothing.

What a command did before it was ended is not undone: after a kill a write is unknown, not failed.

    errors: CommandError
            ├── CommandTimeout  (subprocess.TimeoutExpired)       it was ended before it was over: unknown
            ├── CommandFailed   (subprocess.CalledProcessError)   it ended with a status that is not 0: unknown
            └── CommandLost     its status was taken by somebody else: unknown
            CommandNotStarted   (NotSent, OSError)                nothing ran: not applied
"""

from __future__ import annotations

import asyncio
import codecs
import errno
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any, Literal, overload

from safewrite.adapters._command import Argument, Command, Ending, Order
from safewrite.adapters._ended import (
    CommandError,
    CommandFailed,
    CommandLost,
    CommandNotStarted,
    CommandTimeout,
    Completed,
    told,
)
from safewrite.context import current_attempt
from safewrite.durations import Duration, seconds
from safewrite.errors import ConfigurationError

__all__ = [
    "CommandError",
    "CommandFailed",
    "CommandLost",
    "CommandNotStarted",
    "CommandTimeout",
    "Completed",
    "arun_bounded",
    "run_bounded",
]

MARGIN = 0.5
"""Seconds, at most a tenth of what is left: so much before the end of an attempt its command is ended, so that what
became of the command is told before nobody listens any more."""
_AGAIN = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY}

for _public in (Completed, CommandError, CommandFailed, CommandLost, CommandNotStarted, CommandTimeout):
    _public.__module__ = __name__  # where users import them from


@overload
def run_bounded(
    args: Sequence[Argument],
    *,
    timeout: Duration | None = None,
    grace: Duration = 2.0,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    text: Literal[True] = True,
    encoding: str = "utf-8",
    max_output: int = 1_000_000,
    check: bool = False,
    leave: bool = False,
) -> Completed[str]: ...
@overload
def run_bounded(
    args: Sequence[Argument],
    *,
    timeout: Duration | None = None,
    grace: Duration = 2.0,
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    text: Literal[False],
    max_output: int = 1_000_000,
    check: bool = False,
    leave: bool = False,
) -> Completed[bytes]: ...
def run_bounded(
    args: Sequence[Argument],
    *,
    timeout: Duration | None = None,
    grace: Duration = 2.0,
    input: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    text: bool = True,
    encoding: str = "utf-8",
    max_output: int = 1_000_000,
    check: bool = False,
    leave: bool = False,
) -> Any:
    """Run a program to its end, or for `timeout` at most, and leave nothing of it running.

    - `args`: program and arguments, as a list.  For a shell write `["sh", "-c", script]`.
    - `timeout`: seconds or `timedelta`.  Inside the body of a tool the command also ends a little before its attempt
      (half a second, at most a tenth of what is left), and `timeout` may be left out; elsewhere it has no default.
    - `grace`: seconds between TERM and KILL (default 2).  The call can take so much longer than `timeout`.
    - `input`: what the program reads; by default nothing (never our own stdin).
    - `env`, `cwd`: as for `subprocess.run`; the variable `SAFEWRITE_COMMAND` is added.
    - `text`, `encoding`: text in and out (default, UTF-8, undecodable bytes replaced), or with `text=False` bytes.
    - `max_output`: bytes kept of stdout, and of stderr (default 1,000,000).
    - `check`: raise `CommandFailed` if the status is not 0 (default: return it).
    - `leave`: let processes run on that the program leaves behind when it ends by itself, and name them in `escaped`
      (default: they are ended, too).

    Output counts as progress of the attempt.  Raises `CommandTimeout`, `CommandFailed`, `CommandLost` (all unknown for
    a guarded write), `CommandNotStarted` (not applied), and `ConfigurationError`, also on Windows, which has no
    process groups.
    """
    order = _order(args, timeout, grace, input, env, cwd, text, encoding, max_output, leave)
    return told(_name(args), order.limit, _run(Command(order)), encoding if text else None, check)


@overload
async def arun_bounded(
    args: Sequence[Argument],
    *,
    timeout: Duration | None = None,
    grace: Duration = 2.0,
    input: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    text: Literal[True] = True,
    encoding: str = "utf-8",
    max_output: int = 1_000_000,
    check: bool = False,
    leave: bool = False,
) -> Completed[str]: ...
@overload
async def arun_bounded(
    args: Sequence[Argument],
    *,
    timeout: Duration | None = None,
    grace: Duration = 2.0,
    input: bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    text: Literal[False],
    max_output: int = 1_000_000,
    check: bool = False,
    leave: bool = False,
) -> Completed[bytes]: ...
async def arun_bounded(
    args: Sequence[Argument],
    *,
    timeout: Duration | None = None,
    grace: Duration = 2.0,
    input: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    text: bool = True,
    encoding: str = "utf-8",
    max_output: int = 1_000_000,
    check: bool = False,
    leave: bool = False,
) -> Any:
    """Do what `run_bounded` does, for coroutines.

    Cancelled, it returns when nothing of the command runs any more: TERM, the grace, KILL.
    """
    order = _order(args, timeout, grace, input, env, cwd, text, encoding, max_output, leave)
    return told(_name(args), order.limit, await _arun(Command(order)), encoding if text else None, check)


def _run(command: Command) -> Ending:
    try:
        return command.run()
    except (OSError, ValueError) as error:
        if command.process is not None:
            raise  # it was started: what it did is unknown
        raise _not_started(command.order, error) from error


async def _arun(command: Command) -> Ending:
    """Run a command in a thread of its own, and wait for that whatever happens to the waiting task."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Ending] = loop.create_future()

    def tell(ending: Ending | None, error: BaseException | None) -> None:
        if error is not None:
            future.set_exception(error)
        elif ending is not None:
            future.set_result(ending)

    def body() -> None:
        ending, error = None, None
        try:
            ending = _run(command)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(tell, ending, error)

    threading.Thread(target=body, name="safewrite-command", daemon=True).start()
    cancelled: BaseException | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as again:
            cancelled = again
            command.stop()
        except (
            BaseException
        ):  # the coroutine is thrown away: nobody can wait, but the thread ends the command
            command.stop()
            raise
    if cancelled is not None:
        future.exception()  # seen
        raise cancelled
    return future.result()


# What is given, checked ---------------------------------------------------------------------------------------------


def _order(
    args: Sequence[Argument],
    timeout: Duration | None,
    grace: Duration,
    input: str | bytes | None,
    env: Mapping[str, str] | None,
    cwd: str | os.PathLike[str] | None,
    text: bool,
    encoding: str,
    max_output: int,
    leave: bool,
) -> Order:
    if sys.platform == "win32":
        raise ConfigurationError(
            "`run_bounded` ends process groups, which Windows does not have. Run the command by other means there."
        )
    if isinstance(args, str | bytes | os.PathLike) or not isinstance(args, Sequence) or not args:
        raise ConfigurationError(
            f"`args` is a {type(args).__name__}{'' if args else ' that is empty'}. Write program and arguments as a "
            'list, such as ["git", "push"]; for a shell ["sh", "-c", script].'
        )
    if isinstance(max_output, bool) or not isinstance(max_output, int) or max_output < 0:
        raise ConfigurationError(f"`max_output` is {max_output!r}. Write a number of bytes, 0 or more.")
    attempt = current_attempt()
    return Order(
        args=list(args),
        env=os.environ if env is None else env,
        cwd=cwd,
        input=_input(input, text, encoding),
        limit=_limit(timeout, _name(args)),
        grace=seconds(grace, name="grace", allow_zero=True),
        max_output=max_output,
        leave=leave,
        is_abandoned=None if attempt is None else attempt.cancelled.is_set,
        on_output=(lambda: None) if attempt is None else attempt.progress,
    )


def _limit(timeout: Duration | None, program: str) -> float:
    own = None if timeout is None else seconds(timeout, name="timeout")
    attempt = current_attempt()
    if attempt is None:
        if own is None:
            raise ConfigurationError(
                "`timeout` was left out, and no attempt is running whose limit could be taken. "
                "Write `timeout=` in seconds, or run the command in the body of a tool."
            )
        return own
    left = attempt.remaining()
    if left <= 0.0:
        raise CommandNotStarted(f"`{program}` was not started: nothing is left of the attempt that runs it.")
    left -= min(MARGIN, left / 10)
    return left if own is None else min(own, left)


def _input(given: str | bytes | None, text: bool, encoding: str) -> bytes | None:
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise ConfigurationError(
            f"`encoding` is {encoding!r}, which Python does not know. Write 'utf-8'."
        ) from None
    if given is None:
        return None
    if isinstance(given, str) if text else isinstance(given, bytes):
        return given.encode(encoding) if isinstance(given, str) else given
    kind = "str" if text else "bytes"
    raise ConfigurationError(f"`input` is {type(given).__name__}, but `text` is {text}. Write {kind}.")


def _not_started(order: Order, error: Exception) -> CommandNotStarted:
    program = _name(order.args)
    why = (
        (error.strerror or type(error).__name__)
        if isinstance(error, OSError)
        else "its arguments cannot be passed"
    )
    again = isinstance(error, OSError) and error.errno in _AGAIN
    return CommandNotStarted(f"`{program}` was not started: {why}. Nothing was done.", again=again)


def _name(args: Sequence[Argument]) -> str:
    return PurePath(os.fsdecode(args[0])).name or "?"
