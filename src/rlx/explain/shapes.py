"""Shapes for reading: named dims and formulas are shown as the sizes that everything is counted at.

f32[batch, 64, 2*(((height + 1)//2) + 1)//2)]  at batch=1, height=128  →  f32[1, 64, 64]
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping

from rlx.explain.report import Report

_LISTS = re.compile(r"\[([^\[\]]*)\]")
_PLAIN = re.compile(r"[\w.:\-]*")
_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip
_CALLS: dict[str, Callable[..., int]] = {"min": min, "max": max}


def sized(report: Report) -> Callable[[str], str]:
    """Shapes of a report, as text, with names and formulas as sizes; each is read once."""
    known: dict[str, str] = {}

    def shown(shape: str) -> str:
        if shape not in known:
            known[shape] = _LISTS.sub(lambda m: f"[{_dims(m[1], report.model.sizes)}]", shape)
        return known[shape]

    return shown


def _dims(text: str, sizes: Mapping[str, int]) -> str:
    return ", ".join(_dim(d.strip(), sizes) for d in _parts(text))


def _dim(text: str, sizes: Mapping[str, int]) -> str:
    """A number for a name or a formula; what is known in a call alone, or cannot be read, as it
    is."""
    if _PLAIN.fullmatch(text):
        return str(sizes.get(text, text))
    try:
        return str(_value(ast.parse(text, mode="eval").body, sizes))
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return text


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    """A formula of sums, products, quotients and bounds."""
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, sizes)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        return _BINARY[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        return _CALLS[node.func.id](*(_value(a, sizes) for a in node.args))
    raise ValueError(f"{ast.dump(node)} is no part of a dim")


def _parts(text: str) -> Iterator[str]:
    """Between commas that are in no parentheses."""
    depth, start = 0, 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and depth == 0:
            yield text[start:i]
            start = i + 1
    if text:
        yield text[start:]
