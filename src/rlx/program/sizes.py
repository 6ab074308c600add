"""Programs over other sizes: the dims of the grid and of every argument replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

from rlx.core.dim import Dim, DimLike
from rlx.program.nodes import Value
from rlx.program.program import Program


def resized(program: Program, change: Callable[[DimLike], DimLike]) -> Program:
    """The same program where dims are others; its body has none."""

    def changed(given: Any) -> Any:
        if isinstance(given, Dim):
            return change(given)
        if isinstance(given, tuple):
            return tuple(map(changed, given))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        if isinstance(given, Value) or not is_dataclass(type(given)):
            return given
        return replace(given, **{f.name: changed(getattr(given, f.name)) for f in fields(given)})

    parts = ("grid", "buffers", "scalars", "maps")
    return replace(program, **{name: changed(getattr(program, name)) for name in parts})
