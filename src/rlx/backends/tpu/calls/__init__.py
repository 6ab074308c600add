"""The calls of jax, a page per family of ops."""

from __future__ import annotations

from importlib import import_module

from rlx.backends.engine.calls import CallTable
from rlx.backends.tpu.calls.table import TABLE

PAGES = (
    "elementwise",
    "movement",
    "reduction",
    "contraction",
    "indexing",
    "sort_and_scan",
    "windows",
    "attention",
    "signal",
    "random",
    "linalg",
)
"""The modules of this folder that register calls."""


def table() -> CallTable:
    """All calls."""
    for page in PAGES:
        import_module(f"{__name__}.{page}")
    return TABLE
