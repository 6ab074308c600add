"""Integers of 64 bits computed in 32 where nothing is lost, for targets that have no wider ones.

A value is narrow if it is known to be an i32: converted from one, a small constant, or made of
narrow ones within bounds. Comparisons, selections and conversions of narrow values take the i32;
sums, differences and products do where the bounds of their operands keep them within 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rlx.core.dim import is_static
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.builder import Builder
from rlx.program.expand.rewrite import rewritten
from rlx.program.nodes import Node, Value
from rlx.program.program import Program
from rlx.program.values import Var

I32, I64 = DType.I32, DType.I64
LOW, HIGH = -(2**31), 2**31 - 1
Bounds = tuple[int, int]
SHORT: dict[DType, Bounds] = {
    DType.BOOL: (0, 1), DType.I8: (-128, 127), DType.U8: (0, 255), DType.I16: (-(2**15), 2**15 - 1),
    DType.U16: (0, 2**16 - 1), I32: (LOW, HIGH),
}  # fmt: skip
"""Integers of which an i32 holds all."""
KINDS = frozenset((ir.Const, ir.Position, ir.Binary, ir.Compare, ir.Select, ir.Convert))


def narrow_integers(program: Program) -> Program:
    """The program with i32 for those i64 that are known to be one."""
    made = {type(n) for n in program.nodes if any(v.type is I64 for v in n.results)}
    compared = any(isinstance(n, ir.Compare) and n.args[0].type is I64 for n in program.nodes)
    if not made & KINDS and not compared:
        return program
    return rewritten(program, KINDS, _Narrowing(program).rule)


class _Narrowing:
    """What is known of the values of one program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.narrow: dict[Value, Value] = {}
        """Of an i64, the i32 that it is."""
        self.bounds: dict[Value, Bounds] = {}
        """Of an i32, where they are less than all."""

    def rule(self, b: Builder, node: Node, args: list[Var], loops: int) -> Sequence[Var] | None:
        match node:
            case ir.Position():
                self.bounds[node.result] = self._position(node)
            case ir.Const() if node.result.type in (I32, I64) and LOW <= node.value <= HIGH:
                return self._constant(b, node)
            case ir.Convert():
                return self._converted(b, node, args[0])
            case ir.Compare() if (given := self._given(b, args)) is not None:
                return [b.compare(node.op, *given)]
            case ir.Select() if (given := self._given(b, args[1:])) is not None:
                made = b.select(args[0], *given)
                return self._wide(b, made, _union(*map(self._bounds, given)))
            case ir.Binary():
                return self._binary(b, node, args)
            case _:
                pass
        return None

    def _position(self, node: ir.Position) -> Bounds:
        if node.of == "thread":
            return 0, self.program.block - 1
        blocks = self.program.grid[node.dim] if node.of == "block" else None
        is_known = blocks is not None and is_static(blocks)
        return 0, max(0, int(blocks) - 1) if is_known and blocks is not None else HIGH

    def _constant(self, b: Builder, node: ir.Const) -> Sequence[Var] | None:
        value = int(node.value)
        if node.result.type is I32:
            self.bounds[node.result] = (value, value)
            return None
        own = b.const(value, I32)
        self.bounds[own.value] = (value, value)
        self.narrow[node.result] = own.value
        return None

    def _converted(self, b: Builder, node: ir.Convert, x: Var) -> Sequence[Var] | None:
        """To i64, an i32 is noted; from a narrow i64, the i32 is converted."""
        to = node.result.dtype
        if to is I64 and x.dtype in SHORT:
            own = x.to(I32)
            self.bounds.setdefault(own.value, SHORT[x.dtype])
            self.narrow[node.result] = own.value
            return None
        found = self.narrow.get(x.value)
        is_kept = to.is_float or to in SHORT or to is DType.U32
        return [Var(b, found).to(to)] if found is not None and is_kept else None

    def _binary(self, b: Builder, node: ir.Binary, args: list[Var]) -> Sequence[Var] | None:
        found = COMBINED.get(node.op)
        if found is None:
            return None
        if node.result.type is I32:
            bounds = found(*(self._bounds(a) for a in args))
            if _fits(bounds):
                self.bounds[node.result] = bounds
            return None
        given = self._given(b, args)
        if given is None:
            return None
        bounds = found(*map(self._bounds, given))
        return self._wide(b, b.binary(node.op, *given), bounds) if _fits(bounds) else None

    def _given(self, b: Builder, args: Sequence[Var]) -> list[Var] | None:
        """The i32 that all of some i64 are."""
        if any(a.value.type is not I64 or a.value not in self.narrow for a in args):
            return None
        return [Var(b, self.narrow[a.value]) for a in args]

    def _bounds(self, x: Var) -> Bounds:
        return self.bounds.get(x.value, (LOW, HIGH))

    def _wide(self, b: Builder, made: Var, bounds: Bounds) -> list[Var]:
        """An i32 as the i64 that others may ask for."""
        wide = made.to(I64)
        self.bounds.setdefault(made.value, bounds)
        self.narrow[wide.value] = made.value
        return [wide]


def _fits(bounds: Bounds) -> bool:
    return bounds[0] >= LOW and bounds[1] <= HIGH


def _union(x: Bounds, y: Bounds) -> Bounds:
    return min(x[0], y[0]), max(x[1], y[1])


def _product(x: Bounds, y: Bounds) -> Bounds:
    corners = [a * b for a in x for b in y]
    return min(corners), max(corners)


COMBINED: dict[str, Callable[[Bounds, Bounds], Bounds]] = {
    "add": lambda x, y: (x[0] + y[0], x[1] + y[1]),
    "sub": lambda x, y: (x[0] - y[1], x[1] - y[0]),
    "mul": _product,
    "min": lambda x, y: (min(x[0], y[0]), min(x[1], y[1])),
    "max": lambda x, y: (max(x[0], y[0]), max(x[1], y[1])),
}
"""Bounds of a result by those of its operands."""
