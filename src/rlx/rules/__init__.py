"""Rewrite rules by theme. README.md here states what a rule must satisfy."""

from __future__ import annotations

import importlib
from types import ModuleType

from rlx.rules.engine import Rule

THEMES = (
    "constants",
    "casts",
    "movement",
    "algebra",
    "logic",
    "reductions",
    "products",
    "control_flow",
)
"""Simplifications, in the order they are tried: constants first."""
RECOGNITION = (
    "quantised",
    "activations",
    "norms",
    "attention",
    "rotary",
    "power",
    "spectra",
    "one_sided",
    "dft_weights",
    "welch",
)
"""Recognition of blocks from their decomposition."""


def rules_of(theme: ModuleType) -> list[Rule]:
    """The rules a module declares, in the order of its text."""
    return [value for value in vars(theme).values() if isinstance(value, Rule)]


def all_rules() -> list[Rule]:
    """Every rule, theme by theme."""
    return _of(THEMES + RECOGNITION)


def simplification_rules() -> list[Rule]:
    """The rules that recognise no blocks: what was lowered stays lowered."""
    return _of(THEMES)


def _of(themes: tuple[str, ...]) -> list[Rule]:
    modules = [importlib.import_module(f"rlx.rules.{name}") for name in themes]
    return [rule for module in modules for rule in rules_of(module)]
