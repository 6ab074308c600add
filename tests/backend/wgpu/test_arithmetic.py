"""Every operation of every dtype in WGSL on software adapters, against the interpreter.

Integers, truth values and copies have the same bits, as have sums, products and quotients of f32,
which both adapters round to nearest. Where a denormal number goes in or comes out, an adapter may
have 0 instead, as WGSL allows (SwiftShader does); of two zeros a minimum may be either; and NaN is
any NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rlx.backends.wgpu.wgsl.module import Target
from rlx.backends.wgpu.wgsl.printer import module_of
from rlx.core.dtype import DType
from rlx.program.builder import Builder
from rlx.program.functions import FUNCTIONS
from rlx.program.interpret.run import launch
from rlx.program.program import Program
from rlx.program.values import Var
from rlx.program.verify import verify
from tests.backend.gpu.test_expand import arguments
from tests.backend.wgpu.adapter import Adapter, Array, Dispatch

BOOL, F16, BF16, F32 = DType.BOOL, DType.F16, DType.BF16, DType.F32
INTEGERS = (
    DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32, DType.U64,
)  # fmt: skip
ALL = (*INTEGERS, BOOL, F16, BF16, F32)
BLOCK = 64
TINY = 2.0**-126


def numbers(dtype: DType) -> Array:
    """Corners, and random numbers of all sizes."""
    rng = np.random.default_rng(5)
    if dtype is BOOL:
        return np.array([False, True])
    if dtype.is_float:
        corners = [0.0, -0.0, 0.5, 1.0, -1.5, 2.5, np.nan, np.inf, -np.inf, 1e-40, 65504.0, 3e38]
        with np.errstate(over="ignore"):
            return np.concatenate([corners, rng.normal(size=12) * 100]).astype(dtype.numpy)
    bits = dtype.itemsize * 8
    ends = [0, 1, 2, 3, 7, 2 ** (bits - 1), 2 ** (bits - 1) - 1, 2**bits - 1, 2**bits - 2]
    halves = [2 ** (bits // 2), 2 ** (bits // 2) - 1, 2 ** (bits // 2) + 1]
    some = [int(rng.integers(0, 2**32)) << 32 | int(rng.integers(0, 2**32)) for _ in range(6)]
    small = [s >> (64 - bits // 2) for s in some]
    made = [v % 2**bits for v in (*ends, *halves, *some, *small)]
    return np.array(made, DType(f"u{bits}").numpy).view(dtype.numpy)


def pairs(dtype: DType) -> tuple[Array, Array]:
    found = list(itertools.product(numbers(dtype), repeat=2))
    return tuple(np.array(side, dtype.numpy) for side in zip(*found))  # pyright: ignore[reportReturnType]


Made = Callable[[Var, Var], Var]


def program(inputs: Sequence[DType], made: Sequence[Made], result: DType, count: int) -> Program:
    """Each function of two inputs, one behind the other in the output."""
    b = Builder("made", block=BLOCK, grid=(-(-count // BLOCK),), warp=1)
    refs = [b.input(f"x{i}", d) for i, d in enumerate(inputs)]
    y = b.output("y", result)
    at = b.block_index() * BLOCK + b.thread
    with b.when(at < count):
        values = [r[at] for r in refs]
        for i, function in enumerate(made):
            y[at + i * count] = function(values[0], values[-1])
    return verify(b.program())


def both(
    adapter: Adapter,
    inputs: Sequence[Array],
    made: Sequence[Made],
    result: DType,
    target: Target | None = None,
) -> tuple[Array, Array]:
    """What the adapter and the interpreter give, a row a function."""
    count = len(inputs[0])
    kernel = program([DType.of(x.dtype) for x in inputs], made, result, count)
    y = np.zeros(count * len(made), result.numpy)
    work = Dispatch(module_of(kernel, target), (*inputs, y), (), (-(-count // BLOCK), 1, 1))
    ((*_, got),) = adapter.run(work)
    buffers = {f"x{i}": x.copy() for i, x in enumerate(inputs)} | {"y": y}
    launch(kernel, buffers)
    return got.reshape(len(made), count), buffers["y"].reshape(len(made), count)


def is_same(got: Array, wanted: Array) -> Array:
    """Equal, or both NaN, or both so small that 0 may stand for them."""
    if DType.of(got.dtype) in (F16, BF16, F32):
        got, wanted = got.astype(np.float32), wanted.astype(np.float32)
        is_small = (np.abs(got) < TINY) & (np.abs(wanted) <= TINY)
        return (got == wanted) | (np.isnan(got) & np.isnan(wanted)) | is_small
    return got == wanted


def check(
    adapter: Adapter,
    inputs: Sequence[Array],
    named: dict[str, Made],
    result: DType,
    target: Target | None = None,
) -> None:
    made = list(named.values())
    got, wanted = both(adapter, inputs, made, result, target)
    is_denormal = np.zeros(len(inputs[0]), bool)
    for x in inputs:
        if DType.of(x.dtype).is_float:
            size = np.abs(x.astype(np.float32))
            is_denormal |= (size > 0) & (size < TINY)
    for name, row, want in zip(named, got, wanted, strict=True):
        wrong = np.flatnonzero(~is_same(row, want) & ~is_denormal)
        first = [(*(x[i] for x in inputs), row[i], want[i]) for i in wrong[:4]]
        assert not len(wrong), f"{name}: {first}"


def binaries(*names: str) -> dict[str, Made]:
    return {n: lambda x, y, n=n: x.builder.binary(n, x, y) for n in names}  # pyright: ignore[reportArgumentType]


def compares() -> dict[str, Made]:
    names = ("eq", "ne", "lt", "le", "gt", "ge")
    return {n: lambda x, y, n=n: x.builder.compare(n, x, y) for n in names}  # pyright: ignore[reportArgumentType]


def unaries(*names: str) -> dict[str, Made]:
    return {n: lambda x, y, n=n: x.builder.unary(n, x) for n in names}  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(adapter: Adapter, dtype: DType) -> None:
    a, b = pairs(dtype)
    named = binaries("add", "sub", "mul", "min", "max", "and", "or", "xor")
    named |= unaries("neg", "not", "abs")
    named["select"] = lambda x, y: x.where(x < y, y)
    check(adapter, [a, b], named, dtype)
    is_defined = b != 0
    if dtype.is_signed:
        is_defined &= ~((b == -1) & (a == np.iinfo(dtype.numpy).min))
    check(adapter, [a[is_defined], b[is_defined]], binaries("div", "rem"), dtype)
    bits = dtype.itemsize * 8
    x, n = (v.reshape(-1) for v in np.meshgrid(numbers(dtype), np.arange(bits)))
    check(adapter, [x, n.astype(dtype.numpy)], binaries("shl", "shr"), dtype)


@pytest.mark.parametrize("dtype", ALL)
def test_compares(adapter: Adapter, dtype: DType) -> None:
    check(adapter, pairs(dtype), compares(), BOOL)


def test_truth_values(adapter: Adapter) -> None:
    named = binaries("and", "or", "xor", "min", "max") | unaries("not")
    check(adapter, pairs(BOOL), named, BOOL)


def test_floats(adapter: Adapter) -> None:
    named = binaries("add", "sub", "mul", "div", "min", "max")
    named |= unaries("neg", "abs", "floor", "ceil", "trunc", "round")
    named["relu"] = lambda x, y: x.max(0.0)
    named["least"] = lambda x, y: x.builder.const(1.5, F32).min(y)
    named["nan"] = lambda x, y: x.where(x.ne(x), y)
    named["rounded"] = lambda x, y: (x + y) - x
    named["zero"] = lambda x, y: x - x
    named["constants"] = lambda x, y: (x + 12582912.0) - 12582912.0
    check(adapter, pairs(F32), named, F32)


def test_constants_that_wgsl_has_none_of(adapter: Adapter) -> None:
    values = (np.nan, np.inf, -np.inf, -0.0, 1e-45, -3.4028234663852886e38, 1.17549435e-38)
    named: dict[str, Made] = {str(v): lambda x, y, v=v: x.builder.const(v, F32) for v in values}
    got, wanted = both(adapter, [np.zeros(1, np.float32)], list(named.values()), F32)
    np.testing.assert_array_equal(got.view(np.uint32) & 0xFFFFFFFF, wanted.view(np.uint32))


@pytest.mark.parametrize("given", ALL)
def test_conversions(adapter: Adapter, given: DType) -> None:
    """Floats to integers where the integer holds them."""
    for to in ALL:
        x = numbers(given)
        if given.is_float and to.is_integer:
            wide = np.trunc(x.astype(np.float64))
            info = np.iinfo(to.numpy)
            x = x[(wide >= info.min) & (wide < 2.0 ** (to.itemsize * 8 - to.is_signed))]
        check(adapter, [x], {f"{given} to {to}": lambda v, _, to=to: v.to(to)}, to)


@pytest.mark.parametrize(("half", "has_f16"), [(F16, False), (F16, True), (BF16, False)])
def test_every_rounding_to_half_floats(adapter: Adapter, half: DType, *, has_f16: bool) -> None:
    """Between all neighbours, at their middles, and beside them."""
    bits = np.arange(0, 0x7C00 if half is F16 else 0x7F80, dtype=np.uint16)
    lower = bits.view(half.numpy).astype(np.float32)
    middle = (lower.astype(np.float64) + np.append(lower[1:], lower[-1])) / 2
    near = [np.nextafter(middle.astype(np.float32), np.float32(d)) for d in (-np.inf, np.inf)]
    x = np.concatenate([lower, middle.astype(np.float32), *near])
    x = np.concatenate([x, -x, np.array([np.inf, -np.inf, np.nan, 65519.0, 65520.0], np.float32)])
    if has_f16 and adapter.driver != "lavapipe":
        pytest.skip(f"{adapter.driver} has no shader-f16")
    target = Target(has_f16=has_f16)
    check(adapter, [x], {"convert": lambda v, _: v.to(half)}, half, target)


@pytest.mark.parametrize(
    ("given", "to"),
    [
        (F32, DType.I32),
        (DType.U32, F32),
        (F16, DType.U16),
        (DType.I16, BF16),
        (DType.I64, DType.U64),
    ],
)
def test_bitcasts(adapter: Adapter, given: DType, to: DType) -> None:
    x = numbers(given)
    x = x[~np.isnan(x.astype(np.float32))] if given.is_float else x[:6]
    check(adapter, [x], {"bitcast": lambda v, _: v.bits(to)}, to)


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions_keep_their_accuracy(adapter: Adapter, name: str) -> None:
    """The promise of `functions.py` against the op table in f64; the expansions are checked on
    more numbers, and give the same bits by the interpreter."""
    given = [np.ascontiguousarray(g) for g in arguments(name, np.float32)]
    (got,), (wanted,) = both(adapter, given, [lambda x, y: called(name, x, y)], F32)
    is_denormal = np.zeros(len(got), bool)
    for g in given:
        is_denormal |= (np.abs(g) > 0) & (np.abs(g) < TINY)
    with np.errstate(all="ignore"):
        unit = np.spacing(np.maximum(np.abs(wanted), TINY).astype(np.float32))
        error = np.abs(got.astype(np.float64) - wanted) / unit
    # the interpreter's is rounded from f64: half a unit
    wrong = ~is_same(got, wanted) & ~(error <= FUNCTIONS[name].ulps[0] + 0.5) & ~is_denormal
    assert not wrong.any(), [
        (*(g[i] for g in given), got[i], wanted[i]) for i in wrong.nonzero()[0]
    ]


def called(name: str, x: Var, y: Var) -> Var:
    return x.builder.call(name, *((x, y) if FUNCTIONS[name].arity == 2 else (x,)))


def test_fast_functions_keep_their_accuracy(adapter: Adapter) -> None:
    """Relative to the precise ones; twice the promise, as the interpreter is off by all of it."""
    fast = {n: f.fast_error for n, f in FUNCTIONS.items() if f.fast_error is not None}
    x = np.random.default_rng(0).uniform(0.1, 60.0, 500).astype(np.float32)
    named: dict[str, Made] = {n: lambda x, y, n=n: x.builder.call(n, x, fast=True) for n in fast}
    got, wanted = both(adapter, [x], list(named.values()), F32)
    for name, row, want in zip(fast, got, wanted, strict=True):
        near = np.abs(want) > 0.1 if name == "log" else want == want
        np.testing.assert_allclose(
            row[near], want[near], rtol=2 * fast[name] + 2.0**-22, err_msg=name
        )
