"""Plans with named dims: right at every size, tight at the representative one, bound in no time."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rlx
from rlx.core.dim import Dim, DimLike, dim_max, dim_min, evaluate
from rlx.core.errors import GraphError
from rlx.core.shape import DimBinding, Shape
from rlx.cost.target import Target
from rlx.ir.lir import LirModule, Phase, Space
from rlx.ir.mir import Graph, Node
from rlx.plan import dynamic
from rlx.plan.check.checker import check
from rlx.plan.dynamic import FormulaSpan, place_formulas
from rlx.plan.planner import plan_module
from rlx.plan.size_proofs import greatest, is_multiple, proves_le, round_up
from tests.effort import tries

CPU = Target.of("cpu")
N, M = Dim("n", 1, 4096), Dim("m")


def plan(graph: Graph) -> LirModule:
    lir = plan_module(graph, CPU)
    assert check(lir) == []
    return lir


# -- a model --------------------------------------------------------------------------------------


def feed_forward(g: Graph, x: Node, i: int, width: int, ffn: int) -> Node:
    """A gated feed-forward, in primitive products."""
    up, gate = g.matmul(x, w(g, i, "up", width, ffn)), g.matmul(x, w(g, i, "gate", width, ffn))
    return g.add(x, g.matmul(g.mul(up, g.silu(gate)), w(g, i, "down", ffn, width)))


def attention(g: Graph, x: Node, i: int, width: int) -> Node:
    q, k, v = (g.matmul(x, w(g, i, n, width, width)) for n in "qkv")
    scores = g.softmax(g.matmul(q, g.transpose(k, perm=(1, 0))), axis=-1)
    return g.add(x, g.matmul(g.matmul(scores, v), w(g, i, "o", width, width)))


def w(g: Graph, i: int, name: str, *dims: int) -> Node:
    return g.param(f"{name}{i}", Shape(dims))


def model(rows: DimLike, layers: int = 12, *, attends: bool = True) -> Graph:
    g = Graph("model")
    g.traces_lines = False
    x = g.input("x", Shape([rows, 64]))
    for i in range(layers):
        x = feed_forward(g, attention(g, x, i, 64) if attends else x, i, 64, 160)
    g.set_outputs([x])
    return g


@pytest.mark.parametrize("rows", [1, 2, 16, 37, 128])
def test_a_bound_arena_is_close_to_the_static_one(rows: int) -> None:
    bound = plan(model(N)).plan.bind({"n": rows})
    assert bound.arena_bytes <= 1.3 * plan(model(rows)).arena_bytes


def test_where_all_grows_alike_nothing_is_lost_at_any_size() -> None:
    lir = plan(model(N, attends=False))
    for rows in (1, 100, 128):
        static = plan(model(rows, attends=False)).arena_bytes
        assert lir.plan.bind({"n": rows}).arena_bytes == static


def test_the_plan_speaks_at_the_representative_size() -> None:
    lir = plan(model(N))
    assert lir.plan.representative == {"n": 128}
    assert lir.arena_bytes == lir.plan.bind({"n": 128}).arena_bytes


def test_a_binding_gives_ints_for_every_value() -> None:
    lir = plan(model(N, layers=1))
    bound = lir.plan.bind(DimBinding({"n": 5, "other": 7}))
    values = lir.mir.graph.order()
    assert list(bound.shapes) == values == list(bound.offsets)
    for node in values:
        assert bound.shapes[node] == node.shape.bind({"n": 5}).dims
        slot, layout = lir.plan.slot(node), lir.plan.layout(node)
        first = evaluate(slot.offset, {"n": 5}) + 4 * evaluate(layout.offset, {"n": 5})
        assert bound.offsets[node] == first
    for node, view in lir.plan.views.items():
        strides = tuple(evaluate(s, {"n": 5}) for s in view.layout.strides)
        assert bound.layouts[node].strides == strides
    assert bound.weight_bytes == lir.plan.weight_bytes
    assert bound.sizes == {"n": 5}


def test_sizes_outside_the_range_are_refused() -> None:
    lir = plan(model(N, layers=1))
    with pytest.raises(GraphError, match="outside its range"):
        lir.plan.bind({"n": 4097})
    with pytest.raises(GraphError, match="not bound"):
        lir.plan.bind({})


def test_a_static_plan_binds_to_itself() -> None:
    lir = plan(model(8, layers=1))
    bound = lir.plan.bind({})
    assert bound.arena_bytes == lir.arena_bytes
    output = lir.plan.io.outputs[0]
    assert bound.offsets[output] == lir.plan.slot(output).offset


# -- what is special about formulas ---------------------------------------------------------------


def test_in_place_needs_equal_formulas() -> None:
    g = Graph()
    x = g.input("x", Shape([N, 8]))
    g.set_outputs([g.neg(g.exp(x)), g.add(x, g.exp(g.input("row", Shape([8]))))])
    assert [(k.op, v.op) for k, v in plan(g).plan.in_place.items()] == [("neg", "exp")]


def test_sizes_that_grow_differently_share_a_maximum() -> None:
    """n² and 1000·n: which is larger depends on n, so the slot is the greater of the two."""
    g = Graph()
    x = g.input("x", Shape([M, 8]))
    w = g.param("w", Shape([8, 1024]))
    square = g.matmul(x, g.transpose(x, perm=(1, 0)))
    wide = g.matmul(g.matmul(square, x), w)
    g.set_outputs([g.matmul(wide, g.transpose(w, perm=(1, 0)))])
    lir = plan(g)
    assert "max(" in str(lir.plan.arena_formula)
    for m in (0, 1, 100, 5000):
        bound = lir.plan.bind({"m": m}).arena_bytes
        assert bound <= 1.3 * plan(g.bind({"m": m})).arena_bytes + 1024


def test_work_on_weights_that_needs_a_size_waits_for_the_call() -> None:
    g = Graph()
    x = g.input("x", Shape([N, 8]))
    w = g.param("w", Shape([1, 8]))
    wide = g.expand(g.neg(w), dims=(N, 8))
    g.set_outputs([g.matmul(x, g.transpose(wide, perm=(1, 0))), wide])
    lir = plan(g)
    assert lir.plan.phase_of(wide) is Phase.STEADY_STATE
    assert lir.plan.slot(wide).space is Space.ARENA


def test_views_of_named_sizes_have_formulas() -> None:
    g = Graph()
    x = g.input("x", Shape([N + 4, 8]))
    tail = g.narrow(g.exp(x), axis=0, start=N, length=4)
    g.set_outputs([g.matmul(x, g.transpose(tail, perm=(1, 0)))])
    lir = plan(g)
    assert lir.plan.views[tail].layout.offset == N * 8
    assert lir.plan.bind({"n": 10}).layouts[tail].offset == 80


def test_params_of_named_sizes_come_last_in_the_weights() -> None:
    g = Graph()
    a, b = g.param("a", Shape([N, 8])), g.param("b", Shape([8, 8]))
    g.set_outputs([g.matmul(g.input("x", Shape([4, 8])), b), a])
    lir = plan(g)
    assert lir.plan.slot(b).offset == 0
    assert lir.plan.bind({"n": 2}).weight_bytes == 256 + 64


# -- placement ------------------------------------------------------------------------------------

SIZES = st.sampled_from(
    [
        64,
        640,
        64 * N,
        192 * N,
        64 * M,
        64 * N * M,
        64 * N * N,
        64 * N + 128,
        round_up(12 * N, 64),
        round_up(4 * M, 64),
    ]
)
SPANS = st.lists(
    st.tuples(SIZES, st.integers(0, 8), st.integers(0, 5)).map(
        lambda t: FormulaSpan(t[0], t[1], t[1] + t[2])
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(SPANS)
def test_buffers_that_live_together_are_apart_at_every_size(spans: list[FormulaSpan]) -> None:
    placed = place_formulas(spans, {"n": 128, "m": 128})
    for sizes in ({"n": 1, "m": 0}, {"n": 128, "m": 128}, {"n": 4096, "m": 1}, {"n": 7, "m": 999}):
        boxes = [
            (evaluate(o, sizes), evaluate(o + s.size, sizes), s)
            for o, s in zip(placed.offsets, spans)
        ]
        assert all(b[1] <= evaluate(placed.total, sizes) for b in boxes)
        for i, (low, high, a) in enumerate(boxes):
            for low2, high2, b in boxes[:i]:
                together = a.birth <= b.death and b.birth <= a.death
                assert not (together and low < high2 and low2 < high)


# -- proofs ---------------------------------------------------------------------------------------

PARTS = st.sampled_from([N, M, N * N, N * M, round_up(N, 64), round_up(4 * M, 64), 64, 1, 3 * N])


@st.composite
def formulas(draw: st.DrawFn) -> DimLike:
    total: DimLike = 0
    for part in draw(st.lists(PARTS, max_size=3)):
        total = total + part * draw(st.integers(1, 5))
    return dim_max(total, draw(PARTS)) if draw(st.booleans()) else total


@settings(max_examples=200, deadline=None)
@given(formulas(), formulas())
def test_what_is_proved_holds_at_every_size(a: DimLike, b: DimLike) -> None:
    if proves_le(a, b):
        for n in (1, 2, 63, 64, 65, 4096):
            for m in (0, 1, 17, 100_000):
                assert evaluate(a, {"n": n, "m": m}) <= evaluate(b, {"n": n, "m": m})


def test_proofs_see_through_rounding_and_maxima() -> None:
    assert proves_le(N, round_up(N, 64))
    assert proves_le(round_up(4 * N, 64), round_up(12 * N, 64))
    assert proves_le(round_up(N, 64), N + 63)
    assert proves_le(4 * (N // 2) + 4, round_up(4 * (N // 2) + 4, 64))
    assert proves_le(N * N, dim_max(N * N, M))
    assert proves_le(M, dim_max(dim_max(N * N, M), N * M))
    assert not proves_le(N * N, M)
    assert not proves_le(round_up(N, 64), N)


def test_proofs_see_through_halving_again_and_again() -> None:
    half = (M + 1) // 2
    eighth = ((half + 1) // 2 + 1) // 2
    assert proves_le(4 * half, 16 * eighth)
    assert proves_le(9216 * half, 36928 * eighth + round_up(8 * eighth, 64))
    assert not proves_le(4 * half + 1, 16 * eighth)
    assert not proves_le(16 * eighth, 4 * half)


def test_multiples_are_seen() -> None:
    assert is_multiple(round_up(3 * N, 64) + 128, 64)
    assert is_multiple(dim_max(64 * N * N, 128 * M), 64)
    assert not is_multiple(N, 64)
    assert not is_multiple(dim_max(N * N, 128 * M), 64)


def test_the_greatest_of_many_is_nested_little() -> None:
    dims = [Dim(f"d{i}") for i in range(64)]
    widest = greatest(dims)
    assert evaluate(widest, {f"d{i}": i for i in range(64)}) == 63
    assert greatest([]) == 0


def test_without_a_proof_no_memory_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a buffer ends inside of the arena is shown, or no two buffers share memory."""
    monkeypatch.setattr(dynamic, "_ends_inside", lambda *_: False)
    spans = [FormulaSpan(64 * N, 0, 1), FormulaSpan(128 * M, 1, 2), FormulaSpan(64 * N, 2, 3)]
    placed = place_formulas(spans, {"n": 128, "m": 128})
    assert placed.offsets == (0, 64 * N, 64 * N + 128 * M)
    assert placed.total == 128 * N + 128 * M


def bounds(rng: random.Random, d: DimLike, n: rlx.Dim) -> tuple[DimLike, DimLike, int]:
    choices: list[DimLike] = [0, 1, 3, -1, -2, d, n, n // 2, n // 3, dim_min(n, 3), 100, -100]
    return rng.choice(choices), rng.choice(choices), rng.choice((1, 1, 2, 3, -1, -2))


@pytest.mark.parametrize(
    ("low", "most", "divisor", "stop", "step"), [(1, 9, 3, -1, 1), (0, None, 2, N, 3)]
)
def test_sizes_are_not_negative_where_no_proof_says_so(
    low: int, most: int | None, divisor: int, stop: DimLike, step: int
) -> None:
    """n - n // 3 - 1 from 1 on."""
    n = rlx.Dim("n", low, most)
    g = rlx.Graph("sliced")
    x = g.input("x", rlx.Shape([n]))
    end = n if isinstance(stop, Dim) else stop
    y = g.slice(x, starts=(n // divisor,), stops=(end,), steps=(step,))
    g.set_outputs([g.relu(y), x])
    rlx.compile(g, "reference", like="cuda")


@pytest.mark.parametrize("like", ["cuda", None])
def test_whatever_is_sliced_has_a_sound_plan(like: str | None) -> None:
    rng = random.Random(3)
    for _ in range(tries(20, 2000)):
        n = rlx.Dim("n", rng.choice([0, 1, 3]), rng.choice([None, 9]))
        g = rlx.Graph("sliced")
        x = g.input("x", rlx.Shape([n, n][: rng.randint(1, 2)]))
        try:
            starts, stops, steps = zip(*(bounds(rng, d, n) for d in x.shape.dims), strict=True)
            y = g.slice(x, starts=starts, stops=stops, steps=steps)
            g.set_outputs([g.relu(y) if rng.random() < 0.5 else y, x][: rng.randint(1, 2)])
        except GraphError:
            continue
        rlx.compile(g, "reference", like=like)
