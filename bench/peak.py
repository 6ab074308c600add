"""The machine's limits, measured: multiply-adds, and bytes read and copied per second.

The floor of a workload is the time that these limits alone would take.
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.machine import cache_bytes
from bench.workload import Workload

CHAINS = 16
"""Independent chains: more than a multiply-add's latency times the units that do one."""

SECONDS = 0.4
LARGE, SMALL = 64 << 20, 2 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What all threads together reach."""

    gflops: float
    read_gb_s: float
    copy_gb_s: float
    cache_gb_s: float
    cache_copy_gb_s: float

    def floor_us(self, workload: Workload) -> float:
        return self.least_us(workload.flops, workload.reads, workload.writes)

    def least_us(self, flops: float, reads: float, writes: float) -> float:
        """Arithmetic and memory side by side: the slower of the two. What fits into half of the
        last cache comes from there."""
        return max(flops / self.gflops, self._memory(reads, writes)) / 1e3

    def _memory(self, reads: float, writes: float) -> float:
        """Nanoseconds: what is both read and written goes at the speed of a copy."""
        is_cached = reads + writes < cache_bytes() / 2
        read = self.cache_gb_s if is_cached else self.read_gb_s
        copy = self.cache_copy_gb_s if is_cached else self.copy_gb_s
        both = min(reads, writes)
        return 2 * both / copy + (reads - both) / read + (writes - both) / copy

    def as_dict(self) -> dict[str, float]:
        return {k: round(v, 1) for k, v in asdict(self).items()}


# -- the loops ------------------------------------------------------------------------------------


def _loop(name: str, arguments: str, step: int, body: Sequence[str], after: str) -> str:
    """A function that runs `body` for %i from 0 to %n in steps."""
    lanes, kept = _lanes(), [line for line in body if " = phi " in line]
    rest = [line for line in body if line not in kept]
    return "\n".join([
        f"define void @{name}({arguments}, i64 %n, ptr %sink) {{",
        "start: br label %again",
        "again: %i = phi i64 [ 0, %start ], [ %next, %again ]",
        *(line.replace("VEC", f"<{lanes} x float>") for line in [*kept, *rest]),
        f"%next = add i64 %i, {step}",
        "%more = icmp ult i64 %next, %n",
        "br i1 %more, label %again, label %done",
        "done:",
        after.replace("VEC", f"<{lanes} x float>"),
        "ret void }",
    ])  # fmt: skip


def _gathered() -> str:
    """The chains stored, so that none is left out as useless."""
    stores = [f"%p{j} = getelementptr i8, ptr %sink, i64 {64 * j}\n"
              f"store VEC %b{j}, ptr %p{j}, align 4" for j in range(CHAINS)]  # fmt: skip
    return "\n".join(stores)


def _source() -> str:
    lanes = _lanes()
    size = lanes * 4
    begin = [f"%a{j} = phi VEC [ zeroinitializer, %start ], [ %b{j}, %again ]"
             for j in range(CHAINS)]  # fmt: skip
    multiply = [f"%b{j} = call VEC @llvm.fma.v{lanes}f32(VEC %a{j}, VEC %x, VEC %x)"
                for j in range(CHAINS)]  # fmt: skip
    load = [line for j in range(CHAINS) for line in (
        f"%o{j} = add i64 %i, {size * j}",
        f"%q{j} = getelementptr i8, ptr %from, i64 %o{j}",
        f"%v{j} = load VEC, ptr %q{j}, align {size}",
    )]  # fmt: skip
    add = [f"%b{j} = fadd VEC %a{j}, %v{j}" for j in range(CHAINS)]
    store = [line for j in range(CHAINS) for line in (
        f"%r{j} = getelementptr i8, ptr %to, i64 %o{j}",
        f"store VEC %v{j}, ptr %r{j}, align {size}",
    )]  # fmt: skip
    past_cache = [f"{s}, !nontemporal !0" if s.startswith("store") else s for s in store]
    return "\n".join([
        f"declare <{lanes} x float> @llvm.fma.v{lanes}f32(<{lanes} x float>, <{lanes} x float>, "
        f"<{lanes} x float>)",
        _loop("multiply", f"<{lanes} x float> %x", CHAINS, [*begin, *multiply], _gathered())
        .replace(f"<{lanes} x float> %x, i64 %n", "i64 %n")
        .replace("start: br", f"start: %x = load <{lanes} x float>, ptr %sink, align 4\nbr"),
        _loop("read", "ptr %from", size * CHAINS, [*begin, *load, *add], _gathered()),
        _loop("copy", "ptr %from, ptr %to", size * CHAINS, [*load, *past_cache], ""),
        _loop("recopy", "ptr %from, ptr %to", size * CHAINS, [*load, *store], ""),
        "!0 = !{i32 1}",
    ])  # fmt: skip


def _lanes() -> int:
    """Floats in a register of this machine."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    return 16 if features.get("avx512f") else 8 if features.get("avx2") else 4


class Loops:
    """The loops as native code, for as long as this lives."""

    def __init__(self) -> None:
        import llvmlite.binding as llvm

        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        target: Any = llvm.Target.from_default_triple()
        machine = target.create_target_machine(
            cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=3
        )
        module = llvm.parse_assembly(_source())
        self._engine: Any = llvm.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def function(self, name: str, pointers: int) -> Callable[..., None]:
        kinds = [ctypes.c_void_p] * pointers + [ctypes.c_int64, ctypes.c_void_p]
        return ctypes.CFUNCTYPE(None, *kinds)(self._engine.get_function_address(name))


class Pages:
    """Memory of its own, in large pages where the system has them."""

    def __init__(self, size: int) -> None:
        self.size, self._map = size, mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._map.madvise(mmap.MADV_HUGEPAGE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._bytes[:] = 0
        self.address = self._bytes.ctypes.data


# -- measuring ------------------------------------------------------------------------------------


def _best(work: Callable[[int], None], threads: int) -> float:
    """The least seconds that all threads took to do `work` once each."""
    best, until = float("inf"), time.perf_counter() + SECONDS
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
        while time.perf_counter() < until:
            start = time.perf_counter()
            list(pool.map(work, range(threads)))
            best = min(best, time.perf_counter() - start)
    return best


def _best_alone(work: Callable[[int], None], threads: int) -> float:
    """The mean over threads of the least seconds that each took while all ran. Arithmetic shares
    nothing between cores, so that a thread kept waiting tells nothing of the others."""

    def least(i: int) -> float:
        best, until = float("inf"), time.perf_counter() + SECONDS
        while time.perf_counter() < until:
            start = time.perf_counter()
            work(i)
            best = min(best, time.perf_counter() - start)
        return best

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(least, range(threads))) / threads


def measure(threads: int) -> Limits:
    """The limits of so many threads, in a few seconds."""
    loops = Loops()
    multiply, read = loops.function("multiply", 0), loops.function("read", 1)
    copy, cached = loops.function("copy", 2), loops.function("recopy", 2)
    sinks = [Pages(1 << 16) for _ in range(threads)]
    large = [(Pages(LARGE), Pages(LARGE)) for _ in range(threads)]
    small = [Pages(SMALL) for _ in range(threads)]
    steps, times = 1 << 17, 64

    def reread(i: int) -> None:
        for _ in range(times):
            read(small[i].address, SMALL, sinks[i].address)

    def streamed(i: int) -> None:
        read(large[i][0].address, LARGE, sinks[i].address)

    def copied(i: int) -> None:
        copy(large[i][0].address, large[i][1].address, LARGE, sinks[i].address)

    def recopied(i: int) -> None:
        for _ in range(times):
            cached(small[i].address, large[i][0].address, SMALL, sinks[i].address)

    flops = _best_alone(lambda i: multiply(steps * CHAINS, sinks[i].address), threads)
    return Limits(
        gflops=2.0 * steps * CHAINS * _lanes() * threads / flops / 1e9,
        read_gb_s=LARGE * threads / _best(streamed, threads) / 1e9,
        copy_gb_s=2 * LARGE * threads / _best(copied, threads) / 1e9,
        cache_gb_s=times * SMALL * threads / _best(reread, threads) / 1e9,
        cache_copy_gb_s=2 * times * SMALL * threads / _best(recopied, threads) / 1e9,
    )


if __name__ == "__main__":
    import os

    for count in (1, os.cpu_count() or 1):
        print(count, "threads:", measure(count).as_dict())
