"""Arrays on disk, so that all processes of a run have the same without making them again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.workload import Array, Workload

ROOT = Path(__file__).parent / ".cache"


def arrays(name: str, make: Callable[[], Mapping[str, Array]]) -> Mapping[str, Array]:
    """The arrays stored as `name`, made and stored if there are none yet."""
    path = ROOT / f"{name}.npz"
    if not path.exists():
        ROOT.mkdir(exist_ok=True)
        part = ROOT / f"{name}.{os.getpid()}.npz"
        np.savez(part, **{k: np.asarray(v) for k, v in make().items()})  # pyright: ignore[reportArgumentType]
        part.replace(path)
    with np.load(path) as stored:
        return {k: stored[k] for k in stored.files}


def exact(workload: Workload) -> list[Array]:
    """The workload's results in double precision."""
    made = arrays(f"{workload.key}.exact", lambda: {str(i): a for i, a in enumerate(run(workload))})
    return [made[str(i)] for i in range(len(made))]


def run(workload: Workload) -> tuple[Array, ...]:
    """What the function gives in NumPy with every float a double."""
    from bench.dialects import for_numpy

    params = {k: _doubled(v) for k, v in workload.params.items()}
    made: Any = workload.function(for_numpy, params, *map(_doubled, workload.inputs))
    return made if isinstance(made, tuple) else (made,)


def _doubled(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
