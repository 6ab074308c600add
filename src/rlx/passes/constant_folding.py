"""Constant folding alone: what depends on nothing given is computed when compiling.

Params are given, so they never fold.
"""

from __future__ import annotations

from rlx.ir.mir import Graph
from rlx.rules.constants import fold_constants
from rlx.rules.engine import Event, rewrite, ruleset


def fold(graph: Graph, log: list[Event] | None = None) -> Graph:
    """`graph` with every affordable op of constants replaced by its value."""
    return rewrite(graph, ruleset([fold_constants]), log)
