"""A function over a range of a contraction's units, and expressions at one position of it.

Extents and strides are arguments, so that GEMMs of other sizes share the code; only strides of 0
and 1 are specialised. Pointers are advanced as far as the enclosing axes are known, so that an
inner loop adds nothing that is invariant in it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager

from rlx.backends.cpu.codegen.loop.vector_access import advanced, load
from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.function import Function, Source, head_of
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.backends.cpu.schedule.gemm_tiling import NoGemm, Tiling
from rlx.core.dim import DimLike
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract
from rlx.kernel.expr import (
    Affine,
    Apply,
    Axis,
    Choose,
    Const,
    Expr,
    Index,
    Inside,
    Load,
    Reduce,
    Size,
    Store,
    postorder,
)
from rlx.program.types import POINTER

Placed = Load | Store
"""What has an index map."""


def require_evaluable(contract: Contract, roots: Iterable[Expr]) -> None:
    """Refuse expressions that the builder has no code for: gathered rows, and selects of what to
    read."""
    for node in postorder(roots):
        is_gather = isinstance(node, Load) and bool(node.args)
        if is_gather or isinstance(node, Choose | Reduce):
            raise NoGemm(f"{contract.name}: no code for {type(node).__name__} in it")


class ContractionBuilder:
    """The function being built."""

    def __init__(self, contract: Contract, tiling: Tiling, isa: Isa) -> None:
        self.contract, self.tiling = contract, tiling
        self.code = Code(tiling.lanes, isa)
        self.sizes: list[DimLike] = []
        self.at: dict[Axis, Bound] = {}
        self.strides: dict[Placed, dict[Axis, Bound]] = {}
        self.pointers: dict[Placed, str] = {}
        self.values: dict[Expr, Vec] = {}

    def source(self, name: str) -> Source:
        """The finished function."""
        self.code.do("ret i32 0")
        text = self.code.function(head_of(name))
        function = Function(name, text, tuple(self.code.shared.items()))
        return Source(function, tuple(self.sizes))

    # -- arguments ------------------------------------------------------------------------------

    def size(self, dim: DimLike) -> str:
        """The argument with the value of the dim."""
        self.sizes.append(dim)
        place = self.code.advanced("%sizes", len(self.sizes) - 1, DType.I64)
        return self.code.load_scalar(place, DType.I64)

    def extents(self, axes: Iterable[Axis]) -> dict[Axis, str]:
        return {a: self.size(a.extent) for a in axes}

    def buffer(self, number: int) -> str:
        place = self.code.advanced("%buffers", number, POINTER)
        return self.code.load_uniform(place, POINTER)

    def open(self, placed: Placed, number: int) -> None:
        """Prepare to load or store a buffer at an index map."""
        offset = self._stride(placed.at.offset)
        self.strides[placed] = {a: self._stride(c) for a, c in placed.at.terms}
        self.pointers[placed] = advanced(
            self.code, self.buffer(number), offset, self.dtype_of(placed)
        )

    def open_loads(self, roots: Iterable[Expr]) -> None:
        for node in postorder(roots):
            if isinstance(node, Load):
                self.open(node, node.operand)

    def dtype_of(self, placed: Placed) -> DType:
        if isinstance(placed, Load):
            return placed.dtype
        return self.contract.results[placed.result].dtype

    def _stride(self, dim: DimLike) -> Bound:
        return int(dim) if dim in (0, 1) else self.size(dim)

    # -- positions ------------------------------------------------------------------------------

    @contextmanager
    def placed(
        self, positions: Mapping[Axis, Bound], moving: Iterable[Placed] | None = None
    ) -> Generator[None]:
        """Code at these positions of some axes; it uses the advanced pointers."""
        kept = self.at, self.pointers, self.values
        self.at, self.values = {**self.at, **positions}, dict(self.values)
        chosen = self.pointers if moving is None else moving
        self.pointers = {p: self._moved(p, positions) for p in chosen}
        yield
        self.at, self.pointers, self.values = kept

    @contextmanager
    def moved(self, by: Mapping[Axis, Bound], at: Mapping[Axis, Bound]) -> Generator[None]:
        """Code some steps of axes further on, at these positions."""
        kept = self.at, self.pointers, self.values
        self.pointers = {p: self._moved(p, by) for p in self.pointers}
        self.at, self.values = {**self.at, **at}, {}
        yield
        self.at, self.pointers, self.values = kept

    def _moved(self, placed: Placed, positions: Mapping[Axis, Bound]) -> str:
        code, total = self.code, 0
        for axis, stride in self.strides[placed].items():
            if axis in positions:
                total = code.i64("add", total, code.i64("mul", positions[axis], stride))
        return advanced(code, self.pointers[placed], total, self.dtype_of(placed))

    def split(self, number: Bound, extents: Mapping[Axis, str]) -> dict[Axis, Bound]:
        """Delinearise an index into positions of axes, row-major."""
        found: dict[Axis, Bound] = {}
        for axis in reversed(list(extents)[1:]):
            found[axis] = self.code.integer("rem", number, extents[axis], DType.U64)
            number = self.code.integer("div", number, extents[axis], DType.U64)
        return {**dict.fromkeys(list(extents)[:1], number), **found}

    def joined(self, extents: Mapping[Axis, str]) -> Bound:
        """Linearise the positions of axes: the inverse of `split`."""
        total: Bound = 0
        for axis, extent in extents.items():
            total = self.code.i64("add", self.code.i64("mul", total, extent), self.at[axis])
        return total

    def product(self, extents: Iterable[Bound]) -> Bound:
        total: Bound = 1
        for extent in extents:
            total = self.code.i64("mul", total, extent)
        return total

    def parts(self, extent: Bound, size: Bound) -> str:
        """Blocks of a size in an extent, the last perhaps partial."""
        up = self.code.i64("add", extent, self.code.i64("sub", size, 1))
        return self.code.integer("div", up, size, DType.U64)

    def divided(self, number: Bound, by: Bound) -> tuple[str, str]:
        """The quotient and the remainder."""
        code = self.code
        quotient = code.integer("div", number, by, DType.U64)
        return quotient, code.integer("rem", number, by, DType.U64)

    # -- expressions ----------------------------------------------------------------------------

    def evaluate(self, nodes: Iterable[Expr], mask: Vec | None) -> None:
        """The values of nodes, arguments first, at a vector of columns."""
        for node in nodes:
            if node not in self.values:
                self.values[node] = self.value(node, mask)

    def value(self, node: Expr, mask: Vec | None) -> Vec:
        code = self.code
        match node:
            case Const():
                return code.const(node.value.item(), node.dtype.compute)
            case Size():
                return arith.cast(code.splat(self.size(node.dim), DType.I64), node.dtype)
            case Index():
                return self._index(node.at)
            case Inside():
                at = self._index(node.at)
                low, high = (code.splat(self.size(d), DType.I64) for d in (node.low, node.high))
                return (at >= low) & (at < high)
            case Load() if not node.args:
                return load(code, node.dtype, self.pointers[node], self.across(node), mask)
            case Apply():
                given = [self.values[a] for a in node.args]
                return arith.apply(node.op.name, given, node.attrs, node.args[0].dtype)
            case _:
                raise NoGemm(f"{self.contract.name}: no code for {type(node).__name__} in it")

    def across(self, placed: Placed) -> Bound:
        """The stride along the lanes."""
        return self.strides[placed].get(self.contract.columns, 0)

    def _index(self, at: Affine) -> Vec:
        code = self.code
        total: Bound = self.size(at.offset)
        for axis, c in at.terms:
            total = code.i64("add", total, code.i64("mul", self.at[axis], self.size(c)))
        steps = code.iota(DType.I64)
        stride = self.size(at.coefficient(self.contract.columns))
        return code.splat(total, DType.I64) + steps * code.splat(stride, DType.I64)


def below(code: Code, count: Bound) -> Vec:
    """The lanes whose index is below a count, which may be negative or past the last."""
    least = code.least(count, code.lanes)
    short: Bound = least if isinstance(least, int) else code.converted(least, DType.I64, DType.I32)
    return code.iota(DType.I32) < code.splat(short, DType.I32)
