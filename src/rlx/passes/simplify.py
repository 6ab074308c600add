"""Simplify: rules to a fixpoint, constants folded, equal nodes shared, unneeded ones gone.

Equal nodes are one node by construction, and a rewritten graph holds only what its outputs need;
inputs and params keep their slot whether they are read or not.
"""

from __future__ import annotations

from rlx.ir.mir import Graph, Node
from rlx.passes.context import Context
from rlx.passes.legalise import dispatch
from rlx.rules import all_rules, plain_rules
from rlx.rules.engine import rewrite, ruleset

OWN_KERNELS = frozenset({
    "stft", "power_frames", "mean_power", "mel_frames", "conv_integer", "matmul_integer",
})  # fmt: skip
"""What rules name for the sake of a kernel: worse than what was written, where there is none."""


def simplify(graph: Graph, context: Context) -> Graph:
    """`graph` with every rule applied that applies; the context keeps each firing and miss."""
    has_kernel = lambda node: node.op not in OWN_KERNELS or _is_native(node, context)
    rules = ruleset(all_rules())
    return rewrite(graph, rules, context.rewrites, has_kernel, context.log.rewrites)


def tidy(graph: Graph, context: Context) -> Graph:
    """Simplify after lowering: what the target has no kernel for does not come back."""
    is_native = lambda node: _is_native(node, context)
    rules = ruleset(plain_rules())
    return rewrite(graph, rules, context.rewrites, is_native, context.log.rewrites)


def _is_native(node: Node, context: Context) -> bool:
    return dispatch(node, context).path == "native"
