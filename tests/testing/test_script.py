"""The vocabulary of scripts, without any network."""

from __future__ import annotations

import inspect
import json

import pytest

import safewrite.testing
from safewrite.testing import script
from safewrite.testing.script import BEHAVIOURS, Step, parse

EXAMPLES = {"seconds": 1.5, "status": 503, "n": 3, "reads": 2}


def example(name: str) -> Step:
    """Return a step with values for the parameters that it requires."""
    required = {
        parameter.name: EXAMPLES[parameter.name]
        for parameter in inspect.signature(BEHAVIOURS[name]).parameters.values()
        if parameter.default is parameter.empty
    }
    return BEHAVIOURS[name](**required)


@pytest.mark.parametrize("name", sorted(BEHAVIOURS))
def test_every_step_is_documented_and_travels_as_json(name: str) -> None:
    """A step is a public function of the module with a docstring, and comes back equal from its JSON."""
    assert getattr(script, name) is BEHAVIOURS[name]
    assert BEHAVIOURS[name].__doc__
    step = example(name)
    assert step == parse(json.loads(json.dumps(step.as_json())))


def test_a_name_alone_stands_for_its_defaults() -> None:
    """Text is a step without parameters; a step stands for itself."""
    assert parse("error_after") == script.error_after()
    assert parse("error_after").behaviour == script.error_after(500).behaviour
    assert parse(script.late(1.0)) == script.late(seconds=1.0)


@pytest.mark.parametrize(
    "given",
    [
        {"step": "late", "seconds": -1},
        {"step": "late", "seconds": "2"},
        {"step": "late", "seconds": float("nan")},
        {"step": "slow", "seconds": float("inf")},
        {"step": "drip", "seconds": 1.0, "chunk": 0},
        {"step": "error", "status": 199},
        {"step": "error", "status": 600},
        {"step": "error", "status": 500.0},
        {"step": "reset_at", "n": True},
        {"step": "stale_read", "reads": 0},
        {"step": "ok", "seconds": 1},
        {"step": ["ok"]},
        {"step": "nothing"},
        {},
    ],
)
def test_a_step_that_makes_no_sense_is_refused(given: dict[str, object]) -> None:
    """Unknown names, unknown parameters and values out of range are ValueErrors."""
    with pytest.raises(ValueError, match="step"):
        parse(given)


def test_the_package_offers_its_names() -> None:
    """Names are found by dir() and loaded on first use; others are attribute errors."""
    assert {"ScriptedDependency", "script"} <= set(dir(safewrite.testing))
    for name in safewrite.testing.__all__:
        assert getattr(safewrite.testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = safewrite.testing.nothing


@pytest.mark.parametrize("name", sorted(BEHAVIOURS))
def test_a_step_is_shown_as_it_is_written(name: str) -> None:
    """Short enough for the id of a test, and what made it."""
    step = example(name)
    assert eval(repr(step), dict(BEHAVIOURS)) == step
    assert len(str(step)) < 40


def test_a_step_is_shown_with_the_names_that_it_needs() -> None:
    """What is not given is not shown; what comes behind it is named."""
    assert str(script.late(20.0)) == str(script.late(seconds=20.0)) == "late(20.0)"
    assert str(script.ok()) == "ok()"
    assert str(script.stale_read(seconds=2.0)) == "stale_read(seconds=2.0)"
    assert str(script.drip(1.5, 4)) == "drip(1.5, 4)"
