"""Products and decoding of GGUF's quantised blocks, whose formats `gguf_formats` states.

Every scheme is decoded by table ops, so that any target can.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rlx import ops
from rlx.core.dim import exact_div, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.ops.compose import composed, dims_of, dtype_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Kind
from rlx.ops.quant.block_arrays import decoded
from rlx.ops.quant.block_scaled import times_transposed
from rlx.ops.quant.gguf_codes import BLOCK, CODES
from rlx.ops.quant.gguf_formats import SCHEMES as SCHEMES
from rlx.ops.quant.gguf_formats import Scheme as Scheme

MAX_TERMS = 2
"""Roundings of an activation: two leave less than f32's sums do."""

# -- the ops --------------------------------------------------------------------------------------


@composed("u8[*s n] -> f32[...]", kind=Kind.SPECIAL)
def gguf_dequantize(packed: Any, *, scheme: Scheme) -> Any:
    """The weights that rows of GGUF blocks hold; a row is the last axis, and whole blocks."""
    *lead, size = dims_of(packed)
    block_format = SCHEMES[scheme]
    count = exact_div(size, block_format.block_bytes)
    if count is None:
        raise GraphError(
            f"operand 0 has rows of {size} bytes, which are no whole blocks of {scheme}: they "
            f"have {block_format.block_bytes} bytes"
        )
    blocks = ops.reshape(packed, dims=(product(lead) * count, block_format.block_bytes))
    return ops.reshape(decoded(block_format, blocks), dims=(*lead, count * block_format.weights))


@composed("f[...], u8[n b] -> f[...]", kind=Kind.CONTRACTION)
def gguf_matmul(x: Any, packed: Any, *, scheme: Scheme) -> Any:
    """x · Wᵀ, where row i of W, the weights of output i, is row i of `packed`. Half floats
    are multiplied in f32 and rounded once."""
    return times_transposed(x, ops.gguf_dequantize(packed, scheme=scheme), ops.matmul)


@composed("f[...], u8[n b] -> f[...]", kind=Kind.CONTRACTION)
def gguf_int8_matmul(x: Any, packed: Any, *, scheme: Scheme, terms: int = 1) -> Any:
    """`gguf_matmul` of x rounded to bytes: each 32 elements of a row to multiples of their greatest
    size over 127, as `block_quantize` does; with more `terms`, x is the sum of so many such
    roundings, each of what those before left. Where weights are small integers with scales, sums
    of 32 products are exact then. The scales of the weights are finite."""
    if scheme not in CODES:
        raise GraphError(f"{scheme} holds floats, no integers with scales: use gguf_matmul")
    if not 1 <= terms <= MAX_TERMS:
        raise GraphError(f"terms is {terms}: from 1 to {MAX_TERMS}")
    rounded = _as_bytes(ops.cast(x, to=DType.F32), terms)
    return ops.cast(ops.gguf_matmul(rounded, packed, scheme=scheme), to=dtype_of(x))


def _as_bytes(x: Any, terms: int) -> Any:
    """The sum of roundings."""
    codes, scale = ops.block_quantize(x, packing="int8", block=BLOCK)
    first = ops.block_dequantize(codes, scale, packing="int8", block=BLOCK)
    return first if terms == 1 else ops.add(first, _as_bytes(ops.sub(x, first), terms - 1))


@composed("f[m k], u8[e n b], i[m] -> f[...]", kind=Kind.CONTRACTION)
def gguf_grouped_matmul(x: Any, packed: Any, experts: Any, *, scheme: Scheme) -> Any:
    """Each row of x · Wᵀ of the expert it is for, as `grouped_matmul` does."""
    weights = ops.gguf_dequantize(packed, scheme=scheme)
    return times_transposed(x, weights, lambda a, w: ops.grouped_matmul(a, w, experts))


# -- drawing --------------------------------------------------------------------------------------


def draw_packed(
    draw: Draw, lead: tuple[int, ...], schemes: Iterable[str] = SCHEMES, most: int = 256
) -> tuple[Spec, str, int]:
    """Rows of whole blocks of some scheme, and how many weights a row has. No byte is `most`."""
    scheme = draw.choice(tuple(schemes))
    count, block_format = draw.integer(0, 2), SCHEMES[scheme]
    bytes_ = Spec((*lead, count * block_format.block_bytes), DType.U8, f"index:{most}")
    return bytes_, scheme, count * block_format.weights


@gguf_dequantize.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    packed, scheme, _ = draw_packed(draw, draw.dims(0, 2))
    return [packed], {"scheme": scheme}


@gguf_matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    packed, scheme, k = draw_packed(draw, (draw.size(),))
    return [Spec((*draw.dims(0, 2), k), draw.dtype("f"), "plain"), packed], {"scheme": scheme}


@gguf_int8_matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    """Bytes below 64, as every f16 and f32 of them is finite."""
    packed, scheme, k = draw_packed(draw, (draw.size(),), CODES, 64)
    attrs = {"scheme": scheme, "terms": draw.integer(1, MAX_TERMS)}
    return [Spec((*draw.dims(0, 2), k), draw.dtype("f"), "plain"), packed], attrs


@gguf_grouped_matmul.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    experts, rows = draw.integer(1, 3), draw.size()
    packed, scheme, k = draw_packed(draw, (experts, draw.size()))
    chosen = Spec((rows,), draw.dtype("i"), f"index:{experts}")
    return [Spec((rows, k), draw.dtype("f"), "plain"), packed, chosen], {"scheme": scheme}
