"""Linear algebra: factorisations and solvers."""

from __future__ import annotations

from typing import Any

from rlx import ops
from rlx.frontends.torch.handlers import handles
from rlx.frontends.torch.node_call import Call, rank
from rlx.ir.mir import Node


def transposed(x: Node) -> Node:
    n = rank(x)
    return ops.transpose(x, perm=(*range(n - 2), n - 1, n - 2))


def adjoint(x: Node) -> Node:
    return ops.conj(transposed(x)) if x.shape.dtype.is_complex else transposed(x)


@handles("linalg_cholesky_ex")
def cholesky_ex(call: Call, x: Node, upper: bool = False) -> list[Node]:
    return [ops.cholesky(x, upper=bool(upper)), call.filled(0, call.value[1])]


@handles("cholesky")
def cholesky(call: Call, x: Node, upper: bool = False) -> Node:
    return ops.cholesky(x, upper=bool(upper))


@handles("linalg_inv_ex", "inverse", "linalg_inv")
def inverse(call: Call, x: Node) -> Any:
    made = ops.inverse(x)
    return [made, call.filled(0, call.value[1])] if isinstance(call.value, tuple | list) else made


@handles("linalg_solve_triangular")
def solve_triangular(
    call: Call, x: Node, B: Node, upper: bool, left: bool = True, unitriangular: bool = False
) -> Node:
    how: dict[str, Any] = {"left": bool(left), "unit_diagonal": bool(unitriangular)}
    return ops.triangular_solve(x, B, upper=bool(upper), **how)


@handles("matrix_power", "linalg_matrix_power")
def matrix_power(call: Call, x: Node, n: int) -> Node:
    base, power = (ops.inverse(x), -n) if n < 0 else (x, n)
    size = x.shape.dims[-1]
    unit = ops.equal(call.positions((size, size), 0), call.positions((size, size), 1))
    made = ops.expand(ops.cast(unit, to=x.shape.dtype), dims=x.shape.dims)
    is_first = True
    while power:
        if power & 1:
            made, is_first = base if is_first else ops.matmul(made, base), False
        power >>= 1
        base = ops.matmul(base, base) if power else base
    return made


def p_distance(call: Call, gap: Node, p: float) -> Node:
    from rlx.frontends.torch.handlers.math.reduction import p_norm

    size = ops.abs(gap)
    wide = call.node(size, size.shape.dtype.compute)
    return p_norm(wide, float(p), (rank(gap) - 1,), False)


@handles("_cdist_forward", "_euclidean_dist", "cdist")
def cdist(call: Call, x: Node, x2: Node, p: float = 2.0, compute_mode: Any = None) -> Node:
    gap = ops.sub(
        ops.expand_dims(x, axes=(rank(x) - 1,)), ops.expand_dims(x2, axes=(rank(x2) - 2,))
    )
    if 0 in gap.shape.dims:
        return call.filled(0)
    return p_distance(call, gap, p)


@handles("_pdist_forward", "pdist")
def pdist(call: Call, x: Node, p: float = 2.0) -> Node:
    import numpy as np

    rows, columns = np.triu_indices(call.whole(x.shape.dims[0])[0], 1)
    sides = (
        ops.gather(x, call.graph.constant(i.astype(np.int64)), axis=0) for i in (rows, columns)
    )
    gap = ops.sub(*sides)
    return call.filled(0) if 0 in gap.shape.dims else p_distance(call, gap, p)


@handles("dist")
def dist(call: Call, x: Node, other: Node, p: float = 2) -> Node:
    gap = ops.sub(*call.nodes(x, other, dtype=call.promoted("self", "other")))
    flat = ops.reshape(gap, dims=(gap.shape.num_elements,))
    return call.filled(0) if flat.shape.dims == (0,) else p_distance(call, flat, float(p))
