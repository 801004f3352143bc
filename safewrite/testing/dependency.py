"""A scripted dependency, seen from the test: start its process, say what it does, ask what it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from safewrite.testing.effects import (
    FILE_NAME,
    EffectCount,
    EffectRow,
    Promises,
    RequestRow,
    parse_keys,
    public,
    read_rows,
)
from safewrite.testing.script import Step, parse

if TYPE_CHECKING:
    from safewrite.testing.transport import Inside, ScriptedTransport


class ScriptedDependency:
    """A real HTTP server in a process of its own that does to each request what a script says.

    ```python
    with ScriptedDependency(keys="forever") as dependency:
        dependency.script("lose_response", late(0.5), target="sub_1")
        httpx.post(f"{dependency.url}/subscriptions/sub_1/cancel")
        assert dependency.effects("sub_1") == 1
    ```

    Paths and commands stand in `safewrite.testing.server`, steps in `safewrite.testing.script`.  What it did
    can be asked at any time, also after `kill()`: it is read from the file that the process writes before it
    answers.  Request headers are kept there as they came, secrets included.

    Without `start()` it can live in this process, as a transport: `httpx.Client(transport=dependency.transport())`.
    Paths, steps and questions are the same; time is that of the shells, so a `ManualClock` moves it.

    - `keys`: how long idempotency keys are recognised: "off" (default), "forever" or seconds;
    - `replays_errors`: answers of 5xx are stored under their key, and given to every later request with it;
    - `honours_deadline`: a write that would be applied after its `X-Request-Deadline-At` is refused (408);
    - `data_dir`: a folder to keep, whose effects are taken up again (default: a temporary one);
    - `port`: default a free one; `start()` after `kill()` takes the same again.
    """

    def __init__(
        self,
        *,
        keys: float | str = "off",
        replays_errors: bool = False,
        honours_deadline: bool = False,
        data_dir: str | os.PathLike[str] | None = None,
        port: int = 0,
    ) -> None:
        flags = {"--replays-errors": replays_errors, "--honours-deadline": honours_deadline}
        self._options = ["--keys", str(keys), *(flag for flag, given in flags.items() if given)]
        self._promises = Promises(parse_keys(keys), replays_errors, honours_deadline)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = None if data_dir is None else Path(data_dir).absolute()
        self._inside: Inside | None = None
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._asking = threading.Lock()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def data_dir(self) -> Path:
        """The folder in which the process keeps its effects."""
        if self._folder is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="safewrite-")
            self._folder = Path(self._temporary.name).absolute()
        return self._folder

    def transport(self) -> ScriptedTransport:
        """Return a transport for `httpx.Client` and `httpx.AsyncClient`: the dependency lives in this process.

        All transports of one dependency lead to the same effects.  RuntimeError once its process was started.
        """
        from safewrite.testing.transport import Inside, ScriptedTransport

        if self._process is not None:
            raise RuntimeError("the dependency runs in a process of its own: give clients its `url`")
        self._inside = self._inside or Inside(self._promises)
        return ScriptedTransport(self._inside)

    def start(self) -> None:
        """Start the process, on the same port and with the same effects if it ran before."""
        if self._process is not None or self._inside is not None:
            raise RuntimeError("the dependency is running already")
        command = [sys.executable, "-m", "safewrite.testing.server", *self._options]
        command += ["--data-dir", str(self.data_dir), "--port", str(self._port)]
        # A session of its own: Ctrl-C reaches the test, which then stops the dependency in order.
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )
        try:
            self._port = self._answer()["port"]
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End the process in order; without effect if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with process:
            try:
                with suppress(BrokenPipeError, subprocess.TimeoutExpired):
                    process.stdin.close()
                    process.wait(5.0)
            finally:
                process.kill()

    def close(self) -> None:
        """End the process in order and remove the folder, if it is a temporary one; `with` does it."""
        self.stop()
        self.hang_up()
        if self._temporary is not None:
            self._temporary.cleanup()

    def hang_up(self) -> None:
        """End what hangs in it without a timeout, where it lives in this process."""
        if self._inside is not None:
            self._inside.over.set()

    def kill(self) -> None:
        """End the process with kill -9: what it was still going to do is lost, its effects are kept."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.stop()

    @property
    def url(self) -> str:
        """The base URL, without a final slash."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process id, for signals of your own such as SIGSTOP; RuntimeError if it does not run."""
        return self._running().pid

    def script(
        self, *steps: Step | str | Mapping[str, object], path: str | None = None, target: str | None = None
    ) -> None:
        """Queue steps for the next requests, or for the next ones to a path or about a target.

        Each request uses the first queued step that fits it; without one it is `ok`.  A wrong step: ValueError.
        """
        parsed = [parse(step).as_json() for step in steps]
        self._ask({"do": "script", "steps": parsed, "path": path, "target": target})

    def pending(self) -> list[dict[str, Any]]:
        """Return the steps that no request has used yet."""
        return cast("list[dict[str, Any]]", self._ask({"do": "report"})["pending"])

    def promise(
        self,
        *,
        keys: float | str | None = None,
        replays_errors: bool | None = None,
        honours_deadline: bool | None = None,
    ) -> None:
        """Change promises until the next `reset()` (None: as it is)."""
        changes = {"keys": keys, "replays_errors": replays_errors, "honours_deadline": honours_deadline}
        self._ask({"do": "promise", **{name: given for name, given in changes.items() if given is not None}})

    def pause_listening(self) -> ExitStack:
        """Refuse connections until `resume_listening()`, or until the end of a `with` on this call."""
        self._ask({"do": "pause"})
        resuming = ExitStack()
        resuming.callback(self.resume_listening)
        return resuming

    def resume_listening(self) -> None:
        """Accept connections again, on the same port."""
        self._ask({"do": "resume"})

    def reset(self) -> None:
        """Forget effects, requests, keys, steps and changed promises; end what is under way; listen."""
        self._ask({"do": "reset"})

    def effects(self, target: str | None = None) -> int:
        """Return how many effects a target has had (None: all targets).

        The number shows, where an assertion on it fails, which effects they were and what was asked for.
        """
        return EffectCount(self.effects_log(target), self.requests(target), target)

    def effects_log(self, target: str | None = None) -> list[EffectRow]:
        """Return the effects on a target (None: all), oldest first."""
        rows = self._rows("effect")
        return [cast(EffectRow, public(row, EffectRow)) for row in rows if target in (None, row["target"])]

    def requests(self, target: str | None = None) -> list[RequestRow]:
        """Return the requests about a target (None: all), oldest first, with reads and unanswered ones."""
        rows = self._rows("request")
        return [cast(RequestRow, public(row, RequestRow)) for row in rows if target in (None, row["target"])]

    def _rows(self, sort: str) -> list[dict[str, Any]]:
        if self._inside is not None:
            self._inside.catch_up()
            return self._inside.effects.rows(sort)
        return read_rows(self.data_dir / FILE_NAME, sort)

    def wait_for_effects(self, target: str | None = None, count: int = 1, within: float = 5.0) -> int:
        """Wait until a target has had `count` effects, and return how many; TimeoutError after `within` s."""
        return _wait(lambda: self.effects(target), count, within, f"effects on {target or 'all targets'}")

    def wait_for_requests(self, target: str | None = None, count: int = 1, within: float = 5.0) -> int:
        """Wait until `count` requests about a target arrived, and return how many; TimeoutError as above."""
        what = f"requests about {target or 'all targets'}"
        return _wait(lambda: len(self.requests(target)), count, within, what)

    def _ask(self, order: dict[str, object]) -> dict[str, Any]:
        if self._inside is not None:
            return self._inside.command(order)
        with self._asking:
            commands = self._running().stdin
            assert commands is not None
            with suppress(BrokenPipeError):
                commands.write(json.dumps(order).encode() + b"\n")
                commands.flush()
            done = self._answer()
        if "error" in done:
            raise ValueError(done["error"])
        return done

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the dependency is not running: start it, or take its `transport()`")
        return self._process

    def _answer(self) -> dict[str, Any]:
        process = self._running()
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the dependency's process ended, status {process.wait()}: see what it wrote")
        return cast("dict[str, Any]", json.loads(line))


def _wait(seen: Callable[[], int], count: int, within: float, what: str) -> int:
    end = time.monotonic() + within
    while (now := seen()) < count:
        if time.monotonic() > end:
            raise TimeoutError(f"{now} of {count} {what} after {within:g} s")
        time.sleep(0.005)
    return now


def _environment() -> dict[str, str]:
    """Return the environment for the process, so that it finds this package where this process found it."""
    root = Path(__file__).parents[2]
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(root), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
