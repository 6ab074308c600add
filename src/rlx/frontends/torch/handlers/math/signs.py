"""Signs of floats, those of zeros and NaN included: the highest bit."""

from __future__ import annotations

from rlx import ops
from rlx.core.dtype import DType
from rlx.ir.mir import Node

INTEGER_OF = {2: DType.I16, 4: DType.I32, 8: DType.I64}
"""Bytes of a float → the integer that holds its bits."""


def sign_bit(x: Node) -> Node:
    """Is the sign of a float negative, that of zeros and NaN included?"""
    return ops.less(ops.bitcast(x, to=INTEGER_OF[x.shape.dtype.itemsize]), 0)


def with_sign(x: Node, sign: Node) -> Node:
    """|x| with another float's sign."""
    size = ops.abs(x)
    return ops.where(sign_bit(sign), ops.neg(size), size)
