"""The named algorithms of GPUs, registered: which ops each serves, and what makes its launches.

What a GPU target claims is derived from these rows: an op without one is lowered into ops that
have some, or is the host's. A row names the code that serves it, which is imported when a step
first needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.backends.gpu.library.launches import Launches
    from rlx.backends.gpu.task import GpuTask
    from rlx.kernel.program.schedule import Schedule
    from rlx.kernel.refusal import Refusal

    Maker = Callable[[Launches], Schedule[GpuTask] | Refusal]


@dataclass(frozen=True, slots=True)
class Registered:
    """Ops, and the code that makes their launches: `module:function`, below this package."""

    ops: tuple[str, ...]
    code: str

    def load(self) -> Maker:
        """The function."""
        module, _, name = self.code.partition(":")
        return getattr(import_module(f"rlx.backends.gpu.library.{module}"), name)


def _row(ops: str, code: str) -> Registered:
    return Registered(tuple(ops.split()), code)


DEDICATED = (
    _row("sort", "sort.sort:make_sort"),
    _row("non_max_suppression", "nms:make_nms"),
    _row("max_pool avg_pool lp_pool", "pool:make_pool"),
    _row("max_pool_with_indices", "pool:make_max_pool_with_indices"),
    _row("roi_align", "roi_align:make_roi_align"),
    _row("tree_ensemble", "trees:make_tree_ensemble"),
    _row("cholesky", "triangular:make_cholesky"),
    _row("triangular_solve", "triangular:make_triangular_solve"),
    _row("ifft", "fft.fft:make_ifft"),
    _row("rfft", "fft.fft:make_rfft"),
    _row("irfft", "fft.fft:make_irfft"),
    _row("stft", "fft.spectra:make_stft"),
    _row("power_frames", "fft.spectra:make_power_frames"),
    _row("mean_power", "fft.spectra:make_mean_power"),
    _row("mel_frames", "fft.spectra:make_mel_frames"),
    _row("cached_attention", "cached_attention:make_cached_attention"),
    _row("append", "state_updates:make_append"),
    _row("assign", "state_updates:make_assign"),
)
"""Ops that have a lowering, too: a target claims them."""

PRIMITIVES = (
    _row("take_along_axis", "gather_scatter:make_take_along_axis"),
    _row("scatter scatter_add", "gather_scatter:make_scatter"),
    _row("fft", "fft.fft:make_fft"),
    _row("argsort", "sort.sort:make_argsort"),
    _row("top_k", "sort.top_k:make_top_k"),
    _row("unique", "sort.unique:make_unique"),
    _row("nonzero", "compaction:make_nonzero"),
    _row("arange", "sizes:make_arange"),
    _row("as_size", "sizes:make_as_size"),
    _row("same_size", "sizes:make_same_size"),
)
"""Ops without a lowering, which a target has in any case: without a row the host runs them."""

_ROWS = {op: row for row in (*DEDICATED, *PRIMITIVES) for op in row.ops}


def claims() -> frozenset[str]:
    """The ops that have an algorithm here although they have a lowering."""
    return frozenset(op for row in DEDICATED for op in row.ops)


def has_algorithm(op: str) -> bool:
    """Is one written for this op?"""
    return op in _ROWS


@functools.cache
def algorithm(op: str) -> Maker | None:
    """What makes the launches of the op; None where nothing does."""
    row = _ROWS.get(op)
    return None if row is None else row.load()
