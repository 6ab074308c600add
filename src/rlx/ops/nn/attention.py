"""Scaled dot-product attention and rotary position embeddings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, exact_div, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape, dims_differ
from rlx.ops.compose import check_broadcasts, dims_of, dtype_of, nullary
from rlx.ops.cost import OpClass, Work
from rlx.ops.draw import Draw, Spec
from rlx.ops.op import Array, Kind, op

MaskKind = Literal["none", "causal", "sliding_window", "custom", "bias"]
MaskedRows = Literal["zeros", "nan"]
MASK_OPERANDS = ("custom", "bias")
"""The mask kinds that take a fourth operand."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one attention, whichever layout its operands have."""

    batch: DimLike
    heads: int
    kv_heads: int
    queries: DimLike
    keys: DimLike
    depth: int
    value_depth: DimLike

    @property
    def scores(self) -> tuple[DimLike, ...]:
        return (self.batch, self.heads, self.queries, self.keys)

    @property
    def scale(self) -> float:
        return max(self.depth, 1) ** -0.5


def _sizes(q: Any, k: Any, v: Any, num_heads: int, kv_heads: int | None) -> Sizes:
    """What the operands' dims say; whether they agree is `_checked`'s to judge."""
    heads, kv = num_heads, num_heads if kv_heads is None else kv_heads
    (batch, *qs), (_, *ks), (_, *vs) = map(dims_of, (q, k, v))
    if len(qs) == 3:
        return Sizes(batch, heads, kv, qs[1], ks[1], _static(qs[2]), vs[2])
    return Sizes(batch, heads, kv, qs[0], ks[0], _static(qs[1] // heads), vs[1] // kv)


def _static(depth: DimLike) -> int:
    if isinstance(depth, Dim):
        raise GraphError(f"operand 0: the size {depth} of a head is not known. Make it a number")
    return depth


def _checked(q: Shape, k: Shape, v: Shape, num_heads: int, kv_heads: int | None) -> Sizes:
    kv = num_heads if kv_heads is None else kv_heads
    if num_heads < 1 or kv < 1 or num_heads % kv:
        raise GraphError(f"kv_heads={kv} must divide num_heads={num_heads}")
    if q.rank not in (3, 4) or k.rank != q.rank or v.rank != q.rank:
        raise GraphError(
            f"operands are {q}, {k} and {v}, expected all of [batch, length, heads·depth] "
            "or all of [batch, heads, length, depth]"
        )
    sizes = _sizes(q, k, v, num_heads, kv_heads)
    for i, (shape, heads, length, depth) in enumerate((
        (q, num_heads, sizes.queries, sizes.depth),
        (k, kv, sizes.keys, sizes.depth),
        (v, kv, sizes.keys, sizes.value_depth),
    )):  # fmt: skip
        packed = (sizes.batch, length, depth * heads)
        wanted = packed if q.rank == 3 else (sizes.batch, heads, length, depth)
        if shape.dims != wanted:
            what = f"operand {i} is {shape}, expected [{', '.join(map(str, wanted))}]"
            raise dims_differ(what, shape.dims, wanted)
    return sizes


def _check_mask(sizes: Sizes, q: Shape, mask: Shape | None, kind: str) -> None:
    if (mask is not None) != (kind in MASK_OPERANDS):
        said = "takes no mask operand" if mask is not None else "needs a mask as operand 3"
        raise GraphError(f"mask_kind {kind!r} {said}")
    if mask is None:
        return
    if kind == "bias" and mask.dtype is not q.dtype:
        raise GraphError(f"operand 3 is {mask}, expected dtype {q.dtype}. Cast it")
    if not (mask.dtype.is_float or mask.dtype is DType.BOOL):
        raise GraphError(f"operand 3 is {mask}, expected bool or a float dtype")
    dims = _mask_dims(mask.dims, kind)
    wanted = ", ".join(map(str, sizes.scores))
    what = f"operand 3 is {mask}, which does not broadcast to [{wanted}]"
    check_broadcasts(what, dims, sizes.scores)


def _mask_dims(dims: tuple[DimLike, ...], kind: str) -> tuple[DimLike, ...]:
    """A custom mask of rank 2 is [batch, keys]; any other is set against the scores."""
    return (dims[0], 1, 1, dims[1]) if kind == "custom" and len(dims) == 2 else dims


def _attention_shape(
    q: Shape, k: Shape, v: Shape, mask: Shape | None = None, *, num_heads: int,
    kv_heads: int | None, mask_kind: str, window: int | None, scale: float | None,
    softcap: float | None, masked_rows: str,
) -> Shape:  # fmt: skip
    sizes = _checked(q, k, v, num_heads, kv_heads)
    _check_mask(sizes, q, mask, mask_kind)
    if (window is not None) != (mask_kind == "sliding_window") or (window or 0) < 0:
        raise GraphError(
            f"window={window} with mask_kind {mask_kind!r}: sliding_window, and no "
            "other kind, has a window of 0 or more"
        )
    if softcap is not None and not softcap > 0:
        raise GraphError(f"softcap={softcap} must be above 0")
    last = sizes.value_depth * (num_heads if q.rank == 3 else 1)
    return q.with_dim(-1, last)


def _attention_flops(
    shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> DimLike:
    """Two products, and about five operations per score between them."""
    sizes = _sizes(shapes[0], shapes[1], shapes[2], attrs["num_heads"], attrs["kv_heads"])
    return _scores(sizes) * (2 * sizes.depth + 2 * sizes.value_depth + 5)


def _scores(sizes: Sizes) -> DimLike:
    """Pairs of a query and a key."""
    return sizes.batch * sizes.heads * sizes.queries * sizes.keys


def _attention_work(
    shapes: Sequence[Shape], results: Sequence[Shape], attrs: Mapping[str, Any]
) -> Work:
    """The products, and an exponential of each score."""
    sizes = _sizes(shapes[0], shapes[1], shapes[2], attrs["num_heads"], attrs["kv_heads"])
    products = _attention_flops(shapes, results, attrs)
    return {OpClass.MULTIPLY_ADD: products, OpClass.EXPONENTIAL: _scores(sizes)}


@op(
    "f[...], f[...], f[...], _[...]? -> f[...]",
    kind=Kind.ATTENTION,
    shape=_attention_shape,
    flops=_attention_flops,
    cost=_attention_work,
)
def attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array | None = None,
    *,
    num_heads: int,
    kv_heads: int | None = None,
    mask_kind: MaskKind = "none",
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    masked_rows: MaskedRows = "zeros",
) -> Array:
    """softmax(q·kᵀ · scale) · v for each head, with operands [batch, length, heads·depth] or
    [batch, heads, length, depth]. Query heads share the `kv_heads` in runs; v may have a depth of
    its own. `scale` is 1/√depth if not given; `softcap` c makes a score c·tanh(score/c), before
    masking.

    Query i stands at p = i + keys - queries. `causal` lets it see the keys up to p,
    `sliding_window` those from p - window to p; `custom` hides the keys whose mask ([batch, keys],
    or broadcast to [batch, heads, queries, keys]) is False or below 0.5; `bias` adds its mask to
    the scores. Under a mask, a query that sees no key, or only scores of -inf, gives
    `masked_rows`: zeros, or the NaN that a softmax of -inf alone is. Values at hidden keys must be
    finite: their weight is 0, not their product."""
    sizes = _sizes(q, k, v, num_heads, kv_heads)
    each = num_heads // sizes.kv_heads
    heads = _by_head(q, num_heads)
    keys, values = (np.repeat(_by_head(a, sizes.kv_heads), each, axis=1) for a in (k, v))
    s = heads @ np.swapaxes(keys, 2, 3) * q.dtype.type(sizes.scale if scale is None else scale)
    if softcap is not None:
        s = np.tanh(s / q.dtype.type(softcap)) * q.dtype.type(softcap)
    if mask_kind == "bias":
        s = s + mask
    elif mask_kind != "none":
        s = np.where(_visible(s.shape, mask, mask_kind, window), s, q.dtype.type(-np.inf))
    made = _weights(s, mask_kind != "none" and masked_rows == "zeros") @ values
    return (
        made
        if q.ndim == 4
        else np.swapaxes(made, 1, 2).reshape(*q.shape[:2], num_heads * made.shape[3])
    )


def _by_head(x: Array, heads: int) -> Array:
    """[batch, heads, length, depth] of either layout."""
    if x.ndim == 4:
        return x
    return np.swapaxes(x.reshape(*x.shape[:2], heads, x.shape[2] // heads), 1, 2)


def _visible(dims: tuple[int, ...], mask: Array | None, kind: str, window: int | None) -> Array:
    """Which keys each query sees."""
    if mask is not None:
        shown = mask.reshape(_mask_dims(mask.shape, kind))
        return shown if mask.dtype == np.bool_ else ~(shown < 0.5)
    distance = np.arange(dims[2])[:, None] + (dims[3] - dims[2]) - np.arange(dims[3])
    return (distance >= 0) & (window is None or distance <= window)


def _weights(s: Array, has_zeros: bool) -> Array:
    """Softmax of the scores; with `has_zeros`, a row of -inf has no weight at all."""
    top = np.max(s, axis=-1, keepdims=True, initial=-np.inf)
    e = np.exp(s - np.where((top == -np.inf) & has_zeros, np.zeros_like(top), top))
    total = np.sum(e, axis=-1, keepdims=True)
    return e / np.where((total == 0) & has_zeros, np.ones_like(total), total)


@attention.lowering
def _(
    q: Any, k: Any, v: Any, mask: Any = None, *, num_heads: int, kv_heads: int | None,
    mask_kind: str, window: int | None, scale: float | None, softcap: float | None,
    masked_rows: str,
) -> Any:  # fmt: skip
    """Query heads of one kv head are rows of one product: nothing is repeated."""
    sizes = _sizes(q, k, v, num_heads, kv_heads)
    rows = (sizes.batch, sizes.kv_heads, sizes.queries * (num_heads // sizes.kv_heads))
    queries = ops.reshape(_split_heads(q, num_heads), dims=(*rows, sizes.depth))
    keys, values = (_split_heads(x, sizes.kv_heads) for x in (k, v))
    s = ops.matmul(queries, ops.transpose(keys, perm=(0, 1, 3, 2)))
    s = ops.mul(s, sizes.scale if scale is None else scale)
    if softcap is not None:
        s = ops.mul(ops.tanh(ops.div(s, softcap)), softcap)
    s = _masked(ops.reshape(s, dims=sizes.scores), mask, mask_kind, window)
    p = ops.softmax(s, axis=3)
    if mask_kind != "none" and masked_rows == "zeros":
        p = ops.where(ops.equal(s, -np.inf), 0.0, p)
    made = ops.matmul(ops.reshape(p, dims=(*rows, sizes.keys)), values)
    made = ops.reshape(made, dims=(*sizes.scores[:3], sizes.value_depth))
    return made if len(dims_of(q)) == 4 else _joined_heads(made)


def _split_heads(x: Any, heads: int) -> Any:
    """[batch, heads, length, depth] of either layout."""
    dims = dims_of(x)
    if len(dims) == 4:
        return x
    return ops.transpose(
        ops.reshape(x, dims=(*dims[:2], heads, dims[2] // heads)), perm=(0, 2, 1, 3)
    )


def _joined_heads(x: Any) -> Any:
    batch, heads, length, depth = dims_of(x)
    return ops.reshape(ops.transpose(x, perm=(0, 2, 1, 3)), dims=(batch, length, depth * heads))


def _masked(s: Any, mask: Any, kind: str, window: int | None) -> Any:
    """The scores with -inf where a query does not see a key."""
    if kind == "none":
        return s
    if kind == "bias":
        return ops.add(s, mask)
    if kind == "custom":
        visible = mask if dtype_of(mask) is DType.BOOL else ops.logical_not(ops.less(mask, 0.5))
        visible = ops.reshape(visible, dims=_mask_dims(dims_of(visible), kind))
    else:
        visible = _visible_by_position(s, window)
    return ops.where(visible, s, -np.inf)


def _visible_by_position(s: Any, window: int | None) -> Any:
    """Which keys are at or before the query's position, and no more than `window` before it."""
    queries, keys = dims_of(s)[2:]
    i, j = (nullary(s, "iota", dims=(queries, keys), axis=a) for a in (0, 1))
    offset = keys - queries
    shift = nullary(s, "extent", dim=offset) if isinstance(offset, Dim) else offset
    distance = ops.sub(ops.add(i, shift), j)
    past = ops.greater_equal(distance, 0)
    return past if window is None else ops.logical_and(past, ops.less_equal(distance, window))


@attention.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, kv, depth = draw.dtype("f"), draw.integer(1, 2), draw.size()
    heads, value_depth = kv * draw.integer(1, 3), depth if draw.coin(0.7) else draw.size()
    b, queries, keys = draw.integer(0, 2), draw.size(), draw.size()
    kind = draw.choice(("none", "causal", "sliding_window", "custom", "bias"))
    sizes = ((heads, queries, depth), (kv, keys, depth), (kv, keys, value_depth))
    is_packed = draw.coin()
    dims = [(b, n, h * d) if is_packed else (b, h, n, d) for h, n, d in sizes]
    specs = [Spec(ds, dtype, "plain") for ds in dims]
    if kind == "bias":
        full = (b, heads, queries, keys)
        specs.append(Spec(tuple(1 if draw.coin(0.3) else d for d in full), dtype, "plain"))
    if kind == "custom":
        of = draw.choice((DType.BOOL, dtype))
        full = (b, 1, draw.choice((1, queries)), keys) if draw.coin(0.3) else (b, keys)
        specs.append(Spec(full, of, "unit"))
    window = draw.integer(0, 3) if kind == "sliding_window" else None
    attrs = {"num_heads": heads, "kv_heads": None if kv == heads and draw.coin() else kv}
    softcap, scale = draw.choice((None, 5.0)), draw.choice((None, 0.3))
    attrs |= {"mask_kind": kind, "window": window, "masked_rows": draw.choice(("zeros", "nan"))}
    return specs, attrs | {"softcap": softcap, "scale": scale}


# -- rotary positions -----------------------------------------------------------------------------


def _rope_shape(
    x: Shape, cos: Shape, sin: Shape, *, head_dim: int | None, n_rot: int | None, interleaved: bool
) -> Shape:
    depth = x.dims[-1] if head_dim is None else head_dim
    rotated = depth if n_rot is None else n_rot
    if depth == 0 or exact_div(x.dims[-1], depth) is None:
        raise GraphError(f"operand 0 is {x}: its last dim is not heads of head_dim={depth}")
    if rotated % 2 != 0 or not provably_le(0, rotated) or not provably_le(rotated, depth):
        raise GraphError(f"n_rot={rotated} must be even, and at most the {depth} of a head")
    lead = x.dims[:-1]
    for i, shape in enumerate((cos, sin), 1):
        if shape.rank < 2 or shape.dims[-1] * 2 != rotated:
            raise GraphError(f"operand {i} is {shape}, expected [..., length, {rotated // 2}]")
        what = f"operand {i} is {shape}, whose positions do not broadcast to {x}"
        check_broadcasts(what, shape.dims[:-1], lead)
    return x


@op("f[*b s w], f[...], f[...] -> f[...]", kind=Kind.ROW, shape=_rope_shape, flops="3*out")
def rope(
    x: Array,
    cos: Array,
    sin: Array,
    *,
    head_dim: int | None = None,
    n_rot: int | None = None,
    interleaved: bool = False,
) -> Array:
    """Pairs of elements rotated by their position's angle: (a, b) becomes (a·cos - b·sin,
    b·cos + a·sin). x is [..., length, heads·head_dim], with one head if `head_dim` is not given;
    cos and sin are [..., length, n_rot/2] and broadcast. In each head the first `n_rot` elements
    (all, if not given) turn and the rest are copied: element i pairs with i + n_rot/2, or, if
    `interleaved`, element 2i with 2i + 1."""
    depth = head_dim or x.shape[-1]
    by_head = x.reshape(*x.shape[:-1], x.shape[-1] // depth, depth)
    rotated = depth if n_rot is None else n_rot
    half = rotated // 2
    first = slice(0, rotated, 2) if interleaved else slice(0, half)
    second = slice(1, rotated, 2) if interleaved else slice(half, rotated)
    a, b = by_head[..., first], by_head[..., second]
    c, s = cos[..., None, :], sin[..., None, :]
    made = by_head.copy()
    made[..., first] = a * c - b * s
    made[..., second] = b * c + a * s
    return made.reshape(x.shape)


@rope.lowering
def _(
    x: Any, cos: Any, sin: Any, *, head_dim: int | None, n_rot: int | None, interleaved: bool
) -> Any:
    dims = dims_of(x)
    depth = dims[-1] if head_dim is None else head_dim
    rotated = depth if n_rot is None else n_rot
    heads = exact_div(dims[-1], depth)
    if heads != 1:
        x = ops.reshape(x, dims=(*dims[:-1], heads, depth))
        cos, sin = (ops.expand_dims(v, axes=(len(dims_of(v)) - 1,)) for v in (cos, sin))
    last = len(dims_of(x)) - 1
    front = ops.narrow(x, axis=last, start=0, length=rotated)
    made = (_rotate_interleaved if interleaved else _rotate_halves)(front, cos, sin, last, rotated)
    if rotated != depth:
        rest = ops.narrow(x, axis=last, start=rotated, length=depth - rotated)
        made = ops.concat([made, rest], axis=last)
    return made if heads == 1 else ops.reshape(made, dims=dims)


def _rotate_halves(x: Any, cos: Any, sin: Any, axis: int, rotated: DimLike) -> Any:
    """Element i rotated with element i + rotated/2 along `axis`."""
    half = rotated // 2
    a, b = (ops.narrow(x, axis=axis, start=start, length=half) for start in (0, half))
    first = ops.sub(ops.mul(a, cos), ops.mul(b, sin))
    second = ops.add(ops.mul(b, cos), ops.mul(a, sin))
    return ops.concat([first, second], axis=axis)


def _rotate_interleaved(x: Any, cos: Any, sin: Any, axis: int, rotated: DimLike) -> Any:
    """Element 2i rotated with element 2i + 1: halves, once each pair is an axis of its own."""
    dims = dims_of(x)
    pairs = ops.reshape(x, dims=(*dims[:-1], rotated // 2, 2))
    cos, sin = (ops.expand_dims(v, axes=(len(dims_of(v)),)) for v in (cos, sin))
    return ops.reshape(_rotate_halves(pairs, cos, sin, axis + 1, 2), dims=dims)


@rope.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    dtype, batch, length = draw.dtype("f"), draw.dims(0, 2), draw.size()
    half, heads = draw.integer(0, 3), draw.integer(1, 3)
    depth = max(1, 2 * half + (0 if draw.coin() else draw.integer(0, 2)))
    angles = (length, half) if draw.coin(0.6) else (*[1] * len(batch), length, half)
    is_whole = 2 * half == depth and draw.coin()
    attrs = {
        "head_dim": None if heads == 1 and draw.coin() else depth,
        "n_rot": None if is_whole else 2 * half,
        "interleaved": draw.coin(),
    }
    x = Spec((*batch, length, heads * depth), dtype)
    return [x, Spec(angles, dtype, "plain"), Spec(angles, dtype, "plain")], attrs


def _axial_shape(
    x: Shape, *, end_x: int, end_y: int, head_dim: int, theta: float, repeat_factor: int
) -> Shape:
    if min(end_x, end_y, repeat_factor) < 0 or head_dim < 1 or head_dim % 4:
        raise GraphError(
            f"head_dim={head_dim} must be a multiple of 4, and end_x={end_x}, end_y={end_y} and "
            f"repeat_factor={repeat_factor} not negative"
        )
    places = end_x * end_y * repeat_factor
    if x.dims[-2] != places or exact_div(x.dims[-1], head_dim) is None:
        raise GraphError(
            f"operand 0 is {x}, expected [..., {places}, heads·{head_dim}]: {repeat_factor} times "
            f"{end_y} rows of {end_x}"
        )
    return x


def _axial_rotations(
    x: Any, end_x: int, end_y: int, head_dim: int, theta: float, repeat_factor: int
) -> tuple[Array, Array]:
    """The cosines and sines of each place: half the pairs turn by its column, half by its row."""
    speeds = float(theta) ** (-np.arange(0, head_dim, 4) / head_dim)
    place = np.tile(np.arange(end_x * end_y), repeat_factor)[:, None]
    columns, rows = place % max(end_x, 1), place // max(end_x, 1)
    angles = np.concatenate([columns * speeds, rows * speeds], axis=1)
    cos, sin = (f(angles).astype(dtype_of(x).numpy) for f in (np.cos, np.sin))
    return cos, sin


@op("f[*b s w] -> f[*b s w]", kind=Kind.SPECIAL, shape=_axial_shape, flops="3*out")
def axial_rope_2d(
    x: Array,
    *,
    end_x: int,
    end_y: int,
    head_dim: int,
    theta: float = 10_000.0,
    repeat_factor: int = 1,
) -> Array:
    """rope by the column and the row of each place of an image: x is [..., end_y·end_x,
    heads·head_dim], row by row, `repeat_factor` times over. Of the neighbouring pairs of each
    head, the first half rotates by column · theta^(-4i/head_dim), the second by the row."""
    cos, sin = _axial_rotations(x, end_x, end_y, head_dim, theta, repeat_factor)
    return rope.reference(x, cos, sin, head_dim=head_dim, n_rot=None, interleaved=True)


@axial_rope_2d.lowering
def _(x: Any, *, head_dim: int, **grid: Any) -> Any:
    cos, sin = _axial_rotations(x, head_dim=head_dim, **grid)
    return ops.rope(x, cos, sin, head_dim=head_dim, interleaved=True)


@axial_rope_2d.sample
def _(draw: Draw) -> tuple[list[Spec], dict[str, Any]]:
    grid = {"end_x": draw.integer(0, 3), "end_y": draw.integer(0, 3)}
    grid |= {"repeat_factor": draw.integer(1, 2), "head_dim": 4 * draw.integer(1, 2)}
    places = grid["end_x"] * grid["end_y"] * grid["repeat_factor"]
    dims = (*draw.dims(0, 2), places, draw.integer(0, 3) * grid["head_dim"])
    return [Spec(dims, draw.dtype("f"))], {**grid, "theta": draw.choice((10_000.0, 100.0))}
