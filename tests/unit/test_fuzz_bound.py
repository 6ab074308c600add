"""The error bound of the fuzzer holds where terms cancel."""

from __future__ import annotations

import numpy as np

import rlx
from rlx.fuzz.error_bound import shadows


def test_a_transform_that_cancels_to_nothing_is_not_known_better_than_its_terms() -> None:
    """1 - 2 + 0 - 0 + 2 - 1 is nothing in one program, and a rounding of its terms in another."""
    graph = rlx.Graph("cancels")
    x = graph.input("x", rlx.Shape([12], "f64"))
    graph.set_outputs([graph.node("fft", [x], {"inverse": True, "norm": "ortho"})])
    row = np.array([1, 2, 0, 0, 2, 1, 1, 2, 0, 2, 1, 1], np.float64)
    shadow = shadows(graph, {"x": row})[0]
    assert np.all(shadow.error > np.finfo(np.float64).eps)
    assert np.all(shadow.error < 1e-11)
