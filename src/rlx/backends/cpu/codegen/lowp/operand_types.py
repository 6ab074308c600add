"""Low-precision operands of a GEMM: a stored dtype and a compute dtype.

A GEMM of widened operands loads the narrow ones and widens them in registers; a scale that is
constant over a run of inner steps multiplies their sum, once.
"""

from __future__ import annotations

from dataclasses import replace

from rlx.backends.cpu.isa import Isa
from rlx.core.dtype import DType
from rlx.kernel.contract import Contract
from rlx.kernel.expr import Apply, Expr, Load

BYTES = (DType.U8, DType.I8)
_REPRESENTED = {
    DType.F32: (DType.BF16, DType.F16, *BYTES, DType.U16, DType.I16),
    DType.I32: (*BYTES, DType.U16, DType.I16),
}
"""For each dtype, those that it represents exactly, among the ones that tiles widen."""


def with_stored_dtypes(contract: Contract) -> Contract:
    """The contraction with operands in their stored dtype."""
    left, right = (before_widening(x, contract.sums) for x in (contract.left, contract.right))
    return replace(contract, left=left, right=right)


def before_widening(x: Expr, sums: DType) -> Expr:
    """The operand of a widening cast to the dtype of the sums; the value itself if there is
    none."""
    x = _without_idle_casts(x)
    if isinstance(x, Apply) and x.op.name == "cast" and x.dtype is sums:
        given = _as_loaded(_without_idle_casts(x.args[0]))
        return given if given.dtype in _REPRESENTED.get(sums, ()) else x
    return x


def _without_idle_casts(x: Expr) -> Expr:
    while isinstance(x, Apply) and x.op.name == "cast" and x.args[0].dtype is x.dtype:
        x = x.args[0]
    return x


def _as_loaded(x: Expr) -> Expr:
    """A load of a bitcast is a load."""
    if isinstance(x, Apply) and x.op.name == "bitcast":
        given = x.args[0]
        if isinstance(given, Load) and given.dtype.itemsize == x.dtype.itemsize:
            return replace(given, dtype=x.dtype)
    return x


def factor_out_scale(contract: Contract) -> tuple[Contract, Expr | None]:
    """The contraction of quantised operands, and the scale of their sums over the last inner axis;
    none where the right operand is no such product."""
    right = _without_idle_casts(contract.right)
    if not isinstance(right, Apply) or right.op.name != "mul" or right.dtype is not contract.sums:
        return contract, None
    for x, factor in (right.args, right.args[::-1]):
        given = before_widening(x, contract.sums)
        is_narrow = isinstance(given, Load) and given.dtype is not contract.sums
        if is_narrow and contract.inner[-1] not in factor.free:
            return replace(contract, right=given), factor
    return contract, None


def dot_group_of(contract: Contract, isa: Isa) -> int:
    """Inner steps of a dot-product group: as many as fill 32 bits, where the instruction set has
    dot products of their dtypes and the left operand's inner steps are contiguous."""
    left, right = contract.left, contract.right
    if not isinstance(left, Load) or len(contract.inner) != 1:
        return 1
    if left.at.coefficient(contract.inner[0]) != 1:
        return 1
    return dot_group_size(left.dtype, right.dtype, contract.sums, isa)


def dot_group_size(left: DType, right: DType, sums: DType, isa: Isa) -> int:
    if (left, right, sums) == (DType.BF16, DType.BF16, DType.F32):
        return 2 if isa.has_bf16_dots else 1
    if (left, right, sums) == (DType.U8, DType.I8, DType.I32):
        return 4 if isa.has_byte_dots else 1
    if (left, right, sums) == (DType.I16, DType.I16, DType.I32):
        return 2 if isa.has_short_dots else 1
    return 1
