"""Quantised blocks on arrays: a format's expression evaluated at all positions by table ops.

On arrays this is the meaning, on nodes the lowering, on shapes the shape rule. Positions are split
into digits, i = Σ digit · place, so that a value has an axis for each digit that it depends on and
is computed once for the others, and a load is a strided view of the bytes: offset + Σ digit ·
stride.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from rlx import ops
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.ops.compose import dims_of
from rlx.ops.op import lookup
from rlx.ops.quant.block_expr import (
    Apply,
    Array,
    BlockFormat,
    Expr,
    Load,
    Lookup,
    Operand,
    position_values,
    postorder,
)

MAX_RUNS = 8
"""Strided views that a load consists of; where there were more, it is gathered."""


def decoded(block_format: BlockFormat, blocks: Any) -> Any:
    """u8[..., bytes] → [..., weights]."""
    return _plan(block_format).decoded(blocks)


def applied(value: Expr, operands: dict[str, Any]) -> Any:
    """An expression of operands alone, on arrays that broadcast."""
    found: dict[Expr, Any] = {}
    for node in postorder(value):
        match node:
            case Operand():
                found[node] = operands[node.name]
            case _:
                assert isinstance(node, Apply), node
                found[node] = _called(node, [found[a] for a in node.args])
    return found[value]


def _called(node: Apply, args: list[Any]) -> Any:
    return lookup(node.op)(*args, **node.attrs)


@cache
def _plan(block_format: BlockFormat) -> _Plan:
    return _Plan(block_format, position_values(block_format))


@dataclass(frozen=True)
class _Plan:
    """A format, and its expressions that depend on the position alone, at consecutive positions."""

    block_format: BlockFormat
    known: dict[Expr, Array]

    @property
    def count(self) -> int:
        return len(next(iter(self.known.values())))

    def between(self, start: int, stop: int) -> _Plan:
        """The same at some of the positions."""
        return _Plan(self.block_format, {n: v[start:stop] for n, v in self.known.items()})

    @cached_property
    def nodes(self) -> list[Expr]:
        """What the value is computed from, arguments first."""
        return postorder(self.block_format.value)

    @cached_property
    def loads(self) -> list[Load]:
        return [n for n in self.nodes if isinstance(n, Load)]

    @cached_property
    def offsets(self) -> list[Array]:
        """Of each load."""
        return [self.known[n.args[0]].astype(np.int64) for n in self.loads]

    @cached_property
    def views(self) -> dict[Load, _View | None]:
        return {n: self._view(n, self.radices) for n in self.loads}

    @cached_property
    def runs(self) -> dict[Load, list[_Plan]]:
        """Of loads that are no strided view, the views that they consist of."""
        return {n: self._runs_of(n) for n, view in self.views.items() if view is None}

    @cached_property
    def given(self) -> list[Expr]:
        """Of each op, the arguments that depend on the position alone."""
        ops_ = (n for n in self.nodes if not isinstance(n, Load) and n not in self.known)
        return [a for n in ops_ for a in n.args if a in self.known]

    @cached_property
    def constants(self) -> dict[Expr, Array]:
        """The same as arrays, with axes of 1 where they do not depend on a digit."""
        return {n: self._constant(self.known[n]) for n in self.given}

    @cached_property
    def radices(self) -> tuple[int, ...]:
        """The digits' radices, the last digit's first; one digit where they are of no use to a
        load."""
        found = self._common_radices()
        is_strided = all(self._view(n, found) is not None for n in self.loads)
        return found if is_strided else (self.count,)

    def _common_radices(self) -> tuple[int, ...]:
        """Primes, joined where no value tells."""
        found: list[int] = []
        for radix in _primes(self.count):
            found.append(radix)
            if len(found) > 1 and self._are_one(math.prod(found[:-2]), *found[-2:]):
                found[-2:] = [found[-2] * found[-1]]
        return tuple(found)

    def _are_one(self, place: int, low: int, high: int) -> bool:
        """Are two digits one, of radix low · high, to every value?"""
        values = (*self.offsets, *(self.known[n] for n in self.given))
        views = [v.reshape(-1, high, low, place) for v in values]
        if any(_varies(v, 1) != _varies(v, 2) for v in views):
            return False
        strides = [(_stride(v, 2), _stride(v, 1)) for v in views[: len(self.offsets)]]
        return all(inner is None or outer == low * inner for inner, outer in strides)

    # -- evaluation -----------------------------------------------------------------------------

    def decoded(self, blocks: Any) -> Any:
        lead, found = dims_of(blocks)[:-1], dict[Expr, Any](self.constants)
        for node in self.nodes:
            if node in self.known:
                continue
            if isinstance(node, Load):
                found[node] = self._loaded(blocks, node)
            elif isinstance(node, Lookup):
                found[node] = self._looked_up(node, *(found[a] for a in node.args))
            else:
                assert isinstance(node, Apply), node
                found[node] = _called(node, [found[a] for a in node.args])
        value, dims = found[self.block_format.value], (*lead, *reversed(self.radices))
        whole = value if dims_of(value) == dims else ops.expand(value, dims=dims)
        return _reshaped(whole, (*lead, self.count))

    def _constant(self, values: Array) -> Array:
        made = values.reshape(tuple(reversed(self.radices)))
        for axis in range(made.ndim):
            if not _varies(made, axis):
                made = made.take([0], axis)
        return made if made.size > 1 else made.reshape(())

    def _loaded(self, blocks: Any, node: Load) -> Any:
        view, lead = self.views[node], dims_of(blocks)[:-1]
        if view is None:
            parts = [p._flat(blocks, node) for p in self.runs[node]]
            whole = ops.concat(parts, axis=len(lead)) if parts else self._gathered(blocks, node)
            return _reshaped(whole, (*lead, *reversed(self.radices)))
        dims = tuple(r if s else 1 for s, r in zip(view.strides, reversed(self.radices)))
        if view.width == 1:
            return _reshaped(view.of(blocks), (*lead, *dims))
        return _integers(_reshaped(view.of(blocks), (*lead, *dims, view.width)), node.dtype)

    def _flat(self, blocks: Any, node: Load) -> Any:
        lead = dims_of(blocks)[:-1]
        whole = ops.expand(self._loaded(blocks, node), dims=(*lead, *reversed(self.radices)))
        return _reshaped(whole, (*lead, self.count))

    def _gathered(self, blocks: Any, node: Load) -> Any:
        """A load whose bytes are anywhere."""
        *lead, _ = dims_of(blocks)
        offsets, width = self.known[node.args[0]].astype(np.int64), node.dtype.itemsize
        indices = (offsets[:, None] + np.arange(width)).reshape(-1)
        part = ops.gather(blocks, indices, axis=len(lead))
        if width == 1:
            return part
        return _integers(ops.reshape(part, dims=(*lead, self.count, width)), node.dtype)

    def _runs_of(self, node: Load) -> list[_Plan]:
        """The longest runs of positions for which a load is a strided view; none where they are
        many."""
        parts: list[_Plan] = []
        ends, start = self._changes, 0
        while start < self.count and len(parts) < MAX_RUNS:
            found = (self.between(start, end) for end in ends if end > start)
            run = next((p for p in found if p.views[node] is not None), None)
            if run is None:
                return []
            parts.append(run)
            start += run.count
        return parts if start == self.count else []

    @property
    def _changes(self) -> list[int]:
        """Positions at which an offset does not follow the one before, or a constant changes; from
        the last on."""
        steps = [np.diff(v) != 1 for v in self.offsets]
        steps += [np.diff(self.known[n].astype(np.int64)) != 0 for n in self.given]
        places = np.flatnonzero(np.logical_or.reduce(steps)) + 1
        return [self.count, *map(int, reversed(places))]

    def _view(self, node: Load, radices: tuple[int, ...]) -> _View | None:
        """The bytes of a load; None where they are no strided view of the block."""
        at = self.known[node.args[0]].astype(np.int64).reshape(tuple(reversed(radices)))
        found = [_stride(at, axis) for axis in range(at.ndim)]
        strides = [s for s in found if s is not None]
        if len(strides) < len(found):
            return None
        terms = [(s, r) for s, r in zip(strides, reversed(radices)) if s]
        width = node.dtype.itemsize
        starts = _starts(self.block_format.block_bytes, int(at.flat[0]), terms, width)
        return None if starts is None else _View(strides, terms, starts, width)

    def _looked_up(self, node: Lookup, row: Any, column: Any) -> Any:
        """Where a digit is the column, whole rows at a time."""
        table, width = node.table.values, node.table.width
        if width == 1:
            return ops.gather(table.reshape(-1), row, axis=0)
        if self.radices[0] == width and dims_of(row)[-1] == 1:
            return ops.gather(table, ops.reshape(row, dims=dims_of(row)[:-1]), axis=0)
        index = ops.add(ops.mul(ops.cast(row, to=DType.I64), width), ops.cast(column, to=DType.I64))
        return ops.gather(table.reshape(-1), index, axis=0)


def _primes(n: int) -> Iterable[int]:
    factor = 2
    while n > 1:
        while n % factor == 0:
            yield factor
            n //= factor
        factor += 1


def _varies(values: Array, axis: int) -> bool:
    return bool((values != values.take([0], axis)).any())


def _stride(values: Array, axis: int) -> int | None:
    """The constant difference along an axis; None where it is none."""
    found = np.unique(np.diff(values, axis=axis))
    if found.size > 1:
        return None
    return int(found[0]) if found.size else 0


# -- bytes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _View:
    """Bytes at base + Σ digit · stride, `width` of each."""

    strides: list[int]
    """Of every digit."""
    terms: list[tuple[int, int]]
    """Strides and radices of the digits that it depends on."""
    starts: list[int]
    width: int

    def of(self, blocks: Any) -> Any:
        for start, (stride, count) in zip(self.starts, self.terms):
            *lead, _ = dims_of(blocks)
            part = _narrowed(blocks, start, stride * count)
            blocks = ops.reshape(part, dims=(*lead, count, stride))
        return _narrowed(blocks, self.starts[-1], self.width)


def _starts(size: int, base: int, terms: list[tuple[int, int]], width: int) -> list[int] | None:
    """Where to narrow `size` bytes before each digit becomes an axis, and last; None where strides
    do not nest."""
    found: list[int] = []
    for number, (stride, count) in enumerate(terms):
        inner = width + sum(s * (c - 1) for s, c in terms[number + 1 :])
        start = min(base, size - stride * count)
        if start < 0 or base - start + inner > stride:
            return None
        found.append(start)
        base, size = base - start, stride
    return [*found, base]


def _narrowed(x: Any, start: int, length: int) -> Any:
    *lead, size = dims_of(x)
    return x if length == size else ops.narrow(x, axis=len(lead), start=start, length=length)


def _reshaped(x: Any, dims: tuple[DimLike, ...]) -> Any:
    return x if dims_of(x) == dims else ops.reshape(x, dims=dims)


def _integers(bytes_: Any, dtype: DType) -> Any:
    """Little-endian integers of bytes along the last axis, which goes."""
    axis = len(dims_of(bytes_)) - 1
    shifts = np.arange(0, 8 * dtype.itemsize, 8, dtype=dtype.numpy)
    return ops.sum(ops.shift_left(ops.cast(bytes_, to=dtype), shifts), axes=(axis,))
