"""Linear quantisation, q = round(x / scale) + zero, and products of what it gives.

Rounding is half to even, and what is past the range of the result is its end, as ONNX has it; a
NaN gives 0. Scales and zero points are one for all, one per index of an axis, or, with `block`,
one per run of that many along the axis. Arithmetic is in f32, in f64 where the operands are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from rlx.core.attrs import Axis
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import composed, dims_of, dtype_of
from rlx.ops.draw import Draw, Spec
from rlx.ops.nn.window_geometry import Windows, draw_image, draw_kernel, with_default_strides
from rlx.ops.op import Kind

Drawn = tuple[list[Spec], dict[str, Any]]
LOW_PRECISION = (DType.U8, DType.I8, DType.U16, DType.I16)
BYTES = (DType.U8, DType.I8)


def _wide(dtype: DType) -> DType:
    return DType.F64 if dtype is DType.F64 else DType.F32


def _range(to: DType, bits: int | None) -> tuple[float, float]:
    """The least and the greatest number of `bits` in dtype `to`."""
    if to not in LOW_PRECISION:
        raise GraphError(f"attribute to: {to} is none of {', '.join(map(str, LOW_PRECISION))}")
    count = 8 * to.itemsize if bits is None else bits
    if not 1 <= count <= 8 * to.itemsize:
        raise GraphError(f"attribute bits: {count} bits are no part of {to}")
    return (
        (-(2.0 ** (count - 1)), 2.0 ** (count - 1) - 1) if to.is_signed else (0.0, 2.0**count - 1)
    )


def _broadcast_along(x: Any, values: Any, axis: int, block: int, dtype: DType) -> Any:
    """Scales or zero points of x so that they broadcast with it."""
    dims, given = dims_of(x), dims_of(values)
    values = ops.cast(values, to=dtype)
    if block:
        return _repeated(values, dims, given, axis, block)
    if not given:
        return values
    if len(given) != 1 or given[0] not in (1, *dims[axis : axis + 1]):
        raise GraphError(
            f"scales and zero points have dims ({', '.join(map(str, given))}): expected none, or "
            f"as many as axis {axis} of ({', '.join(map(str, dims))}) has"
        )
    return ops.reshape(values, dims=tuple(given[0] if a == axis else 1 for a in range(len(dims))))


def _repeated(
    values: Any, dims: tuple[DimLike, ...], given: tuple[DimLike, ...], axis: int, block: int
) -> Any:
    """Each value for `block` elements along the axis; the last block may be cut short."""
    count = (dims[axis] + block - 1) // block
    if given != (*dims[:axis], count, *dims[axis + 1 :]):
        raise GraphError(
            f"scales and zero points have dims ({', '.join(map(str, given))}), but axis {axis} of "
            f"({', '.join(map(str, dims))}) has {count} blocks of {block}"
        )
    each = ops.expand_dims(values, axes=(axis + 1,))
    repeated = ops.expand(each, dims=(*given[: axis + 1], block, *given[axis + 1 :]))
    joined = ops.reshape(repeated, dims=(*given[:axis], count * block, *given[axis + 1 :]))
    return ops.narrow(joined, axis=axis, start=0, length=dims[axis])


def _normal(x: Shape, *scales: Shape, axis: int, block: int, **_: Any) -> dict[str, Any]:
    """The axis counted from the front; 0 where it means nothing. ONNX's default, 1, may not be an
    axis at all when there is one scale."""
    if block < 0:
        raise GraphError(f"attribute block: {block} is negative")
    if not block and all(s.num_elements == 1 for s in scales):
        return {"axis": 0}
    if not -x.rank <= axis < x.rank:
        raise GraphError(f"attribute axis: {axis} is out of range for rank {x.rank}")
    return {"axis": axis % x.rank}


@composed("f[*s], f[...], $to[...]? -> $to[*s]", kind=Kind.SPECIAL)
def quantize_linear(
    x: Any,
    scale: Any,
    zero: Any = None,
    *,
    axis: int = 1,
    block: int = 0,
    to: DType = DType.U8,
    bits: int | None = None,
) -> Any:
    """round(x / scale) + zero, saturated to `to`; with `bits`, to the numbers of that many bits,
    so that ONNX's int4 is i8 with bits 4."""
    low, high = _range(to, bits)
    wide = _wide(dtype_of(x))
    steps = ops.div(ops.cast(x, to=wide), _broadcast_along(x, scale, axis, block, wide))
    whole = ops.round(steps)
    if zero is not None:
        whole = ops.add(whole, _broadcast_along(x, zero, axis, block, wide))
    return _fitting(whole, dims_of(x), low, high, to)


def _fitting(whole: Any, dims: tuple[DimLike, ...], low: float, high: float, to: DType) -> Any:
    if dims_of(whole) != dims:
        raise GraphError("scales or zero points have more elements than there are numbers")
    return ops.cast(ops.clamp(whole, min=low, max=high), to=to)


@composed("i[*s], f[...], i[...]? -> f[*s]", kind=Kind.SPECIAL)
def dequantize_linear(
    x: Any, scale: Any, zero: Any = None, *, axis: int = 1, block: int = 0
) -> Any:
    """(x - zero) · scale."""
    wide = _wide(dtype_of(scale))
    number = ops.cast(x, to=wide)
    if zero is not None:
        number = ops.sub(number, _broadcast_along(x, zero, axis, block, wide))
    made = ops.mul(number, _broadcast_along(x, scale, axis, block, wide))
    if dims_of(made) != dims_of(x):
        raise GraphError("scales or zero points have more elements than there are numbers")
    return ops.cast(made, to=dtype_of(scale))


quantize_linear.normal(_normal)
dequantize_linear.normal(_normal)


@composed("f32[*s] -> u8[...], f32[...], u8[...]", kind=Kind.SPECIAL)
def dynamic_quantize_linear(x: Any) -> tuple[Any, Any, Any]:
    """x as u8, with the scale and the zero point that just cover its values and 0."""
    low = ops.minimum(ops.min(x, empty_ok=True), 0.0)
    high = ops.maximum(ops.max(x, empty_ok=True), 0.0)
    width = ops.where(ops.equal(high, low), 1.0, ops.sub(high, low))
    scale = ops.div(width, 255.0)
    zero = ops.cast(ops.round(ops.clamp(ops.div(ops.neg(low), scale), min=0.0, max=255.0)),
                    to=DType.U8)  # fmt: skip
    return ops.quantize_linear(x, scale, zero), scale, zero


@composed("f[*s], f[...]? -> f[*s]", kind=Kind.SPECIAL, jumps=True)
def fake_quantize(
    x: Any, scale: Any = None, *, bits: int = 8, axis: Axis | None = None, symmetric: bool = True
) -> Any:
    """x rounded to what `bits` can say, as floats. The scale is given, or covers the values of
    all x, or of each index of `axis`. Symmetric means steps from -q to q with q = 2^(bits-1) - 1;
    else there are 2^bits - 1 steps between the least and the greatest value, or 0."""
    if not 2 <= bits <= 16:
        raise GraphError(f"attribute bits: {bits} is not from 2 to 16")
    if scale is not None and not symmetric:
        raise GraphError(
            "operand 1 is a scale, but a range that is not symmetric needs two numbers"
        )
    wide = ops.cast(x, to=_wide(dtype_of(x)))
    made = _symmetric(wide, scale, bits, axis) if symmetric else _ranged(wide, bits, axis)
    return ops.cast(made, to=dtype_of(x))


def _folded(x: Any, axis: int | None) -> dict[str, Any]:
    axes = tuple(a for a in range(len(dims_of(x))) if a != axis)
    return {"axes": axes, "keepdims": True, "empty_ok": True}


def _or_one(x: Any) -> Any:
    """A scale of 0, where all numbers are 0, would divide by it."""
    return ops.where(ops.equal(x, 0.0), 1.0, x)


def _symmetric(x: Any, scale: Any, bits: int, axis: int | None) -> Any:
    most = 2.0 ** (bits - 1) - 1
    if scale is None:
        greatest = ops.maximum(ops.max(ops.abs(x), **_folded(x, axis)), 0.0)
        step = _or_one(ops.div(greatest, most))
    else:
        step = _broadcast_along(x, scale, 0 if axis is None else axis, 0, dtype_of(x))
    return ops.mul(ops.clamp(ops.round(ops.div(x, step)), min=-most, max=most), step)


def _ranged(x: Any, bits: int, axis: int | None) -> Any:
    low = ops.minimum(ops.min(x, **_folded(x, axis)), 0.0)
    high = ops.maximum(ops.max(x, **_folded(x, axis)), 0.0)
    most = 2.0**bits - 1
    step = _or_one(ops.div(ops.sub(high, low), most))
    zero = ops.round(ops.div(ops.neg(low), step))
    whole = ops.clamp(ops.add(ops.round(ops.div(x, step)), zero), min=0.0, max=most)
    return ops.mul(ops.sub(whole, zero), step)


# -- products -------------------------------------------------------------------------------------


def _integer(name: str, x: Any, zero: Any) -> Any:
    """Bytes less their zero point, as i32."""
    if dtype_of(x) not in BYTES:
        raise GraphError(f"{name} has dtype {dtype_of(x)}, expected u8 or i8")
    wide = ops.cast(x, to=DType.I32)
    if zero is None:
        return wide
    if dtype_of(zero) is not dtype_of(x):
        raise GraphError(f"the zero point of {name} is {dtype_of(zero)}, expected {dtype_of(x)}")
    made = ops.sub(wide, ops.cast(zero, to=DType.I32))
    if dims_of(made) != dims_of(wide):
        raise GraphError(f"the zero points of {name} do not broadcast to it")
    return made


def _per_row(values: Any) -> Any:
    """One number per row of a left operand, broadcast along its columns."""
    if values is None or len(dims_of(values)) != 1 or dims_of(values)[0] == 1:
        return values
    return ops.reshape(values, dims=(dims_of(values)[0], 1))


def _per_channel(values: Any, rank: int, axis: int) -> Any:
    """One number per channel, along `axis` of what has `rank` axes."""
    if values is None or not dims_of(values):
        return values
    if len(dims_of(values)) != 1:
        raise GraphError("scales and zero points are one number, or one per channel")
    count = dims_of(values)[0]
    return ops.reshape(values, dims=tuple(count if a == axis else 1 for a in range(rank)))


def _requantised(sums: Any, factor: Any, zero: Any, to: DType) -> Any:
    """round(sums · factor) + zero, saturated."""
    low, high = _range(to, None)
    made = ops.round(ops.mul(ops.cast(sums, to=DType.F32), ops.cast(factor, to=DType.F32)))
    return _fitting(ops.add(made, ops.cast(zero, to=DType.F32)), dims_of(sums), low, high, to)


@composed("_[...], _[...], _[...]?, _[...]? -> i32[...]", kind=Kind.CONTRACTION)
def matmul_integer(x: Any, w: Any, x_zero: Any = None, w_zero: Any = None) -> Any:
    """(x - x_zero) · (w - w_zero) of bytes, in i32. A zero point is one number, one per row of x
    or column of w, or anything that broadcasts."""
    return ops.matmul(_integer("x", x, _per_row(x_zero)), _integer("w", w, w_zero))


@composed(
    "_[...], f[...], _[...], _[...], f[...], _[...], f[...], _[...] -> _[...]",
    kind=Kind.CONTRACTION,
)
def qlinear_matmul(
    x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    """The product of what x and w stand for, quantised by y_scale and y_zero, in y_zero's dtype:
    the i32 product times x_scale · w_scale / y_scale."""
    sums = ops.matmul_integer(x, w, x_zero, w_zero)
    factor = ops.div(ops.mul(_per_row(x_scale), w_scale), _per_row(y_scale))
    return _requantised(sums, factor, _per_row(y_zero), dtype_of(y_zero))


@composed("i8[m k], i8[k n], i32[n]? -> i8[...]", kind=Kind.CONTRACTION, jumps=True)
def quantized_matmul(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    x_zero: int = 0,
    w_zero: int = 0,
    out_zero: int = 0,
    multiplier: float = 1.0,
) -> Any:
    """((x - x_zero) · (w - w_zero) + bias) · multiplier + out_zero, saturated to i8."""
    sums = ops.matmul_integer(x, w, _byte(x_zero), _byte(w_zero))
    sums = sums if bias is None else ops.add(sums, bias)
    return _requantised(sums, np.float32(multiplier), _byte(out_zero), DType.I8)


def _byte(value: int) -> Any:
    if not -128 <= value <= 127:
        raise GraphError(f"the zero point {value} is no i8")
    return np.int8(value)


@composed("_[...], _[...], _[...]?, _[...]? -> i32[...]", kind=Kind.CONVOLUTION)
def conv_integer(
    x: Any,
    w: Any,
    x_zero: Any = None,
    w_zero: Any = None,
    *,
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    groups: int = 1,
) -> Any:
    """`conv` of x - x_zero and w - w_zero, bytes, in i32: so padding stands for x_zero. w_zero is
    one number, or one per output channel."""
    kernel = _integer("w", w, _per_channel(w_zero, len(dims_of(w)), 0))
    return ops.conv(_integer("x", x, x_zero), kernel, stride=stride, padding=padding,
                    dilation=dilation, groups=groups)  # fmt: skip


@composed(
    "_[...], f[...], _[...], _[...], f[...], _[...], f[...], _[...], i32[o]? -> _[...]",
    kind=Kind.CONVOLUTION,
)
def qlinear_conv(
    x: Any,
    x_scale: Any,
    x_zero: Any,
    w: Any,
    w_scale: Any,
    w_zero: Any,
    y_scale: Any,
    y_zero: Any,
    bias: Any = None,
    *,
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    groups: int = 1,
) -> Any:
    """The convolution of what x and w stand for, quantised by y_scale and y_zero, in y_zero's
    dtype. The bias is added to the i32 sums."""
    sums = ops.conv_integer(x, w, x_zero, w_zero, stride=stride, padding=padding,
                            dilation=dilation, groups=groups)  # fmt: skip
    rank = len(dims_of(sums))
    sums = sums if bias is None else ops.add(sums, _per_channel(bias, rank, 1))
    factor = ops.div(ops.mul(x_scale, _per_channel(w_scale, rank, 1)), y_scale)
    return _requantised(sums, factor, y_zero, dtype_of(y_zero))


@composed("i8[...], i8[...], i32[o]? -> i8[...]", kind=Kind.CONVOLUTION, jumps=True)
def quantized_conv(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: tuple[int, ...] = (),
    padding: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (),
    groups: int = 1,
    x_zero: int = 0,
    w_zero: int = 0,
    out_zero: int = 0,
    multiplier: float = 1.0,
) -> Any:
    """(conv(x - x_zero, w - w_zero) + bias) · multiplier + out_zero, saturated to i8."""
    sums = ops.conv_integer(x, w, _byte(x_zero), _byte(w_zero), stride=stride, padding=padding,
                            dilation=dilation, groups=groups)  # fmt: skip
    sums = sums if bias is None else ops.add(sums, _per_channel(bias, len(dims_of(sums)), 1))
    return _requantised(sums, np.float32(multiplier), _byte(out_zero), DType.I8)


quantized_conv.normal(with_default_strides)
qlinear_conv.normal(with_default_strides)
conv_integer.normal(with_default_strides)

# -- drawing --------------------------------------------------------------------------------------


def _draw_scales(draw: Draw) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """The dims of x and of its scales, and along which axis and in which blocks they are."""
    how = draw.choice(("one", "axis", "block"))
    if how == "one":
        return draw.dims(0, 4), (1,) * draw.integer(0, 1), {}
    dims = draw.dims(1, 4)
    axis = draw.integer(0, len(dims) - 1)
    attrs = {"axis": axis - len(dims) * draw.coin(0.3)}
    if how == "axis":
        return dims, (dims[axis],), attrs
    block = draw.integer(1, 4)
    return (
        dims,
        (*dims[:axis], -(-dims[axis] // block), *dims[axis + 1 :]),
        attrs | {"block": block},
    )


@quantize_linear.sample
def _(draw: Draw) -> Drawn:
    (dims, scales, attrs), dtype = _draw_scales(draw), draw.dtype("f")
    to, is_short = draw.choice(LOW_PRECISION), draw.coin(0.3)
    attrs |= {"to": to, "bits": draw.integer(2, 8) if is_short else None}
    zero = [Spec(scales, to, "plain")] if draw.coin(0.7) else []
    return [Spec(dims, dtype), Spec(scales, dtype, "positive"), *zero], attrs


@dequantize_linear.sample
def _(draw: Draw) -> Drawn:
    (dims, scales, attrs), to = _draw_scales(draw), draw.choice((*LOW_PRECISION, DType.I32))
    zero = [Spec(scales, to, "plain")] if draw.coin(0.7) else []
    return [Spec(dims, to), Spec(scales, draw.dtype("f"), "positive"), *zero], attrs


@fake_quantize.sample
def _(draw: Draw) -> Drawn:
    dims, dtype = draw.dims(1, 4), draw.dtype("f")
    axis = draw.integer(0, len(dims) - 1) if draw.coin() else None
    attrs = {"axis": axis, "bits": draw.integer(2, 9), "symmetric": draw.coin()}
    scales = () if axis is None else (dims[axis],)
    given = [Spec(scales, dtype, "positive")] if attrs["symmetric"] and draw.coin() else []
    return [Spec(dims, dtype, "plain"), *given], attrs


def _draw_zero(draw: Draw, dtype: DType, *along: int) -> Spec:
    return Spec(draw.choice(((), (1,), along)), dtype, "plain")


def _draw_pair(draw: Draw) -> tuple[Spec, Spec]:
    m, k, n = draw.size(), draw.size(), draw.size()
    x, w = (draw.choice(BYTES) for _ in range(2))
    return Spec((*draw.dims(0, 1), m, k), x), Spec((k, n), w)


@matmul_integer.sample
def _(draw: Draw) -> Drawn:
    x, w = _draw_pair(draw)
    zeros = [_draw_zero(draw, x.dtype, x.dims[-2]), _draw_zero(draw, w.dtype, w.dims[-1])]
    return [x, w, *zeros[: draw.integer(0, 2)]], {}


@qlinear_matmul.sample
def _(draw: Draw) -> Drawn:
    (x, w), dtype = _draw_pair(draw), draw.dtype("f")
    rows, columns = ((d,) if draw.coin() else () for d in (x.dims[-2], w.dims[-1]))
    result = [Spec((), dtype, "positive"), Spec((), draw.choice(BYTES), "plain")]
    return [*_with_scale(x, rows, dtype), *_with_scale(w, columns, dtype), *result], {}


def _with_scale(x: Spec, dims: tuple[int, ...], dtype: DType) -> list[Spec]:
    """An operand, its scale and its zero point."""
    return [x, Spec(dims, dtype, "positive"), Spec(dims, x.dtype, "plain")]


def _draw_constants(draw: Draw) -> dict[str, Any]:
    zeros = {name: draw.integer(-9, 9) for name in ("x_zero", "w_zero", "out_zero")}
    return {**zeros, "multiplier": draw.choice((0.25, 0.01, 1.5))}


@quantized_matmul.sample
def _(draw: Draw) -> Drawn:
    m, k, n = draw.size(), draw.size(), draw.size()
    bias = [Spec((n,), DType.I32, "plain")] if draw.coin() else []
    specs = [Spec((m, k), DType.I8), Spec((k, n), DType.I8), *bias]
    return specs, _draw_constants(draw)


def _draw_conv(draw: Draw, x: DType, w: DType) -> tuple[Spec, Spec, dict[str, Any]]:
    kernel, geometry = draw_kernel(draw)
    groups, per_group = draw.integer(1, 2), draw.integer(1, 2)
    image = draw_image(draw, Windows(kernel, **geometry))
    outputs = groups * draw.integer(1, 2)
    given = Spec((draw.integer(0, 2), groups * per_group, *image), x)
    return given, Spec((outputs, per_group, *kernel), w), {**geometry, "groups": groups}


@conv_integer.sample
def _(draw: Draw) -> Drawn:
    x, w, attrs = _draw_conv(draw, draw.choice(BYTES), draw.choice(BYTES))
    zeros = [Spec((), x.dtype, "plain"), _draw_zero(draw, w.dtype, w.dims[0])]
    return [x, w, *zeros[: draw.integer(0, 2)]], attrs


@qlinear_conv.sample
def _(draw: Draw) -> Drawn:
    x, w, attrs = _draw_conv(draw, draw.choice(BYTES), draw.choice(BYTES))
    dtype, channels = draw.dtype("f"), (w.dims[0],) if draw.coin() else ()
    result = [Spec((), dtype, "positive"), Spec((), draw.choice(BYTES), "plain")]
    bias = [Spec((w.dims[0],), DType.I32, "plain")] if draw.coin() else []
    specs = [*_with_scale(x, (), dtype), *_with_scale(w, channels, dtype), *result, *bias]
    return specs, attrs


@quantized_conv.sample
def _(draw: Draw) -> Drawn:
    x, w, attrs = _draw_conv(draw, DType.I8, DType.I8)
    bias = [Spec((w.dims[0],), DType.I32, "plain")] if draw.coin() else []
    return [x, w, *bias], attrs | _draw_constants(draw)
