"""What a dependency promises, and durations as people write them."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safewrite.dependency import LONGEST_NAME, NO_PROMISES, Dependency
from safewrite.durations import seconds
from safewrite.errors import ConfigurationError


def test_what_is_not_declared_is_not_assumed() -> None:
    """Without a declaration there is no promise at all, and a second of clock skew."""
    plain = Dependency("billing")
    assert (plain.key_retention, plain.work_bound, plain.read_lag, plain.classify) == (None, None, None, None)
    assert (plain.replays_errors, plain.honours_deadline) == (False, False)
    assert plain.clock_skew == 1.0
    assert Dependency("unnamed") == NO_PROMISES


def test_a_name_is_no_longer_than_an_index_holds_beside_an_object() -> None:
    """Objects are claimed by dependency and id: told where it is declared, not when an outcome is recorded."""
    assert Dependency("x" * LONGEST_NAME).name
    with pytest.raises(ConfigurationError, match=r"has 129 characters.*at most 128") as caught:
        Dependency("x" * (LONGEST_NAME + 1))
    assert len(str(caught.value)) < 300


def test_durations_are_kept_as_float_seconds() -> None:
    """Numbers and `timedelta` mean the same; `timedelta.max` is for ever."""
    declared = Dependency(
        "billing", key_retention=timedelta(hours=24), work_bound=30, read_lag=timedelta(0), clock_skew=0
    )
    kept = (declared.key_retention, declared.work_bound, declared.read_lag, declared.clock_skew)
    assert kept == (86400.0, 30.0, 0.0, 0.0)
    assert all(type(value) is float for value in kept)
    assert Dependency("x", key_retention=timedelta.max).key_retention == math.inf
    assert Dependency("x", key_retention=math.inf).key_retention == math.inf
    assert Dependency("x", work_bound=0).work_bound == 0.0


@pytest.mark.parametrize("field", ["key_retention", "work_bound", "read_lag", "clock_skew"])
@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (-1, "negative"),
        (-0.001, "negative"),
        (timedelta(seconds=-1), "negative"),
        (-math.inf, "negative"),
        (math.nan, "not a number"),
        ("30", "no duration (str)"),
        (True, "no duration (bool)"),
        (Decimal(3), "no duration (Decimal)"),
        ([], "no duration (list)"),
    ],
    ids=repr,
)
def test_an_unusable_duration_is_named(field: str, value: object, fault: str) -> None:
    """The error names dependency, argument, value, fault, and what to write."""
    with pytest.raises(ConfigurationError) as caught:
        Dependency("billing", **{field: value})
    text = str(caught.value)
    assert "seconds" in text
    assert text.startswith(f"`Dependency('billing').{field}` is {value!r}, which is {fault}. Write ")


@pytest.mark.parametrize("field", ["work_bound", "read_lag", "clock_skew"])
@pytest.mark.parametrize("value", [math.inf, timedelta.max, 10**400], ids=["inf", "timedelta.max", "huge"])
def test_only_a_key_is_kept_for_ever(field: str, value: object) -> None:
    """An infinite bound is no bound: the error says to write `None` where that is possible."""
    with pytest.raises(ConfigurationError, match="infinite") as caught:
        Dependency("billing", **{field: value})
    assert ("`None`" in str(caught.value)) == (field != "clock_skew")
    assert "timedelta.max" not in str(caught.value).split("Write")[1]


def test_a_key_that_is_not_kept_at_all_is_not_declared() -> None:
    """A retention of zero says nothing: the error says to write `None`."""
    with pytest.raises(ConfigurationError, match=r"is 0, which is zero.*`None` \(it recognises no key\)"):
        Dependency("billing", key_retention=0)


def test_clock_skew_is_a_number_always() -> None:
    """There is always some skew to reckon with: `None` is refused."""
    with pytest.raises(ConfigurationError, match="is None, which is no duration"):
        Dependency("billing", clock_skew=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["replays_errors", "honours_deadline"])
@pytest.mark.parametrize("value", [1, "yes", None], ids=repr)
def test_a_promise_is_true_or_false(field: str, value: object) -> None:
    """What merely looks true is no promise."""
    with pytest.raises(ConfigurationError, match=rf"{field}` is {value!r}\. Write True"):
        Dependency("billing", **{field: value})


@pytest.mark.parametrize("name", ["", "  ", None, 7, b"billing"], ids=repr)
def test_a_dependency_has_a_name(name: object) -> None:
    """Ledger, logs and errors need something to call it."""
    with pytest.raises(ConfigurationError, match=r"`Dependency\.name` is"):
        Dependency(name)  # type: ignore[arg-type]


def test_a_name_may_hold_any_text() -> None:
    """A name with braces does not upset the messages."""
    with pytest.raises(ConfigurationError, match=r"Dependency\('\{x\}'\)\.work_bound"):
        Dependency("{x}", work_bound=-1)


def test_classify_is_a_function() -> None:
    """Anything callable is kept as it is; the rest is refused."""
    assert Dependency("billing", classify=repr).classify is repr
    with pytest.raises(ConfigurationError, match="classify"):
        Dependency("billing", classify="5xx")  # type: ignore[arg-type]


def test_promises_are_keyword_only_and_frozen() -> None:
    """A declaration cannot be given by position or changed afterwards."""
    with pytest.raises(TypeError):
        Dependency("billing", 30)  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        NO_PROMISES.work_bound = 0.0  # type: ignore[misc]


def test_declarations_are_values() -> None:
    """Equal promises are equal; copies, pickles and replacements keep them."""
    one = Dependency("billing", key_retention=timedelta.max, work_bound=5, honours_deadline=True)
    assert Dependency("billing", key_retention=math.inf, work_bound=5.0, honours_deadline=True) == one
    assert hash(copy.deepcopy(one)) == hash(one)
    assert pickle.loads(pickle.dumps(one)) == one
    assert dataclasses.replace(one, work_bound=6).work_bound == 6.0
    assert "work_bound=5.0" in repr(one)


# Durations --------------------------------------------------------------------------------------------------------


@given(
    st.floats(min_value=0, exclude_min=True, allow_infinity=False)
    | st.integers(min_value=1, max_value=10**300)
)
def test_every_positive_finite_number_is_a_duration(value: float) -> None:
    """There is no upper limit, and the value is kept."""
    result = seconds(value, name="timeout")
    assert (result, type(result)) == (float(value), float)


@given(
    st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta.max - timedelta(microseconds=1))
)
def test_every_positive_timedelta_is_a_duration(value: timedelta) -> None:
    """A `timedelta` is kept as its seconds; only `timedelta.max` is for ever."""
    assert seconds(value, name="timeout") == value.total_seconds()


@given(
    st.none()
    | st.booleans()
    | st.text()
    | st.sampled_from(
        [math.nan, math.inf, -math.inf, 0, -0.0, 10**400, Fraction(1, 2), timedelta(0), timedelta.max]
    )
    | st.floats(max_value=0, exclude_max=True)
)
def test_everything_else_is_a_typed_error(value: object) -> None:
    """Nothing else passes, and nothing else is raised."""
    with pytest.raises(ConfigurationError, match=r"^`timeout` is "):
        seconds(value, name="timeout")


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (10**400, f"1{'0' * 79}..., which is infinite"),
        (-(10**400), f"-1{'0' * 78}..., which is negative"),
        (10**5000, "something of type int that cannot be shown, which is infinite"),
        ("x" * 1000, f"'{'x' * 79}..., which is no duration (str)"),
    ],
    ids=["huge", "hugely negative", "without text", "long"],
)
def test_an_error_stays_readable(value: object, shown: str) -> None:
    """However long the value is, or even if it has no text, the error says what is wrong with it."""
    with pytest.raises(ConfigurationError) as caught:
        seconds(value, name="x")
    assert f"`x` is {shown}. " in str(caught.value)


def test_what_is_allowed_is_passed_on() -> None:
    """Zero, for ever and `None` pass where they are allowed; negative zero comes out as zero."""
    assert seconds(0, name="x", allow_zero=True) == 0.0
    assert math.copysign(1, seconds(-0.0, name="x", allow_zero=True)) == 1.0
    assert seconds(timedelta.max, name="x", allow_infinite=True) == math.inf
    assert seconds(None, name="x", allow_none=True) is None


@pytest.mark.parametrize(
    ("allowed", "advice"),
    [
        ({}, "a positive number of seconds or a `timedelta`."),
        ({"allow_zero": True}, "zero or a positive number of seconds or a `timedelta`."),
        (
            {"allow_infinite": True},
            "a positive number of seconds, a `timedelta` or `timedelta.max` for ever.",
        ),
        ({"allow_none": True}, "a positive number of seconds, a `timedelta` or `None`."),
        (
            {"allow_none": True, "none_means": "no limit"},
            "a positive number of seconds, a `timedelta` or `None` (no limit).",
        ),
    ],
    ids=str,
)
def test_the_advice_names_what_is_allowed(allowed: dict, advice: str) -> None:
    """The error says what to write, no more and no less than is accepted."""
    with pytest.raises(ConfigurationError) as caught:
        seconds("soon", name="x", **allowed)
    assert str(caught.value).split("Write ")[1] == advice
