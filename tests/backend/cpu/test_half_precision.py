"""f16 and bf16: a value is rounded where the graph has it, whoever reads it, in every kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx import ops
from rlx.core.dtype import DType
from rlx.ir.interpret import evaluate
from rlx.ir.mir import Graph, Node
from tests.effort import tries

pytest.importorskip("llvmlite")

HALVES = [DType.F16, DType.BF16]
TARGETS = ["cpu", "cpu:avx2", "cpu:sse2", "reference"]
ROWS, COLUMNS, SEEDS = 6, 40, tries(1, 2)


def run(graph: Graph, values: dict[str, np.ndarray], target: str) -> list[np.ndarray]:
    exe = rlx.compile(graph, target, cache=False)
    made = exe(*(values[n.attrs["name"]] for n in graph.inputs))
    return [made] if len(graph.outputs) == 1 else list(made)


def bits(x: np.ndarray) -> np.ndarray:
    """The bytes of each element, NaN alike."""
    if DType.of(x.dtype).is_float:
        x = np.where(np.isnan(x), np.array(np.nan, x.dtype), x)
    return np.ascontiguousarray(x).view(np.uint8)


def equal(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool((bits(a) == bits(b)).all())


# -- what was seen --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_sum_that_overflows_is_infinite_to_every_reader(dtype: DType, target: str) -> None:
    g = Graph("overflow")
    a = g.input("a", rlx.Shape([33], dtype))
    s = a + a
    g.set_outputs([s, ops.is_inf(s)])
    large = np.full(33, {DType.F16: 60000.0, DType.BF16: 3e38}[dtype], dtype.numpy)
    total, is_infinite = run(g, {"a": large}, target)
    assert np.isinf(total.astype(np.float32)).all()
    assert is_infinite.all()
    g.set_outputs([ops.is_inf(s)])
    assert run(g, {"a": large}, target)[0].all()


@pytest.mark.parametrize("target", TARGETS)
def test_floor_and_argmax_see_what_is_returned(target: str) -> None:
    g = Graph("readers")
    a, b = (g.input(n, rlx.Shape([8], DType.BF16)) for n in "ab")
    y = ops.mul(a, b)
    g.set_outputs([y, ops.floor(y), ops.argmax(y, axis=0), ops.cast(y, to=DType.F32)])
    x = np.array([15.875, 16.0, 1, 1, 1, 1, 1, 1], DType.BF16.numpy)
    z = np.array([16.125, 16.0, 1, 1, 1, 1, 1, 1], DType.BF16.numpy)
    made, floor, best, wide = run(g, {"a": x, "b": z}, target)
    assert float(made[0]) == 256.0 == float(floor[0])  # the product is 255.984375
    assert int(best) == 0
    assert (wide == made.astype(np.float32)).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_sum_over_two_axes_is_rounded_once(dtype: DType, target: str) -> None:
    """In f32 the sum of 2000 · 3 ones and 1 is exact; rounded after each axis it is not."""
    g = Graph("sums")
    x = g.input("x", rlx.Shape([4, 16, 3], dtype))
    g.set_outputs([ops.cast(ops.sum(x, axes=(0, 2)), to=DType.F32)])
    data = np.full((4, 16, 3), 100.5 if dtype is DType.F16 else 65.5, dtype.numpy)
    want = data.astype(np.float32).sum((0, 2)).astype(dtype.numpy).astype(np.float32)
    assert (run(g, {"x": data}, target)[0] == want).all()


# -- random graphs --------------------------------------------------------------------------------

EXACT = ("add", "sub", "mul", "div", "maximum", "minimum", "square", "sqrt", "neg", "abs",
         "reciprocal", "where", "fma", "max", "cast", "relu")  # fmt: skip
"""Rounded once from f32, in which each is exact or rounded as IEEE asks: two targets agree."""
SMOOTH = ("exp", "tanh", "sigmoid", "silu", "gelu", "erf", "softmax", "layer_norm", "mean",
          "matmul", "sum", "softplus", "rsqrt", "log_softmax", "rms_norm", "cumsum",
          "clamp")  # fmt: skip


class Grown:
    """A random graph whose every half float is read by ops that jump."""

    def __init__(self, seed: int, dtype: DType, names: tuple[str, ...]) -> None:
        self.rng = np.random.default_rng((seed, HALVES.index(dtype)))
        self.graph, self.dtype = Graph("grown"), dtype
        self.inputs = [
            self.graph.input(f"x{i}", rlx.Shape([ROWS, COLUMNS], dtype)) for i in range(3)
        ]
        weight = self.graph.input("w", rlx.Shape([COLUMNS, COLUMNS], dtype))
        self.inputs.append(weight)
        self.nodes = list(self.inputs[:3])
        for name in self.rng.choice(names, 7):
            self.nodes.append(self.applied(str(name), weight))
        self.values = {n.attrs["name"]: self.drawn(n) for n in self.inputs}

    def drawn(self, node: Node) -> np.ndarray:
        scale = float(self.rng.choice([0.3, 1.0, 20.0]))
        data = self.rng.normal(size=node.shape.static_dims) * scale
        return data.astype(self.dtype.numpy)

    def applied(self, name: str, weight: Node) -> Node:
        rng, near = self.rng, self.nodes[-4:]
        x, y, z = (near[int(rng.integers(len(near)))] for _ in range(3))
        made: dict[str, Any] = {
            "where": lambda: ops.where(ops.less(x, y), y, z),
            "fma": lambda: ops.fma(x, y, z),
            "sum": lambda: ops.mul(ops.sum(x, axes=(1,), keepdims=True), y),
            "max": lambda: ops.sub(x, ops.max(x, axes=(1,), keepdims=True)),
            "mean": lambda: ops.sub(x, ops.mean(x, axes=(0,), keepdims=True)),
            "cast": lambda: ops.cast(ops.mul(ops.cast(x, to=DType.F32), 1.2345), to=self.dtype),
            "softmax": lambda: ops.softmax(x, axis=-1),
            "log_softmax": lambda: ops.log_softmax(x, axis=-1),
            "matmul": lambda: ops.matmul(x, weight),
            "cumsum": lambda: ops.cumsum(x, axis=1),
            "clamp": lambda: ops.clamp(x, min=-0.1, max=0.3),
        }
        if name in made:
            return made[name]()
        op = rlx.ops.op.lookup(name)
        return op(*([x, y][: len(op.signature.operands)] if name not in UNARY else [x]))

    def readers(self, y: Node) -> list[Node]:
        return [
            ops.cast(y, to=DType.F32), ops.floor(y), ops.is_inf(y), ops.argmax(y, axis=1),
            ops.greater(y, 0.5), ops.sign(y), ops.cast(y, to=DType.I32),
        ]  # fmt: skip


UNARY = ("layer_norm", "rms_norm")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_every_reader_sees_the_value_that_is_returned(dtype: DType, target: str) -> None:
    for seed in range(SEEDS):
        grown = Grown(seed, dtype, EXACT + SMOOTH)
        made = grown.nodes[3:]
        outputs = [n for y in made for n in (y, *grown.readers(y))]
        grown.graph.set_outputs(outputs)
        got = run(grown.graph, grown.values, target)
        again = Graph("again")
        given = [again.input(f"y{i}", y.shape) for i, y in enumerate(made)]
        again.set_outputs([n for y in given for n in (y, *grown.readers(y))])
        step = len(outputs) // len(made)
        want = evaluate(again, {f"y{i}": got[i * step] for i in range(len(made))})
        for node, a, b in zip(outputs, got, want, strict=True):
            assert equal(a, b), (seed, node.op, [n.op for n in made])


@pytest.mark.parametrize("target", TARGETS[:2])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_what_is_rounded_alike_is_the_reference_bit_for_bit(dtype: DType, target: str) -> None:
    """Also where only the readers are outputs, so that no half float is ever stored."""
    for seed in range(SEEDS):
        grown = Grown(100 + seed, dtype, EXACT)
        made = grown.nodes[3:]
        for outputs in (made, [n for y in made for n in grown.readers(y)]):
            grown.graph.set_outputs(outputs)
            want = evaluate(grown.graph, grown.values)
            got = run(grown.graph, grown.values, target)
            for node, a, b in zip(outputs, got, want, strict=True):
                assert equal(a, b), (seed, node.op, [n.op for n in made])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_spelled_block_rounds_as_it_is_spelled(dtype: DType) -> None:
    """Naming a block would drop the rounding of its parts: 300² is infinite in f16."""
    g = Graph("spelled")
    x = g.input("x", rlx.Shape([4, 8], dtype))
    root = ops.sqrt(ops.add(ops.mean(ops.square(x), axes=(1,), keepdims=True), 1e-5))
    e = ops.exp(ops.sub(x, ops.max(x, axes=(1,), keepdims=True)))
    soft = ops.div(e, ops.sum(e, axes=(1,), keepdims=True))
    silu = ops.mul(x, ops.sigmoid(x))
    data = np.random.default_rng(0).normal(size=(4, 8), scale=300.0).astype(dtype.numpy)
    for outputs in ([ops.div(x, root), soft, silu], [ops.div(x, root), root, e, soft, silu]):
        g.set_outputs(outputs)
        want = evaluate(g, {"x": data})
        for target in ("cpu", "reference"):
            for node, a, b in zip(outputs, run(g, {"x": data}, target), want, strict=True):
                # an exponential may be an f32 rounding off, which a half makes one of its own
                near = {"rtol": 2.0**-7, "atol": 1e-6, "err_msg": f"{node.op} on {target}"}
                np.testing.assert_allclose(a.astype(float), b.astype(float), **near)


@pytest.mark.parametrize("layout", ["channels first", "channels last", "depthwise"])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_convolution_rounds_once_behind_its_bias(dtype: DType, layout: str) -> None:
    """Rounded before it, too, every tenth sum of f16 is another number."""
    rng = np.random.default_rng(2)
    groups = 16 if layout == "depthwise" else 1
    dims = (16, 16 // groups, 3, 3)
    g = Graph("conv")
    x = g.input(
        "x", rlx.Shape([1, 16, 12, 12] if layout[-4:] != "last" else [1, 12, 12, 16], dtype)
    )
    image = x if layout[-4:] != "last" else ops.transpose(x, perm=(0, 3, 1, 2))
    w, b = g.input("w", rlx.Shape(dims, dtype)), g.input("b", rlx.Shape([16], dtype))
    made = ops.conv(image, w, b, groups=groups)
    g.set_outputs([ops.relu(made), ops.cast(made, to=DType.F32)])
    values = {n.attrs["name"]: rng.normal(size=n.shape.static_dims) for n in (x, w, b)}
    values = {k: (v * (8 if k == "b" else 1)).astype(dtype.numpy) for k, v in values.items()}
    got, want = run(g, values, "cpu"), evaluate(g, values)
    for a, c in zip(got, want, strict=True):
        # sums in another order may fall on the other side of a half
        assert np.mean(a.astype(float) != c.astype(float)) < 0.01


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_spectra_round_once_behind_what_is_added_up(dtype: DType) -> None:
    rng = np.random.default_rng(4)
    g = Graph("spectra")
    x, f = g.input("x", rlx.Shape([3, 200], dtype)), g.input("f", rlx.Shape([9, 5], dtype))
    frames = {"n_fft": 16, "hop": 4}
    made = [ops.mean_power(x, **frames), ops.mel_frames(x, f, **frames)]
    g.set_outputs([*made, ops.welch(x, length=16, hop=4)])
    values = {"x": rng.normal(size=(3, 200)), "f": rng.random((9, 5))}
    values = {k: v.astype(dtype.numpy) for k, v in values.items()}
    for a, b in zip(run(g, values, "cpu"), evaluate(g, values), strict=True):
        # f32 of another order may fall on the other side of a half
        assert np.mean(a.astype(float) != b.astype(float)) < 0.05
