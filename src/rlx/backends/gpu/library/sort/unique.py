"""Groups of equal elements, or of equal entries of an axis.

Elements are sorted; where one differs from the one before it a group begins. Groups are numbered
by prefix sums over the sorted elements, and in order of their first elements by prefix sums over
the elements as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.library.compaction import Compaction
from rlx.backends.gpu.library.launches import Launches
from rlx.backends.gpu.library.sort.keys import Item, Keys, Rows, radix_key
from rlx.backends.gpu.library.sort.sort import Sorted, sort_rows
from rlx.backends.gpu.library.writer import View, Writer
from rlx.backends.gpu.task import GpuTask
from rlx.core.dim import DimLike, dim_max, product
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.program.values import Var

I32, I64, U32, BOOL = DType.I32, DType.I64, DType.U32, DType.BOOL


def make_unique(made: Launches) -> Schedule[GpuTask] | Refusal:
    """Values, where each is first, which of them each element is, and how often each occurs."""
    given = _Unique.of(made)
    order = given.sorted_entries()
    if isinstance(order, Refusal):
        return order
    given.group(order)
    return made.schedule()


@dataclass(frozen=True, slots=True)
class Entries:
    """What is compared: the elements of a value in order, or the entries of one of its axes."""

    view: View
    axis: int | None

    @property
    def count(self) -> DimLike:
        dims = self.view.layout.dims
        return product(dims) if self.axis is None else dims[self.axis]

    @property
    def width(self) -> DimLike:
        """Elements of an entry."""
        return 1 if self.axis is None else product(Rows(self.view, self.axis).others.dims)

    def load(self, w: Writer, entry: Var, column: Var, mask: Var | None = None) -> list[Var]:
        """The parts of an element."""
        layout = self.view.layout
        if self.axis is None:
            at = w.at(layout, w.split(entry, layout.dims))
        else:
            at = Rows(self.view, self.axis).at(w, column, entry)
        return [v.to(v.dtype.compute) for v in w.load(self.view, at, mask)]


@dataclass(frozen=True, slots=True)
class Lexicographic(Keys):
    """Entries of several numbers: an item is the number of one, and two are compared in memory."""

    entries: Entries

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return (U32,)

    @property
    def max_tile(self) -> int:
        """A comparison is a loop, of which a program has one for every step of a network."""
        return 128

    def is_less(self, w: Writer, a: Item, b: Item) -> Var:
        """By the first number in which they differ, else by where they are."""
        builder, last = w.b, builder_last(w)
        is_there = a[0].ne(last) & b[0].ne(last)
        one, other = (w.wide(v[0].where(is_there, 0)) for v in (a, b))
        less, column = builder.variable(a[0] < b[0]), builder.variable(w.number(0))
        same = builder.variable(is_there)
        with builder.repeat([less, same, column]) as again:
            again.when(same & (column < w.dim(self.entries.width)))
            pairs = zip(self.entries.load(w, one, column), self.entries.load(w, other, column))
            for x, y in pairs:
                keys = radix_key(builder, x, False), radix_key(builder, y, False)
                differ = same & keys[0].ne(keys[1])
                less.set((keys[0] < keys[1]).where(differ, less))
                same.set(same & ~differ)
            column.set(column + 1)
        return less


def builder_last(w: Writer) -> Var:
    """The number of no entry."""
    return w.b.const(-1, U32)


@dataclass(frozen=True, slots=True)
class _SortedEntries(Sorted):
    """One row, of the numbers of entries."""

    entries: Entries

    @property
    def count(self) -> DimLike:
        return 1

    @property
    def length(self) -> DimLike:
        return self.entries.count

    def fetch(self, w: Writer, row: Var, position: Var) -> Item:
        inside = position < w.dim(self.length)
        return [position.to(U32).where(inside, builder_last(w))]


@dataclass(frozen=True, slots=True)
class _Unique:
    made: Launches
    entries: Entries

    @classmethod
    def of(cls, made: Launches) -> _Unique:
        return cls(made, Entries(made.operand(0), made.node.attrs["axis"]))

    @property
    def count(self) -> DimLike:
        return self.entries.count

    def sorted_entries(self) -> View | Refusal:
        """The numbers of the entries in order, as i32."""
        order = self.made.temp((self.count,), I32)
        view = self.entries.view
        is_plain = self.entries.axis is None and not view.dtype.is_complex
        keys = Keys(view.dtype, False)
        if not is_plain:
            keys = Lexicographic(view.dtype, False, self.entries)

        def put(w: Writer, row: Var, place: Var, item: Item) -> None:
            w.ref(order)[w.wide(place)] = keys.index(item).bits(I32)

        if is_plain:
            flat = self.made.contiguous(view)
            layout = Layout((self.count,), (1,), flat.layout.offset)
            rows = Rows(View(flat.buffer, layout, flat.dtype), 0)
            done = sort_rows(self.made, Sorted(rows, keys, (order,), put))
        else:
            rows = Rows(view, self.entries.axis or 0)
            done = sort_rows(self.made, _SortedEntries(rows, keys, (order,), put, self.entries))
        return done if isinstance(done, Refusal) else order

    # -- groups ----------------------------------------------------------------------------------

    def group(self, order: View) -> None:
        made = self.made
        firsts, groups = (made.temp((self.count,), I32) for _ in range(2))
        begins = Compaction(
            made,
            self.count,
            lambda w, i, inside: self._begins(w, order, i, inside),
            (self.entries.view, order),
            "group",
        )
        sums = begins.counts()
        begins.prefix_sums(sums, made.measured())

        def put(w: Writer, i: Var, up_to: Var, stays: Var) -> None:
            group = (up_to - 1).to(I32)
            entry = w.wide(w.ref(order)[i])
            w.ref(groups)[entry] = group
            w.ref(firsts).store(w.wide(group), [i.to(I32)], stays)

        begins.each(sums, put, (), (firsts, groups))
        total = View(sums.buffer, Layout((1,), (1,), begins.blocks), sums.dtype)
        ranks = None if made.node.attrs["is_sorted"] else self._ranks(order, firsts, groups)
        self._results(order, (firsts, groups, ranks), total)

    def _begins(self, w: Writer, order: View, i: Var, inside: Var) -> Var:
        """Does the i-th sorted entry differ from the one before it?"""
        b, has_before = w.b, inside & (i > 0)
        one = w.wide(w.ref(order).load(i, 1, has_before)[0])
        other = w.wide(w.ref(order).load((i - 1).max(0), 1, has_before)[0])
        differs, column = b.variable(~has_before), b.variable(w.number(0))
        with b.repeat([differs, column]) as again:
            again.when(~differs & (column < w.dim(self.entries.width)))
            pairs = zip(self.entries.load(w, one, column), self.entries.load(w, other, column))
            for x, y in pairs:
                differs.set(differs | self._is_different(x, y))
            column.set(column + 1)
        return differs

    def _is_different(self, x: Var, y: Var) -> Var:
        if x.dtype is BOOL:
            return x ^ y
        if not self.made.node.attrs["equal_nan"] or not x.dtype.is_float:
            return x.ne(y)
        return x.ne(y) & ~(x.ne(x) & y.ne(y))

    def _ranks(self, order: View, firsts: View, groups: View) -> View:
        """The rank of each group by its first entry, in the order of the entries as they are."""
        ranks = self.made.temp((self.count,), I32)

        def is_first(w: Writer, entry: Var, inside: Var) -> Var:
            group = w.wide(w.ref(groups).load(entry, 1, inside)[0])
            first = w.wide(w.ref(firsts).load(group, 1, inside)[0])
            return w.wide(w.ref(order).load(first, 1, inside)[0]).eq(entry)

        def put(w: Writer, entry: Var, rank: Var, _: Var) -> None:
            w.ref(ranks)[w.wide(w.ref(groups)[entry])] = rank.to(I32)

        given = Compaction(self.made, self.count, is_first, (order, firsts, groups), "first")
        sums = given.counts()
        given.prefix_sums(sums)
        given.ranks(sums, put, (), (ranks,))
        return ranks

    # -- results ---------------------------------------------------------------------------------

    def _results(self, order: View, tables: tuple[View, View, View | None], total: View) -> None:
        """A thread an entry, and one for each element of a group's value."""
        made, block = self.made, self.made.machine.block
        firsts, groups, ranks = tables
        values, places, inverse, counts = (made.result(i) for i in range(4))
        columns = dim_max(self.entries.width, 1)

        def ranked(w: Writer, group: Var) -> Var:
            return group if ranks is None else w.wide(w.ref(ranks)[group])

        def body(w: Writer) -> None:
            b, number, count = w.b, w.thread, w.number(self.count)
            found = w.wide(w.ref(total)[w.number(total.layout.offset)])
            with b.when(number < count):
                own = ranked(w, w.wide(w.ref(groups)[number]))
                at = w.at(inverse.layout, w.split(number, inverse.layout.dims))
                w.ref(inverse)[at] = own.to(I64)
            group, column = w.split(number, (self.count, columns))
            with b.when(group < found):
                rank, start = ranked(w, group), w.wide(w.ref(firsts)[group])
                entry = w.wide(w.ref(order)[start])
                with b.when(column < w.dim(self.entries.width)):
                    self._store_value(w, values, (rank, entry, column), found)
                with b.when(column.eq(0)):
                    is_last = group + 1 >= found
                    after = w.wide(w.ref(firsts).load(group + 1, 1, ~is_last)[0])
                    size = count.where(is_last, after) - start
                    for view, value in ((places, entry), (counts, size)):
                        w.ref(view)[w.number(view.layout.offset) + rank] = value.to(I64)

        made.program(
            "results",
            body,
            grid=((self.count * columns + (block - 1)) // block,),
            block=block,
            reads=(self.entries.view, order, total, *(t for t in tables if t is not None)),
            writes=(values, places, inverse, counts),
        )

    def _store_value(self, w: Writer, values: View, at: tuple[Var, Var, Var], found: Var) -> None:
        """An element of a group's value; along an axis there are as many as were found."""
        rank, entry, column = at
        view, axis = self.entries.view, self.entries.axis
        if axis is None:
            source = w.at(view.layout, w.split(entry, view.layout.dims))
            place = rank
        else:
            rows = Rows(view, axis)
            source = rows.at(w, column, entry)
            inner = product(rows.others.dims[axis:])
            outer, within = w.split(column, (product(rows.others.dims[:axis]), inner))
            place = (outer * found + rank) * w.dim(inner) + within
        w.store(values, w.number(values.layout.offset) + place, w.load(view, source))
