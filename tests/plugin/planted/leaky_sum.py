"""A leaky sum along an axis: the one file of a new scan op."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.ops.compose import dims_of, filled
from rlx.ops.control_flow import scan_loop
from rlx.ops.math.reduction import LAST
from rlx.ops.op import Array, Kind, op


@op("f[*s n] -> f[*s n]", kind=Kind.SPECIAL, flops="2*out", draw="plain")
def leaky_sum(x: Array, *, axis: Axis = LAST, decay: float = 0.5) -> Array:
    """y[t] = decay · y[t - 1] + x[t] along `axis`, from y[-1] = 0; halves are summed in f32."""
    wide = np.float64 if x.dtype == np.float64 else np.float32
    rows = np.moveaxis(x, axis, 0).astype(wide)
    made, state = np.empty_like(rows), np.zeros(rows.shape[1:], wide)
    for t, row in enumerate(rows):
        made[t] = state = state * wide(decay) + row
    return np.moveaxis(made, 0, axis).astype(x.dtype)


@leaky_sum.lowering
def _(x: Any, *, axis: int, decay: float) -> Any:
    rank = len(dims_of(x))
    perm = (axis, *(a for a in range(rank) if a != axis))
    rows = ops.transpose(x, perm=perm)

    def body(before: Any, row: Any) -> tuple[Any, Any]:
        now = ops.add(ops.mul(before, decay), row)
        return now, now

    _, made = scan_loop(body, filled(x, 0.0, dims_of(rows)[1:]), rows)
    return ops.transpose(made, perm=tuple(perm.index(a) for a in range(rank)))
