"""Scans as launches: cumulative ops, state-space and recurrent layers, against their meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.gpu.lower.scan.launch import scan_schedule
from rlx.backends.gpu.lower.scan.steps import directions
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.scan import by_blocks, by_channels
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.fuzz.judge import Expected, compare
from rlx.ir.mir import Graph, Node
from rlx.kernel import scan as meaning
from rlx.kernel.lower.recurrent import LAYERS
from rlx.kernel.lower.scan import COMBINE, lower_scan
from rlx.kernel.lower.state_space import STATE_SPACES
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal
from rlx.kernel.scan import Scan
from rlx.ops import op as table
from rlx.program import nodes as ir
from tests.backend.gpu import laws
from tests.backend.gpu.regions import reversed_rows, span, strided, transposed, view

Array = np.ndarray[Any, Any]
F32, BF16, F64 = DType.F32, DType.BF16, DType.F64
B, T = rlx.Dim("b", 0, 500), rlx.Dim("t", 0, 500)
SCANS = [*COMBINE, *LAYERS, *STATE_SPACES]


def scheduled(scan: Scan, machine: GpuMachine = laws.SMALL) -> Schedule[GpuTask]:
    made = scan_schedule(scan, machine, "k", frozenset())
    assert not isinstance(made, Refusal), made.reason
    return made


@pytest.mark.parametrize("name", SCANS)
def test_laws_of_scans(name: str) -> None:
    """Drawn applications, judged as the fuzzer judges targets; none is left to the host."""
    for made in laws.drawn(table.lookup(name), 0, 4):
        form = lower_scan(made.node)
        assert isinstance(form, Scan)
        operands = [made.values[f"x{i}"] for i in range(len(made.values))]
        shapes = [o.shape for o in made.graph.outputs]
        results = laws.run_schedule(scheduled(form), operands, shapes)
        found = compare("gpu", Expected(made.graph, made.values), results)
        assert not found, f"{found[0].message} in {made.case}"


def built(build: Callable[..., Node], *shapes: Shape) -> Node:
    graph = Graph("scan")
    return build(*(graph.input(f"x{i}", s) for i, s in enumerate(shapes)))


def check(
    form: Scan,
    operands: Sequence[Array],
    machine: GpuMachine = laws.SMALL,
    sizes: Mapping[str, int] | None = None,
    tolerance: float = 1e-5,
) -> None:
    """The launches against the meaning, on buffers as the index maps count them."""
    known = dict(sizes or {})
    shapes = [s.bind(known) for s in form.results]
    want = [np.zeros(int(np.prod(s.static_dims)), s.dtype.numpy) for s in shapes]
    meaning.run_into(form, operands, want, known)
    got = laws.run_schedule(scheduled(form, machine), operands, form.results, known)
    for a, b in zip(got, want, strict=True):
        x, y = a.reshape(-1).astype(np.float64), b.astype(np.float64)
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)


def random(rng: np.random.Generator, shape: Shape, sizes: Mapping[str, int]) -> Array:
    dims = shape.bind(sizes).static_dims
    return (rng.normal(size=int(np.prod(dims))) * 0.5).astype(shape.dtype.numpy)


# -- channels -------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [Layout.contiguous, transposed, strided, reversed_rows])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_cumulative_ops_of_any_layout(axis: int, layout: Callable[[Any], Layout]) -> None:
    shape = Shape((3, 19, 7), F32)
    node = built(lambda x: ops.cumsum(x, axis=axis, reverse=axis == 1), shape)
    source = layout(shape.dims if layout == Layout.contiguous else shape)
    form = lower_scan(node, [source], [Layout.contiguous(shape.dims)])
    assert isinstance(form, Scan)
    x = np.random.default_rng(axis).normal(size=span(source)).astype(np.float32)
    (got,) = laws.run_schedule(scheduled(form), [x], form.results)
    given = view(source, x).astype(np.float64)
    flipped = np.flip(given, 1) if axis == 1 else given
    want = np.cumsum(flipped, axis=axis)
    want = np.flip(want, 1) if axis == 1 else want
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("sizes", [{"b": 5, "t": 11}, {"b": 1, "t": 1}, {"b": 3, "t": 0}])
@pytest.mark.parametrize("op", [ops.cumsum, ops.cumprod, ops.cummax])
def test_named_dims_of_cumulative_ops(op: Any, sizes: dict[str, int]) -> None:
    shape = Shape((B, T), F32)
    form = lower_scan(built(lambda x: op(x, axis=1), shape))
    assert isinstance(form, Scan)
    check(form, [random(np.random.default_rng(1), shape, sizes)], sizes=sizes)


PREFIXES: dict[str, tuple[Any, Shape, dict[str, Any], bool]] = {
    "row": (ops.cumsum, Shape((1, 5000), F32), {"axis": 1}, True),
    "rows": (ops.cumsum, Shape((40, 130), F32), {"axis": 1}, False),
    "vectors": (ops.cumprod, Shape((9, 640), BF16), {"axis": 1}, False),
    "reversed": (ops.cummax, Shape((2, 3001), F32), {"axis": 1, "reverse": True}, True),
    "exclusive": (ops.cumsum, Shape((2, 4096), BF16), {"axis": 1, "exclusive": True}, True),
    "integers": (ops.cumsum, Shape((3, 2500), DType.I32), {"axis": 1}, True),
    "columns": (ops.cumsum, Shape((130, 300), F32), {"axis": 0}, True),
    "columns, reversed": (ops.cummin, Shape((131, 257), F32), {"axis": 0, "reverse": True}, True),
    "few columns": (ops.cumsum, Shape((3000, 3), F32), {"axis": 0, "exclusive": True}, True),
    "named": (ops.cumsum, Shape((2, T), F32), {"axis": 1}, False),
    "named, long": (ops.cumsum, Shape((2, rlx.Dim("t", 4000)), F32), {"axis": 1}, True),
}  # fmt: skip


def accumulated(op: Any, x: Array, axis: int, reverse: bool, exclusive: bool) -> Array:
    """By NumPy, in f64."""
    fold = {ops.cumsum: np.add, ops.cumprod: np.multiply, ops.cummax: np.maximum}
    flip = (lambda y: np.flip(y, axis)) if reverse else lambda y: y
    made = fold.get(op, np.minimum).accumulate(flip(x.astype(np.float64)), axis=axis)
    if exclusive:
        made = np.roll(made, 1, axis)
        np.moveaxis(made, axis, 0)[0] = 0.0
    return flip(made)


@pytest.mark.parametrize("name", PREFIXES)
def test_prefix_scans(name: str) -> None:
    """Along rows by blocks, along strided time axes by threads, in chunks where rows are few."""
    op, shape, attrs, is_split = PREFIXES[name]
    sizes = {"t": 4321 if is_split else 321}
    form = lower_scan(built(lambda x: op(x, **attrs), shape))
    assert isinstance(form, Scan)
    assert (len(scheduled(form).tasks) > 1) == is_split
    x = np.random.default_rng(len(name)).normal(size=shape.bind(sizes).static_dims) * 3
    given = (1.0 + x / 900 if op is ops.cumprod else x).astype(shape.dtype.numpy)
    want = accumulated(op, given, **{"reverse": False, "exclusive": False} | attrs)
    (got,) = laws.run_schedule(scheduled(form), [given], form.results, sizes)
    digits = 2.0**-8 if shape.dtype is BF16 else 2.0**-23
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=digits, atol=digits)


STATES = [(3, 1), (16, 1), (17, 2), (40, 4), (300, 32)]


@pytest.mark.parametrize(("rows", "lanes"), STATES)
def test_rows_of_a_state_are_shared_by_threads(rows: int, lanes: int) -> None:
    sizes = {"b": 2, "t": 5}
    shapes = [Shape(d, F32) for d in ((B, T, 6), (B, T, 6), (6, rows), (B, T, rows), (B, T, rows))]
    form = lower_scan(built(lambda *x: _first(ops.selective_scan(*x)), *shapes))
    assert isinstance(form, Scan)
    (kernels,) = directions(form)
    choice = by_channels(kernels, laws.SMALL)
    assert not isinstance(choice, Refusal)
    assert (choice.lanes, choice.lanes * choice.slots >= rows) == (lanes, True)
    rng = np.random.default_rng(rows)
    operands = [random(rng, s, sizes) for s in shapes]
    operands[1] = np.abs(operands[1])
    operands[2] = -np.abs(operands[2])
    check(form, operands, sizes=sizes)


def _first(made: Any) -> Node:
    return made[0].inputs[0] if isinstance(made, tuple | list) else made


def test_carries_stay_in_registers() -> None:
    form = lower_scan(built(lambda x: ops.cumsum(x, axis=0), Shape((64, 300), F32)))
    assert isinstance(form, Scan)
    (task,) = scheduled(form, replace(laws.SMALL, processors=1)).tasks
    assert isinstance(task, Launch)
    program = task.program()
    assert not program.shared
    assert sum(isinstance(n, ir.For) for n in program.nodes) == 1
    assert [b.name for b in program.buffers] == ["x0", "y0"]


# -- recurrent layers -----------------------------------------------------------------------------


def lstm(batch: Any, length: Any, hidden: int, inputs: int, ways: int = 1) -> tuple[Scan, Any]:
    gates = 4 * hidden
    dims = [(length, batch, inputs), (ways, gates, inputs), (ways, gates, hidden)]
    shapes = [Shape(d, F32) for d in dims]
    way = "bidirectional" if ways == 2 else "forward"
    form = lower_scan(built(lambda *x: _first(ops.lstm(*x, direction=way)), *shapes))
    assert isinstance(form, Scan)
    return form, shapes


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize(("batch", "hidden"), [(1, 5), (4, 33), (6, 70)])
def test_recurrent_layers(batch: int, hidden: int, ways: int) -> None:
    form, shapes = lstm(batch, 4, hidden, 3, ways)
    rng = np.random.default_rng(hidden)
    check(form, [random(rng, s, {}) for s in shapes])


@pytest.mark.parametrize("sizes", [{"b": 3, "t": 4}, {"b": 1, "t": 1}, {"b": 2, "t": 0}])
def test_named_dims_of_recurrent_layers(sizes: dict[str, int]) -> None:
    form, shapes = lstm(B, T, 9, 4, 2)
    rng = np.random.default_rng(3)
    check(form, [random(rng, s, sizes) for s in shapes], sizes=sizes)


def test_directions_with_the_same_steps_are_one_launch() -> None:
    form, _ = lstm(4, 7, 16, 8, 2)
    tasks = scheduled(form).tasks
    steps = tasks[-1]
    assert isinstance(steps, Launch)
    assert len(tasks) == 2  # the inputs' product, then all steps
    assert steps.program().grid[1] == 2


def test_values_of_a_block_are_in_shared_memory_where_they_fit() -> None:
    form, shapes = lstm(4, 3, 24, 8)
    (kernels,) = directions(form)
    choice = by_blocks(kernels, laws.SMALL)
    assert not isinstance(choice, Refusal)
    assert choice.width == 4
    assert set(choice.local) == {"h", "c", "past0"}
    small = replace(laws.SMALL, shared_bytes=1024)
    few = by_blocks(kernels, small)
    assert not isinstance(few, Refusal)
    assert set(few.local) == {"h", "c"}
    rng = np.random.default_rng(4)
    check(form, [random(rng, s, {}) for s in shapes], small)


def test_a_dependent_scan_waits_first() -> None:
    machine = replace(laws.SMALL, has_dependent_launch=True)
    form = lower_scan(built(lambda x: ops.cumsum(x, axis=0), Shape((9, 5), BF16)))
    assert isinstance(form, Scan)
    (task,) = scheduled(form, machine).tasks
    assert isinstance(task, Launch)
    order = [type(n) for n in task.program().nodes]
    assert order[:2] == [ir.ReleaseDependents, ir.WaitDependencies]
