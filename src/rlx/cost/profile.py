"""I/O profiles of graphs: launches, syncs and bytes, as a sum of per-node terms.

Without a target the counts follow the documented rules, which know six kinds of metadata and four
of host syncs. With one they say what that target really does: its views, its syncs, its copies,
at representative sizes, and nothing for what depends on weights alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlx.core.arguments import FLAG
from rlx.core.errors import Error
from rlx.core.public_calls import public, public_class
from rlx.core.shape import Shape
from rlx.cost.gate import FusionBenefit, GraphIoProfile, fusion_benefit
from rlx.cost.target import FusionTarget, Target, with_bodies
from rlx.cost.terms import ComputeProfile, Terms
from rlx.ir.lir import LirModule, Phase
from rlx.ir.mir import Graph, Node, topological
from rlx.ops.op import table

METADATA = frozenset({"input", "param", "constant", "reshape", "transpose", "narrow"})
"""What the documented rules take for free, also as an output."""


@public_class
@dataclass(frozen=True, slots=True)
class GraphIoOptions:
    """How to count."""

    fft_host_sync: bool = False
    """Does every op that holds an FFT wait for the host?"""

    def __post_init__(self) -> None:
        FLAG.check("GraphIoOptions: fft_host_sync", self.fft_host_sync)


class HasTerms(Protocol):
    """A compile's context, or its log."""

    @property
    def terms(self) -> Terms: ...


@public
def profile_graph_io(
    graph: Any,
    options: GraphIoOptions | None = None,
    *,
    outputs: Sequence[Node | int] | None = None,
    target: FusionTarget | Target | str | None = None,
) -> GraphIoProfile:
    """What running `graph` once costs: a Graph, a MirModule, a LirModule, or what holds a graph.

    `outputs`, nodes or numbers of the graph's own outputs, stand in for these: what they do not
    need is not counted.
    """
    asked, source = options or GraphIoOptions(), graph_of(graph)
    given = source.outputs if outputs is None else [_output(source, o) for o in outputs]
    chosen = tuple(dict.fromkeys(given))
    nodes = topological(chosen) if chosen else list(source.nodes)
    if target is None:
        wanted = set(chosen)
        return _total(node_terms(n, asked, is_output=n in wanted) for n in nodes)
    terms = Terms(Target.of(target), fft_ops() if asked.fft_host_sync else frozenset())
    if isinstance(graph, LirModule) and outputs is None:
        return profile_plan_io(graph, terms)
    return _total(map(terms.of, nodes)) + terms.readback(chosen)


def graph_of(source: Any) -> Graph:
    """The graph inside a module, or the graph itself."""
    found = source.mir if isinstance(source, LirModule) else source
    found = found if isinstance(found, Graph) else getattr(found, "graph", None)
    if not isinstance(found, Graph):
        raise Error(f"profile_graph_io takes a rlx.Graph or a module, not {type(source).__name__}.")
    return found


def _output(graph: Graph, output: Any) -> Node:
    """A node of the graph, or its output of that number."""
    if isinstance(output, Node):
        if output.graph is not graph:
            raise Error("profile_graph_io: an output given belongs to another graph.")
        return output
    count = len(graph.outputs)
    if isinstance(output, bool) or not isinstance(output, int) or not -count <= output < count:
        raise Error(
            f"profile_graph_io: {output!r} is no output of {graph.name!r}, which has {count}. Give "
            "nodes of the graph, or numbers of its outputs, from 0."
        )
    return graph.outputs[output]


def fft_ops() -> frozenset[str]:
    """The ops that hold an FFT, whole or inside their own kernel."""
    return frozenset(name for name, op in table().items() if op.has_fft)


@public
def host_sync_op_kinds(target: FusionTarget | Target | str | None = None) -> frozenset[str]:
    """The ops that make the device wait for the host: by the documented rules, or on a target."""
    if target is not None:
        return Target.of(target).syncs
    return frozenset(name for name, op in table().items() if op.syncs_host)


def node_terms(
    node: Node, options: GraphIoOptions | None = None, *, is_output: bool = False
) -> GraphIoProfile:
    """What one node adds to the profile, by the documented rules. A result of a node that has
    several is read back separately, and costs nothing else: its node moves the bytes."""
    if node.op in METADATA:
        return GraphIoProfile()
    written = _static_bytes(node.shapes)
    if node.op == "item":
        return GraphIoProfile(host_output_bytes=written if is_output else 0)
    asked = options or GraphIoOptions()
    inside = list(with_bodies(node))
    syncs = any(n.decl.syncs_host or (asked.fft_host_sync and n.decl.has_fft) for n in inside)
    read = sum(_static_bytes(i.shapes) for i in node.inputs)
    return GraphIoProfile(1, int(syncs), written if is_output else 0, written + read)


def benefit_of(
    removed: Iterable[Node], added: Iterable[Node], ctx: Terms | HasTerms
) -> FusionBenefit:
    """What putting `added` in the place of `removed` saves: the terms of these nodes alone."""
    terms = ctx if isinstance(ctx, Terms) else ctx.terms
    return fusion_benefit(_total(map(terms.of, removed)), _total(map(terms.of, added)))


def compute_profile(nodes: Iterable[Node], ctx: Terms | HasTerms) -> ComputeProfile:
    """The arithmetic of `nodes` per call, and the bytes they touch."""
    return (ctx if isinstance(ctx, Terms) else ctx.terms).compute(nodes)


def profile_plan_io(lir: LirModule, terms: Terms) -> GraphIoProfile:
    """The kernels that a plan runs on every call, and its outputs, at the sizes of `terms`."""
    phases: Mapping[Node, Phase] = lir.plan.phases
    kernels = [n for n in lir.plan.schedule if phases[n] is not Phase.PROLOGUE]
    outputs = dict.fromkeys(lir.plan.io.outputs)
    host = sum(terms.bytes_of(o.shape) for o in outputs)
    return _total(map(terms.kernel, kernels)) + GraphIoProfile(host_output_bytes=host)


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What a plan takes on every call."""

    io: GraphIoProfile
    arithmetic_ns: float
    """What its arithmetic takes on the device."""

    def beyond_bytes_ns(self, memory_gb_s: float) -> float:
        """What the arithmetic takes longer than the traffic, with which it overlaps."""
        return max(0.0, self.arithmetic_ns - self.io.device_traffic_bytes / memory_gb_s)


def cost_of_plan(lir: LirModule, terms: Terms) -> PlanCost:
    """The I/O and the arithmetic of a plan. What the host computes is in the price of waiting."""
    phases, gflops = lir.plan.phases, terms.target.machine.gflops
    on_device = [
        k for k in lir.plan.schedule if phases[k] is not Phase.PROLOGUE and not terms.waits(k)
    ]
    arithmetic_ns = sum(terms.peak_flops(k) / gflops(k.shapes[0].dtype) for k in on_device)
    return PlanCost(profile_plan_io(lir, terms), arithmetic_ns)


def _total(terms: Iterable[GraphIoProfile]) -> GraphIoProfile:
    launches = syncs = host = traffic = 0
    for each in terms:
        launches += each.kernel_launches
        syncs += each.sync_points
        host += each.host_output_bytes
        traffic += each.device_traffic_bytes
    return GraphIoProfile(launches, syncs, host, traffic)


def _static_bytes(shapes: Iterable[Shape]) -> int:
    """Bytes of what is static; the documented rules count a dynamic shape as 0."""
    sizes = (s.size_bytes for s in shapes)
    return sum(size for size in sizes if isinstance(size, int))
