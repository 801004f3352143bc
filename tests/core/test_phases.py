"""What the frames of drivers and clients tell, known by their module and function alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from safewrite.core.events import Finding, OutcomeState
from safewrite.core.evidence import from_exception
from safewrite.core.phases import committing, own_stream, resent, running_call


def out_of(module: str, function: str, error: Exception | None = None, **variables: Any) -> BaseException:
    """Return an exception that was raised in this function of a module of that name, with these local variables."""
    error = error or OSError()
    namespace: dict[str, Any] = {"__name__": module, "error": error}
    exec(f"def {function}({', '.join(variables)}):\n    raise error", namespace)
    with pytest.raises(type(error)):
        namespace[function](**variables)
    return error


@pytest.mark.parametrize(
    ("module", "function", "variables", "commits"),
    [
        ("psycopg.connection", "commit", {}, True),
        ("psycopg._connection_base", "_commit_gen", {}, True),
        ("asyncpg.transaction", "__commit", {}, True),
        ("sqlalchemy.engine.default", "do_commit", {}, True),
        ("psycopg.connection", "rollback", {}, False),
        ("mylib", "commit", {}, False),
        ("psycopg.cursor", "execute", {"query": "insert into t values (1); commit"}, True),
        ("sqlalchemy.engine.default", "do_execute", {"statement": b"COMMIT"}, True),
        ("psycopg.cursor", "execute", {"query": "insert into t values (1)"}, False),
        ("psycopg.cursor", "execute", {"sql": "commit"}, False),
        ("mylib", "execute", {"query": "commit"}, False),
    ],
)
def test_a_commit_is_known_by_the_frames_of_drivers(
    module: str, function: str, variables: dict[str, Any], commits: bool
) -> None:
    """By the function that commits, or by the text of a statement that does."""
    assert committing(out_of(module, function, **variables)) is commits


@pytest.mark.parametrize("kind", [psycopg.errors.QueryCanceled, psycopg.errors.AdminShutdown])
def test_a_commit_that_is_stopped_proves_nothing(kind: type[Exception]) -> None:
    """Anywhere else the same state is a definite no."""
    stopped = out_of("psycopg.connection", "commit", kind("stopped"))
    assert from_exception(stopped) == Finding(OutcomeState.UNKNOWN, "sql_stopped_at_commit")
    undone = from_exception(out_of("psycopg.connection", "rollback", kind("stopped")))
    assert undone.outcome is OutcomeState.NOT_APPLIED


SPENT, FRESH = SimpleNamespace(_retry_connection=True), SimpleNamespace(_retry_connection=False)


@pytest.mark.parametrize(
    ("place", "variables", "again"),
    [
        (("aiohttp.client", "_request"), {"history": ["302"]}, True),
        (("aiohttp.client", "_request"), {"history": []}, False),
        (
            ("aiohttp.client", "_request"),
            {"retry_persistent_connection": False, "self": SPENT, "method": "PUT"},
            True,
        ),
        (
            ("aiohttp.client", "_request"),
            {"retry_persistent_connection": False, "self": SPENT, "method": "POST"},
            False,
        ),
        (
            ("aiohttp.client", "_request"),
            {"retry_persistent_connection": True, "self": SPENT, "method": "PUT"},
            False,
        ),
        (
            ("aiohttp.client", "_request"),
            {"retry_persistent_connection": False, "self": FRESH, "method": "PUT"},
            False,
        ),
        (("httpx._client", "_send_handling_redirects"), {"history": ["302"]}, True),
        (("httpx._client", "_send_handling_redirects"), {"history": []}, False),
        (("botocore.endpoint", "_send_request"), {"attempts": 2}, True),
        (("botocore.endpoint", "_send_request"), {"attempts": 1}, False),
        (("tenacity", "iter"), {"retry_state": SimpleNamespace(attempt_number=2)}, True),
        (("tenacity", "iter"), {"retry_state": SimpleNamespace(attempt_number=1)}, False),
        (("urllib3.connectionpool", "urlopen"), {}, False),  # once; twice is a request sent again
        (("requests.sessions", "resolve_redirects"), {}, True),
        (("mylib", "resolve_redirects"), {}, False),
    ],
)
def test_a_client_that_sent_before_is_known_by_its_frames(
    place: tuple[str, str], variables: dict[str, Any], again: bool
) -> None:
    """A redirect that was followed, a connection that was tried anew, a further attempt."""
    assert resent(out_of(*place, **variables)) is again


@pytest.mark.parametrize(
    ("module", "stream"),
    [
        ("httpcore._sync.http2", 5),
        ("httpcore2._async.http2", 5),
        ("httpcore._sync.http11", None),
        ("h2.connection.http2", None),
        ("mylib", None),
    ],
)
def test_the_stream_of_our_request_is_told_by_the_http2_frames_of_its_client(
    module: str, stream: int | None
) -> None:
    """A variable of the same name elsewhere is another's."""
    assert own_stream(out_of(module, "handle_request", stream_id=5)) == stream


def test_the_end_of_a_with_block_knows_what_stands_in_it() -> None:
    """The name of the call is not known: nobody wrote it."""

    class Exits:
        def __enter__(self) -> None:
            return None

        __exit__: Any = dict[object, object]().__getitem__  # takes one argument, gets three, and fails in C

    open_ = Exits()

    def leaves() -> None:
        with open_:
            pass

    with pytest.raises(TypeError) as caught:
        leaves()
    call = running_call(caught.value)
    assert (call.name, open_ in call.values, call.leaving) == (None, True, True)
