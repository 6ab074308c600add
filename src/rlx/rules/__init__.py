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
    "activations",
    "norms",
)
"""The order of trying: constants first, then what removes work, then what names blocks."""


def rules_of(theme: ModuleType) -> list[Rule]:
    """The rules a module declares, in the order of its text."""
    return [value for value in vars(theme).values() if isinstance(value, Rule)]


def all_rules() -> list[Rule]:
    """Every rule, theme by theme."""
    themes = [importlib.import_module(f"rlx.rules.{name}") for name in THEMES]
    return [rule for theme in themes for rule in rules_of(theme)]
