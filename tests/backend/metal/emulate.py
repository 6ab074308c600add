"""Programs as MSL, run on arrays of the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rlx.backends.gpu.device import ALIGN, Code
from rlx.backends.metal.launch import packed
from rlx.backends.metal.machine import FAMILIES, Family, has_address_struct
from rlx.backends.metal.msl.printer import msl
from rlx.core.dim import evaluate
from rlx.program.program import Program
from tests.backend.gpu import laws
from tests.backend.metal import host

Array = np.ndarray[Any, Any]
APPLE = FAMILIES["apple9"]


def launch(
    program: Program,
    buffers: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    family: Family = APPLE,
) -> None:
    """Run what is printed of a program on arrays, which it changes."""
    known = sizes or {}
    source = msl(program, family)
    code = Code.of(program, source.encode(), 0)
    arrays = [buffers[b.name] for b in program.buffers]
    copies = [_aligned(a) for a in arrays]
    scalars = np.frombuffer(packed(code, known) or b"\0", np.uint8).copy()
    addresses = np.asarray([c.ctypes.data for c in copies], np.uint64)
    buffers_at = [addresses.ctypes.data] if has_address_struct(len(copies)) else addresses.tolist()
    arguments = [*buffers_at, scalars.ctypes.data]
    grid = [evaluate(d, known) for d in program.grid]
    host.compiled(source).run(arguments, grid, program.block)
    for array, copy in zip(arrays, copies):
        array.reshape(-1).view(np.uint8)[:] = copy


def _aligned(array: Array) -> Array:
    """The bytes of an array, as a device aligns them."""
    room = np.empty(array.nbytes + ALIGN, np.uint8)
    start = -room.ctypes.data % ALIGN
    made = room[start : start + array.nbytes]
    made[:] = array.reshape(-1).view(np.uint8)
    return made


def wrong(made: laws.Applied, program: Program) -> list[str]:
    """What the printed text of a drawn op's program computes wrongly."""
    return laws.wrong(made, program, launch)
