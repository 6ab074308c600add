"""Fewer and longer loops: axes that are contiguous in every buffer are one axis.

A chain over [8, 128, 64] is then one loop of 65,536 steps, and a sum over two dims one sum. Axes
of extent 1 go.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlx.kernel.expr import Affine, Axis, Expr, Exprs, Index, Inside, Kernel, Load, Reduce
from rlx.kernel.rewrite import rewritten, substitution


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

    def fold(node: Expr, args: list[Expr], _: Exprs) -> Expr | None:
        return args[0] if isinstance(node, Reduce) and node.axis in gone else None

    axes = tuple(a for a in kernel.axes if a not in gone)
    at_zero = substitution(dict.fromkeys(gone, Affine()))
    return rewritten(replace(kernel, axes=axes), fold, at_zero)


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

    def fold(node: Expr, args: list[Expr], exprs: Exprs) -> Expr | None:
        if not isinstance(node, Reduce) or node.axis not in (outer, within):
            return None
        return args[0] if node.axis is within else exprs.reduce(node.fold, both, args[0])

    axes = tuple(both if a is within else a for a in kernel.axes if a is not outer)
    merged = substitution({outer: Affine(), within: Affine.of(both)})
    return rewritten(replace(kernel, axes=axes), fold, merged)
