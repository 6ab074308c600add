"""What is printed as MSL computes what programs mean: compiled by clang with a metal_stdlib of our
own and run on the host, with the interpreter's bits as the reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.metal.machine import FAMILIES
from rlx.backends.metal.msl.printer import msl, printable
from rlx.backends.metal.msl.types import literal
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.functions import FUNCTIONS
from rlx.program.interpret.run import launch
from rlx.program.program import Program
from rlx.program.types import TileType
from rlx.program.verify import verify
from tests.backend.gpu import kernels, laws
from tests.backend.metal import emulate, host
from tests.backend.rocm import programs
from tests.backend.rocm.programs import DRAWN, NUMBERS
from tests.backend.rocm.test_emulated import drawn, plain, results

needs_clang = pytest.mark.skipif(host.clang() is None, reason="clang++ is not installed")
Array = np.ndarray[Any, Any]
F32, BF16 = DType.F32, DType.BF16
KNOWN = [d for d in NUMBERS if d is not DType.F64]
COLLECTIVE = [F32, DType.I64, DType.U8]
FAST = [n for n, f in FUNCTIONS.items() if f.fast_error]


@pytest.fixture(scope="module", autouse=True)
def _compiled_together() -> None:
    """clang starts a few times for all kernels, not once for each."""
    if host.clang() is None:
        return
    made = [make(d) for d in KNOWN for make in (programs.scalars, conversions, vectors)]
    made += [programs.collective(32, 64, d) for d in COLLECTIVE]
    made += [programs.fast(name, 64) for name in FAST]
    made += [tiles(d, t) for d in (DType.F16, BF16) for t in (False, True)]
    host.compile_all(msl(p, emulate.APPLE) for p in made)


def same_bits(program: Program, **arguments: Any) -> dict[str, Array]:
    """The results of what is printed, which are those of the interpreter; NaN is NaN."""
    verify(program)
    sizes = {k: v for k, v in arguments.items() if not isinstance(v, np.ndarray)}
    want, got = (
        {k: v.reshape(-1).copy() for k, v in arguments.items() if isinstance(v, np.ndarray)}
        for _ in range(2)
    )
    with np.errstate(all="ignore"):
        launch(printable(program), want, sizes)
    emulate.launch(program, got, sizes)
    for name, expected in want.items():
        np.testing.assert_array_equal(plain(got[name]), plain(expected), err_msg=name)
    return got


@needs_clang
@pytest.mark.parametrize("dtype", KNOWN)
def test_every_op_of_every_dtype(dtype: DType) -> None:
    x, y = drawn(dtype, 1), drawn(dtype, 2, is_nonzero=True)
    z, t = results(dtype)
    same_bits(programs.scalars(dtype), x=x, y=y, z=z, t=t)


@needs_clang
@pytest.mark.parametrize("dtype", COLLECTIVE)
def test_collectives(dtype: DType) -> None:
    x = (np.random.default_rng(7).standard_normal(64) * 9).astype(dtype.numpy)
    program = programs.collective(32, 64, dtype)
    same_bits(program, x=x, y=np.zeros(64 * programs.COLLECTIVES, dtype.numpy))


@needs_clang
def test_positions() -> None:
    same_bits(programs.positions(32), y=np.zeros(9 * 12 * 2 * 32, np.int32))


@needs_clang
def test_softmax() -> None:
    x = np.random.default_rng(1).standard_normal((3, 100)).astype(np.float32)
    same_bits(kernels.softmax(64), x=x, y=np.zeros_like(x), m=3, n=100)


@needs_clang
def test_a_scan_carries_from_chunk_to_chunk() -> None:
    x = np.random.default_rng(1).integers(-99, 99, (2, 100)).astype(np.int32)
    same_bits(kernels.scan(64), x=x, y=np.zeros_like(x), m=2, n=100)


@needs_clang
def test_gemm() -> None:
    rng = np.random.default_rng(1)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((11, 19), (19, 13)))
    same_bits(kernels.gemm(19, 13), x=x, w=w, y=np.zeros((11, 13), np.float32), m=11)


def conversions(given: DType) -> Program:
    """x in every dtype."""
    b = Builder(f"from_{given}", block=32)
    x, outputs = b.input("x", given), {d: b.output(f"to_{d}", d) for d in KNOWN}
    value = x[b.thread]
    for dtype, y in outputs.items():
        y[b.thread] = value.to(dtype)
    return b.program()


@needs_clang
@pytest.mark.parametrize("given", KNOWN)
def test_conversions(given: DType) -> None:
    """Of numbers that every dtype holds as integers, or rounds; what does not fit gives any."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 100, 32).astype(given.numpy)
    if given.is_float:
        x = (x.astype(np.float64) + rng.integers(0, 4, 32) / 4).astype(given.numpy)
    same_bits(conversions(given), x=x, **{f"to_{d}": np.zeros(32, d.numpy) for d in KNOWN})


@needs_clang
def test_floats_are_rounded_to_nearest_even() -> None:
    """Infinities, NaN, subnormal numbers and ties."""
    ties = [1 + 2.0**-8, 1 + 3 * 2.0**-8, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 2.0**-25, 3 * 2.0**-25]
    x = drawn(F32, 5)
    x[: len(ties)] = ties
    floats = [DType.F16, BF16, F32]
    b = Builder("rounded", block=32)
    given, outputs = b.input("x", F32), {d: b.output(f"to_{d}", d) for d in floats}
    for dtype, y in outputs.items():
        y[b.thread] = given[b.thread].to(dtype)
    same_bits(b.program(), x=x, **{f"to_{d}": np.zeros(32, d.numpy) for d in floats})


def vectors(dtype: DType) -> Program:
    """x, in reverse order and masked, by vectors of 16 bytes."""
    width = 16 // dtype.itemsize
    b = Builder("vectors", block=32)
    x, y = b.input("x", dtype), b.output("y", dtype)
    room = b.shared("room", dtype, 32 * width)
    at = b.thread * width
    room.store(at, x.load(at, width, b.thread < 30))
    b.barrier()
    other = (31 - b.thread) * width
    y.store(at, room.load(other, width, b.thread > 2), b.thread < 31)
    return b.program()


@needs_clang
@pytest.mark.parametrize("dtype", KNOWN)
def test_vectors_in_buffers_and_threadgroup_memory(dtype: DType) -> None:
    """Of narrow elements they are parts of words."""
    width = 16 // dtype.itemsize
    given = np.tile(drawn(dtype, 3), width)
    same_bits(vectors(dtype), x=given, y=np.ones(32 * width, dtype.numpy))


@needs_clang
@pytest.mark.parametrize("dtype", [DType.I32, DType.U32])
def test_atomics(dtype: DType) -> None:
    b = Builder("atomics", block=64)
    x, y = b.input("x", dtype), b.buffer("y", dtype, "update")
    for i, op in enumerate(("add", "min", "max", "or", "and")):
        b.atomic(y, op, i, x[b.thread], b.thread < 50)
    same_bits(b.program(), x=np.tile(drawn(dtype, 3), 2), y=np.full(5, 7, dtype.numpy))


def tiles(dtype: DType, is_transposed: bool) -> Program:
    """y [32, 16] = x [32, 64] w, which is [16, 64]ᵀ or [64, 16]; a loop carries the sums."""
    b = Builder("tiles", block=64)
    x, w, y = b.input("x", dtype), b.input("w", dtype), b.output("y", F32)
    left, right = (b.shared(n, dtype, 512, is_swizzled=True) for n in ("left", "right"))
    sums = b.shared("sums", F32, 2 * 256)
    a, bt, c = (
        TileType("a", 16, 16, dtype),
        TileType("b", 16, 16, dtype),
        TileType("c", 16, 16, F32),
    )
    total = b.variable(b.tile_fill(c))
    with b.loop(0, 64, 16, carry=[total]) as at:
        for i in range(4):
            row, column = b.thread // 2, b.thread % 2 * 8 + i * 2
            left.store(row * 16 + column, x.load(row * 64 + at + column, 2))
            column = b.thread % 16
            inner = b.thread // 16 + i * 4
            place = column * 16 + inner if is_transposed else inner * 16 + column
            source = column * 64 + at + inner if is_transposed else (at + inner) * 16 + column
            right[place] = w[source]
        b.barrier()
        one = b.tile_load(a, left, b.warp * 256, 16)
        two = b.tile_load(bt, right, 0, 16, is_transposed=is_transposed)
        total.set(b.tile_mul(one, two, total))
        b.barrier()
    b.tile_store(total, sums, b.warp * 256, 16)
    b.barrier()
    for i in range(8):
        y[b.thread + i * 64] = sums[b.thread + i * 64]
    return b.program()


@needs_clang
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("dtype", [DType.F16, BF16])
def test_tiles(dtype: DType, is_transposed: bool) -> None:
    """Integers, whose sums are exact in any order."""
    rng = np.random.default_rng(5)
    given = [rng.integers(-8, 9, n).astype(dtype.numpy) for n in (32 * 64, 16 * 64)]
    program = tiles(dtype, is_transposed)
    got = same_bits(program, x=given[0], w=given[1], y=np.zeros(512, np.float32))["y"]
    wide = [g.astype(np.float32) for g in given]
    matrix = wide[1].reshape(16, 64).T if is_transposed else wide[1].reshape(64, 16)
    np.testing.assert_array_equal(got.reshape(32, 16), wide[0].reshape(32, 64) @ matrix)


@needs_clang
@pytest.mark.parametrize("name", FAST)
def test_fast_functions(name: str) -> None:
    """The shim's are rounded correctly, so what is left is what the printer adds."""
    x = np.random.default_rng(4).uniform(0.1, 30, 64).astype(np.float32)
    y = np.zeros_like(x)
    emulate.launch(programs.fast(name, len(x)), {"x": x, "y": y})
    exact = {"rsqrt": lambda v: 1 / np.sqrt(v), "reciprocal": lambda v: 1 / v}
    want = exact.get(name, getattr(np, name, None))(x.astype(np.float64))
    np.testing.assert_allclose(y, want, rtol=2.0**-23, atol=0)


# -- text -----------------------------------------------------------------------------------------


def test_literals() -> None:
    found = [
        literal(-(2**31), DType.I32), literal(-5, DType.I32), literal(7, DType.U64),
        literal(-(2**63), DType.I64), literal(True, DType.BOOL), literal(3, DType.U8),
        literal(1.5, F32), literal(-0.0, F32), literal(float("inf"), F32), literal(0.1, BF16),
        literal(float("nan"), DType.F16), literal(65504.0, DType.F16), literal(1e-45, F32),
    ]  # fmt: skip
    assert found == [
        "as_type<int>(0x80000000u)", "(-5)", "7ul", "as_type<long>(0x8000000000000000ul)", "true",
        "uchar(3)", "1.5e+00f", "(-0.0f)", "as_type<float>(0x7f800000u)", "1.00097656e-01f",
        "as_type<half>(ushort(0x7e00))", "half(65504.0f)", "1.0e-45f",
    ]  # fmt: skip


def refused(b: Builder, family: str = "apple9") -> str:
    with pytest.raises(rlx.UnsupportedError) as error:
        msl(b.program(), FAMILIES[family])
    return str(error.value)


def test_what_metal_does_not_have_is_refused() -> None:
    b = Builder("doubles", block=32)
    b.input("x", DType.F64)
    assert refused(b) == "program doubles: Metal has no buffer of f64; use f32."
    b = Builder("many", block=32)
    for i in range(513):
        b.input(f"x{i}", F32)
    assert refused(b).startswith("program many: 513 buffers; a kernel of Metal has at most 512. ")
    b = Builder("large", block=32)
    b.shared("room", F32, 9000)
    assert "36000 bytes of threadgroup memory; a threadgroup has 32768" in refused(b)
    b = Builder("waves", block=64, warp=64)
    b.output("y", F32)[0] = b.warp_reduce("add", b.const(1.0, F32))
    assert "simdgroups of apple9 have 32 threads" in refused(b)
    b = Builder("tiled", block=32)
    b.tile_fill(TileType("c", 16, 16, F32))
    assert "mac2 multiplies no matrices" in refused(b, "mac2")


@needs_clang
@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("<threadgroup half4*>", "<device half4*>", r"to 'device half4 \*' is not allowed"),
        ("<device const half4*>", "<device half4*>", "casts away qualifiers"),
        ("device half* p_y", "device const half* p_y", "read-only"),
        ("const half4 v", "const half v", "no (viable|matching) conversion|no suitable"),
    ],
)
def test_the_checks_find_faults(right: str, wrong: str, said: str) -> None:
    b = Builder("checked", block=32)
    x, y, room = b.input("x", DType.F16), b.output("y", DType.F16), b.shared("room", DType.F16, 128)
    room.store(b.thread * 4, x.load(b.thread * 4, 4))
    b.barrier()
    y[b.thread] = room.load(b.thread * 4, 4)[1]
    source = msl(b.program(), emulate.APPLE)
    assert right in source
    with pytest.raises(host.ShimError, match=said):
        host.compiled(source.replace(right, wrong))


# -- laws -----------------------------------------------------------------------------------------


@needs_clang
def test_laws_of_a_sample() -> None:
    """As text on the host; all ops by `python -m tests.backend.metal.all`."""
    machine = replace(emulate.APPLE.machine, block=64, max_block=64, warp_row=64, staged_vectors=2)
    jobs = [(made, kernel) for op in DRAWN[5::24] for made in laws.drawn(op, 0, 1)
            if (kernel := laws.kernel_of(made)) is not None
            and not any(s.dtype in (DType.F64, DType.C128) for s in made.node.shapes)]  # fmt: skip
    every = [(made, laws.program_of(kernel, machine)) for made, kernel in jobs]
    host.compile_all(msl(program, emulate.APPLE) for _, program in every)
    found = [line for made, program in every for line in emulate.wrong(made, program)]
    assert len(every) > 3
    assert not found, "\n".join(found)
