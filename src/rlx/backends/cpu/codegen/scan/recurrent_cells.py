"""The arithmetic of a recurrent cell on vectors of hidden columns: the op's definition, as
expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.llvm.builder import Code, Vec
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.kernel.decompose import decomposed
from rlx.kernel.expr import Apply, Const, Kernel, Load
from rlx.kernel.lower.loop import loop_kernel

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Values by name in, values by name out."""

    kernel: Kernel
    given: tuple[str, ...]
    made: tuple[str, ...]

    @property
    def used(self) -> tuple[str, ...]:
        """The inputs that it reads."""
        read = {n.operand for n in self.kernel.nodes if isinstance(n, Load)}
        return tuple(n for i, n in enumerate(self.given) if i in read)

    def of(self, code: Code, values: Mapping[str, Vec]) -> dict[str, Vec]:
        """The same on vectors."""
        made: dict[Any, Vec] = {}
        for node in self.kernel.nodes:
            match node:
                case Load():
                    made[node] = values[self.given[node.operand]]
                case Const():
                    made[node] = code.const(node.value.item(), node.dtype.compute)
                case Apply():
                    args = [made[a] for a in node.args]
                    given = node.args[0].dtype
                    made[node] = arith.apply(node.op.name, args, node.attrs, given)
                case _:
                    raise AssertionError(node)
        return {self.made[s.result]: made[s.value] for s in self.kernel.stores}


def arithmetic(
    build: Callable[[Values], dict[str, Any]], names: Sequence[str], kind: DType
) -> Arithmetic:
    """The expressions that `build` makes of inputs with these names."""
    body = Graph("cell")
    body.traces_lines = False
    given = {n: body.input(n, Shape((), kind)) for n in names}
    made = build(given)
    body.set_outputs(list(made.values()))
    outside = Graph("step")
    outside.traces_lines = False
    operands = [outside.input(n, Shape((), kind)) for n in names]
    node = outside.node("elementwise_region", operands, {"body": body})
    kernel = decomposed(loop_kernel(node), lambda n: arith.is_native(n.op.name))
    return Arithmetic(kernel, tuple(names), tuple(made))
