"""Index maps of a scan at positions of its loops, and what its stores convert themselves."""

from __future__ import annotations

from collections.abc import Sequence

from rlx.backends.cpu.library.strided_copy import at
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.backends.cpu.llvm.values import Bound
from rlx.kernel.expr import Affine, Apply, Axis, Expr, Store

Positions = Sequence[tuple[Axis, Bound]]
"""Where loops are, by their axes."""


def place(w: Writer, index: Affine, positions: Positions) -> Bound:
    """The offset of an element, at 0 of the axes that have no position."""
    total = w.size(index.offset)
    for axis, position in positions:
        total = at(w, total, w.code.i64("mul", position, w.size(index.coefficient(axis))))
    return total


def stored_value(store: Store) -> Expr:
    """What is stored, without the last cast to half precision: storing rounds."""
    value, dtype = store.value, store.value.dtype
    if isinstance(value, Apply) and value.op.name == "cast" and dtype.compute is not dtype:
        return value.args[0]
    return value
