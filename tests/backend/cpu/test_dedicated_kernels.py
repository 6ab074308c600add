"""Kernels of single ops against the reference: drawn cases, their values anywhere in memory, all
units at once and one by one from the last."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from rlx.backends.cpu.isa import AVX2, NEON, SSE2, Isa, host
from rlx.backends.cpu.llvm.compile import assembled
from rlx.core.dim import Dim
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.ops import op as table
from rlx.ops.draw import Draw
from tests.backend.cpu.kernels import assert_close
from tests.backend.cpu.steps import Steps, Trial, side_by_side, trials
from tests.effort import tries

INDEXED = ("take_along_axis", "scatter", "scatter_add")
RUNNING = ("cumsum", "cumprod", "cummax", "cummin", "cum_log_sum_exp")
MEASURED = ("nonzero", "unique", "arange", "non_max_suppression")
OPS = (*INDEXED, *RUNNING, *MEASURED)
ROUNDED = ("cum_log_sum_exp",)
"""Those whose functions have their own last bits; all others do the reference's operations in the
reference's order."""
SIZES = (0, 1, 3, 17, 40, 70)
"""On both sides of a vector, and of a few."""


def drawn(op: str, cases: int) -> list[Trial]:
    found: list[Trial] = []
    for i in range(cases):
        draw = Draw([zlib.crc32(f"specials {op}".encode()), i])
        case = draw.case(table.lookup(op))
        if op == "arange":
            case.attrs["at_most"] = 5000
        found += trials(draw, case)
    return found


def check(given: list[Trial], isa: Isa) -> None:
    steps = Steps(given, isa)
    for i, trial in enumerate(given):
        want = trial.wanted()
        once = steps.run(i)
        for got, again, value in zip(once, steps.run(i, "each"), want, strict=True):
            assert got.tobytes() == again.tobytes(), f"{trial}: parts differ"
            assert_right(got, value, trial)


def assert_right(got: np.ndarray, want: np.ndarray, trial: Trial) -> None:
    if trial.node.op in ROUNDED:
        assert_close(got, want, str(trial))
        return
    assert got.dtype == want.dtype
    if want.dtype.kind in "fV":
        got, want = got.astype(np.float64), want.astype(np.float64)
    np.testing.assert_array_equal(got, want, str(trial))


@pytest.mark.parametrize("op", OPS)
def test_drawn_cases_are_as_the_reference(op: str) -> None:
    check(drawn(op, tries(5, 10)), host())


@pytest.mark.parametrize("isa", [AVX2, SSE2], ids=lambda i: i.name)
def test_other_instruction_sets(isa: Isa) -> None:
    check([t for op in OPS for t in drawn(op, 3)], isa)


def test_code_for_other_machines_assembles() -> None:
    steps = Steps([drawn(op, 1)[0] for op in OPS], NEON, is_run=False)
    assert "ret" in assembled(steps.text, NEON)


# -- longer rows ----------------------------------------------------------------------------------


def node(op: str, *shapes: Shape, **attrs: Any) -> Node:
    g = Graph(op)
    return g.node(op, [g.input(f"x{i}", s) for i, s in enumerate(shapes)], attrs)


def test_rows_longer_than_vectors_and_blocks() -> None:
    rng = np.random.default_rng(5)
    found: list[Trial] = []
    n = Dim("n", 0)
    for size in (*SIZES, 2100):
        for dims, axis in (((3, n), 0), ((3, n), 1), ((n, 5), 0)):
            x = rng.normal(size=[size if d is n else d for d in dims]).astype(np.float32)
            made = node("cumsum", Shape(dims, "f32"), axis=axis)
            found.append(side_by_side(made, [x], {"n": size}))
        x = rng.normal(size=(4, size)).astype(np.float16)
        where = rng.integers(0, 4, 9)
        updates = rng.normal(size=(9, size)).astype(np.float16)
        shapes = Shape((4, n), "f16"), Shape((9,), "i64"), Shape((9, n), "f16")
        for reduction in ("none", "add", "max"):
            made = node("scatter", *shapes, reduction=reduction)
            found.append(side_by_side(made, [x, where, updates], {"n": size}))
    check(found, host())


def test_one_index_for_a_row() -> None:
    """Indices that repeat along a row move it whole."""
    rng = np.random.default_rng(6)
    x, where = rng.normal(size=(5, 70)).astype(np.float32), rng.integers(0, 5, (3, 1))
    made = node("take_along_axis", Shape((5, 70), "f32"), Shape((3, 70), "i64"), axis=0)
    plain = side_by_side(made, [x, np.broadcast_to(where, (3, 70))])
    layouts = (plain.operands[0], Layout((3, 70), (1, 0)))
    check([Trial(made, layouts, plain.results, plain.arrays)], host())


@pytest.mark.parametrize("dtype", ["i8", "u8", "i64", "u64"])
def test_an_index_out_of_range_is_a_failure(dtype: str) -> None:
    far = {"i8": -1, "u8": 4, "i64": -1, "u64": 2**64 - 1}[dtype]
    x, where = (
        np.zeros((2, 4), np.float32),
        np.array([[0, 1], [3, far]], Shape((), dtype).dtype.numpy),
    )
    shapes = Shape((2, 4), "f32"), Shape((2, 2), dtype)
    trial = side_by_side(node("take_along_axis", *shapes, axis=1), [x, where])
    put = side_by_side(
        node("scatter_add", Shape((4,), "f32"), shapes[1], Shape((2, 2), "f32")),
        [np.zeros(4, np.float32), where, np.ones((2, 2), np.float32)],
    )
    steps = Steps([trial, put], host())
    for number in range(2):
        with pytest.raises(Error, match="out of range"):
            steps.run(number)


# -- boxes ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("center", [False, True])
def test_more_boxes_than_lanes(center: bool) -> None:
    """Many stay, many clash; scores that are equal go by index, NaN never stays."""
    rng = np.random.default_rng(7)
    boxes = rng.uniform(0, 60, (2, 300, 4))
    boxes[..., 2:] = rng.uniform(-1, 9, (2, 300, 2)) + (0 if center else boxes[..., :2])
    scores = rng.integers(-3, 40, (2, 3, 300)) / 40
    scores[rng.random(scores.shape) < 0.05] = np.nan
    boxes[rng.random((2, 300)) < 0.02] = np.nan
    found: list[Trial] = []
    for most, least, dtype in ((300, None, "f32"), (40, 0.25, "f32"), (70, 0.0, "f64")):
        arrays = [a.astype(Shape((), dtype).dtype.numpy) for a in (boxes, scores)]
        made = node(
            "non_max_suppression", *(Shape(a.shape, dtype) for a in arrays), iou_threshold=0.2,
            max_output_boxes_per_class=most, score_threshold=least, center_point_box=center,
            extent="found",
        )  # fmt: skip
        found.append(side_by_side(made, arrays))
    check(found, host())


# -- sizes that are found out ---------------------------------------------------------------------

RANGES = (
    ("f32", 0, 1, 0.1), ("f32", 1, 0, 0.1), ("f32", 5, -5, -0.7), ("f16", 0, 100, 3),
    ("bf16", 0, 100, 3), ("f64", -0.3, 1e6, 1e4), ("f32", 0, 3000, 1.5), ("f32", 2, 2, 1),
    ("i8", -128, 127, 5), ("i8", 127, -128, -1), ("u8", 3, 250, 7), ("u8", 250, 3, 7),
    ("i64", -(2**63), 2**63 - 1, 2**55), ("i64", 2**63 - 1, -(2**63), -(2**63)),
    ("u64", 0, 2**64 - 1, 2**60), ("i32", 0, 3000, 1),
)  # fmt: skip
NO_RANGES = (
    ("f32", 0, 1, 0, "no range"), ("i16", 0, 1, 0, "no range"), ("f32", 0, np.inf, 1, "no range"),
    ("f32", 0, 1, np.nan, "no range"), ("f64", -1e308, 1e308, 1e-10, "no range"),
    ("f64", 0, 1e300, 1, "at_most"), ("f32", 0, 5001, 1, "at_most"), ("i16", 0, 5001, 1, "at_most"),
    ("u64", 0, 2**64 - 1, 1, "at_most"), ("i64", -(2**63), 2**63 - 1, 1, "at_most"),
)  # fmt: skip


def ranged(dtype: str, *ends: float) -> Trial:
    shape = Shape((), dtype)
    made = node("arange", shape, shape, shape, at_most=5000, extent="found")
    return side_by_side(made, [np.array(e, shape.dtype.numpy) for e in ends])


def test_ranges() -> None:
    check([ranged(*r) for r in RANGES], host())


def test_what_is_no_range_is_a_failure() -> None:
    given = [ranged(*ends) for *ends, _ in NO_RANGES]
    steps = Steps(given, host())
    for i, (*_, text) in enumerate(NO_RANGES):
        with pytest.raises(Error, match=text):
            given[i].wanted()
        with pytest.raises(Error, match=text):
            steps.run(i)


def test_more_than_at_most_is_a_failure() -> None:
    n = Dim("n", 0)
    for at_most in (3, n - 4):
        made = node("nonzero", Shape((n,), "f32"), at_most=at_most, extent="found")
        x = np.array([0, 1, 2, -0.0, np.nan, 0, 3], np.float32)
        few = np.array([0, 1, 2, -0.0, np.nan, 0, 0], np.float32)
        given = [side_by_side(made, [a], {"n": 7}) for a in (x, few)]
        steps = Steps(given, host())
        with pytest.raises(Error, match="at_most"):
            steps.run(0)
        np.testing.assert_array_equal(steps.run(1)[0], [[1, 2, 4]])


def test_many_elements_are_found() -> None:
    rng = np.random.default_rng(7)
    n = Dim("n", 0)
    found: list[Trial] = []
    for size in (*SIZES, 2100):
        x = rng.integers(0, 3, (3, size)).astype(np.uint8)
        shape = Shape((3, n), "u8")
        found.append(side_by_side(node("nonzero", shape, extent="found"), [x], {"n": size}))
        for attrs in ({"axis": None}, {"axis": 1}, {"axis": 1, "is_sorted": False}):
            made = node("unique", shape, extent="found", **attrs)
            found.append(side_by_side(made, [x], {"n": size}))
    check(found, host())
