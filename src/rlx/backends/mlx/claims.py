"""What the target mlx claims, without mlx: its calls are read, and none is made."""

from __future__ import annotations

from rlx.backends.engine import claims
from rlx.backends.mlx.calls import table
from rlx.cost.target import Target

STRIDED = frozenset({"transpose", "narrow", "slice", "expand", "flip"})
"""Movements that mlx reads in place."""
OWN_CONTROL: frozenset[str] = frozenset()
"""A function of mlx is a graph of arrays: the host takes all branches and loops."""


def target() -> Target:
    """The documented target."""
    return claims.target("mlx", table(), OWN_CONTROL, STRIDED)
