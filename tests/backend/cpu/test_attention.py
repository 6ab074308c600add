"""Attention as native code: every mask, layout and size against exact results."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from rlx.backends.cpu.codegen.attention import online_softmax as attention
from rlx.backends.cpu.isa import AVX2, NEON, SSE2, Isa, host
from rlx.backends.cpu.llvm.compile import Native, assembled
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import Dim, DimLike, evaluate
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.cost.machine import CacheLevel
from rlx.ir.mir import Graph, Node
from rlx.kernel.program.schedule import Schedule
from rlx.ops import op as table
from rlx.ops.draw import Draw
from tests.backend.cpu.steps import Run, Trial, trials

Array = np.ndarray[Any, Any]
F16, BF16, F32, F64, BOOL = DType.F16, DType.BF16, DType.F32, DType.F64, DType.BOOL
EPS = {F16: 2.0**-10, BF16: 2.0**-7, F32: 2.0**-23, F64: 2.0**-52}
B, S, K = Dim("b"), Dim("s"), Dim("k")
NARROWER = [i for i in (AVX2, SSE2) if i.vector_bytes < host().vector_bytes]
RUNNABLE = [host(), *(i for i in NARROWER if i.triple[:6] == host().triple[:6])]
SIZES = ((2, 17, 17), (1, 1, 130), (2, 130, 17), (1, 130, 130), (1, 0, 5), (2, 5, 0), (0, 3, 3),
         (3, 1, 1), (1, 40, 70))  # fmt: skip


@dataclass(frozen=True)
class Work:
    """An attention to compile, and the sizes to run it at."""

    heads: int
    kv_heads: int
    depth: int
    kind: str = "none"
    dtype: DType = F32
    mask: tuple[DimLike, ...] = ()
    mask_dtype: DType = F32
    value_depth: DimLike | None = None
    is_packed: bool = True
    lies: str = "side by side"
    dims: tuple[DimLike, DimLike, DimLike] = (B, S, K)
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def node(self) -> Node:
        g, (b, s, k) = Graph("g"), self.dims
        of_values = self.depth if self.value_depth is None else self.value_depth
        parts = ((self.heads, s, self.depth), (self.kv_heads, k, self.depth),
                 (self.kv_heads, k, of_values))  # fmt: skip
        dims = [(b, n, h * d) if self.is_packed else (b, h, n, d) for h, n, d in parts]
        inputs = [g.input(x, Shape(d, self.dtype)) for x, d in zip("qkv", dims)]
        if self.mask:
            inputs.append(g.input("mask", Shape(self.mask, self.mask_dtype)))
        attrs = {"num_heads": self.heads, "kv_heads": self.kv_heads, "mask_kind": self.kind}
        return g.node("attention", inputs, attrs | dict(self.more))

    def layouts(self, node: Node) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        dims = [i.shape.dims for i in node.inputs]
        made = Layout.contiguous(node.shape.dims)
        match self.lies:
            case "fused":
                return (*_fused(dims[:3]), *map(Layout.contiguous, dims[3:])), (made,)
            case "turned":
                given = [*map(_by_length, dims[:3]), *map(Layout.contiguous, dims[3:])]
                return tuple(given), (_by_length(node.shape.dims),)
            case "spread":
                return tuple(map(_spread, dims)), (_spread(node.shape.dims),)
            case _:
                return tuple(map(Layout.contiguous, dims)), (made,)

    def trial(self, sizes: Sequence[int], seed: int) -> Trial:
        node, rng = self.node(), np.random.default_rng(seed)
        named = dict(zip("bsk", sizes))
        shapes = [i.shape.bind(named) for i in node.inputs]
        arrays = [rng.normal(size=s.static_dims).astype(s.dtype.numpy) for s in shapes]
        if self.kind == "custom":
            arrays[3] = (rng.random(shapes[3].static_dims) < 0.6).astype(shapes[3].dtype.numpy)
        return Trial(node, *self.layouts(node), arrays, named)


def _fused(dims: Sequence[Sequence[DimLike]]) -> Iterator[Layout]:
    """Columns of one array side by side."""
    total = sum((d[2] for d in dims[1:]), dims[0][2])
    start: DimLike = 0
    for batch, length, width in dims:
        yield Layout.contiguous((batch, length, total)).sliced(2, start, width)
        start = start + width


def _by_length(dims: Sequence[DimLike]) -> Layout:
    """[batch, length, heads, depth] in memory."""
    batch, heads, length, depth = dims
    return Layout.contiguous((batch, length, heads, depth)).permuted((0, 2, 1, 3))


def _spread(dims: Sequence[DimLike]) -> Layout:
    """Every third element of the last axis, from an offset on."""
    base = Layout.contiguous((*dims[:-1], dims[-1] * 3), 5)
    return base.sliced(len(dims) - 1, 0, dims[-1], 3)


WORKS: dict[str, Work] = {
    "plain": Work(3, 3, 32, lies="fused"),
    "one kv head": Work(4, 1, 64, lies="spread"),
    "two kv heads": Work(18, 2, 80, is_packed=False, lies="turned"),
    "causal": Work(8, 2, 64, "causal", lies="fused"),
    "causal with odd groups": Work(3, 1, 1, "causal", BF16, is_packed=False),
    "window": Work(4, 2, 32, "sliding_window", F64, more={"window": 20}),
    "padding": Work(4, 2, 32, "custom", mask=(B, K), mask_dtype=BOOL, more={"softcap": 3.0}),
    "padding by floats": Work(9, 1, 8, "custom", BF16, (B, K), F32, lies="spread"),
    "mask for each query": Work(9, 1, 32, "custom", mask=(B, 1, S, K), mask_dtype=BOOL),
    "mask of wide floats": Work(3, 1, 7, "custom", mask=(1, S, K), mask_dtype=F64),
    "bias": Work(4, 2, 32, "bias", mask=(B, 4, S, K), more={"scale": 0.3}),
    "bias for heads": Work(4, 2, 16, "bias", mask=(4, 1, 1), more={"softcap": 2.0}),
    "value depth": Work(2, 1, 3, value_depth=Dim("s")),
    "no depth": Work(20, 2, 0, value_depth=5),
    "halves": Work(2, 1, 80, "bias", F16, (B, 2, S, K), F16, is_packed=False, lies="turned"),
}
STATIC: dict[str, Work] = {
    "decode": Work(8, 2, 64, "causal", dims=(1, 1, 300)),
    "decode halves": Work(6, 2, 48, "custom", BF16, (B, K), BOOL, dims=(B, 1, K)),
    "decode bias": Work(8, 1, 40, "bias", mask=(8, 1, K), dims=(2, 1, K), lies="spread"),
    "decode window": Work(2, 1, 20, "sliding_window", F64, dims=(B, 1, K), more={"window": 100}),
    "decode two": Work(4, 4, 64, "causal", dims=(2, 2, K), is_packed=False, lies="turned"),
    "decode long": Work(3, 1, 20, dims=(B, 1, 1000), value_depth=200),
    "known": Work(3, 3, 32, dims=(2, 130, 50)),
    "known causal": Work(2, 1, 32, "causal", dims=(1, 37, 70)),
    "known few": Work(2, 1, 32, dims=(2, 5, 33), value_depth=20),
}
ELSEWHERE = ("two kv heads", "causal", "window", "padding", "halves", "mask for each query",
             "decode halves", "decode bias")  # fmt: skip


@functools.cache
def compiled(isa: Isa) -> tuple[Native, dict[str, Schedule[Task]]]:
    """All works in one module."""
    works = {n: (WORKS | STATIC)[n] for n in names(isa)}
    made = {n: kernel_sequence_of(w, isa, f"work{i}") for i, (n, w) in enumerate(works.items())}
    return Native(text_of(made.values(), isa), isa), made


def names(isa: Isa) -> Sequence[str]:
    return [*WORKS, *STATIC] if isa.name == host().name else ELSEWHERE


def kernel_sequence_of(work: Work, isa: Isa, name: str) -> Schedule[Task]:
    node = work.node()
    return attention.make_attention(Step(node, *work.layouts(node), CpuMachine.of(isa)), name)


def text_of(schedules: Any, isa: Isa) -> str:
    return module([t.function for r in schedules for t in r.tasks], isa)


def ran(name: str, trial: Trial, isa: Isa, cuts: str = "once") -> Array:
    native, schedules = compiled(isa)
    return Run(trial, schedules[name], native).run(cuts)[0]


def wide(trial: Trial, *, are_sizes: bool = False) -> Array:
    """The exact result; or the weights' sums of the sizes of values."""
    arrays = [a if a.dtype == np.bool_ else a.astype(np.float64) for a in trial.arrays]
    if are_sizes:
        arrays[2] = abs(arrays[2])
    return trial.node.decl.reference(*arrays, **trial.node.attrs)


def check(got: Array, trial: Trial) -> None:
    """A score has an error of at most its terms' sizes times as many roundings as it has terms;
    that, twice, is the relative error of a weight. Sums of weights and of values round once for
    each key of a block, and for each block."""
    want, terms = wide(trial), wide(trial, are_sizes=True)
    q, k = (abs(a.astype(np.float64)) for a in trial.arrays[:2])
    dtype, attrs = trial.node.shape.dtype, trial.node.attrs
    heads, is_packed = attrs["num_heads"], q.ndim == 3
    depth = q.shape[2] // heads if is_packed else q.shape[3]
    length = k.shape[1 if is_packed else 2]
    most = [a.max(initial=0.0) for a in (q, k)]
    score = depth * most[0] * most[1] * (attrs["scale"] or max(depth, 1) ** -0.5)
    score += attrs["softcap"] or 0
    if attrs["mask_kind"] == "bias":
        bias = abs(trial.arrays[3].astype(np.float64))
        score += bias[np.isfinite(bias)].max(initial=0.0)
    roundings = (depth + 4) * score + 48 + length // 48 + 8
    allowed = roundings * EPS[dtype.compute] / 2 * terms
    if dtype is not dtype.compute:
        allowed = allowed + EPS[dtype] / 2 * abs(want) + 2.0**-24
    error = abs(got.astype(np.float64) - want)
    assert (error <= allowed).all(), f"{trial}: {error.max()}"


def on_isas() -> pytest.MarkDecorator:
    pairs = [(i, n) for i in RUNNABLE for n in names(i)]
    return pytest.mark.parametrize(("isa", "name"), pairs, ids=lambda x: getattr(x, "name", x))


@on_isas()
def test_sizes(isa: Isa, name: str) -> None:
    """Where queries are known, only keys differ."""
    sizes = SIZES if name in WORKS else [(2, 1, k) for k in (300, 17, 1, 0, 801)]
    for seed, at in enumerate(sizes):
        trial = (WORKS | STATIC)[name].trial(at, seed)
        check(ran(name, trial, isa), trial)


@pytest.mark.parametrize("name", [*WORKS, *STATIC])
def test_bits_do_not_depend_on_how_the_work_is_split(name: str) -> None:
    trial = (WORKS | STATIC)[name].trial((2, 67, 600), 1)
    once, apart = (ran(name, trial, host(), cuts) for cuts in ("once", "one by one"))
    assert once.tobytes() == apart.tobytes()


def test_what_a_row_gives_does_not_depend_on_its_neighbours() -> None:
    trial = WORKS["plain"].trial((1, 130, 70), 3)
    q, k, v = trial.arrays
    few = Trial(trial.node, trial.operands, trial.results, [q[:, :9], k, v],
                {"b": 1, "s": 9, "k": 70})  # fmt: skip
    assert ran("plain", trial, host())[:, :9].tobytes() == ran("plain", few, host()).tobytes()


def test_bits_do_not_depend_on_the_tile() -> None:
    """Keys and values that fill a cache are read by wider tiles."""
    work = STATIC["known causal"]
    trial, node = work.trial((1, 37, 70), 3), work.node()
    step = Step(
        node, *work.layouts(node), replace(CpuMachine.of(host()), caches=(CacheLevel(64, 1.0),))
    )
    schedule = attention.make_attention(step, "far")
    assert schedule.tasks[0].units != compiled(host())[1]["known causal"].tasks[0].units
    (got,) = Run(trial, schedule, Native(text_of([schedule], host()), host())).run("one by one")
    assert got.tobytes() == ran("known causal", trial, host()).tobytes()


def test_one_query_and_many_are_one_recipe() -> None:
    """Where it is not known which, a call has units of one kind only, and the bits of one query
    are those of code for one."""
    _, schedules = compiled(host())
    for queries in (0, 1, 2):
        units = [
            evaluate(t.units, {"b": 2, "s": queries, "k": 70}) for t in schedules["bias"].tasks
        ]
        assert [u > 0 for u in units] == [queries > 1, queries == 1, queries == 1]
    work = WORKS["plain"]
    trial = work.trial((2, 1, 700), 3)
    known = replace(work, dims=(B, 1, K))
    node = known.node()
    schedule = attention.make_attention(
        Step(node, *known.layouts(node), CpuMachine.of(host())), "one"
    )
    native = Native(text_of([schedule], host()), host())
    same = Trial(node, *known.layouts(node), trial.arrays, trial.sizes)
    assert Run(same, schedule, native).run("once")[0].tobytes() == (
        ran("plain", trial, host()).tobytes()
    )


def test_not_a_number_stays_in_its_row() -> None:
    trial = WORKS["plain"].trial((1, 40, 60), 3)
    trial.arrays[0][0, 7, 5] = np.nan
    got = ran("plain", trial, host())
    assert np.isnan(got[0, 7, :32]).all()
    assert np.isnan(got).sum() == 32


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_infinite_scores_are_as_the_reference_has_them(value: float) -> None:
    for name in ("plain", "causal", "decode"):
        work = (WORKS | STATIC)[name]
        trial = work.trial((2, 50, 70), 3)
        trial.arrays[1][0, 60, :] = value
        trial.arrays[1][-1, 3, :] = -np.inf
        with np.errstate(all="ignore"):
            (want,) = trial.wanted()
        np.testing.assert_array_equal(np.isnan(ran(name, trial, host())), np.isnan(want))


def test_a_row_that_sees_nothing_is_zero() -> None:
    trial = WORKS["bias"].trial((2, 20, 60), 3)
    trial.arrays[3][0, 1, 4, :] = -np.inf
    got = ran("bias", trial, host())
    assert (got[0, 4, 32:64] == 0).all()
    assert np.isfinite(got).all()
    check(got, trial)
    hidden = WORKS["padding"].trial((2, 20, 60), 3)
    hidden.arrays[3][1] = False
    got = ran("padding", hidden, host())
    assert (got[1] == 0).all()
    assert got[0].any()


def test_hidden_keys_may_be_anything() -> None:
    trial = WORKS["padding"].trial((2, 20, 60), 3)
    trial.arrays[3][:] = True
    trial.arrays[3][:, 50:] = False
    want = ran("padding", trial, host())
    trial.arrays[1][:, 50:] = np.nan
    assert ran("padding", trial, host()).tobytes() == want.tobytes()


def test_only_scores_without_a_mask_can_be_infinite_in_vain() -> None:
    trial = WORKS["plain"].trial((1, 20, 60), 3)
    trial.arrays[0][:] = abs(trial.arrays[0])
    trial.arrays[1][:] = -np.inf
    assert np.isnan(ran("plain", trial, host())).all()


@pytest.mark.parametrize("seed", range(2))
def test_drawn_cases(seed: int) -> None:
    """Cases of the table's own, apart in memory and backwards, and with named dims."""
    op, given = table.lookup("attention"), list[Trial]()
    for i in range(2):
        draw = Draw([seed, i])
        given += trials(draw, draw.case(op))
    schedules = [attention.make_attention(t.step(host()), f"step{i}") for i, t in enumerate(given)]
    native = Native(text_of(schedules, host()), host())
    for trial, schedule in zip(given, schedules):
        (got,) = Run(trial, schedule, native).run("one by one")
        check(got, trial)


@pytest.mark.parametrize("name", ["causal", "halves"])
def test_other_processors_get_code_that_assembles(name: str) -> None:
    text = text_of([kernel_sequence_of(WORKS[name], NEON, "work")], NEON)
    assert "fmla" in assembled(text, NEON)
