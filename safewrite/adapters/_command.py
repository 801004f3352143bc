"""One command, from its start until nothing of it runs any more.

The same loop serves functions and coroutines: those run it in a thread of its own and stop it by a flag.  Every way
out, an interrupt included, leads through `_end`: TERM to all processes, the grace, KILL, then reaping.
"""

from __future__ import annotations

import atexit
import os
import selectors
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from safewrite.adapters._family import Family, family, marked, new_token
from safewrite.adapters._kept import Kept
from safewrite.shell.clock import ticks

Argument: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"

KILL_FOR = 1.0
"""Seconds that are spent on killing what does not go away: a process in the kernel, or another user's."""
DRAIN_FOR = 0.2
"""Seconds that are spent on reading what is in the pipes when all is over: somebody may write for ever."""
LOOK_EVERY = 0.1
"""Seconds between looks at what cannot be waited for."""
SHORT, LONG = 0.005, 0.05
"""Seconds between looks at the processes while they end: doubled from the first to the second."""
_WAIT_MOST = 3600.0
_CHUNK = 65_536


class Cut(Enum):
    """Why a command was ended before it was over."""

    LIMIT = "limit"
    ABANDONED = "abandoned"
    """Nobody waits for it any more."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to run, checked.  Durations are seconds."""

    args: Sequence[Argument]
    env: Mapping[str, str]
    cwd: str | os.PathLike[str] | None
    input: bytes | None
    limit: float
    grace: float
    max_output: int
    leave: bool
    is_abandoned: Callable[[], bool] | None = None
    """Looked at while waiting."""
    on_output: Callable[[], None] = field(default=lambda: None)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended."""

    returncode: int | None
    """None: its status was taken by somebody else, or it could not be ended."""
    cut: Cut | None
    stdout: Kept
    stderr: Kept
    seconds: float
    escaped: tuple[int, ...]
    searched: bool


class _Started(subprocess.Popen[bytes]):
    """A process that its command knows before it exists, so that an interrupt in between loses nothing."""

    def __init__(self, command: Command, *args: Any, **options: Any) -> None:
        command.process = self
        super().__init__(*args, **options)


class Command:
    """One run of one order.  `run` is called once; `stop` at any time, from any thread."""

    def __init__(self, order: Order) -> None:
        self.process: _Started | None = None
        self.order = order
        self._token = new_token()
        self._family: Family = family(self._token)
        self._stdout, self._stderr = Kept(order.max_output), Kept(order.max_output)
        self._unsent = memoryview(order.input or b"")
        self._stopped = False
        self._cut: Cut | None = None
        self._gone = False
        self._woken = self._handle = -1
        self._lock = (
            threading.Lock()
        )  # around the end of the pipe that wakes: its number may become another file's
        self._alarm: int | None = None
        self.over = threading.Event()

    def stop(self) -> None:
        """End the command, politely; whoever called `run` still waits until it is over."""
        with self._lock:
            self._stopped = True
            if self._alarm is not None:
                with suppress(BlockingIOError):
                    os.write(self._alarm, b"!")

    @property
    def longest_end(self) -> float:
        """Seconds that ending takes at most, with something to spare."""
        return self.order.grace + KILL_FOR + DRAIN_FOR + 1.0

    def run(self) -> Ending:
        """Run to the end.  Where the program could not be started, this raises, and `process` is None."""
        began = ticks()
        with selectors.DefaultSelector() as self._selector:
            _running.add(self)
            try:
                self._start()
                self._watch(began + self.order.limit)
            finally:
                try:
                    escaped, status = self._end()
                finally:
                    self._close()
                    _running.discard(self)
                    self.over.set()
        took = ticks() - began
        return Ending(status, self._cut, self._stdout, self._stderr, took, escaped, self._family.searched)

    # Starting and waiting -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._woken, alarm = os.pipe()
        with self._lock:
            self._alarm = alarm
        os.set_blocking(self._woken, False)
        os.set_blocking(alarm, False)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain_alarm)
        started = self._started()
        self._family.adopt(started)
        with suppress(AttributeError, OSError):  # no such call: then it is looked at now and again
            self._handle = os.pidfd_open(started.pid)
            self._selector.register(self._handle, selectors.EVENT_READ, self._drop_handle)
        assert started.stdout is not None
        assert started.stderr is not None
        self._listen(started.stdout.fileno(), self._stdout)
        self._listen(started.stderr.fileno(), self._stderr)
        if started.stdin is not None:
            os.set_blocking(started.stdin.fileno(), False)
            self._selector.register(started.stdin.fileno(), selectors.EVENT_WRITE, self._write)

    def _started(self) -> _Started:
        order = self.order
        try:
            return _Started(
                self,
                order.args,
                bufsize=0,
                stdin=subprocess.DEVNULL if order.input is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=marked(order.env, self._token),
                cwd=order.cwd,
                start_new_session=True,
            )
        except Exception:  # there is no such program, or no room for it: its number is nobody's any more
            self.process = None
            raise

    def _listen(self, pipe: int, kept: Kept) -> None:
        os.set_blocking(pipe, False)
        self._selector.register(pipe, selectors.EVENT_READ, lambda: self._read(pipe, kept))

    def _watch(self, end: float) -> None:
        """Wait until the command is over, or has to be."""
        abandoned = self.order.is_abandoned
        looks = self._handle < 0 or abandoned is not None
        while not self._family.ended():
            left = end - ticks()
            if left <= 0.0:
                self._cut = Cut.LIMIT
            elif self._stopped or (abandoned is not None and abandoned()):
                self._cut = Cut.ABANDONED
            else:
                self._pump(min(left, LOOK_EVERY if looks else _WAIT_MOST))
                continue
            return

    def _pump(self, wait: float) -> bool:
        """Move bytes for at most `wait` seconds; return whether there were any."""
        ready = self._selector.select(wait)
        for key, _ in ready:
            key.data()
        return bool(ready)

    def _read(self, pipe: int, kept: Kept) -> None:
        with suppress(BlockingIOError):
            chunk = os.read(pipe, _CHUNK)
            if chunk:
                kept.add(chunk)
                self.order.on_output()
            else:
                self._selector.unregister(pipe)

    def _write(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        pipe = self.process.stdin.fileno()
        try:
            self._unsent = self._unsent[os.write(pipe, self._unsent[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it reads no more, which is its own affair
            self._unsent = self._unsent[:0]
        if not self._unsent:
            self._selector.unregister(pipe)
            self.process.stdin.close()

    def _drain_alarm(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._woken, _CHUNK)

    def _drop_handle(self) -> None:
        self._selector.unregister(self._handle)

    # Ending -------------------------------------------------------------------------------------------------------

    def _end(self) -> tuple[tuple[int, ...], int | None]:
        """End whatever still runs; return what could, or should, not be ended, and the status."""
        process = self.process
        # Its number is not known, or its family is not, where an interrupt came in the middle of its start.
        started = process is not None and process.pid is not None
        if process is not None and started and not self._family.adopted:
            self._family.adopt(process)
        escaped: tuple[int, ...] = ()
        try:
            if started and self.order.leave and self._cut is None and self._family.ended():
                escaped = self._family.left()
            else:
                escaped = self._end_all()
            self._drain()
        finally:
            status = self._reap()
        return escaped, status

    def _end_all(self) -> tuple[int, ...]:
        try:
            self._politely()
        finally:
            try:
                self._firmly()
            except BaseException:  # interrupted for the third time, or unable to look
                try:
                    self._family.signal(signal.SIGKILL)
                finally:
                    self._family.last_resort()
                raise
        return () if self._gone else self._family.left()

    def _politely(self) -> None:
        """Ask all processes to end, and give them the grace for it."""
        if self._are_gone():
            return
        self._family.signal(signal.SIGTERM)
        end, pause = ticks() + self.order.grace, SHORT
        while (left := end - ticks()) > 0.0:
            self._pass(min(pause, left))
            if self._are_gone():
                return
            pause = min(2 * pause, LONG)

    def _firmly(self) -> None:
        """Kill all processes; again and again, since one may have started another just before."""
        end, pause = ticks() + KILL_FOR, SHORT
        while not self._gone and not self._are_gone() and ticks() < end:
            self._family.signal(signal.SIGKILL)
            self._pass(pause)
            pause = min(2 * pause, LONG)

    def _are_gone(self) -> bool:
        self._gone = not self._family.alive()
        return self._gone

    def _pass(self, seconds: float) -> None:
        """Let time pass, and go on moving bytes: a process may wait for room in a pipe to end."""
        end = ticks() + seconds
        while (left := end - ticks()) > 0.0:
            self._pump(left)

    def _drain(self) -> None:
        """Read what is in the pipes, and wait for nothing."""
        end = ticks() + DRAIN_FOR
        while ticks() < end and self._pump(0.0):
            pass

    def _reap(self) -> int | None:
        process = self.process
        if process is None or process.pid is None or self._family.ended():
            return self._family.reap()
        # It cannot be ended, so nobody waits for it here; when it does end, it leaves no zombie.
        threading.Thread(target=process.wait, name="safewrite-reap", daemon=True).start()
        return None

    def _close(self) -> None:
        with self._lock:
            alarm, self._alarm = self._alarm, None
        process = self.process
        pipes = (process.stdin, process.stdout, process.stderr) if process is not None else ()
        for pipe in pipes:
            if pipe is not None:
                pipe.close()
        for number in (alarm, self._woken, self._handle):
            if number is not None and number >= 0:
                os.close(number)


# The end of the interpreter ---------------------------------------------------------------------------------------

_running: set[Command] = set()


def _end_running() -> None:
    """End what runs in threads that the interpreter does not wait for."""
    commands = list(_running)
    for command in commands:
        command.stop()
    for command in commands:
        command.over.wait(command.longest_end)


atexit.register(_end_running)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_running.clear)  # they are the parent's
