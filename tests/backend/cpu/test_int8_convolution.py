"""Convolutions of bytes less their zero points, in native code: the reference's numbers exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.backends.cpu.backend import CpuBackend
from rlx.backends.cpu.isa import AVX2, AVX512, AVX512_BF16, NEON, Isa, host, why_not
from rlx.backends.cpu.llvm.compile import assembled
from rlx.backends.cpu.llvm.function import module
from rlx.backends.cpu.machine import CpuMachine
from rlx.backends.cpu.program.task import Step, Task
from rlx.core.dim import Dim
from rlx.core.dtype import DType
from rlx.core.layout import Layout
from rlx.core.shape import Shape
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from rlx.kernel.program.schedule import Schedule
from rlx.rules.engine import Fired
from tests.backend.cpu.products import RUNNABLE, Array
from tests.backend.cpu.sequences import functions, kernel_sequence_of
from tests.backend.cpu.test_convolutions import compare, compiled, last
from tests.effort import tries

U8, I8 = DType.U8, DType.I8
H = Dim("h", 1, 64)
LEVELS = list(dict.fromkeys([*RUNNABLE, *(i for i in (AVX512,) if why_not(i) is None)]))
"""Those with dots of bytes, of i16 in vectors of each size, and without."""
on_every = pytest.mark.parametrize("isa", LEVELS, ids=lambda i: i.name)


def numbers(rng: np.random.Generator, shape: Shape) -> Array:
    """Of the whole range, its ends among them."""
    dtype = shape.dtype.numpy
    if dtype.kind == "f":
        return rng.uniform(0.01, 1.0, shape.static_dims).astype(dtype)
    ends = np.iinfo(dtype)
    low, high = (ends.min, ends.max) if dtype.itemsize == 1 else (-1000, 1000)
    made = rng.integers(low, high, shape.static_dims, endpoint=True).astype(dtype)
    if made.size > 3:
        made.flat[:2] = low, high
    return made


@dataclass(frozen=True, slots=True)
class Case:
    """A convolution whose operands are inputs x0, x1 …; images have their channels last, or not."""

    node: Node
    is_last: tuple[bool, bool]

    @property
    def weights(self) -> frozenset[int]:
        """All operands but the image and its zero point."""
        return frozenset(range(1, len(self.node.inputs))) - {2}

    def step(self, isa: Isa, constants: frozenset[int]) -> Step:
        seen, made = (last if one else Layout.contiguous for one in self.is_last)
        image, *more = self.node.inputs
        given = seen(image.shape.dims), *(Layout.contiguous(m.shape.dims) for m in more)
        return Step(self.node, given, (made(self.node.shape.dims),), CpuMachine.of(isa), constants)

    def check(
        self, native: Any, schedule: Schedule[Task], rng: np.random.Generator, h: int = 9
    ) -> None:
        sizes = {"h": h}
        bound = self.node.graph.bind(sizes)
        arrays = [numbers(rng, n.shape.bind(sizes)) for n in self.node.graph.inputs]
        (want,) = evaluate(bound, {f"x{i}": a for i, a in enumerate(arrays)})
        assert want.size > 0
        if self.is_last[0]:
            arrays[0] = np.moveaxis(arrays[0], 1, -1)
        if self.is_last[1]:
            want = np.moveaxis(want, 1, -1)
        compare(native, schedule, arrays, want, sizes)


def of(specs: Sequence[Shape], is_last: tuple[bool, bool] = (True, True), op: str = "conv_integer",
       **attrs: Any) -> Case:  # fmt: skip
    g = Graph("g")
    node = g.node(op, [g.input(f"x{i}", s) for i, s in enumerate(specs)], attrs)
    g.set_outputs([node])
    return Case(node, is_last)


def drawn(seed: int) -> Case:
    """Any geometry, dtypes, groups and zero points; and what makes bytes of the sums again."""
    rng = np.random.default_rng([seed, 5])

    def pick(*of: Any) -> Any:
        return of[int(rng.integers(len(of)))]

    axes = pick(1, 2, 2, 3)
    groups, inputs, outputs = pick(1, 1, 2, 3), pick(1, 2, 3, 4, 5, 8, 12), pick(1, 3, 8, 18, 40)
    if pick(0, 0, 0, 1):
        groups, inputs, outputs = pick(7, 16, 21), 1, 1
    kernel, stride, dilation = (tuple(pick(*v) for _ in range(axes))
                                for v in ((1, 2, 3), (1, 1, 2, 3), (1, 1, 2)))  # fmt: skip
    padding = tuple(pick(0, 1, 2) for _ in range(2 * axes))
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilation)]
    image = [s + pick(0, 1, 4, 7) for s in spans]
    x, w = pick(U8, U8, I8), pick(U8, I8, I8)
    zeros = [Shape(pick((), (1,)), x), Shape(pick((), (1,), (groups * outputs,)), w)]
    specs = [Shape([pick(1, 2), groups * inputs, *image], x),
             Shape([groups * outputs, inputs, *kernel], w)]  # fmt: skip
    op = pick("conv_integer", "conv_integer", "qlinear_conv")
    if op == "qlinear_conv":
        scale = Shape(pick((), (groups * outputs,)))
        zeros[0] = Shape([], x)
        specs = [specs[0], Shape([]), zeros[0], specs[1], scale, zeros[1], Shape([]),
                 Shape([], pick(U8, I8)), Shape([groups * outputs], DType.I32)]  # fmt: skip
    else:
        specs += zeros[: pick(0, 1, 2)]
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return of(specs, pick((True, True), (True, True), (False, True), (False, False)), op, **attrs)


@on_every
def test_drawn_convolutions_of_bytes(isa: Isa) -> None:
    drawn_ = [
        drawn(seed) for seed in range(tries(12, 36) if isa.name == host().name else tries(8, 14))
    ]
    made: list[tuple[Case, Schedule[Task]]] = []
    for i, case in enumerate(drawn_):
        kernels = case.weights if i % 3 else frozenset[int]()
        made.append((case, kernel_sequence_of(case.step(isa, kernels), f"c{i}")))
    native = compiled([r for _, r in made], isa)
    for i, (case, schedule) in enumerate(made):
        case.check(native, schedule, np.random.default_rng(i))


B, NO = (1, 1, 1, 1), (0, 0, 0, 0)
ONE, TWO = (Shape([], U8),), (Shape([], U8), Shape([], I8))
LARGE: dict[str, Case] = {
    "words": of([Shape([2, 24, H, 9], U8), Shape([70, 24, 3, 3], I8), *ONE], padding=B),
    "deep": of([Shape([1, 600, H, 3], U8), Shape([8, 600, 2, 2], I8), *TWO], padding=B),
    "signed": of([Shape([1, 16, H, 7], I8), Shape([40, 16, 3, 1], I8), Shape([], I8)],
                 padding=(1, 0, 1, 0), stride=(2, 1)),
    "odd": of([Shape([1, 37, H, 7], U8), Shape([20, 37, 3, 3], U8), *(Shape([], U8),) * 2],
              padding=B),
    "colours": of([Shape([1, 3, H, 20], U8), Shape([16, 3, 7, 7], I8), *ONE], (False, True),
                  padding=(3, 3, 3, 3), stride=(2, 2)),
    "few of groups": of([Shape([1, 6, H, 8], I8), Shape([20, 3, 3, 3], I8)], (False, True),
                        padding=B, groups=2),
    "each": of([Shape([2, 37, H, 6], U8), Shape([37, 1, 3, 3], I8), *TWO], padding=B, groups=37),
    "points": of([Shape([1, 33, H, 6], U8), Shape([20, 33, 1, 1], I8), *ONE]),
    "apart": of([Shape([1, 8, H, 17], U8), Shape([12, 8, 3, 3], I8), *ONE], (False, False),
                padding=B),
}  # fmt: skip


@on_every
def test_images_of_any_size(isa: Isa) -> None:
    made = [
        (c, kernel_sequence_of(c.step(isa, c.weights), f"c{i}"))
        for i, c in enumerate(LARGE.values())
    ]
    native = compiled([r for _, r in made], isa)
    for case, schedule in made:
        for size in (5, 24)[: tries(1, 2)]:
            case.check(native, schedule, np.random.default_rng(size), size)


def schedule(name: str, isa: Isa = AVX512_BF16) -> Schedule[Task]:
    return kernel_sequence_of(LARGE[name].step(isa, LARGE[name].weights), "c")


@pytest.mark.parametrize("name", ["words", "deep", "signed", "odd", "colours", "few of groups"])
def test_dots_are_single_instructions(name: str) -> None:
    text = module(functions(schedule(name)), AVX512_BF16)
    assert "vpdpbusd" in assembled(text, AVX512_BF16)


def test_pairs_are_single_instructions() -> None:
    text = module(functions(schedule("words", AVX2)), AVX2)
    assert "vpmaddwd" in assembled(text, AVX2)


def test_windows_of_bytes_are_read_where_they_lie() -> None:
    """One task, and weights in as many bytes as they are, up to a whole panel."""
    made = schedule("words")
    assert len(made.tasks) == 1
    assert made.temps == ()
    sums, kernels = sorted(p.size for p in made.packed)
    assert sums == 4 * 70
    assert kernels <= 9 * 24 * 128


def test_other_processors_get_code_that_assembles() -> None:
    text = module(functions(schedule("words", NEON)), NEON)
    assert "mla" in assembled(text, NEON)


# -- whole models ---------------------------------------------------------------------------------


def net(threads: int) -> tuple[rlx.Executable, Graph]:
    """Two layers that make bytes of bytes, and one channel by channel."""
    g, rng = Graph("net"), np.random.default_rng(0)

    def const(value: Any, dtype: Any) -> Node:
        return g.constant(np.array(value, dtype))

    def layer(x: Node, dims: tuple[int, ...], **attrs: Any) -> Node:
        w = g.constant(rng.integers(-128, 127, dims).astype(np.int8))
        scale = g.constant(rng.uniform(0.001, 0.02, dims[0]).astype(np.float32))
        bias = g.constant(rng.integers(-500, 500, dims[0]).astype(np.int32))
        given = (x, const(0.02, "f4"), const(3, "u1"), w, scale, const(np.zeros(dims[0]), "i1"),
                 const(0.1, "f4"), const(101, "u1"), bias)  # fmt: skip
        return ops.qlinear_conv(*given, padding=B, **attrs)

    x = g.input("x", Shape([2, 3, 40, 41], U8))
    y = layer(x, (24, 3, 3, 3), stride=(2, 2))
    z = layer(layer(y, (24, 1, 3, 3), groups=24), (40, 24, 3, 3))
    g.set_outputs([ops.add(ops.cast(z, to=DType.F32), 0.5)])
    return rlx.compile(g, target="cpu", threads=threads), g


def test_a_net_of_bytes_has_the_same_bits_on_any_threads() -> None:
    x = np.random.default_rng(1).integers(0, 256, (2, 3, 40, 41)).astype(np.uint8)
    runs = [net(threads) for threads in (1, 3)]
    (want,) = evaluate(runs[0][1], {"x": x})
    for exe, _ in runs:
        np.testing.assert_array_equal(exe(x), want)


def test_channels_of_bytes_are_laid_side_by_side() -> None:
    """Elsewhere there are no dots of them, whatever else speaks for another order."""
    g = Graph("layers")
    x = g.input("x", Shape((1, 3, 112, 112), U8))
    w, v = g.input("w", Shape((64, 3, 7, 7), I8)), g.input("v", Shape((8, 64, 3, 3), I8))
    y = ops.cast(ops.conv_integer(x, w, stride=(2, 2), padding=(3, 3, 3, 3)), to=U8)
    g.set_outputs([ops.conv_integer(y, v)])
    decisions = rlx.CompilePipeline(CpuBackend().target()).compile(g).decisions
    (first,) = (d for d in decisions if d.what == "nhwc_layout")
    assert first.verdict


def meant() -> tuple[Graph, dict[str, Array]]:
    """A convolution and a product of what bytes stand for, as quantised models spell them."""
    g, rng = Graph("meant"), np.random.default_rng(0)
    given = {"x": 3 * rng.normal(size=(1, 12, 9, 10)).astype(np.float32)}

    def weights(name: str, dims: tuple[int, ...], axis: int) -> Node:
        given[name] = rng.integers(-128, 127, dims).astype(np.int8)
        scale = g.constant(rng.uniform(0.01, 0.02, dims[axis]).astype(np.float32))
        return ops.dequantize_linear(g.input(name, Shape(dims, I8)), scale, axis=axis)

    def bytes_of(x: Node) -> Node:
        scale, zero = (g.constant(v) for v in (np.array(0.05, np.float32), np.array(9, np.uint8)))
        return ops.dequantize_linear(ops.quantize_linear(x, scale, zero, to=U8), scale, zero)

    x = bytes_of(g.input("x", Shape([1, 12, 9, 10])))
    bias = g.constant(rng.normal(size=16).astype(np.float32))
    y = ops.relu(ops.conv(x, weights("w", (16, 12, 3, 3), 0), bias, padding=B))
    flat = bytes_of(ops.reshape(ops.mul(y, 0.1), dims=(16, 90)))
    g.set_outputs([y, ops.matmul(flat, weights("m", (90, 20), 1))])
    return g, given


def fired(target: Any) -> set[str]:
    made = rlx.CompilePipeline(target).compile(meant()[0])
    return {e.rule for e in made.rewrites if isinstance(e, Fired)}


def test_what_bytes_stand_for_is_multiplied_as_bytes_where_there_are_kernels() -> None:
    rules = {"dequantized_conv_as_conv_integer", "dequantized_matmul_as_matmul_integer"}
    assert rules <= fired(CpuBackend().target())
    assert not rules & fired("mlx")


def test_sums_of_what_bytes_stand_for_are_no_less_exact() -> None:
    """Σ|terms| ≤ 108 · 12.3 · 2.56 bounds what summing in f32 may lose: an eps of it for each term.
    Of the bytes in between some may be one step further, each of which is 0.05 · 2.56 of a sum."""
    graph, given = meant()
    got = rlx.compile(graph, target="cpu")(*given.values())
    want = evaluate(graph, given)
    np.testing.assert_allclose(got[0], want[0], rtol=0, atol=2.0**-23 * 108 * 108 * 12.3 * 2.56)
    np.testing.assert_allclose(got[1], want[1], rtol=0, atol=2 * 0.05 * 2.56)
