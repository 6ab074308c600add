"""Attention as SIMT programs: every form, mask, layout and size against what the op means."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from rlx.backends.gpu.lower.attention.launch import attention_schedule, launches
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.attention import (
    AttentionSchedule,
    choose,
    panel_widths,
    shared_bytes,
)
from rlx.backends.gpu.task import GpuTask, Launch
from rlx.core.dim import Dim, DimLike, evaluate
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.attention import Attention, Past
from rlx.kernel.lower.attention import lower_attention
from rlx.kernel.program.schedule import Schedule
from rlx.kernel.refusal import Refusal, required
from rlx.ops.draw import Draw
from rlx.ops.op import lookup
from rlx.program import nodes as ir
from rlx.program.interpret.run import launch
from rlx.program.parse import parse
from rlx.program.program import Program
from rlx.program.text import text
from rlx.program.verify import verify
from rlx.program.walk import walk
from tests.backend.gpu.regions import bound, span, view

Array = np.ndarray[Any, Any]
F16, BF16, F32, F64, BOOL = DType.F16, DType.BF16, DType.F32, DType.F64, DType.BOOL
EPS = {F16: 2.0**-10, BF16: 2.0**-7, F32: 2.0**-23, F64: 2.0**-52}
B, S, K = Dim("b"), Dim("s"), Dim("k")
TILES = GpuMachine(
    max_block=64, processors=2, shared_bytes=28 << 10, tiles=frozenset({"mma"}), has_async_copy=True
)
"""Small blocks, so that small shapes have several tiles and tails."""
WIDE = replace(TILES, max_block=512, shared_bytes=227 << 10, has_dependent_launch=True)
PLAIN = GpuMachine(max_block=32, processors=2, shared_bytes=16 << 10)
SPLIT = replace(WIDE, processors=4)
CLUSTER = replace(SPLIT, has_clusters=True)
FMA = replace(WIDE, max_block=64, shared_bytes=64 << 10)
MACHINES = {
    "fma": FMA,
    "tiles": TILES,
    "wide": WIDE,
    "plain": PLAIN,
    "split": SPLIT,
    "cluster": CLUSTER,
}


@dataclass(frozen=True)
class Case:
    """An attention, where its values are in memory, and the sizes to run it at."""

    heads: int
    kv_heads: int
    depth: int
    dtype: DType = BF16
    kind: str = "none"
    mask: tuple[DimLike, ...] = ()
    mask_dtype: DType = F32
    value_depth: int = 0
    is_packed: bool = True
    memory: str = "contiguous"
    dims: tuple[DimLike, DimLike, DimLike] = (B, S, K)
    sizes: tuple[tuple[int, int, int], ...] = ((2, 17, 17), (1, 20, 40))
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])

    def node(self) -> Node:
        g, (b, s, k) = Graph("g"), self.dims
        values = self.value_depth or self.depth
        parts = (
            (self.heads, s, self.depth),
            (self.kv_heads, k, self.depth),
            (self.kv_heads, k, values),
        )
        dims = [(b, n, h * d) if self.is_packed else (b, h, n, d) for h, n, d in parts]
        inputs = [g.input(x, Shape(d, self.dtype)) for x, d in zip("qkv", dims)]
        if self.mask:
            inputs.append(g.input("mask", Shape(self.mask, self.mask_dtype)))
        attrs = {"num_heads": self.heads, "kv_heads": self.kv_heads, "mask_kind": self.kind}
        return g.node("attention", inputs, attrs | self.attrs)

    def layouts(self, node: Node) -> tuple[list[Layout], list[Layout]]:
        dims = [i.shape.dims for i in node.inputs]
        made = [Layout.contiguous(node.shape.dims)]
        match self.memory:
            case "fused":
                return [*_fused(dims[:3]), *map(Layout.contiguous, dims[3:])], made
            case "by length":
                given = [*map(_by_length, dims[:3]), *map(Layout.contiguous, dims[3:])]
                return given, [_by_length(node.shape.dims)]
            case "spread":
                return [_spread(d) for d in dims], [_spread(node.shape.dims)]
            case _:
                return [Layout.contiguous(d) for d in dims], made

    def form(self) -> Attention:
        node = self.node()
        return required(lower_attention(node, *self.layouts(node)))

    def arrays(self, sizes: dict[str, int], seed: int) -> list[Array]:
        rng = np.random.default_rng(seed)
        shapes = [i.shape.bind(sizes) for i in self.node().inputs]
        made = [rng.normal(size=s.static_dims).astype(s.dtype.numpy) for s in shapes]
        if self.kind == "custom":
            made[3] = (rng.random(shapes[3].static_dims) < 0.6).astype(shapes[3].dtype.numpy)
        return made


def _fused(dims: Sequence[Sequence[DimLike]]) -> list[Layout]:
    """Columns of one array."""
    total = sum((d[2] for d in dims[1:]), dims[0][2])
    found, start = list[Layout](), 0
    for batch, length, width in dims:
        found.append(Layout.contiguous((batch, length, total)).sliced(2, start, width))
        start = start + width
    return found


def _by_length(dims: Sequence[DimLike]) -> Layout:
    """[batch, length, heads, depth] in memory."""
    batch, heads, length, depth = dims
    return Layout.contiguous((batch, length, heads, depth)).permuted((0, 2, 1, 3))


def _spread(dims: Sequence[DimLike]) -> Layout:
    """Every third element of the last axis, from an offset on."""
    base = Layout.contiguous((*dims[:-1], dims[-1] * 3), 5)
    return base.sliced(len(dims) - 1, 0, dims[-1], 3)


EMPTY = ((1, 20, 40), (1, 3, 0), (0, 2, 2), (2, 0, 3))
CASES: dict[str, Case] = {
    "fused": Case(3, 3, 32, memory="fused", sizes=EMPTY),
    "one kv head": Case(4, 1, 64, F16, memory="spread"),
    "two kv heads": Case(6, 2, 80, is_packed=False, memory="by length"),
    "causal": Case(4, 2, 64, kind="causal", memory="fused", sizes=EMPTY),
    "causal, odd group": Case(3, 1, 1, kind="causal", is_packed=False),
    "causal, known": Case(2, 2, 48, F16, "causal", dims=(1, 64, 64), sizes=((1, 64, 64),)),
    "window": Case(4, 2, 32, kind="sliding_window", attrs={"window": 20}),
    "padding": Case(4, 2, 32, F16, "custom", (B, K), BOOL, attrs={"softcap": 3.0}),
    "padding by floats": Case(3, 1, 8, BF16, "custom", (B, K), F32, memory="spread"),
    "mask for each query": Case(3, 1, 32, BF16, "custom", (B, 1, S, K), BOOL),
    "mask, NaN for none": Case(2, 1, 7, BF16, "custom", (1, S, K), F64,
                               attrs={"masked_rows": "nan"}),
    "bias": Case(4, 2, 32, F16, "bias", (B, 4, S, K), F16, attrs={"scale": 0.3}),
    "bias for heads": Case(4, 2, 16, BF16, "bias", (4, 1, 1), BF16, attrs={"softcap": 2.0}),
    "negative scale": Case(2, 1, 24, attrs={"scale": -0.4}),
    "values deeper": Case(2, 1, 16, value_depth=112),
    "values odd": Case(2, 1, 96, F16, "causal", value_depth=5),
    "deep": Case(1, 1, 256, kind="causal", sizes=((1, 20, 33),)),
    "f32": Case(3, 3, 32, F32, memory="fused", sizes=EMPTY),
    "f32 causal": Case(4, 2, 20, F32, "causal", value_depth=24),
    "f32 window": Case(4, 2, 33, F32, "sliding_window", memory="spread", attrs={"window": 9}),
    "f32 bias": Case(4, 2, 32, F32, "bias", (B, 4, S, K), F32, attrs={"softcap": 2.0}),
    "f32 padding": Case(2, 2, 80, F32, "custom", (B, K), BOOL, is_packed=False),
    "f64": Case(2, 1, 10, F64, "causal", sizes=((1, 17, 33),)),
}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A node, where its values are in memory, and data."""

    node: Node
    operands: Sequence[Layout]
    results: Sequence[Layout]
    arrays: Sequence[Array]
    sizes: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, case: Case, at: Sequence[int], seed: int = 0) -> Trial:
        node, sizes = case.node(), dict(zip("bsk", at))
        return cls(node, *case.layouts(node), case.arrays(sizes, seed), sizes)

    def form(self) -> Attention:
        return required(lower_attention(self.node, self.operands, self.results))

    def wanted(self) -> Array:
        """In the dtype of sums."""
        wide = [a if a.dtype == np.bool_ else a.astype(np.float64) for a in self.arrays]
        with np.errstate(all="ignore"):
            return self.node.decl.reference(*wide, **self.node.attrs)

    def run(self, machine: GpuMachine) -> Array:
        return self.on(scheduled(self.form(), machine))

    def on(self, given: tuple[Schedule[GpuTask], Sequence[Program]]) -> Array:
        schedule, programs = given
        (taken,) = (bound(x, self.sizes) for x in self.results)
        out = np.empty(span(taken), self.node.shape.dtype.numpy)
        out.view(np.uint8)[:] = 1
        numbers = {b.index for t in schedule.tasks for b in t.buffers if b.kind == "operand"}
        memory = {f"operand{i}": self._placed(i) for i in numbers}
        memory["result0"] = out
        for i, size in enumerate(schedule.temps):
            memory[f"temp{i}"] = np.full(evaluate(size, self.sizes), 0xFF, np.uint8)
        for task, program in zip(schedule.tasks, programs):
            assert isinstance(task, Launch)
            given_to = {n: memory[str(b)] for n, b in zip(task.names, task.buffers, strict=True)}
            dtypes = {b.name: b.dtype.numpy for b in program.buffers}
            launch(program, {n: a.view(dtypes[n]) for n, a in given_to.items()}, self.sizes)
        return view(taken, out)

    def _placed(self, number: int) -> Array:
        """An operand in its buffer, with other bits around it."""
        layout, array = bound(self.operands[number], self.sizes), self.arrays[number]
        flat = np.empty(span(layout), array.dtype)
        flat.view(np.uint8)[:] = 0 if array.dtype == np.bool_ else 0xFF
        view(layout, flat)[...] = array
        return flat


def scheduled(form: Attention, machine: GpuMachine) -> tuple[Schedule[GpuTask], Sequence[Program]]:
    """How it runs, and its verified programs."""
    schedule = attention_schedule(form, machine, "attend")
    assert not isinstance(schedule, Refusal), schedule.reason
    tasks = [t for t in schedule.tasks if isinstance(t, Launch)]
    return schedule, [verify(t.program()) for t in tasks]


def check(got: Array, trial: Trial) -> None:
    """A score is a sum of `depth` products; its absolute error is the relative error of a weight.
    Sums over keys round once for each; weights and results once to half floats."""
    form, want = trial.form(), trial.wanted()
    q, k, v = (abs(a.astype(np.float64)).max(initial=0.0) for a in trial.arrays[:3])
    assert got.shape == want.shape
    score = 1 + q * k * form.depth * abs(form.scale) + (form.softcap or 0.0)
    roundings = form.depth + trial.arrays[1].size // max(1, form.depth) + 24
    allowed = roundings * score * EPS[form.sums] * v
    if form.dtype is not form.sums:
        allowed += EPS[form.dtype] * v
    np.testing.assert_allclose(
        got.astype(np.float64), want, rtol=2 * EPS[form.dtype], atol=allowed, err_msg=str(trial)
    )


DECODING: dict[str, Case] = {
    "one query": Case(8, 2, 64, kind="causal", dims=(1, 1, 300), sizes=((1, 1, 300),)),
    "padding": Case(6, 2, 48, F16, "custom", (B, K), BOOL, dims=(B, 1, K),
                    sizes=((2, 1, 300), (1, 1, 17), (2, 1, 0))),
    "bias": Case(4, 1, 40, BF16, "bias", (4, 1, K), BF16, dims=(2, 1, K), memory="spread",
                 sizes=((2, 1, 150),)),
    "window": Case(2, 1, 20, F16, "sliding_window", dims=(B, 1, K), attrs={"window": 100},
                   sizes=((1, 1, 300),)),
    "three queries": Case(4, 2, 72, kind="causal", dims=(B, 3, K), is_packed=False,
                          memory="by length", sizes=((1, 3, 200), (1, 3, 2))),
    "values deeper": Case(3, 1, 20, dims=(B, 1, 400), value_depth=200, sizes=((2, 1, 400),)),
    "many queries": Case(1, 1, 16, dims=(1, 40, 600), sizes=((1, 40, 600),)),
    "f32": Case(4, 2, 32, F32, "causal", dims=(1, 2, K), sizes=((1, 2, 300), (1, 2, 1))),
    "f32 odd": Case(2, 2, 10, F32, dims=(1, 1, 300), value_depth=7, sizes=((1, 1, 300),)),
}  # fmt: skip


@pytest.mark.parametrize("machine", ["split", "cluster"])
@pytest.mark.parametrize("name", DECODING)
def test_keys_split_over_blocks(name: str, machine: str) -> None:
    """A second launch combines them, or the blocks of a cluster do, in the order of the keys."""
    case = DECODING[name]
    made = scheduled(case.form(), MACHINES[machine])
    is_cluster = machine == "cluster" and case.dtype is not F32 and name != "many queries"
    assert len(made[1]) == (1 if is_cluster else 2)
    assert (made[1][0].cluster > 1) == is_cluster
    for seed, at in enumerate(case.sizes):
        trial = Trial.of(case, at, seed)
        check(trial.on(made), trial)


@pytest.mark.parametrize("name", ["one query", "bias", "three queries", "f32 odd"])
def test_past_keys_are_read_where_they_lie(name: str) -> None:
    """The same bits as from one place. What a part does not hold is NaN there."""
    case = DECODING[name]
    at = case.sizes[0]
    trial = Trial.of(case, at)
    split = _with_past(trial.form(), max(1, at[2] * 2 // 3))
    cut = _Cut(trial.node, trial.operands, trial.results, trial.arrays, trial.sizes, split)
    machine = CLUSTER if name == "one query" else SPLIT
    assert cut.on(scheduled(split, machine)).tobytes() == trial.run(machine).tobytes()


def _with_past(form: Attention, count: int) -> Attention:
    """The form with that many keys as past ones."""
    k, v = (x.sliced(2, count, x.dims[2] - count) for x in (form.k, form.v))
    past = Past(*(x.sliced(2, 0, count) for x in (form.k, form.v)))
    return replace(form, k=k, v=v, past=past, operands=(*form.operands, *form.operands[1:3]))


@dataclass(frozen=True)
class _Cut(Trial):
    """A trial whose keys and values are each given twice: new ones, and past ones."""

    split: Attention | None = None

    def _placed(self, number: int) -> Array:
        form, given = self.split, len(self.arrays)
        assert form is not None
        if number not in (1, 2, given, given + 1):
            return super()._placed(number)
        which = number if number < given else number - given + 1
        whole = super()._placed(which)
        past = form.past
        assert past is not None
        parts = (past.k, past.v) if number >= given else (form.k, form.v)
        layout = bound(parts[which - 1], self.sizes)
        flat = np.full(len(whole), np.nan, whole.dtype)
        view(layout, flat)[...] = view(layout, whole)
        return flat


def test_a_cluster_and_a_second_launch_give_the_same_bits() -> None:
    trial = Trial.of(DECODING["one query"], (1, 1, 300))
    assert trial.run(SPLIT).tobytes() == trial.run(CLUSTER).tobytes()


GROUPS: dict[str, tuple[Case, int]] = {
    "causal": (Case(4, 2, 64, kind="causal", memory="fused", sizes=((2, 40, 70), (1, 3, 0))), 2),
    "two panels": (Case(2, 1, 80, F16, sizes=((1, 33, 50),), is_packed=False), 2),
    "window": (Case(3, 1, 16, kind="sliding_window", attrs={"window": 20},
                    sizes=((1, 70, 100),)), 1),
    "bias": (Case(2, 2, 24, BF16, "bias", (B, 2, S, K), BF16, value_depth=72,
                  sizes=((1, 20, 40),), is_packed=False, memory="by length"), 1),
    "padding": (Case(4, 1, 32, F16, "custom", (B, K), BOOL, sizes=((2, 17, 50),)), 4),
    "known": (Case(4, 1, 128, kind="causal", dims=(1, 40, 40), sizes=((1, 40, 40),)), 4),
}  # fmt: skip
BULK = replace(WIDE, tiles=frozenset({"mma", "wgmma"}), has_bulk_copy=True)


@pytest.mark.parametrize("name", GROUPS)
def test_products_of_four_warps(name: str) -> None:
    """Blocks that go on to other rows; tiles of 32 keys. With one group; with two, which take
    turns; with three, which leave tiles out; rows of several groups in sections of three heads.
    Warps that copy have registers of their own where they are a group, too."""
    case, members = GROUPS[name]
    form = case.form()
    values = case.value_depth or case.depth
    groups = {"causal": 3, "padding": 2}.get(name, 1)
    warps = 4 * groups + (4 if name in ("causal", "bias") else 1)
    choice = AttentionSchedule(
        "wgmma", 64 * groups, 32, warps, 2, case.depth, values, members=members,
        takes_turns=name == "padding", stages_results=name != "window",
        section=3 if groups > 1 else 0,
        blocks=2,
    )  # fmt: skip
    made = launches(form, choice, BULK, "attend")
    (task,) = made.tasks
    assert isinstance(task, Launch)
    program = verify(task.program())
    assert text(parse(text(program))) == text(program)
    for seed, at in enumerate(case.sizes):
        trial = Trial.of(case, at, seed)
        check(trial.on((made, [program])), trial)


def test_what_the_copy_engine_reads_is_multiplied_by_four_warps() -> None:
    long = (1, 512, 512)
    made = chosen(Case(8, 2, 128, kind="causal", dims=long), BULK)
    assert (made.form, made.rows, made.keys, made.members) == ("wgmma", 128, 128, 4)
    assert chosen(Case(6, 2, 128, dims=long), BULK).members == 1  # 128 rows are no groups of 3
    short = chosen(Case(6, 2, 64, dims=long), BULK)
    assert (short.rows, short.keys, short.members) == (256, 64, 1)  # registers for four groups
    many = chosen(Case(6, 2, 64, dims=(1, 4096, 4096)), BULK)
    assert (many.rows, many.keys, many.members) == (192, 128, 3)
    deep = chosen(Case(8, 2, 256, dims=long), BULK)
    assert (deep.form, deep.keys, deep.stages_results) == ("wgmma", 64, False)
    assert not deep.section
    assert chosen(Case(8, 8, 128, dims=(9, 1024, 1024)), BULK).section == 32  # of 16 MB
    causal = Case(8, 8, 128, kind="causal", dims=(9, 1024, 1024))
    assert chosen(causal, replace(BULK, processors=132)).section == 33  # of two rounds of 132
    assert chosen(Case(8, 2, 128, dims=long, memory="spread"), BULK).form == "mma"
    form = Case(8, 2, 128, dims=long).form()
    batch, head, step, one = form.k.strides
    backwards = Layout(form.k.dims, (batch, head, -step, one), step * 511)
    assert chosen_of(replace(form, k=backwards), BULK).form == "mma"
    assert chosen(Case(8, 2, 20, dims=long), BULK).form == "mma"  # rows at multiples of 8 bytes
    assert chosen(Case(8, 2, 64, dims=(1, 1, 512)), BULK).form == "mma"


def pairs() -> list[tuple[str, str]]:
    """Half floats by tiles of either size, a few by fma; others by fma of either size."""
    found: list[tuple[str, str]] = []
    for number, (name, case) in enumerate(CASES.items()):
        is_half = case.dtype in (F16, BF16)
        machines = [["tiles"], ["wide"], ["tiles", "wide"], ["tiles", "plain"]][number % 4]
        found += [(name, m) for m in (machines if is_half else (["fma"], ["plain"])[number % 2])]
    return found


@pytest.mark.parametrize(("name", "machine"), pairs())
def test_a_program_computes_what_the_op_means(name: str, machine: str) -> None:
    case = CASES[name]
    made = scheduled(case.form(), MACHINES[machine])
    for seed, at in enumerate(case.sizes):
        trial = Trial.of(case, at, seed)
        check(trial.on(made), trial)


@pytest.mark.parametrize("seed", range(24))
def test_drawn_cases(seed: int) -> None:
    draw = Draw([seed, 47])
    case = draw.case(lookup("attention"))
    g = Graph("g")
    inputs = [g.input(f"x{i}", Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
    node = g.node(lookup("attention"), inputs, case.attrs)
    given = [Layout.contiguous(i.shape.dims) for i in node.inputs]
    made = [Layout.contiguous(node.shape.dims)]
    trial = Trial(node, given, made, list(draw.arrays(case)))
    machine = (TILES, WIDE, PLAIN)[seed % 3]
    if not isinstance(choose(trial.form(), machine), Refusal):
        check(trial.run(machine), trial)


# -- corner values --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite(dtype: DType, value: float) -> None:
    """NaN stays in its row; a key of -inf is seen by no query that has a positive product."""
    for kind in ("none", "causal"):
        case = Case(2, 1, 16, dtype, kind, sizes=((2, 20, 40),))
        trial = Trial.of(case, (2, 20, 40), 3)
        trial.arrays[1][0, 30, :] = value
        trial.arrays[0][1, 7, 3] = value
        want, got = trial.wanted(), trial.run(TILES)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_all_scores_may_be_minus_infinity(dtype: DType) -> None:
    """Without a mask that is NaN, whatever comes before and after."""
    trial = Trial.of(Case(2, 1, 16, dtype, memory="fused"), (1, 20, 40), 3)
    trial.arrays[0][:] = abs(trial.arrays[0])
    trial.arrays[1][:] = -np.inf
    assert np.isnan(trial.run(TILES)).all()


@pytest.mark.parametrize("rows", ["zeros", "nan"])
@pytest.mark.parametrize("machine", ["split", "cluster"])
def test_decoding_queries_that_see_nothing(machine: str, rows: str) -> None:
    case = Case(2, 1, 16, BF16, "custom", (B, K), BOOL, dims=(B, 1, K), attrs={"masked_rows": rows})
    trial = Trial.of(case, (2, 1, 300), 3)
    trial.arrays[3][0] = False
    trial.arrays[3][1, :256] = False
    got = trial.run(MACHINES[machine])
    assert np.isnan(got[0]).all() if rows == "nan" else (got[0] == 0).all()
    assert np.isfinite(got[1]).all()


@pytest.mark.parametrize("rows", ["zeros", "nan"])
@pytest.mark.parametrize("dtype", [F16, F32])
def test_rows_that_see_nothing(dtype: DType, rows: str) -> None:
    case = Case(2, 1, 16, dtype, "bias", (B, 2, S, K), dtype, attrs={"masked_rows": rows})
    trial = Trial.of(case, (2, 20, 40), 3)
    trial.arrays[3][0, 1, 4, :] = -np.inf
    trial.arrays[3][1, 0, 3, :16] = -np.inf
    got = trial.run(TILES)
    hidden = got[0, 4, 16:]
    assert np.isnan(hidden).all() if rows == "nan" else (hidden == 0).all()
    hidden[...] = 0
    check(got, trial) if rows == "zeros" else None
    assert np.isfinite(got).all()


@pytest.mark.parametrize("dtype", [BF16, F32])
def test_the_least_number_is_a_bias_like_others(dtype: DType) -> None:
    """Rows that have it everywhere weigh all keys the same: scores are lost in it."""
    case = Case(1, 1, 16, dtype, "bias", (B, 1, S, K), dtype)
    trial = Trial.of(case, (1, 20, 40), 3)
    trial.arrays[3][0, 0, 4, :] = -3.38e38
    got = trial.run(TILES)[0, 4]
    mean = trial.arrays[2][0].astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(got.astype(np.float64), mean, atol=2 * EPS[dtype])


def test_queries_before_all_keys_see_none() -> None:
    case = Case(2, 1, 16, BF16, "causal", dims=(1, 40, 10), sizes=((1, 40, 10),))
    trial = Trial.of(case, (1, 40, 10))
    got = trial.run(TILES)
    assert (got[0, :30] == 0).all()
    assert got[0, 30:].any()
    check(got, trial)


# -- forms ----------------------------------------------------------------------------------------


def chosen(case: Case, machine: GpuMachine) -> AttentionSchedule:
    return chosen_of(case.form(), machine)


def chosen_of(form: Attention, machine: GpuMachine) -> AttentionSchedule:
    found = choose(form, machine)
    assert isinstance(found, AttentionSchedule)
    return found


def test_half_floats_are_multiplied_as_matrix_tiles() -> None:
    made = chosen(Case(32, 8, 64, dims=(8, 1024, 1024)), WIDE)
    assert (made.form, made.rows, made.keys, made.warps, made.stages) == ("mma", 128, 64, 4, 2)
    assert chosen(Case(32, 8, 64, dims=(8, 1024, 1024)), PLAIN).form == "fma"
    assert chosen(Case(32, 8, 64, F32, dims=(8, 1024, 1024)), WIDE).form == "fma"


def test_only_tiles_at_the_edge_are_compared() -> None:
    """Of known lengths that tiles divide, causal or not."""
    for kind, loops in (("none", 1), ("causal", 2), ("sliding_window", 3)):
        attrs = {"window": 100} if kind == "sliding_window" else {}
        form = Case(1, 1, 64, kind=kind, dims=(1, 256, 256), attrs=attrs).form()
        (program,) = scheduled(form, WIDE)[1]
        found = [n for n in program.nodes if isinstance(n, ir.For)]
        assert len(found) == loops
        nodes = [[*walk(n.regions[0])] for n in found]
        selects = [sum(isinstance(n, ir.Select) for n in inner) for inner in nodes]
        assert [n > 16 for n in selects] == {1: [False], 2: [False, True], 3: [True, False, True]}[
            loops
        ]


def test_rows_that_may_be_many_are_not_split() -> None:
    """Every part is written and read once more; of one query for each head, that is little."""
    assert chosen(Case(8, 2, 64), SPLIT).splits == 1
    assert chosen(Case(8, 2, 64, F32), SPLIT).splits == 1
    assert chosen(Case(8, 2, 64, dims=(B, 1, K)), SPLIT).splits > 1
    assert chosen(Case(8, 2, 64, dims=(1, 40, K)), SPLIT).splits > 1
    assert chosen(Case(8, 2, 64, F32), SPLIT).thread_rows == 8


def test_depths_are_panels_of_powers_of_two() -> None:
    widths = {d: panel_widths(d) for d in (16, 64, 80, 112, 256)}
    assert widths == {16: (16,), 64: (64,), 80: (64, 16), 112: (64, 32, 16), 256: (64,) * 4}


def test_tiles_fit_shared_memory() -> None:
    small = GpuMachine(tiles=frozenset({"mma"}))
    for depth, dtype, machine in itertools.product(
        (16, 80, 128, 256), (BF16, F32, F64), (small, WIDE, BULK, CLUSTER)
    ):
        for dims in ((B, S, K), (1, 1, 4096)):
            form = Case(4, 2, depth, dtype, dims=dims).form()
            found = choose(form, machine)
            if isinstance(found, Refusal):
                assert (depth, dtype, machine) == (256, F64, small)
            else:
                assert shared_bytes(found, form) <= machine.shared_bytes


@pytest.mark.parametrize("depth", [64, 200])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_programs_have_the_shared_memory_that_was_counted(depth: int, dtype: DType) -> None:
    """Up to what arrays are aligned to."""
    for dims in ((1, 512, 512), (1, 1, 4096)):
        form = Case(4, 2, depth, dtype, dims=dims).form()
        for machine in (BULK, CLUSTER):
            program = scheduled(form, machine)[1][0]
            counted = shared_bytes(chosen_of(form, machine), form)
            assert counted <= program.shared_bytes + 64 <= counted + 2048


@pytest.mark.parametrize("case", [Case(1, 1, 300), Case(1, 1, 16, value_depth=260)])
def test_deeper_heads_are_refused(case: Case) -> None:
    found = attention_schedule(case.form(), WIDE, "attend")
    assert isinstance(found, Refusal)
    assert "not of 1 to 256" in found.reason


def test_programs_are_deterministic_and_have_a_text() -> None:
    for name in ("causal", "f32 bias"):
        first, again = (scheduled(CASES[name].form(), TILES)[1] for _ in range(2))
        assert [text(p) for p in first] == [text(p) for p in again]
        assert [text(parse(text(p))) for p in first] == [text(p) for p in first]


def test_launches_of_equal_attentions_share_a_program() -> None:
    form = CASES["causal"].form()
    keys = [scheduled(replace(form, name=n), TILES)[0].tasks[0].key for n in ("a", "b")]
    assert keys[0] == keys[1]
    assert scheduled(form, WIDE)[0].tasks[0].key != keys[0]
