"""Programs of named algorithms: strided values, sizes as arguments, failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlx.backends.gpu.lower.loop import MAX_I32
from rlx.backends.gpu.task import FAILURES
from rlx.core.dim import Dim, DimLike, is_static, upper_bound
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.kernel.program.schedule import Buffer
from rlx.program.builder import Builder
from rlx.program.nodes import Value
from rlx.program.program import Program
from rlx.program.values import BufferRef, Var, Variable

I32, I64, U64 = DType.I32, DType.I64, DType.U64


@dataclass(frozen=True, slots=True)
class View:
    """A value in a buffer."""

    buffer: Buffer
    layout: Layout
    dtype: DType
    is_constant: bool = False

    @property
    def parts(self) -> int:
        """Real numbers of an element."""
        return 2 if self.dtype.is_complex else 1


def index_dtype(views: Sequence[View], counts: Sequence[DimLike], bits: int = 64) -> DType:
    """64 bits where an index into one of these, or a number of threads, may not fit in 32, and a
    machine has buffers of as many elements."""
    if bits == 32:
        return I32
    reach = [_reach(v) for v in views]
    threads = 1
    for count in counts:
        most = upper_bound(count)
        threads = None if threads is None or most is None else threads * most
    known = [r for r in (*reach, threads) if r is not None]
    is_small = len(known) == len(reach) + 1 and sum(known) <= MAX_I32
    return I32 if is_small else I64


def _reach(view: View) -> int | None:
    """The greatest index, in real numbers."""
    total, layout = _size(view.layout.offset), view.layout
    for dim, stride in zip(layout.dims, layout.strides):
        parts = _size(dim), _size(stride)
        if total is None or None in parts:
            return None
        total += (parts[0] or 0) * (parts[1] or 0)
    return None if total is None else total * view.parts


def _size(dim: DimLike) -> int | None:
    """The greatest absolute value."""
    if isinstance(dim, int):
        return abs(dim)
    low, high = dim.interval
    return None if low is None or high is None else max(abs(low), abs(high))


class Writer:
    """One program under construction."""

    def __init__(
        self,
        b: Builder,
        refs: Mapping[Buffer, BufferRef],
        index: DType,
        *,
        is_dependent: bool = False,
    ) -> None:
        self.b, self.refs, self.index, self.is_dependent = b, refs, index, is_dependent
        self.sizes: dict[Dim, Var] = {}
        self.shifts: dict[Value, tuple[Var, int]] = {}
        """Sums of a value and a number that `plus` has made."""
        self.failures: BufferRef | None = None
        self.variables: dict[str, Variable] = {}
        """What parts of an algorithm hand to each other."""

    def program(self) -> Program:
        return self.b.program()

    def wait(self) -> None:
        """For the kernels before this one: only constants may be read until here."""
        if self.is_dependent:
            self.b.wait_dependencies()

    # -- numbers ---------------------------------------------------------------------------------

    def dim(self, dim: DimLike) -> Var | int:
        """A number, or the argument that holds it."""
        if is_static(dim):
            return dim
        assert isinstance(dim, Dim)
        if dim not in self.sizes:
            self.sizes[dim] = self.b.size(f"n{len(self.sizes)}", dim, self.index)
        return self.sizes[dim]

    def number(self, dim: DimLike) -> Var:
        value = self.dim(dim)
        return value if isinstance(value, Var) else self.b.const(value, self.index)

    def wide(self, value: Var) -> Var:
        """In the dtype of indices."""
        if value.dtype is self.index or value.value not in self.shifts:
            return value.to(self.index)
        base, number = self.shifts[value.value]
        return self.plus(base.to(self.index), number)

    def plus(self, x: Var, y: Var | int) -> Var:
        """x + y with numbers added last: addresses that differ in these have the rest in common."""
        a, c = self.shifts.get(x.value, (x, 0))
        b, d = self.shifts.get(y.value, (y, 0)) if isinstance(y, Var) else (0, y)
        base, number = a + b, c + d
        if number == 0:
            return base
        made = base + number
        self.shifts[made.value] = (base, number)
        return made

    def times(self, x: Var, factor: Var | int) -> Var:
        """x · factor, the same way."""
        if not isinstance(factor, int) or x.value not in self.shifts:
            return x * factor
        base, number = self.shifts[x.value]
        return self.plus(base * factor, number * factor)

    @property
    def thread(self) -> Var:
        """The thread's number in the whole grid's first dimension."""
        block = self.wide(self.b.block_index())
        return block * self.b.made.block + self.wide(self.b.thread)

    def block_index(self, dim: int = 0) -> Var:
        return self.wide(self.b.block_index(dim))

    def split(self, flat: Var, dims: Sequence[DimLike]) -> list[Var]:
        """The coordinates of a row-major number."""
        found: list[Var] = []
        for number, dim in reversed(list(enumerate(dims))):
            found.append(flat if number == 0 else flat % self.dim(dim))
            flat = flat if number == 0 else flat // self.dim(dim)
        return found[::-1]

    def at(self, layout: Layout, positions: Sequence[Var | int]) -> Var:
        """The index of an element, in elements."""
        total = self.number(layout.offset)
        for position, stride in zip(positions, layout.strides, strict=True):
            if stride == 0:
                continue
            given = position if isinstance(position, Var) else self.number(position)
            total = self.plus(total, self.times(given, self.dim(stride)))
        return total

    # -- memory ----------------------------------------------------------------------------------

    def ref(self, view: View) -> BufferRef:
        return self.refs[view.buffer]

    def load(self, view: View, at: Var, mask: Var | None = None) -> list[Var]:
        """The parts of an element, as they are stored."""
        return self.ref(view).load(self.times(at, view.parts), view.parts, mask)

    def store(self, view: View, at: Var, values: Sequence[Var], mask: Var | None = None) -> None:
        self.ref(view).store(self.times(at, view.parts), values, mask)

    def element(self, view: View, positions: Sequence[Var | int], mask: Var | None = None) -> Var:
        """A real element in its compute dtype."""
        return self.load(view, self.at(view.layout, positions), mask)[0].to(view.dtype.compute)

    # -- failures --------------------------------------------------------------------------------

    def fail(self, condition: Var, meaning: str) -> None:
        """Note what went wrong where the condition holds."""
        if self.failures is None:
            self.failures = self.b.buffer(FAILURES, I32, "update", 1)
        known = self.b.made.failures
        code = known.index(meaning) + 1 if meaning in known else self.b.failure(meaning)
        self.b.atomic(self.failures, "max", 0, code, condition)


def is_row(row: Var, bound: Var | int) -> Var:
    """0 ≤ row < bound, for an index of any dtype."""
    wide = row if row.dtype is U64 else row.to(I64)
    high = bound.to(wide.dtype) if isinstance(bound, Var) else bound
    below = wide < high
    return below if wide.dtype is U64 else below & (wide >= 0)
