"""Threads that can be abandoned: a bounded pool of daemons, since Python cannot stop a thread."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

_here = threading.local()


def running() -> Work | None:
    """Return the work that this thread carries out."""
    found: Work | None = getattr(_here, "work", None)
    return found


class Work:
    """Something that runs in a thread: `done` is set once it has ended, `value` or `error` then holds how."""

    __slots__ = ("_job", "_then", "done", "error", "value")

    def __init__(self, job: Callable[[], object], then: Callable[[], object] | None) -> None:
        self._job, self._then = job, then
        self.done = threading.Event()
        self.value: object = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Carry it out in this thread."""
        _here.work = self
        try:
            self.value = self._job()
        except BaseException as error:  # whatever it is, it is the caller's to judge
            self.error = error
        finally:
            _here.work = None
            self.done.set()
            if self._then is not None:
                self._then()


class Pool:
    """At most `size` pieces of work at once; what does not fit is refused, never queued.

    A place is reserved first and given back by `release`, or by the work that took it when it ends: an abandoned
    thread keeps its place until then.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._fresh()

    def _fresh(self) -> None:
        self._pid = os.getpid()
        self._places = threading.BoundedSemaphore(self.size)
        self._queue: SimpleQueue[Work | None] = SimpleQueue()
        self._idle = 0
        self._lock = threading.Lock()

    def reserve(self) -> bool:
        """Take a place if one is free, and a thread for it if the system gives one."""
        if self._pid != os.getpid():  # threads do not survive a fork
            self._fresh()
        if not self._places.acquire(blocking=False):
            return False
        with self._lock:
            spare = self._idle > 0
            self._idle -= spare
        if not spare:
            try:
                threading.Thread(target=self._serve, name="safewrite", daemon=True).start()
            except RuntimeError:  # it gives none
                self._places.release()
                return False
        return True

    def release(self) -> None:
        """Give back a place that was reserved and not used; its thread waits for the next."""
        with self._lock:
            self._idle += 1
        self._places.release()

    @property
    def busy(self) -> bool:
        """Whether any place is taken."""
        return self._places._value < self.size

    def start(self, job: Callable[[], object], then: Callable[[], object] | None = None) -> Work:
        """Run `job` in a thread, in the place that the caller has reserved; `then` is called there once it ended.

        It sees the caller's context variables.
        """
        inside = contextvars.copy_context()
        work = Work(lambda: inside.run(job), then)
        self._queue.put(work)
        return work

    def close(self) -> None:
        """Let idle threads end."""
        with self._lock:
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._queue.put(None)

    def _serve(self) -> None:
        queue, places = self._queue, self._places
        while (work := queue.get()) is not None:
            work.run()
            del work  # an idle thread keeps nothing alive
            with self._lock:
                self._idle += 1
            places.release()
