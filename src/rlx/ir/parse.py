"""Parser of the textual IR: each attribute is read as the type that its op declares.

A file is not trusted: numbers are bounded before they are made, nesting is bounded, nothing is
evaluated, and whatever is wrong is a GraphError that names the line.
"""

from __future__ import annotations

import base64
import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import numpy as np

from rlx.core.attrs import Axes, Body, Data, hints_of
from rlx.core.dim import Dim, DimLike, dim_max, dim_min
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.extent import measured
from rlx.core.shape import Shape
from rlx.ir.lex import Tokens
from rlx.ir.mir import NAMED_LEAVES, Graph, Node, Origin
from rlx.ops.op import Op

MAX_NESTING = 32
"""How deep graphs may stand inside graphs."""
_MAX_PARENS = 100

Lookup = Callable[[str], Op]


@dataclass(frozen=True, slots=True)
class Header:
    """What stands before the braces: `mir "name"`, `hir "name" direct`."""

    kind: str
    name: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((self.kind, repr(self.name), *self.words))


class Scope:
    """The names one graph's statements may use."""

    def __init__(self, graph: Graph, depth: int) -> None:
        self.graph, self.depth = graph, depth
        self.dims: dict[str, Dim] = {}
        self.nodes: dict[int, Node] = {}


class Reader:
    """A text, read in two steps: its header, then its statements into a graph."""

    def __init__(self, text: str, source: str = "text") -> None:
        self.tokens = Tokens(text, source)
        self._lookup: Lookup | None = None

    def header(self) -> Header:
        tokens = self.tokens
        kind = tokens.name("mir or hir")
        name = tokens.string()
        words: list[str] = []
        while tokens.next.kind == "name":
            words.append(tokens.take().text)
        return Header(kind, name, tuple(words))

    def fill(self, graph: Graph, lookup: Lookup) -> None:
        """Make the nodes of the text in `graph`; op names mean what `lookup` says."""
        self._lookup = lookup
        try:
            self._block(graph, 0)
        except RecursionError:
            raise self.tokens.error("the text is nested too deeply") from None
        if self.tokens.next.kind != "end":
            raise self.tokens.error(f"expected the end of the text, found {self.tokens.next}")

    def _block(self, graph: Graph, depth: int) -> None:
        if depth >= MAX_NESTING:
            raise self.tokens.error(f"graphs are nested deeper than {MAX_NESTING}")
        scope, tokens = Scope(graph, depth), self.tokens
        graph.traces_lines = False
        tokens.expect("{")
        while not tokens.sees("return"):
            if tokens.sees("dim"):
                self._dim(scope)
            elif tokens.accept("require"):
                line, size = tokens.line, self._expression(scope, 0)
                why = tokens.string()
                self._made(line, lambda: graph.require(size, why))  # noqa: B023
            else:
                self._statement(scope)
        self._return(scope)
        tokens.expect("}")

    def _dim(self, scope: Scope) -> None:
        tokens, line = self.tokens, self.tokens.line
        tokens.expect("dim")
        name = tokens.name("a dim's name")
        is_measured = tokens.accept("measured")
        tokens.expect("in")
        low = tokens.natural()
        tokens.expect("..")
        formula = self._positive(scope, 0) if is_measured and tokens.sees("(") else None
        high = tokens.natural() if tokens.next.kind == "int" and formula is None else None
        if name in scope.dims:
            raise tokens.error(f"dim {name} is declared twice", line)
        if is_measured and low != 0:
            raise tokens.error(f"dim {name} is measured, so its range starts at 0", line)
        most = high if formula is None else formula
        made = (lambda: measured(name, most)) if is_measured else (lambda: Dim(name, low, high))
        scope.dims[name] = self._made(line, made)

    def _statement(self, scope: Scope) -> None:
        tokens, line = self.tokens, self.tokens.line
        number = self._reference()
        if number in scope.nodes:
            raise tokens.error(f"%{number} is defined twice", line)
        tokens.expect("=")
        decl = self._op()
        inputs, attrs = self._arguments(decl, scope)
        before = len(scope.graph)
        node = self._made(line, lambda: scope.graph.node(decl, inputs, attrs))
        if decl.name in NAMED_LEAVES and len(scope.graph) == before:
            raise tokens.error(f"the name {node.attrs['name']!r} is already taken", line)
        tokens.expect(":")
        self._check_shape(node, scope, line)
        scope.graph.add_origins(node, (Origin("line", f"{tokens.source}:{line}"),))
        scope.nodes[number] = node

    def _op(self) -> Op:
        line, name = self.tokens.line, self.tokens.name("an op's name")
        assert self._lookup is not None
        lookup = self._lookup
        return self._made(line, lambda: lookup(name))

    def _made(self, line: int, make: Callable[[], Any]) -> Any:
        """What `make` gives; its errors get the line."""
        try:
            return make()
        except GraphError as error:
            raise self.tokens.error(str(error), line) from None

    def _reference(self) -> int:
        self.tokens.expect("%")
        return self.tokens.natural()

    def _node(self, scope: Scope) -> Node:
        line, number = self.tokens.line, self._reference()
        if number not in scope.nodes:
            raise self.tokens.error(f"%{number} is used before it is defined", line)
        return scope.nodes[number]

    def _arguments(self, decl: Op, scope: Scope) -> tuple[list[Node], dict[str, Any]]:
        """Operands, then attributes by name."""
        tokens = self.tokens
        inputs: list[Node] = []
        attrs: dict[str, Any] = {}
        tokens.expect("(")
        while not tokens.accept(")"):
            if tokens.sees("%") and not attrs:
                inputs.append(self._node(scope))
            else:
                self._attribute(decl, attrs, scope)
            if not tokens.sees(")"):
                tokens.expect(",")
        return inputs, attrs

    def _attribute(self, decl: Op, attrs: dict[str, Any], scope: Scope) -> None:
        line, name = self.tokens.line, self.tokens.name("an attribute's name")
        hints = attr_hints(decl)
        if name not in hints:
            known = ", ".join(hints) or "none"
            raise self.tokens.error(f"{decl.name} has no attribute {name!r}. It has: {known}", line)
        if name in attrs:
            raise self.tokens.error(f"attribute {name} is given twice", line)
        self.tokens.expect("=")
        attrs[name] = self._value(hints[name], scope)

    def _check_shape(self, node: Node, scope: Scope, line: int) -> None:
        """The text must say what the op's rule says."""
        stated = self._shapes(scope) if self.tokens.sees("(") else self._shape(scope)
        if stated != node.shape:
            shown = str(node.shape) if not node.has_items else ", ".join(map(str, node.shapes))
            raise self.tokens.error(f"{node.op} gives {shown}, but the text says otherwise", line)

    def _return(self, scope: Scope) -> None:
        tokens, line = self.tokens, self.tokens.line
        tokens.expect("return")
        names, outputs = list[str](), list[Node]()
        while not tokens.sees("}"):
            if tokens.next.kind == "string":
                names.append(tokens.string())
                tokens.expect(":")
            outputs.append(self._node(scope))
            if not tokens.sees("}"):
                tokens.expect(",")
        if names and len(set(names)) != len(outputs):
            raise tokens.error("name every output, each differently, or none", line)
        named = dict(zip(names, outputs)) if names else outputs
        self._made(line, lambda: scope.graph.set_outputs(named))

    # -- values --------------------------------------------------------------------------------

    def _value(self, hint: Any, scope: Scope) -> Any:
        """A value of the type `hint`."""
        tokens = self.tokens
        options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else ()
        if type(None) in options and tokens.accept("none"):
            return None
        kinds = [o for o in options if o is not type(None)] or [hint]
        if Dim in kinds:
            return self._expression(scope, 0)
        return self._one(kinds[0], scope)

    def _one(self, hint: Any, scope: Scope) -> Any:
        simple = {str: self.tokens.string, float: self.tokens.real, bool: self._bool,
                  DType: self._dtype}  # fmt: skip
        if hint in simple:
            return simple[hint]()
        if hint is Shape:
            return self._shape(scope)
        if hint is Data:
            return self._data()
        if hint is Body:
            return self._body(scope)
        if get_origin(hint) is tuple or hint is Axes:
            inner = int if hint is Axes else get_args(hint)[0]
            return self._sequence("(", ")", lambda: self._value(inner, scope))
        if get_origin(hint) is Literal and self.tokens.next.kind == "string":
            return self.tokens.string()
        return self.tokens.integer()

    def _sequence(self, start: str, stop: str, item: Callable[[], Any]) -> tuple[Any, ...]:
        """Items between marks, with commas; one may trail."""
        self.tokens.expect(start)
        items: list[Any] = []
        while not self.tokens.accept(stop):
            items.append(item())
            if not self.tokens.sees(stop):
                self.tokens.expect(",")
        return tuple(items)

    def _bool(self) -> bool:
        if not self.tokens.sees("true", "false"):
            raise self.tokens.error(f"expected true or false, found {self.tokens.next}")
        return self.tokens.take().text == "true"

    def _dtype(self) -> DType:
        line, name = self.tokens.line, self.tokens.name("a dtype")
        known = {d.value: d for d in DType}
        if name not in known:
            raise self.tokens.error(f"there is no dtype {name!r}. Known: {', '.join(known)}", line)
        return known[name]

    def _shape(self, scope: Scope) -> Shape:
        line, dtype = self.tokens.line, self._dtype()
        dims = self._sequence("[", "]", lambda: self._expression(scope, 0))
        return self._made(line, lambda: Shape(dims, dtype))

    def _shapes(self, scope: Scope) -> tuple[Shape, ...]:
        return self._sequence("(", ")", lambda: self._shape(scope))

    def _body(self, scope: Scope) -> Graph:
        header = self.header()
        if header.kind != "mir" or header.words:
            raise self.tokens.error(f"expected a graph, mir and a name, found {header}")
        graph = Graph(header.name)
        self._block(graph, scope.depth + 1)
        return graph

    def _data(self) -> Data:
        """A constant: its shape, then a list of numbers or the base64 of its bytes."""
        line = self.tokens.line
        shape = self._shape(Scope(Graph(), 0))
        if self.tokens.next.kind == "string":
            raw = self._bytes(shape)
        else:
            raw = self._numbers(shape)
        try:
            array = np.frombuffer(raw, shape.dtype.numpy.newbyteorder("<"))
            return Data(array.astype(shape.dtype.numpy).reshape(shape.static_dims))
        except ValueError as error:
            raise self.tokens.error(f"{shape} is no constant's shape: {error}", line) from None

    def _bytes(self, shape: Shape) -> bytes:
        line = self.tokens.line
        try:
            raw = base64.b64decode(self.tokens.string(), validate=True)
        except ValueError:
            raise self.tokens.error("the constant is not base64", line) from None
        if len(raw) != shape.size_bytes:
            raise self.tokens.error(
                f"{shape} takes {shape.size_bytes} bytes, the text has {len(raw)}", line
            )
        return raw

    def _numbers(self, shape: Shape) -> bytes:
        line, dtype = self.tokens.line, shape.dtype
        read = self._bool if dtype is DType.BOOL else self.tokens.integer
        numbers = self._sequence(
            "{", "}", read if not (dtype.is_float or dtype.is_complex) else self.tokens.real
        )
        count = shape.num_elements * (2 if dtype.is_complex else 1)
        if len(numbers) != count:
            raise self.tokens.error(
                f"{shape} takes {count} numbers, the text has {len(numbers)}", line
            )
        return self._made(line, lambda: _packed(numbers, dtype))

    # -- dims ----------------------------------------------------------------------------------

    def _expression(self, scope: Scope, depth: int) -> DimLike:
        """Sums of products of factors, with Python's precedence."""
        if depth > _MAX_PARENS:
            raise self.tokens.error("the size is nested too deeply")
        total = self._term(scope, depth)
        while self.tokens.sees("+", "-"):
            line, mark = self.tokens.line, self.tokens.take().text
            left, right = total, self._term(scope, depth)
            total = self._dim_made(line, mark, left, right)
        return total

    def _term(self, scope: Scope, depth: int) -> DimLike:
        total = self._factor(scope, depth)
        while self.tokens.sees("*", "//", "%"):
            line, mark = self.tokens.line, self.tokens.take().text
            left, right = total, self._factor(scope, depth)
            total = self._dim_made(line, mark, left, right)
        return total

    def _factor(self, scope: Scope, depth: int) -> DimLike:
        tokens = self.tokens
        if tokens.accept("-"):
            return -self._positive(scope, depth)
        return self._positive(scope, depth)

    def _positive(self, scope: Scope, depth: int) -> DimLike:
        tokens = self.tokens
        if tokens.accept("("):
            inner = self._expression(scope, depth + 1)
            tokens.expect(")")
            return inner
        if tokens.next.kind == "int":
            return tokens.natural()
        line, name = tokens.line, tokens.name("a size")
        if name in ("max", "min") and tokens.sees("("):
            left, right = self._pair(scope, depth)
            return self._dim_made(line, name, left, right)
        if name not in scope.dims:
            raise tokens.error(f"there is no dim {name!r}. Declare it: dim {name} in 0..", line)
        return scope.dims[name]

    def _pair(self, scope: Scope, depth: int) -> tuple[DimLike, DimLike]:
        self.tokens.expect("(")
        left = self._expression(scope, depth + 1)
        self.tokens.expect(",")
        right = self._expression(scope, depth + 1)
        self.tokens.expect(")")
        return left, right

    def _dim_made(self, line: int, mark: str, left: DimLike, right: DimLike) -> DimLike:
        made = self._made(line, lambda: _DIM_OPS[mark](left, right))
        if not isinstance(made, Dim) and not -(2**63) <= made < 2**64:
            raise self.tokens.error(f"the size {made} is past 2^63", line)
        return made


def _quotient(a: DimLike, b: DimLike) -> DimLike:
    return a // b if isinstance(a, Dim) or isinstance(b, Dim) or b else 0


def _remainder(a: DimLike, b: DimLike) -> DimLike:
    return a % b if isinstance(a, Dim) or isinstance(b, Dim) or b else 0


_DIM_OPS: dict[str, Callable[[DimLike, DimLike], DimLike]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": _quotient,
    "%": _remainder,
    "max": dim_max,
    "min": dim_min,
}


def _packed(numbers: tuple[Any, ...], dtype: DType) -> bytes:
    """The little-endian bytes of numbers that all fit `dtype`."""
    parts = dtype.real.numpy
    if dtype.is_integer:
        info = np.iinfo(parts)
        wrong = next((n for n in numbers if not info.min <= n <= info.max), None)
        if wrong is not None:
            raise GraphError(f"{wrong} does not fit {dtype}")
    with np.errstate(all="ignore"):
        wide = np.array(numbers, None if not dtype.is_integer else parts)
        array = wide.astype(parts)
    return array.astype(parts.newbyteorder("<")).tobytes()


@functools.cache
def attr_hints(decl: Op) -> dict[str, Any]:
    """An op's attributes and the types they are declared with."""
    hints = hints_of(decl.reference)
    return {name: hints.get(name, hints.get(f"{name}_")) for name in decl.attr_specs}
