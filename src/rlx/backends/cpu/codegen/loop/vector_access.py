"""Vector loads and stores: contiguous, strided, or uniform."""

from __future__ import annotations

from rlx.backends.cpu.codegen.math.storage_types import from_memory, stored, to_memory
from rlx.backends.cpu.llvm.builder import ELEMENT, Bound, Code, Vec
from rlx.core.dtype import DType


def advanced(code: Code, pointer: str, count: Bound, dtype: DType) -> str:
    """The pointer, some elements on."""
    if count == 0:
        return pointer
    return code.let(f"getelementptr {ELEMENT[stored(dtype)]}, ptr {pointer}, i64 {count}")


def load(code: Code, dtype: DType, pointer: str, stride: Bound = 1, mask: Vec | None = None) -> Vec:
    """The elements at pointer, pointer + stride …; masked-off lanes are not read, and are 0."""
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


def load_at(code: Code, dtype: DType, pointer: str, places: Vec) -> Vec:
    """A gather at these element offsets."""
    raw = stored(dtype)
    element, kind = ELEMENT[raw], code.vector(ELEMENT[raw])
    where = code.let(f"getelementptr {element}, ptr {pointer}, {places.type} {places.text}")
    name = f"masked.gather.{code.suffix(element)}.v{code.lanes}p0"
    every = f"{code.vector('ptr')} align {dtype.itemsize} {where}"
    made = code.intrinsic(name, kind, every, _chosen(code, None), f"{kind} zeroinitializer")
    return from_memory(Vec(code, made, raw), dtype)


def store(
    code: Code, value: Vec, dtype: DType, pointer: str, stride: Bound = 1, mask: Vec | None = None
) -> None:
    """The lanes to pointer, pointer + stride …, but for masked-off ones."""
    raw = to_memory(value, dtype)
    if stride == 1 and mask is None:
        code.do(f"store {raw.type} {raw.text}, ptr {pointer}, align {dtype.itemsize}")
        return
    if stride == 1 and mask is not None:
        store_some(code, raw, pointer, mask)
        return
    name, where = _place(code, "store", "scatter", dtype, pointer, stride)
    code.intrinsic(name, "void", f"{raw.type} {raw.text}", where, _chosen(code, mask))


def store_some(code: Code, raw: Vec, pointer: str, mask: Vec) -> None:
    """A masked contiguous store of stored elements."""
    if code.isa.has_masks and raw.dtype.itemsize < 4:
        mask = _hidden(mask)
    code.intrinsic(
        f"masked.store.{code.suffix(ELEMENT[raw.dtype])}.p0",
        "void",
        f"{raw.type} {raw.text}",
        f"ptr align {raw.dtype.itemsize} {pointer}",
        f"{mask.type} {mask.text}",
    )


def _hidden(mask: Vec) -> Vec:
    """The mask, through an x86 mask register that is opaque to LLVM. Where it knows that a single
    lane is set, and the lanes were truncated to 8 or 16 bits, it stores all 32 bits that they were
    truncated from: past the element."""
    code, lanes = mask.code, max(8, mask.code.lanes)
    kind, text = f"<{lanes} x i1>", mask.text
    if lanes > code.lanes:
        text = code.let(
            f"shufflevector {mask.type} {text}, {mask.type} zeroinitializer, "
            f"<{lanes} x i32> {_order(lanes, code.lanes)}"
        )
    text = code.let(f'call {kind} asm "", "=k,0"({kind} {text})')
    if lanes > code.lanes:
        order = f"{code.vector('i32')} {_order(code.lanes, code.lanes)}"
        text = code.let(f"shufflevector {kind} {text}, {kind} poison, {order}")
    return Vec(code, text, mask.dtype)


def _order(count: int, lanes: int) -> str:
    """The first lanes of a vector, then one of the next vector as often as is needed."""
    return f"<{', '.join(f'i32 {min(n, lanes)}' for n in range(count))}>"


def _place(
    code: Code, beside: str, apart: str, dtype: DType, pointer: str, stride: Bound
) -> tuple[str, str]:
    """The intrinsic for a stride, and its address argument."""
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
