"""Vector loads and stores: contiguous, strided, or uniform."""

from __future__ import annotations

from rlx.backends.cpu.codegen.math.storage_types import from_memory, stored, to_memory
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.values import Bound, Vec
from rlx.core.dtype import DType
from rlx.program.nodes import Value


def advanced(code: Code, pointer: str, count: Bound, dtype: DType) -> str:
    """The pointer, some elements on."""
    return pointer if count == 0 else code.advanced(pointer, count, stored(dtype))


def load(code: Code, dtype: DType, pointer: str, stride: Bound = 1, mask: Vec | None = None) -> Vec:
    """The elements at pointer, pointer + stride …; masked-off lanes are not read, and are 0."""
    raw, align = stored(dtype), dtype.itemsize
    if stride == 0:
        return from_memory(code.splat(code.load_scalar(pointer, raw, align), raw), dtype)
    if stride == 1:
        return from_memory(code.load(pointer, raw, align, mask), dtype)
    return from_memory(code.gather(_strided(code, pointer, stride, raw), raw, align, mask), dtype)


def load_at(code: Code, dtype: DType, pointer: str, places: Vec) -> Vec:
    """A gather at these element offsets."""
    raw = stored(dtype)
    addresses = code.lane_addresses(pointer, places, raw)
    return from_memory(code.gather(addresses, raw, dtype.itemsize, None), dtype)


def store(
    code: Code, value: Vec, dtype: DType, pointer: str, stride: Bound = 1, mask: Vec | None = None
) -> None:
    """The lanes to pointer, pointer + stride …, but for masked-off ones."""
    raw = to_memory(value, dtype)
    if stride == 1 and mask is None:
        code.store(pointer, raw, dtype.itemsize)
    elif stride == 1 and mask is not None:
        store_some(code, raw, pointer, mask)
    else:
        addresses = _strided(code, pointer, stride, raw.dtype)
        code.scatter(addresses, raw, dtype.itemsize, mask)


def _strided(code: Code, pointer: str, stride: Bound, dtype: DType) -> Value:
    """An address for each lane."""
    places = code.iota(DType.I64) * code.splat(stride, DType.I64)
    return code.lane_addresses(pointer, places, dtype)


def store_some(code: Code, raw: Vec, pointer: str, mask: Vec) -> None:
    """A masked contiguous store of stored elements. Where LLVM knows that a single lane is set, and
    the lanes were truncated to 8 or 16 bits, it stores all 32 bits that they were truncated from,
    past the element: with mask registers, it must not know."""
    if code.isa.has_masks and raw.dtype.itemsize < 4:
        mask = code.opaque_mask(mask)
    code.store_masked(pointer, raw, raw.dtype.itemsize, mask)
