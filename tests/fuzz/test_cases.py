"""Case files that somebody altered: a good replay, or a refusal that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safewrite.audit.cases import Case, CaseUnusable
from safewrite.testing import Lab, ManualClock, ScriptedDependency, replay
from safewrite.testing.script import error
from tests.fuzz.arguments import command_line
from tests.fuzz.documents import altered, examples
from tests.testing.test_cases import call, declare, exported

HISTORIES: dict[str, list[Any]] = {
    "applied": [],
    "found": ["lose_response"],
    "sent again": ["never"],
    "told to wait": [error(429, 2)],
    "unknown": ["lose_response", "read_fails", "read_hangs", "read_fails"],
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab, for all examples."""
    dependency = ScriptedDependency(keys="forever")
    dependency.transport()
    url = f"sqlite:///{tmp_path_factory.mktemp('lab') / 'lab.db'}"
    with ManualClock(auto=True, patience=2.0) as clock, Lab(url, clock, dependency) as made:
        yield made


@pytest.fixture(scope="module")
def documents(lab: Lab) -> list[Any]:
    """Good cases of every kind of history."""
    made, tool = [], declare(lab, sw=lab.sw)
    for turn, steps in enumerate(HISTORIES.values(), 1):
        lab.dependency.script(*steps)
        made.append(json.loads(exported(lab, call(tool, turn=turn)).text()))
    return made


@pytest.fixture(scope="module")
def tool(lab: Lab) -> Any:
    """The tool as it is declared today."""
    return declare(lab)


@examples(50)
@given(data=st.data())
def test_an_altered_case_is_replayed_or_refused(
    documents: list[Any], tool: Any, lab: Lab, data: st.DataObject
) -> None:
    """Through the machine and through the tool, whatever is missing, doubled, moved or replaced in it."""
    path = Path(lab.url.removeprefix("sqlite:///")).with_name("altered.json")
    path.write_text(json.dumps(data.draw(st.sampled_from(documents).flatmap(altered))))
    try:
        case = Case.load(path)
        came = [replay(case), replay(case, tool)]
    except CaseUnusable:
        pass
    else:
        assert all(str(one) and json.dumps(one.to_dict()) for one in came)
    ended = command_line(["replay", str(path), "--json"])
    assert ended.code in (0, 1, 2)
    assert (ended.code == 2) == ended.err.startswith("safewrite: `")


def test_the_cases_that_are_altered_are_good_ones(documents: list[Any], tool: Any) -> None:
    """Each of them is decided as then, by both."""
    for document in documents:
        case = Case.model_validate(document)
        assert replay(case).same
        assert replay(case, tool).same


def test_an_instant_without_end_is_refused(documents: list[Any], tool: Any) -> None:
    """No clock can be moved on to it."""
    for place in (0, 1):
        made = json.loads(json.dumps(documents[1]))
        made["rows"][1]["at"][place] = "inf"
        with pytest.raises(CaseUnusable, match=r"row 2 cannot be played.*no finite instant"):
            replay(Case.model_validate(made), tool)


@pytest.mark.parametrize(("field", "number"), [("left", "nan"), ("floor", -1.0)])
def test_numbers_that_no_call_can_have_are_refused(
    documents: list[Any], tool: Any, field: str, number: object
) -> None:
    """No call was ever made with them."""
    made = json.loads(json.dumps(documents[0]))
    made["rows"][0]["call"][field] = number
    with pytest.raises(CaseUnusable, match="cannot be played through a tool"):
        replay(Case.model_validate(made), tool)


@pytest.mark.parametrize("missing", [7, "token", [7], [["token"]], {"token": 1}, None])
def test_missing_arguments_are_named_in_a_list(documents: list[Any], tool: Any, missing: Any) -> None:
    """Anything else is a case of nobody's."""
    made = json.loads(json.dumps(documents[0]))
    made["arguments"]["missing"] = missing
    with pytest.raises(CaseUnusable, match="the recorded arguments no longer fit `cancel`"):
        replay(Case.model_validate(made), tool)


def test_texts_that_are_no_unicode_are_refused_in_words(documents: list[Any], tmp_path: Path) -> None:
    """The words of the refusal are text that any terminal can show."""
    made = json.loads(json.dumps(documents[0]))
    made["rows"][0]["event"] = "\ud800"
    path = tmp_path / "case.json"
    path.write_text(json.dumps(made))
    with pytest.raises(CaseUnusable, match=r"row 1: .*`\\ud800`"):
        Case.load(path)
