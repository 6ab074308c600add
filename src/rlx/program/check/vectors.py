"""Verifier of vector programs: values are defined before they are used, and their types fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program import vector_nodes as vec
from rlx.program.errors import ProgramError
from rlx.program.nodes import Node, Value
from rlx.program.types import POINTER, POINTERS, UNIFORM, UNKNOWN, Address, Type, Uniform, dtype_of
from rlx.program.vector_program import VectorProgram


def verify_vectors(program: VectorProgram) -> VectorProgram:
    """The program, if there is nothing wrong with it."""
    known = {*program.constants, *program.arguments.values()}
    for fault in _faults(tuple(program.nodes), known):
        raise ProgramError(f"{program.name}: {fault}.")
    for name, outline in program.outlines.items():
        known = {*outline.constants, *outline.tables.values(), *outline.region.params}
        for fault in _faults(outline.region.nodes, known):
            raise ProgramError(f"{name}: {fault}.")
    return program


def _faults(nodes: Sequence[Node], known: set[Value]) -> Iterator[str]:
    for node in nodes:
        name = type(node).__name__
        if isinstance(node, vec.Verbatim):
            known.update(node.results)
            continue
        if any(a not in known and a.type is not UNKNOWN for a in node.args):
            yield f"{name} uses a value that is not defined"
        rule = _RULES.get(type(node), _any)
        if not rule(node, [a.type for a in node.args], [r.type for r in node.results]):
            args = ", ".join(str(a.type) for a in node.args)
            yield f"{name} of {args} gives {', '.join(str(r.type) for r in node.results)}"
        for region in node.regions:
            yield from _faults(region.nodes, {*known, *region.params})
        known.update(node.results)


Types = Sequence[Type]


def _any(node: Any, args: Types, results: Types) -> bool:
    """Of nodes whose types nothing restricts."""
    return True


def _same(node: Any, args: Types, results: Types) -> bool:
    return all(a is results[0] for a in args)


def _compared(node: Any, args: Types, results: Types) -> bool:
    return args[0] is args[1] and results[0] is _truth(args[0])


def _selected(node: Any, args: Types, results: Types) -> bool:
    mask, yes, no = args
    return yes is no and yes is results[0] and mask is _truth(yes)


def _converted(node: Any, args: Types, results: Types) -> bool:
    return isinstance(args[0], Uniform) == isinstance(results[0], Uniform)


def _same_bits(node: Any, args: Types, results: Types) -> bool:
    sizes = [dtype_of(t).itemsize for t in (args[0], results[0])]
    return sizes[0] == sizes[1] and _converted(node, args, results)


def _broadcast(node: Any, args: Types, results: Types) -> bool:
    return isinstance(results[0], DType) and args[0] is UNIFORM[results[0]]


def _extracted(node: Any, args: Types, results: Types) -> bool:
    return isinstance(args[0], DType) and results[0] is UNIFORM[args[0]]


def _advanced(node: Any, args: Types, results: Types) -> bool:
    is_varying = isinstance(args[1], DType)
    index = args[1] is DType.I64 if is_varying else args[1] is UNIFORM[DType.I64]
    return index and args[0] is POINTER and results[0] is (POINTERS if is_varying else POINTER)


def _fetched(node: Any, args: Types, results: Types) -> bool:
    return _is_access(args[0], results[0], args[1:])


def _put(node: Any, args: Types, results: Types) -> bool:
    return _is_access(args[0], args[1], args[2:])


def _is_access(where: Type, value: Type, mask: Types) -> bool:
    """Masks and addresses of every lane are for values of every lane."""
    if where is POINTERS and not mask:
        return False
    is_vector = isinstance(value, DType)
    return isinstance(where, Address) and (not mask or (mask[0] is DType.BOOL and is_vector))


def _counted(node: Any, args: Types, results: Types) -> bool:
    return all(a is UNIFORM[DType.I64] for a in args)


def _conditional(node: Any, args: Types, results: Types) -> bool:
    return args[0] is UNIFORM[DType.BOOL]


def _truth(kind: Type) -> Type:
    return UNIFORM[DType.BOOL] if isinstance(kind, Uniform) else DType.BOOL


_RULES: dict[type[Node], Callable[[Any, Types, Types], bool]] = {
    ir.Binary: _same, ir.Unary: _same, ir.Fma: _same, ir.Call: _same, vec.Intrinsic: _same,
    vec.Permute: _same, vec.Scale: _same, vec.OpaqueMask: _same, ir.Compare: _compared,
    vec.Unordered: _compared, ir.Select: _selected, ir.Convert: _converted,
    vec.SaturatingConvert: _converted, ir.Bitcast: _same_bits, vec.Broadcast: _broadcast,
    vec.ExtractLane: _extracted, vec.Advance: _advanced, vec.Load: _fetched, vec.Store: _put,
    ir.For: _counted, ir.If: _conditional, vec.FailIf: _conditional, vec.FirstLane: _conditional,
}  # fmt: skip
