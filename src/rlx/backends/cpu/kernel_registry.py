"""The dedicated kernels of this backend, by op.

Every module of `library` and `codegen` may have `MAKERS`: the ops it serves, and how a step of each
becomes a kernel sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import import_module
from pkgutil import walk_packages

from rlx.backends.cpu import codegen, library
from rlx.backends.cpu.program.task import Recipe, Step

Maker = Callable[[Step, str], Recipe]


@functools.cache
def makers() -> Mapping[str, Maker]:
    """Op → how its kernel sequence is made."""
    found: dict[str, Maker] = {}
    for package in (library, codegen):
        for page in walk_packages(package.__path__, f"{package.__name__}."):
            found |= getattr(import_module(page.name), "MAKERS", {})
    return found
