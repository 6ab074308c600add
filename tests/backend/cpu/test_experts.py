"""Products with the weights of experts: to the bit what each row's own product gives, whatever
other rows there are; drawn cases against the reference, wherever they lie."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.isa import AVX2, NEON, SSE2, Isa, host
from rlx.backends.cpu.llvm.compile import assembled
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops import op as table
from rlx.ops.draw import Draw
from tests.backend.cpu.steps import Array, Steps, Trial, trials
from tests.backend.cpu.test_packed_weights import EPS, bytes_of, run, trial

GROUPED = ("gguf_grouped_matmul", "dequant_grouped_matmul", "grouped_matmul")


def chosen(rows: int, experts: int, seed: int) -> Array:
    """Experts with many rows, with one, and with none."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, max(1, experts - 1), rows)
    picks[rng.random(rows) < 0.5] = 0
    return picks.astype(("i8", "i4", "u1")[seed % 3])


def pairs(rows: int, scheme: str, seed: int, dtype: str = "f4") -> list[Trial]:
    """A grouped product, and the plain ones of its experts with all rows."""
    rng = np.random.default_rng(seed)
    w = bytes_of(scheme, 4 * 7, 512 // 256, seed).reshape(4, 7, -1)
    x, experts = rng.normal(size=(rows, 512)).astype(dtype), chosen(rows, 4, seed)
    sizes = {"m": rows} if seed % 2 else None
    made = trial("gguf_grouped_matmul", x, w, experts, sizes=sizes, scheme=scheme)
    return [made, *(trial("gguf_matmul", x, w[e], scheme=scheme) for e in range(4))]


def number_pairs(rows: int, packing: str, zero: bool, seed: int) -> list[Trial]:
    rng = np.random.default_rng(seed)
    w = rng.integers(0, 256, (3, 5, 96 // (2 if packing == "int4" else 1)), np.uint8)
    others = [rng.normal(size=(3, 5, 3)).astype("f")]
    others += [rng.integers(0, 9, (3, 5, 3)).astype("u1")] if zero else []
    x, experts = rng.normal(size=(rows, 96)).astype("f"), chosen(rows, 3, seed)
    attrs = {"packing": packing, "block": 32}
    made = trial("dequant_grouped_matmul", x, w, experts, *others, **attrs)
    own = [trial("dequant_matmul", x, w[e], *(o[e] for o in others), **attrs) for e in range(3)]
    return [made, *own]


def check(groups: list[list[Trial]], isa: Isa) -> None:
    given = [t for group in groups for t in group]
    steps, at = Steps(given, isa), 0
    for made, *own in groups:
        with np.errstate(all="ignore"):
            each = np.stack([run(steps, at + 1 + i) for i in range(len(own))])
            got, picks = run(steps, at), made.arrays[2].astype(int)
        np.testing.assert_array_equal(got, each[picks, np.arange(len(got))], str(made))
        at += 1 + len(own)


@pytest.mark.parametrize("isa", [host(), AVX2, SSE2], ids=lambda i: i.name)
def test_rows_are_those_of_their_experts_product(isa: Isa) -> None:
    few = [pairs(1, "q4_k", 3), pairs(150, "q6_k", 5), number_pairs(9, "int4", True, 2)]
    more = [
        pairs(8, "q8_k", 1), pairs(70, "iq2_xs", 4), pairs(0, "q4_k", 6),
        pairs(3, "tq1_0", 8, "f8"),
        number_pairs(130, "fp8_e4m3", False, 7), number_pairs(1, "int4", False, 9),
        number_pairs(5, "uint8", True, 10),
    ]  # fmt: skip
    check([*few, *more] if isa == host() else few, isa)


@pytest.mark.parametrize("op", GROUPED)
def test_drawn_cases_wherever_they_lie(op: str) -> None:
    given: list[Trial] = []
    for i in range(8):
        draw = Draw([zlib.crc32(f"experts {op}".encode()), i])
        found = list(trials(draw, draw.case(table.lookup(op))))
        given += [t for t in found if not t.node.shape.dtype.is_complex]
    for one in given:
        if op == "gguf_grouped_matmul":  # every f16 finite and none large
            one.arrays[1][...] &= 0x3F
    steps = Steps(given, host())
    for i, one in enumerate(given):
        got, (want,) = run(steps, i), one.wanted()
        if want.dtype.kind in "iu":
            np.testing.assert_array_equal(got, want, str(one))
            continue
        got = got.astype("f8")
        known = np.isfinite(want.astype("f8"))
        np.testing.assert_array_equal(np.isfinite(got), known, str(one))
        got, near = got[known], want.astype("f8")[known]
        # few terms of like size: both sums are within a few roundings of the exact one
        eps = 64 * EPS[one.node.shape.dtype.value] * np.abs(near).max(initial=0)
        np.testing.assert_allclose(got, near, rtol=0, atol=eps, err_msg=str(one))


@pytest.mark.parametrize("isa", [host(), AVX2, SSE2], ids=lambda i: i.name)
def test_plain_weights(isa: Isa) -> None:
    """Rows and columns that fill no tile, in every float dtype; weights whose columns lie apart."""
    rng, given = np.random.default_rng(3), list[Trial]()
    for i, (m, k, n) in enumerate(
        [(1, 40, 200), (70, 33, 67), (9, 5, 3), (130, 64, 64), (4, 0, 9)]
    ):
        dtype = ("f4", "f4", "f8", "f2", "f4")[i]
        arrays = [rng.normal(size=s).astype(dtype) for s in ((m, k), (3, k, n))]
        made = trial("grouped_matmul", *arrays, chosen(m, 3, i), sizes={"m": m} if i == 1 else None)
        apart = Layout.contiguous((3, n, k)).permuted((0, 2, 1))
        operands = (made.operands[0], apart, made.operands[2])
        given += [made, Trial(made.node, operands, made.results, made.arrays, made.sizes)]
    steps = Steps(given, isa)
    for i, one in enumerate(given):
        x, w, picks = one.arrays
        got, eps = run(steps, i), EPS[one.node.shape.dtype.value]
        wide = [
            np.einsum("mk,mkn->mn", f(x.astype("f8")), f(w[picks].astype("f8")))
            for f in (np.asarray, np.abs)
        ]
        sums = 2.0**-52 if one.node.shape.dtype.value == "f64" else 2.0**-23
        bound = 4 * sums * wide[1] * max(1, x.shape[1]) ** 0.5 + eps * np.abs(wide[0])
        assert (np.abs(got - wide[0]) <= bound).all(), str(one)
        if i % 2:
            np.testing.assert_array_equal(got, run(steps, i - 1))


def test_an_expert_that_does_not_exist_is_an_error() -> None:
    x, w = np.ones((3, 32), "f"), bytes_of("q8_0", 4, 1, 1).reshape(2, 2, -1)
    for wrong in (2, -1):
        one = trial("gguf_grouped_matmul", x, w, np.array([0, wrong, 1]), scheme="q8_0")
        with pytest.raises(Error, match="out of range"):
            Steps([one], host()).run(0)


def test_code_for_other_machines_assembles() -> None:
    given = [pairs(3, "q4_k", 3)[0], number_pairs(9, "int4", True, 2)[0]]
    assert "ret" in assembled(Steps(given, NEON, is_run=False).text, NEON)


def test_programs_keep_weights_packed() -> None:
    g, rng = Graph("experts"), np.random.default_rng(0)
    packed = bytes_of("q4_k", 5 * 64, 1, 1).reshape(5, 64, -1) & 0x3F
    operands = [g.input("x", Shape((6, 256))), g.param("w", Shape(packed.shape, "u8"))]
    picks = g.input("e", Shape((6,), "i64"))
    g.set_outputs([g.node("gguf_grouped_matmul", [*operands, picks], {"scheme": "q4_k"})])
    x, experts = rng.normal(size=(6, 256)).astype("f"), np.array([4, 0, 4, 2, 4, 1])
    wanted: Any = rlx.compile(g, "reference")
    wanted.set_params({"w": packed})
    want, found = np.asarray(wanted(x, experts)), list[Array]()
    for threads in (1, 2):
        exe: Any = rlx.compile(g, "cpu", threads=threads, cache=False)
        exe.set_params({"w": packed})
        assert exe.memory().weight_bytes <= packed.nbytes + 64
        found.append(np.asarray(exe(x, experts)))
    assert found[0].tobytes() == found[1].tobytes()
    bound = 64 * 2.0**-23 * np.abs(want).max()  # 256 products, summed in 16 lanes and more
    np.testing.assert_allclose(found[0], want, rtol=0, atol=bound)
