"""Shape operators and data movement; on sizes they are evaluated at import time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import Dim, DimLike, dim_max, dim_min, is_static, product, provably_le
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.extent import is_measured
from rlx.frontends.dim_ranges import require, require_some
from rlx.frontends.onnx.data_dependent_sizes import distance, element, reshaped, scalar_size
from rlx.frontends.onnx.handlers import handles
from rlx.frontends.onnx.id_tensors import in_codes
from rlx.frontends.onnx.node_call import Call, NeedsShape
from rlx.frontends.onnx.strings import objects
from rlx.frontends.onnx.values import MAX_SIZES, Coded, Sizes, Value, Weight, sizes_of
from rlx.ir.mir import Node
from rlx.ops.compose import nullary
from rlx.ops.indexing.movement import is_one


@handles("Shape")
def shape(call: Call) -> Sizes:
    dims = tuple(call.shape(0).dims)
    start, end = call.attr("start", 0), call.attr("end", len(dims))
    found = dims[slice(start, end)]
    return Sizes(found, (len(found),))


@handles("Size")
def size(call: Call) -> Sizes:
    return Sizes((product(call.shape(0).dims),), ())


@handles("Constant")
def constant(call: Call) -> Value:
    for name, value in call.attrs.items():
        match name:
            case "value" | "sparse_value":
                return Weight(f"{call.outputs[0]}", value)
            case "value_int" | "value_ints":
                return Sizes.of(np.array(value, np.int64))
            case "value_string" | "value_strings":
                texts = [value] if name == "value_string" else value
                held = objects(texts).reshape(() if name == "value_string" else -1)
                return Weight(call.outputs[0], held)
            case "value_float" | "value_floats":
                return Weight(call.outputs[0], np.array(value, np.float32))
            case _:
                raise call.unsupported(f"a constant given as {name} is no tensor rlx has")
    raise call.unsupported("it has no value")


@handles("ConstantOfShape")
def constant_of_shape(call: Call) -> Value:
    dims = call.dims(0)
    value = call.attr("value")
    one = np.zeros(1, np.float32) if value is None else value
    weight = Weight(call.outputs[0], one.reshape(()))
    if (element := weight.element) is not None:
        held = call.as_node(in_codes(weight, call.importer.strings))
        return Coded(ops.expand(held, dims=tuple(dims)), element)
    if one.dtype == np.int64 and all(map(is_static, dims)):
        whole = [int(d) for d in dims]
        if math.prod(whole) <= MAX_SIZES:
            return Sizes.of(np.full(whole, one.reshape(-1)[0]))
    return ops.expand(call.graph.constant(one.reshape(())), dims=tuple(dims))


@handles("Reshape")
def reshape(call: Call) -> Value:
    sizes = call.dims(1)
    value = call.value(0)
    given = list(call.shape(0).dims)
    if not call.attr("allowzero", 0):
        sizes = [given[i] if d == 0 else d for i, d in enumerate(sizes)]
        for size, before in zip(sizes, given):
            if not isinstance(size, Dim) or size == before or size.is_measured:
                continue
            what = f"{call.label}: where {size} is 0 it stands for the operand's dim, {before}"
            if not require_some(size, what):
                raise NeedsShape(what)
    if isinstance(value, Sizes):
        return Sizes(value.dims, tuple(_resolved(sizes, len(value.dims))), value.dtype)
    try:
        return ops.reshape(call.node(0), dims=tuple(sizes))
    except GraphError:
        if not any(map(is_measured, (*sizes, *given))):
            raise
        return reshaped(call.node(0), sizes)


def _resolved(sizes: Sequence[DimLike], count: int) -> list[int]:
    known = [int(d) for d in sizes]
    rest = int(np.prod([d for d in known if d != -1], dtype=np.int64))
    return [count // max(1, rest) if d == -1 else d for d in known]


@handles("Flatten")
def flatten(call: Call) -> Node:
    dims = call.shape(0).dims
    axis = call.attr("axis", 1)
    at = axis + len(dims) if axis < 0 else axis
    return ops.reshape(call.node(0), dims=(product(dims[:at]), product(dims[at:])))


@handles("Transpose")
def transpose(call: Call) -> Node:
    rank = call.rank(0)
    return ops.transpose(call.node(0), perm=call.attr("perm", tuple(reversed(range(rank)))))


def _axes(call: Call, number: int, rank: int) -> list[int] | None:
    """Axes as an attribute or, in later opsets, as an operand."""
    found = call.attr("axes")
    if found is None and call.has(number):
        found = call.ints(number)
    return None if found is None else [call.axis(int(a), rank) for a in found]


@handles("Squeeze")
def squeeze(call: Call) -> Value:
    """No axes, left out or empty, are all that are 1."""
    value, dims = call.value(0), call.shape(0).dims
    axes = _axes(call, 1, len(dims))
    gone = axes or [i for i, d in enumerate(dims) if _is_gone(call, d)]
    if isinstance(value, Sizes):
        kept = tuple(d for i, d in enumerate(value.shape) if i not in gone)
        return Sizes(value.dims, kept, value.dtype)
    return ops.squeeze(call.node(0), axes=tuple(gone)) if gone else call.node(0)


def _is_gone(call: Call, dim: DimLike) -> bool:
    """Is an axis squeezed where no axes are given: is its size 1?"""
    if is_one(dim) or not isinstance(dim, Dim) or provably_le(2, dim):
        return is_one(dim)
    raise NeedsShape(f"{call.label}: an axis of {dim} is squeezed only where it is 1")


@handles("Unsqueeze")
def unsqueeze(call: Call) -> Value:
    value, rank = call.value(0), call.rank(0)
    count = len(call.attr("axes") or call.ints(1))
    axes = _axes(call, 1, rank + count)
    assert axes is not None
    if isinstance(value, Sizes):
        dims = list(value.shape)
        for axis in sorted(axes):
            dims.insert(axis, 1)
        return Sizes(value.dims, tuple(dims), value.dtype)
    return ops.expand_dims(call.node(0), axes=tuple(axes))


@handles("Concat")
def concat(call: Call) -> Value:
    axis = call.axis(call.required("axis"), call.rank(0))
    found = [call.importer.as_sizes(call.value(i)) for i in range(call.num_inputs)]
    values = [call.value(i) for i in range(call.num_inputs)]
    if any(isinstance(v, Sizes) for v in values) and None not in found:
        joined = np.concatenate([s.array for s in found if s is not None], axis)
        return sizes_of(joined, call.shape(0).dtype)
    nodes = call.nodes()
    return nodes[0] if len(nodes) == 1 else ops.concat(nodes, axis=axis)


@handles("Gather")
def gather(call: Call) -> Value:
    axis = call.axis(call.attr("axis", 0), call.rank(0))
    value = call.value(0)
    where = call.importer.as_array(call.value(1))
    if isinstance(value, Sizes) and where is not None:
        return sizes_of(np.asarray(np.take(value.array, where, axis), object), value.dtype)
    length = call.shape(0).dims[axis]
    if where is not None and is_static(length):
        inside = np.where(where < 0, where + int(length), where)
        return ops.gather(call.node(0), call.graph.constant(inside), axis=axis)
    return ops.gather(call.node(0), wrapped(call, call.node(1), length), axis=axis)


def wrapped(call: Call, indices: Node, length: DimLike) -> Node:
    """Indices with negative ones counted from the end."""
    dtype = indices.shape.dtype
    if not dtype.is_signed:
        return indices
    zero = call.graph.constant(np.zeros((), dtype.numpy))
    total = Sizes((length,), (), dtype).node(call.graph)
    return ops.where(ops.less(indices, zero), ops.add(indices, total), indices)


@handles("Slice", since=1)
def slice_by_attributes(call: Call) -> Value:
    starts, ends = call.required("starts"), call.required("ends")
    axes = call.attr("axes", tuple(range(len(starts))))
    return _sliced(call, starts, ends, axes, [1] * len(starts))


@handles("Slice", since=10)
def slice_by_operands(call: Call) -> Value:
    starts, ends = call.ends(1), call.ends(2)
    axes = call.ints(3) if call.has(3) else list(range(len(starts)))
    steps = _steps(call, len(starts))
    known: list[Any] = []
    computed: list[Any] = []
    for i, each in enumerate(zip(starts, ends, axes, steps, strict=True)):
        if any(isinstance(e, Node) for e in each):
            computed.append((*each, _distance(call, i)))
        else:
            known.append(each)
    if not computed:
        return _sliced(call, starts, ends, axes, steps)  # pyright: ignore[reportArgumentType]
    columns = list(zip(*known)) if known else [(), (), (), ()]
    x = call.as_node(_sliced(call, *columns) if known else call.value(0))
    for start, end, axis, step, span in computed:
        x = cut(call, x, (start, end), call.axis(axis, x.shape.rank), step, span)
    return x


def _distance(call: Call, index: int) -> int | None:
    """How far the end of a slice is from its start, where the graph says that."""
    start, end = call.value(1), call.value(2)
    if not isinstance(start, Node) or not isinstance(end, Node):
        return None
    return distance(start, end, index)


def _steps(call: Call, count: int) -> list[Any]:
    """Steps of a slice: numbers, or values where they are computed at run time."""
    if not call.has(4):
        return [1] * count
    if not call.is_computed(4):
        return call.ints(4)
    return [Sizes((s,), ()).node(call.graph) if isinstance(s, Dim) else s for s in call.ends(4)]


def cut(
    call: Call, x: Node, ends: tuple[Any, Any], axis: int, step: Any, span: int | None = None
) -> Node:
    """A slice whose ends are computed: its length is at most the axis's and, with a step forward,
    what is taken of `span` elements, which the end is behind the start at most."""
    length = x.shape.dims[axis]
    most = length
    if span is not None and isinstance(step, int) and span >= 0 and step > 0:
        most = dim_min(length, -(-span // step))
    total = Sizes((length,), ()).node(call.graph)
    by = Step.of(step)
    first, end = (_from_front(call, e, total) for e in ends)
    last = by.chosen(total, ops.sub(total, 1))
    start = ops.minimum(last, ops.maximum(first, 0))
    stop = ops.maximum(ops.minimum(end, last), by.chosen(0, -1))
    between = ops.sub(by.chosen(stop, start), by.chosen(start, stop))
    size = scalar_size(by.count(between), most=most)
    is_first = isinstance(ends[0], int) and ends[0] == 0
    if isinstance(step, int) and step == 1 and is_first and provably_le(size, length):
        return ops.narrow(x, axis=axis, start=0, length=size)
    line = nullary(call.graph, "iota", dims=(size,), axis=0, dtype=DType.I64)
    return ops.gather(x, ops.add(ops.mul(line, step), start), axis=axis)


@dataclass(frozen=True, slots=True)
class Step:
    """The step of a slice: a number, or a value of the graph."""

    by: Any
    is_forward: Any

    @classmethod
    def of(cls, step: Any) -> Step:
        return cls(step, ops.greater(step, 0) if isinstance(step, Node) else step > 0)

    def chosen(self, forward: Any, backward: Any) -> Any:
        """One of two, by the direction."""
        if isinstance(self.is_forward, bool):
            return forward if self.is_forward else backward
        return ops.where(self.is_forward, forward, backward)

    def count(self, span: Node) -> Node:
        """⌈span / |step|⌉, or 0 where the span is negative; -1, which is no size, for a step of 0.
        Nothing overflows, as `span` is at most the length of an axis and a step is divided by."""
        if not isinstance(self.by, Node):
            by = abs(self.by)
            return ops.maximum(ops.floor_div(ops.add(span, by - 1), by), 0)
        by = ops.maximum(ops.abs(ops.maximum(self.by, -ENDLESS)), 1)
        whole = ops.add(ops.floor_div(ops.sub(span, 1), by), 1)
        return ops.where(ops.equal(self.by, 0), -1, ops.maximum(whole, 0))


def _from_front(call: Call, end: Any, total: Node) -> Node:
    """An end of a slice, counted from the front."""
    given = end if isinstance(end, Node) else Sizes((end,), ()).node(call.graph)
    return ops.where(ops.less(given, 0), ops.add(given, total), given)


def _sliced(
    call: Call,
    starts: Sequence[DimLike],
    ends: Sequence[DimLike],
    axes: Sequence[int],
    steps: Sequence[int],
) -> Value:
    value, dims = call.value(0), call.shape(0).dims
    every: list[tuple[Any, Any, int]] = [(0, d, 1) for d in dims]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = call.axis(axis, len(dims))
        every[at] = (*bounds_of(start, end, step, dims[at]), step)
    if isinstance(value, Sizes):
        picks = tuple(slice(*each) for each in every)
        return sizes_of(np.asarray(value.array[picks], object), value.dtype)
    firsts, stops, strides = zip(*every) if every else ((), (), ())
    return ops.slice(call.node(0), starts=firsts, stops=stops, steps=strides)


ENDLESS = (1 << 31) - 1
"""The bound that the standard recommends for an axis of unknown size, and its negative: past either
end. Exporters write it, and the ends of int64, for "as far as it goes"."""


def bounds_of(start: DimLike, end: DimLike, step: int, length: DimLike) -> tuple[DimLike, DimLike]:
    """The bounds as NumPy has them. ONNX clamps a start before the front to the first element, also
    where steps go back: then it is counted from the back, and negative for all sizes."""
    first, stop = _signed(start, length), _signed(end, length)
    if step < 0 and provably_le(first, -1):
        first = dim_min(dim_max(1, first + 1 + length), length) - 1 - length
    return first, stop


def _signed(value: DimLike, length: DimLike) -> DimLike:
    """A formula must be of one sign for all sizes, which it may say itself."""
    if isinstance(value, int) and abs(value) >= ENDLESS:
        return length if value > 0 else -length - 1
    if provably_le(value, -1):
        return value
    require(0, value, "the end of a slice")
    if not provably_le(0, value):
        raise NeedsShape(f"the end of a slice is {value}, whose sign depends on sizes")
    return value


@handles("Expand")
def expand(call: Call) -> Node:
    """Bidirectional broadcast: a dim of 1 in the shape keeps the operand's."""
    wanted, given = call.dims(1), list(call.shape(0).dims)
    for dim in wanted:
        require(0, dim, f"{call.label}: a computed dim")
    rank = max(len(wanted), len(given))
    wanted = [1] * (rank - len(wanted)) + wanted
    padded = [1] * (rank - len(given)) + given
    x = call.node(0)
    dims = tuple(_expanded(w, g) for w, g in zip(wanted, padded))
    made = ops.expand(x, dims=dims)
    for axis, (w, g) in enumerate(zip(wanted, padded)):
        if is_measured(w) and g not in (1, w):
            made = _same_or_one(call, made, axis, w)
    return made


def _expanded(wanted: DimLike, given: DimLike) -> DimLike:
    """A size that is computed is that of the operand, or 1, where the operand's is not 1."""
    return given if wanted == 1 or (is_measured(wanted) and given != 1) else wanted


def _same_or_one(call: Call, x: Node, axis: int, wanted: DimLike) -> Node:
    """x, if the size that was asked for is 1 or that of the axis."""
    asked, found = (Sizes((d,), ()).node(call.graph) for d in (wanted, x.shape.dims[axis]))
    shift = ops.same_size(ops.where(ops.equal(asked, 1), found, asked), found)
    line = nullary(call.graph, "iota", dims=(x.shape.dims[axis],), axis=0, dtype=DType.I64)
    return ops.gather(x, ops.add(line, shift), axis=axis)


@handles("Tile")
def tile(call: Call) -> Node:
    return ops.tile(call.node(0), repeats=tuple(call.dims(1)))


@handles("Split")
def split(call: Call) -> tuple[Node, ...]:
    x = call.node(0)
    axis = call.axis(call.attr("axis", 0), x.shape.rank)
    sizes = call.attr("split")
    if not sizes and call.has(1):
        if call.is_computed(1):
            return _split_at_run_time(call, x, axis)
        sizes = call.ints(1)
    if not sizes:
        count = call.attr("num_outputs", len(call.outputs))
        length = x.shape.dims[axis]
        each = -(-length // count)
        sizes = [each] * (count - 1) + [length - each * (count - 1)]
    return tuple(ops.split(x, sizes=tuple(sizes), axis=axis))


def _split_at_run_time(call: Call, x: Node, axis: int) -> tuple[Node, ...]:
    """Parts of sizes that are computed: an error where together they are not the axis."""
    length, sizes = x.shape.dims[axis], call.dims(1)
    found = [Sizes((s,), ()).node(call.graph) for s in sizes]
    ends = list(itertools.accumulate(found, ops.add))
    shift = ops.same_size(ends[-1], Sizes((length,), ()).node(call.graph))
    parts: list[Node] = []
    for size, number, end in zip(sizes, found, ends):
        line = nullary(call.graph, "iota", dims=(size,), axis=0, dtype=DType.I64)
        start = ops.add(ops.sub(end, number), shift)
        parts.append(ops.gather(x, ops.add(line, start), axis=axis))
    return tuple(parts)


@handles("Range")
def range_(call: Call) -> Value:
    """Counted by dims where it can be; else every end must be known, as the length follows."""
    dtype = call.shape(0).dtype
    whole = [_whole_end(call, i) for i in range(3)]
    first, end = whole[0], whole[1]
    if first is not None and end is not None and whole[2] == 1 and isinstance(end - first, Dim):
        line = nullary(call.graph, "iota", dims=(dim_max(0, end - first),), axis=0, dtype=dtype)
        if first == 0:
            return line
        return ops.add(line, ops.cast(Sizes((first,), ()).node(call.graph), to=dtype))
    if not all(call.is_known(i) for i in range(3)) and call.may_measure(0, 1, 2):
        return _counted_range(call)
    ends: list[Any] = [call.array(i).reshape(()).item() for i in range(3)]
    start, stop, step = ends
    if step == 0:
        raise GraphError("its step is 0")
    count = max(0, math.ceil((stop - start) / step))
    if count <= MAX_SIZES:
        return Weight(call.outputs[0], np.arange(*ends, dtype=dtype.numpy)[:count])
    line = nullary(call.graph, "iota", dims=(count,), axis=0, dtype=dtype)
    least, each = (call.graph.constant(np.array(v, dtype.numpy)) for v in (start, step))
    return ops.add(ops.mul(line, each), least)


def _whole_end(call: Call, number: int) -> DimLike | None:
    """An end of a range as a size, also where a size was made a float: it has no part after the
    point. None where it is something else."""
    value = call.value(number)
    known = call.importer.as_array(value)
    if known is not None and known.size:
        one = known.reshape(-1)[0].item()
        return int(one) if float(one).is_integer() else None
    if isinstance(value, Node) and value.op == "cast" and value.inputs[0].shape.dtype.is_integer:
        size = element(value.inputs[0], 0)
        return None if size is None or is_measured(size) else size
    sizes = call.importer.as_sizes(value)
    return None if sizes is None else sizes.dims[0]


def _counted_range(call: Call) -> Node:
    """A range whose ends are computed; where the graph says how long it is, of that size."""
    start, stop, step = (ops.reshape(call.node(i), dims=()) for i in range(3))
    if start.shape.dtype.is_integer and call.is_known(0) and call.is_known(2):
        first, size = int(call.array(0).item()), element(stop, 0)
        if first == 0 and call.array(2).item() == 1 and size is not None and provably_le(0, size):
            return nullary(call.graph, "iota", dims=(size,), axis=0, dtype=stop.shape.dtype)
    return ops.arange(start, stop, step)
