"""Any text in a variable: a good setting, or an error that names the variable; never something silently left out."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from safewrite.errors import ConfigurationError
from safewrite.settings import resolve_settings

VARIABLES = {row.variable: row for row in resolve_settings({}, {}).table()}
TEXTS = st.text(st.characters(exclude_characters="\x00"), max_size=8) | st.sampled_from(
    ["0", "-0", "-1", "5", " 7 ", "0.5", "1e3", "1e400", "nan", "inf", "-inf", "1_000", "0x10", "٣", "true", "9" * 400,
     "9" * 5000, "\udcff", "null", "[]", "{}", "5s", "1,5", "64.0", "64.5"]
)  # fmt: skip


GOOD = st.sampled_from(["1", " 7 ", "30", "2e1", "5.5", "64.0"])


@given(st.dictionaries(st.sampled_from(list(VARIABLES)), GOOD | GOOD | TEXTS, min_size=1, max_size=3))
@example({"SAFEWRITE_THREADS": "9" * 400})
@example({"SAFEWRITE_THREADS": "9" * 5000, "SAFEWRITE_GRACE": "1e400"})
def test_a_variable_counts_or_is_named(environ: dict[str, str]) -> None:
    """Numbers are what Python reads in the text, and texts are the text."""
    try:
        rows = {row.variable: row for row in resolve_settings({}, environ).table()}
    except ConfigurationError as refused:
        told = [name for name in environ if f"`{name}`" in str(refused)]
        assert len(told) == 1, refused  # noqa: PT017
        assert told != ["SAFEWRITE_OPERATION_TIMEOUT"]  # that one has a default to fall back on
        return
    for name, text in environ.items():
        row = rows[name]
        if row.origin == "default":
            blank = not text.strip() and name != "SAFEWRITE_OPERATION_TIMEOUT"
            assert blank or repr(text) in row.note
        elif isinstance(row.value, str):
            assert row.value == text
        else:
            assert type(row.value) is type(VARIABLES[name].value)
            if isinstance(row.value, int):
                assert Decimal(text) == row.value
            else:
                assert math.isfinite(row.value)
                assert row.value == float(text) or "was raised" in row.note
    assert {row.origin for name, row in rows.items() if name not in environ} == {"default"}


@pytest.mark.parametrize("name", [name for name, row in VARIABLES.items() if not isinstance(row.value, str)])
@pytest.mark.parametrize("text", ["five", "nan", "-1", "\udcff"])
def test_what_is_no_number_is_never_taken(name: str, text: str) -> None:
    """The error names the variable and repeats the text, or the note does."""
    if name == "SAFEWRITE_OPERATION_TIMEOUT":
        row = next(row for row in resolve_settings({}, {name: text}).table() if row.variable == name)
        assert (row.value, repr(text) in row.note) == (20.0, True)
        return
    with pytest.raises(ConfigurationError, match=f"`{name}` is"):
        resolve_settings({}, {name: text})
