"""Patterns: expression trees over variables, made by calling ops, that rules match."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlx.ops.op import Op


class Pattern:
    """An op applied to patterns: what a rule looks for."""

    __slots__ = ("args", "attrs", "op")

    def __init__(self, op: Op, args: tuple[Any, ...], attrs: dict[str, Any]) -> None:
        self.op, self.args, self.attrs = op, args, attrs


class Var:
    """A pattern variable: matches any node, or any attribute value."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name
