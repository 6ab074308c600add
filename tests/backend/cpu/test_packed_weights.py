"""Products with packed weights: every scheme against the reference, to the bit where a sum has one
term, within rounding where it has many; values anywhere in memory, units in any order."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.isa import AVX2, NEON, SSE2, Isa, host
from rlx.backends.cpu.llvm.compile import assembled
from rlx.core.dim import Dim
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops import op as table
from rlx.ops.draw import Draw
from rlx.ops.quant.block_scaled import PACKINGS
from rlx.ops.quant.gguf import SCHEMES
from tests.backend.cpu.guarded import PAGE
from tests.backend.cpu.steps import Array, Steps, Trial, side_by_side, trials

ON = pytest.mark.parametrize("isa", [host(), AVX2, SSE2], ids=lambda i: i.name)
EPS = {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


def node(op: str, *shapes: Shape, **attrs: Any) -> Node:
    g = Graph(op)
    return g.node(op, [g.input(f"x{i}", s) for i, s in enumerate(shapes)], attrs)


def trial(op: str, *arrays: Array, sizes: Any = None, **attrs: Any) -> Trial:
    names = sizes or {}
    dims = {v: Dim(k, 0) for k, v in names.items()}
    shapes = [Shape([dims.get(d, d) for d in a.shape], a.dtype) for a in arrays]
    return side_by_side(node(op, *shapes, **attrs), arrays, names)


def run(steps: Steps, number: int) -> Array:
    """The result, the same to the bit whatever parts the work is done in."""
    (once,), (apart,) = (steps.run(number, cuts) for cuts in ("once", "each"))
    assert once.tobytes() == apart.tobytes(), f"{steps.trials[number]}: parts differ"
    return once


# -- each weight alone ----------------------------------------------------------------------------


def bytes_of(scheme: str, rows: int, blocks: int, seed: int) -> Array:
    """Any bytes: scales of any size, with infinities and NaN among them."""
    rng = np.random.default_rng([seed, zlib.crc32(scheme.encode())])
    return rng.integers(0, 256, (rows, blocks * SCHEMES[scheme].block_bytes), np.uint8)


def one_at_a_time(scheme: str) -> Trial:
    """x picks weights: a row of the result is a column of W. Not a number times 0 is not one, so
    each row of W has one block or, without blocks, one weight."""
    w = bytes_of(scheme, 7, 1, 3)
    return trial("gguf_matmul", np.eye(SCHEMES[scheme].weights, dtype="f"), w, scheme=scheme)


@ON
def test_weights_are_the_references(isa: Isa) -> None:
    given = [one_at_a_time(s) for s in SCHEMES]
    steps = Steps(given, isa)
    for i, one in enumerate(given):
        with np.errstate(all="ignore"):
            (want,) = one.wanted()
        np.testing.assert_array_equal(run(steps, i), want, str(one))


def numbers(packing: str, scale: str, zero: str | None, block: int, groups: int = 3) -> Trial:
    """Every byte, with scales that overflow and vanish."""
    rng = np.random.default_rng([len(packing), block, groups])
    k, rows = block * groups, 6
    packed = rng.integers(0, 256, (rows, k // 2 if packing.endswith("4") else k), np.uint8)
    scales = rng.normal(size=(rows, groups)) * 10.0 ** rng.integers(-3, 4, (rows, groups))
    given = [np.eye(k, dtype="f"), packed, scales.astype(Shape((), scale).dtype.numpy)]
    if zero is not None:
        given.append(rng.integers(0, 100, (rows, groups)).astype(zero))
    return trial("dequant_matmul", *given, packing=packing, block=block)


KINDS = [
    numbers(p, scale, zero, block)
    for i, p in enumerate(PACKINGS)
    for scale, zero, block in (
        ("f32", None, 32),
        ("f32", None, 6),
        ("f32", "u1", 32),
        ("f16", None, 32),
        ("bf16", ("i1", "u1", "i4")[i % 3], 32),
        ("bf16", None, 64),
        ("f64", None, 6),
    )
    if not (zero and p.startswith("fp8"))
]


@ON
def test_numbers_are_the_references(isa: Isa) -> None:
    given = KINDS[:: 1 if isa == host() else 5]
    steps = Steps(given, isa)
    for i, one in enumerate(given):
        with np.errstate(all="ignore"):
            (want,) = one.wanted()
        np.testing.assert_array_equal(run(steps, i), want, str(one))


# -- sums -----------------------------------------------------------------------------------------


def finite(one: Trial) -> Trial:
    """The same with every f16 of the bytes finite and none large: a sum of more is all noise."""
    one.arrays[1][...] &= 0x3F
    return one


def assert_near(got: Array, one: Trial) -> None:
    """Within 8 · eps · Σ|terms| of the sum in f64, and a rounding to the result's dtype."""
    x, *rest = one.arrays
    name, wide = one.node.inputs[0].shape.dtype.value, x.astype(np.float64)
    unpack = "gguf_dequantize" if one.node.op == "gguf_matmul" else "block_dequantize"
    weights = np.asarray(table.lookup(unpack).run(rest, one.node.attrs), np.float64)
    want, terms = wide @ weights.T, np.abs(wide) @ np.abs(weights).T
    sums = EPS["f64" if name == "f64" else "f32"]
    bound = 8 * sums * terms + EPS[name] * np.abs(want) + 2.0**-24 * (name == "f16")
    assert got.shape == want.shape, str(one)
    assert (np.abs(got.astype(np.float64) - want) <= bound).all(), str(one)


def sums(scheme: str) -> list[Trial]:
    """Few rows and many, columns that fill no group, pieces that are not whole, nothing at all."""
    rng = np.random.default_rng(8)
    size = SCHEMES[scheme].weights
    found: list[Trial] = []
    for m, n, k in ((1, 9, 2100), (3, 4, 300), (70, 5, 520), (2, 3, 0), (0, 3, 9), (2, 0, 300)):
        blocks = -(-k // size)
        x = rng.normal(size=(m, blocks * size)).astype("f")
        sizes = {"m": m} if m in (3, 70) else None
        given = bytes_of(scheme, n, blocks, m)
        found.append(finite(trial("gguf_matmul", x, given, sizes=sizes, scheme=scheme)))
    return found


@ON
def test_sums_of_many(isa: Isa) -> None:
    schemes = ("q8_0", "q6_k", "bf16", "iq3_s")[:: 1 if isa == host() else 2]
    given = [t for s in schemes for t in sums(s)]
    steps = Steps(given, isa)
    for i, one in enumerate(given):
        assert_near(run(steps, i), one)


@pytest.mark.parametrize("isa", [host(), AVX2], ids=lambda i: i.name)
def test_few_rows_are_rows_of_many(isa: Isa) -> None:
    """Few rows have code of their own, which gives the same bits: each sum has one order. Any
    bytes, with sums that are not numbers."""
    rng = np.random.default_rng(4)
    given: list[Trial] = []
    for one in KINDS[:: 5 if isa == host() else 11]:
        x, *rest = one.arrays
        x = rng.normal(size=(5, x.shape[1])).astype("f")
        for m, names in ((5, None), (1, {"m": 1}), (2, None)):
            given.append(trial("dequant_matmul", x[:m], *rest, sizes=names, **one.node.attrs))
    for scheme in list(SCHEMES)[:: 1 if isa == host() else 4]:
        w = bytes_of(scheme, 6, 768 // SCHEMES[scheme].weights, 5)
        x = rng.normal(size=(5, 768)).astype("f")
        for m, names in ((5, None), (1, {"m": 1}), (2, None)):
            given.append(trial("gguf_matmul", x[:m], w, sizes=names, scheme=scheme))
    steps = Steps(given, isa)
    for i in range(0, len(given), 3):
        many = run(steps, i)
        for few in range(i + 1, i + 3):
            got = run(steps, few)
            np.testing.assert_array_equal(got, many[: len(got)], str(given[few]))


@pytest.mark.parametrize("op", ["gguf_matmul", "dequant_matmul"])
def test_drawn_cases_wherever_they_lie(op: str) -> None:
    given: list[Trial] = []
    for i in range(12):
        draw = Draw([zlib.crc32(f"packed {op}".encode()), i])
        case = draw.case(table.lookup(op))
        given += [finite(t) if op == "gguf_matmul" else t for t in trials(draw, case)]
    steps = Steps(given, host())
    for i, one in enumerate(given):
        got = run(steps, i)
        if not np.isfinite(got.astype(np.float64)).all():
            (want,) = one.wanted()
            np.testing.assert_array_equal(np.isnan(got), np.isnan(want), str(one))
        else:
            assert_near(got, one)


# -- in models ------------------------------------------------------------------------------------


def model(packing: str) -> tuple[Graph, dict[str, Array]]:
    """gelu(x · Wᵀ + bias), its weights packed by a scheme or as numbers with zero points."""
    rng, g = np.random.default_rng(2), Graph("packed")
    x, bias = g.input("x", Shape((3, 512))), g.param("bias", Shape((70,)))
    params = {"bias": rng.normal(size=70).astype("f")}
    if packing in SCHEMES:
        params["w"] = bytes_of(packing, 70, 512 // SCHEMES[packing].weights, 1) & 0x3F
        y = ops.gguf_matmul(x, g.param("w", Shape(params["w"].shape, "u8")), scheme=packing)
    else:
        params["w"] = rng.integers(0, 256, (70, 256 if "4" in packing else 512), np.uint8)
        params["s"] = rng.normal(size=(70, 16)).astype("f")
        params["z"] = rng.integers(0, 9, (70, 16), np.uint8)
        operands = [g.param(n, Shape(params[n].shape, params[n].dtype)) for n in "wsz"]
        y = ops.dequant_matmul(x, *operands, packing=packing, block=32)
    g.set_outputs([ops.gelu(ops.add(y, bias))])
    return g, params


@pytest.mark.parametrize("packing", ["q4_k", "iq2_s", "int4", "int8"])
def test_what_follows_and_what_is_kept(packing: str) -> None:
    """What follows is part of the step, and the program keeps no weights but those it is given."""
    g, params = model(packing)
    x = np.random.default_rng(3).normal(size=(3, 512)).astype("f")
    made, wanted = (rlx.compile(g, target=t) for t in ("cpu", "reference"))
    for exe in (made, wanted):
        exe.set_params(params)
    most = sum(a.nbytes + 64 for a in params.values())
    assert made.memory().weight_bytes <= most
    assert CpuBackend().compile(made.lir).prepare(params, None).memory.nbytes <= most + PAGE
    want = np.asarray(wanted(x))
    bound = 64 * 2.0**-23 * np.abs(want).max()
    np.testing.assert_allclose(np.asarray(made(x)), want, rtol=0, atol=bound)


def test_code_for_other_machines_assembles() -> None:
    given = [*map(one_at_a_time, list(SCHEMES)[::3]), *KINDS[::9]]
    assert "ret" in assembled(Steps(given, NEON, is_run=False).text, NEON)
