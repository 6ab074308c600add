"""Each op alone at about a million elements, against what the machine's limits allow.

`python -m bench.rooflines [OP …]`
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import rlx
from bench import page, results_file
from bench.alone import now, parser
from bench.large import case_of
from bench.peak import Limits, measure
from bench.peers import listed
from bench.peers.ours import options
from bench.table import duration
from bench.workload import Array
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops.draw import Case, Draw
from rlx.ops.op import Kind, Op, table

SECONDS, LEAST_CALLS = 0.06, 5
ENOUGH = 0.10

_LONG = (
    "computed to 1 or 2 ulp by long polynomials, often in two parts: bound by arithmetic that "
    "the op's count of flops does not have"
)
_SPELLED = "spelled in several such functions, each to its own last bit"
_SORTED = "a radix sort: several passes over keys and places"
_CHAIN = "each element waits for the one before; rows run side by side, as many as there are"
_GATHERED = "reads element by element from places that are data: gathers, not lines"
_STEPS = "a scan: a few small kernels for every step, with no kernel of its own yet"
_SLICES = "transforms of short rows, and frames written to memory between the steps"
_MOVED = "elements move apart, so whole lines are read for single elements of them"
_BYTES = "narrow results are packed lane by lane"

REASONS: dict[str, str] = {
    **dict.fromkeys(
        ("pow", "exp2", "tan", "asin", "acos", "atan", "atan2", "erfc", "erfinv", "lgamma",
         "cbrt", "sinc", "angle", "floor_div"), _LONG),
    **dict.fromkeys(("asinh", "acosh", "softplus", "mish", "log_sigmoid", "logit"), _SPELLED),
    **dict.fromkeys(
        ("top_k", "argsort", "sort", "unique", "top_p_filter",
         "moe_route", "welch_peaks"), _SORTED),
    **dict.fromkeys(("cummax", "cummin", "cum_log_sum_exp"), _CHAIN),
    **dict.fromkeys(("searchsorted", "grid_sample", "affine_grid", "axial_rope_2d"), _GATHERED),
    **dict.fromkeys(
        ("lfilter", "sosfilt", "cholesky", "triangular_solve"), _STEPS),
    **dict.fromkeys(
        ("fftn", "ifftn", "dct", "idct"), _SLICES),
    **dict.fromkeys(("transpose", "depth_to_space", "cross"), _MOVED),
    **dict.fromkeys(
        ("block_dequantize", "block_quantize"), _BYTES),
}  # fmt: skip
"""Why an op is below 10 % of its roofline, by name."""

LEFT_OUT = {
    Kind.LEAF: "holds a value, computes nothing",
    Kind.CONTROL: "costs what its bodies cost",
    Kind.REGION: "made by fusion; costs what it holds",
}


@dataclass(frozen=True, slots=True)
class Point:
    """An op's time, and how it compares to the least there could be."""

    op: str
    case: str
    us: float
    share: float
    bound: str
    reason: str

    def __str__(self) -> str:
        mark = "    " if self.share >= ENOUGH else "LOW " if not self.reason else "low "
        return f"{mark}{self.op:28} {duration(self.us):>9} {self.share:6.1%} of {self.bound}"


def graph_of(case: Case) -> Graph:
    """A graph of the op alone."""
    g = Graph(case.op.name)
    operands = [g.input(f"x{i}", Shape(s.dims, s.dtype)) for i, s in enumerate(case.specs)]
    node = g.node(case.op, operands, case.attrs)
    items = range(len(node.shapes)) if node.has_items else ()
    g.set_outputs([g.node("item", (node,), {"index": i}) for i in items] or [node])
    return g


def point(case: Case, limits: Limits, target: str, threads: int) -> Point:
    graph = graph_of(case)
    draw = Draw(1)
    arrays = [_ordered(s.domain, draw.values(s)) for s in case.specs]
    exe = rlx.compile(graph, target, **options(target, threads))
    made = listed(exe(*arrays))
    us = _microseconds(exe, arrays, _targets(graph, made))
    reads, writes = (float(sum(a.nbytes for a in group)) for group in (arrays, made))
    flops = _flops(graph)
    memory, all_ = limits.least_us(0, reads, writes), limits.least_us(flops, reads, writes)
    text = ", ".join(str(Shape(s.dims, s.dtype)) for s in case.specs)
    bound = "memory" if all_ == memory else "arithmetic"
    return Point(case.op.name, text, us, all_ / us, bound, REASONS.get(case.op.name, ""))


def _ordered(domain: str, array: Array) -> Array:
    return np.sort(array) if domain == "ordered" else array


def _targets(graph: Graph, made: list[Array]) -> list[Array] | None:
    """Arrays for the outputs; where sizes are found while running, new ones each time."""
    if any(not s.is_static for o in graph.outputs for s in [o.shape]):
        return None
    return [np.empty_like(a) for a in made]


def _flops(graph: Graph) -> float:
    node = next(n for n in graph.order() if n.inputs)
    shapes = [i.shape for i in node.inputs]
    counted: Any = node.decl.flops(shapes, list(node.shapes), node.attrs)
    return float(counted) if isinstance(counted, int) else 0.0


def _microseconds(exe: Any, arrays: list[Array], out: list[Array] | None) -> float:
    """The least of many calls."""
    best, calls, until = float("inf"), 0, time.perf_counter() + SECONDS
    while calls < LEAST_CALLS or time.perf_counter() < until:
        start = time.perf_counter_ns()
        exe(*arrays, out=out)
        passed = time.perf_counter_ns() - start
        best, calls = min(best, passed / 1e3), calls + 1
        if passed > 2e9:
            break
    return best


def measured(
    ops: Iterable[Op], asked: argparse.Namespace, limits: Limits
) -> tuple[list[Point], dict[str, str]]:
    """A point for each op that has a large case, and why the others have none."""
    points: list[Point] = []
    left: dict[str, str] = {}
    for op in ops:
        case = case_of(op)
        if case is None:
            left[op.name] = _excuse(op)
            continue
        try:
            points.append(point(case, limits, asked.target, asked.threads))
            print(points[-1], flush=True)
        except rlx.Error as error:
            left[op.name] = str(error).splitlines()[0]
            print(f"----{op.name}: {left[op.name]}", flush=True)
    return points, left


def _excuse(op: Op) -> str:
    if op.kind in LEFT_OUT:
        return LEFT_OUT[op.kind]
    if not op.signature.operands:
        return "takes no operands: computed once, when compiling"
    return op.why_no_cases or "its size is found while running"


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("ops", nargs="*", help="these alone, and nothing is written")
    asked = arguments.parse_args()
    found = table()
    chosen = [found[n] for n in asked.ops] if asked.ops else list(found.values())
    points, left = measured(chosen, asked, measure(asked.threads))
    low = [p.op for p in points if p.share < ENOUGH and not p.reason]
    print(f"{len(points)} ops; below {ENOUGH:.0%} without a reason: {', '.join(low) or 'none'}")
    if not asked.dry and not asked.ops:
        rows = [asdict(p) for p in points]
        results_file.save("rooflines", {"measured": now(), "rows": rows, "left_out": left})
        page.write()
    return int(bool(low))


if __name__ == "__main__":
    sys.exit(main())
