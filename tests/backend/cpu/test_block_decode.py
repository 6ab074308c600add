"""Vector code of quantised blocks against the NumPy meaning of the same expressions, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.backends.cpu.codegen.lowp.block_decode import unpack
from rlx.backends.cpu.codegen.lowp.decode_plan import decode_plan
from rlx.backends.cpu.isa import AVX2, AVX512, NEON, SSE2, Isa, host
from rlx.backends.cpu.llvm.compile import Native, assembled
from rlx.backends.cpu.llvm.function import Function, module
from rlx.backends.cpu.llvm.function_writer import Writer
from rlx.core.dtype import DType
from rlx.ops.quant.block_arrays import decoded
from rlx.ops.quant.block_expr import (
    POSITION,
    BlockFormat,
    Expr,
    Table,
    bit,
    bitcast,
    cast,
    real,
    row_of,
    signed,
    u8,
    u16,
    u32,
    where,
)
from rlx.ops.quant.block_scaled import NUMBERS
from rlx.ops.quant.gguf_formats import SCHEMES
from tests.backend.cpu.guarded import guarded

Array = np.ndarray[Any, Any]
ON = pytest.mark.parametrize("isa", [host(), AVX2, SSE2], ids=lambda i: i.name)
F16_CORNERS = (0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00, 0x0001, 0x8000, 0x3C00)
"""The greatest, infinity, NaN, the least subnormal, -0, 1."""
i = POSITION
WIDE = Table("test.wide", DType.I8, 4, lambda: np.arange(-128, 128).reshape(64, 4))
LONG = Table("test.long", DType.U16, 1, lambda: np.arange(256) * 257 % 65521)


def _mixed() -> Expr:
    """Different ops in the two halves of a block."""
    low, high = u8(i % 8) & 63, u8(i) >> i % 7 | u8(i) << 3
    return real(where(i < 9, low, high))


MADE_UP: dict[str, BlockFormat] = {
    "far": BlockFormat(16, 64, real(u8(i * 13 % 64)) - real(u8(63 - i * 3))),
    "words": BlockFormat(16, 48, real(u16(i % 4 * 8)) * real(u32(i // 4 * 4 + 8))),
    "mixed": BlockFormat(16, 16, _mixed()),
    "rows": BlockFormat(16, 8, real(row_of(WIDE, u8(i // 4) & 63)) * 0.5),
    "table": BlockFormat(16, 16, real(row_of(LONG, u8(i))) + real(row_of(LONG, u8(i // 8)))),
    "amounts": BlockFormat(16, 17, real(cast(u8(i), DType.U32) << cast(u8(16), DType.U32))),
    "varying": BlockFormat(16, 16, real(u8(i) >> (u8(15 - i) & 15))),
    "overflow": BlockFormat(16, 16, real((u8(i) << i % 8) >> 1)),
    "signs": BlockFormat(16, 2, where(bit(u8(i // 8), 7 - i % 8), -1.5, real(u8(0)) * 0.25)),
    "signed": BlockFormat(16, 16, real((signed(u8(i)) >> i % 4) - signed(u8(0)))),
    "compared": BlockFormat(
        16, 16, where(signed(u8(i)) < signed(u8(3)), real(u8(i)), -real(u8(1)))
    ),
    "divided": BlockFormat(16, 17, real(u8(i) // (u8(16) | 1)) + real(u8(16) % (u8(0) | 1))),
    "float": BlockFormat(4, 16, bitcast(u32(i * 4), DType.F32) * -0.0),
    "pairs": BlockFormat(2, 3, real(u8(0) >> i * 4 & 15) * real(u16(1))),
    "three": BlockFormat(3, 3, real(u8(2 - i))),
    "five": BlockFormat(5, 7, real(u8(i)) - real(u16(5))),
}
"""What no published format does."""
FORMATS = {**SCHEMES, **NUMBERS, **MADE_UP}


def rows_of(block_format: BlockFormat) -> Array:
    """Every byte value at every offset, every f16 a corner one, and any bytes."""
    rng, size = np.random.default_rng(5), block_format.block_bytes
    same = np.repeat(np.arange(256, dtype=np.uint8)[:, None], size, axis=1)
    halves = [np.resize(np.array([c], "<u2").view(np.uint8), size) for c in F16_CORNERS]
    shifted = [np.roll(h, 1) for h in halves]
    any_ = rng.integers(0, 256, (101, size), np.uint8)
    any_[50:] &= 0x3F  # finite scales
    return np.concatenate([same, halves, shifted, any_])


def kernel(name: str, block_format: BlockFormat, isa: Isa) -> Function:
    w = Writer(isa)
    function, count = unpack(w.code, name, block_format), w.argument(0)
    w.code.do(f"call void @{function}(ptr {w.buffer(0)}, ptr {w.buffer(1)}, i64 {count})")
    return w.function(name)


def assert_same(got: Array, want: Array, what: str) -> None:
    """To the bit, but for the payload of NaN."""
    is_nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(got), is_nan, what)
    np.testing.assert_array_equal(got.view("u4")[~is_nan], want.view("u4")[~is_nan], what)


@ON
def test_vectors_are_the_references(isa: Isa) -> None:
    functions = [kernel(n, f, isa) for n, f in FORMATS.items()]
    native = Native(module(functions, isa), isa)
    for name, block_format in FORMATS.items():
        rows = rows_of(block_format)
        want = decoded(block_format, rows).astype(np.float32)
        for count in (0, 1, len(rows)):
            given = guarded(rows[:count].reshape(-1).copy())
            made = guarded(np.zeros(count * block_format.weights, np.float32).view(np.uint8))
            pointers = [given.ctypes.data, made.ctypes.data]
            assert native.call(name, pointers, [count], 1) == 0
            got = made.view(np.float32).reshape(count, block_format.weights)
            assert_same(got, want[:count], f"{name} on {isa.name}")


def test_code_for_neon_assembles() -> None:
    functions = [kernel(n, f, NEON) for n, f in MADE_UP.items()]
    assert "ret" in assembled(module(functions, NEON), NEON)


@pytest.mark.parametrize("name", SCHEMES)
def test_published_formats_take_vector_instructions(name: str) -> None:
    """Codebook vectors have eight weights, or four; all else fills a register."""
    block_format = SCHEMES[name]
    widest = 4 if name.startswith("iq3") else 8 if name[:3] in ("iq1", "iq2") else 16
    count = max(16, block_format.weights)
    assert decode_plan(block_format, count, AVX512.lanes(DType.F32)).lanes == widest


def test_scales_of_a_super_block_are_computed_together() -> None:
    """Eight scales and eight offsets of q4_k are one packet of sixteen lanes."""
    plan = decode_plan(SCHEMES["q4_k"], 256, 16)
    packets = {packet for packet, _ in plan.shared.values()}
    assert len(plan.shared) == 16
    assert len(packets) == 1


def test_four_bits_are_looked_up_in_a_register() -> None:
    for name, tables in (("q4_0", 1), ("q4_k", 8), ("iq4_xs", 8), ("tq2_0", 1)):
        plan = decode_plan(SCHEMES[name], SCHEMES[name].weights, 16)
        assert len(plan.permutations) == len(plan.packets), name
        assert len({p.values for p in plan.permutations.values()}) == tables, name


def test_functions_of_few_bits_that_are_used_once_are_computed() -> None:
    assert not decode_plan(SCHEMES["q2_k"], 256, 16).permutations


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_runs_of_block_scaled_numbers_fill_vectors(name: str, lanes: int) -> None:
    """The product takes as many weights as it has lanes."""
    assert decode_plan(NUMBERS[name], lanes, lanes).lanes == lanes
