"""Modules of an engine that are imported when they are first used.

Pages of calls are read for the claims of documented targets, where no engine need be installed.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Lazy:
    """A module by name, which its first attribute imports."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        found = getattr(import_module(self._name), attribute)
        setattr(self, attribute, found)
        return found

    def __repr__(self) -> str:
        return self._name


def lazy(name: str) -> Any:
    """A module of an engine, as a value that anything may be asked of."""
    return Lazy(name)
