"""What kernels of this backend cost on this machine: launches, calls, bytes, arithmetic.

Bytes and launches are measured on kernels that the backend itself makes, as the gate prices those
and no ideal ones: a chain of small products and differences, each a kernel of its own. What one
more kernel takes is the slope of the time over the length of the chain.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from rlx.backends.cpu.isa import Isa
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.core.dtype import DType
from rlx.core.errors import InternalError
from rlx.core.shape import Shape
from rlx.cost.calibrate import Numbers, Progress
from rlx.cost.machine import DOCUMENTED, CacheLevel
from rlx.ir.mir import Graph
from rlx.passes.options import FusionOptions
from rlx.pipeline import CompilePipeline

SECONDS = 0.25
"""How long each thing is tried; the least time counts, as what disturbs only ever adds."""
FEWEST = 3
"""Calls that are timed, however long they take."""
SHORT, LONG = 4, 36
"""Kernels of the two chains."""
CHAINS = 12
"""Independent multiply-adds: more than one takes, times the units that do them."""
STEPS = 1 << 16
PARALLEL_BYTES = DOCUMENTED["cpu"].split_ns * DOCUMENTED["cpu"].worker_bytes_per_ns
"""What a kernel touches at least that is split into tasks, uncalibrated."""
TURNED = (512, 784)
"""A matrix as images have them: channels by pixels."""
_FALLBACK = ((1, 32 << 10), (2, 1 << 20), (3, 32 << 20))
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def measure(isa: Isa, threads: Iterable[int], progress: Progress) -> tuple[Numbers, ...]:
    """The numbers for each count of threads."""
    counts = list(dict.fromkeys(threads))
    levels = cache_sizes()
    steps = _Steps(progress, len(counts) * (len(levels) + 7))
    loops = _Loops(isa)
    return tuple(_numbers(n, levels, loops, steps) for n in counts)


def cache_sizes(folder: Path = _CACHES) -> tuple[int, ...]:
    """The bytes of each level of cache that holds data, nearest first."""
    found: dict[int, int] = {}
    for each in sorted(folder.glob("index*")):
        try:
            kind = (each / "type").read_text().strip()
            level, size = (
                int((each / k).read_text().strip().rstrip("K")) for k in ("level", "size")
            )
        except (OSError, ValueError):
            continue
        if kind != "Instruction":
            found[level] = size << 10
    return tuple(size for _, size in sorted((found or dict(_FALLBACK)).items()))


class _Steps:
    """Tells how far it is."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def next(self, what: str) -> None:
        self._progress(self._done, self._total, what)
        self._done += 1


def _numbers(threads: int, levels: tuple[int, ...], loops: _Loops, steps: _Steps) -> Numbers:
    who = f"{threads} thread{'s' * (threads > 1)}"
    steps.next(f"calls and launches, {who}")
    roundtrip, dispatch = _launches(threads)
    steps.next(f"sharing work out, {who}")
    handout = _handout(threads)
    caches: list[CacheLevel] = []
    for number, size in enumerate(levels, 1):
        steps.next(f"cache level {number}, {who}")
        caches.append(
            CacheLevel(size, _bandwidth(size // 2, threads, roundtrip, dispatch, handout))
        )
    steps.next(f"memory, {who}")
    memory = _bandwidth(4 * levels[-1], threads, roundtrip, dispatch, handout)
    steps.next(f"results, {who}")
    readback = _readback(16 << 20, threads)
    steps.next(f"exchanged axes, {who}")
    turned = _turned(threads)
    rates: dict[DType, float] = {}
    for dtype in (DType.F32, DType.F64):
        steps.next(f"arithmetic in {dtype.value}, {who}")
        rates[dtype] = loops.gflops(dtype, threads)
    single, double = rates[DType.F32], rates[DType.F64]
    # Halves are computed in f32; a complex product is four real ones, which its flops count.
    rates |= {DType.F16: single, DType.BF16: single, DType.C64: single, DType.C128: double}
    return Numbers(
        threads, dispatch, roundtrip, handout, tuple(caches), memory, readback, turned, rates
    )


# -- kernels ---------------------------------------------------------------------------------------


def _launches(threads: int) -> tuple[float, float]:
    """Nanoseconds of a call of one small kernel, and of one kernel more."""
    one = _least(_call(1, 16, threads))
    short, long = _both(_call(SHORT, 16, threads), _call(LONG, 16, threads))
    return one, max(1.0, (long - short) / (LONG - SHORT))


def _handout(threads: int) -> float:
    """Nanoseconds that a kernel takes longer than its part of the time it takes alone."""
    if threads == 1:
        return 1.0
    elements = 2 * PARALLEL_BYTES // 12
    alone, shared = _both(_call(LONG, elements, 1), _call(LONG, elements, threads))
    return max(1.0, (shared - alone / threads) / LONG)


def _bandwidth(
    working_set: int, threads: int, around_ns: float, dispatch_ns: float, fork_join_ns: float
) -> float:
    """Bytes per nanosecond that go through kernels whose values take so much memory together.
    Each reads two of them and writes a third, in place of the one that is not needed again."""
    elements = max(16, working_set // 12)
    count = LONG if working_set <= 32 << 20 else 8
    each = (_least(_call(count, elements, threads)) - around_ns) / count - dispatch_ns
    each -= fork_join_ns if 12 * elements >= PARALLEL_BYTES else 0
    return 12 * elements / max(each, 1.0)


def _readback(size: int, threads: int) -> float:
    """Bytes per nanosecond of a result that is the caller's, written by one kernel."""
    return size / _least(_call(1, size // 4, threads))


def _turned(threads: int) -> float:
    """Bytes per nanosecond of a matrix that is copied with its axes exchanged."""
    rows, columns = TURNED
    graph = Graph("calibration")
    x = graph.input("x", Shape([rows, columns]))
    graph.set_outputs([graph.transpose(x, perm=(1, 0))])
    x = np.ones((rows, columns), np.float32)
    call = _loaded(graph, threads)
    return 8 * rows * columns / _least(lambda: call(x))


def _call(kernels: int, elements: int, threads: int) -> Callable[[], Any]:
    """A call of a chain of so many kernels."""
    graph = Graph("calibration")
    a, b, y = (graph.input(name, Shape([elements])) for name in "aby")
    for number in range(kernels):
        y = a - y if number % 2 else y * b
    graph.set_outputs([y])
    call = _loaded(graph, threads, kernels)
    arrays = [np.full(elements, 1.0, np.float32) for _ in range(3)]
    return lambda: call(*arrays)


def _loaded(graph: Graph, threads: int, kernels: int | None = None) -> Callable[..., Any]:
    """The graph's program without fusion, as the function that a call goes through."""
    from rlx.backends.cpu.backend import CpuBackend

    backend = CpuBackend(threads=threads)
    options = FusionOptions(skip_fusion=True)
    lir = CompilePipeline(backend.target(), options=options).compile(graph).lir
    if kernels is not None and len(lir.plan.schedule) != kernels:
        raise InternalError("calibrating: a chain of kernels is not what it should be")
    program = backend.compile(lir)
    return program.quick(program.prepare({}, None))


def _least(call: Callable[[], Any]) -> float:
    """The least nanoseconds of a call. The first one is not counted: it gets memory that the system
    has not given out yet, page by page."""
    call()
    times: list[int] = []
    until = time.perf_counter() + SECONDS
    while len(times) < FEWEST or time.perf_counter() < until:
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return min(times)


def _both(first: Callable[[], Any], second: Callable[[], Any]) -> tuple[float, float]:
    """The least of each, tried in turns."""
    best = [float("inf")] * 2
    for call in (first, second):
        call()
    until = time.perf_counter() + 2 * SECONDS
    while time.perf_counter() < until:
        for i, call in enumerate((first, second)):
            start = time.perf_counter_ns()
            call()
            best[i] = min(best[i], time.perf_counter_ns() - start)
    return best[0], best[1]


# -- arithmetic ------------------------------------------------------------------------------------


class _Loops:
    """Multiply-adds as native code."""

    def __init__(self, isa: Isa) -> None:
        from rlx.backends.cpu.llvm import compile as jit

        self._isa = isa
        self._code = Loaded(jit.compiled("\n".join(map(self._text, ("float", "double"))), isa))

    def _text(self, kind: str) -> str:
        lanes = self._lanes(kind)
        vec, short = f"<{lanes} x {kind}>", "f32" if kind == "float" else "f64"
        name = f"@llvm.fma.v{lanes}{short}" if self._isa.has_fma else ""
        again = [f"%a{j} = phi {vec} [ %x, %start ], [ %b{j}, %again ]" for j in range(CHAINS)]
        for j in range(CHAINS):
            again += self._step(j, vec, name)
        sums = [f"%s{j} = fadd {vec} %{'b0' if j == 1 else f's{j - 1}'}, %b{j}"
                for j in range(1, CHAINS)]  # fmt: skip
        lines = [
            f"declare {vec} {name}({vec}, {vec}, {vec})" if name else "",
            f"define void @{kind}_loop(ptr %sink, i64 %n) {{",
            "start:", f"%x = load {vec}, ptr %sink, align 4", "br label %again",
            "again:", "%i = phi i64 [ 0, %start ], [ %next, %again ]",
            *again,
            "%next = add i64 %i, 1", "%more = icmp ult i64 %next, %n",
            "br i1 %more, label %again, label %done",
            "done:", *sums, f"store {vec} %s{CHAINS - 1}, ptr %sink, align 4", "ret void", "}",
        ]  # fmt: skip
        return "\n".join(lines)

    def _step(self, j: int, vec: str, name: str) -> list[str]:
        if name:
            return [f"%b{j} = call {vec} {name}({vec} %a{j}, {vec} %x, {vec} %x)"]
        return [f"%m{j} = fmul {vec} %a{j}, %x", f"%b{j} = fadd {vec} %m{j}, %x"]

    def _lanes(self, kind: str) -> int:
        return self._isa.vector_bytes // (4 if kind == "float" else 8)

    def gflops(self, dtype: DType, threads: int) -> float:
        """What all threads reach while all are busy; a thread kept waiting tells nothing of the
        others, so the least time of each counts."""
        kind = "float" if dtype is DType.F32 else "double"
        loop = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(
            self._code.address(f"{kind}_loop")
        )
        sinks = [np.zeros(64, np.float64) for _ in range(threads)]

        def least(i: int) -> float:
            return _least(lambda: loop(sinks[i].ctypes.data, STEPS))

        with ThreadPoolExecutor(threads) as pool:
            mean = sum(pool.map(least, range(threads))) / threads
        return 2.0 * STEPS * CHAINS * self._lanes(kind) * threads / mean
