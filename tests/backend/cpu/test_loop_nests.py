"""Loop nests: every tail, layout and size; guards, gathered rows, parts, and other machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.cpu.machine import CpuMachine
from rlx.core.errors import Error
from rlx.core.layout import Layout
from rlx.ir.mir import Node
from rlx.kernel.collapse import collapsed
from rlx.kernel.expr import Apply, Kernel
from rlx.kernel.interpret import run
from rlx.kernel.lower.loop import loop_kernel
from rlx.kernel.refusal import NotLowered
from rlx.kernel.split_reduction import MIN_CHUNK, split_reduction
from rlx.ops.op import lookup

pytest.importorskip("llvmlite")

from rlx.backends.cpu.codegen.loop.emit import emit, legal
from rlx.backends.cpu.isa import AVX2, AVX512, NEON, SSE2, Isa, host
from rlx.backends.cpu.llvm.compile import assembled
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.schedule import index_set_splitting as cuts
from rlx.backends.cpu.schedule.loop_schedule import ROW_WIDTH, Schedule, choose, scratch_bytes
from rlx.backends.cpu.schedule.loop_schedule import check as check_schedule
from tests.backend.cpu.kernels import Batch, Work, assert_close
from tests.effort import IS_THOROUGH

TAILS = [n for n in range(71) if IS_THOROUGH or n < 5 or n % 16 in (0, 1, 15)]
"""Lengths of rows, in a sample those about whole vectors."""
ops = rlx.ops
Build = Callable[..., Any]


def region(build: Build, *shapes: rlx.Shape) -> tuple[Node, Build]:
    """A region node whose body is `build`."""
    body = rlx.Graph("body")
    made = build(*(body.input(f"v{i}", s) for i, s in enumerate(shapes)))
    body.set_outputs(list(made) if isinstance(made, tuple) else [made])
    g = rlx.Graph("region")
    inputs = [g.input(f"x{i}", s) for i, s in enumerate(shapes)]
    return g.node("region", inputs, {"body": body}), build


def kernel_of(build: Build, *shapes: rlx.Shape) -> Kernel:
    return loop_kernel(region(build, *shapes)[0])


def data(*shapes: rlx.Shape, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(rng.normal(size=s.static_dims) * 3).astype(s.dtype.numpy) for s in shapes]


NESTS: dict[str, tuple[Build, Callable[[int], tuple[list[int], ...]]]] = {
    "chain": (lambda x, y: ops.relu(x * 2.0 + y) - ops.exp(x), lambda n: ([3, n], [3, n])),
    "row": (lambda x: ops.softmax(x, axis=-1), lambda n: ([3, n],)),
    "column": (lambda x: ops.softmax(x, axis=0), lambda n: ([3, n],)),
    "tall": (lambda x: ops.softmax(x, axis=0), lambda n: ([n, 3],)),
    "pairs": (
        lambda x, c, s: ops.rope(x, c, s, interleaved=True),
        lambda n: ([3, 2 * n + 2], [3, n + 1], [3, n + 1]),
    ),
    "norm": (lambda x, g: ops.rms_norm(x, g), lambda n: ([2, n], [n])),
    "sum of rows": (lambda x: ops.sum(x, axes=1), lambda n: ([4, n],)),
    "sum of columns": (lambda x: ops.sum(x, axes=0), lambda n: ([4, n],)),
    "weighted rows": (
        lambda x, m: ops.sum(x * m, axes=0) / ops.sum(m * m, axes=0),
        lambda n: ([11, n], [11, 1]),
    ),
    "rows of two folds": (lambda x: ops.softmax(x, axis=0) * 2.0, lambda n: ([13, n],)),
    "rows of a join": (
        lambda x, y: ops.max(ops.concat(x, y, axis=0), axes=0),
        lambda n: ([9, n], [2, n]),
    ),
    "norm of two axes": (
        lambda x: ops.softmax(ops.exp(x) - ops.mean(ops.exp(x), axes=(0, 2), keepdims=True)),
        lambda n: ([2, 3, n],),
    ),
    "sum of all": (lambda x: ops.sum(x), lambda n: ([2, 3, n],)),
    "most of all": (lambda x: ops.max(x), lambda n: ([2, n + 1],)),
    "first of the most": (lambda x: ops.argmax(x, axis=-1), lambda n: ([3, n + 1],)),
    "turned": (lambda x, y: ops.transpose(x, perm=(1, 0)) + y, lambda n: ([n, 5], [5, n])),
    "turned in squares": (
        lambda x, y, z: ops.transpose(x, perm=(1, 0)) * y + z,
        lambda n: ([n, 35], [n], [35, n]),
    ),
    "backwards": (lambda x: ops.flip(x, axes=(1,)) * 2.0, lambda n: ([3, n],)),
    "every second": (
        lambda x: ops.slice(x, starts=(0, 1), stops=(3, 10**6), steps=(1, 2)),
        lambda n: ([3, 2 * n + 1],),
    ),
    "every third": (
        lambda x: ops.slice(x, starts=(0, 1), stops=(3, 10**6), steps=(1, 3)) * 2.0,
        lambda n: ([3, 3 * n],),
    ),
    "padded": (lambda x: ops.pad(x, low=(1, 3), high=(2, 1), value=7.0), lambda n: ([2, n],)),
    "joined": (lambda x, y: ops.exp(ops.concat(x, y, axis=1)), lambda n: ([2, n], [2, 5])),
    "joined rows": (lambda x, y: ops.concat(x, y, axis=0), lambda n: ([2, n], [3, n])),
    "with means": (
        lambda x: (x - ops.mean(x, axes=1, keepdims=True), ops.mean(x, axes=1, keepdims=True)),
        lambda n: ([3, n],),
    ),
    "with sums of columns, of a square": (
        lambda x: (x * 2.0, ops.sum(x * 2.0, axes=0)),
        lambda n: ([n, n],),
    ),
}


@pytest.mark.parametrize("isa", [host(), AVX2, SSE2], ids=["host", "avx2", "sse2"])
@pytest.mark.parametrize("name", NESTS)
def test_every_tail(name: str, isa: Isa) -> None:
    """One kernel for each length up to past four vectors of any machine but this one's, which
    takes a longer row too."""
    build, dims_of = NESTS[name]
    lengths = TAILS if isa is host() else (0, 1, 7, 8, 9, 33)
    lengths = [*lengths, 131, 257] if isa is host() else lengths
    works: list[Work] = []
    for n in lengths:
        shapes = [rlx.Shape(d) for d in dims_of(n)]
        works.append(Work(kernel_of(build, *shapes), data(*shapes, seed=n), {}))
    batch = Batch(works, isa)
    for i, work in enumerate(works):
        check_run(batch, i, build, work)


def check_run(batch: Batch, i: int, build: Build, work: Work, parts: int = 1) -> None:
    code, results = batch.run(i, parts)
    assert code == 0
    with np.errstate(all="ignore"):
        want = build(*work.arrays)
    for got, expected in zip(results, want if isinstance(want, tuple) else (want,), strict=True):
        assert_close(got, np.asarray(expected), f"{batch.kernels[i]}\n{batch.schedules[i]}")


DYNAMIC: dict[str, tuple[Build, Callable[[Any], tuple[list[Any], ...]]]] = {
    "rows": (lambda x: ops.softmax(x, axis=-1), lambda n: ([3, n],)),
    "columns": (lambda x: ops.softmax(x, axis=0), lambda n: ([n, 5],)),
    "mean": (lambda x: ops.mean(x, axes=(0, 1)), lambda n: ([n, 4],)),
    "padded": (lambda x: ops.pad(x, low=(0, 3), high=(0, 1), value=7.0), lambda n: ([2, n],)),
    "joined": (lambda x, y: ops.concat(x, y, x, axis=1), lambda n: ([2, n], [2, 5])),
    "turned": (lambda x: ops.transpose(x, perm=(1, 0)), lambda n: ([n, 5],)),
    "norm": (lambda x, g: ops.layer_norm(x, g, g), lambda n: ([2, n], [n])),
}


@pytest.mark.parametrize("name", DYNAMIC)
def test_one_code_for_every_size(name: str) -> None:
    build, dims_of = DYNAMIC[name]
    symbol = rlx.Dim("n", 0, 1000)
    kernel = kernel_of(build, *(rlx.Shape(d) for d in dims_of(symbol)))
    works: list[Work] = []
    for n in (1, 2, 15, 16, 17, 64, 200):
        shapes = [rlx.Shape(d) for d in dims_of(n)]
        works.append(Work(kernel, data(*shapes, seed=n), {"n": n}))
    batch = Batch(works[:1], host())
    batch.works, batch.kernels = works, batch.kernels * len(works)
    batch.schedules = batch.schedules * len(works)
    batch.name = lambda _: "kernel0"
    for i, work in enumerate(works):
        check_run(batch, i, build, work)


def test_rows_wider_than_their_running_values() -> None:
    """Columns are folded some thousand at a time; where a part begins changes nothing."""
    width = 2 * ROW_WIDTH + 100
    names = ("weighted rows", "rows of two folds", "rows of a join")
    shapes = [[rlx.Shape(d) for d in NESTS[name][1](width)] for name in names]
    builds = [NESTS[name][0] for name in names]
    works = [Work(kernel_of(b, *s), data(*s), {}) for b, s in zip(builds, shapes)]
    batch = Batch(works, host())
    for i, work in enumerate(works):
        assert bool(batch.schedules[i].row_accumulators) == (i != 1)
        check_run(batch, i, builds[i], work)
        for a, b in zip(batch.run(i)[1], batch.run(i, 5)[1], strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("dtype", ["i8", "f16", "bf16", "i16", "f64", "bool", "c64"])
def test_squares_of_every_width(dtype: str) -> None:
    """Turned, under a guard that cuts the squares, and with a batch around them."""
    builds: list[Build] = [
        lambda x: ops.transpose(x, perm=(0, 2, 1)),
        lambda x: ops.concat(*[ops.transpose(x, perm=(0, 2, 1))] * 2, axis=1),
        lambda x: ops.concat(*[ops.transpose(x, perm=(0, 2, 1))] * 2, axis=2),
    ]
    shape = rlx.Shape([2, 37, 50], dtype)
    arrays = [np.random.default_rng(0).integers(0, 2, shape.static_dims).astype(shape.dtype.numpy)]
    for isa in (host(), AVX2):
        batch = Batch([Work(kernel_of(b, shape), arrays, {}) for b in builds], isa)
        for i, work in enumerate(batch.works):
            assert dtype == "c64" or batch.schedules[i].tile is not None
            check_run(batch, i, builds[i], work)
            assert batch.run(i)[1][0].tobytes() == batch.run(i, 3)[1][0].tobytes()


UNCUT: dict[str, tuple[Build, tuple[list[int], ...]]] = {
    "a number for a row": (
        lambda x, y: ops.concat(x, ops.expand(y, dims=(3, 9)), axis=1), ([3, 20], [3, 1])
    ),
    "a sum in a part": (
        lambda x, y: ops.concat(ops.sum(x, axes=1), y, axis=0), ([3, 20], [30])
    ),
    "sums over a join": (
        lambda x, y: ops.sum(ops.concat(x, y, axis=1), axes=1), ([3, 20], [3, 7])
    ),
    "rows for a row": (
        lambda x, y: ops.concat(y, ops.softmax(x, axis=-1), axis=0), ([4, 20], [2, 20])
    ),
}  # fmt: skip


def test_lanes_test_what_is_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where loops are not cut at guards, a lane still reads only what is there."""
    works: list[Work] = []
    builds: list[Build] = []
    for build, dims_of in NESTS.values():
        for n in (0, 5, 40):
            shapes = [rlx.Shape(d) for d in dims_of(n)]
            works.append(Work(kernel_of(build, *shapes), data(*shapes, seed=n), {}))
            builds.append(build)
    for build, dims in UNCUT.values():
        shapes = [rlx.Shape(d) for d in dims]
        for _ in range(2):
            works.append(Work(kernel_of(build, *shapes), data(*shapes), {}))
            builds.append(build)
    for pieces in (cuts.MAX_PIECES, 0):
        monkeypatch.setattr(cuts, "MAX_PIECES", pieces)
        monkeypatch.setattr(cuts, "MAX_ALONE", pieces)
        batch = Batch(works, host())
        for i, work in enumerate(works):
            check_run(batch, i, builds[i], work)


def test_long_kernels() -> None:
    """Neither a join of many parts nor a long chain of ops is too deep."""
    shapes = [rlx.Shape([2, 3])] * 300
    join = lambda *xs: ops.concat(*xs, axis=1)

    def chain(x: Any) -> Any:
        for _ in range(2000):
            x = x * 0.999 + 0.001
        return x

    works = [Work(kernel_of(join, *shapes), data(*shapes), {})]
    works.append(Work(kernel_of(chain, shapes[0]), data(shapes[0]), {}))
    batch = Batch(works, AVX2)
    for i, build in enumerate((join, chain)):
        code, (got,) = batch.run(i)
        assert code == 0
        np.testing.assert_allclose(got, build(*works[i].arrays), rtol=2000 * 2.0**-23)


def test_parts_give_the_bits_of_the_whole() -> None:
    works: list[Work] = []
    for build, dims_of in NESTS.values():
        for n in (1, 37, 150):
            shapes = [rlx.Shape(d) for d in dims_of(n)]
            works.append(Work(kernel_of(build, *shapes), data(*shapes, seed=n), {}))
    batch = Batch(works, host())
    for i in range(len(works)):
        whole = batch.run(i)[1]
        for parts in (2, 3):
            for a, b in zip(whole, batch.run(i, parts)[1], strict=True):
                assert a.tobytes() == b.tobytes()


def test_schedules_do_not_change_what_is_computed() -> None:
    """Kept rows, streaming stores, and any unrolling."""
    names = ("chain", "row", "norm", "with means", "padded", "sum of columns", "turned in squares")
    for name in names:
        build, dims_of = NESTS[name]
        works: list[Work] = []
        for n in (1, 48, 64, 200):
            shapes = [rlx.Shape(d) for d in dims_of(n)]
            works.append(Work(kernel_of(build, *shapes), data(*shapes, seed=n), {}))
        plain = Batch(works, host())
        for changes in (
            {"streaming": True},
            {"unroll": 1},
            {"unroll": 3},
            {"staged": ()},
            {"accumulators": 3},
        ):
            other = lambda k, m, changes=changes: replace(choose(k, m), **changes)
            batch = Batch(works, host(), other)
            if "streaming" in changes and name in ("chain", "row", "norm"):
                assert "!nontemporal" in batch.text
            for i, work in enumerate(works):
                check_run(batch, i, build, work)
                if "accumulators" not in changes:
                    for a, b in zip(plain.run(i)[1], batch.run(i)[1], strict=True):
                        assert a.tobytes() == b.tobytes()


def test_what_two_passes_need_is_kept() -> None:
    soft = legal(kernel_of(lambda x: ops.softmax(x), rlx.Shape([4, 400])))
    schedule = choose(soft, CpuMachine.of(AVX512))
    assert [n.op.name for n in schedule.staged if isinstance(n, Apply)] == ["exp"]
    assert schedule.vector is soft.axes[1]
    assert scratch_bytes(schedule) >= 400 * 4
    huge = legal(kernel_of(lambda x: ops.softmax(x), rlx.Shape([4, 10**6])))
    assert choose(huge, CpuMachine.of(AVX512)).staged == ()


def test_axes_that_lie_behind_each_other_are_one() -> None:
    both = kernel_of(lambda x, y: x + y, *[rlx.Shape([4, 1, 5, 6])] * 2)
    assert [a.extent for a in legal(both).axes] == [120]
    rows = kernel_of(lambda x, y: x + y, rlx.Shape([4, 5, 6]), rlx.Shape([5, 6]))
    assert [a.extent for a in legal(rows).axes] == [4, 30]
    total = legal(kernel_of(lambda x: ops.sum(x, axes=(1, 2)), rlx.Shape([4, 5, 6])))
    assert [a.extent for a in total.reduced] == [30]
    turned = kernel_of(lambda x: ops.transpose(x, perm=(1, 0)) + 1.0, rlx.Shape([4, 5]))
    assert [a.extent for a in legal(turned).axes] == [5, 4]


def test_merged_axes_mean_the_same() -> None:
    """Before any code: the interpreter agrees on the merged kernel and the one it came from."""
    cube = [rlx.Shape([2, 6, 5])] * 2
    builds: list[Build] = [
        lambda x, y: x * y + ops.sum(x, axes=(1, 2), keepdims=True),
        lambda x, y: ops.sum(x + y, axes=(0, 1)),
        lambda x, y: ops.max(ops.sum(x * y, axes=2), axes=1),
        lambda x, y: ops.softmax(x, axis=1) - y,
        lambda x, y: ops.concat(x, y, axis=0),
        lambda x, y: ops.concat(x, y, axis=1),
        lambda x, y: ops.transpose(x, perm=(1, 2, 0)) * 2.0,
    ]
    for build in builds:
        kernel, arrays = kernel_of(build, *cube), data(*cube)
        merged = collapsed(kernel)
        for a, b in zip(run(kernel, arrays, {}), run(merged, arrays, {}), strict=True):
            assert_close(b, a, f"{kernel}\n{merged}")


def test_a_product_of_complex_numbers_over_an_axis_is_refused() -> None:
    kernel = kernel_of(lambda x: ops.prod(x, axes=0), rlx.Shape([4, 5], "c64"))
    with pytest.raises(NotLowered, match="prod of complex numbers"):
        legal(kernel)


# -- layouts --------------------------------------------------------------------------------------


def test_operands_and_results_of_any_layout() -> None:
    """A transposed operand, one read backwards from its end, and a result with padded rows."""
    shape = rlx.Shape([6, 20])
    node, build = region(lambda x, y: x * 2.0 + y, shape, shape)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 6)).astype("f"), rng.normal(size=(6, 20)).astype("f")
    turned = Layout((6, 20), (1, 6))
    back = Layout((6, 20), (-20, -1), 119)
    padded = Layout((6, 20), (32, 1), 4)
    kernel = loop_kernel(node, [turned, back], [padded])
    kernel = replace(kernel, results=(rlx.Shape([6 * 32]),))
    for isa in (host(), AVX2, SSE2):
        batch = Batch([Work(kernel, [x, y], {})], isa)
        out = batch.run(0)[1][0].reshape(6, 32)[:, 4:24]
        np.testing.assert_array_equal(out, build(x.T, y[::-1, ::-1]))


# -- gathered rows --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["i32", "i64", "u8"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_row_that_is_not_there_is_an_error_code(dtype: str, axis: int) -> None:
    table, rows = rlx.Shape([7, 9]), rlx.Shape([20], dtype)
    build = lambda x, i: ops.gather(x, i, axis=axis)
    kernel = kernel_of(build, table, rows)
    (x,) = data(table)
    limit = 7 if axis == 0 else 9
    good = (np.arange(20) % limit).astype(rows.dtype.numpy)
    bad = [good.copy() for _ in range(2)]
    bad[0][19], bad[1][3] = limit, 200 if dtype == "u8" else -1
    batch = Batch([Work(kernel, [x, i], {}) for i in (good, *bad)], host())
    check_run(batch, 0, build, batch.works[0])
    assert batch.run(1)[0] == 1
    assert batch.run(2)[0] == 1


def test_no_row_of_an_empty_table_is_there() -> None:
    table, rows = rlx.Shape([0, 9]), rlx.Shape([3], "i64")
    kernel = kernel_of(lambda x, i: ops.gather(x, i, axis=0), table, rows)
    batch = Batch([Work(kernel, [*data(table), np.zeros(3, "i8")], {})], host())
    assert batch.run(0)[0] == 1


# -- other machines, schedules --------------------------------------------------------------------


def test_code_for_every_machine_assembles() -> None:
    for isa in (AVX512, AVX2, SSE2, NEON):
        functions = []
        for number, (build, dims_of) in enumerate(NESTS.values()):
            kernel = legal(kernel_of(build, *(rlx.Shape(d) for d in dims_of(37))))
            schedule = choose(kernel, CpuMachine.of(isa))
            functions.append(emit(kernel, schedule, isa, f"k{number}"))
        text = assembled(module(functions, isa), isa)
        assert all(f"k{n}:" in text for n in range(len(functions)))


def test_no_code_calls_a_library() -> None:
    """What LLVM would make a call of (fmod, floor without an instruction) is written out."""
    for isa in (AVX512, AVX2, SSE2, NEON):
        functions = []
        for name in ("exp", "log", "pow", "rem", "sin", "erfc", "atan2", "floor", "round", "cast"):
            attrs = {"to": rlx.DType.F16} if name == "cast" else {}
            g = rlx.Graph(name)
            decl = lookup(name)
            count = len(decl.signature.operands)
            inputs = [g.input(f"x{i}", rlx.Shape([40], "f64")) for i in range(count)]
            kernel = legal(loop_kernel(g.node(decl, inputs, attrs)))
            schedule = choose(kernel, CpuMachine.of(isa))
            functions.append(emit(kernel, schedule, isa, f"k_{name}"))
        text = assembled(module(functions, isa), isa)
        calls = [c for c in text.splitlines() if c.split()[:1] in (["call"], ["callq"], ["bl"])]
        own = ("power", "fmod", "erfc_tail", "atan2")
        assert all(any(name in c for name in own) for c in calls), calls


def test_a_schedule_of_another_kernel_is_refused() -> None:
    one = legal(kernel_of(lambda x: x + 1.0, rlx.Shape([4])))
    other = legal(kernel_of(lambda x: x + 1.0, rlx.Shape([4])))
    schedule = choose(one, CpuMachine.of(AVX512))
    check_schedule(schedule, one)
    with pytest.raises(Error, match="its loops are not the kernel's axes"):
        emit(other, schedule, AVX2)
    with pytest.raises(Error, match="it does not unroll"):
        emit(one, Schedule(schedule.order, None, 0, schedule.order[:1]), AVX2)


def test_the_same_kernel_gives_the_same_text() -> None:
    texts = set()
    for _ in range(3):
        kernel = legal(kernel_of(lambda x: ops.softmax(x), rlx.Shape([4, 40])))
        texts.add(emit(kernel, choose(kernel, CpuMachine.of(AVX512)), AVX512).text)
    assert len(texts) == 1


def test_a_long_fold_in_chunks() -> None:
    """Two kernels, of which the second reads what the first left; more parts, same bits."""
    length = 5 * MIN_CHUNK + 37
    for build in (lambda x: ops.mean(x), lambda x: ops.max(x, axes=0) + 1.0):
        shape = rlx.Shape([length])
        (x,) = data(shape)
        found = split_reduction(legal(kernel_of(build, shape)))
        assert found is not None
        first = Batch([Work(found[0], [x], {})], host())
        chunks = [first.run(0, parts)[1][0] for parts in (1, 3)]
        assert chunks[0].tobytes() == chunks[1].tobytes()
        last = Batch([Work(found[1], [x, chunks[0]], {})], host())
        check_run(last, 0, lambda x, _, build=build: build(x), last.works[0])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_row_is_divided_by_its_sum(dtype: str) -> None:
    """By one division, within 1.5 units in the last place at any size; by its greatest exactly."""
    shape = rlx.Shape([12, 40], dtype)
    info = np.finfo(shape.dtype.numpy)
    rng = np.random.default_rng(0)
    sizes = [info.tiny / 8, info.tiny, 1e-20, 1.0, 3.0, 1e20, info.max / 64, 0.0, np.inf, np.nan]
    x = rng.random((12, 40)) + 0.5
    x = (x * np.array([*sizes, 41.0, -1.0])[:, None]).astype(shape.dtype.numpy)
    builds: list[Build] = [
        lambda x: x / ops.sum(x, axes=1, keepdims=True),
        lambda x: x / ops.max(x, axes=1, keepdims=True),
    ]
    batch = Batch([Work(kernel_of(b, shape), [x], {}) for b in builds], host())
    (by_sum,), (by_most,) = (batch.run(i)[1] for i in range(2))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(by_most, x / x.max(1, keepdims=True))
        want = x.astype(np.longdouble) / x.astype(np.longdouble).sum(1, keepdims=True)
    # a sum of 40 numbers of one sign is within 6 halvings' roundings
    np.testing.assert_allclose(by_sum.astype(np.longdouble), want, rtol=5 * info.eps)


def test_complex_quotients_by_no_number_are_none() -> None:
    """A NaN is not the smaller part of a divisor, and a zero beside it is not all of it."""
    nan, inf = np.nan, np.inf
    parts = [(nan, 0), (0, nan), (0, 0), (inf, 0), (inf, inf), (nan, inf), (1e-30, 1e-30)]
    x = np.array([complex(*p) for p in parts], np.complex64)
    graph = rlx.trace(rlx.ops.reciprocal, rlx.Shape([len(x)], "c64"))
    got, want = rlx.compile(graph, "cpu")(x), rlx.compile(graph, "reference")(x)
    # a quotient of finite numbers is three roundings away from NumPy's, which has its own order
    np.testing.assert_allclose(got, want, rtol=4 * 2.0**-23)
