"""LLVM IR for AMD GPUs: LLVM verifies and assembles it, to the instructions that are meant."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import rlx
from rlx.backends.gpu.lower.loop import emit, legal
from rlx.backends.gpu.schedule.loop import choose
from rlx.backends.rocm.amdgcn.assemble import assembly
from rlx.backends.rocm.amdgcn.printer import REFUSED, Printer, llvm_ir
from rlx.backends.rocm.architecture import ARCHITECTURES, Architecture, architecture
from rlx.core.dtype import DType
from rlx.kernel.lower.loop import loop_kernel
from rlx.program import nodes as ir
from rlx.program.builder import Builder
from rlx.program.functions import FUNCTIONS
from rlx.program.program import Program
from rlx.program.types import TileType
from rlx.program.verify import verify
from tests.backend.gpu import kernels, laws
from tests.backend.gpu.regions import CASES
from tests.backend.gpu.test_programs import PROGRAMS
from tests.backend.rocm import programs
from tests.backend.rocm.programs import DRAWN, NUMBERS, small
from tests.backend.rocm.structure import checked

GFX90A, GFX942, GFX1100, GFX1201 = ARCHITECTURES.values()
TARGETS = (GFX942, GFX1100, GFX1201)
F32, BF16 = DType.F32, DType.BF16
HOPPER = ("cluster_sum", "pipeline", "warpgroup_gemm")
LACKING = (*REFUSED, ir.TileMul)
"""Nodes that no AMD GPU has, and tiles of 16x8."""


def of_case(name: str, target: Architecture) -> Program:
    """A loop kernel with the schedule of the target's machine."""
    node = CASES[name].node()
    kernel = legal(loop_kernel(node, *CASES[name].layouts(node)))
    return verify(emit(kernel, choose(kernel, target.machine)))


def called(name: str, dtype: DType) -> Program:
    b = Builder(f"f_{name}", block=32)
    x, y = b.input("x", dtype), b.output("y", dtype)
    y[b.thread] = b.call(name, *(x[b.thread + i] for i in range(FUNCTIONS[name].arity)))
    return b.program()


@pytest.mark.parametrize("target", TARGETS, ids=lambda a: a.name)
def test_every_dtype_is_assembled(target: Architecture) -> None:
    """What LLVM cannot select ends the process, so it must never be printed."""
    made = [programs.scalars(d) for d in NUMBERS] + [programs.conversions(d) for d in NUMBERS]
    made += [programs.collective(target.wave, 2 * target.wave, d) for d in (F32, DType.U64)]
    made += [programs.positions(target.wave)]
    assert [f for p in made for f in checked(p, target)[1]] == []


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_is_assembled(name: str) -> None:
    """The range reduction of large angles reads its table, which is part of the code."""
    target = TARGETS[len(name) % 3]
    assert [f for d in (F32, DType.F64) for f in checked(called(name, d), target)[1]] == []


@pytest.mark.parametrize("target", TARGETS, ids=lambda a: a.name)
def test_loop_kernels_are_assembled(target: Architecture) -> None:
    """A sample; all by `python -m tests.backend.rocm.all`."""
    found: list[str] = []
    for op in DRAWN[TARGETS.index(target) :: 15]:
        for made in laws.drawn(op, 0, 1):
            kernel = laws.kernel_of(made)
            if kernel is not None:
                found += checked(laws.program_of(kernel, small(target)), target)[1]
    assert not found, "\n".join(found)


def test_programs_written_by_hand_are_assembled() -> None:
    every = [p for p in PROGRAMS.values() if not any(isinstance(n, LACKING) for n in p.nodes)]
    assert len(every) >= 5
    assert [f for p in every for f in checked(p, GFX1100)[1]] == []


# -- instructions ---------------------------------------------------------------------------------


def tiles(target: Architecture, dtype: DType) -> Program:
    return programs.tile_product(
        target, dtype, is_swizzled=True, is_transposed=True, is_packed=False
    )


@pytest.mark.parametrize(
    ("make", "target", "instructions"),
    [
        (lambda: of_case("chain static", GFX942), GFX942, [
            "global_load_dwordx4", "global_store_dwordx4",
        ]),
        (lambda: of_case("chain static", GFX1100), GFX1100, [
            "global_load_b128", "global_store_b128",
        ]),
        (lambda: of_case("softmax vectors", GFX942), GFX942, [
            "quad_perm:[1,0,3,2]", "row_half_mirror", "row_mirror", "ds_swizzle_b32",
            "ds_bpermute_b32",
        ]),
        (lambda: of_case("softmax vectors", GFX1100), GFX1100, [
            "quad_perm:[1,0,3,2]", "row_xmask:7", "row_xmask:15", "v_permlanex16_b32", "s_barrier",
        ]),
        (lambda: tiles(GFX942, DType.F16), GFX942, ["v_mfma_f32_16x16x16_f16", "ds_read_b64"]),
        (lambda: tiles(GFX942, BF16), GFX942, ["v_mfma_f32_16x16x16_bf16"]),
        (lambda: tiles(GFX90A, BF16), GFX90A, ["v_mfma_f32_16x16x16bf16_1k"]),
        (lambda: tiles(GFX1100, DType.F16), GFX1100, ["v_wmma_f32_16x16x16_f16", "ds_load_b128"]),
        (lambda: tiles(GFX1201, BF16), GFX1201, [
            "v_wmma_f32_16x16x16_bf16", "ds_load_b128", "s_barrier_signal", "s_barrier_wait",
        ]),
        (lambda: of_case("embedded", GFX942), GFX942, ["global_atomic_smax"]),
        (lambda: of_case("columns", GFX942), GFX942, ["s_barrier", "ds_write"]),
    ],
)  # fmt: skip
def test_nodes_are_the_instructions_they_are_for(
    make: Any, target: Architecture, instructions: list[str]
) -> None:
    text = assembly(verify(make()), target)
    assert [i for i in instructions if i not in text] == []


def test_nothing_is_contracted_that_the_program_did_not() -> None:
    """A product and a sum keep their two roundings; fma is one only where it is a node."""
    b = Builder("p", block=64, warp=64)
    x, y = b.input("x", F32), b.output("y", F32)
    p, q, r = (x[b.thread * 4 + i] for i in range(3))
    y[b.thread] = p * q + r
    for target in TARGETS:
        text = assembly(b.program(), target)
        assert re.search(r"v_mul_f32", text)
        assert not re.search(r"v_(fma|fmac|mad|mac|pk_fma)", text)


def test_copies_are_under_way_while_products_are_made() -> None:
    """In a round of the loop: loads, then products, and the stores of what was loaded last."""
    text = llvm_ir(programs.staged(GFX942), GFX942)
    load, product, store = (
        text.rindex(part)
        for part in ("load <8 x half>, ptr addrspace(1)", "call <4 x float>", "store <8 x half>")
    )
    assert load < product < store
    assert text.rindex("fence") > store  # a barrier ends the round


def test_uniform_positions_are_scalars() -> None:
    """A warp's number is the same in its lanes, so that what depends on it is computed once."""
    b = Builder("p", block=128, warp=64)
    x, y = b.constant("x", F32), b.output("y", F32)
    y[b.thread] = x[b.warp]
    assert "s_load_dword" in assembly(b.program(), GFX942).split("v_readfirstlane")[1]


def test_the_text_of_a_kernel() -> None:
    text = llvm_ir(PROGRAMS["scaled"], GFX942)
    assert text.startswith(
        'target triple = "amdgcn-amd-amdhsa"\ndefine amdgpu_kernel void @scaled('
    )
    assert (
        "ptr addrspace(1) readonly align 16 %p.x, ptr addrspace(1) align 16 %p.y, i32 %k.n" in text
    )
    assert '"amdgpu-flat-work-group-size"="64,64"' in text
    assert "  %v5 = icmp slt i32 %v4, %k.n\n  br i1 %v5, label %b6, label %b7\n" in text
    assert '!"amdhsa_code_object_version", i32 500' in text
    assert llvm_ir(PROGRAMS["scaled"], GFX942) == text


def test_a_swizzled_array_is_accessed_through_its_permutation() -> None:
    """chunk ^ row % 8: bits 7 to 9 of the byte, moved to bits 4 to 6."""
    text = llvm_ir(tiles(GFX942, BF16), GFX942)
    assert len(re.findall(r"(%v\d+) = lshr i32 %v\d+, 3\n  %v\d+ = and i32 \1, 112", text)) >= 4
    assert ", 112\n" not in llvm_ir(PROGRAMS["transpose"], GFX1100)


def test_every_node_is_printed_expanded_or_refused() -> None:
    kinds = {k for k in vars(ir).values() if isinstance(k, type) and issubclass(k, ir.Node)}
    printer = Printer(PROGRAMS["scaled"], GFX942)
    printed = {*printer.many, *printer.single, *printer.effects}
    computed = {
        ir.Const, ir.Position, ir.Binary, ir.Compare, ir.Unary, ir.Call, ir.Fma, ir.Select,
        ir.Convert, ir.Bitcast,
    }  # fmt: skip
    expanded = {ir.Reduce, ir.ReduceScatter, ir.Scan}
    assert kinds - {ir.Node} == printed | computed | expanded | set(REFUSED)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda b: b.tile_fill(TileType("c", 16, 8, F32)), r"gfx1100 has no tile c16x8\.f32"),
        (lambda b: b.fma(b.const(1.0, BF16), 1.0, 1.0), "gfx1100 has no fma of bf16"),
        (lambda b: b.scalar("s", DType.I8), "gfx1100 has no argument of i8"),
        (lambda b: b.barrier("cluster"), r"gfx1100 has no barrier of a cluster \(Barrier\)"),
        (lambda b: b.shared("big", F32, 20000), "80000 bytes of shared memory; a block of gfx1100"),
        (
            lambda b: b.atomic(b.buffer("a", F32, "update"), "max", 0, 1.0),
            "gfx1100 has no atomic max of f32",
        ),
    ],
)
def test_what_the_architecture_lacks_is_refused(make: Any, why: str) -> None:
    b = Builder("p", block=32)
    make(b)
    with pytest.raises(rlx.UnsupportedError, match=f"program p: .*{why}"):
        llvm_ir(b.program(), GFX1100)


@pytest.mark.parametrize("name", HOPPER)
def test_nodes_of_other_gpus_are_refused(name: str) -> None:
    with pytest.raises(rlx.UnsupportedError, match=f"program {name}: gfx942 has no MbarrierInit"):
        llvm_ir(PROGRAMS[name], GFX942)


def test_warps_wider_than_waves_are_refused() -> None:
    program = replace(kernels.softmax(128), warp=64)
    with pytest.raises(rlx.UnsupportedError, match="Reduce in warps of 64, and waves of gfx1100"):
        llvm_ir(program, GFX1100)


def test_tiles_of_other_waves_are_refused() -> None:
    with pytest.raises(rlx.UnsupportedError, match="a tile is held by waves of 64 lanes"):
        llvm_ir(tiles(GFX1201, BF16), GFX942)


def test_architectures_have_names_with_options() -> None:
    assert architecture("gfx90a:sramecc+:xnack-") is GFX90A
    with pytest.raises(rlx.UnsupportedError, match="no code for the architecture gfx803"):
        architecture("gfx803")
