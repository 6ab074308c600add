"""Named algorithms as launches, against the meaning of their ops: drawn cases in any layout."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.backends.gpu.library import pool
from rlx.backends.gpu.library.table import DEDICATED, PRIMITIVES
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.task import Launch
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.extent import CAPACITY_EXCEEDED
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.fuzz.judge import Expected, compare
from rlx.ir.mir import Node
from rlx.ops.op import lookup
from tests.backend.gpu import laws
from tests.backend.gpu.launches import node_of, run_special, schedule_of, special_of

Array = np.ndarray[Any, Any]
SMALL = GpuMachine(block=64, max_block=64, has_dependent_launch=True)
OPS = [op for row in (*DEDICATED, *PRIMITIVES) for op in row.ops if not lookup(op).why_no_cases]


SERIAL = ("cholesky", "triangular_solve")
"""Row after row, which takes the interpreter long: the third case is a large one."""


def layouts(shapes: Any, rng: Any, *, is_strided: bool) -> tuple[Layout, ...]:
    """Contiguous ones; or at an offset, with the axes in another order and every second element."""
    if not is_strided:
        return tuple(Layout.contiguous(s.dims) for s in shapes)
    made: list[Layout] = []
    for shape in shapes:
        perm = [int(p) for p in rng.permutation(len(shape.dims))]
        plain = Layout.contiguous([shape.dims[p] for p in perm], 0)
        turned = plain.permuted([perm.index(i) for i in range(len(perm))])
        step, offset = int(rng.integers(1, 3)), int(rng.integers(0, 5))
        made.append(Layout(turned.dims, tuple(s * step for s in turned.strides), offset))
    return tuple(made)


def wrong(made: laws.Applied, machine: GpuMachine, *, is_strided: bool) -> list[str]:
    """What the launches of a drawn case compute wrongly."""
    node, rng = made.node, np.random.default_rng(zlib.crc32(str(made.case).encode()))
    sources = layouts([i.shape for i in node.inputs], rng, is_strided=is_strided)
    measures = bool(node.decl.measures)
    targets = layouts(node.shapes, rng, is_strided=is_strided and not measures)
    special = special_of(node, sources, targets)
    operands = [made.values[f"x{i}"] for i in range(len(made.values))]
    expected = Expected(made.graph, made.values)
    shapes = [(a.shape, a.dtype) for a in expected.plain]
    sizes = {f"{node.attrs['extent']}.capacity": 5000} if measures else {}
    schedule = schedule_of(special, machine)
    results, found = run_special(special, schedule, operands, shapes, sizes, int(measures))
    faults = [m.message for m in compare("gpu", expected, results)]
    if measures and found[0] not in {d for a in expected.plain for d in a.shape}:
        faults.append(f"the measured size is {found[0]}")
    return [f"{m} in {made.case}, strided {is_strided}" for m in faults]


@pytest.mark.parametrize("name", OPS)
def test_drawn_cases(name: str) -> None:
    found: list[str] = []
    for number, made in enumerate(laws.drawn(lookup(name), 0, 2 if name in SERIAL else 4)):
        found += wrong(made, SMALL, is_strided=number % 2 == 1)
    assert not found, "\n".join(found)


# -- scatter --------------------------------------------------------------------------------------

I, P, N = Dim("i", 0, 500), Dim("p", 1, 90), Dim("n", 1, 100)


def run(node: Node, *operands: Array, measures: int = 0, dims: Any = None, **sizes: int) -> Any:
    """The results and measured sizes of contiguous operands; dims of what is measured are given."""
    special = special_of(node)
    shapes = [(dims or s.bind(sizes).static_dims, s.dtype.numpy) for s in node.shapes]
    schedule = schedule_of(special, SMALL)
    return run_special(special, schedule, operands, shapes, sizes, measures)


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("dtype", ["f16", "c64", "i32"])
@pytest.mark.parametrize("count", [0, 300])
def test_updates_are_applied_in_order(reduction: str, dtype: str, count: int) -> None:
    """Repeated indices; half floats are summed in f32 and rounded once."""
    kind = DType.of(dtype)
    if kind.is_complex and reduction in ("max", "min"):
        pytest.skip("complex numbers have no order")
    rng = np.random.default_rng(count)
    few = np.array([-1, 1, 1, -1, 2], kind.numpy)  # products of many stay in range
    x, updates = (rng.choice(few, d) for d in ((2, 40, 3), (2, count, 3)))
    indices = rng.integers(0, 40, count)
    shapes = Shape((2, P, 3), kind), Shape((I,), DType.I64), Shape((2, I, 3), kind)
    node = node_of("scatter", *shapes, axis=1, reduction=reduction)
    (got,), _ = run(node, x, indices, updates, i=count, p=40)
    wide = kind.compute.numpy
    want = ops.scatter(x.astype(wide), indices, updates.astype(wide), axis=1, reduction=reduction)
    np.testing.assert_array_equal(got, want.astype(kind.numpy))


@pytest.mark.parametrize("name", ["take_along_axis", "scatter", "scatter_add"])
@pytest.mark.parametrize("count", [3, 300])
def test_an_index_out_of_range_is_reported(name: str, count: int) -> None:
    x = np.zeros(20, np.float32)
    shapes = Shape((20,), DType.F32), Shape((count,), DType.I64), Shape((count,), DType.F32)
    given = shapes[: 2 if name == "take_along_axis" else 3]
    node = node_of(name, *given, axis=0)
    for bad in (-1, 20, 1 << 40):
        indices = np.zeros(count, np.int64)
        indices[-1] = bad
        with pytest.raises(Error, match="out of range"):
            run(node, *(x, indices, np.zeros(count, np.float32))[: len(given)])


# -- measured sizes -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 6000])
def test_ranks_of_many_blocks(size: int) -> None:
    x = np.random.default_rng(size).random((3, size)) < 0.4
    node = node_of("nonzero", Shape((3, Dim("n")), DType.BOOL), at_most=None)
    want = np.stack(np.nonzero(x))
    (got,), (found,) = run(node, x, measures=1, dims=want.shape, n=size)
    assert found == want.shape[1]
    np.testing.assert_array_equal(got, want)


def test_more_than_the_bound_is_reported() -> None:
    node = node_of("nonzero", Shape((100,), DType.I32), at_most=7)
    with pytest.raises(Error, match="more elements are not 0 than at_most"):
        run(node, np.ones(100, np.int32), measures=1, dims=(1, 100))
    scalars = [np.array(v, np.int64) for v in (0, 1000, 1)]
    node = node_of("arange", *(Shape((), DType.I64),) * 3, at_most=None)
    name = node.attrs["extent"]
    with pytest.raises(Error, match=CAPACITY_EXCEEDED):
        run(node, *scalars, measures=1, dims=(16,), **{f"{name}.capacity": 16})
    with pytest.raises(Error, match="no range"):
        run(node, *scalars[:2], np.array(0), measures=1, dims=(16,), **{f"{name}.capacity": 16})


@pytest.mark.parametrize(
    ("ends", "dtype"),
    [
        ((5, -5, -3), "i8"),
        ((-(2**63), 2**63 - 1, 2**61), "i64"),
        ((0, 2**64 - 1, 2**62), "u64"),
        ((1.0, 0.0, -0.3), "f32"),
        ((0.0, 1.0, 0.125), "f16"),
        ((3, 3, 1), "i32"),
    ],
)
def test_ranges(ends: tuple[float, float, float], dtype: str) -> None:
    kind = DType.of(dtype)
    scalars = [np.array(v, kind.numpy) for v in ends]
    node = node_of("arange", *(Shape((), kind),) * 3, at_most=100)
    want = lookup("arange").reference(*scalars, at_most=100, extent="e")
    (got,), (found,) = run(node, *scalars, measures=1, dims=want.shape)
    assert found == len(want)
    np.testing.assert_allclose(got, want, rtol=2.0**-22)  # a product and a sum


def test_sizes_are_compared() -> None:
    node = node_of("same_size", Shape((), DType.I32), Shape((), DType.I32))
    (got,), _ = run(node, np.array(7, np.int32), np.array(7, np.int32))
    assert got == 0
    with pytest.raises(Error, match="two sizes"):
        run(node, np.array(-1, np.int32), np.array(7, np.int32))


# -- boxes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [3, 1000])
@pytest.mark.parametrize("threshold", [None, 0.6])
@pytest.mark.parametrize("shared_bytes", [48 << 10, 600])
def test_boxes_of_several_chunks(most: int, threshold: float | None, shared_bytes: int) -> None:
    """Selected boxes in shared memory, and where they do not fit it; equal scores and NaN."""
    rng = np.random.default_rng(most)
    corners = rng.random((2, 100, 2)) * 10
    boxes = np.concatenate([corners, corners + rng.random((2, 100, 2)) * 3], 2).astype(np.float32)
    scores = np.round(rng.random((2, 3, 100)), 2).astype(np.float32)
    scores[0, 1, :70] = np.nan
    attrs = {"max_output_boxes_per_class": most, "iou_threshold": 0.3, "score_threshold": threshold}
    shapes = Shape((2, N, 4), DType.F32), Shape((2, 3, N), DType.F32)
    node = node_of("non_max_suppression", *shapes, **attrs)
    want = lookup("non_max_suppression").reference(
        boxes, scores, **attrs, center_point_box=False, extent="e"
    )
    special = special_of(node)
    machine = GpuMachine(block=64, max_block=64, shared_bytes=shared_bytes)
    schedule, results = schedule_of(special, machine), [(want.shape, np.int64)]
    made = run_special(special, schedule, [boxes, scores], results, {"n": 100}, 1)
    np.testing.assert_array_equal(made[0][0], want)
    assert made[1] == [len(want)]


@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("is_sorted", [False, True])
def test_groups_of_many_blocks(axis: int | None, is_sorted: bool) -> None:
    """NaN is no NaN's equal, zeros are equal; entries of an axis are compared number by number."""
    rng = np.random.default_rng(3)
    few = np.array([0.0, -0.0, np.nan, 1.0, 2.0, 3.0], np.float32)
    x = rng.choice(few, (2, 300) if axis is None else (3, 40, 2))
    dims = [Dim("n", 1, 300) if d >= 40 else d for d in x.shape]
    attrs = {"axis": axis, "is_sorted": is_sorted, "equal_nan": False}
    node = node_of("unique", Shape(dims, DType.F32), **attrs)
    want = lookup("unique").reference(x, **attrs, extent="e")
    special = special_of(node)
    schedule = schedule_of(special, SMALL)
    shapes, sizes = [(a.shape, a.dtype) for a in want], {"n": max(x.shape)}
    got, (found,) = run_special(special, schedule, [x], shapes, sizes, 1)
    assert found == len(want[1])
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


# -- pools ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["max_pool", "avg_pool", "lp_pool"])
def test_windows_of_many_taps_are_loops(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "MAX_UNROLLED", 0)
    found: list[str] = []
    for number, made in enumerate(laws.drawn(lookup(name), 0, 6)):
        found += wrong(made, SMALL, is_strided=number % 2 == 1)
    assert not found, "\n".join(found)


def test_channels_of_few_taps_are_vectors() -> None:
    """NHWC: channels are contiguous, and 16 bytes of them are read at once."""
    nhwc = Layout((2, 16, 9, 9), (16 * 81, 1, 16 * 9, 16))
    node = node_of("max_pool", Shape((2, 16, 9, 9), DType.BF16), kernel=(3, 3), padding=(1,) * 4)
    out = Layout((2, 16, 3, 3), (16 * 9, 1, 16 * 3, 16))
    special = special_of(node, [nhwc], [out])
    (task,) = schedule_of(special, GpuMachine()).tasks
    assert isinstance(task, Launch)
    assert "8 neighbours at a time" in task.note
