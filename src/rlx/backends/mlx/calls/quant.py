"""Products with block-scaled weights as `mx.quantized_matmul`.

mlx's weights are affine: scale · q + bias for groups of 32, 64 or 128 unsigned numbers of a row,
packed into words from the lowest bits on. Ours of 4 and 8 bits are the same bytes; of signed ones
the sign bit is flipped, which adds half of their range, and the bias takes it away again.
"""

from __future__ import annotations

from typing import Any

from rlx.backends.engine.calls import Site
from rlx.backends.mlx.calls.table import TABLE
from rlx.backends.mlx.namespaces import mx
from rlx.core.dtype import DType
from rlx.ir.mir import Node

GROUPS = (32, 64, 128)
OFFSETS = {"uint4": 0, "int4": 8, "uint8": 0, "int8": 128}
SIGNS = {"int4": 0x88, "int8": 0x80}
"""The sign bits of a byte."""


def _why_lowered(node: Node) -> str | None:
    packing, block, scale = node.attrs["packing"], node.attrs["block"], node.inputs[2].shape.dtype
    if packing not in OFFSETS:
        return f"mx.quantized_matmul has no {packing}"
    if block not in GROUPS:
        return f"mx.quantized_matmul has groups of 32, 64 and 128, not {block}"
    if DType.F64 in (node.shape.dtype, scale):
        return "mx.quantized_matmul has no doubles"
    if len(node.inputs) > 3 and scale is DType.F32:
        return "zero point times scale, mlx's bias, is exact of half-precision scales only"
    return None


@TABLE.call("dequant_matmul", lowers=_why_lowered)
def dequant_matmul(
    x: Any, packed: Any, scale: Any, zero: Any = None, *, packing: str, block: int, site: Site
) -> Any:
    """In f32, and rounded once."""
    if 0 in (*x.shape, *packed.shape):
        return mx.zeros(site.result.static_dims, mx.float32)
    signs = SIGNS.get(packing, 0)
    codes = mx.bitwise_xor(packed, mx.array(signs, mx.uint8)) if signs else packed
    scales, offset = scale.astype(mx.float32), float(OFFSETS[packing])
    zeros = offset if zero is None else offset + zero.astype(mx.float32)
    made = mx.quantized_matmul(
        mx.reshape(x.astype(mx.float32), (-1, x.shape[-1])),
        mx.view(codes, mx.uint32),
        scales,
        -(scales * zeros),
        transpose=True,
        group_size=block,
        bits=4 if packing.endswith("4") else 8,
    )
    return mx.reshape(made, site.result.static_dims)
