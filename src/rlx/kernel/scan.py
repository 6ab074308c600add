"""Scans: a carry along an axis, position by position.

    before                          all positions at once: x·W of a recurrent layer
    for each direction              0 … length - 1, or from the end
      start                         the carries before the first step, or after the first position
      for each position t
        steps                       contractions and loop kernels, one after the other
      finish                        results of the last carries

What a step computes is stated in the forms that compute everything else: loop kernels and
contractions over operands, carries and values of the step, whose index maps have the position `t`
and the direction `d` beside their own axes. Each reads all that it reads before it writes. So a
cumulative op is a kernel of one expression, a recurrent cell a contraction of its state and a
kernel of its gates, a state-space layer a kernel with a reduction over the rows of its state.

Values are numbered behind the operands where they are loaded, behind the results where they are
stored: the carries first, then the others. A complex operand or result is read and written as the
pairs of real numbers that it is in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rlx.core.dim import DimLike, evaluate
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.kernel import interpret
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Kernel, Load, Reduce, Store
from rlx.kernel.rewrite import rewritten, substitution
from rlx.ops.op import Array


@dataclass(frozen=True, slots=True)
class Value:
    """What a scan holds beside its operands and results, contiguous over its axes."""

    name: str
    axes: tuple[Axis, ...]
    dtype: DType

    @property
    def shape(self) -> Shape:
        return Shape(tuple(a.extent for a in self.axes), self.dtype)

    def at(self, *index: Affine | Axis | DimLike) -> Affine:
        """The offset of an element."""
        total = Affine()
        for i, stride in zip(index, Layout.contiguous(self.shape.dims).strides, strict=True):
            total = total + (i if isinstance(i, Affine) else Affine.of(i)) * stride
        return total

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(repr, self.axes))}]: {self.dtype}"


@dataclass(frozen=True, slots=True)
class Before:
    """A contraction for all positions at once, whose result is a value."""

    contract: Contract
    value: str


@dataclass(frozen=True, slots=True)
class Direction:
    """An order of the positions, and what is done at each."""

    is_reversed: bool
    steps: tuple[Contract | Kernel, ...]


@dataclass(frozen=True, slots=True)
class Leaf:
    """A load of the steps by its name, and by its number where a name has several: the gates."""

    name: str
    number: int
    operand: int
    at: Affine


@dataclass(frozen=True, slots=True)
class Scan:
    """Carries along `time`."""

    name: str
    time: Axis
    direction: Axis
    carries: tuple[Value, ...]
    values: tuple[Value, ...]
    """Of all positions, or of a step."""
    before: tuple[Before, ...]
    start: tuple[Kernel, ...]
    has_first: bool
    """Does `start` make the results of the first position, too, from which the carries come?"""
    directions: tuple[Direction, ...]
    finish: tuple[Kernel, ...]
    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    leaves: tuple[Leaf, ...] = ()

    @property
    def memory(self) -> Memory:
        return Memory(self.operands, self.results, (*self.carries, *self.values))

    @property
    def contracts(self) -> bool:
        """Does a step contract a carry with an operand, as recurrent layers do?"""
        return any(isinstance(k, Contract) for d in self.directions for k in d.steps)

    @property
    def reduces(self) -> bool:
        """Does a step reduce a carry over one of its axes, as state-space layers do?"""
        kernels = [k for d in self.directions for k in d.steps if isinstance(k, Kernel)]
        return any(isinstance(n, Reduce) for k in kernels for n in k.nodes)

    def value(self, name: str) -> Value | None:
        return next((v for v in (*self.carries, *self.values) if v.name == name), None)

    def leaf(self, load: Load) -> Leaf:
        """The name of a load."""
        return next(x for x in self.leaves if (x.operand, x.at) == (load.operand, load.at))

    def __str__(self) -> str:
        memory = self.memory
        ways = " and ".join("reversed" if d.is_reversed else "forward" for d in self.directions)
        lines = [f"scan {self.name} along {self.time}, {ways}"]
        lines += [f"  carry {v}" for v in self.carries]
        lines += [f"  value {v}" for v in self.values]
        for one in self.before:
            lines += [f"  before, {one.value} is r0 of", *_indented(str(one.contract))]
        first = "  start, with the first position" if self.has_first else "  start"
        lines += [first, *(x for k in self.start for x in memory.text(k))]
        for steps in dict.fromkeys(d.steps for d in self.directions):
            lines += ["  step", *(x for k in steps for x in memory.text(k))]
        finish = [x for k in self.finish for x in memory.text(k)]
        return "\n".join([*lines, *(["  finish", *finish] if finish else [])])


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]


@dataclass(frozen=True, slots=True)
class Memory:
    """What the kernels of a scan read and write, by number."""

    operands: tuple[Shape, ...]
    results: tuple[Shape, ...]
    values: tuple[Value, ...]

    def _index(self, name: str) -> int:
        return [v.name for v in self.values].index(name)

    def at(self, name: str, *index: Affine | Axis | DimLike) -> tuple[int, Affine]:
        """The operand number of a value, and the offset of an element."""
        number = self._index(name)
        return len(self.operands) + number, self.values[number].at(*index)

    def load(self, e: Exprs, name: str, *index: Affine | Axis | DimLike) -> Expr:
        number, at = self.at(name, *index)
        return e.load(number, at, self.values[number - len(self.operands)].dtype)

    def store(self, name: str, value: Expr, *index: Affine | Axis | DimLike) -> Store:
        number = self._index(name)
        return Store(len(self.results) + number, self.values[number].at(*index), value)

    def shapes(self) -> tuple[tuple[Shape, ...], tuple[Shape, ...]]:
        """Of all operands and of all results of a kernel."""
        more = tuple(v.shape for v in self.values)
        return (*self.operands, *more), (*self.results, *more)

    def kernel(self, name: str, axes: Sequence[Axis], stores: Iterable[Store]) -> Kernel:
        return Kernel(name, tuple(axes), tuple(stores), *self.shapes())

    def text(self, kernel: Contract | Kernel) -> list[str]:
        """A kernel with values by their names."""
        text = str(kernel)
        for prefix, first in (("x", len(self.operands)), ("r", len(self.results))):
            text = re.sub(rf"\b{prefix}(\d+)\[", partial(self._named, first), text)
        return _indented(text)

    def _named(self, first: int, found: re.Match[str]) -> str:
        number = int(found[1]) - first
        return found[0] if number < 0 else f"{self.values[number].name}["


# -- the meaning ----------------------------------------------------------------------------------


def run(form: Scan, operands: Sequence[Array], sizes: Mapping[str, int]) -> list[Array]:
    """What it means: its results on contiguous operands."""
    shapes = [s.bind(sizes) for s in form.results]
    whole = [np.zeros(s.static_dims, s.dtype.numpy) for s in shapes]
    run_into(form, [np.ascontiguousarray(o) for o in operands], whole, sizes)
    return whole


def run_into(
    form: Scan, operands: Sequence[Array], results: Sequence[Array], sizes: Mapping[str, int]
) -> None:
    """The same on buffers: index maps count from their starts."""
    _Run(form, operands, results, sizes).run()


class _Run:
    """A scan in NumPy, step by step."""

    def __init__(
        self,
        form: Scan,
        operands: Sequence[Array],
        results: Sequence[Array],
        sizes: Mapping[str, int],
    ) -> None:
        self.form, self.sizes = form, sizes
        self.given, self.made = [_flat(o) for o in operands], [_flat(r) for r in results]
        values = [v.shape.bind(sizes) for v in form.memory.values]
        self.values = [np.zeros(int(np.prod(s.static_dims)), s.dtype.numpy) for s in values]

    def run(self) -> None:
        form = self.form
        names = [v.name for v in form.memory.values]
        for one in form.before:
            into = [self.values[names.index(one.value)]]
            interpret.run_into(one.contract.kernel(), self.given, into, self.sizes)
        for number, direction in enumerate(form.directions):
            self.direction(direction, {form.direction: Affine((), number)})

    def direction(self, one: Direction, moves: dict[Axis, Affine]) -> None:
        positions = self.positions(one)
        first = next(positions, None) if self.form.has_first else 0
        if first is not None:
            self.do(self.form.start, moves | {self.form.time: Affine((), first)})
        for t in positions:
            self.do(one.steps, moves | {self.form.time: Affine((), t)})
        self.do(self.form.finish, moves)

    def positions(self, one: Direction) -> Iterator[int]:
        length = range(evaluate(self.form.time.extent, self.sizes))
        return iter(reversed(length) if one.is_reversed else length)

    def do(self, kernels: Sequence[Contract | Kernel], moves: dict[Axis, Affine]) -> None:
        for one in kernels:
            kernel = at_position(one.kernel() if isinstance(one, Contract) else one, moves)
            given, made = [*self.given, *self.values], [*self.made, *self.values]
            interpret.run_into(kernel, given, made, self.sizes)


def at_position(kernel: Kernel, moves: Mapping[Axis, Affine]) -> Kernel:
    """The kernel with the position and the direction replaced."""
    return rewritten(kernel, move=substitution(moves))


def _flat(x: Array) -> Array:
    """The elements in order; complex numbers as pairs of real ones."""
    flat = x.reshape(-1)
    if x.dtype.kind != "c":
        return flat
    return flat.view(np.float32 if x.dtype.itemsize == 8 else np.float64)
