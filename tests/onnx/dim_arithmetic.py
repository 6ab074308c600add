"""Random ONNX graphs of named dims: `python -m tests.onnx.dim_arithmetic --count 20000`.

Dims are pinned by weights, divided by reshapes, strides and pools, sliced by bounds that are
numbers or computed from sizes, concatenated, padded, and compared as numbers. A graph is drawn so
that it has a meaning at one choice of sizes; it is compiled once and called at 8. onnxruntime, or
onnx.reference where that is not installed, says what each call gives: where it answers, rlx gives
the same; where it refuses, nothing is asked. Where the two differ (onnxruntime joins what is empty
with rows of other lengths), either may be right.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.frontends.onnx.model import from_proto
from tests.differential import NUM_SIZES, Array, Judged, judged_calls, main, verdict

NAMES = ("a", "b", "c")
LARGEST = 12
MOST_ELEMENTS = 4096
END = 2**63 - 1


@dataclass(frozen=True)
class Tensor:
    """A value of floats, and its dims at the sizes that the graph is drawn for."""

    name: str
    dims: tuple[int, ...]

    @property
    def count(self) -> int:
        return int(np.prod(self.dims))


@dataclass(frozen=True)
class Number:
    """A computed size, as one element in a row, and what it is at those sizes."""

    name: str
    value: int


@dataclass
class Drawing:
    """A graph that grows node by node."""

    rng: random.Random
    sizes: dict[str, int]
    nodes: list[Any] = field(default_factory=list[Any])
    inputs: dict[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    numbers: list[Number] = field(default_factory=list[Number])

    def node(self, op: str, *operands: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], **attrs))
        return name

    def ints(self, *values: int) -> str:
        return self._weight(np.array(values, np.int64))

    def floats(self, *dims: int) -> str:
        count = int(np.prod(dims))
        return self._weight(
            np.array([self.rng.randint(-2, 2) for _ in range(count)], np.float32).reshape(dims)
        )

    def _weight(self, array: Array) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = array
        return name

    def input(self) -> None:
        dims = [self.rng.choice((*NAMES, *NAMES, 2, 3)) for _ in range(self.rng.randint(1, 3))]
        name = f"x{len(self.inputs)}"
        self.inputs[name] = tuple(dims)
        self.tensors.append(Tensor(name, tuple(self.sizes.get(d, d) for d in dims)))  # pyright: ignore

    def tensor(self) -> Tensor:
        """Mostly one of the last."""
        return self.rng.choice(self.tensors[-3:] if self.rng.random() < 0.7 else self.tensors)

    def axis(self, x: Tensor) -> int:
        return self.rng.randrange(len(x.dims))

    def size_of(self, x: Tensor, axis: int) -> Number:
        return Number(self.node("Shape", x.name, start=axis, end=axis + 1), x.dims[axis])

    def number(self) -> Number:
        """A size, or what is computed of sizes that were drawn before."""
        if not self.numbers or self.rng.random() < 0.4:
            x = self.tensor()
            made = self.size_of(x, self.axis(x))
        else:
            made = self._arithmetic(self.rng.choice(self.numbers))
        self.numbers.append(made)
        return made

    def _arithmetic(self, one: Number) -> Number:
        if self.rng.random() < 0.5:
            other = self.rng.choice(self.numbers)
        else:
            value = self.rng.randint(1, 5)
            other = Number(self.ints(value), value)
        a, b = one.value, other.value
        ways: dict[str, int] = {"Add": a + b, "Sub": a - b, "Min": min(a, b), "Max": max(a, b)}
        if abs(a * b) < 200:
            ways["Mul"] = a * b
        if a >= 0 and b > 0:
            ways |= {"Div": a // b, "Mod": a % b}
        op = self.rng.choice([*ways, *("Div" for _ in range("Div" in ways))])
        return Number(self.node(op, one.name, other.name), ways[op])

    def bound(self) -> Number:
        """Of a slice."""
        if self.rng.random() < 0.5:
            return self.number()
        value = self.rng.choice((0, 1, 2, 3, -1, -2, -4, 7, END, -END))
        return Number(self.ints(value), value)

    def add(self, name: str, dims: tuple[int, ...]) -> None:
        self.tensors.append(Tensor(name, dims))


# -- steps: each draws a node that has a meaning at the sizes of the drawing, or nothing ----------


def pinned(d: Drawing) -> None:
    """A dim meets a weight of its size."""
    x = d.tensor()
    first, k, rest, after = x.dims[0], x.dims[-1], x.dims[:-1], x.dims[1:]
    match d.rng.randrange(5):
        case 0 if len(x.dims) > 1:
            d.add(d.node("MatMul", x.name, d.floats(k, 3)), (*rest, 3))
        case 1:
            d.add(d.node("Add", x.name, d.floats(k)), x.dims)
        case 2 if len(x.dims) == 2:
            d.add(d.node("Gemm", x.name, d.floats(2, k), transB=1), (first, 2))
        case 3 if len(x.dims) == 3 and x.dims[-1] > 0:
            d.add(d.node("Conv", x.name, d.floats(2, x.dims[1], 1)), (x.dims[0], 2, k))
        case _:
            d.add(
                d.node("Concat", x.name, d.floats(2, *after), axis=0),
                (first + 2, *after),
            )


def reshaped(d: Drawing) -> None:
    """An axis split in two, or two merged."""
    x = d.tensor()
    axis = d.axis(x)
    size = x.dims[axis]
    divisors = [k for k in (1, 2, 3, 4, 5) if size and size % k == 0]
    if len(x.dims) > 1 and (d.rng.random() < 0.5 or not divisors):
        axis = d.rng.randrange(len(x.dims) - 1)
        if 0 in x.dims:
            return
        dims = [*(d.size_of(x, i) for i in range(len(x.dims)))]
        merged = Number(d.ints(-1), x.dims[axis] * x.dims[axis + 1])
        new = [*dims[:axis], merged, *dims[axis + 2 :]]
    elif divisors and 0 not in x.dims and len(x.dims) < 4:
        k = d.rng.choice(divisors)
        dims = [*(d.size_of(x, i) for i in range(len(x.dims)))]
        parts = [Number(d.ints(k), k), Number(d.ints(-1), size // k)]
        if d.rng.random() < 0.5:
            parts.reverse()
        new = [*dims[:axis], *parts, *dims[axis + 1 :]]
    else:
        return
    shape = d.node("Concat", *(n.name for n in new), axis=0)
    d.add(d.node("Reshape", x.name, shape), tuple(n.value for n in new))


def sliced(d: Drawing) -> None:
    x = d.tensor()
    axis, start, end = d.axis(x), d.bound(), d.bound()
    step = d.rng.choice((1, 1, 1, 2, 3, -1, -2))
    if step < 0 and end.value == END:  # onnxruntime reads it as the front, against the standard
        end = Number(d.ints(-END), -END)
    size = x.dims[axis]
    first, stop = (b.value + size if b.value < 0 else b.value for b in (start, end))
    if step > 0:
        count = len(range(min(max(first, 0), size), min(max(stop, 0), size), step))
    else:
        count = len(range(min(max(first, 0), size - 1), min(max(stop, -1), size - 1), step))
    made = d.node("Slice", x.name, start.name, end.name, d.ints(axis), d.ints(step))
    d.add(made, (*x.dims[:axis], count if size else 0, *x.dims[axis + 1 :]))


def joined(d: Drawing) -> None:
    x = d.tensor()
    axis = d.axis(x)
    fitting = [
        t for t in d.tensors
        if len(t.dims) == len(x.dims)
        and all(i == axis or p == q for i, (p, q) in enumerate(zip(t.dims, x.dims)))
    ]  # fmt: skip
    other = d.rng.choice(fitting)
    made = d.node("Concat", x.name, other.name, axis=axis)
    d.add(made, (*x.dims[:axis], x.dims[axis] + other.dims[axis], *x.dims[axis + 1 :]))


def met(d: Drawing) -> None:
    """Two values that broadcast."""
    x = d.tensor()
    fitting = [t for t in d.tensors if _broadcast(t.dims, x.dims) is not None]
    other = d.rng.choice(fitting)
    dims = _broadcast(x.dims, other.dims)
    assert dims is not None
    d.add(d.node(d.rng.choice(("Add", "Mul", "Max")), x.name, other.name), dims)


def _broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


def windowed(d: Drawing) -> None:
    x = d.tensor()
    if len(x.dims) != 3:
        return
    kernel, stride, pad = d.rng.randint(1, 3), d.rng.randint(1, 3), d.rng.randint(0, 1)
    n = x.dims[-1] + 2 * pad - kernel
    if n < 0 or 0 in x.dims or pad >= kernel:
        return
    how = {"kernel_shape": [kernel], "strides": [stride], "pads": [pad, pad]}
    d.add(
        d.node(d.rng.choice(("MaxPool", "AveragePool")), x.name, **how),
        (*x.dims[:2], n // stride + 1),
    )


def padded(d: Drawing) -> None:
    x = d.tensor()
    axis, low, high = d.axis(x), d.bound(), d.bound()
    if not all(0 <= n.value <= 4 for n in (low, high)):
        return
    zero = d.ints(0)
    amounts = [[zero] * len(x.dims) for _ in range(2)]
    amounts[0][axis], amounts[1][axis] = low.name, high.name
    made = d.node("Pad", x.name, d.node("Concat", *amounts[0], *amounts[1], axis=0))
    d.add(made, (*x.dims[:axis], x.dims[axis] + low.value + high.value, *x.dims[axis + 1 :]))


def compared(d: Drawing) -> None:
    """Numbers that follow from comparing sizes, as a factor."""
    x, one, other = d.tensor(), d.number(), d.number()
    truth = d.node(d.rng.choice(("Less", "Equal", "GreaterOrEqual")), one.name, other.name)
    if d.rng.random() < 0.5:
        factor = d.node("Cast", truth, to=TensorProto.FLOAT)
    else:
        factor = d.node("Cast", d.node("Where", truth, one.name, other.name), to=TensorProto.FLOAT)
    d.add(d.node("Mul", x.name, factor), x.dims)


def counted(d: Drawing) -> None:
    """The numbers up to a size, beside what has as many."""
    x = d.tensor()
    size = d.size_of(x, len(x.dims) - 1)
    flat = d.node("Squeeze", size.name, d.ints(0))
    zero, one = (d._weight(np.array(v, np.int64)) for v in (0, 1))  # pyright: ignore[reportPrivateUsage]
    line = d.node("Cast", d.node("Range", zero, flat, one), to=TensorProto.FLOAT)
    d.add(d.node("Add", x.name, line), x.dims)


def expanded(d: Drawing) -> None:
    x, size = d.tensor(), d.number()
    if not 0 <= size.value <= 8 or x.count * size.value > MOST_ELEMENTS or len(x.dims) > 3:
        return
    wide = d.node("Concat", size.name, d.node("Shape", x.name), axis=0)
    d.add(d.node("Expand", x.name, wide), (size.value, *x.dims))


def moved(d: Drawing) -> None:
    x = d.tensor()
    perm = d.rng.sample(range(len(x.dims)), len(x.dims))
    d.add(d.node("Transpose", x.name, perm=perm), tuple(x.dims[p] for p in perm))


def reduced(d: Drawing) -> None:
    x = d.tensor()
    axis = d.axis(x)
    dims = tuple(1 if i == axis else n for i, n in enumerate(x.dims))
    d.add(d.node("ReduceSum", x.name, d.ints(axis)), dims)


def split(d: Drawing) -> None:
    x = d.tensor()
    axis = d.axis(x)
    if x.dims[axis] % 2:
        return
    halves = [f"h{len(d.nodes)}{i}" for i in range(2)]
    d.nodes.append(helper.make_node("Split", [x.name], halves, axis=axis, num_outputs=2))
    dims = (*x.dims[:axis], x.dims[axis] // 2, *x.dims[axis + 1 :])
    for name in halves:
        d.add(name, dims)


def picked(d: Drawing) -> None:
    x, at = d.tensor(), d.number()
    axis = d.axis(x)
    if not -x.dims[axis] <= at.value < x.dims[axis]:
        return
    d.add(d.node("Gather", x.name, at.name, axis=axis), (*x.dims[:axis], 1, *x.dims[axis + 1 :]))


STEPS: tuple[Callable[[Drawing], None], ...] = (
    pinned, reshaped, reshaped, sliced, sliced, sliced, joined, joined, met, met, windowed, padded,
    compared, counted, expanded, moved, reduced, split, picked,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A graph, and the sizes that it is called at; the first are those that it is drawn for."""

    seed: int
    model: ModelProto
    sizes: tuple[Mapping[str, int], ...]

    def arrays(self, number: int) -> dict[str, Array]:
        rng = np.random.default_rng(self.seed)
        made: dict[str, Array] = {}
        for info in self.model.graph.input:
            dims = [
                self.sizes[number][d.dim_param] if d.dim_param else d.dim_value
                for d in info.type.tensor_type.shape.dim
            ]
            made[info.name] = rng.integers(-2, 3, dims).astype(np.float32)
        return made


def drawn(seed: int) -> Case:
    rng = random.Random(seed)
    sizes = {n: rng.randint(1, LARGEST) for n in NAMES}
    d = Drawing(rng, sizes)
    for _ in range(rng.randint(1, 3)):
        d.input()
    while len(d.nodes) < 3 or (len(d.nodes) < 30 and rng.random() < 0.85):
        rng.choice(STEPS)(d)
        if d.tensors[-1].count > MOST_ELEMENTS:
            d.tensors.pop()
    last = {t.name: t for t in d.tensors[-2:]}
    results = [n for n in last if n not in d.inputs] or [d.node("Neg", d.tensors[0].name)]
    return Case(seed, _model(d, results), tuple(_sizes(rng, sizes)))


def _sizes(rng: random.Random, base: Mapping[str, int]) -> Iterator[Mapping[str, int]]:
    yield base
    for _ in range(NUM_SIZES - 1):
        changed = rng.sample(NAMES, rng.randint(1, len(NAMES)))
        yield {**base, **{n: rng.choice((0, 1, rng.randint(1, 2 * LARGEST), 30)) for n in changed}}


def _model(d: Drawing, results: list[str]) -> ModelProto:
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n, dims in d.inputs.items()
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results]
    weights = [numpy_helper.from_array(a, n) for n, a in d.weights.items()]
    graph = helper.make_graph(d.nodes, "g", infos, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


# -- judging ---------------------------------------------------------------------------------------


@cache
def onnxruntime() -> Any:
    try:
        import onnxruntime  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


def oracle(model: ModelProto) -> Callable[[Mapping[str, Array]], list[Array]]:
    """What says what a call gives; it raises where the call has no meaning."""
    package = onnxruntime()
    if package is None:
        evaluator: Any = ReferenceEvaluator(model)
        return lambda arrays: [np.asarray(a) for a in evaluator.run(None, dict(arrays))]
    options = package.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = package.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = package.InferenceSession(model.SerializeToString(), options)
    return lambda arrays: session.run(None, dict(arrays))


def judged(case: Case, target: str) -> Judged:
    """How many calls are right, and those that are not."""
    try:
        ask = oracle(case.model)
        expected = [asked(ask, case.arrays(i)) for i in range(len(case.sizes))]
    except Exception:
        return Counter({"no meaning": 1}), []
    if expected[0] is None:
        return Counter({"no meaning": 1}), []
    compiled = cache(lambda: rlx.compile(from_proto(case.model), target))

    def run(number: int) -> list[Array]:
        return list(compiled().run(case.arrays(number)).values())

    def excuse(number: int) -> str:
        return "onnxruntime alone" if _differs(case, number, expected[number]) else ""

    words, findings = judged_calls(case.seed, case.sizes, expected, run, excuse)
    words["programs"] += len(compiled().programs) if words["same"] else 0
    return words, findings


def asked(ask: Callable[[Mapping[str, Array]], list[Array]], arrays: Any) -> list[Array] | None:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return ask(arrays)
    except Exception:
        return None


def _differs(case: Case, number: int, right: Any) -> bool:
    """Does onnx.reference give something else than onnxruntime, or nothing?"""
    evaluator: Any = ReferenceEvaluator(case.model)
    other = asked(lambda arrays: evaluator.run(None, dict(arrays)), case.arrays(number))
    return other is None or verdict(other, right)[0] == "wrong"


if __name__ == "__main__":
    sys.exit(main(__doc__, lambda seed, target: judged(drawn(seed), target), 20_000))
