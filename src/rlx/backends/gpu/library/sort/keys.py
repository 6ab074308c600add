"""Radix keys: elements as unsigned integers whose order is that of the sort, with their indices.

NaN is greater than all and equals itself, and both zeros are equal: equal elements have equal keys,
so that the index behind the key makes every sort stable, whatever the network or merge does.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlx.backends.gpu.library.writer import View, Writer
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.program.builder import Builder
from rlx.program.values import SharedRef, Var

U32, U64, I32, I64 = DType.U32, DType.U64, DType.I32, DType.I64
Item = list[Var]
"""A key and an index: one number where the key has 32 bits, else two."""


def radix_key(b: Builder, x: Var, descending: bool) -> Var:
    """The key of an element in its compute dtype, or as it is stored: u64 of 64 bits, else u32."""
    key = _ascending(b, x.to(x.dtype.compute))
    return ~key if descending else key


def _ascending(b: Builder, x: Var) -> Var:
    unsigned = U64 if x.dtype.itemsize == 8 else U32
    bits = unsigned.itemsize * 8
    top = b.const(1 << (bits - 1), unsigned)
    if x.dtype.is_float:
        one_zero = b.const(0.0, x.dtype).where(x.eq(0.0), x)
        raw = one_zero.bits(unsigned)
        is_negative = (raw >> (bits - 1)).ne(0)
        key = (~raw).where(is_negative, raw | top)
        return b.const((1 << bits) - 1, unsigned).where(x.ne(x), key)
    if not x.dtype.is_signed or x.dtype is DType.BOOL:
        return x.to(unsigned)
    wide = x.to(I64 if unsigned is U64 else I32)
    return wide.bits(unsigned) ^ top


@dataclass(frozen=True, slots=True)
class Rows:
    """A value as rows along an axis: of every other axis' points one."""

    view: View
    axis: int

    @property
    def others(self) -> Layout:
        layout, axis = self.view.layout, self.axis
        dims = (*layout.dims[:axis], *layout.dims[axis + 1 :])
        return Layout(dims, (*layout.strides[:axis], *layout.strides[axis + 1 :]), layout.offset)

    @property
    def length(self) -> DimLike:
        return self.view.layout.dims[self.axis]

    def at(self, w: Writer, row: Var, position: Var) -> Var:
        """The index of an element."""
        base = w.at(self.others, w.split(row, self.others.dims))
        stride = w.dim(self.view.layout.strides[self.axis])
        return w.plus(base, w.times(w.wide(position), stride))


@dataclass(frozen=True, slots=True)
class Keys:
    """How elements of a dtype are sorted."""

    dtype: DType
    descending: bool

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Of the numbers of an item."""
        return (U64, U32) if self.dtype.compute.itemsize == 8 else (U64,)

    @property
    def max_tile(self) -> int:
        """Items that a block sorts."""
        return 2048

    @property
    def item_bytes(self) -> int:
        return sum(d.itemsize for d in self.dtypes)

    def item(self, b: Builder, x: Var, index: Var) -> Item:
        key = radix_key(b, x, self.descending)
        number = index.to(U32)
        if len(self.dtypes) == 2:
            return [key, number]
        return [(key.to(U64) << 32) | number.to(U64)]

    def nothing(self, b: Builder) -> Item:
        """Behind all items."""
        return [b.const(-1, d) for d in self.dtypes]

    def index(self, item: Item) -> Var:
        """Of the element (u32)."""
        return item[-1].to(U32)

    def is_less(self, w: Writer, a: Item, b: Item) -> Var:
        if len(a) == 1:
            return a[0] < b[0]
        return (a[0] < b[0]) | (a[0].eq(b[0]) & (a[1] < b[1]))


def chosen(condition: Var, yes: Item, no: Item) -> Item:
    return [y.where(condition, n) for y, n in zip(yes, no)]


@dataclass(frozen=True, slots=True)
class Items:
    """Items between launches, [rows, length]: an array for each number of an item."""

    views: tuple[View, ...]

    @property
    def length(self) -> DimLike:
        return self.views[0].layout.dims[1]

    def load(self, w: Writer, row: Var, position: Var, mask: Var | None = None) -> Item:
        at = w.at(self.views[0].layout, (row, w.wide(position)))
        return [w.ref(v).load(at, 1, mask)[0] for v in self.views]

    def store(self, w: Writer, row: Var, position: Var, item: Item) -> None:
        at = w.at(self.views[0].layout, (row, w.wide(position)))
        for view, value in zip(self.views, item):
            w.ref(view).store(at, [value])


def shared_items(b: Builder, keys: Keys, count: int) -> list[SharedRef]:
    return [b.shared(f"items{i}", d, count) for i, d in enumerate(keys.dtypes)]
