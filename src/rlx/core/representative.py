"""Representative sizes of symbolic dims, at which a graph is priced and planned.

Cost and sharing need numbers before a model is bound. Both ask here, so that what the gate took
for cheap is what the plan was made for. Every binding is right; this one is where it is tight.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlx.core.dim import Dim, DimLike, evaluate, symbols_of
from rlx.core.extent import ceiling

TYPICAL = 128
"""Long enough that per-call work outweighs fixed costs, short enough for squares to stay small."""


def representative(symbols: Iterable[Dim]) -> dict[str, int]:
    """A size for each symbol inside its range: `TYPICAL`, or the end of the range nearest to it."""
    named = sorted(((dim.name, dim) for dim in symbols), key=lambda pair: pair[0])
    return {name: _typical(*dim.bounds) for name, dim in named}


def typical_size(dim: DimLike, known: Mapping[str, int] | None = None) -> int:
    """The value of a dim expression at the representative sizes of its symbols, or at those that
    are `known`.

    What is measured counts as the most it can be. No size is negative: where the representative
    sizes do not fit each other, as a window and an image, it is 0.
    """
    if not isinstance(dim, Dim):
        return dim
    most = ceiling(dim)
    return max(0, evaluate(most, {**representative(symbols_of([most])), **(known or {})}))


def _typical(low: int | None, high: int | None) -> int:
    capped = TYPICAL if high is None else min(high, TYPICAL)
    return max(capped, low or 0)
