"""How a command ended: what it wrote, or an error that says what is known of its work."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from typing import Any, AnyStr, Generic, TypeAlias

from safewrite.adapters._command import Cut, Ending
from safewrite.adapters._kept import Kept
from safewrite.errors import NotSent
from safewrite.redaction import redact_text

TAIL = 2000
"""Bytes of stderr in an error."""
_LOOK_BACK = 50_000  # bytes that are redacted for it: a secret that began before it has to be recognised

Output: TypeAlias = "str | bytes"


@dataclass(frozen=True, slots=True)
class Completed(Generic[AnyStr]):
    """A command that ended by itself."""

    program: str
    """Its name; never its arguments, which may hold secrets."""
    returncode: int
    """Its status; negative: the signal that ended it."""
    stdout: AnyStr = field(repr=False)
    """What it wrote; where more than `max_output`, beginning and end (in text, with a line that says so)."""
    stderr: AnyStr = field(repr=False)
    stdout_dropped: int
    """Bytes that were dropped from the middle."""
    stderr_dropped: int
    seconds: float
    """How long it took, ending what it left running included."""
    escaped: tuple[int, ...]
    """Processes that still ran: with `leave=True` those it left, else those that could not be ended."""
    searched: bool
    """Whether processes that left the group were looked for, too (Linux)."""


class CommandError(Exception):
    """A command did not end well; what it did is unknown.

    Carries `program` (its name, never its arguments), `stderr_tail` (the last 2000 bytes, redacted), `escaped` (see
    `Completed`), and `stdout` and `stderr` as far as they were kept, not redacted.
    """

    program: str
    stderr_tail: str
    escaped: tuple[int, ...]
    stdout: Any
    stderr: Any

    def __init__(
        self,
        message: str,
        *,
        program: str,
        stderr_tail: str = "",
        escaped: tuple[int, ...] = (),
        stdout: Output = "",
        stderr: Output = "",
    ) -> None:
        Exception.__init__(self, message)
        self.program, self.stderr_tail, self.escaped = program, stderr_tail, escaped
        self.stdout, self.stderr = stdout, stderr

    def __str__(self) -> str:
        parts = [str(self.args[0])]
        if self.escaped:
            parts.append(f"Still running: {', '.join(map(str, self.escaped))}.")
        if self.stderr_tail:
            parts.append(f"The end of its stderr:\n{self.stderr_tail}")
        return " ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args, self.__dict__)


class CommandTimeout(CommandError, subprocess.TimeoutExpired):
    """A command was ended before it was over: what it did until then is done.  `budget` is what it had, in seconds."""

    budget: float

    def __init__(self, message: str, *, budget: float, program: str, **carried: Any) -> None:
        CommandError.__init__(self, message, program=program, **carried)
        self.budget = self.timeout = budget
        self.cmd = program


class CommandFailed(CommandError, subprocess.CalledProcessError):
    """A command ended with a `returncode` that is not 0, under `check=True`: it may have done part of its work."""

    def __init__(self, message: str, *, returncode: int, program: str, **carried: Any) -> None:
        CommandError.__init__(self, message, program=program, **carried)
        self.returncode = returncode
        self.cmd = program


class CommandLost(CommandError):
    """A command is over, but its status was taken by somebody else: whether it did its work is unknown."""


class CommandNotStarted(NotSent, OSError):
    """The program could not be started, so nothing was done; the cause says why."""


def _restored(kind: type[CommandError], args: tuple[Any, ...], state: dict[str, Any]) -> CommandError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def told(program: str, limit: float, ending: Ending, encoding: str | None, check: bool) -> Completed[Any]:
    """Return a command that ended by itself, or raise what is to be said of it.  No encoding: bytes."""

    def output(kept: Kept) -> Output:
        return kept.raw() if encoding is None else kept.text(encoding)

    carried: dict[str, Any] = {
        "program": program,
        "stderr_tail": _tail(ending.stderr, encoding or "utf-8") if ending.cut or ending.returncode else "",
        "escaped": ending.escaped,
        "stdout": output(ending.stdout),
        "stderr": output(ending.stderr),
    }
    if ending.cut is not None:
        why = "since nobody waits for it any more" if ending.cut is Cut.ABANDONED else "at its limit"
        raise CommandTimeout(
            f"`{program}` was ended {why}, after {ending.seconds:.3f} s with a limit of {limit:.3f} s. What it "
            "did until then is done: look before it is run again.",
            budget=limit,
            **carried,
        )
    if ending.returncode is None:
        raise CommandLost(
            f"`{program}` is over, but its status was taken by somebody else: SIGCHLD is ignored, or all children are "
            "waited for. Whether it did its work is unknown.",
            **carried,
        )
    if check and ending.returncode != 0:
        ended = f"status {ending.returncode}" if ending.returncode > 0 else f"signal {-ending.returncode}"
        raise CommandFailed(
            f"`{program}` ended with {ended}. It may have done part of its work.",
            returncode=ending.returncode,
            **carried,
        )
    return Completed(
        program,
        ending.returncode,
        carried["stdout"],
        carried["stderr"],
        ending.stdout.dropped,
        ending.stderr.dropped,
        ending.seconds,
        ending.escaped,
        ending.searched,
    )


def _tail(stderr: Kept, encoding: str) -> str:
    """Return the last bytes of stderr, redacted before they are cut: half a secret is not recognised."""
    last = stderr.end(_LOOK_BACK).decode(encoding, "replace")
    return redact_text(last).encode("utf-8", "replace")[-TAIL:].decode("utf-8", "ignore").strip()
