"""The planner: placement, views, in-place reuse, and plans that give the right values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.core.dim import Dim, evaluate
from rlx.core.dtype import DType
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.cost.target import Target
from rlx.ir.interpret import evaluate as oracle
from rlx.ir.interpret import evaluate_node
from rlx.ir.lir import LirModule, Phase, Space
from rlx.ir.mir import Graph, Node
from rlx.plan.arena import (
    FreeList,
    Placement,
    Span,
    fit_by_area,
    fit_by_size,
    peak_bytes,
    place,
    sweep,
    sweep_back,
)
from rlx.plan.check.checker import check
from rlx.plan.planner import plan_module

CPU, TPU = Target.of("cpu"), Target.of("tpu")
N = Dim("n", 1, 300)


def plan(graph: Graph, target: Target = CPU) -> LirModule:
    """A plan that the checker finds nothing wrong with."""
    lir = plan_module(graph, target)
    assert check(lir) == []
    return lir


# -- running a plan in its own memory -------------------------------------------------------------


def run(lir: LirModule, values: Mapping[str, Any], sizes: Mapping[str, int]) -> list[Any]:
    """The outputs of the plan executed kernel by kernel, in an arena full of garbage."""
    plan, graph = lir.plan, lir.mir.graph
    bound = plan.bind(sizes)
    memory = {
        Space.ARENA: np.full(bound.arena_bytes, 0xA5, np.uint8),
        Space.WEIGHTS: np.full(bound.weight_bytes, 0xA5, np.uint8),
    }

    def array(node: Node) -> Any:
        dims, dtype = bound.shapes[node], node.shape.dtype
        layout = bound.layouts.get(node) or Layout.contiguous(dims)
        strides = [s * dtype.itemsize for s in layout.strides]
        if 0 in dims:
            return np.empty(dims, dtype.numpy)
        where = memory[plan.slot(node).space]
        return np.ndarray(dims, dtype.numpy, where, bound.offsets[node], strides)

    for leaf in (n for n in graph.order() if n.is_leaf):
        given = leaf.attrs["value"].array if leaf.op == "constant" else values[leaf.attrs["name"]]
        array(leaf)[...] = given
    for kernel in plan.schedule:
        made = evaluate_node(kernel, [array(i) for i in kernel.inputs], sizes)
        if not kernel.has_items:
            array(kernel)[...] = made
        for item in (n for n in graph.nodes if n.op == "item" and n.inputs[0] is kernel):
            array(item)[...] = made[item.attrs["index"]]
    return [array(o).copy() for o in graph.outputs]


# -- random graphs --------------------------------------------------------------------------------


@dataclass
class Builder:
    """Random graphs of whole numbers, so that every way to compute a value gives the same bits."""

    rng: np.random.Generator
    graph: Graph
    rows: Sequence[Any]
    values: list[Node]

    def pick(self, *, rank: int | None = None) -> Node:
        fits = [v for v in self.values if rank is None or v.shape.rank == rank]
        return fits[int(self.rng.integers(len(fits)))]

    def like(self, x: Node, axis: int | None = None) -> Node:
        """A value of x's shape, but for one axis, and x's dtype."""

        def key(v: Node) -> tuple[Any, ...]:
            return tuple(d for i, d in enumerate(v.shape.dims) if i != axis)

        fits = [v for v in self.values if v.shape.rank == x.shape.rank and key(v) == key(x)]
        return self.graph.cast(fits[int(self.rng.integers(len(fits)))], to=x.shape.dtype)

    def grow(self) -> None:
        steps = [self.binary, self.binary, self.unary, self.move, self.move, self.join, self.other]
        made = steps[int(self.rng.integers(len(steps)))]()
        self.values += made if isinstance(made, tuple) else [made]

    def binary(self) -> Node:
        x = self.pick()
        y = (
            self.graph.sum(self.like(x), axes=(-1,), keepdims=True)
            if self.chance()
            else self.like(x)
        )
        return (self.graph.add, self.graph.mul, self.graph.sub)[int(self.rng.integers(3))](x, y)

    def unary(self) -> Node:
        x = self.pick()
        dtypes = (DType.I32, DType.I64, DType.I16)
        return (
            self.graph.cast(x, to=dtypes[int(self.rng.integers(3))])
            if self.chance()
            else self.graph.neg(x)
        )

    def move(self) -> Node:
        x, g = self.pick(rank=2), self.graph
        rows, columns = x.shape.dims
        return (
            lambda: g.transpose(x, perm=(1, 0)),
            lambda: g.reshape(x, dims=(columns, rows)),
            lambda: g.flip(x, axes=(int(self.rng.integers(2)),)),
            lambda: g.narrow(x, axis=0, start=0, length=rows),
            lambda: g.squeeze(g.expand_dims(x, axes=(0,)), axes=(0,)),
            lambda: g.expand(g.sum(x, axes=(0,), keepdims=True), dims=(rows, columns)),
            lambda: g.narrow(g.concat([x, x], axis=0), axis=0, start=rows, length=rows),
        )[int(self.rng.integers(7))]()

    def join(self) -> Node:
        """A concat back to a known shape, so that sizes do not run away."""
        x, axis = self.pick(rank=2), int(self.rng.integers(2))
        size = x.shape.dims[axis]
        both = self.graph.concat([self.graph.neg(x), self.graph.abs(self.like(x))], axis=axis)
        return (
            self.graph.narrow(both, axis=axis, start=size, length=size) if self.chance() else both
        )

    def other(self) -> Node | tuple[Node, ...]:
        x, g = self.pick(rank=2), self.graph
        if self.chance():
            w = self.like(x)
            return g.matmul(g.matmul(x, g.transpose(w, perm=(1, 0))), w)
        columns = x.shape.dims[1]
        if isinstance(columns, int) and columns > 1:
            return g.split(x, sizes=(1, columns - 1), axis=1)
        return g.top_k(x, k=1, axis=-1)

    def chance(self) -> bool:
        return bool(self.rng.integers(2))


def random_graph(seed: int, rows: Sequence[Any]) -> Graph:
    rng, g = np.random.default_rng(seed), Graph(f"random{seed}")
    leaves = [
        g.input("x", Shape([rows[0], 6], "i64")),
        g.param("w", Shape([6, 6], "i64")),
        g.input("y", Shape([rows[1], 6], "i32")),
        g.constant(np.arange(12).reshape(2, 6)),
    ]
    builder = Builder(rng, g, rows, leaves)
    for _ in range(int(rng.integers(1, 30))):
        builder.grow()
    count = int(rng.integers(1, 5))
    outputs = [builder.values[int(i)] for i in rng.integers(0, len(builder.values), count)]
    g.set_outputs([*outputs, builder.values[-1]])
    return g


def random_values(graph: Graph, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {n.attrs["name"]: n.shape.bind(sizes) for n in graph.leaves}
    return {k: rng.integers(-9, 9, s.static_dims).astype(s.dtype.numpy) for k, s in shapes.items()}


@pytest.mark.parametrize("target", [CPU, TPU], ids=["strided", "contiguous"])
@pytest.mark.parametrize("seed", range(60))
def test_random_plans_are_sound_and_give_the_oracles_values(seed: int, target: Target) -> None:
    graph = random_graph(seed, [4, 7])
    lir = plan(graph, target)
    values = random_values(graph, {}, seed)
    for got, want in zip(run(lir, values, {}), oracle(graph, values), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", range(40))
def test_random_dynamic_plans_are_right_at_every_size(seed: int) -> None:
    graph = random_graph(seed, [N, 7] if seed % 2 else [N, N * 2 + 1])
    lir = plan(graph)
    for n in (1, 2, 13, 128):
        values = random_values(graph, {"n": n}, seed)
        for got, want in zip(run(lir, values, {"n": n}), oracle(graph, values), strict=True):
            np.testing.assert_array_equal(got, want)


# -- an arena is as small as what lives at once ---------------------------------------------------


def live_peak(lir: LirModule) -> int:
    """Bytes of rounded buffers alive at the busiest step, found step by step from the graph.

    Inputs are there throughout, outputs from their kernel to the end; a buffer that is taken over
    in place counts once.
    """
    plan, graph = lir.plan, lir.mir.graph
    steps = list(plan.schedule)
    heir = {plan.root(old): new for new, old in plan.in_place.items()}

    def made_by(kernel: Node) -> set[Node]:
        items = [n for n in graph.nodes if n.op == "item" and n.inputs[0] is kernel]
        return {plan.root(m) for m in (items if kernel.has_items else [kernel])}

    busiest = 0
    for t in range(len(steps)):
        made = {root for k in steps[: t + 1] for root in made_by(k)}
        wanted = {plan.root(i) for k in steps[t:] for i in k.inputs} | made_by(steps[t])
        wanted |= {plan.root(o) for o in graph.outputs}
        alive = (made & wanted) | set(graph.inputs)
        alive = {r for r in alive if plan.slot(r).space is Space.ARENA}
        alive -= {r for r in alive if heir.get(r) is steps[t]}
        busiest = max(busiest, sum(-(-r.shape.size_bytes // 64) * 64 for r in alive))
    return busiest


def block(graph: Graph, x: Node, i: int, rows: Any, width: int) -> Node:
    """Something like a transformer's layer: a residual around a wide and a narrow product."""
    up = graph.param(f"up{i}", Shape([width, 5 * width]))
    down = graph.param(f"down{i}", Shape([5 * width, width]))
    mixed = graph.matmul(graph.neg(graph.mul(x, x)), up)
    mixed = graph.matmul(graph.transpose(graph.transpose(mixed, perm=(1, 0)), perm=(1, 0)), down)
    return graph.add(x, mixed)


def layers(count: int, rows: Any, width: int = 16) -> Graph:
    g = Graph("layers")
    x = g.input("x", Shape([rows, width]))
    for i in range(count):
        x = block(g, x, i, rows, width)
    g.set_outputs([x])
    return g


def test_layers_take_what_one_layer_takes() -> None:
    """x, the residual, and the wide product: 1 + 1 + 5 + 1 widths where the product is read."""
    lir = plan(layers(12, 64))
    unit = 64 * 16 * 4
    assert lir.arena_bytes == live_peak(lir) == 8 * unit
    assert lir.plan.bytes_saved == lir.plan.total_unshared_bytes - lir.arena_bytes > 0


@pytest.mark.parametrize("seed", range(40))
def test_random_arenas_are_near_the_peak(seed: int) -> None:
    lir = plan(random_graph(seed, [40, 70]))
    assert live_peak(lir) <= lir.arena_bytes <= 1.10 * live_peak(lir)


def test_a_chain_is_computed_in_two_buffers_and_near_linear_time() -> None:
    g = Graph("chain")
    g.traces_lines = False
    y = g.input("x", Shape([1024]))
    for _ in range(2000):
        y = g.node("neg", (g.node("mul", (y, y)),))
    g.set_outputs([y])
    lir = plan(g)
    assert lir.arena_bytes == 2 * 4096
    assert len(lir.plan.in_place) == 3999


# -- placement ------------------------------------------------------------------------------------

SPANS = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 20), st.integers(0, 9)).map(
        lambda t: Span(64 * t[0], t[1], t[1] + t[2])
    ),
    max_size=30,
)


def overlaps(spans: Sequence[Span], placed: Placement) -> bool:
    boxes = [(o, o + s.size, s) for o, s in zip(placed.offsets, spans) if s.size]
    return any(
        a[0] < b[1] and b[0] < a[1] and a[2].birth <= b[2].death and b[2].birth <= a[2].death
        for i, a in enumerate(boxes)
        for b in boxes[:i]
    )


@settings(max_examples=150, deadline=None)
@given(SPANS)
def test_every_placement_is_apart_and_inside(spans: list[Span]) -> None:
    for method in (sweep, sweep_back, fit_by_size, fit_by_area, place):
        placed = method(spans)
        assert placed is not None
        assert not overlaps(spans, placed)
        ends = [o + s.size for o, s in zip(placed.offsets, spans)]
        assert max(ends, default=0) <= placed.total
        assert placed.total >= peak_bytes(spans)


def test_free_blocks_merge() -> None:
    free = FreeList()
    a, b, c = (free.take(64) for _ in range(3))
    free.give(a, 64)
    free.give(c, 64)
    free.give(b, 64)
    assert free.take(192) == 0
    assert free.top == 192


def test_a_top_block_that_is_free_grows() -> None:
    free = FreeList()
    keep, last = free.take(64), free.take(64)
    free.give(last, 64)
    assert free.take(256) == keep + 64
    assert free.top == 320


# -- views ----------------------------------------------------------------------------------------


def square(name: str = "g") -> tuple[Graph, Node]:
    g = Graph(name)
    return g, g.input("x", Shape([8, 16]))


def test_contiguous_movements_are_views_everywhere() -> None:
    g, x = square()
    y = g.reshape(g.narrow(g.neg(x), axis=0, start=2, length=4), dims=(4, 4, 4))
    z = g.squeeze(g.expand_dims(y, axes=(0,)), axes=(0,))
    g.set_outputs([g.abs(z)])
    lir = plan(g, TPU)
    assert [n.op for n in lir.plan.schedule] == ["neg", "abs"]
    (view,) = {lir.plan.views[n].layout for n in lir.plan.views if n.op == "squeeze"}
    assert view == Layout.contiguous((4, 4, 4), 32)
    assert all(lir.plan.is_view(n) for n in lir.mir.graph.nodes if n.op == "reshape")


@pytest.mark.parametrize(("target", "copies"), [(CPU, 0), (TPU, 1)])
def test_strided_movements_are_views_where_kernels_read_them(target: Target, copies: int) -> None:
    g, x = square()
    g.set_outputs([g.abs(g.transpose(g.neg(x), perm=(1, 0)))])
    lir = plan(g, target)
    assert [n.op for n in lir.plan.schedule].count("transpose") == copies


def test_a_reshape_that_does_not_nest_is_a_copy() -> None:
    g, x = square()
    g.set_outputs([g.abs(g.reshape(g.transpose(x, perm=(1, 0)), dims=(128,)))])
    assert [n.op for n in plan(g).plan.schedule] == ["reshape", "abs"]


def test_an_output_that_is_all_of_a_result_is_written_by_its_kernel() -> None:
    g, x = square()
    g.set_outputs([g.reshape(g.neg(x), dims=(128,))])
    lir = plan(g)
    assert [n.op for n in lir.plan.schedule] == ["neg"]
    assert lir.plan.slot(lir.plan.io.outputs[0]).is_external


def test_outputs_never_share_memory() -> None:
    g, x = square()
    y = g.neg(x)
    outputs = [
        g.reshape(y, dims=(128,)),
        y,
        g.reshape(y, dims=(2, 64)),
        g.transpose(y, perm=(1, 0)),
        y,
    ]
    g.set_outputs(outputs)
    lir = plan(g)
    ops = [n.op for n in lir.plan.schedule]
    assert ops.count("neg") == 1
    assert ops.count("reshape") == 2
    assert ops.count("transpose") == 1
    assert len({lir.plan.slot(o).offset for o in lir.plan.io.outputs}) == 4


def test_leaves_and_what_follows_from_weights_can_be_outputs() -> None:
    g, x = square()
    w = g.param("w", Shape([4]))
    c = g.constant(np.arange(3.0))
    g.set_outputs([x, w, c, g.reshape(x, dims=(128,)), g.reshape(w, dims=(2, 2)), g.neg(w), x])
    lir = plan(g)
    values = {"x": np.arange(128.0, dtype="f4").reshape(8, 16), "w": np.arange(4.0, dtype="f4")}
    for got, want in zip(run(lir, values, {}), oracle(g, values), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_view_of_an_output_reads_the_outputs_slot() -> None:
    g, x = square()
    y = g.neg(x)
    g.set_outputs([y, g.abs(g.transpose(y, perm=(1, 0)))])
    lir = plan(g)
    (view,) = lir.plan.views.values()
    assert view.root is lir.plan.io.outputs[0]


# -- in place -------------------------------------------------------------------------------------


def in_place_ops(g: Graph, target: Target = CPU) -> list[tuple[str, str]]:
    return [(k.op, v.op) for k, v in plan(g, target).plan.in_place.items()]


def test_a_dying_intermediate_is_overwritten_an_input_is_not() -> None:
    g, x = square()
    g.set_outputs([g.neg(g.abs(g.neg(x)))])
    assert in_place_ops(g) == [("abs", "neg"), ("neg", "abs")]


def test_what_is_read_later_is_not_overwritten() -> None:
    g, x = square()
    y = g.exp(x)
    g.set_outputs([g.matmul(g.neg(y), g.transpose(y, perm=(1, 0)))])
    assert in_place_ops(g) == []


def test_a_value_also_read_elsewhere_by_the_same_kernel_is_not_overwritten() -> None:
    g = Graph()
    x = g.input("x", Shape([8, 8]))
    y = g.exp(x)
    g.set_outputs([g.add(y, g.transpose(y, perm=(1, 0)))])
    assert in_place_ops(g) == []


def test_a_square_overwrites_its_operand() -> None:
    g, x = square()
    y = g.exp(x)
    g.set_outputs([g.mul(y, y)])
    assert in_place_ops(g) == [("mul", "exp")]


def test_a_broadcast_or_wider_result_does_not_fit_in_place() -> None:
    g, x = square()
    row = g.exp(g.input("row", Shape([16])))
    g.set_outputs([g.cast(g.add(x, row), to=DType.F64), g.cast(g.neg(row), to=DType.I32)])
    assert in_place_ops(g) == [("neg", "exp"), ("cast", "neg")]


def test_outputs_and_products_are_not_overwritten() -> None:
    g = Graph()
    x = g.input("x", Shape([8, 8]))
    y = g.exp(x)
    z = g.matmul(g.neg(y), x)
    g.set_outputs([y, z])
    assert in_place_ops(g) == []


def test_a_contiguous_view_of_a_dying_buffer_is_overwritten() -> None:
    g, x = square()
    g.set_outputs([g.neg(g.reshape(g.exp(x), dims=(128,)))])
    assert in_place_ops(g) == [("neg", "reshape")]
    g, x = square()
    g.set_outputs([g.neg(g.narrow(g.exp(x), axis=0, start=4, length=4))])
    assert in_place_ops(g) == []


# -- concats, several results ---------------------------------------------------------------------


def test_producers_write_into_their_slice_of_a_concat() -> None:
    g, x = square()
    inner = g.concat([g.neg(x), g.abs(x)], axis=0)
    g.set_outputs([g.concat([g.exp(x), inner], axis=0)])
    lir = plan(g, TPU)
    assert [n.op for n in lir.plan.schedule] == ["exp", "neg", "abs"]
    assert lir.arena_bytes == (8 + 24) * 16 * 4
    values = {"x": np.arange(128.0, dtype="f4").reshape(8, 16) / 64}
    np.testing.assert_array_equal(run(lir, values, {})[0], oracle(g, values)[0])


@pytest.mark.parametrize("why", ["shared", "inner axis", "leaf", "output", "twice", "unaligned"])
def test_other_concats_are_kernels(why: str) -> None:
    g, x = square()
    a, b = g.neg(x), g.abs(x)
    if why == "unaligned":
        a = g.neg(g.input("odd", Shape([3, 1])))
        b = g.abs(g.input("even", Shape([2, 1])))
    operands = {"leaf": [a, x], "twice": [a, a]}.get(why, [a, b])
    joined = g.concat(operands, axis=1 if why == "inner axis" else 0)
    others = {"shared": [g.exp(a)], "output": [a]}.get(why, [])
    g.set_outputs([g.exp(joined), *others])
    assert "concat" in [n.op for n in plan(g).plan.schedule]


def test_every_result_of_a_kernel_has_a_slot_and_unused_ones_die_at_once() -> None:
    g, x = square()
    values, _ = g.top_k(x, k=3, axis=-1)
    g.set_outputs([g.neg(values)])
    lir = plan(g)
    items = [n for n in lir.mir.graph.nodes if n.op == "item"]
    assert [n.attrs["index"] for n in items] == [0, 1]
    assert all(n in lir.plan.assignments for n in items)
    assert lir.mir.graph.nodes[-1].op == "neg"


# -- weights --------------------------------------------------------------------------------------


def test_weights_are_outside_the_arena_and_apart() -> None:
    g, x = square()
    w = g.param("w", Shape([16, 4]))
    packed = g.concat([w, g.neg(w)], axis=1)
    g.set_outputs([g.matmul(x, packed)])
    lir = plan(g)
    slots = {n: s for n, s in lir.plan.assignments.items() if s.space is Space.WEIGHTS}
    assert [n.op for n in slots] == ["param", "neg", "concat"]
    assert lir.plan.weight_bytes == (16 * 4 * 4) * 4
    assert lir.arena_bytes == 8 * 16 * 4 + 8 * 8 * 4
    assert lir.plan.phase_of(next(iter(slots))) is Phase.PROLOGUE


def test_empty_values_are_planned() -> None:
    g = Graph()
    x = g.input("x", Shape([0, 4]))
    g.set_outputs([g.neg(g.exp(x)), g.flip(x, axes=(0,))])
    lir = plan(g)
    assert lir.arena_bytes == 0
    assert [a.shape for a in run(lir, {"x": np.zeros((0, 4), "f4")}, {})] == [(0, 4), (0, 4)]


def test_alignment_is_a_power_of_two() -> None:
    g, x = square()
    g.set_outputs([g.neg(x)])
    with pytest.raises(Error, match="power of two"):
        plan_module(g, CPU, alignment=48)
    wide = plan_module(g, CPU, alignment=4096)
    assert check(wide) == []
    assert all(evaluate(s.offset, {}) % 4096 == 0 for s in wide.plan.assignments.values())


# -- reports --------------------------------------------------------------------------------------


def test_the_report_names_offsets_sizes_lives_and_savings() -> None:
    lir = plan(layers(2, 64))
    text = lir.plan.report()
    assert text.startswith(f"arena {lir.arena_bytes:,} bytes; unshared")
    assert "start..10" in text
    assert "external" in text
    assert "over " in text
    assert len(text.splitlines()) == 3 + len(
        [s for s in lir.plan.assignments.values() if s.space is Space.ARENA]
    )


def test_the_picture_is_xml_with_a_box_per_buffer_and_escaped_names() -> None:
    g = Graph()
    x = g.input("<&>", Shape([8, 16]))
    g.set_outputs([g.matmul(x, g.transpose(x, perm=(1, 0)))])
    root = ElementTree.fromstring(plan(g).plan.report_svg())
    titles = [t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == 2
    assert titles[0].startswith("input '<&>'")


def test_lir_says_what_it_is() -> None:
    static, dynamic = plan(layers(1, 4)), plan(layers(1, N))
    assert static.is_static
    assert not static.has_dynamic_dims
    assert static.name == "layers"
    assert dynamic.has_dynamic_dims
    assert dynamic.dynamic_symbols == (N,)
    assert "kernels" in repr(static)
