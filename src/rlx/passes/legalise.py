"""Legalise: every node becomes one that the target runs, or an error that names it.

An op without a kernel of the target's own is spelled in simpler ops, which every target has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlx.errors import Error, UnsupportedError
from rlx.extent import ceiling
from rlx.ir.mir import Graph, Node, Origin
from rlx.op import Kind
from rlx.passes.bodies import nodes_within, with_bodies
from rlx.passes.context import Context

MAX_ROUNDS = 32
"""How deep lowerings may nest: a lowering goes to simpler ops, so a chain of them is short."""

CUT = "only the program that registered the op can run it: each call leaves native code for it"

Path = Literal["native", "lowered", "unsupported"]


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How a node will run, and why."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class DispatchRow:
    """How often an op takes a path, with the reason of the first time."""

    op: str
    path: Path
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class DispatchReport:
    """Which ops of a graph run as kernels of the target's own, and which as their lowering."""

    target: str
    rows: tuple[DispatchRow, ...]

    @classmethod
    def of(cls, graph: Graph, ctx: Context) -> DispatchReport:
        """What legalising `graph` would choose, op by op, by name."""
        found: dict[tuple[str, Path], DispatchRow] = {}
        for node in nodes_within(graph):
            if not node.is_leaf and node.op != "item":
                _count(found, node, dispatch(node, ctx))
        return cls(ctx.target.name, tuple(found[k] for k in sorted(found)))

    def count(self, path: Path) -> int:
        """How many nodes take `path`."""
        return sum(row.count for row in self.rows if row.path == path)

    def __str__(self) -> str:
        rows = [f"{r.op:24} {r.path:12} {r.count:6}  {r.reason}".rstrip() for r in self.rows]
        return "\n".join([f"dispatch for {self.target}", *rows])


def _count(found: dict[tuple[str, Path], DispatchRow], node: Node, how: Dispatch) -> None:
    known = found.get((node.op, how.path))
    count, reason = (known.count + 1, known.reason) if known else (1, how.reason)
    found[node.op, how.path] = DispatchRow(node.op, how.path, count, reason)


def dispatch(node: Node, ctx: Context) -> Dispatch:
    """How `node` will run: what the policy asks, within what the target claims."""
    claim, (asked, why) = ctx.target.claim(node), ctx.dispatch.prefer(node.op)
    has_lowering = node.decl.lower is not None
    if claim.kind == "no":
        return Dispatch("unsupported", claim.reason)
    if asked == "common" and has_lowering and not _is_own_loop(node, ctx):
        return Dispatch("lowered", why)
    if claim.is_native:
        return Dispatch("native", "" if asked == "claim" else why)
    if asked == "native":
        return Dispatch("unsupported", f"{claim.reason}, and its lowering is ruled out: {why}")
    if not has_lowering:
        return Dispatch("unsupported", f"{claim.reason}, nor has the op a lowering")
    return Dispatch("lowered", claim.reason)


def _is_own_loop(node: Node, ctx: Context) -> bool:
    """A loop the target runs is lowered only by name: unrolling is no matter of kernels."""
    is_listed = node.op in ctx.dispatch.force_common
    return node.decl.kind is Kind.CONTROL and ctx.target.claim(node).is_native and not is_listed


def legalise(graph: Graph, ctx: Context) -> Graph:
    """The graph with every node that the target does not run spelled in ops that it does."""
    _require_bounds(graph)
    for _ in range(MAX_ROUNDS):  # a lowering may be a loop, whose body is then looked at
        made = with_bodies(graph, lambda each: _legalised(each, ctx))
        if made is graph:
            break
        graph = made
    return graph


def _require_bounds(graph: Graph) -> None:
    """Memory is planned before a call, so every measured size must have a bound."""
    for node in graph.order():
        try:
            for dim in (d for s in node.shapes if s.is_measured for d in s.dims):
                ceiling(dim)
        except UnsupportedError as error:
            raise UnsupportedError(f"{node.label}: {error}") from None


def require_legal(graph: Graph, ctx: Context) -> Graph:
    """The graph itself, if the target runs every node of it; an error otherwise. Where only the
    host can do the work, the program is cut there, which is worth knowing."""
    for node in nodes_within(graph):
        claim = ctx.target.claim(node)
        if not claim.is_native:
            raise _unsupported(node, claim.reason, ctx)
        if node.op == "custom":
            ctx.log.note("cut", node, True, CUT, kind="cut")
    return graph


def _legalised(graph: Graph, ctx: Context) -> Graph:
    """Rounds of lowering, until there is nothing left to lower."""
    for _ in range(MAX_ROUNDS):
        chosen = dict(_to_lower(graph.order(), ctx))
        if not chosen:
            return graph
        graph = _round(graph, chosen, ctx)
    node, _ = next(_to_lower(graph.order(), ctx))
    raise Error(f"{node.label}: its lowering does not end after {MAX_ROUNDS} rounds")


def _to_lower(nodes: Iterable[Node], ctx: Context) -> Iterator[tuple[Node, str]]:
    """The nodes to be lowered, each with its reason."""
    for node in nodes:
        how = dispatch(node, ctx)
        if how.path == "unsupported":
            raise _unsupported(node, how.reason, ctx)
        if how.path == "lowered":
            yield node, how.reason


def _unsupported(node: Node, reason: str, ctx: Context) -> UnsupportedError:
    return UnsupportedError(
        f"{node.label}: target {ctx.target.name} cannot run it: {reason}. "
        "Compile for another target, or spell it in other ops."
    )


def _round(graph: Graph, chosen: Mapping[Node, str], ctx: Context) -> Graph:
    """The graph with the chosen nodes lowered once."""
    new = graph.successor()
    made: dict[Node, tuple[Node, ...]] = {}
    for node in graph.order():
        if node in chosen:
            made[node] = _lowered(new, node, [made[i][0] for i in node.inputs])
            ctx.log.note("lower", node, True, chosen[node], kind="lowering")
        elif node.op == "item" and node.inputs[0] in chosen:
            made[node] = (made[node.inputs[0]][node.attrs["index"]],)
            new.add_origins(made[node][0], node.origins)
        else:
            kept = new.node(node.decl, [made[i][0] for i in node.inputs], node.attrs)
            new.add_origins(kept, node.origins)
            made[node] = (kept,)
    new.set_outputs([made[o][0] for o in graph.outputs])
    return new


def _lowered(new: Graph, node: Node, operands: Sequence[Node]) -> tuple[Node, ...]:
    """The results of `node` in simpler ops, of exactly its shapes."""
    with new.scope(*node.origins, Origin("pass", f"lower {node.op}")):
        results = node.decl.lowered(operands, node.attrs, new)
    shapes = tuple(r.shape for r in results)
    if shapes != node.shapes:
        raise Error(f"{node.label}: its lowering gives {shapes}, not {node.shapes}")
    return results
