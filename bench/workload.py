"""What a workload is: one function for every dialect, one rlx model, arrays, and its least cost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """A computation to time.

    `function(dialect, params, *inputs)` is what peers run; `model(params)` is what rlx compiles.
    Params called `*.w` are linear weights [out, in], `*.cw` convolutions' [out, in, high, wide].
    `flops` are useful ones; `reads` and `writes` are the bytes that must move once.
    """

    name: str
    about: str
    function: Callable[..., Any]
    model: Callable[[Mapping[str, Array]], Any]
    params: Mapping[str, Array]
    inputs: tuple[Array, ...]
    flops: float
    reads: float
    writes: float
    tolerance: float = 2e-4
    has_images: bool = False

    @property
    def family(self) -> str:
        return self.name[0]

    @property
    def key(self) -> str:
        """The name, and what tells these arrays from others of the same shapes."""
        digest = hashlib.blake2b(digest_size=6)
        for array in (*self.params.values(), *self.inputs):
            digest.update(str(array.shape).encode() + array.reshape(-1)[:256].tobytes())
        return f"{self.name}-{digest.hexdigest()}"

    def rlx_params(self) -> dict[str, Array]:
        """The params as rlx's models take them: linear weights are [in, out]."""
        return {k: v.T if k.endswith(".w") else v for k, v in self.params.items()}


TOLERANCES = {"bf16": 5e-2, "int8": 1e-1}
"""What a peer may differ by in a narrow precision: a dozen layers of products whose operands are
off by 2⁻⁹, or whose weights are off by 1/254 of the greatest, each."""


def in_precision(workload: Workload, precision: str) -> Workload:
    """The workload as it is shown and judged in a precision."""
    if not precision:
        return workload
    tolerance = TOLERANCES[precision.partition(":")[0]]
    return replace(workload, name=f"{workload.name} in {precision}", tolerance=tolerance)


class Maker:
    """Random float32 numbers, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, *dims: int, scale: float = 1.0, mean: float = 0.0) -> Array:
        made = self.rng.standard_normal(dims, dtype=np.float32)
        return made if (scale, mean) == (1.0, 0.0) else (made * scale + mean).astype(np.float32)

    def weight(self, rows: int, columns: int) -> Array:
        """A linear weight [out, in] that keeps the size of what goes through it."""
        return self.normal(rows, columns, scale=columns**-0.5)

    def near_one(self, size: int) -> Array:
        return self.normal(size, scale=0.1, mean=1.0)

    def tokens(self, low: int, high: int, *dims: int) -> Array:
        return self.rng.integers(low, high, dims, dtype=np.int64)


def bytes_of(*groups: Any) -> float:
    """The bytes of arrays: of each, or of each in a mapping or tuple."""
    total = 0
    for group in groups:
        arrays = group.values() if isinstance(group, Mapping) else group
        total += sum(np.asarray(a).nbytes for a in arrays)
    return float(total)


def errors(made: Any, wanted: Any) -> float:
    """The greatest difference of any float result, as a share of the greatest value wanted."""
    worst = 0.0
    for got, exact in zip(made, wanted, strict=True):
        if exact.dtype.kind != "f":
            continue
        if got.shape != exact.shape:
            return float("inf")
        gap = np.abs(got.astype(np.float64) - exact).max() / max(float(np.abs(exact).max()), 1e-9)
        worst = max(worst, float(gap)) if np.isfinite(gap) else float("inf")
    return worst
