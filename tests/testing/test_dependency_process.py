"""The process of a scripted dependency: its HTTP, its start and end, what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from safewrite.testing import ScriptedDependency
from safewrite.testing.script import (
    accepted,
    error,
    hang_after,
    late,
    never,
    ok,
)
from tests.testing.asking import BRIEF, CANCEL, READ, ROOT, keyed, listening, poll

# HTTP ----------------------------------------------------------------------------------------------------------


def exchange(dependency: ScriptedDependency, sent: bytes) -> bytes:
    """Send bytes and return all that comes back until the connection ends."""
    with socket.create_connection(("127.0.0.1", int(dependency.url.rpartition(":")[2])), 5.0) as raw:
        raw.sendall(sent)
        return b"".join(iter(lambda: raw.recv(65536), b""))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /a/b/c HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"411 Length Required"),
        (b"POST /a/b/c HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400 Bad Request"),
        (b"POST /a/b/c HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", b"400 Bad Request"),
        (b"POST /a/b/c HTTP/1.1\r\nNo colon\r\n\r\n", b"400 Bad Request"),
        (b"POST /a/b/c HTTP/2\r\n\r\n", b"400 Bad Request"),
        (b"hello\r\n\r\n", b"400 Bad Request"),
        (b"GET /a/b HTTP/1.1\r\nBig: " + b"x" * 70_000, b"431 Request Header Fields Too Large"),
        (b"GET /a/b HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET /a/b HTTP/1.1\r\nConnection: close\r\n\r\n", b"200 OK"),
    ],
)
def test_the_connection_is_closed_where_it_must_be(
    dependency: ScriptedDependency, sent: bytes, status: bytes
) -> None:
    """What cannot be framed is refused and ends the connection, as does a caller's wish to close it."""
    answer = exchange(dependency, sent)
    assert answer.startswith(b"HTTP/1.1 " + status)
    assert b"Connection: close" in answer
    assert dependency.effects() == 0


def test_a_request_that_is_cut_off_is_never_processed(dependency: ScriptedDependency) -> None:
    """A body that never arrives in full is no request."""
    with socket.create_connection(("127.0.0.1", int(dependency.url.rpartition(":")[2]))) as raw:
        raw.sendall(f"POST {CANCEL} HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf".encode())
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(100) == b""
    assert (dependency.effects(), dependency.requests()) == (0, [])


def test_one_connection_serves_many_requests(dependency: ScriptedDependency) -> None:
    """Requests that are sent together on one connection are answered in order."""
    one = f"POST {CANCEL} HTTP/1.1\r\nContent-Length: 2\r\n\r\n{{}}".encode()
    last = b"GET /subscriptions/sub_1 HTTP/1.1\r\nConnection: close\r\n\r\n"
    answer = exchange(dependency, one + one + last)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["effects"] == 2


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/a/b/c/d", 404),
        ("POST", "/a//c", 404),
        ("PUT", "/a/b/c", 405),
        ("POST", "/a/b", 405),
        ("DELETE", "/effects", 405),
    ],
)
def test_other_paths_and_methods_are_refused(
    client: httpx.Client, method: str, path: str, status: int
) -> None:
    """Only the documented resources exist; another method names the one that does."""
    reply = client.request(method, path)
    assert reply.status_code == status
    assert ("Allow" in reply.headers) is (status == 405)


def test_a_paused_dependency_refuses_connections(
    dependency: ScriptedDependency, client: httpx.Client
) -> None:
    """While it does not listen, pooled connections are gone and new ones refused; then it is back on its port."""
    client.post(CANCEL)
    with dependency.pause_listening():
        with pytest.raises(httpx.ConnectError):
            client.post(CANCEL)
        dependency.pause_listening()
    assert client.post(CANCEL).json()["effects"] == 2
    dependency.resume_listening()


# The process ---------------------------------------------------------------------------------------------------


def test_kill_9_keeps_every_effect(tmp_path: Path) -> None:
    """After a kill its effects can be asked for; started again it knows them, their keys and its burnt keys."""
    with ScriptedDependency(data_dir=tmp_path / "kept", keys="forever", replays_errors=True) as dependency:
        dependency.script(error(503), ok(), accepted(30.0), hang_after())
        assert httpx.post(dependency.url + CANCEL, headers=keyed("burnt")).status_code == 503
        httpx.post(dependency.url + "/subscriptions/sub_0/cancel")
        httpx.post(dependency.url + "/subscriptions/sub_2/cancel")
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(dependency.url + CANCEL, headers=keyed("k"), timeout=BRIEF)
        dependency.wait_for_effects("sub_1")
        dependency.kill()
        assert (dependency.effects("sub_1"), dependency.effects(), len(dependency.requests())) == (1, 2, 4)
        with pytest.raises(httpx.ConnectError):
            httpx.get(dependency.url + READ)
        with pytest.raises(RuntimeError, match="not running"):
            dependency.reset()
        url = dependency.url
        dependency.start()
        assert dependency.url == url
        assert httpx.post(url + CANCEL, headers=keyed("k")).headers["Idempotency-Replayed"] == "true"
        assert httpx.post(url + CANCEL, headers=keyed("burnt")).status_code == 503
        assert httpx.post(url + "/subscriptions/sub_3/cancel").json()["effect"] == 3
    with ScriptedDependency(data_dir=tmp_path / "kept") as other:
        assert [effect["number"] for effect in other.effects_log()] == [1, 2, 3]
        assert httpx.get(other.url + READ).json()["keys"] == ["k"]


def test_a_kill_does_not_ask() -> None:
    """A process that hears nothing, since it is stopped, is ended at once."""
    with ScriptedDependency() as dependency:
        os.kill(dependency.pid, signal.SIGSTOP)
        began = time.monotonic()
        dependency.kill()
        assert time.monotonic() - began < 3.0


def test_a_line_that_was_cut_off_never_happened(tmp_path: Path) -> None:
    """The rest of a write that a crash cut off is dropped, and later rows are whole."""
    with ScriptedDependency(data_dir=tmp_path) as dependency:
        httpx.post(dependency.url + CANCEL)
    [kept] = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(whole + b'{"row": "effect", "tar')
    assert dependency.effects() == 1
    with ScriptedDependency(data_dir=tmp_path) as again:
        httpx.post(again.url + CANCEL)
        assert again.effects("sub_1") == 2
    assert kept.read_bytes().startswith(whole + b'{"row": "request"')


def test_it_leaves_no_folder_and_no_process(capfd: pytest.CaptureFixture[str]) -> None:
    """At the end the temporary folder is gone, nobody listens, and nothing was complained about."""
    with ScriptedDependency() as dependency:
        folder = dependency.data_dir
        dependency.script(never(), late(60.0))
        for _ in range(2):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(dependency.url + CANCEL, timeout=BRIEF)
        with socket.create_connection(("127.0.0.1", int(dependency.url.rpartition(":")[2]))):
            assert folder.is_dir()
            dependency.stop()
    assert not folder.exists()
    assert not listening(dependency.url)
    assert capfd.readouterr().err == ""


def test_starting_twice_and_starting_in_vain_are_errors(
    dependency: ScriptedDependency, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second start, a port that is taken and a wrong option are told at once."""
    with pytest.raises(RuntimeError, match="running already"):
        dependency.start()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(RuntimeError, match="status 1"):
        with ScriptedDependency(port=taken.getsockname()[1]):
            pass
    assert "Address already in use" in capfd.readouterr().err
    with pytest.raises(ValueError, match="keys are kept"):
        ScriptedDependency(keys=0)
    with pytest.raises(ValueError, match="keys are kept"):
        dependency.promise(keys=-1)


def test_a_dependency_that_died_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    """Asking one whose process somebody else ended says so; stopping it is quiet."""
    with ScriptedDependency() as dependency:
        os.kill(dependency.pid, signal.SIGTERM)
        assert poll(lambda: not listening(dependency.url))
        with pytest.raises(RuntimeError, match="process ended, status -15"):
            dependency.reset()


PARENT = """
import sys, time
from safewrite.testing import ScriptedDependency
with ScriptedDependency() as dependency:
    try:
        print(dependency.url, flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        for _ in range(20):  # long enough for the interrupt to end the dependency as well, if it reached it
            time.sleep(0.01)
            dependency.reset()
        print(dependency.effects(), flush=True)
        sys.exit(7)
"""


@pytest.mark.parametrize(("sent", "ended"), [(signal.SIGKILL, -9), (signal.SIGINT, 7)])
def test_it_ends_with_its_parent(tmp_path: Path, sent: signal.Signals, ended: int) -> None:
    """Kill -9 of the parent ends it; Ctrl-C reaches the parent alone, which can still ask before it stops it."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # a killed parent leaves its folder there
        start_new_session=True,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert listening(url)
        os.killpg(parent.pid, sent)
        assert parent.stdout.read() == ("0\n" if ended == 7 else "")
        assert parent.wait(60.0) == ended
    assert poll(lambda: not listening(url))


def test_it_runs_by_hand(tmp_path: Path) -> None:
    """The module runs on its own, with its promises as options, and Ctrl-C ends it."""
    options = ["--data-dir", str(tmp_path), "--keys", "60", "--replays-errors", "--honours-deadline"]
    command = [sys.executable, "-m", "safewrite.testing.server", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["data_dir"] == str(tmp_path)
        url = f"http://127.0.0.1:{said['port']}"
        assert httpx.post(url + CANCEL, headers={"X-Request-Deadline-At": "1"}).status_code == 408
        process.send_signal(signal.SIGINT)
        assert process.wait(60.0) == 0


def test_it_needs_nothing_but_the_standard_library() -> None:
    """Importing the kit's dependency loads no other part of safewrite and no other package."""
    code = (
        "import sys; import safewrite.testing as kit; kit.script, kit.ScriptedDependency\n"
        "import safewrite.testing.server\n"
        "ours = [name for name in sys.modules if name.startswith('safewrite.')]\n"
        "print(*[name for name in ours if not name.startswith('safewrite.testing')])\n"
        "print(*sorted({'httpx', 'sqlalchemy', 'pydantic', 'tenacity', 'typer', 'pytest'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).split() == []
