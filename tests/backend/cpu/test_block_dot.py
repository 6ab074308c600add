"""Block dot products: every scheme against the reference on every instruction set, the same bits
for one row and many, for any division of the work and on any instruction set."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.isa import AVX2, AVX512, NEON, SSE2, Isa, host, why_not
from rlx.backends.cpu.llvm.compile import assembled
from rlx.core.dim import Dim
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops.draw import Draw
from rlx.ops.op import lookup
from rlx.ops.quant.block_arrays import decoded
from rlx.ops.quant.gguf_codes import CODES
from rlx.ops.quant.gguf_formats import SCHEMES
from tests.backend.cpu.steps import Array, Steps, Trial, trials
from tests.backend.cpu.test_packed_weights import bytes_of, run, trial

ISAS = [i for i in dict.fromkeys([host(), AVX512, AVX2, SSE2]) if why_not(i) is None]
SAMPLE = ("q4_0", "q4_1", "q8_0", "q5_1", "q6_k", "q2_k", "iq3_s", "mxfp4")


def weights_of(scheme: str, rows: int, inputs: int) -> Array:
    """Bytes whose scales are finite, and all codes among them."""
    count = inputs // SCHEMES[scheme].weights
    packed = bytes_of(scheme, rows, count, 3)
    codes = CODES[scheme]
    with np.errstate(all="ignore"):
        per_block = decoded(SCHEMES[scheme], packed.reshape(-1, codes.block_bytes))
    is_wild = ~(np.abs(per_block) < 1e4).all(-1)
    packed.reshape(-1, codes.block_bytes)[is_wild] &= 0x3F
    return packed


def case(scheme: str, m: int, *, is_named: bool = False, terms: int = 1) -> Trial:
    rng = np.random.default_rng(m)
    x = rng.normal(size=(150, 512)).astype("f")[:m]
    w, sizes = weights_of(scheme, 21, 512), {"m": m} if is_named else None
    return trial("gguf_int8_matmul", x, w, sizes=sizes, scheme=scheme, terms=terms)


def rounded(x: Array, terms: int) -> Array:
    """The sum of roundings to bytes, in f64."""
    codes, scale = ops.block_quantize(x, packing="int8", block=32)
    made = np.asarray(codes).view(np.int8) * np.repeat(np.asarray(scale), 32, axis=-1)
    wide = made.astype(np.float64)
    return wide if terms == 1 else wide + rounded(x - made.astype("f"), terms - 1)


def assert_near(got: Array, one: Trial) -> None:
    """Within 8 · eps · Σ|terms| of the sum in f64: what f32 loses to the sums of 16 blocks."""
    (x, w), attrs = one.arrays, one.node.attrs
    given = rounded(x, attrs["terms"])
    weights = np.asarray(ops.gguf_dequantize(w, scheme=attrs["scheme"]), np.float64)
    size = np.abs(given) @ np.abs(weights).T
    assert np.all(np.abs(got - given @ weights.T) <= 8 * 2.0**-23 * size), str(one)


@pytest.mark.parametrize("isa", ISAS, ids=lambda i: i.name)
def test_every_scheme(isa: Isa) -> None:
    given = [case(s, 3) for s in (CODES if isa == host() else SAMPLE)]
    given += [case(s, m, terms=2) for s in SAMPLE[:4] for m in (1, 9)]
    steps = Steps(given, isa)
    for i, one in enumerate(given):
        assert_near(run(steps, i), one)


@pytest.mark.parametrize("isa", ISAS[:2], ids=lambda i: i.name)
def test_few_rows_are_rows_of_many(isa: Isa) -> None:
    """One row, a few, tiles with some left, more than one run: each sum has one order."""
    for scheme in SAMPLE[:: 1 if isa == host() else 3]:
        sizes = [(1, False), (1, True), (2, True), (7, True), (11, True), (8, False), (18, False)]
        sizes += [(17, True), (131, True)]
        given = [case(scheme, m, is_named=named) for m, named in sizes]
        x = given[-1].arrays[0]
        for one in given:
            one.arrays[0][...] = x[: len(one.arrays[0])]
        steps = Steps(given, isa)
        many = run(steps, len(given) - 1)
        for i in range(len(given) - 1):
            got = run(steps, i)
            np.testing.assert_array_equal(got, many[: len(got)], str(given[i]))


def test_bits_are_those_of_every_instruction_set() -> None:
    """Sums of bytes are exact, and the order of the others is fixed; all have multiply-adds."""
    fused = [i for i in ISAS if i.has_fma]
    given = [case(s, 9) for s in SAMPLE]
    first, *others = (Steps(given, i) for i in fused)
    for number in range(len(given)):
        want = run(first, number)
        for steps in others:
            np.testing.assert_array_equal(run(steps, number), want, str(given[number]))


def test_activations_that_are_not_finite() -> None:
    """A block with a NaN or infinity makes its row NaN, and no other; subnormal blocks count."""
    x = np.random.default_rng(0).normal(size=(5, 64)).astype("f")
    x[0, 3], x[1, 40], x[2, :32], x[3, :32] = np.nan, np.inf, 0, 1e-45 * np.arange(150, 182)
    one = trial("gguf_int8_matmul", x, weights_of("q4_1", 18, 64), scheme="q4_1")
    got = run(Steps([one], host()), 0)
    assert np.isnan(got[:2]).all()
    (want,) = one.wanted()
    np.testing.assert_allclose(got[2:], want[2:], rtol=1e-5, atol=1e-4)


def test_drawn_cases_wherever_they_lie() -> None:
    given = [t for i in range(12) for t in _drawn(i)]
    steps = Steps(given, host())
    for i, one in enumerate(given):
        (want,) = one.wanted()
        got, wide = run(steps, i).astype(np.float64), want.astype(np.float64)
        # half floats round the result, and small sums of large terms differ by their roundings
        eps = {"f16": 2.0**-10, "bf16": 2.0**-7}.get(one.node.shape.dtype.value, 2.0**-18)
        np.testing.assert_allclose(got, wide, rtol=eps, atol=eps * np.abs(wide).max(initial=1))


def _drawn(number: int) -> Iterator[Trial]:
    draw = Draw([17, number])
    yield from trials(draw, draw.case(lookup("gguf_int8_matmul")))


def test_int16_activations_round_twice() -> None:
    """A product that another follows, too."""
    g, w = Graph("net"), weights_of("q4_0", 64, 64)
    x, packed = g.input("x", Shape([3, 64])), g.param("w", Shape(w.shape, "u8"))
    y = ops.gguf_matmul(x, packed, scheme="q4_0")
    g.set_outputs([ops.gguf_matmul(y, packed, scheme="q4_0")])
    given = np.random.default_rng(2).normal(size=(3, 64)).astype("f")
    exact = np.asarray(rlx.compile(g, params={"w": w})(given))
    error = {}
    for bits, terms in ((8, 1), (16, 2)):
        exe = rlx.compile(g, params={"w": w}, precision=f"int{bits}-activations")
        first = ops.gguf_int8_matmul(given, w, scheme="q4_0", terms=terms)
        want = np.asarray(ops.gguf_int8_matmul(first, w, scheme="q4_0", terms=2))
        made = np.asarray(exe(given))
        np.testing.assert_allclose(made, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
        error[bits] = np.abs(made - exact).max() / np.abs(exact).max()
    # a rounding to int8 errs by 1/254 of a block's greatest, the second by 1/254 of that
    assert error[16] < 1e-4 < error[8]


def test_panels_are_made_once_and_threads_agree() -> None:
    """In a model with a named number of rows, what follows in the same step."""
    g, w = Graph("net"), weights_of("q4_k", 70, 512)
    x = g.input("x", Shape([Dim("m", 1, 200), 512]))
    y = ops.gguf_matmul(x, g.param("w", Shape(w.shape, "u8")), scheme="q4_k")
    g.set_outputs([ops.gelu(y)])
    made = [rlx.compile(g, threads=t, precision="int8-activations") for t in (1, 2)]
    given = np.random.default_rng(1).normal(size=(140, 512)).astype("f")
    for exe in made:
        exe.set_params({"w": w})
    for m in (1, 7, 140):
        one, two = (np.asarray(exe(given[:m])) for exe in made)
        np.testing.assert_array_equal(one, two)
        want = np.asarray(ops.gelu(ops.gguf_int8_matmul(given[:m], w, scheme="q4_k", terms=2)))
        np.testing.assert_allclose(one, want, atol=2.0**-17 * np.abs(want).max())


def test_code_for_other_machines_assembles() -> None:
    given = [case(s, 3, is_named=True) for s in SAMPLE]
    assert "ret" in assembled(Steps(given, NEON, is_run=False).text, NEON)
