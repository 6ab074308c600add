"""Buckets of sizes: kernels with named dims get several schedules, one of which a call takes.

A schedule is chosen for sizes. Where these are named, the range of each is divided at some powers
of two, and the kernel is scheduled for the sizes of every cell of that grid as if there were no
others: what is known in a cell, such as that there are at most 16 rows, is known as it is of a
number, and a choice is made for the cell's greatest sizes.

Few of these schedules are taken: as many as it needs for each cell to have one that is predicted to
take hardly longer than its best. Each is made for the least box around its cells, and is compiled
once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product as every_pair
from typing import TypeAlias

from rlx.backends.gpu.buckets import Buckets
from rlx.backends.gpu.schedule.size_axes import (
    Resizable,
    SizeAxis,
    coarser,
    monomials_of,
    size_axes,
    symbols_in,
)
from rlx.backends.gpu.task import Choice, GpuTask, Launch, Price
from rlx.core.atoms import Monomial, Symbol
from rlx.core.dim import Dim, DimLike, dim_max, dim_min, is_static, substitute, upper_bound
from rlx.core.extent import of_symbol
from rlx.ir.mir import Graph
from rlx.kernel.attention import Attention
from rlx.kernel.collapse import collapsed
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Kernel
from rlx.kernel.program.forms import AnyKernel, Conv
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal, attempt
from rlx.kernel.substitute import with_dims
from rlx.ops.op import Kind
from rlx.passes.bodies import nodes_within
from rlx.program.program import Program
from rlx.program.sizes import resized

EDGES = (1, 4, 8, 16, 64, *(1 << i for i in range(7, 15)))
"""Where ranges are divided: one, parts of a tile, a few tiles, and from then on by twos. Larger
sizes fill every device, and choices stay as they are."""
LOOP_EDGES = (256, 1024, 4096, 16384)
"""The same of loop nests that reduce over named dims."""
MAX_ALTERNATIVES, MAX_LOOP_ALTERNATIVES = 9, 3
"""Schedules of a kernel."""
MAX_PROGRAM_ALTERNATIVES = 48
"""Of all products of a program together, about: each takes some time to compile."""
CELLS_PER_ALTERNATIVE = 4
"""That are looked at, each of which is scheduled."""
SLACKS = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
"""Of the predicted time of a cell's best schedule: what another may take longer. The first for
which they are few enough is taken."""
Box: TypeAlias = tuple[tuple[int, int | None], ...]
"""A range of each size."""
Cell: TypeAlias = tuple[int, ...]
"""The number of a range of each size."""
Make: TypeAlias = Callable[[AnyKernel], "Schedule[GpuTask] | Refusal"]
ScheduleKey: TypeAlias = tuple[object, ...]
"""What schedules have in common that can be one."""
Options: TypeAlias = dict[ScheduleKey, float]
"""What the schedules of a cell are predicted to take."""


PRODUCTS = (Kind.CONTRACTION, Kind.CONVOLUTION, Kind.ATTENTION)


def named_products(graph: Graph) -> int:
    """Unlike products of named dims, in all graphs that are held inside, too."""
    found = (n for n in nodes_within(graph) if n.decl.kind in PRODUCTS)
    named = (n for n in found if not all(s.is_static for s in n.shapes))
    return len({(n.op, n.attr_key, tuple(i.shape for i in n.inputs)) for n in named})


def alternatives_of_each(products: int) -> int:
    """How many a kernel may have, where a program has so many products of named dims."""
    return min(MAX_ALTERNATIVES, max(2, MAX_PROGRAM_ALTERNATIVES // max(1, products)))


def bucketed(
    kernel: AnyKernel, whole: Schedule[GpuTask], make: Make, most: int = MAX_ALTERNATIVES
) -> Schedule[GpuTask]:
    """The schedules of a kernel by its sizes, at most so many, of which `whole` is for all sizes;
    that alone, where no other is better anywhere."""
    form = _resizable(kernel)
    if form is None or not _is_launched(whole):
        return whole
    is_loop = isinstance(form, Kernel)
    most = min(most, MAX_LOOP_ALTERNATIVES) if is_loop else most
    axes = size_axes(form, LOOP_EDGES if is_loop else EDGES, CELLS_PER_ALTERNATIVE * most)
    made: dict[object, Schedule[GpuTask]] = {}
    while axes:
        grid = _Grid(form, axes, whole, make, made)
        for slack in SLACKS:
            alternatives, table = grid.alternatives(slack)
            if len(alternatives) == 1:
                return alternatives[0]
            if len(alternatives) <= most:
                sizes, edges = tuple(a.size for a in axes), tuple(a.edges for a in axes)
                return _joined(Buckets(sizes, edges, table), alternatives, whole)
        axes = coarser(axes)
    return whole


def _resizable(kernel: AnyKernel) -> Resizable | None:
    """The kernel, where its schedule depends on sizes: not that of a loop nest without reductions
    over named dims, which runs alike whatever the number of its points."""
    match kernel:
        case Kernel():
            is_named = any(not is_static(a.extent) for a in kernel.reduced)
            return collapsed(kernel) if is_named else None
        case Contract() | Conv() | Attention():
            return kernel
        case _:
            return None


def _is_launched(schedule: Schedule[GpuTask]) -> bool:
    return all(isinstance(t, Launch) for t in schedule.all_tasks)


class _Grid:
    """A kernel and the cells of its sizes."""

    def __init__(
        self,
        form: Resizable,
        axes: tuple[SizeAxis, ...],
        whole: Schedule[GpuTask],
        make: Make,
        made: dict[object, Schedule[GpuTask]],
    ) -> None:
        self.form, self.axes, self.whole, self.make = form, axes, whole, make
        self.made = made
        """By the ranges of sizes; with names of their own for these."""
        self.found: dict[Box, Options] = {}
        self.own = _key_of(whole, all(upper_bound(a.size) is not None for a in axes), _note(whole))
        symbols = {s.name: of_symbol(s) for m in monomials_of(form) for s in symbols_in(m)}
        self.names: dict[str, DimLike] = {**symbols, **{a.name: a.size for a in axes}}
        """What the names in schedules of boxes stand for."""
        every = self._options([range(len(a.edges) + 1) for a in axes])
        self.options = dict(sorted(every))

    def alternatives(self, slack: float) -> tuple[list[Schedule[GpuTask]], tuple[int, ...]]:
        """The schedules, and which one each cell has."""
        groups: dict[ScheduleKey, list[Cell]] = {}
        for cell, kind in covered(self.options, slack).items():
            groups.setdefault(kind, []).append(cell)
        alternatives, taken = list[Schedule[GpuTask]](), dict[Cell, int]()
        for kind, group in groups.items():
            for made, cells in self._schedules(kind, group):
                if made not in alternatives:
                    alternatives.append(made)
                taken |= dict.fromkeys(cells, alternatives.index(made))
        return alternatives, tuple(taken[c] for c in self.options)

    def _options(self, ranges: list[range]) -> Iterator[tuple[Cell, Options]]:
        """The schedules of each cell. Where nothing is predicted, and the least and the greatest
        sizes have the same schedule, so have those between them."""
        low, high = (tuple(r[end] for r in ranges) for end in (0, -1))
        found = self._kinds([low])
        if low == high or (len(found) == 1 and found == self._kinds([high])):
            yield from ((cell, found) for cell in every_pair(*ranges))
            return
        number = max(range(len(ranges)), key=lambda i: len(ranges[i]))
        middle = len(ranges[number]) // 2
        for half in (ranges[number][:middle], ranges[number][middle:]):
            yield from self._options([half if i == number else r for i, r in enumerate(ranges)])

    def _kinds(self, cells: Sequence[Cell]) -> Options:
        """Those of the least box around cells."""
        box = self._box(cells)
        if box not in self.found:
            made, is_bounded = self._within(box), all(high is not None for _, high in box)
            self.found[box] = {_key_of(made, is_bounded, n): ns for n, ns in _notes(made)}
        return self.found[box]

    def _schedules(
        self, kind: ScheduleKey, cells: list[Cell]
    ) -> Iterator[tuple[Schedule[GpuTask], list[Cell]]]:
        """Those of a kind, each for some of the cells: one for the least box around all of them, if
        that has one of the kind; else those of two parts."""
        if kind == self.own:
            yield self.whole, cells
        elif kind in self._kinds(cells):
            made = self._within(self._box(cells))
            yield self._restored(_taking(made, str(kind[0]))), cells
        else:
            for part in _parts(cells):
                yield from self._schedules(kind, part)

    def _box(self, cells: Sequence[Cell]) -> Box:
        """The least that has all of the cells."""
        ranges: list[tuple[int, int | None]] = []
        for number, axis in enumerate(self.axes):
            held = [cell[number] for cell in cells]
            ranges.append((axis.ranges[min(held)][0], axis.ranges[max(held)][1]))
        return tuple(ranges)

    def _within(self, box: Box) -> Schedule[GpuTask]:
        """The schedule for the sizes of a box; that for all sizes, where there is none or where it
        would have weights in memory once more."""
        key = tuple((a.name, r) for a, r in zip(self.axes, box))
        if key not in self.made:
            narrow = with_dims(self.form, self._change(box))
            made = attempt(lambda: self.make(narrow))
            if isinstance(made, Refusal) or not self._is_usable(made):
                made = self.whole
            self.made[key] = made
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
        if made is self.whole:
            return made
        temps = (dim_min(self._named(t), _most(t)) for t in made.temps)
        tasks = tuple(self._launch(t) for t in made.tasks if isinstance(t, Launch))
        return Schedule(tasks, tuple(temps), made.packed and self.whole.packed)

    def _launch(self, launch: Launch) -> Launch:
        key = launch.key, tuple(self.names.items())
        others = tuple(
            replace(v, write=self._writing(v.write), price=self._pricing(v.price))
            for v in launch.others
        )
        price = self._pricing(launch.price)
        return replace(
            launch, write=self._writing(launch.write), key=key, others=others, price=price
        )

    def _pricing(self, price: Price | None) -> Price | None:
        return None if price is None else lambda resize: price(lambda d: resize(self._named(d)))

    def _writing(self, write: Callable[[str], Program]) -> Callable[[str], Program]:
        return lambda name: resized(write(name), self._named)

    def _named(self, dim: DimLike) -> DimLike:
        return substitute(dim, self.names)


# -- kinds ----------------------------------------------------------------------------------------


def _key_of(schedule: Schedule[GpuTask], is_bounded: bool, note: str) -> ScheduleKey:
    """What it does, as it reads. Indices of sizes without a bound have more bits."""
    tasks = tuple((t.names, t.buffers) for t in schedule.tasks if isinstance(t, Launch))
    return note, tasks, len(schedule.temps), _packing(schedule), is_bounded


def _packing(schedule: Schedule[GpuTask]) -> ScheduleKey:
    return tuple((p.task.key, p.task.buffers, p.size) for p in schedule.packed)


def _note(schedule: Schedule[GpuTask]) -> str:
    return "; ".join(t.note for t in schedule.tasks if isinstance(t, Launch))


def _notes(schedule: Schedule[GpuTask]) -> Iterator[tuple[str, float]]:
    """How the schedule runs, and how it does with each other program that its launch may be, with
    the time that is predicted."""
    launches = [t for t in schedule.tasks if isinstance(t, Launch)]
    if len(launches) == 1:
        yield from ((v.note, v.predicted_ns) for v in launches[0].variants)
    else:
        yield _note(schedule), 0.0


def _taking(schedule: Schedule[GpuTask], note: str) -> Schedule[GpuTask]:
    """The schedule with that one of the programs that its launch may be."""
    if note == _note(schedule):
        return schedule
    (launch,) = (t for t in schedule.tasks if isinstance(t, Launch))
    variant = next(v for v in launch.variants if v.note == note)
    rest = tuple(v for v in launch.variants if v is not variant)
    made = replace(launch.taking(variant), key=(launch.key, variant.note), others=rest)
    return replace(schedule, tasks=(made,))


def covered(options: Mapping[Cell, Options], slack: float) -> dict[Cell, ScheduleKey]:
    """A kind for each cell that takes so much longer than its best one at most: few of them, those
    that serve the most cells first; of these the best."""
    best = {cell: min(found, key=lambda k: found[k]) for cell, found in options.items()}
    near = {
        kind: {c for c, f in options.items() if kind in f and f[kind] <= (1 + slack) * f[best[c]]}
        for kind in dict.fromkeys(best.values())
    }
    taken, left = list[ScheduleKey](), set(options)
    while left:
        taken.append(max(near, key=lambda kind: len(near[kind] & left)))
        left -= near[taken[-1]]
    return {
        cell: min((k for k in taken if k in found), key=lambda k: found[k])
        for cell, found in options.items()
    }


def _most(dim: DimLike) -> DimLike:
    most = upper_bound(dim)
    return dim if most is None else most


def _parts(cells: list[Cell]) -> Iterator[list[Cell]]:
    """Two parts, along the axis of most ranges."""
    spread = [max(c) - min(c) for c in zip(*cells)]
    axis = spread.index(max(spread))
    middle = min(c[axis] for c in cells) + spread[axis] // 2
    yield [c for c in cells if c[axis] <= middle]
    yield [c for c in cells if c[axis] > middle]


def _joined(
    buckets: Buckets, alternatives: Sequence[Schedule[GpuTask]], whole: Schedule[GpuTask]
) -> Schedule[GpuTask]:
    """Schedules as one task. Their temporaries are in the same places, as one of them runs."""
    temps: list[DimLike] = []
    for schedule in alternatives:
        temps += [0] * (len(schedule.temps) - len(temps))
        temps[: len(schedule.temps)] = map(dim_max, temps, schedule.temps)
    launches = tuple(
        tuple(replace(t, name=f"{t.name}_{i}") for t in schedule.tasks if isinstance(t, Launch))
        for i, schedule in enumerate(alternatives)
    )
    packed = whole.packed if any(schedule.packed for schedule in alternatives) else ()
    name = next(t.name for t in whole.tasks if isinstance(t, Launch))
    return Schedule((Choice(name, buckets, launches),), tuple(temps), packed)
