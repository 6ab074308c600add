"""Operating systems: each with its libraries faked, so that every branch runs on any machine.

What runs here is real: memory is mapped, code in it is called, threads sleep and wake. Only who
answers is not the system that the code is for.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import platform
import subprocess
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rlx.backends.cpu import isa as isas
from rlx.backends.cpu.isa import AVX2, NEON, SSE2, WINDOWS_X86, baseline, host, on_system
from rlx.backends.cpu.llvm.compile import compiled
from rlx.backends.cpu.program.artefact import compiled as built
from rlx.backends.cpu.runtime import call, program
from rlx.backends.cpu.runtime.executable_memory import Loaded
from rlx.backends.cpu.runtime.support_code import Support, compiled_support
from rlx.backends.cpu.runtime.thread_pool_layout import Place
from rlx.backends.cpu.system.current import Unknown, system_of, this_system
from rlx.backends.cpu.system.darwin import MAP_JIT, Darwin
from rlx.backends.cpu.system.linux import Linux
from rlx.backends.cpu.system.trial import why_no_native_code
from rlx.backends.cpu.system.waiting_code import waiting_text
from rlx.backends.cpu.system.windows import Windows
from rlx.core.disk_cache import Cache
from rlx.core.errors import Error, UnsupportedError
from rlx.fuzz.judge import Expected, compare
from rlx.ops.op import lookup
from rlx.pipeline import CompilePipeline
from rlx.runtime.session import Session
from tests.backend.cpu.bridge import Bridged, BridgedPool, WindowsHere
from tests.backend.cpu.laws import batch
from tests.backend.cpu.models import KERNELS, call_marks
from tests.patience import eventually

ANSWER = "define i32 @answer() {\n  ret i32 42\n}\n"
IS_X86 = platform.machine() == "x86_64"
needs_x86 = pytest.mark.skipif(not IS_X86, reason="code for Windows is for x86-64")


def answer(loaded: Loaded) -> int:
    return ctypes.CFUNCTYPE(ctypes.c_int32)(loaded.address("answer"))()


@pytest.mark.parametrize(
    ("name", "machine", "kind", "abi"),
    [
        ("linux", "x86_64", Linux, "x86_64"),
        ("linux", "aarch64", Linux, "aarch64"),
        ("darwin", "arm64", Darwin, "aarch64"),
        ("darwin", "x86_64", Darwin, "x86_64"),
        ("win32", "AMD64", Windows, "x86_64-windows"),
    ],
)
def test_a_system_has_a_convention_and_code(name: str, machine: str, kind: type, abi: str) -> None:
    system = system_of(name, machine)
    assert type(system) is kind
    assert (system.abi, system.why_not()) == (abi, None)
    assert compiled(ANSWER, baseline(system)).arch == abi
    assert ("windows" in baseline(system).triple) == (name == "win32")


@pytest.mark.parametrize(
    ("name", "machine", "reason"),
    [
        ("linux", "riscv64", "x86_64 and aarch64 under Linux, not for riscv64"),
        ("win32", "ARM64", "x86_64 under Windows, not for aarch64"),
        ("freebsd14", "amd64", "this is freebsd14"),
    ],
)
def test_where_no_native_code_runs(name: str, machine: str, reason: str) -> None:
    system = system_of(name, machine)
    assert reason in (system.why_not() or "")
    if isinstance(system, Unknown):
        with pytest.raises(UnsupportedError, match=reason):
            system.map_code(b"\xc3")
        with pytest.raises(UnsupportedError, match=reason):
            waiting_text(system)
        assert (system.features(), system.functions()) == (frozenset(), {})


# -- memory for code -------------------------------------------------------------------------------


def test_linux_seals_code() -> None:
    calls: list[str] = []
    library = ctypes.CDLL(None, use_errno=True)

    def mprotect(*given: Any) -> int:
        calls.append("mprotect")
        return library.mprotect(*given)

    system = Linux(platform.machine(), SimpleNamespace(mprotect=mprotect))
    assert answer(Loaded(compiled(ANSWER, host()), system)) == 42
    assert calls == ["mprotect"]
    with pytest.raises(Error, match="refuses memory for native code \\(mprotect"):
        Linux(platform.machine(), SimpleNamespace(mprotect=lambda *_: -1)).map_code(b"\xc3")


def test_apple_silicon_writes_code_in_jit_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """This system takes such a mapping too: the flag has no meaning here."""
    calls: list[Any] = []
    real = mmap.mmap

    def mapped(*given: Any, **how: Any) -> mmap.mmap:
        calls.append((how["flags"] & MAP_JIT, how["prot"]))
        return real(*given, **{**how, "flags": how["flags"] & ~MAP_JIT})

    monkeypatch.setattr(mmap, "mmap", mapped)
    fake = SimpleNamespace(
        pthread_jit_write_protect_np=lambda on: calls.append(on),
        sys_icache_invalidate=lambda base, size: calls.append((base.value, size.value)),
    )
    blob = compiled(ANSWER, host())
    made = Darwin("arm64", fake).map_code(blob.code)
    every = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    assert calls == [(MAP_JIT, every), 0, 1, (made.base, len(blob.code))]
    assert ctypes.CFUNCTYPE(ctypes.c_int32)(made.base + blob.exports["answer"])() == 42

    def full(*_: Any, **__: Any) -> None:
        raise OSError(12, "no memory")

    monkeypatch.setattr(mmap, "mmap", full)
    with pytest.raises(Error, match="mmap with MAP_JIT, error 12"):
        Darwin("arm64", fake).map_code(blob.code)


class Kernel32:
    """VirtualAlloc and its like on `mmap`, with a list of what was asked."""

    def __init__(self, failing: str = "") -> None:
        self.calls: list[Any] = []
        self.memory: list[mmap.mmap] = []
        self.VirtualAlloc = self._allocator(failing == "VirtualAlloc")
        self.failing = failing

    def _allocator(self, fails: bool) -> Callable[..., int]:
        def allocate(_: None, size: ctypes.c_size_t, kind: int, access: int) -> int:
            self.calls.append(("alloc", kind, access))
            if fails:
                return 0
            every = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
            self.memory.append(mmap.mmap(-1, size.value, prot=every))
            return ctypes.addressof(ctypes.c_char.from_buffer(self.memory[-1]))

        return allocate

    def VirtualProtect(self, _: Any, __: Any, access: int, ___: Any) -> int:
        self.calls.append(("protect", access))
        return int(self.failing != "VirtualProtect")

    def FlushInstructionCache(self, process: ctypes.c_void_p, *_: Any) -> None:
        self.calls.append("flush")

    def VirtualFree(self, _: Any, size: ctypes.c_size_t, kind: int) -> None:
        self.calls.append(("free", size.value, kind))

    def GetLastError(self) -> int:
        return 8

    def IsProcessorFeaturePresent(self, number: int) -> int:
        return int(number == 40)


def test_windows_allocates_seals_and_frees_code() -> None:
    kernel = Kernel32()
    blob = compiled(ANSWER, host())
    made = Windows("AMD64", kernel).map_code(blob.code)
    assert kernel.calls == [("alloc", 0x3000, 0x04), ("protect", 0x20), "flush"]
    assert ctypes.CFUNCTYPE(ctypes.c_int32)(made.base + blob.exports["answer"])() == 42
    del made
    gc.collect()
    assert kernel.calls[-1] == ("free", 0, 0x8000)
    for failing in ("VirtualAlloc", "VirtualProtect"):
        with pytest.raises(Error, match=f"{failing}, error 8"):
            Windows("AMD64", Kernel32(failing)).map_code(blob.code)


def test_libraries_of_windows_are_only_loaded_there() -> None:
    with pytest.raises(OSError, match="kernel32 is a library of Windows"):
        Windows("AMD64").functions()


# -- processors ------------------------------------------------------------------------------------


def test_features_by_windows_are_those_of_avx2() -> None:
    found = Windows("AMD64", Kernel32()).features()
    assert set(isas._NEEDS["avx2"]) <= found  # pyright: ignore[reportPrivateUsage]
    assert not {f for f in found if f.startswith("avx512")}


def test_features_by_sysctl_have_the_names_of_linux() -> None:
    def sysctlbyname(name: bytes, value: Any, *_: Any) -> int:
        if name == b"hw.optional.avx512f":
            return -1  # no such name
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int64))[0] = int(b"avx512" not in name)
        return 0

    found = Darwin("x86_64", SimpleNamespace(sysctlbyname=sysctlbyname)).features()
    assert set(isas._NEEDS["avx2"]) <= found  # pyright: ignore[reportPrivateUsage]
    assert "avx512f" not in found


def test_x18_is_left_to_the_system_and_code_for_windows_is_its_own() -> None:
    assert "+reserve-x18" in NEON.features
    windows = system_of("win32", "AMD64")
    assert on_system(AVX2, windows).triple == WINDOWS_X86
    assert on_system(NEON, windows) is NEON
    assert on_system(AVX2, system_of("darwin", "x86_64")) is AVX2


# -- threads ---------------------------------------------------------------------------------------


class Waiting:
    """Waiting by address, by a condition of Python's; and what else a pool asks for."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.slept = self.asleep = self.woken = 0

    def wait(self, address: int, seen: int) -> int:
        with self.changed:
            self.slept += 1
            self.asleep += 1
            word = ctypes.c_uint32.from_address(address)
            while word.value == seen:
                self.changed.wait()
            self.asleep -= 1
        return 1

    def wake(self) -> int:
        with self.changed:
            self.woken += 1
            self.changed.notify_all()
        return 0


IMMORTAL: list[Any] = []
"""Workers never end, so what they call must not go."""
i32, i64, pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p


def darwin_here(waiting: Waiting) -> Darwin:
    made = SimpleNamespace(
        __ulock_wait=ctypes.CFUNCTYPE(i32, i32, pointer, ctypes.c_uint64, i32)(
            lambda kind, at, seen, _: waiting.wait(at, seen) if kind == 1 else -1
        ),
        __ulock_wake=ctypes.CFUNCTYPE(i32, i32, pointer, ctypes.c_uint64)(
            lambda kind, *_: waiting.wake() if kind == 0x101 else -1
        ),
        sched_yield=ctypes.CFUNCTYPE(i32)(lambda: 0),
        clock_gettime_nsec_np=ctypes.CFUNCTYPE(i64, i32)(lambda _: time.monotonic_ns()),
        mprotect=ctypes.CDLL(None, use_errno=True).mprotect,
        pthread_jit_write_protect_np=lambda _: None,
        sys_icache_invalidate=lambda *_: None,
    )
    IMMORTAL.append(made)
    return Darwin(platform.machine(), made)


def windows_here(waiting: Waiting) -> Windows:
    def wait(at: int, seen_at: int, size: int, milliseconds: int) -> int:
        assert (size, milliseconds) == (4, 0xFFFFFFFF)
        return waiting.wait(at, ctypes.c_uint32.from_address(seen_at).value)

    def wake(_: int) -> None:
        waiting.wake()

    functions = {
        Place.WAIT: ctypes.CFUNCTYPE(i32, pointer, pointer, i64, ctypes.c_uint32)(wait),
        Place.WAKE: ctypes.CFUNCTYPE(None, pointer)(wake),
        Place.YIELD: ctypes.CFUNCTYPE(i32)(lambda: 0),
        Place.CLOCK: ctypes.CFUNCTYPE(i64)(lambda: time.monotonic_ns() // 1_000_000),
    }
    made = WindowsHere(this_system(), functions)
    IMMORTAL.append(made)
    return made


def check_pool(pool: Any, run: int, waiting: Waiting) -> None:
    """Every unit once, by several threads, which sleep in between and wake again."""
    for units in (1, 7, 1000, 3001):
        data = np.zeros(units, np.int32)
        code, done = call_marks(data, units, 10, 3, 3, pool=pool, run=run)
        assert (code, sum(done)) == (0, 3 * units)
        assert (data == 3).all()
        eventually(lambda: waiting.asleep == len(pool._threads), "workers that wait")
    assert waiting.slept >= 2
    assert waiting.woken >= 1
    assert pool._memory[Place.PINS] == 0


def test_threads_wait_as_on_macos() -> None:
    waiting = Waiting()
    system = darwin_here(waiting)
    made = Support(compiled_support(system), system)
    run = Loaded(compiled(KERNELS, host()), system)
    check_pool(made.pool, run.address("run"), waiting)


@needs_x86
def test_threads_wait_as_on_windows_by_its_convention() -> None:
    waiting = Waiting()
    system = windows_here(waiting)
    pool = BridgedPool(Bridged(compiled_support(system), system), system)
    IMMORTAL.append(pool)
    run = Bridged(compiled(KERNELS, on_system(host(), system)), system)
    check_pool(pool, run.native("run"), waiting)


# -- the convention of Windows ---------------------------------------------------------------------

DEEP = """
define i64 @deep(ptr %out, i64 %a, i64 %b, i64 %c, i64 %d, i64 %e) {
  %frame = alloca [40000 x i8], align 16
  %last = getelementptr i8, ptr %frame, i64 39999
  store volatile i8 1, ptr %last
  store volatile i8 2, ptr %frame
  store i64 %e, ptr %out
  %sum = add i64 %d, %e
  ret i64 %sum
}
"""


@needs_x86
def test_frames_of_many_pages_are_probed() -> None:
    system = windows_here(Waiting())
    blob = compiled(DEEP, on_system(SSE2, system))
    code = Bridged(blob, system)
    out = ctypes.c_int64()
    found = ctypes.CFUNCTYPE(i64, pointer, *[i64] * 5)(code.address("deep"))
    assert found(ctypes.addressof(out), 1, 2, 3, 40, 5) == 45
    assert out.value == 5


OPS = ["add", "exp", "mm", "softmax", "conv", "cumsum", "sort", "erf", "layer_norm", "gather"]


@needs_x86
def test_ops_mean_the_same_by_the_convention_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels, the code between them and the threads are code for Windows; Python is not."""
    system = windows_here(Waiting())
    pool = BridgedPool(Bridged(compiled_support(system), system), system)
    IMMORTAL.append(pool)

    def loaded(blob: Any) -> Bridged:
        made = Bridged(blob, system)
        pool.add(made)
        return made

    monkeypatch.setattr(program, "Loaded", loaded)
    for name in ("can_bind", "warn_slow_calls"):
        monkeypatch.setattr(call, name, lambda: False)
    made = batch([lookup(n) for n in OPS], 2, 1)
    backend = Session("cpu", cache=False).backend
    lir = CompilePipeline(backend.target()).compile(made.graph).lir
    artefact = built(backend.program(lir), on_system(host(), system))
    assert artefact.blob.arch == "x86_64-windows"
    held = program.CpuProgram(artefact, 2, SimpleNamespace(pool=pool))  # pyright: ignore
    given = [made.values[n.attrs["name"]] for n in made.graph.inputs]
    results = held.run(held.prepare({}, None), given, [None] * len(made.graph.outputs))
    assert compare("windows", Expected(made.graph, made.values), results) == []


# -- trials ----------------------------------------------------------------------------------------


def ended(code: int, text: str = "") -> Callable[[], Any]:
    return lambda: subprocess.CompletedProcess([], code, "", text)


def test_a_system_that_was_never_run_is_tried_once(tmp_path: Any) -> None:
    cache = Cache(tmp_path / "cache")
    system = system_of("darwin", "arm64")
    crashed = why_no_native_code(system, cache, ended(-11, "…\nFatal: no such thing"))
    assert crashed == "a trial of native code under macOS failed (exit -11): Fatal: no such thing"
    assert why_no_native_code(system, cache, ended(0)) is None
    assert why_no_native_code(system, cache, ended(1)) is None, "what worked is noted"

    def hangs() -> Any:
        raise subprocess.TimeoutExpired("python", 120)

    assert "timed out" in (why_no_native_code(system, None, hangs) or "")
    assert why_no_native_code(system_of("linux", "x86_64"), None, hangs) is None
