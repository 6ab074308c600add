"""Convolutions in native code, against the reference."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rlx.backends.cpu.isa import Isa, host
from rlx.backends.cpu.llvm.compile import Native
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import Dim, DimLike
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph
from rlx.kernel.program.schedule import Schedule
from rlx.ops.draw import Draw
from rlx.ops.op import lookup
from tests.backend.cpu.guarded import guarded
from tests.backend.cpu.products import RUNNABLE, Array
from tests.backend.cpu.sequences import Runner, conv_of, functions
from tests.effort import tries

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "complex64": 2.0**-23}


def compiled(schedules: list[Schedule[Task]], isa: Isa) -> Native:
    return Native(module([f for r in schedules for f in functions(r)], isa), isa)


def check(graph: Graph, native: Native, schedule: Schedule[Task], arrays: list[Array],
          sizes: dict[str, int]) -> None:  # fmt: skip
    """The same bits however the work is cut, and near what the reference makes of it."""
    bound = graph.bind(sizes) if sizes else graph
    (want,) = evaluate(bound, {f"x{i}": a for i, a in enumerate(arrays)})
    compare(native, schedule, arrays, want, sizes)


def compare(native: Native, schedule: Schedule[Task], arrays: Sequence[Array], want: Array,
            sizes: dict[str, int]) -> None:  # fmt: skip
    """Within 64 roundings of the largest result: sums of at most a few hundred numbers of size 1,
    taken in another order; what is not finite is so in both."""
    given = [guarded(np.ascontiguousarray(a)) for a in arrays]
    found: list[Array] = []
    for cuts in ("once", "one by one"):
        made = guarded(np.zeros(want.shape, want.dtype))
        Runner(native, schedule, sizes).run(given, [made], cuts)
        found.append(made)
    assert found[0].tobytes() == found[1].tobytes()
    if want.dtype.kind in "iub":
        np.testing.assert_array_equal(found[0], want)
        return
    wide = [a.astype(np.complex128) for a in (found[0], want)]
    np.testing.assert_array_equal(*(np.isfinite(a) for a in wide))
    got, expected = (np.where(np.isfinite(a), a, 0) for a in wide)
    scale = np.abs(expected).max(initial=1.0)
    error = np.abs(got - expected).max(initial=0.0)
    assert error <= 64 * EPS.get(want.dtype.name, 2.0**-52) * scale


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_drawn_convolutions(isa: Isa) -> None:
    drawn: list[tuple[Graph, list[Array], Schedule[Task]]] = []
    for seed in range(tries(12, 24) if isa.name == host().name else 8):
        draw = Draw([seed, 11])
        case = draw.case(lookup("conv" if seed % 4 else "fused_conv_bias_act"))
        g = Graph("g")
        inputs = [g.input(f"x{i}", Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
        g.set_outputs([g.node(case.op, inputs, case.attrs)])
        if g.outputs[0].shape.num_elements == 0:  # which is no work
            continue
        constants = frozenset({1} if seed % 2 else ())
        step = Step.alone(g.outputs[0], CpuMachine.of(isa), constants)
        drawn.append((g, draw.arrays(case), conv_of(step, f"c{seed}")))
    native = compiled([r for *_, r in drawn], isa)
    for graph, arrays, schedule in drawn:
        check(graph, native, schedule, arrays, {})


def last(dims: Sequence[DimLike]) -> Layout:
    """Channels side by side, behind the axes of the image."""
    rank = len(dims)
    order = (0, *range(2, rank), 1)
    plain = Layout.contiguous([dims[i] for i in order])
    return plain.permuted([order.index(i) for i in range(rank)])


def check_last(graph: Graph, native: Native, schedule: Schedule[Task], arrays: list[Array],
               sizes: dict[str, int]) -> None:  # fmt: skip
    """As `check`, images with their channels last."""
    bound = graph.bind(sizes) if sizes else graph
    (want,) = evaluate(bound, {f"x{i}": a for i, a in enumerate(arrays)})
    image, *more = arrays
    given = [np.moveaxis(image, 1, -1), *more]
    compare(native, schedule, given, np.moveaxis(want, 1, -1), sizes)


H = Dim("h", 1, 64)
LARGE: dict[str, tuple[tuple[Shape, Shape], dict[str, object]]] = {
    "padded": ((Shape([2, 9, H, 37]), Shape([13, 9, 3, 3])), {"padding": (1, 1, 1, 1)}),
    "strided": ((Shape([1, 6, 17, H]), Shape([70, 3, 3, 5])), {"stride": (2, 3), "groups": 2}),
    "whole": ((Shape([1, 60, 9, H]), Shape([8, 60, 3, 3])), {}),
    "points": ((Shape([1, 33, 8, H]), Shape([40, 33, 1, 1])), {}),
    "by channel": ((Shape([1, 12, 8, H]), Shape([12, 1, 3, 3])), {"groups": 12,
                                                                   "padding": (1, 1, 1, 1)}),
    "halves": ((Shape([1, 5, H, 20], DType.BF16), Shape([9, 5, 3, 3], DType.BF16)), {}),
    "line": ((Shape([2, 5, H]), Shape([9, 5, 4])), {"dilation": (3,), "padding": (9, 0)}),
}  # fmt: skip


MORE: dict[str, tuple[tuple[Shape, Shape], dict[str, object]]] = {
    "few": ((Shape([1, 3, 17, H]), Shape([16, 3, 5, 3])),
            {"stride": (2, 1), "padding": (2, 1) * 2}),
    "one": ((Shape([2, 1, H, 9]), Shape([9, 1, 3, 3])), {"padding": (1, 1, 1, 1)}),
    "deep": ((Shape([1, 600, 3, 3]), Shape([8, 600, 2, 2])), {"padding": (1, 0, 0, 1)}),
    "grouped": ((Shape([1, 24, 8, H]), Shape([30, 8, 3, 3])), {"groups": 3, "padding": (1,) * 4}),
    "channel": ((Shape([2, 37, 6, H]), Shape([37, 1, 3, 3])),
                {"groups": 37, "padding": (1, 1, 1, 1), "stride": (2, 1)}),
    "channel without border": ((Shape([2, 21, 6, H]), Shape([21, 1, 3, 3])), {"groups": 21}),
    "channel and point": ((Shape([2, 21, 6, H]), Shape([21, 1, 1, 1])), {"groups": 21}),
    "volume": ((Shape([1, 5, 4, 3, H]), Shape([9, 5, 2, 3, 2])), {"padding": (1, 1, 0) * 2}),
    "wholes": ((Shape([1, 9, 6, H], DType.I8), Shape([8, 9, 3, 3], DType.I8)),
               {"padding": (1,) * 4}),
}  # fmt: skip


TURNED: dict[str, tuple[tuple[Shape, Shape], dict[str, object]]] = {
    "channel": ((Shape([2, 21, 6, H]), Shape([21, 1, 3, 3])),
                {"groups": 21, "padding": (1, 1, 1, 1)}),
    "channel without border": ((Shape([2, 21, 6, H]), Shape([21, 1, 3, 3])), {"groups": 21}),
    "channel and point": ((Shape([2, 21, 6, H]), Shape([21, 1, 1, 1])), {"groups": 21}),
    "border above": ((Shape([1, 1, H, 60]), Shape([8, 1, 3, 9])),
                     {"padding": (1, 0, 1, 0), "dilation": (1, 5)}),
    "border of groups": ((Shape([2, 4, H, 40]), Shape([24, 1, 3, 9])),
                         {"padding": (1, 0, 1, 0), "dilation": (1, 3), "groups": 4}),
    "few": ((Shape([1, 3, 9, H]), Shape([16, 3, 5, 3])), {}),
}  # fmt: skip
"""Images whose channels lie apart, of results whose channels lie side by side."""


def stepped(given: Sequence[tuple[str, tuple[Shape, Shape], dict[str, object]]],
            isa: Isa, is_turned: bool) -> list[tuple[Graph, Schedule[Task]]]:  # fmt: skip
    made: list[tuple[Graph, Schedule[Task]]] = []
    for name, shapes, attrs in given:
        g = Graph(name)
        image, kernels = (g.input(f"x{i}", s) for i, s in enumerate(shapes))
        node = g.conv(image, kernels, **attrs)
        g.set_outputs([node])
        plain = Layout.contiguous(kernels.shape.dims)
        seen = Layout.contiguous(image.shape.dims) if is_turned else last(image.shape.dims)
        where = (seen, plain), (last(node.shape.dims),)
        step = Step(node, *where, CpuMachine.of(isa), frozenset({1} if len(made) % 3 else ()))
        made.append((g, conv_of(step, f"c{len(made)}")))
    return made


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_results_with_channels_last_of_images_without(isa: Isa) -> None:
    made = stepped([(n, *v) for n, v in TURNED.items()], isa, is_turned=True)
    native = compiled([r for _, r in made], isa)
    rng = np.random.default_rng(0)
    for graph, schedule in made:
        shapes = [n.shape.bind({"h": 9}) for n in graph.inputs]
        arrays = [rng.normal(size=s.static_dims).astype(s.dtype.numpy) for s in shapes]
        (want,) = evaluate(graph.bind({"h": 9}), {f"x{i}": a for i, a in enumerate(arrays)})
        compare(native, schedule, arrays, np.moveaxis(want, 1, -1), {"h": 9})


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_images_with_channels_last(isa: Isa) -> None:
    made = stepped([(n, *v) for n, v in (LARGE | MORE).items()], isa, is_turned=False)
    native = compiled([r for _, r in made], isa)
    rng = np.random.default_rng(0)
    for graph, schedule in made:
        for size in (5, 24):
            shapes = [n.shape.bind({"h": size}) for n in graph.inputs]
            arrays = [(rng.normal(size=s.static_dims) * 3).astype(s.dtype.numpy) for s in shapes]
            arrays[0].flat[3] = np.inf if arrays[0].dtype.kind == "f" else 3
            check_last(graph, native, schedule, arrays, {"h": size})


@pytest.mark.parametrize("isa", RUNNABLE, ids=lambda i: i.name)
def test_images_of_any_size(isa: Isa) -> None:
    made: list[tuple[Graph, Schedule[Task]]] = []
    for name, (shapes, attrs) in LARGE.items():
        g = Graph(name)
        inputs = [g.input(f"x{i}", s) for i, s in enumerate(shapes)]
        g.set_outputs([g.conv(*inputs, **attrs)])
        step = Step.alone(g.outputs[0], CpuMachine.of(isa), frozenset({1}))
        made.append((g, conv_of(step, f"c{len(made)}")))
    native = compiled([r for _, r in made], isa)
    rng = np.random.default_rng(0)
    for graph, schedule in made:
        for size in (5, 24, 64):
            shapes = [n.shape.bind({"h": size}) for n in graph.inputs]
            arrays = [rng.normal(size=s.static_dims).astype(s.dtype.numpy) for s in shapes]
            check(graph, native, schedule, arrays, {"h": size})
