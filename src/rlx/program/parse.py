"""SIMT programs from their text: line by line, regions by indentation."""

from __future__ import annotations

import ast
import re
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from rlx.core.dim import Dim, DimLike, dim_max, dim_min, is_static
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.program import nodes as ir
from rlx.program.nodes import Node, Region, Value, attr_names
from rlx.program.program import Access, Buffer, Mbarrier, Program, Scalar, Shared, Table
from rlx.program.tensor_map import OuterDim, TensorMap, WindowAxis
from rlx.program.text import INDENT, mnemonic
from rlx.program.types import TileType, Type

KINDS: dict[str, type[Node]] = {
    mnemonic(k): k
    for k in vars(ir).values()
    if isinstance(k, type) and issubclass(k, Node) and k is not Node
}
"""Every kind of node by its name in the text."""
NODE = re.compile(r"(?:(?P<results>%.*?) = )?(?P<kind>\w+)\((?P<args>[^)]*)\)(?P<attrs>.*)")
TILE = re.compile(r"([abc])(\d+)x(\d+)\.(\w+)")
DIM = re.compile(r"dim (\S+) in (\d+)\.\.(\d*)")


def parse(text: str) -> Program:
    """The program that prints as `text`."""
    parser = _Parser(text)
    try:
        return parser.program()
    except GraphError:
        raise
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError) as why:
        raise parser.error(str(why)) from why


@dataclass(slots=True)
class _Line:
    number: int
    depth: int
    text: str


@dataclass(slots=True)
class _Parser:
    source: str
    values: dict[str, Value] = field(default_factory=dict[str, Value])
    dims: dict[str, Dim] = field(default_factory=dict[str, Dim])
    line: _Line = field(default_factory=lambda: _Line(0, 0, ""))

    def program(self) -> Program:
        lines = [self._split(i, s) for i, s in enumerate(self.source.splitlines(), 1) if s.strip()]
        marks = [line.text for line in lines]
        if not marks or not marks[0].startswith("program ") or "body" not in marks:
            raise GraphError("the text is no SIMT program: it has no `program` line and `body`.")
        middle = marks.index("body")
        made = Program(marks[0].removeprefix("program "), (1, 1, 1), 1, Region())
        for line in lines[1:middle]:
            self.line = line
            made = self._head(made, *line.text.partition(" ")[::2])
        body, rest = self._region(lines[middle + 1 :], 1, ())
        if [line.text for line in rest] != ["end"]:
            raise self.error("the body does not end with `end`")
        return replace(made, body=body)

    def _split(self, number: int, line: str) -> _Line:
        bare = line.lstrip(" ")
        return _Line(number, (len(line) - len(bare)) // len(INDENT), bare.rstrip())

    def error(self, why: str) -> GraphError:
        return GraphError(f"line {self.line.number}: {why}: {self.line.text}")

    # -- arguments and memory --------------------------------------------------------------------

    def _head(self, made: Program, word: str, rest: str) -> Program:
        match word:
            case "grid":
                x, y, z = self._grid(rest)
                return replace(made, grid=(x, y, z))
            case "block" | "cluster" | "warp" | "resident":
                return replace(made, **{word: int(rest)})
            case "dim":
                self._declare()
                return made
            case "buffer":
                return replace(made, buffers=(*made.buffers, self._buffer(rest)))
            case "scalar":
                return replace(made, scalars=(*made.scalars, self._scalar(rest)))
            case "map":
                name, buffer, box, dims = rest.split(" ", 3)
                return replace(made, maps=(*made.maps, self._map(name, buffer, box, dims)))
            case "shared":
                return replace(made, shared=(*made.shared, self._shared(rest)))
            case "mbarrier":
                name, count = rest.split()
                return replace(made, mbarriers=(*made.mbarriers, Mbarrier(name, int(count))))
            case "table":
                name, dtype, *values = rest.split()
                added = Table(name, DType.of(dtype), tuple(map(float, values)))
                return replace(made, tables=(*made.tables, added))
            case "failure":
                return replace(made, failures=(*made.failures, rest))
            case _:
                raise self.error("a program has no such line")

    def _map(self, name: str, buffer: str, box: str, given: str) -> TensorMap:
        rows, columns, pitch, offset, *rest = self._grid(given)
        *boxes, height, width = map(int, box.split("x"))
        split = 2 * len(boxes)
        if len(rest) not in (split, split + 3 * len(boxes)):
            raise self.error(
                "each outer dim of a map has a count, a stride and a box; each axis of windows a "
                "count, a first and a step"
            )
        outer = tuple(map(OuterDim, rest[:split:2], rest[1:split:2], boxes))
        windows = tuple(map(self._window, *(rest[split + i :: 3] for i in range(3))))
        dims = rows, columns
        return TensorMap(name, buffer, dims, (height, width), pitch, offset, outer, windows)

    def _window(self, count: DimLike, first: DimLike, step: DimLike) -> WindowAxis:
        if not is_static(first) or not is_static(step):
            raise self.error("the first window and the step are numbers")
        return WindowAxis(count, first, step)

    def _declare(self) -> None:
        found = DIM.fullmatch(self.line.text)
        if found is None:
            raise self.error("a dim is declared as: dim name in low..high")
        name, low, high = found.groups()
        self.dims[name] = Dim(name, int(low), int(high) if high else None)

    def _grid(self, text: str) -> list[DimLike]:
        """Dims between commas that are in no brackets: those of a Python tuple."""
        tree = ast.parse(f"({text},)", mode="eval").body
        assert isinstance(tree, ast.Tuple)
        return [self._dim(e) for e in tree.elts]

    def _dim(self, tree: ast.expr) -> DimLike:
        match tree:
            case ast.Constant(value=int() as number):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -self._dim(inner)
            case ast.BinOp(left=a, op=op, right=b):
                return _DIM_OPS[type(op)](self._dim(a), self._dim(b))
            case ast.Call(func=ast.Name(id="max" | "min" as name), args=[a, b]):
                return (dim_max if name == "max" else dim_min)(self._dim(a), self._dim(b))
            case ast.Name() | ast.Attribute() if ast.unparse(tree) in self.dims:
                return self.dims[ast.unparse(tree)]
            case _:
                raise self.error(f"{ast.unparse(tree)} is no dim; declare it: dim name in 0..")

    def _buffer(self, text: str) -> Buffer:
        name, dtype, access, *count = text.split(" ", 3)
        if access not in typing.get_args(Access):
            raise self.error(f"{access} is no access")
        size = self._grid(count[0])[0] if count else None
        return Buffer(name, DType.of(dtype), typing.cast(Any, access), size)

    def _scalar(self, text: str) -> Scalar:
        result, name, *dim = re.split(r"(?<=\w) (?==|\w)", text, maxsplit=2)
        (value,) = self._results(result)
        size = self._grid(dim[0].removeprefix("= "))[0] if dim else None
        return Scalar(name, value, size)

    def _shared(self, text: str) -> Shared:
        name, dtype, count, _, align, *more = text.split()
        return Shared(name, DType.of(dtype), int(count), int(align), more == ["swizzled"])

    # -- nodes -----------------------------------------------------------------------------------

    def _region(
        self, lines: list[_Line], depth: int, params: tuple[Value, ...]
    ) -> tuple[Region, list[_Line]]:
        """The nodes at this depth, and the lines behind them."""
        nodes: list[Node] = []
        yields: tuple[Value, ...] = ()
        while lines and lines[0].depth >= depth and lines[0].text != "end":
            self.line, *lines = lines
            if self.line.text.startswith("yield "):
                yields = self._used(self.line.text.removeprefix("yield "))
                continue
            head = self.line
            regions, lines = self._regions(lines, depth + 1)
            self.line = head
            nodes.append(self._node(head.text, regions))
        return Region(params, tuple(nodes), yields), lines

    def _regions(self, lines: list[_Line], depth: int) -> tuple[tuple[Region, ...], list[_Line]]:
        found: list[Region] = []
        while lines and lines[0].depth == depth and lines[0].text.startswith("region"):
            self.line, *lines = lines
            params = self._results(self.line.text.removeprefix("region").strip())
            made, lines = self._region(lines, depth + 1, params)
            found.append(made)
        return tuple(found), lines

    def _node(self, text: str, regions: tuple[Region, ...]) -> Node:
        found = NODE.fullmatch(text)
        kind = KINDS.get(found["kind"]) if found else None
        if found is None or kind is None:
            raise self.error("it is no node")
        given = dict(re.findall(r"(\w+)=(\S*)", found["attrs"]))
        if tuple(given) != attr_names(kind):
            raise self.error(f"its attributes are {', '.join(attr_names(kind)) or 'none'}")
        attrs = {k: self._attr(kind, k, v) for k, v in given.items()}
        args, results = self._used(found["args"]), self._results(found["results"] or "")
        return kind(args=args, results=results, regions=regions, **attrs)  # pyright: ignore[reportCallIssue]

    def _attr(self, kind: type[Node], name: str, text: str) -> object:
        if kind is ir.TilePlace:
            return self._type(text)
        if text in ("true", "false"):
            return text == "true"
        try:
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        except ValueError:
            return text

    def _results(self, text: str) -> tuple[Value, ...]:
        return tuple(self._declared(part) for part in _parts(text))

    def _declared(self, text: str) -> Value:
        name, _, kind = text.partition(": ")
        self.values[name] = Value(self._type(kind))
        return self.values[name]

    def _type(self, text: str) -> Type:
        tile = TILE.fullmatch(text)
        if tile is None:
            return DType.of(text)
        role: Any = tile[1]
        return TileType(role, int(tile[2]), int(tile[3]), DType.of(tile[4]))

    def _used(self, text: str) -> tuple[Value, ...]:
        missing = [p for p in _parts(text) if p not in self.values]
        if missing:
            raise self.error(f"{missing[0]} is not made before")
        return tuple(self.values[p] for p in _parts(text))


def _parts(text: str) -> Iterable[str]:
    return [p for p in text.split(", ") if p]


_DIM_OPS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
