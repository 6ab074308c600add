"""Loop kernels by themselves, against what the memory allows: `python -m bench.kernels [name ...]`.

Every kernel runs in one process on buffers of its own, on one worker and on two, in rounds that
alternate with a copy and with a read of 64 MB. The floor of a kernel is the time that its operands
and results take at the speed of the copy (of the read, where hardly anything is written).
"""

from __future__ import annotations

import ctypes
import mmap
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import rlx
from rlx.backends.cpu.codegen.loop.emit import emit, legal
from rlx.backends.cpu.isa import host
from rlx.backends.cpu.llvm.compile import Native
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.schedule.loop_schedule import choose, scratch_bytes
from rlx.core.dim import evaluate, product
from rlx.core.dtype import DType
from rlx.kernel.lower.loop import loop_kernel

ops = rlx.ops
ROUNDS, CALLS = 8, 2
"""Calls follow each other natively, so that workers do not wait for Python."""
MANY = """
define dso_local i32 @many(ptr %fn, ptr %b, ptr %n, i64 %i, i64 %k, ptr %s, i64 %calls) {
entry:
  br label %again
again:
  %c = phi i64 [0, %entry], [%more, %again]
  %code = call i32 %fn(ptr %b, ptr %n, i64 %i, i64 %k, ptr %s)
  %more = add i64 %c, 1
  %left = icmp slt i64 %more, %calls
  br i1 %left, label %again, label %done
done:
  ret i32 %code
}
"""
PAGE = 2 << 20
LOW_STORES = 16
"""Where results are this many times smaller than operands, the floor is that of reading."""

Dims = list[int] | tuple[list[int], str]
Build = Callable[..., Any]


def _chain(x: Any) -> Any:
    a = ops.sqrt(ops.abs(x * 1.5 + 0.5) + 1.0) * 0.75
    a = ops.minimum((ops.maximum(a, 0.25) - 0.1) * x, 6.0)
    return ops.tanh(a) + x


def _pool(x: Any, m: Any) -> Any:
    wide = ops.expand_dims(m, axes=(2,))
    return ops.sum(x * wide, axes=1) / ops.maximum(ops.sum(wide, axes=1), 1e-9)


def _embed(ids: Any, words: Any, places: Any, g: Any, b: Any) -> Any:
    return ops.layer_norm(ops.embedding(words, ids) + places, g, b)


BIG, ROWS = [4096, 4096], [8192, 1024]
CUBE = [512, 1024, 64]
KERNELS: dict[str, tuple[Build, Sequence[Dims]]] = {
    "copy": (lambda x: x * 1.0, [BIG]),
    "read": (lambda x: ops.sum(x, axes=1), [BIG]),
    "softmax 2048²": (lambda x: ops.softmax(x), [[2048, 2048]]),
    "softmax 8192×1024": (lambda x: ops.softmax(x), [ROWS]),
    "log softmax": (lambda x: ops.log_softmax(x), [ROWS]),
    "12-op chain": (_chain, [BIG]),
    "layer norm": (lambda x, g, b: ops.layer_norm(x, g, b), [ROWS, [1024], [1024]]),
    "residual + layer norm": (
        lambda x, r, g, b: ops.layer_norm(x + r, g, b) * 0.5,
        [ROWS, ROWS, [1024], [1024]],
    ),
    "rms norm": (lambda x, g: ops.rms_norm(x, g), [ROWS, [1024]]),
    "relu(aᵀ + b·c)": (
        lambda a, b, c: ops.relu(ops.transpose(a, perm=(1, 0)) + b * c),
        [BIG, [4096], [4096, 1]],
    ),
    "transpose": (lambda a: ops.transpose(a, perm=(1, 0)), [BIG]),
    "concat": (lambda a, b: ops.concat(a, b, axis=1), [[4096, 1024], [4096, 3072]]),
    "pad": (lambda x: ops.pad(x, low=(1, 3), high=(1, 3), value=0.0), [[4094, 4090]]),
    "slice of step 2": (
        lambda x: ops.slice(x, starts=(0, 1), stops=(4096, 4096), steps=(1, 2)) * 2.0,
        [BIG],
    ),
    "sum inner": (lambda x: ops.sum(x, axes=2), [CUBE]),
    "sum middle": (lambda x: ops.sum(x, axes=1), [CUBE]),
    "sum outer": (lambda x: ops.sum(x, axes=0), [CUBE]),
    "argmax": (lambda x: ops.argmax(x, axis=-1), [ROWS]),
    "masked mean pool": (_pool, [[64, 512, 384], [64, 512]]),
    "embedding + layer norm": (
        _embed,
        [([32, 512], "i64"), [30522, 384], [512, 384], [384], [384]],
    ),
    "layer norm bf16": (
        lambda x, g, b: ops.layer_norm(x, g, b),
        [(ROWS, "bf16"), ([1024], "bf16"), ([1024], "bf16")],
    ),
    "dequantised silu": (
        lambda q, s: ops.cast(ops.silu(ops.cast(q, to=DType.F32) * s), to=DType.BF16),
        [(BIG, "i8"), [4096, 1]],
    ),
    "gelu": (lambda x: ops.gelu(x), [BIG]),
    "exp": (lambda x: ops.exp(x), [BIG]),
}


@dataclass(frozen=True)
class Run:
    """A compiled kernel and all that a call of it takes."""

    name: str
    function: tuple[Any, int]
    """What calls it many times, and its address."""
    arguments: tuple[Any, Any]
    scratch: Sequence[np.ndarray[Any, Any]]
    extent: int
    operand_bytes: int
    result_bytes: int
    keep: tuple[Any, ...]
    arrays: Sequence[np.ndarray[Any, Any]]
    result: np.ndarray[Any, Any]
    build: Build
    emit_ms: float
    llvm_ms: float

    def part(self, worker: int, workers: int, calls: int) -> Callable[[], Any]:
        edges = [self.extent * w // workers // 16 * 16 for w in range(workers)] + [self.extent]
        scratch = self.scratch[worker].ctypes.data
        buffers, sizes = self.arguments
        start, stop = edges[worker], edges[worker + 1]
        many, function = self.function
        return lambda: many(function, buffers, sizes, start, stop, scratch, calls)


def paged(count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """Memory of large pages, private to the process."""
    size = max(1, count * np.dtype(dtype).itemsize)
    memory = mmap.mmap(-1, size + PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % PAGE
    return whole[start : start + count * np.dtype(dtype).itemsize].view(dtype)


def filled(shape: rlx.Shape, rng: np.random.Generator, limit: int) -> np.ndarray[Any, Any]:
    array = paged(int(np.prod(shape.static_dims)), shape.dtype.numpy).reshape(shape.static_dims)
    if shape.dtype.is_integer:
        array[...] = rng.integers(0, limit, array.shape)
    else:
        array[...] = rng.random(array.shape, np.float32).astype(array.dtype)
    return array


def made(name: str, maths: str = "precise") -> Run:
    build, given = KERNELS[name]
    shapes = [rlx.Shape(d[0], d[1]) if isinstance(d, tuple) else rlx.Shape(d) for d in given]
    body, graph = rlx.Graph("body"), rlx.Graph("region")
    body.set_outputs([build(*(body.input(f"v{i}", s) for i, s in enumerate(shapes)))])
    inputs = [graph.input(f"x{i}", s) for i, s in enumerate(shapes)]
    isa = host()
    start = time.process_time()
    kernel = legal(loop_kernel(graph.node("region", inputs, {"body": body})))
    schedule = choose(kernel, CpuMachine.of(isa))
    text = module([emit(kernel, schedule, isa, "k")], isa)
    middle = time.process_time()
    native = Native(text + MANY, isa)
    end = time.process_time()
    rng = np.random.default_rng(0)
    limit = 100 if len(shapes) < 3 else shapes[1].static_dims[0]
    arrays = [filled(s, rng, limit) for s in shapes]
    shape = kernel.results[0]
    result = paged(int(np.prod(shape.static_dims)), shape.dtype.numpy)
    pointers = [a.ctypes.data for a in (*arrays, result)]
    buffers = (ctypes.c_void_p * len(pointers))(*pointers)
    word, address = ctypes.c_int64, ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, *[address] * 3, word, word, address, word)
    size = evaluate(scratch_bytes(schedule), {}) + 64
    return Run(
        name,
        (kind(native.address("many")), native.address("k")),
        (ctypes.addressof(buffers), 0),
        [paged(size, np.uint8) for _ in range(2)],
        evaluate(product(a.extent for a in schedule.parallel), {}),
        _touched(name, arrays),
        result.nbytes,
        (native, buffers),
        arrays,
        result.reshape(shape.static_dims),
        build,
        (middle - start) * 1e3,
        (end - middle) * 1e3,
    )


def _touched(name: str, arrays: Sequence[np.ndarray[Any, Any]]) -> int:
    """The bytes of operands that are read; of a table only the rows that are wanted."""
    if not name.startswith("embedding"):
        return sum(a.nbytes for a in arrays)
    rows = len(np.unique(arrays[0]))
    return arrays[0].nbytes + rows * arrays[1][0].nbytes + arrays[2].nbytes


def timed(run: Run, workers: int, calls: int = CALLS) -> float:
    """Milliseconds of a call, when all workers do their parts over and over at once: of the
    processor's time, so that others on the machine count less."""
    times = [0.0] * workers
    barrier = threading.Barrier(workers)

    def work(number: int) -> None:
        part = run.part(number, workers, calls)
        barrier.wait()
        start = time.thread_time()
        part()
        times[number] = (time.thread_time() - start) * 1e3 / calls

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, workers)]
    for t in threads:
        t.start()
    work(0)
    for t in threads:
        t.join()
    return max(times)


def is_right(run: Run) -> bool:
    """Is the result near that of NumPy?"""
    want = np.asarray(run.build(*run.arrays)).reshape(run.result.shape)
    wide = [a.astype(np.float64) for a in (run.result, want)]
    eps = 1e-2 if run.result.dtype.itemsize == 2 else 1e-3
    return bool(np.allclose(*wide, rtol=eps, atol=eps))


def report(names: Sequence[str]) -> None:
    runs = [made(n) for n in dict.fromkeys(("copy", "read", *names))]
    found: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        timed(run, 1, 1)
    for _ in range(ROUNDS):
        for run in runs:
            for workers in (1, 2):
                found.setdefault((run.name, workers), []).append(timed(run, workers))
    base = {r.name: min(found[r.name, 2]) / (r.operand_bytes + r.result_bytes) for r in runs[:2]}
    for name, value in base.items():
        print(f"{name} on two workers: {1e-6 / value:.0f} GB/s")
    print(f"{'':24} 2: least  middle | 1: least  middle | floor  ratio | emit  LLVM ms")
    for run in runs:
        bytes_moved = run.operand_bytes + run.result_bytes
        is_read = run.result_bytes * LOW_STORES < run.operand_bytes
        floor = bytes_moved * base["read" if is_read else "copy"]
        two, one = found[run.name, 2], found[run.name, 1]
        print(
            f"{run.name:24} {min(two):8.2f} {statistics.median(two):7.2f} | {min(one):7.2f} "
            f"{statistics.median(one):7.2f} | {floor:5.2f} {min(two) / floor:6.2f} | "
            f"{run.emit_ms:4.0f} {run.llvm_ms:5.0f}{'' if is_right(run) else '  WRONG'}"
        )


if __name__ == "__main__":
    sys.setswitchinterval(1e-5)
    report(sys.argv[1:] or list(KERNELS))
