"""Every op as a function: on nodes it builds the graph, on arrays it runs the reference."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from rlx import op

    if name.startswith("_") or (found := op.find(name)) is None:
        raise AttributeError(f"rlx.ops has no op {name!r}")
    return found


def __dir__() -> list[str]:
    from rlx import op

    return sorted(op.names())
