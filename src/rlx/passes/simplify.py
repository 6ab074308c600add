"""Simplification: rewrite rules to a fixpoint, constant folding, CSE and dead code elimination.

Equal nodes are one node by construction, and a rewritten graph holds only what its outputs need;
inputs and params keep their slot whether they are read or not.
"""

from __future__ import annotations

from rlx.ir.mir import Graph, Node
from rlx.passes.context import Context
from rlx.passes.legalise import dispatch
from rlx.rules import all_rules, simplification_rules
from rlx.rules.engine import rewrite, ruleset

DEDICATED_KERNELS = frozenset({
    "stft", "power_frames", "mean_power", "mel_frames", "conv_integer", "matmul_integer",
})  # fmt: skip
"""Ops that rules introduce only for their dedicated kernel: without one the original is faster."""


def simplify(graph: Graph, context: Context) -> Graph:
    """`graph` with every rule applied that applies; the context logs each firing and near miss."""
    has_kernel = lambda node: node.op not in DEDICATED_KERNELS or _is_native(node, context)
    rules = ruleset(all_rules())
    return rewrite(graph, rules, context.rewrites, has_kernel, context.log.rewrites)


def tidy(graph: Graph, context: Context) -> Graph:
    """Simplify after lowering: what the target has no kernel for does not come back."""
    is_native = lambda node: _is_native(node, context)
    rules = ruleset(simplification_rules())
    return rewrite(graph, rules, context.rewrites, is_native, context.log.rewrites)


def _is_native(node: Node, context: Context) -> bool:
    return dispatch(node, context).path == "native"
