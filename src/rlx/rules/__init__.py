"""Rewrites by theme. README.md here has the rules about rules."""

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
"""What removes work, in the order of trying: constants first."""
RECOGNITION = ("quantised", "activations", "norms", "attention", "rotary", "spectra", "welch")
"""What names a block by its primitive spelling."""


def rules_of(theme: ModuleType) -> list[Rule]:
    """The rules a module declares, in the order of its text."""
    return [value for value in vars(theme).values() if isinstance(value, Rule)]


def all_rules() -> list[Rule]:
    """Every rule, theme by theme."""
    return _of(THEMES + RECOGNITION)


def plain_rules() -> list[Rule]:
    """The rules that name no blocks: what a target has lowered stays lowered."""
    return _of(THEMES)


def _of(themes: tuple[str, ...]) -> list[Rule]:
    modules = [importlib.import_module(f"rlx.rules.{name}") for name in themes]
    return [rule for module in modules for rule in rules_of(module)]
