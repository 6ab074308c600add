"""Expansions: programs without the nodes that a target lacks, with the same bits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.expand.functions import expand_functions
from rlx.backends.gpu.expand.single import SINGLE
from rlx.core.dtype import DType
from rlx.ops.op import lookup
from rlx.program import nodes as ir
from rlx.program.builder import Builder
from rlx.program.expand.reductions import WORDS, expand_reductions
from rlx.program.functions import FUNCTIONS
from rlx.program.program import Program
from tests.backend.gpu import kernels
from tests.backend.gpu.kernels import run

Array = np.ndarray[Any, Any]
COLLECTIVE = (ir.Reduce, ir.ReduceScatter, ir.Scan)


def same(program: Program, expanded: Program, **arguments: Any) -> None:
    """Both programs give the same bits, and the second has no collective node."""
    assert not any(isinstance(n, COLLECTIVE) for n in expanded.nodes)
    want, got = run(program, **arguments), run(expanded, **arguments)
    for name in want:
        np.testing.assert_array_equal(got[name].view(np.uint8), want[name].view(np.uint8))


def collective(block: int, dtype: DType, kind: str, op: Any) -> Program:
    b = Builder("collective", block=block)
    x, y = b.input("x", dtype), b.output("y", dtype)
    value = x[b.thread]
    made = {
        "block": lambda: b.block_reduce(op, value),
        "warp": lambda: b.warp_reduce(op, value),
        "group": lambda: b.warp_reduce(op, value, 8),
        "scatter": lambda: b.reduce_scatter(op, [value, value + 1, value + 2, value + 3]),
        "scan": lambda: b.block_scan(op, value),
        "exclusive": lambda: b.block_scan(op, value, is_inclusive=False),
    }[kind]()
    y[b.thread] = made
    return b.program()


@pytest.mark.parametrize("kind", ["block", "warp", "group", "scatter", "scan", "exclusive"])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I64, DType.U8, DType.F64])
def test_reductions_keep_their_bits(kind: str, dtype: DType) -> None:
    rng = np.random.default_rng(7)
    for block in (32, 96, 128):
        for op in ("add", "max", "mul", "min"):
            x = (rng.standard_normal(block) * 9).astype(dtype.numpy)
            program = collective(block, dtype, kind, op)
            same(program, expand_reductions(program), x=x, y=np.zeros_like(x))


@pytest.mark.parametrize("dtype", [DType.I32, DType.U32, DType.I64, DType.U64, DType.I8])
def test_integers_of_a_warp_are_left_to_a_target_that_reduces_words(dtype: DType) -> None:
    """Words with equal halves, and the ends of the range: the half that decides is either."""
    rng, info = np.random.default_rng(8), np.iinfo(dtype.numpy)
    ends = np.array([info.min, info.max, 0, 1, info.max - 1], dtype.numpy)
    for kind, op in (("warp", "min"), ("warp", "max"), ("block", "min"), ("block", "add")):
        program = collective(96, dtype, kind, op)
        expanded = expand_reductions(program, has_word_reductions=True)
        left = [n for n in expanded.nodes if isinstance(n, ir.Reduce)]
        assert {n.scope for n in left} == (
            {"warp"} if dtype.itemsize <= 4 or op != "add" else set()
        )
        assert all(n.result.dtype in WORDS for n in left)
        whole = rng.integers(info.min, info.max, 96, dtype.numpy, endpoint=True)
        for x in (whole, whole & dtype.numpy.type(info.max >> 1 & ~127), rng.choice(ends, 96)):
            want, got = (run(p, x=x, y=np.zeros_like(x)) for p in (program, expanded))
            np.testing.assert_array_equal(got["y"], want["y"])


@pytest.mark.parametrize("kind", ["block", "group"])
def test_truth_values(kind: str) -> None:
    x = np.arange(64) % 7 == 3
    for op in ("min", "max"):
        program = collective(64, DType.BOOL, kind, op)
        same(program, expand_reductions(program), x=x, y=np.zeros_like(x))


@pytest.mark.parametrize("block", [1, 7, 8, 48, 96, 256])
def test_reductions_without_warps_keep_their_bits(block: int) -> None:
    x = np.random.default_rng(block).standard_normal(block).astype(np.float32)
    for kind in ("block", "scan", "exclusive"):
        for op in ("add", "max"):
            program = replace(collective(block, DType.F32, kind, op), warp=1)
            same(program, expand_reductions(program), x=x, y=np.zeros_like(x))


@pytest.mark.parametrize("warp", [1, 32])
def test_reductions_in_loops_do_not_race(warp: int) -> None:
    x = np.random.default_rng(1).integers(-99, 99, (3, 200)).astype(np.int32)
    program = replace(kernels.scan(), warp=warp)
    same(program, expand_reductions(program), x=x, y=np.zeros_like(x), m=3, n=200)


def test_a_block_with_a_part_of_a_warp_is_refused() -> None:
    with pytest.raises(rlx.Error, match="a part of a warp"):
        expand_reductions(collective(48, DType.F32, "block", "add"))


# -- functions ------------------------------------------------------------------------------------

EDGES = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 0.5, 2.0, 3.0, -2.5, 700.0)


def arguments(name: str, dtype: Any) -> list[Array]:
    """Corners, small and large numbers; of two arguments every pair of corners."""
    rng = np.random.default_rng(3)
    plain = [rng.normal(size=600), rng.normal(size=300) * 30, rng.uniform(-110, 110, 300)]
    far = 10.0 ** rng.uniform(-30, 30, 400) * rng.choice([-1, 1], 400)
    first = np.concatenate([EDGES, *plain, far]).astype(dtype)
    if FUNCTIONS[name].arity == 1:
        return [first]
    pairs = np.array([(a, b) for a in EDGES for b in EDGES]).T
    second = np.concatenate([pairs[1], rng.permutation(first)])
    return [np.concatenate([pairs[0], first]).astype(dtype), second.astype(dtype)]


CASES = [(n, d, True) for n in FUNCTIONS if n != "sqrt" for d in (DType.F32, DType.F64)]
CASES += [(n, DType.F32, False) for n in SINGLE]


@pytest.mark.parametrize(("name", "dtype", "has_f64"), CASES)
def test_functions_keep_their_accuracy(name: str, dtype: DType, *, has_f64: bool) -> None:
    """Against the op table in f64, which is within a unit of f64 itself; results whose size is
    that of the least numbers may lose digits to underflow."""
    given = arguments(name, dtype.numpy)
    count = len(given[0])
    b = Builder(name, block=32, grid=(-(-count // 32),))
    inputs = [b.input(f"x{i}", dtype) for i in range(len(given))]
    y = b.output("y", dtype)
    at = b.block_index() * 32 + b.thread
    with b.when(at < count):
        y[at] = b.call(name, *(x[at] for x in inputs))
    program = expand_functions(b.program(), lambda call: call.function == "sqrt", has_f64=has_f64)
    assert has_f64 or all(v.dtype is not DType.F64 for n in program.nodes for v in n.results)
    assert {n.function for n in program.nodes if isinstance(n, ir.Call)} <= {"sqrt"}
    buffers = {f"x{i}": g for i, g in enumerate(given)}
    got = run(program, **buffers, y=np.zeros(count, dtype.numpy))["y"]
    with np.errstate(all="ignore"):
        table = {"fmod": "rem"}.get(name, name)
        want: Any = lookup(table).run([g.astype(np.float64) for g in given], {})
        want = np.asarray(want)
        rounded = want.astype(dtype.numpy)
        tiny = np.finfo(dtype.numpy).tiny
        unit = np.spacing(np.maximum(np.abs(rounded), tiny)).astype(np.float64)
        error = np.abs(got.astype(np.float64) - want) / unit
    same_special = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    allowed = FUNCTIONS[name].ulps[dtype is DType.F64] + (1.0 if dtype is DType.F64 else 0.01)
    wrong = ~same_special & ~(error <= allowed)
    cases = [tuple(float(g[i]) for g in given) for i in np.flatnonzero(wrong)[:4]]
    assert not wrong.any(), (cases, got[wrong][:4], rounded[wrong][:4], error[wrong][:4])
