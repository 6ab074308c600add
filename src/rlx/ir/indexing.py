"""NumPy-style indexing of nodes: ints, slices, `...`, None, and one array of indices.

A negative number counts from the back, also in an array. In a node of indices, whose values are
not known, it is out of range, as in `rlx.ops.gather`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from rlx.core.dim import Dim, DimLike, provably_le
from rlx.core.errors import GraphError
from rlx.ops.op import lookup

if TYPE_CHECKING:
    from rlx.ir.mir import Node


@dataclass(frozen=True, slots=True)
class Entry:
    """One part of an index, and the axis of the operand where it stands."""

    value: Any
    axis: int

    @property
    def is_run(self) -> bool:
        return isinstance(self.value, slice)

    @property
    def is_array(self) -> bool:
        return not (self.is_new or self.is_run or is_number(self.value))

    @property
    def is_new(self) -> bool:
        """Is it None, which makes an axis?"""
        return self.value is None


def index_node(node: Node, index: Any) -> Any:
    """`node[index]`."""
    given = index if isinstance(index, tuple) else (index,)
    try:
        entries = _entries(node, given)
        _check_arrays(given)
        return _placed(_taken(node, entries), entries)
    except GraphError as error:
        where = node.graph._here()  # pyright: ignore[reportPrivateUsage]
        raise GraphError(f"indexing {node.shape}{where}: {error}") from None


def is_number(value: Any) -> TypeGuard[int | Dim]:
    return isinstance(value, int | np.integer | Dim) and not isinstance(value, bool | np.bool_)


def _entries(node: Node, index: tuple[Any, ...]) -> list[Entry]:
    """The index in full: every axis has its entry."""
    rank, taken = node.rank, sum(v is not None and v is not Ellipsis for v in index)
    if sum(v is Ellipsis for v in index) > 1:
        raise GraphError("'...' may stand only once in an index")
    if taken > rank:
        raise GraphError(f"{taken} indices for {node.shape} of rank {rank}")
    given = index if any(v is Ellipsis for v in index) else (*index, Ellipsis)
    entries: list[Entry] = []
    axis = 0
    for value in given:
        values = [slice(None)] * (rank - taken) if value is Ellipsis else [value]
        for v in values:
            entries.append(Entry(_known_entry(v), axis))
            axis += v is not None
    return entries


def _known_entry(value: Any) -> Any:
    if value is None or isinstance(value, slice) or is_number(value):
        return value
    if hasattr(value, "graph"):
        return _whole(value, value.dtype.is_integer)
    if isinstance(value, list | np.ndarray):
        array = np.asarray(value, dtype=np.int64 if np.size(value) == 0 else None)
        return _whole(array, array.dtype.kind in "iu")
    raise GraphError(
        f"{value!r} is no index: use numbers, slices, '...', None or whole numbers "
        "in an array or node"
    )


def _whole(value: Any, is_whole: bool) -> Any:
    if not is_whole:
        raise GraphError(
            f"an index of {value.dtype} is not one of whole numbers. For a mask use "
            "rlx.ops.where: how many entries a mask keeps is not known"
        )
    return value


def _check_arrays(index: tuple[Any, ...]) -> None:
    """NumPy moves the dims of arrays that stand apart to the front; rlx asks for two steps."""
    numbers = [i for i, v in enumerate(index) if is_number(v)]
    plain = [i for i, v in enumerate(index) if v is None or v is Ellipsis or isinstance(v, slice)]
    arrays = sorted(set(range(len(index))) - {*numbers, *plain})
    if len(arrays) > 1:
        raise GraphError("two arrays in one index. Index in two steps, or use take_along_axis")
    advanced = sorted([*numbers, *arrays])
    if arrays and advanced[-1] - advanced[0] + 1 != len(advanced):
        raise GraphError(
            "an array and numbers with '...', slices or None between them. Index in two steps"
        )


def _taken(node: Node, entries: Sequence[Entry]) -> Node:
    """Every axis cut to what its entry takes; a number leaves an axis of size 1."""
    bounds: dict[int, tuple[DimLike, DimLike, int]] = {}
    for entry in entries:
        if entry.is_new:
            continue
        size = node.shape.dims[entry.axis]
        if entry.is_run:
            bounds[entry.axis] = _bounds(entry.value, size)
        elif is_number(entry.value):
            start = _position(entry.value, entry.axis, size)
            bounds[entry.axis] = (start, start + 1, 1)
    return _sliced(_narrowed(node, bounds), bounds)


def _position(value: DimLike, axis: int, size: DimLike) -> DimLike:
    place = value + size if provably_le(value, -1) else value
    if not (provably_le(0, place) and provably_le(place + 1, size)):
        known = not isinstance(size, Dim) and not isinstance(value, Dim)
        how = "is" if known else "may be"
        hint = "" if known else ". Give the dim a range that holds it: rlx.Dim(name, min)"
        raise GraphError(f"index {value} {how} out of range for axis {axis} of size {size}{hint}")
    return place if isinstance(place, Dim) else int(place)


def _bounds(given: slice, size: DimLike) -> tuple[DimLike, DimLike, int]:
    """Start, stop and step, with what is left out filled in."""
    for value in (given.start, given.stop, given.step):
        if value is not None and not is_number(value):
            raise GraphError(
                f"the slice bound {value!r} is neither a whole number nor a rlx.Dim. "
                "Convert it with int()"
            )
    step = 1 if given.step is None else given.step
    if isinstance(step, Dim) or step == 0:
        raise GraphError(f"a step of {step} is not possible. Give a whole number other than 0")
    ends = (0, size) if step > 0 else (-1, -size - 1)
    start, stop = (e if v is None else v for e, v in zip(ends, (given.start, given.stop)))
    return start, stop, int(step)


def _narrowed(node: Node, bounds: dict[int, tuple[DimLike, DimLike, int]]) -> Node:
    """Runs without steps are `narrow`, one per axis; they leave `bounds`."""
    for axis in sorted(bounds):
        run = _run(node.shape.dims[axis], *bounds[axis])
        if run is None:
            continue
        del bounds[axis]
        start, length = run
        if length != node.shape.dims[axis]:
            node = lookup("narrow")(node, axis=axis, start=start, length=length)
    return node


def _run(size: DimLike, start: DimLike, stop: DimLike, step: int) -> tuple[DimLike, DimLike] | None:
    """First index and length of a slice, where it is known to be in bounds and has no step."""
    from rlx.ops.indexing.movement import span

    if step != 1:
        return None
    first, length = span(size, start, stop, step)
    if not provably_le(0, length):
        return None
    if length == 0:
        return 0, 0
    return (first, length) if provably_le(first + length, size) else None


def _sliced(node: Node, bounds: dict[int, tuple[DimLike, DimLike, int]]) -> Node:
    """What is left, steps and bounds that may be outside, is one `slice`."""
    if not bounds:
        return node
    rows = [bounds.get(axis, (0, size, 1)) for axis, size in enumerate(node.shape.dims)]
    starts, stops, steps = zip(*rows)
    return lookup("slice")(node, starts=starts, stops=stops, steps=steps)


def _placed(node: Node, entries: Sequence[Entry]) -> Any:
    """Axes of numbers dropped, the array's entries gathered, new axes put in."""
    dropped = tuple(e.axis for e in entries if is_number(e.value))
    if dropped:
        node = lookup("squeeze")(node, axes=dropped)
    extra = 0
    for entry in (e for e in entries if e.is_array):
        axis = entry.axis - sum(d < entry.axis for d in dropped)
        extra = entry.value.ndim - 1
        node = lookup("gather")(node, _wrapped(entry.value, node.shape.dims[axis]), axis=axis)
    new = _new_axes(entries, extra)
    return lookup("expand_dims")(node, axes=new) if new else node


def _wrapped(indices: Any, size: DimLike) -> Any:
    """Known indices counted from the front."""
    if hasattr(indices, "graph"):
        return indices
    if isinstance(size, Dim):
        if np.any(indices < 0):
            raise GraphError(f"a negative index counts from the end, {size}, which is not known")
        return indices
    outside = indices[(indices < -size) | (indices >= size)]
    if outside.size:
        raise GraphError(f"index {outside.flat[0]} is out of range for a size of {size}")
    return np.where(indices < 0, indices + size, indices)


def _new_axes(entries: Sequence[Entry], extra: int) -> tuple[int, ...]:
    """Where the new axes stand in the result."""
    places: list[int] = []
    at = 0
    for entry in entries:
        if entry.is_new:
            places.append(at)
        if not is_number(entry.value):
            at += 1 + extra * entry.is_array
    return tuple(places)
