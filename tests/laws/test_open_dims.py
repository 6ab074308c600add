"""Programs for every size: each op compiles for the CPU where dims of its operands are free.

All sizes of a drawn case are opened at once, equal ones by one name, and each alone. Where the op's
own rule refuses that, or a result could have fewer than 0 elements, only the user can say more.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator

import pytest

import rlx
from rlx.backends.registry import find_backend
from rlx.core.dim import Dim
from rlx.core.shape import Shape
from rlx.ir.mir import Graph
from rlx.ops import op as table
from rlx.ops.draw import Case, Draw
from rlx.pipeline import CompilePipeline
from tests.effort import tries

CASES = tries(1, 12)
CPU = find_backend("cpu")
PIPELINE = CompilePipeline(CPU.target())
REFUSED = {
    "conv_transpose": "a kernel of no taps: a pad is .* may be negative|length is .* may be",
    "im2col": "no windows: the sign of the bound",
}
"""What is not lowered for sizes that a named dim can have, and what the error says of it."""
ALWAYS_STATIC = {
    "arange", "as_size", "blackman_window", "elementwise_region", "extent", "fftfreq",
    "hamming_window", "hann_window", "if", "iota", "kaiser_window", "mel_filters",
    "mel_weight_matrix", "random_bits", "random_integers", "random_normal", "random_uniform",
    "region", "rfftfreq", "scan", "while",
}  # fmt: skip
"""Ops without operands, and those whose bodies state sizes."""
OPEN = [o for o in table.table().values() if not o.why_no_cases and o.name not in ALWAYS_STATIC]


def opened(case: Case) -> Iterator[Graph]:
    """The op on operands with free dims, where its rule takes them."""
    sizes = sorted({d for s in case.specs for d in s.dims if d > 1})
    alone = [[d] for d in sizes] if len(sizes) > 1 else []
    for chosen in [sizes, *alone] if sizes else []:
        dims = {d: Dim(f"n{d}") for d in chosen}
        attrs = {
            k: tuple(dims.get(d, d) for d in v) if k == "dims" else v for k, v in case.attrs.items()
        }
        for given in [case.attrs] if attrs == case.attrs else [case.attrs, attrs]:
            try:
                yield built(case, dims, given)
            except rlx.GraphError:
                continue  # an attribute fixes the size, so the named dim is refused


def built(case: Case, dims: dict[int, Dim], attrs: dict) -> Graph:
    g = Graph(case.op.name)
    shapes = [Shape([dims.get(d, d) for d in s.dims], s.dtype) for s in case.specs]
    node = g.node(case.op, [g.input(f"x{i}", s) for i, s in enumerate(shapes)], attrs)
    items = range(len(node.shapes)) if node.has_items else ()
    g.set_outputs([g.node("item", (node,), {"index": i}) for i in items] or [node])
    return g


def has_sizes(graph: Graph) -> bool:
    """Can no dim of its results be negative?"""
    dims = [d for o in graph.outputs for d in o.shape.dims if isinstance(d, Dim)]
    return all(d.min is not None and d.min >= 0 for d in dims)


def refusal(graph: Graph) -> str:
    """Why the CPU has no program for it; nothing where it has one."""
    try:
        CPU.program(PIPELINE.compile(graph).lir)
    except rlx.UnsupportedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("op", OPEN, ids=lambda o: o.name)
def test_each_op_compiles_with_every_dim_free(op: table.Op) -> None:
    for i in range(CASES):
        case = Draw([zlib.crc32(f"open {op.name}".encode()), i]).case(op)
        for graph in filter(has_sizes, opened(case)):
            why = refusal(graph)
            assert not why or op.name in REFUSED, f"{why}\n{graph}"
            assert not why or why.startswith(f"{op.name} at test_open_dims.py")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_by_its_name_and_reason(name: str) -> None:
    n = Dim("n")
    g = Graph("g")
    if name == "conv_transpose":
        g.set_outputs([g.conv_transpose(g.input("x", [1, 1, 5]), g.input("w", [1, 1, n]))])
    else:
        g.set_outputs([g.im2col(g.input("x", [1, 1, n]), kernel=(2,), stride=(3,))])
    reason = REFUSED[name].partition(": ")[2]
    assert re.match(rf"{name} at .*does not hold .*({reason})", refusal(g))
