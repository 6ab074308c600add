"""Every op as a function: on nodes it builds the graph, on arrays it runs the reference."""

from __future__ import annotations

from typing import Any

_MODULES = frozenset(("compose", "control_flow", "custom_ops", "draw", "op", "operands", "pattern"))
"""What declares ops is imported before any of them is there."""


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name in _MODULES:
        raise AttributeError(f"rlx.ops has no op {name!r}")
    from rlx.core.errors import GraphError, UnknownNameError
    from rlx.ops.op import lookup

    try:
        return lookup(name)
    except GraphError as error:
        raise UnknownNameError(f"rlx.ops: {error}") from None


def __dir__() -> list[str]:
    from rlx.ops.op import names

    return sorted(names())
