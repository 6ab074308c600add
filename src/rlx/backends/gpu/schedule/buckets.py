"""Buckets of sizes: kernels with named dims get several schedules, one of which a call takes.

A schedule is chosen for sizes. Where these are named, the range of each is divided at some powers
of two, and the kernel is scheduled for the sizes of every cell of that grid as if there were no
others: what is known in a cell, such as that there are at most 16 rows, is known as it is of a
number, and a choice is made for the cell's greatest sizes. Cells whose schedules read alike share
one, which is made for all of them, so that it is compiled once.

Where a kernel has sizes in products only, as rows of a batch times a length, the product is the
size that is divided: the grid is a line, whatever the number of names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product as every_pair
from typing import TypeAlias

from rlx.backends.gpu.buckets import Buckets
from rlx.backends.gpu.simt.program import Program
from rlx.backends.gpu.simt.sizes import resized
from rlx.backends.gpu.task import Choice, GpuTask, Launch
from rlx.core.atoms import Atom, Monomial, Symbol
from rlx.core.dim import (
    Dim,
    DimLike,
    dim_max,
    dim_min,
    lower_bound,
    product,
    substitute,
    symbols_of,
    upper_bound,
)
from rlx.core.extent import is_capacity, of_symbol
from rlx.kernel.attention import Attention
from rlx.kernel.collapse import collapsed
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel
from rlx.kernel.program.forms import AnyKernel, Conv, Copy
from rlx.kernel.program.lower_step import copy_kernel
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal, attempt
from rlx.kernel.substitute import with_dims

EDGES = (1, 16, 64, *(1 << i for i in range(7, 15)))
"""Where ranges are divided: one, a part of a tile, a few tiles, and from then on by twos. Larger
sizes fill every device, and choices stay as they are."""
LOOP_EDGES = (256, 1024, 4096, 16384)
"""The same of loop nests: where a device begins to be busy, and where it is."""
MAX_CELLS = 48
MAX_WAYS, MAX_LOOP_WAYS = 7, 3
"""Schedules of a kernel: ranges are divided less often where there would be more."""
MAX_PROGRAM_WAYS = 48
"""Of all kernels of a program together, about: each takes some time to compile."""
Box: TypeAlias = tuple[tuple[int, int | None], ...]
"""A range of each size."""
Cell: TypeAlias = tuple[int, ...]
"""The number of a range of each size."""
Resizable: TypeAlias = Kernel | Contract | Conv | Attention
Make: TypeAlias = Callable[[AnyKernel], "Schedule[GpuTask] | Refusal"]


def ways_of_each(kernels: int) -> int:
    """How many ways a kernel may have, where a program has so many with named dims."""
    return min(MAX_WAYS, max(1, MAX_PROGRAM_WAYS // max(1, kernels)))


def bucketed(
    kernel: AnyKernel, whole: Schedule[GpuTask], make: Make, most: int = MAX_WAYS
) -> Schedule[GpuTask]:
    """The schedules of a kernel by its sizes, at most so many, of which `whole` is for all sizes;
    that alone, where no other is better anywhere."""
    form = _resizable(kernel)
    if form is None or most == 1 or not _is_launched(whole):
        return whole
    is_loop = isinstance(form, Kernel)
    axes = _axes(form, LOOP_EDGES if is_loop else EDGES)
    if not axes:
        return whole
    return _choice(_Sized(form, whole, make), axes, min(most, MAX_LOOP_WAYS if is_loop else most))


def _resizable(kernel: AnyKernel) -> Resizable | None:
    match kernel:
        case Kernel():
            return collapsed(kernel)
        case Copy(shape, source, target):
            return collapsed(copy_kernel(shape, source, target))
        case Contract() | Conv() | Attention():
            return kernel
        case _:
            return None


def _is_launched(schedule: Schedule[GpuTask]) -> bool:
    return all(isinstance(t, Launch) for t in schedule.all_tasks)


# -- the sizes of a kernel ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SizeAxis:
    """A size that kernels are made for, and where its range is divided."""

    monomial: Monomial
    """What it is a product of; one symbol, where it is that."""
    size: Dim
    edges: tuple[int, ...]
    """The greatest sizes of all cells but the last."""

    @property
    def name(self) -> str:
        return str(self.size)

    @property
    def ranges(self) -> tuple[tuple[int, int | None], ...]:
        """Of its cells."""
        ends = (*self.edges, upper_bound(self.size))
        starts = (lower_bound(self.size), *(e + 1 for e in self.edges))
        return tuple(zip(starts, ends))


def _axes(form: Resizable, edges: tuple[int, ...]) -> tuple[SizeAxis, ...]:
    """The sizes that the grid is made of."""
    monomials = _monomials(form)
    found: list[SizeAxis] = []
    for group in _connected(monomials):
        whole = len(group) == 1 and all(isinstance(a, Symbol) for a in group[0])
        parts = group if whole else sorted({(s,) for m in group for s in _symbols(m)}, key=str)
        found += [_axis(p, edges) for p in parts if all(map(_is_given, _symbols(p)))]
    return _coarsened(tuple(a for a in found if a.edges))


def _monomials(form: Resizable) -> list[Monomial]:
    """All products of sizes that occur in a kernel."""
    seen: dict[Monomial, None] = {}

    def note(dim: DimLike) -> DimLike:
        if isinstance(dim, Dim):
            seen.update(dict.fromkeys(m for m, _ in dim.terms if m))
        return dim

    with_dims(form, note)
    return list(seen)


def _symbols(monomial: Monomial) -> frozenset[Symbol]:
    return frozenset(s for atom in monomial for s in _symbols_in(atom))


def _symbols_in(atom: Atom) -> Iterator[Symbol]:
    if isinstance(atom, Symbol):
        yield atom
    else:
        yield from (d.symbol for d in symbols_of(atom.args) if d.symbol is not None)


def _is_given(symbol: Symbol) -> bool:
    """Is it known before the call, and not the runtime's choice?"""
    return not symbol.is_measured and not is_capacity(symbol.name)


def _connected(monomials: Sequence[Monomial]) -> list[list[Monomial]]:
    """Products in groups that share no symbol."""
    groups: list[list[Monomial]] = []
    for monomial in monomials:
        own = _symbols(monomial)
        near = [g for g in groups if any(_symbols(m) & own for m in g)]
        groups = [g for g in groups if g not in near]
        groups.append([m for g in near for m in g] + [monomial])
    return groups


def _axis(monomial: Monomial, edges: tuple[int, ...]) -> SizeAxis:
    size = product(of_symbol(s) for s in monomial if isinstance(s, Symbol))
    assert isinstance(size, Dim)
    low, high = lower_bound(size), upper_bound(size)
    inside = (e for e in edges if low <= e and (high is None or e < high))
    return SizeAxis(monomial, size, tuple(inside))


def _coarsened(axes: tuple[SizeAxis, ...]) -> tuple[SizeAxis, ...]:
    while _cells(axes) > MAX_CELLS:
        axes = _coarser(axes)
    return axes


def _coarser(axes: tuple[SizeAxis, ...]) -> tuple[SizeAxis, ...]:
    """Fewer cells: every other edge of the longest range goes."""
    longest = max(axes, key=lambda a: len(a.edges))
    made = (replace(a, edges=a.edges[1::2]) if a is longest else a for a in axes)
    return tuple(a for a in made if a.edges)


def _cells(axes: Iterable[SizeAxis]) -> int:
    count = 1
    for axis in axes:
        count *= len(axis.edges) + 1
    return count


# -- a kernel in a box ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sized:
    """A kernel, its schedule for all sizes, and what makes others."""

    form: Resizable
    whole: Schedule[GpuTask]
    make: Make
    made: dict[object, Schedule[GpuTask]] = field(default_factory=dict[object, "Schedule[GpuTask]"])
    """By the ranges of sizes."""


def _choice(sized: _Sized, axes: tuple[SizeAxis, ...], most: int) -> Schedule[GpuTask]:
    """One task for every call; what it launches depends on sizes."""
    while axes:
        ways, table = _Grid(sized, axes).ways()
        if len(ways) == 1:
            return ways[0]
        if len(ways) <= most:
            sizes, edges = tuple(a.size for a in axes), tuple(a.edges for a in axes)
            return _joined(Buckets(sizes, edges, table), ways, sized.whole)
        axes = _coarser(axes)
    return sized.whole


class _Grid:
    """A kernel and the cells of its sizes."""

    def __init__(self, sized: _Sized, axes: tuple[SizeAxis, ...]) -> None:
        self.form, self.whole, self.make = sized.form, sized.whole, sized.make
        self.axes = axes
        self.made = sized.made
        self.own = _signature(self.whole), all(upper_bound(a.size) is not None for a in axes)
        symbols = {s.name: of_symbol(s) for m in _monomials(self.form) for s in _symbols(m)}
        self.names: dict[str, DimLike] = {**symbols, **{a.name: a.size for a in axes}}
        """What the names in schedules of boxes stand for."""

    def ways(self) -> tuple[list[Schedule[GpuTask]], tuple[int, ...]]:
        """The schedules, and which one each cell has."""
        groups: dict[object, list[Cell]] = {}
        for kind, cells in self._kinds([range(len(a.edges) + 1) for a in self.axes]):
            groups.setdefault(kind, []).extend(cells)
        ways, taken = list[Schedule[GpuTask]](), dict[Cell, int]()
        for kind, group in groups.items():
            for made, covered in self._covered(group, kind):
                if made not in ways:
                    ways.append(made)
                taken |= dict.fromkeys(covered, ways.index(made))
        return ways, tuple(number for _, number in sorted(taken.items()))

    def _kinds(self, ranges: list[range]) -> Iterator[tuple[object, list[Cell]]]:
        """Cells in groups of one kind. Where the least and the greatest sizes are of one, so are
        those between them, and few cells have to be looked at; but for products, whose tiles
        follow how many of them the device does at once."""
        kind, is_product = self._kind([tuple(r[0] for r in ranges)]), self._is_product
        is_one = all(len(r) == 1 for r in ranges)
        if is_one or (not is_product and kind == self._kind([tuple(r[-1] for r in ranges)])):
            yield kind, list(every_pair(*ranges))
            return
        number = max(range(len(ranges)), key=lambda i: len(ranges[i]))
        for half in _halved(ranges[number]):
            yield from self._kinds([half if i == number else r for i, r in enumerate(ranges)])

    @property
    def _is_product(self) -> bool:
        return isinstance(self.form, Contract | Conv)

    def _covered(
        self, cells: list[Cell], kind: object
    ) -> Iterator[tuple[Schedule[GpuTask], list[Cell]]]:
        """Schedules that are for some of the cells each: one for the least box around all of them,
        if that is of the same kind; else those of two parts."""
        if kind == self.own:
            yield self.whole, cells
        elif len(cells) == 1 or self._kind(cells) == kind:
            yield self._within(self._box(cells)), cells
        else:
            for part in _parts(cells):
                yield from self._covered(part, kind)

    def _box(self, cells: Sequence[Cell]) -> Box:
        """The least that has all of the cells."""
        ranges: list[tuple[int, int | None]] = []
        for number, axis in enumerate(self.axes):
            held = [cell[number] for cell in cells]
            ranges.append((axis.ranges[min(held)][0], axis.ranges[max(held)][1]))
        return tuple(ranges)

    def _kind(self, cells: Sequence[Cell]) -> object:
        """What the schedules of cells have in common that share one. Indices of sizes without a
        bound have more bits, so these are by themselves."""
        box = self._box(cells)
        return _signature(self._within(box)), all(high is not None for _, high in box)

    def _within(self, box: Box) -> Schedule[GpuTask]:
        """The schedule for the sizes of a box; that for all sizes, where there is none or where it
        would have weights in memory once more."""
        key = tuple((a.name, r) for a, r in zip(self.axes, box))
        if key not in self.made:
            narrow = with_dims(self.form, self._change(box))
            made = attempt(lambda: self.make(narrow))
            if isinstance(made, Refusal) or not self._is_usable(made):
                self.made[key] = self.whole
            else:
                self.made[key] = self._restored(made)
        return self.made[key]

    def _is_usable(self, made: Schedule[GpuTask]) -> bool:
        is_stored = not made.packed or _packing(made) == _packing(self.whole)
        return _is_launched(made) and is_stored

    def _change(self, box: Box) -> Callable[[DimLike], DimLike]:
        """Sizes as they are in a box."""
        fresh: dict[Monomial, DimLike] = {}
        for axis, (low, high) in zip(self.axes, box):
            is_fixed = low == high
            fresh[axis.monomial] = low if is_fixed else of_symbol(Symbol(axis.name, low, high))
        single = {a.name: fresh[a.monomial] for a in self.axes if len(a.monomial) == 1}

        def change(dim: DimLike) -> DimLike:
            if not isinstance(dim, Dim):
                return dim
            total: DimLike = 0
            for (monomial, factor), addend in zip(dim.terms, dim.addends()):
                own = fresh.get(monomial)
                total = total + (substitute(addend, single) if own is None else own * factor)
            return total

        return change

    def _restored(self, made: Schedule[GpuTask]) -> Schedule[GpuTask]:
        """The schedule of a box by the names of the call. Temporaries have no more bytes than in
        the box, as nothing is launched outside of it."""
        temps = (dim_min(self._named(t), _most(t)) for t in made.temps)
        tasks = tuple(self._launch(t) for t in made.tasks if isinstance(t, Launch))
        return Schedule(tasks, tuple(temps), made.packed and self.whole.packed)

    def _launch(self, launch: Launch) -> Launch:
        key = launch.key, tuple(self.names.items())
        others = tuple(replace(v, write=self._writing(v.write)) for v in launch.others)
        return replace(launch, write=self._writing(launch.write), key=key, others=others)

    def _writing(self, write: Callable[[str], Program]) -> Callable[[str], Program]:
        return lambda name: resized(write(name), self._named)

    def _named(self, dim: DimLike) -> DimLike:
        return substitute(dim, self.names)


def _most(dim: DimLike) -> DimLike:
    most = upper_bound(dim)
    return dim if most is None else most


def _halved(cells: range) -> tuple[range, range]:
    middle = len(cells) // 2
    return cells[:middle], cells[middle:]


def _parts(cells: list[Cell]) -> Iterator[list[Cell]]:
    """Two parts, along the axis of most ranges."""
    spread = [max(c) - min(c) for c in zip(*cells)]
    axis = spread.index(max(spread))
    middle = min(c[axis] for c in cells) + spread[axis] // 2
    yield [c for c in cells if c[axis] <= middle]
    yield [c for c in cells if c[axis] > middle]


def _packing(schedule: Schedule[GpuTask]) -> tuple[object, ...]:
    return tuple((p.task.key, p.task.buffers, p.size) for p in schedule.packed)


def _signature(schedule: Schedule[GpuTask]) -> object:
    """What it does, as it reads."""
    tasks = tuple((t.note, t.names, t.buffers) for t in schedule.tasks if isinstance(t, Launch))
    return tasks, len(schedule.temps), _packing(schedule)


def _joined(
    buckets: Buckets, ways: Sequence[Schedule[GpuTask]], whole: Schedule[GpuTask]
) -> Schedule[GpuTask]:
    """Schedules as one task. Their temporaries are in the same places, as one of them runs."""
    temps: list[DimLike] = []
    for way in ways:
        temps += [0] * (len(way.temps) - len(temps))
        temps[: len(way.temps)] = map(dim_max, temps, way.temps)
    launches = tuple(
        tuple(replace(t, name=f"{t.name}_{i}") for t in way.tasks if isinstance(t, Launch))
        for i, way in enumerate(ways)
    )
    packed = whole.packed if any(way.packed for way in ways) else ()
    name = next(t.name for t in whole.tasks if isinstance(t, Launch))
    return Schedule((Choice(name, buckets, launches),), tuple(temps), packed)
