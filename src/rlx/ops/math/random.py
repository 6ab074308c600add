"""Counter-based random numbers: Philox 4x64-10 of Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3" (2011).

The key is (`seed`, `stream`). The operand `counter` is where the sequence begins, in blocks of
four words: a program that wants other numbers in every call passes another counter. Equal
operands and attributes give equal numbers, on every target and in any order of evaluation.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike, product
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ops.compose import dims_of, nullary
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

ROUNDS = 10
MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
LOW_HALF = 0xFFFFFFFF
MASK = 2**64 - 1
WORD_FLOPS = 100
"""Integer operations of one word: a quarter of ten rounds of two wide products."""

Dims = tuple[DimLike, ...]

# -- words ----------------------------------------------------------------------------------------
# Operators mean the same on u64 arrays and on nodes, so the rounds are written once.


def _high(x: Any, factor: int) -> Any:
    """The upper 64 bits of x · factor, from products of 32-bit halves."""
    x_low, x_high = x & LOW_HALF, x >> 32
    f_low, f_high = factor & LOW_HALF, factor >> 32
    low = (x_low * f_low) >> 32
    middle = x_high * f_low + low
    other = x_low * f_high + (middle & LOW_HALF)
    return x_high * f_high + (middle >> 32) + (other >> 32)


def block(counter: tuple[Any, Any], seed: int, stream: int) -> list[Any]:
    """The four words of a block. The counter's upper two words are 0."""
    zero = counter[0] ^ counter[0]
    words, key = [counter[0], counter[1], zero, zero], [seed & MASK, stream & MASK]
    for _ in range(ROUNDS):
        highs = [_high(words[0], MULTIPLIERS[0]), _high(words[2], MULTIPLIERS[1])]
        lows = [words[0] * MULTIPLIERS[0], words[2] * MULTIPLIERS[1]]
        words = [highs[1] ^ words[1] ^ key[0], lows[1], highs[0] ^ words[3] ^ key[1], lows[0]]
        key = [(k + w) & MASK for k, w in zip(key, WEYL)]
    return words


def _words(counter: Array, count: int, seed: int, stream: int) -> Array:
    """`count` words from the block after `counter` on."""
    start = np.asarray(counter).astype(np.uint64).reshape(1)
    ahead = np.arange(1, -(-count // 4) + 1, dtype=np.uint64)
    low = start + ahead
    carry = (low < ahead).astype(np.uint64)
    words = np.stack(block((low, carry), seed, stream), -1)
    return words.reshape(-1)[:count]


def _words_of(counter: Any, count: DimLike, seed: int, stream: int) -> Any:
    """The same in table ops."""
    blocks = (count + 3) // 4
    ahead = ops.add(nullary(counter, "iota", dims=(blocks,), axis=0, dtype=DType.U64), 1)
    low = ops.add(ops.cast(counter, to=DType.U64), ahead)
    carry = ops.cast(ops.less(low, ahead), to=DType.U64)
    words = ops.stack(block((low, carry), seed, stream), axis=1)
    return ops.narrow(ops.reshape(words, dims=(blocks * 4,)), axis=0, start=0, length=count)


def _unit_bits(dtype: DType) -> int:
    """How many bits a float between 0 and 1 has in steps of one size."""
    return {DType.F64: 53, DType.F16: 11, DType.BF16: 8}.get(dtype, 24)


def _fractions(words: Array, bits: int) -> Array:
    return (words >> np.uint64(64 - bits)).astype(np.float64) * 2.0**-bits


def _fractions_of(words: Any, bits: int, dtype: DType) -> Any:
    """From 0 up to, but not including, 1, in steps of 2^-bits: exact in the dtype."""
    return ops.mul(ops.cast(ops.shift_right(words, 64 - bits), to=dtype), 2.0**-bits)


def _sizes(dims: Dims) -> tuple[int, ...]:
    return tuple(map(int, dims))


# -- declarations ---------------------------------------------------------------------------------


def _check_float(dtype: DType) -> None:
    if not dtype.is_float:
        raise GraphError(f"attribute dtype: {dtype} is no float dtype")


def _float_shape(counter: Shape, *, dims: Dims, dtype: DType, **_: Any) -> Shape:
    _check_float(dtype)
    return Shape(dims, dtype)


def _random(result: str, words: int = 1, more: int = 0, **facts: Any) -> Any:
    flops = f"{words * WORD_FLOPS + more}*out"
    return op(f"i[] -> {result}", kind=Kind.SPECIAL, flops=flops, is_exact=True, **facts)


@_random("u64[...]", shape=lambda counter, *, dims, seed, stream: Shape(dims, DType.U64))
def random_bits(counter: Array, *, dims: Dims, seed: int = 0, stream: int = 0) -> Array:
    """64 random bits per element, in row-major order: what NumPy's Philox of key (seed, stream)
    gives from this counter on."""
    sizes = _sizes(dims)
    return _words(counter, math.prod(sizes), seed, stream).reshape(sizes)


@random_bits.lowering
def _(counter: Any, *, dims: Dims, seed: int, stream: int) -> Any:
    return ops.reshape(_words_of(counter, product(dims), seed, stream), dims=dims)


@_random("$dtype[...]", more=3, shape=_float_shape)
def random_uniform(
    counter: Array,
    *,
    dims: Dims,
    low: float = 0.0,
    high: float = 1.0,
    seed: int = 0,
    stream: int = 0,
    dtype: DType = DType.F32,
) -> Array:
    """low + (high - low) · u, with u the upper bits of a word per element: 53 of them for f64, as
    NumPy's generators have it, 24 for f32, 11 for f16, 8 for bf16. So u is below 1; rounding may
    still give `high`."""
    bits = random_bits.reference(counter, dims=dims, seed=seed, stream=stream)
    u = _fractions(bits, _unit_bits(dtype)).astype(dtype.compute.numpy)
    return _affine(u, high - low, low).astype(dtype.numpy)


def _affine(x: Any, scale: float, shift: float) -> Any:
    return x * x.dtype.type(scale) + x.dtype.type(shift)


@random_uniform.lowering
def _(
    counter: Any, *, dims: Dims, low: float, high: float, seed: int, stream: int, dtype: DType
) -> Any:
    bits = ops.random_bits(counter, dims=dims, seed=seed, stream=stream)
    u = _fractions_of(bits, _unit_bits(dtype), dtype.compute)
    return ops.cast(ops.add(ops.mul(u, high - low), low), to=dtype)


@_random("$dtype[...]", words=2, more=30, shape=_float_shape)
def random_normal(
    counter: Array,
    *,
    dims: Dims,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: int = 0,
    stream: int = 0,
    dtype: DType = DType.F32,
) -> Array:
    """mean + scale · √(-2 log(1 - u)) · cos 2πv (Box and Muller), with u and v from two words per
    element, one after the other: of 53 bits each for f64, else of 24."""
    sizes, wide = _sizes(dims), dtype.compute.numpy
    pairs = _words(counter, 2 * math.prod(sizes), seed, stream).reshape(*sizes, 2)
    u, v = np.moveaxis(_fractions(pairs, _unit_bits(dtype.compute)).astype(wide), -1, 0)
    radius = np.sqrt(np.log(1 - u) * wide.type(-2.0))
    z = radius * np.cos(v * wide.type(2.0 * math.pi))
    return _affine(z, scale, mean).astype(dtype.numpy)


@random_normal.lowering
def _(
    counter: Any, *, dims: Dims, mean: float, scale: float, seed: int, stream: int, dtype: DType
) -> Any:
    words = ops.random_bits(counter, dims=(*dims, 2), seed=seed, stream=stream)
    pairs = _fractions_of(words, _unit_bits(dtype.compute), dtype.compute)
    axis = len(dims)
    u, v = (
        ops.squeeze(ops.narrow(pairs, axis=axis, start=i, length=1), axes=(axis,)) for i in (0, 1)
    )
    radius = ops.sqrt(ops.mul(ops.log(ops.sub(1.0, u)), -2.0))
    z = ops.mul(radius, ops.cos(ops.mul(v, 2.0 * math.pi)))
    return ops.cast(ops.add(ops.mul(z, scale), mean), to=dtype)


def _integer_shape(
    counter: Shape, *, dims: Dims, low: int, high: int, dtype: DType, **_: Any
) -> Shape:
    if not dtype.is_integer:
        raise GraphError(f"attribute dtype: {dtype} is no integer dtype")
    info = np.iinfo(dtype.numpy)
    if not info.min <= low < high <= int(info.max) + 1:
        raise GraphError(f"the numbers from {low} up to, but not including, {high} are no {dtype}")
    if high > MASK:
        raise GraphError(f"attribute high: {high} does not fit 64 bits")
    return Shape(dims, dtype)


@_random("$dtype[...]", more=12, shape=_integer_shape)
def random_integers(
    counter: Array,
    *,
    dims: Dims,
    low: int,
    high: int,
    seed: int = 0,
    stream: int = 0,
    dtype: DType = DType.I64,
) -> Array:
    """Whole numbers from `low` up to, but not including, `high`: the upper half of a word times
    their count, so that none is likelier than another by more than count / 2^64."""
    bits = random_bits.reference(counter, dims=dims, seed=seed, stream=stream)
    return (_high(bits, high - low) + np.uint64(low & MASK)).astype(dtype.numpy)


@random_integers.lowering
def _(
    counter: Any, *, dims: Dims, low: int, high: int, seed: int, stream: int, dtype: DType
) -> Any:
    bits = ops.random_bits(counter, dims=dims, seed=seed, stream=stream)
    return ops.cast(_high(bits, high - low) + (low & MASK), to=dtype)


@op(
    "f[*s], i[] -> $to[*s]",
    kind=Kind.SPECIAL,
    flops=f"{WORD_FLOPS}*out",
    jumps=True,
    draw="unit",
)
def bernoulli(
    p: Array, counter: Array, *, seed: int = 0, stream: int = 0, to: DType = DType.BOOL
) -> Array:
    """1 with probability p, else 0: whether a uniform number in p's dtype (f32 for half floats) is
    below p. NaN and numbers below 0 give 0, those above 1 give 1."""
    u = _coins(counter, DType.of(p.dtype), dims=p.shape, seed=seed, stream=stream)
    return (u < p).astype(to.numpy)


def _coins(counter: Array, dtype: DType, **attrs: Any) -> Array:
    return random_uniform.reference(counter, dtype=dtype, **attrs)


@bernoulli.lowering
def _(p: Any, counter: Any, *, seed: int, stream: int, to: DType) -> Any:
    dims = dims_of(p)
    u = ops.random_uniform(counter, dims=dims, seed=seed, stream=stream, dtype=p.dtype)
    return ops.cast(ops.less(u, p), to=to)


# -- drawing --------------------------------------------------------------------------------------


def _draw_key(draw: Draw) -> dict[str, Any]:
    seed, stream = (draw.choice((0, 1, 2**63, MASK, -1, draw.integer(0, 10**9))) for _ in range(2))
    return {"seed": seed, "stream": stream}


def _draw_counter(draw: Draw) -> Spec:
    return Spec((), draw.dtype("i"))


def _draw_floats(names: tuple[str, str]) -> Any:
    def drawn(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
        values = {name: float(draw.integer(-3, 3)) for name in names}
        attrs = {"dims": draw.dims(), **values, "dtype": draw.dtype("f")}
        return [_draw_counter(draw)], attrs | _draw_key(draw)

    return drawn


random_bits.sample(lambda draw: ([_draw_counter(draw)], {"dims": draw.dims()} | _draw_key(draw)))
random_uniform.sample(_draw_floats(("low", "high")))
random_normal.sample(_draw_floats(("mean", "scale")))


@random_integers.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype = draw.dtype("i")
    info = np.iinfo(dtype.numpy)
    low, high = sorted(draw.choice((int(info.min), 0, 3, 9, int(info.max))) for _ in range(2))
    attrs = {"dims": draw.dims(), "low": low, "high": high + (low == high), "dtype": dtype}
    if low == info.max:
        attrs |= {"low": low - 1, "high": low}
    return [_draw_counter(draw)], attrs | _draw_key(draw)


@bernoulli.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    p = Spec(draw.dims(), draw.dtype("f"), draw.choice(("unit", "any")))
    return [p, _draw_counter(draw)], {"to": draw.dtype("a")} | _draw_key(draw)
