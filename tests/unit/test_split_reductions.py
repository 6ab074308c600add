"""Long folds as two kernels: what they mean together is what the one kernel means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.kernel.collapse import collapsed
from rlx.kernel.expr import Kernel
from rlx.kernel.interpret import run
from rlx.kernel.lower.loop import loop_kernel
from rlx.kernel.split_reduction import MAX_CHUNKS, MAX_SPLIT_RESULTS, MIN_CHUNK, split_reduction

ops = rlx.ops


def kernel_of(build: Any, dims: list[int], dtype: str = "f64") -> Kernel:
    body, g = rlx.Graph("body"), rlx.Graph("g")
    shape = rlx.Shape(dims, dtype)
    body.set_outputs([build(body.input("v", shape))])
    return collapsed(loop_kernel(g.node("region", [g.input("x", shape)], {"body": body})))


CASES: dict[str, tuple[Any, list[int], int]] = {
    "sum": (lambda x: ops.sum(x), [8 * MIN_CHUNK], 1),
    "mean of a cube": (lambda x: ops.mean(x), [5, 97, 101], 1),
    "most of rows": (lambda x: ops.max(x, axes=1) * 2.0, [3, 4 * MIN_CHUNK + 77], 1),
    "product": (lambda x: ops.prod(x * 0.001 + 1.0), [4 * MIN_CHUNK + 1], 1),
    "norm of everything": (lambda x: ops.layer_norm(x), [2, 5 * MIN_CHUNK + 3], 2),
    "softmax of one row": (lambda x: ops.softmax(x), [4 * MIN_CHUNK + 9], 2),
    "a fold inside of a fold": (lambda x: ops.max(ops.transpose(x)), [4 * MIN_CHUNK + 5, 16], 1),
    "both ends": (lambda x: ops.max(x) - ops.min(x), [4 * MIN_CHUNK + 9], 1),
}


@pytest.mark.parametrize("name", CASES)
def test_the_parts_mean_the_whole(name: str) -> None:
    build, dims, splits = CASES[name]
    kernel = kernel_of(build, dims)
    given = [np.random.default_rng(0).normal(size=dims)]
    (want,) = run(kernel, given, {})
    for _ in range(splits):
        found = split_reduction(kernel)
        assert found is not None
        partial, kernel = found
        assert partial.axes[0].extent <= MAX_CHUNKS
        given += run(partial, given, {})
    assert split_reduction(kernel) is None
    np.testing.assert_allclose(run(kernel, given, {})[0], want, rtol=1e-12, atol=1e-12)


def test_short_folds_and_many_results_stay_whole() -> None:
    assert split_reduction(kernel_of(lambda x: ops.sum(x), [MIN_CHUNK])) is None
    many = kernel_of(lambda x: ops.sum(x, axes=1), [MAX_SPLIT_RESULTS + 1, 4 * MIN_CHUNK])
    assert split_reduction(many) is None
    assert split_reduction(kernel_of(lambda x: x * 2.0, [4 * MIN_CHUNK])) is None
