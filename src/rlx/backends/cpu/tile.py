"""Register tiles: some rows by some vectors of columns of sums, over a run of inner steps."""

from __future__ import annotations

from rlx.backends.cpu.ir import ELEMENT, Bound, Code, Vec
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.lanes import advanced, load, store
from rlx.backends.cpu.tiling import Tiling, sums_dtype
from rlx.backends.cpu.work import below
from rlx.dtype import DType
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Load

UNROLL = 4
"""Steps at a time from panels. From elsewhere one: LLVM would load for the later steps early, and
run out of registers."""


def edges(tiling: Tiling, isa: Isa) -> tuple[bool, ...]:
    """Which kinds of tiles there are: panels are always whole; read in place, the last columns
    are read through a mask, and where that costs nothing, so are all."""
    if tiling.has_panels:
        return (False,)
    return (True,) if isa.has_masks else (False, True)


def tile_name(name: str, rows: int, is_edge: bool) -> str:
    return f"{name}.tile{rows}{'.edge' if is_edge else ''}"


def tile_function(
    contract: Contract,
    tiling: Tiling,
    code: Code,
    rows: int,
    is_edge: bool,
    has_factor: bool = False,
) -> str:
    """The name of a tile's function, which is shared: products that differ in what surrounds them
    have the same tiles."""
    left = contract.left
    assert isinstance(left, Load)
    kinds = left.dtype, contract.right.dtype, sums_dtype(contract)
    words = [*(k.value for k in kinds), str(tiling.columns)]
    words += ["panels"] * tiling.has_panels + ["table"] * tiling.has_table
    words += ["apart"] * (left.at.coefficient(contract.inner[-1]) != 1)
    words += ["dots"] * (tiling.word > 1) + ["scaled"] * has_factor
    name = tile_name(".".join(words), rows, is_edge)
    if name not in code.shared:
        inner = Code(tiling.lanes, code.isa, code.shared)
        code.shared[name] = _kind(tiling)(contract, tiling, inner, rows, is_edge).text(
            name, has_factor
        )
    return name


def _kind(tiling: Tiling) -> type[Tile]:
    from rlx.backends.cpu.dots import Dots

    return Tile if tiling.word == 1 else Dots


class Chains:
    """The sums of a tile in registers, and one inner step after the other added to them."""

    def __init__(self, contract: Contract, tiling: Tiling, code: Code, rows: int) -> None:
        self.code, self.tiling, self.sums = code, tiling, sums_dtype(contract)
        self.kinds = contract.left.dtype, contract.right.dtype
        self.rows: list[str] = []
        """Where each row is at the first inner step."""
        self.right = "%b"
        self.step: Bound = "%step"
        self.across: Bound = tiling.columns
        self.masks: list[Vec | None] = [None] * tiling.vectors
        self.slots = [
            [code.slot(code.vector(ELEMENT[self.sums])) for _ in range(tiling.vectors)]
            for _ in range(rows)
        ]

    def begin(self) -> None:
        zero = self.code.const(0, self.sums)
        self.keep([[zero] * len(run) for run in self.slots])

    def run(self, count: Bound, unroll: int) -> None:
        """So many inner steps, some at a time."""
        code = self.code
        whole: Bound = 0
        if unroll > 1:
            whole = code.let(f"and i64 {count}, {-unroll}")
            with code.count(0, whole, unroll) as k:
                self._steps(k, unroll)
        with code.count(whole, count, 1) as k:
            self._steps(k, 1)

    def _steps(self, k: str, count: int) -> None:
        code, (kind, _) = self.code, self.kinds
        sums = self.kept()
        for u in range(count):
            at = code.i64("add", k, u)
            right = self._right(at)
            along = code.i64("mul", at, self.step)
            for i, row in enumerate(self.rows):
                left = load(code, kind, advanced(code, row, along, kind), 0).to(self.sums)
                sums[i] = [multiply_add(left, r, s) for r, s in zip(right, sums[i])]
        self.keep(sums)

    def _right(self, at: Bound) -> list[Vec]:
        """The columns at an inner step."""
        code, (_, kind) = self.code, self.kinds
        line = advanced(code, self.right, self._line(at), kind)
        places = [advanced(code, line, j * code.lanes, kind) for j in range(self.tiling.vectors)]
        return [load(code, kind, p, 1, m).to(self.sums) for p, m in zip(places, self.masks)]

    def _line(self, at: Bound) -> Bound:
        return self.code.i64("mul", at, self.across)

    def kept(self) -> list[list[Vec]]:
        code, kind = self.code, self.code.vector(ELEMENT[self.sums])
        return [
            [Vec(code, code.let(f"load {kind}, ptr {s}"), self.sums) for s in run]
            for run in self.slots
        ]

    def keep(self, sums: list[list[Vec]]) -> None:
        for run, slots in zip(sums, self.slots):
            self.code.do(*(f"store {v.type} {v.text}, ptr {s}" for v, s in zip(run, slots)))

    def finish(self, has_factor: bool = False) -> None:
        """To memory, perhaps times a factor: as they are, or added to what is there."""
        code, columns = self.code, self.tiling.columns
        factors = [self._factor(j) for j in range(self.tiling.vectors)] if has_factor else []
        sums = [
            (
                v * factors[j] if has_factor else v,
                advanced(code, "%sums", i * columns + j * code.lanes, self.sums),
            )
            for i, run in enumerate(self.kept())
            for j, v in enumerate(run)
        ]
        with code.when("%is_first"):
            for value, place in sums:
                store(code, value, self.sums, place)
        with code.when(code.let("xor i1 %is_first, true")):
            for value, place in sums:
                store(code, load(code, self.sums, place) + value, self.sums, place)
        code.do("ret void")

    def _factor(self, vector: int) -> Vec:
        place = advanced(self.code, "%factor", vector * self.code.lanes, self.sums)
        return load(self.code, self.sums, place)


class Tile(Chains):
    """sums[rows, columns] = or += Σ a[row, k] · b[k, column] over `count` steps of k, the sum
    times factor[column] where there is one."""

    ARGS = (
        "ptr noalias %a, i64 %row, i64 %step, ptr noalias %b, {0}, i64 %count, "
        "i64 %columns, ptr noalias %sums, i1 %is_first{1}"
    )
    ACROSS = "i64 %across", "ptr noalias %table"
    """How far the next inner step is on the right, or where each of them is."""
    FACTOR = "", ", ptr noalias %factor"

    def __init__(
        self, contract: Contract, tiling: Tiling, code: Code, rows: int, is_edge: bool
    ) -> None:
        super().__init__(contract, tiling, code, rows)
        left = contract.left
        assert isinstance(left, Load)
        if left.at.coefficient(contract.inner[-1]) == 1:
            self.step = 1
        if not tiling.has_panels:
            self.across = "%across"
        self.rows = [
            advanced(code, "%a", code.i64("mul", "%row", i), left.dtype) for i in range(rows)
        ]
        ends = [code.i64("sub", "%columns", j * tiling.lanes) for j in range(tiling.vectors)]
        self.masks = [below(code, e) if is_edge else None for e in ends]

    def text(self, name: str, has_factor: bool = False) -> str:
        self.begin()
        self.run("%count", UNROLL if self.tiling.has_panels else 1)
        self.finish(has_factor)
        args = self.ARGS.format(self.ACROSS[self.tiling.has_table], self.FACTOR[has_factor])
        return self.code.function(f"define internal void @{name}({args}) noinline")

    def _line(self, at: Bound) -> Bound:
        if not self.tiling.has_table:
            return super()._line(at)
        code = self.code
        return code.let(f"load i64, ptr {advanced(code, '%table', at, DType.I64)}")


def multiply_add(x: Vec, y: Vec, z: Vec) -> Vec:
    """x · y + z, rounded once where that is one instruction."""
    return x.call("fma", y, z) if x.is_float and x.code.isa.has_fma else x * y + z
