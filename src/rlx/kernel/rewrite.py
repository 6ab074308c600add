"""Rebuilding expressions: over other axes, with other leaves, or with some nodes rewritten.

Expressions are immutable and interned (`Exprs`), so a change makes everything above it anew. How
each kind is rebuilt from new arguments is stated here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from rlx.core.dim import DimLike
from rlx.kernel.expr import (
    Accumulator,
    Affine,
    Apply,
    Axis,
    Choose,
    Const,
    Expr,
    Exprs,
    Index,
    Inside,
    Kernel,
    Load,
    Reduce,
    Size,
    Store,
    postorder,
)
from rlx.kernel.refusal import NotLowered

IndexMap = Callable[[Affine], Affine]
"""What index maps become."""
Rule = Callable[[Expr, list[Expr], Exprs], Expr | None]
"""A node with its new arguments, to what it becomes; None is the same of those."""
NOTHING: Mapping[Expr, Expr] = {}


def unchanged(at: Affine) -> Affine:
    return at


def no_rule(node: Expr, args: list[Expr], exprs: Exprs) -> Expr | None:
    """Every node stays what it is."""
    return None


def substituted(at: Affine, axes: Mapping[Axis, Affine]) -> Affine:
    """The index map with axes replaced by other maps."""
    if not any(axis in axes for axis, _ in at.terms):
        return at
    terms, offset = dict[Axis, DimLike](), at.offset
    for axis, coefficient in at.terms:
        by = axes.get(axis)
        for inner, step in ((axis, 1),) if by is None else by.terms:
            terms[inner] = terms.get(inner, 0) + step * coefficient
        offset = offset if by is None else offset + by.offset * coefficient
    return Affine(tuple((a, c) for a, c in terms.items() if c != 0), offset)


def substitution(axes: Mapping[Axis, Affine]) -> IndexMap:
    return lambda at: substituted(at, axes)


def rebuilt(node: Expr, args: list[Expr], exprs: Exprs, move: IndexMap = unchanged) -> Expr:
    """The same expression of other arguments, its own index map changed."""
    match node:
        case Const():
            return exprs.const(node.value, node.dtype)
        case Size():
            return exprs.size(node.dim, node.dtype)
        case Index():
            return exprs.index(move(node.at))
        case Inside():
            return exprs.inside(move(node.at), node.low, node.high)
        case Load(args=()):
            return exprs.load(node.operand, move(node.at), node.dtype)
        case Load():
            at, stride, bound = move(node.at), node.stride, node.bound
            return exprs.gather(node.operand, at, node.dtype, args[0], stride, bound)
        case Apply():
            return exprs.apply(node.op, args, node.attrs, node.dtype)
        case Choose():
            return exprs.choose(*args)
        case Reduce():
            return exprs.reduce(node.fold, move(Affine.of(node.axis)).axis or node.axis, args[0])
        case Accumulator():
            axes = (move(Affine.of(a)).axes for a in node.free)
            return Accumulator(node.dtype, free=frozenset[Axis]().union(*axes), part=node.part)
        case _:
            raise NotLowered(f"{type(node).__name__} is no expression that can be rebuilt")


class Rewriter:
    """Rebuilds expressions, arguments first, each once."""

    def __init__(
        self,
        exprs: Exprs,
        move: IndexMap = unchanged,
        replaced: Mapping[Expr, Expr] = NOTHING,
        rule: Rule = no_rule,
    ) -> None:
        self.exprs, self.move, self.rule = exprs, move, rule
        self.made = dict(replaced)
        """Old expression → new one; those that were given have nothing below them."""

    def __call__(self, root: Expr) -> Expr:
        made, exprs = self.made, self.exprs
        for node in postorder([root], made):
            args = [made[a] for a in node.args]
            changed = self.rule(node, args, exprs)
            made[node] = rebuilt(node, args, exprs, self.move) if changed is None else changed
        return made[root]

    def store(self, store: Store) -> Store:
        value = self(store.value)
        return Store(store.result, self.move(store.at), value)


def rewritten(kernel: Kernel, rule: Rule = no_rule, move: IndexMap = unchanged) -> Kernel:
    """The kernel with every expression rebuilt; its axes are the caller's."""
    rewriter = Rewriter(Exprs(), move, rule=rule)
    return replace(kernel, stores=tuple(map(rewriter.store, kernel.stores)))


def read_only(kernel: Kernel) -> tuple[Kernel, tuple[int, ...]]:
    """The kernel with the operands that it reads, and their numbers before."""
    loads = [n for n in kernel.nodes if isinstance(n, Load)]
    read = tuple(sorted({n.operand for n in loads}))
    if read == tuple(range(len(kernel.operands))):
        return kernel, read

    def renumbered(node: Expr, args: list[Expr], exprs: Exprs) -> Expr | None:
        if not isinstance(node, Load):
            return None
        return rebuilt(replace(node, operand=read.index(node.operand)), args, exprs)

    operands = tuple(kernel.operands[i] for i in read)
    return replace(rewritten(kernel, renumbered), operands=operands), read
