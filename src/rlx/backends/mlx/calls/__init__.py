"""The calls of mlx, a page per family of ops."""

from __future__ import annotations

from importlib import import_module

from rlx.backends.engine.calls import CallTable
from rlx.backends.mlx.calls.table import TABLE

PAGES = (
    "elementwise", "logic", "movement", "reduction", "indexing", "sort_and_scan", "contraction",
    "normalization", "attention", "window", "signal", "fused", "quant",
)  # fmt: skip
"""The modules of this folder that register calls."""


def table() -> CallTable:
    """All calls."""
    for page in PAGES:
        import_module(f"{__name__}.{page}")
    return TABLE
