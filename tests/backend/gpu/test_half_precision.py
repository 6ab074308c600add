"""Results of half precision: dropped roundings, approximated functions, polynomials of ranges."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rlx import ops
from rlx.backends.gpu.lower.fast import half_precision
from rlx.backends.gpu.lower.loop import emit, legal
from rlx.backends.gpu.lower.polynomials import odd_polynomial
from rlx.backends.gpu.schedule.loop import choose
from rlx.core.dtype import DType
from rlx.ir.interpret import evaluate
from rlx.kernel.enclosure import SMOOTH, Jet
from rlx.kernel.expr import Apply, Expr, Kernel
from rlx.kernel.lower.loop import loop_kernel
from rlx.kernel.ranges import ranges
from rlx.program import nodes as ir
from rlx.program.program import Program
from rlx.program.verify import verify
from tests.backend.gpu import laws
from tests.backend.gpu.regions import BF16, F16, F32, Case, of

Array = np.ndarray[Any, Any]
DIGITS = {BF16: (7, -133), F16: (10, -24)}
"""Bits behind the first, and the exponent of the least number."""


def kernel_of(build: Callable[..., Any], dtype: DType, count: int = 1 << 16) -> Kernel:
    return legal(loop_kernel(Case(build, of(dtype, (count,))).node()))


def program_of(kernel: Kernel) -> Program:
    return verify(emit(kernel, choose(kernel)))


def every_half(dtype: DType) -> Array:
    return np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)


def unit(x: Array, dtype: DType) -> Array:
    digits, least = DIGITS[dtype]
    with np.errstate(all="ignore"):
        exponent = np.floor(np.log2(np.abs(x))) - digits
    return 2.0 ** np.maximum(np.where(np.isfinite(exponent), exponent, least), least)


def is_op(node: Expr, name: str) -> bool:
    return isinstance(node, Apply) and node.op.name == name


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


erfc: Callable[[Array], Array] = np.vectorize(math.erfc, otypes=[np.float64])
FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[Array], Array]]] = {
    "exp": (ops.exp, np.exp),
    "tanh": (ops.tanh, np.tanh),
    "sigmoid": (ops.sigmoid, sigmoid),
    "silu": (ops.silu, lambda x: x * sigmoid(x)),
    "sqrt": (ops.sqrt, np.sqrt),
    "gelu": (ops.gelu, lambda x: 0.5 * x * erfc(-x * math.sqrt(0.5))),
    "gelu_tanh": (
        ops.gelu_tanh,
        lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)),
    ),
    "clipped sigmoid": (
        lambda x: ops.sigmoid(ops.clamp(x, min=-1.0, max=1.0)),
        lambda x: sigmoid(np.clip(x, -1.0, 1.0)),
    ),
    "sigmoid from -1": (
        lambda x: ops.sigmoid(ops.maximum(x, -1.0)),
        lambda x: sigmoid(np.maximum(x, -1.0)),
    ),
    "narrow tanh": (
        lambda x: ops.tanh(ops.clamp(x, min=-0.25, max=0.25)),
        lambda x: np.tanh(np.clip(x, -0.25, 0.25)),
    ),
}

UNARY: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh, "sigmoid": sigmoid, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "erf": np.vectorize(math.erf, otypes=[np.float64]), "neg": np.negative, "square": np.square,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_every_half_are_within_an_eighth_of_a_unit(name: str, dtype: DType) -> None:
    """Half a unit is the rounding's, an eighth the approximation's; the interpreter takes every
    approximation at its worst. Exponentials below 2⁻¹²⁶ may be 0, and silu multiplies one by x."""
    build, exact = FUNCTIONS[name]
    x = every_half(dtype)
    program = program_of(kernel_of(build, dtype))
    (got,) = laws.execute(program, [x], Case(build, of(dtype, (1 << 16,))).node().shapes)
    with np.errstate(all="ignore"):
        want = exact(x.astype(np.float64))
        rounded = want.astype(dtype.numpy)
        flushed = 2.0**-126 * np.maximum(1.0, np.abs(x.astype(np.float64)))
        error = np.abs(got.astype(np.float64) - want)
        error = np.where(error <= flushed, 0.0, error / unit(want, dtype))
    is_special = ~np.isfinite(rounded.astype(np.float64))
    same = (got == rounded) | (np.isnan(got.astype(np.float64)) & np.isnan(want))
    assert np.all(same[is_special])
    assert np.all(error[~is_special] <= 0.5 + 0.125 + 0.01), error[~is_special].max()


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_results_of_f32_are_not_approximated(dtype: DType) -> None:
    wide = program_of(kernel_of(lambda x: ops.exp(ops.cast(x, to=F32)), dtype))
    both = program_of(kernel_of(lambda x: (ops.exp(x), ops.cast(ops.exp(x), to=F32)), dtype))
    half = program_of(kernel_of(ops.exp, dtype))
    calls = lambda p: [n.accuracy for n in p.nodes if isinstance(n, ir.Call)]
    assert set(calls(wide)) == {"precise"}
    assert set(calls(half)) == {"fast"}
    assert "precise" in calls(both)


def test_a_chain_is_rounded_once() -> None:
    def chain(x: Any) -> Any:
        return ops.mul(ops.add(ops.mul(x, x), 0.5), x)

    kernel = kernel_of(chain, BF16, 64)
    width, nodes = choose(kernel).width, list(program_of(kernel).nodes)
    assert sum(isinstance(n, ir.Convert) and n.result.dtype is BF16 for n in nodes) == width
    assert sum(isinstance(n, ir.Fma) for n in nodes) == width


def test_a_softmax_of_halves_is_of_fast_exponentials() -> None:
    """Its sum is of positive numbers, which do not cancel; it is divided by once."""
    kernel = legal(loop_kernel(Case(ops.softmax, of(BF16, (8, 512))).node()))
    nodes = list(program_of(kernel).nodes)
    assert {n.accuracy for n in nodes if isinstance(n, ir.Call)} == {"fast"}
    assert sum(isinstance(n, ir.Binary) and n.op == "div" for n in nodes) == 1


def test_a_divisor_of_many_points_is_inverted_once() -> None:
    """A quotient is then off by 1.5 units of f32 at most: 3k / 3 is k in half precision."""
    node = Case(ops.div, of(BF16, (128, 64), (64,))).node()
    program = program_of(legal(loop_kernel(node)))
    x = 3 * np.arange(128 * 64).reshape(128, 64) % 256
    given = [x.astype(ml_dtypes.bfloat16), np.full(64, 3, ml_dtypes.bfloat16)]
    (got,) = laws.execute(program, given, node.shapes)
    (want,) = evaluate(node.attrs["body"], dict(zip(("v0", "v1"), given)))
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def test_inside_of_an_op_digits_are_not_cancelled() -> None:
    """mish is x · tanh(softplus x), softplus a sum: its parts are needed in f32; tanh of it not."""
    calls = [n for n in program_of(kernel_of(ops.mish, BF16)).nodes if isinstance(n, ir.Call)]
    assert {(n.function, n.accuracy) for n in calls if n.function == "tanh"} == {("tanh", "fast")}
    assert all(n.accuracy == "precise" for n in calls if n.function in ("log1p", "log"))


@pytest.mark.parametrize(
    "build",
    [
        lambda x: ops.floor(ops.mul(x, x)),
        lambda x: ops.where(ops.less(ops.mul(x, x), 0.5), x, ops.neg(x)),
        lambda x: ops.cast(ops.mul(ops.mul(x, x), x), to=DType.I32),
        lambda x: ops.cast(ops.add(ops.mul(x, x), 0.5), to=F32),
    ],
)
def test_what_is_compared_or_made_whole_keeps_its_roundings(build: Callable[..., Any]) -> None:
    kernel = kernel_of(build, BF16, 64)
    assert any(n.dtype is BF16 and isinstance(n, Apply) for n in kernel.nodes)
    x = (np.arange(64) / 16 - 2).astype(ml_dtypes.bfloat16)
    node = Case(build, of(BF16, (64,))).node()
    (want,) = evaluate(node.attrs["body"], {"v0": x})
    (got,) = laws.execute(program_of(kernel), [x], node.shapes)
    np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def test_a_stored_value_is_the_one_that_others_read() -> None:
    """y and y - y·1: the second is 0 only if both are rounded, or neither is."""

    def build(x: Any) -> tuple[Any, ...]:
        y = ops.mul(x, x)
        return y, ops.sub(y, ops.mul(y, 1.0))

    x = np.random.default_rng(1).normal(size=64).astype(ml_dtypes.bfloat16)
    node = Case(build, of(BF16, (64,))).node()
    _, zero = laws.execute(program_of(kernel_of(build, BF16, 64)), [x], node.shapes)
    assert not zero.astype(np.float64).any()


# -- ranges ---------------------------------------------------------------------------------------


def gated(x: Any) -> Any:
    for _ in range(3):
        x = ops.sub(ops.mul(ops.tanh(ops.add(ops.mul(x, 1.01), 0.5)), ops.sigmoid(x)), 0.1)
    return x


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_rounds_of_functions_in_a_range_are_one_polynomial(dtype: DType) -> None:
    """After the first product, which is in (-1, 1), there is no function left. Half a unit is the
    rounding's; the product of the last round may be off by an eighth, and the first round by an
    eighth of what the others make less of."""
    kernel = kernel_of(gated, dtype)
    program, width = program_of(kernel), choose(kernel).width
    calls = [n.function for n in program.nodes if isinstance(n, ir.Call)]
    tanh = {BF16: ["tanh"], F16: ["exp2", "reciprocal"]}[dtype]
    assert sorted(calls) == sorted([*tanh, "exp2", "reciprocal"] * width)
    x = every_half(dtype)
    (got,) = laws.execute(program, [x], Case(gated, of(dtype, (1 << 16,))).node().shapes)
    scale, less = (float(np.array(v).astype(dtype.numpy)) for v in (1.01, 0.1))
    with np.errstate(all="ignore"):
        want = product = x.astype(np.float64)
        is_number = np.isfinite(want)
        for _ in range(3):
            product = np.tanh(want * scale + 0.5) * sigmoid(want)
            want = product - less
    error = np.abs(got.astype(np.float64) - want) / unit(product, dtype)
    assert np.all(error[is_number] <= 0.5 + 2 * 0.125), error[is_number].max()
    assert np.all(np.isnan(got.astype(np.float64)) == np.isnan(want))


@pytest.mark.parametrize(
    "build",
    [
        lambda t: ops.add(ops.exp(ops.neg(ops.square(ops.mul(ops.sub(t, 0.3), 4096.0)))), 1.0),
        lambda t: (ops.sigmoid(t), ops.mul(ops.sigmoid(t), ops.tanh(t))),
        lambda t: ops.mul(ops.exp(t), ops.abs(t)),
    ],
    ids=["a spike between samples", "a value that is stored", "a corner"],
)
def test_what_no_polynomial_can_replace_is_computed(build: Callable[..., Any]) -> None:
    kernel = kernel_of(lambda x: build(ops.tanh(x)), BF16, 64)
    assert not [f for f in half_precision(kernel).fused.values() if len(f.args) == 1]


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_powers_in_f32_are_rounded_once(dtype: DType) -> None:
    """Each square doubles the errors below it: to the power of 12, an eighth would be 1.5 units.
    The argument is nowhere in a range, so the last is no polynomial."""

    def build(x: Any) -> Any:
        fourth = ops.square(ops.square(ops.tanh(ops.cast(x, to=F32))))
        return ops.cast(ops.mul(ops.mul(fourth, fourth), ops.mul(fourth, ops.abs(x))), to=dtype)

    x = every_half(dtype)
    program = program_of(kernel_of(build, dtype))
    (got,) = laws.execute(program, [x], Case(build, of(dtype, (1 << 16,))).node().shapes)
    with np.errstate(all="ignore"):
        want = np.tanh(x.astype(np.float64)) ** 12 * np.abs(x.astype(np.float64))
        error = np.abs(got.astype(np.float64) - want) / unit(want, dtype)
    is_normal = np.isfinite(want.astype(dtype.numpy).astype(np.float64)) & (want > 2.0**-125)
    assert np.all(error[is_normal] <= 0.5 + 0.125), error[is_normal].max()


def test_ranges_without_two_normal_numbers_are_computed() -> None:
    kernel = kernel_of(lambda x: ops.exp(ops.sigmoid(ops.mul(x, 0.0))), BF16, 64)
    assert ranges(kernel)[next(n for n in kernel.nodes if is_op(n, "mul"))] == (0.0, 0.0)
    assert not [f for f in half_precision(kernel).fused.values() if len(f.args) == 1]


def test_what_is_0_where_a_function_stays_is_so_but_for_the_noise_of_f32() -> None:
    """A sigmoid is 1 for all large numbers: s - s * 1."""

    def build(x: Any) -> Any:
        gate = ops.sigmoid(x)
        inner = ops.sigmoid(gate)
        return ops.sub(inner, ops.mul(inner, gate))

    x = every_half(BF16)
    shapes = Case(build, of(BF16, (1 << 16,))).node().shapes
    (made,) = laws.execute(program_of(kernel_of(build, BF16)), [x], shapes)
    with np.errstate(invalid="ignore"):
        assert np.all(np.abs(made[x > 120.0].astype(np.float32)) <= 2.0**-18)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_polynomials_are_exact_at_the_end_of_a_range_that_is_0(dtype: DType) -> None:
    build = lambda x: ops.sub(ops.sigmoid(ops.sigmoid(x)), 0.5)
    kernel = kernel_of(build, dtype)
    assert [f for f in half_precision(kernel).fused.values() if len(f.args) == 1]
    x = every_half(dtype)
    shapes = Case(build, of(dtype, (1 << 16,))).node().shapes
    (made,) = laws.execute(program_of(kernel), [x], shapes)
    with np.errstate(invalid="ignore"):
        assert np.all(made[x < -120.0] == 0.0)


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(
    "build",
    [
        lambda x: ops.sqrt(ops.sub(1.0, ops.sigmoid(x))),
        lambda x: ops.sqrt(ops.mul(ops.sub(1.0, ops.square(ops.tanh(x))), 2.0)),
        lambda x: ops.div(1.0, ops.sub(ops.sigmoid(ops.square(ops.tanh(x))), 0.5)),
    ],
)
def test_sums_keep_a_sign_that_decides_whether_there_is_a_number(
    build: Callable[..., Any], dtype: DType
) -> None:
    """In the graph all of them are 0 or positive, as its roundings are monotonic."""
    x = every_half(dtype)
    shapes = Case(build, of(dtype, (1 << 16,))).node().shapes
    (made,) = laws.execute(program_of(kernel_of(build, dtype)), [x], shapes)
    assert np.all((made >= 0.0) == ~np.isnan(x.astype(np.float32)))


SMOOTH_OPS: tuple[Callable[[Any], Any], ...] = (
    ops.tanh, ops.sigmoid, ops.erf, ops.square, ops.neg, lambda v: ops.mul(v, 0.7),
    lambda v: ops.add(v, 1.3), lambda v: ops.sub(0.2, v), lambda v: ops.exp(ops.mul(v, 0.5)),
)  # fmt: skip


def composed(seed: int, wide: DType) -> Callable[[Any], Any]:
    """Functions of a value in (-1, 1) at random, of which each reads any of those before it."""

    def build(x: Any) -> Any:
        rng = np.random.default_rng(seed)
        made = [ops.tanh(ops.cast(x, to=wide))]
        for _ in range(rng.integers(3, 8)):
            made.append(SMOOTH_OPS[rng.integers(len(SMOOTH_OPS))](made[-1]))
            if rng.random() < 0.4:
                other = made[rng.integers(len(made))]
                made.append((ops.add, ops.mul)[rng.integers(2)](made[-1], other))
        return made[-1]

    return build


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_compositions_in_f32_are_as_good_as_their_last_rounding(dtype: DType) -> None:
    """Against f64; half a unit is the rounding's, a quarter the polynomial's just below a power of
    two, and an eighth that of the first tanh, where what follows hands it on."""
    x, used = every_half(dtype)[::7], 0
    is_number = np.isfinite(x.astype(np.float32))
    for seed in (0, 1, 4):
        case, exact = (
            Case(
                lambda v, s=seed, w=w, to=to: ops.cast(composed(s, w)(v), to=to), of(dtype, x.shape)
            )
            for w, to in ((F32, dtype), (DType.F64, DType.F64))
        )
        kernel = legal(loop_kernel(case.node()))
        used += len(half_precision(kernel).polynomials)
        (got,) = laws.execute(program_of(kernel), [x], case.node().shapes)
        (want,) = evaluate(exact.node().attrs["body"], {"v0": x})
        off = np.abs(got.astype(np.float32) - want)[is_number]
        error = off / unit(want, dtype)[is_number]
        assert np.all(error <= 0.5 + 0.25 + 0.125), (seed, error.max())
        assert np.all(np.isnan(got.astype(np.float32)) == np.isnan(x.astype(np.float32)))
    assert used >= 3


def test_what_overflows_is_in_no_range() -> None:
    """e^12 is no number of f16; parts of it are then in no range."""

    def build(x: Any) -> Any:
        big = ops.exp(ops.clamp(x, min=-12.0, max=12.0))
        return big, ops.tanh(ops.sigmoid(ops.mul(big, 1e-5)))

    x = every_half(F16)
    shapes = Case(build, of(F16, (1 << 16,))).node().shapes
    big, made = laws.execute(program_of(kernel_of(build, F16)), [x], shapes)
    assert np.all(made[np.isinf(big)] == np.tanh(1.0).astype(np.float16))
    assert np.isinf(big).any()


def test_enclosures_hold_values_and_slopes() -> None:
    """On intervals at random: what is inside, and quotients of differences, by the mean value
    theorem; 2^-20 is for the differences' cancelled digits."""
    rng = np.random.default_rng(3)
    low = rng.uniform(0.2, 2.0, 64)
    high = low + rng.uniform(0.01, 0.3, 64)
    jets = {n: f(Jet.variable(low, high)) for n, f in SMOOTH.items() if n in UNARY}
    x = Jet.variable(low, high)
    jets |= {"div": SMOOTH["div"](jets["tanh"], x), "mul": SMOOTH["mul"](x, x)}
    exact = {**UNARY, "div": lambda v: np.tanh(v) / v, "mul": np.square}
    a, b = (low + (high - low) * rng.uniform(size=(32, 64)) for _ in range(2))
    for name, jet in jets.items():
        at_a, at_b = exact[name](a), exact[name](b)
        assert np.all((jet.value.low <= at_a) & (at_a <= jet.value.high)), name
        with np.errstate(all="ignore"):
            slope = (at_a - at_b) / (a - b)
        is_far = np.abs(a - b) > 1e-4
        inside = (jet.slope.low - 2.0**-20 <= slope) & (slope <= jet.slope.high + 2.0**-20)
        assert np.all(inside | ~is_far), name


def test_sigmoids_that_spare_the_units_are_as_good() -> None:
    """Four of them have eight uses of the units; two steps of Newton's replace half of them."""

    def build(x: Any) -> Any:
        parts = [ops.sigmoid(ops.mul(x, f)) for f in (1.0, 2.0, -1.0, 0.5)]
        return ops.mul(ops.mul(parts[0], parts[1]), ops.mul(parts[2], parts[3]))

    program = program_of(kernel_of(build, BF16))
    assert "reciprocal" not in {n.function for n in program.nodes if isinstance(n, ir.Call)}
    x = every_half(BF16)
    (got,) = laws.execute(program, [x], Case(build, of(BF16, (1 << 16,))).node().shapes)
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        want = sigmoid(wide) * sigmoid(2 * wide) * sigmoid(-wide) * sigmoid(0.5 * wide)
        error = np.abs(got.astype(np.float64) - want)
        error = np.where(error <= 2.0**-120, 0.0, error / unit(want, BF16))
    is_number = np.isfinite(wide)
    assert np.all(error[is_number] <= 0.5 + 4 * 0.125), error[is_number].max()
    assert np.all(np.isnan(got.astype(np.float64)) == np.isnan(wide))


def test_ranges_hold_what_values_are() -> None:
    def build(x: Any) -> tuple[Any, ...]:
        t = ops.tanh(x)
        return (
            t, ops.sub(ops.mul(t, ops.sigmoid(x)), 0.1), ops.clamp(x, min=-2.0, max=3.0),
            ops.div(t, ops.add(ops.square(t), 1.0)), ops.abs(ops.minimum(t, -0.5)),
            ops.exp(ops.neg(ops.abs(x))), ops.where(ops.less(x, 0.0), t, 2.0),
        )  # fmt: skip

    node = Case(build, of(F32, (512,))).node()
    kernel = legal(loop_kernel(node))
    x = np.random.default_rng(2).normal(size=512).astype(np.float32) * 4
    made = evaluate(node.attrs["body"], {"v0": x})
    known = ranges(kernel)
    for store, values in zip(kernel.stores, made, strict=True):
        low, high = known[store.value]
        assert low <= values.min() <= values.max() <= high
        assert high - low < 6.0


@pytest.mark.parametrize("name", ["tanh", "sigmoid"])
def test_polynomials_are_as_good_as_stated(name: str) -> None:
    exact = {"tanh": np.tanh, "sigmoid": sigmoid}[name]
    for reach in (0.3, 1.0, 2.0):
        errors = []
        for count in range(1, 6):
            terms, error = odd_polynomial(name, reach, count)
            x = np.linspace(-reach, reach, 3000)
            value = exact(np.zeros(1))[0] + x * np.polyval(terms[::-1], x * x)
            assert np.max(np.abs(value / exact(x) - 1.0)) <= error * 1.01
            errors.append(error)
        assert errors == sorted(errors, reverse=True)
