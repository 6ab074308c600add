"""Launches whose arguments are laid out: one call of the driver each.

A launch's parameters are in one block of memory, in the order of the kernel's: addresses of the
buffers, scalars, tensor maps. It is made once for a kernel, its addresses and sizes, and can be
enqueued any number of times.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlx.backends.cuda.context import Context
from rlx.backends.cuda.tensor_map import MAP_ALIGN, MAP_BYTES, Matrix, encode
from rlx.backends.gpu.device import Code, Kernel
from rlx.core.dim import evaluate
from rlx.core.dtype import DType
from rlx.core.errors import Error, UnsupportedError

CLUSTER, DEPENDENT = 4, 6
"""Attributes of a launch: blocks of a cluster; that it may begin before the kernel before ends."""
FORMATS = {
    DType.I32: "i", DType.U32: "I", DType.I64: "q", DType.U64: "Q", DType.F32: "f", DType.F64: "d",
}  # fmt: skip
ADDRESS_BYTES = 8
MAPS = 4096
"""Tensor maps that are held."""


class Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


def offsets(code: Code) -> tuple[tuple[int, ...], int]:
    """Where each parameter is in the block, and the size of the block."""
    found = [i * ADDRESS_BYTES for i in range(len(code.buffers))]
    end = len(found) * ADDRESS_BYTES
    sizes = [(dtype.itemsize, dtype.itemsize) for dtype, _ in code.scalars]
    for size, align in (*sizes, *[(MAP_BYTES, MAP_ALIGN)] * len(code.maps)):
        found.append(-(-end // align) * align)
        end = found[-1] + size
    return tuple(found), end


@dataclass(frozen=True, slots=True, eq=False)
class Parameters:
    """The block of a launch's parameters, and the pointers to each."""

    pointers: Any
    block: bytes
    places: tuple[int, ...]
    kept: Any
    """The memory that is pointed to."""
    matrices: tuple[Matrix, ...]
    """Of the tensor maps."""

    @classmethod
    def of(
        cls, context: Context, code: Code, addresses: Sequence[int], sizes: Mapping[str, int]
    ) -> Parameters:
        places, size = offsets(code)
        found = tuple(matrices(code, addresses, sizes))
        block = _block(code, addresses, sizes, places, size)
        _put_maps(context, code, found, block, places)
        return cls.laid(bytes(block), places, found)

    @classmethod
    def laid(
        cls, block: bytes, places: tuple[int, ...], matrices: tuple[Matrix, ...]
    ) -> Parameters:
        kept = ctypes.create_string_buffer(len(block) + MAP_ALIGN)
        base = -(-ctypes.addressof(kept) // MAP_ALIGN) * MAP_ALIGN
        ctypes.memmove(base, block, len(block))
        pointers = (ctypes.c_void_p * max(1, len(places)))(*[base + p for p in places])
        return cls(pointers, block, places, kept, matrices)

    def moved(
        self, context: Context, code: Code, old: Sequence[int], addresses: Sequence[int]
    ) -> Parameters:
        """The same at other addresses: scalars and the dims of matrices stay as they are."""
        block = bytearray(self.block)
        struct.pack_into(f"{len(addresses)}Q", block, 0, *addresses)
        by = {n: new - a for n, a, new in zip(code.buffers, old, addresses)}
        found = tuple(
            replace(m, address=m.address + by[t.buffer]) if by[t.buffer] else m
            for t, m in zip(code.maps, self.matrices)
        )
        _put_maps(context, code, found, block, self.places)
        return Parameters.laid(bytes(block), self.places, found)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A launch that is ready to be enqueued."""

    kernel: Kernel
    addresses: tuple[int, ...]
    sizes: Mapping[str, int]
    config: Config
    parameters: Parameters
    num_attributes: int
    """That hold always; a dependent launch has one more."""
    is_dependent: bool
    kept: Any
    """Memory that the config points to."""

    def moved(self, context: Context, addresses: Sequence[int]) -> Prepared:
        """The same launch at other addresses."""
        code = self.kernel.code
        check_addresses(code, addresses)
        parameters = self.parameters.moved(context, code, self.addresses, addresses)
        return replace(self, addresses=tuple(addresses), parameters=parameters)

    def enqueue(self, context: Context, launch: Any, stream: int, is_dependent: bool) -> None:
        """`launch` is cuLaunchKernelEx. `is_dependent`: the kernel before may still run."""
        config, function = self.config, self.kernel.handle.value
        config.stream = stream
        config.num_attributes = self.num_attributes + is_dependent
        passed = ctypes.byref(config)
        code = launch(passed, function, self.parameters.pointers, None)
        if code:
            self._failed(context, code, passed)

    def _failed(self, context: Context, code: int, passed: Any) -> None:
        args = passed, self.kernel.handle.value, self.parameters.pointers, None
        try:
            context.failed("cuLaunchKernelEx", code, *args)
        except Error as error:
            made, grid = self.kernel.code, tuple(self.config.grid)
            raise type(error)(
                f"kernel {made.name} (grid {grid}, {made.block} threads, clusters of "
                f"{made.cluster}, {made.shared_bytes} bytes of shared memory): {error}"
            ) from None


def prepare(
    context: Context, kernel: Kernel, addresses: Sequence[int], sizes: Mapping[str, int]
) -> Prepared | None:
    """The launch of a kernel on buffers at these addresses; None where its grid is empty."""
    code = kernel.code
    grid = [evaluate(d, sizes) for d in code.grid]
    if 0 in grid:
        return None
    parameters = Parameters.of(context, code, addresses, sizes)
    attributes, count = _attributes(code)
    config = Config(
        (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(code.block, 1, 1), code.shared_bytes,
        None, ctypes.addressof(attributes), count,
    )  # fmt: skip
    given = tuple(addresses), dict(sizes)
    return Prepared(kernel, *given, config, parameters, count, code.is_dependent, attributes)


def _attributes(code: Code) -> tuple[Any, int]:
    """The cluster's, where there is one, then that of a dependent launch; how many hold always."""
    wanted = [(CLUSTER, (code.cluster, 1, 1))] if code.cluster > 1 else []
    wanted.append((DEPENDENT, (1, 0, 0)))
    found = (Attribute * len(wanted))()
    for attribute, (number, values) in zip(found, wanted):
        attribute.id = number
        attribute.value[:3] = values
    return found, len(wanted) - 1


def _block(
    code: Code,
    addresses: Sequence[int],
    sizes: Mapping[str, int],
    places: Sequence[int],
    size: int,
) -> bytearray:
    """The parameters as bytes, but for tensor maps."""
    check_addresses(code, addresses)
    block = bytearray(size)
    struct.pack_into(f"{len(addresses)}Q", block, 0, *addresses)
    at = iter(places[len(addresses) :])
    for dtype, dim in code.scalars:
        struct.pack_into(_format(code, dtype), block, next(at), evaluate(dim, sizes))
    return block


def _put_maps(
    context: Context,
    code: Code,
    found: Sequence[Matrix],
    block: bytearray,
    places: Sequence[int],
) -> None:
    """The tensor maps, which are the last parameters."""
    for start, matrix in zip(places[len(places) - len(found) :], found):
        block[start : start + MAP_BYTES] = _encoded(context, matrix, code.name)


def _encoded(context: Context, matrix: Matrix, name: str) -> bytes:
    """A tensor map. Those of weights are the same in every call, those of values often in every
    layer of a model."""
    made = context.maps.get(matrix)
    if made is None:
        if len(context.maps) >= MAPS:
            context.maps.clear()
        made = context.maps[matrix] = encode(context, matrix, name)
    return made


def check_addresses(code: Code, addresses: Sequence[int]) -> None:
    if len(addresses) != len(code.buffers):
        raise Error(
            f"kernel {code.name} has {len(code.buffers)} buffers and was given {len(addresses)}."
        )


def _format(code: Code, dtype: DType) -> str:
    if dtype not in FORMATS:
        raise UnsupportedError(f"kernel {code.name}: a scalar of {dtype} cannot be passed.")
    return FORMATS[dtype]


def matrices(code: Code, addresses: Sequence[int], sizes: Mapping[str, int]) -> list[Matrix]:
    """What the tensor maps of a launch describe."""
    at = dict(zip(code.buffers, addresses))
    found: list[Matrix] = []
    for tensor, dtype, is_swizzled in zip(
        code.maps, code.map_dtypes, code.map_swizzles, strict=True
    ):
        dims = (*tensor.dims, tensor.row_stride, tensor.offset)
        rows, columns, pitch, offset = (evaluate(d, sizes) for d in dims)
        address = at[tensor.buffer] + offset * dtype.itemsize
        outer = tuple(
            (evaluate(o.count, sizes), evaluate(o.stride, sizes), o.box) for o in tensor.outer
        )
        windows = tuple((evaluate(w.count, sizes), w.first, w.step) for w in tensor.windows)
        found.append(
            Matrix(dtype, address, rows, columns, tensor.box, is_swizzled, pitch, outer, windows)
        )
    return found
