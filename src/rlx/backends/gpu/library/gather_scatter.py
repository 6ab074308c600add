"""Gathers and scatters along an axis: take_along_axis, scatter, scatter_add.

Updates of one element are applied in the order of their indices, whatever the number of threads.
In a small result every element is compared with all indices. Else x is copied, and what follows is
in proportion to the updates. Without a reduction the last one wins: the greatest number of an
update at each place, which integer atomics find in any order. With a reduction the indices are
sorted, stably, so that the updates of a place follow one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.sort import order_of
from rlx.backends.gpu.library.writer import View, Writer, is_row
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, lower_bound, product, upper_bound
from rlx.core.dtype import DType
from rlx.core.extent import ceiling
from rlx.core.layout import Layout
from rlx.kernel.expr import Affine, Axis, Exprs, Kernel, Store, strided
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.program.values import Var, Variable

OUT_OF_RANGE = "an index is out of range"
MAX_COMPARED = 32
"""Indices that are compared with every element's place, """
MAX_COMPARISONS = 1 << 20
"""and how many comparisons are faster than the launches that spare them."""
Values = list[Var]


def make_take_along_axis(made: Launches) -> Schedule[GpuTask]:
    """take_along_axis: y[…, i, …] = x[…, index[…, i, …], …], a loop with a gathered row."""
    axis = made.node.attrs["axis"]
    x, indices, y = made.operand(0), made.operand(1), made.result()
    axes = [Axis(f"d{i}", d) for i, d in enumerate(y.layout.dims)]
    still = [a for i, a in enumerate(axes) if i != axis]
    strides = [s for i, s in enumerate(x.layout.strides) if i != axis]
    at = Affine(tuple((a, s) for a, s in zip(still, strides) if s != 0), x.layout.offset)
    exprs = Exprs()
    row = exprs.load(1, strided(indices.layout, axes), indices.dtype)
    stride, bound = x.layout.strides[axis], x.layout.dims[axis]
    value = exprs.gather(0, at, x.dtype, row, stride, bound)
    store = Store(0, strided(y.layout, axes), value)
    special = made.special
    kernel = Kernel(special.name, tuple(axes), (store,), special.operands, special.results)
    made.loop("", kernel, [x, indices], [y])
    return made.schedule()


# -- scatter --------------------------------------------------------------------------------------


def make_scatter(made: Launches) -> Schedule[GpuTask] | Refusal:
    """scatter and scatter_add: x with rows stored into it or combined with it."""
    given = _Scatter.of(made)
    most, size = (upper_bound(ceiling(d)) for d in (given.count, given.size))
    if most is not None and most >= 1 << 31:
        return Refusal(f"{made.node.label}: more than 2^31 indices. Split them")
    few = most is not None and most <= MAX_COMPARED
    if few and size is not None and size * (most or 0) <= MAX_COMPARISONS:
        given.compared(made)
        return made.schedule()
    made.copy(given.x, given.y)
    if given.reduction == "none":
        given.latest(made)
        return made.schedule()
    return given.in_order(made)


@dataclass(frozen=True, slots=True)
class _Scatter:
    """x, indices, updates, and the result."""

    x: View
    indices: View
    updates: View
    y: View
    axis: int
    reduction: str

    @classmethod
    def of(cls, made: Launches) -> _Scatter:
        attrs = made.node.attrs
        x, indices, updates = (made.operand(i) for i in range(3))
        return cls(x, indices, updates, made.result(), attrs["axis"], attrs.get("reduction", "add"))

    @property
    def count(self) -> DimLike:
        """Of the indices."""
        return product(self.indices.layout.dims)

    @property
    def places(self) -> DimLike:
        """Of the axis."""
        return self.y.layout.dims[self.axis]

    @property
    def size(self) -> DimLike:
        return product(self.y.layout.dims)

    # -- addresses -------------------------------------------------------------------------------

    def index(self, w: Writer, number: Var, mask: Var | None = None) -> Var:
        """The index of this number, in its own dtype."""
        layout = self.indices.layout
        return w.load(self.indices, w.at(layout, w.split(number, layout.dims)), mask)[0]

    def update(self, w: Writer, position: list[Var], number: Var, mask: Var | None) -> Values:
        """The update of an element by the index of this number."""
        within = w.split(number, self.indices.layout.dims)
        where = [*position[: self.axis], *within, *position[self.axis + 1 :]]
        return w.load(self.updates, w.at(self.updates.layout, where), mask)

    def held(self, values: Values) -> Values:
        """Halves are f32 until all updates are applied where that rounds."""
        wide = self.x.dtype.compute if self.reduction in COMBINE else self.x.dtype
        return [v.to(wide.real) for v in values]

    def elements(self, made: Launches) -> tuple[tuple[DimLike], int]:
        """A grid with a thread for each element of the result."""
        block = made.machine.block
        return ((self.size + (block - 1)) // block,), block

    def combined(self, totals: list[Variable], values: Values, holds: Var) -> None:
        """The update on top of those before, where the condition holds."""
        old: Values = list(totals)
        news = COMBINE[self.reduction](old, values) if self.reduction in COMBINE else values
        for total, new in zip(totals, news):
            total.set(new.where(holds, total))

    def stored(self, w: Writer, position: list[Var], totals: list[Variable]) -> None:
        values = [t.to(self.y.dtype.real) for t in totals]
        w.store(self.y, w.at(self.y.layout, position), values)

    def start(self, w: Writer, position: list[Var]) -> list[Variable]:
        """What x has there."""
        values = w.load(self.x, w.at(self.x.layout, position))
        return [w.b.variable(v) for v in self.held(values)]

    # -- few indices -----------------------------------------------------------------------------

    def compared(self, made: Launches) -> None:
        """Every element goes through all indices. The first threads look for wrong ones: there may
        be no element at all."""

        def body(w: Writer) -> None:
            b, count, bound = w.b, w.number(self.count), w.dim(self.places)
            own = w.thread
            is_index = own < count
            w.fail(is_index & ~is_row(self.index(w, own, is_index), bound), OUT_OF_RANGE)
            with b.when(own < w.dim(self.size)):
                position = w.split(own, self.y.layout.dims)
                totals = self.start(w, position)
                with b.loop(w.number(0), count, carry=totals) as i:
                    row = self.index(w, i)
                    holds = _equal(row, position[self.axis])
                    values = self.update(w, position, i, holds)
                    self.combined(totals, self.held(values), holds)
                self.stored(w, position, totals)

        (blocks,), block = self.elements(made)
        least = -(-MAX_COMPARED // block)
        made.program(
            "compare",
            body,
            grid=(blocks + least,),
            block=block,
            reads=(self.x, self.indices, self.updates),
            writes=(self.y,),
            failures=(OUT_OF_RANGE,),
            note="compares every place with every index",
        )

    # -- in proportion to the updates ------------------------------------------------------------

    @property
    def free(self) -> tuple[DimLike, ...]:
        """The axes that indices do not address."""
        return (*self.y.layout.dims[: self.axis], *self.y.layout.dims[self.axis + 1 :])

    def _position(self, free: list[Var], row: Var) -> list[Var]:
        return [*free[: self.axis], row, *free[self.axis :]]

    def latest(self, made: Launches) -> None:
        """The number of the last update at every place that has one: below 0 first, whatever is
        in memory, then the greatest; its row is stored."""
        winners = made.temp((self.places,), DType.I32)

        def below(w: Writer, row: Var, _: Var, inside: Var) -> None:
            w.b.atomic(w.ref(winners), "min", row, -1, inside)

        def greatest(w: Writer, row: Var, number: Var, inside: Var) -> None:
            w.fail(~inside, OUT_OF_RANGE)
            w.b.atomic(w.ref(winners), "max", row, number.to(DType.I32), inside)

        def store(w: Writer) -> None:
            with w.b.when(w.thread < w.number(self.count) * w.dim(product(self.free))):
                number, *free = w.split(w.thread, (self.count, *self.free))
                row, inside = self._known_row(w, number)
                winner = w.wide(w.ref(winners).load(row, 1, inside)[0])
                with w.b.when(inside & winner.eq(number)):
                    position = self._position(free, row)
                    values = self.update(w, position, number, None)
                    w.store(self.y, w.at(self.y.layout, position), values)

        self._each_index(made, "below", below, winners)
        self._each_index(made, "greatest", greatest, winners, (OUT_OF_RANGE,))
        block = made.machine.block
        made.program(
            "store",
            store,
            grid=((self.count * product(self.free) + (block - 1)) // block,),
            block=block,
            reads=(self.indices, self.updates, winners),
            writes=(self.y,),
            note="the last update of every place",
        )

    def _known_row(self, w: Writer, number: Var) -> tuple[Var, Var]:
        """The row of an index, 0 where it is out of range, and whether it is in."""
        row = self.index(w, number)
        inside = is_row(row, w.dim(self.places))
        return w.wide(row).where(inside, 0), inside

    def _each_index(
        self,
        made: Launches,
        part: str,
        do: Callable[[Writer, Var, Var, Var], None],
        winners: View,
        failures: tuple[str, ...] = (),
    ) -> None:
        block = made.machine.block

        def body(w: Writer) -> None:
            with w.b.when(w.thread < w.dim(self.count)):
                row, inside = self._known_row(w, w.thread)
                do(w, row, w.thread, inside)

        made.program(
            part,
            body,
            grid=((self.count + (block - 1)) // block,),
            block=block,
            reads=(self.indices,),
            updates=(winners,),
            failures=failures,
        )

    def in_order(self, made: Launches) -> Schedule[GpuTask] | Refusal:
        """Indices sorted; the threads of the first one of each run apply the whole run."""
        flat = self._flat_indices(made)
        order = order_of(made, flat)
        if isinstance(order, Refusal):
            return order
        free = product(self.free)

        def apply(w: Writer) -> None:
            b, count = w.b, w.number(self.count)
            with b.when(w.thread < count * w.dim(free)):
                start, *rest = w.split(w.thread, (self.count, *self.free))
                row = _row(w, flat, w.wide(w.ref(order)[start]))
                inside = is_row(row, w.dim(self.places))
                w.fail(~inside, OUT_OF_RANGE)
                has_before = start > 0
                before = w.wide(w.ref(order).load(start - 1, 1, has_before)[0])
                begins = ~has_before | _row(w, flat, before, has_before).ne(row)
                with b.when(inside & begins):
                    self._run(w, flat, order, start, self._position(rest, w.wide(row)))

        block = made.machine.block
        made.program(
            "apply",
            apply,
            grid=((self.count * free + (block - 1)) // block,),
            block=block,
            reads=(self.x, self.updates, flat, order),
            writes=(self.y,),
            failures=(OUT_OF_RANGE,),
            note="sorted updates, in their order",
        )
        self._check_indices(made)
        return made.schedule()

    def _run(self, w: Writer, flat: View, order: View, start: Var, position: list[Var]) -> None:
        """All updates of one element."""
        b, count, own = w.b, w.number(self.count), position[self.axis]
        totals, at = self.start(w, position), b.variable(start)
        with b.repeat([at, *totals]) as again:
            inside = at < count
            number = w.wide(w.ref(order).load(at, 1, inside)[0])
            again.when(inside & _equal(_row(w, flat, number, inside), own))
            number = w.wide(w.ref(order)[at])
            values = self.update(w, position, number, None)
            self.combined(totals, self.held(values), b.const(True, DType.BOOL))
            at.set(at + 1)
        self.stored(w, position, totals)

    def _check_indices(self, made: Launches) -> None:
        """Where the other axes may be empty, no thread has met the indices."""
        if lower_bound(product(self.free)) > 0:
            return
        block = made.machine.block

        def body(w: Writer) -> None:
            with w.b.when(w.thread < w.dim(self.count)):
                w.fail(~self._known_row(w, w.thread)[1], OUT_OF_RANGE)

        made.program(
            "check",
            body,
            grid=((self.count + (block - 1)) // block,),
            block=block,
            reads=(self.indices,),
            failures=(OUT_OF_RANGE,),
        )

    def _flat_indices(self, made: Launches) -> View:
        whole = made.contiguous(self.indices)
        layout = Layout((self.count,), (1,), whole.layout.offset)
        return View(whole.buffer, layout, whole.dtype, whole.is_constant)


def _row(w: Writer, flat: View, number: Var, mask: Var | None = None) -> Var:
    return w.ref(flat).load(w.at(flat.layout, (number,)), 1, mask)[0]


def _equal(row: Var, place: Var) -> Var:
    """Is an index of any dtype this place?"""
    wide = row if row.dtype is DType.U64 else row.to(DType.I64)
    return wide.eq(place.to(wide.dtype))


def _product(x: Values, y: Values) -> Values:
    if len(x) == 1:
        return [x[0] * y[0]]
    (a, b), (c, d) = x, y
    return [a * c - b * d, a * d + b * c]


def _each(fold: Callable[[Var, Var], Var]) -> Callable[[Values, Values], Values]:
    return lambda x, y: [fold(a, b) for a, b in zip(x, y)]


COMBINE: dict[str, Callable[[Values, Values], Values]] = {
    "add": _each(lambda x, y: x + y),
    "mul": _product,
    "max": _each(lambda x, y: x.max(y)),
    "min": _each(lambda x, y: x.min(y)),
}
