"""Random Loop, Scan and If bodies whose sizes are data: `python -m tests.onnx.data_bounded_bodies`.

A body slices, pads, tiles, resizes, splits, compresses, counts and concatenates by numbers that it
is given or computes: its step's number, a carried state, the length of a row, a sum. Bodies hold
bodies. A model is compiled once and called with several inputs. onnxruntime, or onnx.reference
where that is not installed, says what a call gives: where it answers, rlx gives the same.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.frontends.onnx.model import from_proto
from tests.differential import Finding, verdict
from tests.onnx.dim_arithmetic import asked, onnxruntime, oracle

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
FIXED = 5
"""What results are often padded to."""
MOST = 24
"""Elements that a carried vector keeps."""
FAR = 2**63 - 1
NUM_CALLS = 4
DEPTH = 3
Array = np.ndarray[Any, Any]


@dataclass
class Names:
    """What all graphs of a model share."""

    rng: random.Random
    is_for_reference: bool
    """Leave out what onnx.reference evaluates otherwise than the standard says."""
    weights: dict[str, Array] = field(default_factory=dict[str, Array])
    count: int = 0

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"


@dataclass
class Body:
    """A graph that grows: vectors of floats, and numbers as one element in a row."""

    names: Names
    depth: int
    vectors: list[str] = field(default_factory=list[str])
    numbers: list[str] = field(default_factory=list[str])
    nodes: list[Any] = field(default_factory=list[Any])

    @property
    def rng(self) -> random.Random:
        return self.names.rng

    def node(self, op: str, *operands: str, **attrs: Any) -> str:
        name = self.names.fresh()
        self.nodes.append(helper.make_node(op, operands, [name], **attrs))
        return name

    def constant(self, value: Any) -> str:
        name = f"w{len(self.names.weights)}"
        self.names.weights[name] = np.asarray(value)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def floats(self, *values: float) -> str:
        return self.constant(np.array(values, np.float32))

    def vector(self) -> str:
        return self.rng.choice(self.vectors[-3:] if self.rng.random() < 0.7 else self.vectors)

    def inner(self) -> Body:
        return Body(self.names, self.depth + 1, list(self.vectors), list(self.numbers))

    # -- numbers ----------------------------------------------------------------------------

    def number(self) -> str:
        """One that is there, or what is computed of such."""
        match self.rng.randrange(6):
            case 0:
                return self.ints(self.rng.randint(-4, 6))
            case 1:
                return self.node("Shape", self.vector())
            case 2:
                op = self.rng.choice(("Add", "Sub", "Min", "Max"))
                return self.node(
                    op, self.rng.choice(self.numbers), self.ints(self.rng.randint(-2, 3))
                )
            case 3:
                op = self.rng.choice(("Add", "Sub", "Min", "Max"))
                return self.node(op, *(self.rng.choice(self.numbers) for _ in range(2)))
            case _:
                return self.rng.choice(self.numbers)

    def between(self, low: int, high: int | str) -> str:
        top = high if isinstance(high, str) else self.ints(high)
        return self.node("Max", self.node("Min", self.number(), top), self.ints(low))

    def sum_as_number(self, x: str) -> str:
        total = self.node("ReduceSum", self.node("Round", x), self.ints(0))
        return self.node("Mod", self.node("Cast", total, to=INT), self.ints(7))

    def fixed(self, x: str) -> str:
        """The first elements of a vector, and zeros behind them."""
        long = self.node("Concat", x, self.constant(np.zeros(FIXED, np.float32)), axis=0)
        return self.node("Slice", long, self.ints(0), self.ints(FIXED), self.ints(0))

    def flag(self) -> str:
        truth = self.node("Less", self.number(), self.number())
        return self.node("Squeeze", truth, self.ints(0))


# -- what a body computes ---------------------------------------------------------------------


def sliced(b: Body) -> str:
    step = b.rng.choice((1, 1, 1, 2, -1, -2))
    ends = [b.number(), b.number()]
    if step < 0 and b.rng.random() < 0.5:
        ends[1] = b.ints(-FAR)
    elif b.rng.random() < 0.4:
        ends[b.rng.randrange(2)] = b.ints(0 if step > 0 else -1) if step < 0 else b.ints(FAR)
    return b.node("Slice", b.vector(), *ends, b.ints(0), b.ints(step))


def sliced_by_a_step(b: Body) -> str:
    return b.node("Slice", b.vector(), b.number(), b.ints(FAR), b.ints(0), b.between(1, 3))


def joined(b: Body) -> str:
    return b.node("Concat", b.vector(), b.vector(), axis=0)


def padded(b: Body) -> str:
    low, high = (b.between(0, 4), b.between(0, 4))
    x = b.vector()
    if not b.names.is_for_reference and b.rng.random() < 0.5:  # some are taken off
        x = b.node("Concat", x, b.floats(1, 2, 3), axis=0)
        low = b.between(-3, 4)
    return b.node("Pad", x, b.node("Concat", low, high, axis=0))


def counted(b: Body) -> str:
    end = b.node("Squeeze", b.between(0, 9), b.ints(0))
    zero, one = (b.constant(np.array(v, np.int64)) for v in (0, 1))
    return b.node("Cast", b.node("Range", zero, end, one), to=FLOAT)


def constant(b: Body) -> str:
    value = numpy_helper.from_array(np.array([1.5], np.float32))
    return b.node("ConstantOfShape", b.between(0, 7), value=value)


def expanded(b: Body) -> str:
    return b.node("Expand", b.floats(2.5), b.between(1, 7))


def tiled(b: Body) -> str:
    return b.node("Tile", b.vector(), b.between(0, 3))


def compressed(b: Body) -> str:
    x = b.vector()
    above = b.node("Greater", x, b.constant(np.float32(b.rng.randint(-1, 3))))
    if b.rng.random() < 0.5:
        return b.node("Compress", x, above, axis=0)
    return b.node("Gather", x, b.node("Squeeze", b.node("NonZero", above), b.ints(0)))


def resized(b: Body) -> str:
    """Of one element at least: nothing has no neighbour."""
    x = b.node("Concat", b.vector(), b.floats(3), axis=0)
    image = b.node("Unsqueeze", x, b.ints(0, 1))
    sizes = b.node("Concat", b.ints(1, 1), b.between(1, 9), axis=0)
    how = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}
    made = b.node("Resize", image, "", "", sizes, nearest_mode="floor", **how)
    return b.node("Squeeze", made, b.ints(0, 1))


def folded(b: Body) -> str:
    """Rows of a computed number, summed."""
    count, x = b.between(1, 4), b.vector()
    shape = b.node("Concat", count, b.node("Shape", x), axis=0)
    table = b.node("Reshape", b.node("Tile", x, count), shape, allowzero=1)
    return b.node("ReduceSum", table, b.ints(b.rng.randint(0, 1)), keepdims=0)


def largest(b: Body) -> str:
    x = b.vector()
    k = b.between(0, b.node("Shape", x))
    values, places = b.names.fresh(), b.names.fresh()
    b.nodes.append(helper.make_node("TopK", [x, k], [values, places]))
    return values


def split(b: Body) -> str:
    x = b.vector()
    size = b.node("Shape", x)
    first = b.between(0, size)
    sizes = b.node("Concat", first, b.node("Sub", size, first), axis=0)
    parts = [b.names.fresh() for _ in range(2)]
    b.nodes.append(helper.make_node("Split", [x, sizes], parts, axis=0))
    return b.rng.choice((parts[0], parts[1], b.node("Concat", *reversed(parts), axis=0)))


def hot(b: Body) -> str:
    found = b.node("OneHot", b.ints(1), b.between(2, 6), b.floats(0.5, 2))
    return b.node("Squeeze", found, b.ints(0))


def computed(b: Body) -> str:
    x = b.vector()
    match b.rng.randrange(4):
        case 0:
            return b.node(b.rng.choice(("Neg", "Abs", "Floor")), x)
        case 1:
            return b.node("Mul", x, b.constant(np.float32(0.5)))
        case 2:
            return b.node("Add", x, x)
        case _:
            return b.node("CumSum", x, b.constant(np.array(0, np.int64)))


def met(b: Body) -> str:
    """Two slices that are equally long at run time, as exporters write x[:k] + y[:k]."""
    x, y = b.vector(), b.vector()
    least = b.node("Min", b.node("Shape", x), b.node("Shape", y))
    k = b.between(0, least)
    parts = [b.node("Slice", v, b.ints(0), k, b.ints(0)) for v in (x, y)]
    return b.node("Add", *parts)


def scaled(b: Body) -> str:
    """By the last element, which broadcasts."""
    x = b.node("Concat", b.vector(), b.floats(2), axis=0)
    at = b.between(0, b.node("Sub", b.node("Shape", x), b.ints(1)))
    one = b.node("Slice", x, at, b.node("Add", at, b.ints(1)), b.ints(0))
    return b.node("Mul", x, one)


def replaced(b: Body) -> str:
    """One element, by its place."""
    x = b.node("Concat", b.vector(), b.floats(1), axis=0)
    last = b.node("Sub", b.node("Shape", x), b.ints(1))
    at = b.between(0, last)
    after = b.node("Add", at, b.ints(1))
    ends = ((b.ints(0), at), (at, after), (after, b.ints(FAR)))
    before, middle, rest = (b.node("Slice", x, *e, b.ints(0)) for e in ends)
    return b.node("Concat", before, b.node("Neg", middle), rest, axis=0)


def branch(b: Body) -> str:
    sides = {}
    for name in ("then_branch", "else_branch"):
        side = b.inner()
        grow(side, 2)
        sides[name] = side_graph(side, name, [side.node("Identity", side.vectors[-1])])
    return b.node("If", b.flag(), **sides)


def inner_loop(b: Body) -> str:
    """Carries a vector; the first elements of it."""
    trip = b.node("Squeeze", b.between(0, 3), b.ints(0))
    body, names, infos = loop_body(b, num_states=1, rows=0)
    graph = helper.make_graph(body.nodes, "inner", infos, [infer(n, t, d) for n, t, d in names])
    return b.node("Loop", trip, b.constant(np.array(True)), b.vector(), body=graph)


STEPS: tuple[Callable[[Body], str], ...] = (
    sliced, sliced, sliced, sliced, joined, joined, padded, counted, constant, expanded, tiled,
    compressed, resized, folded, computed, met, replaced, branch, inner_loop, largest, split, hot,
    sliced_by_a_step, scaled,
)  # fmt: skip


def grow(b: Body, count: int) -> None:
    """Some steps more."""
    for _ in range(b.rng.randint(1, count)):
        step = b.rng.choice(STEPS)
        if b.depth >= DEPTH and step in (branch, inner_loop):
            continue
        b.vectors.append(step(b))
        if b.rng.random() < 0.3:
            b.numbers.append(b.sum_as_number(b.vector()))
    if b.rng.random() < 0.5:
        long = b.node("Slice", b.vectors[-1], b.ints(-MOST), b.ints(FAR), b.ints(0))
        b.vectors.append(long)


# -- graphs -----------------------------------------------------------------------------------


def infer(name: str, kind: int, dims: Any) -> Any:
    return helper.make_tensor_value_info(name, kind, dims)


def side_graph(b: Body, name: str, results: Sequence[str]) -> Any:
    return helper.make_graph(b.nodes, name, [], [infer(r, FLOAT, ["s"]) for r in results])


def row_of(b: Body) -> str:
    """A stacked row: mostly of a fixed size, never empty (onnxruntime divides by its size)."""
    x = b.vectors[-1]
    match b.rng.randrange(4):
        case 0:
            return b.node("Concat", x, b.floats(1), axis=0)
        case 1:
            return b.node("ReduceSum", x, b.ints(0))
        case _:
            return b.fixed(x)


def loop_body(around: Body, num_states: int, rows: int) -> tuple[Body, list[Any], list[Any]]:
    """A body of a loop: vectors that it carries, of sizes that steps change, and rows."""
    b = around.inner()
    number, stay, state = (b.names.fresh() for _ in range(3))
    infos = [infer(number, INT, []), infer(stay, BOOL, [])]
    infos += [infer(state, FLOAT, ["t"])] * num_states
    b.vectors += [state] * num_states
    b.numbers += [b.node("Reshape", number, b.ints(1))] * 2
    grow(b, 3)
    goes_on = b.flag() if b.rng.random() < 0.2 else b.node("Identity", stay)
    kept = b.node("Slice", b.vectors[-1], b.ints(-MOST), b.ints(FAR), b.ints(0))
    results = [(goes_on, BOOL, []), *[(kept, FLOAT, ["u"])] * num_states]
    results += [(row_of(b), FLOAT, ["r"]) for _ in range(rows)]
    return b, results, infos


def scan_body(around: Body) -> tuple[Body, list[Any], list[Any]]:
    """A body along the rows of a matrix and their lengths, with a state."""
    b = around.inner()
    state, row, length = (b.names.fresh() for _ in range(3))
    infos = [infer(state, FLOAT, [FIXED]), infer(row, FLOAT, ["n"]), infer(length, INT, [1])]
    b.vectors += [state, row, row]
    b.numbers += [length] * 3
    grow(b, 4)
    kept = b.fixed(b.vector())
    return b, [(kept, FLOAT, [FIXED]), (row_of(b), FLOAT, ["r"])], infos


@dataclass(frozen=True)
class Case:
    """A model, and the inputs that it is called with."""

    seed: int
    model: ModelProto

    def arrays(self, number: int) -> dict[str, Array]:
        rng = np.random.default_rng((self.seed, number))
        n, rows = int(rng.integers(1, 10)), int(rng.integers(1, 4))
        is_same = number % 2 == 1
        lens = rng.integers(1, n + 1, (1 if is_same else rows, 1))
        return {
            "x": rng.integers(-3, 4, n).astype(np.float32),
            "m": rng.integers(-3, 4, (rows, n)).astype(np.float32),
            "lens": np.broadcast_to(lens, (rows, 1)).astype(np.int64),
            "n": np.array(rng.integers(1, 5), np.int64),
        }


def drawn(seed: int, *, is_for_reference: bool = True) -> Case:
    rng = random.Random(seed)
    b = Body(Names(rng, is_for_reference), 0, ["x"], [])
    b.numbers.append(b.node("Reshape", "n", b.ints(1)))
    b.numbers.append(b.sum_as_number("x"))
    results = rng.choice((_loop, _loop, _scan, _scan, _branch))(b)
    inputs = {
        "x": (FLOAT, ["N"]),
        "m": (FLOAT, ["B", "W"]),
        "lens": (INT, ["B", 1]),
        "n": (INT, []),
    }
    graph = helper.make_graph(
        b.nodes, "g", [infer(n, *how) for n, how in inputs.items()],
        [infer(r, FLOAT, None) for r in results],
        [numpy_helper.from_array(a, n) for n, a in b.names.weights.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return Case(seed, model)


def _loop(b: Body) -> list[str]:
    body, results, infos = loop_body(b, num_states=1, rows=b.rng.randint(0, 1))
    graph = helper.make_graph(body.nodes, "step", infos, [infer(*r) for r in results])
    outputs = [b.names.fresh() for _ in results[1:]]
    trip = b.rng.choice(("n", b.constant(np.array(b.rng.randint(1, 4), np.int64))))
    operands = [trip, b.constant(np.array(True)), "x"]
    b.nodes.append(helper.make_node("Loop", operands, outputs, body=graph))
    return outputs


def _scan(b: Body) -> list[str]:
    body, results, infos = scan_body(b)
    graph = helper.make_graph(body.nodes, "row", infos, [infer(*r) for r in results])
    outputs = [b.names.fresh() for _ in results]
    start = b.constant(np.arange(FIXED, dtype=np.float32))
    how: dict[str, Any] = {}
    rows = "m"
    if not b.names.is_for_reference:
        if b.rng.random() < 0.3:
            how["scan_input_directions"] = [1, 1]
        if b.rng.random() < 0.3:
            how["scan_output_directions"] = [1]
        if b.rng.random() < 0.3:
            how["scan_output_axes"] = [1]
        if b.rng.random() < 0.3:
            rows = b.node("Transpose", "m")
            how["scan_input_axes"] = [1, 0]
    node = helper.make_node(
        "Scan", [start, rows, "lens"], outputs, body=graph, num_scan_inputs=2, **how
    )
    b.nodes.append(node)
    return outputs


def _branch(b: Body) -> list[str]:
    return [branch(b)]


# -- judging ----------------------------------------------------------------------------------


def judged(case: Case, target: str) -> tuple[Counter[str], list[Finding]]:
    """How many calls are right, and those that are not."""
    words, findings = Counter[str](), list[Finding]()
    try:
        ask = oracle(case.model)
    except Exception:
        return Counter({"no meaning": 1}), []
    exe: Any = None
    for number in range(NUM_CALLS):
        arrays = case.arrays(number)
        right = asked(ask, arrays)
        if right is None:
            words["refused by the oracle"] += 1
            continue
        try:
            exe = exe or rlx.compile(from_proto(case.model), target)
            made = list(exe.run(arrays).values())
            word, text = verdict(made, right)
            if word == "wrong" and _is_as_reference(case, arrays, made):
                word = "onnxruntime alone"
        except rlx.Error as error:
            word, text = "refused", str(error)
        except Exception as error:
            word, text = "crashed", f"{type(error).__name__}: {error}"
        words[word] += 1
        if word not in ("same", "onnxruntime alone"):
            findings.append(Finding(case.seed, word, f"call {number}: {text}"))
    words["programs"] += 0 if exe is None else len(exe.programs)
    return words, findings


def _is_as_reference(case: Case, arrays: Mapping[str, Array], made: list[Array]) -> bool:
    """Does onnx.reference give the same where onnxruntime gives something else?"""

    def run(given: Mapping[str, Array]) -> list[Array]:
        evaluator: Any = ReferenceEvaluator(case.model)
        return evaluator.run(None, dict(given))

    other = asked(run, arrays)
    return other is not None and verdict(made, other)[0] == "same"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--target", default="reference")
    parser.add_argument("--show", type=int, default=10, help="findings that are printed")
    given = parser.parse_args()
    words, shown = Counter[str](), 0
    for seed in range(given.first, given.first + given.count):
        case = drawn(seed, is_for_reference=onnxruntime() is None)
        found, findings = judged(case, given.target)
        words += found
        for each in findings[: max(0, given.show - shown)]:
            print(f"{each.seed}: {each.word}: {each.text[:600]}", flush=True)
            shown += 1
    print(f"{given.count} graphs: {dict(words)}")
    return int(any(words[w] for w in ("wrong", "refused", "crashed")))


if __name__ == "__main__":
    sys.exit(main())
