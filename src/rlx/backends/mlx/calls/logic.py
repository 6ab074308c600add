"""Comparisons, boolean and bitwise ops as calls of mlx."""

from __future__ import annotations

from typing import Any

from rlx.backends.mlx.calls.elementwise import is_signed
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx

TABLE.named(mx, equal="equal", not_equal="not_equal", less="less", less_equal="less_equal")
TABLE.named(mx, greater="greater", greater_equal="greater_equal", where="where")
TABLE.named(mx, logical_and="logical_and", logical_or="logical_or", logical_not="logical_not")
TABLE.named(mx, logical_xor="not_equal", is_nan="isnan", is_inf="isinf", is_finite="isfinite")
TABLE.named(mx, bit_and="bitwise_and", bit_or="bitwise_or", bit_xor="bitwise_xor")
TABLE.named(mx, bit_not="bitwise_invert")


def _amount(y: Any) -> tuple[Any, Any]:
    """Is the amount one that leaves some bits? And a defined one instead of all others: the
    machine takes amounts modulo the width, or not at all."""
    width = y.dtype.size * 8
    inside = y < width
    if is_signed(y):
        inside = mx.logical_and(inside, y >= 0)
    return inside, mx.where(inside, y, mx.zeros_like(y))


@TABLE.call("shift_left")
def shift_left(x: Any, y: Any) -> Any:
    inside, amount = _amount(y)
    return mx.where(inside, mx.left_shift(x, amount), mx.zeros_like(x))


@TABLE.call("shift_right")
def shift_right(x: Any, y: Any) -> Any:
    inside, amount = _amount(y)
    gone = mx.where(x < 0, -mx.ones_like(x), mx.zeros_like(x)) if is_signed(x) else mx.zeros_like(x)
    return mx.where(inside, mx.right_shift(x, amount), gone)
