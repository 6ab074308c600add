"""Derived calls: an op's NumPy meaning on another namespace.

The function is rebuilt with `np` in its globals and closures replaced, and so is every function of
the op pages that it calls. An op of the table that it calls becomes the engine's call of that op.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlx.ops.op import Op, lookup

PAGES = "rlx.ops."
"""Functions of these modules are rebuilt; others, such as those of Python, stay as they are."""


@dataclass(slots=True)
class Derivation:
    """Functions on a namespace, each rebuilt once."""

    namespace: Any
    call: Callable[[Op], Callable[..., Any]]
    """The engine's call of an op that a meaning is stated in."""
    known: dict[types.FunctionType, types.FunctionType] = field(
        default_factory=dict[types.FunctionType, types.FunctionType]
    )

    def function(self, given: Callable[..., Any]) -> Callable[..., Any]:
        """A function of NumPy's arrays as one of the engine's."""
        return self._replaced(given)

    def _replaced(self, value: Any) -> Any:
        if value is np:
            return self.namespace
        if isinstance(value, Op):
            return _Op(self, value)
        if isinstance(value, np.ufunc):
            return getattr(self.namespace, value.__name__)
        if isinstance(value, types.ModuleType) and value.__name__ == "rlx.ops":
            return _Ops(self)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        return value

    def _function(self, given: types.FunctionType) -> Any:
        if _is_numpy(given):
            return getattr(self.namespace, given.__name__)
        if not given.__module__.startswith(PAGES):
            return given
        if given in self.known:
            return self.known[given]
        names = _Globals(given.__globals__, self)
        cells = tuple(types.CellType() for _ in given.__closure__ or ())
        made = types.FunctionType(
            given.__code__, dict[str, Any](), given.__name__, given.__defaults__, cells
        )
        self.known[given] = made  # before what it refers to, which may be itself
        for cell, old in zip(cells, given.__closure__ or ()):
            cell.cell_contents = self._replaced(old.cell_contents)
        made.__globals__.update(names.needed(given.__code__))
        made.__kwdefaults__ = given.__kwdefaults__
        return made


@dataclass(frozen=True, slots=True)
class _Globals:
    given: dict[str, Any]
    derivation: Derivation

    def needed(self, code: types.CodeType) -> dict[str, Any]:
        """The names that code, and code inside of it, refers to."""
        found = {"__builtins__": self.given["__builtins__"]}
        todo = [code]
        while todo:
            each = todo.pop()
            todo += [c for c in each.co_consts if isinstance(c, types.CodeType)]
            for name in each.co_names:
                if name in self.given and name not in found:
                    found[name] = self.derivation._replaced(self.given[name])  # pyright: ignore[reportPrivateUsage]
        return found


@dataclass(frozen=True, slots=True)
class _Ops:
    """`rlx.ops`, whose ops are the engine's calls."""

    derivation: Derivation

    def __getattr__(self, name: str) -> Any:
        return _Op(self.derivation, lookup(name))


@dataclass(frozen=True, slots=True)
class _Op:
    """An op inside of another's meaning: the engine's call, or its own meaning on the namespace."""

    derivation: Derivation
    op: Op

    def __call__(self, *operands: Any, **attrs: Any) -> Any:
        return self.derivation.call(self.op)(*operands, **attrs)

    @property
    def reference(self) -> Callable[..., Any]:
        return self.derivation.function(self.op.reference)


def _is_numpy(function: types.FunctionType) -> bool:
    """NumPy's functions in Python, such as `np.take`, are dispatched by it, and no others."""
    return getattr(np, function.__name__, None) is function
