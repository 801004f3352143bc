"""Bad rules, planted one at a time, are caught by the explored worlds: by those of the sample, in the sample's time."""

from __future__ import annotations

import pytest

from tests.core.explore import MOST
from tests.core.mutants import MUTANTS, Mutant, hunt


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.belief for m in MUTANTS])
def test_a_bad_rule_is_caught(mutant: Mutant) -> None:
    """A world in which the rule does harm is found, with the shortest way there."""
    found = hunt(mutant, MOST)
    assert found.broken, f"nothing broke in {found}"
    assert mutant.sounds in found.broken, str(found)
    assert 0 < len(found.trace) < 20
