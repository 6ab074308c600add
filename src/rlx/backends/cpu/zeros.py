"""Products of bytes less their zero points, as products of bytes.

    Σ (x - a)(w - b) = Σ xw - a Σ w - b Σ x + k a b

so that tiles multiply what is in memory. Instructions multiply u8 by i8: other bytes are moved by
128 with their zero points. All is in i32, which wraps alike on both sides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from rlx.backends.cpu.narrow import BYTES, bare
from rlx.dim import DimLike
from rlx.dtype import DType
from rlx.ir.layout import Layout
from rlx.kernel.contract import Accumulator, Contract, Mover
from rlx.kernel.expr import Affine, Apply, Axis, Const, Expr, Exprs, Kernel, Store
from rlx.op import lookup
from rlx.shape import Shape

I32, MOVED = DType.I32, 128


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes, and what is taken off each: nothing where it is None."""

    value: Expr
    zero: Expr | None


@dataclass(frozen=True, slots=True)
class Sums:
    """The kernel that adds up the rows of the left operand or the columns of the right one; its
    result is one more operand."""

    kernel: Kernel
    of: Expr


def of_bytes(contract: Contract) -> tuple[Contract, tuple[Sums, ...]]:
    """The contraction as one of bytes, and what it reads beside them; itself where it is none."""
    inner = contract.inner
    if contract.sums is not I32 or len(inner) != 1:
        return contract, ()
    found = [_bytes(x, inner[0]) for x in (contract.left, contract.right)]
    left, right = found
    if left is None or right is None:
        return contract, ()
    exprs = Exprs()
    left, right = _as(left, DType.U8, exprs), _as(right, DType.I8, exprs)
    contract = replace(contract, left=left.value, right=right.value)
    return _corrected(contract, left.zero, right.zero, exprs)


def _bytes(x: Expr, inner: Axis) -> Bytes | None:
    """A value as bytes less a zero point that is the same at all inner steps."""
    if x.dtype in BYTES:
        return Bytes(x, None)
    if not isinstance(x, Apply) or x.op.name != "sub":
        return None
    value, zero = bare(x.args[0], I32), x.args[1]
    if value.dtype not in BYTES or inner in zero.free:
        return None
    return Bytes(value, None if _is_zero(zero) else zero)


def _is_zero(x: Expr) -> bool:
    while isinstance(x, Apply) and x.op.name == "cast":
        x = x.args[0]
    return isinstance(x, Const) and not np.any(x.value)


def _as(x: Bytes, dtype: DType, exprs: Exprs) -> Bytes:
    """The same numbers as bytes of another sign: 128 is added or taken off by turning a bit."""
    if x.value.dtype is dtype:
        return x
    bits = exprs.apply(lookup("bitcast"), [x.value], {"to": dtype}, dtype)
    turn = exprs.const(np.array(0x80, np.uint8).view(dtype.numpy), dtype)
    value = exprs.apply(lookup("bit_xor"), [bits, turn], {}, dtype)
    by = exprs.const(np.array(MOVED if dtype is DType.U8 else -MOVED, np.int32), I32)
    zero = by if x.zero is None else exprs.apply(lookup("add"), [x.zero, by], {}, I32)
    return Bytes(value, zero)


def _corrected(
    contract: Contract, a: Expr | None, b: Expr | None, exprs: Exprs
) -> tuple[Contract, tuple[Sums, ...]]:
    """The contraction whose epilogue takes the zero points' part off the sum."""
    (total,) = (n for n in contract.epilogue if isinstance(n, Accumulator))
    made: Expr = total
    sums: list[Sums] = []
    sides = (a, contract.right, contract.columns), (b, contract.left, contract.rows)
    for zero, side, axis in sides:
        if zero is not None:
            added = _summed(contract, side, axis)
            at = added.kernel.stores[0].at
            held = exprs.load(len(contract.operands), at, I32)
            contract = replace(contract, operands=(*contract.operands, *added.kernel.results))
            part = exprs.apply(lookup("mul"), [zero, held], {}, I32)
            made = exprs.apply(lookup("sub"), [made, part], {}, I32)
            sums.append(added)
    if a is not None and b is not None:
        both = exprs.apply(lookup("mul"), [a, b], {}, I32)
        count = exprs.size(contract.inner[0].extent, I32)
        both = exprs.apply(lookup("mul"), [both, count], {}, I32)
        made = exprs.apply(lookup("add"), [made, both], {}, I32)
    if not sums:
        return contract, ()
    move = Mover(exprs, {}, {total: made})
    stores = tuple(replace(s, value=move(s.value)) for s in contract.stores)
    return replace(contract, stores=stores), tuple(sums)


def _summed(contract: Contract, side: Expr, axis: Axis) -> Sums:
    """The sum of an operand over the inner axis, for each row or column and what it varies with."""
    exprs = Exprs()
    axes = (*(b for b in contract.batch if b in side.free), axis)
    wide = exprs.apply(lookup("cast"), [Mover(exprs, {})(side)], {"to": I32}, I32)
    value = exprs.reduce("sum", contract.inner[0], wide)
    dims: list[DimLike] = [x.extent for x in axes]
    strides = Layout.contiguous(dims).strides
    at = Affine(tuple((x, s) for x, s in zip(axes, strides) if s != 0))
    store = Store(0, at, value)
    kernel = Kernel(f"{contract.name}.sums", axes, (store,), contract.operands, (Shape(dims, I32),))
    return Sums(kernel, side)
