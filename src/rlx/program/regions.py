"""Open regions of a program under construction: where nodes go, and which equal ones are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rlx.program import nodes as ir
from rlx.program.nodes import BinaryOp, Node, Number, Region, Value, attr_names
from rlx.program.program import Program
from rlx.program.types import Type

PURE = frozenset((
    ir.Const, ir.Position, ir.Binary, ir.Compare, ir.Unary, ir.Call, ir.Fma, ir.Select,
    ir.Convert, ir.Bitcast, ir.TableLoad, ir.TilePlace,
))  # fmt: skip
"""Nodes that depend on nothing but their arguments, whoever executes them and when."""


Key: TypeAlias = tuple[object, ...]
"""Of a pure node: equal ones have equal keys."""


@dataclass(slots=True)
class _Open:
    params: tuple[Value, ...]
    nodes: list[Node] = field(default_factory=list[Node])
    known: dict[Key, Node] = field(default_factory=dict[Key, Node])


class OpenRegions:
    """A stack of regions; nodes are appended to the innermost one, or to one that encloses it."""

    def __init__(self, program: Program) -> None:
        self.made = program
        self._stack = [_Open(())]
        self._numbers: dict[Value, Number] = {}
        self.addends: dict[Value, tuple[Value, int]] = {}
        """Integers that are a value plus a number."""
        self.widened: dict[Value, Value] = {}
        """f32 values that are half floats, which a conversion to those gives back."""

    @property
    def depth(self) -> int:
        """Of the innermost region; 0 is the body's."""
        return len(self._stack) - 1

    def open(self, params: tuple[Value, ...]) -> None:
        self._stack.append(_Open(params))

    def close(self, yields: Sequence[Value]) -> Region:
        made = self._stack.pop()
        return Region(made.params, tuple(made.nodes), tuple(yields))

    def closed(self) -> Region:
        """The body, when all other regions are closed."""
        (body,) = self._stack
        return Region((), tuple(body.nodes))

    def suspend(self, depth: int) -> list[_Open]:
        """Leave the regions below `depth` for now, so that nodes go in front of them."""
        rest = self._stack[depth + 1 :]
        del self._stack[depth + 1 :]
        return rest

    def resume(self, regions: list[_Open]) -> None:
        self._stack += regions

    def add(self, node: Node) -> Node:
        self._stack[-1].nodes.append(node)
        return node

    def take_last(self) -> Node | None:
        """The node that was appended last, taken away."""
        nodes = self._stack[-1].nodes
        return nodes.pop() if nodes else None

    def known(self, key: Key) -> Node | None:
        """The node of a key that is visible here."""
        for region in self._stack[::-1]:
            found = region.known.get(key)
            if found is not None:
                return found
        return None

    def interned(self, node: Node) -> Node:
        """The node, or the equal one that was made before where this one is visible."""
        if type(node) not in PURE:
            return self.add(node)
        key = _key(node)
        found = self.known(key)
        return self.remember(key, node) if found is None else found

    def remember(self, key: Key, node: Node) -> Node:
        """Append a pure node, which is known by its key from now on."""
        if type(node) is ir.Const:
            self._numbers[node.results[0]] = node.value
        region = self._stack[-1]
        region.known[key] = node
        region.nodes.append(node)
        return node

    def number_of(self, value: Value) -> Number | None:
        """The number, where the value is a constant."""
        return self._numbers.get(value)

    def simplified(self, op: BinaryOp, a: Value, b: Value) -> Value | Number | None:
        """A result of integers that is known, or one of them: index maps are full of such."""
        x, y = self._numbers.get(a), self._numbers.get(b)
        if x is None and y is None:
            return None
        if x is not None and y is not None:
            return _folded(op, int(x), int(y))
        if (op, y) in (("add", 0), ("sub", 0), ("mul", 1), ("div", 1), ("shl", 0), ("shr", 0)):
            return a
        if (op, x) in (("add", 0), ("mul", 1)):
            return b
        is_nothing = (op == "mul" and 0 in (x, y)) or (op, y) == ("rem", 1)
        return 0 if is_nothing else None


def key_of(kind: type[Node], args: tuple[Value, ...], made: Type, *said: str) -> Key:
    """That of a pure node of one result; its attributes as they are in keys."""
    return kind, args, 1, made, *said


def _key(node: Node) -> Key:
    """Of pure nodes, which have one result, or one type of all. Numbers are told apart by their
    text: 1, 1.0 and True are equal, as are zeros of both signs."""
    kind, results = type(node), node.results
    values = [getattr(node, n) for n in attr_names(kind)]
    said = [v if type(v) is str else repr(v) for v in values]
    return kind, node.args, len(results), results[0].type, *said


def _folded(op: BinaryOp, x: int, y: int) -> int | None:
    match op:
        case "add":
            return x + y
        case "sub":
            return x - y
        case "mul":
            return x * y
        case "div":
            return x // y if x >= 0 and y > 0 else None
        case "rem":
            return x % y if x >= 0 and y > 0 else None
        case "shl":
            return x << y if 0 <= y < 64 else None
        case _:
            return None


def is_number(value: object) -> bool:
    return isinstance(value, (int, float))  # truth values are integers
