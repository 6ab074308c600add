"""Kernels that are no loop nests: each an algorithm of its own, written by hand.

Every page has `MAKERS`: the ops it knows, and how a step of each becomes a recipe.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules

from rlx.backends.cpu import attention
from rlx.backends.cpu.task import Recipe, Step

Maker = Callable[[Step, str], Recipe]


@functools.cache
def makers() -> Mapping[str, Maker]:
    """Op → how its recipe is made, from all pages of this folder, and attention, which has its
    own."""
    found: dict[str, Maker] = {"attention": attention.make}
    for page in iter_modules(__path__):
        found |= getattr(import_module(f"{__name__}.{page.name}"), "MAKERS", {})
    return found
