"""Targets as data: what each one can run, what its kernels can read, and what its work costs."""

from __future__ import annotations

import enum


class FusionTarget(enum.Enum):
    """The seven targets."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    METAL = "metal"
    MLX = "mlx"
    WGPU = "wgpu"
    TPU = "tpu"
