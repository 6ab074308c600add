"""Tensor maps: matrices as the copy engine reads them, 128 bytes that are passed by value."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlx.backends.cuda.context import Context
from rlx.core.dtype import DType
from rlx.core.errors import UnsupportedError

MAP_BYTES, MAP_ALIGN = 128, 64
SWIZZLE_BYTES = 128
"""Of a row of a box whose 16-byte chunks are permuted."""
MAX_BOX = 256
ADDRESS_ALIGN = 16
"""Of the matrix, and of the distance of its rows."""
DTYPES: Mapping[DType, int] = {
    DType.BOOL: 0, DType.U8: 0, DType.I8: 0, DType.U16: 1, DType.I16: 1, DType.U32: 2,
    DType.I32: 3, DType.U64: 4, DType.C64: 4, DType.I64: 5, DType.F16: 6, DType.F32: 7,
    DType.F64: 8, DType.BF16: 9,
}  # fmt: skip
"""The driver's numbers of element types; what is only copied has one of its size."""
NO_SWIZZLE, SWIZZLE_128 = 0, 3
CORNERS: Mapping[int, int] = {1: 1 << 15, 2: 1 << 7, 3: 1 << 4}
"""How far outside of images windows may start, by the number of their axes."""
MAX_WINDOW_STEP = 8
L2_LINES_256 = 3
"""Lines of the second level cache are requested in pairs, for matrices are read whole."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """What one map describes."""

    dtype: DType
    address: int
    rows: int
    columns: int
    box: tuple[int, int]
    """Rows and columns of one copy."""
    is_swizzled: bool = True
    pitch: int | None = None
    """Elements from a row to the next, where it is not the number of columns."""
    outer: tuple[tuple[int, int, int], ...] = ()
    """Matrices, the distance of their elements, and how many a box has; the outermost first."""
    windows: tuple[tuple[int, int, int], ...] = ()
    """Of images, along each axis: how many there are, where the first starts, and their step."""

    @property
    def row_bytes(self) -> int:
        """The distance of rows; of one row it is nobody's, but must be aligned."""
        size = (self.columns if self.pitch is None else self.pitch) * self.dtype.itemsize
        return -(-size // ADDRESS_ALIGN) * ADDRESS_ALIGN if self.rows <= 1 else size

    def refusal(self) -> str:
        """Why the copy engine cannot read it; "" where it can."""
        width = self.box[1] * self.dtype.itemsize
        if self.dtype not in DTYPES:
            return f"elements of {self.dtype}"
        if self.address % ADDRESS_ALIGN:
            return f"address {self.address:#x}, which is no multiple of {ADDRESS_ALIGN}"
        if self.row_bytes % ADDRESS_ALIGN:
            return f"rows of {self.row_bytes} bytes, which is no multiple of {ADDRESS_ALIGN}"
        apart = [s * self.dtype.itemsize for n, s, _ in self.outer if n > 1]
        if any(s % ADDRESS_ALIGN for s in apart):
            return f"matrices {apart} bytes apart, which are no multiples of {ADDRESS_ALIGN}"
        if not all(1 <= n <= MAX_BOX for n in (*self.box, *(n for *_, n in self.outer))):
            return f"a box of {self.box}; at most {MAX_BOX} each way"
        if width % ADDRESS_ALIGN or (self.is_swizzled and width > SWIZZLE_BYTES):
            return f"rows of a box of {width} bytes; 16, 32 … {SWIZZLE_BYTES} where swizzled"
        return self._window_refusal()

    @property
    def corners(self) -> tuple[tuple[int, int], ...]:
        """Along each axis: the first place where a window starts, and the last, counted from the
        image's last element."""
        extents = (*(n for n, _, _ in self.outer[1:]), self.rows)
        return tuple(
            (first, first + (count - 1) * step - (extent - 1))
            for extent, (count, first, step) in zip(extents, self.windows)
        )

    def _window_refusal(self) -> str:
        reach = CORNERS.get(len(self.windows), 0)
        if self.windows and not all(-reach <= c < reach for two in self.corners for c in two):
            return f"windows that start {self.corners} outside of images; less than {reach}"
        if not all(1 <= step <= MAX_WINDOW_STEP for *_, step in self.windows):
            return f"windows at steps {[s for *_, s in self.windows]}; at most {MAX_WINDOW_STEP}"
        return ""


def encode(context: Context, matrix: Matrix, name: str) -> bytes:
    """The bytes of a map, for a parameter of the kernel `name`."""
    why = matrix.refusal()
    if why:
        raise UnsupportedError(f"kernel {name}: a tensor map cannot have {why}.")
    raw = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGN)
    at = -(-ctypes.addressof(raw) // MAP_ALIGN) * MAP_ALIGN
    inner = matrix.outer[::-1]
    size, rank = matrix.dtype.itemsize, 2 + len(inner)
    counts = (matrix.columns, matrix.rows, *(n for n, _, _ in inner))
    apart = (matrix.row_bytes, *(s * size if n > 1 else 0 for n, s, _ in inner))
    dims = (ctypes.c_uint64 * rank)(*(max(1, n) for n in counts))
    strides = (ctypes.c_uint64 * (rank - 1))(*(max(ADDRESS_ALIGN, s) for s in apart))
    given = DTYPES[matrix.dtype], rank, matrix.address, dims, strides
    how = 0, SWIZZLE_128 if matrix.is_swizzled else NO_SWIZZLE, L2_LINES_256, 0
    if matrix.windows:
        context("cuTensorMapEncodeIm2col", at, *given, *_window_boxes(matrix), *how)
    else:
        box = (ctypes.c_uint32 * rank)(*matrix.box[::-1], *(n for *_, n in inner))
        steps = (ctypes.c_uint32 * rank)(*[1] * rank)
        context("cuTensorMapEncodeTiled", at, *given, box, steps, *how)
    return ctypes.string_at(at, MAP_BYTES)


def _window_boxes(matrix: Matrix) -> tuple[Any, ...]:
    """Both corners of where windows start, channels and windows of a box, and steps."""
    corners, count = matrix.corners[::-1], len(matrix.windows)
    first, last = ((ctypes.c_int * count)(*places) for places in zip(*corners))
    steps = (ctypes.c_uint32 * (count + 2))(1, *(s for *_, s in matrix.windows[::-1]), 1)
    pixels, channels = matrix.box
    return first, last, channels, pixels, steps
