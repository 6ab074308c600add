"""PTX text: its structure, and whether NVIDIA's assembler takes it where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cuda.machine import machine_of
from rlx.backends.cuda.ptx.architecture import Architecture
from rlx.backends.cuda.ptx.arithmetic import reciprocal_of
from rlx.backends.cuda.ptx.printer import printable, ptx
from rlx.backends.gpu.lower.contraction.mma import emit as emit_mma
from rlx.backends.gpu.lower.contraction.wgmma import emit as emit_wgmma
from rlx.backends.gpu.lower.loop import emit, legal
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule import wgmma
from rlx.backends.gpu.schedule.loop import choose
from rlx.backends.gpu.schedule.mma import MmaSchedule
from rlx.backends.gpu.schedule.product import Product, product_of
from rlx.core.dtype import DType
from rlx.kernel.lower.contract import contraction
from rlx.kernel.lower.loop import loop_kernel
from rlx.program.builder import Builder
from rlx.program.functions import FUNCTIONS
from rlx.program.parse import parse
from rlx.program.program import Program
from rlx.program.text import text as text_of
from rlx.program.types import TileType
from rlx.program.verify import verify
from tests.backend.gpu import laws
from tests.backend.gpu.regions import CASES, Case, block, of, transposed
from tests.backend.gpu.test_programs import PROGRAMS
from tests.patience import PATIENCE_S

PTXAS = shutil.which("ptxas")
needs_ptxas = pytest.mark.skipif(PTXAS is None, reason="ptxas, of the CUDA toolkit, is not there")
SM_80 = Architecture("sm_80", "8.0")
HOPPER = ("cluster_sum", "pipeline", "warpgroup_gemm", "pipelined_gemm", "warpgroup_values")
F32 = DType.F32


def of_case(name: str, machine: GpuMachine) -> Program:
    node = CASES[name].node()
    kernel = legal(loop_kernel(node, *CASES[name].layouts(node)))
    return emit(kernel, choose(kernel, machine))


ALL = {
    **PROGRAMS,
    **{f"{n}, small": of_case(n, laws.SMALL) for n in CASES},
    **{n: of_case(n, GpuMachine()) for n in CASES},
}


def called(name: str, dtype: DType) -> Program:
    b = Builder(f"f_{name}", block=32)
    x, y = b.input("x", dtype), b.output("y", dtype)
    y[b.thread] = b.call(name, *(x[b.thread + i] for i in range(FUNCTIONS[name].arity)))
    return b.program()


@pytest.mark.parametrize("name", ALL)
def test_registers_are_declared_and_labels_are_there(name: str) -> None:
    text = ptx(ALL[name])
    declared = {p: int(n) for p, n in re.findall(r"\.reg \.\w+ %(\w+?)<(\d+)>;", text)}
    used = re.findall(r"%(p|h|f|fd|r|rd)(\d+)\b", text)
    assert used
    assert all(int(n) < declared[p] for p, n in used)
    named = set(re.findall(r"\.reg \.b\d+ %(SMEM|P_\w+);", text))
    assert set(re.findall(r"%(SMEM|P_\w+)", text)) <= named
    labels = re.findall(r"^(L\d+):", text, re.M)
    assert len(labels) == len(set(labels))
    assert set(re.findall(r"bra (L\d+);", text)) <= set(labels)
    assert text.count("{") == text.count("}")


def test_registers_are_bounded_where_several_blocks_are_to_be_resident() -> None:
    b = Builder("bounded", block=256, resident=2)
    b.output("y", F32)[b.thread] = 1.0
    program = b.program()
    assert ".minnctapersm 2" in ptx(program)
    assert parse(text_of(program)).resident == 2
    assert ".minnctapersm" not in ptx(PROGRAMS["scaled"])


@pytest.mark.parametrize("name", ALL)
def test_every_register_is_written_before_it_is_read(name: str) -> None:
    """In the order of the text, which is that of execution but for loops."""
    body = ptx(ALL[name]).split("\n{\n", 1)[1]
    written: set[str] = set()
    for line in body.splitlines():
        if line.startswith("\t.reg") or not line.startswith("\t"):
            continue
        registers = re.findall(r"%(?:p|h|f|fd|r|rd)\d+\b", line)
        has_result = not re.match(r"\t(@\S+ )?(st\.|red\.|bra|cp\.|mbarrier\.(init|arrive))", line)
        first = re.match(r"\t(?:@\S+ )?\S+ (\{[^}]*\}|%\w+)", line)
        made = set(re.findall(r"%\w+", first[1])) if has_result and first else set[str]()
        assert all(r in written or r in made for r in registers), line
        written |= made


def test_roundings_are_stated() -> None:
    """ptxas would contract a product and a sum without them, and change the bits."""
    for program in ALL.values():
        assert not re.search(r"\b(add|sub|mul|div|sqrt|fma)\.f(32|64)", ptx(program))


def test_the_text_of_a_kernel() -> None:
    text = ptx(PROGRAMS["scaled"], SM_80)
    assert text.startswith(".version 8.0\n.target sm_80\n.address_size 64\n")
    assert "\t.param .u64 .ptr .global .align 16 k_y,\n\t.param .s32 k_n\n)\n.maxntid 64" in text
    assert "\tsetp.lt.s32 %p1, %r6, %r1;\n\t@!%p1 bra L1;\n" in text
    assert "\tmul.rn.f32 %f3, %f1, %f2;\n" in text


def test_wide_tiles_are_loaded_four_matrices_at_a_time() -> None:
    """Constants that the swizzle does not change are part of the instruction, and a pair of f32 is
    rounded by one."""
    half, wide = DType.BF16, TileType("b", 16, 40, DType.BF16)
    b = Builder("wide", block=32)
    y, memory = b.output("y", F32), b.shared("memory", half, 64 * 64, is_swizzled=True)
    for i in range(0, 64 * 64, 256):
        memory.store(b.thread * 8 + i, [b.const(1.0, F32).to(half)] * 8)
    b.barrier()
    a = b.tile_pack(
        TileType("a", 16, 16, half), [b.const(float(i), F32).to(half) for i in range(8)]
    )
    right = b.tile_load(wide, memory, b.warp * 1024 + 1024, 64, is_transposed=True)
    total = b.tile_mul(a, right, b.tile_fill(TileType("c", 16, 40, F32)))
    y[b.thread] = b.tile_elements(total)[0]
    text = ptx(verify(b.program()))
    assert text.count("ldmatrix.sync.aligned.m8n8.x4.shared.b16") == 2
    assert text.count("ldmatrix.sync.aligned.m8n8.x2.shared.b16") == 1
    assert text.count("mma.sync.aligned.m16n8k16") == 5
    assert re.findall(r"ldmatrix.*\[%r\d+\+(\d+)\]", text) == ["2048", "4096", "6144"]
    assert text.count("cvt.rn.bf16x2.f32") == 4 + 16 * 4


def test_operand_tiles_are_stored_four_matrices_at_a_time() -> None:
    half = DType.BF16
    b = Builder("stored", block=32)
    y, memory = b.output("y", half), b.shared("memory", half, 16 * 64, is_swizzled=True)
    tile = TileType("a", 16, 16, half)
    b.tile_store(b.tile_fill(tile, 1.0), memory, 0, 64)
    b.barrier("warp")
    y[b.thread] = memory[b.thread]
    program = verify(b.program())
    assert ptx(program).count("stmatrix.sync.aligned.m8n8.x4.shared.b16") == 1
    with pytest.raises(rlx.Error, match="TileStore on sm_80"):
        ptx(program, SM_80)


def test_sums_that_a_product_replaces_are_not_set() -> None:
    """Their registers would be cleared for each tile."""
    text = ptx(ALL["warpgroup_values"])
    assert text.count("mov.f32") == 1  # the number 0
    assert re.search(r"wgmma.mma_async.*, 0, 1, 1, 1;", text)


@pytest.mark.parametrize(
    ("name", "instructions"),
    [
        ("chain static", ["ld.global.v4.b32", "st.global.v4.b32", "cvt.rn.bf16.f32"]),
        ("softmax vectors", ["shfl.sync.bfly.b32", "bar.sync 0", "st.shared.f32"]),
        ("tile_gemm", [
            "cp.async.cg.shared.global", "cp.async.wait_group 1", "ldmatrix.sync.aligned.m8n8.x4",
            "ldmatrix.sync.aligned.m8n8.x2.shared", "mma.sync.aligned.m16n8k16.row.col.f32.bf16",
        ]),
        ("cluster_sum", [
            ".reqnctapercluster 4, 1, 1", "mapa.shared::cluster.u32", "st.async.weak",
            "barrier.cluster.arrive", "mbarrier.try_wait.parity",
        ]),
        ("pipeline", [
            "cp.async.bulk.tensor.2d", "mbarrier.arrive.expect_tx", "fence.mbarrier_init",
            "\t.param .align 64 .b8 k_box[128]",
        ]),
        ("warpgroup_gemm", [
            "wgmma.fence", "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16",
            "wgmma.wait_group",
        ]),
        ("pipelined_gemm", [
            "1, 1, 1, 0, 1;", "wgmma.wait_group.sync.aligned 1;", "setmaxnreg.dec.sync.aligned.u32",
            "fence.proxy.async.shared::cta", ".minnctapersm 1",
        ]),
        ("warpgroup_values", [
            "cp.async.bulk.tensor.3d", "m64n80k16.f32.bf16.bf16 {", "0, 1, 1, 1;", "1, 1, 1, 1;",
        ]),
        ("embedded", ["red.global.max.s32", "k_failures"]),
        ("columns", ["st.shared.f32", "bar.sync 0"]),
    ],
)  # fmt: skip
def test_nodes_are_the_instructions_they_are_for(name: str, instructions: list[str]) -> None:
    text = ptx(ALL[name])
    assert [i for i in instructions if i not in text] == []


def test_a_swizzled_array_is_accessed_through_its_permutation() -> None:
    """chunk ^ row % 8: bits 7 to 9 of the byte, moved to bits 4 to 6."""
    text = ptx(PROGRAMS["tile_gemm"])
    assert len(re.findall(r"shr\.u32 (%r\d+), %r\d+, 3;\n\tand\.b32 %r\d+, \1, 112;", text)) >= 4
    assert ", 112;" not in ptx(PROGRAMS["transpose"])


def test_what_a_launch_asks_for_is_that_of_the_printed_program() -> None:
    program = ALL["softmax vectors"]
    assert program.shared_bytes == 0
    assert printable(program).shared_bytes > 0
    verify(printable(program))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda b: b.tile_fill(TileType("c", 32, 32, F32)), "no tile c32x32"),
        (lambda b: b.const(1.0, DType.F16) + b.const(1.0, DType.F16), "add of f16; convert it"),
        (lambda b: b.shuffle(b.const(True, DType.BOOL), 1), "shuffle of bool"),
        (lambda b: b.scalar("s", DType.I8), "argument of i8"),
    ],
)
def test_what_ptx_lacks_is_refused(make: Any, why: str) -> None:
    b = Builder("p", block=32)
    make(b)
    with pytest.raises(rlx.Error, match=why):
        ptx(b.program())


@pytest.mark.parametrize("name", HOPPER)
def test_hoppers_nodes_are_refused_before_hopper(name: str) -> None:
    with pytest.raises(rlx.Error, match=r"sm_80: (it begins|they begin) with sm_90"):
        ptx(PROGRAMS[name], SM_80)


# -- the assembler --------------------------------------------------------------------------------


def assembled(text: str, arch: str, folder: Path) -> str:
    """What the assembler complains about."""
    source = folder / "kernel.ptx"
    source.write_text(text)
    command = [str(PTXAS), f"-arch={arch}", "-o", str(folder / "kernel.cubin"), str(source)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return made.stderr + made.stdout if made.returncode else ""


def assembler_log(text: str, arch: str, folder: Path) -> str:
    """What it says of a kernel that it takes."""
    source = folder / "kernel.ptx"
    source.write_text(text)
    command = [str(PTXAS), "-v", f"-arch={arch}", "-o", str(folder / "kernel.cubin"), str(source)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return made.stderr + made.stdout


SAMPLE = [*PROGRAMS, "chain static", "softmax bf16", "residual norm static", "joined", "columns",
          "embedded", "integers", "softmax of any length"]  # fmt: skip


@needs_ptxas
@pytest.mark.parametrize("name", SAMPLE)
def test_the_assembler_takes_it(name: str, tmp_path: Path) -> None:
    assert not assembled(ptx(ALL[name]), "sm_90a", tmp_path)
    if name not in HOPPER:
        assert not assembled(ptx(ALL[name], SM_80), "sm_80", tmp_path)


@needs_ptxas
@pytest.mark.parametrize("dtype", [F32, DType.F64])
def test_the_assembler_takes_every_function(dtype: DType, tmp_path: Path) -> None:
    for name in FUNCTIONS:
        assert not assembled(ptx(called(name, dtype)), "sm_90a", tmp_path), name


def products() -> dict[str, Program]:
    """Products on matrix instructions, one of each kind of program."""
    half = DType.BF16
    dims = ((304, 72), (72, 136), (136,), (304, 136))
    case = Case(block, of(half, *dims), operands={0: transposed})
    found = product_of(contraction(case.node(), *case.layouts(case.node())))
    assert isinstance(found, Product)
    machine = machine_of(90)
    groups = wgmma.choose(found, machine)
    assert isinstance(groups, wgmma.WgmmaSchedule)
    by_threads = replace(groups, left=None)
    return {
        "warps": emit_mma(found, MmaSchedule(32, 64, 64, 3, (2, 2, 2)), "p"),
        "clusters": emit_mma(found, MmaSchedule(32, 64, 64, 2, (2, 2, 2), 2), "p"),
        "groups": emit_wgmma(found, groups, "p"),
        "threads": emit_wgmma(found, by_threads, "p"),
    }


@needs_ptxas
def test_the_assembler_takes_products_and_overlaps_them(tmp_path: Path) -> None:
    """A product that it cannot overlap with the next is reported as C7510."""
    for name, program in products().items():
        text = ptx(verify(program))
        assert not assembled(text, "sm_90a", tmp_path), name
        said = assembler_log(text, "sm_90a", tmp_path)
        assert "C7510" not in said, said
        assert "0 bytes spill stores" in said, said


@pytest.mark.parametrize("divisor", [3, 5, 6, 7, 40, 80, 101, 641, 1 << 20 | 1, (1 << 31) - 1])
def test_divisions_by_constants_are_products(divisor: int) -> None:
    """The high word, shifted, with 1 more for negative numbers: for every kind of number."""
    factor, shift = reciprocal_of(divisor)
    assert -(1 << 31) <= factor < 1 << 31
    ends = [0, 1, divisor - 1, divisor, divisor + 1, (1 << 31) - 1, 1 << 30, 12345678]
    rng = np.random.default_rng(divisor)
    numbers = [*ends, *(-n for n in ends), -(1 << 31), *map(int, rng.integers(0, 1 << 31, 400))]
    for n in numbers:
        high = (n * factor) >> 32
        high += n if factor < 0 else 0
        assert (high >> shift) + (n < 0) == abs(n) // divisor * (1 if n >= 0 else -1)
    b = Builder("divided", block=32)
    y = b.output("y", DType.I32)
    y[b.thread] = b.thread // divisor + b.thread % divisor
    text = ptx(verify(b.program()))
    assert "div." not in text
    assert "rem." not in text
