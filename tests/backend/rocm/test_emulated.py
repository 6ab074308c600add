"""What is printed for AMD GPUs computes what programs mean: run on the host, with the interpreter's
bits as the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlx.backends.rocm.amdgcn.arithmetic import NATIVE_FAST
from rlx.backends.rocm.amdgcn.printer import printable
from rlx.backends.rocm.architecture import ARCHITECTURES, Architecture
from rlx.core.dtype import DType
from rlx.program import nodes as ir
from rlx.program.functions import FUNCTIONS
from rlx.program.interpret.run import launch
from rlx.program.program import Program
from rlx.program.verify import verify
from tests.backend.gpu import kernels, laws
from tests.backend.rocm import emulate, programs
from tests.backend.rocm.programs import DRAWN, FLOATS, INTEGERS, NUMBERS, small

Array = np.ndarray[Any, Any]
GFX90A, GFX942, GFX1100, GFX1201 = ARCHITECTURES.values()
F32, BF16 = DType.F32, DType.BF16
CORNERS = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 1.5, -2.5, 1e-40, 3e38)


def same_bits(program: Program, target: Architecture, **arguments: Any) -> dict[str, Array]:
    """The results of what is printed, which are those of the interpreter; NaN is NaN."""
    verify(program)
    sizes = {k: v for k, v in arguments.items() if not isinstance(v, np.ndarray)}
    want, got = (
        {k: v.reshape(-1).copy() for k, v in arguments.items() if isinstance(v, np.ndarray)}
        for _ in range(2)
    )
    launch(printable(program), want, sizes)
    emulate.launch(program, target, got, sizes)
    for name, expected in want.items():
        np.testing.assert_array_equal(plain(got[name]), plain(expected), err_msg=name)
    return got


def plain(array: Array) -> Array:
    """Half floats as f32, which NumPy compares; every value is kept."""
    return (
        array.astype(np.float32) if array.dtype.itemsize == 2 and array.dtype.kind != "i" else array
    )


def drawn(dtype: DType, seed: int, *, is_nonzero: bool = False) -> Array:
    rng = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, 32).astype(bool)
    if dtype.is_float:
        values = np.concatenate([rng.permutation(CORNERS), rng.normal(size=20) * 40])
        with np.errstate(over="ignore"):
            return values.astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    made = rng.integers(info.min, info.max, 32, dtype=dtype.numpy, endpoint=True)
    made[:4] = info.min, info.max, 0, 1
    made[4:16] //= 1 << (dtype.itemsize * 4)
    return np.where(made == 0, np.asarray(3, dtype.numpy), made) if is_nonzero else made


def results(dtype: DType) -> tuple[Array, Array]:
    """Room for what `scalars` stores: all but six rows are of the dtype."""
    rows = sum(isinstance(n, ir.Store) for n in programs.scalars(dtype).nodes) - 6
    return np.zeros(32 * rows, dtype.numpy), np.zeros(32 * 6, bool)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_every_op_of_every_dtype(dtype: DType) -> None:
    x, y = drawn(dtype, 1), drawn(dtype, 2, is_nonzero=True)
    z, t = results(dtype)
    with np.errstate(all="ignore"):
        same_bits(programs.scalars(dtype), GFX942, x=x, y=y, z=z, t=t)


@pytest.mark.parametrize("given", NUMBERS)
def test_conversions(given: DType) -> None:
    """Of numbers that every dtype holds as integers, or rounds; what does not fit gives any."""
    rng = np.random.default_rng(3)
    x = rng.integers(0, 100, 32).astype(given.numpy)
    if given.is_float:
        x = (x.astype(np.float64) + rng.integers(0, 4, 32) / 4).astype(given.numpy)
    outputs = {f"to_{d}": np.zeros(32, d.numpy) for d in NUMBERS}
    same_bits(programs.conversions(given), GFX942, x=x, **outputs)


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_rounded_to_nearest_even(dtype: DType) -> None:
    x = drawn(dtype, 5)
    outputs = {f"to_{d}": np.zeros(32, d.numpy) for d in NUMBERS}
    program = programs.conversions(dtype)
    want, got = ({"x": x.copy(), **{k: v.copy() for k, v in outputs.items()}} for _ in range(2))
    with np.errstate(all="ignore"):
        launch(program, want)
    emulate.launch(program, GFX942, got)
    for to in (d for d in FLOATS if d is not dtype):
        np.testing.assert_array_equal(plain(got[f"to_{to}"]), plain(want[f"to_{to}"]))


@pytest.mark.parametrize("dtype", [d for d in INTEGERS if d.itemsize >= 4])
def test_what_has_no_result_is_some_number(dtype: DType) -> None:
    """Quotients of 0 and of the least number, and shifts by the width, end."""
    x, y = drawn(dtype, 1), drawn(dtype, 2)
    z, t = results(dtype)
    x[:2], y[:2] = np.iinfo(dtype.numpy).min, (-1 if dtype.is_signed else 0)
    emulate.launch(programs.scalars(dtype), GFX942, {"x": x, "y": y, "z": z, "t": t})
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(z[:32], x + y)


# -- threads together -----------------------------------------------------------------------------


@pytest.mark.parametrize("target", [GFX942, GFX1100])
@pytest.mark.parametrize("dtype", [F32, DType.I64, DType.U8])
def test_collectives(target: Architecture, dtype: DType) -> None:
    """Every permutation of lanes: operands' (DPP), swizzles, and those of whole waves."""
    block = 2 * target.wave
    x = (np.random.default_rng(7).standard_normal(block) * 9).astype(dtype.numpy)
    program = programs.collective(target.wave, block, dtype)
    same_bits(program, target, x=x, y=np.zeros(block * programs.COLLECTIVES, dtype.numpy))


def test_halves_and_truth_values_are_shuffled() -> None:
    for dtype in (DType.F16, BF16, DType.BOOL):
        b = programs.Builder("shuffled", block=32)
        x, y = b.input("x", dtype), b.output("y", dtype)
        y[b.thread] = b.shuffle(x[b.thread], 6)
        same_bits(b.program(), GFX1201, x=drawn(dtype, 3), y=np.zeros(32, dtype.numpy))


def test_warps_of_32_run_in_waves_of_64() -> None:
    x = np.random.default_rng(1).standard_normal((1, 100)).astype(np.float32)
    same_bits(kernels.softmax(64), GFX942, x=x, y=np.zeros_like(x), m=1, n=100)


@pytest.mark.parametrize("target", [GFX942, GFX1100])
def test_positions(target: Architecture) -> None:
    y = np.zeros(9 * 12 * 2 * target.wave, np.int32)
    same_bits(programs.positions(target.wave), target, y=y)


def test_a_scan_carries_from_chunk_to_chunk() -> None:
    x = np.random.default_rng(1).integers(-99, 99, (1, 100)).astype(np.int32)
    same_bits(kernels.scan(64), GFX1100, x=x, y=np.zeros_like(x), m=1, n=100)


# -- matrix tiles ---------------------------------------------------------------------------------

FORMS = [(False, True, False), (True, True, True), (True, False, False), (False, False, True)]


@pytest.mark.parametrize("target", [GFX90A, GFX1100, GFX1201], ids=lambda a: a.name)
@pytest.mark.parametrize("form", FORMS)
def test_tiles(target: Architecture, form: tuple[bool, bool, bool]) -> None:
    """Integers, whose sums are exact in any order: mfma and both wmma, by their own layouts."""
    swizzled, transposed, packed = form
    dtype = BF16 if packed else DType.F16
    rng = np.random.default_rng(5)
    x, w = (rng.integers(-8, 9, n).astype(dtype.numpy) for n in (32 * 64, 16 * 64))
    program = programs.tile_product(
        target, dtype, is_swizzled=swizzled, is_transposed=transposed, is_packed=packed
    )
    got = same_bits(program, target, x=x, w=w, y=np.zeros(512, np.float32))["y"]
    right = w.astype(np.float32).reshape((16, 64) if transposed else (64, 16))
    want = x.astype(np.float32).reshape(32, 64) @ (right.T if transposed else right) + 1
    np.testing.assert_array_equal(got, want.reshape(-1))


@pytest.mark.parametrize("target", [GFX942, GFX1100], ids=lambda a: a.name)
def test_copies_in_stages(target: Architecture) -> None:
    """Copies that begin in a branch are finished behind it, and those of a round with it."""
    rng = np.random.default_rng(5)
    x, w = (rng.integers(-8, 9, (16, 80)).astype(np.float16) for _ in range(2))
    y = np.zeros(256, np.float32)
    got = same_bits(programs.staged(target), target, x=x, w=w, y=y)["y"]
    want = x.astype(np.float32) @ w.astype(np.float32).T
    np.testing.assert_array_equal(got.reshape(16, 16), want)


# -- functions ------------------------------------------------------------------------------------

EXACT = {"exp": np.exp, "exp2": np.exp2, "log": np.log, "sqrt": np.sqrt, "tanh": np.tanh,
         "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x}  # fmt: skip


@pytest.mark.parametrize("name", [n for n, f in FUNCTIONS.items() if f.fast_error])
def test_fast_functions_keep_their_error(name: str) -> None:
    """The special function unit is off by one unit of f32; here it is rounded correctly."""
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.uniform(-30, 30, 200), 10.0 ** rng.uniform(-42, 3, 200)])
    x = x.astype(np.float32)
    x = np.abs(x) if name in ("log", "sqrt", "rsqrt") else x
    y = np.zeros_like(x)
    emulate.launch(programs.fast(name, len(x)), GFX942, {"x": x, "y": y})
    with np.errstate(all="ignore"):
        want = EXACT[name](x.astype(np.float64))
        error = np.abs(y - want) / np.abs(want)
    allowed = FUNCTIONS[name].fast_error
    assert allowed is not None
    if name == "log":  # near 1 the logarithm is small, and log₂ has an absolute error
        error = np.abs(y - want) / np.maximum(np.abs(want), 1)
    is_normal = (np.abs(want) < 3e38) & (np.abs(want) > 2.0**-126)
    assert (error <= allowed)[is_normal].all(), x[is_normal][np.argmax(error[is_normal])]


def test_functions_that_instructions_give() -> None:
    assert {n for n, f in FUNCTIONS.items() if f.fast_error} - NATIVE_FAST == {"tanh"}


# -- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [GFX942, GFX1201], ids=lambda a: a.name)
def test_laws_of_a_sample(target: Architecture) -> None:
    """As text and in the interpreter; all ops by `python -m tests.backend.rocm.all emulate`."""
    found: list[str] = []
    for op in DRAWN[0 if target is GFX942 else 9 :: 18]:
        for made in laws.drawn(op, 0, 1):
            kernel = laws.kernel_of(made)
            if kernel is not None:
                program = laws.program_of(kernel, small(target))
                found += emulate.wrong(made, program, target) + laws.wrong(made, program)
    assert not found, "\n".join(found)
