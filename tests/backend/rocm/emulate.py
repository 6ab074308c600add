"""LLVM IR for AMD GPUs, run on the host: what the printer wrote, executed without the GPU.

The text is compiled for the host by LLVM itself. The instructions of an AMD GPU that it calls are
calls back into Python, which do what AMD's manuals state of them: positions, permutations of lanes,
barriers, matrix products with the registers of a wave. Each GPU thread is a thread of the host
where threads wait for each other, else they run one after the other.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np

from rlx.backends.gpu.device import ALIGN
from rlx.backends.rocm.amdgcn.printer import llvm_ir
from rlx.backends.rocm.architecture import Architecture
from rlx.core.dim import evaluate
from rlx.program.program import Program
from tests.backend.gpu import laws

Array = np.ndarray[Any, Any]
WORD, FLOAT = ctypes.c_uint32, ctypes.c_float
SCALARS = {4: ctypes.c_int32, 8: ctypes.c_int64}
SIDE = 16
WAITING = tuple(
    f"@llvm.amdgcn.{name}"
    for name in (
        "update.dpp", "permlane", "ds.swizzle", "ds.bpermute", "readfirstlane", "s.barrier",
        "wave.barrier", "mfma", "wmma",
    )
)  # fmt: skip
"""Instructions for which threads wait for each other."""


class Meeting:
    """Threads that go on when all of them have come: a gate for each, which the last one opens."""

    def __init__(self, count: int) -> None:
        self.count, self.come, self.is_broken = count, 0, False
        self.lock = threading.Lock()
        self.gates = [threading.Lock() for _ in range(count)]
        for gate in self.gates:
            gate.acquire()

    def wait(self, number: int) -> None:
        with self.lock:
            self.come = (self.come + 1) % self.count
            is_last = self.come == 0
        if is_last:
            self.open(number)
        else:
            self.gates[number].acquire()
        assert not self.is_broken, "another thread has failed"

    def open(self, number: int = -1) -> None:
        for i, gate in enumerate(self.gates):
            if i != number and gate.locked():
                gate.release()

    def abort(self) -> None:
        self.is_broken = True
        self.open()


class Wave:
    """Lanes that exchange values: each puts one in, and takes another's when all have. The values
    of the time before are left alone, as slow lanes may still look at them."""

    def __init__(self, lanes: int) -> None:
        self.meeting = Meeting(lanes)
        self.values: list[list[Any]] = [[None] * lanes, [None] * lanes]
        self.times = [0] * lanes

    def exchange(self, lane: int, value: Any) -> list[Any]:
        """The values of all lanes."""
        self.times[lane] += 1
        found = self.values[self.times[lane] % 2]
        found[lane] = value
        self.meeting.wait(lane)
        return found


class Machine:
    """The instructions, by name, for the GPU thread that runs on the current host thread."""

    def __init__(self, target: Architecture, block: int) -> None:
        self.target, self.wave, self.threads = target, target.wave, block
        self.here = threading.local()
        self.block = Meeting(block)
        self.counts = (ctypes.c_uint32 * 3)()
        self.table: dict[str, Any] = {}
        starts = range(0, block, self.wave)
        self.waves = [Wave(min(self.wave, block - start)) for start in starts]

    def abort(self) -> None:
        for meeting in (self.block, *(w.meeting for w in self.waves)):
            meeting.abort()

    @property
    def lane(self) -> int:
        return self.here.thread % self.wave

    def all_lanes(self, value: Any) -> list[Any]:
        return self.waves[self.here.thread // self.wave].exchange(self.lane, value)

    # -- permutations: the lane whose word is taken ----------------------------------------------

    def dpp(self, old: int, word: int, control: int, rows: int, banks: int, bound: int) -> int:
        assert (rows, banks) == (15, 15)
        lane = self.lane
        if control < 0x100:  # quad_perm
            source = lane & ~3 | control >> 2 * (lane & 3) & 3
        elif control in (0x140, 0x141):  # row_mirror, row_half_mirror
            size = 16 if control == 0x140 else 8
            source = lane // size * size + size - 1 - lane % size
        else:
            assert 0x160 <= control < 0x170
            assert self.target.generation > 9
            source = lane ^ control & 15
        return self.all_lanes(word)[source]

    def permlanex16(self, old: int, word: int, low: int, high: int, *flags: int) -> int:
        """Any lane of the other row of 16: four bits each say which."""
        assert self.target.generation > 9
        lane = self.lane
        which = (high << 32 | low) >> 4 * (lane % 16) & 15
        return self.all_lanes(word)[(lane // 16 ^ 1) * 16 + which]

    def swizzle(self, word: int, offset: int) -> int:
        """Bit mode: and, or, xor of the lane in its group of 32."""
        lane = self.lane
        inner = (lane & 31 & offset | offset >> 5 & 31) ^ offset >> 10 & 31
        return self.all_lanes(word)[lane // 32 * 32 + inner]

    def bpermute(self, place: int, word: int) -> int:
        found = self.all_lanes(word)
        return found[place // 4 % self.wave]

    def first(self, word: int) -> int:
        found = self.all_lanes(word)
        assert len(set(found)) == 1, "the value differs in the lanes of a wave"
        return found[0]

    # -- matrix products: registers of lanes as matrices -----------------------------------------

    def product(self, a: int, b: int, c: int, out: int, count: int, is_f16: int) -> None:
        dtype = np.dtype(np.float16 if is_f16 else ml_dtypes.bfloat16)
        held = SIDE * SIDE // self.wave
        given = ((a, dtype, count), (b, dtype, count), (c, np.dtype("f4"), held))
        mine = tuple(_read(*g).copy() for g in given)
        left, right, total = (np.stack(m) for m in zip(*self.all_lanes(mine)))
        lane, element = np.mgrid[: self.wave, :held]
        group, along = lane // SIDE, lane % SIDE
        is_third = self.target.generation == 11
        row = 2 * element + group if is_third else held * group + element
        depth = np.arange(SIDE) if is_third else held * group + element
        matrices = [np.full((SIDE, SIDE), np.nan, np.float32) for _ in range(3)]
        if is_third:  # both halves of the wave hold whole operands
            assert (left[:16] == left[16:]).all()
            assert (right[:16] == right[16:]).all()
            matrices[0][:], matrices[1][:] = left[:16], right[:16].T
        else:
            matrices[0][along, depth], matrices[1][depth, along] = left, right
        matrices[2][row, along] = total
        made = (matrices[0] @ matrices[1] + matrices[2])[row, along][self.lane]
        _read(out, np.dtype("f4"), held)[:] = made

    def callbacks(self) -> dict[str, Any]:
        """Functions that native code calls, by the names that the text has for them."""
        here = self.here

        def of(function: Callable[..., Any], result: Any, *kinds: Any) -> Any:
            return ctypes.CFUNCTYPE(result, *kinds)(function)

        table = {
            "workitem.id.x": of(lambda: here.thread, WORD),
            "implicitarg.ptr": of(lambda: ctypes.addressof(self.counts), ctypes.c_void_p),
            "update.dpp.i32": of(self.dpp, WORD, *[WORD] * 5, ctypes.c_bool),
            "permlanex16.i32": of(self.permlanex16, WORD, *[WORD] * 4, *[ctypes.c_bool] * 2),
            "ds.swizzle": of(self.swizzle, WORD, WORD, WORD),
            "ds.bpermute": of(self.bpermute, WORD, WORD, WORD),
            "readfirstlane.i32": of(self.first, WORD, WORD),
            "s.barrier": of(lambda: self.block.wait(here.thread), None),
            "wave.barrier": of(lambda: self.all_lanes(None) and None, None),
            "exp2.f32": of(_rounded(np.exp2), FLOAT, FLOAT),
            "sqrt.f32": of(_rounded(np.sqrt), FLOAT, FLOAT),
            "rcp.f32": of(_rounded(lambda x: 1 / x), FLOAT, FLOAT),
            "rsq.f32": of(_rounded(lambda x: 1 / np.sqrt(x)), FLOAT, FLOAT),
            "product": of(self.product, None, *[ctypes.c_void_p] * 4, WORD, WORD),
        }
        for i, axis in enumerate("xyz"):
            table[f"workgroup.id.{axis}"] = of(lambda i=i: here.block[i], WORD)
        return table


def _rounded(function: Callable[[Any], Any]) -> Callable[[float], float]:
    """A function of the special function unit, which takes and gives no subnormal numbers."""

    def of(x: float) -> float:
        with np.errstate(all="ignore"):
            made = np.float32(function(np.float64(0.0 if abs(x) < 2.0**-126 else x)))
        return 0.0 if abs(made) < 2.0**-126 else float(made)

    return of


def _read(address: int, dtype: np.dtype[Any], count: int) -> Array:
    raw = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    return np.ctypeslib.as_array(raw).view(dtype)


# -- the text for the host ------------------------------------------------------------------------

PRODUCT = re.compile(
    r"^declare (<\d+ x float>) @(emu\.[mw](?:fma|mma)\.[\w.]+)\((<(\d+) x (\w+)>), .*\)$", re.M
)


def host_text(text: str) -> str:
    """The same module without what only AMD GPUs have."""
    text = re.sub(r" addrspace\(\d\)", "", text)
    text = text.replace("define amdgpu_kernel ", "define ").replace("llvm.amdgcn.", "emu.")
    text = re.sub(r"^target triple.*$", "", text, flags=re.M)
    text = re.sub(r"^attributes #0.*$", "attributes #0 = { nounwind }", text, flags=re.M)
    text = text.replace(", !nontemporal !1", "")
    has_product = PRODUCT.search(text) is not None
    text = PRODUCT.sub(_product, text)
    if has_product:
        text += "declare void @emu.product(ptr, ptr, ptr, ptr, i32, i32)\n"
    return text


def _product(found: re.Match[str]) -> str:
    """The product of a wave by way of memory."""
    result, name, operand, count, kind = found.groups()
    flags = ", i32, i32, i32" if "mfma" in name else ""
    return f"""define {result} @{name}({operand} %a, {operand} %b, {result} %c{flags}) {{
  %pa = alloca {operand}
  %pb = alloca {operand}
  %pc = alloca {result}
  %pd = alloca {result}
  store {operand} %a, ptr %pa
  store {operand} %b, ptr %pb
  store {result} %c, ptr %pc
  call void @emu.product(ptr %pa, ptr %pb, ptr %pc, ptr %pd, i32 {count}, i32 {int(kind == "half")})
  %d = load {result}, ptr %pd
  ret {result} %d
}}"""


@functools.cache
def _engine() -> tuple[llvm.ExecutionEngine, list[Any]]:
    """A compiler for the host, and the functions that it calls where the host has no instruction
    for a conversion to half floats: their 16 bits are the low ones of what is returned."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # x86's conversions to bf16 take subnormal numbers for 0
    features = llvm.get_host_cpu_features()
    features.update({name: False for name in features if "bf16" in name or "neconvert" in name})
    features = features.flatten()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=1
    )
    rounded: list[Any] = []
    for name, kind, half in (
        ("__truncsfbf2", FLOAT, ml_dtypes.bfloat16),
        ("__truncsfhf2", FLOAT, np.float16),
        ("__truncdfhf2", ctypes.c_double, np.float16),
    ):
        rounded.append(ctypes.CFUNCTYPE(FLOAT, kind)(functools.partial(_bits, half)))
        llvm.add_symbol(name, _address(rounded[-1]))
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine), rounded


def _bits(half: Any, x: float) -> float:
    with np.errstate(all="ignore"):
        bits = np.asarray(np.asarray(x).astype(half)).view(np.uint16)
    return float(bits.astype(np.uint32).view(np.float32))


def _address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found


_numbers = itertools.count()


def launch(
    program: Program,
    target: Architecture,
    buffers: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    *,
    in_place: bool = False,
) -> None:
    """Run what is printed of a program on arrays, which it changes. In place: the arrays are
    aligned to 16 bytes, and may be the same memory."""
    known = sizes or {}
    grid = [evaluate(d, known) for d in program.grid]
    arrays = [buffers[b.name] for b in program.buffers]
    copies = arrays if in_place else [_aligned(a) for a in arrays]
    scalars = [evaluate(s.dim, known) for s in program.scalars if s.dim is not None]
    launch_at(program, target, grid, [*(c.ctypes.data for c in copies), *scalars])
    for array, copy in zip(arrays, copies):
        if array is not copy:
            array.reshape(-1).view(np.uint8)[:] = copy


def launch_at(
    program: Program, target: Architecture, grid: Sequence[int], arguments: Sequence[int]
) -> None:
    """The same on memory of the host: arguments are addresses, then scalars."""
    kinds = tuple(SCALARS[s.value.dtype.itemsize] for s in program.scalars)
    kinds = (*[ctypes.c_void_p] * len(program.buffers), *kinds)
    text = llvm_ir(program, target)
    machine, kernel = _compiled(text, program.name, target, program.block, kinds)
    machine.counts[:] = grid
    _run(machine, text, lambda: kernel(*arguments), grid)


@functools.lru_cache(64)
def _compiled(
    text: str, name: str, target: Architecture, block: int, kinds: tuple[Any, ...]
) -> tuple[Machine, Any]:
    """A kernel for the host, and the machine that it calls."""
    machine, prefix = Machine(target, block), f"emu{next(_numbers)}"
    made = host_text(text).replace("emu.", f"{prefix}.").replace(f"@{name}(", f"@{prefix}.k(")
    machine.table = machine.callbacks()
    for key, function in machine.table.items():
        llvm.add_symbol(f"{prefix}.{key}", _address(function))
    module = llvm.parse_assembly(made)
    module.verify()
    engine, _ = _engine()
    engine.add_module(module)
    engine.finalize_object()
    address = engine.get_function_address(f"{prefix}.k")
    return machine, ctypes.CFUNCTYPE(None, *kinds)(address)


def _aligned(array: Array) -> Array:
    """The bytes of an array, as a device aligns them."""
    room = np.empty(array.nbytes + ALIGN, np.uint8)
    start = -room.ctypes.data % ALIGN
    made = room[start : start + array.nbytes]
    made[:] = array.reshape(-1).view(np.uint8)
    return made


def _run(machine: Machine, text: str, kernel: Callable[[], None], grid: Sequence[int]) -> None:
    blocks = [(x, y, z) for z in range(grid[2]) for y in range(grid[1]) for x in range(grid[0])]
    if not any(name in text for name in WAITING):
        for machine.here.block in blocks:
            for thread in range(machine.threads):
                machine.here.thread = thread
                kernel()
        return
    failed: list[BaseException] = []

    def one(thread: int) -> None:
        machine.here.thread = thread
        try:
            for machine.here.block in blocks:
                kernel()
                machine.block.wait(thread)
        except BaseException as error:
            failed.append(error)
            machine.abort()

    workers = [threading.Thread(target=one, args=(t,)) for t in range(machine.threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed, failed


def wrong(made: laws.Applied, program: Program, target: Architecture) -> list[str]:
    """What the printed text of a drawn op's program computes wrongly."""
    run = functools.partial(_launch_on, target)
    return laws.wrong(made, program, run)


def _launch_on(
    target: Architecture, program: Program, buffers: Mapping[str, Array], sizes: Any
) -> None:
    launch(program, target, buffers, sizes)
