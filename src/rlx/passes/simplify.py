"""Simplify: rules to a fixpoint, constants folded, equal nodes shared, unneeded ones gone.

Equal nodes are one node by construction, and a rewritten graph holds only what its outputs need;
inputs and params keep their slot whether they are read or not.
"""

from __future__ import annotations

from rlx.ir.mir import Graph
from rlx.rules import all_rules
from rlx.rules.engine import Event, rewrite, ruleset


def simplify(graph: Graph, log: list[Event] | None = None) -> Graph:
    """`graph` with every rule applied that applies; each firing and miss goes to `log`."""
    return rewrite(graph, ruleset(all_rules()), log)
