"""A sample of the random programs of named dims, against torch."""

from __future__ import annotations

import pytest

from tests.effort import tries
from tests.torch.dim_arithmetic import drawn, judged

GROUPS = 3
FOUND = (5, 6, 8)
"""Seeds that were refused: sizes that guards of torch make equal, and sym_max of several."""


@pytest.mark.parametrize("group", range(GROUPS))
def test_a_few_random_programs(group: int) -> None:
    for seed in (FOUND[group], *range(group, tries(6, 300), GROUPS)):
        _, findings = judged(drawn(seed), "reference")
        wrong = [f for f in findings if f.word != "refused" or seed == FOUND[group]]
        assert not wrong, wrong[0]
