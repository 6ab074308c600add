"""Legalise: every node becomes one that the target runs, or an error that names it.

An op that the target has no kernel for is decomposed into simpler ops, which every target has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rlx.core.errors import InternalError, UnsupportedError
from rlx.core.extent import ceiling
from rlx.core.public_calls import public_class
from rlx.ir.extents import growing
from rlx.ir.mir import Graph, Node, Origin
from rlx.ir.states import is_state_update
from rlx.ops.op import Kind
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


@public_class
@dataclass(frozen=True, slots=True)
class DispatchReport:
    """Which ops of a graph run as native kernels, and which as their lowering."""

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
    if is_state_update(node):
        return Dispatch("native", "it writes a state in place")
    if asked == "common" and has_lowering and not _is_native_loop(node, ctx):
        return Dispatch("lowered", why)
    if claim.is_native:
        return Dispatch("native", "" if asked == "claim" else why)
    if asked == "native":
        return Dispatch("unsupported", f"{claim.reason}, and its lowering is ruled out: {why}")
    if not has_lowering:
        return Dispatch("unsupported", f"{claim.reason}, nor has the op a lowering")
    return Dispatch("lowered", claim.reason)


def _is_native_loop(node: Node, ctx: Context) -> bool:
    """A loop the target runs is lowered only by name: unrolling is no matter of kernels."""
    is_listed = node.op in ctx.dispatch.force_common
    return node.decl.kind is Kind.CONTROL and ctx.target.claim(node).is_native and not is_listed


def legalise(graph: Graph, ctx: Context) -> Graph:
    """The graph with every node that the target does not run decomposed into ops that it does."""
    _require_bounds(graph)
    made = _lowered_throughout(graph, ctx, lambda _: True)
    _require_supported(made, ctx)
    return made


def lower_control_flow(graph: Graph, ctx: Context) -> Graph:
    """The graph with branches and loops that the target does not run replaced by selects and
    unrolled; all other ops stay as they are."""
    return _lowered_throughout(graph, ctx, lambda node: node.decl.kind is Kind.CONTROL)


GROWS = "nothing bounds the size {}: storage grows to what is found, and the call is run again"

Filter = Callable[[Node], bool]


def _lowered_throughout(graph: Graph, ctx: Context, wanted: Filter) -> Graph:
    for _ in range(MAX_ROUNDS):  # a lowering may be a loop, whose body is then looked at
        made = with_bodies(graph, lambda each: _legalised(each, ctx, wanted))
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
    claims = [(node, ctx.target.claim(node)) for node in nodes_within(graph)]
    _refuse([(node, claim.reason) for node, claim in claims if not claim.is_native], ctx)
    for node, _ in claims:
        if node.op == "custom":
            ctx.log.note("cut", node, True, CUT, kind="cut")
        for name in growing(node):
            ctx.log.note("grow", node, True, GROWS.format(name), kind="capacity")
    return graph


def _require_supported(graph: Graph, ctx: Context) -> None:
    """An error that lists every node, given or of a lowering, that can neither run nor be
    lowered."""
    dispatches = ((node, dispatch(node, ctx)) for node in nodes_within(graph))
    _refuse([(node, how.reason) for node, how in dispatches if how.path == "unsupported"], ctx)


def _legalised(graph: Graph, ctx: Context, wanted: Filter) -> Graph:
    """Rounds of lowering, until there is nothing left to lower."""
    for _ in range(MAX_ROUNDS):
        chosen = _to_lower(graph.order(), ctx, wanted)
        if not chosen:
            return graph
        graph = _round(graph, chosen, ctx)
    node = next(iter(_to_lower(graph.order(), ctx, wanted)))
    raise InternalError(f"{node.label}: its lowering does not end after {MAX_ROUNDS} rounds")


def _to_lower(nodes: Iterable[Node], ctx: Context, wanted: Filter) -> dict[Node, str]:
    """The nodes to be lowered, each with its reason."""
    dispatches = ((node, dispatch(node, ctx)) for node in nodes if wanted(node))
    return {node: how.reason for node, how in dispatches if how.path == "lowered"}


def _refuse(found: Sequence[tuple[Node, str]], ctx: Context) -> None:
    """Raise an error that names every one of these nodes, by why it cannot run."""
    if not found:
        return
    name, what_next = ctx.target.name, "Compile for another target, or express it in other ops."
    if len(found) == 1:
        [(node, reason)] = found
        raise UnsupportedError(f"{node.label}: target {name} cannot run it: {reason}. {what_next}")
    by_reason = dict[str, list[str]]()
    for node, reason in found:
        by_reason.setdefault(reason, []).append(node.label)
    listed = "\n  ".join(f"{_counted(labels)}: {reason}." for reason, labels in by_reason.items())
    raise UnsupportedError(
        f"{len(found)} nodes: target {name} cannot run them. {what_next}\n  {listed}"
    )


def _counted(labels: Sequence[str]) -> str:
    """Each once: nodes of one line of the model's source may be many."""
    counts = Counter(labels)
    return ", ".join(label + f" (×{n})" * (n > 1) for label, n in counts.items())


def _round(graph: Graph, chosen: Mapping[Node, str], ctx: Context) -> Graph:
    """The graph with the chosen nodes lowered once, which is noted."""
    for node, reason in chosen.items():
        ctx.log.note("lower", node, True, reason, kind="lowering")
    return lowered_once(graph, chosen)


def lowered_once(graph: Graph, chosen: Collection[Node]) -> Graph:
    """The graph with the chosen nodes decomposed into simpler ops."""
    new = graph.successor()
    made: dict[Node, tuple[Node, ...]] = {}
    for node in graph.order():
        if node in chosen:
            made[node] = _lowered(new, node, [made[i][0] for i in node.inputs])
        elif node.op == "item" and node.inputs[0] in chosen:
            made[node] = (made[node.inputs[0]][node.attrs["index"]],)
            new.add_origins(made[node][0], node.origins)
        else:
            kept = new.node(node.decl, [made[i][0] for i in node.inputs], node.attrs)
            new.add_origins(kept, node.origins)
            made[node] = (kept,)
    new.set_results([made[o][0] for o in graph.results], graph)
    return new


def _lowered(new: Graph, node: Node, operands: Sequence[Node]) -> tuple[Node, ...]:
    """The results of `node` in simpler ops, of exactly its shapes."""
    try:
        with new.scope(*node.origins, Origin("pass", f"lower {node.op}")):
            results = node.decl.lowered(operands, node.attrs, new)
    except UnsupportedError as error:
        raise type(error)(f"{node.label}: {error}") from error
    shapes = tuple(r.shape for r in results)
    if shapes != node.shapes:
        raise InternalError(f"{node.label}: its lowering gives {shapes}, not {node.shapes}")
    return results
