"""Operator support: which nodes of a model a target runs natively, lowers, or lacks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlx.core.errors import Error, InternalError
from rlx.frontends.onnx.handlers import handler_of
from rlx.frontends.onnx.host_steps import HostStep
from rlx.frontends.onnx.reader import Reader, guarded, name_of
from rlx.ir.mir import Graph, Node
from rlx.passes.bodies import nodes_within
from rlx.passes.context import Context
from rlx.passes.doubles import narrow_doubles
from rlx.passes.legalise import dispatch
from rlx.passes.simplify import simplify

Path = Literal["native", "lowered", "folded", "host", "missing"]
PATHS: tuple[Path, ...] = ("folded", "native", "lowered", "host", "missing")
"""From best to worst: the worst of what a node becomes is what it counts as."""
FOLDED = "done while compiling, or part of another node's kernel"
HOST = "each call leaves native code for it"


@dataclass(frozen=True, slots=True)
class Row:
    """A node of the file, and how it runs."""

    name: str
    op: str
    path: Path
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """Every node of a model, and why it does not run as a whole, if it does not."""

    rows: tuple[Row, ...]
    failure: Exception | None = None
    """What reading or compiling it met, after which its nodes alone do not say whether it runs."""

    @property
    def runs(self) -> bool:
        return not self.count("missing") and self.failure is None

    @property
    def bug(self) -> Exception | None:
        """A failure that is rlx's own."""
        is_known = isinstance(self.failure, Error | OSError)
        is_bug = not is_known or isinstance(self.failure, InternalError)
        return self.failure if is_bug else None

    def count(self, path: Path) -> int:
        return sum(r.path == path for r in self.rows)

    def of(self, path: Path) -> list[Row]:
        return [r for r in self.rows if r.path == path]


def unknown(reader: Reader) -> Report:
    """The nodes whose operator rlx does not have, whatever they are given."""
    with guarded("the model"):
        found = [_missing(n, v) for n, v in _nodes(reader) if not _is_known(reader, n, v)]
    return Report(tuple(found))


def _is_known(reader: Reader, node: Any, version: int) -> bool:
    domain = _domain(node)
    is_own = (domain, node.op_type, node.overload) in reader.functions
    return is_own or handler_of(domain, node.op_type, version) is not None


def _missing(node: Any, version: int) -> Row:
    domain = _domain(node)
    where = f"of domain {domain!r}" if domain else f"of opset {version}"
    return Row(name_of(node), node.op_type, "missing", f"rlx does not know this operator {where}")


def dispatched(
    reader: Reader, graph: Graph, context: Context, steps: Sequence[HostStep] = ()
) -> Report:
    """How each node runs, of a model that could be read."""
    paths: dict[str, tuple[Path, str]] = {}
    for node, found in _ways(graph, context):
        for origin in (o.text for o in node.origins if o.kind == "onnx"):
            paths[origin] = max(paths.get(origin, found), found, key=lambda f: PATHS.index(f[0]))
    paths |= {step.name: ("host", step.why) for step in steps}
    nodes = [node for node, _ in _nodes(reader)]
    return Report(
        tuple(Row(name_of(n), n.op_type, *paths.get(name_of(n), ("folded", FOLDED))) for n in nodes)
    )


def dispatched_graph(graph: Graph, context: Context) -> Report:
    """How each node of a graph runs that came from no file of ONNX's."""
    return Report(tuple(Row(n.label, n.op, *found) for n, found in _ways(graph, context)))


def _ways(graph: Graph, context: Context) -> Iterator[tuple[Node, tuple[Path, str]]]:
    """Every node that computes, and how."""
    for node in nodes_within(simplify(narrow_doubles(graph, context), context)):
        if node.is_leaf or node.op == "item":
            continue
        how = dispatch(node, context)
        path: Path = "missing" if how.path == "unsupported" else how.path
        yield node, ("host", HOST) if node.op == "custom" else (path, how.reason)


def _domain(node: Any) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _nodes(reader: Reader) -> Iterator[tuple[Any, int]]:
    """Every node at any depth, with the opset it is read under; functions each once."""
    bodies = [(reader.model.graph.node, reader.opsets)]
    bodies += [(f.node, reader.opsets_of(f)) for f in reader.functions.values()]
    for nodes, opsets in bodies:
        for node in nodes:
            yield node, opsets.get(_domain(node), 1)
            for attribute in node.attribute:
                bodies += [(g.node, opsets) for g in (attribute.g, *attribute.graphs) if g.node]
