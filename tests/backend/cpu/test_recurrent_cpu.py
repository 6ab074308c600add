"""Recurrent layers against the reference: drawn cases, their values anywhere in memory, all units
at once and one by one from the last; larger ones, and odd numbers."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rlx.backends.cpu.isa import AVX2, NEON, SSE2, Isa, host
from rlx.backends.cpu.llvm.compile import assembled
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops import op as table
from rlx.ops.draw import Draw
from tests.backend.cpu.steps import Array, Steps, Trial, side_by_side, trials

LAYERS = ("lstm", "gru", "rnn")
STATES = ("selective_scan", "mamba2", "gated_delta_net", "linear_attention")
EPS = {np.dtype(np.float16): 2.0**-10, np.dtype(np.float32): 2.0**-23, np.dtype(np.float64): 2e-16}


def drawn(op: str, first: int, cases: int) -> list[Trial]:
    found: list[Trial] = []
    for i in range(first, first + cases):
        draw = Draw([zlib.crc32(f"recurrent {op}".encode()), i])
        found += trials(draw, draw.case(table.lookup(op)))
    return found


def check(given: list[Trial], isa: Isa) -> None:
    steps = Steps(given, isa)
    for i, trial in enumerate(given):
        once = steps.run(i)
        for got, again, want in zip(once, steps.run(i, "each"), trial.wanted(), strict=True):
            assert got.tobytes() == again.tobytes(), f"{trial}: parts differ"
            assert_near(got, want, trial)


def assert_near(got: Array, want: Array, trial: Trial) -> None:
    """Within 64 eps of the largest number: cells are smooth, and sums are short."""
    assert got.dtype == want.dtype
    eps = EPS.get(want.dtype, 2.0**-7)
    a, b = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(a), np.isnan(b), str(trial))
    most = max(1.0, float(np.nanmax(np.abs(b), initial=0.0)))
    np.testing.assert_allclose(a, b, rtol=0, atol=64 * eps * most, err_msg=str(trial))


@pytest.mark.parametrize("op", [*LAYERS, *STATES])
def test_drawn_cases_are_as_the_reference(op: str) -> None:
    check(drawn(op, 0, 3), host())


@pytest.mark.parametrize("isa", [AVX2, SSE2], ids=lambda i: i.name)
def test_other_instruction_sets(isa: Isa) -> None:
    check([t for op in (*LAYERS, *STATES) for t in drawn(op, 20, 1)], isa)


def test_code_for_other_machines_assembles() -> None:
    steps = Steps([drawn(op, 0, 1)[0] for op in (*LAYERS, *STATES)], NEON, is_run=False)
    assert "ret" in assembled(steps.text, NEON)


def large(op: str, batch: int, hidden: int, **attrs: Any) -> Trial:
    """Several blocks of hidden columns, and tiles of rows that do not come out even."""
    rng, gates = np.random.default_rng(hidden), {"lstm": 4, "gru": 3, "rnn": 1}[op]
    rows = gates * hidden
    dims = [(5, batch, 7), (2, rows, 7), (2, rows, hidden), (2, 2 * rows), (batch,)]
    g = Graph("large")
    dtypes = ["f32"] * 4 + ["i64"]
    inputs = [g.input(f"x{i}", Shape(d, t)) for i, (d, t) in enumerate(zip(dims, dtypes))]
    attrs |= {"extras": ("bias", "lengths"), "direction": "bidirectional"}
    arrays: list[Array] = [rng.standard_normal(d).astype(np.float32) * 0.3 for d in dims[:4]]
    arrays.append(rng.integers(0, 6, batch))
    return side_by_side(g.node(op, inputs, attrs), arrays)


@pytest.mark.parametrize("isa", [host(), AVX2], ids=lambda i: i.name)
def test_many_columns_and_rows(isa: Isa) -> None:
    sizes = ((1, 600), (13, 33))
    given = [large(op, b, h) for op in LAYERS for b, h in sizes]
    check([*given, large("gru", 13, 48, linear_before_reset=True)], isa)


@pytest.mark.parametrize("op", LAYERS)
def test_what_is_no_number_stays_so(op: str) -> None:
    """NaN and infinity go where the reference lets them, and no further."""
    trial = large(op, 3, 20)
    x = trial.arrays[0]
    x[1, 0, 2], x[2, 1, 3], x[0, 2, 0] = np.nan, np.inf, -0.0
    check([trial], host())


def wide(op: str, dims: Sequence[tuple[int, ...]], **attrs: Any) -> Trial:
    """Several blocks of columns, the last not whole."""
    rng, g = np.random.default_rng(len(dims)), Graph("wide")
    inputs = [g.input(f"x{i}", Shape(d, "f32")) for i, d in enumerate(dims)]
    arrays: list[Array] = [rng.standard_normal(d).astype(np.float32) * 0.3 for d in dims]
    return side_by_side(g.node(op, inputs, attrs), arrays)


@pytest.mark.parametrize("isa", [host(), AVX2], ids=lambda i: i.name)
def test_matrices_of_many_columns(isa: Isa) -> None:
    lead = (2, 6)
    heads = {"num_heads": 6, "kv_heads": 2}
    given = [
        wide("selective_scan", [(*lead, 75)] * 2 + [(75, 16)] + [(*lead, 16)] * 2),
        wide("mamba2", [(*lead, 4, 70), (*lead, 4), (4,), (*lead, 2, 9), (*lead, 2, 9)]),
        wide("gated_delta_net", [(*lead, 3, 20)] * 2 + [(*lead, 3, 69)] + [(*lead, 3)] * 2),
        wide("linear_attention", [(*lead, 60), (*lead, 20), (*lead, 80)], **heads, rule="linear"),
    ]
    check(given, isa)
