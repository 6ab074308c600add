"""Programs without 64-bit floats, for targets that have none.

A graph computes nothing in f64 there: what it takes and gives in f64 is read and written by its
bits, which are those of an i64. What is left are numbers that a kernel keeps wider than its
operands, such as long sums. They become f32, in registers, shared memory and temporaries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.builder import Builder
from rlx.program.expand.rewrite import retyped, rewritten
from rlx.program.nodes import Node, Value
from rlx.program.program import Program
from rlx.program.values import Var

F32, F64, I64 = DType.F32, DType.F64, DType.I64


def without_f64(program: Program) -> Program:
    """The program with the bits of every f64 that it only moves, and f32 for all others."""
    return _in_f32(_by_bits(program))


# -- what is only moved ---------------------------------------------------------------------------


def _by_bits(program: Program) -> Program:
    names = _moved(program)
    if not names:
        return program
    buffers = (replace(b, dtype=I64) if b.name in names else b for b in program.buffers)
    given = replace(program, buffers=tuple(buffers))
    return rewritten(given, (ir.Load, ir.Bitcast), partial(_bits, names))


def _moved(program: Program) -> frozenset[str]:
    """The buffers of f64 whose elements are copied, or made of and into integers of the same bits,
    and nothing else."""
    names = frozenset(b.name for b in program.buffers if b.dtype is F64)
    while names and (computed := frozenset(_computed(program, names))):
        names -= computed
    return names


def _computed(program: Program, names: frozenset[str]) -> Iterator[str]:
    """Those among them of which an element is computed, or computed with."""
    source: dict[Value, str] = {}
    for node in program.nodes:
        if isinstance(node, ir.Load) and node.buffer in names:
            source |= dict.fromkeys(node.results, node.buffer)
        elif isinstance(node, ir.Bitcast) and node.result.type is F64:
            source[node.result] = ""
    for node in program.nodes:
        if isinstance(node, ir.Store) and node.buffer in names:
            if any(v.type is F64 and v not in source for v in node.args):
                yield node.buffer
        elif not isinstance(node, ir.Bitcast):
            used = (*node.args, *(v for r in node.regions for v in r.yields))
            yield from filter(None, map(source.get, used))


def _bits(
    names: frozenset[str], b: Builder, node: Node, args: list[Var], loops: int
) -> Sequence[Var] | None:
    """Loads of bits; to take a number for its bits is nothing then."""
    match node:
        case ir.Load() if node.buffer in names:
            results = tuple(Value(I64) for _ in node.results)
            made = replace(node, args=tuple(a.value for a in args), results=results)
            return [Var(b, v) for v in b.interned(made).results]
        case ir.Bitcast() if F64 in (node.result.type, node.args[0].type):
            to = I64 if node.result.type is F64 else node.result.dtype
            return [args[0] if args[0].dtype is to else b.bitcast(args[0], to)]
        case _:
            return None


# -- what is computed -----------------------------------------------------------------------------


def _in_f32(program: Program) -> Program:
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
