"""The seven targets, as documented: claims, limits, prices, and what the hardware forbids."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING

from rlx.core.dtype import DType
from rlx.cost.machine import DOCUMENTED
from rlx.cost.target import LOOPS, REGION_KINDS, FusionLimits, KernelLimit, Target
from rlx.ops.op import Kind

if TYPE_CHECKING:
    from rlx.ir.mir import Node

_BOUNDED = FusionLimits(32, 16)
_BOUNDED_CODE = FusionLimits(None, 64, 8, 1024)
"""Of straight-line code that LLVM optimises: its time per op stays that of small regions."""

# -- claims ---------------------------------------------------------------------------------------


_GENERATED = frozenset({Kind.ELEMENTWISE, Kind.REDUCTION})
"""Kernels that every target generates from the op's own expression."""

# -- what does not exist --------------------------------------------------------------------------

_INSTEAD_OF_DOUBLE = "Use {}, or the option f64='f32' (--f64 f32)"
_NO_DOUBLE_WGSL = {
    DType.F64: "WGSL has no 64-bit floats. " + _INSTEAD_OF_DOUBLE.format("f32"),
    DType.C128: "WGSL has no 64-bit floats. " + _INSTEAD_OF_DOUBLE.format("c64"),
}
_NO_DOUBLE_MSL = {
    DType.F64: "the Metal shading language has no double. " + _INSTEAD_OF_DOUBLE.format("f32"),
    DType.C128: "the Metal shading language has no double. " + _INSTEAD_OF_DOUBLE.format("c64"),
}

# -- what is read in place ------------------------------------------------------------------------

_STRIDED = frozenset({"transpose", "narrow", "slice", "expand", "flip"})
_HOST = frozenset({"custom"})
_GPU_REGIONS = frozenset(REGION_KINDS)
_ALL_REGIONS = _GPU_REGIONS - {"few_rows"}
"""Where a kernel begins at no cost, what few rows give is made once."""
_ALL_LOOPS = frozenset(LOOPS)


@dataclass(frozen=True, slots=True)
class CallLimit(KernelLimit):
    """What an engine's call takes beside dtypes, which its table states: a target is data, so that
    it names the row."""

    target: str = ""
    op: str = ""

    def why_not(self, node: Node) -> str | None:
        row = import_module(f"rlx.backends.{self.target}.calls").table().get(self.op)
        why = row.lowers(node) if row and row.lowers else None
        return why or super(CallLimit, self).why_not(node)


@functools.cache
def documented(name: str) -> Target:
    """The documented value of one of the seven."""
    made = {
        "cpu": _cpu, "cuda": _cuda, "rocm": _rocm, "metal": _metal, "mlx": _mlx, "wgpu": _wgpu,
        "tpu": _tpu,
    }  # fmt: skip
    return made[name]()


def _cpu() -> Target:
    """Claims are those of the kernels that its backend registers, and written nowhere else."""
    from rlx.backends.cpu import kernels

    return Target(
        "cpu", DOCUMENTED["cpu"], _BOUNDED_CODE, kernels.GENERATED, kernels.claims(),
        kernels.limits(), {}, {},
        views=_STRIDED, syncs=frozenset(), regions=_ALL_REGIONS, loops=_ALL_LOOPS,
        convolutions=kernels.CONVOLUTIONS, jit_compiles=True,
    )  # fmt: skip


def _cuda() -> Target:
    """The host runs branches and loops, on values that stay on the device."""
    return _by_kernels("cuda")


def _rocm() -> Target:
    return _by_kernels("rocm")


def _by_kernels(name: str) -> Target:
    """Claims are those of the kernels that GPUs have, and written nowhere else."""
    from rlx.backends.gpu import claims

    return Target(
        name, DOCUMENTED[name], _BOUNDED, _GENERATED, claims.claims(), claims.limits(), {}, {},
        views=_STRIDED, syncs=_HOST | _ALL_LOOPS - {"scan"}, regions=_GPU_REGIONS, loops=_ALL_LOOPS,
        convolutions=claims.CONVOLUTIONS,
    )  # fmt: skip


def _metal() -> Target:
    return replace(_by_kernels("metal"), missing_dtypes=_NO_DOUBLE_MSL)


def _mlx() -> Target:
    """Claims are the engine's calls. The host takes branches and loops."""
    from rlx.backends.mlx import claims

    return claims.target()


def _wgpu() -> Target:
    """WGSL has no 64-bit types: i64 and u64 are pairs of u32; smaller types are packed."""
    return replace(_by_kernels("wgpu"), missing_dtypes=_NO_DOUBLE_WGSL)


def _tpu() -> Target:
    """Claims are the engine's calls. XLA's buffers have no strides: every movement that is not a
    reshape is a copy."""
    from rlx.backends.tpu import claims

    return claims.target()
