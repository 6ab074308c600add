"""Products of numbers that are narrow in memory: bf16, bytes with zero points, scaled bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from rlx import ops
from rlx.backends.cpu.isa import AVX512_BF16, NEON, Isa, host
from rlx.backends.cpu.llvm.compile import Native, assembled
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.program.task import Task
from rlx.core.dim import evaluate
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Node
from rlx.kernel.program.schedule import Schedule
from tests.backend.cpu.products import RUNNABLE, WORKS, Array, B, Case, K, M, N, Work, of, turned
from tests.backend.cpu.sequences import functions
from tests.backend.cpu.test_products import Made, compiled, kernel_sequence_of, step_of, wide

BF16, U8, I8, F32 = DType.BF16, DType.U8, DType.I8, DType.F32
EPS = 2.0**-23


def in_f32(x: Node, w: Node) -> Node:
    return ops.wide_matmul(x, w, to=F32)


def in_i32(x: Node, w: Node) -> Node:
    return ops.wide_matmul(x, w, to=DType.I32)


def half_wide(x: Node, w: Node) -> Node:
    return ops.matmul(x, ops.cast(w, to=x.shape.dtype))


def then_rounded(x: Node, w: Node, bias: Node) -> Node:
    return ops.cast(ops.gelu(ops.add(in_f32(x, w), bias)), to=BF16)


def scaled(block: int) -> Callable[..., Node]:
    def build(x: Node, packed: Node, scale: Node) -> Node:
        return ops.dequant_matmul(x, packed, scale, packing="int8", block=block)

    return build


def bytes_of(x: DType, w: DType, *zeros: tuple[object, ...]) -> tuple[Shape, ...]:
    shapes = (Shape([B, M, K], x), Shape([K, N], w))
    return (*shapes, *(Shape(z, t) for z, t in zip(zeros, (x, w))))


FLOATS: dict[str, Work] = {
    "bf16": Work(in_f32, of(BF16, (M, K), (K, N))),
    "bf16 turned": Work(in_f32, of(BF16, (M, K), (K, N)), {0: turned, 1: turned}),
    "bf16 batch": Work(in_f32, of(BF16, (B, M, K), (B, K, N))),
    "f16": Work(in_f32, of(DType.F16, (M, K), (K, N))),
    "i8 as f32": Work(half_wide, (Shape([M, K]), Shape([K, N], I8))),
    "channels": Work(scaled(96), (Shape([M, 96]), Shape([N, 96], U8), Shape([N, 1]))),
    "blocks": Work(scaled(32), (Shape([M, 96]), Shape([N, 96], U8), Shape([N, 3]))),
    "small blocks": Work(scaled(2), (Shape([B, M, 6]), Shape([N, 6], U8), Shape([N, 3]))),
}
WHOLE: dict[str, Work] = {
    "u8 i8": Work(in_i32, bytes_of(U8, I8)),
    "i8 i8": Work(in_i32, bytes_of(I8, I8)),
    "u8 u8 zeros": Work(ops.matmul_integer, bytes_of(U8, U8, (), ())),
    "u8 i8 zeros": Work(ops.matmul_integer, bytes_of(U8, I8, (), (N,))),
    "i8 u8 zeros": Work(ops.matmul_integer, bytes_of(I8, U8, (M, 1), (1, N))),
}
SIZES = (
    {"b": 2, "m": 13, "k": 21, "n": 71},
    {"b": 1, "m": 1, "k": 1030, "n": 130},
    {"b": 1, "m": 30, "k": 3, "n": 16},
    {"b": 2, "m": 27, "k": 515, "n": 1},
    {"b": 1, "m": 3, "k": 0, "n": 5},
    {"b": 1, "m": 0, "k": 2, "n": 3},
    {"b": 1, "m": 2, "k": 2, "n": 0},
)
CONSTANTS = frozenset({1, 2, 3})


@functools.cache
def made(isa: Isa, constants: frozenset[int]) -> Mapping[str, Made]:
    """Every work of this page, in one module."""
    works = {**FLOATS, **WHOLE, "rounded": ROUNDED}
    schedules = [
        kernel_sequence_of(step_of(w, isa, constants), f"w{i}")
        for i, w in enumerate(works.values())
    ]
    native: Native = compiled(schedules, isa)
    return {name: Made(native, r) for name, r in zip(works, schedules)}


ROUNDED = Work(then_rounded, (*of(BF16, (M, K), (K, N)), Shape([N])))
on_every = pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
with_weights = pytest.mark.parametrize(
    ("isa", "constants"),
    [(host(), frozenset[int]()), *((i, CONSTANTS) for i in RUNNABLE)],
    ids=["made anew", *(f"weights {i.name}" for i in RUNNABLE)],
)


def cases(name: str, work: Work, patch: pytest.MonkeyPatch) -> list[Case]:
    patch.setitem(WORKS, name, work)
    return [Case(name, sizes, seed) for seed, sizes in enumerate(SIZES)]


def both_ways(case: Case, one: Made) -> Array:
    """The result, which is the same to the bit whatever parts the work is done in."""
    (once,), (apart,) = (case.run(one, cuts) for cuts in ("once", "one by one"))
    assert once.tobytes() == apart.tobytes()
    return once


@with_weights
def test_floats(isa: Isa, constants: frozenset[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """8 · eps · Σ|terms|, eps that of the f32 they are summed in."""
    for name, work in FLOATS.items():
        for case in cases(name, work, monkeypatch):
            got = both_ways(case, made(isa, constants)[name])
            (exact,), (size,) = case.exact(lambda x: x), case.exact(_sizes)
            assert (abs(wide(got) - wide(exact)) <= 8 * EPS * abs(wide(size))).all(), name


def _sizes(x: Array) -> Array:
    """How large numbers are, -128 as 127; packed bytes are signed ones."""
    if x.dtype.kind == "f" or x.dtype.itemsize > 1 or x.dtype == BF16.numpy:
        return abs(x)
    return abs(np.maximum(np.ascontiguousarray(x).view(np.int8), -127)).astype(x.dtype)


@with_weights
def test_whole_numbers(
    isa: Isa, constants: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, work in WHOLE.items():
        for case in cases(name, work, monkeypatch):
            got = both_ways(case, made(isa, constants)[name])
            np.testing.assert_array_equal(got, case.exact(lambda x: x)[0], err_msg=name)


@on_every
def test_what_follows_is_rounded_once(isa: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of bf16's last bit, beside what the sum in f32 and GELU leave: 16 · eps · Σ|terms|."""
    for case in cases("rounded", ROUNDED, monkeypatch):
        got = both_ways(case, made(isa, CONSTANTS)["rounded"])
        (exact,), (size,) = case.exact(lambda x: x), case.exact(abs)
        allowed = 2.0**-8 * abs(wide(exact)) + 16 * EPS * abs(wide(size))
        assert (abs(wide(got) - wide(exact)) <= allowed).all()


def test_infinities_and_nans_come_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKS, "bf16", FLOATS["bf16"])
    case = Case("bf16", {"m": 3, "k": 21, "n": 20}, 0)
    case.operands[0][:] = 0
    case.operands[0][5], case.operands[0][21 + 20], case.operands[1][:] = np.inf, np.nan, 1
    (got,) = case.run(made(host(), CONSTANTS)["bf16"])
    assert np.isposinf(got[0]).all()
    assert np.isnan(got[1]).all()
    assert (got[2] == 0).all()


# -- instructions ---------------------------------------------------------------------------------


def text_of(works: Mapping[str, Work], isa: Isa) -> str:
    schedules: list[Schedule[Task]] = [
        kernel_sequence_of(step_of(w, isa, CONSTANTS), f"w{i}")
        for i, w in enumerate(works.values())
    ]
    return module([f for r in schedules for f in functions(r)], isa)


def test_dots_are_single_instructions() -> None:
    chosen = {"bf16": FLOATS["bf16"], "u8 u8": WHOLE["u8 u8 zeros"]}
    text = assembled(text_of(chosen, AVX512_BF16), AVX512_BF16)
    assert "vdpbf16ps" in text
    assert "vpdpbusd" in text


def test_bytes_are_widened_in_registers() -> None:
    """Weights are kept as bytes: their panels are as large as they are, up to a whole panel."""
    for name in ("channels", "blocks"):
        schedule = kernel_sequence_of(step_of(FLOATS[name], host(), CONSTANTS), "w")
        (panels,) = schedule.packed
        assert evaluate(panels.size, {"n": 640}) <= 640 * 96 + 128 * 96


def test_other_processors_get_code_that_assembles() -> None:
    text = assembled(text_of({**FLOATS, **WHOLE}, NEON), NEON)
    assert "fmla" in text
    assert "mla" in text
