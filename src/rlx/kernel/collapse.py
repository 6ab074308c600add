"""Fewer and longer loops: axes whose elements lie behind each other in every buffer are one axis.

A chain over [8, 128, 64] is then one loop of 65,536 steps, and a sum over two dims one sum. Axes
of extent 1 go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from rlx.kernel.decompose import copied
from rlx.kernel.expr import (
    Affine,
    Axis,
    Expr,
    Exprs,
    Index,
    Inside,
    Kernel,
    Load,
    Reduce,
    Store,
)

Move = Callable[[Affine], Affine]


def collapsed(kernel: Kernel) -> Kernel:
    """The same kernel over as few axes as index maps allow."""
    kernel = _without_ones(kernel)
    while (pair := next(_mergeable(kernel), None)) is not None:
        kernel = _merged(kernel, *pair)
    return kernel


def _without_ones(kernel: Kernel) -> Kernel:
    gone = {a for a in (*kernel.axes, *kernel.reduced) if a.extent == 1}
    if not gone:
        return kernel

    def move(at: Affine) -> Affine:
        return Affine(tuple((a, c) for a, c in at.terms if a not in gone), at.offset)

    def fold(node: Reduce, body: Expr, exprs: Exprs) -> Expr:
        return body if node.axis in gone else exprs.reduce(node.fold, node.axis, body)

    axes = tuple(a for a in kernel.axes if a not in gone)
    return _mapped(replace(kernel, axes=axes), move, fold)


def _mergeable(kernel: Kernel) -> Iterator[tuple[Axis, Axis]]:
    """Pairs of axes, outer and inner, that may become one."""
    maps = _maps(kernel)
    reduces = [n for n in kernel.nodes if isinstance(n, Reduce)]
    chains = [(r.axis, r.args[0].axis) for r in reduces if isinstance(r.args[0], Reduce)]
    is_main = set(kernel.axes).__contains__
    neighbours = list(zip(kernel.axes, kernel.axes[1:]))
    inner = [(a, b) for a, b in chains if not is_main(a) and not is_main(b)]
    for outer, within in dict.fromkeys([*neighbours, *inner]):
        is_row = all(m.coefficient(outer) == m.coefficient(within) * within.extent for m in maps)
        if is_row and _folds_agree(kernel, reduces, outer, within):
            yield outer, within


def _maps(kernel: Kernel) -> list[Affine]:
    inner = [n.at for n in kernel.nodes if isinstance(n, Load | Index | Inside)]
    return [*(s.at for s in kernel.stores), *inner]


def _folds_agree(kernel: Kernel, reduces: list[Reduce], outer: Axis, within: Axis) -> bool:
    """Is every fold over one of the axes part of the same fold over both?"""
    over = [r for r in reduces if r.axis is outer]
    under = {r for r in reduces if r.axis is within}
    if {r.args[0] for r in over} != under:
        return False
    if any(isinstance(r.args[0], Reduce) and r.args[0].fold != r.fold for r in over):
        return False
    stored = {s.value for s in kernel.stores}
    users = [n for n in kernel.nodes if any(a in under for a in n.args)]
    return under.isdisjoint(stored) and set(users) == set(over)


def _merged(kernel: Kernel, outer: Axis, within: Axis) -> Kernel:
    both = Axis(f"{outer.name}_{within.name}", outer.extent * within.extent)
    swap = {outer: None, within: both}

    def move(at: Affine) -> Affine:
        terms = [(swap.get(a, a), c) for a, c in at.terms]
        return Affine(tuple((a, c) for a, c in terms if a is not None), at.offset)

    def fold(node: Reduce, body: Expr, exprs: Exprs) -> Expr:
        if node.axis is within:
            return body
        return exprs.reduce(node.fold, both if node.axis is outer else node.axis, body)

    named = [swap.get(a, a) for a in kernel.axes]
    axes = tuple(a for a in named if a is not None)
    return _mapped(replace(kernel, axes=axes), move, fold)


def _mapped(kernel: Kernel, move: Move, fold: Callable[[Reduce, Expr, Exprs], Expr]) -> Kernel:
    exprs = Exprs()
    new: dict[Expr, Expr] = {}
    for node in kernel.nodes:
        args = [new[a] for a in node.args]
        if isinstance(node, Reduce):
            new[node] = fold(node, args[0], exprs)
        else:
            new[node] = move_node(node, args, move, exprs)
    stores = tuple(Store(s.result, move(s.at), new[s.value]) for s in kernel.stores)
    return replace(kernel, stores=stores)


def move_node(node: Expr, args: list[Expr], move: Move, exprs: Exprs) -> Expr:
    """The same expression of other arguments, with its own index moved."""
    match node:
        case Index():
            return exprs.index(move(node.at))
        case Inside():
            return exprs.inside(move(node.at), node.low, node.high)
        case Load() if args:
            at, kind, number = move(node.at), node.dtype, node.operand
            return exprs.gather(number, at, kind, args[0], node.stride, node.bound)
        case Load():
            return exprs.load(node.operand, move(node.at), node.dtype)
        case _:
            return copied(node, args, exprs)
