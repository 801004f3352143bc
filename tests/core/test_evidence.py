"""Evidence: who decides in which order, what takes a proof back, what a value says, and exceptions as text."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from safewrite.core import evidence, statuses, tables_http, tables_local, tables_rpc, tables_sql
from safewrite.core.events import Finding, OutcomeState
from safewrite.core.evidence import REASONS, describe, from_exception, from_value
from safewrite.core.matching import CHAIN_LIMIT, chain, take_back
from safewrite.core.statuses import STATUSES
from safewrite.core.tables_http import ANSWER

APPLIED, NOT_APPLIED, UNKNOWN = OutcomeState.APPLIED, OutcomeState.NOT_APPLIED, OutcomeState.UNKNOWN


class WriteError(Exception):
    """Stands for any error of safewrite: known by its class attribute alone."""

    _safewrite_error = True


class NotSent(WriteError):
    _safewrite_finding = "not_sent"


class Rejected(WriteError):
    _safewrite_finding = "rejected"


class Declined(Exception):
    """An error of an author's own."""


def answered(exc: Exception, status: int, **headers: str) -> Exception:
    """Return an httpx error of an exchange whose status an adapter kept."""
    request = httpx.Request("POST", "http://x/")
    request.extensions[ANSWER] = SimpleNamespace(status_code=status, headers=headers)
    exc.request = request  # type: ignore[attr-defined]
    return exc


@pytest.mark.parametrize(
    "kind", [httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError, httpx.DecodingError]
)
def test_the_status_before_a_broken_body_is_read_where_an_adapter_kept_it(kind: type[Exception]) -> None:
    """A refusal is one without its body, too; 200 is no success; without a status the class alone speaks."""
    assert Finding(NOT_APPLIED, "http_404", status=404) == from_exception(answered(kind("x"), 404))
    assert Finding(UNKNOWN, "error_beside_success", status=200) == from_exception(answered(kind("x"), 200))
    assert Finding(UNKNOWN, "http_503", status=503) == from_exception(answered(kind("x"), 503))
    assert from_exception(kind("x")).status is None
    bare = kind("x")
    bare.request = httpx.Request("POST", "http://x/")  # type: ignore[attr-defined]
    assert from_exception(bare) == from_exception(kind("x"))


@pytest.mark.parametrize("kind", [httpx.ReadTimeout, httpx.RemoteProtocolError])
def test_a_date_to_come_back_at_is_read_before_a_broken_body_too(kind: type[Exception]) -> None:
    """It counts from the moment given."""
    exc = answered(kind("x"), 503, **{"Retry-After": "Sun, 06 Nov 1994 08:49:47 GMT"})
    assert from_exception(exc, now_unix=784111777.0).retry_after == 10.0


def test_a_returned_refusal_proves_nothing_for_a_body_of_several_requests() -> None:
    """The same as for one that is raised; an acceptance stands."""
    gone = httpx.Response(404, content=b"")
    assert from_value(gone).outcome is NOT_APPLIED
    assert Finding(UNKNOWN, "multi_request", status=404) == from_value(gone, single_request=False)
    assert from_value(httpx.Response(200, content=b""), single_request=False).outcome is APPLIED


def test_what_the_body_says_on_purpose_decides_first() -> None:
    """NotSent and Rejected stand whatever they carry, whatever was declared, however many requests there are."""
    sent = NotSent("no stock")
    sent.__cause__ = httpx.ReadTimeout("")
    for options in ({}, {"single_request": False}, {"not_applied_on": (WriteError,)}):
        assert Finding(NOT_APPLIED, "not_sent", again=True, unsent=True) == from_exception(sent, **options)
        assert Finding(NOT_APPLIED, "rejected") == from_exception(Rejected(), **options)


def test_what_was_not_sent_and_would_not_be_next_time_is_not_sent_again() -> None:
    """The body says so on the exception."""
    for again in (True, False):
        exc = NotSent()
        exc.again = again  # type: ignore[attr-defined]
        assert Finding(NOT_APPLIED, "not_sent", again=again, unsent=True) == from_exception(exc)


def test_an_unknown_word_in_the_class_attribute_is_no_finding() -> None:
    """A foreign class that uses the attribute for something else is not believed."""
    for value in ("perhaps", 7, ["not_sent"]):
        foreign = type("Foreign", (Exception,), {"_safewrite_finding": value})
        assert Finding(UNKNOWN, "unlisted_exception") == from_exception(foreign())


def test_the_author_may_declare_that_a_type_means_nothing_was_done() -> None:
    """`not_applied_on` comes before the table and holds for subclasses and for bodies of many requests."""
    declared = Finding(NOT_APPLIED, "declared_not_applied")
    assert declared == from_exception(Declined(), not_applied_on=(KeyError, Declined), single_request=False)
    assert declared == from_exception(httpx.ReadTimeout(""), not_applied_on=(httpx.TransportError,))
    assert Finding(UNKNOWN, "unlisted_exception") == from_exception(Declined(), not_applied_on=(KeyError,))


def test_a_nested_write_that_ended_in_an_error_leaves_the_outer_one_unknown() -> None:
    """An error of safewrite is unknown for the write around it, unless its author declared it."""
    assert Finding(UNKNOWN, "nested_write") == from_exception(WriteError())
    assert from_exception(WriteError(), not_applied_on=(WriteError,)).outcome == NOT_APPLIED


def test_an_error_of_ours_that_is_one_of_a_listed_client_is_read_by_the_table() -> None:
    """An adapter may raise what the client's users catch."""

    class Refused(WriteError, httpx.ConnectError):
        pass

    assert from_exception(Refused("no")) == from_exception(httpx.ConnectError("no"))


def test_what_is_taken_back_proves_nothing_in_any_field() -> None:
    """A client that asks whether the request was processed, or the version is gone, must not hear a yes."""
    proven = Finding(NOT_APPLIED, "http_412", True, True, 412, 3.0, True, True, True)
    assert take_back(proven, "multi_request") == Finding(
        UNKNOWN, "multi_request", unsent=True, status=412, retry_after=3.0, running=True
    )


def test_what_is_not_listed_is_unknown() -> None:
    """The tables are closed: any other exception, of any base, says nothing."""
    for exc in (ValueError("x"), RuntimeError(), Declined(), StopIteration(), BaseException()):
        assert Finding(UNKNOWN, "unlisted_exception") == from_exception(exc)


def test_a_body_of_many_requests_takes_the_table_back() -> None:
    """With `single_request=False` a proof about one request is none about the body; unknowns keep their reason."""
    assert Finding(UNKNOWN, "multi_request") == from_exception(httpx.PoolTimeout(""), single_request=False)
    assert from_exception(httpx.ReadTimeout(""), single_request=False).reason == "read_timeout"
    gone = httpx.HTTPStatusError("", request=None, response=httpx.Response(412))  # type: ignore[arg-type]
    assert from_exception(gone).precondition_failed
    assert Finding(UNKNOWN, "multi_request", status=412) == from_exception(gone, single_request=False)


def failing(first: BaseException, second: BaseException) -> BaseException:
    """Return `second` as a body raises it that sends again while it handles `first`."""
    try:
        try:
            raise first
        except BaseException:
            raise second  # noqa: B904 - it is the context that is wanted
    except BaseException as raised:
        return raised


@pytest.mark.parametrize(
    "first",
    [
        httpx.ReadTimeout(""),
        httpx.HTTPStatusError("", request=None, response=httpx.Response(503)),  # type: ignore[arg-type]
        requests.ConnectionError("a wrapper with nothing inside"),
        WriteError("nested"),
    ],
)
def test_a_second_send_proves_nothing_about_the_first(first: BaseException) -> None:
    """Refused while an open failure of the same call was being handled: unknown."""
    assert Finding(UNKNOWN, "earlier_request") == from_exception(failing(first, httpx.ConnectError("")))


@pytest.mark.parametrize(
    "first",
    [
        httpx.ConnectTimeout(""),
        httpx.HTTPStatusError("", request=None, response=httpx.Response(429)),  # type: ignore[arg-type]
        KeyError("cache"),
        FileNotFoundError("cache"),
        ConnectionResetError(),  # clients have such errors of their own below a failed connect
    ],
)
def test_an_earlier_failure_that_is_no_open_request_takes_nothing_back(first: BaseException) -> None:
    """What was handled before was itself not applied, or had nothing to do with a request."""
    assert from_exception(failing(first, httpx.ConnectError(""))).outcome == NOT_APPLIED


def test_bare_connection_errors_count_below_a_bare_one() -> None:
    """A body that works on sockets: reset, connected anew, refused."""
    again = failing(ConnectionResetError(), ConnectionRefusedError())
    assert Finding(UNKNOWN, "earlier_request") == from_exception(again)
    after_file = failing(FileNotFoundError("cache"), ConnectionRefusedError())
    assert from_exception(after_file).reason == "connect_refused"


def test_a_hidden_context_still_counts() -> None:
    """`raise … from None` hides the first error from people, not from the evidence."""
    second = failing(httpx.ReadTimeout(""), httpx.ConnectError(""))
    second.__suppress_context__ = True
    assert from_exception(second).outcome == UNKNOWN


def test_an_open_request_in_a_group_still_counts() -> None:
    """Tasks that were cut short beside it make the group one that is no `Exception`: it is opened all the same."""
    tasks = BaseExceptionGroup("tasks", [asyncio.CancelledError(), httpx.ReadTimeout("slow")])
    assert not isinstance(tasks, Exception)
    assert Finding(UNKNOWN, "earlier_request") == from_exception(failing(tasks, httpx.ConnectError("")))
    assert "member httpx.ReadTimeout: slow" in describe(tasks)


def test_a_group_of_one_refusal_is_unknown() -> None:
    """One member of a group does not speak for the tasks that ended with it."""
    group = BaseExceptionGroup("tasks", [httpx.ConnectError("")])
    assert Finding(UNKNOWN, "exception_group") == from_exception(group)


# Values


def test_a_returned_value_is_applied() -> None:
    """A body that ends well says so by ending well, whatever it returns."""
    for value in (None, 0, "", {"isError": True}, object()):
        assert Finding(APPLIED, "returned") == from_value(value)


class ToolResult:
    """A result as MCP servers shape it, in either spelling."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


def test_a_tool_result_that_says_error_is_unknown() -> None:
    """The error of a tool includes failures after its effect."""
    assert Finding(UNKNOWN, "tool_error") == from_value(ToolResult(isError=True))
    assert Finding(UNKNOWN, "tool_error") == from_value(ToolResult(is_error=True))
    assert from_value(ToolResult(isError=False, is_error=False)).reason == "returned"
    assert from_value(ToolResult(isError="no")).reason == "returned"


class Grudging:
    """A value whose attributes cannot be read."""

    @property
    def isError(self) -> bool:  # noqa: N802
        raise RuntimeError("not now")


def test_a_value_that_cannot_be_read_is_still_a_value() -> None:
    """Looking at a foreign object never raises."""
    assert Finding(APPLIED, "returned") == from_value(Grudging())


# Reasons


def words_of_the_tables() -> set[object]:
    """Return every text that stands in the modules that make findings."""
    modules = (evidence, statuses, tables_http, tables_local, tables_rpc, tables_sql)
    trees = [ast.parse(Path(str(module.__file__)).read_text()) for module in modules]
    return {node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant)}


def test_every_reason_of_the_tables_is_explained() -> None:
    """A sentence for each code, and no sentence without a code."""
    rules = [*evidence.TABLE.values(), *tables_sql.STATES.values(), *tables_sql.CLASSES.values()]
    rules += [*tables_sql.SQLITE.values(), *tables_rpc.GRPC.values(), *tables_rpc.MCP.values()]
    codes = {rule.reason for rule in rules} | {f"http_{status}" for status in STATUSES}
    assert set() == codes - REASONS.keys()
    assert set() == {code for code in REASONS.keys() - codes if code not in words_of_the_tables()}
    assert all(sentence.endswith(".") and sentence.count(". ") == 0 for sentence in REASONS.values())
    assert all(code == code.lower() and code.isidentifier() for code in REASONS)


# Description


def test_a_description_names_the_whole_chain() -> None:
    """Causes, contexts that were hidden, members of groups and notes, one a line, without a traceback."""
    second = failing(KeyError("k"), ValueError("v"))
    second.__cause__ = ConnectionResetError(104, "reset")
    second.add_note("attempt 2")
    group = BaseExceptionGroup("both", [second, httpx.ReadTimeout("slow")])
    assert (
        describe(group) == "ExceptionGroup: both (2 sub-exceptions)\n"
        "  member ValueError: v (attempt 2)\n"
        "    caused by ConnectionResetError: [Errno 104] reset\n"
        "    while handling KeyError: 'k'\n"
        "  member httpx.ReadTimeout: slow"
    )


def test_an_empty_message_leaves_the_type() -> None:
    """A timeout often has no text."""
    assert describe(TimeoutError()) == "TimeoutError"
    assert describe(asyncio.CancelledError()) == "asyncio.exceptions.CancelledError"


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_exception_that_cannot_be_printed_is_described() -> None:
    """A broken `__str__` loses its message, not the evidence."""
    assert describe(Mute()).endswith("Mute: <no message: RuntimeError>")


def test_notes_that_are_no_text_are_left_out() -> None:
    """`__notes__` can be set to anything."""
    exc = ValueError("v")
    exc.__notes__ = ["kept", 7]  # type: ignore[list-item]
    assert describe(exc) == "ValueError: v (kept)"


def test_a_long_message_does_not_hide_its_cause() -> None:
    """One message gets a quarter of the space."""
    exc = ValueError("x" * 5000)
    exc.__cause__ = KeyError("why")
    cut = "x" * 249 + "…"
    assert describe(exc, limit=1000) == f"ValueError: {cut}\n  caused by KeyError: 'why'"
    assert describe(exc, limit=20) == "ValueError: xxxxxxx…"
    assert describe(exc, limit=100) == f"ValueError: {'x' * 79}…\n  caus…"
    assert describe(ValueError("x" * 80), limit=92) == f"ValueError: {'x' * 80}"
    deep = BaseExceptionGroup("many", [ValueError("x" * 5000)] + [KeyError("y" * 5000) for _ in range(9)])
    assert len(describe(deep)) == 2000


@given(st.integers(0, 300), st.text(max_size=400), st.integers(0, 5))
def test_a_description_keeps_its_bound(limit: int, message: str, causes: int) -> None:
    """Never longer than asked for."""
    exc: Exception = ValueError(message)
    for _ in range(causes):
        outer = ValueError(message)
        outer.__cause__ = exc
        exc = outer
    assert limit >= len(describe(exc, limit))


def test_a_chain_names_how_each_exception_hangs_on_another() -> None:
    """What comes a second time is passed over, and what stands after it is not."""
    cause, one, two = KeyError("why"), ValueError("1"), ValueError("2")
    one.__cause__ = cause
    group = BaseExceptionGroup("both", [one, one, two])
    assert [(link.role, link.depth, link.exception) for link in chain(group)] == [
        ("", 0, group),
        ("member", 1, one),
        ("caused by", 2, cause),
        ("member", 1, two),
    ]


def test_a_ring_of_causes_ends() -> None:
    """Links that lead back are followed once."""
    one, two = ValueError("1"), KeyError("2")
    one.__cause__, two.__cause__ = two, one
    assert describe(one) == "ValueError: 1\n  caused by KeyError: '2'"


def test_a_very_long_chain_is_cut() -> None:
    """Thousands of links cost no more than the limit."""
    exc: Exception = ValueError()
    for _ in range(3 * CHAIN_LIMIT):
        outer = ValueError()
        outer.__cause__ = exc
        exc = outer
    assert len(list(chain(exc))) == CHAIN_LIMIT
