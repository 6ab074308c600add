"""Lanes from and to memory: side by side, apart, or one for all."""

from __future__ import annotations

from rlx.backends.cpu.halves import from_memory, stored, to_memory
from rlx.backends.cpu.ir import ELEMENT, Bound, Code, Vec
from rlx.dtype import DType


def advanced(code: Code, pointer: str, count: Bound, dtype: DType) -> str:
    """The pointer, some elements on."""
    if count == 0:
        return pointer
    return code.let(f"getelementptr {ELEMENT[stored(dtype)]}, ptr {pointer}, i64 {count}")


def load(code: Code, dtype: DType, pointer: str, stride: Bound = 1, mask: Vec | None = None) -> Vec:
    """The elements at pointer, pointer + stride …; lanes that the mask rules out are not read,
    and are 0."""
    raw = stored(dtype)
    element, kind = ELEMENT[raw], code.vector(ELEMENT[raw])
    if stride == 0:
        one = code.let(f"load {element}, ptr {pointer}, align {dtype.itemsize}")
        return from_memory(code.splat(one, raw), dtype)
    if stride == 1 and mask is None:
        made = code.let(f"load {kind}, ptr {pointer}, align {dtype.itemsize}")
    else:
        name, where = _place(code, "load", "gather", dtype, pointer, stride)
        made = code.intrinsic(name, kind, where, _chosen(code, mask), f"{kind} zeroinitializer")
    return from_memory(Vec(code, made, raw), dtype)


def store(
    code: Code, value: Vec, dtype: DType, pointer: str, stride: Bound = 1, mask: Vec | None = None
) -> None:
    """The lanes to pointer, pointer + stride …, but for those the mask rules out."""
    raw = to_memory(value, dtype)
    if stride == 1 and mask is None:
        code.do(f"store {raw.type} {raw.text}, ptr {pointer}, align {dtype.itemsize}")
        return
    name, where = _place(code, "store", "scatter", dtype, pointer, stride)
    code.intrinsic(name, "void", f"{raw.type} {raw.text}", where, _chosen(code, mask))


def _place(
    code: Code, beside: str, apart: str, dtype: DType, pointer: str, stride: Bound
) -> tuple[str, str]:
    """The intrinsic for a stride, and its argument that says where."""
    element = ELEMENT[stored(dtype)]
    if stride == 1:
        name = f"masked.{beside}.{code.suffix(element)}.p0"
        return name, f"ptr align {dtype.itemsize} {pointer}"
    places = code.iota(DType.I64) * code.splat(stride, DType.I64)
    pointers = code.let(f"getelementptr {element}, ptr {pointer}, {places.type} {places.text}")
    where = f"{code.vector('ptr')} align {dtype.itemsize} {pointers}"
    return f"masked.{apart}.{code.suffix(element)}.v{code.lanes}p0", where


def _chosen(code: Code, mask: Vec | None) -> str:
    return f"{code.vector('i1')} {mask.text if mask else 'splat (i1 true)'}"
