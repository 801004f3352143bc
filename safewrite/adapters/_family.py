"""The processes of one command: found, signalled, and seen to be gone.

A command is started in a session of its own, so its number names the command, its group and its session.  As long as
the command was not reaped, none of the three can be given to anybody else: everything is ended before it is reaped.

Whoever leaves the group (`setsid`, a daemon) still has the marker in its environment, unless it was started without
that, or is still the child of somebody who was found.  Where there is no `/proc`, only the group can be ended.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import Protocol
from uuid import uuid4

MARKER = "SAFEWRITE_COMMAND"
"""The environment variable by which the processes of a command are known: tokens, parted by `:`, outermost first."""

_PROC = Path("/proc")
_GONE = "ZX"  # states of a process that runs no more, but was not reaped


@dataclass(frozen=True, slots=True)
class Process:
    """One process, as `/proc` shows it.  Number and start time together name it for ever."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int


class Family(Protocol):
    """What a command needs to know of its processes."""

    searched: bool
    """Whether processes that left the group are found as well."""

    @property
    def adopted(self) -> bool:
        """Whether it is known which process was started."""
        ...

    def adopt(self, leader: Popen[bytes]) -> None:
        """Say which process was started."""
        ...

    def ended(self) -> bool:
        """Return whether the command itself is over."""
        ...

    def alive(self) -> bool:
        """Return whether any process of the command still runs."""
        ...

    def signal(self, number: int) -> None:
        """Signal all of them."""
        ...

    def last_resort(self) -> None:
        """Kill the group without looking, where looking failed or was interrupted."""
        ...

    def left(self) -> tuple[int, ...]:
        """Return the numbers of those that still run."""
        ...

    def reap(self) -> int | None:
        """Reap the command, once it is over, and return its status; None if somebody else took that."""
        ...


def new_token() -> str:
    """Return a token that no other command has."""
    return uuid4().hex


def marked(env: Mapping[str, str], token: str) -> dict[str, str]:
    """Return an environment with a token added.  Commands started by commands carry the tokens of all."""
    outer = os.environ.get(MARKER, "")
    return {**env, MARKER: f"{outer}:{token}" if outer else token}


def family(token: str) -> Family:
    """Return the processes of a command that is about to be started with this token."""
    return Watched(token) if sys.platform == "linux" and (_PROC / "self/stat").exists() else Grouped()


def may_signal(pid: int) -> bool:
    """Return whether a process may be signalled at all: never init, everybody (-1), our group (0) or ourselves."""
    return pid > 1 and pid != os.getpid()


def may_signal_group(group: int) -> bool:
    """Return whether a group may be signalled at all: never that of init, nor our own."""
    return group > 1 and group != os.getpgrp()


class Watched:
    """Linux: every process that has the session, the group, the marker, or a parent that has."""

    searched = True

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._process: Popen[bytes] | None = None
        self._leader = 0
        self._since = 0
        self._lost = False
        self._known: dict[int, int] = {}
        self._foreign: set[tuple[int, int]] = set()

    @property
    def adopted(self) -> bool:
        """Whether it is known which process was started."""
        return self._process is not None

    def adopt(self, leader: Popen[bytes]) -> None:
        """Say which process was started."""
        self._process, self._leader = leader, leader.pid
        seen = read(leader.pid)
        self._since = seen.started if seen is not None else 0
        self._lost = seen is None or seen.parent != os.getpid()

    def ended(self) -> bool:
        """Return whether the command is over, without reaping it."""
        try:
            return os.waitid(os.P_PID, self._leader, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:  # SIGCHLD is ignored, or somebody else waits for all children
            self._lost = True
            return True

    def alive(self) -> bool:
        """Return whether any process of the command still runs."""
        # Twice: one that forked and ended while the first look went by would have been missed.
        return bool(self._members() or self._members())

    def signal(self, number: int) -> None:
        """Signal the group at once, and everybody outside it one by one."""
        members = self._members()
        if self._ours() and may_signal_group(self._leader):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._leader, number)
        for member in members:
            if member.group != self._leader or not self._ours():
                _send(member, number)

    def last_resort(self) -> None:
        """Kill the group, as long as the command was not reaped: this opens no file."""
        if self._process is not None and self._process.returncode is None:
            self.ended()
            if not self._lost and may_signal_group(self._leader):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._leader, signal.SIGKILL)

    def left(self) -> tuple[int, ...]:
        """Return the numbers of those that still run."""
        return tuple(sorted(member.pid for member in self._members()))

    def reap(self) -> int | None:
        """Reap the command, and those that have become our children: in a container, we may be the init process."""
        status = None if self._process is None else _status(self._process, 0)
        for pid, started in self._known.items():
            seen = read(pid) if pid != self._leader else None
            if (
                seen is not None
                and seen.started == started
                and seen.parent == os.getpid()
                and seen.state == "Z"
            ):
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
        return status

    def _ours(self) -> bool:
        """Return whether the leader's number, and so that of group and session, is still the command's."""
        seen = None if self._lost or not self._leader else read(self._leader)
        return seen is not None and seen.started == self._since

    def _members(self) -> list[Process]:
        ours = self._ours()
        around = [
            process for process in _processes() if process.started >= self._since and may_signal(process.pid)
        ]
        members: dict[int, Process] = {}
        for process in around:
            number = self._leader if ours else -1
            if (
                number in (process.session, process.group)
                or self._is_known(process)
                or self._is_marked(process)
            ):
                members[process.pid] = process
        grown = True
        while grown:  # children of members, and theirs
            children = [p for p in around if p.parent in members and p.pid not in members]
            members.update((child.pid, child) for child in children)
            grown = bool(children)
        self._known.update((member.pid, member.started) for member in members.values())
        return [member for member in members.values() if member.state not in _GONE]

    def _is_known(self, process: Process) -> bool:
        return self._known.get(process.pid) == process.started

    def _is_marked(self, process: Process) -> bool:
        """Return whether the marker is in a process's environment; what was seen once is not read again."""
        name = (process.pid, process.started)
        if name in self._foreign:
            return False
        try:
            environment = (_PROC / str(process.pid) / "environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False  # gone, or another user's: then it is found by group or descent, or not at all
        found = self._token in environment
        if environment and not found:  # empty: it is about to become another program
            self._foreign.add(name)
        return found


class Grouped:
    """Where there is no `/proc`: the group, and nothing that left it."""

    searched = False

    def __init__(self) -> None:
        self._process: Popen[bytes] | None = None
        self._group = 0
        self._status: int | None = None

    @property
    def adopted(self) -> bool:
        """Whether it is known which process was started."""
        return self._process is not None

    def adopt(self, leader: Popen[bytes]) -> None:
        """Say which process was started."""
        self._process, self._group = leader, leader.pid

    def ended(self) -> bool:
        """Return whether the command is over, and reap it: its group lives on, under its number, by its members."""
        if self._process is not None and self._process.returncode is None:
            self._status = _status(self._process, os.WNOHANG)
        return self._process is None or self._process.returncode is not None

    def alive(self) -> bool:
        """Return whether the group has members."""
        self.ended()
        return self._send(0)

    def signal(self, number: int) -> None:
        """Signal the group, unless it was seen empty."""
        self._send(number)

    def last_resort(self) -> None:
        """Kill the group."""
        self._send(signal.SIGKILL)

    def left(self) -> tuple[int, ...]:
        """Return the group's number if it has members: they are not known one by one."""
        return (self._group,) if self.alive() else ()

    def reap(self) -> int | None:
        """Return the status of the command, which was reaped when it was seen to be over."""
        return self._status

    def _send(self, number: int) -> bool:
        if not may_signal_group(self._group):
            return False
        try:
            os.killpg(self._group, number)
        except (ProcessLookupError, PermissionError):  # some systems refuse a group of zombies
            self._group = 0  # once it was seen empty, its number may be somebody else's
        return self._group > 0


def read(pid: int) -> Process | None:
    """Return one process, or None if there is none of that number, or it is hidden: then it is another user's.

    Raises any other `OSError`: too many open files are no sign that a process is gone.
    """
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="latin-1")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name in brackets may hold anything, brackets too: what follows the last one is regular.
    fields = stat.rpartition(")")[2].split()
    return Process(pid, fields[0], int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def _status(process: Popen[bytes], options: int) -> int | None:
    """Reap a process and return its status; None if it still runs, or if its status is somebody else's.

    `Popen.wait()` would take the latter for a zero, which is to say for a success.
    """
    try:
        pid, status = os.waitpid(process.pid, options)
    except ChildProcessError:  # SIGCHLD is ignored, or somebody else waits for all children
        process.returncode = 0
        return None
    if not pid:
        return None
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode


def _processes() -> Iterator[Process]:
    for name in os.listdir(_PROC):  # noqa: PTH208  # names only, several hundred of them
        if name.isdecimal() and (process := read(int(name))) is not None:
            yield process


def _send(process: Process, number: int) -> None:
    """Signal one process, and never another one that was given its number meanwhile."""
    with suppress(ProcessLookupError, PermissionError):
        try:
            handle = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # an old kernel, or a sandbox
            if _same(process):
                os.kill(process.pid, number)
            return
        try:
            if _same(process):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _same(process: Process) -> bool:
    seen = read(process.pid)
    return seen is not None and seen.started == process.started
