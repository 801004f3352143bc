"""What a command ends with: its exit code, and the one line that says why."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    """Exit codes.  They are kept from version to version."""

    OK = 0
    PROBLEM = 1
    USAGE = 2
    LEDGER = 3
    FAULT = 4
    INTERRUPTED = 130
    PIPE = 141


MEANINGS: Final[Mapping[Exit, str]] = {
    Exit.OK: "done; nothing to report",
    Exit.PROBLEM: "done, and it found a problem: an intent stays unknown, a check fails, the demo disagrees",
    Exit.USAGE: "the command, an option, a setting or a name cannot be used; nothing was done",
    Exit.LEDGER: "the ledger is not there, not ours, outdated, damaged, or did not answer",
    Exit.FAULT: "a fault in safewrite itself; `--traceback` shows where",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
    Exit.PIPE: "whoever read the output stopped reading",
}


class Stop(Exception):
    """Ends a command with a line for people: what is wrong, and what to do."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.code = code
