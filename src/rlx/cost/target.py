"""Targets as data: what each one can run, what its kernels can read, and what its work costs."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from rlx.errors import Error


class FusionTarget(enum.Enum):
    """The seven targets."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    METAL = "metal"
    MLX = "mlx"
    WGPU = "wgpu"
    TPU = "tpu"


@dataclass(frozen=True, slots=True)
class FusionLimits:
    """How large a region may grow; None is no limit."""

    max_elementwise_steps: int | None = None
    max_elementwise_inputs: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_elementwise_steps", "max_elementwise_inputs"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise Error(f"FusionLimits: {name} is {value!r}. Use a positive int, or None.")


class Target:
    """Filled in next."""
