"""A sample of what `make test-wgpu` does on every driver: laws of some ops on the first adapter."""

from __future__ import annotations

import pytest

from rlx.core.errors import UnsupportedError
from tests.backend.gpu.all import Job, found_wrong
from tests.backend.wgpu.devices import required

SAMPLE = (
    "attention", "conv", "cumsum", "gather", "lstm", "matmul", "nonzero", "rfft", "sort", "softmax",
    "top_k", "quantized_matmul",
)  # fmt: skip
DRAWS = 6
"""Of which one at least is of a dtype that WGSL has."""


def first_that_runs(op: str) -> list[str]:
    """What is wrong with the first draw that is not refused for its dtype."""
    reasons = list[str]()
    for number in range(DRAWS):
        try:
            return found_wrong(Job("wgpu", op, number, 0))
        except UnsupportedError as error:
            reasons.append(str(error))
    return reasons


@pytest.mark.parametrize("op", SAMPLE)
def test_a_law_of(op: str) -> None:
    required()
    assert not first_that_runs(op)
