"""Which process this is, and whether another one is known to be gone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from safewrite.shell.clock import boot_id

_known: tuple[int, str] | None = None


def owner() -> str:
    """Return what names this process: host, boot, process namespace, id and start time, parted by `/`."""
    global _known
    pid = os.getpid()
    if _known is None or _known[0] != pid:  # a forked child is another process
        where = f"{socket.gethostname().replace('/', '_')}/{boot_id()}/{_namespace()}"
        _known = (pid, f"{where}/{pid}/{_started(pid)}")
    return _known[1]


def known_gone(other: str) -> bool:
    """Return whether the process `other` names certainly runs no more.

    Certain only on the same boot in the same process namespace: no process of that id, or one that started at
    another time.  Another host, another namespace, or a platform that cannot tell: False.
    """
    mine = owner().split("/")
    theirs = other.split("/")
    if len(theirs) != 5 or theirs[:3] != mine[:3] or not theirs[2] or not theirs[4]:
        return False
    now = _started(int(theirs[3]))
    return now is not None and now != theirs[4]


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """Return the start time of a process; `""` if there is none of that id (or it is a zombie), None: cannot tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="latin-1")
    except (OSError, ValueError):
        return "" if Path("/proc/self/stat").exists() and _nobody_has(pid) else None
    # The name in brackets may hold anything, brackets too: what follows the last one is regular.
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


def _nobody_has(pid: int) -> bool:
    """Return whether no process has this id: a `/proc` that hides other users' (`hidepid`) does not tell."""
    try:
        os.kill(pid, 0)
    except OSError as error:  # else it is there, and another user's
        return isinstance(error, ProcessLookupError)
    return False
