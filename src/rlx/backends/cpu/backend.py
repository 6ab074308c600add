"""The backend: what the target claims, and how a plan becomes a program."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from importlib.util import find_spec

from rlx.backends.cpu.program import CpuProgram
from rlx.cost.target import Target
from rlx.errors import Error, UnsupportedError
from rlx.ir.lir import LirModule
from rlx.runtime.interface import Interface

WHY_DENSE = (
    "the CPU backend has no factorisation kernels yet, and a lowering would not be one: "
    "use target='reference', which has LAPACK's"
)
REFUSED = ("qr", "svd", "eigh", "solve", "slogdet")
COMPOSED = frozenset({
    "fused_attention_block", "stft", "log_mel", "welch_peaks", "ifft", "rfft", "irfft",
    "lfilter", "sosfilt", "selective_scan", "mamba2", "gated_delta_net", "linear_attention",
})  # fmt: skip
"""Ops that the documented target claims and that are several kernels here: written out before
fusion, their parts take part in it."""


@dataclass(frozen=True, slots=True)
class CpuBackend:
    """Native code for one instruction set, run by some threads."""

    name: str = "cpu"
    variant: str = "host"
    threads: int | None = None
    """As many as there are cores, where it is None."""

    def configured(self, variant: str, threads: int | None) -> CpuBackend:
        """This backend for another instruction set (`host` is this machine's), or other threads."""
        if threads is not None and threads < 1:
            raise Error(f"threads is {threads}. Give a positive number, or None for all cores.")
        return CpuBackend(self.name, variant or "host", threads)

    def target(self) -> Target:
        """The documented target without the kernels it has not."""
        documented = Target.of("cpu")
        refused = dict.fromkeys(REFUSED, WHY_DENSE)
        return replace(
            documented,
            native=documented.native - COMPOSED,
            refusals={**documented.refusals, **refused},
        )

    def load(self, lir: LirModule) -> CpuProgram:
        if find_spec("llvmlite") is None:
            raise UnsupportedError(
                "target 'cpu' needs llvmlite to make native code: pip install 'rlx[cpu]'. "
                "Without it the plan runs on NumPy: target='reference'."
            )
        from rlx.backends.cpu.artefact import compiled
        from rlx.backends.cpu.isa import isa

        artefact = compiled(lir, isa(self.variant))
        return CpuProgram(artefact, Interface.of(lir.mir.graph), self.num_threads)

    @property
    def num_threads(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))
