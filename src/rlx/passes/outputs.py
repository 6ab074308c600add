"""Readback advice for two outputs of which one is computed from the other by an op that syncs with
the host: the whole spectrum, or its peaks.

Outputs are the user's, and no pass drops one. But what reading the larger one costs against fusing
into the smaller is a trade, so that it is weighed, with the target's prices, and the decision says
which of the two to ask for alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlx.cost.gate import fusion_benefit
from rlx.cost.profile import profile_graph_io
from rlx.ir.mir import Graph, Node, topological
from rlx.passes.context import Context

WHAT = "fuse_or_read_back"


def weigh_outputs(graph: Graph, ctx: Context) -> Graph:
    """Log the trade for every pair of outputs that is one, by the documented counts."""
    names = dict(zip(graph.outputs, graph.output_names))
    for source, fused in _pairs(graph):
        before = profile_graph_io(graph, outputs=[source])
        after = profile_graph_io(graph, outputs=[fused])
        benefit = fusion_benefit(before, after)
        score_ns = ctx.gate.score_ns(benefit)
        verdict = ctx.gate.should_fuse(before, after)
        better, worse = (fused, source) if verdict else (source, fused)
        reason = (
            f"asking for {names[fused]!r} alone instead of {names[source]!r} gains "
            f"{score_ns:,.2f} ns, of {ctx.gate.min_gain_ns:,.0f} asked: if one of them is enough, "
            f"keep {names[better]!r} and drop {names[worse]!r}"
        )
        ctx.log.note(
            WHAT, (source, fused), verdict, reason, predicted_ns=score_ns,
            bytes_saved=benefit.host_readback_bytes_saved + benefit.device_traffic_bytes_saved,
            launches_saved=benefit.launches_saved,
        )  # fmt: skip
    return graph


def _pairs(graph: Graph) -> Iterator[tuple[Node, Node]]:
    """Outputs that an op which waits for the host makes of other outputs."""
    outputs = list(dict.fromkeys(graph.outputs))
    for fused in outputs:
        if not fused.decl.syncs_host:
            continue
        below = set(topological(fused.inputs))
        for source in outputs:
            if source is not fused and source in below and not source.is_leaf:
                yield source, fused
