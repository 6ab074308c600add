"""Every op as a function: on nodes it builds the graph, on arrays it runs the reference."""

from __future__ import annotations

from typing import Any

_MODULES = frozenset(("compose", "control_flow", "custom_ops", "draw", "op", "operands", "pattern"))
"""What declares ops is imported before any of them is there."""


def __getattr__(name: str) -> Any:
    from rlx.ops.op import find

    if name.startswith("_") or name in _MODULES or (found := find(name)) is None:
        raise AttributeError(f"rlx.ops has no op {name!r}")
    return found


def __dir__() -> list[str]:
    from rlx.ops.op import names

    return sorted(names())
