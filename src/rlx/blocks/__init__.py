"""Every block as a function: on nodes it builds its ops, on arrays it computes."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from rlx.ir.block import table

    if name.startswith("_") or (found := table().get(name)) is None:
        raise AttributeError(f"rlx.blocks has no block {name!r}")
    return found


def __dir__() -> list[str]:
    from rlx.ir.block import table

    return sorted(table())
