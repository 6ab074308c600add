"""What every program of attention begins with: arguments, rows, results and softmax."""

from __future__ import annotations

from abc import ABC, abstractmethod

from rlx.backends.gpu.lower.attention.frame import Frame, Row
from rlx.backends.gpu.lower.attention.results import Results
from rlx.backends.gpu.lower.attention.softmax import Softmax
from rlx.backends.gpu.machine import GpuMachine
from rlx.backends.gpu.schedule.attention import AttentionSchedule
from rlx.backends.gpu.simt.builder import Builder
from rlx.backends.gpu.simt.values import Var
from rlx.core.dim import exact_div
from rlx.kernel.attention import Attention


class AttentionKernel(ABC):
    """One program."""

    is_scaled = False
    """Are the queries multiplied by the scale before their products?"""

    def __init__(
        self,
        form: Attention,
        schedule: AttentionSchedule,
        machine: GpuMachine,
        constants: frozenset[int],
        b: Builder,
    ) -> None:
        self.form, self.schedule, self.machine, self.b = form, schedule, machine, b
        self.frame = Frame(
            b, form, schedule.rows, schedule.splits, schedule.members, schedule.section
        )
        self.frame.take(constants)
        has_parts = schedule.splits > 1 and not schedule.is_cluster
        self.results = Results(self.frame, has_parts=has_parts)
        self.softmax = Softmax(self.frame, is_scaled=self.is_scaled)

    @abstractmethod
    def build(self) -> None:
        """Write the program."""

    def row(self, number: Var) -> Row:
        """A row of the block."""
        return self.frame.row(self.frame.first + number)

    def keys_divide(self) -> bool:
        """Are there only whole tiles of keys?"""
        return exact_div(self.form.keys, self.schedule.keys) is not None
