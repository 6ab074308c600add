"""Redundant, composed and absorbed data movement.

Squeezing and adding axes are reshapes here, and a result of a split is a narrow: one canonical form
for later rules and passes to match.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, is_static, product, provably_le
from rlx.core.dtype import DType
from rlx.core.shape import Shape, broadcast
from rlx.ir.mir import Graph, Node
from rlx.ops.draw import Draw
from rlx.ops.indexing.movement import squeezed
from rlx.ops.op import Kind
from rlx.rules.common import runs_of
from rlx.rules.engine import Starts, Uses, rule

Dims = tuple[DimLike, ...]
MAX_FLAT_OPERANDS = 64
"""Operands of a concat of concats that is made one: `concat(t, t)` nested n deep has 2^n of them,
and in a chain of concats each would list those of all before it."""

# -- reshape and transpose ------------------------------------------------------------------------


@rule(lambda x: ops.squeeze(x), lambda x: ops.expand_dims(x))
def unit_axes_as_reshape(x: Node, node: Node) -> Any:
    """Removing or adding axes of size 1 is a reshape."""
    if node.op == "squeeze":
        return squeezed(x, axes=node.attrs["axes"])
    return ops.reshape(x, dims=node.shape.dims)


@rule(lambda x, d: ops.reshape(x, dims=d), lambda x, d: ops.expand(x, dims=d))
def identity_reshape(x: Node, d: Dims) -> Any:
    """A reshape or an expansion to the dims it has does nothing."""
    return x if x.shape.dims == d else None


@rule(lambda x, d: ops.reshape(ops.reshape(x), dims=d))
def reshape_of_reshape(x: Node, d: Dims) -> Any:
    """Only the last of two reshapes counts."""
    return ops.reshape(x, dims=d)


@rule(lambda x, p: ops.transpose(x, perm=p))
def identity_transpose(x: Node, p: tuple[int, ...]) -> Any:
    """A transpose by the identity permutation is the identity."""
    return x if p == tuple(range(len(p))) else None


@rule(lambda x, p, q: ops.transpose(ops.transpose(x, perm=p), perm=q))
def transpose_of_transpose(x: Node, p: tuple[int, ...], q: tuple[int, ...]) -> Any:
    """Two transposes are one."""
    return ops.transpose(x, perm=tuple(p[i] for i in q))


@rule(lambda x, p: ops.transpose(x, perm=p))
def transpose_of_unit_axes(x: Node, p: tuple[int, ...], node: Node) -> Any:
    """A transpose that only moves axes of size 1 is a reshape."""
    kept = [a for a in p if x.shape.dims[a] != 1]
    return ops.reshape(x, dims=node.shape.dims) if kept == sorted(kept) else None


def _sample_regrouped(draw: Draw) -> Node:
    """A transpose between reshapes that merge or split runs of axes, with axes of 1 among them."""
    fine = [draw.size() for _ in range(draw.integer(2, 5))]
    cuts = sorted({0, len(fine), *(draw.integer(1, len(fine) - 1) for _ in range(2))})
    runs = [fine[a:b] for a, b in itertools.pairwise(cuts)]
    coarse = [product(run) for run in runs]
    x = Graph("sample").input("x", Shape(fine if draw.coin() else [product(fine)], DType.F32))
    perm = tuple(int(i) for i in draw.rng.permutation(len(coarse)))
    moved = ops.transpose(ops.reshape(x, dims=coarse), perm=perm)
    split = [d for a in perm for d in runs[a]]
    return ops.reshape(moved, dims=draw.choice((split, [product(split)], [1, *moved.shape.dims])))


@rule(
    lambda x, p, d: ops.reshape(ops.transpose(ops.reshape(x), perm=p), dims=d),
    sample=_sample_regrouped,
)
def transpose_between_reshapes(x: Node, p: tuple[int, ...], d: Dims, node: Node, uses: Uses) -> Any:
    """A transpose of merged axes is one of the axes before, and where axes are split after it, it
    is one of the axes split: one of the two reshapes is enough."""
    moved = node.inputs[0]
    if uses(moved) > 1:
        return None
    split = runs_of(d, moved.shape.dims)
    if split is not None and _without_units(d) == _without_units(moved.shape.dims):
        return None
    if split is not None:
        runs = [split[p.index(a)] for a in range(len(p))]
        dims = [size for run in runs for size in run]
        return ops.transpose(ops.reshape(x, dims=dims), perm=_in_runs(runs, p))
    merged = runs_of(x.shape.dims, moved.inputs[0].shape.dims)
    if merged is None:
        return None
    return ops.reshape(ops.transpose(x, perm=_in_runs(merged, p)), dims=d)


def _without_units(dims: Dims) -> Dims:
    return tuple(d for d in dims if d != 1)


def _in_runs(runs: list[Dims], perm: tuple[int, ...]) -> tuple[int, ...]:
    """A permutation of runs of axes, axis by axis."""
    starts = [0, *itertools.accumulate(len(run) for run in runs)]
    return tuple(axis for i in perm for axis in range(starts[i], starts[i + 1]))


# -- expand ---------------------------------------------------------------------------------------


@rule(lambda x, d: ops.expand(ops.expand(x), dims=d))
def expand_of_expand(x: Node, d: Dims) -> Any:
    """Only the last of two expansions counts."""
    return ops.expand(x, dims=d)


@rule(lambda x, d: ops.expand(ops.reshape(x), dims=d))
def expand_of_unit_axes(x: Node, d: Dims, node: Node) -> Any:
    """An expand after a reshape that adds leading unit axes is the expand alone."""
    dims = node.inputs[0].shape.dims
    lead = len(dims) - x.rank
    is_lead = lead >= 0 and dims[lead:] == x.shape.dims and all(n == 1 for n in dims[:lead])
    return ops.expand(x, dims=d) if is_lead else None


def _sample_expanded(draw: Draw) -> Node:
    """An elementwise op of something expanded."""
    graph, dims = Graph("sample"), draw.dims(1, 3)
    dtype = draw.choice((DType.F32, DType.I32, DType.F16))
    small = tuple(1 if draw.coin() else d for d in dims)
    wide = ops.expand(graph.input("x", Shape(small, dtype)), dims=dims)
    other = graph.input("y", Shape(dims if draw.coin(0.7) else small, dtype))
    forms = (
        lambda: ops.add(wide, other),
        lambda: ops.sub(other, wide),
        lambda: ops.neg(wide),
        lambda: ops.where(ops.less(other, wide), wide, other),
    )
    return draw.choice(forms)()


def _reads_expanded(node: Node) -> bool:
    return node.decl.kind is Kind.ELEMENTWISE and any(i.op == "expand" for i in node.inputs)


@rule(sample=_sample_expanded, when=_reads_expanded)
def expand_into_elementwise(node: Node) -> Any:
    """An elementwise op broadcasts its operands: an expand before it is redundant, or moves behind
    it."""
    if len(node.inputs) == 1:
        inner = node.graph.node(node.decl, node.inputs[0].inputs, node.attrs)
        return ops.expand(inner, dims=node.shape.dims)
    operands = list(node.inputs)
    for i, operand in enumerate(operands):
        if operand.op == "expand" and node.decl.signature.operand(i).dims[:1] == ("~s",):
            rest = [operand.inputs[0], *(o for j, o in enumerate(operands) if j != i)]
            if broadcast(*(o.shape.dims for o in rest)) == node.shape.dims:
                operands[i] = operand.inputs[0]
    return node.graph.node(node.decl, operands, node.attrs)


# -- slices ---------------------------------------------------------------------------------------


@rule(lambda x, a, n: ops.narrow(x, axis=a, start=0, length=n))
def narrow_of_whole_axis(x: Node, a: int, n: DimLike) -> Any:
    """A slice of a whole axis is the identity."""
    return x if x.shape.dims[a] == n else None


@rule(lambda x, a, s, t, n: ops.narrow(ops.narrow(x, axis=a, start=s), axis=a, start=t, length=n))
def narrow_of_narrow(x: Node, a: int, s: DimLike, t: DimLike, n: DimLike) -> Any:
    """A slice of a slice is a slice."""
    return ops.narrow(x, axis=a, start=s + t, length=n)


def _sample_part_of_concat(draw: Draw) -> Node:
    joined, axis, sizes = _sample_concat(draw)
    spot = draw.integer(0, len(sizes) - 1)
    start = draw.integer(0, sizes[spot])
    length = draw.integer(0, sizes[spot] - start)
    return ops.narrow(joined, axis=axis, start=sum(sizes[:spot]) + start, length=length)


def _sample_concat(draw: Draw) -> tuple[Node, int, list[int]]:
    graph, dims, dtype = Graph("sample"), list(draw.dims(1, 3)), draw.dtype("a")
    axis, sizes = draw.integer(0, len(dims) - 1), [draw.size() for _ in range(draw.integer(1, 3))]
    shapes = [Shape([*dims[:axis], n, *dims[axis + 1 :]], dtype) for n in sizes]
    inputs = [graph.input(f"x{i}", s) for i, s in enumerate(shapes)]
    return ops.concat(inputs, axis=axis), axis, sizes


@rule(lambda: ops.narrow, sample=_sample_part_of_concat)
def narrow_of_concat(node: Node, starts: Starts) -> Any:
    """A slice inside one operand of a concat is a slice of that operand."""
    joined, axis = node.inputs[0], node.attrs["axis"]
    first, length = node.attrs["start"], node.attrs["length"]
    if joined.op != "concat" or joined.attrs["axis"] != axis:
        return None
    known = starts(joined)
    for number in _may_hold(known, first):
        start, operand = first - known[number], joined.inputs[number]
        if provably_le(0, start) and provably_le(start + length, operand.shape.dims[axis]):
            return ops.narrow(operand, axis=axis, start=start, length=length)
    return None


def _may_hold(starts: Sequence[DimLike], first: DimLike) -> Sequence[int]:
    """The parts that a slice from `first` on may be inside of: of known sizes the first that does
    not begin behind it and ends behind it or there."""
    if is_static(first) and is_static(starts[-1]):
        last = bisect.bisect_right(starts, first, 1, key=_number)
        low = bisect.bisect_left(starts, first, 1, key=_number)
        return range(low - 1, min(last, len(starts) - 1))
    return range(len(starts) - 1)


def _number(start: DimLike) -> int:
    """Where a part begins; those of sizes that cancel out (n and 9 - n) are not looked for."""
    return int(start) if is_static(start) else 0


def _sample_part_of_pad(draw: Draw) -> Node:
    x = Graph("sample").input("x", Shape(draw.dims(1, 3, 1), draw.dtype("a")))
    axis = draw.integer(0, x.rank - 1)
    low = tuple(draw.integer(0, 2) * (i == axis or draw.coin(0.3)) for i in range(x.rank))
    high = tuple(draw.integer(0, 2) * (i == axis or draw.coin(0.3)) for i in range(x.rank))
    start = draw.integer(0, int(x.shape.dims[axis]))
    length = draw.integer(0, int(x.shape.dims[axis]) - start)
    padded = ops.pad(x, low=low, high=high)
    return ops.narrow(padded, axis=axis, start=low[axis] + start, length=length)


@rule(
    lambda x, a, s, n: ops.narrow(ops.pad(x), axis=a, start=s, length=n), sample=_sample_part_of_pad
)
def narrow_of_pad(x: Node, a: int, s: DimLike, n: DimLike, node: Node, uses: Uses) -> Any:
    """A slice of what was padded, without the padding, is a slice of what it was."""
    padded = node.inputs[0]
    low, high = (list[DimLike](padded.attrs[k]) for k in ("low", "high"))
    start = s - low[a]
    is_inside = provably_le(0, start) and provably_le(start + n, x.shape.dims[a])
    if padded.attrs["mode"] != "constant" or not is_inside or uses(padded) > 1:
        return None
    low[a] = high[a] = 0
    part = ops.narrow(x, axis=a, start=start, length=n)
    return x.graph.node(padded.decl, (part,), {**padded.attrs, "low": (*low,), "high": (*high,)})


def _sample_part_of_split(draw: Draw) -> Node:
    graph, dims = Graph("sample"), list(draw.dims(1, 3))
    axis, sizes = draw.integer(0, len(dims) - 1), [draw.size() for _ in range(draw.integer(1, 3))]
    dims[axis] = sum(sizes)
    x = graph.input("x", Shape(dims, draw.dtype("a")))
    return draw.choice(ops.split(x, sizes=tuple(sizes), axis=axis))


@rule(lambda x, i: ops.item(ops.split(x), index=i), sample=_sample_part_of_split)
def split_as_narrow(x: Node, i: int, node: Node, starts: Starts) -> Any:
    """A result of a split is a narrow."""
    (split,) = node.inputs
    axis, sizes = split.attrs["axis"], split.attrs["sizes"]
    return ops.narrow(x, axis=axis, start=starts(split)[i], length=sizes[i])


def _sample_run_of_axis(draw: Draw) -> Node:
    """A slice of an axis, of a known size or not, and of the others whole."""
    dims = list[DimLike](draw.dims(1, 3))
    dims[draw.integer(0, len(dims) - 1)] = n = Dim("n", 3, 64)
    x = Graph("sample").input("x", Shape(dims, draw.dtype("a")))
    bounds: list[tuple[DimLike, DimLike]] = [(0, d) for d in dims]
    axis = draw.integer(0, len(dims) - 1)
    ends: tuple[DimLike, ...] = (1, 3, n, n - 1, n + 1) if dims[axis] is n else (0, 1, dims[axis])
    bounds[axis] = (draw.integer(0, 2), draw.choice(ends))
    return ops.slice(x, starts=[a for a, _ in bounds], stops=[b for _, b in bounds])


@rule(lambda x: ops.slice(x), sample=_sample_run_of_axis)
def slice_as_narrow(x: Node, node: Node) -> Any:
    """A slice that takes a run of one axis is a narrow; one that takes all is nothing."""
    runs = [_run(*bounds) for bounds in _bounds_of(node)]
    cut = [a for a, (run, size) in enumerate(zip(runs, x.shape.dims)) if run != (0, size)]
    if not cut:
        return x if x.shape == node.shape else None
    run = runs[cut[0]]
    if len(cut) > 1 or run is None or run[1] != node.shape.dims[cut[0]]:
        return None
    return ops.narrow(x, axis=cut[0], start=run[0], length=run[1])


def _bounds_of(node: Node) -> list[tuple[DimLike, DimLike, DimLike, int]]:
    """The size, start, stop and step of each axis of a slice."""
    attrs = node.attrs
    return [*zip(node.inputs[0].shape.dims, attrs["starts"], attrs["stops"], attrs["steps"])]


def _run(size: DimLike, start: DimLike, stop: DimLike, step: int) -> tuple[DimLike, DimLike] | None:
    """First index and count where consecutive elements are taken."""
    span = _span(size, start, stop, step)
    if span is not None:
        return span[:2] if span[2] == 1 else None
    end = size if provably_le(size, stop) else stop
    is_known = step == 1 and provably_le(0, start) and provably_le(start, end)
    return (start, end - start) if is_known and provably_le(end, size) else None


Span = tuple[int, int, int]


def _span(size: DimLike, start: DimLike, stop: DimLike, step: int) -> Span | None:
    """First index, count and step, where all are known."""
    if isinstance(size, Dim) or isinstance(start, Dim) or isinstance(stop, Dim):
        return None
    taken = range(size)[start:stop:step]
    return taken.start, len(taken), step if len(taken) > 1 else 1


def _spans(node: Node) -> list[Span] | None:
    """The span of every axis."""
    spans = [_span(*bounds) for bounds in _bounds_of(node)]
    known = [span for span in spans if span is not None]
    return known if len(known) == len(spans) else None


@rule(lambda x: ops.slice(ops.slice(x)))
def slice_of_slice(x: Node, node: Node) -> Any:
    """A slice of a slice is a slice."""
    inner, outer = _spans(node.inputs[0]), _spans(node)
    if inner is None or outer is None:
        return None
    joined = [(f + g * s, n, s * t) for (f, _, s), (g, n, t) in zip(inner, outer)]
    bounds = [_bounds(span, size) for span, size in zip(joined, x.shape.static_dims)]
    starts, stops, steps = zip(*bounds) if bounds else ((), (), ())
    return ops.slice(x, starts=starts, stops=stops, steps=steps)


def _bounds(span: Span, size: int) -> Span:
    """A span as NumPy's start, stop and step."""
    first, count, step = span
    if count == 0:
        return 0, 0, 1
    end = first + (count - 1) * step + (1 if step > 0 else -1)
    return first, end if end >= 0 else -size - 1, step


# -- concat ---------------------------------------------------------------------------------------


def _sample_joined_parts(draw: Draw) -> Node:
    """A concat of parts of one input, of nothing, of concats, or of one operand."""
    graph, dims, dtype = Graph("sample"), list(draw.dims(1, 3)), draw.dtype("a")
    axis, sizes = draw.integer(0, len(dims) - 1), [draw.size() for _ in range(3)]
    dims[axis] = sum(sizes) + 1
    x = graph.input("x", Shape(dims, dtype))
    starts = [sum(sizes[:i]) for i in range(3)]
    parts = [ops.narrow(x, axis=axis, start=s, length=n) for s, n in zip(starts, sizes)]
    if draw.coin(0.3):
        parts = [ops.concat(parts[:2], axis=axis), x]
    return ops.concat(parts[: draw.integer(1, 3)], axis=axis)


@rule(lambda: ops.concat, sample=_sample_joined_parts)
def concat_of_one(node: Node) -> Any:
    """A concat of one operand is that operand; operands without elements are left out."""
    axis = node.attrs["axis"]
    kept = [i for i in node.inputs if i.shape.dims[axis] != 0] or [*node.inputs[:1]]
    if len(kept) == 1:
        return kept[0]
    return ops.concat(kept, axis=axis) if len(kept) < len(node.inputs) else None


@rule(lambda: ops.concat, sample=_sample_joined_parts)
def concat_of_concat(node: Node) -> Any:
    """A concat of concats along one axis is one concat."""
    axis = node.attrs["axis"]
    parts = [i.inputs if _joins_along(i, axis) else (i,) for i in node.inputs]
    count = sum(map(len, parts))
    if count > max(MAX_FLAT_OPERANDS, len(node.inputs)) or count == len(node.inputs):
        return None
    return ops.concat([x for part in parts for x in part], axis=axis)


def _joins_along(node: Node, axis: int) -> bool:
    return node.op == "concat" and node.attrs["axis"] == axis


@rule(lambda: ops.concat, sample=_sample_joined_parts)
def concat_of_adjacent_slices(node: Node) -> Any:
    """Adjacent slices of one value, concatenated, are one slice of it."""
    axis = node.attrs["axis"]
    joined: list[Node] = []
    for part in node.inputs:
        both = _adjacent(joined[-1], part, axis) if joined else None
        if both is not None:
            joined.pop()
        joined.append(part if both is None else both)
    if len(joined) == len(node.inputs):
        return None
    return joined[0] if len(joined) == 1 else ops.concat(joined, axis=axis)


def _adjacent(first: Node, second: Node, axis: int) -> Node | None:
    if first.op != "narrow" or second.op != "narrow" or first.inputs[0] is not second.inputs[0]:
        return None
    a, b = first.attrs, second.attrs
    if a["axis"] != axis or b["axis"] != axis or a["start"] + a["length"] != b["start"]:
        return None
    length = a["length"] + b["length"]
    return ops.narrow(first.inputs[0], axis=axis, start=a["start"], length=length)


def _sample_run(draw: Draw) -> Node:
    dims = draw.dims(1, 3)
    axis = draw.integer(0, len(dims) - 1)
    dims = tuple(max(1, d) if i == axis else d for i, d in enumerate(dims))
    x = Graph("sample").input("x", Shape(dims, draw.dtype("a")))
    first = draw.integer(0, dims[axis] - 1)
    run = np.arange(first, draw.integer(first, dims[axis] - 1) + 1)
    return ops.gather(x, x.graph.constant(run[0] if draw.coin() else run), axis=axis)


@rule(lambda x, i, a: ops.gather(x, i, axis=a), sample=_sample_run)
def contiguous_gather_as_narrow(x: Node, i: Node, a: int, node: Node) -> Any:
    """A gather of consecutive indices, or of one, is a narrow."""
    if i.op != "constant" or isinstance(x.shape.dims[a], Dim):
        return None
    run = i.attrs["value"].array.reshape(-1).astype(np.int64)
    is_run = run.size > 0 and bool((np.diff(run) == 1).all())
    if not is_run or run[0] < 0 or run[-1] >= x.shape.dims[a]:
        return None
    part = ops.narrow(x, axis=a, start=int(run[0]), length=int(run.size))
    return ops.reshape(part, dims=node.shape.dims)


# -- flip, tile, pad ------------------------------------------------------------------------------


@rule(lambda x, a: ops.flip(x, axes=a))
def flip_of_unit_axes(x: Node, a: tuple[int, ...]) -> Any:
    """Flipping an axis of size 1 is the identity."""
    kept = tuple(i for i in a if x.shape.dims[i] != 1)
    if not kept:
        return x
    return ops.flip(x, axes=kept) if kept != a else None


@rule(lambda x, a, b: ops.flip(ops.flip(x, axes=a), axes=b))
def flip_of_flip(x: Node, a: tuple[int, ...], b: tuple[int, ...]) -> Any:
    """Flipping an axis twice is the identity."""
    return ops.flip(x, axes=tuple(i for i in range(x.rank) if (i in a) != (i in b)))


def _sample_tile(draw: Draw) -> Node:
    dims = tuple(1 if draw.coin() else d for d in draw.dims(0, 4))
    x = Graph("sample").input("x", Shape(dims, draw.dtype("a")))
    return ops.tile(x, repeats=tuple(draw.size() if d == 1 else 1 for d in dims))


@rule(lambda x, r: ops.tile(x, repeats=r), sample=_sample_tile)
def tile_as_expand(x: Node, node: Node) -> Any:
    """Repeating axes of size 1 is an expansion, and repeating nothing is nothing."""
    dims = node.shape.dims
    if len(dims) != x.rank or any(a not in (1, b) for a, b in zip(x.shape.dims, dims)):
        return None
    return ops.expand(x, dims=dims)


@rule(lambda x: ops.pad(x))
def identity_pad(x: Node, node: Node) -> Any:
    """Padding by nothing does nothing."""
    return x if all(n == 0 for n in (*node.attrs["low"], *node.attrs["high"])) else None
