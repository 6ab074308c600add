"""Quantised blocks one position at a time: a format's expression without the position.

At a given position every offset, shift amount and column is a constant, and selections by position
are made. What is left is a *term*: loads at constant offsets, and ops of them. Equal terms are the
same object, so that a target that unrolls a block sees what its weights share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rlx.core.dtype import DType
from rlx.ops.quant.block_expr import (
    Apply,
    BlockFormat,
    Const,
    Expr,
    Load,
    Lookup,
    numbers,
    position_values,
    postorder,
)


class Terms:
    """The terms of a format's positions, in consecutive blocks."""

    def __init__(self, block_format: BlockFormat) -> None:
        self.block_format = block_format
        self._known = {n: v.tolist() for n, v in position_values(block_format).items()}
        self._nodes = [n for n in postorder(block_format.value) if n not in self._known]
        self._made: dict[tuple[object, ...], Expr] = {}
        self._at: dict[int, Expr] = {}
        self._bounds: dict[Expr, int | None] = {}

    def at(self, position: int) -> Expr:
        """The term of a weight; past the first block, of one of the blocks after it."""
        if position not in self._at:
            self._at[position] = self._term(*divmod(position, self.block_format.weights))
        return self._at[position]

    def _term(self, block: int, position: int) -> Expr:
        found: dict[Expr, Expr] = {}

        def of(node: Expr) -> Expr:
            known = self._known.get(node)
            return found[node] if known is None else self.const(known[position], node.dtype)

        for node in self._nodes:
            if isinstance(node, Load):
                offset = self._known[node.args[0]][position] + block * self.block_format.block_bytes
                found[node] = self._load(node.dtype, offset)
            else:
                found[node] = self.applied(node, tuple(map(of, node.args)))
        return of(self.block_format.value)

    def const(self, value: float, dtype: DType) -> Expr:
        key = value.hex() if isinstance(value, float) else value  # -0.0 equals 0.0
        return self._one((dtype, key), lambda: Const(dtype, value=value))

    def _load(self, dtype: DType, offset: int) -> Expr:
        at = self.const(offset, DType.U32)
        return self._one((Load, dtype, offset), lambda: Load(dtype, (at,)))

    def applied(self, node: Expr, args: tuple[Expr, ...]) -> Expr:
        """The op or lookup of a node on terms: a constant where all of them are."""
        if not args:
            return self._one((node,), lambda: node)
        if isinstance(node, Apply) and node.op == "where" and isinstance(args[0], Const):
            return args[1] if args[0].value else args[2]
        if isinstance(node, Lookup):
            return self._one((node.table, *args), lambda: self._made_of(node, args))
        assert isinstance(node, Apply)
        return self._one((node.op, node.dtype, *args), lambda: self._made_of(node, args))

    def _made_of(self, node: Apply | Lookup, args: tuple[Expr, ...]) -> Expr:
        given = [a for a in args if isinstance(a, Const)]
        if len(given) < len(args):
            return replace(node, args=args)
        arrays = tuple(np.asarray(a.value, a.dtype.numpy) for a in given)
        return self.const(numbers(node, arrays).item(), node.dtype)

    def replaced(self, term: Expr, old: Expr, new: Expr) -> Expr:
        """A term with another in place of one of its parts."""
        found = {old: new}
        for node in postorder(term):
            if node not in found:
                args = tuple(found[a] for a in node.args)
                found[node] = node if args == node.args else self.applied(node, args)
        return found[term]

    def _one(self, key: tuple[object, ...], make: Callable[[], Expr]) -> Expr:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    # -- ranges -----------------------------------------------------------------------------------

    def bound(self, term: Expr) -> int | None:
        """The greatest value of an integer that is never negative; None of other terms."""
        if term not in self._bounds:
            self._bounds[term] = self._bound(term)
        return self._bounds[term]

    def _bound(self, term: Expr) -> int | None:
        if not term.dtype.is_integer:
            return None
        most = int(np.iinfo(term.dtype.numpy).max)
        if isinstance(term, Const):
            return int(term.value) if term.value >= 0 else None
        if isinstance(term, Lookup):
            values = term.table.values
            return int(values.max()) if values.min() >= 0 else None
        whole = None if term.dtype.is_signed else most
        if not isinstance(term, Apply):
            return whole
        found = _bound_of(term, [self.bound(a) for a in term.args])
        return found if found is not None and found <= most else whole


def _bound_of(term: Apply, args: list[int | None]) -> int | None:
    """The greatest result of operands up to these, were it of any width."""
    if term.op == "where":
        args = args[1:]
    known = [a for a in args if a is not None]
    if term.op == "bit_and":
        return min(known, default=None)
    if len(known) < len(args):
        return None
    match term.op:
        case "bit_or" | "bit_xor":
            return (1 << max(known).bit_length()) - 1
        case "where":
            return max(known)
        case "shift_right":
            return known[0] >> (known[1] if isinstance(term.args[1], Const) else 0)
        case "shift_left":
            return known[0] << min(known[1], 64)
        case "cast" | "bitcast":
            return known[0]
        case "add":
            return sum(known)
        case "mul":
            return known[0] * known[1]
        case _:
            return None
