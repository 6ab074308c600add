"""Expressions on vectors: the arithmetic of a kernel form, where its operands are in registers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rlx.backends.cpu.codegen.math import elementwise as arith
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Vec
from rlx.core.errors import Error
from rlx.kernel.expr import Apply, Const, Expr, Exprs, Load, postorder

Emit = Callable[[Apply, list[Vec]], Vec]
"""The vector of an op on vectors."""


def apply_op(node: Apply, args: list[Vec]) -> Vec:
    """By the functions of the instruction set's accuracy."""
    return arith.apply(node.op.name, args, node.attrs, node.args[0].dtype)


def apply_accurate(node: Apply, args: list[Vec]) -> Vec:
    """By the accurate functions, whatever accuracy is asked for elsewhere."""
    return arith.NATIVE[node.op.name](*args)


def vectors(
    code: Code, roots: Iterable[Expr], given: Mapping[Any, Vec], emit: Emit = apply_op
) -> dict[Any, Vec]:
    """The vector of every expression below the roots, arguments first; those of leaves, and of
    whatever else is known, are given."""
    made = dict(given)
    for node in postorder(roots, made):
        match node:
            case Const():
                made[node] = code.const(node.value.item(), node.dtype.compute)
            case Apply():
                made[node] = emit(node, [made[a] for a in node.args])
            case _:
                raise Error(f"the CPU backend has no vector for {type(node).__name__}")
    return made


def on_vectors(build: Callable[..., Expr], *given: Vec, emit: Emit = apply_accurate) -> Vec:
    """`build(exprs, *leaves)` of a kernel form, on vectors in place of the leaves."""
    leaves = [Load(v.dtype, operand=i) for i, v in enumerate(given)]
    root = build(Exprs(), *leaves)
    return vectors(given[0].code, [root], dict(zip(leaves, given)), emit)[root]
