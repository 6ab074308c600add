"""Decisions: every choice a compile makes, kept as a value with its reason and its price.

A pass asks the log; the log asks the gate, or the caller's `force`, and remembers the answer.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice: what was considered where, the verdict, why, and what it was predicted to save."""

    id: str
    """Stable: made of structure and origin names, not of the order of passes."""
    what: str
    """The rule or pass that proposed it, such as `fuse_matmul_bias_act`."""
    where: tuple[str, ...]
    """The nodes concerned, by the user's names."""
    verdict: bool
    reason: str
    predicted_ns: float = 0.0
    bytes_saved: int = 0
    launches_saved: int = 0
