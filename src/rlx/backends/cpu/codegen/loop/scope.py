"""The scope of a position in a loop nest: indices, masks, decided guards, and computed values."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.loop_schedule import Schedule
from rlx.core.dim import DimLike, is_static
from rlx.core.dtype import DType
from rlx.kernel.expr import Affine, Axis, Expr, Inside, Kernel


@dataclass(frozen=True, slots=True)
class Scope:
    """One position. A value is keyed by its expression and the copy of the unrolled lanes."""

    index: Mapping[Axis, Bound] = field(default_factory=dict[Axis, Bound])
    decided: Mapping[Inside, bool] = field(default_factory=dict[Inside, bool])
    values: dict[tuple[Expr, int], Vec] = field(default_factory=dict[tuple[Expr, int], Vec])
    offsets: dict[Affine, Bound] = field(default_factory=dict[Affine, Bound])
    staged: frozenset[Expr] = frozenset()
    """Row values that are staged in scratch."""
    is_first_pass: bool = False
    """Are row values computed here staged in scratch?"""
    is_folding: bool = False
    """Is this inside a reduction across the lanes?"""
    lane: Axis | None = None
    piece_low: DimLike = 0
    """The start of the vectorised axis's piece."""
    row_start: Bound = 0
    """The first column whose accumulators are in scratch."""
    tile: Axis | None = None
    """In a tile the axis that copies run along, one step each; else they run along the lanes."""
    copies: int = 1
    tail: Vec | None = None
    """The lanes below the end of the axis."""
    guard: Vec | None = None
    """The lanes whose value is needed."""


class LoopContext:
    """A kernel, its schedule, the function under construction, and the current scope in it: what
    all parts of the emitter share. Positions and sizes are values of that function."""

    def __init__(
        self, kernel: Kernel, schedule: Schedule, code: Code, sizes: Mapping[DimLike, str]
    ) -> None:
        self.kernel, self.schedule, self.code, self.sizes = kernel, schedule, code, sizes
        self.lanes = code.lanes
        self.at = Scope()

    @contextmanager
    def scope(self, **changes: Any) -> Generator[None]:
        """A nested scope: what is computed there is not visible outside."""
        outer = self.at
        fresh = {"values": dict(outer.values), "offsets": dict(outer.offsets)}
        self.at = replace(outer, **{**fresh, **changes})
        yield
        self.at = outer

    def stage(self, values: Iterable[Expr]) -> None:
        """From here on in this scope, these row values are read from scratch."""
        self.at = replace(self.at, staged=self.at.staged.union(values))

    def dim(self, dim: DimLike) -> Bound:
        return dim if is_static(dim) else self.sizes[dim]

    def position(self, axis: Axis, copy: int) -> Bound:
        step = 1 if self.at.tile else self.lanes
        moved = copy * step if axis is self.spread else 0
        return self.code.i64("add", self.at.index[axis], moved)

    @property
    def spread(self) -> Axis | None:
        """The axis that copies run along."""
        return self.at.tile or self.at.lane

    def key(self, node: Expr, copy: int) -> tuple[Expr, int]:
        """The key of a value: copies of one that does not vary along them are one."""
        return node, copy if self.spread in node.free else 0

    def copies_of(self, node: Expr) -> int:
        return self.at.copies if self.spread in node.free else 1

    def is_made(self, node: Expr) -> bool:
        """Is the value computed, or staged?"""
        return node in self.at.staged or self.key(node, 0) in self.at.values

    def offset(self, at: Affine, copy: int) -> Bound:
        """The index at lane 0 of a copy."""
        total = self.base(at)
        for axis, step in at.terms:
            if axis in (self.at.lane, self.at.tile):
                moved = self.code.i64("mul", self.position(axis, copy), self.dim(step))
                total = self.code.i64("add", total, moved)
        return total

    def base(self, at: Affine) -> Bound:
        """The part of the index that varies neither along the lanes nor along a tile."""
        inner = (self.at.lane, self.at.tile)
        rest = Affine(tuple((a, c) for a, c in at.terms if a not in inner), at.offset)
        if rest not in self.at.offsets:
            total = self.dim(rest.offset)
            for axis, step in rest.terms:
                moved = self.code.i64("mul", self.at.index[axis], self.dim(step))
                total = self.code.i64("add", total, moved)
            self.at.offsets[rest] = total
        return self.at.offsets[rest]

    def along(self, at: Affine, copy: int) -> Vec:
        """The index in every lane."""
        first = self.code.splat(self.offset(at, copy), DType.I64)
        step = at.coefficient(self.at.lane) if self.at.lane else 0
        if step == 0:
            return first
        return first + self.steps(step)

    def steps(self, step: DimLike) -> Vec:
        """0, step, 2 · step … along the lanes."""
        return self.code.iota(DType.I64) * self.code.splat(self.dim(step), DType.I64)

    @property
    def mask(self) -> Vec | None:
        """The lanes that may be loaded and stored; all of them if None."""
        if self.at.tail is None or self.at.guard is None:
            return self.at.tail or self.at.guard
        return self.at.tail & self.at.guard
