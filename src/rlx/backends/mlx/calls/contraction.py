"""Contractions as calls of mlx, which multiplies matrices of floats and complex numbers only.

Products of integers are exact in f64 as long as every sum is below 2⁵³: those of 8 and 16 bits are,
and those of 32 bits are sums of three products of their halves, modulo 2³².
"""

from __future__ import annotations

from typing import Any

from rlx.backends.engine.calls import Site
from rlx.backends.mlx import numerics
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx
from rlx.core.dtype import DType
from rlx.ir.mir import Node

NO_INTEGERS = "mlx multiplies no matrices of {}, and sums of their products are not exact in f64"
NO_DOUBLES = "products of integers are taken in f64, which mlx has on the processor only"
LONGEST = 2**20
"""Products of 16 bits whose sum is below 2⁵³."""


def _why_not(node: Node) -> str | None:
    dtype = node.inputs[0].shape.dtype
    if not dtype.is_integer:
        return None
    depth = node.inputs[0].shape.dims[-1]
    if dtype.itemsize > 4 or not isinstance(depth, int) or depth > LONGEST:
        return NO_INTEGERS.format(dtype)
    return None if numerics.on_processor() else NO_DOUBLES


@TABLE.call("matmul", limit=_why_not, halves=True)
def matmul(x: Any, y: Any) -> Any:
    """Half floats are summed in f32 and rounded once by mlx itself."""
    if not mx.issubdtype(x.dtype, mx.inexact):
        return _integers(x, y)
    if 0 in x.shape or 0 in y.shape:
        return _of_nothing(x, y)
    return mx.matmul(x, y)


def _of_nothing(x: Any, y: Any) -> Any:
    """mlx has no products of arrays without elements of every rank: sums of nothing are 0."""
    rows = x.shape[-2:-1] if x.ndim > 1 else ()
    columns = y.shape[-1:] if y.ndim > 1 else ()
    batch = mx.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    return mx.zeros((*batch, *rows, *columns), x.dtype)


def _integers(x: Any, y: Any) -> Any:
    if x.dtype.size <= 2:
        return _exact(x, y).astype(x.dtype)
    (a, b), (c, d) = _halves(x), _halves(y)
    middle = mx.left_shift(_exact(a, d) + _exact(b, c), mx.array(16, mx.int64))
    return (middle + _exact(b, d)).astype(x.dtype)


def _halves(x: Any) -> tuple[Any, Any]:
    """x = 2¹⁶ · high + low."""
    wide = x.astype(mx.int64)
    high = mx.right_shift(wide, mx.array(16, mx.int64))
    return high, mx.bitwise_and(wide, mx.array(0xFFFF, mx.int64))


def _exact(x: Any, y: Any) -> Any:
    """The product of small integers, as i64."""
    x, y = x.astype(mx.float64), y.astype(mx.float64)
    made = _of_nothing(x, y) if 0 in x.shape or 0 in y.shape else mx.matmul(x, y)
    return made.astype(mx.int64)


@TABLE.call("wide_matmul")
def wide_matmul(x: Any, y: Any, *, to: DType, site: Site) -> Any:
    if to.is_integer and x.dtype.size <= 2 and numerics.on_processor():
        return site.cast(_exact(x, y), to)
    return matmul(site.cast(x, to), site.cast(y, to))
