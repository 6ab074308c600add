"""Textual IR: any graph prints, and parses back as the same graph.

    mir "hello" {
      dim seq in 1..4096
      %0 = input(name="x", shape=f32[seq, 4]) : f32[seq, 4]
      %1 = param(name="w", shape=f32[4, 2]) : f32[4, 2]
      %2 = matmul(%0, %1) : f32[seq, 2]
      return %2
    }

Every attribute is written, so that a text keeps its meaning when a default changes. Strings are
JSON's, floats are Python's, small constants are lists (complex numbers as real and imaginary part
in turn), others the base64 of their little-endian bytes. Outputs that have names are written with
them: `return "logits": %2, "cache": %3`. A size that calls may not make negative is written with
the reason: `require a - b "a is at least b"`. A graph held by an attribute is written in place,
with dims and numbers of its own. `#` starts a comment.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx.core.attrs import Data, dims_in
from rlx.core.dim import Dim, DimLike, symbols_of
from rlx.core.dtype import DType
from rlx.core.errors import GraphError
from rlx.core.shape import Shape
from rlx.ir.mir import Graph, MirModule, Node
from rlx.ir.parse import MAX_NESTING, Header, Reader
from rlx.ir.verify import verify
from rlx.ops import op as table

if TYPE_CHECKING:
    from rlx.ir.hir import HirModule

_LISTED = 16
"""Constants of up to this many numbers are written as lists."""


def show(graph: Graph, kind: str = "mir", words: Sequence[str] = ()) -> str:
    """`graph` as text: equal graphs of one name give equal texts.

    `kind` and `words` stand at the head: an HIR module is `hir "name" direct { ... }`.
    """
    return f"{kind} {_quoted(graph.name)} {''.join(f'{w} ' for w in words)}{_block(graph, 0)}\n"


def read(text: str, source: str = "text") -> Graph:
    """The MIR graph that `text` is. Whatever is wrong with it is a GraphError with its line."""
    reader = Reader(text, source)
    return _graph(reader, reader.header())


def read_module(text: str, source: str = "text") -> MirModule | HirModule:
    """The module that `text` is, verified: `mir "name" {...}` or `hir "name" direct {...}`."""
    reader = Reader(text, source)
    header = reader.header()
    if header.kind == "hir":
        return _hir(reader, header)
    return _verified(MirModule, _graph(reader, header), source)


def _graph(reader: Reader, header: Header) -> Graph:

    if header.kind != "mir" or header.words:
        raise reader.tokens.error(f"expected mir and a name, found {header}")
    graph = Graph(header.name)
    reader.fill(graph, table.lookup)
    return graph


def _hir(reader: Reader, header: Header) -> HirModule:
    from rlx.ir import block
    from rlx.ir.hir import FusionPolicy, HirModule

    policies = {p.value: p for p in FusionPolicy}
    if len(header.words) != 1 or header.words[0] not in policies:
        raise reader.tokens.error(f"expected one of {', '.join(policies)} after the name")
    module = HirModule(header.name, policies[header.words[0]])
    reader.fill(module.graph, lambda name: block.find(name) or table.lookup(name))
    _verified(verify, module.graph, reader.tokens.source)
    module.graph.traces_lines = True
    return module


def _verified(check: Callable[[Graph], Any], graph: Graph, source: str) -> Any:
    try:
        return check(graph)
    except GraphError as error:
        raise GraphError(f"{source}: {error}") from None


def _block(graph: Graph, depth: int) -> str:
    """The statements of a graph, in braces."""
    if depth >= MAX_NESTING:
        raise GraphError(f"{graph.name}: graphs are nested deeper than {MAX_NESTING}")
    nodes = graph.order() if graph.outputs else list(graph.nodes)
    number = {node: i for i, node in enumerate(nodes)}
    lines = [_dim_line(dim) for dim in _dims_of(graph, nodes)]
    lines += [f"require {r.size} {_quoted(r.why)}" for r in graph.required]
    lines += [statement(node, number, depth) for node in nodes]
    lines.append(f"return {_outputs(graph, number)}".rstrip())
    indent = "  " * depth
    return "{\n" + "".join(f"{indent}  {line}\n" for line in lines) + indent + "}"


def _outputs(graph: Graph, number: Mapping[Node, int]) -> str:
    """By number; with their names, where they were given any."""
    given = [f"%{number[o]}" for o in graph.outputs]
    if graph.has_output_names:
        given = [f"{_quoted(n)}: {o}" for n, o in zip(graph.output_names, given)]
    return ", ".join(given)


def _dims_of(graph: Graph, nodes: Sequence[Node]) -> list[Dim]:
    """Every named dim in shapes, attributes and bounds, by name; one name has one range.

    Measured ones come last, as their bounds are over the others.
    """
    used: dict[DimLike, None] = {}
    for node in nodes:
        for value in (*node.shapes, *node.attrs.values()):
            used.update(dict.fromkeys(dims_in(value)))
    used.update(dict.fromkeys(r.size for r in graph.required))
    found: dict[str, Dim] = {}
    symbols = [s for d in used for s in symbols_of([d])]
    bounds = [s.symbol.max for s in symbols if s.symbol and isinstance(s.symbol.max, Dim)]
    for dim in (*symbols, *symbols_of(bounds)):
        if found.setdefault(dim.name, dim) != dim:
            raise GraphError(f"{graph.name}: dim {dim.name} has two ranges. Give one another name.")
    return sorted(found.values(), key=lambda dim: (dim.is_measured, dim.name))


def _dim_line(dim: Dim) -> str:
    low, high = dim.bounds
    if dim.symbol and dim.symbol.is_measured:
        bound = dim.symbol.max
        most = f"({bound})" if isinstance(bound, Dim) else "" if bound is None else bound
        return f"dim {dim.name} measured in 0..{most}"
    return f"dim {dim.name} in {low}..{'' if high is None else high}"


def statement(node: Node, number: Mapping[Node, Any], depth: int = 0) -> str:
    """A node as text, with the names that values have by `number`."""
    args = [f"%{number[i]}" for i in node.inputs]
    args += [f"{name}={_value(value, depth)}" for name, value in node.attrs.items()]
    shape = _tuple([str(s) for s in node.shapes]) if node.has_items else str(node.shape)
    return f"%{number[node]} = {node.op}({', '.join(args)}) : {shape}"


def _value(value: Any, depth: int) -> str:
    """An attribute's value."""
    match value:
        case None:
            return "none"
        case bool():
            return "true" if value else "false"
        case str():
            return _quoted(value)
        case tuple():
            return _tuple([_value(v, depth) for v in value])  # pyright: ignore[reportUnknownVariableType]
        case Data():
            return _data(value.array)
        case Graph():
            return f"mir {_quoted(value.name)} {_block(value, depth + 1)}"
        case Dim():
            return "(none)" if str(value) == "none" else str(value)
        case _:
            return str(value)


def _tuple(parts: Sequence[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _data(array: np.ndarray[Any, Any]) -> str:
    """An array exactly: a list of numbers where that is short and loses nothing."""
    shape = Shape(array.shape, array.dtype)
    listed = _listed(array.reshape(-1), shape.dtype) if array.size <= _LISTED else None
    if listed is not None:
        return f"{shape}{{{', '.join(listed)}}}"
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return f'{shape}"{base64.b64encode(little.tobytes()).decode()}"'


def _listed(flat: np.ndarray[Any, Any], dtype: DType) -> list[str] | None:
    """The numbers of `flat` as text, or None where a NaN has bits that text does not carry."""
    if dtype is DType.BOOL:
        return ["true" if v else "false" for v in flat]
    if dtype.is_integer:
        return [str(int(v)) for v in flat]
    parts = flat.view(dtype.real.numpy)
    texts = [_number(v) for v in parts]
    back = np.array([float(t) for t in texts]).astype(parts.dtype)
    return texts if back.tobytes() == parts.tobytes() else None


def _number(value: Any) -> str:
    """The shortest of the spellings that give `value` back."""
    short = str(value)
    exact = str(float(value))
    same = np.float64(short).astype(value.dtype).tobytes() == value.tobytes()
    return str(float(short)) if same else exact
