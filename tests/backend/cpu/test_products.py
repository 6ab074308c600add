"""Products as schedules: drawn cases, what is packed, what is computed before and after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from rlx import ops
from rlx.backends.cpu.isa import NEON, Isa, host
from rlx.backends.cpu.llvm.compile import Native, assembled
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dtype import DType
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, Node
from rlx.kernel.program.schedule import Schedule
from rlx.ops.draw import Draw
from rlx.ops.op import lookup
from tests.backend.cpu import products
from tests.backend.cpu.guarded import guarded
from tests.backend.cpu.products import (
    RUNNABLE,
    WORKS,
    Array,
    B,
    Case,
    K,
    M,
    N,
    Work,
    of,
    turned,
    view,
)
from tests.backend.cpu.sequences import Runner, contraction_of, functions

EPS = {
    DType.F16: 2.0**-10, DType.BF16: 2.0**-7, DType.F32: 2.0**-23, DType.F64: 2.0**-52,
    DType.C64: 2.0**-23, DType.C128: 2.0**-52,
}  # fmt: skip
CASES = 32


def kernel_sequence_of(step: Step, name: str) -> Schedule[Task]:
    return contraction_of(step, name)


def step_of(work: Work, isa: Isa, constants: frozenset[int]) -> Step:
    node = work.node()
    given, made = work.layouts(node)
    return Step(node, tuple(given), tuple(made), CpuMachine.of(isa), constants)


def compiled(schedules: list[Schedule[Task]], isa: Isa) -> Native:
    return Native(module([f for r in schedules for f in functions(r)], isa), isa)


def wide(x: Array) -> Array:
    return x.astype(np.clongdouble if x.dtype.kind == "c" else np.longdouble)


def check(got: Array, x: Array, y: Array, dtype: DType) -> None:
    """Integers exact, floats to 8 · eps · Σ|terms|, and one rounding of a half float."""
    if dtype.is_integer:
        np.testing.assert_array_equal(got, np.matmul(x, y))
        return
    exact = np.matmul(wide(x), wide(y))
    size = np.matmul(abs(wide(x)), abs(wide(y)))
    allowed = 8 * EPS[dtype.compute] * size
    if dtype is not dtype.compute:
        allowed = allowed + EPS[dtype] / 2 * abs(exact) + 2.0**-24
    assert (abs(wide(got) - exact) <= allowed).all()


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_drawn_products(isa: Isa) -> None:
    drawn = []
    for seed in range(CASES if isa.name == host().name else CASES // 4):
        draw = Draw([seed, 4])
        case = draw.case(lookup("matmul"))
        g = Graph("g")
        node = g.node("matmul", [g.input(f"v{i}", Shape(s.dims, s.dtype))
                                 for i, s in enumerate(case.specs)], {})  # fmt: skip
        if node.shape.num_elements == 0:  # which is no work
            continue
        constants = [frozenset[int](), frozenset({1}), frozenset({0})][seed % 3]
        step = Step.alone(node, CpuMachine.of(isa), constants)
        drawn.append((node, draw.arrays(case), kernel_sequence_of(step, f"p{seed}")))
    native = compiled([r for *_, r in drawn], isa)
    for node, arrays, schedule in drawn:
        given = [guarded(np.ascontiguousarray(a)) for a in arrays]
        found = []
        for cuts in ("once", "one by one"):
            (shape,) = node.shapes
            made = guarded(np.full(shape.static_dims, 0, shape.dtype.numpy))
            Runner(native, schedule, {}).run(given, [made], cuts)
            check(made, arrays[0], arrays[1], shape.dtype)
            found.append(made.tobytes())
        assert found[0] == found[1]


# -- what surrounds a product ---------------------------------------------------------------------


def normed(x: Node, w: Node, scale: Node) -> Node:
    return ops.matmul(ops.mul(ops.relu(x), scale), w)


def both_computed(x: Node, w: Node) -> Node:
    return ops.matmul(ops.abs(x), ops.neg(w))


def embedded(ids: Node, table: Node, w: Node) -> Node:
    return ops.matmul(ops.gather(table, ids, axis=0), w)


def paired(x: Node, w: Node, half: Node) -> Node:
    return ops.add(ops.matmul(x, w), ops.concat(half, ops.square(half), axis=1))


def shared_heads(x: Node, y: Node) -> Node:
    """Inner axes that lie apart in the right operand."""
    rows = ops.reshape(ops.transpose(x, perm=(0, 2, 1, 3)), dims=(M, 15 * B))
    columns = ops.reshape(ops.transpose(y, perm=(0, 2, 1, 3)), dims=(N, 15 * B))
    return ops.matmul(rows, ops.transpose(columns, perm=(1, 0)))


def shifted(x: Node, w: Node, table: Node, ids: Node) -> Node:
    return ops.add(ops.matmul(x, w), ops.gather(table, ids, axis=0))


F32 = DType.F32
SURROUNDED: dict[str, Work] = {
    "left computed": Work(normed, of(F32, (B, M, K), (K, N), (K,))),
    "both computed": Work(both_computed, of(F32, (B, M, K), (B, K, N))),
    "left gathered": Work(embedded, (Shape([M], DType.I32), Shape([9, K]), Shape([K, N]))),
    "rows gathered after": Work(
        shifted, (Shape([M, K]), Shape([K, N]), Shape([9, N]), Shape([M], DType.I32))
    ),
    "choice after": Work(paired, of(F32, (M, K), (K, 40), (M, 20))),
    "dots": Work(products.product, of(F32, (B, 2, K), (B, K, N)), {1: turned}),
    "heads apart": Work(shared_heads, of(F32, (M, 3, B, 5), (N, 3, B, 5))),
}
TURNED: dict[str, Work] = {
    f"turned {dtype.value}": Work(products.product, of(dtype, (B, M, K), (B, K, N)), {1: turned})
    for dtype in (F32, DType.F64, DType.BF16, DType.I8, DType.I64)
}
SIZES = (
    {"b": 2, "m": 13, "k": 21, "n": 71},
    {"b": 1, "m": 1, "k": 600, "n": 5},
    {"b": 3, "m": 40, "k": 0, "n": 3},
    {"b": 1, "m": 0, "k": 2, "n": 3},
)


@dataclass(frozen=True)
class Made:
    """A schedule that a case can run."""

    native: Native
    schedule: Schedule[Task]

    def run(
        self, given: Sequence[Array], made: Sequence[Array], sizes: Mapping[str, int], cuts: str
    ) -> None:
        Runner(self.native, self.schedule, sizes).run(given, made, cuts)


def made_of(
    works: Mapping[str, Work], isa: Isa, constants: frozenset[int], patch: pytest.MonkeyPatch
) -> dict[str, Made]:
    """Recipes of works, in one module."""
    steps = [step_of(w, isa, constants) for w in works.values()]
    schedules = [kernel_sequence_of(s, f"w{i}") for i, s in enumerate(steps)]
    native = compiled(schedules, isa)
    for name, work in works.items():
        patch.setitem(WORKS, name, work)
    return {name: Made(native, r) for name, r in zip(works, schedules)}


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
@pytest.mark.parametrize("constants", [frozenset[int](), frozenset({1})], ids=["", "weights"])
def test_what_surrounds_a_product(
    isa: Isa, constants: frozenset[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in test_gemm, but through schedules: 8 · eps · Σ|terms|."""
    monkeypatch.setattr(products, "drawn", few_rows)
    for name, made in made_of(SURROUNDED, isa, constants, monkeypatch).items():
        for seed, sizes in enumerate(SIZES):
            case = Case(name, sizes, seed)
            (exact,), (size,) = case.exact(lambda x: x), case.exact(abs)
            for cuts in ("once", "one by one"):
                (got,) = case.run(made, cuts)
                assert (abs(wide(got) - wide(exact)) <= 8 * EPS[F32] * abs(size)).all()


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_squares_are_turned_while_packing(isa: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that lie apart, every edge of the squares, several chunks of inner steps."""
    for name, made in made_of(TURNED, isa, frozenset(), monkeypatch).items():
        assert len(made.schedule.tasks) == 2
        for seed, (k, n) in enumerate([(16, 64), (600, 33), (17, 130), (0, 3), (5, 0), (3, 1)]):
            case = Case(name, {"b": 2, "m": 7, "k": k, "n": n}, seed)
            x, y = (view(a, f) for a, f in zip(case.given, case.operands))
            for cuts in ("once", "one by one"):
                check(case.run(made, cuts)[0], x, y, case.dtypes[0])


def few_rows(rng: np.random.Generator, size: int, dtype: DType) -> Array:
    if dtype.is_float:
        return rng.normal(size=size).astype(dtype.numpy)
    return rng.integers(0, 9, size, dtype.numpy)


def test_other_processors_get_code_that_assembles() -> None:
    """Squares turned while packing, and a table of inner steps."""
    works = {**TURNED, "heads apart": SURROUNDED["heads apart"]}
    schedules = [kernel_sequence_of(step_of(w, NEON, frozenset()), f"w{i}") for i, w in
               enumerate(works.values())]  # fmt: skip
    text = module([f for r in schedules for f in functions(r)], NEON)
    assert "fmla" in assembled(text, NEON)
