"""Matrix products alone: how near the processor's peak generated code comes, on one thread and on
two. `python -m bench.products [name ...]`; no name is all of them.

The peak is a loop of multiply-adds in registers, measured just before and after each product, the
better of the two. Times are the least of several runs: what the code can do on a quiet machine.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.kernels import MANY
from rlx import ops
from rlx.backends.cpu.isa import Isa, host
from rlx.backends.cpu.llvm.builder import Code
from rlx.backends.cpu.llvm.compile import Native
from rlx.backends.cpu.llvm.function import Function, head_of, module
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step, Task
from rlx.backends.cpu.schedule.contraction import contraction_tasks
from rlx.core.dim import evaluate
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.lower.contract import contraction
from rlx.kernel.program.schedule import Schedule

Array = np.ndarray[Any, Any]
ROUNDS = 60
SECONDS = 0.002
"""Of one measured run: short, so that some are not disturbed."""
CHAINS = 24
PEAK_STEPS = 1000


@dataclass(frozen=True)
class Product:
    """A product to time: operands, which of them are weights, and what is built of them."""

    shapes: tuple[Shape, ...]
    build: Callable[..., Node]
    constants: frozenset[int] = frozenset({1})

    def node(self) -> Node:
        body, whole = Graph("body"), Graph("whole")
        body.set_outputs([self.build(*(body.input(f"v{i}", s) for i, s in enumerate(self.shapes)))])
        inputs = [whole.input(f"v{i}", s) for i, s in enumerate(self.shapes)]
        return whole.node("region", inputs, {"body": body})


def plain(m: int, k: int, n: int, dtype: DType = DType.F32) -> Product:
    return Product((Shape((m, k), dtype), Shape((k, n), dtype)), ops.matmul)


def dynamic(*dims: tuple[int, ...]) -> Product:
    return Product(tuple(map(Shape, dims)), ops.matmul, frozenset())


def feed_forward(x: Node, w: Node, bias: Node, residual: Node) -> Node:
    return ops.add(ops.gelu(ops.add(ops.matmul(x, w), bias)), residual)


def with_gelu(m: int, k: int, n: int) -> Product:
    dims = (m, k), (k, n), (n,), (m, n)
    return Product(tuple(map(Shape, dims)), feed_forward, frozenset({1, 2}))


def turned(x: Node, y: Node) -> Node:
    return ops.matmul(x, ops.transpose(y, perm=(*range(y.shape.rank - 2), y.shape.rank - 1,
                                                y.shape.rank - 2)))  # fmt: skip


def scores(batch: int, m: int, n: int, k: int) -> Product:
    """Queries and keys, both made anew."""
    return Product((Shape((batch, m, k)), Shape((batch, n, k))), turned, frozenset())


PRODUCTS: dict[str, Product] = {
    **{
        f"{m}x{k}x{n}": plain(m, k, n)
        for m, k, n in (
            (1024, 1024, 1024), (128, 384, 1536), (128, 1536, 384), (128, 384, 384),
            (32, 768, 3072), (32, 3072, 768), (16, 384, 384), (16, 384, 1536), (16, 1536, 384),
            (1, 1024, 2816), (1, 1024, 8192), (1, 2816, 1024), (2, 1024, 2816), (4, 1024, 2816),
            (128, 1024, 2816), (1000, 1000, 1000), (127, 384, 1536), (100, 300, 200),
        )
    },
    **{
        f"{m}x{k}x{n} gelu": with_gelu(m, k, n)
        for m, k, n in ((1024, 1024, 1024), (128, 384, 1536), (128, 1536, 384), (16, 384, 384))
    },
    "128x384x1536 f64": plain(128, 384, 1536, DType.F64),
    "128x384x1536 bf16": plain(128, 384, 1536, DType.BF16),
    "1x1024x2816 bf16": plain(1, 1024, 2816, DType.BF16),
    "128x384x1536 i8": plain(128, 384, 1536, DType.I8),
    "1024x1024x1024 dynamic": dynamic((1024, 1024), (1024, 1024)),
    "128x384x1536 dynamic": dynamic((128, 384), (384, 1536)),
    "1x1024x2816 dynamic": dynamic((1, 1024), (1024, 2816)),
    "1024x1024 vector": dynamic((1024, 1024), (1024,)),
    "12 of 128x32x128 scores": scores(12, 128, 128, 32),
    "12 of 128x128x32 values": dynamic((12, 128, 128), (12, 128, 32)),
    "16 of 1x128x1024 values": dynamic((16, 1, 1024), (16, 1024, 128)),
    "16 of 1x1024x128 scores": scores(16, 1, 1024, 128),
    "512x512x512 turned": scores(1, 512, 512, 512),
}  # fmt: skip


def flops(product: Product) -> int:
    x, y = product.shapes[:2]
    inner = x.static_dims[-1]
    columns = y.num_elements // inner
    rows = x.num_elements // inner
    batch = int(np.prod(x.static_dims[:-2], dtype=int))
    return 2 * rows * inner * columns // (batch if y.rank > 2 else 1)


# -- native helpers -------------------------------------------------------------------------------


def peak_function(isa: Isa) -> Function:
    """Independent chains of multiply-adds, enough to hide their latency."""
    code = Code(isa.vector_bytes // 4, isa)
    chains = min(CHAINS, isa.registers - 4)
    kind = code.vector("float")
    slots = [code.slot(kind) for _ in range(chains)]
    code.do(*(f"store {kind} zeroinitializer, ptr {s}" for s in slots))
    factor = code.splat(code.let("sitofp i64 %start to float"), DType.F32)
    with code.count(0, PEAK_STEPS, 1):
        for slot in slots:
            x = code.let(f"load {kind}, ptr {slot}")
            name = f"fma.{code.suffix('float')}"
            args = [f"{kind} {factor.text}", f"{kind} {factor.text}", f"{kind} {x}"]
            code.do(f"store {kind} {code.intrinsic(name, kind, *args)}, ptr {slot}")
    for i, slot in enumerate(slots):
        x = code.let(f"load {kind}, ptr {slot}")
        place = code.let(f"getelementptr {kind}, ptr %scratch, i64 {i}")
        code.do(f"store {kind} {x}, ptr {place}")
    code.do("ret i32 0")
    return Function("peak", code.function(head_of("peak")), tuple(code.shared.items()))


def memory(size: int) -> Array:
    """Bytes on the boundary of a page."""
    raw = np.zeros(size + 8192, np.uint8)
    start = -raw.ctypes.data % 4096
    return raw[start : start + size]


Call = Callable[[int, int, int], None]
"""Units from, to, and how often."""


class Timed:
    """A compiled schedule with its buffers."""

    def __init__(self, product: Product, isa: Isa) -> None:
        node = product.node()
        step = Step.alone(node, CpuMachine.of(isa), product.constants)
        contract = contraction(node, step.operands, step.results)
        self.schedule: Schedule[Task] = contraction_tasks(
            contract, step.constants, step.machine, "p"
        )
        tasks = [*(p.task for p in self.schedule.packed), *self.schedule.tasks]
        text = module([*(t.function for t in tasks), peak_function(isa)], isa)
        self.native = Native(text + MANY, isa)
        rng = np.random.default_rng(0)
        self.memory: dict[str, list[Array]] = {
            "operand": [self._drawn(rng, s) for s in product.shapes],
            "result": [memory(o.size_bytes + 64) for o in node.shapes],
            "temp": [memory(evaluate(t, {}) + 64) for t in self.schedule.temps],
            "packed": [memory(evaluate(p.size, {}) + 64) for p in self.schedule.packed],
        }
        self.scratch = [memory(1 << 22) for _ in range(2)]
        results = self.memory["result"]
        for panels, made in zip(self.schedule.packed, self.memory["packed"]):
            self.memory["result"] = [made]
            self.call(panels.task)(0, evaluate(panels.task.units, {}), 1)
        self.memory["result"] = results

    def _drawn(self, rng: np.random.Generator, shape: Shape) -> Array:
        made = memory(shape.size_bytes + 64)
        values = rng.normal(size=shape.num_elements)
        made[: shape.size_bytes].view(shape.dtype.numpy)[:] = values.astype(shape.dtype.numpy)
        return made

    def call(self, task: Task, worker: int = 0) -> Call:
        pointers = [self.memory[b.kind][b.index].ctypes.data for b in task.buffers]
        buffers = (ctypes.c_void_p * max(1, len(pointers)))(*pointers)
        sizes = [evaluate(s, {}) for s in task.sizes]
        values = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        return self._call(task.function.name, buffers, values, self.scratch[worker].ctypes.data)

    def peak(self, worker: int = 0) -> Call:
        return self._call("peak", None, None, self.scratch[worker].ctypes.data)

    def _call(self, name: str, buffers: Any, sizes: Any, scratch: int) -> Call:
        word, address = ctypes.c_int64, ctypes.c_void_p
        kind = ctypes.CFUNCTYPE(None, address, address, address, word, word, address, word)
        run, function = kind(self.native.address("many")), self.native.address(name)

        def called(start: int, stop: int, times: int) -> None:
            run(function, buffers, sizes, start, stop, scratch, times)

        return called


def seconds(calls: Sequence[Callable[[int], None]], seconds: float = SECONDS) -> float:
    """The least time of one repetition when all calls run at once."""
    start = time.perf_counter()
    calls[0](1)
    times = max(1, int(seconds / max(1e-7, time.perf_counter() - start)))
    best = float("inf")
    for _ in range(ROUNDS):
        threads = [threading.Thread(target=c, args=(times,)) for c in calls[1:]]
        for t in threads:
            t.start()
        start = time.perf_counter()
        calls[0](times)
        for t in threads:
            t.join()
        best = min(best, (time.perf_counter() - start) / times)
    return best


def part(call: Call, start: int, stop: int) -> Callable[[int], None]:
    return lambda times: call(start, stop, times)


def task_seconds(timed: Timed, task: Task, workers: int) -> float:
    """The least time of a task, chunk by chunk of its units: a long one is always disturbed. What
    a chunk reads stays in the last cache from one repetition to the next."""
    calls = [timed.call(task, w) for w in range(workers)]
    units = evaluate(task.units, {})
    start = time.perf_counter()
    calls[0](0, units, 1)
    chunks = max(1, min(units // workers, round((time.perf_counter() - start) / SECONDS)))
    edges = [units * c // chunks for c in range(chunks + 1)]
    return sum(seconds(shares(calls, *pair)) for pair in itertools.pairwise(edges))


def shares(calls: Sequence[Call], start: int, stop: int) -> list[Callable[[int], None]]:
    """The units from start to stop, some for each worker."""
    count = len(calls)
    edges = [start + (stop - start) * w // count for w in range(count + 1)]
    return [part(c, *pair) for c, pair in zip(calls, itertools.pairwise(edges))]


def peak_gflops(timed: Timed, isa: Isa) -> float:
    flops = 2 * min(CHAINS, isa.registers - 4) * isa.vector_bytes // 4 * PEAK_STEPS
    return flops / seconds([part(timed.peak(), 0, 1)]) / 1e9


def report(name: str, product: Product, isa: Isa) -> str:
    timed = Timed(product, isa)
    before = peak_gflops(timed, isa)
    tasks = timed.schedule.tasks
    one, two = ([task_seconds(timed, t, workers) for t in tasks] for workers in (1, 2))
    peak = max(before, peak_gflops(timed, isa))
    rate = [flops(product) / sum(x) / 1e9 for x in (one, two)]
    read = sum(s.size_bytes for s in product.shapes[:2]) / sum(one) / 1e9
    parts = " + ".join(f"{x * 1e6:.1f}" for x in one)
    units = ", ".join(f"{t.units}/{t.grain}" for t in tasks)
    return (
        f"{name:28} {rate[0]:6.1f} GF/s {rate[0] / peak:4.0%} of {peak:.0f}; two threads "
        f"{rate[1]:6.1f} {rate[1] / rate[0]:.2f}x; {read:5.1f} GB/s; {parts} us; units {units}"
    )


def main(names: Sequence[str]) -> None:
    for name in names or PRODUCTS:
        print(report(name, PRODUCTS[name], host()), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
