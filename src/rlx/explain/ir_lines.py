"""Nodes as lines of IR that are short enough to look at: large constants are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.core.attrs import Data
from rlx.ir.mir import Graph, Node
from rlx.passes.bodies import bodies_of

_LISTED = 4
"""Constants of more numbers are shown by their shape."""


def line_of(node: Node, number: Mapping[Node, int]) -> str:
    """`%5 = matmul(%3, %4) : f32[2, 4]`; graphs inside are shown as `{…}`."""
    args = [f"%{number[i]}" for i in node.inputs]
    args += [f"{k}={_short(v)}" for k, v in node.attrs.items() if v is not None]
    return f"%{number[node]} = {node.op}({', '.join(args)}) : {', '.join(map(str, node.shapes))}"


def source_of(node: Node, number: Mapping[Node, int]) -> str:
    """What a kernel computes: its line, and those of the graphs inside it."""
    lines, todo = [line_of(node, number)], [(1, b) for b in bodies_of(node)]
    while todo:
        depth, body = todo.pop()
        inner = {n: i for i, n in enumerate(body.order())}
        lines.append(f"{'  ' * depth}{body.name}:")
        for each in inner:
            lines.append(f"{'  ' * depth}  {line_of(each, inner)}")
            todo += [(depth + 1, b) for b in bodies_of(each)]
        returned = ", ".join(f"%{inner[o]}" for o in body.outputs)
        lines.append(f"{'  ' * depth}  return {returned}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, Graph):
        return "{…}"
    if isinstance(value, Data):
        array = value.array
        shown = ", ".join(map(str, array.reshape(-1).tolist())) if array.size <= _LISTED else "…"
        return f"{{{shown}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_short, value))})"  # pyright: ignore[reportUnknownArgumentType]
    return f'"{value}"' if isinstance(value, str) else str(value)
