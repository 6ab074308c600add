"""The CUDA device layer on a GPU: `python -m tests.backend.cuda.runtime [PART …]`.

Every part computes something with kernels of `tests/backend/gpu/kernels.py` or of its own and
compares it with NumPy. What loses the context runs in a child process. Times are printed, none is
judged.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np

from rlx.backends.cuda.assemble import print_code
from rlx.backends.cuda.device import CudaDevice
from rlx.backends.cuda.errors import AssemblerError, LostDeviceError
from rlx.backends.cuda.machine import architecture_of
from rlx.backends.gpu.device import Code
from rlx.backends.gpu.lower.loop import emit, legal
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.runtime.calibration import measure
from rlx.backends.gpu.schedule.loop import choose
from rlx.core.dtype import DType
from rlx.core.errors import Error, OutOfMemoryError, UnsupportedError
from rlx.core.shape import Shape
from rlx.kernel.lower.loop import loop_kernel
from rlx.program.program import Program
from rlx.program.verify import verify
from tests.backend.cuda.exchange import (
    bound_calls,
    calls_on_many_streams,
    exchange,
    on_their_streams,
    shared_queues,
)
from tests.backend.cuda.harness import F32_EPS, RNG, Run, host_us, step, stepped
from tests.backend.gpu import kernels
from tests.backend.gpu.regions import CASES
from tests.backend.gpu.test_programs import PROGRAMS

# -- parts ----------------------------------------------------------------------------------------


def facts() -> Iterator[str]:
    d = CudaDevice()
    free, total = d.memory_bytes
    yield f"{d.name}, {d.architecture}, driver {d.context.library.version}"
    yield f"{d.machine.processors} processors, {d.machine.shared_bytes} bytes of shared memory"
    yield f"{free:,} of {total:,} bytes free"
    assert d.machine.shared_bytes >= 99 << 10


def memory() -> Iterator[str]:
    """Copies of all sizes, reuse behind queued work, out of memory."""
    r = Run()
    for size in (0, 1, 3, 511, 65536, 65537, 300_000, (4 << 20) - 1, (16 << 20) + 5, 70 << 20):
        data = RNG.integers(0, 255, size, np.uint8)
        m = r.put(data)
        kept = data.copy()
        data[:] = 0
        np.testing.assert_array_equal(r.get(m, kept), kept)
        r.device.free(m)
    many = [RNG.integers(0, 255, 40_000, np.uint8) for _ in range(200)]
    held = [r.put(a) for a in many]
    got = [np.empty_like(a) for a in many]
    for m, a in zip(held, got):
        r.queue.read(m.address, a)
    r.queue.wait()
    assert all(np.array_equal(a, b) for a, b in zip(many, got))
    m = r.device.allocate(1000)
    r.queue.fill(m.address, 1000, 7)
    other = r.device.allocate(1000)
    r.queue.copy(other.address, m.address, 1000)
    assert np.all(r.get(other, np.empty(1000, np.uint8)) == 7)
    yield "copies, fills, reads: right"
    yield from reuse(r)
    _, total = r.device.memory_bytes
    try:
        r.device.allocate(total * 2)
        raise AssertionError("twice the memory was allocated")
    except OutOfMemoryError as error:
        yield f"out of memory: {error}"
    m = r.put(np.arange(10))
    np.testing.assert_array_equal(r.get(m, np.arange(10)), np.arange(10))


def reuse(r: Run) -> Iterator[str]:
    """A block that is freed while kernels use it is not given to another queue's work."""
    kernel, n = r.load(step()), 1 << 24
    x = RNG.integers(-99, 99, n).astype(np.int32)
    source = r.put(x)
    r.queue.wait()
    second = r.device.queue()
    seen: set[int] = set()
    for _ in range(30):
        target = r.device.allocate(n * 4)
        seen.add(target.address)
        for _ in range(3):
            r.queue.launch(kernel, [source.address, target.address], {"n": n})
        check = np.empty(64, np.int32)
        r.queue.read(target.address, check)
        r.device.free(target)
        again = r.device.allocate(n * 4)
        second.fill(again.address, n * 4, 0)
        r.device.free(again)
        r.queue.wait()
        np.testing.assert_array_equal(check, stepped(x[:64], 1))
    second.wait()
    yield f"30 frees behind queued work: right, {len(seen)} blocks used"


def launches() -> Iterator[str]:
    """Kernels with clusters, tensor maps, shared memory, and empty grids."""
    r = Run()
    n = 70_001
    x = RNG.standard_normal(n).astype(np.float32)
    (_, y) = r.kernel(kernels.scaled(), x, np.zeros_like(x), n=n)
    np.testing.assert_array_equal(y, x * 2 + 1)
    (_, y) = r.kernel(kernels.scaled(), x, np.zeros_like(x), n=0)
    assert not y.any()
    x = RNG.standard_normal((37, 300)).astype(np.float32)
    (_, y) = r.kernel(kernels.cluster_sum(), x, np.zeros(37, np.float32), m=37, n=300)
    assert np.all(np.abs(y - x.sum(1, dtype=float)) <= 12 * F32_EPS * np.abs(x).sum(1))
    x = RNG.standard_normal((37, 16)).astype(np.float32)
    (_, y) = r.kernel(kernels.pipeline(37), x, np.zeros(16, np.float32))
    assert np.all(np.abs(y - x.sum(0, dtype=float)) <= 37 * F32_EPS * np.abs(x).sum(0))
    x, w = (RNG.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((64, 96), (16, 96)))
    (_, _, y) = r.kernel(kernels.warpgroup_gemm(96), x, w, np.zeros((64, 16), np.float32))
    a, b = x.astype(float), w.astype(float)
    assert np.all(np.abs(y - a @ b.T) <= 96 * 2 * F32_EPS * (np.abs(a) @ np.abs(b).T))
    yield "plain, empty, cluster, plain and swizzled tensor maps: right"


def region_programs() -> Iterator[Program]:
    for case in CASES.values():
        node = case.node()
        kernel = legal(loop_kernel(node, *case.layouts(node)))
        yield emit(kernel, choose(kernel, GpuMachine()))


def codes() -> Iterator[str]:
    """Assembled in threads; loaded from bytes; PTX of an older architecture; ptxas's words."""
    d = CudaDevice()
    programs = [step(f"step_{i}", 32 * (1 + i % 8)) for i in range(64)]
    start = time.perf_counter()
    made = d.assemble(programs)
    took = time.perf_counter() - start
    start = time.perf_counter()
    one = [d.assemble([p])[0] for p in programs[:8]]
    single = (time.perf_counter() - start) / 8
    yield f"64 small kernels: {took * 1e3:.0f} ms; one by one {single * 1e3:.1f} ms each"
    assert [c.binary for c in one] == [c.binary for c in made[:8]]
    assert all(c.binary.startswith(b"\x7fELF") for c in made)
    start = time.perf_counter()
    loaded = [d.load(c) for c in made]
    yield f"64 loaded in {(time.perf_counter() - start) * 1e3:.1f} ms; {d.resources(loaded[0])}"
    larger = [verify(p) for p in (*PROGRAMS.values(), *region_programs())]
    fresh = f"{time.time_ns():x}"  # the driver caches what it has assembled
    first, second = ([replace(p, name=f"{p.name}_{fresh}{i}") for p in larger] for i in "ab")
    start = time.perf_counter()
    printed = [print_code(p, d.generation.architecture) for p in larger]
    took = time.perf_counter() - start
    start = time.perf_counter()
    d.assemble(first)
    both = time.perf_counter() - start
    start = time.perf_counter()
    for program in second:
        d.assemble([program])
    serial = time.perf_counter() - start
    times = ", ".join(f"{t * 1e3:.0f} ms" for t in (took, both, serial))
    yield f"{len(printed)} kernels printed; assembled, too; one by one: {times}"
    older = print_code(kernels.softmax(), architecture_of("sm_80"))
    r = Run(d)
    kernel = d.load(older)
    x = RNG.standard_normal((5, 300)).astype(np.float32)
    held = [r.put(x), r.put(np.zeros_like(x))]
    r.queue.launch(kernel, [m.address for m in held], {"m": 5, "n": 300})
    got = r.get(held[1], x)
    assert np.allclose(got.sum(1), 1, atol=1e-5)
    broken = Code(
        "broken",
        b".version 8.0\n.target sm_80\n.address_size 64\nnonsense\n",
        (1, 1, 1),
        32,
        1,
        0,
        (),
        (),
    )
    try:
        d.load(broken)
        raise AssertionError("nonsense was assembled")
    except AssemblerError as error:
        yield f"refused: {error}"


def graphs() -> Iterator[str]:
    """Chains of dependent kernels in a graph, replayed a thousand times; copies and fills."""
    r = Run()
    n, length = 5000, 24
    kernel = r.load(step())
    x = RNG.integers(-(2**30), 2**30, n).astype(np.int32)
    a, b, out = r.put(x), r.device.allocate(n * 4), r.device.allocate(n * 4)

    def chain() -> None:
        r.queue.copy(a.address, out.address, n * 4)
        for i in range(length):
            pair = (a, b) if i % 2 == 0 else (b, a)
            r.queue.launch(kernel, [m.address for m in pair], {"n": n})
        r.queue.copy(out.address, a.address, n * 4)

    r.queue.write(out.address, x)
    chain()
    np.testing.assert_array_equal(r.get(out, x), stepped(x, length))
    r.queue.write(out.address, x)
    graph = r.queue.record(chain)
    want = x
    for i in range(1000):
        graph.replay()
        if i % 100 == 99:
            for _ in range(100):
                want = stepped(want, length)
            np.testing.assert_array_equal(r.get(out, x), want)
    yield "1000 replays of 24 dependent kernels and 2 copies: right"

    def kernels_only() -> None:
        for i in range(length):
            pair = (a, b) if i % 2 == 0 else (b, a)
            r.queue.launch(kernel, [m.address for m in pair], {"n": n})

    graph = r.queue.record(kernels_only)
    r.queue.write(a.address, x)
    for _ in range(1000):
        graph.replay()
    want = x
    for _ in range(1000):
        want = stepped(want, length)
    np.testing.assert_array_equal(r.get(a, x), want)
    yield "1000 replays back to back of 24 dependent kernels: right"
    times = [r.queue.time_ns(graph.replay) for _ in range(50)]
    want = r.get(a, x)
    yield f"a kernel of the chain: {statistics.median(times) / length / 1e3:.2f} µs"
    try:
        r.queue.record(lambda: r.queue.write(a.address, x))
        raise AssertionError("a write was recorded")
    except Error as error:
        yield f"refused: {error}"
    np.testing.assert_array_equal(r.get(a, x), want)
    graph.close()


def rebinding() -> Iterator[str]:
    """A graph at other addresses: kernels with clusters and tensor maps, copies, fills; what it
    takes against recording again."""
    r = Run()
    n, length = 5000, 24
    kernel = r.load(step())
    x = RNG.integers(-(2**30), 2**30, n).astype(np.int32)
    first, other, inside, out, other_out = (r.device.allocate(n * 4) for _ in range(5))
    pairs = [(inside.address, inside.address)] * (length - 1)

    def enqueue() -> None:
        r.queue.launch(kernel, [first.address, inside.address], {"n": n})
        for pair in pairs:
            r.queue.launch(kernel, pair, {"n": n})
        r.queue.fill(out.address, n * 4, 9)
        r.queue.copy(out.address, inside.address, n * 4 - 400)

    graph = r.queue.record(enqueue)
    r.queue.write(first.address, x)
    r.queue.write(other.address, x + 5)
    size = n * 4
    there = [(first.address, size, other.address), (out.address, size, other_out.address)]
    back = [(other.address, size, first.address), (other_out.address, size, out.address)]
    for _ in range(20):
        for moves, given, memory in ((there, x + 5, other_out), (back, x, out)):
            assert graph.rebind(moves)
            graph.replay()
            got, want = r.get(memory, x), stepped(given, length)
            np.testing.assert_array_equal(got[:-100], want[:-100])
            assert np.all(got[-100:].view(np.uint8) == 9)
    yield "40 rebound replays: right"
    yield from rebound_maps(r)
    start = time.perf_counter()
    for _ in range(50):
        graph.rebind(there)
        graph.rebind(back)
    yield f"rebind 3 of 26 nodes, each way: {(time.perf_counter() - start) * 1e4:.1f} µs"
    start = time.perf_counter()
    for _ in range(20):
        r.queue.record(enqueue).close()
    yield f"record 26 nodes: {(time.perf_counter() - start) / 20 * 1e6:.1f} µs"


def rebound_maps(r: Run) -> Iterator[str]:
    cluster, pipeline = r.load(kernels.cluster_sum()), r.load(kernels.pipeline(40))
    rows = [RNG.standard_normal((37, 300)).astype(np.float32) for _ in range(2)]
    boxes = [RNG.standard_normal((40, 16)).astype(np.float32) for _ in range(2)]
    held, boxed = [r.put(a) for a in rows], [r.put(a) for a in boxes]
    sums, columns = r.put(np.zeros(37, np.float32)), r.put(np.zeros(16, np.float32))

    def enqueue() -> None:
        r.queue.launch(cluster, [held[0].address, sums.address], {"m": 37, "n": 300})
        r.queue.launch(pipeline, [boxed[0].address, columns.address], {})

    graph = r.queue.record(enqueue)
    for turn in range(2):
        graph.replay()
        x, y = rows[turn], boxes[turn]
        got = r.get(sums, np.empty(37, np.float32))
        assert np.all(np.abs(got - x.sum(1, dtype=float)) <= 12 * F32_EPS * np.abs(x).sum(1))
        got = r.get(columns, np.empty(16, np.float32))
        assert np.all(np.abs(got - y.sum(0, dtype=float)) <= 40 * F32_EPS * np.abs(y).sum(0))
        moves = [(a.address, a.size, b.address) for a, b in (held, boxed)]
        graph.rebind(moves)
    yield "clusters and tensor maps rebound: right"


def overhead() -> Iterator[str]:
    """What calls cost the host."""
    r = Run()
    kernel, queue = r.load(step()), r.queue
    small = np.zeros(256, np.int32)
    a, b = r.put(small), r.put(small)
    pair = [a.address, b.address]
    for length in (1, 10, 100):
        graph = queue.record(r.repeated(kernel, [pair] * length, n=256))
        yield f"replay of {length} kernels: {host_us(graph.replay, queue.wait, 50):.2f} µs"
    sizes = {"n": 256}

    def trip() -> None:
        queue.read(a.address, small)
        queue.wait()

    for name, f in {
        "launch": lambda: queue.launch(kernel, pair, sizes),
        "write 1 KiB": lambda: queue.write(a.address, small),
        "read 1 KiB": lambda: queue.read(a.address, small),
        "read 1 KiB and wait": trip,
        "wait for nothing": queue.wait,
        "allocate and free": lambda: r.device.free(r.device.allocate(4096)),
        "cuCtxGetCurrent": lambda: r.device.context.is_current,
    }.items():
        yield f"{name}: {host_us(f, queue.wait):.2f} µs"
    start = time.perf_counter()
    for i in range(100):
        queue.launch(kernel, pair, {"n": 256, "i": i})
    yield f"launch that is prepared: {(time.perf_counter() - start) * 1e4:.2f} µs"
    for length in (10, 100):
        start = time.perf_counter()
        for _ in range(20):
            queue.record(r.repeated(kernel, [pair] * length, n=256)).close()
        yield f"record {length} kernels: {(time.perf_counter() - start) / 20 * 1e6:.0f} µs"


def bandwidth() -> Iterator[str]:
    """Host copies: through pinned slots, and by the driver from memory that is not pinned."""
    for size in (64 << 10, 1 << 20, 16 << 20, 256 << 20):
        yield from bandwidths(size)


def bandwidths(size: int) -> Iterator[str]:
    r = Run()
    data, memory = np.ones(size, np.uint8), r.device.allocate(size)
    host, at, stream = data.ctypes.data, memory.address, r.queue.stream
    call = r.device.context.streamed
    for name, f in {
        "write": lambda: r.queue.write(at, data),
        "read": lambda: r.queue.read(at, data),
        "driver's write": lambda: call("cuMemcpyHtoDAsync_v2", at, host, size, stream),
        "driver's read": lambda: call("cuMemcpyDtoHAsync_v2", host, at, size, stream),
    }.items():
        times: list[float] = []
        for _ in range(4):
            start = time.perf_counter()
            f()
            r.queue.wait()
            times.append(time.perf_counter() - start)
        yield f"{name} {size >> 10} KiB: {size / min(times[1:]) / 1e9:.1f} GB/s"


def calibration() -> Iterator[str]:
    """The device's numbers."""
    start = time.perf_counter()
    (found,) = measure(CudaDevice(), lambda *_: None)
    yield f"measured in {time.perf_counter() - start:.1f} s"
    for name, value in found.as_dict().items():
        yield f"{name}: {value}"


def threads() -> Iterator[str]:
    """Eight threads with queues of their own: loads, graphs, copies, allocations."""
    device, wrong = CudaDevice(), list[str]()

    def work(number: int) -> None:
        try:
            r, rng = Run(device), np.random.default_rng(number)
            kernel = r.load(step(f"thread_{number}"))
            for _ in range(20):
                n = int(rng.integers(1, 50_000))
                x = rng.integers(-99, 99, n).astype(np.int32)
                a, b = r.put(x), r.device.allocate(n * 4)
                pairs = [(a.address, b.address), (b.address, a.address)] * 5
                graph = r.queue.record(r.repeated(kernel, pairs, n=n))
                graph.replay()
                graph.replay()
                np.testing.assert_array_equal(r.get(a, x), stepped(x, 20))
                r.device.free(a)
                r.device.free(b)
        except Exception:
            wrong.append(traceback.format_exc())

    started = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in started:
        t.start()
    for t in started:
        t.join()
    assert not wrong, wrong[0]
    yield "8 threads, 20 graphs each: right"


def errors() -> Iterator[str]:
    """A sticky error, in a child process."""
    made = subprocess.run(
        [sys.executable, "-m", "tests.backend.cuda.runtime", "--child"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    yield made.stdout + made.stderr[-1500:]
    assert made.returncode == 0
    try:
        CudaDevice(99)
        raise AssertionError("there is a device 99")
    except UnsupportedError as error:
        yield str(error)


def child() -> int:
    """An illegal address, what later calls say, another target."""
    import rlx

    r = Run()
    kernel = r.load(step("stray"))
    r.queue.launch(kernel, [1 << 46, 1 << 46], {"n": 1000})
    said: list[str] = []
    for what in (r.queue.wait, lambda: r.device.allocate(10), lambda: r.device.load(kernel.code)):
        try:
            what()
        except LostDeviceError as error:
            print("lost:", error)
            said.append(str(error))
    assert [s for s in said if "stray" in s] == said
    assert len(said) == 3
    graph = rlx.Graph("g")
    x = graph.input("x", Shape((4,), DType.F32))
    graph.set_outputs([x + x])
    assert np.all(rlx.compile(graph, target="reference")(np.ones(4, np.float32)) == 2)
    r.queue.close()
    print("another target runs; a new context:", end=" ")
    try:
        CudaDevice()
    except Error as error:
        print(error)
    return 0


PARTS = {
    f.__name__: f
    for f in (
        facts,
        memory,
        launches,
        codes,
        graphs,
        rebinding,
        exchange,
        on_their_streams,
        bound_calls,
        shared_queues,
        calls_on_many_streams,
        overhead,
        bandwidth,
        calibration,
        threads,
        errors,
    )
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.backend.cuda.runtime", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        return child()
    bad = 0
    for name in args.parts or PARTS:
        start = time.perf_counter()
        try:
            for line in PARTS[name]():
                print(f"{name}: {line}", flush=True)
        except Exception:
            bad += 1
            print(f"{name}: FAILED\n{traceback.format_exc()}", flush=True)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
    print(f"{bad} parts failed")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
