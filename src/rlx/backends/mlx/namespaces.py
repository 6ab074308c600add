"""Modules of mlx, which are imported when they are first used."""

from __future__ import annotations

from typing import Any

from rlx.backends.engine.lazy import lazy

mx = lazy("mlx.core")


class NumPyNames:
    """What takes the place of `np` in derived calls: mlx's functions, which have NumPy's names,
    but for those that it computes less accurately than ops promise."""

    def __getattr__(self, name: str) -> Any:
        from rlx.backends.mlx import numerics

        own = {"exp": numerics.exp, "sin": numerics.sin, "cos": numerics.cos}
        return own.get(name) or getattr(mx, name)
