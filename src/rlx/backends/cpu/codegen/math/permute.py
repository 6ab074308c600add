"""Vector permutations by indices in a register: small tables that one or two registers hold."""

from __future__ import annotations

from rlx.backends.cpu.llvm.values import Vec
from rlx.core.dtype import DType

PERMUTED = {16: "x86.avx512.permvar.sf.512", 8: "x86.avx2.permps"}
"""Lanes → the instruction of f32."""


def permuted(table: Vec, indices: Vec, more: Vec | None = None) -> Vec:
    """A permutation: of sixteen or eight numbers, or of two times sixteen, those that the low bits
    of indices select."""
    parts = [f"{v.type} {v.text}" for v in (table, indices, *([] if more is None else [more]))]
    name = PERMUTED[table.code.lanes] if more is None else "x86.avx512.vpermi2var.ps.512"
    return table.code.vector_of(table.code.intrinsic(name, table.type, *parts), DType.F32)
