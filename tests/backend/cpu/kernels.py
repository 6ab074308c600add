"""Running loop kernels natively, many in one module."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx
from rlx.backends.cpu.codegen.loop.emit import emit, legal
from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.llvm.compile import Native
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.schedule.loop_schedule import Schedule, choose, scratch_bytes, sizes_of
from rlx.core.dim import evaluate, product
from rlx.kernel.expr import Kernel, Reduce
from rlx.kernel.lower.loop import loop_kernel
from rlx.kernel.refusal import NotLowered
from rlx.ops.draw import Draw
from rlx.ops.op import Kind, Op, table
from tests.backend.cpu.guarded import PAGE, guarded

_libc = ctypes.CDLL(None)
EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23}
PAD = 64
"""Elements around every operand and result, to see what is written outside."""


LOOPS = [
    o
    for o in table().values()
    if not o.why_no_cases and o.kind in (Kind.ELEMENTWISE, Kind.REDUCTION, Kind.ROW, Kind.MOVEMENT)
]
"""Ops that are loop kernels by themselves."""


@dataclass(frozen=True)
class Work:
    """A kernel, and data to run it on."""

    kernel: Kernel
    arrays: Sequence[np.ndarray]
    sizes: Mapping[str, int]


def works_of(op: Op, seeds: range) -> tuple[list[Work], list[object]]:
    """Drawn applications of an op that form kernels the backend takes, and the expected results."""
    works: list[Work] = []
    wants: list[object] = []
    for seed in seeds:
        draw = Draw([zlib.crc32(op.name.encode()), seed])
        case = draw.case(op)
        arrays = draw.arrays(case)
        g = rlx.Graph(op.name)
        inputs = [g.input(f"x{i}", rlx.Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
        try:
            node = g.node(op, inputs, case.attrs)
            kernel = loop_kernel(node)
        except NotLowered:
            continue
        if is_refused(kernel):
            continue
        works.append(Work(kernel, arrays, {}))
        wants.append(op.run(arrays, case.attrs))
    return works, wants


def is_refused(kernel: Kernel) -> bool:
    """The one kind of loop that the backend does not take: a product along complex numbers."""
    return any(isinstance(n, Reduce) and n.fold == "prod" and n.dtype.is_complex
               for n in kernel.nodes)  # fmt: skip


class Batch:
    """Kernels compiled together."""

    def __init__(self, works: Sequence[Work], isa: Isa, schedule: Any = choose) -> None:
        machine = CpuMachine.of(isa)
        self.works = works
        self.kernels = [legal(w.kernel) for w in works]
        self.schedules: list[Schedule] = [schedule(k, machine) for k in self.kernels]
        made = [
            emit(k, s, isa, f"kernel{i}")
            for i, (k, s) in enumerate(zip(self.kernels, self.schedules))
        ]
        self.text = module(made, isa)
        self.native = Native(self.text, isa)
        self.name = lambda number: f"kernel{number}"

    def run(self, number: int, parts: int = 1) -> tuple[int, list[np.ndarray]]:
        """The error code and the results; the parallel axis is handed out in `parts`."""
        work, kernel, schedule = self.works[number], self.kernels[number], self.schedules[number]
        fence = guarded if number % 2 else _guarded_before
        given = [fence(np.ascontiguousarray(a)) for a in work.arrays]
        made = [_framed(r.bind(work.sizes)) for r in kernel.results]
        pointers = [a.ctypes.data for a in given]
        pointers += [whole.ctypes.data + PAD * whole.itemsize for whole in made]
        bytes_kept = evaluate(scratch_bytes(schedule), work.sizes)
        scratch = np.full(bytes_kept + PAD, 0xA5, np.uint8)
        sizes = [evaluate(d, work.sizes) for d in sizes_of(kernel)]
        extent = evaluate(product(a.extent for a in schedule.parallel), work.sizes)
        edges = np.linspace(0, max(1, extent), parts + 1).astype(int)
        for start, stop in itertools.pairwise(edges):
            code = self.native.call_part(
                self.name(number), pointers, sizes, int(start), int(stop), scratch.ctypes.data
            )
            if code:
                return code, []
        assert (scratch[-PAD:] == 0xA5).all(), f"{kernel.name} wrote outside its scratch"
        results: list[np.ndarray] = []
        for whole, shape in zip(made, kernel.results):
            frame = np.r_[whole[:PAD], whole[-PAD:]].view(np.uint8)
            assert (frame == 0xA5).all(), f"{kernel.name} wrote outside its result"
            results.append(whole[PAD:-PAD].reshape(shape.bind(work.sizes).static_dims))
        return 0, results


def _guarded_before(array: np.ndarray) -> np.ndarray:
    """A copy that begins where memory does: reading before it stops the process."""
    memory = mmap.mmap(-1, PAGE + max(1, array.nbytes))
    whole = np.frombuffer(memory, np.uint8)
    assert not _libc.mprotect(ctypes.c_void_p(whole.ctypes.data), ctypes.c_size_t(PAGE), 0)
    copy = whole[PAGE : PAGE + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _framed(shape: Any) -> np.ndarray:
    """A result with a frame around it, both on the boundary of a line."""
    count = int(np.prod(shape.static_dims)) + 2 * PAD
    raw = np.full(count * shape.dtype.itemsize + 64, 0xA5, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count * shape.dtype.itemsize].view(shape.dtype.numpy)


def assert_close(got: np.ndarray, want: np.ndarray, what: str = "") -> None:
    """Equal, or within roundings: a kernel adds in another order than NumPy, rounds halves once,
    and its functions have their own last bits; rows here are a few hundred numbers of size 1."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if np.dtype(want.dtype).kind not in "fcV":
        np.testing.assert_array_equal(got, want, what)
        return
    if want.dtype.kind == "c":
        part = np.float32 if want.dtype == np.complex64 else np.float64
        got, want = (np.ascontiguousarray(v).reshape(-1).view(part) for v in (got, want))
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
    size = np.abs(b[np.isfinite(b)]).max(initial=1.0)
    eps = 64 * EPS.get(want.dtype.name, 2.0**-52)
    np.testing.assert_allclose(a, b, rtol=eps, atol=eps * min(size, 1e4), err_msg=what)
