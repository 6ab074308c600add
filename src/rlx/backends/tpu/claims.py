"""What the target tpu claims, without jax: its calls are read, and none is made."""

from __future__ import annotations

from rlx.backends.engine import claims
from rlx.backends.tpu.calls import table
from rlx.cost.target import Target

OWN_CONTROL = frozenset({"if", "while", "scan"})
"""XLA has conditionals and loops."""


def target() -> Target:
    """The documented target."""
    return claims.target("tpu", table(), OWN_CONTROL)
