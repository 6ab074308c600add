"""Programs without 64-bit floats, for targets that have none.

Values of a graph are never of f64 there; what is left are numbers that a kernel keeps wider than
its operands, such as long sums. They become f32, in registers, shared memory and temporaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlx.backends.gpu.expand.rewrite import retyped
from rlx.backends.gpu.simt import nodes as ir
from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.nodes import Node
from rlx.backends.gpu.simt.program import Program
from rlx.backends.gpu.simt.values import Var
from rlx.core.dtype import DType

F32, F64 = DType.F32, DType.F64


def without_f64(program: Program) -> Program:
    """The program with f32 for every f64."""
    is_wide = any(v.dtype is F64 for n in program.nodes for v in n.results)
    if not is_wide and all(b.dtype is not F64 for b in program.buffers):
        return program
    given = replace(
        program,
        buffers=tuple(replace(b, dtype=_narrow(b.dtype)) for b in program.buffers),
        shared=tuple(replace(s, dtype=_narrow(s.dtype)) for s in program.shared),
        tables=tuple(replace(t, dtype=_narrow(t.dtype)) for t in program.tables),
    )
    return retyped(given, (ir.Const, ir.Convert), _rule, _narrow)


def _narrow(dtype: DType) -> DType:
    return F32 if dtype is F64 else dtype


def _rule(b: Builder, node: Node, args: list[Var], loops: int) -> Sequence[Var] | None:
    """Numbers are rounded; a conversion between the two widths is none."""
    match node:
        case ir.Const() if node.result.dtype is F64:
            with np.errstate(over="ignore"):
                return [b.const(float(np.float32(node.value)), F32)]
        case ir.Convert() if args[0].dtype is _narrow(node.result.dtype):
            return [args[0]]
        case _:
            return None
