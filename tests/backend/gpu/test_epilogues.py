"""What follows a product is done for every sum once, however many a thread has under way."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.backends.gpu.simulated import SIMULATED
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from tests.backend.gpu.simulated_backend import SimulatedBackend, differences, outputs

BACKEND = SimulatedBackend(replace(SIMULATED, processors=1))
"""With one processor, tiles are large."""
COLUMNS = 255
"""Of no vectors: a unit is one sum."""


@pytest.mark.parametrize("steps", range(3, 9))
def test_units_of_an_epilogue_stay_inside_their_tile(steps: int) -> None:
    """Longer epilogues leave fewer units under way: 4, 3, 2 or 1, of which 3 divides no tile."""
    g = Graph("g")
    x = g.input("x", Shape([COLUMNS, 64], DType.BF16))
    made = ops.matmul(x, g.input("w", Shape([64, COLUMNS], DType.BF16)))
    for i in range(steps):
        made = ops.abs(ops.sub(made, i + 0.25))
    g.set_outputs([made])
    rng = np.random.default_rng(steps)
    dims = {"x": (COLUMNS, 64), "w": (64, COLUMNS)}
    values = {k: rng.standard_normal(d).astype(ml_dtypes.bfloat16) for k, d in dims.items()}
    assert differences(g, values, outputs(g, values, BACKEND)) == []
