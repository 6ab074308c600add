"""Weights to GGUF's blocks: the inverse of `gguf_formats`.

Scales are searched. Of some candidates around the one that maps a group's extreme weight to the
last code, each rounds the weights to codes, for which the best scale (and offset) is a weighted
least-squares fit; the candidate of the least error is taken. Weights of great magnitude count more,
since they do so in products. Scales of super-blocks are quantised, too, and codes are rounded once
more by the scales as they are stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np

from rlx.core.errors import Error, UnsupportedError
from rlx.ops.op import Array
from rlx.ops.quant.gguf_formats import DOUBLED_E2M1, LEVELS, SCHEMES

CHUNK_WEIGHTS = 1 << 16
"""Weights that a thread encodes at a time: its temporaries stay in the cache."""
SYMMETRIC_TRIES = tuple(0.1 * n for n in range(-9, 10))
"""By how much the last code of a candidate differs from that of the format."""
OFFSET_TRIES = tuple(-1 + 0.1 * n for n in range(21))
LEVEL_TRIES = tuple(float(n) for n in range(-7, 8))
Encoder: TypeAlias = Callable[[Array], Array]
"""f32[blocks, weights of a block] → u8[blocks, bytes of a block]."""


def encoded(weights: Array, scheme: str, threads: int = 1) -> Array:
    """Rows of blocks, u8[…, bytes of a row], of rows of weights."""
    if scheme not in ENCODERS:
        known = ", ".join(s.upper() for s in ENCODERS)
        raise UnsupportedError(f"rlx does not quantise to {scheme.upper()}. It does to {known}.")
    form = SCHEMES[scheme]
    *lead, columns = weights.shape
    if columns % form.weights:
        raise Error(f"rows of {columns} weights are no whole blocks of {form.weights} ({scheme}).")
    blocks = weights.reshape(-1, form.weights)
    step = max(1, CHUNK_WEIGHTS // form.weights)
    parts = [blocks[i : i + step] for i in range(0, len(blocks), step)]
    with ThreadPoolExecutor(threads) as pool:
        made = list(pool.map(lambda part: _checked(part, scheme), parts))
    whole = np.concatenate(made) if made else np.empty((0, form.block_bytes), np.uint8)
    return whole.reshape(*lead, columns // form.weights * form.block_bytes)


def _checked(part: Array, scheme: str) -> Array:
    x = np.ascontiguousarray(part, np.float32)
    if not np.isfinite(x).all():
        raise Error("it has weights that are infinite or no numbers.")
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        return ENCODERS[scheme](x)


# -- fits ------------------------------------------------------------------------------------------


def _over(a: Array | float, b: Array | float) -> Array:
    """a / b in f32, and 0 where b is 0."""
    top, bottom = np.asarray(a, np.float32), np.asarray(b, np.float32)
    zeros = np.zeros(np.broadcast(top, bottom).shape, np.float32)
    return np.divide(top, bottom, out=zeros, where=bottom != 0)


def _extreme(x: Array) -> Array:
    """The weight of the greatest magnitude of each group."""
    return np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)


def _importance(x: Array) -> Array:
    """What an error of each weight counts: more for those of great magnitude."""
    return np.sqrt(np.mean(x * x, -1, keepdims=True)) + np.abs(x)


def _fitted(
    x: Array, first: float, tries: Sequence[float], rounded: Callable[[Array], Array]
) -> Array:
    """The scale s of each group (the last axis) for which codes q of x/s leave the least weighted
    error. The extreme weight falls on the `first` code or near it."""
    extreme, weight = _extreme(x), _importance(x)
    weighted = weight * x
    scale, best = np.zeros_like(extreme), np.zeros_like(extreme)
    for change in (0.0, *tries):
        q = rounded(x * _over(first + change, extreme))
        products, norm = _dot(weighted, q), _dot(weight * q, q)
        gain = _over(products * products, norm)  # by how much the error is less than that of zeros
        is_better = gain > best
        scale = np.where(is_better, _over(products, norm), scale)
        best = np.where(is_better, gain, best)
    return scale


def _fitted_with_offset(x: Array, top: int, *, is_below: bool) -> tuple[Array, Array]:
    """The scale and the offset of each group for which codes from 0 to `top` leave the least
    weighted error; offsets are at most 0 where `is_below`."""
    weight = _importance(x)
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    low = np.minimum(low, 0) if is_below else low
    scale, offset = (high - low) / top, low
    best = _error(x, weight, scale, offset, _codes(x - low, _over(top, high - low), top))
    for change in OFFSET_TRIES:
        q = _codes(x - low, _over(top + change, high - low), top)
        s, o = _line(x, q, weight, is_below=is_below)
        error = _error(x, weight, s, o, q)
        is_better = error < best
        scale, offset = np.where(is_better, s, scale), np.where(is_better, o, offset)
        best = np.where(is_better, error, best)
    return scale, offset


def _line(x: Array, q: Array, weight: Array, *, is_below: bool) -> tuple[Array, Array]:
    """The weighted least-squares fit x ≈ s·q + o."""
    wq = weight * q
    n, sq, sx = (v.sum(-1, keepdims=True) for v in (weight, wq, weight * x))
    sqq, sqx = _dot(wq, q), _dot(wq, x)
    det = n * sqq - sq * sq
    s, o = _over(n * sqx - sq * sx, det), _over(sqq * sx - sq * sqx, det)
    if not is_below:
        return s, o
    return np.where(o > 0, _over(sqx, sqq), s), np.minimum(o, 0)


def _error(x: Array, weight: Array, scale: Array, offset: Array, q: Array) -> Array:
    rest = scale * q + offset - x
    return _dot(weight * rest, rest)


def _codes(x: Array, inverse: Array, top: int) -> Array:
    return np.clip(np.rint(x * inverse), 0, top)


def _dot(a: Array, b: Array) -> Array:
    return np.einsum("...i,...i->...", a, b)[..., None]


def _between(low: int, high: int) -> Callable[[Array], Array]:
    return lambda x: np.clip(np.rint(x), low, high)


# -- bytes -----------------------------------------------------------------------------------------


def _f16(values: Array) -> Array:
    """Scales as two bytes each."""
    halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        raise Error("its weights are beyond the range of the scales, which are f16.")
    return halves.reshape(len(values), -1).view(np.uint8)


def _as_stored(scale: Array) -> Array:
    """A scale as it will be read."""
    return scale.astype(np.float16).astype(np.float32)


def _planes(codes: Array, run: int, bits: int) -> Array:
    """The inverse of `block_expr.plane`."""
    planes = 8 // bits
    fields = codes.astype(np.uint8).reshape(len(codes), -1, planes, run)
    made = fields[:, :, 0].copy()
    for n in range(1, planes):
        made |= fields[:, :, n] << n * bits
    return made.reshape(len(codes), -1)


def _joined(*parts: Array) -> Array:
    return np.concatenate([p.astype(np.uint8, copy=False) for p in parts], axis=1)


def _six_bits(scales: Array, offsets: Array) -> Array:
    """Eight scales and eight offsets of 6 bits in 12 bytes."""
    s, o = scales.astype(np.uint8), offsets.astype(np.uint8)
    low = [v[:, :4] | v[:, 4:] >> 4 << 6 for v in (s, o)]
    return _joined(*low, s[:, 4:] & 15 | (o[:, 4:] & 15) << 4)


# -- floats ----------------------------------------------------------------------------------------


def _float32(x: Array) -> Array:
    return x.astype("<f4").view(np.uint8)


def _bfloat16(x: Array) -> Array:
    bits = x.view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype("<u2").view(np.uint8)


# -- blocks of 32 ----------------------------------------------------------------------------------


def _symmetric(bits: int) -> Encoder:
    half = 1 << bits - 1

    def encode(x: Array) -> Array:
        scale = _fitted(x, -half, SYMMETRIC_TRIES, _between(-half, half - 1))
        codes = _between(-half, half - 1)(_over(x, _as_stored(scale))) + half
        return _joined(_f16(scale), *_low_and_high(codes, bits))

    return encode


def _affine(bits: int) -> Encoder:
    top = (1 << bits) - 1

    def encode(x: Array) -> Array:
        scale, offset = _fitted_with_offset(x, top, is_below=False)
        codes = _codes(x - _as_stored(offset), _over(1, _as_stored(scale)), top)
        return _joined(_f16(scale), _f16(offset), *_low_and_high(codes, bits))

    return encode


def _low_and_high(codes: Array, bits: int) -> Iterable[Array]:
    """Fourth and higher bits first, as 32·1, then 32·4."""
    whole = codes.astype(np.uint8)
    if bits == 5:
        yield np.packbits(whole >> 4, axis=1, bitorder="little")
    yield _planes(whole & 15, 16, 4)


def _q8_0(x: Array) -> Array:
    scale = np.abs(x).max(-1, keepdims=True) / 127
    codes = _between(-127, 127)(_over(x, _as_stored(scale)))
    return _joined(_f16(scale), codes.astype(np.int8).view(np.uint8))


def _levels() -> Array:
    return LEVELS.values[:, 0]


def _level_codes(x: Array) -> Array:
    """Which of the 16 levels is nearest: midpoints between them are multiples of a half."""
    halves = np.clip(np.floor(2 * x), -256, 255).astype(np.int16)
    return _nearest_levels()[halves + 256]


@functools.cache
def _nearest_levels() -> Array:
    """The level of numbers between n/2 and (n + 1)/2, for n from -256."""
    levels = _levels()
    return np.searchsorted((levels[1:] + levels[:-1]) / 2, np.arange(-256, 256) / 2 + 0.25)


def _levelled(x: Array) -> Array:
    return _levels()[_level_codes(x)]


def _iq4_nl(x: Array) -> Array:
    scale = _fitted(x, float(_levels()[0]), LEVEL_TRIES, _levelled)
    return _joined(_f16(scale), _planes(_level_codes(_over(x, _as_stored(scale))), 16, 4))


def _mxfp4(x: Array) -> Array:
    """Of the two powers of 2 that may suit the greatest weight, that of the lesser error."""
    numbers = DOUBLED_E2M1.values[:, 0]
    order = np.argsort(numbers, kind="stable")
    order = order[order != 8]  # -0
    middles = (numbers[order][1:] + numbers[order][:-1]) / 2
    greatest = np.abs(x).max(-1, keepdims=True)
    exponent = np.where(greatest > 0, np.floor(np.log2(np.maximum(greatest, 1e-38))) - 2, -127)
    made, best = None, None
    for more in (0, 1):
        e = np.clip(exponent + more, -127, 127)
        scale = np.ldexp(np.float32(0.5), e.astype(np.int32))
        codes = order[np.searchsorted(middles, x / scale)]
        error = ((numbers[codes] * scale - x) ** 2).sum(-1, keepdims=True)
        block = _joined((e + 127).astype(np.uint8), _planes(codes, 16, 4))
        made = block if made is None or best is None else np.where(error < best, block, made)
        best = error if best is None else np.minimum(error, best)
    assert made is not None
    return made


# -- super-blocks of 256 ---------------------------------------------------------------------------


def _signed_scales(
    x: Array, groups: int, last: int, first: float, tries: Sequence[float], rounded: Any
) -> tuple[Array, Array, Array]:
    """x by group, scales of groups as codes from `last` (below 0) up, and the scale of scales."""
    by_group = x.reshape(len(x), groups, -1)
    scales = _fitted(by_group, first, tries, rounded)[..., 0]
    whole = _over(_extreme(scales), last)
    codes = np.clip(np.rint(_over(scales, _as_stored(whole))), last, -last - 1)
    return by_group, codes, whole


def _by_scales(by_group: Array, codes: Array, whole: Array) -> Array:
    """Weights divided by the scales as they are stored."""
    return _over(by_group, (_as_stored(whole) * codes)[..., None])


def _q3_k(x: Array) -> Array:
    rounded = _between(-4, 3)
    by_group, codes, whole = _signed_scales(x, 16, -32, -4, SYMMETRIC_TRIES, rounded)
    q = (rounded(_by_scales(by_group, codes, whole)) + 4).reshape(len(x), 256).astype(np.uint8)
    s = (codes + 32).astype(np.uint8)
    low = s[:, :8] & 15 | (s[:, 8:] & 15) << 4
    high = sum((s[:, 4 * n : 4 * n + 4] >> 4) << 2 * n for n in range(4))
    return _joined(
        _planes(q >> 2, 32, 1), _planes(q & 3, 32, 2), low, np.asarray(high), _f16(whole)
    )


def _q6_k(x: Array) -> Array:
    rounded = _between(-32, 31)
    by_group, codes, whole = _signed_scales(x, 16, -128, -32, SYMMETRIC_TRIES, rounded)
    q = (rounded(_by_scales(by_group, codes, whole)) + 32).reshape(len(x), 256).astype(np.uint8)
    parts = _planes(q & 15, 64, 4), _planes(q >> 4, 32, 2)
    return _joined(*parts, codes.astype(np.int8).view(np.uint8), _f16(whole))


def _iq4_xs(x: Array) -> Array:
    first = float(_levels()[0])
    by_group, codes, whole = _signed_scales(x, 8, -32, first, LEVEL_TRIES, _levelled)
    q = _level_codes(_by_scales(by_group, codes, whole)).reshape(len(x), 256)
    s = (codes + 32).astype(np.uint8)
    high = sum((s[:, n] >> 4).astype(np.uint16) << 2 * n for n in range(8))
    low = s[:, ::2] & 15 | (s[:, 1::2] & 15) << 4
    return _joined(
        _f16(whole), np.asarray(high, "<u2")[:, None].view(np.uint8), low, _planes(q, 16, 4)
    )


def _offset_scales(x: Array, groups: int, most: int, top: int) -> tuple[Array, ...]:
    """Codes of weights, of scales and of offsets (up to `most`), and the scales of both."""
    by_group = x.reshape(len(x), groups, -1)
    scale, offset = (v[..., 0] for v in _fitted_with_offset(by_group, top, is_below=True))
    wholes = [np.abs(v).max(-1, keepdims=True) / most for v in (scale, offset)]
    s, o = (
        np.clip(np.rint(_over(np.abs(v), _as_stored(w))), 0, most)
        for v, w in zip((scale, offset), wholes)
    )
    step, below = (_as_stored(w) * c for w, c in zip(wholes, (s, o)))
    q = _codes(by_group + below[..., None], _over(1, step)[..., None], top)
    return q.reshape(len(x), 256).astype(np.uint8), s, o, *wholes


def _q2_k(x: Array) -> Array:
    q, s, o, scale, offset = _offset_scales(x, 16, 15, 3)
    pairs = s.astype(np.uint8) | o.astype(np.uint8) << 4
    return _joined(pairs, _planes(q, 32, 2), _f16(scale), _f16(offset))


def _q4_k(x: Array) -> Array:
    q, s, o, scale, offset = _offset_scales(x, 8, 63, 15)
    return _joined(_f16(scale), _f16(offset), _six_bits(s, o), _planes(q, 32, 4))


def _q5_k(x: Array) -> Array:
    q, s, o, scale, offset = _offset_scales(x, 8, 63, 31)
    codes = _planes(q >> 4, 32, 1), _planes(q & 15, 32, 4)
    return _joined(_f16(scale), _f16(offset), _six_bits(s, o), *codes)


ENCODERS: Mapping[str, Encoder] = {
    "f32": _float32, "f16": _f16, "bf16": _bfloat16, "q8_0": _q8_0, "q4_0": _symmetric(4),
    "q5_0": _symmetric(5), "q4_1": _affine(4), "q5_1": _affine(5), "iq4_nl": _iq4_nl,
    "mxfp4": _mxfp4, "q2_k": _q2_k, "q3_k": _q3_k, "q4_k": _q4_k, "q5_k": _q5_k, "q6_k": _q6_k,
    "iq4_xs": _iq4_xs,
}  # fmt: skip
